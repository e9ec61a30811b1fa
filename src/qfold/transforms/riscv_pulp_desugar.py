"""`riscv-pulp-desugar`: XpulpV2 as plain RV32IM, so that every kernel also runs where the extension is missing (qemu-riscv32)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import riscv_scf, rv32
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.dialects.riscv import ops as riscv
from xdsl.dialects.riscv.attrs import si12
from xdsl.dialects.riscv.registers import IntRegisterType, Registers
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint
from xdsl.utils.comparisons import to_signed
from xdsl.utils.exceptions import DiagnosticException

from qfold.dialects.riscv_pulp import alu, dot, hwloop, memory

_UNALLOCATED = Registers.UNALLOCATED_INT


@dataclass
class _Sequence:
    """Base instructions that replace one of XpulpV2. Each method appends one and returns its result."""

    ops: list[Operation] = field(default_factory=list[Operation])

    def _add(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def li(self, value: int) -> SSAValue:
        return self._add(rv32.LiOp(to_signed(value & 0xFFFFFFFF, 32)))

    def add(self, a: SSAValue, b: SSAValue, rd: IntRegisterType = _UNALLOCATED) -> SSAValue:
        return self._add(riscv.AddOp(a, b, rd=rd))

    def addi(self, a: SSAValue, value: int, rd: IntRegisterType = _UNALLOCATED) -> SSAValue:
        return self._add(riscv.AddiOp(a, value, rd=rd))

    def sub(self, a: SSAValue, b: SSAValue, rd: IntRegisterType = _UNALLOCATED) -> SSAValue:
        return self._add(riscv.SubOp(a, b, rd=rd))

    def mul(self, a: SSAValue, b: SSAValue, rd: IntRegisterType = _UNALLOCATED) -> SSAValue:
        return self._add(riscv.MulOp(a, b, rd=rd))

    def and_(self, a: SSAValue, b: SSAValue, rd: IntRegisterType = _UNALLOCATED) -> SSAValue:
        return self._add(riscv.AndOp(a, b, rd=rd))

    def or_(self, a: SSAValue, b: SSAValue, rd: IntRegisterType = _UNALLOCATED) -> SSAValue:
        return self._add(riscv.OrOp(a, b, rd=rd))

    def xor(self, a: SSAValue, b: SSAValue, rd: IntRegisterType = _UNALLOCATED) -> SSAValue:
        return self._add(riscv.XorOp(a, b, rd=rd))

    def xori(self, a: SSAValue, value: int) -> SSAValue:
        return self._add(riscv.XoriOp(a, value))

    def less(self, a: SSAValue, b: SSAValue, signed: bool) -> SSAValue:
        return self._add((riscv.SltOp if signed else riscv.SltuOp)(a, b))

    def slli(self, a: SSAValue, shift: int, rd: IntRegisterType = _UNALLOCATED) -> SSAValue:
        return self._add(rv32.SlliOp(a, shift, rd=rd))

    def shift_right(
        self, a: SSAValue, shift: int, signed: bool, rd: IntRegisterType = _UNALLOCATED
    ) -> SSAValue:
        return self._add((rv32.SraiOp if signed else rv32.SrliOp)(a, shift, rd=rd))

    def field(
        self,
        a: SSAValue,
        bits: int,
        shift: int,
        signed: bool,
        rd: IntRegisterType = _UNALLOCATED,
    ) -> SSAValue:
        """The `bits` bits of `a` from bit `shift` on, extended to 32 bits."""
        if bits == 32:
            return self._add(riscv.MVOp(a, rd=rd))
        if bits + shift < 32:
            a = self.slli(a, 32 - bits - shift)
        return self.shift_right(a, 32 - bits, signed, rd)

    def select_less(
        self,
        a: SSAValue,
        b: SSAValue,
        smaller: bool,
        signed: bool,
        rd: IntRegisterType = _UNALLOCATED,
    ) -> SSAValue:
        """The smaller or the larger of `a` and `b`, without a branch: one of them, perhaps with the bits flipped that differ."""
        keep = self.addi(self.less(a, b, signed), -1)
        flips = self.and_(self.xor(a, b), keep)
        return self.xor(a if smaller else b, flips, rd)

    def dot(
        self,
        kind: dot.DotProduct,
        rs1: SSAValue,
        rs2: SSAValue,
        total: SSAValue | None,
        rd: IntRegisterType,
    ) -> SSAValue:
        """The dot product of two registers, added to `total` if given, in `rd`. The accumulator may be one of the operands."""
        bits = kind.bits
        scalar = self.field(rs2, bits, 0, kind.rhs_signed) if kind.broadcast else None
        partial: SSAValue | None = None
        for shift in range(0, 32, bits):
            lhs = self.field(rs1, bits, shift, kind.lhs_signed)
            rhs = self.field(rs2, bits, shift, kind.rhs_signed) if scalar is None else scalar
            product = self.mul(lhs, rhs)
            if partial is None:
                partial = product
            else:
                is_last = shift + bits == 32 and total is None
                partial = self.add(partial, product, rd if is_last else _UNALLOCATED)
        assert partial is not None
        return partial if total is None else self.add(total, partial, rd)


def _type(value: SSAValue) -> IntRegisterType:
    assert isinstance(value.type, IntRegisterType)
    return value.type


class DesugarMemory(RewritePattern):
    """A load or store, then the addition to the pointer."""

    _LOADS: dict[str, Callable[..., Operation]] = {
        "p.lb": memory.LbOp,
        "p.lbu": memory.LbuOp,
        "p.lh": memory.LhOp,
        "p.lhu": memory.LhuOp,
        "p.lw": riscv.LwOp,
    }
    _STORES: dict[str, Callable[..., Operation]] = {
        "p.sb": memory.SbOp,
        "p.sh": memory.ShOp,
        "p.sw": riscv.SwOp,
    }

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: memory.PostIncrementOperation, rewriter: PatternRewriter, /
    ) -> None:
        seq = _Sequence()
        mnemonic = op.encoding.mnemonic
        pointer = _type(op.pointer_out)
        results: list[SSAValue] = []
        match op:
            case memory.PostIncrementLoadOperation():
                seq.ops.append(self._LOADS[mnemonic](op.pointer, 0, rd=op.rd.type))
                results.append(seq.ops[0].results[0])
            case memory.PostIncrementStoreImmOperation() | memory.PostIncrementStoreRegOperation():
                seq.ops.append(self._STORES[mnemonic](op.rs1, op.rs2, 0))
            case _:
                raise AssertionError(op.name)
        match op:
            case memory.PostIncrementLoadImmOperation() | memory.PostIncrementStoreImmOperation():
                results.append(seq.addi(op.rs1, op.immediate.value.data, pointer))
            case memory.PostIncrementLoadRegOperation():
                results.append(seq.add(op.rs1, op.rs2, pointer))
            case memory.PostIncrementStoreRegOperation():
                results.append(seq.add(op.rs1, op.rs3, pointer))
            case _:
                raise AssertionError(op.name)
        rewriter.replace(op, seq.ops, results)


class RefuseEventLoad(RewritePattern):
    """Nothing in RV32 waits for an event, and a `lw` in its place would go on too early."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: memory.ElwOp, rewriter: PatternRewriter, /) -> None:
        op.emit_error(
            "p.elw waits for the event unit, which plain RV32 has no instruction for; synchronise outside of the kernel",
            DiagnosticException(),
        )


