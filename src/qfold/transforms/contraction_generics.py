"""Contractions written out as `linalg.generic`: what `convert-qmm-to-linalg` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.contraction import EpilogueOperation, ints, shape_of, window_of
from qfold.dialects.qmm import QuantAttr
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.fusion import inline_body
from qfold.ir.quantized import uniform
from qfold.transforms.quantization_scalars import dequantized, widened

Read = tuple[SSAValue, AffineMap]


@dataclass(frozen=True)
class _Parameters:
    """The scales and zero points of a weight as inputs of generics, or as numbers."""

    quant: QuantAttr
    scale: SSAValue | None
    zero_point: SSAValue | None

    @staticmethod
    def of(builder: TensorBuilder, quant: QuantAttr) -> _Parameters:
        if quant.axis is None:
            return _Parameters(quant, None, None)
        zeros = quant.zero_point.array()
        return _Parameters(
            quant,
            builder.constant(quant.scales, f32),
            None if uniform(zeros) else builder.constant(zeros, quant.storage),
        )

    def reads(self, index: Sequence[AffineExpr], loops: int) -> list[Read]:
        """What a generic reads them by, `index` being the indices of the weight's dimensions."""
        quant = self.quant
        if quant.axis is None:
            return []
        where = [index[quant.axis]]
        if quant.block_size is not None:
            where = list(index)
            where[quant.axis] = where[quant.axis] // quant.block_size
        return self.reads_at(where, loops)

    def reads_at(self, index: Sequence[AffineExpr], loops: int) -> list[Read]:
        """The same, `index` being those of the scales."""
        map_ = AffineMap(loops, 0, tuple(index))
        return [(v, map_) for v in (self.scale, self.zero_point) if v is not None]

    def scalars(
        self, b: ScalarBuilder, elements: Sequence[SSAValue]
    ) -> tuple[SSAValue, SSAValue | None]:
        """(scale, zero point as i32 or None for 0), of the elements of `reads()`."""
        quant = self.quant
        if quant.axis is None:
            scale = b.constant(float(quant.scales), f32)
        else:
            scale = elements[0]
        if self.zero_point is not None:
            return scale, widened(b, elements[1], quant.storage)
        if quant.is_symmetric:
            return scale, None
        return scale, b.constant(int(quant.zero_points.flat[0]), IntegerType(32))


def loop_dims(count: int) -> list[AffineExpr]:
    return [AffineExpr.dimension(d) for d in range(count)]


def batch_indices(batch: Sequence[AffineExpr], operand: Sequence[int]) -> list[AffineExpr]:
    """The batch indices of an operand of that shape, which broadcasts to the loops `batch`."""
    leading = batch[len(batch) - (len(operand) - 2) :]
    extents = operand[:-2]
    return [
        AffineExpr.constant(0) if size == 1 else d for size, d in zip(extents, leading, strict=True)
    ]


def _sum(b: ScalarBuilder, accumulator: SSAValue, x: SSAValue, y: SSAValue) -> SSAValue:
    return b(arith.AddfOp, accumulator, b(arith.MulfOp, x, y))


def _raw(b: ScalarBuilder, w: SSAValue, storage: IntegerType) -> SSAValue:
    """A stored integer as a float, by the extension of its signedness."""
    return b(arith.SIToFPOp, widened(b, w, storage), f32)


