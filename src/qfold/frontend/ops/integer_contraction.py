"""MatMulInteger and ConvInteger, and what all operators on stored integers share: products in i32, zero points, the way back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute, SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import matmul_shape, shape_of
from qfold.dialects.element_types import i8, i32, ui8
from qfold.frontend.context import NodeContext, value_type
from qfold.frontend.ops.contraction import (
    conv_window,
    reshaped,
    value_shape,
    with_vectors,
    without_unit_batch,
)
from qfold.frontend.ops.quantization import check_scale
from qfold.frontend.raising import plain_const
from qfold.frontend.registry import onnx_op
from qfold.frontend.values import Const, Value

Scale = npt.NDArray[np.float64]
ZeroPoint: TypeAlias = int | SSAValue | None

DATA: tuple[IntegerType, ...] = (i8, ui8)
"""What integer operators take."""


def require_integers(ctx: NodeContext, *indices: int) -> None:
    """Refuses operands of other element types than i8 and ui8."""
    for index in indices:
        if ctx.type(index).element_type not in DATA:
            ctx.refuse(f"operand {index} of {ctx.type(index).element_type}", "operands of i8, ui8")


def storage_of(ctx: NodeContext, index: int) -> IntegerType:
    """The element type of input `index`, one of `DATA`."""
    require_integers(ctx, index)
    return cast(IntegerType, ctx.type(index).element_type)


# Parameters


def scale_argument(ctx: NodeContext, index: int, what: str) -> Scale:
    """The constant scale in input `index`, in f64; `FrontendError` unless it is finite and positive."""
    return check_scale(ctx.require_const(index, f"scale of {what}"), ctx).astype(np.float64)


def tensor_scale(ctx: NodeContext, index: int, what: str) -> float:
    """The one constant scale of a tensor."""
    scale = scale_argument(ctx, index, what)
    if scale.size != 1:
        ctx.refuse(f"{scale.size} scales of {what}", "one scale")
    return float(scale.reshape(()))


def tensor_zero_point(ctx: NodeContext, index: int, storage: Attribute, what: str) -> int:
    """The one constant zero point of a tensor of `storage`; 0 when absent."""
    if not ctx.has_input(index):
        return 0
    _check_zero_point_type(ctx, index, storage, what)
    zero_point = ctx.require_const(index, f"zero point of {what}")
    if zero_point.size != 1:
        ctx.refuse(f"{zero_point.size} zero points of {what}", "one zero point")
    return int(zero_point.reshape(()))


def _check_zero_point_type(ctx: NodeContext, index: int, storage: Attribute, what: str) -> None:
    found = ctx.type(index).element_type
    if found != storage:
        ctx.invalid(f"the zero point of {what} is {found}, the data {storage}")


def zero_point_operand(
    ctx: NodeContext, index: int, storage: Attribute, shape: Sequence[int], what: str
) -> SSAValue | None:
    """Zero points as an operand: of rank 0, or of `shape`, along whose last dimension a vector runs.

    None where absent or all 0. `[D..., L, 1]`, as ONNX writes zero points of rows of batches, has the elements of `shape`.
    """
    if not ctx.has_input(index):
        return None
    _check_zero_point_type(ctx, index, storage, what)
    value = ctx.lattice(index)
    found = value_shape(value)
    same = prod(found) == prod(shape)
    if not (prod(found) == 1 or same or found == tuple(shape[-1:])):
        ctx.invalid(
            f"the zero point of {what} has shape {list(found)}, the data takes {list(shape)}"
        )
    known = plain_const(value)
    if known is not None and not known.array.any():
        return None
    if prod(found) == 1:
        return ctx.materialize(reshaped(ctx, value, ()))
    if same:
        return ctx.materialize(reshaped(ctx, value, shape))
    if known is not None:
        spread = np.ascontiguousarray(np.broadcast_to(known.array, shape))
        return ctx.materialize(Const(spread, known.type, known.name))
    return ctx.b.broadcast_to(ctx.materialize(value), shape)


# Products


def quant_matmul(
    ctx: NodeContext,
    a: Value,
    b: Value,
    *,
    a_zero_point: ZeroPoint = None,
    b_zero_point: ZeroPoint = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> SSAValue:
    """`(a - zero point) @ (b - zero point)` in i32, numpy's broadcasting on the dimensions before the last two.

    A zero point is the index of an input, or a tensor of rank 0.
    """
    rank = max(len(value_shape(a)), len(value_shape(b)))
    b = without_unit_batch(ctx, b)
    shape = matmul_shape(value_shape(a), value_shape(b), transpose_a, transpose_b)
    full = (*[1] * (rank - len(shape)), *shape)
    if value_shape(a)[-2 if transpose_a else -1] == 0:
        return ctx.b.fill(full, i32, 0)
    left = ctx.materialize(a)
    if transpose_a:
        last = len(shape_of(left)) - 1
        left = ctx.b.transpose(left, [*range(last - 1), last, last - 1])
    right, swapped = ctx.matrix_of(b)
    rows, columns = shape_of(left)[:-1], (shape[-1],)
    kinds = (value_type(a).element_type, value_type(b).element_type)
    if isinstance(a_zero_point, int):
        a_zero_point = zero_point_operand(ctx, a_zero_point, kinds[0], rows, "the left operand")
    if isinstance(b_zero_point, int):
        b_zero_point = zero_point_operand(ctx, b_zero_point, kinds[1], columns, "the right operand")
    op = qmm.QuantMatmulOp(
        left,
        right,
        a_zero_point=a_zero_point,
        b_zero_point=b_zero_point,
        transpose_b=transpose_b != swapped,
    )
    return ctx.b.reshape(ctx.b.insert(op).result, full)


def quant_conv(
    ctx: NodeContext,
    x: SSAValue,
    w: Value,
    *,
    x_zero_point: int | None = None,
    w_zero_point: int | None = None,
) -> SSAValue:
    """The node's convolution of `x - zero point` with `w - zero point` in i32; zero points are indices of inputs."""
    weight = value_shape(w)
    window = conv_window(ctx, shape_of(x), weight)
    zx = zw = None
    if x_zero_point is not None:
        zx = zero_point_operand(ctx, x_zero_point, value_type(x).element_type, (), "the data")
    if w_zero_point is not None:
        kind = value_type(w).element_type
        zw = zero_point_operand(ctx, w_zero_point, kind, weight[:1], "the weight")
    op = qmm.QuantConvOp(
        x,
        ctx.materialize(w),
        x_zero_point=zx,
        w_zero_point=zw,
        strides=window.strides,
        pads=window.pads,
        dilations=window.dilations,
        groups=window.groups,
    )
    return ctx.b.insert(op).result


