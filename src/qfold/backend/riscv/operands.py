"""How the inner loop of a packed product reads its operands: pointers, offsets and increments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Literal

from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import WORD, FunctionBuilder, fits_12_bits

Addressing = Literal["offset", "walk", "pointers"]
"""How rows of A are addressed: `OffsetReader`, `WalkingReader`, `PointersReader`."""

SLACK = 64
"""Bytes that offsets may grow by before the pointers are moved: the steps of a loop body and of straight-line code."""


class Unit(ABC):
    """What one step of K reads of a row or a column: `WORD` bytes, as the product takes them."""

    @property
    def reach(self) -> int:
        """How far behind an offset the last load of a unit is."""
        return 0

    @abstractmethod
    def increments(self, b: FunctionBuilder) -> bool:
        """Whether a load moves its pointer on by itself."""

    @abstractmethod
    def load(self, b: FunctionBuilder, pointer: SSAValue, offset: int, size: int) -> SSAValue:
        """The unit at `pointer + offset`. Of its bytes, `size` are read; the others have any value."""

    @abstractmethod
    def load_post(
        self, b: FunctionBuilder, pointer: SSAValue, step: int | SSAValue, size: int
    ) -> tuple[SSAValue, SSAValue]:
        """The unit at `pointer`, and `pointer + step`."""


class _Floats(Unit):
    """Floats, in the registers that the instruction set has for them."""

    def increments(self, b: FunctionBuilder) -> bool:
        return b.float_in_x and b.isa.xpulpv2

    def load(self, b: FunctionBuilder, pointer: SSAValue, offset: int, size: int) -> SSAValue:
        assert size == WORD
        return b.fload(pointer, offset)

    def load_post(
        self, b: FunctionBuilder, pointer: SSAValue, step: int | SSAValue, size: int
    ) -> tuple[SSAValue, SSAValue]:
        assert size == WORD
        return b.fload_post(pointer, step)


FLOATS: Final = _Floats()


class Reader(ABC):
    """Reads an operand along K, a value per lane (row or column) and step."""

    def __init__(self, pointers: tuple[SSAValue, ...], unit: Unit):
        self.pointers: tuple[SSAValue, ...] = pointers
        """What a loop carries. A loop's arguments and results replace it."""
        self.unit = unit

    def begin(self, b: FunctionBuilder) -> None:  # noqa: B027 - nothing to do for most
        """Constants that the loads need; before the first load of a panel."""

    @abstractmethod
    def load(self, b: FunctionBuilder, lane: int, step: int, size: int = WORD) -> SSAValue:
        """The operand of row (or column) `lane` in `step`, of which only `size` bytes are read."""

    @abstractmethod
    def end_body(self, b: FunctionBuilder, steps: int) -> None:
        """A loop's body, of so many steps, ends: the next iteration finds things where this one did, by the same steps."""

    @abstractmethod
    def end(self, b: FunctionBuilder, k: int, moved: int) -> None:
        """All `k` steps were loaded, and all `end_body` were for `moved` steps: move to where the next panel starts."""


class OffsetReader(Reader):
    """Rows of A by one pointer that the load of its own row increments; the others are at constant offsets from it."""

    def __init__(self, b: FunctionBuilder, a: SSAValue, rows: int, stride: int, unit: Unit):
        base = self.base_row(rows, stride, unit.reach)
        assert base is not None
        super().__init__((b.addi(a, base * stride),), unit)
        self._base = base
        self._stride = stride
        self._moved = 0

    @staticmethod
    def base_row(rows: int, stride: int, reach: int = 0) -> int | None:
        """The row to point at so that all others are in reach, or None. Rows are loaded in order, so those before it at the
        pointer's step, those after it when the pointer is one word on."""
        for base in range(min(2, rows)):
            last = (rows - 1 - base) * stride - WORD
            if fits_12_bits(-base * stride) and fits_12_bits(last) and fits_12_bits(last + reach):
                return base
        return None

    def load(self, b: FunctionBuilder, lane: int, step: int, size: int = WORD) -> SSAValue:
        (pointer,) = self.pointers
        if lane == self._base:
            assert step == self._moved
            value, pointer = self.unit.load_post(b, pointer, WORD, size)
            self.pointers = (pointer,)
            self._moved += 1
            return value
        offset = (lane - self._base) * self._stride + WORD * (step - self._moved)
        return self.unit.load(b, pointer, offset, size)

    def end_body(self, b: FunctionBuilder, steps: int) -> None:
        self._moved -= steps

    def end(self, b: FunctionBuilder, k: int, moved: int) -> None:
        self.pointers = (b.addi(self.pointers[0], -WORD * k),)
        self._moved = 0