class DesugarAccumulate(RewritePattern):
    """p.mac, p.msu and the accumulating dot products."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: alu.AccumulateOperation, rewriter: PatternRewriter, /) -> None:
        seq = _Sequence()
        rd = _type(op.rd_out)
        match op:
            case alu.MacOp():
                result = seq.add(op.rd_in, seq.mul(op.rs1, op.rs2), rd)
            case alu.MsuOp():
                result = seq.sub(op.rd_in, seq.mul(op.rs1, op.rs2), rd)
            case _:
                result = seq.dot(dot.DotProduct.of(op.name), op.rs1, op.rs2, op.rd_in, rd)
        rewriter.replace(op, seq.ops, (result,))


class DesugarBinary(RewritePattern):
    """Minimum, maximum, and the dot products that do not accumulate."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: alu.BinaryOperation, rewriter: PatternRewriter, /) -> None:
        seq = _Sequence()
        rd = _type(op.rd)
        if isinstance(op, dot.DotOperation):
            result = seq.dot(dot.DotProduct.of(op.name), op.rs1, op.rs2, None, rd)
        else:
            smaller = isinstance(op, alu.MinOp | alu.MinuOp)
            signed = isinstance(op, alu.MinOp | alu.MaxOp)
            result = seq.select_less(op.rs1, op.rs2, smaller, signed, rd)
        rewriter.replace(op, seq.ops, (result,))


