"""Nodes on constants that are only recorded: how exporters write a quantised weight, and layout ops on the way to its reader.

The forms: `DequantizeLinear` and kin (`ops/quantization.py`); `Cast -> [Sub | Add] -> Mul | Div` in any order of operands, the `Sub`
before or after the `Cast`; Transpose, Reshape, Flatten, Squeeze, Unsqueeze, Slice, Split and Identity anywhere between. A form is
recorded only where `scale * (q - zero_point)` gives the very same floats; any other one is left to be computed at run time.
An integer constant of 8 bits or less never becomes a float constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from xdsl.dialects.builtin import IntegerType, TensorType, f32
from xdsl.ir import Attribute, SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import STORAGE_TYPES, i1, i64, is_float
from qfold.dialects.qmm import QuantAttr
from qfold.frontend.errors import FrontendError
from qfold.frontend.shapes import (
    flatten_shape,
    permutation,
    reshape_shape,
    squeeze_shape,
    unsqueeze_shape,
)
from qfold.frontend.tensors import attribute_value, decode_tensor, element_type_of_onnx
from qfold.frontend.values import Array, Const, Quantized, Value, fits

if TYPE_CHECKING:
    from qfold.frontend.importer import NodeContext

Rule: TypeAlias = "Callable[[NodeContext], Sequence[Value] | None]"
"""The node's outputs, or None to let it be folded or imported like any other."""

_RULES: dict[tuple[str, str], Rule] = {}

