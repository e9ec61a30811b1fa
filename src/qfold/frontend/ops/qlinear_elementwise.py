"""The QLinear operators of com.microsoft whose arithmetic is in f32 between stored integers: dequantise, compute, quantise."""

from __future__ import annotations

from typing import cast

import numpy as np
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.qmm import QuantAttr
from qfold.frontend import registry
from qfold.frontend.context import NodeContext
from qfold.frontend.errors import shortened
from qfold.frontend.ops.activation import import_leaky_relu, import_sigmoid
from qfold.frontend.ops.elementwise import binary
from qfold.frontend.ops.integer_contraction import (
    require_integers,
    storage_of,
    tensor_scale,
    tensor_zero_point,
)
from qfold.frontend.ops.pooling import import_average_pool, import_global_average_pool
from qfold.frontend.ops.quantization import import_dequantize_linear, import_quantize_linear
from qfold.frontend.ops.scalars import add, multiply
from qfold.frontend.registry import Importer, onnx_op
from qfold.frontend.shapes import normalize_axis
from qfold.frontend.values import Const, Quantized

MICROSOFT = "com.microsoft"

onnx_op("DequantizeLinear", domain=MICROSOFT)(import_dequantize_linear)
onnx_op("QuantizeLinear", domain=MICROSOFT)(import_quantize_linear)


def _parameters(
    ctx: NodeContext, storage: IntegerType, scale: int, zero_point: int, what: str
) -> QuantAttr:
    """Inputs `scale` and `zero_point` (which may be absent: 0) as the parameters of a tensor of `storage`."""
    return QuantAttr.get(
        storage,
        np.float32(tensor_scale(ctx, scale, what)),
        np.asarray(tensor_zero_point(ctx, zero_point, storage, what)),
    )


def _dequantized(ctx: NodeContext, data: int) -> SSAValue:
    """Input `data`, whose scale and zero point are the two inputs that follow it, as f32."""
    storage = storage_of(ctx, data)
    quant = _parameters(ctx, storage, data + 1, data + 2, f"input {data}")
    value = ctx.lattice(data)
    if isinstance(value, Const):
        return ctx.materialize(
            Quantized(
                value,
                f32,
                ctx.name,
                scale=np.asarray(quant.scales, np.float32),
                zero_point=np.asarray(quant.zero_points),
            )
        )
    return ctx.b.insert(qmm.DequantizeOp(ctx.value(data), quant)).result


def _quantized(ctx: NodeContext, x: SSAValue, storage: IntegerType, scale: int) -> SSAValue:
    """`x` in `storage`; scale and zero point of the result are the inputs `scale` and the next."""
    quant = _parameters(ctx, storage, scale, scale + 1, "the result")
    return ctx.b.insert(qmm.QuantizeOp(x, quant)).result


def _two_operands(importer: Importer) -> Importer:
    def quantized(ctx: NodeContext) -> SSAValue:
        require_integers(ctx, 0, 3)
        storage = storage_of(ctx, 0)
        operands = ctx.on(_dequantized(ctx, 0), _dequantized(ctx, 3))
        return _quantized(ctx, cast(SSAValue, importer(operands)), storage, 6)

    return quantized


def _one_operand(importer: Importer) -> Importer:
    def quantized(ctx: NodeContext) -> SSAValue:
        result = cast(SSAValue, importer(ctx.on(_dequantized(ctx, 0))))
        return _quantized(ctx, result, storage_of(ctx, 0), 3)

    return quantized


def _pool(importer: Importer) -> Importer:
    """With `channels_last`, data and result are [N, spatial..., C]."""

    def quantized(ctx: NodeContext) -> SSAValue:
        if not ctx.attr("channels_last", 0):
            return cast(SSAValue, _one_operand(importer)(ctx))
        x = ctx.value(0)
        rank = len(shape_of(x))
        first = ctx.b.transpose(x, [0, rank - 1, *range(1, rank - 1)])
        result = _one_operand(importer)(ctx.on(first, *ctx.inputs[1:]))
        return ctx.b.transpose(cast(SSAValue, result), [0, *range(2, rank), 1])

    return quantized


def _softmax(ctx: NodeContext) -> SSAValue:
    """The attribute `opset` says which definition of Softmax is meant: it changed in 13."""
    opset = int(ctx.attr("opset", 13))
    importer = registry.lookup("", "Softmax", opset)
    assert importer is not None
    return cast(SSAValue, importer(ctx.on(*ctx.inputs, opset=opset)))


onnx_op("QLinearAdd", domain=MICROSOFT)(_two_operands(binary(add)))
onnx_op("QLinearMul", domain=MICROSOFT)(_two_operands(binary(multiply)))
onnx_op("QLinearSigmoid", domain=MICROSOFT)(_one_operand(import_sigmoid))
onnx_op("QLinearLeakyRelu", domain=MICROSOFT)(_one_operand(import_leaky_relu))
onnx_op("QLinearSoftmax", domain=MICROSOFT)(_one_operand(_softmax))
onnx_op("QLinearAveragePool", domain=MICROSOFT)(_pool(import_average_pool))
onnx_op("QLinearGlobalAveragePool", domain=MICROSOFT)(_pool(import_global_average_pool))


@onnx_op("QLinearConcat", domain=MICROSOFT)
def import_qlinear_concat(ctx: NodeContext) -> SSAValue:
    """The parts, each with its own scale and zero point, at the scale of the result; those that have it already stay."""
    if ctx.num_inputs() < 5 or (ctx.num_inputs() - 2) % 3:
        ctx.invalid(f"it has {ctx.num_inputs()} inputs; expected 2 and 3 for each part")
    storage = storage_of(ctx, 1)
    target = _parameters(ctx, storage, 0, 1, "the result")
    parts: list[SSAValue] = []
    for data in range(2, ctx.num_inputs(), 3):
        quant = _parameters(ctx, storage_of(ctx, data), data + 1, data + 2, f"input {data}")
        if quant == target:
            parts.append(ctx.value(data))
        else:
            parts.append(_quantized(ctx, _dequantized(ctx, data), storage, 0))
    axis = normalize_axis(int(ctx.attr("axis", 1)), len(shape_of(parts[0])))
    try:
        return ctx.b.concat(parts, axis)
    except ValueError as error:
        ctx.invalid(shortened(error))
