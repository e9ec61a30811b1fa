"""`c.matmul` and `c.dequant_matmul`.

Two forms, both of which vectorise without -ffast-math, as no compiler has to reorder a sum:

* columns: a panel of up to 128 x 32 weights is widened to floats on the stack, once for up to 64 rows. Four rows at a time go
  through it, each with 32 sums. A weight that lies transposed is turned round on its way into the panel.
* dots: for up to 4 rows and a transposed weight, which then lies along K: each output keeps 32 partial sums along K.

Every tail has a loop of its own, and nothing is read past an operand. Tile sizes were measured with GCC 12 and clang on x86-64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import ClassVar

from qfold.backend.c.contraction import Buffers
from qfold.backend.c.layout import Linear
from qfold.backend.c.matmul_problem import MatmulProblem, dequant_matmul_problem, matmul_problem
from qfold.backend.c.plain_matmul import print_plain_matmul
from qfold.backend.c.share import Split
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel

_WIDTH = 32
"""Columns of a panel: two AVX-512 registers. GCC peels loops of up to 16 trips into scalar code, so no less."""
_ROWS = 4
"""Rows that share one pass over a panel."""
_HELD = 64
"""Rows whose sums are held at once, so that a panel is widened once for all of them."""
_DEPTH = 128
"""Rows of a panel: 16 KiB of floats, half an L1 cache."""
_TURNED_DEPTH = 256
"""The same for a transposed weight of integers: fewer bytes than this in a row, and no prefetcher sees a stream."""
_DOT_ROWS = 4
"""Most rows for which dots beat columns: above, widening each weight once pays."""
_DOT_COLUMNS = 4
"""Dots that share one pass over a row of the first operand."""
_DOT_LANES = 32
"""Partial sums of a dot product (see `_WIDTH`); 8 where K is shorter."""


def print_matmul(
    out: Writer, op: qkernel.MatmulOp, buffers: Buffers, split: Split | None = None
) -> None:
    """The body of `qkernel.matmul`; with a `split` of the dimensions of y, this core's share."""
    if split is not None:
        print_plain_matmul(out, op, buffers, split)
        return
    _print(out, matmul_problem(op, buffers))


def print_dequant_matmul(
    out: Writer, op: qkernel.DequantMatmulOp, buffers: Buffers, split: Split | None = None
) -> None:
    """The body of `qkernel.dequant_matmul`; with a `split` of the dimensions of y, this core's share."""
    if split is not None:
        print_plain_matmul(out, op, buffers, split)
        return
    _print(out, dequant_matmul_problem(op, buffers))


def _print(out: Writer, p: MatmulProblem) -> None:
    if p.m == 0 or p.n == 0 or any(d.extent == 0 for d in p.batch):
        return
    dots = p.w.coefficient("k") == 1 and p.a.coefficient("k") == 1
    dots = dots and (p.w.coefficient("n") != 1 or p.n == 1)
    dots = dots and min(p.k, p.block) >= 8 and p.m <= _DOT_ROWS
    with ExitStack() as stack:
        for d in p.batch:
            stack.enter_context(out.loop(d.name, d.extent))
        if dots:
            _Dots(out, p).print()
        else:
            _Columns(out, p).print()


