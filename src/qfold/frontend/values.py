"""What an ONNX value is during import: a constant, a quantised constant, an SSA value, or integers in another type.

Constants stay numpy arrays until an op needs them as operands, so shape computations fold away and a weight's bytes are written
once. A permuted constant remembers what it is a view of: its readers can then read the original transposed instead of a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import Attribute, SSAValue

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import integer_range, numpy_dtype

Array: TypeAlias = npt.NDArray[Any]


@dataclass(eq=False, frozen=True)
class Const:
    """A constant. Identity is what counts: one `Const` becomes at most one constant op."""

    array: Array
    """Four-bit integers are unpacked, one to an element."""
    type: Attribute
    """Element type."""
    name: str
    """The ONNX value or node that it comes from, for locations."""
    view_of: tuple[Const, tuple[int, ...]] | None = None
    """`(original, permutation)`: this is `transpose(original, permutation)`."""
    declared: IntegerType | None = None
    """What the floats are integers of, where an operator says so: a Clip of rounded numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def transposed(self, permutation: Sequence[int]) -> Const:
        """`transpose(self, permutation)` without moving bytes."""
        origin, done = self.view_of or (self, tuple(range(self.array.ndim)))
        total = tuple(done[axis] for axis in permutation)
        if total == tuple(range(len(total))):
            return origin
        moved = origin.array.transpose(total)
        return Const(moved, self.type, self.name, (origin, total), self.declared)

    def reshaped(self, shape: Sequence[int]) -> Const:
        """The same elements in row-major order with another shape; moves bytes only if permuted."""
        if tuple(shape) == self.shape:
            return self
        return Const(self.array.reshape(shape), self.type, self.name, declared=self.declared)


@dataclass(eq=False, frozen=True)
class Quantized:
    """A constant integer tensor that is read as `scale * (q - zero_point)`, or `q - zero_point` as long as no scale was applied.

    Not yet written to the IR, so layout ops between the constant and its reader only change this description.
    """

    q: Const
    type: Attribute
    """Element type of what is read: f32, or a wide integer between a cast and the next one."""
    name: str
    """The ONNX node that dequantises."""
    scale: npt.NDArray[np.float32] | None = None
    """Rank 0; rank 1 along `axis`; or the rank of `q` when per block. None: 1, and more may be applied."""
    zero_point: Array | None = None
    """The shape of the scale, or any of the same forms while there is none. None: 0."""
    axis: int | None = None
    """The dimension of `q` that scale and zero point run along."""
    block_size: int | None = None
    nodes: tuple[str, ...] = ()
    """Names of further ONNX nodes that this stands for, in order."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.q.shape

    @property
    def storage(self) -> IntegerType:
        return cast(IntegerType, self.q.type)

    def through(self, node: str | None, **changes: Any) -> Quantized:
        """This with `changes`, and `node` among the nodes it stands for."""
        nodes = self.nodes if node is None else (*self.nodes, node)
        return replace(self, nodes=nodes, **changes)

    def transposed(self, permutation: Sequence[int], node: str | None) -> Quantized:
        """`transpose(self, permutation)`: axis and block scales move along."""
        q = self.q.transposed(permutation)
        if self.axis is None:
            return self.through(node, q=q)
        axis = list(permutation).index(self.axis)
        if self.block_size is None:
            return self.through(node, q=q, axis=axis)
        assert self.scale is not None
        zero_point = self.zero_point
        if zero_point is not None and zero_point.ndim:  # else one for all
            zero_point = zero_point.transpose(permutation)
        scale = self.scale.transpose(permutation)
        return self.through(node, q=q, axis=axis, scale=scale, zero_point=zero_point)

    def reshaped(self, shape: Sequence[int], node: str | None) -> Quantized | None:
        """The same elements with another shape, or None where the parameters have no place in it.

        A dimension that carries them may be moved; merged with what follows it becomes blocks.
        """
        q = self.q.reshaped(shape)
        if self.axis is None:
            return self.through(node, q=q)
        axis, block = remap_axis(self.shape, self.axis, shape), self.block_size
        if axis is not None and block is None:
            return self.through(node, q=q, axis=axis)
        if axis is None:
            # One parameter for all of the dimensions that are merged: a block of them.
            first = self.axis
            if block is not None:
                if block != self.shape[self.axis] or self.axis == 0:
                    return None
                first -= 1
            merged = merge_axis(self.shape, first, shape)
            if merged is None or self.scale is None:
                return None
            axis, block = merged
        blocks = list(shape)
        blocks[axis] = -(-shape[axis] // (block or 1))

        def spread(values: Array) -> Array:
            if values.ndim == 0:
                return values
            if values.ndim == len(self.shape) and self.block_size is not None:
                return values.reshape(blocks)
            view = [1] * len(shape)
            view[axis] = -1
            return np.broadcast_to(values.reshape(view), blocks)

        scale, zero_point = self.parameters()
        return self.through(
            node,
            q=q,
            axis=axis,
            block_size=block,
            scale=spread(scale) if scale.ndim else np.broadcast_to(scale, blocks),
            zero_point=None if zero_point is None else spread(zero_point),
        )

    def sliced(self, selections: Mapping[int, range], node: str) -> Quantized | None:
        """The elements at `selections` (dimension -> indices), or None where that takes blocks apart."""
        index = tuple(_as_slice(selections.get(d)) for d in range(len(self.shape)))
        q = Const(np.ascontiguousarray(self.q.array[index]), self.q.type, self.q.name)
        if self.axis is None:
            return self.through(node, q=q)
        if self.block_size is not None:
            along = selections.get(self.axis)
            if along is not None and len(along) != self.shape[self.axis]:
                return None
            where: tuple[slice, ...] = tuple(
                slice(None) if d == self.axis else part for d, part in enumerate(index)
            )
        else:
            where = (index[self.axis],)

        def part_of(values: Array) -> Array:
            return values[where] if values.ndim else values

        return self.through(
            node,
            q=q,
            scale=None if self.scale is None else part_of(self.scale),
            zero_point=None if self.zero_point is None else part_of(self.zero_point),
        )

    def parameters(self) -> tuple[Array, Array | None]:
        """Scale and zero point in one form: of equal shape, or the zero point of rank 0, or None."""
        scale = np.asarray(1.0, np.float32) if self.scale is None else self.scale
        if self.zero_point is not None and self.zero_point.ndim > scale.ndim:
            scale = np.broadcast_to(scale, self.zero_point.shape)
        return scale, self.zero_point

    def _expand(self, values: Array) -> Array:
        """`values` (of scale or zero point) shaped to broadcast against `q`."""
        if self.axis is None or values.size == 1:
            return values.reshape(())
        if self.block_size is None:
            view = [1] * len(self.shape)
            view[self.axis] = -1
            return values.reshape(view)
        whole = np.repeat(values, self.block_size, axis=self.axis)
        return np.take(whole, np.arange(self.shape[self.axis]), axis=self.axis)

    def evaluate(self) -> Array:
        """The values that are read. For integers, for scalars, and to requantise: a weight is never kept in this form."""
        wide = self.q.array.astype(np.int64)
        if self.zero_point is not None:
            wide = wide - self._expand(self.zero_point.astype(np.int64))
        if self.type != f32:
            return wide.astype(numpy_dtype(self.type))
        real = wide.astype(np.float32)
        return real if self.scale is None else real * self._expand(self.scale)


Value: TypeAlias = "SSAValue | Const | Quantized"


@dataclass(eq=False, frozen=True)
class Carried:
    """Integers computed at run time that the model holds in another type: networks of RequantShift hold theirs as floats.

    Operators that keep integers work on `integers` (`carrying.py`); all others see a conversion to `type`.
    """

    integers: SSAValue
    """A tensor of i8, ui8 or i32; of f32 itself where nothing declares a width."""
    type: Attribute
    """The element type that the model gives them."""
    zero_point: Array | None = None
    """What is subtracted from them, after the conversion to `type`: whole numbers that broadcast to their shape."""
    strict: bool = True
    """Whether the network's operators define the widths of their constants (PACTOps). Else constants declare their own."""

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.integers)


