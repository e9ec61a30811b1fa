"""Recognises what quantises: a float rounded to the nearest integer, clamped, converted. A function of the runtime does it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, f32, f64, i32
from xdsl.ir import SSAValue

_LARGEST = 1 << 22
"""Integers below are all floats, and so are they plus 1.5 * 2^23."""

_UNORDERED = 14
"""Predicate of `arith.cmpf`: either is a NaN."""


@dataclass(frozen=True)
class Rounding:
    """`value`, f32 or f64, rounded half to even, clamped to `low` .. `high`. Of an f32, 0 is between these, and NaN becomes 0."""

    value: SSAValue
    low: int
    high: int

    @property
    def is_wide(self) -> bool:
        """Whether the value is f64: that of a requantise."""
        return self.value.type == f64


def rounding_of(op: arith.FPToSIOp) -> Rounding | None:
    """What `op` is the last step of: `fptosi minnum(maxnum(roundeven(v is a NaN ? 0 : v), low), high)`, to i32; of an f64
    without the look at NaN, which is `low` then.
    """
    least = op.input.owner
    if op.result.type != i32 or not isinstance(least, arith.MinnumfOp):
        return None
    most = least.lhs.owner
    if not isinstance(most, arith.MaxnumfOp):
        return None
    rounded = most.lhs.owner
    low, high = constant_float(most.rhs), constant_float(least.rhs)
    if not isinstance(rounded, math.RoundEvenOp) or low is None or high is None:
        return None
    if not (-_LARGEST < low <= high < _LARGEST and low % 1 == 0 and high % 1 == 0):
        return None
    if op.input.type == f64:
        return Rounding(rounded.operand, int(low), int(high))
    if op.input.type != f32 or not low <= 0 <= high:
        return None
    selected = rounded.operand.owner
    if not isinstance(selected, arith.SelectOp) or constant_float(selected.lhs) != 0.0:
        return None
    value, is_nan = selected.rhs, selected.cond.owner
    if not isinstance(is_nan, arith.CmpfOp) or is_nan.predicate.value.data != _UNORDERED:
        return None
    if is_nan.lhs is not value or is_nan.rhs is not value:
        return None
    return Rounding(value, int(low), int(high))


def constant_float(value: SSAValue) -> float | None:
    """The number that `value` is, if it is a constant."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, FloatAttr):
        return owner.value.value.data
    return None
