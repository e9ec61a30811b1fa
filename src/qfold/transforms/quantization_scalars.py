"""What quantising, dequantising and requantising do to one element: scalar ops in the body of a generic."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IntegerType, f32, f64
from xdsl.ir import SSAValue

from qfold.dialects.element_types import i32, i64, integer_range, is_unsigned
from qfold.ir.builder import ScalarBuilder


def widened(b: ScalarBuilder, value: SSAValue, storage: IntegerType) -> SSAValue:
    """A signless element of a storage type as i32."""
    if storage.width.data == 32:
        return value
    return b(arith.ExtUIOp if is_unsigned(storage) else arith.ExtSIOp, value, i32)


def dequantized(
    b: ScalarBuilder, q: SSAValue, storage: IntegerType, scale: SSAValue, zero: SSAValue | None
) -> SSAValue:
    """`scale * (q - zero)`, the difference in i32."""
    wide = widened(b, q, storage)
    if zero is not None:
        wide = b(arith.SubiOp, wide, zero)
    return b(arith.MulfOp, b(arith.SIToFPOp, wide, f32), scale)


def quantized(
    b: ScalarBuilder, x: SSAValue, storage: IntegerType, scale: SSAValue, zero: SSAValue | None
) -> SSAValue:
    """`saturate(roundeven(x / scale) + zero)`, clamped as a float so that the conversion is exact; NaN: the zero point."""
    low, high = integer_range(storage)
    q = b(math.RoundEvenOp, b(arith.DivfOp, x, scale))
    at_nan = b.constant(0.0, f32)
    if zero is not None:
        at_nan = b(arith.SIToFPOp, zero, f32)
        q = b(arith.AddfOp, q, at_nan)
    q = b(arith.MaximumfOp, q, b.constant(low, f32))
    q = b(arith.MinimumfOp, q, b.constant(high, f32))
    is_nan = b(arith.CmpfOp, q, q, "uno")
    q = b(arith.SelectOp, is_nan, at_nan, q)
    convert = arith.FPToUIOp if is_unsigned(storage) else arith.FPToSIOp
    return b(convert, q, IntegerType(storage.width.data))


@dataclass(frozen=True)
class Target:
    """What a requantised element may be."""

    storage: IntegerType
    low: int
    high: int

    def narrowed(self, b: ScalarBuilder, value: SSAValue) -> SSAValue:
        """An integer within the bounds, as a signless element."""
        return b(arith.TruncIOp, value, IntegerType(self.storage.width.data))


def requantized(
    b: ScalarBuilder, accumulator: SSAValue, multiplier: SSAValue, zero: int, target: Target
) -> SSAValue:
    """`clamp(roundeven(acc * multiplier) + zero)`.

    Clamped as a float, so that the conversion is exact; the zero point, an integer, moves the bounds.
    """
    product = b(arith.MulfOp, b(arith.SIToFPOp, accumulator, f64), multiplier)
    steps = b(math.RoundEvenOp, product)
    steps = b(arith.MaxnumfOp, steps, b.constant(target.low - zero, f64))
    steps = b(arith.MinnumfOp, steps, b.constant(target.high - zero, f64))
    whole = b(arith.FPToSIOp, steps, i32)
    if zero:
        whole = b(arith.AddiOp, whole, b.constant(zero, i32))
    return target.narrowed(b, whole)


def shifted(
    b: ScalarBuilder,
    accumulator: SSAValue,
    mul: SSAValue,
    add: SSAValue,
    shift: SSAValue,
    half_even: bool,
    target: Target,
) -> SSAValue:
    """`clamp((acc * mul + add) >> shift)` of i64 parameters, rounded down or half to even. 2^63 is never reached.

    What is cut off rounds up when it is more than half of a unit, or half of one and the result odd: twice the rest, and one more
    for an odd result, exceeds the unit. A shift of 0 leaves no rest, and rounds nothing.
    """
    total = b(arith.AddiOp, b(arith.MuliOp, b(arith.ExtSIOp, accumulator, i64), mul), add)
    result = b(arith.ShRSIOp, total, shift)
    if half_even:
        one = b.constant(1, i64)
        unit = b(arith.ShLIOp, one, shift)
        rest = b(arith.AndIOp, total, b(arith.SubiOp, unit, one))
        twice = b(arith.AddiOp, b(arith.AddiOp, rest, rest), b(arith.AndIOp, result, one))
        up = b(arith.CmpiOp, twice, unit, "sgt")
        result = b(arith.AddiOp, result, b(arith.ExtUIOp, up, i64))
    result = b(arith.MaxSIOp, result, b.constant(target.low, i64))
    result = b(arith.MinSIOp, result, b.constant(target.high, i64))
    return target.narrowed(b, result)