def add_integers(ctx: NodeContext, accumulator: SSAValue, addend: SSAValue) -> SSAValue:
    """The sum in i32 with a bias that broadcasts to the accumulator."""
    return ctx.b.elementwise(
        [accumulator, addend],
        i32,
        lambda b, e: b(arith.AddiOp, e[0], e[1]),
        shape=shape_of(accumulator),
    )


def require_i32(ctx: NodeContext, index: int, what: str) -> None:
    """An invalid node unless input `index` is i32."""
    found = ctx.type(index).element_type
    if found != i32:
        ctx.invalid(f"{what} is {found}; expected i32")


def requantize(
    ctx: NodeContext,
    accumulator: SSAValue,
    storage: IntegerType,
    multiplier: npt.NDArray[Any],
    zero_point: int,
    axis: int | None = None,
) -> SSAValue:
    """`clamp(roundeven(acc * multiplier) + zero_point)`; a multiplier of more than one element runs along `axis`."""
    if not (np.isfinite(multiplier).all() and (multiplier > 0).all()):
        ctx.invalid(f"the quotient of its scales is {multiplier.reshape(-1)[0]}")
    op = qmm.RequantizeOp(
        accumulator,
        storage,
        np.asarray(multiplier, np.float64),
        zero_point,
        axis=axis if multiplier.size > 1 else None,
    )
    return ctx.b.insert(op).result


# Operators


@onnx_op("MatMulInteger", since=10)
def import_matmul_integer(ctx: NodeContext) -> SSAValue:
    """Zero points may be computed at run time, as dynamic quantisation does."""
    require_integers(ctx, 0, 1)
    return with_vectors(
        ctx,
        ctx.lattice(0),
        ctx.lattice(1),
        lambda a, b: quant_matmul(ctx, a, b, a_zero_point=2, b_zero_point=3),
    )


@onnx_op("ConvInteger", since=10)
def import_conv_integer(ctx: NodeContext) -> SSAValue:
    """Padding is the zero point of the data."""
    require_integers(ctx, 0, 1)
    return quant_conv(ctx, ctx.value(0), ctx.lattice(1), x_zero_point=2, w_zero_point=3)
