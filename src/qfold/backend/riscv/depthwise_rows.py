"""Rows of a depthwise convolution of bytes as an assembly function: see `depthwise`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from xdsl.dialects import rv32
from xdsl.dialects.riscv import ops as riscv
from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer
from qfold.backend.c.window import Axis
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.dot_product import DotProducts, Words
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.integer_epilogue import IntegerEpilogueWriter
from qfold.backend.riscv.integer_region import IntegerEpilogue
from qfold.backend.riscv.registers import OutOfRegisters
from qfold.backend.riscv.streams import Stream, StreamPointers
from qfold.dialects.element_types import is_unsigned
from qfold.dialects.qkernel import PANEL
from qfold.dialects.riscv_pulp import alu, memory
from qfold.targets import Isa

ROW = "row"
"""The variable of rows in the positions of streams; columns are `n`."""
_FROM = 3
"""From how many inner groups on they are a loop."""


@dataclass(frozen=True)
class Depthwise:
    """What one leaf function computes. Strides are in bytes."""

    images: int
    channels: int
    multiplier: int
    """Output channels of an input channel."""
    rows: Axis
    columns: Axis
    row_stride: int
    padding: int
    """What lies around x, as an unsigned byte."""
    alignment: int
    """Of rows of x."""
    x: Buffer
    w: Buffer
    dots: DotProducts
    epilogue: IntegerEpilogue

    @property
    def groups(self) -> int:
        return -(-self.columns.output // PANEL)

    @property
    def step(self) -> int:
        """Words of a row from a group to the next."""
        return self.columns.stride

    @property
    def first_word(self) -> int:
        """The first word that group 0 reads of a row."""
        return -self.columns.pad // WORD

    @property
    def last_word(self) -> int:
        columns = self.columns
        return ((PANEL - 1) * columns.stride - columns.pad + columns.kernel - 1) // WORD

    def words(self, group: int) -> range:
        """What a group reads of a row."""
        at = group * self.step
        return range(at + self.first_word, at + self.last_word + 1)

    @property
    def inner(self) -> range:
        """The groups of four outputs for which all words are whole ones of x."""
        columns = self.columns
        whole = columns.size // WORD
        inner = [
            g
            for g in range(columns.output // PANEL)
            if self.words(g).start >= 0 and self.words(g).stop <= whole
        ]
        return range(inner[0], inner[-1] + 1) if len(inner) >= _FROM else range(0)

    def taps(self, row: int) -> tuple[int, ...]:
        """The rows of the kernel that lie inside of x for a row of the output."""
        axis = self.rows
        at = row * axis.stride - axis.pad
        return tuple(t for t in range(axis.kernel) if 0 <= at + t * axis.dilation < axis.size)

    def runs(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """(first row, how many, taps) of rows that have the same taps."""
        for taps, group in groupby(range(self.rows.output), self.taps):
            rows = list(group)
            yield rows[0], len(rows), taps


@dataclass(frozen=True)
class _Plan:
    """What is kept in registers beside words and weights."""

    held: int
    """How many pointers of the epilogue; the others are in the frame."""
    keep: bool
    """`IntegerEpilogueWriter`'s."""
    group: int
    """The same."""


