"""Bytes from where they are to panels of bytes: four columns side by side, each k of a group to a place of its own.

Two instructions a byte, a load and a store, each of which moves its pointer on where that is due.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import WORD, FunctionBuilder, fits_12_bits
from qfold.backend.riscv.readers import Element, Reader, SideBySide
from qfold.dialects.qkernel import PANEL
from qfold.dialects.riscv_pulp import memory

BYTE: Final = Element.of("ui8")
_AHEAD: Final = 2
"""Bytes that are loaded before the one that is stored: a load's value is there one instruction later."""


class Columns(ABC):
    """Reads a byte of each column, k by k."""

    @property
    @abstractmethod
    def carried(self) -> Sequence[SSAValue]:
        """What a loop carries; its arguments and results are given back to `take`."""

    @abstractmethod
    def take(self, values: Sequence[SSAValue]) -> None: ...

    @abstractmethod
    def order(self) -> Sequence[int]:
        """The columns in the order in which they are read at each k."""

    @abstractmethod
    def read(self, b: FunctionBuilder, column: int) -> SSAValue:
        """The byte of a column at the current k; moves on where it is the last one that a pointer serves."""


class NearColumns(Columns):
    """Columns that lie `stride` bytes apart, each k `step` bytes from the last; `skipped` ones are not read unless by a pointer
    that has to move."""

    def __init__(
        self,
        b: FunctionBuilder,
        start: SSAValue,
        count: int,
        stride: int,
        step: int,
        skipped: Collection[int] = (),
    ):
        sequences = SideBySide(BYTE, count, stride, step)
        bases = {group.base for group in sequences.groups()}
        self._skipped = set(skipped) - bases
        self._reader: Reader = sequences.open(b, start)

    @property
    def carried(self) -> Sequence[SSAValue]:
        return self._reader.pointers

    def take(self, values: Sequence[SSAValue]) -> None:
        self._reader.pointers = list(values)

    def order(self) -> Sequence[int]:
        return [column for column in self._reader.order() if column not in self._skipped]

    def read(self, b: FunctionBuilder, column: int) -> SSAValue:
        return self._reader.read(b, column)


class FarColumns(Columns):
    """Columns that lie anywhere, each with a step of its own: 0 where one byte stands for all k."""

    def __init__(self, starts: Sequence[SSAValue], steps: Sequence[SSAValue]):
        self._pointers = list(starts)
        self._steps = list(steps)

    @property
    def carried(self) -> Sequence[SSAValue]:
        return self._pointers

    def take(self, values: Sequence[SSAValue]) -> None:
        self._pointers = list(values)

    def order(self) -> Sequence[int]:
        return range(len(self._pointers))

    def read(self, b: FunctionBuilder, column: int) -> SSAValue:
        load = b.emit(memory.LbuPostRegOp(self._pointers[column], self._steps[column]))
        self._pointers[column] = load.rs1_out
        return load.rd


@dataclass(frozen=True)
class Places:
    """
    Where a group of `WORD` steps goes whose k are `apart`, the first of them the byte `first` of its word. What is written is
    given by the place of the first byte.
    """

    apart: int
    first: int = 0

    def offset(self, step: int, tap: int, column: int) -> int:
        """From the first byte of column 0 to that of a column, `tap` k behind that of a step."""
        words, byte = divmod(self.first + step * self.apart + tap, WORD)
        return words * WORD * PANEL + byte - self.first + WORD * column

    @property
    def bytes(self) -> int:
        """From a group to the next."""
        return self.apart * WORD * PANEL


Copies = Mapping[int, Sequence[tuple[int, int]]]
"""A column that is read -> where its byte goes: (tap, column of the panel)."""


def same_columns(count: int) -> Copies:
    """Each column to its own place."""
    return {column: [(0, column)] for column in range(count)}


def copy_group(
    b: FunctionBuilder, columns: Columns, copies: Copies, y: SSAValue, places: Places, steps: int
) -> SSAValue:
    """So many steps of a group, and the place of the next group's first byte."""
    reads = [(step, column) for step in range(steps) for column in columns.order()]
    loaded: list[SSAValue] = []
    moved = 0
    for index, (step, column) in enumerate(reads):
        for _, next_column in reads[len(loaded) : index + 1 + _AHEAD]:
            loaded.append(columns.read(b, next_column))
        for tap, to in copies.get(column, ()):
            offset = places.offset(step, tap, to) - moved
            if offset == 0 and not moved and fits_12_bits(places.bytes):
                y = b.emit(memory.SbPostOp(y, loaded[index], places.bytes)).rs1_out
                moved = places.bytes
            elif fits_12_bits(offset):
                b.emit(memory.SbOp(y, loaded[index], offset))
            else:
                b.emit(memory.SbOp(b.addi(y, offset), loaded[index], 0))
    return y if moved else b.addi(y, places.bytes)


def clear_columns(b: FunctionBuilder, y: SSAValue, columns: Sequence[int]) -> None:
    """Zeros in the words of some columns."""
    for column in columns:
        b.sw(b.zero, y, WORD * column)
