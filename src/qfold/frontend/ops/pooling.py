"""MaxPool, AveragePool, LpPool and their global forms: generics over sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i8, ui8
from qfold.frontend.context import NodeContext
from qfold.frontend.ops import scalars
from qfold.frontend.ops.generics import folded, mapped
from qfold.frontend.ops.scalars import FLOATS, element_of
from qfold.frontend.registry import onnx_op
from qfold.frontend.shapes import auto_pads
from qfold.ir.builder import ScalarBuilder, TensorBuilder


@dataclass
class Windows:
    """How windows slide over the spatial dimensions."""

    spatial: list[int]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    low: list[int]
    """Padding before each dimension."""
    high: list[int]
    """Padding after it, as the node gives it."""
    result: list[int]
    """Windows along each dimension."""

    @property
    def overhang(self) -> list[int]:
        """Padding after each dimension that the last window needs: more than the node gives when it rounds up."""
        return [
            max(0, high, (n - 1) * s + (k - 1) * d + 1 - size - low)
            for size, k, s, d, low, high, n in zip(
                self.spatial,
                self.kernel,
                self.strides,
                self.dilations,
                self.low,
                self.high,
                self.result,
                strict=True,
            )
        ]

    def counts(self, *, padding: bool) -> npt.NDArray[np.float32]:
        """Elements in each window, those of the node's padding counted or not."""
        per_dimension: list[npt.NDArray[np.int64]] = []
        for d in range(len(self.kernel)):
            start = np.arange(self.result[d])[:, None] * self.strides[d] - self.low[d]
            position = start + np.arange(self.kernel[d])[None, :] * self.dilations[d]
            first, last = 0, self.spatial[d]
            if padding:
                first, last = -self.low[d], last + self.high[d]
            per_dimension.append(((position >= first) & (position < last)).sum(axis=1))
        return reduce(np.multiply.outer, per_dimension).astype(np.float32)


