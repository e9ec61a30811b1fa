"""Data movement: Reshape and kin, Transpose, Expand, Tile, Concat, Split, Slice, Pad, DepthToSpace, SpaceToDepth.

For values that are computed at run time; `constant_layout.py` moves constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from qfold.dialects.contraction import shape_of
from qfold.frontend.context import NodeContext
from qfold.frontend.ops.constant_layout import (
    axes_argument,
    integers_argument,
    slice_ranges,
    split_sizes,
)
from qfold.frontend.ops.generics import select_dims, take
from qfold.frontend.ops.scalars import MOVABLE, common_element, element_of
from qfold.frontend.registry import onnx_op
from qfold.frontend.shapes import (
    flatten_shape,
    normalize_axes,
    normalize_axis,
    permutation,
    reshape_shape,
    squeeze_shape,
    unsqueeze_shape,
)
from qfold.frontend.tensors import MAX_ELEMENTS


def _integers(ctx: NodeContext, index: int, what: str) -> list[int]:
    """A constant input as a list."""
    return [int(v) for v in ctx.require_const(index, what).reshape(-1)]


# Shapes


def _reshaped(ctx: NodeContext, target: Callable[[tuple[int, ...]], tuple[int, ...]]) -> SSAValue:
    element_of(ctx, 0, MOVABLE)
    x = ctx.value(0)
    return ctx.b.reshape(x, target(shape_of(x)))


@onnx_op("Reshape")
def import_reshape(ctx: NodeContext) -> SSAValue:
    requested = integers_argument(ctx, "shape", 1) or []
    allow_zero = bool(ctx.attr("allowzero", 0))
    return _reshaped(ctx, lambda shape: reshape_shape(shape, requested, allow_zero=allow_zero))


@onnx_op("Flatten")
def import_flatten(ctx: NodeContext) -> SSAValue:
    return _reshaped(ctx, lambda shape: flatten_shape(shape, int(ctx.attr("axis", 1))))


@onnx_op("Squeeze")
def import_squeeze(ctx: NodeContext) -> SSAValue:
    axes = axes_argument(ctx)
    return _reshaped(ctx, lambda shape: squeeze_shape(shape, axes))


@onnx_op("Unsqueeze")
def import_unsqueeze(ctx: NodeContext) -> SSAValue:
    axes = axes_argument(ctx)
    if axes is None:
        ctx.invalid("Unsqueeze lacks its axes")
    return _reshaped(ctx, lambda shape: unsqueeze_shape(shape, axes))


@onnx_op("Transpose")
def import_transpose(ctx: NodeContext) -> SSAValue:
    element_of(ctx, 0, MOVABLE)
    x = ctx.value(0)
    return ctx.b.transpose(x, permutation(ctx.attr("perm"), len(shape_of(x))))


def _block_transform(ctx: NodeContext, to_space: bool) -> SSAValue:
    """Channels to or from blocks of the two spatial dimensions: a reshape, a transpose, a reshape."""
    element_of(ctx, 0, MOVABLE)
    x = ctx.value(0)
    shape = shape_of(x)
    if len(shape) != 4:
        ctx.refuse(f"data of shape {list(shape)}", "two spatial dimensions")
    block = int(ctx.attr("blocksize"))
    mode = ctx.attr("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        ctx.invalid(f"mode is {mode!r}; expected DCR or CRD")
    n, c, h, w = shape
    if to_space:
        if block < 1 or c % (block * block):
            ctx.invalid(f"{c} channels do not hold blocks of {block} x {block}")
        depth = c // (block * block)
        if mode == "DCR":
            split, order = (n, block, block, depth, h, w), (0, 3, 4, 1, 5, 2)
        else:
            split, order = (n, depth, block, block, h, w), (0, 1, 4, 2, 5, 3)
        result = (n, depth, h * block, w * block)
    else:
        if block < 1 or h % block or w % block:
            ctx.invalid(f"{h} x {w} is not made of blocks of {block} x {block}")
        split = (n, c, h // block, block, w // block, block)
        order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
        result = (n, c * block * block, h // block, w // block)
    return ctx.b.reshape(ctx.b.transpose(ctx.b.reshape(x, split), order), result)


@onnx_op("DepthToSpace")
def import_depth_to_space(ctx: NodeContext) -> SSAValue:
    return _block_transform(ctx, to_space=True)


@onnx_op("SpaceToDepth")
def import_space_to_depth(ctx: NodeContext) -> SSAValue:
    return _block_transform(ctx, to_space=False)


# Copies


@onnx_op("Expand")
def import_expand(ctx: NodeContext) -> SSAValue:
    element_of(ctx, 0, MOVABLE)
    x = ctx.value(0)
    target = tuple(_integers(ctx, 1, "shape"))
    return ctx.b.broadcast_to(x, np.broadcast_shapes(shape_of(x), target))


@onnx_op("Tile")
def import_tile(ctx: NodeContext) -> SSAValue:
    """One loop per repeat outside of each dimension, then a reshape."""
    type_ = element_of(ctx, 0, MOVABLE)
    x = ctx.value(0)
    shape = shape_of(x)
    repeats = _integers(ctx, 1, "repeats")
    if len(repeats) != len(shape) or min(repeats, default=0) < 0:
        ctx.invalid(f"repeats are {repeats} for data of shape {list(shape)}")
    result = [n * r for n, r in zip(shape, repeats, strict=True)]
    if result == list(shape):
        return x
    space: list[int] = []
    loops: list[int] = []
    for n, r in zip(shape, repeats, strict=True):
        if r != 1:
            space.append(r)
        loops.append(len(space))
        space.append(n)
    rank = len(space)
    tiled = ctx.b.generic(
        [(x, select_dims(rank, loops))],
        ctx.b.empty(space, type_),
        AffineMap.identity(rank),
        ["parallel"] * rank,
        lambda b, e, _: e[0],
    )
    return ctx.b.reshape(tiled, result)


# Parts


@onnx_op("Concat")
def import_concat(ctx: NodeContext) -> SSAValue:
    common_element(ctx, MOVABLE)
    xs = [ctx.value(i) for i in range(ctx.num_inputs())]
    shapes = [shape_of(x) for x in xs]
    axis = normalize_axis(int(ctx.attr("axis", 1)), len(shapes[0]))
    for shape in shapes[1:]:
        other = list(shape)
        if len(other) == len(shapes[0]):
            other[axis] = shapes[0][axis]
        if other != list(shapes[0]):
            ctx.invalid(f"{list(shapes[0])} and {list(shape)} do not join along axis {axis}")
    return ctx.b.concat(xs, axis)


@onnx_op("Split")
def import_split(ctx: NodeContext) -> Sequence[SSAValue]:
    element_of(ctx, 0, MOVABLE)
    x = ctx.value(0)
    shape = shape_of(x)
    axis = normalize_axis(int(ctx.attr("axis", 0)), len(shape))
    parts: list[SSAValue] = []
    offset = 0
    for size in split_sizes(ctx, shape[axis]):
        parts.append(_window(ctx, x, axis, offset, size))
        offset += size
    return parts


def _window(ctx: NodeContext, x: SSAValue, axis: int, offset: int, size: int) -> SSAValue:
    """`size` elements from `offset` on along `axis`."""
    shape = shape_of(x)
    offsets = [offset if d == axis else 0 for d in range(len(shape))]
    sizes = [size if d == axis else n for d, n in enumerate(shape)]
    if 0 in sizes:
        return ctx.b.empty(sizes, ctx.type(0).element_type)
    return ctx.b.slice(x, offsets, sizes, [1] * len(shape))


@onnx_op("Slice")
def import_slice(ctx: NodeContext) -> SSAValue:
    """numpy's slices: bounds are clamped, negative ones count from the end, steps have either sign."""
    type_ = element_of(ctx, 0, MOVABLE)
    x = ctx.value(0)
    shape = shape_of(x)
    offsets, sizes, strides = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, bounds in slice_ranges(ctx, shape).items():
        offsets[axis], sizes[axis], strides[axis] = bounds.start, len(bounds), bounds.step
    if 0 in sizes:
        return ctx.b.empty(sizes, type_)
    return ctx.b.slice(x, offsets, sizes, strides)


