"""`riscv.quant_conv`: depthwise convolutions of bytes, a dot product for each row of a window.

A core does whole rows of channels. Four outputs side by side are a *group*. Of each row of x that a group's windows cover, words
are loaded once and handed on from group to group; a window's bytes are shifted out of the one or two words that hold them, and
multiplied by a word of weights that is 0 beyond the kernel's width. Rows of the output whose windows have the same rows inside of
x are a function. No load is misaligned and none passes a row of x: words of rows that start anywhere are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from xdsl.dialects import rv32
from xdsl.dialects.riscv import ops as riscv
from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer, Linear, access, c_type, variable
from qfold.backend.c.share import shares
from qfold.backend.c.text import Writer, call_lines
from qfold.backend.c.window import Axis, axes_of
from qfold.backend.riscv.builder import WORD, FunctionBuilder, fits_12_bits
from qfold.backend.riscv.dot_product import DotProducts, Words
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.integer_epilogue import IntegerEpilogueWriter
from qfold.backend.riscv.integer_region import TYPES, IntegerEpilogue, check_region
from qfold.backend.riscv.leaf import function_facts, isa_of, only_op, split_of
from qfold.backend.riscv.registers import OutOfRegisters
from qfold.backend.riscv.streams import Stream, StreamPointers
from qfold.dialects import qkernel
from qfold.dialects.contraction import WORD_WINDOWS, shape_of, window_of
from qfold.dialects.element_types import is_unsigned
from qfold.dialects.qkernel import PANEL
from qfold.dialects.riscv_pulp import alu, memory
from qfold.targets import Isa

_FROM = 3
"""From how many inner groups on they are a loop."""
_IMAGE, _CHANNEL, _ROW, _COLUMN = "image", "channel", "row", "n"


@dataclass(frozen=True)
class _Problem:
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


def _problem(leaf: LeafKernel, op: qkernel.QuantConvOp) -> _Problem:
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
    place = [variable(v) for v in (_IMAGE, _CHANNEL, _ROW, _COLUMN)]
    if len(y.shape) == 3:
        del place[2]
    operands: list[Stream] = []
    for i, (value, map_) in enumerate(zip(op.epilogue_operands, op.maps, strict=True)):
        position = access(leaf.buffers[value], map_, place)
        if not isinstance(position, Linear):
            raise CannotGenerate(op, f"epilogue operand {i} is read at {map_}, which is not linear")
        operands.append(_stream(f"e{i}", leaf.buffers[value], position, columns))
    output = replace(_stream("y", y, y.at(place), columns), written=True)
    for stream in (output, *operands):
        if stream.element not in TYPES:
            names = ", ".join(sorted(map(str, TYPES)))
            raise CannotGenerate(op, f"{stream.name} is one of {names}, got {stream.buffer.type}")
        if not stream.column_bytes and stream.position.coefficient(_ROW):
            raise CannotGenerate(op, f"{stream.name} has one element per row")
    return _Problem(
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
        IntegerEpilogue(output, tuple(operands), op.epilogue_block),
    )


def _stream(name: str, buffer: Buffer, position: Linear, columns: Axis) -> Stream:
    if columns.output == 1 and position.coefficient(_ROW):
        # Pointers that move with the columns are those that move with the rows.
        position += variable(_COLUMN)
    return Stream(name, buffer, position)


def _alignment(x: Buffer) -> int:
    """The bytes (4, 2 or 1) that all rows of x are aligned to."""
    offset = x.type.get_offset()
    steps = [s for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True) if n > 1]
    if offset is None:
        return 1
    return next(n for n in (4, 2, 1) if not any(s % n for s in (offset, *steps)))


# region assembly


@dataclass(frozen=True)
class _Plan:
    """What is kept in registers beside words and weights."""

    held: int
    """How many pointers of the epilogue; the others are in the frame."""
    keep: bool
    """`IntegerEpilogueWriter`'s."""
    group: int
    """The same."""


def _function(isa: Isa, symbol: str, p: _Problem, taps: tuple[int, ...]) -> AssemblyFunction:
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

    def __init__(self, isa: Isa, symbol: str, p: _Problem, taps: tuple[int, ...], plan: _Plan):
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
        position = stream.position.renamed({"n": None, _ROW: "n"})
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


