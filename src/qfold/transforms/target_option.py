"""The `target` option that passes share."""

from __future__ import annotations

from xdsl.utils.exceptions import PassFailedException

from qfold.targets import Target, target_named


def target_option(name: str, *, scratchpad: bool = False) -> Target:
    """The target that a pass's option names.

    `PassFailedException`, naming those that exist, for any other, and for one without a scratchpad when the pass needs one.
    """
    try:
        target = target_named(name)
    except ValueError as e:
        raise PassFailedException(str(e)) from None
    if scratchpad and not target.is_cluster:
        raise PassFailedException(f"target {target.name} has no scratchpad to bring tiles to")
    return target
