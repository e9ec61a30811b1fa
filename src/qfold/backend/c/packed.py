"""`c.pack`, `c.packed_matmul` and `c.row_sum`: matrix products on packed weights, each core its share.

Panels are whole: a core's share of columns counts panels, and the block of a product is four rows of one panel (fewer where a
core would go without), for whose sums, row elements and weights the 32 registers of a core suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from qfold.backend.c.contraction import Buffers, Epilogue, Weight
from qfold.backend.c.layout import Buffer, Linear, variable
from qfold.backend.c.matmul_problem import MatmulProblem
from qfold.backend.c.plain import blocks, case, declare, is_alone, moved
from qfold.backend.c.plain_matmul import BlockPrinter
from qfold.backend.c.share import BadSplit, Split, byte_safe, shares
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel
from qfold.dialects.qkernel import PANEL

_ROWS = 4
"""Rows that share a pass over a panel, or whose sums are made side by side."""


def _in_panels(p: Buffer) -> Linear:
    """Where column n (the first of its panel) and row k of a packed weight are."""
    panel, row, _ = p.strides
    if panel % PANEL:
        raise ValueError(f"panels of {p.type} are not whole rows apart")
    return Linear({"n": panel // PANEL, "k": row})


def print_pack(out: Writer, op: qkernel.PackOp, buffers: Buffers, split: Split) -> None:
    """The body of `qkernel.pack`: this core's share. `split` is over panels and K; `BadSplit` where it has another length."""
    k, n = op.weight_shape
    if 0 in (k, n):
        return
    panels = -(-n // PANEL)
    with shares(out, split, [panels, k]) as (over_n, over_k), ExitStack() as stack:
        gone = [v for v, r in (("n", over_n), ("k", over_k)) if is_alone(r)]
        packer = _Packer(out, op, buffers, gone)
        widths = stack.enter_context(blocks(out, "n", over_n, PANEL, n))
        for i in range(len(widths)):
            with case(out, "n", widths, i, n) as width, ExitStack() as inner:
                packer.zero_points(width)
                if "k" not in gone:
                    inner.enter_context(out.loop("k", over_k.last, over_k.first))
                packer.row(width)


class _Packer:
    """Prints one panel. `gone`: variables of loops of one iteration, which are not printed."""

    def __init__(self, out: Writer, op: qkernel.PackOp, buffers: Buffers, gone: Sequence[str]):
        self.out = out
        self._gone: dict[str, str | None] = dict.fromkeys(gone)
        self._block = op.block
        self._depth = op.weight_shape[0]
        n, k, kb = variable("n"), variable("k"), variable("kb")
        turned = op.transpose_b is not None
        self._w = buffers[op.w]
        self._at_w = self._w.at([n, k] if turned else [k, n])
        self._y = buffers[op.y]
        self._at_y = _in_panels(self._y)
        self._scale = None if op.scale is None else buffers[op.scale]
        self._zero = None if op.zero_point is None else buffers[op.zero_point]
        self._parameters = (n,) if op.block is None else (n, kb) if turned else (kb, n)

    def zero_points(self, width: int) -> None:
        """Of the panel's columns, where they are the same for all k."""
        if self._zero is None or self._block is not None:
            return
        if not self._zero.shape:
            self.out.line(f"const int32_t z = {self._zero.load(Linear())};")
            return
        for c in range(width):
            self.out.line(f"const int32_t z{c} = {self._parameter(self._zero, c)};")

    def row(self, width: int) -> None:
        """The panel's elements of row k."""
        if self._block is not None and self._depth > self._block:
            self.out.line(f"const ptrdiff_t kb = k / {self._block};")
        for c in range(PANEL):
            value = self._value(c) if c < width else "0.0f"
            self.out.line(self._y.store(self._at(self._at_y, c), value))

    def _value(self, c: int) -> str:
        stored = self._w.load(self._at(moved(self._at_w, {"n": c})))
        if self._zero is not None:
            zero = f"z{c}" if self._zero.shape else "z"
            if self._block is not None:
                zero = self._parameter(self._zero, c)
            value = f"(float)({stored} - {zero})"
        else:
            value = stored if self._w.element == self._y.element else f"(float){stored}"
        if self._scale is not None:
            value = f"{self._parameter(self._scale, c)} * {value}"
        return value

    def _parameter(self, buffer: Buffer, c: int) -> str:
        return buffer.load(self._at(moved(buffer.at(self._parameters), {"n": c})))

    def _at(self, x: Linear, step: int = 0) -> Linear:
        return (x + Linear({}, step)).renamed(self._gone)


def print_packed_matmul(
    out: Writer, op: qkernel.PackedMatmulOp, buffers: Buffers, split: Split
) -> None:
    """The body of `qkernel.packed_matmul`: this core's share. `split` is over the dimensions of y; `BadSplit` as above."""
    a, y = buffers[op.a], buffers[op.y]
    (m, k), n = a.shape, y.shape[1]
    if len(split.parts) != 2:
        raise BadSplit(f"rows and columns are split as {list(split.parts)}")
    if 0 in (m, n):
        return
    epilogue = Epilogue.of(op, op.y, buffers)
    dims = (variable("m"), variable("n"))
    weight = Weight(
        buffers[op.p],
        None if op.scale is None else buffers[op.scale],
        None if op.zero_point is None else buffers[op.zero_point],
        None if op.row_sum is None else buffers[op.row_sum],
    )
    _PanelPrinter(
        out,
        MatmulProblem(
            batch=(),
            m=m,
            n=n,
            k=k,
            block=k or 1,
            a=a.at([variable("m"), variable("k")]),
            w=_in_panels(weight.w),
            sums=None if weight.sums is None else weight.sums.at([variable("m")]),
            parameters=(variable("n"),),
            weight=weight,
            a_name=a.name,
            epilogue=epilogue,
            targets=tuple(epilogue.positions(dims)),
            dims=dims,
            parts=byte_safe(split, y).parts,
        ),
    ).print()


class _PanelPrinter(BlockPrinter):
    def __init__(self, out: Writer, p: MatmulProblem):
        super().__init__(out, p)
        self.rows = min(_ROWS, max(1, p.m // p.parts[0]))
        self.columns = PANEL

    def element(self, c: int, block: str) -> str:
        at = self.p.w + Linear({}, c)
        return self.p.weight.w.load(self.at(at))


def print_row_sum(out: Writer, op: qkernel.RowSumOp, buffers: Buffers, split: Split) -> None:
    """The body of `qkernel.row_sum`: this core's share. `split` is over the rows; `BadSplit` as above."""
    a, y = buffers[op.a], buffers[op.y]
    m, k = a.shape
    if m == 0:
        return
    rows = min(_ROWS, max(1, m // split.total))
    with shares(out, split, [m], [rows]) as (range_,):
        gone: dict[str, str | None] = {"m": None} if is_alone(range_) else {}
        at_a = a.at([variable("m"), variable("k")]).renamed(gone)
        at_y = y.at([variable("m")]).renamed(gone)
        steps = (a.strides[0], y.strides[0])
        with blocks(out, "m", range_, rows, m) as heights:
            for i in range(len(heights)):
                with case(out, "m", heights, i, m) as height:
                    names = [f"s{r}" for r in range(height)]
                    declare(out, [names])
                    with out.loop("k", k):
                        for r, name in enumerate(names):
                            out.line(f"{name} += {a.load(at_a + Linear({}, r * steps[0]))};")
                    for r, name in enumerate(names):
                        out.line(y.store(at_y + Linear({}, r * steps[1]), name))
