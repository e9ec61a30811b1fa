"""`riscv.quant_conv`: depthwise convolutions of bytes, a dot product for each row of a window.

A core does whole channels, or some rows of them. A *block* is two rows of the output (one where no other is left, or where
registers are short), done by *pieces*: four outputs side by side, and in the first piece those before them whose windows begin
in the padding. Words of a row of x are loaded once for all that a piece multiplies by them. A window that lies in one word is
multiplied there, by weights moved to its bytes; else one word is made of two, by two instructions, and holds the windows of two
outputs where the kernel has three columns. What is beyond the kernel meets weights of 0. No load is misaligned and none passes a
row of x: words of rows that start anywhere are put together.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from xdsl.dialects import rv32
from xdsl.ir import SSAValue

from qfold.backend.c.layout import Linear, c_type, variable
from qfold.backend.c.share import Split, shares
from qfold.backend.c.text import Writer, call_lines
from qfold.backend.riscv.builder import WORD, FunctionBuilder, fits_12_bits
from qfold.backend.riscv.depthwise_windows import (
    CHANNEL,
    COLUMN,
    IMAGE,
    ROW,
    Piece,
    Problem,
    Run,
    Window,
    problem_of,
)
from qfold.backend.riscv.dot_product import Words
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.integer_epilogue import IntegerEpilogueWriter
from qfold.backend.riscv.leaf import function_facts, isa_of, only_op, split_of
from qfold.backend.riscv.registers import OutOfRegisters
from qfold.backend.riscv.streams import StreamPointers
from qfold.dialects import qkernel
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import is_unsigned
from qfold.dialects.qkernel import PANEL
from qfold.dialects.riscv_pulp import alu, memory
from qfold.targets import Isa

_BLOCKS: Final = (2, 1)
"""Rows of a block, best first."""


# region assembly


@dataclass(frozen=True)
class _Plan:
    """What is computed at once, and what is kept in registers beside words and weights."""

    rows: int
    held: int
    """How many pointers of the epilogue; the others are in the frame."""
    keep: bool
    """`IntegerEpilogueWriter`'s."""
    group: int
    """The same."""
    narrow: bool = False
    """`Problem`'s."""


