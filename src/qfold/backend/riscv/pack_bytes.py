"""`riscv.pack_bytes`: a matrix of bytes as panels of four columns, a word of which is four consecutive k of a column.

Where k are neighbours, words are copied: an instruction for two bytes, if they are aligned. Else it is two instructions a byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from xdsl.ir import SSAValue

from qfold.backend.c.share import Range
from qfold.backend.c.text import Writer
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.byte_copies import (
    NearColumns,
    Places,
    clear_columns,
    copy_group,
    same_columns,
)
from qfold.backend.riscv.dot_product import Words, alignment_of
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.leaf import function_facts, isa_of, only_op, share_sizes, split_of
from qfold.backend.riscv.operands import OffsetReader, row_reader
from qfold.backend.riscv.panel_driver import each_packed_panel
from qfold.dialects import qkernel
from qfold.dialects.element_types import bit_width
from qfold.dialects.qkernel import PANEL
from qfold.dialects.riscv_pulp import memory
from qfold.ir.layouts import Layout
from qfold.targets import Isa


@dataclass(frozen=True)
class ByteMatrix:
    """A [K, N] matrix of bytes that is to be packed. Strides are in bytes."""

    k: int
    n: int
    k_stride: int
    n_stride: int
    alignment: int
    """Of the first byte of each column."""

    @property
    def words(self) -> int:
        return -(-self.k // WORD)

    @property
    def whole_words(self) -> int:
        return self.k // WORD

    @property
    def panels(self) -> int:
        return -(-self.n // PANEL)

    @property
    def widths(self) -> list[int]:
        """The numbers of columns that panels have."""
        return [c for c in (PANEL if self.n >= PANEL else 0, self.n % PANEL) if c]

    @property
    def by_words(self) -> bool:
        """Whether the k of a column are neighbours."""
        return self.k_stride == 1 or self.k == 1


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one `qkernel.pack_bytes`; `qmm.split` has two entries, for panels and for words. `w` may
    have any static strides; integers of four bits are not for it (`CannotGenerate`).
    """
    op = only_op(leaf, qkernel.PackBytesOp)
    w, y = leaf.buffers[op.w], leaf.buffers[op.y]
    if bit_width(w.element) != 8:
        raise CannotGenerate(op, f"generated packing is of bytes, c.pack_bytes is for {w.type}")
    if not Layout.of(y.type).is_dense:
        raise CannotGenerate(op, f"the packed operand must be dense, got {y.type}")
    k, n = op.weight_shape
    if min(k, n) < 1:
        raise CannotGenerate(op, f"a matrix of {k} x {n} has nothing to pack")
    k_stride, n_stride = w.strides if op.transpose_b is None else w.strides[::-1]
    matrix = ByteMatrix(k, n, k_stride, n_stride, alignment_of(w.type, n, n_stride))
    return packed_matrix(leaf, matrix, f"(const uint8_t *){w.name}", f"(uint8_t *){y.name}")


def packed_matrix(leaf: LeafKernel, matrix: ByteMatrix, w: str, y: str) -> GeneratedKernel:
    """The kernel that packs a matrix; `w` and `y` are C expressions for pointers to bytes."""
    isa, split = isa_of(leaf), split_of(leaf, 2)
    functions: dict[tuple[int, bool], AssemblyFunction] = {}
    for columns in matrix.widths:
        if matrix.whole_words:
            symbol = f"{leaf.symbol}_panel{columns}"
            functions[columns, False] = finish(_words(symbol, isa, matrix, columns))
        if matrix.k % WORD:
            symbol = f"{leaf.symbol}_panel{columns}_rest"
            functions[columns, True] = finish(_rest(symbol, isa, matrix, columns))
    out = Writer()

    def call(columns: int, panel: str, words: Range) -> None:
        at_w = f"{w} + {panel} * {PANEL * matrix.n_stride}"
        at_y = f"{y} + {panel} * {matrix.words * WORD * PANEL}"
        last = words.last
        if matrix.k % WORD:
            last = str(matrix.whole_words)
            if not words.is_whole:
                last = f"({words.last} < {last} ? {words.last} : {last})"
        if matrix.whole_words:
            count = last if words.is_whole else f"{last} - {words.first}"
            from_w, to_y = at_w, at_y
            if not words.is_whole:
                from_w = f"{at_w} + {words.first} * {WORD * matrix.k_stride}"
                to_y = f"{at_y} + {words.first} * {WORD * PANEL}"
            condition = "" if words.is_whole else f"if ({words.first} < {last})"
            with out.block(condition):
                symbol = functions[columns, False].symbol
                out.line(f"{symbol}({from_w}, {to_y}, {count});")
        if matrix.k % WORD:
            done = matrix.whole_words * WORD
            condition = "" if words.is_whole else f"if ({words.last} == {matrix.words})"
            with out.block(condition):
                symbol = functions[columns, True].symbol
                out.line(f"{symbol}({at_w} + {done * matrix.k_stride}, {at_y} + {done * PANEL});")

    each_packed_panel(out, split, matrix.n, matrix.words, call)
    executed = _executed(matrix, functions, split.at(1))
    return GeneratedKernel(
        leaf.symbol,
        tuple(_prototype(f, rest=rest) for (_, rest), f in functions.items()),
        tuple(out.text().splitlines()),
        tuple(functions.values()),
        {
            "panel": PANEL,
            "moves": "words" if matrix.by_words else "bytes",
            "alignment": matrix.alignment,
            "instructions": executed,
            "instructions_per_byte": round(executed / (matrix.k * matrix.n), 4),
            "functions": function_facts(functions.values()),
        },
    )