class DesugarAddn(RewritePattern):
    """A sum, shifted."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: alu.AddnOp, rewriter: PatternRewriter, /) -> None:
        seq = _Sequence()
        total = seq.add(op.rs1, op.rs2)
        result = seq.shift_right(total, op.shift, signed=True, rd=_type(op.rd))
        rewriter.replace(op, seq.ops, (result,))


class DesugarUnary(RewritePattern):
    """abs, clip, and the bit-field instructions of one operand."""

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self,
        op: alu.AbsOp | alu.ClipOperation | alu.BitFieldOperation,
        rewriter: PatternRewriter,
        /,
    ) -> None:
        seq = _Sequence()
        rs1, rd = op.rs1, _type(op.rd)
        match op:
            case alu.AbsOp():
                sign = seq.shift_right(rs1, 31, signed=True)
                result = seq.sub(seq.xor(rs1, sign), sign, rd)
            case alu.ClipOp():
                raised = seq.select_less(rs1, seq.li(op.lower), smaller=False, signed=True)
                result = seq.select_less(raised, seq.li(op.upper), True, True, rd)
            case alu.ClipuOp():
                positive = seq.xori(seq.shift_right(rs1, 31, signed=True), -1)
                raised = seq.and_(rs1, positive)
                result = seq.select_less(raised, seq.li(op.upper), True, True, rd)
            case alu.ExtractOp():
                result = seq.field(rs1, op.bits, op.shift, True, rd)
            case alu.ExtractuOp():
                result = seq.field(rs1, op.bits, op.shift, False, rd)
            case alu.BclrOp():
                result = seq.and_(rs1, seq.li(~op.mask), rd)
            case alu.BsetOp():
                result = seq.or_(rs1, seq.li(op.mask), rd)
            case _:
                raise AssertionError(op.name)
        rewriter.replace(op, seq.ops, (result,))


class DesugarInsert(RewritePattern):
    """The destination without the field, or the field."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: alu.InsertOp, rewriter: PatternRewriter, /) -> None:
        seq = _Sequence()
        rd = _type(op.rd_out)
        if op.bits == 32:
            rewriter.replace(op, riscv.MVOp(op.rs1, rd=rd))
            return
        inserted = seq.slli(op.rs1, 32 - op.bits)
        if op.bits + op.shift < 32:
            inserted = seq.shift_right(inserted, 32 - op.bits - op.shift, signed=False)
        kept = seq.and_(op.rd_in, seq.li(~op.mask))
        rewriter.replace(op, seq.ops, (seq.or_(kept, inserted, rd),))


class DesugarHardwareLoop(RewritePattern):
    """
    A `riscv_scf.for` from 0. It compares signed numbers, so it stops early for counts of 2^31 and more, which no kernel has.
    A count of 0 becomes 1, as the hardware runs the body once.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: hwloop.HardwareLoopOperation, rewriter: PatternRewriter, /
    ) -> None:
        seq = _Sequence()
        static = op.static_count()
        if static is not None:
            stop = seq.li(static)
        else:
            (count,) = op.count_operands()
            seq.ops.append(is_zero := riscv.SltiuOp(count, 1))
            stop = seq.add(count, is_zero.rd)
        start = seq.li(0)
        block = op.body.block
        yield_op = block.last_op
        assert isinstance(yield_op, hwloop.YieldOp)
        rewriter.replace(yield_op, riscv_scf.YieldOp(*yield_op.operands))
        rewriter.insert_block_argument(block, 0, _UNALLOCATED)
        body = rewriter.move_region_contents_to_new_regions(op.body)
        loop = riscv_scf.ForOp(start, stop, IntegerAttr(1, si12), op.iter_args, body)
        rewriter.insert(seq.ops, InsertPoint.before(op))
        rewriter.replace(op, loop)


@dataclass(frozen=True)
class RiscvPulpDesugarPass(ModulePass):
    """
    Rewrites every op of `riscv_pulp` but the narrow loads and stores, which are RV32 already. It needs scratch registers:
    run it before register allocation.
    """

    name = "riscv-pulp-desugar"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns: list[RewritePattern] = [
            DesugarMemory(),
            RefuseEventLoad(),
            DesugarAccumulate(),
            DesugarBinary(),
            DesugarAddn(),
            DesugarUnary(),
            DesugarInsert(),
            DesugarHardwareLoop(),
        ]
        PatternRewriteWalker(
            GreedyRewritePatternApplier(patterns), walk_regions_first=True
        ).rewrite_module(op)
