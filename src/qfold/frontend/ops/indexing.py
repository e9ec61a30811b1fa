"""Reads at positions that are computed at run time: Gather, GatherElements, GatherND."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import IndexType, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i32, i64
from qfold.frontend.context import NodeContext
from qfold.frontend.ops.generics import count_runs, mapped, take
from qfold.frontend.ops.scalars import MOVABLE, element_of
from qfold.frontend.registry import onnx_op
from qfold.frontend.shapes import normalize_axis
from qfold.frontend.values import Quantized
from qfold.ir.builder import ScalarBuilder, element_type

GATHER_MARK = "qmm.gather"
"""Unit attribute on a generic that reads whole rows (axis 0) of the one tensor that its body extracts from."""

_MAX_SLICES = 8
"""Constant indices that fall into more runs than this are looked up, not sliced."""


def as_position(b: ScalarBuilder, index: SSAValue, length: int) -> SSAValue:
    """An ONNX index into `length` elements, negative ones from the end, as a position that is always within them.

    ONNX calls an index outside of `-length .. length - 1` an error. Nothing at run time can report it, so it reads
    the nearest element: never memory beside the tensor.
    """
    zero = b.constant(0, index.type)
    below = b(arith.CmpiOp, index, zero, "slt")
    wrapped = b(arith.AddiOp, index, b.constant(length, index.type))
    counted = b(arith.SelectOp, below, wrapped, index)
    bounded = b(arith.MinSIOp, b(arith.MaxSIOp, counted, zero), b.constant(length - 1, index.type))
    return b(arith.IndexCastOp, bounded, IndexType())


def extract(b: ScalarBuilder, table: SSAValue, positions: Sequence[SSAValue]) -> SSAValue:
    """The element of a tensor at positions, signless."""
    return b.from_storage(b(tensor.ExtractOp, table, positions, element_type(table)))


@onnx_op("Gather")
def import_gather(ctx: NodeContext) -> SSAValue:
    """`data` at `indices` along one axis. Known indices in few runs are slices."""
    type_ = element_of(ctx, 0, MOVABLE)
    element_of(ctx, 1, (i32, i64))
    data = ctx.type(0).get_shape()
    axis = normalize_axis(int(ctx.attr("axis", 0)), len(data))
    length = data[axis]
    indices_shape = ctx.type(1).get_shape()
    shape = (*data[:axis], *indices_shape, *data[axis + 1 :])
    if 0 in shape:
        return ctx.b.empty(shape, type_)
    if length == 0:
        ctx.invalid(f"it reads from {list(data)}, which has no elements along axis {axis}")
    known = ctx.const(1)
    if known is not None:
        flat = [int(i) for i in known.reshape(-1)]
        for index in flat:
            normalize_axis(index, length)
        flat = [i % length for i in flat]
        # Rows of a quantised table stay a gather, which fuses with the dequantise: slices would widen the table.
        rows_of_weight = axis == 0 and isinstance(ctx.lattice(0), Quantized)
        if count_runs(flat) <= _MAX_SLICES and not rows_of_weight:
            return ctx.b.reshape(take(ctx.b, ctx.value(0), axis, flat), shape)
    table = ctx.value(0)
    loops = range(axis, axis + len(indices_shape))

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        positions = [b.index(d) for d in range(len(shape)) if d not in loops]
        positions.insert(axis, as_position(b, e[0], length))
        return extract(b, table, positions)

    result = mapped(ctx.b, [(ctx.value(1), loops)], shape, type_, body)
    generic = result.owner
    if axis == 0 and isinstance(generic, Operation):
        generic.attributes[GATHER_MARK] = UnitAttr()
    return result


@onnx_op("GatherElements")
def import_gather_elements(ctx: NodeContext) -> SSAValue:
    """`data` at the position of each index, but for the coordinate along `axis`, which the index gives."""
    type_ = element_of(ctx, 0, MOVABLE)
    element_of(ctx, 1, (i32, i64))
    table, indices = ctx.value(0), ctx.value(1)
    data, shape = shape_of(table), shape_of(indices)
    axis = normalize_axis(int(ctx.attr("axis", 0)), len(data))
    if len(shape) != len(data) or any(
        n > have for d, (n, have) in enumerate(zip(shape, data, strict=True)) if d != axis
    ):
        ctx.invalid(f"indices of shape {list(shape)} do not lie within {list(data)}")
    if 0 in shape:
        return ctx.b.empty(shape, type_)

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        position = as_position(b, e[0], data[axis])
        positions = [position if d == axis else b.index(d) for d in range(len(data))]
        return extract(b, table, positions)

    return mapped(ctx.b, [(indices, range(len(shape)))], shape, type_, body)


@onnx_op("GatherND")
def import_gather_nd(ctx: NodeContext) -> SSAValue:
    """The last dimension of `indices` holds coordinates into the dimensions of `data` after the batch ones."""
    type_ = element_of(ctx, 0, MOVABLE)
    element_of(ctx, 1, (i64,))
    table, indices = ctx.value(0), ctx.value(1)
    data, given = shape_of(table), shape_of(indices)
    batch = int(ctx.attr("batch_dims", 0))
    if not given or not 0 <= batch < min(len(data), len(given)) or data[:batch] != given[:batch]:
        ctx.invalid(f"{list(data)} and {list(given)} do not share {batch} batch dimensions")
    depth = given[-1]
    if batch + depth > len(data):
        ctx.invalid(f"{depth} coordinates for data of shape {list(data)}")
    outer = len(given) - 1
    shape = (*given[:-1], *data[batch + depth :])
    if 0 in shape:
        return ctx.b.empty(shape, type_)
    rank = len(shape)
    # The same tensor once for each coordinate.
    coordinates = [
        (
            indices,
            AffineMap(
                rank, 0, (*(AffineExpr.dimension(d) for d in range(outer)), AffineExpr.constant(c))
            ),
        )
        for c in range(depth)
    ]

    def body(b: ScalarBuilder, e: Sequence[SSAValue], _: SSAValue) -> SSAValue:
        positions = [b.index(d) for d in range(batch)]
        positions += [as_position(b, index, data[batch + c]) for c, index in enumerate(e)]
        positions += [b.index(d) for d in range(outer, rank)]
        return extract(b, table, positions)

    return ctx.b.generic(
        coordinates,
        ctx.b.empty(shape, type_),
        AffineMap.identity(rank),
        ["parallel"] * rank,
        body,
    )
