"""`qmm-check-accumulators`: proof that no sum of integer products leaves 32 bits, or an error."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, IntegerType, ModuleOp, i64
from xdsl.ir import BlockArgument, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qmm
from qfold.dialects.contraction import ACCUMULATOR_RANGE, shape_of
from qfold.dialects.element_types import i32, integer_range
from qfold.dialects.integer_operands import zero_point_type
from qfold.ir.builder import element_type
from qfold.ir.constants import constant_array
from qfold.ir.generics import function_blocks
from qfold.ir.locations import describe_location

Integers = npt.NDArray[np.int64]
Contraction = qmm.QuantMatmulOp | qmm.QuantConvOp

_LOW, _HIGH = integer_range(i32)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: int
    high: int

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    @property
    def fits(self) -> bool:
        """Whether i32 holds them."""
        return self.low >= _LOW and self.high <= _HIGH


@dataclass(frozen=True)
class Accumulator:
    """What is known of the sums of one contraction."""

    sums: Range
    k: int
    """Products in a sum."""
    largest_k: int
    """The most products of these types and zero points that fit, whatever the integers are."""

    def attribute(self) -> DictionaryAttr:
        """As the discardable attribute `ACCUMULATOR_RANGE`."""
        numbers = {
            "low": self.sums.low,
            "high": self.sums.high,
            "k": self.k,
            "largest_k": self.largest_k,
        }
        return DictionaryAttr({name: IntegerAttr(n, i64) for name, n in numbers.items()})


def accumulator_of(op: Contraction) -> Accumulator:
    """The sums that `op` may come to.

    A zero point is a constant, or anything that its type holds. Where the second operand is constant, each of its sums is bounded
    by what is in it. A difference may always be 0, so that the bound holds for parts of sums too, and at padded borders.
    """
    if isinstance(op, qmm.QuantMatmulOp):
        data, data_zero, weight, weight_zero = op.a, op.a_zero_point, op.b, op.b_zero_point
        k = shape_of(op.a)[-1]
        axes: tuple[int, ...] = (-1,) if op.transpose_b is not None else (-2,)
        along = (-1, 1) if op.transpose_b is not None else (1, -1)
    else:
        data, data_zero, weight, weight_zero = op.x, op.x_zero_point, op.w, op.w_zero_point
        rank = len(shape_of(op.w))
        k = prod(shape_of(op.w)[1:])
        axes = tuple(range(1, rank))
        along = (-1, *(1,) * (rank - 1))
    a = _difference(data, data_zero)
    any_weight = _difference(weight, weight_zero)
    each = _products(a, np.array(any_weight.low), np.array(any_weight.high))
    largest = min(
        _HIGH // int(each[1]) if each[1] > 0 else _HIGH,
        _LOW // int(each[0]) if each[0] < 0 else _HIGH,
    )
    integers = constant_array(weight)
    if integers is None:
        return Accumulator(Range(k * int(each[0]), k * int(each[1])), k, largest)
    low, high = _zero_points(weight, weight_zero)
    stored = np.asarray(integers).astype(np.int64)
    low, high = (z.reshape(along) if z.ndim else z for z in (low, high))
    least, most = _products(a, stored - high, stored - low)
    sums = Range(_least(least.sum(axis=axes)), -_least(-most.sum(axis=axes)))
    return Accumulator(sums, k, largest)


def _least(values: Integers) -> int:
    return int(values.min()) if values.size else 0


def _products(a: Range, low: Integers, high: Integers) -> tuple[Integers, Integers]:
    """The least and the largest product of a number of `a`, which has both signs, and one between `low` and `high`."""
    return (
        np.minimum(a.high * low, a.low * high),
        np.maximum(a.high * high, a.low * low),
    )


def _zero_points(data: SSAValue, zero_point: SSAValue | None) -> tuple[Integers, Integers]:
    """The least and the largest zero point, element by element where they are constant."""
    if zero_point is None:
        return np.array(0), np.array(0)
    known = constant_array(zero_point)
    if known is not None:
        values = np.asarray(known).astype(np.int64)
        return values, values
    low, high = integer_range(zero_point_type(cast(IntegerType, element_type(data))))
    return np.array(low), np.array(high)


def _difference(data: SSAValue, zero_point: SSAValue | None) -> Range:
    """What an element less its zero point may be."""
    low, high = integer_range(element_type(data))
    least, most = _zero_points(data, zero_point)
    return Range(
        min(0, low - -_least(-most)),
        max(0, high - _least(least)),
    )


def with_additions(op: Contraction, sums: Range) -> Range:
    """The largest range that an epilogue's additions of constants (a bias) take the sums to."""
    block = op.epilogue_block
    if block is None:
        return sums
    known: dict[SSAValue, Range] = {block.args[0]: sums}
    worst = sums
    operands = tuple(op.epilogue_operands)
    for inner in block.ops:
        if not isinstance(inner, arith.AddiOp) or inner.result.type != i32:
            continue
        left, right = (known.get(v) or _constant_range(v, operands) for v in (inner.lhs, inner.rhs))
        if left is not None and right is not None and {inner.lhs, inner.rhs} & known.keys():
            total = known[inner.result] = left + right
            worst = Range(min(worst.low, total.low), max(worst.high, total.high))
    return worst


def _constant_range(value: SSAValue, operands: tuple[SSAValue, ...]) -> Range | None:
    if isinstance(value, BlockArgument):
        array = constant_array(operands[value.index - 1]) if value.index else None
        if array is None or not array.size:
            return None
        return Range(int(array.min()), int(array.max()))
    if isinstance(value.owner, arith.ConstantOp) and isinstance(value.owner.value, IntegerAttr):
        number = cast("IntegerAttr[Any]", value.owner.value).value.data
        return Range(number, number)
    return None


def check(op: Contraction) -> None:
    """Record the range of `op`'s sums. `PassFailedException` where it is beyond i32, with a bias that is known included."""
    found = accumulator_of(op)
    total = with_additions(op, found.sums)
    if not total.fits:
        operands = (op.a, op.b) if isinstance(op, qmm.QuantMatmulOp) else (op.x, op.w)
        types = " x ".join(str(element_type(v)) for v in operands)
        worst = max(-total.low, total.high)
        bias = " with what is added to them" if found.sums.fits else ""
        raise PassFailedException(
            f"{describe_location(op)}: sums of K = {found.k} products of {types} may reach {worst}{bias}, but an accumulator "
            f"of 32 bits holds {_HIGH}; of these types and zero points it holds any {found.largest_k} products"
        )
    op.attributes[ACCUMULATOR_RANGE] = found.attribute()


@dataclass(frozen=True)
class QmmCheckAccumulatorsPass(ModulePass):
    """Prove of each contraction of integers that its sums fit i32, and record their range as `qmm.accumulator`; else an error.

    Sums are formed modulo 2^32, so that what they are on the way, in which order and in how many parts, does not matter: a result
    that fits is right. For the same reason splitting K cannot help where the result itself may not fit.
    """

    name = "qmm-check-accumulators"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            for inner in block.ops:
                if isinstance(inner, Contraction):
                    check(inner)
