"""The `riscv_pulp` dialect: XpulpV2, the instructions that RI5CY and its successors on PULP clusters add to RV32IMFC.

The ops work on the registers of xDSL's `riscv` dialect, take part in its register allocation, and print as PULP's mnemonics or,
for upstream assemblers, as `.insn` (`-t riscv-pulp-asm{insn=true}`). The pass `riscv-pulp-desugar` turns them into plain RV32.
docs/dialects/riscv_pulp.md has the rules.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from qfold.dialects.riscv_pulp import alu, dot, hwloop, memory
from qfold.dialects.riscv_pulp.assembly import PulpAssemblyPrinter, RISCVPulpAsmTarget

RISCV_PULP = Dialect("riscv_pulp", [*memory.OPS, *alu.OPS, *dot.OPS, *hwloop.OPS], [])

__all__ = [
    "RISCV_PULP",
    "PulpAssemblyPrinter",
    "RISCVPulpAsmTarget",
    "alu",
    "dot",
    "hwloop",
    "memory",
]
