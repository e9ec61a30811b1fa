"""Building one assembly function as IR of xDSL's `riscv` dialects, `riscv_pulp` and `riscv_zfinx`."""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from xdsl.dialects import riscv_func, rv32
from xdsl.dialects.riscv import ops as riscv
from xdsl.dialects.riscv.abstract_ops import RISCVInstruction
from xdsl.dialects.riscv.registers import (
    FloatRegisterType,
    IntRegisterType,
    Registers,
)
from xdsl.ir import Block, Operation, Region, SSAValue

from qfold.dialects import riscv_zfinx as zfinx
from qfold.dialects.riscv_pulp import hwloop, memory
from qfold.dialects.riscv_pulp.loop_rules import MIN_BODY, MIN_TAIL
from qfold.targets import Isa

WORD = 4
"""Bytes of a float, a pointer and a stack slot."""

_Op = TypeVar("_Op", bound=Operation)


def fits_12_bits(value: int) -> bool:
    """Whether an instruction takes `value` as an immediate or offset."""
    return -2048 <= value < 2048


@dataclass
class Loop:
    """A loop while its body is built. The body ends by `yield_`; `results` are there once the loop is closed."""

    args: tuple[SSAValue, ...]
    yielded: tuple[SSAValue, ...] | None = None
    results: tuple[SSAValue, ...] = ()

    def yield_(self, *values: SSAValue) -> None:
        """The values that the next iteration starts with, in the order of `args`."""
        self.yielded = values


