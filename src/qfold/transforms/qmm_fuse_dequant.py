"""`qmm-fuse-dequant`: contractions of a dequantised constant weight become the dequant ops, which keep it as integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of, window_of
from qfold.dialects.element_types import i32, i64
from qfold.dialects.qmm import QuantAttr
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.generics import cloned_epilogue, erase_dead
from qfold.ir.locations import fuse_locations, replace_op
from qfold.ir.quantized import (
    QuantizedConstant,
    middle,
    reads_better_as_signed,
    trace_quantized,
    uniform,
)

REASON = "qmm.reason"
GATHER = "qmm.gather"
"""Marks a `linalg.generic` that reads rows of a table: indices are its one input, its body extracts from the table."""

_MATRIX = "a constant matrix, quantised per tensor, along one axis or in blocks along K"
_TABLE = "a constant table read along its axis 0, whole rows, by i32 or i64 indices"


def refuse(op: Operation, found: str, supported: str) -> None:
    """Leave `op` as it is, and say why on it."""
    op.attributes[REASON] = StringAttr(f"found {found}; supported: {supported}")


def keep_attributes(new_op: Operation, old_op: Operation) -> None:
    """Discardable attributes stay, except for reasons against what has happened now."""
    for name, value in old_op.attributes.items():
        if name not in (REASON, GATHER):
            new_op.attributes[name] = value


@dataclass(frozen=True)
class OffK:
    """A dequantised weight as `factors[k] * (dequantize(w, quant) - scale * offsets[k])`, `quant` without a scale along K."""

    quant: QuantAttr
    factors: npt.NDArray[np.float32] | None = None
    """None: 1."""
    offsets: npt.NDArray[np.float32] | None = None
    """Exact integers; None: 0. `quant` is per tensor where there are any, and `scale` its scale."""


def scale_off_k(quant: QuantAttr, k_axis: int) -> OffK | str:
    """What belongs to the activation taken out of the weight's quantisation, or what stands against it.

    `sum_k a_k * s_k * (w_kn - z_k) = sum_k a_k * s_k * (w_kn - z) - sum_k a_k * s_k * (z_k - z)` for any z. That is 0, or the
    middle of an unsigned type, which hoisting turns into 0: either way the bytes stay as other readers have them.
    """
    if quant.granularity == "block":
        if quant.axis == k_axis:
            return OffK(quant)
        return f"blocks along axis {quant.axis} of the weight, the output features"
    if quant.axis != k_axis:
        return OffK(quant)
    scales, zeros = quant.scales, quant.zero_points
    one = uniform(scales)
    scale = np.float32(1.0) if not one or not scales.size else scales.flat[0]
    factors = None if one else scales
    if uniform(zeros):
        zero = zeros.flat[0] if zeros.size else 0
        return OffK(QuantAttr.get(quant.storage, scale, zero), factors)
    zero = middle(quant.storage) if reads_better_as_signed(quant) else 0
    offsets = (zeros.astype(np.int64) - zero).astype(np.float32)
    if not np.array_equal(offsets.astype(np.int64) + zero, zeros):
        return f"zero points along K, axis {quant.axis} of the weight, too large for f32"
    return OffK(QuantAttr.get(quant.storage, scale, zero), factors, offsets)


def _correction(
    builder: TensorBuilder, op: qmm.MatmulOp, a: SSAValue, off_k: OffK
) -> tuple[SSAValue, AffineMap, Region]:
    """`sum_k a[..., m, k] * offsets[k]`, its map, and the epilogue of `op` with scale times that subtracted first."""
    assert off_k.offsets is not None
    rank = len(shape_of(a))
    row, k = AffineMap(rank, 0, tuple(map(AffineExpr.dimension, range(rank - 1)))), rank - 1
    total = builder.generic(
        [
            (a, AffineMap.identity(rank)),
            (builder.constant(off_k.offsets, f32), AffineMap(rank, 0, (AffineExpr.dimension(k),))),
        ],
        builder.fill(shape_of(a)[:-1], f32, 0.0),
        row,
        ["parallel"] * k + ["reduction"],
        lambda b, e, sum_: b(arith.AddfOp, sum_, b(arith.MulfOp, e[0], e[1])),
    )
    region = cloned_epilogue(op)
    if region is None:
        region = Region(Block(arg_types=[f32]))
        yield_op = qmm.YieldOp(region.block.args[0])
        ScalarBuilder(region.block, op.location).insert(yield_op)
    block = region.block
    accumulator = block.args[0]
    element: SSAValue = block.insert_arg(f32, len(block.args))
    b = ScalarBuilder(InsertPoint.at_start(block), builder.location)
    scale = float(off_k.quant.scales)
    if scale != 1.0:
        element = b(arith.MulfOp, element, b.constant(scale, f32))
    difference = b(arith.SubfOp, accumulator, element)
    accumulator.replace_uses_with_if(difference, lambda use: use.operation is not difference.owner)
    return total, row, region


def _swap_last(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


@dataclass
class FuseMatmul(RewritePattern):
    """`matmul a, view(dequantize(W))` -> `dequant_matmul a {W}`; with the weight on the left, of the transposes."""

    traced: list[Operation] = field(default_factory=list[Operation])

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: qmm.MatmulOp, rewriter: PatternRewriter, /) -> None:
        found: str | None = None
        for operand, on_the_left in ((op.b, False), (op.a, True)):
            weight = trace_quantized(operand)
            if isinstance(weight, QuantizedConstant):
                weight = self._fuse(op, weight, on_the_left, rewriter)
                if weight is None:
                    return
            found = found or weight
        if found is not None:
            refuse(op, found, _MATRIX)

    def _fuse(
        self,
        op: qmm.MatmulOp,
        value: QuantizedConstant,
        on_the_left: bool,
        rewriter: PatternRewriter,
    ) -> str | None:
        """Rewrite `op`, or return what stands against it."""
        matrix = value.as_matrix()
        if isinstance(matrix, str):
            return matrix
        weight, quant, transposed = matrix
        if on_the_left:
            # y = W @ b is the transpose of b^T @ W^T.
            transpose_b = transposed == (op.transpose_a is not None)
        else:
            transpose_b = transposed != (op.transpose_b is not None)
        off_k = scale_off_k(quant, 1 if transpose_b else 0)
        if isinstance(off_k, str):
            return off_k
        location = fuse_locations((op.location, *(o.location for o in value.ops)))
        builder = TensorBuilder(InsertPoint.before(op), location)
        a = op.b if on_the_left else op.a
        swap = op.transpose_b is None if on_the_left else op.transpose_a is not None
        rank = len(shape_of(op.result))
        a = builder.reshape(a, (*[1] * (rank - len(shape_of(a))), *shape_of(a)))
        if swap:
            a = builder.transpose(a, _swap_last(rank))
        if off_k.factors is not None:
            vector = builder.constant(off_k.factors, f32)
            a = builder.elementwise([a, vector], f32, lambda b, e: b(arith.MulfOp, e[0], e[1]))
        maps = list(op.maps)
        if on_the_left:
            dims = [AffineExpr.dimension(d) for d in _swap_last(rank)]
            maps = [m.replace_dims_and_symbols(dims, [], rank, 0) for m in maps]
        operands = list(op.epilogue_operands)
        if off_k.offsets is None:
            epilogue = cloned_epilogue(op)
        else:
            correction, row, epilogue = _correction(builder, op, a, off_k)
            operands.append(correction)
            maps.append(row)
        new_op = qmm.DequantMatmulOp(
            a,
            weight,
            off_k.quant,
            transpose_b=transpose_b,
            epilogue_operands=operands,
            epilogue_maps=maps,
            epilogue=epilogue,
            result_element_type=element_type(op.result),
        )
        keep_attributes(new_op, op)
        result = builder.insert(new_op).result
        if on_the_left:
            result = builder.transpose(result, _swap_last(rank))
        replace_op(rewriter, op, [], [result])
        self.traced.extend(value.ops)
        return None


@dataclass
class FuseConv(RewritePattern):
    """`conv x, view(dequantize(W))` -> `dequant_conv x {W}`."""

    traced: list[Operation] = field(default_factory=list[Operation])

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: qmm.ConvOp, rewriter: PatternRewriter, /) -> None:
        value = trace_quantized(op.w)
        if value is None:
            return
        plain = value.as_tensor() if isinstance(value, QuantizedConstant) else value
        if not isinstance(plain, str) and plain[1].axis not in (None, 0):
            what = "blocks" if plain[1].granularity == "block" else "scales"
            plain = f"{what} along axis {plain[1].axis} of the weight"
        elif not isinstance(plain, str) and plain[1].granularity == "block":
            plain = "blocks along the output channels"
        if isinstance(plain, str):
            refuse(
                op, plain, "a constant weight, quantised per tensor or per output channel (axis 0)"
            )
            return
        assert isinstance(value, QuantizedConstant)
        groups, strides, pads, dilations = window_of(op)
        new_op = qmm.DequantConvOp(
            op.x,
            *plain,
            strides=strides,
            pads=pads,
            dilations=dilations,
            groups=groups,
            epilogue_operands=op.epilogue_operands,
            epilogue_maps=op.maps,
            epilogue=cloned_epilogue(op),
            result_element_type=element_type(op.result),
        )
        keep_attributes(new_op, op)
        replace_op(rewriter, op, new_op, merged=value.ops)
        self.traced.extend(value.ops)


@dataclass
class FuseGather(RewritePattern):
    """A `linalg.generic {qmm.gather}` whose table is `view(dequantize(W))` -> `dequant_gather`."""

    traced: list[Operation] = field(default_factory=list[Operation])

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: linalg.GenericOp, rewriter: PatternRewriter, /) -> None:
        reads = [o for o in op.body.block.ops if isinstance(o, tensor.ExtractOp)]
        if GATHER not in op.attributes:
            if any(trace_quantized(read.tensor) is not None for read in reads):
                refuse(op, "indices into other axes or single elements of the table", _TABLE)
            return
        if len(reads) != 1 or len(op.inputs) != 1:
            return
        value = trace_quantized(reads[0].tensor)
        if value is None:
            return
        plain = value.as_tensor() if isinstance(value, QuantizedConstant) else value
        indices = op.inputs[0]
        if not isinstance(plain, str) and element_type(indices) not in (i32, i64):
            plain = f"indices of {element_type(indices)}"
        if isinstance(plain, str):
            refuse(op, plain, _TABLE)
            return
        assert isinstance(value, QuantizedConstant)
        weight, quant = plain
        shape = (*shape_of(indices), *weight.shape[1:])
        if op.results[0].type != TensorType(f32, shape):
            refuse(
                op, f"a result {op.results[0].type}", f"whole rows, a result of shape {list(shape)}"
            )
            return
        new_op = qmm.DequantGatherOp(indices, weight, quant)
        keep_attributes(new_op, op)
        replace_op(rewriter, op, new_op, merged=value.ops)
        self.traced.extend((*value.ops, *_owners(op.outputs)))


def _owners(values: Sequence[SSAValue]) -> list[Operation]:
    return [v.owner for v in values if isinstance(v.owner, Operation)]


@dataclass(frozen=True)
class QmmFuseDequantPass(ModulePass):
    """Fuse dequantised constant weights into `qmm.matmul`, `qmm.conv` and gathers.

    Looks through transposes and reshapes of the weight, which become `transpose_b` and the shape of the weight's type. A scale
    along K becomes a factor of the activation, zero points along K a sum over the activation that the epilogue subtracts. Each
    reader is fused by itself; a dequantise that something else needs, such as a function's result, stays. What cannot be fused
    keeps its op, with the reason in the string attribute `qmm.reason`.
    """

    name = "qmm-fuse-dequant"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        traced: list[Operation] = []
        patterns = [FuseMatmul(traced), FuseConv(traced), FuseGather(traced)]
        PatternRewriteWalker(
            GreedyRewritePatternApplier(list[RewritePattern](patterns)), apply_recursively=False
        ).rewrite_module(op)
        erase_dead(traced)
