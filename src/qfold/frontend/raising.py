"""Rules for nodes on constants that are recorded instead of computed: see `ops/constant_arithmetic.py`, `ops/constant_layout.py`
and `ops/quantization.py`.

An integer constant of 8 bits or less never becomes a float constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute

from qfold.dialects.element_types import i4, i8, ui4, ui8
from qfold.frontend.values import Carried, Const, Quantized, Value

if TYPE_CHECKING:
    from qfold.frontend.context import NodeContext

Rule: TypeAlias = "Callable[[NodeContext], Sequence[Value | Carried] | None]"
"""The node's outputs, or None to let it be folded or imported like any other."""

_RULES: dict[tuple[str, str], Rule] = {}

_SHAPE_LIKE = 64
"""Integer constants of up to this many elements may be shape computations and are evaluated; larger ones are data."""


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Registers a rule for operators of `domain`."""

    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[domain, name] = function
        return function

    return register


def handles(domain: str, op_type: str) -> bool:
    """Whether there is a rule for the operator."""
    return (domain, op_type) in _RULES


def handled_ops() -> list[tuple[str, str]]:
    """All (domain, operator) pairs with a rule, sorted."""
    return sorted(_RULES)


def raise_node(ctx: NodeContext) -> Sequence[Value | Carried] | None:
    """Applies the rule for the node, if there is one and it holds."""
    found = _RULES.get((ctx.ref.domain, ctx.node.op_type))
    return None if found is None else found(ctx)


def is_narrow_integer(element_type: Attribute) -> bool:
    """Whether this is what quantised weights are stored as: an integer of 4 or 8 bits."""
    return element_type in (i4, ui4, i8, ui8)


def plain_const(value: Value) -> Const | None:
    """The value as a constant to compute with at import, or None for SSA values and quantised weights."""
    if isinstance(value, Const):
        return value
    if isinstance(value, Quantized):
        limit = 1 if value.type == f32 else _SHAPE_LIKE
        if value.q.array.size <= limit:
            return Const(value.evaluate(), value.type, value.name)
    return None
