"""One assembly function of `riscv.dequant_matmul`: the inner loop over a block, then its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import FunctionBuilder
from qfold.backend.riscv.dequant_block import BIAS
from qfold.backend.riscv.dequant_kernel import DequantKernel, Phase
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.epilogue import EpilogueWriter
from qfold.backend.riscv.registers import INTEGER_POOL, OutOfRegisters
from qfold.backend.riscv.streams import PANEL, StreamPointers


def block_function(
    kernel: DequantKernel, phase: Phase, rows: int, columns: int
) -> AssemblyFunction:
    """The function of a block; the fastest plan whose values all find a register."""
    integers, _ = kernel.loop.registers(rows, columns, kernel.isa)
    plans = [(False, False), (False, True)]
    if integers + len(kernel.streams(phase)) <= len(INTEGER_POOL):
        plans.insert(0, (True, False))
    for held, careful in plans:
        try:
            return _assembly(kernel, phase, rows, columns, held=held, careful=careful)
        except OutOfRegisters:
            if (held, careful) == plans[-1]:
                raise
    raise AssertionError


def _assembly(
    kernel: DequantKernel, phase: Phase, rows: int, columns: int, *, held: bool, careful: bool
) -> AssemblyFunction:
    """
    `void symbol(a, w, [zero_point,] [row_sum,] y, scale, ...)`. Pointers of the epilogue are `held` in registers during the inner
    loop, or in the frame; `careful`: it finishes one element at a time, not four.
    """
    streams = kernel.streams(phase)
    names = ["a", "w", *(s.name for s in streams)]
    b = FunctionBuilder(kernel.symbol_of(phase, rows, columns), kernel.isa, names)
    subtracted = kernel.zero_point if kernel.loop.subtract != "none" else None
    pointers = StreamPointers(b, [s for s in streams if s is not subtracted], held=held)
    zero = None if subtracted is None else b.arguments[subtracted.name]
    a, w = b.arguments["a"], b.arguments["w"]
    grid, totals = phase.loop.accumulate(b, a, w, zero, rows, columns)
    writer = EpilogueWriter(b, phase.epilogue, pointers, careful=careful)
    correction = _Correction(b, kernel, pointers, totals)
    for first in range(0, columns, PANEL):
        if first:
            pointers.advance()
        block = [row[first : first + PANEL] for row in grid]
        writer.write(correction.apply(block) if kernel.loop.insert else block)
    return finish(b)


@dataclass
class _Correction:
    """`sum - (zero_point + BIAS) * total` for sums of inserted weights, where `total` is the sum of the row of `a`."""

    b: FunctionBuilder
    kernel: DequantKernel
    pointers: StreamPointers
    totals: list[SSAValue]
    _tensor: SSAValue | None = None
    """What is added to every weight, where it is the same for all columns."""

    def apply(self, block: Sequence[Sequence[SSAValue]]) -> list[list[SSAValue]]:
        """The block at the current panel, corrected."""
        b, row_sum = self.b, self.kernel.row_sum
        if row_sum is not None and not self.totals:
            self.totals = [self.pointers.load(row_sum, row, 0) for row in range(len(block))]
        added = [self._added(column) for column in range(len(block[0]))]
        return [
            [b.fnmsub(value, bias, total) for value, bias in zip(row, added, strict=True)]
            for row, total in zip(block, self.totals, strict=True)
        ]

    def _added(self, column: int) -> SSAValue:
        zero = self.kernel.zero_point
        if self._tensor is not None:
            return self._tensor
        value = self.b.fconst(BIAS)
        if zero is not None:
            value = self.b.fadd(value, self.pointers.load(zero, 0, column))
        if zero is None or not zero.column_bytes:
            self._tensor = value
        return value