def _prototype(function: AssemblyFunction, *, rest: bool) -> str:
    count = "" if rest else ", ptrdiff_t words"
    return f"void {function.symbol}(const uint8_t *w, uint8_t *y{count})"


def _executed(
    matrix: ByteMatrix, functions: dict[tuple[int, bool], AssemblyFunction], parts: int
) -> int:
    """Instructions of all assembly functions on all cores."""
    starts = accumulate(share_sizes(matrix.words, parts), initial=0)
    # A part that begins with the last word may have no whole one.
    calls = sum(start < matrix.whole_words for start in starts)
    executed = 0
    for (columns, rest), function in functions.items():
        panels = matrix.n // PANEL if columns == PANEL else 1
        fixed = function.instructions * (1 if rest else calls)
        executed += panels * (fixed + function.instructions_per_iteration * matrix.whole_words)
    return executed


# region assembly


class _Source(ABC):
    """Copies words of all columns of a panel, one after the other."""

    @property
    @abstractmethod
    def carried(self) -> Sequence[SSAValue]:
        """What a loop carries; its arguments and results are given back to `take`."""

    @abstractmethod
    def take(self, values: Sequence[SSAValue]) -> None: ...

    @abstractmethod
    def copy(self, y: SSAValue, size: int) -> SSAValue:
        """The next `size` bytes of each column; the place of the word after them."""


class _Bytes(_Source):
    def __init__(self, b: FunctionBuilder, matrix: ByteMatrix, columns: int):
        self._b = b
        self._copies = same_columns(columns)
        start = b.arguments["w"]
        self._columns = NearColumns(b, start, columns, matrix.n_stride, matrix.k_stride)

    @property
    def carried(self) -> Sequence[SSAValue]:
        return self._columns.carried

    def take(self, values: Sequence[SSAValue]) -> None:
        self._columns.take(values)

    def copy(self, y: SSAValue, size: int) -> SSAValue:
        return copy_group(self._b, self._columns, self._copies, y, Places(1), size)


class _Words(_Source):
    def __init__(self, b: FunctionBuilder, matrix: ByteMatrix, columns: int):
        self._b = b
        self._count = columns
        unit = Words(matrix.alignment)
        near = OffsetReader.base_row(columns, matrix.n_stride, unit.reach) is not None
        start = b.arguments["w"]
        kind = "offset" if near else "walk"
        self._reader = row_reader(kind, b, start, columns, matrix.n_stride, unit)
        self._reader.begin(b)

    @property
    def carried(self) -> Sequence[SSAValue]:
        return self._reader.pointers

    def take(self, values: Sequence[SSAValue]) -> None:
        self._reader.pointers = tuple(values)

    def copy(self, y: SSAValue, size: int) -> SSAValue:
        b = self._b
        values = [self._reader.load(b, column, 0, size) for column in range(self._count)]
        self._reader.end_body(b, 1)
        for column in range(1, self._count):
            b.sw(values[column], y, WORD * column)
        return b.emit(memory.SwPostOp(y, values[0], WORD * PANEL)).rs1_out


def _source(b: FunctionBuilder, matrix: ByteMatrix, columns: int) -> _Source:
    return (_Words if matrix.by_words else _Bytes)(b, matrix, columns)


def _words(symbol: str, isa: Isa, matrix: ByteMatrix, columns: int) -> FunctionBuilder:
    """`void symbol(w, y, words)`: at least one whole word of each column; those of columns that there are not become 0."""
    b = FunctionBuilder(symbol, isa, ("w", "y", "words"), "four k of each column at a time")
    source = _source(b, matrix, columns)
    with b.loop(b.arguments["words"], [*source.carried, b.arguments["y"]]) as loop:
        *pointers, y = loop.args
        source.take(pointers)
        clear_columns(b, y, range(columns, PANEL))
        y = source.copy(y, WORD)
        loop.yield_(*source.carried, y)
    return b


def _rest(symbol: str, isa: Isa, matrix: ByteMatrix, columns: int) -> FunctionBuilder:
    """`void symbol(w, y)`: the last word of each column, of which K has a part; the rest becomes 0."""
    b = FunctionBuilder(symbol, isa, ("w", "y"), "the last word")
    y = b.arguments["y"]
    clear_columns(b, y, range(columns if matrix.by_words else 0, PANEL))
    _source(b, matrix, columns).copy(y, matrix.k % WORD)
    return b


# endregion
