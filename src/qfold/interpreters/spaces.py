"""Operands of structured ops brought to the iteration space: views wherever an indexing map is linear.

An operand at loop indices d is `array[map(d)]`. For a linear map that is a strided view: the stride along loop j is the sum
over the operand's dimensions r of (coefficient of d_j in result r) x (stride of r), and constants shift its origin. Loops that
the map does not mention get size 1, which broadcasts. This covers transposes, strided and dilated windows, reversed and
repeated dimensions, without a copy. `floordiv` and `mod` take index arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

from qfold.interpreters.values import Array


@dataclass(frozen=True)
class Box:
    """A part of an iteration space: loop j runs over `low[j] <= d_j < high[j]`."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    @staticmethod
    def of(extents: Sequence[int]) -> Box:
        return Box((0,) * len(extents), tuple(extents))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(h - l for l, h in zip(self.low, self.high, strict=True))  # noqa: E741

    @property
    def size(self) -> int:
        return prod(self.shape)

    def slab(self, axis: int, start: int, stop: int) -> Box:
        """The part with loop `axis` in `start..stop`, counted from this box's low end."""
        low, high = list(self.low), list(self.high)
        low[axis], high[axis] = self.low[axis] + start, self.low[axis] + stop
        return Box(tuple(low), tuple(high))

    def indices(self, axis: int) -> Array:
        """The loop index of `axis`, shaped to broadcast over the box."""
        shape = [1] * len(self.low)
        shape[axis] = -1
        return np.arange(self.low[axis], self.high[axis], dtype=np.int64).reshape(shape)


def linear_form(expr: AffineExpr, num_dims: int) -> tuple[list[int], int] | None:
    """(coefficient per loop, constant) of an expression, or None when it is not linear."""
    match expr:
        case AffineConstantExpr():
            return [0] * num_dims, expr.value
        case AffineDimExpr():
            return [int(i == expr.position) for i in range(num_dims)], 0
        case AffineBinaryOpExpr():
            left, right = linear_form(expr.lhs, num_dims), linear_form(expr.rhs, num_dims)
            if left is None or right is None:
                return None
            (a, c), (b, d) = left, right
            if expr.kind is AffineBinaryOpKind.Add:
                return [x + y for x, y in zip(a, b, strict=True)], c + d
            if expr.kind is AffineBinaryOpKind.Mul and not any(b):
                return [x * d for x in a], c * d
            if expr.kind is AffineBinaryOpKind.Mul and not any(a):
                return [x * c for x in b], c * d
            return None
        case _:
            return None


def evaluate(expr: AffineExpr, box: Box) -> Array:
    """The expression's value at each point of the box, as an index array that broadcasts over it."""
    match expr:
        case AffineConstantExpr():
            return np.full((1,) * len(box.low), expr.value, np.int64)
        case AffineDimExpr():
            return box.indices(expr.position)
        case AffineBinaryOpExpr():
            a, b = evaluate(expr.lhs, box), evaluate(expr.rhs, box)
            match expr.kind:
                case AffineBinaryOpKind.Add:
                    return a + b
                case AffineBinaryOpKind.Mul:
                    return a * b
                case AffineBinaryOpKind.Mod:
                    return a % b
                case AffineBinaryOpKind.FloorDiv:
                    return a // b
                case AffineBinaryOpKind.CeilDiv:
                    return -(-a // b)
        case _:
            raise NotImplementedError(f"affine expression {expr} has symbols")


def loop_extents(maps: Sequence[AffineMap], shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The extents of the iteration space: each loop is a plain index of some operand dimension.

    `ValueError` when a loop is none, or when two operands disagree.
    """
    num_dims = maps[0].num_dims
    extents: list[int | None] = [None] * num_dims
    for map_, shape in zip(maps, shapes, strict=True):
        if len(map_.results) != len(shape):
            raise ValueError(f"map {map_} does not index an operand of shape {list(shape)}")
        for expr, size in zip(map_.results, shape, strict=True):
            if isinstance(expr, AffineDimExpr):
                if extents[expr.position] not in (None, size):
                    raise ValueError(
                        f"operands disagree on loop d{expr.position}: {extents[expr.position]} and {size}"
                    )
                extents[expr.position] = size
    for loop, extent in enumerate(extents):
        if extent is None:
            raise ValueError(f"no operand says how far loop d{loop} runs")
    return tuple(e for e in extents if e is not None)


def is_permutation(map_: AffineMap) -> bool:
    """Whether each result is another loop (so that each output element is written from one parallel point)."""
    positions = [e.position for e in map_.results if isinstance(e, AffineDimExpr)]
    return len(positions) == len(map_.results) == len(set(positions))


def over_box(array: Array, map_: AffineMap, box: Box) -> Array:
    """`array[map(d)]` for all d in the box, as an array of one dimension per loop (size 1 where the map does not look).

    A view that writes go through, when the map is linear; `IndexError` when the map leaves the array.
    """
    num_dims = len(box.low)
    forms = [linear_form(e, num_dims) for e in map_.results]
    if box.size == 0:
        shape = [
            extent if any(f is None or f[0][j] for f in forms) else 1
            for j, extent in enumerate(box.shape)
        ]
        return np.empty(shape, array.dtype)
    linear = [f for f in forms if f is not None]
    if len(linear) < len(forms):
        indices = [evaluate(e, box) for e in map_.results]
        for axis, index in enumerate(indices):
            _check(map_, axis, int(index.min()), int(index.max()), array.shape[axis])
        return array[tuple(indices)]
    origin: list[slice] = []
    strides = [0] * num_dims
    used = [False] * num_dims
    for axis, (coefficients, constant) in enumerate(linear):
        low = high = start = constant
        for loop, factor in enumerate(coefficients):
            if not factor:
                continue
            used[loop] = True
            strides[loop] += factor * array.strides[axis]
            first, last = factor * box.low[loop], factor * (box.high[loop] - 1)
            start += first
            low, high = low + min(first, last), high + max(first, last)
        _check(map_, axis, low, high, array.shape[axis])
        origin.append(slice(start, None))
    shape = [extent if u else 1 for extent, u in zip(box.shape, used, strict=True)]
    return as_strided(array[(*origin, ...)], shape, strides)


def _check(map_: AffineMap, axis: int, low: int, high: int, size: int) -> None:
    if low < 0 or high >= size:
        raise IndexError(
            f"map {map_} reaches index {low if low < 0 else high} of dimension {axis}, which has {size} elements"
        )
