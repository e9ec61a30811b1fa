"""Contractions of integers written out as `linalg.generic`: what `convert-qmm-to-linalg` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of, window_of
from qfold.dialects.element_types import i32
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.transforms.contraction_generics import ConvLoops, Read, batch_indices, loop_dims
from qfold.transforms.quantization_scalars import widened


def _storage(value: SSAValue) -> IntegerType:
    return cast(IntegerType, element_type(value))


def _at(loops: int, value: SSAValue, index: Sequence[AffineExpr]) -> Read:
    """A read of a zero point: by `index`, or by nothing when it has rank 0."""
    return value, AffineMap(loops, 0, tuple(index) if shape_of(value) else ())


class _Difference:
    """An operand less its zero point, in the body of a generic: what is read for it, and its elements."""

    def __init__(self, read: Read, zero_point: Read | None):
        self._types = [
            _storage(v) for v, _ in (read, *([] if zero_point is None else [zero_point]))
        ]
        self.reads = [read, *([] if zero_point is None else [zero_point])]

    def of(self, b: ScalarBuilder, elements: Sequence[SSAValue]) -> SSAValue:
        wide = [widened(b, e, t) for e, t in zip(elements, self._types, strict=True)]
        return wide[0] if len(wide) == 1 else b(arith.SubiOp, wide[0], wide[1])


def _sum_of_products(
    builder: TensorBuilder,
    left: _Difference,
    right: _Difference,
    shape: Sequence[int],
    output: AffineMap,
    kinds: Sequence[str],
) -> SSAValue:
    split = len(left.reads)

    def body(b: ScalarBuilder, e: Sequence[SSAValue], accumulator: SSAValue) -> SSAValue:
        product = b(arith.MuliOp, left.of(b, e[:split]), right.of(b, e[split:]))
        return b(arith.AddiOp, accumulator, product)

    zeros = builder.fill(shape, i32, 0)
    return builder.generic([*left.reads, *right.reads], zeros, output, kinds, body)


def expand_quant_matmul(op: qmm.QuantMatmulOp, builder: TensorBuilder) -> SSAValue:
    """The accumulator of a product of integers."""
    shape = shape_of(op.result)
    rank = len(shape)
    loops = rank + 1
    *batch, m, n, k = loop_dims(loops)
    rows = [*batch_indices(batch, shape_of(op.a)), m]
    last = [n, k] if op.transpose_b is not None else [k, n]
    a_map = AffineMap(loops, 0, (*rows, k))
    b_map = AffineMap(loops, 0, (*batch_indices(batch, shape_of(op.b)), *last))
    a_zero = None if op.a_zero_point is None else _at(loops, op.a_zero_point, rows)
    b_zero = None if op.b_zero_point is None else _at(loops, op.b_zero_point, [n])
    return _sum_of_products(
        builder,
        _Difference((op.a, a_map), a_zero),
        _Difference((op.b, b_map), b_zero),
        shape,
        AffineMap(loops, 0, (*batch, m, n)),
        ["parallel"] * rank + ["reduction"],
    )


def expand_quant_conv(op: qmm.QuantConvOp, builder: TensorBuilder) -> SSAValue:
    """The accumulator of a convolution of integers. Padding is written out in i32: as differences of 0, or as `pad_value`."""
    groups, _, pads, _ = window_of(op)
    x, zero = op.x, op.x_zero_point
    if any(pads):
        x = _centred(op.x, op.x_zero_point, builder)
        zero = None
    window = ConvLoops.of(op, builder, x, op.padding or 0)
    n, channels, *spatial = shape_of(op.result)
    grouped = [n, groups, channels // groups, *spatial]
    m, *rest = shape_of(op.w)
    w = builder.reshape(op.w, [groups, m // groups, *rest])
    w_index = (window.g, *window.m, window.c, *window.k)
    w_zero: Read | None = None
    if op.w_zero_point is not None:
        parameter = op.w_zero_point
        if shape_of(parameter):
            parameter = builder.reshape(parameter, [groups, m // groups])
        w_zero = _at(window.loops, parameter, [window.g, *window.m])
    total = _sum_of_products(
        builder,
        _Difference(window.x_read, None if zero is None else _at(window.loops, zero, [])),
        _Difference((w, AffineMap(window.loops, 0, w_index)), w_zero),
        grouped,
        window.output,
        window.kinds,
    )
    return builder.reshape(total, shape_of(op.result))


def _centred(x: SSAValue, zero_point: SSAValue | None, builder: TensorBuilder) -> SSAValue:
    """x less its zero point as a tensor of i32."""
    storage = _storage(x)
    values = [x] if zero_point is None else [x, zero_point]

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        wide = [widened(b, v, storage) for v in e]
        return wide[0] if len(wide) == 1 else b(arith.SubiOp, wide[0], wide[1])

    return builder.elementwise(values, i32, body)
