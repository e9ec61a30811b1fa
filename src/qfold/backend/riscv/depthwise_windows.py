"""What `riscv.quant_conv` goes through: rows of the output, pieces of them, and where their windows lie in words of x."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Final

from qfold.backend.c.layout import Buffer, Linear, variable
from qfold.backend.c.window import Axis, axes_of
from qfold.backend.riscv.builder import WORD, fits_12_bits
from qfold.backend.riscv.dot_product import DotProducts
from qfold.backend.riscv.generated import CannotGenerate, LeafKernel
from qfold.backend.riscv.integer_region import TYPES, IntegerEpilogue, check_region
from qfold.backend.riscv.streams import Stream, epilogue_operands
from qfold.dialects import qkernel
from qfold.dialects.contraction import WORD_WINDOWS, shape_of, window_of
from qfold.dialects.element_types import is_unsigned
from qfold.dialects.qkernel import PANEL

_FROM: Final = 3
"""From how many equal pieces on they are a loop."""
IMAGE, CHANNEL, ROW, COLUMN = "image", "channel", "m", "n"
"""The variables that positions are over. Rows and columns are those of a matrix, to what finishes it."""


@dataclass(frozen=True)
class Window:
    """Where a row of a window lies: in word `word`, or in what is shifted out of it and the next one, `shift` bytes further; its
    first byte is byte `lane` of that."""

    word: int
    shift: int
    lane: int


@dataclass(frozen=True)
class Piece:
    """Outputs of a row that are computed at once."""

    first: int
    count: int


@dataclass(frozen=True)
class Run:
    """Rows of the output whose windows have the same rows, `taps`, inside of x."""

    first: int
    count: int
    taps: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
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
    narrow: bool = False
    """Few registers: no piece has more than four outputs, and weights are in one place of a word."""

    def window(self, output: int) -> Window:
        """Where the windows of an output's column begin."""
        axis = self.columns
        word, byte = divmod(output * axis.stride - axis.pad, WORD)
        room = 0 if self.narrow else WORD - axis.kernel
        if byte <= room:
            return Window(word, 0, byte)
        # By half a word, where it holds the window, as more than one output has that.
        shift = WORD // 2 if 0 <= byte - WORD // 2 <= room else byte
        return Window(word, shift, byte - shift)

    def is_inside(self, word: int) -> bool:
        """Whether some of a word's bytes are x's."""
        return word >= 0 and word * WORD < self.columns.size

    def reads(self, window: Window) -> list[int]:
        """The words that a window lies in."""
        return [window.word, *([window.word + 1] if window.shift else [])]

    @property
    def lanes(self) -> list[int]:
        """In which bytes of a word windows begin."""
        return sorted({self.window(o).lane for o in range(self.columns.output)})

    def pieces(self) -> list[Piece]:
        """Each row, piece by piece."""
        axis = self.columns
        starts = {o: o * axis.stride - axis.pad for o in range(PANEL)}
        whole = [o for o, at in starts.items() if at >= 0]
        aligned = [o for o in whole if starts[o] % WORD == 0]
        first = PANEL + (0 if self.narrow else next(iter((*aligned, *whole)), 0))
        ends = [*range(first, axis.output, PANEL), axis.output]
        return [Piece(a, b - a) for a, b in zip([0, *ends], ends, strict=False)]

    def inner(self) -> range:
        """Which pieces are one loop: all of their words are whole ones of x."""
        pieces = self.pieces()
        found = [i for i, piece in enumerate(pieces) if i and self._is_whole(piece)]
        return range(found[0], found[-1] + 1) if len(found) >= _FROM else range(0)

    def _is_whole(self, piece: Piece) -> bool:
        words = [
            word
            for o in range(piece.first, piece.first + piece.count)
            for word in self.reads(self.window(o))
        ]
        inside = min(words) >= 0 and WORD * (max(words) + 1) <= self.columns.size
        return piece.count == PANEL and inside

    def taps(self, row: int) -> tuple[int, ...]:
        """The rows of the kernel that lie inside of x for a row of the output."""
        axis = self.rows
        at = row * axis.stride - axis.pad
        return tuple(t for t in range(axis.kernel) if 0 <= at + t * axis.dilation < axis.size)

    def runs(self) -> list[Run]:
        """All rows of the output."""
        found: list[Run] = []
        for taps, group in groupby(range(self.rows.output), self.taps):
            rows = list(group)
            found.append(Run(rows[0], len(rows), taps))
        return found

    def reach(self, rows: int) -> int:
        """How far from its first byte a block of so many rows reads."""
        axis = self.rows
        last = (rows - 1) * axis.stride + (axis.kernel - 1) * axis.dilation
        return last * self.row_stride + self.columns.size + WORD