def expand_matmul(op: qmm.MatmulOp | qmm.DequantMatmulOp, builder: TensorBuilder) -> SSAValue:
    """The accumulator of a matmul, hoisted corrections applied."""
    shape = shape_of(op.result)
    rank = len(shape)
    loops = rank + 1
    *batch, m, n, k = loop_dims(loops)
    transpose_a = isinstance(op, qmm.MatmulOp) and op.transpose_a is not None

    a_index = [*batch_indices(batch, shape_of(op.a)), *([k, m] if transpose_a else [m, k])]
    w_last = [n, k] if op.transpose_b is not None else [k, n]
    a_read = (op.a, AffineMap(loops, 0, tuple(a_index)))
    zeros = builder.fill(shape, f32, 0.0)
    output = AffineMap(loops, 0, (*batch, m, n))
    kinds = ["parallel"] * rank + ["reduction"]
    if isinstance(op, qmm.MatmulOp):
        b_index = (*batch_indices(batch, shape_of(op.b)), *w_last)
        b_read = (op.b, AffineMap(loops, 0, b_index))
        return builder.generic(
            [a_read, b_read], zeros, output, kinds, lambda b, e, acc: _sum(b, acc, e[0], e[1])
        )
    quant = op.quant
    storage = quant.storage
    weight = builder.insert(qmm.ConstantOp(op.weight)).result
    parameters = _Parameters.of(builder, quant)
    inputs = [a_read, (weight, AffineMap(loops, 0, tuple(w_last)))]
    reads = parameters.reads(w_last, loops)
    if op.hoisted is None:
        return builder.generic(
            [*inputs, *reads],
            zeros,
            output,
            kinds,
            lambda b, e, acc: _sum(
                b, acc, e[0], dequantized(b, e[1], storage, *parameters.scalars(b, e[2:]))
            ),
        )
    if quant.block_size is None:
        total = builder.generic(
            inputs,
            zeros,
            output,
            kinds,
            lambda b, e, acc: _sum(b, acc, e[0], _raw(b, e[1], storage)),
        )
        dims = loop_dims(rank)
        column = [dims[-1]] if quant.axis is not None else []
        correction = [(op.row_sum, AffineMap(rank, 0, tuple(dims[:-1])))] if op.row_sum else []
        return _corrected(builder, total, correction, parameters, column)
    # Per block: the scale goes with each product, the correction is a sum over the blocks.
    scaled = builder.generic(
        [*inputs, *reads],
        zeros,
        output,
        kinds,
        lambda b, e, acc: _sum(
            b, acc, e[0], b(arith.MulfOp, _raw(b, e[1], storage), parameters.scalars(b, e[2:])[0])
        ),
    )
    if op.row_sum is None:
        return scaled
    by_block = [n, k] if op.transpose_b is not None else [k, n]

    def subtract(b: ScalarBuilder, e: Sequence[SSAValue], acc: SSAValue) -> SSAValue:
        scale, zero = parameters.scalars(b, e[1:])
        assert zero is not None
        correction = b(arith.MulfOp, b(arith.SIToFPOp, zero, f32), e[0])
        return b(arith.SubfOp, acc, b(arith.MulfOp, scale, correction))

    sums = (op.row_sum, AffineMap(loops, 0, (*batch, m, k)))
    return builder.generic(
        [sums, *parameters.reads_at(by_block, loops)], scaled, output, kinds, subtract
    )


def _corrected(
    builder: TensorBuilder,
    total: SSAValue,
    correction: Sequence[Read],
    parameters: _Parameters,
    channel: Sequence[AffineExpr],
) -> SSAValue:
    """`scale * (total - zero_point * sum)`, `channel` indexing scales by the loops of `total`'s shape."""
    shape = shape_of(total)
    rank = len(shape)

    def body(b: ScalarBuilder, e: Sequence[SSAValue], _: SSAValue) -> SSAValue:
        value = e[0]
        scale, zero = parameters.scalars(b, e[1 + len(correction) :])
        if correction:
            assert zero is not None
            offset = b(arith.MulfOp, b(arith.SIToFPOp, zero, f32), e[1])
            value = b(arith.SubfOp, value, offset)
        return b(arith.MulfOp, value, scale)

    return builder.generic(
        [
            (total, AffineMap.identity(rank)),
            *correction,
            *(parameters.reads_at(channel, rank)),
        ],
        builder.empty(shape, f32),
        AffineMap.identity(rank),
        ["parallel"] * rank,
        body,
    )