def windows_of(ctx: NodeContext) -> Windows:
    """The node's attributes, checked."""
    shape = ctx.type(0).get_shape()
    rank = len(shape) - 2
    if rank < 1:
        ctx.invalid(f"data of shape {list(shape)} has no spatial dimensions")
    spatial = list(shape[2:])

    def numbers(name: str, default: Sequence[int]) -> list[int]:
        values = [int(v) for v in ctx.attr(name, default)]
        if len(values) != rank or min(values) < 1:
            ctx.invalid(f"{name} is {values}; expected {rank} positive numbers")
        return values

    kernel = numbers("kernel_shape", [])
    strides, dilations = numbers("strides", [1] * rank), numbers("dilations", [1] * rank)
    mode = ctx.attr("auto_pad", "NOTSET") or "NOTSET"
    pads = auto_pads(mode, spatial, kernel, strides, dilations, ctx.attr("pads", []) or None)
    if len(pads) != 2 * rank or min(pads) < 0:
        ctx.invalid(f"pads is {pads}; expected {2 * rank} numbers of 0 and more")
    low, high = pads[:rank], pads[rank:]
    round_up = bool(ctx.attr("ceil_mode", 0)) and mode == "NOTSET"
    result: list[int] = []
    for size, k, s, d, before, after in zip(
        spatial, kernel, strides, dilations, low, high, strict=True
    ):
        room = size + before + after - ((k - 1) * d + 1)
        if room < 0:
            ctx.invalid(
                f"a window of {kernel} is larger than the padded data, {spatial} with {pads}"
            )
        count = (-(-room // s) if round_up else room // s) + 1
        # A window that starts in the padding after the data is none.
        if round_up and (count - 1) * s >= size + before:
            count -= 1
        result.append(count)
    return Windows(spatial, kernel, strides, dilations, low, high, result)


def slide(
    b: TensorBuilder,
    x: SSAValue,
    windows: Windows,
    type_: Attribute,
    neutral: float | int,
    body: Callable[[ScalarBuilder, SSAValue, SSAValue], SSAValue],
) -> SSAValue:
    """`body` (element, accumulator) folded over each window from `neutral`, which also is what padding holds."""
    rank = len(windows.kernel)
    shape = (*shape_of(x)[:2], *windows.result)
    padded = b.pad(x, [0, 0, *windows.low], [0, 0, *windows.overhang], neutral)
    dims = 2 + 2 * rank
    outer = [AffineExpr.dimension(d) for d in range(2 + rank)]
    inner = [AffineExpr.dimension(2 + rank + d) for d in range(rank)]
    read = [
        outer[2 + d] * windows.strides[d] + inner[d] * windows.dilations[d] for d in range(rank)
    ]
    # A tensor of the kernel's shape bounds the loops over it; nothing reads it.
    kernel = b.empty(windows.kernel, type_)
    return b.generic(
        [
            (padded, AffineMap(dims, 0, (*outer[:2], *read))),
            (kernel, AffineMap(dims, 0, tuple(inner))),
        ],
        b.fill(shape, type_, neutral),
        AffineMap(dims, 0, tuple(outer)),
        ["parallel"] * (2 + rank) + ["reduction"] * rank,
        lambda s, e, acc: body(s, e[0], acc),
    )


@onnx_op("MaxPool")
def import_max_pool(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, (*FLOATS, i8, ui8))
    if ctx.uses_output(1):
        ctx.refuse("a use of the output Indices", "the output of the maxima")
    if ctx.attr("storage_order", 0):
        ctx.refuse("storage_order 1", "storage_order 0")
    return slide(
        ctx.b,
        ctx.value(0),
        windows_of(ctx),
        type_,
        scalars.lowest(type_),
        lambda b, x, acc: scalars.maximum(b, type_, acc, x),
    )


@onnx_op("AveragePool")
def import_average_pool(ctx: NodeContext) -> SSAValue:
    """The sum of each window over its number of elements; that of padding counts with `count_include_pad`."""
    type_ = element_of(ctx, 0, FLOATS)
    windows = windows_of(ctx)
    total = slide(
        ctx.b, ctx.value(0), windows, type_, 0.0, lambda b, x, acc: b(arith.AddfOp, acc, x)
    )
    counts = windows.counts(padding=bool(ctx.attr("count_include_pad", 0)))
    if (counts == counts.flat[0]).all():
        count = float(counts.flat[0])
        return ctx.b.elementwise(
            [total], type_, lambda b, e: b(arith.DivfOp, e[0], b.constant(count, type_))
        )
    shape = shape_of(total)
    return mapped(
        ctx.b,
        [(total, range(len(shape))), (ctx.b.constant(counts, type_), range(2, len(shape)))],
        shape,
        type_,
        lambda b, e: b(arith.DivfOp, e[0], e[1]),
    )


def _lp_power(p: int) -> Callable[[ScalarBuilder, SSAValue], SSAValue]:
    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        magnitude = b(math.AbsFOp, x)
        result = magnitude
        for _ in range(p - 1):
            result = b(arith.MulfOp, result, magnitude)
        return result

    return body


def _lp_root(p: int) -> Callable[[ScalarBuilder, SSAValue], SSAValue]:
    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        if p == 1:
            return x
        if p == 2:
            return b(math.SqrtOp, x)
        return b(math.PowFOp, x, b.constant(1.0 / p, f32))

    return body


_MAX_NORM = 8
"""Powers up to this are written as products."""


def _norm(ctx: NodeContext) -> int:
    p = int(ctx.attr("p", 2))
    if not 1 <= p <= _MAX_NORM:
        ctx.refuse(f"p = {p}", f"p from 1 to {_MAX_NORM}")
    return p


def _finish(b: TensorBuilder, x: SSAValue, p: int) -> SSAValue:
    return b.elementwise([x], f32, lambda s, e: _lp_root(p)(s, e[0]))


@onnx_op("LpPool")
def import_lp_pool(ctx: NodeContext) -> SSAValue:
    """`(sum |x|^p)^(1/p)` of each window."""
    element_of(ctx, 0, (f32,))
    p = _norm(ctx)
    power = _lp_power(p)
    total = slide(
        ctx.b,
        ctx.value(0),
        windows_of(ctx),
        f32,
        0.0,
        lambda b, x, acc: b(arith.AddfOp, acc, power(b, x)),
    )
    return _finish(ctx.b, total, p)


# Global forms: one window, any number of spatial dimensions


def _global(
    ctx: NodeContext,
    type_: Attribute,
    init: float | int,
    body: Callable[[ScalarBuilder, SSAValue, SSAValue], SSAValue],
    finish: Callable[[ScalarBuilder, SSAValue], SSAValue] | None,
) -> SSAValue:
    x = ctx.value(0)
    shape = shape_of(x)
    if len(shape) < 2:
        ctx.invalid(f"data of shape {list(shape)} has no channels")
    result = folded(
        ctx.b,
        [(x, range(len(shape)))],
        shape,
        range(2, len(shape)),
        init,
        type_,
        lambda b, e, acc: body(b, e[0], acc),
    )
    if finish is not None:
        function = finish
        result = ctx.b.elementwise([result], type_, lambda b, e: function(b, e[0]))
    return ctx.b.reshape(result, (*shape[:2], *[1] * (len(shape) - 2)))


@onnx_op("GlobalAveragePool")
def import_global_average_pool(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, FLOATS)
    count = float(prod(ctx.type(0).get_shape()[2:]))
    return _global(
        ctx,
        type_,
        0.0,
        lambda b, x, acc: b(arith.AddfOp, acc, x),
        lambda b, x: b(arith.DivfOp, x, b.constant(count, type_)),
    )


@onnx_op("GlobalMaxPool")
def import_global_max_pool(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, FLOATS)
    return _global(
        ctx,
        type_,
        scalars.lowest(type_),
        lambda b, x, acc: scalars.maximum(b, type_, acc, x),
        None,
    )


@onnx_op("GlobalLpPool")
def import_global_lp_pool(ctx: NodeContext) -> SSAValue:
    element_of(ctx, 0, (f32,))
    p = _norm(ctx)
    power = _lp_power(p)
    return _global(
        ctx,
        f32,
        0.0,
        lambda b, x, acc: b(arith.AddfOp, acc, power(b, x)),
        _lp_root(p) if p > 1 else None,
    )