class TiledForm(ABC):
    """The frame of all forms: column tile, held rows, quantisation blocks, chunks of K, then the rest."""

    SUM: ClassVar[str] = "float"
    """The C type that is summed up in."""
    ACCUMULATOR: ClassVar[str] = "float"
    """What the epilogue takes."""

    @property
    def depth(self) -> int:
        """Rows of K that are taken at a time."""
        return max(1, self.p.k)

    def __init__(self, out: Writer, p: MatmulProblem):
        self.out = out
        self.p = p
        self.blockwise = p.blocks > 1
        self.chunk = max(1, min(p.block, p.k, self.depth))

    def at(self, x: Linear, **names: str) -> Linear:
        """`x` with variables replaced by C sums: at(x, m="m0 + m")."""
        return x.renamed({k: f"({v})" if " " in v else v for k, v in names.items()})

    def tile(self, n0: str, width: int, held: int) -> None:
        """Columns n0 .. n0 + width - 1 of the rows m0 .. m0 + rows - 1, at most `held` of them."""
        out, p = self.out, self.p
        raw = "part" if self.blockwise else "sum"
        zero = "{{0.0f}}" if self.SUM == "float" else "{{0}}"
        padded = self.padded(width)
        out.line(f"{self.SUM} sum[{held}][{padded}] = {zero};")
        with ExitStack() as stack:
            if self.blockwise:
                stack.enter_context(out.loop("kb", p.blocks))
                ragged = p.k % p.block
                start = f"kb * {p.block}"
                out.line(f"const ptrdiff_t first = {start};")
                end = f"first + {p.block}"
                if ragged:
                    end = f"{end} < {p.k} ? {end} : {p.k}"
                if ragged or p.block > self.chunk:
                    out.line(f"const ptrdiff_t last = {end};")
                out.line(f"float part[{held}][{padded}] = {zero};")
                bounds = ("first", "last", p.block)
                whole = not ragged and p.block % self.chunk == 0
            else:
                bounds = ("0", str(p.k), p.k)
                whole = p.k % self.chunk == 0
            start, end, length = bounds
            with ExitStack() as chunks:
                if length > self.chunk:
                    chunks.enter_context(out.loop("k0", end, start, self.chunk))
                    depth = str(self.chunk)
                    if not whole:
                        out.line(
                            f"const ptrdiff_t depth = {end} - k0 < {self.chunk} ? {end} - k0 : {self.chunk};"
                        )
                        depth = "depth"
                    origin = "k0"
                else:
                    origin, depth = start, str(self.chunk)
                    if self.blockwise and p.k % p.block:
                        out.line("const ptrdiff_t depth = last - first;")
                        depth = "depth"
                if p.k:
                    self.accumulate(raw, n0, width, origin, depth, held)
            if self.blockwise:
                with out.loop("m", self.rows(held)), out.loop("c", width):
                    out.line(f"sum[m][c] += {self.scaled('part[m][c]', n0, held)};")
        with out.loop("m", self.rows(held)), out.loop("c", width):
            value = "sum[m][c]"
            if not self.blockwise:
                value = self.scaled(value, n0, held)
            out.line(f"const {self.ACCUMULATOR} acc = {value};")
            names = {"m": self.row("m", held), "n": self.plus(n0, "c")}
            self.locate(n0)
            linear = [self.at(x, **names) for x in p.targets if isinstance(x, Linear)]
            if len(linear) == len(p.targets):
                p.epilogue.print(out, "acc", linear)
            else:
                dims = [self.at(x, **names) for x in p.dims]
                p.epilogue.print(out, "acc", p.epilogue.positions(dims))

    def locate(self, n0: str) -> None:
        """Write what else than m and n the positions of outputs are made of, for column n0 + c: nothing."""
        return

    def scaled(self, raw: str, n0: str, held: int) -> str:
        names = {"n": self.plus(n0, "c"), "m": self.row("m", held)}
        if not self.blockwise:
            names["kb"] = "0"
        sums = None if self.p.sums is None else self.at(self.p.sums, **names)
        return self.p.weight.scaled(raw, [self.at(x, **names) for x in self.p.parameters], sums)

    def rows(self, held: int) -> str:
        return "rows" if self.p.m > held and self.p.m % held else str(held)

    def row(self, m: str, held: int) -> str:
        return f"m0 + {m}" if self.p.m > held else m

    def plus(self, origin: str, offset: str) -> str:
        return offset if origin == "0" else f"{origin} + {offset}"

    def held_rows(self, n0: str, width: int) -> None:
        """The tile for all rows, as many at a time as are held."""
        held = min(self.p.m, _HELD)
        if self.p.m == held:
            self.tile(n0, width, held)
            return
        with self.out.loop("m0", self.p.m, 0, held):
            if self.p.m % held:
                self.out.line(
                    f"const ptrdiff_t rows = {self.p.m} - m0 < {held} ? {self.p.m} - m0 : {held};"
                )
            self.tile(n0, width, held)

    def column_tiles(self, width: int) -> None:
        """Full tiles in a loop, then the columns that are left."""
        n, tail = self.p.n, self.p.n % width
        whole = n - tail
        if whole > width:
            with self.out.loop("n0", whole, 0, width):
                self.held_rows("n0", width)
        elif whole:
            with self.out.block(""):
                self.held_rows("0", width)
        if tail:
            with self.out.block(""):
                self.held_rows(str(whole), tail)

    def row_blocks(self, held: int, size: int) -> Sequence[tuple[str, str, int]]:
        """(start, end, step) of the loops over held rows: blocks of `size`, then one by one."""
        if self.p.m <= held or self.p.m % held == 0:
            whole = held - held % size
            loops = [("0", str(whole), size)] if whole else []
            return [*loops, (str(whole), str(held), 1)] if held % size else loops
        return [("0", f"rows - {size - 1}", size), (f"rows - rows % {size}", "rows", 1)]

    def element(self, n: str, k: str) -> str:
        """A weight as a float, at column `n` and row `k` of K."""
        block = "kb" if self.blockwise else "0"
        names = {"n": n, "k": k, "kb": block}
        parameters = [self.at(x, **names) for x in self.p.parameters]
        return self.p.weight.element(self.at(self.p.w, **names), parameters)

    def padded(self, width: int) -> int:
        return width

    @abstractmethod
    def print(self) -> None:
        """The body of the kernel."""

    @abstractmethod
    def accumulate(self, raw: str, n0: str, width: int, origin: str, depth: str, held: int) -> None:
        """Add this chunk of K to `raw[m][c]`."""


