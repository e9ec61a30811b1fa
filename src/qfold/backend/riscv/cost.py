"""Which register block a packed product uses: registers needed against registers there are, instructions and FPU time per
multiply-accumulate.

A block of R rows by C columns (a panel: 4) spends, per step of K, R * C multiply-adds and R + C loads; floats in a file of their
own also cost the additions that move pointers. Cores that share an FPU (`Target.cores_per_fpu`) take turns at it, and it does one
multiply-add per cycle: what they have together, or a core's own instructions, is what bounds it. Rows are divided over cores in
whole blocks, so that smaller blocks may leave less to the busiest core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from qfold.backend.riscv.builder import WORD
from qfold.backend.riscv.dot_product import Words
from qfold.backend.riscv.operands import Addressing, OffsetReader, PointersReader
from qfold.backend.riscv.registers import FLOAT_POOL, INTEGER_POOL
from qfold.backend.riscv.schedule import integer_schedule, schedule
from qfold.dialects.qkernel import PANEL
from qfold.targets import Isa

NEGLIGIBLE = 0.05
"""Differences between estimates that are not worth more loads."""

DESUGARED_DOT = 22
"""Instructions of RV32IM for a dot product of four bytes that is added: 7 to take apart each word, 4 products, 4 additions."""

DESUGARED_SCRATCH = 4
"""Registers that it takes, and those of a loop that is none of hardware."""

BYTES = 4
"""Multiply-accumulates of a dot product."""

MAX_ROWS = 4
"""More rows need more registers than either kind of core has, for a block that the FPU bounds anyway."""


@dataclass(frozen=True)
class RegisterBlock:
    """A candidate."""

    rows: int
    columns: int
    addressing: Addressing
    integer_registers: int
    """Needed by the inner loop; the counter's is free in the loop itself."""
    float_registers: int
    """0 where floats are in integer registers."""
    instructions: float
    """Per multiply-accumulate, in the inner loop."""

    @property
    def fits(self) -> bool:
        return self.integer_registers <= len(INTEGER_POOL) and self.float_registers <= len(
            FLOAT_POOL
        )

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns}"


def block(isa: Isa, rows: int, columns: int, stride: int) -> RegisterBlock:
    """The block with the cheapest addressing for rows that are `stride` bytes apart."""
    plan = schedule(rows, columns)
    in_x = isa.float_registers == "x"
    products = rows * columns
    loads = rows + columns
    if in_x and isa.xpulpv2:
        addressing: Addressing = "offset"
        pointers = 1
        if OffsetReader.base_row(rows, stride) is None:
            addressing, pointers = "walk", 3
        extra = 0.0
    else:
        addressing = "pointers"
        pointers = len(PointersReader.places(rows, stride)[0])
        # Per two steps: a pointer each, and without hardware loops the counter and the branch.
        extra = (pointers + 1 + (0 if isa.xpulpv2 else 2)) / 2
    integers = pointers + 1
    return RegisterBlock(
        rows,
        columns,
        addressing,
        integers + plan.registers if in_x else integers,
        0 if in_x else plan.registers,
        (products + loads + extra) / products,
    )


def integer_block(
    isa: Isa, rows: int, columns: int, stride: int, alignment: int = WORD
) -> RegisterBlock:
    """A block of packed dot products, four steps of K at once, for rows of bytes that are `stride` bytes apart; rows that are
    aligned to less than a word are read in pieces (`dot_product.Words`)."""
    plan = integer_schedule(rows, columns)
    unit = Words(alignment)
    products, words = rows * columns, unit.instructions(WORD)
    addressing: Addressing = "offset"
    pointers, moving = 1, 1
    if OffsetReader.base_row(rows, stride, unit.reach) is None:
        addressing, pointers, moving = "walk", 3, rows
    loads = words * rows + columns + (moving if alignment < WORD else 0)
    registers = pointers + 1 + plan.registers + unit.scratch
    if not isa.xpulpv2:
        # Pointers move, the counter and the branch; and what a dot product is then.
        loads += moving + 1 + 2 / plan.steps + (DESUGARED_DOT - 1) * products
        registers += DESUGARED_SCRATCH
    return RegisterBlock(
        rows,
        columns,
        addressing,
        registers,
        0,
        (products + loads) / (products * BYTES),
    )


BlockOf = Callable[[int], RegisterBlock]
"""The block of so many rows, and of a whole panel."""


def fitting(block_of: BlockOf, m: int) -> Iterator[RegisterBlock]:
    """Every full block for `m` rows that the registers hold."""
    for rows in range(1, min(m, MAX_ROWS) + 1):
        found = block_of(rows)
        if found.fits:
            yield found


def longest_share(
    block_of: BlockOf, m: int, rows: int, parts: tuple[int, int], fpus: int = 0
) -> float:
    """
    Cycles per step of K and column that the core with most to do spends on its rows, when `m` rows, in blocks of `rows` and what
    is left, and the columns are divided into `parts` (as `qf_share` does; parts of columns are neighbouring cores). Core i uses
    FPU i modulo `fpus`; none for integers.
    """
    heights = [rows] * (m // rows) + [m % rows] * (m % rows > 0)
    size, larger = divmod(len(heights), min(parts[0], len(heights)))
    starts = [i * size + min(i, larger) for i in range(min(parts[0], len(heights)) + 1)]
    shares = [heights[a:b] for a, b in pairwise(starts)]
    # Core -> the rows that it has.
    rows_of = [share for share in shares for _ in range(parts[1])]
    longest = 0.0
    for core, share in enumerate(rows_of):
        instructions = sum(h * block_of(h).instructions for h in share)
        shared = sum(sum(r) for r in rows_of[core % fpus :: fpus]) if fpus else 0
        longest = max(longest, instructions, shared)
    return longest


def ranking(
    block_of: BlockOf, m: int, parts: tuple[int, int], fpus: int = 0
) -> list[RegisterBlock]:
    """
    The candidates, best first. Of those that keep the busiest core for about the shortest time (within `NEGLIGIBLE`) the one with
    the fewest instructions per multiply-accumulate: it loads least. The others by that time.
    """
    found = list(fitting(block_of, m))
    times = {c.name: longest_share(block_of, m, c.rows, parts, fpus) for c in found}
    good = min(times.values()) * (1 + NEGLIGIBLE)
    return sorted(
        found,
        key=lambda c: (0.0 if times[c.name] <= good else times[c.name], c.instructions),
    )


def _floats(isa: Isa, stride: int) -> BlockOf:
    return lambda rows: block(isa, rows, PANEL, stride)


def candidates(isa: Isa, m: int, stride: int) -> Iterator[RegisterBlock]:
    """`fitting`, of floats."""
    return fitting(_floats(isa, stride), m)


def busiest_core(
    isa: Isa, m: int, stride: int, rows: int, parts: tuple[int, int], fpus: int
) -> float:
    """`longest_share`, of floats."""
    return longest_share(_floats(isa, stride), m, rows, parts, fpus)


def ranked(isa: Isa, m: int, stride: int, parts: tuple[int, int], fpus: int) -> list[RegisterBlock]:
    """`ranking`, of floats."""
    return ranking(_floats(isa, stride), m, parts, fpus)
