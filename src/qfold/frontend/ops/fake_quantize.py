"""Quantisation written out as arithmetic on floats: `Clip(Round(x / scale [+ zero point]))`, and `(q [- zero point]) * scale`.

The bounds of the Clip declare the integers. What it gives is held as integers from there on (`carrying.py`), whose contractions
with constants that were clipped likewise are integer ones; data between the two forms is a `quantize`/`dequantize` pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, i16, i32, integer_range, ui4, ui8, ui16
from qfold.dialects.qmm import QuantAttr
from qfold.frontend.carrying import on_integers
from qfold.frontend.context import NodeContext
from qfold.frontend.ops.activation import clamp
from qfold.frontend.ops.constant_arithmetic import split_rank
from qfold.frontend.raising import rule
from qfold.frontend.values import Array, Carried, Const, Quantized, Value, fits

_DATA = (ui8, i8, ui16, i16)
_CONSTANTS = (ui4, i4, *_DATA, i32)


def _bound(ctx: NodeContext, index: int, name: str) -> int | None:
    """A constant whole bound of a Clip, an input or (until opset 10) an attribute."""
    if ctx.has_input(index):
        known = ctx.const(index)
    else:
        known = np.asarray(ctx.attr(name, np.nan)) if ctx.has_attr(name) else None
    if known is None or known.size != 1 or not float(known.reshape(())).is_integer():
        return None
    return int(known.reshape(()))


def _declared(low: int, high: int, types: Sequence[IntegerType]) -> IntegerType | None:
    """The first of `types` that holds the range. A bound of 2^31, which is 2^31 - 1 in f32, is one of i32."""
    high -= high == 1 << 31
    for type_ in types:
        smallest, largest = integer_range(type_)
        if smallest <= low <= high <= largest:
            return type_
    return None


def _parameter(array: Array | None, shape: Sequence[int]) -> tuple[Array, int | None] | None:
    """A constant as one number, or as numbers along a dimension of `shape`."""
    if array is None or not np.isfinite(array).all():
        return None
    return split_rank(array, shape)


def _joined(
    scale: tuple[Array, int | None] | None, zero_point: tuple[Array, int | None] | None
) -> tuple[Array, Array, int | None] | None:
    """(scale, zero point, axis), if both are given and of one form, and the scale is positive."""
    if scale is None or zero_point is None or not (scale[0] > 0).all():
        return None
    axes = {scale[1], zero_point[1]} - {None}
    if len(axes) > 1:
        return None
    (values, _), (points, _) = scale, zero_point
    shape = np.broadcast_shapes(values.shape, points.shape)
    return np.broadcast_to(values, shape), np.broadcast_to(points, shape), next(iter(axes), None)


def _quotient(
    ctx: NodeContext, rounded: Value, storage: IntegerType
) -> tuple[SSAValue, QuantAttr] | None:
    """What is quantised, and how, if `rounded` is `x / scale` or `x / scale + zero point`.

    Only an even zero point may be added before halves go to even.
    """
    zero_point: Array = np.zeros((), np.float32)
    added = ctx.origin(rounded, "Add")
    if added is not None:
        constant = next((i for i in (0, 1) if added.const(i) is not None), None)
        if constant is None:
            return None
        zero_point, rounded = added.require_const(constant, "addend"), added.lattice(1 - constant)
    divided = ctx.origin(rounded, "Div")
    if divided is None:
        return None
    x, shape = divided.lattice(0), divided.type(0).get_shape()
    if not isinstance(x, SSAValue) or divided.type(0).element_type != f32:
        return None
    joined = _joined(_parameter(divided.const(1), shape), _parameter(zero_point, shape))
    if joined is None:
        return None
    scale, points, axis = joined
    if not fits(points, storage) or (points % 2).any():
        return None
    return x, QuantAttr.get(storage, scale.astype(np.float32), points.astype(np.int64), axis=axis)


@rule("Clip")
def _raise_clip(ctx: NodeContext) -> Sequence[Value | Carried] | None:
    value = ctx.lattice(0)
    rounding = ctx.origin(value, "Round")
    low, high = _bound(ctx, 1, "min"), _bound(ctx, 2, "max")
    if rounding is None or low is None or high is None or isinstance(value, Quantized):
        return None
    if isinstance(value, Const):
        storage = _declared(low, high, _CONSTANTS)
        if storage is None or value.type != f32:
            return None
        clipped = np.clip(value.array, np.float32(low), np.float32(high))
        return [Const(clipped, f32, ctx.name, declared=storage)]
    storage = _declared(low, high, _DATA)
    found = None if storage is None else _quotient(ctx, rounding.lattice(0), storage)
    if storage is None or found is None:
        return None
    x, quant = found
    q = ctx.b.insert(qmm.QuantizeOp(x, quant)).result
    if (low, high) != integer_range(storage):
        q = ctx.b.elementwise([q], storage, lambda b, e: clamp(b, storage, e[0], low, high))
    return [Carried(q, f32, strict=False)]


@on_integers("Sub")
def _subtract(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[Carried] | None:
    """A zero point, which waits for a scale."""
    points = ctx.const(1)
    if set(carried) != {0} or points is None or not fits(points, i32):
        return None
    if split_rank(points, carried[0].shape) is None:
        return None
    given = carried[0]
    if not points.any():
        return [given]
    if given.type != f32:
        return None
    return [Carried(given.integers, given.type, points, given.strict)]


@on_integers("Mul", leaves=True)
def _multiply(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    """A scale: `dequantize`."""
    if len(carried) != 1:
        return None
    ((index, given),) = carried.items()
    storage, shape = ctx.type(index).element_type, given.shape
    points = np.zeros((), np.int64) if given.zero_point is None else given.zero_point
    joined = _joined(_parameter(ctx.const(1 - index), shape), _parameter(points, shape))
    if joined is None or given.type != f32:
        return None
    scale, points, axis = joined
    for type_ in (*_DATA, i32):
        if storage == type_ and fits(points, type_):
            quant = QuantAttr.get(
                type_, scale.astype(np.float32), points.astype(np.int64), axis=axis
            )
            return [ctx.b.insert(qmm.DequantizeOp(given.integers, quant)).result]
    return None