def remap_axis(old: Sequence[int], axis: int, new: Sequence[int]) -> int | None:
    """The axis of shape `new` that holds dimension `axis` of `old` unmixed after a row-major reshape, or None.

    It must have the same length and the same number of elements before it.
    """
    before = prod(old[:axis])
    for candidate, length in enumerate(new):
        if length == old[axis] and prod(new[:candidate]) == before:
            return candidate
    return None


def merge_axis(old: Sequence[int], axis: int, new: Sequence[int]) -> tuple[int, int] | None:
    """(axis of `new`, block size) when it merges dimension `axis` of `old` with at least one that follows, or None."""
    before = prod(old[:axis])
    for candidate, length in enumerate(new):
        if prod(new[:candidate]) != before:
            continue
        for end in range(axis + 2, len(old) + 1):
            if prod(old[axis:end]) == length and prod(old[axis + 1 : end]) > 1:
                return candidate, prod(old[axis + 1 : end])
    return None


def _as_slice(selection: range | None) -> slice:
    if selection is None or len(selection) == 0:
        return slice(None) if selection is None else slice(0, 0)
    stop = selection.stop if selection.stop >= 0 else None
    return slice(selection.start, stop, selection.step)


def swaps_last_two(permutation: Sequence[int]) -> bool:
    """Whether `permutation` exchanges the last two dimensions and moves no other."""
    rank = len(permutation)
    return rank >= 2 and list(permutation) == [*range(rank - 2), rank - 1, rank - 2]


def fits(values: Array, element_type: Attribute) -> bool:
    """Whether all values are integers in the range of `element_type`."""
    low, high = integer_range(element_type)
    if values.size == 0:
        return True
    if values.dtype.kind == "f" and not np.array_equal(values, np.rint(values)):
        return False
    # Python compares exactly, where numpy would round a bound of 32 bits to f32.
    return values.min().item() >= low and values.max().item() <= high
