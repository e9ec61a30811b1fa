"""`c.matmul` and `c.dequant_matmul` on a cluster: blocks of 4 x 2 or 2 x 4 outputs, the core's share of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import ClassVar

from qfold.backend.c.contraction import Buffers
from qfold.backend.c.layout import Linear
from qfold.backend.c.matmul_problem import MatmulProblem, dequant_matmul_problem, matmul_problem
from qfold.backend.c.plain import (
    Place,
    as_table,
    blocks,
    case,
    declare,
    inside,
    is_alone,
    moved,
    outputs,
    over_block,
    subscript,
    sums,
)
from qfold.backend.c.share import BadSplit, Split, byte_safe, shares
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel

_ROWS = 4
"""Rows of a block: each weight is converted once for all of them."""
_COLUMNS = 2
_COLUMNS_OF_FEW = 4
"""Columns of a block of less than three rows."""


def print_plain_matmul(
    out: Writer, op: qkernel.MatmulOp | qkernel.DequantMatmulOp, buffers: Buffers, split: Split
) -> None:
    """The body of `qkernel.matmul` or `qkernel.dequant_matmul`: this core's share. `split` is over the dimensions of y.

    `BadSplit` where it has another length.
    """
    y = buffers[op.y]
    split = byte_safe(split, y)
    if len(split.parts) != len(y.shape):
        raise BadSplit(f"{len(y.shape)} dimensions of y are split as {list(split.parts)}")
    if 0 in y.shape:
        return
    if isinstance(op, qkernel.MatmulOp):
        problem = matmul_problem(op, buffers, split)
    else:
        problem = dequant_matmul_problem(op, buffers, split)
    BlockPrinter(out, problem).print()


class BlockPrinter:
    """Prints a matmul by blocks of `rows` x `columns` outputs."""

    SUM: ClassVar[str] = "float"
    """The C type that is summed up in."""
    ACCUMULATOR: ClassVar[str] = "float"
    """What the epilogue takes."""

    def __init__(self, out: Writer, p: MatmulProblem):
        self.out = out
        self.p = p
        m_parts, n_parts = p.parts[-2:]
        # No block so large that a core would go without.
        self.rows = min(_ROWS, max(1, p.m // m_parts))
        columns = _COLUMNS if self.rows > 2 else _COLUMNS_OF_FEW
        self.columns = min(columns, max(1, p.n // n_parts))
        self._gone: set[str] = set()
        """Variables of loops of one iteration, which are not printed."""

    def print(self) -> None:
        out, p = self.out, self.p
        extents = [*(d.extent for d in p.batch), p.m, p.n]
        units = [1] * len(p.batch) + [self.rows, self.columns]
        with shares(out, Split(p.parts), extents, units) as ranges, ExitStack() as stack:
            self._gone = {v for v, r in zip("mn", ranges[-2:], strict=True) if is_alone(r)}
            for dim, range_ in zip(p.batch, ranges, strict=False):
                stack.enter_context(out.loop(dim.name, range_.last, range_.first))
            heights = stack.enter_context(blocks(out, "m", ranges[-2], self.rows, p.m))
            for i in range(len(heights)):
                with (
                    case(out, "m", heights, i, p.m) as height,
                    blocks(out, "n", ranges[-1], self.columns, p.n) as widths,
                ):
                    for j in range(len(widths)):
                        with case(out, "n", widths, j, p.n) as width:
                            self._block(height, width)

    def _block(self, height: int, width: int) -> None:
        """`height` rows from m on and `width` columns from n on."""
        out, p = self.out, self.p
        if p.blocks > 1:
            self._blockwise(height, width)
            with over_block(out, height, width, "r", "c") as place:
                self._store(f"sum{subscript(place)}", place)
            return
        names = sums(height, width)
        declare(out, names, self.SUM)
        self.accumulate(height, width, "0", str(p.k))
        with outputs(out, names, "r", "c", self.SUM) as (total, place):
            self._store(self.scaled(total, "0", place), place)

    def _store(self, value: str, place: Place) -> None:
        """A finished sum through the epilogue to y."""
        out, p = self.out, self.p
        out.line(f"const {self.ACCUMULATOR} acc = {value};")
        linear = [self._at_output(x, place) for x in p.targets if isinstance(x, Linear)]
        if len(linear) != len(p.targets):
            dims = [self._at_output(x, place) for x in p.dims]
            p.epilogue.print(out, "acc", p.epilogue.positions(dims))
        else:
            p.epilogue.print(out, "acc", linear)

    def _blockwise(self, height: int, width: int) -> None:
        """A sum for each block of K, scaled, then added up."""
        out, p = self.out, self.p
        names = sums(height, width)
        out.line(f"float sum[{height}][{width}] = {{{{0.0f}}}};")
        with out.loop("kb", p.blocks):
            out.line(f"const ptrdiff_t first = kb * {p.block};")
            last = f"first + {p.block}"
            if p.k % p.block:
                last = f"{last} < {p.k} ? {last} : {p.k}"
            out.line(f"const ptrdiff_t last = {last};")
            declare(out, names)
            self.accumulate(height, width, "first", "last")
            with out.block(""):
                out.line(f"const float partial[{height}][{width}] = {as_table(names)};")
                with over_block(out, height, width, "r", "c") as place:
                    at = subscript(place)
                    out.line(f"sum{at} += {self.scaled(f'partial{at}', 'kb', place)};")

    def accumulate(self, height: int, width: int, first: str, last: str) -> None:
        """Add the products of elements `first` to `last` of K."""
        out, p = self.out, self.p
        block = "kb" if p.blocks > 1 else "0"
        names = sums(height, width)
        with out.loop("k", last, first):
            for r in range(height):
                out.line(f"const float a{r} = {p.a_name}[{self.at(p.a, m=r).text()}];")
            for c in range(width):
                out.line(f"const float w{c} = {self.element(c, block)};")
            for r in range(height):
                for c in range(width):
                    out.line(f"{names[r][c]} = qf_madd(a{r}, w{c}, {names[r][c]});")

    def element(self, c: int, block: str) -> str:
        """The weight of column c of the block, as a float."""
        parameters = [self.at(x, n=c) for x in self._parameters(block)]
        return self.p.weight.element(self.at(self.p.w, n=c), parameters)

    def _parameters(self, block: str) -> Sequence[Linear]:
        """Where scale and zero point of column n are."""
        return [x.renamed({"kb": block}) for x in self.p.parameters]

    def scaled(self, raw: str, block: str, place: Place) -> str:
        """A sum times its scale, the zero point corrected."""
        p = self.p
        at_sum = None if p.sums is None else self._at_output(p.sums.renamed({"kb": block}), place)
        parameters = [self._at_output(x, place) for x in self._parameters(block)]
        return p.weight.scaled(raw, parameters, at_sum)

    def at(self, x: Linear, **steps: int) -> Linear:
        """`x` that many rows or columns on."""
        return moved(x, steps).renamed(dict.fromkeys(self._gone))

    def _at_output(self, x: Linear, place: Place) -> Linear:
        """`x` at a row and column of the block."""
        names: dict[str, str | None] = {}
        for origin, offset in zip("mn", place, strict=True):
            names[origin] = offset if origin in self._gone else inside(origin, offset)
        return x.renamed(names)