_SHAPE_LIKE = 64
"""Integer constants of up to this many elements may be shape computations and are evaluated; larger ones are data."""


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Registers a rule for operators of `domain`."""

    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[domain, name] = function
        return function

    return register


def handles(domain: str, op_type: str) -> bool:
    """Whether there is a rule for the operator."""
    return (domain, op_type) in _RULES


def raise_node(ctx: NodeContext) -> Sequence[Value] | None:
    """Applies the rule for the node, if there is one and it holds."""
    found = _RULES.get((ctx.ref.domain, ctx.node.op_type))
    return None if found is None else found(ctx)


def is_narrow_integer(element_type: Attribute) -> bool:
    """Whether this is what quantised weights are stored as: an integer of 4 or 8 bits."""
    return isinstance(element_type, IntegerType) and element_type.width.data in (4, 8)


def plain_const(value: Value) -> Const | None:
    """The value as a constant to compute with at import, or None for SSA values and quantised weights."""
    if isinstance(value, Const):
        return value
    if isinstance(value, Quantized):
        limit = 1 if value.type == f32 else _SHAPE_LIKE
        if value.q.array.size <= limit:
            return Const(value.evaluate(), value.type, value.name)
    return None


def _split_rank(array: Array, shape: Sequence[int]) -> tuple[Array, int | None] | None:
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
    if len(short) != 1 or any(
        n != shape[d] for d, n in enumerate(array.shape) if d != short[0]
    ):
        return None
    return array, short[0]


def _with_parameter(
    value: Quantized, field: str, array: Array, node: str
) -> Quantized | None:
    """`value` with scale or zero point `field` set to a constant that broadcasts against it; None if the forms do not combine."""
    form = _split_rank(array, value.shape)
    if form is not None:
        parameter, axis = form
        if axis is None or value.axis in (None, axis):
            if value.block_size is None:
                return value.through(
                    node, **{field: parameter}, axis=value.axis if axis is None else axis
                )
    block = _block_form(array, value.shape)
    if block is None or value.axis is not None:
        return None
    parameter, axis = block
    return value.through(node, **{field: parameter}, axis=axis, block_size=value.shape[axis])


# Identity, constants, shapes


@rule("Identity")
def _identity(ctx: NodeContext) -> Sequence[Value]:
    return [ctx.lattice(0)]


@rule("Constant")
def _constant(ctx: NodeContext) -> Sequence[Value] | None:
    if len(ctx.node.attribute) != 1:
        ctx.invalid("a Constant has one attribute, its value")
    attribute = ctx.node.attribute[0]
    if attribute.name == "value":
        return [decode_tensor(attribute.t, ctx.node.output[0], ctx.directory)]
    value = attribute_value(attribute, str(ctx.ref))
    dtypes = {"value_float": "float32", "value_floats": "float32"}
    dtypes |= {"value_int": "int64", "value_ints": "int64"}
    if attribute.name not in dtypes:
        ctx.refuse(f"a constant given as {attribute.name}", "value, value_int(s), value_float(s)")
    element = f32 if dtypes[attribute.name] == "float32" else i64
    return [Const(np.asarray(value, dtypes[attribute.name]), element, ctx.node.output[0])]


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


# Layout


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


def axes_argument(ctx: NodeContext, index: int = 1) -> list[int] | None:
    """The axes of Squeeze and kin: an attribute, or since opset 13 a constant input, whichever is given."""
    if ctx.has_attr("axes"):
        return list(ctx.attr("axes"))
    if not ctx.has_input(index):
        return None
    return [int(a) for a in ctx.require_const(index, "axes").reshape(-1)]


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


# Arithmetic


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
    if isinstance(value.type, IntegerType) and value.scale is None:
        if target == f32:
            return [value.through(ctx.name, type=f32)]
        if _is_wide_integer(target) and fits(value.evaluate(), target):
            return [value.through(ctx.name, type=target)]
    return None


def _is_wide_integer(element_type: Attribute) -> bool:
    return isinstance(element_type, IntegerType) and element_type.width.data >= 16


def _at_run_time(ctx: NodeContext, value: Const) -> None:
    """Makes the node see a tensor instead of the constant `value`, so that it is not folded."""
    ctx.inputs = [ctx.materialize(v) if v is value else v for v in ctx.inputs]


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
    promoted = _promote(ctx)
    pair = _operand_pair(ctx)
    if promoted or pair is None or not pair[2]:
        return None
    weight, subtrahend, _ = pair
    return _set_zero_point(ctx, weight, subtrahend)


@rule("Add")
def _add(ctx: NodeContext) -> Sequence[Value] | None:
    promoted = _promote(ctx)
    pair = _operand_pair(ctx)
    if promoted or pair is None or pair[1].dtype.kind == "u":
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
    if isinstance(weight.type, IntegerType) and np.any(values):
        # q - zp of an unsigned type wraps below zero; a signed one of 16 bits or more holds it.
        if weight.type.signedness.data.name == "UNSIGNED":
            return None
    result = _with_parameter(weight, "zero_point", values.astype(np.int64), ctx.name)
    return None if result is None else [result]


@rule("Mul")
def _mul(ctx: NodeContext) -> Sequence[Value] | None:
    promoted = _promote(ctx)
    pair = _operand_pair(ctx)
    if promoted or pair is None or pair[0].type != f32:
        return None
    return _set_scale(ctx, pair[0], pair[1])


@rule("Div")
def _div(ctx: NodeContext) -> Sequence[Value] | None:
    promoted = _promote(ctx)
    pair = _operand_pair(ctx)
    if promoted or pair is None or not pair[2] or pair[0].type != f32:
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


def _promote(ctx: NodeContext) -> bool:
    """An integer operand beside a float one is cast to float: ONNX forbids the pair, but exporters write it and mean this.

    True when the node now has a run-time operand in place of the integers.
    """
    types = [ctx.type(i).element_type for i in range(2)]
    for index, element in enumerate(types):
        if types[1 - index] != f32 or not isinstance(element, IntegerType):
            continue
        value = ctx.lattice(index)
        cast: Value
        if not isinstance(value, SSAValue) and is_narrow_integer(element):
            cast = (
                Quantized(value, f32, ctx.name)
                if isinstance(value, Const)
                else value.through(ctx.name, type=f32)
            )
        elif element in STORAGE_TYPES:
            one = QuantAttr.get(element, 1.0)
            cast = ctx.b.insert(qmm.DequantizeOp(ctx.value(index), one)).result
        else:
            return False
        ctx.inputs = [cast if i == index else v for i, v in enumerate(ctx.inputs)]
        return isinstance(cast, SSAValue)
    return False
