"""Multipliers of a requantisation as integers, and the proof that both round alike.

Both maps, `clamp(roundeven(acc * multiplier) + zero)` in f64 and `clamp((acc * mul + add) >> shift)`, never fall as the
accumulator grows. They are equal on a range of accumulators if and only if each level above the lowest is first reached at the
same accumulator. `docs/numerics.md`, "Requantise in integers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qfold.dialects.element_types import i32, integer_range
from qfold.dialects.qmm.requantization import FLOOR, HALF_EVEN, HALF_ODD, Floats, Integers
from qfold.transforms.fixed_point import (
    LARGEST_BEFORE,
    FixedPoint,
    fits_narrow,
    high_half,
    lefts,
)
from qfold.transforms.qmm_check_accumulators import Range

Bools = npt.NDArray[np.bool_]

_HIGH = integer_range(i32)[1]
_LARGEST_BITS = 46
"""Of a multiplier. More than 31 are for sums of many thousand products."""
_LARGEST_ADD = 2**62 - 1
_LARGEST_SHIFT = 53
"""Beyond, a level times the unit might leave 64 bits."""
_STEPS = 8
"""Multipliers that are tried to either side of the nearest."""
_PARTS = (3, 4, 5, 6, 7, 2)
"""Widths of halves: bits that they are shorter than the multiplier, and one."""
_CHANNELS = 128
"""Channels that are searched at once, to bound memory."""


def first_sums(levels: Integers, shift: Integers, ties: Integers, rounding: str) -> Integers:
    """The least `x` that makes each level: [channels, levels]."""
    least = levels[None, :] << shift[:, None]
    if rounding == FLOOR:
        return least
    taken_back = (levels[None, :] % 2 == 1) == (rounding == HALF_EVEN)
    return least + taken_back * ties[:, None]


@dataclass(frozen=True)
class Thresholds:
    """Which accumulators of a range first reach each level, for each channel."""

    accumulators: Integers
    """[channels, levels]: `range.low` for levels that are always reached, `range.high + 1` for those that never are."""
    levels: Integers
    range: Range

    def part(self, channels: Any) -> Thresholds:
        """Those of some channels."""
        return Thresholds(self.accumulators[channels], self.levels, self.range)

    def agree(self, fixed: FixedPoint) -> bool:
        """Whether `fixed` reaches each level first at the same accumulator: evaluated there and one before."""
        t = self.accumulators
        mul, offset = fixed.mul[:, None], fixed.offset[:, None]
        first = first_sums(self.levels, fixed.shift, fixed.ties, fixed.rounding)
        reached = (t > self.range.high) | (t * mul + offset >= first)
        before = (t <= self.range.low) | ((t - 1) * mul + offset < first)
        return bool((reached & before).all())

    def offsets(
        self, mul: Integers, shift: Integers, ties: Integers, rounding: str
    ) -> tuple[Integers, Integers]:
        """The least and the largest offset with which multipliers [channels, candidates] agree, the least above the largest where
        there are none."""
        t = self.accumulators[:, :, None]
        first = first_sums(self.levels, shift, ties, rounding)[:, :, None]
        m = mul[:, None, :]
        low = np.where(t <= self.range.high, first - t * m, -_LARGEST_ADD)
        high = np.where(t > self.range.low, first - 1 - (t - 1) * m, _LARGEST_ADD)
        return (
            low.max(axis=1, initial=-_LARGEST_ADD),
            high.min(axis=1, initial=_LARGEST_ADD),
        )


def thresholds(multipliers: Floats, zero: int, low: int, high: int, range_: Range) -> Thresholds:
    """Those of `clamp(roundeven(acc * multiplier) + zero)`, found in f64 as it is computed.

    Quotients are wrong by far less than 1, so that each threshold is among a few accumulators; the product itself decides.
    `ArithmeticError` if it does not.
    """
    levels = np.arange(low + 1, high + 1, dtype=np.int64)
    steps = (levels - zero).astype(np.float64)[None, :]
    m = multipliers.reshape(-1, 1)

    def reached(accumulators: Integers) -> Bools:
        return np.rint(accumulators.astype(np.float64) * m) >= steps

    with np.errstate(over="ignore"):
        guess = np.clip(np.ceil((steps - 0.5) / m), range_.low, range_.high + 1)
    t = guess.astype(np.int64) - 2
    for _ in range(4):
        t = np.where(reached(t), t, t + 1)
    t = np.clip(t, range_.low, range_.high + 1)
    right = ((t > range_.high) | reached(t)) & ((t <= range_.low) | ~reached(t - 1))
    if not right.all():
        raise ArithmeticError("a level is reached where no quotient says")
    return Thresholds(t, levels, range_)


def fixed_point(
    multipliers: Floats, zero: int, low: int, high: int, range_: Range
) -> FixedPoint | None:
    """Integers that requantise each accumulator of the range alike, for all channels; the cheapest form that there is.

    In order: 32 bits throughout, the upper half of a product, 64 bits; rounding down before ties. None if there are none.
    """
    t = thresholds(multipliers, zero, low, high, range_)
    nearest = HALF_ODD if zero % 2 else HALF_EVEN
    for forms in ((_narrow, _by_high_half), (_wide,)):
        for rounding in (FLOOR, nearest):
            search = _Search(t, multipliers, zero, rounding)
            for form in forms:
                found = form(search)
                if found is not None:
                    return found if t.agree(found) else None
    return None


@dataclass(frozen=True)
class _Found:
    """Multipliers, and the least and the largest offset of each."""

    mul: Integers
    low: Integers
    high: Integers
    shift: Integers
    ties: Integers


@dataclass(frozen=True)
class _Search:
    """Integers are looked for that reach thresholds."""

    thresholds: Thresholds
    multipliers: Floats
    zero: int
    rounding: str

    @property
    def range(self) -> Range:
        return self.thresholds.range

    @property
    def room(self) -> int:
        """The bits of an accumulator, but for its sign."""
        return max(1, -self.range.low - 1, self.range.high).bit_length()

    def shifts(self, bits: int) -> Integers:
        """The shift of each multiplier that leaves it so many bits."""
        _, exponents = np.frexp(self.multipliers)
        return np.minimum(bits - exponents.astype(np.int64), _LARGEST_SHIFT)

    def usual(self, shift: Integers) -> Integers:
        """The offset that rounds to nearest and adds the zero point."""
        return (np.int64(2 * self.zero + 1) << shift) >> 1

    def multipliers_with(self, shift: Integers, bits: int) -> _Found | None:
        """The multiplier near each that leaves its offset most room; None if a channel has none.

        Where halves are met, they are told from other rests by a width: a power of two, some part of a multiplier.
        """
        if (shift < 0).any():
            return None
        nearest = np.rint(np.ldexp(self.multipliers, shift)).astype(np.int64)
        offsets = np.array(sorted(range(-_STEPS, _STEPS + 1), key=abs))
        candidates = np.clip(nearest[:, None] + offsets, 1, 2**bits - 1)
        widths = [np.zeros_like(nearest)]
        if self.rounding != FLOOR:
            _, length = np.frexp(nearest.astype(np.float64))
            most = np.maximum(np.int64(1) << np.minimum(shift, 62) >> 1, 0)
            parts = [np.int64(1) << np.maximum(length.astype(np.int64) - n, 0) for n in _PARTS]
            widths += [np.minimum(p, most) for p in parts]
        columns: list[list[Integers]] = []
        for start in range(0, len(nearest), _CHANNELS):
            part = slice(start, start + _CHANNELS)
            found = self._part(
                np.arange(len(nearest))[part], candidates, shift, [w[part] for w in widths]
            )
            if found is None:
                return None
            columns.append(found)
        mul, low, high, ties = (np.concatenate(x) for x in zip(*columns, strict=True))
        return _Found(mul, low, high, shift, ties)

    def _part(
        self, channels: Integers, candidates: Integers, shift: Integers, widths: list[Integers]
    ) -> list[Integers] | None:
        """(multiplier, least and largest offset, width of halves) of some channels, the first width that fits.

        The nearest multiplier is taken where the usual offset goes with it: that is the same for all channels, and a multiple of
        most units. Others are tried for the rest.
        """
        made = [np.zeros(len(channels), np.int64) for _ in range(4)]
        missing = np.arange(len(channels))
        for width in widths:
            for tried in (candidates[:, :1], candidates):
                rows = channels[missing]
                chosen, is_usual = self._best(rows, tried[rows], shift[rows], width[missing])
                fits = chosen[1] <= chosen[2] if tried is candidates else is_usual
                for target, values in zip(made, (*chosen, width[missing]), strict=True):
                    target[missing[fits]] = values[fits]
                missing = missing[~fits]
                if not missing.size:
                    return made
        return None

    def _best(
        self, channels: Integers, candidates: Integers, shift: Integers, ties: Integers
    ) -> tuple[list[Integers], Bools]:
        """(multiplier, least and largest offset) of each channel, and whether the usual offset is in the interval."""
        low, high = self.thresholds.part(channels).offsets(candidates, shift, ties, self.rounding)
        usual = self.usual(shift)[:, None]
        is_usual = (low <= usual) & (usual <= high)
        room = np.minimum(high - low, _LARGEST_ADD // 2)
        best = (room + np.where(is_usual, _LARGEST_ADD // 2, 0)).argmax(axis=1)[:, None]
        chosen = [np.take_along_axis(x, best, axis=1)[:, 0] for x in (candidates, low, high)]
        return chosen, np.take_along_axis(is_usual, best, axis=1)[:, 0]

    def fixed(self, found: _Found, offset: Integers) -> FixedPoint:
        """As an op would have it."""
        return FixedPoint(found.mul, offset, found.shift, found.ties, self.rounding)


def _spread(value: int, like: Integers) -> Integers:
    return np.full(like.shape, value, np.int64)


def _chosen(low: Integers, high: Integers, usual: Integers) -> Integers:
    """Integers in the intervals: the usual one, or the nearest, the same for all channels where there is one."""
    if int(low.max()) <= int(high.min()) and (usual == usual[0]).all():
        low, high = _spread(int(low.max()), low), _spread(int(high.min()), high)
    return np.clip(usual, low, high)


def _narrow(s: _Search) -> FixedPoint | None:
    """Products of 32 bits."""
    # One bit is left for the offset.
    bits = 30 - s.room
    if bits < 1:
        return None
    own = s.shifts(bits)
    shift = _spread(min(30, int(own.min())), own)
    found = s.multipliers_with(shift, bits)
    if found is None:
        return None
    fixed = s.fixed(found, _chosen(found.low, found.high, s.usual(shift)))
    return fixed if fits_narrow(fixed, s.range) else None


def _by_high_half(s: _Search) -> FixedPoint | None:
    """Upper halves of products, one shift for all channels if that can be."""
    own = s.shifts(31)
    shifts = [_spread(int(own.min()), own)]
    if (own != own[0]).any():
        shifts.append(own)
    for shift in shifts:
        found = s.multipliers_with(shift, 31)
        if found is None:
            continue
        usual = s.usual(shift)
        moves = [n for n in lefts(s.range) if (np.abs(usual) >> (32 - n) <= _HIGH).all()]
        # The more an accumulator is shifted up, the finer are the units: if those are too coarse, so are others.
        searches = [(left, 1) for left in moves]
        searches += [(left, limit) for limit in (64, LARGEST_BEFORE) for left in moves[:3]]
        for left, limit in searches:
            offset = _of_whole_units(found, usual, left, limit)
            if offset is not None:
                fixed = s.fixed(found, offset)
                if high_half(fixed, s.range) is not None:
                    return fixed
    return None


def _of_whole_units(found: _Found, usual: Integers, left: int, limit: int) -> Integers | None:
    """Offsets that are `before * mul`, for the least `before < limit`, and a multiple of what an upper half counts by."""
    unit = np.int64(1) << (32 - left)
    if (found.ties % unit).any():
        return None
    if limit == 1:
        least, largest = -(-found.low // unit), found.high // unit
        if (least > largest).any():
            return None
        return _chosen(least, largest, usual // unit) * unit
    # Open intervals end near the usual offset, too.
    low = np.maximum(found.low, np.minimum(found.high, usual) - unit)
    before = np.arange(limit, dtype=np.int64)
    # How far the next multiple is from the least offset, for each `before`.
    gaps = (before[None, :] * found.mul[:, None] - low[:, None]) % unit
    fits = gaps <= (found.high - low)[:, None]
    if not fits.any(axis=1).all():
        return None
    first = fits.argmax(axis=1)[:, None]
    return low + np.take_along_axis(gaps, first, axis=1)[:, 0]


def _wide(s: _Search) -> FixedPoint | None:
    """Products of 64 bits, the multiplier as long as they allow."""
    bits = min(62 - s.room, _LARGEST_BITS)
    shift = s.shifts(bits)
    found = s.multipliers_with(shift, bits)
    if found is None:
        return None
    return s.fixed(found, _chosen(found.low, found.high, s.usual(shift)))