# Padding


def _pad_amounts(ctx: NodeContext, rank: int) -> tuple[list[int], list[int]]:
    """Elements to add before and after each dimension; negative ones are taken away."""
    pads = integers_argument(ctx, "pads", 1) or []
    axes = list(range(rank))
    if ctx.has_input(3):
        axes = [normalize_axis(a, rank) for a in _integers(ctx, 3, "axes")]
        normalize_axes(axes, rank)
    if len(pads) != 2 * len(axes):
        ctx.invalid(f"pads {pads} are not two numbers for each of {len(axes)} dimensions")
    low, high = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        low[axis], high[axis] = pads[position], pads[position + len(axes)]
    return low, high


@onnx_op("Pad")
def import_pad(ctx: NodeContext) -> SSAValue:
    """Modes constant, reflect, edge and wrap."""
    type_ = element_of(ctx, 0, MOVABLE)
    b, x = ctx.b, ctx.value(0)
    rank = len(shape_of(x))
    low, high = _pad_amounts(ctx, rank)
    mode = ctx.attr("mode", "constant")
    offsets = [max(0, -n) for n in low]
    sizes = [n - o - max(0, -h) for n, o, h in zip(shape_of(x), offsets, high, strict=True)]
    padded = prod(n + max(0, a) + max(0, z) for n, a, z in zip(sizes, low, high, strict=True))
    if padded > MAX_ELEMENTS:
        ctx.invalid(f"pads make {padded} elements; at most {MAX_ELEMENTS} are supported")
    if min(sizes, default=0) < 0:
        ctx.invalid(f"pads take more elements away than {list(shape_of(x))} has")
    x = b.empty(sizes, type_) if 0 in sizes else b.slice(x, offsets, sizes, [1] * rank)
    low, high = [max(0, n) for n in low], [max(0, n) for n in high]
    if mode == "constant":
        return _pad_constant(ctx, x, low, high)
    if mode not in ("reflect", "edge", "wrap"):
        ctx.refuse(f"mode {mode!r}", "constant, reflect, edge, wrap")
    for axis, length in enumerate(sizes):
        if low[axis] or high[axis]:
            # numpy pads the indices in the way in which the elements are to be padded.
            indices: Sequence[int] = np.pad(
                np.arange(length), (low[axis], high[axis]), mode=mode
            ).tolist()
            x = take(b, x, axis, indices)
    return x


def _pad_constant(
    ctx: NodeContext, x: SSAValue, low: Sequence[int], high: Sequence[int]
) -> SSAValue:
    value = ctx.attr("value", 0.0)
    if not ctx.has_input(2):
        return ctx.b.pad(x, low, high, value)
    known = ctx.const(2)
    if known is not None:
        return ctx.b.pad(x, low, high, known.reshape(-1)[0].item())
    shape = shape_of(x)
    out = [a + n + z for a, n, z in zip(low, shape, high, strict=True)]
    filled = ctx.b.broadcast_to(ctx.b.reshape(ctx.value(2), ()), out)
    return filled if 0 in shape else ctx.b.insert_slice(x, filled, low)
