"""Printing: PULP's mnemonics for PULP's own toolchains, or `.insn` for upstream binutils and LLVM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import IO

from xdsl.backend.assembly_printer import AssemblyPrintable, AssemblyPrinter
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.riscv import RISCVInstruction
from xdsl.ir import Dialect, Operation
from xdsl.utils.target import Target

from qfold.dialects.riscv_pulp.encoding import ENCODINGS, Encoding


class PulpAssemblyPrinter(AssemblyPrinter):
    """Prints `riscv_pulp` ops as mnemonics or as `.insn`, and the labels that hardware loops end at."""

    insn: bool
    """Whether XpulpV2 is spelt as `.insn`."""

    _labels: dict[Operation, str]
    _label_count: int

    def __init__(self, stream: IO[str], *, insn: bool = False):
        super().__init__(stream=stream)
        self.insn = insn
        self._labels = {}
        self._label_count = 0

    def label_before(self, op: Operation) -> str:
        """A local label that will be printed directly before `op`, which has not been printed yet."""
        label = self._labels.get(op)
        if label is None:
            label = self._labels[op] = f".Lpulp_loop_end_{self._label_count}"
            self._label_count += 1
        return label

    def emit_section(self, new_section: str) -> None:
        is_new = self._current_section != new_section
        super().emit_section(new_section)
        if is_new and new_section == ".text":
            # RI5CY wants the bounds of a loop word-aligned.
            self.print_string("    .p2align 2\n", indent=0)

    def print_module(self, module: ModuleOp) -> None:
        # A loop's end is counted in 4-byte instructions.
        self.print_string("    .option norvc\n    .option norelax\n")
        for op in module.body.walk():
            if not isinstance(op, AssemblyPrintable):
                raise ValueError(f"{op.name} cannot be printed as RISC-V assembly")
            if op in self._labels:
                self.print_string(f"{self._labels[op]}:\n")
            op.print_assembly(self)


class PulpInstruction(RISCVInstruction, ABC):
    """An instruction of XpulpV2."""

    @property
    def encoding(self) -> Encoding:
        return ENCODINGS[Dialect.split_name(self.name)[1]]

    def assembly_instruction_name(self) -> str:
        return self.encoding.mnemonic

    @abstractmethod
    def insn_args(self) -> str:
        """The operands of the `.insn` directive, with the format's letter first."""

    def print_assembly(self, printer: AssemblyPrinter) -> None:
        if isinstance(printer, PulpAssemblyPrinter) and printer.insn:
            line = AssemblyPrinter.assembly_line(".insn", self.insn_args(), self.comment)
            printer.print_string(f"{line}\n")
        else:
            super().print_assembly(printer)


@dataclass(frozen=True)
class RISCVPulpAsmTarget(Target):
    """`-t riscv-pulp-asm`: assembly for PULP's toolchains; `{insn=true}`: for upstream ones."""

    name = "riscv-pulp-asm"

    insn: bool = False

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        PulpAssemblyPrinter(output, insn=self.insn).print_module(module)
