"""`qmm-expand-zero-points`: zero points leave products of integers and become corrections of the accumulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects import qkernel, qmm
from qfold.dialects.contraction import int_array, shape_of, window_of
from qfold.dialects.element_types import i4, i8, i32, integer_range, numpy_dtype, ui4, ui8
from qfold.dialects.integer_operands import pad_value_attr, zero_point_type
from qfold.dialects.qmm import WeightAttr
from qfold.ir.builder import TensorBuilder, element_type
from qfold.ir.constants import constant_array, constant_weight
from qfold.ir.generics import erase_dead, function_blocks, local_rewriter, rebuilt
from qfold.ir.locations import replace_op
from qfold.transforms.contraction_generics import batch_indices, loop_dims
from qfold.transforms.epilogue_corrections import Corrections, Read, Term, read_of
from qfold.transforms.qmm_check_accumulators import Contraction, Integers
from qfold.transforms.qmm_fuse_dequant import REASON
from qfold.transforms.quantization_scalars import widened
from qfold.transforms.target_option import target_option

_SIGNED: dict[Any, IntegerType] = {ui8: i8, ui4: i4}


@dataclass(frozen=True)
class QmmExpandZeroPointsPass(ModulePass):
    """`(a - za)(b - zb) = a b - za sum_k (b - zb) - zb sum_k a`: products of stored integers, corrected in the epilogue.

    For targets with kernels for packed bytes; without a target always. Sums are modulo 2^32, so that the result is the same,
    bit by bit. What is constant becomes one i32 per column or output channel, in one with a constant bias; row sums of `a` and
    column sums of a `b` that is not constant are computed by a `linalg.generic`. An unsigned constant weight becomes signed where
    that makes its zero points smaller, if all that reads it allows it.

    A convolution of one group gets a `pad_value` for the zero point of x, or a padded copy of x where that is known at run time
    only; it stays as it is, with a reason in `qmm.reason`, where the weight keeps a zero point. The same goes for depthwise ones
    with a constant zero point; other convolutions of groups stay.
    """

    name = "qmm-expand-zero-points"

    target: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.target is not None and not target_option(self.target).kernels_of(
            qkernel.PackedQuantMatmulOp.name
        ):
            return
        make_signed(op)
        for block in function_blocks(op):
            for inner in list(block.ops):
                if isinstance(inner, qmm.QuantMatmulOp):
                    _replace(inner, expand_matmul(inner))
                elif isinstance(inner, qmm.QuantConvOp):
                    _replace(inner, expand_conv(inner))


def _replace(op: Contraction, new_op: Contraction | None) -> None:
    if new_op is None:
        return
    dead = [v.owner for v in op.operands if isinstance(v.owner, Operation)]
    replace_op(local_rewriter(op), op, new_op)
    erase_dead(dead)


# Weights.


def _weight_of(op: Contraction) -> tuple[str, SSAValue, str, SSAValue | None]:
    """(operand name, weight, operand name, its zero point)."""
    if isinstance(op, qmm.QuantMatmulOp):
        return "b", op.b, "b_zero_point", op.b_zero_point
    return "w", op.w, "w_zero_point", op.w_zero_point


def _is_expanded(op: Operation) -> bool:
    """Whether the pass takes the zero points of an op out."""
    if not isinstance(op, qmm.QuantConvOp):
        return isinstance(op, qmm.QuantMatmulOp)
    return window_of(op)[0] == 1 or _is_depthwise(op)


def _is_depthwise(op: qmm.QuantConvOp) -> bool:
    """Whether each input channel is a group, and its zero point a constant: what would copy x is not worth it for so few
    products."""
    known = op.x_zero_point is None or constant_array(op.x_zero_point) is not None
    return shape_of(op.w)[1] == 1 and known


def _prefers_signed(op: Operation) -> bool:
    """Whether the weight's zero points get smaller when they and the weight are less by half of the range."""
    if not isinstance(op, Contraction) or not _is_expanded(op):
        return False
    _, weight, _, zero_point = _weight_of(op)
    zeros = None if zero_point is None else constant_array(zero_point)
    if element_type(weight) not in _SIGNED or constant_array(weight) is None or zeros is None:
        return False
    values = zeros.astype(np.int64)
    smaller = values - _middle(weight)
    # Zero points of four bits have eight.
    return bool(np.abs(smaller).sum() < values.sum() and smaller.max() < 128)


def _middle(weight: SSAValue) -> int:
    return (integer_range(element_type(weight))[1] + 1) // 2


