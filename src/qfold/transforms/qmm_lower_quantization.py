"""`qmm-lower-quantization`: quantise, dequantise, requantise, row sums and table look-ups become `linalg.generic`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, ModuleOp, f32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import (
    i32,
    is_unsigned,
)
from qfold.dialects.qmm import QuantAttr
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.generics import function_blocks, local_rewriter
from qfold.ir.locations import replace_op
from qfold.ir.quantized import constant_quant, uniform
from qfold.transforms.integer_ranges import IntegerRanges
from qfold.transforms.quantization_scalars import dequantized, quantized, widened
from qfold.transforms.requantization_generics import (
    dynamic_parameters,
    lower_requantize,
    lower_requantize_shift,
)


@dataclass(frozen=True)
class _Parameter:
    """A scale or zero point: one number for all, or a tensor read through a map."""

    number: float | int | None
    operand: SSAValue | None = None
    map: AffineMap | None = None

    @property
    def is_zero(self) -> bool:
        return self.number == 0


def _parameter_map(quant: QuantAttr, rank: int) -> AffineMap:
    """Indices of the quantised tensor -> indices of the scales."""
    assert quant.axis is not None
    if quant.block_size is None:
        return AffineMap(rank, 0, (AffineExpr.dimension(quant.axis),))
    dims = [AffineExpr.dimension(d) for d in range(rank)]
    dims[quant.axis] = dims[quant.axis] // quant.block_size
    return AffineMap(rank, 0, tuple(dims))


class _Parameters:
    """Scale and zero point of one op, ready to be inputs of a generic on the quantised tensor's shape."""

    def __init__(self, builder: TensorBuilder, op: qmm.QuantizeOp | qmm.DequantizeOp):
        data = op.q if isinstance(op, qmm.DequantizeOp) else op.result
        self.storage = cast(IntegerType, element_type(data))
        rank = len(shape_of(data))
        quant = constant_quant(op, data)
        if quant is not None:
            map_ = None if quant.axis is None else _parameter_map(quant, rank)
            zeros = quant.zero_point.array()
            self.scale = _constant(builder, quant.scales, f32, map_)
            self.zero_point = _constant(builder, zeros, self.storage, map_)
            return
        assert op.runtime_scale is not None
        rows = [AffineExpr.dimension(d) for d in range(len(shape_of(op.runtime_scale)))]
        map_ = AffineMap(rank, 0, tuple(rows))
        self.scale = _Parameter(None, op.runtime_scale, map_)
        zero = op.runtime_zero_point
        self.zero_point = _Parameter(0) if zero is None else _Parameter(None, zero, map_)

    def inputs(self) -> list[tuple[SSAValue, AffineMap]]:
        """The operands that are not numbers: of the scale, then of the zero point."""
        return [
            (p.operand, p.map)
            for p in (self.scale, self.zero_point)
            if p.operand is not None and p.map is not None
        ]

    def scalars(
        self, b: ScalarBuilder, elements: Sequence[SSAValue]
    ) -> tuple[SSAValue, SSAValue | None]:
        """(scale, zero point as i32 or None for 0), of the elements of `inputs()`."""
        rest = iter(elements)
        scale = b.constant(self.scale.number, f32) if self.scale.number is not None else next(rest)
        if self.zero_point.number is None:
            return scale, widened(b, next(rest), self.storage)
        if self.zero_point.is_zero:
            return scale, None
        return scale, b.constant(self.zero_point.number, i32)


def _constant(
    builder: TensorBuilder,
    values: npt.NDArray[np.generic],
    type_: Attribute,
    map_: AffineMap | None,
) -> _Parameter:
    if uniform(values):
        number = values.flat[0].item() if values.size else 1
        return _Parameter(number)
    return _Parameter(None, builder.constant(values, type_), map_)


def lower_dequantize(op: qmm.DequantizeOp, builder: TensorBuilder) -> SSAValue:
    """`scale * (q - zero_point)`, element by element: of a constant too, which stays integers in memory."""
    parameters = _Parameters(builder, op)
    shape = shape_of(op.q)
    rank = len(shape)
    return builder.generic(
        [(op.q, AffineMap.identity(rank)), *parameters.inputs()],
        builder.empty(shape, f32),
        AffineMap.identity(rank),
        ["parallel"] * rank,
        lambda b, e, _: dequantized(b, e[0], parameters.storage, *parameters.scalars(b, e[1:])),
    )


def lower_quantize(op: qmm.QuantizeOp, builder: TensorBuilder) -> SSAValue:
    """`saturate(roundeven(x / scale) + zero_point)`, element by element."""
    parameters = _Parameters(builder, op)
    storage = parameters.storage
    shape = shape_of(op.x)
    rank = len(shape)
    return builder.generic(
        [(op.x, AffineMap.identity(rank)), *parameters.inputs()],
        builder.empty(shape, storage),
        AffineMap.identity(rank),
        ["parallel"] * rank,
        lambda b, e, _: quantized(b, e[0], storage, *parameters.scalars(b, e[1:])),
    )


def lower_row_sum(op: qmm.RowSumOp, builder: TensorBuilder) -> SSAValue:
    """The sum over the last dimension, or over each block of it: whole blocks at once, then the rest."""
    *rows, k = shape_of(op.a)
    if op.block is None:
        return builder.reduce(op.a, [len(rows)], 0.0, lambda b, e, acc: b(arith.AddfOp, acc, e))
    whole, rest = divmod(k, op.block)
    parts: list[SSAValue] = []
    if whole or not rest:
        parts.append(_block_sums(builder, op.a, 0, whole, op.block))
    if rest:
        parts.append(_block_sums(builder, op.a, whole * op.block, 1, rest))
    return builder.concat(parts, len(rows))


