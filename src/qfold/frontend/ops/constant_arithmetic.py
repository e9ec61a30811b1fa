"""How exporters write a dequantised weight by arithmetic: `Cast -> [Sub | Add] -> Mul | Div`, operands in any order.

The `Sub` may come before the `Cast` to float, in a wider integer type. Layout ops may come anywhere between. A form is recorded
only where `scale * (q - zero_point)` gives the very same floats; any other one is left to be computed at run time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Attribute, SSAValue

from qfold.dialects.element_types import (
    i16,
    i32,
    i64,
    is_float,
    is_unsigned,
    ui16,
    ui32,
    ui64,
)
from qfold.frontend.context import NodeContext
from qfold.frontend.errors import FrontendError
from qfold.frontend.raising import is_narrow_integer, rule
from qfold.frontend.tensors import element_type_of_onnx
from qfold.frontend.values import Array, Const, Quantized, Value, fits


def split_rank(array: Array, shape: Sequence[int]) -> tuple[Array, int | None] | None:
    """`array`, broadcast against a tensor of `shape`, as `(scalar, None)` or `(vector, axis)`; None when it is neither."""
    if array.size == 1:
        # More dimensions than the tensor would add dimensions to the result.
        return (array.reshape(()), None) if array.ndim <= len(shape) else None
    skip = len(shape) - array.ndim
    long = [d for d, n in enumerate(array.shape) if n != 1]
    if skip < 0 or len(long) != 1 or array.shape[long[0]] != shape[skip + long[0]]:
        return None
    return array.reshape(-1), skip + long[0]


def _block_form(array: Array, shape: Sequence[int]) -> tuple[Array, int] | None:
    """`array`, of the rank of `shape`, as scales of whole-dimension blocks along the one axis where it has length 1."""
    if array.ndim != len(shape):
        return None
    short = [d for d, n in enumerate(array.shape) if n == 1 and shape[d] != 1]
    if len(short) != 1 or any(n != shape[d] for d, n in enumerate(array.shape) if d != short[0]):
        return None
    return array, short[0]


def _with_parameter(value: Quantized, field: str, array: Array, node: str) -> Quantized | None:
    """`value` with scale or zero point `field` set to a constant that broadcasts against it; None if the forms do not combine."""
    form = split_rank(array, value.shape)
    if form is not None:
        parameter, axis = form
        if axis is None:
            return value.through(node, **{field: parameter})
        if value.block_size is None and value.axis in (None, axis):
            return value.through(node, **{field: parameter}, axis=axis)
    block = _block_form(array, value.shape)
    if block is None:
        return None
    parameter, axis = block
    size = value.shape[axis]
    if value.axis is not None and (value.axis, value.block_size) != (axis, size):
        return None
    return value.through(node, **{field: parameter}, axis=axis, block_size=size)


@rule("Cast", "CastLike")
def _cast(ctx: NodeContext) -> Sequence[Value] | None:
    value = ctx.lattice(0)
    if ctx.node.op_type == "Cast":
        target = element_type_of_onnx(ctx.attr("to"), str(ctx.ref))
    else:
        target = ctx.type(1).element_type
    if isinstance(value, SSAValue):
        return [value] if value.type == TensorType(target, ctx.type(0).get_shape()) else None
    if value.type == target:
        return [value]
    if isinstance(value, Const):
        if not is_narrow_integer(value.type):
            return None
        if target == f32 or _is_wide_integer(target):
            return [Quantized(value, target, ctx.name)]
        if is_float(target) and value.array.size > 1:
            # Kept out of constant folding: it would widen the bytes.
            return _at_run_time(ctx, value)
        return None
    if value.type != f32 and value.scale is None:
        if target == f32:
            return [value.through(ctx.name, type=f32)]
        if _is_wide_integer(target) and fits(value.evaluate(), target):
            return [value.through(ctx.name, type=target)]
    return None


def _is_wide_integer(element_type: Attribute) -> bool:
    return element_type in (i16, i32, i64, ui16, ui32, ui64)


def _at_run_time(ctx: NodeContext, value: Const) -> None:
    """Makes the node see a tensor instead of the constant `value`, so that it is not folded."""
    tensor = ctx.materialize(value)
    ctx.inputs = [tensor if v is value else v for v in ctx.inputs]


def _operand_pair(ctx: NodeContext) -> tuple[Quantized, Array, bool] | None:
    """(the weight, the constant it is combined with, whether the weight is the first operand), or None."""
    first, second = ctx.lattice(0), ctx.lattice(1)
    for weight, other, in_order in ((first, second, True), (second, first, False)):
        if isinstance(weight, Quantized) and weight.scale is None:
            if isinstance(other, Const):
                return weight, other.array, in_order
            # A zero point that is stored and cast as the weight is.
            if isinstance(other, Quantized) and other.scale is None and other.zero_point is None:
                if other.q.array.size <= weight.q.array.size:
                    return weight, other.evaluate(), in_order
    return None


@rule("Sub")
def _sub(ctx: NodeContext) -> Sequence[Value] | None:
    pair = _operand_pair(ctx)
    if pair is None or not pair[2]:
        return None
    weight, subtrahend, _ = pair
    return _set_zero_point(ctx, weight, subtrahend)


@rule("Add")
def _add(ctx: NodeContext) -> Sequence[Value] | None:
    pair = _operand_pair(ctx)
    if pair is None or pair[1].dtype.kind == "u":
        return None
    # An int64 minimum has no negative, but does not fit a zero point either.
    addend = pair[1] if pair[1].dtype.kind == "f" else pair[1].astype(object)
    return _set_zero_point(ctx, pair[0], -addend)


def _set_zero_point(
    ctx: NodeContext, weight: Quantized, zero_point: Array
) -> Sequence[Value] | None:
    """`weight - zero_point`, if that is exact: integers that fit the storage type, in a type too wide to wrap."""
    if weight.zero_point is not None or not np.asarray(zero_point).size:
        return None
    values = np.asarray(zero_point)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return None
    if not fits(values, weight.storage):
        return None
    if is_unsigned(weight.type) and np.any(values):
        return None  # wraps below zero, where a signed type of 16 bits or more holds the difference
    result = _with_parameter(weight, "zero_point", values.astype(np.int64), ctx.name)
    return None if result is None else [result]


@rule("Mul")
def _mul(ctx: NodeContext) -> Sequence[Value] | None:
    pair = _operand_pair(ctx)
    if pair is None or pair[0].type != f32:
        return None
    return _set_scale(ctx, pair[0], pair[1])


@rule("Div")
def _div(ctx: NodeContext) -> Sequence[Value] | None:
    pair = _operand_pair(ctx)
    if pair is None or not pair[2] or pair[0].type != f32:
        return None
    weight, divisor, _ = pair
    mantissa, exponent = np.frexp(divisor)
    # Only a power of two has an exact reciprocal.
    if not np.all(mantissa == 0.5) or np.any(np.abs(exponent) > 120):
        return None
    return _set_scale(ctx, weight, np.float32(1) / divisor)


def _set_scale(ctx: NodeContext, weight: Quantized, scale: Array) -> Sequence[Value] | None:
    if np.isnan(scale).any() or np.isinf(scale).any():
        raise FrontendError(f"{ctx.ref}: the scale of '{weight.q.name}' is not finite")
    if not (scale > 0).all():
        return None  # arithmetic, not a scale
    result = _with_parameter(weight, "scale", scale.astype(np.float32), ctx.name)
    return None if result is None else [result]
