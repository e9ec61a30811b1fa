"""From i32 sums to stored elements: requantising in integers, dequantising to floats.

A block is finished line by line: columns one after the other where more operands are per column than per row, else rows. What is
the same for a line is loaded once, before the line before it is stored; the elements of a line are computed side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith, rv32
from xdsl.dialects.builtin import FloatAttr, UnrealizedConversionCastOp
from xdsl.dialects.riscv import ops as riscv
from xdsl.ir import Operation, SSAValue

from qfold.backend.riscv import float_ops
from qfold.backend.riscv.builder import FunctionBuilder, fits_12_bits
from qfold.backend.riscv.float_ops import FloatOps
from qfold.backend.riscv.integer_region import (
    BOTH,
    IntegerEpilogue,
    Step,
    integer_of,
    limits,
    only_use,
)
from qfold.backend.riscv.streams import StreamPointers
from qfold.dialects.element_types import i8, i32, is_unsigned, ui8
from qfold.dialects.riscv_pulp import alu, memory


class IntegerEpilogueWriter:
    """
    Code for one block. `keep`: what lines share stays in registers for the block; `group`: how many elements of a line are
    computed side by side.
    """

    def __init__(
        self,
        b: FunctionBuilder,
        epilogue: IntegerEpilogue,
        pointers: StreamPointers,
        *,
        keep: bool,
        group: int,
    ):
        self._b = b
        self._e = epilogue
        self._pointers = pointers
        self._keep = keep
        self._group = group
        self._floats = FloatOps(b)
        self._known: dict[tuple[SSAValue, int, int], SSAValue] = {}
        """(value of the region, row, column) -> its register; -1 for what does not matter."""
        self._unstored: list[tuple[int, int, SSAValue]] = []
        """Row, column and what is to be stored."""

    def write(self, sums: Sequence[Sequence[SSAValue]]) -> None:
        """Finish and store a block."""
        rows, columns = range(len(sums)), range(len(sums[0]))
        by_column = self._e.line == "column"
        for line in columns if by_column else rows:
            across = rows if by_column else columns
            for first in range(0, len(across), self._group):
                chosen = across[first : first + self._group]
                places = [(other, line) if by_column else (line, other) for other in chosen]
                self._finish(places, sums)
                self._forget()
        self._store_all()
        self._known.clear()

    def _finish(
        self, places: Sequence[tuple[int, int]], sums: Sequence[Sequence[SSAValue]]
    ) -> None:
        e = self._e
        if e.region is None:
            self._unstored += [(i, j, sums[i][j]) for i, j in places]
            return
        assert e.accumulator is not None
        for i, j in places:
            self._known[e.accumulator, i, j] = sums[i][j]
        if self._group > 1:
            for argument in e.region.args[1:]:
                if e.varies[argument] == frozenset((e.line,)) and e.reads(argument):
                    self._read(argument, *places[0])
        self._store_all()
        for step in e.steps:
            for value in map(_plain, step.operands):
                if e.stream_of(value) is not None:
                    for i, j in places:
                        self._read(value, i, j)
            for i, j in places:
                if self._key(step.op.results[0], i, j) not in self._known:
                    self._compute(step, i, j)
        last = e.region.last_op
        assert last is not None
        self._unstored = [(i, j, self._read(last.operands[0], i, j)) for i, j in places]
        if self._group == 1:
            self._store_all()

    def _store_all(self) -> None:
        b, y = self._b, self._e.y
        for i, j, value in self._unstored:
            pointer, offset = self._pointers.address(y, i, j)
            if y.element in (i8, ui8):
                b.emit(memory.SbOp(pointer, value, offset))
            else:
                b.fstore(value, pointer, offset)
        self._unstored = []

    def _forget(self) -> None:
        """What later elements of the block do not read, or, where registers are short, may load again."""
        line = self._e.line

        def needed(value: SSAValue) -> bool:
            varies = self._e.varies[value]
            return self._keep and line not in varies

        self._known = {key: v for key, v in self._known.items() if needed(key[0])}
        if not self._keep:
            self._pointers.forget()

    # region values

    def _key(self, value: SSAValue, i: int, j: int) -> tuple[SSAValue, int, int]:
        varies = self._e.varies[value]
        return value, i if "row" in varies else -1, j if "column" in varies else -1

    def _read(self, value: SSAValue, i: int, j: int) -> SSAValue:
        """The register of a value of the region; operands and constants get one when they are read first."""
        value = _plain(value)
        key = self._key(value, i, j)
        if key not in self._known:
            self._known[key] = self._materialized(value, i, j)
        return self._known[key]

    def _materialized(self, value: SSAValue, i: int, j: int) -> SSAValue:
        stream = self._e.stream_of(value)
        if stream is not None:
            return self._pointers.element(stream, i, j)
        assert isinstance(value.owner, arith.ConstantOp)
        attribute = value.owner.value
        if isinstance(attribute, FloatAttr):
            return self._b.fconst(attribute.value.data)
        number = integer_of(value)
        assert number is not None
        return self._b.zero if number == 0 else self._b.li(number)

    def _signedness(self, value: SSAValue) -> bool | None:
        """How the register of an 8-bit value extends it: signed, unsigned, or not at all."""
        while isinstance(value.owner, UnrealizedConversionCastOp):
            value = value.owner.operands[0]
        stream = self._e.stream_of(value)
        if stream is not None:
            return not is_unsigned(stream.element)
        if isinstance(value.owner, arith.TruncIOp):
            ends = limits(value.owner.operands[0])
            for signed, (low, high) in ((True, (-128, 127)), (False, (0, 255))):
                if ends is not None and low <= ends[0] and ends[1] <= high:
                    return signed
        return None

    def _extended(self, value: SSAValue, register: SSAValue, *, signed: bool) -> SSAValue:
        """An integer of 32 bits, or one of 8 bits as one of 32."""
        if value.type == i32 or self._signedness(value) is signed:
            return register
        kind = alu.ExtractOp if signed else alu.ExtractuOp
        return self._b.emit(kind(register, 8, 0)).rd

    # endregion
    # region ops

    def _compute(self, step: Step, i: int, j: int) -> None:
        op = step.op

        def read(value: SSAValue) -> SSAValue:
            return self._read(value, i, j)

        results: Sequence[SSAValue | None]
        if step.fused == "mac":
            results = [self._mac(step, read)]
        elif step.fused == "addn":
            x, y = map(read, step.operands)
            results = [self._b.emit(alu.AddnOp(x, y, step.bits)).rd]
        elif step.fused:
            kind = alu.ClipOp if step.fused == "clip" else alu.ClipuOp
            results = [self._b.emit(kind(read(step.operands[0]), step.bits)).rd]
        elif isinstance(op, float_ops.COMPUTED):
            results = [self._floats.compute(op, read)]
        else:
            results = self._integers(op, read)
        for result, register in zip(op.results, results, strict=True):
            if register is not None:
                self._known[self._key(result, i, j)] = register

    def _mac(self, step: Step, read: Callable[[SSAValue], SSAValue]) -> SSAValue:
        added, x, y = step.operands
        total = read(added)
        whole = self._e.varies[added] == BOTH and only_use(added)
        names = sum(register is total for register in self._known.values())
        if not whole or names > 1:
            # The instruction overwrites what it adds to.
            total = self._b.emit(riscv.MVOp(total)).rd
        return self._b.emit(alu.MacOp(total, read(x), read(y))).rd_out

    def _integers(
        self, op: Operation, read: Callable[[SSAValue], SSAValue]
    ) -> Sequence[SSAValue | None]:
        b = self._b
        match op:
            case arith.AddiOp() | arith.SubiOp():
                return [self._sum(op, read)]
            case arith.MuliOp():
                return [b.emit(riscv.MulOp(read(op.lhs), read(op.rhs))).rd]
            case arith.MulSIExtendedOp():
                x, y = read(op.lhs), read(op.rhs)
                wanted = [bool(r.uses.get_length()) for r in op.results]
                low = b.emit(riscv.MulOp(x, y)).rd if wanted[0] or not wanted[1] else None
                return [low, b.emit(riscv.MulhOp(x, y)).rd if wanted[1] else None]
            case arith.ShLIOp() | arith.ShRSIOp():
                left = isinstance(op, arith.ShLIOp)
                number = integer_of(op.rhs)
                if number is not None:
                    constant = rv32.SlliOp if left else rv32.SraiOp
                    return [b.emit(constant(read(op.lhs), number & 31)).rd]
                return [
                    b.emit((riscv.SllOp if left else riscv.SraOp)(read(op.lhs), read(op.rhs))).rd
                ]
            case arith.MaxSIOp() | arith.MinSIOp():
                kind = alu.MaxOp if isinstance(op, arith.MaxSIOp) else alu.MinOp
                return [b.emit(kind(read(op.lhs), read(op.rhs))).rd]
            case arith.ExtSIOp() | arith.ExtUIOp():
                signed = isinstance(op, arith.ExtSIOp)
                return [self._extended(op.operands[0], read(op.operands[0]), signed=signed)]
            case arith.SIToFPOp() | arith.UIToFPOp():
                signed = isinstance(op, arith.SIToFPOp)
                whole = self._extended(op.operands[0], read(op.operands[0]), signed=signed)
                result = b.int_to_float(whole)
                self._floats.canonical.add(result)
                return [result]
            case _:
                raise AssertionError(op.name)

    def _sum(
        self, op: arith.AddiOp | arith.SubiOp, read: Callable[[SSAValue], SSAValue]
    ) -> SSAValue:
        b = self._b
        sign = 1 if isinstance(op, arith.AddiOp) else -1
        number = integer_of(op.rhs)
        if number is not None and fits_12_bits(sign * number):
            return b.emit(riscv.AddiOp(read(op.lhs), sign * number)).rd
        number = integer_of(op.lhs)
        if number is not None and sign == 1 and fits_12_bits(number):
            return b.emit(riscv.AddiOp(read(op.rhs), number)).rd
        kind = riscv.AddOp if sign == 1 else riscv.SubOp
        return b.emit(kind(read(op.lhs), read(op.rhs))).rd

    # endregion


def _plain(value: SSAValue) -> SSAValue:
    """The value whose register it is in: nothing is done to drop bits, or to call a byte unsigned."""
    while isinstance(value.owner, UnrealizedConversionCastOp | arith.TruncIOp):
        value = value.owner.operands[0]
    return value
