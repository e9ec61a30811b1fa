"""From a built function to text: desugaring where XpulpV2 is missing, registers, prologue and epilogue, printing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import StringIO
from typing import Literal

from xdsl.backend.riscv.lowering.convert_riscv_scf_to_riscv_cf import ConvertRiscvScfToRiscvCfPass
from xdsl.context import Context
from xdsl.dialects import riscv_func, riscv_scf, rv32
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.riscv import ops as riscv
from xdsl.dialects.riscv.abstract_ops import RISCVInstruction
from xdsl.dialects.riscv.attrs import si12
from xdsl.dialects.riscv.registers import (
    FloatRegisterType,
    IntRegisterType,
    Registers,
    RISCVRegisterType,
)
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from qfold.backend.c.text import comment_text
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.registers import ARGUMENTS, CALLEE_SAVED, allocate
from qfold.dialects.riscv_pulp import PulpAssemblyPrinter
from qfold.dialects.riscv_pulp.hwloop import HardwareLoopOperation
from qfold.transforms.riscv_pulp_desugar import RiscvPulpDesugarPass

STACK_ALIGNMENT = 16


@dataclass(frozen=True)
class AssemblyFunction:
    """A finished function."""

    symbol: str
    text: str
    """What an upstream assembler takes: `.insn` for XpulpV2."""
    registers: tuple[str, ...]
    """Those that it uses besides x0 and sp."""
    saved: tuple[str, ...]
    """Those among them that it saves and restores."""
    frame_bytes: int
    code_bytes: int
    instructions: int
    """Executed by a call, without those of the loop whose count is a parameter."""
    instructions_per_iteration: int
    """Executed by an iteration of that loop; 0 where there is none."""

    def executed(self, iterations: int = 0) -> int:
        """Instructions of a call whose count parameter is `iterations`."""
        return self.instructions + self.instructions_per_iteration * iterations


Stage = Literal["built", "allocated"]
"""`built`: values without registers, desugared where the target needs it; `allocated`: with them, before prologue and
epilogue."""

Observer = Callable[[Stage, riscv_func.FuncOp], None]
"""Is given a function at each stage, to look at: the same object goes through all of them."""

_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observing(observer: Observer) -> Generator[None]:
    """While functions are generated: `observer` sees each. One that runs out of registers is built again in another way, under
    the same symbol."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def _reached(stage: Stage, function: riscv_func.FuncOp) -> None:
    observer = _OBSERVER.get()
    if observer is not None:
        observer(stage, function)


def finish(builder: FunctionBuilder) -> AssemblyFunction:
    """Registers, prologue, epilogue and text of a built function. The builder is spent.

    `OutOfRegisters` when it keeps too many values at once.
    """
    builder.emit(riscv_func.ReturnOp())
    function = builder.function
    module = ModuleOp([function])
    module.verify()
    if not builder.isa.xpulpv2:
        RiscvPulpDesugarPass().apply(Context(), module)
    _reached("built", function)
    used = allocate(function, builder.ties)
    _reached("allocated", function)
    saved = sorted(used & CALLEE_SAVED, key=_order)
    frame = _insert_frame(builder, saved)
    fixed, repeated = _executed(function.body.block)
    _lower_loops(module, builder.symbol)
    instructions = sum(_instructions(op) for op in function.body.walk())
    output = StringIO()
    PulpAssemblyPrinter(output, insn=True).print_module(module)
    symbol = builder.symbol
    comment = f"/* {comment_text(builder.comment)} */\n" if builder.comment else ""
    size = f".type {symbol}, @function\n.size {symbol}, . - {symbol}\n"
    return AssemblyFunction(
        symbol,
        f"{comment}{output.getvalue()}{size}",
        tuple(r.register_name for r in sorted(used, key=_order)),
        tuple(r.register_name for r in saved),
        frame,
        4 * instructions,
        fixed,
        repeated,
    )


def _order(register: RISCVRegisterType) -> tuple[bool, int]:
    index = register.index
    assert not isinstance(index, StringAttr)
    return isinstance(register, FloatRegisterType), getattr(index, "data", -1)


def _instructions(op: Operation) -> int:
    if isinstance(op, rv32.LiOp) and isinstance(op.immediate, IntegerAttr):
        value = op.immediate.value.data
        return 1 if -2048 <= value < 2048 or value % 4096 == 0 else 2
    return int(isinstance(op, RISCVInstruction))


def _executed(block: Block) -> tuple[int, int]:
    """Instructions that a block executes, and how many more for each iteration of a loop with an unknown count."""
    fixed = repeated = 0
    for op in block.ops:
        fixed += _instructions(op)
        match op:
            case HardwareLoopOperation():
                body, entry, each = op.body.block, 0, 0
                count = _constant(op.count_operands()[0]) if op.count_operands() else None
                count = op.static_count() if count is None else count
            case riscv_scf.ForOp():
                # `mv`, `bge` before the loop, `addi`, `blt` in it.
                body, entry, each = op.body.block, 2, 2
                count = _constant(op.stop)
            case _:
                continue
        inner, unknown = _executed(body)
        fixed += entry
        if count is None:
            assert not unknown and not repeated
            repeated = inner + each
        else:
            fixed += count * (inner + each)
            repeated += count * unknown
    return fixed, repeated