def _block_sums(
    builder: TensorBuilder, a: SSAValue, start: int, blocks: int, size: int
) -> SSAValue:
    """Sums of `blocks` blocks of `size` elements from `start` on along the last dimension."""
    *rows, _ = shape_of(a)
    rank = len(rows)
    dims = [AffineExpr.dimension(d) for d in range(rank + 2)]
    # An operand that is never read says how far the loop inside a block runs.
    extent = builder.empty([size], f32)
    return builder.generic(
        [
            (a, AffineMap(rank + 2, 0, (*dims[:rank], dims[rank] * size + dims[rank + 1] + start))),
            (extent, AffineMap(rank + 2, 0, (dims[rank + 1],))),
        ],
        builder.fill([*rows, blocks], f32, 0.0),
        AffineMap(rank + 2, 0, tuple(dims[: rank + 1])),
        ["parallel"] * (rank + 1) + ["reduction"],
        lambda b, e, acc: b(arith.AddfOp, acc, e[0]),
    )


def lower_gather(op: qmm.DequantGatherOp, builder: TensorBuilder) -> SSAValue:
    """Reads of the integer table inside a generic over the indices and a row."""
    quant = op.quant
    storage = quant.storage
    table = builder.insert(qmm.ConstantOp(op.weight)).result
    rows = op.weight.shape[0]
    indices_rank = len(shape_of(op.indices))
    shape = shape_of(op.result)
    index = IndexType()
    vectors = None
    if quant.axis is not None:
        scales, zeros = quant.scales, quant.zero_point.array()
        vectors = (
            builder.constant(scales, f32),
            None if uniform(zeros) else builder.constant(zeros, storage),
        )

    def body(b: ScalarBuilder, e: Sequence[SSAValue], _: SSAValue) -> SSAValue:
        def number(value: int) -> SSAValue:
            return b(arith.ConstantOp, IntegerAttr(value, index))

        i = b(arith.IndexCastOp, e[0], index)
        negative = b(arith.CmpiOp, i, number(0), "slt")
        i = b(arith.SelectOp, negative, b(arith.AddiOp, i, number(rows)), i)
        place = [i, *(b.index(d) for d in range(indices_rank, len(shape)))]
        q = b.from_storage(b(tensor.ExtractOp, table, place, storage))
        zero: SSAValue | None = None
        if quant.axis is None:
            scale = b.constant(float(quant.scales), f32)
        else:
            assert vectors is not None
            where = [place[quant.axis]] if quant.block_size is None else list(place)
            if quant.block_size is not None:
                block = b(arith.DivUIOp, place[quant.axis], number(quant.block_size))
                where[quant.axis] = block
            scale = b(tensor.ExtractOp, vectors[0], where, f32)
            if vectors[1] is not None:
                element = b.from_storage(b(tensor.ExtractOp, vectors[1], where, storage))
                zero = widened(b, element, storage)
        if zero is None and not quant.is_symmetric:
            zero = b.constant(int(quant.zero_points.flat[0]), i32)
        return dequantized(b, q, storage, scale, zero)

    dims = tuple(AffineExpr.dimension(d) for d in range(indices_rank))
    return builder.generic(
        [(op.indices, AffineMap(len(shape), 0, dims))],
        builder.empty(shape, f32),
        AffineMap.identity(len(shape)),
        ["parallel"] * len(shape),
        body,
    )


def lower_dynamic_quantize(op: qmm.DynamicQuantizeOp, builder: TensorBuilder) -> None:
    """Scale and zero point from the range of the data, then a quantisation by them."""
    scale, zero = dynamic_parameters(op, builder)
    storage = cast(IntegerType, element_type(op.result))
    quantize = qmm.QuantizeOp(
        op.x,
        None,
        storage=storage,
        runtime_scale=scale,
        # Signed ones are symmetric.
        runtime_zero_point=zero if is_unsigned(storage) else None,
    )
    quantize.attributes |= op.attributes
    builder.insert(quantize)
    replace_op(local_rewriter(op), op, [], [quantize.result, scale, zero])
    lower(quantize)


def lower(op: Operation, ranges: IntegerRanges | None = None) -> bool:
    """Replace `op` when it is one that this pass lowers; whether it was. `ranges`: what is known of the function's integers."""
    builder = TensorBuilder(InsertPoint.before(op), op.location)
    match op:
        case qmm.QuantizeOp():
            result = lower_quantize(op, builder)
        case qmm.DequantizeOp():
            result = lower_dequantize(op, builder)
        case qmm.RowSumOp():
            result = lower_row_sum(op, builder)
        case qmm.DequantGatherOp():
            result = lower_gather(op, builder)
        case qmm.RequantizeOp():
            result = lower_requantize(op, builder)
        case qmm.RequantizeShiftOp():
            known = IntegerRanges() if ranges is None else ranges
            result = lower_requantize_shift(op, builder, known)
        case qmm.DynamicQuantizeOp():
            lower_dynamic_quantize(op, builder)
            return True
        case _:
            return False
    generic = result.owner
    if isinstance(generic, Operation):
        generic.attributes |= op.attributes
    replace_op(local_rewriter(op), op, [], [result])
    return True


@dataclass(frozen=True)
class QmmLowerQuantizationPass(ModulePass):
    """Lower what quantises, dequantises or requantises, `qmm.row_sum` and `qmm.dequant_gather` to `linalg.generic`.

    Scales and zero points that differ become constant operands, others numbers in the body. Constant integers are read as
    integers: nothing is widened ahead of time. `qmm.window_sum` stays, as the kernels have it.
    """

    name = "qmm-lower-quantization"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            ranges = IntegerRanges()
            for inner in list(block.ops):
                lower(inner, ranges)
