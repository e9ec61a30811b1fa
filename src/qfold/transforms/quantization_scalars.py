"""What quantising, dequantising and requantising do to one element: scalar ops in the body of a generic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IntegerAttr, IntegerType, f32, f64
from xdsl.ir import SSAValue

from qfold.dialects.element_types import i32, integer_range, is_unsigned
from qfold.dialects.qmm.requantization import HALF_ODD
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
    """`saturate(roundeven(x / scale) + zero)`; NaN: the zero point.

    The steps are clamped as a float, so that their conversion is exact, and the zero point is added to the integer. One that is
    known moves the bounds. For any other the steps are first kept as far from 0 as the range is wide, which changes no result.
    """
    low, high = integer_range(storage)
    known = _number(zero)
    least, most = low - high, high - low
    if known is not None:
        least, most = low - known, high - known
    steps = b(arith.DivfOp, x, scale)
    is_nan = b(arith.CmpfOp, steps, steps, "uno")
    steps = b(math.RoundEvenOp, b(arith.SelectOp, is_nan, b.constant(0.0, f32), steps))
    steps = b(arith.MaxnumfOp, steps, b.constant(least, f32))
    steps = b(arith.MinnumfOp, steps, b.constant(most, f32))
    whole = b(arith.FPToSIOp, steps, i32)
    if zero is not None:
        whole = b(arith.AddiOp, whole, zero)
    if known is None:
        whole = b(arith.MaxSIOp, whole, b.constant(low, i32))
        whole = b(arith.MinSIOp, whole, b.constant(high, i32))
    return b(arith.TruncIOp, whole, IntegerType(storage.width.data))


def _number(zero: SSAValue | None) -> int | None:
    """A zero point that is a constant, or absent."""
    if zero is None:
        return 0
    owner = zero.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return cast("IntegerAttr[IntegerType]", owner.value).value.data
    return None


@dataclass(frozen=True)
class Target:
    """What a requantised element may be."""

    storage: IntegerType
    low: int
    high: int

    def narrowed(self, b: ScalarBuilder, value: SSAValue) -> SSAValue:
        """An integer within the bounds, as a signless element."""
        return b(arith.TruncIOp, value, IntegerType(self.storage.width.data))

    def clamped(
        self, b: ScalarBuilder, value: SSAValue, type_: IntegerType, low: int, high: int
    ) -> SSAValue:
        """An integer between `low` and `high`, brought within the bounds, as a signless element."""
        if low < self.low:
            value = b(arith.MaxSIOp, value, b.constant(self.low, type_))
        if high > self.high:
            value = b(arith.MinSIOp, value, b.constant(self.high, type_))
        return self.narrowed(b, value)


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


def halves_taken_back(
    b: ScalarBuilder,
    total: SSAValue,
    shift: SSAValue,
    ties: SSAValue | None,
    type_: IntegerType,
    rounding: str,
) -> SSAValue:
    """`total >> shift`, where `total` has half of a unit added: halves go up, and those that went to odd (even) go back.

    A result that was rounded up from a half is left a rest below `ties` (None: 1).
    """
    one = b.constant(1, type_)
    odd = b(arith.AndIOp, b(arith.ShRSIOp, total, shift), one)
    if rounding == HALF_ODD:
        odd = b(arith.SubiOp, one, odd)
    back = odd if ties is None else b(arith.MuliOp, odd, ties)
    return b(arith.ShRSIOp, b(arith.SubiOp, total, back), shift)


def scaled_sum(
    b: ScalarBuilder, accumulator: SSAValue, mul: SSAValue, add: SSAValue, type_: IntegerType
) -> SSAValue:
    """`acc * mul + add` in i32 or i64, which all of it fits."""
    if type_ != i32:
        accumulator = b(arith.ExtSIOp, accumulator, type_)
    return b(arith.AddiOp, b(arith.MuliOp, accumulator, mul), add)


def high_half_sum(
    b: ScalarBuilder,
    accumulator: SSAValue,
    before: SSAValue | None,
    mul: SSAValue,
    after: SSAValue,
    left: int,
) -> SSAValue:
    """`mulhi((acc + before) << left, mul) + after` in i32, which all of it fits; None: 0."""
    if before is not None:
        accumulator = b(arith.AddiOp, accumulator, before)
    if left:
        accumulator = b(arith.ShLIOp, accumulator, b.constant(left, i32))
    return b(arith.AddiOp, b.insert(arith.MulSIExtendedOp(accumulator, mul)).high, after)
