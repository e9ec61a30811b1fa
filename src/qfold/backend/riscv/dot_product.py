"""Packed dot products in the place of multiply-adds: a step of K is a word of four bytes, which one instruction multiplies.

`pv.sdotsp.b`, `pv.sdotup.b`, `pv.sdotusp.b`: both operands signed, both unsigned, the first one unsigned and the second signed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, SSAValue

from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.inner_product import Products
from qfold.backend.riscv.operands import Unit
from qfold.dialects.riscv_pulp import alu, dot, memory

_SCRATCH: Final = 2
"""Pieces that are loaded before the first of them is put into its place, so that none is waited for."""


def alignment_of(type_: MemRefType[Attribute], rows: int, row: int) -> int:
    """The bytes (4, 2 or 1) that the first elements of all rows are aligned to, `row` elements of one byte apart. Buffers are
    aligned by the plan of the memory; an offset that is not static may be any."""
    offset = type_.get_offset()
    if offset is None:
        return 1
    distance = row if rows > 1 else 0
    return next(n for n in (4, 2, 1) if not (offset % n or distance % n))


@dataclass(frozen=True)
class DotProducts(Products):
    """Of words of `a` and of `w`, by their signedness."""

    a_signed: bool
    w_signed: bool

    @property
    def kind(self) -> Literal["sp", "up", "usp"]:
        """As instructions are called."""
        if self.a_signed != self.w_signed:
            return "usp"
        return "sp" if self.a_signed else "up"

    def _ordered(self, a: SSAValue, w: SSAValue) -> tuple[SSAValue, SSAValue]:
        """The unsigned one first, if there is one of each."""
        return (w, a) if self.a_signed and not self.w_signed else (a, w)

    def first(self, b: FunctionBuilder, a: SSAValue, w: SSAValue) -> SSAValue:
        ops = {"sp": dot.DotspBOp, "up": dot.DotupBOp, "usp": dot.DotuspBOp}
        return b.emit(ops[self.kind](*self._ordered(a, w))).rd

    def next(self, b: FunctionBuilder, total: SSAValue, a: SSAValue, w: SSAValue) -> SSAValue:
        ops = {"sp": dot.SdotspBOp, "up": dot.SdotupBOp, "usp": dot.SdotuspBOp}
        return b.emit(ops[self.kind](total, *self._ordered(a, w))).rd_out


@dataclass(frozen=True)
class Words(Unit):
    """Words of bytes that are aligned to `alignment` (4, 2 or 1) bytes. Where that is less than a word, or where fewer bytes are
    read, they are put together of half-words and bytes: no load is misaligned, and none passes the last byte. Bytes that are not
    read are 0."""

    alignment: int

    @property
    def reach(self) -> int:
        """How far behind an offset the last piece is."""
        return self._pieces(WORD)[-1][0] if self.alignment < WORD else WORD // 2

    @property
    def scratch(self) -> int:
        """Registers for pieces of a whole word."""
        return 0 if self.alignment == WORD else min(len(self._pieces(WORD)) - 1, _SCRATCH)

    def instructions(self, size: int) -> int:
        """Of a load: each piece, and each but the first to its place."""
        return 2 * len(self._pieces(size)) - 1

    def _pieces(self, size: int) -> list[tuple[int, int]]:
        """(offset, bytes) of each."""
        found: list[tuple[int, int]] = []
        at = 0
        while at < size:
            piece = next(n for n in (4, 2, 1) if n <= self.alignment and at + n <= size)
            found.append((at, piece))
            at += piece
        return found

    def increments(self, b: FunctionBuilder) -> bool:
        return True

    def load(self, b: FunctionBuilder, pointer: SSAValue, offset: int, size: int) -> SSAValue:
        (_, first), *rest = self._pieces(size)
        return _joined(b, _piece(b, pointer, offset, first), pointer, offset, rest)

    def load_post(
        self, b: FunctionBuilder, pointer: SSAValue, step: int | SSAValue, size: int
    ) -> tuple[SSAValue, SSAValue]:
        (_, first), *rest = self._pieces(size)
        if not rest:
            return _piece_post(b, pointer, first, step)
        value = self.load(b, pointer, 0, size)
        if isinstance(step, SSAValue):
            return value, b.add(pointer, step)
        return value, b.addi(pointer, step)


def _joined(
    b: FunctionBuilder,
    value: SSAValue,
    pointer: SSAValue,
    offset: int,
    rest: list[tuple[int, int]],
) -> SSAValue:
    """`value` with more pieces in its upper bytes."""
    waiting = rest[:_SCRATCH]
    loaded = [_piece(b, pointer, offset + at, size) for at, size in waiting]
    for i, (at, size) in enumerate(rest):
        value = b.emit(alu.InsertOp(value, loaded[i], 8 * size, 8 * at)).rd_out
        if len(loaded) < len(rest):
            further, bytes_ = rest[len(loaded)]
            loaded.append(_piece(b, pointer, offset + further, bytes_))
    return value


def _piece(b: FunctionBuilder, pointer: SSAValue, offset: int, size: int) -> SSAValue:
    if size == WORD:
        return b.lw(pointer, offset)
    return b.emit((memory.LhuOp if size == 2 else memory.LbuOp)(pointer, offset)).rd


def _piece_post(
    b: FunctionBuilder, pointer: SSAValue, size: int, step: int | SSAValue
) -> tuple[SSAValue, SSAValue]:
    by_number = {4: memory.LwPostOp, 2: memory.LhuPostOp, 1: memory.LbuPostOp}
    by_register = {4: memory.LwPostRegOp, 2: memory.LhuPostRegOp, 1: memory.LbuPostRegOp}
    if isinstance(step, SSAValue):
        reg = b.emit(by_register[size](pointer, step))
        return reg.rd, reg.rs1_out
    imm = b.emit(by_number[size](pointer, step))
    return imm.rd, imm.rs1_out
