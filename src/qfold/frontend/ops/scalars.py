"""Scalar arithmetic with ONNX's meaning for every element type, for bodies of generics.

`type_` arguments are ONNX element types (`ui8`, not `i8`): they decide signedness, while all SSA values are signless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32, f64
from xdsl.ir import Attribute, Operation, SSAValue

from qfold.dialects.element_types import (
    bit_width,
    i1,
    i4,
    i8,
    i16,
    i32,
    i64,
    integer_range,
    is_float,
    is_unsigned,
    signless,
    ui4,
    ui8,
    ui16,
    ui32,
    ui64,
)
from qfold.frontend.context import NodeContext
from qfold.ir.builder import ScalarBuilder

Combine = Callable[[ScalarBuilder, Attribute, SSAValue, SSAValue], SSAValue]
"""(builder, ONNX element type, x, y) -> an element."""

FLOATS: tuple[Attribute, ...] = (f32, f64)
SIGNED: tuple[Attribute, ...] = (i8, i16, i32, i64)
UNSIGNED: tuple[Attribute, ...] = (ui8, ui16, ui32, ui64)
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
MOVABLE = (*NUMBERS, i1, i4, ui4)
"""What can be copied around."""


def element_of(ctx: NodeContext, index: int, supported: tuple[Attribute, ...]) -> Attribute:
    """The element type of input `index`, which is refused unless it is one of `supported`."""
    type_ = ctx.type(index).element_type
    if type_ not in supported:
        ctx.refuse(f"input {index} of {type_}", f"elements of {', '.join(map(str, supported))}")
    return type_


def common_element(ctx: NodeContext, supported: tuple[Attribute, ...], *indices: int) -> Attribute:
    """The one element type of the given inputs (all inputs, by default)."""
    wanted = indices or tuple(range(ctx.num_inputs()))
    types = [element_of(ctx, i, supported) for i in wanted]
    if len(set(types)) > 1:
        ctx.invalid(f"its operands have different types: {', '.join(map(str, types))}")
    return types[0]


# Arithmetic


def _by_type(
    on_floats: Callable[..., Operation],
    on_signed: Callable[..., Operation],
    on_unsigned: Callable[..., Operation] | None = None,
) -> Combine:
    def combine(b: ScalarBuilder, type_: Attribute, x: SSAValue, y: SSAValue) -> SSAValue:
        if is_float(type_):
            return b(on_floats, x, y)
        return b(on_unsigned if on_unsigned and is_unsigned(type_) else on_signed, x, y)

    return combine


add = _by_type(arith.AddfOp, arith.AddiOp)
subtract = _by_type(arith.SubfOp, arith.SubiOp)
multiply = _by_type(arith.MulfOp, arith.MuliOp)
divide = _by_type(arith.DivfOp, arith.DivSIOp, arith.DivUIOp)
"""Integers truncate."""


maximum = _by_type(arith.MaximumfOp, arith.MaxSIOp, arith.MaxUIOp)
"""NaN if either is."""
minimum = _by_type(arith.MinimumfOp, arith.MinSIOp, arith.MinUIOp)
"""NaN if either is."""


def negate(b: ScalarBuilder, type_: Attribute, x: SSAValue) -> SSAValue:
    """`-x`; integers wrap."""
    if is_float(type_):
        return b(arith.NegfOp, x)
    return b(arith.SubiOp, b.constant(0, signless(type_)), x)


def absolute(b: ScalarBuilder, type_: Attribute, x: SSAValue) -> SSAValue:
    """`|x|`; the lowest signed integer stays itself."""
    if is_float(type_):
        return b(math.AbsFOp, x)
    if is_unsigned(type_):
        return x
    return b(arith.MaxSIOp, x, b(arith.SubiOp, b.constant(0, signless(type_)), x))


def square(b: ScalarBuilder, type_: Attribute, x: SSAValue) -> SSAValue:
    return multiply(b, type_, x, x)


def sign(b: ScalarBuilder, type_: Attribute, x: SSAValue) -> SSAValue:
    """-1, 0 or 1; NaN stays NaN."""
    zero, one = b.constant(0, signless(type_)), b.constant(1, signless(type_))
    if is_unsigned(type_):
        return b(arith.MinUIOp, x, one)
    rest = b(
        arith.SelectOp,
        compare(b, "lt", type_, x, zero),
        b.constant(-1, signless(type_)),
        x if is_float(type_) else zero,
    )
    return b(arith.SelectOp, compare(b, "gt", type_, x, zero), one, rest)


# Comparison

Predicate = Literal["eq", "ne", "lt", "le", "gt", "ge"]
_ON_FLOATS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def compare(
    b: ScalarBuilder, predicate: Predicate, type_: Attribute, x: SSAValue, y: SSAValue
) -> SSAValue:
    """`x <predicate> y` as `i1`; with a NaN only `ne` holds."""
    if is_float(type_):
        return b(arith.CmpfOp, x, y, _ON_FLOATS[predicate])
    if predicate in ("eq", "ne"):
        return b(arith.CmpiOp, x, y, predicate)
    # A bool is a one-bit unsigned integer.
    unsigned = is_unsigned(type_) or type_ == i1
    return b(arith.CmpiOp, x, y, ("u" if unsigned else "s") + predicate)


def is_nan(b: ScalarBuilder, x: SSAValue) -> SSAValue:
    return b(arith.CmpfOp, x, x, "uno")


# Conversion


def convert(b: ScalarBuilder, source: Attribute, target: Attribute, x: SSAValue) -> SSAValue:
    """ONNX's Cast. Float to integer truncates and saturates (NaN: 0), 4-bit ones wrap; integers wrap; a bool is `x != 0`."""
    if source == target:
        return x
    to = signless(target)
    if target == i1:
        return compare(b, "ne", source, x, b.constant(0, signless(source)))
    if is_float(source):
        if is_float(target):
            wider = bit_width(target) > bit_width(source)
            return b(arith.ExtFOp if wider else arith.TruncFOp, x, to)
        if bit_width(target) == 4:
            # ONNX's reference wraps here, through a wider integer.
            return b(arith.TruncIOp, b(arith.FPToSIOp, x, i32), to)
        return b(arith.FPToUIOp if is_unsigned(target) else arith.FPToSIOp, x, to)
    unsigned = is_unsigned(source) or source == i1
    have = 1 if source == i1 else bit_width(source)
    if is_float(target):
        if have == 4:
            x = b(arith.ExtUIOp if unsigned else arith.ExtSIOp, x, i8)
        return b(arith.UIToFPOp if unsigned else arith.SIToFPOp, x, to)
    if bit_width(target) > have:
        return b(arith.ExtUIOp if unsigned else arith.ExtSIOp, x, to)
    return b(arith.TruncIOp, x, to) if bit_width(target) < have else x


def lowest(type_: Attribute) -> float | int:
    """The neutral element of `maximum`."""
    return float("-inf") if is_float(type_) else integer_range(type_)[0]


def highest(type_: Attribute) -> float | int:
    """The neutral element of `minimum`."""
    return float("inf") if is_float(type_) else integer_range(type_)[1]