@dataclass(frozen=True)
class ConvLoops:
    """The loops of a convolution: n, g, m (for a convolution), o..., c, k..., with x as [N, G, C, padded spatial...]."""

    x: SSAValue
    loops: int
    n: AffineExpr
    g: AffineExpr
    m: list[AffineExpr]
    o: list[AffineExpr]
    c: AffineExpr
    k: list[AffineExpr]
    x_index: list[AffineExpr]

    @staticmethod
    def of(
        op: qmm.ConvOp | qmm.DequantConvOp | qmm.QuantConvOp | qmm.WindowSumOp,
        builder: TensorBuilder,
        x: SSAValue | None = None,
        padding: int = 0,
    ) -> ConvLoops:
        """`x`: what takes the place of the op's, where padding is not 0 in that but `padding`."""
        groups, strides, pads, dilations = window_of(op)
        rank = len(strides)
        low, high = pads[:rank], pads[rank:]
        x = builder.pad(op.x if x is None else x, [0, 0, *low], [0, 0, *high], padding)
        n, c, *spatial = shape_of(x)
        x = builder.reshape(x, [n, groups, c // groups, *spatial])
        channels = 0 if isinstance(op, qmm.WindowSumOp) else 1
        loops = 3 + channels + 2 * rank
        dims = loop_dims(loops)
        o = dims[2 + channels : 2 + channels + rank]
        k = dims[-rank:]
        place = [
            out * stride + tap * dilation
            for out, tap, stride, dilation in zip(o, k, strides, dilations, strict=True)
        ]
        depth = dims[2 + channels + rank]
        x_index = [dims[0], dims[1], depth, *place]
        return ConvLoops(x, loops, dims[0], dims[1], dims[2 : 2 + channels], o, depth, k, x_index)

    @property
    def x_read(self) -> Read:
        return self.x, AffineMap(self.loops, 0, tuple(self.x_index))

    @property
    def kinds(self) -> list[str]:
        reductions = 1 + len(self.k)
        return ["parallel"] * (self.loops - reductions) + ["reduction"] * reductions

    @property
    def output(self) -> AffineMap:
        return AffineMap(self.loops, 0, (self.n, self.g, *self.m, *self.o))


def expand_window_sum(op: qmm.WindowSumOp, builder: TensorBuilder) -> SSAValue:
    """The sum of each window and group: an operand that is never read gives the window's extents."""
    window = ConvLoops.of(op, builder)
    extents = builder.empty(ints(op.kernel_shape), f32)
    return builder.generic(
        [window.x_read, (extents, AffineMap(window.loops, 0, tuple(window.k)))],
        builder.fill(shape_of(op.result), f32, 0.0),
        window.output,
        window.kinds,
        lambda b, e, acc: b(arith.AddfOp, acc, e[0]),
    )


def expand_conv(op: qmm.ConvOp | qmm.DequantConvOp, builder: TensorBuilder) -> SSAValue:
    """The accumulator of a convolution, hoisted corrections applied; padding is written out."""
    window = ConvLoops.of(op, builder)
    n, channels, *spatial = shape_of(op.result)
    groups = window_of(op)[0]
    grouped = [n, groups, channels // groups, *spatial]
    zeros = builder.fill(grouped, f32, 0.0)
    w_index = (window.g, *window.m, window.c, *window.k)
    w_map = AffineMap(window.loops, 0, w_index)

    def with_groups(weight: SSAValue) -> SSAValue:
        m, *rest = shape_of(weight)
        return builder.reshape(weight, [groups, m // groups, *rest])

    if isinstance(op, qmm.ConvOp):
        total = builder.generic(
            [window.x_read, (with_groups(op.w), w_map)],
            zeros,
            window.output,
            window.kinds,
            lambda b, e, acc: _sum(b, acc, e[0], e[1]),
        )
        return builder.reshape(total, shape_of(op.result))
    quant = op.quant
    storage = quant.storage
    m, *rest = op.weight.shape
    weight = op.weight.with_shape([groups, m // groups, *rest])
    constant = builder.insert(qmm.ConstantOp(weight)).result
    parameters = _Parameters.of(builder, quant)
    if parameters.scale is not None:
        parameters = _Parameters(
            quant,
            with_groups(parameters.scale),
            None if parameters.zero_point is None else with_groups(parameters.zero_point),
        )
    inputs = [window.x_read, (constant, w_map)]
    if op.hoisted is None:
        channel = [window.g, *window.m] if quant.axis is not None else []
        total = builder.generic(
            [*inputs, *parameters.reads_at(channel, window.loops)],
            zeros,
            window.output,
            window.kinds,
            lambda b, e, acc: _sum(
                b, acc, e[0], dequantized(b, e[1], storage, *parameters.scalars(b, e[2:]))
            ),
        )
        return builder.reshape(total, shape_of(op.result))
    total = builder.generic(
        inputs,
        zeros,
        window.output,
        window.kinds,
        lambda b, e, acc: _sum(b, acc, e[0], _raw(b, e[1], storage)),
    )
    dims = loop_dims(len(grouped))
    correction: list[Read] = []
    if op.window_sum is not None:
        correction = [(op.window_sum, AffineMap(len(grouped), 0, (dims[0], dims[1], *dims[3:])))]
    channel = dims[1:3] if quant.axis is not None else []
    total = _corrected(builder, total, correction, parameters, channel)
    return builder.reshape(total, shape_of(op.result))


def expand_epilogue(
    op: EpilogueOperation, accumulator: SSAValue, builder: TensorBuilder
) -> SSAValue:
    """A generic that does to the accumulator what the op's epilogue does; the accumulator itself when there is none."""
    block = op.epilogue_block
    if block is None:
        return accumulator
    shape = shape_of(accumulator)
    rank = len(shape)
    result_type = element_type(op.results[0])
    operands = cast(Sequence[SSAValue], op.epilogue_operands)
    reads = [(accumulator, AffineMap.identity(rank)), *zip(operands, op.maps, strict=True)]

    def body(b: ScalarBuilder, e: Sequence[SSAValue], _: SSAValue) -> SSAValue:
        elements = [b.to_storage(v, a.type) for v, a in zip(e, block.args, strict=True)]
        value = inline_body(block, elements, b.at)
        return b.from_storage(value)

    return builder.generic(
        reads,
        builder.empty(shape, result_type),
        AffineMap.identity(rank),
        ["parallel"] * rank,
        body,
    )
