"""`c.pack_bytes`, `c.pack_window` and `c.packed_quant_matmul`: integer products on panels of bytes, each core its share.

A block of a product is four rows of one panel, fewer where a core would go without. Of a row nothing beyond K is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import prod
from typing import ClassVar

from qfold.backend.c.contraction import INTEGERS, Buffers, Epilogue, Weight
from qfold.backend.c.layout import Buffer, Linear, variable
from qfold.backend.c.matmul_problem import MatmulProblem
from qfold.backend.c.plain import is_alone, moved, sums
from qfold.backend.c.plain_matmul import BlockPrinter
from qfold.backend.c.share import BadSplit, Range, Split, byte_safe, shares
from qfold.backend.c.text import Writer, integer_literal
from qfold.backend.c.window import Axis
from qfold.dialects import qkernel
from qfold.dialects.contraction import ints
from qfold.dialects.qkernel import PANEL, STEPS

_ROWS = 4
"""Rows that share a pass over a panel."""
_AT_A_TIME = 2
"""Columns of a block that share a loop over K: compilers make all products of an iteration before they add them. Those of four
columns do not fit the registers."""
_P, _S, _C, _J = variable("p"), variable("s"), variable("c"), variable("j")
"""Panel, word, column of the panel, k of the word."""
_COLUMN = _P.scaled(PANEL) + _C
_STEP = _S.scaled(STEPS) + _J


class _Panels:
    """What a core packs: its panels and words, in loops that are left out where they run once."""

    def __init__(self, out: Writer, y: Buffer, over_p: Range, over_s: Range):
        self.out = out
        self.ranges = {"p": over_p, "s": over_s}
        self.gone: dict[str, str | None] = {n: None for n, r in self.ranges.items() if is_alone(r)}
        self._y = y
        self._at_y = self.at(y.at([_P, _S, _C, _J]))

    def at(self, x: Linear) -> Linear:
        return x.renamed(self.gone)

    def loop(self, stack: ExitStack, name: str) -> None:
        range_ = self.ranges[name]
        if name not in self.gone:
            stack.enter_context(self.out.loop(name, range_.last, range_.first))

    def store(self, value: str) -> None:
        self.out.line(self._y.store(self._at_y, value))


def print_pack_bytes(out: Writer, op: qkernel.PackBytesOp, buffers: Buffers, split: Split) -> None:
    """The body of `qkernel.pack_bytes`: this core's share. `split` is over panels and words; `BadSplit` where it has another
    length."""
    k, n = op.weight_shape
    w, y = buffers[op.w], buffers[op.y]
    at_w = w.at([_STEP, _COLUMN] if op.transpose_b is None else [_COLUMN, _STEP])
    if 0 in y.shape:
        return
    with shares(out, split, y.shape[:2]) as ranges, ExitStack() as stack:
        panels = _Panels(out, y, *ranges)
        panels.loop(stack, "p")
        panels.loop(stack, "s")
        value = w.load(panels.at(at_w))

        def word(value: str) -> None:
            with out.loop("c", PANEL), out.loop("j", STEPS):
                panels.store(value)

        # The last panel and the last word may have less to them.
        edges = [e for e in (("p", n, PANEL, _COLUMN), ("s", k, STEPS, _STEP)) if e[1] % e[2]]
        inside = " && ".join(f"{panels.at(at).text()} < {extent}" for _, extent, _, at in edges)
        if not edges:
            word(value)
        elif any(name in panels.gone for name, *_ in edges):
            word(f"{inside} ? {value} : 0")
        else:
            whole = " && ".join(f"{name} < {extent // size}" for name, extent, size, _ in edges)
            with out.block(f"if ({whole})"):
                word(value)
            with out.otherwise():
                word(f"{inside} ? {value} : 0")


def print_pack_window(
    out: Writer, op: qkernel.PackWindowOp, buffers: Buffers, split: Split
) -> None:
    """The body of `qkernel.pack_window`: this core's share. `split` is over panels and words; `BadSplit` where it has another
    length."""
    if 0 in buffers[op.y].shape:
        return
    with shares(out, split, buffers[op.y].shape[:2]) as ranges:
        _WindowPacker(out, op, buffers, *ranges).print()


class _WindowPacker:
    """Prints a column of a panel at a time: its output position is found once, and channel and tap count along K."""

    def __init__(
        self,
        out: Writer,
        op: qkernel.PackWindowOp,
        buffers: Buffers,
        over_p: Range,
        over_s: Range,
    ):
        self.out = out
        self._x = x = buffers[op.x]
        self._pad = integer_literal(op.padding, 32)
        self._channels, *spatial = x.shape
        rank = len(spatial)
        window = zip(
            spatial, ints(op.kernel_shape), op.output_shape, ints(op.strides),
            ints(op.dilations), ints(op.pads)[:rank], strict=True,
        )  # fmt: skip
        self._axes = [Axis(*values) for values in window]
        self._taps = prod(a.kernel for a in self._axes)
        self._positions = prod(a.output for a in self._axes)
        self._partial = self._channels * self._taps % STEPS != 0
        self._counted = [(f"k{d}", a.kernel) for d, a in enumerate(self._axes) if a.kernel > 1]
        if self._channels > 1 or self._partial:
            self._counted.insert(0, ("ci", self._channels))
        self.panels = _Panels(out, buffers[op.y], over_p, over_s)

    def print(self) -> None:
        out, panels = self.out, self.panels
        with ExitStack() as stack:
            panels.loop(stack, "p")
            stack.enter_context(out.loop("c", PANEL))
            column = panels.at(_COLUMN).text()
            if self._positions % PANEL:
                with out.block(f"if ({column} >= {self._positions})"):
                    self._words(lambda: panels.store("0"))
                stack.enter_context(out.otherwise())
            self._origin(column)
            self._counters()
            self._words(self._element)

    def _words(self, element: Callable[[], None]) -> None:
        with ExitStack() as stack:
            self.panels.loop(stack, "s")
            stack.enter_context(self.out.loop("j", STEPS))
            element()

    def _origin(self, column: str) -> None:
        """Where the window of a column begins in x."""
        inner = self._positions
        column = f"({column})" if " " in column else column
        for d, axis in enumerate(self._axes):
            inner //= axis.output
            if axis.size == 1 and not axis.clipped:
                continue
            position = Linear({}, -axis.pad)
            if axis.output > 1:
                index = column if inner == 1 else f"{column} / {inner}"
                if inner * axis.output != self._positions:
                    index = f"{index} % {axis.output}"
                position += Linear({f"({index})" if " " in index else index: axis.stride})
            self.out.line(f"const ptrdiff_t i{d} = {position.text()};")

    def _counters(self) -> None:
        """Channel and tap of the first k."""
        first = self.panels.ranges["s"].first
        inner = self._taps
        for name, extent in self._counted:
            if name != "ci":
                inner //= extent
            value = "0"
            if first != "0":
                value = f"{first} * {STEPS}" if inner == 1 else f"{first} * {STEPS} / {inner}"
                value = value if name == "ci" else f"{value} % {extent}"
            self.out.line(f"ptrdiff_t {name} = {value};")

    def _element(self) -> None:
        places: list[Linear] = []
        inside: list[str] = []
        for d, axis in enumerate(self._axes):
            place = variable(f"i{d}")
            if axis.kernel > 1:
                place += Linear({f"k{d}": axis.dilation})
            places.append(place)
            if axis.clipped:
                text = place.text()
                inside.append(f"{text} >= 0 && {text} < {axis.size}")
        value = self._x.load(self._x.at([variable("ci"), *places]))
        if inside:
            value = f"{' && '.join(inside)} ? {value} : {self._pad}"
        if self._partial:
            value = f"({value})" if inside else value
            value = f"ci < {self._channels} ? {value} : 0"
        self.panels.store(value)
        self._advance(self._counted)

    def _advance(self, counters: Sequence[tuple[str, int]]) -> None:
        """To the next k: the last tap fastest, then the channel, which counts on beyond the last."""
        if not counters:
            return
        *others, (name, extent) = counters
        self.out.line(f"{name}++;")
        if name != "ci":
            with self.out.block(f"if ({name} == {extent})"):
                self.out.line(f"{name} = 0;")
                self._advance(others)


def print_packed_quant_matmul(
    out: Writer, op: qkernel.PackedQuantMatmulOp, buffers: Buffers, split: Split
) -> None:
    """The body of `qkernel.packed_quant_matmul`: this core's share. `split` is over the dimensions of y; `BadSplit` where it has
    another length."""
    a, p, y = buffers[op.a], buffers[op.p], buffers[op.y]
    (m, k), n = a.shape, y.shape[1]
    if len(split.parts) != 2:
        raise BadSplit(f"rows and columns are split as {list(split.parts)}")
    if 0 in (m, n):
        return
    epilogue = Epilogue.of(op, op.y, buffers)
    dims = (variable("m"), variable("n"))
    panel, word, column, step = p.strides
    if panel % PANEL:
        raise ValueError(f"panels of {p.type} are not whole columns apart")
    _Product(
        out,
        MatmulProblem(
            batch=(),
            m=m,
            n=n,
            k=k,
            block=k or 1,
            a=a.at([variable("m"), variable("k")]),
            # Element k of a column is k - 4 s further on than the first one of word s.
            w=Linear({"n": panel // PANEL, "s": word - STEPS * step, "c": column, "k": step}),
            sums=None,
            parameters=(),
            weight=Weight(p),
            a_name=a.name,
            epilogue=epilogue,
            targets=tuple(epilogue.positions(dims)),
            dims=dims,
            parts=byte_safe(split, y).parts,
        ),
    ).print()


class _Product(BlockPrinter):
    SUM: ClassVar[str] = INTEGERS.sum
    ACCUMULATOR: ClassVar[str] = INTEGERS.accumulator

    def __init__(self, out: Writer, p: MatmulProblem):
        super().__init__(out, p)
        self.rows = min(_ROWS, max(1, p.m // p.parts[0]))
        self.columns = PANEL

    def accumulate(self, height: int, width: int, first: str, last: str) -> None:
        for c in range(0, width, _AT_A_TIME):
            self._columns(height, range(c, min(c + _AT_A_TIME, width)), first, last)

    def _columns(self, height: int, columns: range, first: str, last: str) -> None:
        """All of K for some columns of the block, one k after the other: unrolled, its loads take the registers of the sums."""
        out, p = self.out, self.p
        names = sums(height, columns.stop)
        with out.loop("k", last, first):
            out.line(f"const ptrdiff_t s = k / {STEPS};")
            for r in range(height):
                out.line(f"const int32_t a{r} = {p.a_name}[{self.at(p.a, m=r).text()}];")
            for c in columns:
                position = moved(self.at(p.w), {"c": c}).renamed({"c": None})
                out.line(f"const int32_t w{c} = {p.weight.w.load(position)};")
            for r in range(height):
                for c in columns:
                    out.line(f"{names[r][c]} += (uint32_t)(a{r} * w{c});")

    def scaled(self, raw: str, block: str, place: object) -> str:
        return f"(int32_t){raw}"
