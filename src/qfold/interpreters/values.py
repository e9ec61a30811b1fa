"""What SSA values are while a module runs.

* a tensor or a memref: a numpy array in the IR's shape; memref views are numpy views, so writes go through;
* a scalar: a 0-d array or numpy scalar; inside a `linalg.generic` body an array that broadcasts to the iteration space;
* an `index`: a Python int, or an `int64` array inside a body;
* in the `bounded` domain, any of these may be a `Bounded`; a plain array there is exact;
* a memref of bytes that `memref.view` carves buffers from: a `ByteBuffer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Numbers beside an error bound: the number that a program computes is within `value` ± `bound`.

    `value` is float64 for every float type, and the type's own dtype for integers and bools. `bound` is float64, not negative, of
    the same shape; infinite where nothing is known. Bounds of integers are distances modulo two to the width, so that reading
    the same bits as signed or unsigned keeps them.
    """

    value: Array
    bound: Array

    def __post_init__(self) -> None:
        if self.value.shape != self.bound.shape:
            raise ValueError(
                f"value {self.value.shape} and bound {self.bound.shape} differ in shape"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    @property
    def size(self) -> int:
        return self.value.size

    def contains(self, actual: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Per element: whether a computed number is within the bound. A NaN is where NaN is expected, and nowhere else."""
        number, value = np.asarray(actual), self.value
        same = number == value
        if same.all():
            return same
        # int64 differences of uint64 could wrap; float64 loses nothing that a bound could tell apart.
        number, value = number.astype(np.float64), value.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(number - value) <= self.bound
        unknown = np.isinf(self.bound)
        return near | same | (np.isnan(number) & np.isnan(value)) | unknown


Value: TypeAlias = Array | Bounded


_BOUND_BYTES = 16
"""Behind each byte of the IR for bounds: there may be two elements in it, whose bounds are float64."""


class ByteBuffer:
    """Bytes whose parts are read as several element types, whatever size a domain's numbers have.

    Each byte of the IR has eight bytes behind it (two, in the `exact` domain), so that any element fits where its first bit is,
    also four-bit ones, which take a byte each here. Buffers that overlap in the IR overlap here: a planner's mistake shows as
    wrong numbers.
    """

    def __init__(self, size: int, widening: int, bounded: bool):
        self.size = size
        self._widening = widening
        self._values = np.full(size * widening, 0xA5, np.uint8)
        self._bounds = np.zeros(size * _BOUND_BYTES, np.uint8) if bounded else None

    @staticmethod
    def over(storage: Array) -> ByteBuffer:
        """The buffer whose bytes are those of `storage`, a contiguous one-byte-per-element array."""
        buffer = ByteBuffer(0, 1, False)
        buffer.size = storage.size
        buffer._values = storage.view(np.uint8)
        return buffer

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)

    def view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], bits: int) -> Value:
        """The row-major buffer of `shape` at byte `offset`, whose elements take `bits` in the IR and are `dtype` here.

        Raises `ValueError` when it does not lie within the buffer, or has four-bit elements in an `over` one.
        """
        count = int(np.prod(shape, dtype=np.int64))
        size = -(-count * bits // 8)
        if offset < 0 or offset + size > self.size:
            raise ValueError(
                f"a view of {size} bytes at {offset} is outside of a buffer of {self.size} bytes"
            )
        if bits * self._widening % 8:
            raise ValueError("four-bit elements of plain bytes have no address of their own")

        def part(storage: Array, dtype: np.dtype[Any], widening: int) -> Array:
            strides = [0] * len(shape)
            step = bits * widening // 8
            for axis in reversed(range(len(shape))):
                strides[axis] = step
                step *= shape[axis]
            start = offset * widening if count else 0
            return np.ndarray(shape, dtype, storage, start, tuple(strides))

        value = part(self._values, dtype, self._widening)
        if self._bounds is None:
            return value
        return Bounded(value, part(self._bounds, np.dtype(np.float64), _BOUND_BYTES))


def map_parts(function: Callable[[Array], Array], value: Value) -> Value:
    """Apply a view (reshape, slice, transpose ...) to an array, or to the value and the bound of a `Bounded` alike."""
    if isinstance(value, Bounded):
        return Bounded(function(value.value), function(value.bound))
    return function(value)


def scalar_int(value: Any) -> int:
    """An `index` or integer scalar as a Python int."""
    if isinstance(value, Bounded):
        if np.any(value.bound):
            raise ValueError("an index carries an error bound: it was computed from rounded floats")
        value = value.value
    return int(value)