def problem_of(leaf: LeafKernel, op: qkernel.QuantConvOp) -> Problem:
    """The convolution of a leaf function. `CannotGenerate` for what the kernel is not for."""
    check_region(op)
    x, w, y = (leaf.buffers[v] for v in (op.x, op.w, op.y))
    groups, strides, pads, dilations = window_of(op)
    rows, columns = axes_of(x.shape[2:], shape_of(op.w)[2:], y.shape[2:], strides, pads, dilations)
    row_stride = x.strides[2] if len(x.shape) == 4 else 0
    reach = (rows.kernel - 1) * rows.dilation * row_stride + columns.size
    refusals = {
        f"it has the attribute {WORD_WINDOWS}": WORD_WINDOWS in op.attributes,
        "each input channel is a group": shape_of(op.w)[1] == 1 and groups == x.shape[1],
        "there are no zero points": op.x_zero_point is None and op.w_zero_point is None,
        "a row of a window is at most a word": columns.kernel <= WORD,
        "windows are at most a word apart, and dense": columns.stride <= WORD
        and columns.dilation == 1,
        "rows of x are contiguous": columns.size == 1 or x.strides[-1] == 1,
        "offsets reach all rows of a window": fits_12_bits(reach + WORD),
        "no dimension is 0": 0 not in (*x.shape, *y.shape),
    }
    for what, holds in refusals.items():
        if not holds:
            raise CannotGenerate(op, f"the kernel is for convolutions in which {what}")
    place = [variable(v) for v in (IMAGE, CHANNEL, ROW, COLUMN)]
    if len(y.shape) == 3:
        del place[2]
    operands = tuple(
        _stream(op, *found, columns) for found in epilogue_operands(op, leaf.buffers, place)
    )
    output = _stream(op, "y", y, y.at(place), columns, written=True)
    return Problem(
        y.shape[0],
        y.shape[1],
        y.shape[1] // x.shape[1],
        rows,
        columns,
        row_stride,
        (op.padding or 0) % 256,
        _alignment(x),
        x,
        w,
        DotProducts(not is_unsigned(x.element), not is_unsigned(w.element)),
        IntegerEpilogue(output, operands, op.epilogue_block),
    )


def _stream(
    op: qkernel.QuantConvOp,
    name: str,
    buffer: Buffer,
    position: Linear,
    columns: Axis,
    *,
    written: bool = False,
) -> Stream:
    if buffer.element not in TYPES:
        names = ", ".join(sorted(map(str, TYPES)))
        raise CannotGenerate(op, f"{name} is one of {names}, got {buffer.type}")
    if position.coefficient(ROW) and not position.coefficient(COLUMN):
        if columns.output > 1:
            raise CannotGenerate(op, f"{name} has one element per row")
        # What moves from row to row moves from column to column: so far that the only one may be any.
        position += variable(COLUMN)
    return Stream(name, buffer, position, written=written)


def _alignment(x: Buffer) -> int:
    """The bytes (4, 2 or 1) that all rows of x are aligned to."""
    offset = x.type.get_offset()
    steps = [s for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True) if n > 1]
    if offset is None:
        return 1
    return next(n for n in (4, 2, 1) if not any(s % n for s in (offset, *steps)))
