"""Softmax and LogSoftmax; Batch-, Layer-, Instance- and GroupNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from qfold.dialects.contraction import shape_of
from qfold.frontend.context import NodeContext
from qfold.frontend.ops import scalars
from qfold.frontend.ops.generics import Along, folded, kept_dims, mapped
from qfold.frontend.ops.reduce import fold_axes
from qfold.frontend.ops.scalars import common_element, element_of
from qfold.frontend.registry import Importer, onnx_op
from qfold.frontend.shapes import normalize_axis
from qfold.ir.builder import ScalarBuilder, TensorBuilder


def _softmax_axes(ctx: NodeContext, *, coerced: bool) -> tuple[int, ...]:
    """The dimensions that are normalised together: one, or (until opset 12) all from `axis` on."""
    rank = len(ctx.type(0).get_shape())
    if not rank and not coerced:
        return ()
    axis = int(ctx.attr("axis", 1 if coerced else -1))
    if coerced and axis == rank:
        return ()  # rows of one element
    axis = normalize_axis(axis, rank)
    return tuple(range(axis, rank)) if coerced else (axis,)


def _exp_of_difference(b: ScalarBuilder, x: SSAValue, m: SSAValue) -> SSAValue:
    return b(math.ExpOp, b(arith.SubfOp, x, m))


def _softmax(coerced: bool) -> Importer:
    def importer(ctx: NodeContext) -> SSAValue:
        element_of(ctx, 0, (f32,))
        b, x, axes = ctx.b, ctx.value(0), _softmax_axes(ctx, coerced=coerced)
        shape = shape_of(x)
        every, kept = range(len(shape)), kept_dims(len(shape), axes)
        largest = fold_axes(ctx, x, f32, axes, scalars.lowest(f32), scalars.maximum)
        powers = mapped(
            b,
            [(x, every), (largest, kept)],
            shape,
            f32,
            lambda s, e: _exp_of_difference(s, e[0], e[1]),
        )
        total = fold_axes(ctx, powers, f32, axes, 0.0, scalars.add)
        return mapped(
            b,
            [(powers, every), (total, kept)],
            shape,
            f32,
            lambda s, e: s(arith.DivfOp, e[0], e[1]),
        )

    return importer


def _log_softmax(coerced: bool) -> Importer:
    """`(x - m) - log(sum(exp(x - m)))`, m the largest x."""

    def importer(ctx: NodeContext) -> SSAValue:
        element_of(ctx, 0, (f32,))
        b, x, axes = ctx.b, ctx.value(0), _softmax_axes(ctx, coerced=coerced)
        shape = shape_of(x)
        every, kept = range(len(shape)), kept_dims(len(shape), axes)
        largest = fold_axes(ctx, x, f32, axes, scalars.lowest(f32), scalars.maximum)
        total = folded(
            b,
            [(x, every), (largest, kept)],
            shape,
            axes,
            0.0,
            f32,
            lambda s, e, acc: s(arith.AddfOp, acc, _exp_of_difference(s, e[0], e[1])),
        )
        log = b.elementwise([total], f32, lambda s, e: s(math.LogOp, e[0]))
        return mapped(
            b,
            [(x, every), (largest, kept), (log, kept)],
            shape,
            f32,
            lambda s, e: s(arith.SubfOp, s(arith.SubfOp, e[0], e[1]), e[2]),
        )

    return importer


onnx_op("Softmax")(_softmax(coerced=True))
onnx_op("Softmax", since=13)(_softmax(coerced=False))
onnx_op("LogSoftmax")(_log_softmax(coerced=True))
onnx_op("LogSoftmax", since=13)(_log_softmax(coerced=False))


@dataclass
class Statistics:
    """Of x over some axes, which these tensors lack."""

    mean: SSAValue
    inverse_deviation: SSAValue
    """`1 / sqrt(variance + epsilon)`."""


def _statistics(b: TensorBuilder, x: SSAValue, axes: Sequence[int], epsilon: float) -> Statistics:
    """Two passes over x: the variance is the mean of `(x - mean)^2`."""
    shape = shape_of(x)
    count = prod(shape[a] for a in axes)
    every, kept = range(len(shape)), kept_dims(len(shape), axes)
    total = folded(
        b, [(x, every)], shape, axes, 0.0, f32, lambda s, e, acc: s(arith.AddfOp, acc, e[0])
    )

    def quotient(s: ScalarBuilder, value: SSAValue) -> SSAValue:
        return s(arith.DivfOp, value, s.constant(float(count), f32))

    mean = b.elementwise([total], f32, lambda s, e: quotient(s, e[0]))

    def squared(s: ScalarBuilder, e: Sequence[SSAValue], acc: SSAValue) -> SSAValue:
        return s(arith.AddfOp, acc, scalars.square(s, f32, s(arith.SubfOp, e[0], e[1])))

    squares = folded(b, [(x, every), (mean, kept)], shape, axes, 0.0, f32, squared)

    def inverse(s: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        return s(math.RsqrtOp, s(arith.AddfOp, quotient(s, e[0]), s.constant(epsilon, f32)))

    return Statistics(mean, b.elementwise([squares], f32, inverse))


def _normalize(
    b: TensorBuilder,
    x: SSAValue,
    axes: Sequence[int],
    statistics: Statistics,
    scale: Along,
    bias: Along | None,
) -> SSAValue:
    """`(x - mean) * inverse_deviation * scale + bias`."""
    shape = shape_of(x)
    kept = kept_dims(len(shape), axes)
    operands: list[Along] = [
        (x, range(len(shape))),
        (statistics.mean, kept),
        (statistics.inverse_deviation, kept),
        scale,
        *([bias] if bias else []),
    ]

    def body(s: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        standard = s(arith.MulfOp, s(arith.SubfOp, e[0], e[1]), e[2])
        scaled = s(arith.MulfOp, standard, e[3])
        return s(arith.AddfOp, scaled, e[4]) if bias else scaled

    return mapped(b, operands, shape, f32, body)


def _trailing(ctx: NodeContext, index: int, rank: int) -> Along:
    """An operand that broadcasts to the last dimensions of a space of `rank`, without its leading ones."""
    value = ctx.value(index)
    shape = list(shape_of(value))
    if len(shape) > rank:
        ctx.invalid(f"input {index} has shape {shape}, more dimensions than the data")
    data = ctx.type(0).get_shape()[rank - len(shape) :]
    if np.broadcast_shapes(tuple(shape), data) != tuple(data):
        ctx.invalid(f"input {index} of shape {shape} does not broadcast to {list(data)}")
    loops = [d + rank - len(shape) for d in range(len(shape))]
    real = [i for i, (have, want) in enumerate(zip(shape, data, strict=True)) if have == want]
    return ctx.b.reshape(value, [shape[i] for i in real]), [loops[i] for i in real]


@onnx_op("LayerNormalization")
def import_layer_normalization(ctx: NodeContext) -> Sequence[SSAValue]:
    """Over all dimensions from `axis` on; the optional outputs are mean and inverse deviation."""
    common_element(ctx, (f32,), *(i for i in range(3) if ctx.has_input(i)))
    if int(ctx.attr("stash_type", 1)) != 1:
        ctx.refuse(f"stash_type {ctx.attr('stash_type')}", "1, statistics in f32")
    b, x = ctx.b, ctx.value(0)
    shape = shape_of(x)
    rank = len(shape)
    axes = range(normalize_axis(int(ctx.attr("axis", -1)), rank), rank)
    statistics = _statistics(b, x, axes, float(ctx.attr("epsilon", 1e-5)))
    result = _normalize(
        b,
        x,
        axes,
        statistics,
        _trailing(ctx, 1, rank),
        _trailing(ctx, 2, rank) if ctx.has_input(2) else None,
    )
    if ctx.num_outputs() == 1:
        return [result]
    ones = [1 if d in axes else n for d, n in enumerate(shape)]
    extra = [b.reshape(v, ones) for v in (statistics.mean, statistics.inverse_deviation)]
    return [result, *extra][: ctx.num_outputs()]


def _channels(ctx: NodeContext, index: int, channels: int) -> SSAValue:
    """An operand of one element per channel."""
    if ctx.type(index).get_shape() != (channels,):
        ctx.invalid(
            f"input {index} has shape {list(ctx.type(index).get_shape())}, not [{channels}]"
        )
    return ctx.value(index)


def _channel_count(ctx: NodeContext) -> int:
    shape = ctx.type(0).get_shape()
    if len(shape) < 2:
        ctx.invalid(f"data of shape {list(shape)} has no channels")
    return shape[1]


@onnx_op("BatchNormalization")
def import_batch_normalization(ctx: NodeContext) -> SSAValue:
    """`(x - mean) * (scale / sqrt(var + epsilon)) + bias` per channel; the factor is computed once."""
    common_element(ctx, (f32,))
    if ctx.attr("training_mode", 0) or any(ctx.uses_output(i) for i in range(1, ctx.num_outputs())):
        ctx.refuse("training mode", "BatchNormalization in inference, with one output")
    b, x = ctx.b, ctx.value(0)
    shape = shape_of(x)
    channels = _channel_count(ctx)
    epsilon = float(ctx.attr("epsilon", 1e-5))
    bias, mean = _channels(ctx, 2, channels), _channels(ctx, 3, channels)
    scale, variance = ctx.const(1), ctx.const(4)
    if scale is not None and variance is not None and scale.shape == variance.shape == (channels,):
        exact = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        factor = b.constant(exact.astype(np.float32))
    else:

        def ratio(s: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
            shifted = s(arith.AddfOp, e[1], s.constant(epsilon, f32))
            return s(arith.DivfOp, e[0], s(math.SqrtOp, shifted))

        factor = b.elementwise(
            [_channels(ctx, 1, channels), _channels(ctx, 4, channels)], f32, ratio
        )

    def body(s: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        return s(arith.AddfOp, s(arith.MulfOp, s(arith.SubfOp, e[0], e[1]), e[2]), e[3])

    operands: list[Along] = [(x, range(len(shape))), (mean, [1]), (factor, [1]), (bias, [1])]
    return mapped(b, operands, shape, f32, body)


@onnx_op("InstanceNormalization")
def import_instance_normalization(ctx: NodeContext) -> SSAValue:
    """Over the spatial dimensions of each channel."""
    common_element(ctx, (f32,))
    channels = _channel_count(ctx)
    x = ctx.value(0)
    axes = range(2, len(shape_of(x)))
    statistics = _statistics(ctx.b, x, axes, float(ctx.attr("epsilon", 1e-5)))
    scale, bias = _channels(ctx, 1, channels), _channels(ctx, 2, channels)
    return _normalize(ctx.b, x, axes, statistics, (scale, [1]), (bias, [1]))


@onnx_op("GroupNormalization")
def import_group_normalization(ctx: NodeContext) -> SSAValue:
    """Over the channels of a group and the spatial dimensions. Scale and bias are per channel, or (opset 18) per group."""
    common_element(ctx, (f32,))
    if int(ctx.attr("stash_type", 1)) != 1:
        ctx.refuse(f"stash_type {ctx.attr('stash_type')}", "1, statistics in f32")
    channels, groups = _channel_count(ctx), int(ctx.attr("num_groups"))
    if groups < 1 or channels % groups:
        ctx.invalid(f"{channels} channels do not make {groups} groups")
    b, shape = ctx.b, ctx.type(0).get_shape()
    x = b.reshape(ctx.value(0), (shape[0], groups, channels // groups, *shape[2:]))
    axes = range(2, len(shape_of(x)))
    statistics = _statistics(b, x, axes, float(ctx.attr("epsilon", 1e-5)))

    def parameter(index: int) -> Along:
        if ctx.opset < 21:
            return _channels(ctx, index, groups), [1]
        return b.reshape(_channels(ctx, index, channels), (groups, channels // groups)), [1, 2]

    return b.reshape(_normalize(b, x, axes, statistics, parameter(1), parameter(2)), shape)
