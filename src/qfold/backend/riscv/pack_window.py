"""`riscv.pack_window`: the windows of a convolution as panels of four output positions, K = (channel, kernel position).

An assembly function copies bytes of all channels for the four positions of a panel. Positions that lie side by side, all of
their windows inside, are read by one pointer, a row of the kernel at a time: windows overlap, so that each byte is loaded once
for all of its places. Others have a pointer each for each kernel position (a *tap*), which stays at one byte with the padding's
value where there is nothing to read. One tap on dense positions makes a matrix, and is packed as one. For few channels there is
`few_channels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from itertools import product

from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer
from qfold.backend.c.share import Range, Split, shares
from qfold.backend.c.text import Writer
from qfold.backend.c.window import Axis
from qfold.backend.riscv import few_channels
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.byte_copies import (
    Columns,
    Copies,
    FarColumns,
    NearColumns,
    Places,
    copy_group,
    same_columns,
)
from qfold.backend.riscv.dot_product import alignment_of
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.leaf import function_facts, isa_of, only_op, split_of
from qfold.backend.riscv.pack_bytes import packed_matrix
from qfold.backend.riscv.windows import Windows, as_bytes
from qfold.dialects import qkernel
from qfold.dialects.contraction import ints
from qfold.dialects.qkernel import PANEL
from qfold.ir.layouts import Layout
from qfold.targets import Isa


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one `qkernel.pack_window`; `qmm.split` has two entries, for panels and for words, the
    second of which divides the taps. `x` may have any static strides.
    """
    op = only_op(leaf, qkernel.PackWindowOp)
    x, y = leaf.buffers[op.x], leaf.buffers[op.y]
    if not Layout.of(y.type).is_dense:
        raise CannotGenerate(op, f"the packed operand must be dense, got {y.type}")
    channels, *spatial = x.shape
    window = zip(
        spatial,
        ints(op.kernel_shape),
        op.output_shape,
        ints(op.strides),
        ints(op.dilations),
        ints(op.pads)[: len(spatial)],
        strict=True,
    )
    channel_stride, *strides = x.strides
    axes = tuple(Axis(*values) for values in window)
    windows = Windows(channels, channel_stride, axes, tuple(strides), op.padding % 256)
    if not windows.k or not windows.positions:
        raise CannotGenerate(op, f"windows of {x.type} have nothing to pack")
    matrix = windows.matrix(alignment_of(x.type, channels, channel_stride))
    if matrix is not None:
        return packed_matrix(leaf, matrix, as_bytes(x, "const "), as_bytes(y))
    if few_channels.is_better(windows):
        return few_channels.kernel(leaf, windows, x, y)
    return _Packer(leaf, windows, x, y).kernel()


