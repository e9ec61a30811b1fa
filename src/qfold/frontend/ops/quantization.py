"""QuantizeLinear, DequantizeLinear, and Deeploy's Dequant."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import Attribute, SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import (
    STORAGE_TYPES,
    i4,
    i8,
    i16,
    i32,
    integer_range,
    numpy_dtype,
    ui4,
    ui8,
    ui16,
)
from qfold.dialects.qmm import QuantAttr
from qfold.frontend.context import NodeContext
from qfold.frontend.errors import FrontendError
from qfold.frontend.raising import rule
from qfold.frontend.registry import onnx_op
from qfold.frontend.shapes import normalize_axis
from qfold.frontend.tensors import element_type_of_onnx
from qfold.frontend.values import Array, Const, Quantized, Value, fits
from qfold.ir.builder import TensorBuilder

_DATA_TYPES = (*STORAGE_TYPES, i32)
"""What can be dequantised; i32 is for biases and accumulators."""


def check_scale(
    scale: Array, ctx: NodeContext, *, any_sign: bool = False
) -> npt.NDArray[np.float32]:
    """The scale in f32; `FrontendError` unless all of it is finite, and positive unless it may have `any_sign`.

    That is for constants in blocks: onnxruntime's symmetric quantiser gives the largest element of a block the lowest integer,
    hence its sign to the scale.
    """
    wide = np.asarray(scale, np.float32)
    bad = ~np.isfinite(wide)
    if not any_sign:
        bad |= ~(wide > 0)
    if bad.any():
        expected = "finite" if any_sign else "finite and positive"
        raise FrontendError(f"{ctx.ref}: a scale has to be {expected}, found {wide[bad].flat[0]}")
    return wide


class Granularity:
    """How the scale of a node is laid out over its data: per tensor, per axis, or per block along an axis."""

    def __init__(self, ctx: NodeContext):
        """Reads attributes and shapes; `FrontendError` where they do not go together."""
        data = ctx.type(0).get_shape()
        scale = ctx.type(1).get_shape()
        self.axis: int | None = None
        self.block_size: int | None = None
        block = int(ctx.attr("block_size", 0))
        if block < 0:
            ctx.invalid(f"block_size is {block}")
        if block:
            self.axis = normalize_axis(int(ctx.attr("axis", 1)), len(data))
            self.block_size = block
            wanted = [*data]
            wanted[self.axis] = -(-data[self.axis] // block)
            if list(scale) != wanted:
                ctx.invalid(
                    f"blocks of {block} along axis {self.axis} of {list(data)} take scales of shape "
                    f"{wanted}, found {list(scale)}"
                )
        elif len(scale) > 1:
            ctx.invalid(f"a scale of shape {list(scale)} needs a block_size")
        elif scale and scale[0] != 1:
            self.axis = normalize_axis(int(ctx.attr("axis", 1)), len(data))
            if scale[0] != data[self.axis]:
                ctx.invalid(f"{scale[0]} scales do not fit axis {self.axis} of {list(data)}")

    def shaped(self, parameter: Array) -> Array:
        """Scale or zero point in the form that the granularity has: one element per tensor is rank 0."""
        return parameter.reshape(()) if self.axis is None else parameter


def zero_point_argument(ctx: NodeContext, storage: Attribute) -> Array | None:
    """The constant zero point, None when absent; `FrontendError` when its type or shape is wrong."""
    if not ctx.has_input(2):
        return None
    found = ctx.type(2)
    if found.element_type != storage:
        ctx.invalid(f"the zero point is {found.element_type}, the data {storage}")
    zero_point = ctx.require_const(2, "zero point beside a constant scale")
    scale = ctx.type(1).get_shape()
    if zero_point.size != 1 and found.get_shape() != scale:
        ctx.invalid(f"the zero point has shape {list(found.get_shape())}, the scale {list(scale)}")
    return zero_point


def _output_type(ctx: NodeContext, default: Attribute) -> Attribute:
    declared = int(ctx.attr("output_dtype", 0))
    return element_type_of_onnx(declared, str(ctx.ref)) if declared else default


@rule("DequantizeLinear")
@rule("DequantizeLinear", domain="com.microsoft")
def _raise_dequantize_linear(ctx: NodeContext) -> Sequence[Value] | None:
    value = ctx.lattice(0)
    if isinstance(value, Quantized) and value.type in STORAGE_TYPES and value.scale is None:
        # Widened integers, dequantised as such.
        value = Const(value.evaluate(), value.type, value.name)
    if not isinstance(value, Const):
        return None
    if _output_type(ctx, ctx.type(1).element_type) != f32:
        ctx.refuse(
            f"an output of {_output_type(ctx, ctx.type(1).element_type)}", "an output of f32"
        )
    scale = ctx.const(1)
    if scale is None:
        ctx.refuse(
            f"a scale of the constant '{value.name}' that is computed at run time",
            "a constant scale",
        )
    granularity = _granularity(ctx)
    in_blocks = granularity.block_size is not None
    scale = granularity.shaped(check_scale(scale, ctx, any_sign=in_blocks))
    zero_point = zero_point_argument(ctx, value.type)
    if zero_point is not None and zero_point.size == 1:
        zero_point = zero_point.reshape(())
    quantized = Quantized(
        value,
        f32,
        ctx.name,
        scale=scale.astype(np.float32),
        zero_point=zero_point,
        axis=granularity.axis,
        block_size=granularity.block_size,
    )
    if value.type in STORAGE_TYPES:
        return [quantized]
    if value.type == i32:
        # A bias at the scale of an accumulator: no narrower in memory than its floats.
        return [Const(quantized.evaluate(), f32, ctx.name)]
    ctx.refuse(f"constants of {value.type}", _names(_DATA_TYPES))


def _names(types: Sequence[Attribute]) -> str:
    return ", ".join(str(t) for t in types)


def _granularity(ctx: NodeContext) -> Granularity:
    try:
        return Granularity(ctx)
    except ValueError as error:
        ctx.invalid(str(error))


@onnx_op("DequantizeLinear", since=10)
def import_dequantize_linear(ctx: NodeContext) -> SSAValue:
    """Data that is computed at run time."""
    storage = ctx.type(0).element_type
    if storage not in _DATA_TYPES:
        ctx.refuse(f"data of {storage}", _names(_DATA_TYPES))
    storage = cast(IntegerType, storage)
    if _output_type(ctx, ctx.type(1).element_type) != f32:
        ctx.refuse(
            f"an output of {_output_type(ctx, ctx.type(1).element_type)}", "an output of f32"
        )
    granularity = _granularity(ctx)
    if _is_constant(ctx):
        op = qmm.DequantizeOp(ctx.value(0), _quant_attr(ctx, granularity, storage))
        return ctx.b.insert(op).result
    rows = _Rows(ctx, granularity)
    scale, zero_point = _runtime_parameters(ctx, granularity, storage)
    op = qmm.DequantizeOp(
        rows.arrange(ctx.value(0)), None, runtime_scale=scale, runtime_zero_point=zero_point
    )
    return rows.restore(ctx.b.insert(op).result)


def _quant_attr(ctx: NodeContext, granularity: Granularity, storage: IntegerType) -> QuantAttr:
    """Constant parameters as an attribute."""
    scale = granularity.shaped(check_scale(ctx.require_const(1, "scale"), ctx))
    zero_point = zero_point_argument(ctx, storage)
    if zero_point is not None and zero_point.size == 1:
        zero_point = zero_point.reshape(())
    return QuantAttr.get(
        storage, scale, zero_point, axis=granularity.axis, block_size=granularity.block_size
    )


class _Rows:
    """The data of a node laid out so that scales computed at run time belong to its rows, as `qmm` takes them.

    Per axis: that axis first, all others one row. Per block: the elements of a block last.
    """

    def __init__(self, ctx: NodeContext, granularity: Granularity):
        self.b: TensorBuilder = ctx.b
        shape = ctx.type(0).get_shape()
        axis, block = granularity.axis, granularity.block_size
        self.shape = shape
        self.split: tuple[int, ...] = shape
        self.permutation: tuple[int, ...] = tuple(range(len(shape)))
        self.rows: tuple[int, ...] = shape
        if axis is None:
            return
        if block is None:
            self.permutation = (axis, *(d for d in range(len(shape)) if d != axis))
            self.rows = (shape[axis], prod(n for d, n in enumerate(shape) if d != axis))
            return
        if shape[axis] % block:
            ctx.refuse(
                f"scales computed at run time for blocks of {block} along a dimension of {shape[axis]}",
                "constant scales, or blocks of equal size",
            )
        self.split = (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
        rank = len(self.split)
        self.permutation = (*(d for d in range(rank) if d != axis + 1), axis + 1)
        self.rows = tuple(self.split[d] for d in self.permutation)

    def arrange(self, x: SSAValue) -> SSAValue:
        """The data as rows."""
        split = self.b.reshape(x, self.split)
        return self.b.reshape(self.b.transpose(split, self.permutation), self.rows)

    def restore(self, x: SSAValue) -> SSAValue:
        """The inverse of `arrange`."""
        moved = self.b.reshape(x, [self.split[d] for d in self.permutation])
        back = self.b.transpose(moved, [int(d) for d in np.argsort(self.permutation)])
        return self.b.reshape(back, self.shape)


def _is_constant(ctx: NodeContext) -> bool:
    """Whether scale and zero point are."""
    return ctx.const(1) is not None and (not ctx.has_input(2) or ctx.const(2) is not None)


def _runtime_parameters(
    ctx: NodeContext, granularity: Granularity, storage: Attribute
) -> tuple[SSAValue, SSAValue | None]:
    """Scale and zero point that are computed at run time, one for all data or for each row."""
    scale_type = ctx.type(1)
    if scale_type.element_type != f32:
        ctx.refuse(f"a scale of {scale_type.element_type}", "a scale of f32")
    shape = () if granularity.axis is None else scale_type.get_shape()
    scale = ctx.b.reshape(ctx.value(1), shape)
    if not ctx.has_input(2):
        return scale, None
    if ctx.type(2).element_type != storage:
        ctx.invalid(f"the zero point is {ctx.type(2).element_type}, the data {storage}")
    if prod(ctx.type(2).get_shape()) != prod(shape):
        ctx.invalid(f"the zero point is {ctx.type(2)}, the scale {scale_type}")
    return scale, ctx.b.reshape(ctx.value(2), shape)


def _storage(ctx: NodeContext) -> IntegerType:
    """The integer type that QuantizeLinear gives: that of the zero point, else `output_dtype`, else u8."""
    default = ctx.type(2).element_type if ctx.has_input(2) else ui8
    declared = _output_type(ctx, default)
    if declared != default and ctx.has_input(2):
        ctx.invalid(f"output_dtype is {declared}, the zero point {default}")
    if declared not in STORAGE_TYPES:
        ctx.refuse(f"an output of {declared}", _names(STORAGE_TYPES))
    return cast(IntegerType, declared)


@rule("QuantizeLinear")
@rule("QuantizeLinear", domain="com.microsoft")
def _raise_quantize_linear(ctx: NodeContext) -> Sequence[Value] | None:
    value = ctx.lattice(0)
    if isinstance(value, SSAValue) or value.type != f32 or ctx.const(1) is None:
        return None
    quant = _quant_attr(ctx, _granularity(ctx), _storage(ctx))
    real = value.array if isinstance(value, Const) else value.evaluate()
    return [Const(quant.quantize(real), quant.storage, ctx.name)]


@onnx_op("QuantizeLinear", since=10)
def import_quantize_linear(ctx: NodeContext) -> SSAValue:
    """Data that is computed at run time."""
    if ctx.type(0).element_type != f32:
        ctx.refuse(f"data of {ctx.type(0).element_type}", "data of f32")
    storage = _storage(ctx)
    granularity = _granularity(ctx)
    if _is_constant(ctx):
        op = qmm.QuantizeOp(ctx.value(0), _quant_attr(ctx, granularity, storage))
        return ctx.b.insert(op).result
    rows = _Rows(ctx, granularity)
    scale, zero_point = _runtime_parameters(ctx, granularity, storage)
    op = qmm.QuantizeOp(
        rows.arrange(ctx.value(0)),
        None,
        storage=storage,
        runtime_scale=scale,
        runtime_zero_point=zero_point,
    )
    return rows.restore(ctx.b.insert(op).result)


def _declared_storage(ctx: NodeContext) -> IntegerType:
    """The narrowest storage type for the node's `bit_width` and `signed`."""
    bits = int(ctx.attr("bit_width", 8))
    signed = bool(ctx.attr("signed", 1))
    for width, types in ((4, (ui4, i4)), (8, (ui8, i8)), (16, (ui16, i16))):
        if 1 <= bits <= width:
            return types[signed]
    ctx.refuse(f"a bit_width of {bits}", "a bit_width of 1 to 16")


