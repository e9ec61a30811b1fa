"""ONNX tensors and types -> numpy arrays and element types, with every declared size checked before it is believed."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, TensorProto, TypeProto
from xdsl.dialects.builtin import BFloat16Type, Float16Type, f32, f64
from xdsl.ir import Attribute

from qfold.dialects.element_types import (
    bit_width,
    i1,
    i4,
    i8,
    i16,
    i32,
    i64,
    ui4,
    ui8,
    ui16,
    ui32,
    ui64,
    unpack,
)
from qfold.frontend.errors import FrontendError
from qfold.frontend.external_data import read_external
from qfold.frontend.values import Array, Const

MAX_ELEMENTS = (1 << 31) - 1
"""Most elements that one tensor may have: offsets into it fit the 32-bit integers that generated code uses."""

_ELEMENT_TYPES: dict[int, Attribute] = {
    TensorProto.FLOAT: f32,
    TensorProto.DOUBLE: f64,
    TensorProto.FLOAT16: Float16Type(),
    TensorProto.BFLOAT16: BFloat16Type(),
    TensorProto.BOOL: i1,
    TensorProto.INT4: i4,
    TensorProto.INT8: i8,
    TensorProto.INT16: i16,
    TensorProto.INT32: i32,
    TensorProto.INT64: i64,
    TensorProto.UINT4: ui4,
    TensorProto.UINT8: ui8,
    TensorProto.UINT16: ui16,
    TensorProto.UINT32: ui32,
    TensorProto.UINT64: ui64,
}
_ONNX_TYPES = {element: data_type for data_type, element in _ELEMENT_TYPES.items()}

# Types whose numpy form in ONNX's own evaluator comes from ml_dtypes.
_ML_DTYPES: dict[Attribute, np.dtype[Any]] = {
    i4: np.dtype(ml_dtypes.int4),
    ui4: np.dtype(ml_dtypes.uint4),
    BFloat16Type(): np.dtype(ml_dtypes.bfloat16),
}

CONSTANT_ONLY = (Float16Type(), BFloat16Type())
"""Types that constants may have on their way to a cast; no op computes with them."""


def onnx_type_name(data_type: int) -> str:
    """`FLOAT8E4M3FN` for 17, `type 99` for what this version of onnx does not know."""
    if data_type in TensorProto.DataType.values():
        return TensorProto.DataType.Name(cast(Any, data_type))
    return f"type {data_type}"


def element_type_of_onnx(data_type: int, what: str) -> Attribute:
    """The element type that stands for ONNX's `data_type`; `what` names the tensor in the error."""
    try:
        return _ELEMENT_TYPES[data_type]
    except KeyError:
        names = ", ".join(onnx_type_name(t) for t in _ELEMENT_TYPES)
        raise FrontendError(
            f"{what} has element type {onnx_type_name(data_type)}, which is not supported "
            f"(supported: {names})"
        ) from None


def onnx_type_of(element_type: Attribute) -> int:
    """ONNX's number for an element type that came from ONNX."""
    return _ONNX_TYPES[element_type]


def to_onnx_array(const: Const) -> Array:
    """The array as ONNX's reference evaluator wants it (four-bit integers as `ml_dtypes`)."""
    dtype = _ML_DTYPES.get(const.type)
    return const.array if dtype is None else const.array.astype(dtype)


def const_from_onnx_array(array: Array, name: str) -> Const:
    """The inverse of `to_onnx_array`; `TypeError` for a dtype that no element type stands for."""
    for element_type, dtype in _ML_DTYPES.items():
        if array.dtype == dtype:
            if bit_width_of(element_type) == 4:
                return Const(
                    array.astype(np.int8 if element_type == i4 else np.uint8), element_type, name
                )
            return Const(array, element_type, name)
    by_dtype = {np.dtype(np_name): t for np_name, t in _NUMPY_NAMES.items()}
    try:
        return Const(array, by_dtype[array.dtype], name)
    except KeyError:
        raise TypeError(f"arrays of {array.dtype} are not supported") from None


_NUMPY_NAMES: dict[str, Attribute] = {
    "bool": i1,
    "int8": i8,
    "int16": i16,
    "int32": i32,
    "int64": i64,
    "uint8": ui8,
    "uint16": ui16,
    "uint32": ui32,
    "uint64": ui64,
    "float16": Float16Type(),
    "float32": f32,
    "float64": f64,
}


def bit_width_of(element_type: Attribute) -> int:
    """Bits of one element in a TensorProto's bytes."""
    return 16 if isinstance(element_type, BFloat16Type) else bit_width(element_type)