class _Packer:
    """The functions, and the C that calls them for each panel and tap."""

    def __init__(self, leaf: LeafKernel, windows: Windows, x: Buffer, y: Buffer):
        self._leaf = leaf
        self._windows = w = windows
        self._x, self._y = x, y
        isa = isa_of(leaf)
        panels = [w.is_near(p) for p in range(w.panels)]
        self._is_near = panels
        self._near: Mapping[int, AssemblyFunction] = {}
        self._far: Mapping[int, AssemblyFunction] = {}
        if any(panels):
            self._near = {
                r: finish(_near_function(f"{leaf.symbol}_near{r}", isa, w, r))
                for r in _remainders(self._rows)
            }
        if not all(panels):
            self._far = {
                r: finish(_far_function(f"{leaf.symbol}_far{r}", isa, w, r))
                for r in _remainders(range(w.taps))
            }

    @property
    def _rows(self) -> range:
        """The first tap of each row of the kernel."""
        return range(0, self._windows.taps, self._windows.row)

    def kernel(self) -> GeneratedKernel:
        split = split_of(self._leaf, 2)
        functions = (*self._near.values(), *self._far.values())
        executed = self._executed()
        w = self._windows
        near = ("const uint8_t *x", "uint8_t *y")
        far = [f"const uint8_t *x{c}" for c in range(PANEL)]
        far += ["uint8_t *y", *(f"ptrdiff_t s{c}" for c in range(PANEL))]
        prototypes = [f"void {f.symbol}({', '.join(near)})" for f in self._near.values()]
        prototypes += [f"void {f.symbol}({', '.join(far)})" for f in self._far.values()]
        return GeneratedKernel(
            self._leaf.symbol,
            tuple(prototypes),
            tuple(self._driver(split)),
            functions,
            {
                "panel": PANEL,
                "moves": "bytes",
                "near_panels": sum(self._is_near),
                "panels": w.panels,
                "instructions": executed,
                "instructions_per_byte": round(executed / (w.k * w.positions), 4),
                "functions": function_facts(functions),
            },
        )

    def _executed(self) -> int:
        """Instructions of all assembly functions on all cores."""
        near = sum(self._is_near)
        far = len(self._is_near) - near
        total = 0
        if near:
            total += near * sum(self._near[t % WORD].executed() for t in self._rows)
        if far:
            total += far * sum(self._far[t % WORD].executed() for t in range(self._windows.taps))
        return total

    # region driver

    def _driver(self, split: Split) -> list[str]:
        out, w = Writer(), self._windows
        # Variables of the stack, which is in L1: constants are in L2.
        if self._far and w.is_clipped:
            out.line(f"const uint8_t padding = {w.padding};")
        if self._far and w.positions % PANEL:
            out.line("const uint8_t nothing = 0;")
        with (
            shares(out, split, (w.panels, w.taps)) as (panels, taps),
            out.loop("p", panels.last, panels.first),
        ):
            out.line(f"uint8_t *const to = {as_bytes(self._y)} + p * {w.words * WORD * PANEL};")
            if self._near and self._far:
                w.origin(out, f"(p * {PANEL})")
                with out.block(f"if ({self._near_condition()})"):
                    self._near_taps(out, taps)
                with out.block("else"):
                    self._far_taps(out, taps)
            elif self._near:
                w.origin(out, f"(p * {PANEL})")
                self._near_taps(out, taps)
            else:
                self._far_taps(out, taps)
            if w.k % WORD:
                self._clear(out, taps)
        return out.text().splitlines()

    def _near_condition(self) -> str:
        """As `Windows.is_near`."""
        w = self._windows
        inner, last = w.axes[-1], len(w.axes) - 1
        found: list[str] = []
        if inner.output % PANEL:
            found.append(f"p * {PANEL} % {inner.output} < {inner.output - PANEL + 1}")
        for d, axis in enumerate(w.axes):
            reach = (axis.kernel - 1) * axis.dilation
            reach += (PANEL - 1) * axis.stride if d == last else 0
            if axis.clipped:
                found.append(f"i{d} >= 0 && i{d} + {reach} < {axis.size}")
        return " && ".join(found)

    def _near_taps(self, out: Writer, taps: Range) -> None:
        w = self._windows
        start = f"{as_bytes(self._x, 'const ')} + {w.at_origin()}"
        out.line(f"const uint8_t *const from = {start};")
        offsets = w.tap_offsets()
        for tap in self._rows:
            offset = offsets[tap]
            condition = (
                "" if taps.is_whole else f"if ({taps.first} <= {tap} && {tap} < {taps.last})"
            )
            call = f"{self._near[tap % WORD].symbol}(from + {offset}, to + {_place(tap)});"
            out.line(f"{condition} {call}".strip())

    def _far_taps(self, out: Writer, taps: Range) -> None:
        w = self._windows
        for c in range(PANEL):
            w.origin(out, f"(p * {PANEL} + {c})", f"_{c}")
        out.line("ptrdiff_t tap = 0;")
        with ExitStack() as stack:
            for d, axis in enumerate(w.axes):
                stack.enter_context(out.loop(f"k{d}", axis.kernel))
            if taps.is_whole:
                self._far_tap(out)
            else:
                with out.block(f"if ({taps.first} <= tap && tap < {taps.last})"):
                    self._far_tap(out)
            out.line("tap++;")

    def _far_tap(self, out: Writer) -> None:
        """One tap, of positions that are each somewhere else, or nowhere."""
        w = self._windows
        out.line(f"uint8_t *const at = to + tap / {WORD} * {WORD * PANEL} + tap % {WORD};")
        for c in range(PANEL):
            inside: list[str] = []
            places: list[str] = []
            for d, (axis, stride) in enumerate(zip(w.axes, w.strides, strict=True)):
                index = f"i{d}_{c}"
                if axis.kernel > 1:
                    index = f"({index} + k{d} * {axis.dilation})"
                places.append(f"{index} * {stride}")
                if axis.clipped:
                    inside.append(f"(size_t){index} < {axis.size}")
            pointer = f"{as_bytes(self._x, 'const ')} + {' + '.join(places)}"
            step = str(w.channel_stride)
            if inside:
                out.line(f"const int in{c} = {' && '.join(inside)};")
                pointer, step = f"in{c} ? {pointer} : &padding", f"in{c} ? {step} : 0"
            if w.positions % PANEL and c:
                there = f"p * {PANEL} + {c} < {w.positions}"
                pointer = f"{there} ? ({pointer}) : &nothing"
                step = f"{there} ? ({step}) : 0"
            out.line(f"const uint8_t *const x{c} = {pointer};")
            out.line(f"const ptrdiff_t s{c} = {step};")
        arguments = [*(f"x{c}" for c in range(PANEL)), "at", *(f"s{c}" for c in range(PANEL))]
        calls = {r: f"{f.symbol}({', '.join(arguments)});" for r, f in self._far.items()}
        *others, (_, last) = calls.items()
        if not others:
            out.line(last)
            return
        with out.block(f"switch (tap % {WORD})"):
            for r, text in others:
                out.line(f"case {r}: {text} break;")
            out.line(f"default: {last} break;")

    def _clear(self, out: Writer, taps: Range) -> None:
        """Zeros from K on to the end of the last word."""
        w = self._windows
        start = (w.words - 1) * WORD * PANEL
        condition = "" if taps.is_whole else f"if ({taps.last} == {w.taps})"
        with out.block(condition), out.loop("c", PANEL), out.loop("j", WORD, w.k % WORD):
            out.line(f"to[{start} + c * {WORD} + j] = 0;")

    # endregion


