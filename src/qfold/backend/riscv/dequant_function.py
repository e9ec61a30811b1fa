"""One assembly function of `riscv.dequant_matmul`: the inner loop over a block, then its epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import FunctionBuilder
from qfold.backend.riscv.dequant_block import BIAS, Sums, insert_byte
from qfold.backend.riscv.dequant_kernel import DequantKernel, Phase
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.epilogue import EpilogueWriter
from qfold.backend.riscv.registers import INTEGER_POOL, OutOfRegisters
from qfold.backend.riscv.streams import PANEL, Stream, StreamPointers
from qfold.dialects.riscv_pulp import memory


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
    sums = phase.loop.accumulate(b, a, w, zero, rows, columns)
    writer = EpilogueWriter(b, phase.epilogue, pointers, careful=careful)
    correction = None if sums.template is None else _Correction(b, kernel, pointers, sums)
    for first in range(0, columns, PANEL):
        if first:
            pointers.advance()
        block = [row[first : first + PANEL] for row in sums.grid]
        writer.write(block if correction is None else [correction.apply(block[0])])
    return finish(b)


class _Correction:
    """`sum - (zero_point + BIAS) * total` for the sums of one row of inserted weights; `total` is that of the row of `a`."""

    def __init__(
        self, b: FunctionBuilder, kernel: DequantKernel, pointers: StreamPointers, sums: Sums
    ):
        assert sums.template is not None
        self._b = b
        self._zero = kernel.zero_point
        self._pointers = pointers
        self._template = sums.template
        if kernel.row_sum is None:
            (self._total,) = sums.totals
        else:
            self._total = pointers.load(kernel.row_sum, 0, 0)
        self._added: SSAValue | None = None
        """What every weight was too large by, where that is the same for all columns."""
        if self._zero is None:
            self._added = b.fconst(BIAS)
        elif not self._zero.column_bytes:
            self._added = insert_byte(b, self._template, self._load(self._zero, 0))

    def apply(self, row: Sequence[SSAValue]) -> list[SSAValue]:
        """The sums at the current panel, corrected."""
        b = self._b
        if self._added is not None:
            return [b.fnmsub(value, self._added, self._total) for value in row]
        assert self._zero is not None
        zeros = [self._load(self._zero, column) for column in range(len(row))]
        corrected: list[SSAValue] = []
        for value, zero in zip(row, zeros, strict=True):
            # The template again: the zero point's float is used before the next one takes its register.
            self._template = insert_byte(b, self._template, zero)
            corrected.append(b.fnmsub(value, self._template, self._total))
        return corrected

    def _load(self, zero: Stream, column: int) -> SSAValue:
        pointer, offset = self._pointers.address(zero, 0, column)
        return self._b.emit(memory.LbuOp(pointer, offset)).rd
