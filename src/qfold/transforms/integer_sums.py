"""Sums of dequantised integers, over axes or windows, as sums of the integers: average pooling between two quantised tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import BlockArgument, SSAValue
from xdsl.rewriter import InsertPoint

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i32, integer_range
from qfold.ir.builder import ScalarBuilder, TensorBuilder
from qfold.ir.generics import extents_of, indexing_maps, is_parallel, on_tensors
from qfold.transforms.accumulated_values import Accumulated, tensor_quant
from qfold.transforms.integer_chains import IntegerChains
from qfold.transforms.qmm_check_accumulators import Range
from qfold.transforms.quantization_scalars import widened


def _summand(op: linalg.GenericOp) -> int | None:
    """The input whose elements `op` adds up from 0, and does nothing else; None for any other op."""
    if is_parallel(op) or not on_tensors(op):
        return None
    block = op.body.block
    first, last = block.first_op, block.last_op
    accumulator = block.args[-1]
    if len(block.ops) != 2 or not isinstance(first, arith.AddfOp) or last is None:
        return None
    start = op.outputs[0].owner
    if not isinstance(start, linalg.FillOp) or last.operands[0] is not first.result:
        return None
    scalar = start.inputs[0].owner
    if not isinstance(scalar, arith.ConstantOp) or not isinstance(scalar.value, FloatAttr):
        return None
    others = [v for v in first.operands if v is not accumulator]
    if scalar.value.value.data != 0.0 or len(others) != 1:
        return None
    return others[0].index if isinstance(others[0], BlockArgument) else None


def summed(op: linalg.GenericOp, chains: IntegerChains) -> Accumulated | None:
    """The result of `op` as `scale * sum(q - zero_point)`, the sum in i32; None when it is none, or 32 bits may not hold it.

    The integers are written before `op`, which stays for whoever reads its floats.
    """
    index = _summand(op)
    if index is None or 0 in extents_of(op):
        return None
    dequantize = chains.dequantize_of(op.inputs[index])
    if dequantize is None:
        return None
    quant = tensor_quant(dequantize)
    if quant is None:
        return None
    zero = int(quant.zero_points)
    extents = extents_of(op)
    count = prod(extents) // prod(shape_of(op.results[0]))
    low, high = integer_range(quant.storage)
    sums = Range(min(count * (low - zero), 0), max(count * (high - zero), 0))
    if not sums.fits:
        return None
    integers = chains.dequantized(op.inputs[index], quant, op)
    if integers is None:
        return None
    builder = TensorBuilder(InsertPoint.before(op), op.location)
    *reads, written = indexing_maps(op)
    # The other inputs are of their shapes only: they bound loops.
    values = [
        integers if i == index else builder.empty(shape_of(v), quant.storage)
        for i, v in enumerate(op.inputs)
    ]

    def add(b: ScalarBuilder, e: Sequence[SSAValue], total: SSAValue) -> SSAValue:
        q = widened(b, e[index], quant.storage)
        if zero:
            q = b(arith.SubiOp, q, b.constant(zero, i32))
        return b(arith.AddiOp, total, q)

    total = builder.generic(
        list(zip(values, reads, strict=True)),
        builder.fill(shape_of(op.results[0]), i32, 0),
        written,
        [str(t.data) for t in op.get_iterator_types()],
        add,
    )
    scale = quant.scales.astype(np.float64).reshape([1] * len(shape_of(total)))
    return Accumulated(total, scale, sums)
