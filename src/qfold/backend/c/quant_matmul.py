"""`c.quant_matmul`: differences from the zero points in 16 bits, their products summed up in 32.

Two forms:

* blocks: the sums of 4 rows x 2 columns run along K together. Compilers make multiply-and-add instructions of 16-bit pairs from
  that (SSE2's `pmaddwd` and its kin). Both operands are laid out along K for it, as differences: the columns of a tile once for
  up to 64 rows, the rows of a block once for up to 32 columns. Zeros fill up the last vector, as what is left over would be
  computed one by one.
* columns: for up to 4 rows, and a second operand that lies along N and is not worth turning round: 32 sums of a row side by side.

Sums are unsigned, so that they may wrap on the way to a result that does not.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import ClassVar

from qfold.backend.c.contraction import Buffers
from qfold.backend.c.integer_elements import IntegerOperands, difference
from qfold.backend.c.layout import Linear
from qfold.backend.c.matmul import TiledForm
from qfold.backend.c.matmul_problem import MatmulProblem, quant_matmul_problem
from qfold.backend.c.plain_quant_matmul import print_plain_quant_matmul
from qfold.backend.c.share import Split
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel

_WIDTH = 32
"""Columns of a tile."""
_DEPTH = 256
"""Elements of K that are laid out at a time: 16 KiB of a tile's columns."""
_LANES = 16
"""Elements of a vector of 32 bytes."""
_ROWS = 4
_COLUMNS = 2
"""Of a block: its 8 sums and the operands are as many as there are SSE registers."""


def whole_vectors(length: int) -> int:
    """`length` rounded up to whole vectors, unless it is less than half of one."""
    return -(-length // _LANES) * _LANES if length >= _LANES // 2 else length


class IntegerForm(TiledForm):
    """Tiles of integer sums; where the operands come from is up to subclasses."""

    SUM: ClassVar[str] = "uint32_t"
    ACCUMULATOR: ClassVar[str] = "int32_t"

    @property
    def depth(self) -> int:
        parts = -(-self.p.k // _DEPTH)
        return whole_vectors(-(-self.p.k // parts)) if parts > 1 else _DEPTH

    def print(self) -> None:
        self.column_tiles(_WIDTH)

    def scaled(self, raw: str, n0: str, held: int) -> str:
        return f"(int32_t){raw}"

    def accumulate(self, raw: str, n0: str, width: int, origin: str, depth: str, held: int) -> None:
        out = self.out
        length = whole_vectors(self.chunk)
        filled = depth == str(length)
        out.line(f"int16_t columns[{width}][{length}];")
        self.lay_out_columns(n0, width, origin, depth)
        if not filled:
            with out.loop("c", width), out.loop("k", length, depth):
                out.line("columns[c][k] = 0;")
        for start, end, step in self.row_blocks(held, _ROWS):
            with out.loop("m", end, start, step):
                out.line(f"int16_t rows_k[{step}][{length}];")
                for r in range(step):
                    with out.loop("k", depth):
                        row = self.row(f"m + {r}" if r else "m", held)
                        out.line(f"rows_k[{r}][k] = {self.row_element(row, origin)};")
                    if not filled:
                        with out.loop("k", length, depth):
                            out.line(f"rows_k[{r}][k] = 0;")
                self._blocks(raw, step, width, length)

    def _blocks(self, raw: str, rows: int, width: int, length: int) -> None:
        whole = width - width % _COLUMNS
        for start, end, step in ((0, whole, _COLUMNS), (whole, width, 1)):
            if start < end:
                with self.out.loop("c", end, start, step):
                    self._block(raw, rows, step, length)

    def _block(self, raw: str, rows: int, columns: int, length: int) -> None:
        out = self.out
        pairs = [(r, c) for r in range(rows) for c in range(columns)]
        out.line("uint32_t " + ", ".join(f"s{r}{c} = 0" for r, c in pairs) + ";")
        with out.loop("k", length):
            for r, c in pairs:
                column = f"c + {c}" if c else "c"
                product = f"(int32_t)rows_k[{r}][k] * columns[{column}][k]"
                out.line(f"s{r}{c} += (uint32_t)({product});")
        for r, c in pairs:
            row, column = (f"m + {r}" if r else "m"), (f"c + {c}" if c else "c")
            out.line(f"{raw}[{row}][{column}] += s{r}{c};")

    @abstractmethod
    def lay_out_columns(self, n0: str, width: int, origin: str, depth: str) -> None:
        """Fill `columns[c][k]` from column n0 and element `origin` of K on."""

    @abstractmethod
    def row_element(self, row: str, origin: str) -> str:
        """Element `origin + k` of a row, as a difference."""


class _Blocks(IntegerForm):
    def __init__(self, out: Writer, p: MatmulProblem, operands: IntegerOperands):
        super().__init__(out, p)
        self.operands = operands

    def lay_out_columns(self, n0: str, width: int, origin: str, depth: str) -> None:
        out, p = self.out, self.p
        order = [("k", depth), ("c", str(width))]
        if p.w.coefficient("k") == 1:
            order.reverse()  # along the memory of b
        with ExitStack() as stack:
            for name, extent in order:
                stack.enter_context(out.loop(name, extent))
            names = {"n": self.plus(n0, "c"), "k": self.plus(origin, "k")}
            at_zero = self.at(p.parameters[0], **names)
            o = self.operands
            value = difference(o.weight, self.at(p.w, **names), o.weight_zero, at_zero)
            out.line(f"columns[c][k] = {value};")

    def row_element(self, row: str, origin: str) -> str:
        p = self.p
        names = {"m": row, "k": self.plus(origin, "k")}
        at_zero = Linear() if p.sums is None else self.at(p.sums, **names)
        o = self.operands
        return difference(o.data, self.at(p.a, **names), o.data_zero, at_zero)


class _Columns(_Blocks):
    """Nothing is laid out."""

    @property
    def depth(self) -> int:
        return max(1, self.p.k)

    def accumulate(self, raw: str, n0: str, width: int, origin: str, depth: str, held: int) -> None:
        out, p, o = self.out, self.p, self.operands
        for r in range(held):
            out.line(f"uint32_t s{r}[{width}] = {{0}};")
        with out.loop("k", depth, origin):
            for r in range(held):
                out.line(f"const int16_t a{r} = {self.row_element(str(r), '0')};")
            with out.loop("c", width):
                names = {"n": self.plus(n0, "c")}
                at_zero = self.at(p.parameters[0], **names)
                value = difference(o.weight, self.at(p.w, **names), o.weight_zero, at_zero)
                out.line(f"const int16_t b_kc = {value};")
                out.lines(f"s{r}[c] += (uint32_t)((int32_t)a{r} * b_kc);" for r in range(held))
        with out.loop("c", width):
            out.lines(f"{raw}[{r}][c] = s{r}[c];" for r in range(held))


def print_quant_matmul(
    out: Writer, op: qkernel.QuantMatmulOp, buffers: Buffers, split: Split | None = None
) -> None:
    """The body of `qkernel.quant_matmul`; with a `split` of the dimensions of y, this core's share."""
    if split is not None:
        print_plain_quant_matmul(out, op, buffers, split)
        return
    p = quant_matmul_problem(op, buffers)
    if 0 in buffers[op.y].shape:
        return
    with ExitStack() as stack:
        for d in p.batch:
            stack.enter_context(out.loop(d.name, d.extent))
        along_n = p.w.coefficient("n") == 1 and p.w.coefficient("k") != 1
        form = _Columns if along_n and p.m <= _ROWS else _Blocks
        form(out, p, IntegerOperands.of_matmul(op, buffers)).print()
