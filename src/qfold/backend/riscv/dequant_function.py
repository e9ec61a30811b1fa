"""One assembly function of `riscv.dequant_matmul`: the inner loop over a block, then its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import FunctionBuilder
from qfold.backend.riscv.dequant_block import (
    BIAS,
    PAIR,
    Sums,
    insert_byte,
    insert_lower_byte,
)
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
    fits = integers + len(kernel.streams(phase)) <= len(INTEGER_POOL)
    for held in (True, False) if fits else (False,):
        for group in (PANEL, PANEL // 2):
            with suppress(OutOfRegisters):
                return _assembly(kernel, phase, rows, columns, held=held, group=group)
    return _assembly(kernel, phase, rows, columns, held=False, group=1)


def _assembly(
    kernel: DequantKernel, phase: Phase, rows: int, columns: int, *, held: bool, group: int
) -> AssemblyFunction:
    """
    `void symbol(a, w, [zero_point,] [row_sum,] y, scale, ...)`. Pointers of the epilogue are `held` in registers during the inner
    loop, or in the frame; `group`: how many elements it finishes side by side, with 1 keeping nothing in registers that can be
    loaded again.
    """
    streams = kernel.streams(phase)
    names = ["a", "w", *(s.name for s in streams)]
    b = FunctionBuilder(kernel.symbol_of(phase, rows, columns), kernel.isa, names)
    subtracted = kernel.zero_point if kernel.loop.subtract != "none" else None
    others = [s for s in streams if s is not subtracted]
    pointers = StreamPointers(b, others, held=len(others) * held)
    zero = None if subtracted is None else b.arguments[subtracted.name]
    a, w = b.arguments["a"], b.arguments["w"]
    sums = phase.loop.accumulate(b, a, w, zero, rows, columns)
    writer = EpilogueWriter(b, phase.epilogue, pointers, careful=group == 1, group=group)
    correction = _Correction(b, kernel, pointers, sums) if sums.templates else None
    for first in range(0, columns, PANEL):
        if first:
            pointers.advance()
        block = [row[first : first + PANEL] for row in sums.grid]
        writer.write(block if correction is None else [correction.apply(block[0])])
    return finish(b)


class _Correction:
    """
    `sum - (zero_point + BIAS) * total` for the sums of one row of inserted weights; `total` is that of the row of `a`.

    In a pair, the sum of the odd column has 1 / PAIR of the other's in it, which its zero point, put together as the weights
    were, makes 1 / PAIR of the other's corrected sum.
    """

    def __init__(
        self, b: FunctionBuilder, kernel: DequantKernel, pointers: StreamPointers, sums: Sums
    ):
        self._b = b
        self._zero = kernel.zero_point
        self._pointers = pointers
        self._templates = sums.templates
        if kernel.row_sum is None:
            (self._total,) = sums.totals
        else:
            self._total = pointers.load(kernel.row_sum, 0, 0)
        self._part = b.fconst(1 / PAIR) if len(self._templates) > 1 else None
        self._added: list[SSAValue] = []
        """What every weight was too large by, as single bytes and in pairs, where that is the same for all columns."""
        if self._zero is None:
            self._added = [b.fconst(BIAS)] * len(self._templates)
        elif not self._zero.column_bytes:
            zero = self._load(self._zero, 0)
            self._added = [insert_byte(b, template, zero) for template in self._templates]
            if self._part is not None:
                self._added[1] = insert_lower_byte(b, self._added[1], zero)

    def apply(self, row: Sequence[SSAValue]) -> list[SSAValue]:
        """The sums at the current panel, corrected."""
        b = self._b
        zeros: list[SSAValue] = []
        if not self._added:
            assert self._zero is not None
            zeros = [self._load(self._zero, column) for column in range(len(row))]
        corrected: list[SSAValue] = []
        for column, value in enumerate(row):
            odd = column % len(self._templates)
            # The templates again: a zero point's float is used before the next one takes its register.
            if zeros:
                added = insert_byte(b, self._templates[odd], zeros[column])
                if odd:
                    added = insert_lower_byte(b, added, zeros[column - 1])
                self._templates[odd] = added
            else:
                added = self._added[odd]
            value = b.fnmsub(value, added, self._total)
            if odd:
                assert self._part is not None
                value = b.fnmsub(value, corrected[-1], self._part)
            corrected.append(value)
        return corrected

    def _load(self, zero: Stream, column: int) -> SSAValue:
        pointer, offset = self._pointers.address(zero, 0, column)
        return self._b.emit(memory.LbuOp(pointer, offset)).rd