# endregion
# region kernel


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one depthwise `qkernel.quant_conv` that `WORD_WINDOWS` marks; `qmm.split` has an entry for
    each dimension of `y`, 1 for the last.

    `y` and the epilogue operands have any static strides. `CannotGenerate` for what `_problem` names.
    """
    op = only_op(leaf, qkernel.QuantConvOp)
    problem = _problem(leaf, op)
    isa = isa_of(leaf)
    functions: dict[tuple[int, ...], AssemblyFunction] = {}
    for _, _, taps in problem.runs():
        if taps not in functions:
            symbol = f"{leaf.symbol}_{'_'.join(map(str, taps)) or 'around'}"
            functions[taps] = _function(isa, symbol, problem, taps)
    executed = problem.images * problem.channels
    executed *= sum(functions[taps].executed(count) for _, count, taps in problem.runs())
    macs = problem.images * problem.channels * problem.rows.output * problem.columns.output
    macs *= problem.rows.kernel * problem.columns.kernel
    return GeneratedKernel(
        leaf.symbol,
        tuple(_prototype(problem, f) for f in functions.values()),
        tuple(_driver(leaf, op, problem, functions)),
        tuple(functions.values()),
        {
            "group": PANEL,
            "dot_product": f"pv.sdot{problem.dots.kind}.b",
            "instructions": executed,
            "instructions_per_mac": round(executed / macs, 4),
            "functions": function_facts(functions.values()),
        },
    )


def _prototype(p: _Problem, function: AssemblyFunction) -> str:
    parameters = [f"const {c_type(p.x.element)} *x", f"const {c_type(p.w.element)} *w"]
    parameters += [s.declaration for s in p.epilogue.streams]
    return f"void {function.symbol}({', '.join(parameters)}, ptrdiff_t rows)"


def _driver(
    leaf: LeafKernel,
    op: qkernel.QuantConvOp,
    p: _Problem,
    functions: Mapping[tuple[int, ...], AssemblyFunction],
) -> list[str]:
    """Each channel of the core's share, run of rows by run of rows."""
    rank = len(shape_of(op.y))
    split = split_of(leaf, rank)
    if split.at(rank - 1) != 1:
        raise CannotGenerate(op, f"columns are not divided, but qmm.split is {split.parts}")
    out = Writer()
    with shares(out, split, shape_of(op.y)) as (images, channels, *rest):
        rows = rest[0] if rank == 4 else None
        with (
            out.loop(_IMAGE, images.last, images.first),
            out.loop(_CHANNEL, channels.last, channels.first),
        ):
            for first, count, taps in p.runs():
                symbol = functions[taps].symbol
                if rows is None or rows.is_whole:
                    _print_call(out, p, symbol, taps, Linear({}, first), str(count))
                    continue
                end = first + count
                with out.block(""):
                    starts, ends = f"{rows.first} > {first}", f"{rows.last} < {end}"
                    out.line(f"const ptrdiff_t {_ROW} = {starts} ? {rows.first} : {first};")
                    out.line(f"const ptrdiff_t end = {ends} ? {rows.last} : {end};")
                    with out.block(f"if ({_ROW} < end)"):
                        _print_call(out, p, symbol, taps, variable(_ROW), f"end - {_ROW}")
    return out.text().splitlines()


def _print_call(
    out: Writer, p: _Problem, symbol: str, taps: Sequence[int], row: Linear, count: str
) -> None:
    channel = _CHANNEL if p.multiplier == 1 else f"({_CHANNEL} / {p.multiplier})"
    read = Linear()
    if taps:  # else nothing is read, and the pointer may be any
        read = row.scaled(p.rows.stride)
        read += Linear({}, taps[0] * p.rows.dilation - p.rows.pad)
    place = [variable(_IMAGE), variable(channel), read, Linear()]
    if len(p.x.shape) == 3:
        del place[2]
    kernel = p.rows.kernel * p.columns.kernel
    arguments = [
        f"{p.x.name} + {p.x.at(place).text()}",
        f"{p.w.name} + {variable(_CHANNEL).scaled(kernel).text()}",
    ]
    for stream in p.epilogue.streams:
        moved = row.scaled(stream.position.coefficient(_ROW))
        position = stream.position.renamed({_COLUMN: None, _ROW: None}) + moved
        arguments.append(f"{stream.buffer.name} + {position.text()}")
    out.lines(call_lines(symbol, [*arguments, count]))


# endregion
