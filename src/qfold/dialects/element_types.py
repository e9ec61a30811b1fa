"""Element types of tensors and memrefs, and what they are in numpy.

Signedness is part of the type: `i8` holds signed and `ui8` unsigned integers, as ONNX names them. Four-bit integers are `int8`/
`uint8` arrays of unpacked values in numpy, and two to a byte, low nibble first (ONNX), in a packed byte string.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeIs
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    Signedness,
    f32,
    f64,
)
from xdsl.ir import Attribute

i1 = IntegerType(1)
i4 = IntegerType(4)
i8 = IntegerType(8)
i16 = IntegerType(16)
i32 = IntegerType(32)
i64 = IntegerType(64)
ui4 = IntegerType(4, Signedness.UNSIGNED)
ui8 = IntegerType(8, Signedness.UNSIGNED)
ui16 = IntegerType(16, Signedness.UNSIGNED)
ui32 = IntegerType(32, Signedness.UNSIGNED)
ui64 = IntegerType(64, Signedness.UNSIGNED)

STORAGE_TYPES: tuple[IntegerType, ...] = (i8, ui8, i4, ui4, i16, ui16)
"""What a quantised weight may be stored as."""

_DTYPES: dict[Attribute, str] = {
    i1: "bool",
    i4: "int8",
    i8: "int8",
    i16: "int16",
    i32: "int32",
    i64: "int64",
    ui4: "uint8",
    ui8: "uint8",
    ui16: "uint16",
    ui32: "uint32",
    ui64: "uint64",
    Float16Type(): "float16",
    f32: "float32",
    f64: "float64",
    IndexType(): "int64",
}


def numpy_dtype(element_type: Attribute) -> np.dtype[Any]:
    """The dtype that holds values of `element_type`. `TypeError` for a type that qfold does not compute with."""
    try:
        return np.dtype(_DTYPES[element_type])
    except KeyError:
        supported = ", ".join(str(t) for t in _DTYPES)
        raise TypeError(
            f"element type {element_type} is not supported (supported: {supported})"
        ) from None


@cache
def _types_of_dtypes() -> dict[np.dtype[Any], Attribute]:
    four_bits = (i4, ui4)
    return {
        np.dtype(d): t
        for t, d in _DTYPES.items()
        if t not in four_bits and not isinstance(t, IndexType)
    }


def element_type_of(dtype: npt.DTypeLike) -> Attribute:
    """The element type of a numpy array of `dtype` (never a four-bit type: a dtype cannot tell)."""
    try:
        return _types_of_dtypes()[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"numpy dtype {np.dtype(dtype)} has no element type here") from None


def is_integer(element_type: Attribute) -> TypeIs[IntegerType]:
    return isinstance(element_type, IntegerType)


def is_float(element_type: Attribute) -> bool:
    return isinstance(element_type, Float16Type | BFloat16Type | Float32Type | Float64Type)


def is_unsigned(element_type: Attribute) -> bool:
    return is_integer(element_type) and element_type.signedness.data == Signedness.UNSIGNED


def signless(element_type: Attribute) -> Attribute:
    """The type of the same width that `arith` computes with."""
    if is_integer(element_type):
        return IntegerType(element_type.width.data)
    return element_type


def bit_width(element_type: Attribute) -> int:
    """Bits that one element takes in memory: a bool takes a byte, a four-bit integer half of one."""
    if is_integer(element_type):
        return max(element_type.width.data, 4) if element_type.width.data > 1 else 8
    return numpy_dtype(element_type).itemsize * 8


def byte_size(element_type: Attribute, num_elements: int) -> int:
    """Bytes that `num_elements` packed elements take."""
    return (num_elements * bit_width(element_type) + 7) // 8


def integer_range(element_type: Attribute) -> tuple[int, int]:
    """The lowest and highest value of an integer type."""
    if not is_integer(element_type):
        raise TypeError(f"{element_type} is not an integer type")
    width = element_type.width.data
    if is_unsigned(element_type) or width == 1:
        return 0, (1 << width) - 1
    return -(1 << (width - 1)), (1 << (width - 1)) - 1


def pack(array: npt.NDArray[Any], element_type: Attribute) -> bytes:
    """The little-endian, row-major bytes of `array`, whose values must fit `element_type`."""
    dtype = numpy_dtype(element_type)
    if bit_width(element_type) != 4:
        return np.ascontiguousarray(array, dtype.newbyteorder("<")).tobytes()
    low, high = integer_range(element_type)
    if array.size and (array.min() < low or array.max() > high):
        raise ValueError(f"values outside of {element_type}: [{array.min()}, {array.max()}]")
    nibbles = np.ascontiguousarray(array).reshape(-1).astype(np.uint8) & 0xF
    if nibbles.size % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    return (nibbles[0::2] | (nibbles[1::2] << 4)).astype(np.uint8).tobytes()


def unpack(raw: bytes, element_type: Attribute, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The inverse of `pack`: a read-only view of `raw` where it can be one."""
    if bit_width(element_type) != 4:
        dtype = numpy_dtype(element_type)
        return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(shape)
    packed = np.frombuffer(raw, np.uint8)
    nibbles = np.empty(packed.size * 2, np.uint8)
    nibbles[0::2] = packed & 0xF
    nibbles[1::2] = packed >> 4
    nibbles = nibbles[: prod(shape)]
    if is_unsigned(element_type):
        return nibbles.reshape(shape)
    return ((nibbles ^ 8).astype(np.int8) - np.int8(8)).reshape(shape)
