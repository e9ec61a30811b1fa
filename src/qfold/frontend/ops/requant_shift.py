"""RequantShift of PULP's deployment tools (PACTOps): `clip(floor((x * mul + add + div / 2) / div))`, `div` a power of two.

The half is not in the exported `add`: the tools' kernels add `1 << (shift - 1)` before they shift, and the outputs that come with
their networks are rounded so, halves upwards. Where `div` is 1 there is nothing to round. `n_levels` (or `n_levels_out`) and
`signed` declare the integers of the result: i8 or ui8, clamped to that many levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IntegerType, f32, f64
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i8, i32, i64, integer_range, signless, ui8
from qfold.frontend.carrying import on_integers
from qfold.frontend.context import NodeContext
from qfold.frontend.ops import scalars
from qfold.frontend.registry import onnx_op
from qfold.frontend.values import Array, Carried, fits
from qfold.ir.builder import ScalarBuilder, element_type

_MAX_LEVELS = 256


def _number(ctx: NodeContext, *names: str) -> int:
    """The attribute of one of these names, a whole number stored as a float or as a tensor of one."""
    for name in names:
        if ctx.has_attr(name):
            value = np.asarray(ctx.attr(name), np.float64)
            if value.size != 1:
                ctx.refuse(f"{value.size} numbers in '{name}'", "one number for all channels")
            number = float(value.reshape(()))
            if not number.is_integer():
                ctx.invalid(f"'{name}' is {number}, not a whole number")
            return int(number)
    ctx.invalid(f"it lacks its attribute '{names[0]}'")


def _levels(ctx: NodeContext) -> tuple[IntegerType, int, int]:
    """(storage, low, high) that the node declares."""
    levels, signed = _number(ctx, "n_levels", "n_levels_out"), _number(ctx, "signed")
    if not 2 <= levels <= _MAX_LEVELS:
        ctx.refuse(f"{levels} levels", f"2 to {_MAX_LEVELS} levels")
    if signed not in (0, 1):
        ctx.invalid(f"'signed' is {signed}")
    if signed:
        return i8, -(levels // 2), levels // 2 - 1
    return ui8, 0, levels - 1


def _shift(ctx: NodeContext) -> int:
    divisor = _number(ctx, "div")
    if divisor < 1 or divisor & (divisor - 1):
        ctx.refuse(f"div = {divisor}", "a power of two")
    return divisor.bit_length() - 1


def accumulator(ctx: NodeContext, x: SSAValue) -> SSAValue:
    """Integers of any type, or floats that hold integers, as i32."""
    source = element_type(x)
    if source == i32:
        return x
    return ctx.b.elementwise([x], i32, lambda b, e: scalars.convert(b, source, i32, e[0]))


def _vector(ctx: NodeContext, index: int, shape: Sequence[int]) -> tuple[Array, int | None] | None:
    """(constant input `index` as i64, the dimension of `shape` it runs along); None if computed, or along several."""
    what = ("", "mul", "add")[index]
    known = ctx.const(index)
    if known is None:
        return None
    if not np.isfinite(known).all() or not fits(known, i32):
        ctx.invalid(
            f"{what} is declared to hold integers of i32, but holds {known.reshape(-1)[0]}..."
        )
    try:
        broadcast = np.broadcast_shapes(known.shape, tuple(shape))
    except ValueError:
        broadcast = None
    if broadcast != tuple(shape):
        ctx.invalid(f"{what} of shape {list(known.shape)} does not broadcast to {list(shape)}")
    integers = known.astype(np.int64)
    long = [d - known.ndim + len(shape) for d, n in enumerate(known.shape) if n != 1]
    if len(long) > 1:
        return None
    return integers.reshape(-1), long[0] if long else None


def _shifted(ctx: NodeContext, x: SSAValue) -> SSAValue:
    """The node on i32: one op where its parameters are constants along one dimension."""
    storage, low, high = _levels(ctx)
    shift = _shift(ctx)
    mul, add = _vector(ctx, 1, shape_of(x)), _vector(ctx, 2, shape_of(x))
    if mul is None or add is None or len({mul[1], add[1]} - {None}) > 1:
        return _elementwise(ctx, x, storage, shift, low, high)
    axis = mul[1] if mul[1] is not None else add[1]
    smallest, largest = integer_range(storage)
    op = qmm.RequantizeShiftOp(
        x,
        storage,
        [int(v) for v in mul[0]],
        [int(v) + (1 << shift >> 1) for v in add[0]],
        [shift],
        axis=axis,
        low=None if low == smallest else low,
        high=None if high == largest else high,
    )
    return ctx.b.insert(op).result


def _elementwise(
    ctx: NodeContext, x: SSAValue, storage: IntegerType, shift: int, low: int, high: int
) -> SSAValue:
    """The same in 64-bit integers, for parameters that are computed at run time or run along several dimensions."""
    types = [scalars.element_of(ctx, i, (i32, i64, f32)) for i in (1, 2)]

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        wide = b(arith.ExtSIOp, e[0], i64)
        factor, addend = (
            scalars.convert(b, type_, i64, value) for type_, value in zip(types, e[1:], strict=True)
        )
        addend = b(arith.AddiOp, addend, b.constant(1 << shift >> 1, i64))
        total = b(arith.AddiOp, b(arith.MuliOp, wide, factor), addend)
        quotient = b(arith.ShRSIOp, total, b.constant(shift, i64))
        clamped = b(arith.MinSIOp, quotient, b.constant(high, i64))
        clamped = b(arith.MaxSIOp, clamped, b.constant(low, i64))
        return b(arith.TruncIOp, clamped, signless(storage))

    operands = [x, ctx.value(1), ctx.value(2)]
    return ctx.b.elementwise(operands, storage, body, shape=shape_of(x))


def _of_floats(ctx: NodeContext) -> SSAValue:
    """The node on floats that need not hold integers, in f64: what an average leaves, say."""
    storage, low, high = _levels(ctx)
    shift = _shift(ctx)
    types = [scalars.element_of(ctx, i, (f32, i32)) for i in (1, 2)]

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        wide = b(arith.ExtFOp, e[0], f64)
        factor, addend = (
            scalars.convert(b, type_, f64, value) for type_, value in zip(types, e[1:], strict=True)
        )
        addend = b(arith.AddfOp, addend, b.constant(float(1 << shift >> 1), f64))
        total = b(arith.AddfOp, b(arith.MulfOp, wide, factor), addend)
        quotient = b(math.FloorOp, b(arith.MulfOp, total, b.constant(2.0**-shift, f64)))
        clamped = b(arith.MinimumfOp, quotient, b.constant(float(high), f64))
        clamped = b(arith.MaximumfOp, clamped, b.constant(float(low), f64))
        return b(arith.FPToUIOp if storage == ui8 else arith.FPToSIOp, clamped, signless(storage))

    operands = [ctx.value(0), ctx.value(1), ctx.value(2)]
    return ctx.b.elementwise(operands, storage, body, shape=shape_of(operands[0]))


@on_integers("RequantShift")
def _on_integers(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    return [_shifted(ctx, accumulator(ctx, ctx.value(0)))] if 0 in carried else None


@onnx_op("RequantShift")
@onnx_op("RequantShift", domain="PACTOps")
def import_requant_shift(ctx: NodeContext) -> Sequence[Carried]:
    """On what the model declares as integers, or on floats."""
    type_ = scalars.element_of(ctx, 0, (f32, i8, ui8, i32))
    x = ctx.value(0)
    if prod(shape_of(x)) == 0:
        ctx.refuse(f"data of shape {list(shape_of(x))}", "data that is not empty")
    result = _of_floats(ctx) if type_ == f32 else _shifted(ctx, accumulator(ctx, x))
    return [Carried(result, type_)]
