"""Requantisation by shifts as numbers: what it computes, and in which arithmetic that fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qfold.dialects import qmm
from qfold.dialects.element_types import i32, integer_range
from qfold.dialects.qmm.requantization import FLOOR, Integers
from qfold.transforms.qmm_check_accumulators import Range

_LOW, _HIGH = integer_range(i32)
LARGEST_MUL = 2**31 - 1
LARGEST_BEFORE = 4096
"""Up to what is added to an accumulator ahead of its product."""


@dataclass(frozen=True)
class FixedPoint:
    """`(x - ties * odd(x >> shift)) >> shift` of `x = acc * mul + offset`; `half_odd` takes back from even results instead.

    `floor` has no ties. Otherwise half of a unit is in `offset`, so that halves go up, and go back from where they should not be.
    Each array has one element per channel.
    """

    mul: Integers
    offset: Integers
    shift: Integers
    ties: Integers
    rounding: str = FLOOR

    @staticmethod
    def of(op: qmm.RequantizeShiftOp) -> FixedPoint:
        """What an op computes before it clamps."""
        rounding = op.rounding.data
        ties = np.array([0]) if rounding == FLOOR else op.tie_widths
        mul, add, shift, ties = np.broadcast_arrays(*op.parameters, ties)
        half = np.int64(0) if rounding == FLOOR else (np.int64(1) << shift) >> 1
        return FixedPoint(mul, add + half, shift, ties, rounding)

    @property
    def add(self) -> Integers:
        """As `qmm.requantize_shift` has it: without the half."""
        if self.rounding == FLOOR:
            return self.offset
        return self.offset - ((np.int64(1) << self.shift) >> 1)

    def results(self, range_: Range) -> tuple[int, int]:
        """Bounds of the result of an accumulator in the range, before it is clamped.

        In integers of any length: what is known of an accumulator may be so little that 64 bits do not hold its product.
        """
        found: list[int] = []
        for mul, offset, shift, ties in zip(
            *(x.tolist() for x in (self.mul, self.offset, self.shift, self.ties)), strict=True
        ):
            for accumulator in (range_.low, range_.high):
                x = accumulator * mul + offset
                found += [(x - ties) >> shift, x >> shift]
        return min(found), max(found)


def fits_narrow(fixed: FixedPoint, range_: Range) -> bool:
    """Whether products and sums of every accumulator of the range fit 32 bits."""
    if (fixed.shift > 30).any() or (np.abs(fixed.mul) > LARGEST_MUL).any():
        return False
    for accumulator in (range_.low, range_.high):
        product = np.int64(accumulator) * fixed.mul
        total = product + fixed.offset
        for value in (product, total, total - fixed.ties, fixed.offset, fixed.ties):
            if (value < _LOW).any() or (value > _HIGH).any():
                return False
    return True


def lefts(range_: Range) -> range:
    """By how much an accumulator may be shifted up, the most first."""
    room = max(1, -range_.low - 1, range_.high)
    return range(31 - room.bit_length(), -1, -1)


@dataclass(frozen=True)
class HighHalf:
    """A `FixedPoint` in 32 bits: `x = mulhi((acc + before) << left, mul) + after` and ties and shift of that."""

    left: int
    before: Integers
    mul: Integers
    after: Integers
    shift: Integers
    ties: Integers


def high_half(fixed: FixedPoint, range_: Range) -> HighHalf | None:
    """`fixed` by upper halves of products, if it can be.

    `(acc + before) 2^left mul + after 2^32` is `2^left` times `acc mul + offset`; what `mulhi` cuts off of the first product is
    below the last bit of a sum that is rounded down.
    """
    if (fixed.mul < 0).any() or (fixed.mul > LARGEST_MUL).any():
        return None
    for limit in (1, LARGEST_BEFORE):
        before = np.arange(limit, dtype=np.int64)
        rest = fixed.offset[:, None] - before[None, :] * fixed.mul[:, None]
        for left in lefts(range_):
            unit = np.int64(1) << (32 - left)
            if (fixed.shift + left < 32).any() or (fixed.ties % unit).any():
                continue
            if (rest[0] % unit).all():
                continue
            whole = rest % unit == 0
            if not whole.any(axis=1).all():
                continue
            first = whole.argmax(axis=1)
            chosen = np.take_along_axis(rest, first[:, None], axis=1)[:, 0]
            made = HighHalf(
                left,
                first,
                fixed.mul,
                chosen // unit,
                fixed.shift + left - 32,
                fixed.ties // unit,
            )
            if _fits_high(made, range_):
                return made
    return None


def _fits_high(made: HighHalf, range_: Range) -> bool:
    """Whether everything is of 32 bits, for every accumulator of the range."""
    if (made.shift > 31).any():
        return False
    for accumulator in (range_.low, range_.high):
        moved = (np.int64(accumulator) + made.before) << made.left
        total = ((moved * made.mul) >> 32) + made.after
        for value in (moved, made.after, total, total - made.ties):
            if (value < _LOW).any() or (value > _HIGH).any():
                return False
    return True
