"""Canonicalisation patterns of the `qmm` ops. A constant of narrow integers never becomes a constant of floats here."""

from __future__ import annotations

from typing import cast

import numpy as np
from xdsl.dialects import tensor
from xdsl.dialects.builtin import IntegerType, UnitAttr, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import STORAGE_TYPES
from qfold.dialects.qmm import WeightAttr
from qfold.ir.builder import TensorBuilder, element_type
from qfold.ir.constants import constant_array
from qfold.ir.generics import rebuilt
from qfold.ir.locations import fuse_locations, replace_op
from qfold.ir.quantized import (
    QuantizedConstant,
    constant_quant,
    permutation_of,
    trace_quantized,
    uniform,
)


class FoldLayoutOfConstant(RewritePattern):
    """A reshape of a constant is a constant of another type with the same bytes; a transpose of floats is a permuted constant.

    Integers that may be a weight are not permuted: their readers take them as they are stored.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: qmm.ConstantOp, rewriter: PatternRewriter, /) -> None:
        for use in list(op.result.uses):
            user = use.operation
            if isinstance(user, tensor.CollapseShapeOp | tensor.ExpandShapeOp):
                reshaped = qmm.ConstantOp(op.value.with_shape(shape_of(user.result)))
                replace_op(rewriter, user, reshaped, merged=[op])
            elif isinstance(user, linalg.TransposeOp) and use.index == 0 and user.results:
                if op.value.element_type in STORAGE_TYPES or op.value.is_elided:
                    continue
                if op.result.has_one_use():
                    array = op.value.array().transpose(permutation_of(user))
                    permuted = WeightAttr.from_array(array, op.value.element_type)
                    replace_op(rewriter, user, qmm.ConstantOp(permuted), merged=[op])


class FoldTransposeIntoMatmul(RewritePattern):
    """`matmul(transpose(a), b)` -> `matmul(a, b) {transpose_a}`, and the same for b; of integers for b only.

    Of a transpose that moves more than the last two dimensions, only their exchange is folded, and only when it brings the
    innermost dimension of the source to the inside again: what is left then copies rows, not elements, or is a view.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: qmm.MatmulOp | qmm.QuantMatmulOp, rewriter: PatternRewriter, /
    ) -> None:
        # The rows of a product of integers lie as they are: any strides are read.
        operands = {"a": op.a, "b": op.b} if isinstance(op, qmm.MatmulOp) else {"b": op.b}
        for name, value in operands.items():
            transpose = value.owner
            if not isinstance(transpose, linalg.TransposeOp) or not transpose.results:
                continue
            permutation = list(permutation_of(transpose))
            rank = len(permutation)
            if rank < 2 or permutation[-2] != rank - 1:
                continue
            left = [*permutation[:-2], permutation[-1], permutation[-2]]
            location = fuse_locations((op.location, transpose.location))
            builder = TensorBuilder(InsertPoint.before(op), location)
            source = builder.transpose(transpose.inputs[0], left)
            flag = f"transpose_{name}"
            changed = {flag: None if flag in op.properties else UnitAttr()}
            replace_op(rewriter, op, rebuilt(op, {name: [source]}, changed), merged=[transpose])
            return


class SimplifyZeroPoints(RewritePattern):
    """A zero point of 0 is none; equal ones are one."""

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: qmm.QuantMatmulOp | qmm.QuantConvOp, rewriter: PatternRewriter, /
    ) -> None:
        changed: dict[str, list[SSAValue]] = {}
        for name, keyword in op.GROUPS:
            if keyword is None or not keyword.endswith("zero_point"):
                continue
            value = cast("SSAValue | None", getattr(op, name))
            zeros = None if value is None else constant_array(value)
            if value is None or zeros is None or not zeros.size or not uniform(zeros):
                continue
            if not zeros.flat[0]:
                changed[name] = []
            elif zeros.ndim:
                builder = TensorBuilder(InsertPoint.before(op), op.location)
                changed[name] = [builder.constant(zeros.reshape(-1)[0], element_type(value))]
        if changed:
            replace_op(rewriter, op, rebuilt(op, changed, {}))


class DropUnusedSum(RewritePattern):
    """A zero point of 0 has no correction: the `row_sum` or `window_sum` is dropped."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if isinstance(op, qmm.DequantMatmulOp):
            name, operand = "row_sum", op.row_sum
        elif isinstance(op, qmm.DequantConvOp):
            name, operand = "window_sum", op.window_sum
        else:
            return
        if operand is not None and op.quant.is_symmetric:
            replace_op(rewriter, op, rebuilt(op, {name: []}, {}))


def _constant_parameters(
    op: qmm.QuantizeOp | qmm.DequantizeOp, data: SSAValue, rewriter: PatternRewriter
) -> bool:
    """Turn constant operands into the attribute; whether that was done."""
    if op.quant is not None:
        return False
    quant = constant_quant(op, data)
    if quant is None:
        return False
    new_op: Operation
    if isinstance(op, qmm.QuantizeOp):
        new_op = qmm.QuantizeOp(op.x, quant)
    else:
        new_op = qmm.DequantizeOp(op.q, quant)
    new_op.attributes |= op.attributes
    replace_op(rewriter, op, new_op)
    return True


class FoldQuantize(RewritePattern):
    """`quantize(dequantize(q))` with the same parameters is q; a quantised constant is a constant of integers.

    The first holds because `(q - zp) * scale / scale` is within an ULP or two of `q - zp`, an integer of at most 17 bits.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: qmm.QuantizeOp, rewriter: PatternRewriter, /) -> None:
        if _constant_parameters(op, op.result, rewriter) or op.quant is None:
            return
        source = op.x.owner
        if isinstance(source, qmm.DequantizeOp) and source.quant is not None:
            scales = op.quant.scales
            # Far from where f32 over- or underflows.
            if source.quant == op.quant and np.all((scales > 1e-30) & (scales < 1e30)):
                replace_op(rewriter, op, [], [source.q])
                return
            integers = constant_array(source.q)
            values = None if integers is None else source.quant.dequantize(integers)
        else:
            values = constant_array(op.x)
        if values is None:
            return
        storage = cast(IntegerType, element_type(op.result))
        weight = WeightAttr.from_array(op.quant.quantize(np.asarray(values)), storage)
        replace_op(rewriter, op, qmm.ConstantOp(weight))


class FoldDequantize(RewritePattern):
    """Constant operands become the attribute; a reshape of a dequantised constant becomes one of its integers."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: qmm.DequantizeOp, rewriter: PatternRewriter, /) -> None:
        if _constant_parameters(op, op.q, rewriter) or not op.result.has_one_use():
            return
        user = next(iter(op.result.uses)).operation
        if not isinstance(user, tensor.CollapseShapeOp | tensor.ExpandShapeOp):
            return
        value = trace_quantized(user.result)
        if not isinstance(value, QuantizedConstant):
            return
        plain = value.as_tensor()
        if isinstance(plain, str):
            return
        weight, quant = plain
        constant = qmm.ConstantOp(weight)
        dequantize = qmm.DequantizeOp(constant.result, quant)
        assert element_type(dequantize.result) == f32
        replace_op(rewriter, user, [constant, dequantize], merged=[op])
