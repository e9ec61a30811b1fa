"""Comparison, logic, bits, choice, and tests for special floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from qfold.dialects.element_types import bit_width, i1, is_unsigned, signless
from qfold.frontend.context import NodeContext
from qfold.frontend.ops import scalars
from qfold.frontend.ops.generics import pointwise, unary
from qfold.frontend.ops.scalars import (
    FLOATS,
    INTEGERS,
    MOVABLE,
    NUMBERS,
    Predicate,
    common_element,
    element_of,
)
from qfold.frontend.registry import Importer, onnx_op
from qfold.ir.builder import ScalarBuilder


def _comparison(predicate: Predicate) -> Importer:
    supported = (*NUMBERS, i1) if predicate == "eq" else NUMBERS

    def importer(ctx: NodeContext) -> SSAValue:
        type_ = common_element(ctx, supported, 0, 1)
        return pointwise(
            ctx, [0, 1], i1, lambda b, e: scalars.compare(b, predicate, type_, e[0], e[1])
        )

    return importer


onnx_op("Equal")(_comparison("eq"))
onnx_op("Less")(_comparison("lt"))
onnx_op("LessOrEqual")(_comparison("le"))
onnx_op("Greater")(_comparison("gt"))
onnx_op("GreaterOrEqual")(_comparison("ge"))


def _bits(operation: Callable[..., Operation], *, bools: bool) -> Importer:
    def importer(ctx: NodeContext) -> SSAValue:
        type_ = common_element(ctx, (i1,) if bools else INTEGERS, 0, 1)
        return pointwise(ctx, [0, 1], type_, lambda b, e: b(operation, e[0], e[1]))

    return importer


onnx_op("And")(_bits(arith.AndIOp, bools=True))
onnx_op("Or")(_bits(arith.OrIOp, bools=True))
onnx_op("Xor")(_bits(arith.XOrIOp, bools=True))
onnx_op("BitwiseAnd")(_bits(arith.AndIOp, bools=False))
onnx_op("BitwiseOr")(_bits(arith.OrIOp, bools=False))
onnx_op("BitwiseXor")(_bits(arith.XOrIOp, bools=False))


@onnx_op("Not")
def import_not(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, (i1,))
    return unary(ctx, type_, lambda b, x: b(arith.XOrIOp, x, b.constant(1, i1)))


@onnx_op("BitwiseNot")
def import_bitwise_not(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, INTEGERS)
    return unary(ctx, type_, lambda b, x: b(arith.XOrIOp, x, b.constant(-1, signless(type_))))


@onnx_op("BitShift")
def import_bit_shift(ctx: NodeContext) -> SSAValue:
    """A shift to the right keeps the sign of signed integers; one by the width or more (or a negative amount) shifts all out."""
    type_ = common_element(ctx, INTEGERS, 0, 1)
    direction = ctx.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        ctx.invalid(f"direction {direction!r} is neither LEFT nor RIGHT")
    right = arith.ShRUIOp if is_unsigned(type_) else arith.ShRSIOp
    operation = arith.ShLIOp if direction == "LEFT" else right

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        # MLIR and C leave a shift by the width undefined.
        last = b.constant(bit_width(type_) - 1, signless(type_))
        shifted = b(operation, e[0], b(arith.MinUIOp, e[1], last))
        if operation is arith.ShRSIOp:
            return shifted
        within = b(arith.CmpiOp, e[1], last, "ule")
        return b(arith.SelectOp, within, shifted, b.constant(0, signless(type_)))

    return pointwise(ctx, [0, 1], type_, body)


@onnx_op("IsNaN")
def import_is_nan(ctx: NodeContext) -> SSAValue:
    element_of(ctx, 0, FLOATS)
    return unary(ctx, i1, scalars.is_nan)


@onnx_op("IsInf")
def import_is_inf(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, FLOATS)
    negative, positive = bool(ctx.attr("detect_negative", 1)), bool(ctx.attr("detect_positive", 1))

    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        found = b.constant(0, i1)
        for wanted, value in ((negative, float("-inf")), (positive, float("inf"))):
            if wanted:
                here = scalars.compare(b, "eq", type_, x, b.constant(value, type_))
                found = b(arith.OrIOp, found, here)
        return found

    return unary(ctx, i1, body)


@onnx_op("Where")
def import_where(ctx: NodeContext) -> SSAValue:
    element_of(ctx, 0, (i1,))
    type_ = common_element(ctx, MOVABLE, 1, 2)
    return pointwise(ctx, [0, 1, 2], type_, lambda b, e: b(arith.SelectOp, e[0], e[1], e[2]))
