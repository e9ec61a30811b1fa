"""MatMul, Gemm, Conv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.contraction import matmul_shape, shape_of
from qfold.dialects.element_types import i32, i64, ui32, ui64
from qfold.frontend.context import NodeContext, value_type
from qfold.frontend.registry import onnx_op
from qfold.frontend.shapes import auto_pads
from qfold.frontend.values import Const, Quantized, Value, swaps_last_two
from qfold.ir.builder import ScalarBuilder


def require_f32(ctx: NodeContext, *indices: int) -> None:
    """Refuses operands of other element types than f32."""
    for index in indices:
        if ctx.has_input(index) and ctx.type(index).element_type != f32:
            ctx.refuse(f"operand {index} of {ctx.type(index).element_type}", "operands of f32")


def value_shape(value: Value) -> tuple[int, ...]:
    """The shape of any value."""
    return value_type(value).get_shape()


def reshaped(ctx: NodeContext, value: Value, shape: Sequence[int]) -> Value:
    """`value` with another shape; a constant stays one."""
    if isinstance(value, Const):
        return value.reshaped(shape)
    if isinstance(value, Quantized):
        lazy = value.reshaped(shape, None)
        if lazy is not None:
            return lazy
    return ctx.b.reshape(ctx.materialize(value), shape)


def without_unit_batch(ctx: NodeContext, value: Value) -> Value:
    """A constant [1, ..., 1, K, N] as the matrix [K, N], which is what a weight is."""
    if isinstance(value, SSAValue):
        return value
    shape = value.shape
    if len(shape) < 3 or any(d != 1 for d in shape[:-2]):
        return value
    const = value.q if isinstance(value, Quantized) else value
    permutation = const.view_of[1] if const.view_of else None
    if permutation is None or not swaps_last_two(permutation):
        return reshaped(ctx, value, shape[-2:])
    # Reshape what is stored, so that its bytes stay where they are.
    if isinstance(value, Const):
        return value.transposed(permutation).reshaped((shape[-1], shape[-2])).transposed((1, 0))
    stored = value.transposed(permutation, None).reshaped((shape[-1], shape[-2]), None)
    return value if stored is None else stored.transposed((1, 0), None)


def matmul(
    ctx: NodeContext,
    a: Value,
    b: Value,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> SSAValue:
    """`a @ b` over the last two dimensions of operands of rank 2 and more, numpy's broadcasting on the others."""
    rank = max(len(value_shape(a)), len(value_shape(b)))
    b = without_unit_batch(ctx, b)
    shape = matmul_shape(value_shape(a), value_shape(b), transpose_a, transpose_b)
    full = (*[1] * (rank - len(shape)), *shape)
    if value_shape(a)[-2 if transpose_a else -1] == 0:
        # An empty sum: no kernel has to know about it.
        return ctx.b.fill(full, f32, 0.0)
    left, swap_a = ctx.matrix_of(a)
    right, swap_b = ctx.matrix_of(b)
    op = qmm.MatmulOp(
        left, right, transpose_a=transpose_a != swap_a, transpose_b=transpose_b != swap_b
    )
    return ctx.b.reshape(ctx.b.insert(op).result, full)


def with_vectors(
    ctx: NodeContext, a: Value, b: Value, product: Callable[[Value, Value], SSAValue]
) -> SSAValue:
    """numpy's matmul: a vector on the left is a row, on the right a column, and its dimension is dropped from the result.

    `product` multiplies operands of rank 2 and more.
    """
    a_shape, b_shape = value_shape(a), value_shape(b)
    if not a_shape or not b_shape:
        ctx.invalid("a scalar has no matrix product")
    if len(a_shape) == 1:
        a = reshaped(ctx, a, (1, *a_shape))
    if len(b_shape) == 1:
        b = reshaped(ctx, b, (*b_shape, 1))
    result = product(a, b)
    shape = list(shape_of(result))
    if len(b_shape) == 1:
        del shape[-1]
    if len(a_shape) == 1:
        del shape[-1 if len(b_shape) == 1 else -2]
    return ctx.b.reshape(result, shape)


_WIDE: tuple[Attribute, ...] = (i32, i64, ui32, ui64)
"""What ONNX multiplies besides floats."""


def _wide_matmul(ctx: NodeContext, a: Value, b: Value) -> SSAValue:
    """A product of integers of 32 or 64 bits, which no kernel is made for: a generic."""
    left, right = ctx.materialize(a), ctx.materialize(b)
    kind = value_type(left).element_type
    shape = matmul_shape(shape_of(left), shape_of(right), False, False)
    rank, inner = len(shape), AffineExpr.dimension(len(shape))

    def map_of(value: SSAValue, last: tuple[AffineExpr, AffineExpr]) -> AffineMap:
        batch = shape_of(value)[:-2]
        skip = rank - 2 - len(batch)
        leading = (
            AffineExpr.dimension(skip + d) if n != 1 else AffineExpr.constant(0)
            for d, n in enumerate(batch)
        )
        return AffineMap(rank + 1, 0, (*leading, *last))

    rows, columns = AffineExpr.dimension(rank - 2), AffineExpr.dimension(rank - 1)
    start = ctx.b.fill(shape, kind, 0)
    if 0 in (*shape, shape_of(left)[-1]):
        return start
    return ctx.b.generic(
        [(left, map_of(left, (rows, inner))), (right, map_of(right, (inner, columns)))],
        start,
        AffineMap(rank + 1, 0, tuple(AffineExpr.dimension(d) for d in range(rank))),
        ["parallel"] * rank + ["reduction"],
        lambda s, e, acc: s(arith.AddiOp, acc, s(arith.MuliOp, e[0], e[1])),
    )