def rows_function(isa: Isa, symbol: str, p: Depthwise, taps: tuple[int, ...]) -> AssemblyFunction:
    """Of rows of the output that have some taps; the first plan whose values all find a register. `OutOfRegisters`."""
    count = len(p.epilogue.streams)
    plans = [_Plan(held, keep=True, group=PANEL) for held in range(count, -1, -1)]
    plans += [_Plan(0, keep=False, group=group) for group in (PANEL, PANEL // 2)]
    for plan in plans:
        try:
            return _Rows(isa, symbol, p, taps, plan).function()
        except OutOfRegisters:
            continue
    return _Rows(isa, symbol, p, taps, _Plan(0, keep=False, group=1)).function()


Word = SSAValue | None
"""A word of x; None for one of zeros."""


class _Rows:
    """`void symbol(x, w, y, e0, .., rows)`: so many rows of one channel. `x` points at the row that the first tap reads."""

    def __init__(self, isa: Isa, symbol: str, p: Depthwise, taps: tuple[int, ...], plan: _Plan):
        names = [s.name for s in p.epilogue.streams]
        comment = (
            f"rows of {p.columns.output} outputs with taps {', '.join(map(str, taps)) or 'none'}"
        )
        self._b = FunctionBuilder(symbol, isa, ("x", "w", *names, "rows"), comment)
        self._p, self._taps, self._plan = p, taps, plan
        self._inside = dict(zip(taps, range(len(taps)), strict=True))
        # Rows of padding count too, where there is something in them.
        self._all = tuple(range(p.rows.kernel)) if p.padding else taps
        self._weights: dict[int, SSAValue] = {}
        self._around: Word = None

    def function(self) -> AssemblyFunction:
        b, p, plan = self._b, self._p, self._plan
        self._weights = {tap: self._weight(tap) for tap in self._all}
        if p.padding and (p.rows.clipped or p.columns.clipped):
            self._around = b.li(p.padding * 0x01010101)
        pointers = StreamPointers(b, p.epilogue.streams, held=plan.held)
        writer = IntegerEpilogueWriter(b, p.epilogue, pointers, keep=plan.keep, group=plan.group)
        x = b.arguments["x"]
        with b.loop(b.arguments["rows"], [x, *pointers.carried], level=1) as loop:
            x, *carried = loop.args
            pointers.take(carried)
            moved = self._row(x, pointers, writer)
            x = b.addi(moved, p.rows.stride * p.row_stride - WORD * p.step * len(p.inner))
            panels = p.columns.output // PANEL
            pointers.move(lambda s: self._row_bytes(s) - panels * s.panel_bytes)
            loop.yield_(x, *pointers.carried)
        return finish(b)

    @staticmethod
    def _row_bytes(stream: Stream) -> int:
        position = stream.position.renamed({"n": None, ROW: "n"})
        return Stream(stream.name, stream.buffer, position).column_bytes

    def _weight(self, tap: int) -> SSAValue:
        """A row of the kernel as a word."""
        b, width = self._b, self._p.columns.kernel
        narrow = memory.LbuOp if is_unsigned(self._p.w.element) else memory.LbOp
        loaded = [b.emit(narrow(b.arguments["w"], tap * width + i)).rd for i in range(width)]
        word = b.emit(rv32.LiOp(0)).rd
        for i, value in enumerate(loaded):
            word = b.emit(alu.InsertOp(word, value, 8, 8 * i)).rd_out
        return word

    def _row(
        self, x: SSAValue, pointers: StreamPointers, writer: IntegerEpilogueWriter
    ) -> SSAValue:
        """All groups of a row; the pointer as they leave it: moved on by `step` words for each of the inner ones."""
        b, p = self._b, self._p
        inner = p.inner
        words: dict[tuple[int, int], Word] = {}
        """(tap, word of the row) -> its value, of those that the next group needs."""
        moved = 0
        """Bytes from where the row starts to the pointer."""

        def group(index: int) -> None:
            load(p.words(index))
            count = min(PANEL, p.columns.output - index * PANEL)
            at = index * p.step
            self._finish(count, lambda tap, q: words[tap, at + q], pointers, writer)
            for key in [key for key in words if key[1] < p.words(index + 1).start]:
                del words[key]

        def load(needed: range) -> None:
            for tap in self._taps:
                for q in needed:
                    if (tap, q) not in words:
                        words[tap, q] = self._load(x, tap, q, moved)

        for index in range(inner.start):
            group(index)
        if inner:
            at = p.words(inner.start)
            known = range(at.start, at.stop - p.step)
            load(known)
            keys = [(tap, q) for tap in self._taps for q in known]
            values = [v for key in keys if (v := words.pop(key)) is not None]
            with b.loop(len(inner), [x, *values, *pointers.carried]) as loop:
                x, *rest = loop.args
                words.update(zip(keys, rest, strict=False))
                pointers.take(rest[len(keys) :])
                group(inner.start)
                x = b.addi(x, WORD * p.step)
                handed_on: list[SSAValue] = []
                for tap, q in keys:
                    word = words.pop((tap, q + p.step))
                    assert word is not None
                    # What the loop carries has registers of its own, in which the words before are until here.
                    handed_on.append(b.emit(riscv.MVOp(word)).rd)
                loop.yield_(x, *handed_on, *pointers.carried)
            x, *rest = loop.results
            pointers.take(rest[len(keys) :])
            moved = WORD * p.step * len(inner)
            words.clear()
            ends = [(tap, q + p.step * len(inner)) for tap, q in keys]
            words.update(zip(ends, rest, strict=False))
        for index in range(inner.stop if inner else 0, p.groups):
            group(index)
        return x

    def _load(self, x: SSAValue, tap: int, q: int, moved: int) -> Word:
        """Word `q` of the row of x that a tap reads: beyond it, what is around it."""
        b, columns = self._b, self._p.columns
        size = min(WORD, columns.size - WORD * q)
        if q < 0 or size <= 0:
            return self._around
        offset = (tap - self._taps[0]) * self._p.rows.dilation * self._p.row_stride
        word = Words(self._p.alignment).load(b, x, offset + WORD * q - moved, size)
        if size < WORD and self._around is not None:
            around = self._around
            word = b.emit(alu.InsertOp(word, around, 8 * (WORD - size), 8 * size)).rd_out
        return word

    def _finish(
        self,
        count: int,
        word: Callable[[int, int], Word],
        pointers: StreamPointers,
        writer: IntegerEpilogueWriter,
    ) -> None:
        """The sums of `count` outputs, stored. `word`: (tap, number from the group's first output on) -> a word of x."""
        b, p = self._b, self._p
        first = p.epilogue.initial
        sums: list[SSAValue | None] = [
            None if first is None else pointers.element(first, 0, j) for j in range(count)
        ]
        for tap in self._all:
            for j in range(count):
                window = self._around
                if tap in self._inside:
                    at, byte = divmod(j * p.columns.stride - p.columns.pad, WORD)
                    window = self._window(tap, at, byte, word)
                if window is None:
                    continue
                total, weights = sums[j], self._weights[tap]
                if total is None:
                    sums[j] = p.dots.first(b, window, weights)
                else:
                    sums[j] = p.dots.next(b, total, window, weights)
        writer.write([[b.emit(rv32.LiOp(0)).rd if s is None else s for s in sums]])
        if count == PANEL:
            pointers.advance()

    def _window(self, tap: int, at: int, byte: int, word: Callable[[int, int], Word]) -> Word:
        """The bytes of a window's row, from `byte` of word `at` on, at the start of a word."""
        b, width = self._b, self._p.columns.kernel
        low = word(tap, at)
        if byte + width <= WORD:
            if low is None or not byte or low is self._around:
                return low
            return b.emit(rv32.SrliOp(low, 8 * byte)).rd
        high = word(tap, at + 1)
        if low is high:
            return low
        if low is None:
            assert high is not None
            return b.emit(rv32.SlliOp(high, 8 * (WORD - byte))).rd
        shifted = b.emit(rv32.SrliOp(low, 8 * byte)).rd
        if high is None:
            return shifted
        bits = 8 * (byte + width - WORD)
        return b.emit(alu.InsertOp(shifted, high, bits, 8 * (WORD - byte))).rd_out
