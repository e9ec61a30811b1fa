"""Target descriptions: data that the transforms and the backend read."""

from qfold.targets.description import ANY_TYPE, Kernel, MemoryLevel, Target, Toolchain
from qfold.targets.host import HOST

TARGETS: dict[str, Target] = {t.name: t for t in (HOST,)}
"""Every target by name."""


def target_named(name: str) -> Target:
    """The target of that name. `ValueError`, naming those that exist, for any other."""
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"unknown target {name!r}; known: {', '.join(TARGETS)}") from None


__all__ = [
    "ANY_TYPE",
    "HOST",
    "TARGETS",
    "Kernel",
    "MemoryLevel",
    "Target",
    "Toolchain",
    "target_named",
]