def _from_bytes(raw: bytes, element_type: Attribute, shape: tuple[int, ...]) -> Array:
    if isinstance(element_type, BFloat16Type):
        return np.frombuffer(raw, ml_dtypes.bfloat16).reshape(shape)
    return unpack(raw, element_type, shape)


def _typed_field(tensor: TensorProto, element_type: Attribute) -> npt.NDArray[Any]:
    """The elements that are stored in a repeated field rather than as bytes."""
    data_type = tensor.data_type
    if data_type == TensorProto.FLOAT:
        return np.array(tensor.float_data, np.float32)
    if data_type == TensorProto.DOUBLE:
        return np.array(tensor.double_data, np.float64)
    if data_type == TensorProto.INT64:
        return np.array(tensor.int64_data, np.int64)
    if data_type in (TensorProto.UINT32, TensorProto.UINT64):
        return np.array(tensor.uint64_data, np.uint64)
    return np.array(tensor.int32_data, np.int32)


def decode_tensor(tensor: TensorProto, name: str, directory: Path | None) -> Const:
    """The constant that `tensor` holds.

    `name` is what messages and locations call it; `directory` is where external data may be read from (None: nowhere).
    `FrontendError` when type, dimensions and number of bytes do not agree.
    """
    what = f"tensor '{name}'"
    element_type = element_type_of_onnx(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise FrontendError(f"{what} has a negative dimension: {list(shape)}")
    count = prod(shape)
    if count > MAX_ELEMENTS:
        raise FrontendError(
            f"{what} declares {count} elements; at most {MAX_ELEMENTS} are supported"
        )
    if tensor.HasField("segment"):
        raise FrontendError(f"{what} is stored in segments, which is not supported")
    size = (count * bit_width_of(element_type) + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        return Const(
            _from_bytes(read_external(tensor, what, size, directory), element_type, shape),
            element_type,
            name,
        )
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        if len(raw) != size:
            raise FrontendError(
                f"{what} declares {list(shape)} elements of {onnx_type_name(tensor.data_type)}, "
                f"{size} bytes, but holds {len(raw)} bytes"
            )
        return Const(_from_bytes(raw, element_type, shape), element_type, name)
    stored = _typed_field(tensor, element_type)
    width = bit_width_of(element_type)
    # Fields of four-bit integers hold two of them in each entry.
    entries = (count + 1) // 2 if width == 4 else count
    if stored.size != entries:
        raise FrontendError(
            f"{what} declares {list(shape)} elements of {onnx_type_name(tensor.data_type)}, "
            f"but holds {stored.size} entries where {entries} are needed"
        )
    if isinstance(element_type, Float16Type | BFloat16Type) or width == 4:
        # The entries are bit patterns.
        bits = stored.astype(np.uint8 if width == 4 else np.uint16)
        return Const(_from_bytes(bits.tobytes(), element_type, shape), element_type, name)
    dtype = next(n for n, t in _NUMPY_NAMES.items() if t == element_type)
    array = stored.astype(dtype).reshape(shape)
    if not np.array_equal(array.reshape(-1), stored, equal_nan=stored.dtype.kind == "f"):
        raise FrontendError(f"{what} holds values that {onnx_type_name(tensor.data_type)} cannot")
    return Const(array, element_type, name)


def attribute_value(attribute: AttributeProto, where: str) -> Any:
    """The Python value of a node attribute: int, float, str, a list of these, or a numpy array; subgraphs stay protos."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.INTS:
        return list(attribute.ints)
    if kind == AttributeProto.FLOATS:
        return list(attribute.floats)
    if kind == AttributeProto.STRINGS:
        return [s.decode("utf-8", "replace") for s in attribute.strings]
    if kind == AttributeProto.TENSOR:
        return decode_tensor(attribute.t, f"{where}.{attribute.name}", None).array
    if kind == AttributeProto.GRAPH:
        return attribute.g
    name = AttributeProto.AttributeType.Name(kind)
    raise FrontendError(f"{where}: attribute '{attribute.name}' of kind {name} is not supported")


def declared_shape(type_proto: TypeProto) -> tuple[int | str | None, ...] | None:
    """The dimensions that a tensor type declares (a number, a name, or None for unknown), or None without a shape."""
    if not type_proto.HasField("tensor_type") or not type_proto.tensor_type.HasField("shape"):
        return None

    def dimension(d: Any) -> int | str | None:
        if d.HasField("dim_value"):
            return int(d.dim_value)
        return str(d.dim_param) or None

    return tuple(dimension(d) for d in type_proto.tensor_type.shape.dim)
