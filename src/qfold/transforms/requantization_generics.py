"""Requantisation and quantisation by the range of the data, written out as `linalg.generic`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IntegerType, f32, f64
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i64, is_unsigned
from qfold.dialects.qmm.requantization import HALF_EVEN
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.transforms.quantization_scalars import (
    Target,
    quantized,
    requantized,
    shifted,
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
        self._numbers = [a.flat[0].item() if (a == a.flat[0]).all() else None for a in arrays]
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


def lower_requantize_shift(op: qmm.RequantizeShiftOp, builder: TensorBuilder) -> SSAValue:
    """Integers of 64 bits."""
    parameters = _Parameters(builder, op, i64, *op.parameters)
    target = Target(op.storage, *op.clamp)
    half_even = op.rounding.data == HALF_EVEN

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        mul, add, shift = parameters.scalars(b, e[1:])
        return shifted(b, e[0], mul, add, shift, half_even, target)

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


def dynamic_parameters(
    op: qmm.DynamicQuantizeOp, builder: TensorBuilder
) -> tuple[SSAValue, SSAValue]:
    """(scale, zero point) of a quantisation by the range of the data: reductions, then a few ops on their results."""
    storage = cast(IntegerType, element_type(op.result))
    shape = shape_of(op.x)
    rank = len(shape)
    axes = [rank - 1] if op.per_row is not None else list(range(rank))
    rows = [d for d in range(rank) if d not in axes]

    def most(kind: type[arith.MaximumfOp | arith.MinimumfOp], magnitude: bool = False) -> SSAValue:
        return builder.reduce(
            op.x,
            axes,
            0.0,
            lambda b, e, acc: b(kind, acc, e),
            element=(lambda b, e: b(math.AbsFOp, e)) if magnitude else None,
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
        zero = builder.constant(np.zeros([shape[d] for d in rows], np.int8), storage)
    return scale, zero