def _plans(isa: Isa, p: Problem, runs: Sequence[Run]) -> Iterator[_Plan]:
    """Best first."""
    count = len(p.epilogue.streams)
    most = max(run.count for run in runs)
    # Without dot products these take registers of their own, and nearly all of the time.
    wanted = [r for r in _BLOCKS if r <= most and fits_12_bits(p.reach(r))] if isa.xpulpv2 else [1]
    for rows in wanted:
        yield from (_Plan(rows, held, keep=True, group=PANEL) for held in (count, 0))
    yield _Plan(1, 0, keep=False, group=PANEL // 2)
    yield from (_Plan(1, 0, keep=False, group=group, narrow=True) for group in (PANEL // 2, 1))


def _function(isa: Isa, symbol: str, p: Problem, run: Run | None) -> AssemblyFunction:
    """Of a channel, or of some rows of a run; the first plan whose values all find a register. `OutOfRegisters`."""
    failed: OutOfRegisters | None = None
    # Rows that are counted at run time may be any number.
    runs = p.runs() if run is None else [Run(run.first, 1, run.taps)]
    for plan in _plans(isa, p, runs):
        try:
            code = _Code(isa, symbol, replace(p, narrow=plan.narrow), plan, run)
            return code.channel() if run is None else code.some_rows(run.taps)
        except OutOfRegisters as error:
            failed = error
    assert failed is not None
    raise failed


Word = SSAValue | None
"""A word of x; None for one of zeros."""


class _Code:
    """Emits one function. The pointers into x and of the epilogue go along with what is computed."""

    def __init__(self, isa: Isa, symbol: str, p: Problem, plan: _Plan, run: Run | None):
        names = ["x", "w", *(s.name for s in p.epilogue.streams)]
        comment = f"a channel of {p.rows.output} x {p.columns.output} outputs"
        if run is not None:
            names.append("rows")
            taps = ", ".join(map(str, run.taps)) or "none"
            comment = f"rows of {p.columns.output} outputs with taps {taps}"
        self._b = b = FunctionBuilder(symbol, isa, names, comment)
        self._p, self._plan = p, plan
        read = {t for r in (p.runs() if run is None else [run]) for t in r.taps}
        self._weights = self._loaded_weights(
            sorted(read if not p.padding else range(p.rows.kernel))
        )
        self._around: Word = None
        if p.padding and (p.rows.clipped or p.columns.clipped):
            self._around = b.li(p.padding * 0x01010101)
        self._pointers = StreamPointers(b, p.epilogue.streams, held=plan.held)
        self._writer = IntegerEpilogueWriter(
            b, p.epilogue, self._pointers, keep=plan.keep, group=plan.group
        )
        self._x = b.arguments["x"]

    def channel(self) -> AssemblyFunction:
        """`void symbol(x, w, y, e0, ..)`"""
        b, p = self._b, self._p
        row = 0
        """Of x, that the pointer is at."""
        for run in p.runs():
            if run.taps:
                first = run.first * p.rows.stride - p.rows.pad + run.taps[0] * p.rows.dilation
                self._x = b.addi(self._x, (first - row) * p.row_stride)
                row = first
            blocks, rest = divmod(run.count, self._plan.rows)
            if blocks > 1:
                with self._loop(b.li(blocks), level=1):
                    self._block(self._plan.rows, run.taps)
            elif blocks:
                self._block(self._plan.rows, run.taps)
            for _ in range(rest):
                self._block(1, run.taps)
            if run.taps:
                row += run.count * p.rows.stride
        return finish(b)

    def some_rows(self, taps: tuple[int, ...]) -> AssemblyFunction:
        """`void symbol(x, w, y, e0, .., rows)`; `x` points at the row that the first tap reads."""
        with self._loop(self._b.arguments["rows"], level=1):
            self._block(1, taps)
        return finish(self._b)

    @contextmanager
    def _loop(self, count: SSAValue, *, level: int) -> Generator[None]:
        """A hardware loop; the pointers are what it carries."""
        with self._b.loop(count, (self._x, *self._pointers.carried), level=level) as loop:
            self._take(loop.args)
            yield
            loop.yield_(self._x, *self._pointers.carried)
        self._take(loop.results)

    def _take(self, values: Sequence[SSAValue]) -> None:
        self._x, *rest = values
        self._pointers.take(rest)

    # Weights.

    def _loaded_weights(self, taps: Sequence[int]) -> dict[tuple[int, int], SSAValue]:
        """(tap, lane) -> a row of the kernel as a word, moved to that lane."""
        b, p = self._b, self._p
        width = p.columns.kernel
        narrow = memory.LbuOp if is_unsigned(p.w.element) else memory.LbOp
        found: dict[tuple[int, int], SSAValue] = {}
        for tap in taps:
            loaded = [b.emit(narrow(b.arguments["w"], tap * width + i)).rd for i in range(width)]
            word = b.emit(rv32.LiOp(0)).rd
            for i, value in enumerate(loaded):
                word = b.emit(alu.InsertOp(word, value, 8, 8 * i)).rd_out
            for lane in p.lanes:
                found[tap, lane] = b.emit(rv32.SlliOp(word, 8 * lane)).rd if lane else word
        return found

    # Blocks.

    def _block(self, rows: int, taps: tuple[int, ...]) -> None:
        """So many rows of the output; the pointers are at the next ones then."""
        b, p = self._b, self._p
        pieces, inner = p.pieces(), p.inner()
        step = PANEL * p.columns.stride
        moved = column = 0
        """How far the pointer into x, in bytes, and the others, in columns, are from where the row starts."""
        for index, piece in enumerate(pieces):
            if index in inner and index != inner.start:
                continue
            if piece.first != column:
                self._across(piece.first - column)
                column = piece.first
            if index in inner:
                with self._loop(b.li(len(inner)), level=0):
                    self._piece(rows, taps, piece, moved)
                    self._x = b.addi(self._x, step)
                    self._across(PANEL)
                moved += len(inner) * step
                column += len(inner) * PANEL
            else:
                self._piece(rows, taps, piece, moved)
        down = rows * p.rows.stride * p.row_stride if taps else 0
        self._x = b.addi(self._x, down - moved)
        self._pointers.move(lambda s: rows * s.row_bytes - column * s.column_bytes)

    def _across(self, columns: int) -> None:
        """Move the pointers of the epilogue."""
        self._pointers.move(lambda s: columns * s.column_bytes)

    def _piece(self, rows: int, taps: tuple[int, ...], piece: Piece, moved: int) -> None:
        """The sums of a piece of so many rows, finished and stored."""
        b, p = self._b, self._p
        windows = [p.window(o) for o in range(piece.first, piece.first + piece.count)]
        first = p.epilogue.initial
        sums: list[list[Word]] = [
            [
                None if first is None else self._pointers.element(first, i, j)
                for j in range(piece.count)
            ]
            for i in range(rows)
        ]

        def add(i: int, j: int, word: SSAValue, weights: SSAValue) -> None:
            total = sums[i][j]
            if total is None:
                sums[i][j] = p.dots.first(b, word, weights)
            else:
                sums[i][j] = p.dots.next(b, total, word, weights)

        readers: dict[int, list[tuple[int, int]]] = {}
        """Row of x, from the one that the pointer is at -> (row of the block, tap) that read it."""
        for i in range(rows):
            for tap in taps:
                row = i * p.rows.stride + (tap - taps[0]) * p.rows.dilation
                readers.setdefault(row, []).append((i, tap))
        order = sorted(readers)
        needed = sorted({q for window in windows for q in p.reads(window)})
        # Words are loaded while the row before is multiplied.
        coming = self._row_words(order[0], needed, moved) if order else {}
        for at, row in enumerate(order):
            words = coming
            if at + 1 < len(order):
                coming = self._row_words(order[at + 1], needed, moved)
            values = self._shifted(windows, words)
            for i, tap in readers[row]:
                for j, window in enumerate(windows):
                    word = values[window.word, window.shift]
                    if word is not None:
                        add(i, j, word, self._weights[tap, window.lane])
        if self._around is not None:
            for i in range(rows):
                for tap in range(p.rows.kernel):
                    for j, window in enumerate(windows) if tap not in taps else ():
                        add(i, j, self._around, self._weights[tap, window.lane])
        self._writer.write(
            [[b.emit(rv32.LiOp(0)).rd if s is None else s for s in row] for row in sums]
        )

    def _row_words(self, row: int, needed: Sequence[int], moved: int) -> dict[int, Word]:
        """Words of a row of x: beyond it, what is around it."""
        b, p = self._b, self._p
        words: dict[int, Word] = {}
        partial: list[tuple[int, int]] = []
        for q in needed:
            if not p.is_inside(q):
                words[q] = self._around
                continue
            size = min(WORD, p.columns.size - WORD * q)
            offset = row * p.row_stride + WORD * q - moved
            words[q] = Words(p.alignment).load(b, self._x, offset, size)
            if size < WORD:
                partial.append((q, size))
        for q, size in partial if self._around is not None else ():
            low, around = words[q], self._around
            assert low is not None and around is not None
            words[q] = b.emit(alu.InsertOp(low, around, 8 * (WORD - size), 8 * size)).rd_out
        return words

    def _shifted(
        self, windows: Sequence[Window], words: Mapping[int, Word]
    ) -> dict[tuple[int, int], Word]:
        """(word, shift) of each window -> the word that it lies in."""
        b = self._b
        found: dict[tuple[int, int], Word] = {}
        for key in dict.fromkeys((w.word, w.shift) for w in windows):
            q, shift = key
            low = words[q]
            if not shift:
                found[key] = low
                continue
            high = words[q + 1]
            if low is high:
                found[key] = low
            elif low is None:
                assert high is not None
                found[key] = b.emit(rv32.SlliOp(high, 8 * (WORD - shift))).rd
            else:
                value = b.emit(rv32.SrliOp(low, 8 * shift)).rd
                if high is not None:
                    place = 8 * (WORD - shift)
                    value = b.emit(alu.InsertOp(value, high, 8 * shift, place)).rd_out
                found[key] = value
        return found


# endregion
# region kernel


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one depthwise `qkernel.quant_conv` that `WORD_WINDOWS` marks; `qmm.split` has an entry for
    each dimension of `y`, 1 for the last.

    `y` and the epilogue operands have any static strides. `CannotGenerate` for what `problem_of` names.
    """
    op = only_op(leaf, qkernel.QuantConvOp)
    problem = problem_of(leaf, op)
    isa = isa_of(leaf)
    rank = len(shape_of(op.y))
    split = split_of(leaf, rank)
    if split.at(rank - 1) != 1:
        raise CannotGenerate(op, f"columns are not divided, but qmm.split is {split.parts}")
    outputs = problem.images * problem.channels
    functions: dict[tuple[int, ...] | None, AssemblyFunction] = {}
    if rank == 3 or min(split.at(2), problem.rows.output) == 1:
        functions[None] = function = _function(isa, f"{leaf.symbol}_channel", problem, None)
        executed = outputs * function.executed()
    else:
        for run in problem.runs():
            if run.taps not in functions:
                symbol = f"{leaf.symbol}_{'_'.join(map(str, run.taps)) or 'around'}"
                functions[run.taps] = _function(isa, symbol, problem, run)
        executed = outputs * sum(functions[r.taps].executed(r.count) for r in problem.runs())
    macs = outputs * problem.rows.output * problem.columns.output
    macs *= problem.rows.kernel * problem.columns.kernel
    return GeneratedKernel(
        leaf.symbol,
        tuple(_prototype(problem, f, counted=key is not None) for key, f in functions.items()),
        tuple(_driver(op, problem, split, functions)),
        tuple(functions.values()),
        {
            "piece": PANEL,
            "dot_product": f"pv.sdot{problem.dots.kind}.b",
            "instructions": executed,
            "instructions_per_mac": round(executed / macs, 4),
            "functions": function_facts(functions.values()),
        },
    )


def _prototype(p: Problem, function: AssemblyFunction, *, counted: bool) -> str:
    parameters = [f"const {c_type(p.x.element)} *x", f"const {c_type(p.w.element)} *w"]
    parameters += [s.declaration for s in p.epilogue.streams]
    parameters += ["ptrdiff_t rows"] if counted else []
    return f"void {function.symbol}({', '.join(parameters)})"


def _driver(
    op: qkernel.QuantConvOp,
    p: Problem,
    split: Split,
    functions: Mapping[tuple[int, ...] | None, AssemblyFunction],
) -> list[str]:
    """Each channel of the core's share: at once, or run of rows by run of rows."""
    out = Writer()
    with ExitStack() as stack:
        images, channels, *rest = stack.enter_context(shares(out, split, shape_of(op.y)))
        stack.enter_context(out.loop(IMAGE, images.last, images.first))
        stack.enter_context(out.loop(CHANNEL, channels.last, channels.first))
        whole = functions.get(None)
        if whole is not None:
            _print_call(out, p, whole.symbol, None, "")
        for run in p.runs() if whole is None else ():
            rows = rest[0]
            with out.block(""):
                first, end = run.first, run.first + run.count
                out.line(
                    f"const ptrdiff_t {ROW} = {rows.first} > {first} ? {rows.first} : {first};"
                )
                out.line(f"const ptrdiff_t end = {rows.last} < {end} ? {rows.last} : {end};")
                with out.block(f"if ({ROW} < end)"):
                    symbol = functions[run.taps].symbol
                    _print_call(out, p, symbol, run.taps, f"end - {ROW}")
    return out.text().splitlines()


def _print_call(
    out: Writer, p: Problem, symbol: str, taps: tuple[int, ...] | None, count: str
) -> None:
    """Of rows with some taps from `ROW` on, or (None) of a channel."""
    channel = CHANNEL if p.multiplier == 1 else f"({CHANNEL} / {p.multiplier})"
    row = Linear()
    if taps:
        # Without a tap inside nothing is read: then the pointer may be any.
        first = Linear({}, taps[0] * p.rows.dilation - p.rows.pad)
        row = variable(ROW).scaled(p.rows.stride) + first
    place = [variable(IMAGE), variable(channel), row, Linear()]
    if len(p.x.shape) == 3:
        del place[2]
    kernel = p.rows.kernel * p.columns.kernel
    arguments = [
        f"{p.x.name} + {p.x.at(place).text()}",
        f"{p.w.name} + {variable(CHANNEL).scaled(kernel).text()}",
    ]
    unknown = {COLUMN: None} if taps is not None else {COLUMN: None, ROW: None}
    for stream in p.epilogue.streams:
        arguments.append(f"{stream.buffer.name} + {stream.position.renamed(unknown).text()}")
    arguments += [count] if count else []
    out.lines(call_lines(symbol, arguments))


# endregion