@onnx_op("MatMul")
def import_matmul(ctx: NodeContext) -> SSAValue:
    """Over the last two dimensions, numpy's broadcasting on the others; of wide integers modulo two to their width."""
    if ctx.type(0).element_type in _WIDE and ctx.type(1).element_type == ctx.type(0).element_type:
        operands = (ctx.value(0), ctx.value(1))
        return with_vectors(ctx, *operands, lambda a, b: _wide_matmul(ctx, a, b))
    require_f32(ctx, 0, 1)
    return with_vectors(ctx, ctx.lattice(0), ctx.lattice(1), partial(matmul, ctx))


@onnx_op("Gemm")
def import_gemm(ctx: NodeContext) -> SSAValue:
    """`alpha * A' @ B' + beta * C`. Operands of more than two dimensions, which ONNX forbids but exporters write, are batches."""
    require_f32(ctx, 0, 1, 2)
    for index in (0, 1):
        if len(ctx.type(index).get_shape()) < 2:
            ctx.invalid(
                f"operand {index} has shape {list(ctx.type(index).get_shape())}, not a matrix"
            )
    product = matmul(
        ctx,
        ctx.lattice(0),
        ctx.lattice(1),
        transpose_a=bool(ctx.attr("transA", 0)),
        transpose_b=bool(ctx.attr("transB", 0)),
    )
    alpha, beta = float(ctx.attr("alpha", 1.0)), float(ctx.attr("beta", 1.0))
    if not ctx.has_input(2):
        if alpha == 1.0:
            return product
        return ctx.b.elementwise(
            [product], f32, lambda b, e: b(arith.MulfOp, e[0], b.constant(alpha, f32))
        )
    shape = shape_of(product)
    if np.broadcast_shapes(shape, ctx.type(2).get_shape()) != tuple(shape):
        ctx.invalid(
            f"C of shape {list(ctx.type(2).get_shape())} does not broadcast to {list(shape)}"
        )
    known = ctx.const(2)
    if known is not None and beta != 1.0:
        addend = ctx.materialize(Const(known * np.float32(beta), f32, ctx.name))
        beta = 1.0
    else:
        addend = ctx.value(2)

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        x = e[0] if alpha == 1.0 else b(arith.MulfOp, e[0], b.constant(alpha, f32))
        c = e[1] if beta == 1.0 else b(arith.MulfOp, e[1], b.constant(beta, f32))
        return b(arith.AddfOp, x, c)

    return ctx.b.elementwise([product, addend], f32, body)


@dataclass(frozen=True)
class ConvWindow:
    """The attributes of a convolution, checked against the shapes of data and weight."""

    strides: list[int]
    pads: list[int]
    dilations: list[int]
    groups: int


def conv_window(ctx: NodeContext, data: Sequence[int], weight: Sequence[int]) -> ConvWindow:
    """The node's window over data [N, C, spatial...] with a weight [M, C / groups, kernel...]."""
    rank = len(data) - 2
    if rank not in (1, 2):
        ctx.refuse(f"data of {len(data)} dimensions", "1 or 2 spatial dimensions")
    if len(weight) != len(data):
        ctx.invalid(f"the data has shape {list(data)}, the weight {list(weight)}")
    kernel = list(weight[2:])
    given = ctx.attr("kernel_shape", kernel)
    if list(given) != kernel:
        ctx.invalid(f"kernel_shape is {list(given)}, the weight has {kernel}")
    strides = _spatial(ctx, "strides", rank)
    dilations = _spatial(ctx, "dilations", rank)
    pads = auto_pads(
        ctx.attr("auto_pad", "NOTSET") or "NOTSET",
        data[2:],
        kernel,
        strides,
        dilations,
        ctx.attr("pads", []) or None,
    )
    if len(pads) != 2 * rank:
        ctx.invalid(f"pads has {len(pads)} numbers for {rank} spatial dimensions")
    if min(pads, default=0) < 0:
        ctx.refuse(f"negative pads {pads}", "pads of 0 and more")
    return ConvWindow(strides, pads, dilations, int(ctx.attr("group", 1)))


def channel_bias(ctx: NodeContext, index: int, channels: int, rank: int) -> SSAValue:
    """Input `index`, one number for each channel, shaped to broadcast over `rank` spatial dimensions."""
    if ctx.type(index).get_shape() != (channels,):
        ctx.invalid(f"the bias has shape {list(ctx.type(index).get_shape())}, not [{channels}]")
    return ctx.materialize(reshaped(ctx, ctx.lattice(index), (channels, *[1] * rank)))


@onnx_op("Conv")
def import_conv(ctx: NodeContext) -> SSAValue:
    """Convolution of 1 or 2 spatial dimensions; the bias is an addition of its own."""
    require_f32(ctx, 0, 1, 2)
    data, weight = ctx.type(0).get_shape(), ctx.type(1).get_shape()
    window = conv_window(ctx, data, weight)
    op = qmm.ConvOp(
        ctx.value(0),
        ctx.value(1),
        strides=window.strides,
        pads=window.pads,
        dilations=window.dilations,
        groups=window.groups,
    )
    result = ctx.b.insert(op).result
    if not ctx.has_input(2):
        return result
    bias = channel_bias(ctx, 2, weight[0], len(data) - 2)
    return ctx.b.elementwise([result, bias], f32, lambda b, e: b(arith.AddfOp, e[0], e[1]))


def _spatial(ctx: NodeContext, name: str, rank: int) -> list[int]:
    values = [int(v) for v in ctx.attr(name, [1] * rank)]
    if len(values) != rank or min(values) < 1:
        ctx.invalid(f"{name} is {values}; expected {rank} positive numbers")
    return values
