"""Which register block a packed product uses: registers needed against registers there are, instructions and FPU time per
multiply-accumulate.

A block of R rows by C columns (a panel: 4) spends, per step of K, R * C multiply-adds and R + C loads; floats in a file of their
own also cost the additions that move pointers. `FPU_SHARE` cores take turns at one FPU, so R * C multiply-adds take at least that
many times R * C cycles: the larger of this and the instructions is what a step costs a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qfold.backend.riscv.operands import Addressing, OffsetReader, PointersReader
from qfold.backend.riscv.registers import FLOAT_POOL, INTEGER_POOL
from qfold.backend.riscv.schedule import schedule
from qfold.dialects.qkernel import PANEL
from qfold.targets import Isa

FPU_SHARE = 2
"""Cores per FPU: `pulp-open` has 4 FPUs for 8 cores."""

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
    fpu_bound: float
    """Cycles per multiply-accumulate if all cores use their FPU all the time."""

    @property
    def cycles(self) -> float:
        """Per multiply-accumulate and core, without stalls."""
        return max(self.instructions, self.fpu_bound)

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
        FPU_SHARE,
    )


def candidates(isa: Isa, m: int, stride: int) -> Iterator[RegisterBlock]:
    """Every full block for `m` rows that the registers hold."""
    for rows in range(1, min(m, MAX_ROWS) + 1):
        found = block(isa, rows, PANEL, stride)
        if found.fits:
            yield found


def ranked(isa: Isa, m: int, stride: int) -> list[RegisterBlock]:
    """The candidates, from the fewest cycles per multiply-accumulate up; of equals, from the fewest instructions up."""
    return sorted(candidates(isa, m, stride), key=lambda c: (c.cycles, c.instructions))