class _Columns(TiledForm):
    @property
    def depth(self) -> int:
        turned = self.p.w.coefficient("k") == 1 and self.p.weight.scale is not None
        return _TURNED_DEPTH if turned else _DEPTH

    def padded(self, width: int) -> int:
        return max(width, _WIDTH) if width <= 16 else width

    def print(self) -> None:
        self.column_tiles(_WIDTH)

    def accumulate(self, raw: str, n0: str, width: int, origin: str, depth: str, held: int) -> None:
        out = self.out
        padded = self.padded(width)
        direct = held <= _ROWS and padded == width
        if not direct:
            clear = " = {{0.0f}}" if padded != width else ""
            out.line(f"float panel[{self.chunk}][{padded}]{clear};")
            order = [("k", depth), ("c", width)]
            if self.p.w.coefficient("k") == 1:
                order.reverse()  # along the memory of the weight
            (outer, outer_end), (inner, inner_end) = order
            with out.loop(outer, outer_end), out.loop(inner, inner_end):
                value = self.element(self.plus(n0, "c"), self.plus(origin, "k"))
                out.line(f"panel[k][c] = {value};")
        blocks = [("0", "1", held)] if direct else self.row_blocks(held, _ROWS)
        for start, end, step in blocks:
            with ExitStack() as stack:
                if direct:
                    base = ""
                else:
                    stack.enter_context(out.loop("m", end, start, step))
                    base = "m"
                rows = [self._sum(base, r) for r in range(step)]
                for r in range(step):
                    out.line(f"float s{r}[{padded}];")
                with out.loop("c", padded):
                    out.lines(f"s{r}[c] = {raw}[{row}][c];" for r, row in enumerate(rows))
                with out.loop("k", depth):
                    for r, row in enumerate(rows):
                        at = self.at(self.p.a, m=self.row(row, held), k=self.plus(origin, "k"))
                        out.line(f"const float a{r} = {self.p.a_name}[{at.text()}];")
                    with out.loop("c", padded):
                        value = "panel[k][c]"
                        if direct:
                            value = self.element(self.plus(n0, "c"), self.plus(origin, "k"))
                        out.line(f"const float w_kc = {value};")
                        out.lines(f"s{r}[c] += a{r} * w_kc;" for r in range(step))
                with out.loop("c", padded):
                    out.lines(f"{raw}[{row}][c] = s{r}[c];" for r, row in enumerate(rows))

    @staticmethod
    def _sum(base: str, r: int) -> str:
        if not base:
            return str(r)
        return f"{base} + {r}" if r else base


class _Dots(TiledForm):
    def print(self) -> None:
        self.column_tiles(_DOT_COLUMNS)

    def accumulate(self, raw: str, n0: str, width: int, origin: str, depth: str, held: int) -> None:
        out = self.out
        lanes = 8 if self.chunk < _DOT_LANES else _DOT_LANES
        whole = str(self.chunk - self.chunk % lanes)
        with out.loop("m", held):
            for c in range(width):
                out.line(f"float s{c}[{lanes}] = {{0.0f}};")
            if depth == "depth":
                out.line(f"const ptrdiff_t whole = depth - depth % {lanes};")
                whole = "whole"
            with out.loop("k", whole, 0, lanes), out.loop("l", lanes):
                self._products(width, n0, self.plus(origin, "k + l"), "l")
            if whole != depth:
                with out.loop("k", depth, whole):
                    self._products(width, n0, self.plus(origin, "k"), f"k - {whole}")
            for c in range(width):
                out.line(f"{raw}[m][{c}] += qf_sum{lanes}(s{c});")

    def _products(self, width: int, n0: str, k: str, lane: str) -> None:
        """Multiply element k of the row with `width` columns, into one lane of each."""
        out = self.out
        out.line(f"const float a_k = {self.p.a_name}[{self.at(self.p.a, k=k).text()}];")
        for c in range(width):
            column = str(int(n0) + c) if n0.isdigit() else f"{n0} + {c}" if c else n0
            out.line(f"s{c}[{lane}] += a_k * {self.element(column, k)};")
