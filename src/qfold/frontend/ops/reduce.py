"""Reductions: Sum, Mean, Max, Min, Prod, L1, L2, LogSum, LogSumExp, SumSquare; ArgMax and ArgMin; CumSum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i1, i64, is_float, signless
from qfold.frontend.context import NodeContext
from qfold.frontend.ops import scalars
from qfold.frontend.ops.generics import folded, kept_dims, mapped, select_dims
from qfold.frontend.ops.scalars import NUMBERS, Combine, element_of
from qfold.frontend.registry import Importer, onnx_op
from qfold.frontend.shapes import normalize_axes, normalize_axis
from qfold.ir.builder import ScalarBuilder

Map = Callable[[ScalarBuilder, Attribute, SSAValue], SSAValue]


def reduced_axes(ctx: NodeContext) -> tuple[int, ...]:
    """The dimensions that a Reduce* node folds: from an attribute or a constant input, all by default."""
    rank = len(ctx.type(0).get_shape())
    axes: Sequence[int] | None = None
    if ctx.has_attr("axes"):
        axes = [int(a) for a in ctx.attr("axes")]
    elif ctx.has_input(1):
        axes = [int(a) for a in ctx.require_const(1, "axes").reshape(-1)]
    if axes:
        return normalize_axes(axes, rank)
    return () if ctx.attr("noop_with_empty_axes", 0) else tuple(range(rank))


def _keeping(ctx: NodeContext, result: SSAValue, axes: Sequence[int]) -> SSAValue:
    """`result` with the folded dimensions as ones, where the node asks for that (the default)."""
    if not ctx.attr("keepdims", 1):
        return result
    shape = [1 if d in axes else n for d, n in enumerate(ctx.type(0).get_shape())]
    return ctx.b.reshape(result, shape)


def _identity(b: ScalarBuilder, type_: Attribute, x: SSAValue) -> SSAValue:
    return x


def fold_axes(
    ctx: NodeContext,
    x: SSAValue,
    type_: Attribute,
    axes: Sequence[int],
    init: float | int,
    combine: Combine,
    element: Map = _identity,
) -> SSAValue:
    """x folded over `axes`, which the result lacks; just mapped when there are none."""
    shape = shape_of(x)
    every = list(range(len(shape)))
    if not axes:
        return mapped(ctx.b, [(x, every)], shape, type_, lambda b, e: element(b, type_, e[0]))
    return folded(
        ctx.b,
        [(x, every)],
        shape,
        axes,
        init,
        type_,
        lambda b, e, acc: combine(b, type_, acc, element(b, type_, e[0])),
    )


def _finish(ctx: NodeContext, x: SSAValue, type_: Attribute, body: Map) -> SSAValue:
    """`body` on each element of a folded tensor."""
    return ctx.b.elementwise([x], type_, lambda b, e: body(b, type_, e[0]))


def _reduction(
    combine: Combine,
    supported: tuple[Attribute, ...],
    init: Callable[[Attribute], float | int],
    element: Map = _identity,
    finish: Callable[[int], Map] | None = None,
) -> Importer:
    """`finish` gets the number of elements that are folded into one."""

    def importer(ctx: NodeContext) -> SSAValue:
        type_ = element_of(ctx, 0, supported)
        axes = reduced_axes(ctx)
        result = fold_axes(ctx, ctx.value(0), type_, axes, init(type_), combine, element)
        if finish is not None:
            count = prod(ctx.type(0).get_shape()[a] for a in axes)
            result = _finish(ctx, result, type_, finish(count))
        return _keeping(ctx, result, axes)

    return importer


def _zero(type_: Attribute) -> int:
    return 0


def _one(type_: Attribute) -> int:
    return 1


def _root(count: int) -> Map:
    return lambda b, type_, x: b(math.SqrtOp, x)


def _log(count: int) -> Map:
    return lambda b, type_, x: b(math.LogOp, x)


def _average(count: int) -> Map:
    """A quotient, not a product with a rounded reciprocal. Integers truncate."""
    return lambda b, type_, x: scalars.divide(b, type_, x, b.constant(count, signless(type_)))


def _extreme(combine: Combine, on_bools: Callable[..., arith.AndIOp | arith.OrIOp]) -> Combine:
    def extreme(b: ScalarBuilder, type_: Attribute, x: SSAValue, y: SSAValue) -> SSAValue:
        return b(on_bools, x, y) if type_ == i1 else combine(b, type_, x, y)

    return extreme


_ORDERED = (*NUMBERS, i1)
onnx_op("ReduceSum")(_reduction(scalars.add, NUMBERS, _zero))
onnx_op("ReduceMean")(_reduction(scalars.add, NUMBERS, _zero, finish=_average))
onnx_op("ReduceProd")(_reduction(scalars.multiply, NUMBERS, _one))
onnx_op("ReduceMax")(_reduction(_extreme(scalars.maximum, arith.OrIOp), _ORDERED, scalars.lowest))
onnx_op("ReduceMin")(_reduction(_extreme(scalars.minimum, arith.AndIOp), _ORDERED, scalars.highest))
onnx_op("ReduceL1")(_reduction(scalars.add, NUMBERS, _zero, scalars.absolute))
onnx_op("ReduceL2")(_reduction(scalars.add, (f32,), _zero, scalars.square, _root))
onnx_op("ReduceLogSum")(_reduction(scalars.add, (f32,), _zero, finish=_log))
onnx_op("ReduceSumSquare")(_reduction(scalars.add, NUMBERS, _zero, scalars.square))


@onnx_op("ReduceLogSumExp")
def import_reduce_log_sum_exp(ctx: NodeContext) -> SSAValue:
    """`m + log(sum(exp(x - m)))` with the largest x as m, so that nothing overflows; 0 where that is infinite."""
    element_of(ctx, 0, (f32,))
    axes = reduced_axes(ctx)
    x = ctx.value(0)
    if not axes:
        return x  # log(exp(x))
    shape = shape_of(x)
    rank = len(shape)
    kept = kept_dims(rank, axes)
    largest = fold_axes(ctx, x, f32, axes, scalars.lowest(f32), scalars.maximum)

    def finite(b: ScalarBuilder, type_: Attribute, m: SSAValue) -> SSAValue:
        within = scalars.compare(b, "lt", f32, b(math.AbsFOp, m), b.constant(float("inf"), f32))
        return b(arith.SelectOp, within, m, b.constant(0.0, f32))

    shift = _finish(ctx, largest, f32, finite)

    def body(b: ScalarBuilder, e: Sequence[SSAValue], acc: SSAValue) -> SSAValue:
        return b(arith.AddfOp, acc, b(math.ExpOp, b(arith.SubfOp, e[0], e[1])))

    total = folded(ctx.b, [(x, range(rank)), (shift, kept)], shape, axes, 0.0, f32, body)
    result = ctx.b.elementwise(
        [total, shift], f32, lambda b, e: b(arith.AddfOp, b(math.LogOp, e[0]), e[1])
    )
    return _keeping(ctx, result, axes)


# Positions


def _position(combine: Combine, start: Callable[[Attribute], float | int]) -> Importer:
    """The index of the extreme element: of the first (or last) that equals it, or is NaN when it is."""

    def importer(ctx: NodeContext) -> SSAValue:
        type_ = element_of(ctx, 0, NUMBERS)
        x = ctx.value(0)
        shape = shape_of(x)
        axis = normalize_axis(int(ctx.attr("axis", 0)), len(shape))
        length = shape[axis]
        if length == 0:
            ctx.invalid(f"{list(shape)} has no elements along axis {axis}")
        last = bool(ctx.attr("select_last_index", 0))
        every = range(len(shape))
        best = fold_axes(ctx, x, type_, [axis], start(type_), combine)

        def body(b: ScalarBuilder, e: Sequence[SSAValue], acc: SSAValue) -> SSAValue:
            here = scalars.compare(b, "eq", type_, e[0], e[1])
            if is_float(type_):
                here = b(arith.OrIOp, here, scalars.is_nan(b, e[0]))
            index = b(arith.IndexCastOp, b.index(axis), i64)
            other = b.constant(-1 if last else length, i64)
            candidate = b(arith.SelectOp, here, index, other)
            return b(arith.MaxSIOp if last else arith.MinSIOp, acc, candidate)

        kept = kept_dims(len(shape), [axis])
        operands = [(x, every), (best, kept)]
        result = folded(ctx.b, operands, shape, [axis], -1 if last else length, i64, body)
        return _keeping(ctx, result, [axis])

    return importer


onnx_op("ArgMax")(_position(scalars.maximum, scalars.lowest))
onnx_op("ArgMin")(_position(scalars.minimum, scalars.highest))


@onnx_op("CumSum")
def import_cum_sum(ctx: NodeContext) -> SSAValue:
    """Element i is the sum of those up to i (from i on, with `reverse`; without i itself, with `exclusive`).

    Each element is a sum of its own: quadratic in the length, but a generic like any other.
    """
    type_ = element_of(ctx, 0, NUMBERS)
    x = ctx.value(0)
    shape = shape_of(x)
    rank = len(shape)
    axis = normalize_axis(int(ctx.require_const(1, "axis").reshape(-1)[0]), rank)
    exclusive, reverse = bool(ctx.attr("exclusive", 0)), bool(ctx.attr("reverse", 0))
    predicate = ("sgt" if exclusive else "sge") if reverse else ("slt" if exclusive else "sle")

    def body(b: ScalarBuilder, e: Sequence[SSAValue], acc: SSAValue) -> SSAValue:
        counts = b(arith.CmpiOp, b.index(rank), b.index(axis), predicate)
        term = b(arith.SelectOp, counts, e[0], b.constant(0, signless(type_)))
        return scalars.add(b, type_, acc, term)

    # One loop more than x has dimensions: it runs along the axis of x, where the result is indexed by loop `axis`.
    source = [rank if d == axis else d for d in range(rank)]
    if 0 in shape:
        return x
    return ctx.b.generic(
        [(x, select_dims(rank + 1, source))],
        ctx.b.fill(shape, type_, 0),
        select_dims(rank + 1, range(rank)),
        ["parallel"] * rank + ["reduction"],
        body,
    )