def _constant(value: SSAValue) -> int | None:
    """What `FunctionBuilder.li` made."""
    match value.owner:
        case rv32.LiOp(immediate=IntegerAttr() as immediate):
            return immediate.value.data
        case riscv.LuiOp(immediate=StringAttr() as text):
            return int(text.data) << 12
        case riscv.AddiOp(rs1=upper, immediate=IntegerAttr() as low):
            base = _constant(upper)
            return None if base is None else base + low.value.data
        case _:
            return None


def _lower_loops(module: ModuleOp, symbol: str) -> None:
    """What desugaring left as `riscv_scf.for`, with labels that no other function has."""
    ConvertRiscvScfToRiscvCfPass().apply(Context(), module)
    for op in module.walk():
        if isinstance(op, riscv.LabelOp):
            op.label = StringAttr(f".L{symbol}_{op.label.data}")


# region frame


def _insert_frame(builder: FunctionBuilder, saved: Sequence[RISCVRegisterType]) -> int:
    """Save and restore, bring the arguments to their registers, say where those on the stack are; the frame's size in bytes."""
    block = builder.function.body.block
    moves = {
        _allocated(value): ARGUMENTS[value.index] for value in block.args if value.uses.get_length()
    }
    first = builder.slots * WORD
    scratch = first + len(saved) * WORD
    copies, needs_scratch = _parallel_moves(moves, scratch)
    size = scratch + WORD * needs_scratch
    size += -size % STACK_ALIGNMENT
    for load, index in builder.stack_arguments.items():
        load.immediate = IntegerAttr(size + index * WORD, si12)
    if size:
        save: list[Operation] = [sp := rv32.GetRegisterOp(Registers.SP)]
        save.append(riscv.AddiOp(sp, -size, rd=Registers.SP))
        restore: list[Operation] = [sp_again := rv32.GetRegisterOp(Registers.SP)]
        for i, register in enumerate(saved):
            save += _save(sp, register, first + i * WORD)
            restore.append(_restore(sp_again, register, first + i * WORD))
        restore.append(riscv.AddiOp(sp_again, size, rd=Registers.SP))
        last = block.last_op
        assert last is not None
        Rewriter.insert_op(restore, InsertPoint.before(last))
        copies = [*save, *copies]
    if copies:
        Rewriter.insert_op(copies, InsertPoint.at_start(block))
    return size


def _allocated(value: SSAValue) -> RISCVRegisterType:
    assert isinstance(value.type, RISCVRegisterType)
    return value.type


def _integer(register: RISCVRegisterType) -> IntRegisterType:
    assert isinstance(register, IntRegisterType)
    return register


def _save(sp: rv32.GetRegisterOp, register: RISCVRegisterType, offset: int) -> list[Operation]:
    if isinstance(register, FloatRegisterType):
        value: Operation = riscv.GetFloatRegisterOp(register)
        return [value, riscv.FSwOp(sp, value, offset)]
    value = rv32.GetRegisterOp(_integer(register))
    return [value, riscv.SwOp(sp, value, offset)]


def _restore(sp: rv32.GetRegisterOp, register: RISCVRegisterType, offset: int) -> Operation:
    if isinstance(register, FloatRegisterType):
        return riscv.FLwOp(sp, offset, rd=register)
    return riscv.LwOp(sp, offset, rd=_integer(register))


def _parallel_moves(
    moves: Mapping[RISCVRegisterType, RISCVRegisterType], scratch: int
) -> tuple[list[Operation], bool]:
    """Instructions that move registers all at once (destination -> source), and whether a cycle went through `scratch(sp)`."""
    pending = {d: s for d, s in moves.items() if d != s}
    ops: list[Operation] = []
    used = False
    parked: RISCVRegisterType | None = None
    while pending or parked is not None:
        waiting = set(pending.values())
        if parked is not None and parked not in waiting:
            ops.append(sp := rv32.GetRegisterOp(Registers.SP))
            ops.append(_restore(sp, parked, scratch))
            parked = None
            continue
        free = next((d for d in pending if d not in waiting), None)
        if free is not None:
            ops.append(value := rv32.GetRegisterOp(_integer(pending.pop(free))))
            ops.append(riscv.MVOp(value, rd=_integer(free)))
            continue
        # What is left are cycles. With one source parked, its register can be written.
        parked, source = pending.popitem()
        ops.append(sp := rv32.GetRegisterOp(Registers.SP))
        ops += _save(sp, source, scratch)
        used = True
    return ops, used


# endregion