def _remainders(taps: Iterable[int]) -> list[int]:
    """In which byte of its word the first channel of a tap is, over all taps."""
    return sorted({t % WORD for t in taps})


def _place(tap: int) -> int:
    return tap // WORD * WORD * PANEL + tap % WORD


# region assembly


def _near_function(symbol: str, isa: Isa, windows: Windows, first: int) -> FunctionBuilder:
    """`void symbol(x, y)`: a row of taps, the first of which begins in byte `first`, of each channel for four positions side by
    side."""
    b = FunctionBuilder(symbol, isa, ("x", "y"), f"{windows.channels} channels of four neighbours")
    axis, distance = windows.axes[-1], windows.strides[-1]
    copies: dict[int, list[tuple[int, int]]] = {}
    for column, tap in product(range(PANEL), range(axis.kernel)):
        copies.setdefault(column * axis.stride + tap * axis.dilation, []).append((tap, column))
    count = max(copies) + 1
    skipped = set(range(count)) - copies.keys()
    x = b.arguments["x"]
    columns = NearColumns(b, x, count, distance, windows.channel_stride, skipped)
    return _all_channels(b, columns, copies, b.arguments["y"], windows, first)


def _far_function(symbol: str, isa: Isa, windows: Windows, first: int) -> FunctionBuilder:
    """`void symbol(x0, .., x3, y, s0, .., s3)`: one tap of positions anywhere, each with the distance of its channels."""
    starts = [f"x{c}" for c in range(PANEL)]
    steps = [f"s{c}" for c in range(PANEL)]
    comment = f"{windows.channels} channels of four positions"
    b = FunctionBuilder(symbol, isa, (*starts, "y", *steps), comment)
    pointers = [b.arguments[name] for name in starts]
    columns = FarColumns(pointers, [b.arguments[name] for name in steps])
    return _all_channels(b, columns, same_columns(PANEL), b.arguments["y"], windows, first)


def _all_channels(
    b: FunctionBuilder,
    columns: Columns,
    copies: Copies,
    y: SSAValue,
    windows: Windows,
    first: int,
) -> FunctionBuilder:
    places = Places(windows.taps, first)
    groups, rest = divmod(windows.channels, WORD)
    if groups > 1:
        with b.loop(groups, [*columns.carried, y]) as loop:
            columns.take(loop.args[:-1])
            y = copy_group(b, columns, copies, loop.args[-1], places, WORD)
            loop.yield_(*columns.carried, y)
        columns.take(loop.results[:-1])
        y = loop.results[-1]
    elif groups:
        y = copy_group(b, columns, copies, y, places, WORD)
    if rest:
        copy_group(b, columns, copies, y, places, rest)
    return b


# endregion
