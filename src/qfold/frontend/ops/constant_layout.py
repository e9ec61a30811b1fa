"""Layout ops on constants: on a quantised one they move along what its parameters belong to, and no bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from qfold.dialects.element_types import i1, i64
from qfold.frontend.context import NodeContext
from qfold.frontend.raising import rule
from qfold.frontend.shapes import (
    flatten_shape,
    normalize_axis,
    permutation,
    reshape_shape,
    squeeze_shape,
    unsqueeze_shape,
)
from qfold.frontend.tensors import attribute_value, decode_tensor
from qfold.frontend.values import Const, Quantized, Value


@rule("Identity")
def _identity(ctx: NodeContext) -> Sequence[Value]:
    return [ctx.lattice(0)]


@rule("Constant")
def _constant(ctx: NodeContext) -> Sequence[Value] | None:
    if len(ctx.node.attribute) != 1:
        ctx.invalid("a Constant has one attribute, its value")
    attribute = ctx.node.attribute[0]
    if attribute.name == "value":
        return [decode_tensor(attribute.t, ctx.name, ctx.directory)]
    value = attribute_value(attribute, str(ctx.ref))
    dtypes = {"value_float": "float32", "value_floats": "float32"}
    dtypes |= {"value_int": "int64", "value_ints": "int64"}
    if attribute.name not in dtypes:
        ctx.refuse(f"a constant given as {attribute.name}", "value, value_int(s), value_float(s)")
    element = f32 if dtypes[attribute.name] == "float32" else i64
    return [Const(np.asarray(value, dtypes[attribute.name]), element, ctx.name)]


@rule("Shape")
def _shape(ctx: NodeContext) -> Sequence[Value]:
    shape = ctx.type(0).get_shape()
    start, end = ctx.attr("start", 0), ctx.attr("end", len(shape))
    return [Const(np.asarray(shape[slice(start, end)], np.int64), i64, ctx.name)]


@rule("Size")
def _size(ctx: NodeContext) -> Sequence[Value]:
    return [Const(np.asarray(np.prod(ctx.type(0).get_shape(), dtype=np.int64)), i64, ctx.name)]


@rule("Dropout")
def _dropout(ctx: NodeContext) -> Sequence[Value] | None:
    training = ctx.const(2) if ctx.has_input(2) else np.asarray(False)
    if training is None or bool(training.reshape(-1)[0]):
        ctx.refuse("training mode", "Dropout in inference, which does nothing")
    mask = np.broadcast_to(np.asarray(True), ctx.type(0).get_shape())
    return [ctx.lattice(0), Const(mask, i1, ctx.name)][: ctx.num_outputs()]


def _relayout(
    ctx: NodeContext, target: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> Sequence[Value] | None:
    """A constant with the shape that `target` makes of its own."""
    value = ctx.lattice(0)
    if isinstance(value, SSAValue):
        return None
    try:
        shape = target(value.shape)
    except ValueError as error:
        ctx.invalid(str(error))
    if isinstance(value, Const):
        return [value.reshaped(shape)]
    result = value.reshaped(shape, ctx.name)
    return None if result is None else [result]


def integers_argument(ctx: NodeContext, name: str, index: int) -> list[int] | None:
    """What is an attribute in old opsets and a constant input in new ones, whichever is given; None when absent."""
    if ctx.has_attr(name):
        return [int(v) for v in ctx.attr(name)]
    if not ctx.has_input(index):
        return None
    return [int(v) for v in ctx.require_const(index, name).reshape(-1)]


def axes_argument(ctx: NodeContext, index: int = 1) -> list[int] | None:
    """The axes of Squeeze and kin."""
    return integers_argument(ctx, "axes", index)


@rule("Transpose")
def _transpose(ctx: NodeContext) -> Sequence[Value] | None:
    value = ctx.lattice(0)
    if isinstance(value, SSAValue):
        return None
    try:
        perm = permutation(ctx.attr("perm"), len(value.shape))
    except ValueError as error:
        ctx.invalid(str(error))
    if isinstance(value, Const):
        return [value.transposed(perm)]
    return [value.transposed(perm, ctx.name)]


@rule("Reshape")
def _reshape(ctx: NodeContext) -> Sequence[Value] | None:
    if isinstance(ctx.lattice(0), SSAValue):
        return None
    requested = [int(d) for d in ctx.require_const(1, "shape").reshape(-1)]
    allow_zero = bool(ctx.attr("allowzero", 0))
    return _relayout(ctx, lambda shape: reshape_shape(shape, requested, allow_zero=allow_zero))


@rule("Flatten")
def _flatten(ctx: NodeContext) -> Sequence[Value] | None:
    return _relayout(ctx, lambda shape: flatten_shape(shape, ctx.attr("axis", 1)))


@rule("Squeeze")
def _squeeze(ctx: NodeContext) -> Sequence[Value] | None:
    if isinstance(ctx.lattice(0), SSAValue):
        return None
    axes = axes_argument(ctx)
    return _relayout(ctx, lambda shape: squeeze_shape(shape, axes))


@rule("Unsqueeze")
def _unsqueeze(ctx: NodeContext) -> Sequence[Value] | None:
    if isinstance(ctx.lattice(0), SSAValue):
        return None
    axes = axes_argument(ctx)
    if axes is None:
        ctx.invalid("Unsqueeze lacks its axes")
    return _relayout(ctx, lambda shape: unsqueeze_shape(shape, axes))


@rule("Slice")
def _slice(ctx: NodeContext) -> Sequence[Value] | None:
    value = ctx.lattice(0)
    if not isinstance(value, Quantized):
        return None

    result = value.sliced(slice_ranges(ctx, value.shape), ctx.name)
    return None if result is None else [result]


def slice_ranges(ctx: NodeContext, shape: Sequence[int]) -> dict[int, range]:
    """The indices that Slice takes of each dimension that it names: bounds clamped, negative ones counted from the end."""
    starts, ends = integers_argument(ctx, "starts", 1), integers_argument(ctx, "ends", 2)
    if starts is None or ends is None:
        ctx.invalid("Slice lacks its starts or ends")
    given = integers_argument(ctx, "axes", 3)
    axes = [normalize_axis(a, len(shape)) for a in (range(len(starts)) if given is None else given)]
    steps = integers_argument(ctx, "steps", 4) or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        ctx.invalid(f"starts {starts}, ends {ends}, axes {axes}, steps {steps} differ in length")
    if 0 in steps:
        ctx.invalid("a step is 0")
    return {
        axis: range(shape[axis])[start:end:step]
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


@rule("Split")
def _split(ctx: NodeContext) -> Sequence[Value] | None:
    value = ctx.lattice(0)
    if not isinstance(value, Quantized):
        return None
    axis = normalize_axis(int(ctx.attr("axis", 0)), len(value.shape))
    sizes = split_sizes(ctx, value.shape[axis])
    parts: list[Value] = []
    start = 0
    for size in sizes:
        part = value.sliced({axis: range(start, start + size)}, ctx.name)
        if part is None:
            return None
        parts.append(part)
        start += size
    return parts


def split_sizes(ctx: NodeContext, length: int) -> list[int]:
    """The lengths that Split cuts a dimension of `length` into: attribute, input, or equal parts (the last one smaller)."""
    if ctx.has_attr("split"):
        sizes = [int(s) for s in ctx.attr("split")]
    elif ctx.has_input(1):
        sizes = [int(s) for s in ctx.require_const(1, "split").reshape(-1)]
    else:
        count = int(ctx.attr("num_outputs", ctx.num_outputs()))
        chunk = -(-length // count) if count else 0
        sizes = [min(chunk, max(length - i * chunk, 0)) for i in range(count)]
    if sum(sizes) != length or min(sizes, default=0) < 0:
        ctx.invalid(f"a dimension of {length} is split into {sizes}")
    return sizes