@dataclass
class FunctionBuilder:
    """Appends instructions to a function `void symbol(parameters...)` whose parameters are words: pointers and counts.

    Values are SSA and have no registers yet. An instruction that overwrites a register (post-increment, multiply-add, the carried
    values of a loop) takes a value that nobody reads afterwards and returns the new one. `emit.finish` turns the builder into
    text.
    """

    symbol: str
    isa: Isa
    parameters: Sequence[str]
    comment: str = ""
    """One line about the function, for its text."""
    ties: list[tuple[SSAValue, SSAValue]] = field(default_factory=list[tuple[SSAValue, SSAValue]])
    stack_arguments: dict[riscv.LwOp, int] = field(default_factory=dict[riscv.LwOp, int])
    """Loads of arguments that are on the stack -> which word of the caller's frame. Their offset is known at the end."""
    slots: int = 0
    """Words of the frame that the function itself uses."""

    def __post_init__(self) -> None:
        in_registers = self.parameters[:8]
        block = Block(arg_types=[Registers.UNALLOCATED_INT] * len(in_registers))
        self.function = riscv_func.FuncOp(
            self.symbol, Region(block), (block.arg_types, ()), visibility="public", p2align=2
        )
        self._block = block
        self.arguments: dict[str, SSAValue] = dict(zip(in_registers, block.args, strict=True))
        for name, value in self.arguments.items():
            value.name_hint = name
        for index, name in enumerate(self.parameters[8:]):
            load = self.emit(riscv.LwOp(self.sp, 0))
            self.stack_arguments[load] = index
            self.arguments[name] = load.rd

    # region instructions

    def emit(self, op: _Op) -> _Op:
        """Append any op."""
        self._block.add_op(op)
        return op

    @property
    def float_in_x(self) -> bool:
        """Whether floats are in integer registers."""
        return self.isa.float_registers == "x"

    @property
    def float_type(self) -> IntRegisterType | FloatRegisterType:
        """An unallocated register for a float."""
        return Registers.UNALLOCATED_INT if self.float_in_x else Registers.UNALLOCATED_FLOAT

    @property
    def sp(self) -> SSAValue:
        """The stack pointer; the slots start there."""
        return self.emit(rv32.GetRegisterOp(Registers.SP)).res

    @property
    def zero(self) -> SSAValue:
        """x0."""
        return self.emit(rv32.GetRegisterOp(Registers.ZERO)).res

    def li(self, value: int) -> SSAValue:
        """A constant, in one or two instructions, which a hardware loop may hold."""
        value = (value + (1 << 31)) % (1 << 32) - (1 << 31)
        if fits_12_bits(value):
            return self.emit(rv32.LiOp(value)).rd
        low = (value + 2048) % 4096 - 2048
        # As text: the 20 bits of an attribute print as a signed number, which assemblers refuse.
        upper = self.emit(riscv.LuiOp(str((value - low) >> 12 & 0xFFFFF))).rd
        return self.emit(riscv.AddiOp(upper, low)).rd if low else upper

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(riscv.AddOp(a, b)).rd

    def addi(self, a: SSAValue, value: int) -> SSAValue:
        """`a + value` for any constant; `a` itself for 0."""
        if value == 0:
            return a
        if fits_12_bits(value):
            return self.emit(riscv.AddiOp(a, value)).rd
        return self.add(a, self.li(value))

    def lw(self, pointer: SSAValue, offset: int = 0) -> SSAValue:
        return self.emit(riscv.LwOp(pointer, offset)).rd

    def sw(self, value: SSAValue, pointer: SSAValue, offset: int = 0) -> None:
        self.emit(riscv.SwOp(pointer, value, offset))

    # endregion
    # region floats

    def fload(self, pointer: SSAValue, offset: int = 0) -> SSAValue:
        """The float at `pointer + offset` (12 bits)."""
        if self.float_in_x:
            return self.lw(pointer, offset)
        return self.emit(riscv.FLwOp(pointer, offset)).rd

    def fload_post(self, pointer: SSAValue, step: int | SSAValue) -> tuple[SSAValue, SSAValue]:
        """The float at `pointer`, and `pointer + step`: one instruction where the ISA has it for floats, else two."""
        if self.float_in_x and self.isa.xpulpv2:
            if isinstance(step, SSAValue):
                reg = self.emit(memory.LwPostRegOp(pointer, step))
                return reg.rd, reg.rs1_out
            if fits_12_bits(step):
                imm = self.emit(memory.LwPostOp(pointer, step))
                return imm.rd, imm.rs1_out
        value = self.fload(pointer)
        moved = self.add(pointer, step) if isinstance(step, SSAValue) else self.addi(pointer, step)
        return value, moved

    def fstore(self, value: SSAValue, pointer: SSAValue, offset: int = 0) -> None:
        if isinstance(value.type, FloatRegisterType):
            self.emit(riscv.FSwOp(pointer, value, offset))
        else:
            self.sw(value, pointer, offset)

    def fstore_post(self, value: SSAValue, pointer: SSAValue, step: int) -> SSAValue:
        """Store at `pointer`; `pointer + step`."""
        if self.float_in_x and self.isa.xpulpv2 and fits_12_bits(step):
            return self.emit(memory.SwPostOp(pointer, value, step)).rs1_out
        self.fstore(value, pointer)
        return self.addi(pointer, step)

    def fconst(self, value: float) -> SSAValue:
        """A constant, rounded to f32."""
        (bits,) = struct.unpack("<i", struct.pack("<f", value))
        return self.bits_to_float(self.li(bits))

    def fzero(self) -> SSAValue:
        """A 0 that an instruction may overwrite."""
        if self.float_in_x:
            return self.emit(rv32.LiOp(0)).rd
        return self.bits_to_float(self.zero)

    def bits_to_float(self, value: SSAValue) -> SSAValue:
        """The float whose bits an integer register holds: where floats are in x registers, itself."""
        return value if self.float_in_x else self.emit(riscv.FMvWXOp(value)).rd

    def float_to_bits(self, value: SSAValue) -> SSAValue:
        """The reverse of `bits_to_float`."""
        return value if self.float_in_x else self.emit(riscv.FMvXWOp(value)).rd

    def int_to_float(self, value: SSAValue) -> SSAValue:
        """A signed integer as a float."""
        return self.emit(zfinx.FCvtSWOp(value, rd=self.float_type)).rd

    def fmadd(self, accumulator: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """`a * b + accumulator`, rounded once, in the accumulator's register."""
        return self.emit(zfinx.FMAddSOp(accumulator, a, b)).rd_out

    def fmadd4(self, a: SSAValue, b: SSAValue, addend: SSAValue) -> SSAValue:
        """`a * b + addend`, rounded once, in another register than the addend's."""
        return self.emit(zfinx.FMAdd4SOp(a, b, addend)).rd

    def fnmsub(self, accumulator: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """`accumulator - a * b`, rounded once, in the accumulator's register."""
        return self.emit(zfinx.FNMSubSOp(accumulator, a, b)).rd_out

    def fadd(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(zfinx.FAddSOp(a, b)).rd

    def fmul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(zfinx.FMulSOp(a, b)).rd

    # endregion
    # region frame and loops

    def slot(self) -> int:
        """A word of the frame; its byte offset from sp."""
        self.slots += 1
        return (self.slots - 1) * WORD

    def spill(self, value: SSAValue, slot: int) -> None:
        """Store an integer register to a slot."""
        self.sw(value, self.sp, slot)

    def reload(self, slot: int) -> SSAValue:
        """What `spill` stored."""
        return self.lw(self.sp, slot)

    def tie(self, a: SSAValue, b: SSAValue) -> None:
        """Ask for one register for two values that are never alive at once."""
        self.ties.append((a, b))

    @contextmanager
    def loop(
        self, count: int | SSAValue, carried: Sequence[SSAValue], *, level: int = 0
    ) -> Generator[Loop]:
        """
        A hardware loop that runs its body `count` (at least 1) times. `level`: 0 for an innermost loop, 1 for one around it.

        ```python
        with b.loop(n, [p]) as loop:
            (p,) = loop.args
            ...
            loop.yield_(p)
        (p,) = loop.results
        ```
        """
        counter = self.li(count) if isinstance(count, int) else count
        outer = self._block
        self._block = Block(arg_types=[v.type for v in carried])
        loop = Loop(tuple(self._block.args))
        yield loop
        if loop.yielded is None:
            raise AssertionError("the body of a loop ends by yield_")
        self._pad()
        self.emit(hwloop.YieldOp(*loop.yielded))
        body, self._block = self._block, outer
        op = self.emit(hwloop.LpSetupOp(counter, carried, Region(body), level=level))
        loop.results = tuple(op.res)

    def _pad(self) -> None:
        """A body that is too short, or that ends too close to an inner loop's end, gets `nop`s."""
        total = 0
        tail = MIN_TAIL
        for op in self._block.ops:
            if isinstance(op, hwloop.HardwareLoopOperation):
                total += 1 + sum(1 for _ in op.instructions())
                tail = 0
            elif isinstance(op, RISCVInstruction):
                total += 1
                tail += 1
        for _ in range(max(MIN_BODY - total, MIN_TAIL - tail)):
            self.emit(riscv.NopOp())

    # endregion
