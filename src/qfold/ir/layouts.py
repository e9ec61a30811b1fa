"""Static strided layouts of memrefs: which elements of a buffer a view reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    i64,
)
from xdsl.ir import Attribute


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense buffer of `shape`, in elements."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return tuple(strides)


@dataclass(frozen=True)
class Layout:
    """Element `i` is at `offset + sum(i_d * strides_d)`, in elements from a buffer's start.

    Strides of dimensions of at most one element say nothing; a layout that is dense but for those has row-major strides.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def dense(shape: Sequence[int], offset: int = 0) -> Layout:
        return Layout(tuple(shape), row_major(shape), offset)

    @staticmethod
    def of(type_: MemRefType[Any]) -> Layout:
        """The layout of a memref type; an offset that is not static counts as 0. `ValueError` for dynamic shapes and strides."""
        shape = type_.get_shape()
        strides = type_.get_strides()
        if DYNAMIC_INDEX in shape or strides is None or None in strides:
            raise ValueError(f"{type_} has no static strides")
        return Layout(shape, tuple(cast(Sequence[int], strides)), type_.get_offset() or 0)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie side by side in row-major order (from any offset)."""
        if 0 in self.shape:
            return True
        return all(
            n == 1 or a == b
            for n, a, b in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    @property
    def extent(self) -> tuple[int, int]:
        """The lowest and highest position that is read; (offset, offset - 1) when there are no elements."""
        if 0 in self.shape:
            return self.offset, self.offset - 1
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        return (
            self.offset + sum(r for r in reach if r < 0),
            self.offset + sum(r for r in reach if r > 0),
        )

    def normalized(self) -> Layout:
        return Layout.dense(self.shape, self.offset) if self.is_dense else self

    def permuted(self, permutation: Sequence[int]) -> Layout:
        """Dimension i of the result is dimension `permutation[i]` of this."""
        return Layout(
            tuple(self.shape[p] for p in permutation),
            tuple(self.strides[p] for p in permutation),
            self.offset,
        ).normalized()

    def sliced(
        self, offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
    ) -> Layout:
        """`self[offset : offset + size * stride : stride]` per dimension."""
        return Layout(
            tuple(sizes),
            tuple(a * b for a, b in zip(self.strides, strides, strict=True)),
            self.offset + sum(a * b for a, b in zip(offsets, self.strides, strict=True)),
        ).normalized()

    def reshaped(self, shape: Sequence[int]) -> Layout | None:
        """The same elements in row-major order as `shape` (of as many elements), or None when no strides say that."""
        if self.is_dense:
            return Layout.dense(shape, self.offset)
        # Dimensions of one element carry no stride; of the others, match runs of equal products on both sides.
        source = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        target = [(d, n) for d, n in enumerate(shape) if n != 1]
        strides = [1] * len(shape)
        i = j = 0
        while i < len(source) and j < len(target):
            first, start = i, j
            left, right = source[i][0], target[j][1]
            while left != right:
                if left < right:
                    i += 1
                    left *= source[i][0]
                else:
                    j += 1
                    right *= target[j][1]
            for a, b in zip(source[first:i], source[first + 1 : i + 1], strict=True):
                if a[1] != b[0] * b[1]:
                    return None
            step = source[i][1]
            for d, n in reversed(target[start : j + 1]):
                strides[d] = step
                step *= n
            i, j = i + 1, j + 1
        return Layout(tuple(shape), tuple(strides), self.offset).normalized()

    def memref_type(
        self, element_type: Attribute, memory_space: int, *, dynamic_offset: bool = False
    ) -> MemRefType[Attribute]:
        """The type of a view with this layout; `dynamic_offset` writes any offset but 0 as `?`."""
        layout: StridedLayoutAttr | NoneAttr = NoneAttr()
        if self.offset or self.strides != row_major(self.shape):
            offset = None if dynamic_offset and self.offset else self.offset
            layout = StridedLayoutAttr(self.strides, offset)
        return MemRefType(element_type, self.shape, layout, IntegerAttr(memory_space, i64))

    def __str__(self) -> str:
        return f"{list(self.shape)} at {self.offset} + strides {list(self.strides)}"