def _narrowed(ctx: NodeContext, value: Const, storage: IntegerType) -> Const:
    """The integers of `value`, which may be stored in a wider type or as floats, in the declared `storage` type."""
    if value.type == storage:
        return value
    bits = int(ctx.attr("bit_width", 8))
    low, high = integer_range(storage)
    spare = storage.width.data - bits
    low, high = (low >> spare, high >> spare) if spare else (low, high)
    array = value.array
    if array.size and not (fits(array, storage) and array.min() >= low and array.max() <= high):
        ctx.invalid(
            f"'{value.name}' is declared to hold integers of {bits} bits, {low}..{high}, "
            f"but holds {array.min()}..{array.max()}, or fractions"
        )
    return Const(array.astype(numpy_dtype(storage)), storage, value.name)


@rule("Dequant")
def _raise_dequant(ctx: NodeContext) -> Sequence[Value] | None:
    """Deeploy's `Dequant`: `scale * (q - zero_point)`, parameters and integer type as attributes, one for all elements."""
    value = ctx.lattice(0)
    if not isinstance(value, Const):
        return None
    storage = _declared_storage(ctx)
    q = _narrowed(ctx, value, storage)
    scale, zero_point = _dequant_attributes(ctx, storage)
    return [Quantized(q, f32, ctx.name, scale=scale, zero_point=zero_point)]


