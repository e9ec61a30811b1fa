"""Memory that remembers who wrote each part of it last: what `qmm-check-plan` replays calls on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects import memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IntegerType, MemRefType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from qfold.ir.locations import describe_location

Indices = npt.NDArray[np.int64]
Units = Indices | slice
Fail = Callable[[str], NoReturn]
"""Ends the replay with what is wrong."""

NOBODY = -1


@dataclass(eq=False)
class Memory:
    """Memory that is replayed: an arena, an output, or a variable. Its units are the smallest elements that it holds."""

    name: str
    owners: npt.NDArray[np.int32]
    """Per unit: which buffer wrote it last."""
    readers: npt.NDArray[np.int64]
    """Per unit: the last op that read it through an argument that it does not write."""
    sources: npt.NDArray[np.int16]
    """Per unit: transfers under way that read it."""
    destinations: npt.NDArray[np.int16]
    """Per unit: transfers under way that write it."""
    transfers: int = 0
    """Transfers under way, from or to it."""

    @staticmethod
    def of(name: str, units: int) -> Memory:
        return Memory(
            name,
            np.full(units, NOBODY, np.int32),
            np.full(units, -1, np.int64),
            np.zeros(units, np.int16),
            np.zeros(units, np.int16),
        )


@dataclass(eq=False)
class Buffer:
    """What an SSA value stands for: the units where each of its elements starts. `memory` is None for inputs and constants."""

    memory: Memory | None
    identity: int
    elements: Indices
    width: int
    """Units per element."""
    whole: Indices = field(repr=False)
    """Elements of the buffer that this is a view of."""

    @cached_property
    def units(self) -> Units:
        """All units: a slice where they are in a row, which is much faster to work on."""
        flat = self.elements.reshape(-1)
        if flat.size and flat[-1] - flat[0] == (flat.size - 1) * self.width:
            if np.all(flat[1:] - flat[:-1] == self.width):
                return slice(int(flat[0]), int(flat[-1]) + self.width)
        if self.width == 1:
            return flat
        return (flat[:, None] + np.arange(self.width)).reshape(-1)

    def listed(self) -> Indices:
        """All units, one by one."""
        units = self.units
        if isinstance(units, slice):
            return np.arange(units.start, units.stop, dtype=np.int64)
        return units

    def seen_as(self, elements: Indices) -> Buffer:
        """Other elements of the same buffer."""
        return Buffer(self.memory, self.identity, elements, self.width, self.whole)


@dataclass(eq=False)
class Transfer:
    """A transfer under way."""

    source: Buffer
    destination: Buffer


class ShadowMemory:
    """Reads, writes and transfers, checked as they are replayed."""

    def __init__(self, unit: int):
        self.unit = unit
        """Bits."""
        self.step = 0
        """Counts ops."""
        self.names: dict[int, str] = {}
        """Buffer -> who wrote it first."""

    def _byte(self, units: Units, index: int) -> int:
        unit = units.start + index if isinstance(units, slice) else int(units[index])
        return unit * self.unit // 8

    def read(self, buffer: Buffer, fail: Fail, *, also_written: bool = False) -> None:
        memory = buffer.memory
        if memory is None:
            return
        units = buffer.units
        owners = memory.owners[units]
        wrong = np.flatnonzero(owners != buffer.identity)
        if wrong.size:
            other = int(owners[wrong[0]])
            by = "nobody has written"
            if other != NOBODY:
                by = f"the buffer of {self.names.get(other, memory.name)} has overwritten"
            fail(f"reads byte {self._byte(units, int(wrong[0]))} of {memory.name}, which {by}")
        if memory.transfers:
            busy = np.flatnonzero(memory.destinations[units])
            if busy.size:
                fail(
                    f"reads byte {self._byte(units, int(busy[0]))} of {memory.name}, where a transfer is still "
                    "under way"
                )
        if not also_written:
            memory.readers[units] = self.step

    def write(self, buffer: Buffer, fail: Fail) -> None:
        memory = buffer.memory
        if memory is None:
            fail("writes to an input or a constant")
        units = buffer.units
        clash = np.flatnonzero(memory.readers[units] == self.step)
        if clash.size:
            fail(
                f"writes byte {self._byte(units, int(clash[0]))}, which it reads through another argument"
            )
        self._not_busy(memory, units, fail)
        memory.owners[units] = buffer.identity

    def _not_busy(self, memory: Memory, units: Units, fail: Fail) -> None:
        if memory.transfers:
            busy = np.flatnonzero(memory.destinations[units] + memory.sources[units])
            if busy.size:
                fail(
                    f"writes byte {self._byte(units, int(busy[0]))} of {memory.name}, from or to which a transfer is "
                    "still under way"
                )

    def start(self, source: Buffer, destination: Buffer, fail: Fail) -> Transfer:
        """Begin a transfer: until it has ended, nobody may write what it reads, nor read or write what it writes."""
        self.read(source, fail, also_written=True)
        if destination.memory is None:
            fail("transfers to an input or a constant")
        units = destination.units
        self._not_busy(destination.memory, units, fail)
        destination.memory.destinations[units] += 1
        destination.memory.transfers += 1
        if source.memory is not None:
            source.memory.sources[source.units] += 1
            source.memory.transfers += 1
        return Transfer(source, destination)

    def wait(self, transfer: Transfer) -> None:
        """The end of a transfer: its destination is written."""
        source, destination = transfer.source, transfer.destination
        assert destination.memory is not None
        units = destination.units
        destination.memory.destinations[units] -= 1
        destination.memory.transfers -= 1
        destination.memory.owners[units] = destination.identity
        if source.memory is not None:
            source.memory.sources[source.units] -= 1
            source.memory.transfers -= 1


def view_of(op: Operation, source: Buffer, offsets: Sequence[int]) -> Buffer:
    """What a view op makes of `source`; `offsets` are a subview's. `PassFailedException` for an op that is no view."""
    shape = cast(MemRefType[Attribute], op.results[0].type).get_shape()
    elements = source.elements
    if isinstance(op, memref.CollapseShapeOp | memref.ExpandShapeOp | memref.CastOp):
        return source.seen_as(elements.reshape(shape))
    if isinstance(op, memref.SubviewOp):
        where = tuple(
            slice(o, o + (n - 1) * s + 1 if n else o, s)
            for o, n, s in zip(
                offsets, int_list(op.static_sizes), int_list(op.static_strides), strict=True
            )
        )
        return source.seen_as(elements[where].reshape(shape))
    if isinstance(op, memref.ReinterpretCastOp):
        positions = np.full(shape, int_list(op.static_offsets)[0], np.int64)
        for axis, step in enumerate(int_list(op.static_strides)):
            along = [1] * len(shape)
            along[axis] = -1
            positions += (np.arange(shape[axis]) * step).reshape(along)
        flat = source.whole.reshape(-1)
        if positions.size and (positions.min() < 0 or positions.max() >= flat.size):
            raise PassFailedException(
                f"{describe_location(op)}: reaches element {positions.max()} of {flat.size}"
            )
        return source.seen_as(flat[positions])
    raise PassFailedException(f"{describe_location(op)} has no place in a planned function")


def subview_offsets(op: Operation, values: Callable[[SSAValue], int]) -> list[int]:
    """Where a subview starts, its dynamic offsets taken from `values`; nothing for another op."""
    if not isinstance(op, memref.SubviewOp):
        return []
    dynamic = iter(op.offsets)
    return [
        values(next(dynamic)) if offset == DYNAMIC_INDEX else offset
        for offset in int_list(op.static_offsets)
    ]


def int_list(attribute: DenseArrayBase[IntegerType]) -> list[int]:
    return [int(v) for v in attribute.get_values()]
