"""`riscv.dequant_matmul`: few rows times an integer weight as it is stored, converted in registers, once for all of them.

One assembly function per block of rows and columns. A core's share of the columns is divided into blocks that differ by one
column at most, so that none is much narrower than the registers allow; which widths there are is known when it is generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from qfold.backend.c.share import Range, Split, shares
from qfold.backend.c.text import Writer
from qfold.backend.riscv.dequant_block import MAX_ROWS
from qfold.backend.riscv.dequant_function import block_function
from qfold.backend.riscv.dequant_kernel import DequantKernel, read_kernel
from qfold.backend.riscv.emit import AssemblyFunction
from qfold.backend.riscv.generated import GeneratedKernel, LeafKernel
from qfold.backend.riscv.leaf import function_facts, only_op, share_sizes
from qfold.backend.riscv.registers import OutOfRegisters
from qfold.dialects import qkernel
from qfold.dialects.contraction import shape_of


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one `qkernel.dequant_matmul` with an 8-bit weight. Operands may have any static strides;
    `qmm.split` has an entry for each dimension of y. `CannotGenerate` for an epilogue that there is no code for.
    """
    return _generate(leaf, insert=False)


def generate_inserted(leaf: LeafKernel) -> GeneratedKernel:
    """
    The same without conversions for ONE row, ui8 weights, and cores whose floats are in integer registers: a weight is inserted
    to the bits of a float, which is then 256 too large (docs/numerics.md has the bound). Zero points may be hoisted or not: the
    kernel sums the row of `a` where nobody has. Several rows are computed as by `generate`. `CannotGenerate` as there, and for
    other weights and cores.
    """
    return _generate(leaf, insert=True)


Functions = Mapping[tuple[int, int, int], AssemblyFunction]
"""(phase, rows, columns) -> the function."""


def _generate(leaf: LeafKernel, *, insert: bool) -> GeneratedKernel:
    if 0 in shape_of(only_op(leaf, qkernel.DequantMatmulOp).y):
        return GeneratedKernel(leaf.symbol, (), (), (), {})
    kernel = read_kernel(leaf, insert=insert)
    kernel, plans, functions = _functions(kernel, kernel.problem.n)
    return GeneratedKernel(
        kernel.symbol,
        tuple(kernel.prototype(kernel.phases[i], *block) for i, *block in functions),
        tuple(_driver(kernel, plans)),
        tuple(functions.values()),
        _facts(kernel, plans, functions),
    )


# region blocks


def _functions(
    kernel: DequantKernel, most: int
) -> tuple[DequantKernel, dict[int, _Plan], Functions]:
    """The kernel with `DequantLoop.pairs` where that can be, how shares are divided, and the assembly functions, for blocks of at
    most `most` columns: fewer where an epilogue needs registers that the inner loop leaves to it."""
    problem = kernel.problem
    *_, m_parts, n_parts = problem.parts
    plans = _plans(kernel, m_parts, n_parts, most)
    widths = sorted({w for plan in plans.values() for w in plan.widths}, reverse=True)
    blocks = [(r, c) for r in _row_blocks(problem.m, m_parts) for c in widths]
    kernel = _with_pairs(kernel, _may_pair(kernel, [*plans, *widths]))
    try:
        functions = {
            (i, *block): block_function(kernel, phase, *block)
            for i, phase in enumerate(kernel.phases)
            for block in blocks
        }
    except OutOfRegisters:
        if widths[0] == 1:
            raise
        return _functions(kernel, widths[0] - 1)
    return kernel, plans, functions


def _may_pair(kernel: DequantKernel, sizes: Sequence[int]) -> bool:
    """Whether weights may be inserted two at a time: each share and block, of these `sizes`, starts at an even address.
    The weight itself does: buffers are words or aligned more."""
    place = kernel.problem.w
    others = [c for name, c in place.terms.items() if name != "n"]
    even = not any(number % 2 for number in (place.constant, *others, *sizes))
    return kernel.loop.insert and place.coefficient("n") == 1 and even


def _with_pairs(kernel: DequantKernel, pairs: bool) -> DequantKernel:
    phases = tuple(replace(p, loop=replace(p.loop, pairs=pairs)) for p in kernel.phases)
    return replace(kernel, phases=phases)


@dataclass(frozen=True)
class _Plan:
    """How a share of the columns is divided: `larger` blocks of `width + 1` columns, then blocks of `width`."""

    columns: int
    blocks: int

    @property
    def width(self) -> int:
        return self.columns // self.blocks

    @property
    def larger(self) -> int:
        return self.columns % self.blocks

    @property
    def widths(self) -> list[int]:
        """The widths that there are, as the blocks follow each other."""
        found = [self.width + 1] if self.larger else []
        return found + ([self.width] if self.larger < self.blocks else [])