def _dequant_attributes(
    ctx: NodeContext, storage: IntegerType
) -> tuple[npt.NDArray[np.float32], Array]:
    if not ctx.has_attr("scale"):
        ctx.invalid("Dequant lacks its attribute 'scale'")
    scale = check_scale(np.asarray(ctx.attr("scale")), ctx)
    zero_point = np.asarray(ctx.attr("zero_point", 0.0))
    if scale.size != 1 or zero_point.size != 1:
        ctx.refuse(f"{scale.size} scales and {zero_point.size} zero points", "one of each")
    if not np.isfinite(zero_point).all() or not fits(zero_point, storage):
        ctx.invalid(f"the zero point {zero_point} is not an integer of {storage}")
    return scale.reshape(()), zero_point.reshape(()).astype(np.int64)


@onnx_op("Dequant")
def import_dequant(ctx: NodeContext) -> SSAValue:
    """Data that is computed at run time, of an integer type."""
    storage = ctx.type(0).element_type
    if storage not in _DATA_TYPES:
        ctx.refuse(f"data of {storage}", _names(_DATA_TYPES))
    storage = cast(IntegerType, storage)
    scale, zero_point = _dequant_attributes(ctx, storage)
    quant = QuantAttr.get(storage, scale, zero_point)
    return ctx.b.insert(qmm.DequantizeOp(ctx.value(0), quant)).result
