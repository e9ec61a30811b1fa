"""Arithmetic on elements: Add ... Pow, Sqrt ... Sign, and the variadic Sum, Mean, Min, Max."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, Operation, SSAValue

from qfold.dialects.element_types import is_float, is_unsigned, signless
from qfold.frontend.context import NodeContext
from qfold.frontend.ops import scalars
from qfold.frontend.ops.generics import pointwise, unary
from qfold.frontend.ops.scalars import FLOATS, INTEGERS, NUMBERS, SIGNED, Combine, common_element
from qfold.frontend.registry import Importer, onnx_op
from qfold.ir.builder import ScalarBuilder

# Two operands


def binary(combine: Combine) -> Importer:
    """The importer of an operator with two operands of one type, numpy's broadcasting."""

    def importer(ctx: NodeContext) -> SSAValue:
        type_ = common_element(ctx, NUMBERS, 0, 1)
        return pointwise(ctx, [0, 1], type_, lambda b, e: combine(b, type_, e[0], e[1]))

    return importer


onnx_op("Add")(binary(scalars.add))
onnx_op("Sub")(binary(scalars.subtract))
onnx_op("Mul")(binary(scalars.multiply))
onnx_op("Div")(binary(scalars.divide))


@onnx_op("Mod")
def import_mod(ctx: NodeContext) -> SSAValue:
    """Integers: the sign of the divisor, as in Python, or of the dividend with `fmod`."""
    type_ = common_element(ctx, (*NUMBERS,), 0, 1)
    if is_float(type_):
        ctx.refuse(f"the remainder of {type_}", "integers")
    keeps_dividend_sign = bool(ctx.attr("fmod", 0))

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        x, y = e
        if is_unsigned(type_):
            return b(arith.RemUIOp, x, y)
        remainder = b(arith.RemSIOp, x, y)
        if keeps_dividend_sign:
            return remainder
        zero = b.constant(0, signless(type_))
        inexact = scalars.compare(b, "ne", type_, remainder, zero)
        signs = b(arith.XOrIOp, remainder, y)
        wrong = b(arith.AndIOp, inexact, scalars.compare(b, "lt", type_, signs, zero))
        return b(arith.SelectOp, wrong, b(arith.AddiOp, remainder, y), remainder)

    return pointwise(ctx, [0, 1], type_, body)


_EXACT_POWERS = (1.0, 2.0, 3.0)
"""Exponents for which products are as accurate as a general power."""


@onnx_op("Pow")
def import_pow(ctx: NodeContext) -> SSAValue:
    """The result has the type of the base; an integer base takes an integer exponent."""
    base = scalars.element_of(ctx, 0, NUMBERS)
    exponent = scalars.element_of(ctx, 1, NUMBERS)
    known = ctx.const(1)
    if known is not None and known.size == 1 and float(known.reshape(-1)[0]) in _EXACT_POWERS:
        power = int(known.reshape(-1)[0])

        def multiplied(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
            result = e[0]
            for _ in range(power - 1):
                result = scalars.multiply(b, base, result, e[0])
            return result

        return pointwise(ctx, [0, 1], base, multiplied)
    if base == f32:
        return pointwise(
            ctx,
            [0, 1],
            base,
            lambda b, e: b(math.PowFOp, e[0], scalars.convert(b, exponent, base, e[1])),
        )
    if base in INTEGERS and exponent in INTEGERS:
        if known is not None and (known >= 0).all():
            return pointwise(ctx, [0, 1], base, _integer_power(base, exponent, known))
        ctx.refuse("integers to a power that is negative or not constant", "a constant power >= 0")
    ctx.refuse(f"{base} to the power of {exponent}", "f32, or integers to an integer power")


def _integer_power(
    base: Attribute, exponent: Attribute, known: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> Callable[[ScalarBuilder, Sequence[SSAValue]], SSAValue]:
    """Square and multiply, over the bits that the constant exponents use."""
    bits = int(known.max()).bit_length() if known.size else 0

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        result, factor = b.constant(1, signless(base)), e[0]
        one, zero = b.constant(1, signless(exponent)), b.constant(0, signless(exponent))
        for bit in range(bits):
            shifted = b(arith.ShRUIOp, e[1], b.constant(bit, signless(exponent)))
            is_set = b(arith.CmpiOp, b(arith.AndIOp, shifted, one), zero, "ne")
            product = b(arith.MuliOp, result, factor)
            result = b(arith.SelectOp, is_set, product, result)
            if bit + 1 < bits:
                factor = b(arith.MuliOp, factor, factor)
        return result

    return body


# One operand


def _function(operation: Callable[..., Operation]) -> Importer:
    """A float function that the C runtime has for f32."""

    def importer(ctx: NodeContext) -> SSAValue:
        type_ = scalars.element_of(ctx, 0, (f32,))
        return unary(ctx, type_, lambda b, x: b(operation, x))

    return importer


onnx_op("Sqrt")(_function(math.SqrtOp))
onnx_op("Exp")(_function(math.ExpOp))
onnx_op("Log")(_function(math.LogOp))
onnx_op("Erf")(_function(math.ErfOp))
onnx_op("Tanh")(_function(math.TanhOp))
onnx_op("Floor")(_function(math.FloorOp))
onnx_op("Ceil")(_function(math.CeilOp))
onnx_op("Round")(_function(math.RoundEvenOp))


@onnx_op("Reciprocal")
def import_reciprocal(ctx: NodeContext) -> SSAValue:
    type_ = scalars.element_of(ctx, 0, FLOATS)
    return unary(ctx, type_, lambda b, x: b(arith.DivfOp, b.constant(1.0, type_), x))


@onnx_op("Neg")
def import_neg(ctx: NodeContext) -> SSAValue:
    type_ = scalars.element_of(ctx, 0, (*FLOATS, *SIGNED))
    return unary(ctx, type_, lambda b, x: scalars.negate(b, type_, x))


@onnx_op("Abs")
def import_abs(ctx: NodeContext) -> SSAValue:
    type_ = scalars.element_of(ctx, 0, NUMBERS)
    return unary(ctx, type_, lambda b, x: scalars.absolute(b, type_, x))


@onnx_op("Sign")
def import_sign(ctx: NodeContext) -> SSAValue:
    type_ = scalars.element_of(ctx, 0, NUMBERS)
    return unary(ctx, type_, lambda b, x: scalars.sign(b, type_, x))


# Any number of operands


def _variadic(
    combine: Combine, supported: tuple[Attribute, ...], *, mean: bool = False
) -> Importer:
    def importer(ctx: NodeContext) -> SSAValue:
        count = ctx.num_inputs()
        if count == 0:
            ctx.invalid("it has no inputs")
        type_ = common_element(ctx, supported)

        def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
            result = e[0]
            for x in e[1:]:
                result = combine(b, type_, result, x)
            if mean and count > 1:
                result = b(arith.DivfOp, result, b.constant(count, type_))
            return result

        return ctx.value(0) if count == 1 else pointwise(ctx, range(count), type_, body)

    return importer


onnx_op("Sum")(_variadic(scalars.add, FLOATS))
onnx_op("Mean")(_variadic(scalars.add, FLOATS, mean=True))
onnx_op("Max")(_variadic(scalars.maximum, NUMBERS))
onnx_op("Min")(_variadic(scalars.minimum, NUMBERS))
