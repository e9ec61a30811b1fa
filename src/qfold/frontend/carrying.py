"""Operators on integers that the model holds as floats: rules for those that keep them integers, see `ops/carried_integers.py`.

PULP's deployment tools write integer networks this way: FLOAT tensors throughout, `RequantShift` saying how wide its results are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from qfold.frontend.context import NodeContext
from qfold.frontend.values import Carried, Value

Rule: TypeAlias = Callable[[NodeContext, frozenset[int]], Sequence[SSAValue] | None]
"""(context in which carried inputs are their integers, indices of those inputs) -> the outputs, integers again; or None."""

_RULES: dict[str, Rule] = {}


def on_integers(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operators of ONNX's domain, or of PACTOps, which exporters also leave out."""

    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        return function

    return register


def keep_integers(
    inputs: Sequence[Value | Carried | None],
    context: Callable[[list[Value | None]], NodeContext],
) -> Sequence[Carried] | None:
    """The node's outputs as integers, if some of its inputs are and a rule holds; else None.

    `context` gives what the node's importer sees for given inputs.
    """
    carried = {i: v for i, v in enumerate(inputs) if isinstance(v, Carried)}
    if not carried:
        return None
    ctx = context([v.integers if isinstance(v, Carried) else v for v in inputs])
    found = _RULES.get(ctx.node.op_type)
    if found is None or ctx.ref.domain not in ("", "PACTOps"):
        return None
    results = found(ctx, frozenset(carried))
    if results is None:
        return None
    held = next(iter(carried.values())).type
    return [Carried(result, held) for result in results]
