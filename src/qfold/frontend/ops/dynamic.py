"""Dynamic quantisation: DynamicQuantizeLinear, DynamicQuantizeMatMul, MatMulIntegerToFloat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import ui8
from qfold.frontend.context import NodeContext
from qfold.frontend.ops.contraction import require_f32, reshaped, value_shape, with_vectors
from qfold.frontend.ops.integer_contraction import quant_matmul, require_integers
from qfold.frontend.registry import onnx_op
from qfold.frontend.values import Const, Value
from qfold.ir.builder import ScalarBuilder


@onnx_op("DynamicQuantizeLinear", since=11)
def import_dynamic_quantize_linear(ctx: NodeContext) -> Sequence[SSAValue]:
    """ui8 by the range of all elements."""
    require_f32(ctx, 0)
    op = ctx.b.insert(qmm.DynamicQuantizeOp(ctx.value(0), ui8))
    return op.result, op.scale, op.zero_point


def _scale_of_product(ctx: NodeContext, a_scale: Value, b_index: int, columns: int) -> SSAValue:
    """`sA * sB` in f32: of rank 0, or one for each column."""
    b_scale = ctx.lattice(b_index)
    if np.prod(value_shape(a_scale)) != 1:
        ctx.refuse(
            f"a scale of the left operand of shape {list(value_shape(a_scale))}", "one scale"
        )
    a_scale = reshaped(ctx, a_scale, ())
    count = int(np.prod(value_shape(b_scale)))
    if count not in (1, columns):
        ctx.invalid(f"the scale has shape {list(value_shape(b_scale))} for {columns} columns")
    b_scale = reshaped(ctx, b_scale, () if count == 1 else (columns,))
    if isinstance(a_scale, Const) and isinstance(b_scale, Const):
        product = np.asarray(a_scale.array * b_scale.array, np.float32)
        return ctx.materialize(Const(product, f32, ctx.name))
    factors = [ctx.materialize(a_scale), ctx.materialize(b_scale)]
    return ctx.b.elementwise(factors, f32, lambda b, e: b(arith.MulfOp, e[0], e[1]))


def _to_float(
    ctx: NodeContext, accumulator: SSAValue, a_scale: Value, b_scale: int, bias: int
) -> SSAValue:
    """`f32(accumulator) * (sA * sB) + bias`; the last two are inputs, the bias may be absent."""
    columns = shape_of(accumulator)[-1]
    operands = [accumulator, _scale_of_product(ctx, a_scale, b_scale, columns)]
    if ctx.has_input(bias):
        if ctx.type(bias).get_shape() != (columns,):
            ctx.invalid(f"the bias is {ctx.type(bias)} for {columns} columns")
        operands.append(ctx.value(bias))

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        product = b(arith.MulfOp, b(arith.SIToFPOp, e[0], f32), e[1])
        return b(arith.AddfOp, product, e[2]) if len(e) > 2 else product

    return ctx.b.elementwise(operands, f32, body)


@onnx_op("MatMulIntegerToFloat", domain="com.microsoft")
def import_matmul_integer_to_float(ctx: NodeContext) -> SSAValue:
    """`sA * sB * (A - zA)(B - zB) + bias`; scales and zero points may be computed at run time."""
    require_integers(ctx, 0, 1)
    require_f32(ctx, 2, 3, 6)
    return with_vectors(
        ctx,
        ctx.lattice(0),
        ctx.lattice(1),
        lambda a, b: _to_float(
            ctx, quant_matmul(ctx, a, b, a_zero_point=4, b_zero_point=5), ctx.lattice(2), 3, 6
        ),
    )


@onnx_op("DynamicQuantizeMatMul", domain="com.microsoft")
def import_dynamic_quantize_matmul(ctx: NodeContext) -> SSAValue:
    """A is quantised to ui8 by the range of all its elements."""
    require_f32(ctx, 0, 2, 4)
    require_integers(ctx, 1)

    def product(a: Value, b: Value) -> SSAValue:
        quantized = ctx.b.insert(qmm.DynamicQuantizeOp(ctx.materialize(a), ui8))
        accumulator = quant_matmul(
            ctx, quantized.result, b, a_zero_point=quantized.zero_point, b_zero_point=3
        )
        return _to_float(ctx, accumulator, quantized.scale, 2, 4)

    return with_vectors(ctx, ctx.lattice(0), ctx.lattice(1), product)
