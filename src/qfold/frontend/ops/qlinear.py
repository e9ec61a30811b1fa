"""QLinearMatMul, QLinearConv, QGemm: a product in i32, a bias in i32, one requantisation.

The multiplier of a requantisation is `sA * sB / sY`, computed in f64 from the scales in f32.
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from qfold.dialects.contraction import shape_of
from qfold.frontend.context import NodeContext
from qfold.frontend.ops.contraction import channel_bias, reshaped, with_vectors
from qfold.frontend.ops.integer_contraction import (
    Scale,
    add_integers,
    quant_conv,
    quant_matmul,
    requantize,
    require_i32,
    require_integers,
    scale_argument,
    storage_of,
    tensor_scale,
    tensor_zero_point,
)
from qfold.frontend.registry import onnx_op
from qfold.frontend.values import Const, Value


def _column_scale(ctx: NodeContext, index: int, columns: int, what: str) -> Scale:
    """One scale, or one for each column: rank 0 or 1."""
    scale = scale_argument(ctx, index, what)
    if scale.size == 1:
        return scale.reshape(())
    if scale.size != columns:
        ctx.refuse(f"scales of {what} of shape {list(scale.shape)}", f"1 scale or {columns}")
    return scale.reshape(-1)


@onnx_op("QLinearMatMul", since=10)
def import_qlinear_matmul(ctx: NodeContext) -> SSAValue:
    """Scales and zero points per tensor, of the rows of the left operand, or of the columns of the right one."""
    require_integers(ctx, 0, 3)
    storage = storage_of(ctx, 7)
    a_scale = scale_argument(ctx, 1, "the left operand")
    y_scale = tensor_scale(ctx, 6, "the result")
    zero_point = tensor_zero_point(ctx, 7, storage, "the result")

    def product(a: Value, b: Value) -> SSAValue:
        accumulator = quant_matmul(ctx, a, b, a_zero_point=2, b_zero_point=5)
        shape = shape_of(accumulator)
        b_scale = _column_scale(ctx, 4, shape[-1], "the right operand")
        if a_scale.size == 1:
            multiplier, axis = a_scale.reshape(()) * b_scale / y_scale, len(shape) - 1
        elif b_scale.size == 1 and a_scale.size == shape[-2]:
            multiplier, axis = a_scale.reshape(-1) * b_scale / y_scale, len(shape) - 2
        else:
            ctx.refuse(
                f"scales of shapes {list(a_scale.shape)} and {list(b_scale.shape)}",
                "one scale per row, or one per column",
            )
        return requantize(ctx, accumulator, storage, multiplier, zero_point, axis)

    return with_vectors(ctx, ctx.lattice(0), ctx.lattice(3), product)


@onnx_op("QLinearConv", since=10)
@onnx_op("QLinearConv", domain="com.microsoft")
def import_qlinear_conv(ctx: NodeContext) -> SSAValue:
    """The i32 bias has the scale `sX * sW`, hence joins the accumulator. `channels_last` is of com.microsoft."""
    require_integers(ctx, 0, 3)
    storage = storage_of(ctx, 7)
    x = ctx.value(0)
    rank = len(shape_of(x))
    channels_last = bool(ctx.attr("channels_last", 0))
    if channels_last:
        x = ctx.b.transpose(x, [0, rank - 1, *range(1, rank - 1)])
    result = quant_conv(ctx, x, ctx.lattice(3), x_zero_point=2, w_zero_point=5)
    channels = shape_of(result)[1]
    if ctx.has_input(8):
        require_i32(ctx, 8, "the bias")
        result = add_integers(ctx, result, channel_bias(ctx, 8, channels, rank - 2))
    scale = tensor_scale(ctx, 1, "the data") * _column_scale(ctx, 4, channels, "the weight")
    multiplier = scale / tensor_scale(ctx, 6, "the result")
    zero_point = tensor_zero_point(ctx, 7, storage, "the result")
    result = requantize(ctx, result, storage, multiplier, zero_point, axis=1)
    if channels_last:
        result = ctx.b.transpose(result, [0, *range(2, rank), 1])
    return result


def scaled(ctx: NodeContext, accumulator: SSAValue, scale: Scale, axis: int) -> SSAValue:
    """`f32(accumulator) * scale` in f32; a scale of more than one element runs along `axis`."""
    if scale.size == 1:
        factor = float(np.float32(scale.reshape(())))
        return ctx.b.elementwise(
            [accumulator],
            f32,
            lambda b, e: b(arith.MulfOp, b(arith.SIToFPOp, e[0], f32), b.constant(factor, f32)),
        )
    view = [1] * len(shape_of(accumulator))
    view[axis] = scale.size
    factors = ctx.materialize(Const(scale.astype(np.float32).reshape(view), f32, ctx.name))
    return ctx.b.elementwise(
        [accumulator, factors],
        f32,
        lambda b, e: b(arith.MulfOp, b(arith.SIToFPOp, e[0], f32), e[1]),
    )


@onnx_op("QGemm", domain="com.microsoft")
def import_qgemm(ctx: NodeContext) -> SSAValue:
    """`alpha * sA * sB * ((A - zA)(B - zB) + C)`, quantised where a scale of the result is given, else f32. C is i32."""
    require_integers(ctx, 0, 3)
    for index in (0, 3):
        if len(ctx.type(index).get_shape()) != 2:
            ctx.invalid(f"operand {index} is {ctx.type(index)}, not a matrix")
    accumulator = quant_matmul(
        ctx,
        ctx.lattice(0),
        ctx.lattice(3),
        a_zero_point=2,
        b_zero_point=5,
        transpose_a=bool(ctx.attr("transA", 0)),
        transpose_b=bool(ctx.attr("transB", 0)),
    )
    shape = shape_of(accumulator)
    if ctx.has_input(6):
        require_i32(ctx, 6, "C")
        found = ctx.type(6).get_shape()
        if len(found) > 2 or np.broadcast_shapes(shape, found) != tuple(shape):
            ctx.invalid(f"C of shape {list(found)} does not broadcast to {list(shape)}")
        addend = ctx.materialize(reshaped(ctx, ctx.lattice(6), found))
        accumulator = add_integers(ctx, accumulator, addend)
    alpha = float(ctx.attr("alpha", 1.0))
    scale = alpha * tensor_scale(ctx, 1, "A") * _column_scale(ctx, 4, shape[1], "B")
    if not ctx.has_input(7):
        return scaled(ctx, accumulator, scale, axis=1)
    if alpha <= 0:
        ctx.refuse(f"alpha = {alpha}", "a positive alpha")
    if ctx.has_input(8):
        storage = storage_of(ctx, 8)
    else:
        ctx.invalid("it has a scale of the result, but no zero point")
    multiplier = scale / tensor_scale(ctx, 7, "the result")
    zero_point = tensor_zero_point(ctx, 8, storage, "the result")
    return requantize(ctx, accumulator, storage, multiplier, zero_point, axis=1)
