"""Operators on integers that the model holds as floats: rules for those that keep them integers, see `ops/carried_integers.py`.

PULP's deployment tools write integer networks this way: FLOAT tensors throughout, `RequantShift` saying how wide its results are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from qfold.frontend.context import NodeContext
from qfold.frontend.values import Carried, Value

Rule: TypeAlias = Callable[
    [NodeContext, Mapping[int, Carried]], Sequence[SSAValue | Carried] | None
]
"""(context in which carried inputs are their integers, those inputs by index) -> the outputs, integers again; or None."""

_RULES: dict[str, Rule] = {}
_LEAVING: set[str] = set()


def on_integers(*names: str, leaves: bool = False) -> Callable[[Rule], Rule]:
    """Registers a rule for operators of ONNX's domain, or of PACTOps, which exporters also leave out.

    Where it `leaves` the integers, its results are floats, and it is also asked about integers with a zero point.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        if leaves:
            _LEAVING.update(names)
        return function

    return register


def keep_integers(
    inputs: Sequence[Value | Carried | None],
    context: Callable[[list[Value | None]], NodeContext],
) -> Sequence[SSAValue | Carried] | None:
    """The node's outputs, if some of its inputs are integers and a rule holds; else None.

    `context` gives what the node's importer sees for given inputs.
    """
    carried = {i: v for i, v in enumerate(inputs) if isinstance(v, Carried)}
    if not carried:
        return None
    ctx = context([v.integers if isinstance(v, Carried) else v for v in inputs])
    operator = ctx.node.op_type
    if operator not in _RULES or ctx.ref.domain not in ("", "PACTOps"):
        return None
    leaves = operator in _LEAVING
    if not leaves and any(v.zero_point is not None for v in carried.values()):
        return None
    results = _RULES[operator](ctx, carried)
    if results is None or leaves:
        return results
    held = next(iter(carried.values())).type
    strict = any(v.strict for v in carried.values())
    return [r if isinstance(r, Carried) else Carried(r, held, strict=strict) for r in results]
