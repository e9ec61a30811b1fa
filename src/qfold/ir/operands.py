"""Operands by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation


def named_operands(op: Operation) -> list[tuple[str, SSAValue]]:
    """(name in the op's definition, value) of each operand, in order; a variadic operand gives its name to all of its values."""
    names: list[tuple[str, SSAValue]] = []
    for name, _ in cast(IRDLOperation, op).get_irdl_definition().operands:
        group = getattr(op, name)
        if group is None:
            continue
        if isinstance(group, SSAValue):
            names.append((name, cast(SSAValue, group)))
        else:
            names += [(name, v) for v in cast(Sequence[SSAValue], group)]
    return names