def _constants_read(op: Operation) -> Iterator[WeightAttr]:
    """Unsigned constants that an op reads, other than a weight that may become signed."""
    weight = _weight_of(op)[1] if isinstance(op, Contraction) and _prefers_signed(op) else None
    for value in op.operands:
        found = None if value is weight else constant_weight(value)
        if found is not None:
            yield found
    for attribute in (*op.properties.values(), *op.attributes.values()):
        if isinstance(attribute, WeightAttr) and not isinstance(op, qmm.ConstantOp):
            yield attribute


def make_signed(module: ModuleOp) -> None:
    """Store unsigned constant weights as signed ones where `_prefers_signed` of all that read them."""
    readers: dict[WeightAttr, list[Contraction]] = {}
    kept: set[WeightAttr] = set()
    for block in function_blocks(module):
        for op in block.walk():
            kept.update(_constants_read(op))
            if isinstance(op, Contraction) and _prefers_signed(op):
                weight = constant_weight(_weight_of(op)[1])
                assert weight is not None
                readers.setdefault(weight, []).append(op)
    for weight, ops in readers.items():
        if weight not in kept:
            for op in ops:
                _make_signed(op)


def _make_signed(op: Contraction) -> None:
    name, weight, zero_name, zero_point = _weight_of(op)
    assert zero_point is not None
    values, zeros = constant_array(weight), constant_array(zero_point)
    assert values is not None and zeros is not None
    middle = _middle(weight)
    storage = _SIGNED[element_type(weight)]
    builder = TensorBuilder(InsertPoint.before(op), op.location)
    signed = (values.astype(np.int16) - middle).astype(numpy_dtype(storage))
    smaller = (zeros.astype(np.int16) - middle).astype(np.int8)
    groups = {
        name: [builder.constant(signed, storage)],
        zero_name: [builder.constant(smaller, zero_point_type(storage))] if smaller.any() else [],
    }
    _replace(op, rebuilt(op, groups, {}))


# Matmuls.


def expand_matmul(op: qmm.QuantMatmulOp) -> Contraction | None:
    """The product of stored integers, or None when there is nothing to change."""
    if 0 in shape_of(op.result):
        return None
    c = Corrections(op)
    if op.a_zero_point is None and op.b_zero_point is None:
        return c.applied() if c.merges else None
    *batch, m, n = loop_dims(len(shape_of(op.result)))
    rows = [*batch_indices(batch, shape_of(op.a)), m]
    columns = [*batch_indices(batch, shape_of(op.b)), n]
    if op.a_zero_point is not None:
        axis = len(shape_of(op.b)) - (1 if op.transpose_b is not None else 2)
        sums = _sums_of_differences(c, op.b, op.b_zero_point, axis, columns)
        _subtract_product(c, op.a_zero_point, rows, sums)
    if op.b_zero_point is not None:
        _subtract_product(c, op.b_zero_point, [n], _row_sums(c, op.a, rows))
    return c.applied({"a_zero_point": [], "b_zero_point": []})


def _row_sums(c: Corrections, a: SSAValue, rows: list[AffineExpr]) -> Term:
    """The sums of stored integers over the last dimension."""
    storage = cast(IntegerType, element_type(a))
    last = len(shape_of(a)) - 1
    known = constant_array(a)
    if known is not None:
        return _laid_out(c, known.astype(np.int64).sum(axis=last), rows)
    total = c.builder.reduce(
        a,
        [last],
        0,
        lambda b, e, acc: b(arith.AddiOp, acc, e),
        result_type=i32,
        element=lambda b, e: widened(b, e, storage),
    )
    return Read(total, _map(c, rows))