class WalkingReader(Reader):
    """Rows of A by one pointer that walks down the rows and back up to the next word, for rows that are too far apart for
    offsets: post-increments by registers."""

    def __init__(self, b: FunctionBuilder, a: SSAValue, rows: int, stride: int, unit: Unit):
        super().__init__((a,), unit)
        self._rows = rows
        self._stride = stride
        self._down: SSAValue | int = 0
        self._up: SSAValue | int = 0
        self._next = 0

    def begin(self, b: FunctionBuilder) -> None:
        def step(value: int) -> SSAValue | int:
            return value if fits_12_bits(value) else b.li(value)

        self._down = step(self._stride) if self._rows > 1 else 0
        self._up = step(WORD - (self._rows - 1) * self._stride)

    def load(self, b: FunctionBuilder, lane: int, step: int, size: int = WORD) -> SSAValue:
        assert lane == self._next % self._rows
        self._next += 1
        (pointer,) = self.pointers
        last = lane == self._rows - 1
        value, pointer = self.unit.load_post(b, pointer, self._up if last else self._down, size)
        self.pointers = (pointer,)
        return value

    def end_body(self, b: FunctionBuilder, steps: int) -> None:
        pass

    def end(self, b: FunctionBuilder, k: int, moved: int) -> None:
        self.pointers = (b.addi(self.pointers[0], -WORD * k),)


class PointersReader(Reader):
    """Rows of A by as few pointers as reach all of them, moved on once per loop body: for floats in a file of their own, whose
    loads do not increment."""

    def __init__(self, b: FunctionBuilder, a: SSAValue, rows: int, stride: int, unit: Unit):
        starts, self._place = self.places(rows, stride)
        super().__init__(tuple(b.addi(a, start) for start in starts), unit)

    @staticmethod
    def places(rows: int, stride: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Where the pointers start, in bytes from A, and for each row which pointer it is read by, at which offset."""
        starts: list[int] = []
        place: list[tuple[int, int]] = []
        row = 0
        while row < rows:
            # A pointer may lie one row below the first that it reads.
            base = row + 1 if row + 1 < rows and fits_12_bits(-stride) else row
            starts.append(base * stride)
            while row < rows and fits_12_bits((row - base) * stride + SLACK):
                place.append((len(starts) - 1, (row - base) * stride))
                row += 1
        return starts, place

    def load(self, b: FunctionBuilder, lane: int, step: int, size: int = WORD) -> SSAValue:
        index, offset = self._place[lane]
        return self.unit.load(b, self.pointers[index], offset + WORD * step, size)

    def end_body(self, b: FunctionBuilder, steps: int) -> None:
        self.pointers = tuple(b.addi(p, WORD * steps) for p in self.pointers)

    def end(self, b: FunctionBuilder, k: int, moved: int) -> None:
        self.pointers = tuple(b.addi(p, -WORD * moved) for p in self.pointers)


class PanelReader(Reader):
    """W in panels of `panel` columns, in the order of memory but for the columns within a step; column 0 comes last."""

    def __init__(self, b: FunctionBuilder, w: SSAValue, panel: int, unit: Unit):
        super().__init__((w,), unit)
        self._step = panel * WORD
        self._increments = unit.increments(b)
        self._moved = 0

    def load(self, b: FunctionBuilder, lane: int, step: int, size: int = WORD) -> SSAValue:
        (pointer,) = self.pointers
        if lane == 0 and self._increments:
            assert step == self._moved
            value, pointer = self.unit.load_post(b, pointer, self._step, size)
            self.pointers = (pointer,)
            self._moved += 1
            return value
        return self.unit.load(b, pointer, self._step * (step - self._moved) + WORD * lane, size)

    def end_body(self, b: FunctionBuilder, steps: int) -> None:
        if self._increments:
            self._moved -= steps
        else:
            self.pointers = (b.addi(self.pointers[0], self._step * steps),)

    def end(self, b: FunctionBuilder, k: int, moved: int) -> None:
        if not self._increments:
            self.pointers = (b.addi(self.pointers[0], self._step * (k - moved)),)
        self._moved = 0


def row_reader(
    kind: Addressing, b: FunctionBuilder, a: SSAValue, rows: int, stride: int, unit: Unit
) -> Reader:
    """The reader of A that the cost model chose."""
    readers = {"offset": OffsetReader, "walk": WalkingReader, "pointers": PointersReader}
    return readers[kind](b, a, rows, stride, unit)
