"""`riscv.row_sum`: the sum of each row of a matrix.

Two instructions per element, a load and an addition. Four partial sums keep additions that depend on each other apart, for cores
whose float unit takes several cycles.
"""

from __future__ import annotations

from typing import Final

from xdsl.ir import SSAValue

from qfold.backend.c.share import shares
from qfold.backend.c.text import Writer
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.emit import finish
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.leaf import (
    function_facts,
    isa_of,
    only_op,
    share_sizes,
    split_of,
)
from qfold.backend.riscv.readers import Element, SideBySide, carried, set_carried
from qfold.dialects import qkernel
from qfold.targets import Isa

PARTIAL_SUMS: Final = 4


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one `qkernel.row_sum`; `qmm.split` has one entry, for the rows. Rows may be any distance
    apart.
    """
    op = only_op(leaf, qkernel.RowSumOp)
    a, y = leaf.buffers[op.a], leaf.buffers[op.y]
    rows, k = a.shape
    if min(rows, k) < 1:
        raise CannotGenerate(op, f"a matrix of {rows} x {k} has nothing to sum")
    row, column = a.strides
    if k > 1 and column != 1:
        raise CannotGenerate(op, f"the elements of a row must be neighbours, got {a.type}")
    symbol = f"{leaf.symbol}_rows"
    function = finish(row_sum_function(symbol, isa_of(leaf), k, row))
    split = split_of(leaf, 1)
    executed = sum(function.executed(n) for n in share_sizes(rows, split.at(0)))
    out = Writer()
    with shares(out, split, (rows,)) as (share,):
        count = f"{share.last} - {share.first}"
        with out.block(f"if ({share.first} < {share.last})"):
            out.line(
                f"{symbol}({a.name} + {share.first} * {row}, {y.name} + {share.first}, {count});"
            )
    return GeneratedKernel(
        leaf.symbol,
        (f"void {symbol}(const float *a, float *y, ptrdiff_t rows)",),
        tuple(out.text().splitlines()),
        (function,),
        {
            "partial_sums": min(PARTIAL_SUMS, k),
            "block_instructions_per_element": instructions_per_element(isa_of(leaf)),
            "instructions": executed,
            "instructions_per_element": round(executed / (rows * k), 4),
            "functions": function_facts([function]),
        },
    )


def instructions_per_element(isa: Isa) -> float:
    """In the loop over a row."""
    if not isa.xpulpv2:
        return 2 + 3 / PARTIAL_SUMS  # the pointer, the counter, the branch
    return 2 + (1 / PARTIAL_SUMS if isa.float_registers == "f" else 0.0)


def row_sum_function(symbol: str, isa: Isa, k: int, stride: int) -> FunctionBuilder:
    """`void symbol(const float *a, float *y, rows)`: sums of `rows` >= 1 rows of `k` elements, `stride` elements apart."""
    b = FunctionBuilder(symbol, isa, ("a", "y", "rows"))
    sums = min(PARTIAL_SUMS, k)
    elements = SideBySide(Element.of("f32"), sums, WORD, sums * WORD)
    with b.loop(b.arguments["rows"], [b.arguments["a"], b.arguments["y"]], level=1) as rows:
        a, y = rows.args
        reader = elements.open(b, a)
        totals = list(reader.read_all(b).values())
        if (trips := k // sums - 1) > 0:
            with b.loop(trips, [*totals, *carried(reader)]) as loop:
                set_carried(loop.args[sums:], reader)
                values = reader.read_all(b).values()
                added = [b.fadd(t, v) for t, v in zip(loop.args[:sums], values, strict=True)]
                loop.yield_(*added, *carried(reader))
            totals = list(loop.results[:sums])
            set_carried(loop.results[sums:], reader)
        (a,) = reader.pointers
        if rest := k % sums:
            tail = SideBySide(Element.of("f32"), rest, WORD, rest * WORD).open(b, a)
            values = tail.read_all(b).values()
            totals[:rest] = [b.fadd(t, v) for t, v in zip(totals, values, strict=False)]
            (a,) = tail.pointers
        a = b.addi(a, (stride - k) * WORD)
        rows.yield_(a, b.fstore_post(_sum(b, totals), y, WORD))
    return b


def _sum(b: FunctionBuilder, values: list[SSAValue]) -> SSAValue:
    """The sum of values, pairwise."""
    while len(values) > 1:
        pairs = [b.fadd(x, y) for x, y in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[2 * len(pairs) :]
    return values[0]