def _row_blocks(m: int, parts: int) -> list[int]:
    """The numbers of rows that blocks have."""
    sizes = share_sizes(m, parts)
    found = {MAX_ROWS for s in sizes if s >= MAX_ROWS} | {s % MAX_ROWS for s in sizes}
    return sorted(found - {0}, reverse=True)


def _plans(kernel: DequantKernel, m_parts: int, n_parts: int, most: int) -> dict[int, _Plan]:
    """Size of a share of the columns -> its blocks, of at most `most` columns."""
    rows = _row_blocks(kernel.problem.m, m_parts)[0]
    plans: dict[int, _Plan] = {}
    for size in sorted(set(share_sizes(kernel.problem.n, n_parts)), reverse=True):
        widest = kernel.loop.widest(rows, min(size, most), kernel.isa)
        plans[size] = _Plan(size, -(-size // widest))
    return plans


# endregion
# region text


def _driver(kernel: DequantKernel, plans: Mapping[int, _Plan]) -> Sequence[str]:
    """The C that finds a core's share, and calls an assembly function for each block of it."""
    problem = kernel.problem
    extents = [*(d.extent for d in problem.batch), problem.m, problem.n]
    out = Writer()
    with (
        shares(out, Split(problem.parts), extents) as (*batch, rows, columns),
        ExitStack() as stack,
    ):
        for dim, share in zip(problem.batch, batch, strict=True):
            stack.enter_context(out.loop(dim.name, share.last, share.first))
        stack.enter_context(out.loop("m", rows.last, rows.first, MAX_ROWS))
        *_, m_parts, _ = problem.parts
        blocks = _row_blocks(problem.m, m_parts)
        for count in blocks:
            if len(blocks) == 1:
                _calls(out, kernel, count, columns, plans)
                continue
            relation = ">=" if count == MAX_ROWS else "=="
            with out.block(f"if ({rows.last} - m {relation} {count})"):
                _calls(out, kernel, count, columns, plans)
    return out.text().splitlines()


def _calls(
    out: Writer, kernel: DequantKernel, rows: int, columns: Range, plans: Mapping[int, _Plan]
) -> None:
    """The calls for one block of rows: `m` is its first."""
    for size, plan in plans.items():
        with ExitStack() as stack:
            if len(plans) > 1:
                condition = f"if ({columns.last} - {columns.first} == {size})"
                stack.enter_context(out.block(condition))
            start = columns.first
            for width in plan.widths:
                end = columns.last
                if width > plan.width and plan.larger < plan.blocks:
                    end = f"{columns.first} + {plan.larger * width}"
                with out.loop("n", end, start, width):
                    _call(out, kernel, rows, width)
                start = end


def _call(out: Writer, kernel: DequantKernel, rows: int, columns: int) -> None:
    """The calls for one block at row `m` and column `n`, phase after phase."""
    for phase in kernel.phases:
        with ExitStack() as stack:
            if phase.blocks > 1:
                last = phase.first + phase.blocks
                stack.enter_context(out.loop("kb", last, phase.first))
            out.line(kernel.call(phase, rows, columns))


def _facts(
    kernel: DequantKernel,
    plans: Mapping[int, _Plan],
    functions: Functions,
) -> dict[str, object]:
    """For the report: the block, and what it executes."""
    problem, isa = kernel.problem, kernel.isa
    *_, m_parts, n_parts = problem.parts
    executed = 0
    for share in share_sizes(problem.m, m_parts):
        for first in range(0, share, MAX_ROWS):
            rows = min(MAX_ROWS, share - first)
            for columns in share_sizes(problem.n, n_parts):
                plan = plans[columns]
                for i in range(plan.blocks):
                    width = plan.width + (i < plan.larger)
                    executed += sum(
                        phase.blocks * functions[p, rows, width].executed()
                        for p, phase in enumerate(kernel.phases)
                    )
    executed *= prod(d.extent for d in problem.batch)
    macs = prod(d.extent for d in problem.batch) * problem.m * problem.n * problem.k
    blocks = [(r, c) for phase, r, c in functions if phase == 0]
    rows, columns = max(blocks)
    integers, floats = kernel.loop.registers(rows, columns, isa)
    per_step = kernel.loop.instructions_per_step(rows, columns, isa)
    return {
        "block": f"{rows}x{columns}",
        "blocks": [f"{r}x{c}" for r, c in blocks],
        "integer_registers": integers,
        "float_registers": floats,
        "block_instructions_per_mac": round(per_step / (rows * columns), 4),
        "block_float_operations_per_mac": round(
            kernel.loop.float_operations_per_step(rows, columns) / (rows * columns), 4
        ),
        "instructions": executed,
        "instructions_per_mac": round(executed / macs, 4),
        "functions": function_facts(functions.values()),
    }


# endregion
