"""Target descriptions: data that the transforms and the backend read."""

from qfold.targets.cluster import CLUSTERS
from qfold.targets.description import ANY_TYPE, Isa, Kernel, MemoryLevel, Target, Toolchain
from qfold.targets.host import HOST
from qfold.targets.options import known_options, with_options

TARGETS: dict[str, Target] = {t.name: t for t in (HOST, *CLUSTERS)}
"""Every target by name."""


def target_named(spec: str) -> Target:
    """The target of a name, with options: `spike`, `spike:cores=4,isa=f`.

    `ValueError`, naming what exists, for an unknown name, an unknown option, or a value that the target cannot have.
    """
    name, _, options = spec.partition(":")
    try:
        target = TARGETS[name]
    except KeyError:
        raise ValueError(f"unknown target {name!r}; known: {', '.join(TARGETS)}") from None
    return with_options(target, options)


__all__ = [
    "ANY_TYPE",
    "HOST",
    "TARGETS",
    "Isa",
    "Kernel",
    "MemoryLevel",
    "Target",
    "Toolchain",
    "known_options",
    "target_named",
]
