"""The `target` option that passes share."""

from __future__ import annotations

from xdsl.utils.exceptions import PassFailedException

from qfold.targets import Target, target_named


def target_option(name: str) -> Target:
    """The target that a pass's option names. `PassFailedException`, naming those that exist, for any other."""
    try:
        return target_named(name)
    except ValueError as e:
        raise PassFailedException(str(e)) from None