def _sums_of_differences(
    c: Corrections,
    w: SSAValue,
    zero_point: SSAValue | None,
    axis: int | list[int],
    index: list[AffineExpr],
) -> Term:
    """The sums of `w - zero_point` over `axis`, which are read at `index` of the output."""
    axes = [axis] if isinstance(axis, int) else axis
    shape = shape_of(w)
    kept = [d for d in range(len(shape)) if d not in axes]
    values = constant_array(w)
    zeros = np.zeros((), np.int64) if zero_point is None else constant_array(zero_point)
    if values is not None and zeros is not None:
        depth = int(np.prod([shape[d] for d in axes]))
        total = values.astype(np.int64).sum(axis=tuple(axes))
        return _laid_out(c, total - depth * zeros.astype(np.int64), index)
    storage = cast(IntegerType, element_type(w))
    rank = len(shape)
    reads = [(w, AffineMap.identity(rank))]
    if zero_point is not None:
        # The only dimension of a zero point is the last one that is kept.
        where = (AffineExpr.dimension(kept[-1]),) if shape_of(zero_point) else ()
        reads.append((zero_point, AffineMap(rank, 0, where)))
    zero_type = zero_point_type(storage)
    total = c.builder.generic(
        reads,
        c.builder.fill([shape[d] for d in kept], i32, 0),
        AffineMap(rank, 0, tuple(AffineExpr.dimension(d) for d in kept)),
        ["reduction" if d in axes else "parallel" for d in range(rank)],
        lambda b, e, acc: b(
            arith.AddiOp,
            acc,
            widened(b, e[0], storage)
            if zero_point is None
            else b(arith.SubiOp, widened(b, e[0], storage), widened(b, e[1], zero_type)),
        ),
    )
    return Read(total, _map(c, index))


def _map(c: Corrections, index: list[AffineExpr]) -> AffineMap:
    return AffineMap(c.constant.ndim, 0, tuple(index))


def _laid_out(c: Corrections, array: Integers, index: list[AffineExpr]) -> Integers:
    """A constant that is read at `index` of the output, whose dimensions come in order."""
    extents = [1] * c.constant.ndim
    for expression, size in zip(index, array.shape, strict=True):
        for d in expression.used_dims():
            extents[d] = size
    return array.reshape(extents)


def _subtract_product(
    c: Corrections, zero_point: SSAValue, index: list[AffineExpr], sums: Term
) -> None:
    """Subtract `zero_point`, read at `index` (or at nothing, when it is one number), times `sums`."""
    known = constant_array(zero_point)
    where = index if shape_of(zero_point) else []
    if known is not None:
        c.subtract_product(_laid_out(c, known.astype(np.int64), where), sums)
        return
    type_ = cast(IntegerType, element_type(zero_point))
    if not where and not isinstance(sums, Read):
        read = read_of(sums, c.builder)
        # A single column.
        sums = read if isinstance(read, Read) else sums
    if not where and isinstance(sums, Read):
        c.subtract_scaled(sums, zero_point)
        return
    negative = c.builder.elementwise(
        [zero_point], i32, lambda b, e: b(arith.SubiOp, b.constant(0, i32), widened(b, e[0], type_))
    )
    factor = sums if isinstance(sums, Read) else read_of(sums, c.builder)
    c.add(Read(negative, _map(c, where)), factor)


# Convolutions.


def expand_conv(op: qmm.QuantConvOp) -> Contraction | None:
    """The convolution of stored integers, or None when there is nothing to change, or it is refused."""
    if 0 in shape_of(op.result):
        return None
    c = Corrections(op)
    if not _is_expanded(op) or (op.x_zero_point is None and op.w_zero_point is None):
        return c.applied() if c.merges else None
    if op.w_zero_point is not None:
        return _refused(op, "the weight has a zero point, and each position its own sum over x")
    assert op.x_zero_point is not None
    rank = len(shape_of(op.w))
    channel: list[AffineExpr] = [AffineExpr.dimension(1)]
    sums = _sums_of_differences(c, op.w, None, list(range(1, rank)), channel)
    _subtract_product(c, op.x_zero_point, [], sums)
    pads = window_of(op)[2]
    known = constant_array(op.x_zero_point)
    if known is not None:
        value = pad_value_attr(int(known)) if any(pads) else None
        return c.applied({"x_zero_point": []}, {"pad_value": value})
    x = _padded(c.builder, op.x, op.x_zero_point, pads)
    return c.applied({"x": [x], "x_zero_point": []}, {"pads": int_array([0] * len(pads))})


def _padded(
    builder: TensorBuilder, x: SSAValue, zero_point: SSAValue, pads: tuple[int, ...]
) -> SSAValue:
    """x [N, C, spatial...] between margins of a zero point of rank 0."""
    if not any(pads):
        return x
    low, high = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    shape = [a + n + b for a, n, b in zip((0, 0, *low), shape_of(x), (0, 0, *high), strict=True)]
    margins = builder.elementwise([zero_point], element_type(x), lambda b, e: e[0], shape=shape)
    return builder.insert_slice(x, margins, [0, 0, *low])


def _refused(op: qmm.QuantConvOp, reason: str) -> None:
    op.attributes[REASON] = StringAttr(
        f"{reason}: the zero points stay, for kernels that subtract them"
    )
