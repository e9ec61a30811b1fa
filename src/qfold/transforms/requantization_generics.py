"""Requantisation and quantisation by the range of the data, written out as `linalg.generic`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IntegerType, f32, f64
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i32, i64, is_unsigned
from qfold.dialects.qmm.requantization import Integers
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.quantized import uniform
from qfold.transforms.fixed_point import FixedPoint, fits_narrow, high_half
from qfold.transforms.integer_ranges import IntegerRanges
from qfold.transforms.quantization_scalars import (
    Target,
    halves_taken_back,
    high_half_sum,
    quantized,
    requantized,
    scaled_sum,
)


class _Parameters:
    """Numbers of a requantisation: constants of the body, or operands where there is one per index of the axis."""

    def __init__(
        self,
        builder: TensorBuilder,
        op: qmm.RequantizeOp | qmm.RequantizeShiftOp,
        type_: Attribute,
        *arrays: npt.NDArray[Any],
    ):
        self._type = type_
        # An axis of no elements has no number, and an operand of none.
        self._numbers = [a.flat[0].item() if a.size and uniform(a) else None for a in arrays]
        self.inputs: list[tuple[SSAValue, AffineMap]] = []
        for array, number in zip(arrays, self._numbers, strict=True):
            if number is None:
                assert op.axis_index is not None
                along = (AffineExpr.dimension(op.axis_index),)
                map_ = AffineMap(len(shape_of(op.accumulator)), 0, along)
                self.inputs.append((builder.constant(array, type_), map_))

    def scalars(self, b: ScalarBuilder, elements: Sequence[SSAValue]) -> list[SSAValue]:
        """Each parameter, of the elements of `inputs`."""
        rest = iter(elements)
        return [next(rest) if n is None else b.constant(n, self._type) for n in self._numbers]


def lower_requantize(op: qmm.RequantizeOp, builder: TensorBuilder) -> SSAValue:
    """The product in f64, one rounding."""
    parameters = _Parameters(builder, op, f64, op.multipliers)
    target = Target(op.storage, *op.clamp)

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        (multiplier,) = parameters.scalars(b, e[1:])
        return requantized(b, e[0], multiplier, op.zero, target)

    return _elementwise(op, builder, parameters, body)


def lower_requantize_shift(
    op: qmm.RequantizeShiftOp, builder: TensorBuilder, ranges: IntegerRanges
) -> SSAValue:
    """Integers of 32 bits, or the upper halves of their products, where the range of the accumulator allows; else of 64 bits."""
    fixed = FixedPoint.of(op)
    range_ = ranges.of(op.accumulator)
    target = Target(op.storage, *op.clamp)
    bounds = fixed.results(range_)
    narrow = fits_narrow(fixed, range_)
    upper = None if narrow else high_half(fixed, range_)
    type_ = i32 if narrow or upper is not None else i64
    before: list[Integers] = []
    if upper is None:
        arrays = [fixed.mul, fixed.offset, fixed.shift, fixed.ties]
    else:
        before = [upper.before] if upper.before.any() else []
        arrays = [upper.mul, upper.after, upper.shift, upper.ties]
    rounds = bool(fixed.ties.any())
    if (arrays[-1] == arrays[-1][0]).all() and arrays[-1][0] in (0, 1):
        del arrays[-1]
    parameters = _Parameters(builder, op, type_, *before, *arrays)

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        scalars = parameters.scalars(b, e[1:])
        first = scalars.pop(0) if before else None
        m, c, s, *tie = scalars
        if upper is None:
            total = scaled_sum(b, e[0], m, c, type_)
        else:
            total = high_half_sum(b, e[0], first, m, c, upper.left)
        if rounds:
            width = tie[0] if tie else None
            result = halves_taken_back(b, total, s, width, type_, fixed.rounding)
        else:
            result = b(arith.ShRSIOp, total, s)
        return target.clamped(b, result, type_, *bounds)

    return _elementwise(op, builder, parameters, body)


def _elementwise(
    op: qmm.RequantizeOp | qmm.RequantizeShiftOp,
    builder: TensorBuilder,
    parameters: _Parameters,
    body: Callable[[ScalarBuilder, Sequence[SSAValue]], SSAValue],
) -> SSAValue:
    shape = shape_of(op.accumulator)
    rank = len(shape)
    return builder.generic(
        [(op.accumulator, AffineMap.identity(rank)), *parameters.inputs],
        builder.empty(shape, op.storage),
        AffineMap.identity(rank),
        ["parallel"] * rank,
        lambda b, e, _: body(b, e),
    )


_SHARES = 8
"""Reductions that may run side by side, on as many cores, are enough."""
_SHORTEST = 16
"""A part of a reduction is not shorter."""


def _pieces(op: qmm.DynamicQuantizeOp, builder: TensorBuilder) -> SSAValue:
    """What is quantised, so that reducing its last dimension first gives cores enough to do: few rows are cut into parts.

    The dimensions of the scale stay in front. Maxima and minima are the same in any order.
    """
    shape = shape_of(op.x)
    rows = shape_of(op.scale)
    if prod(shape[:-1]) >= _SHARES or not prod(shape):
        return op.x if shape else builder.reshape(op.x, (1,))
    length = prod(shape[len(rows) :])
    most = min(2 * _SHARES, length // _SHORTEST)
    parts = next((n for n in range(most, 1, -1) if length % n == 0), 1)
    return builder.reshape(op.x, (*rows, parts, length // parts) if parts > 1 else (*rows, length))


def dynamic_parameters(
    op: qmm.DynamicQuantizeOp, builder: TensorBuilder
) -> tuple[SSAValue, SSAValue]:
    """(scale, zero point) of a quantisation by the range of the data: reductions, then a few ops on their results."""
    storage = cast(IntegerType, element_type(op.result))
    rows = shape_of(op.scale)
    pieces = _pieces(op, builder)
    rank = len(shape_of(pieces))

    def most(kind: type[arith.MaximumfOp | arith.MinimumfOp], magnitude: bool = False) -> SSAValue:
        value = builder.reduce(
            pieces,
            [rank - 1],
            0.0,
            lambda b, e, acc: b(kind, acc, e),
            element=(lambda b, e: b(math.AbsFOp, e)) if magnitude else None,
        )
        rest = list(range(len(rows), rank - 1))
        return (
            value
            if not rest
            else builder.reduce(value, rest, 0.0, lambda b, e, acc: b(kind, acc, e))
        )

    def scale_of(b: ScalarBuilder, high: SSAValue, low: SSAValue, steps: float) -> SSAValue:
        span = b(arith.SubfOp, high, low)
        is_zero = b(arith.CmpfOp, high, low, "oeq")
        quotient = b(arith.DivfOp, span, b.constant(steps, f32))
        return b(arith.SelectOp, is_zero, b.constant(1.0, f32), quotient)

    if is_unsigned(storage):
        extremes = [most(arith.MaximumfOp), most(arith.MinimumfOp)]
        scale = builder.elementwise(extremes, f32, lambda b, e: scale_of(b, e[0], e[1], 255.0))
        zero = builder.elementwise(
            [extremes[1], scale],
            storage,
            lambda b, e: quantized(b, b(arith.NegfOp, e[0]), storage, e[1], None),
        )
    else:
        largest = most(arith.MaximumfOp, magnitude=True)
        scale = builder.elementwise(
            [largest], f32, lambda b, e: scale_of(b, e[0], b.constant(0.0, f32), 127.0)
        )
        zero = builder.constant(np.zeros(rows, np.int8), storage)
    return scale, zero
