"""Interpreters of `riscv_pulp`, beside xDSL's own for `riscv`, `riscv_scf` and `riscv_func`.

As there, an integer register holds an `IntegerAttr` of the interpreter's index bitwidth, which must be 32, and an address
register a `RawPtr` into a `bytearray`. An access outside of its bytearray raises `InterpretationError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import rv32
from xdsl.dialects.builtin import IntegerAttr, IntegerType
from xdsl.dialects.riscv import ops as riscv
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.interpreters.riscv import RiscvFunctions
from xdsl.interpreters.rv32 import Rv32Functions
from xdsl.interpreters.utils.ptr import RawPtr
from xdsl.ir import Operation
from xdsl.utils.comparisons import to_signed, to_unsigned
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects.riscv_pulp import alu, dot, hwloop, memory

_BITS = 32


def _check_width(interpreter: Interpreter) -> None:
    if interpreter.index_bitwidth != _BITS:
        raise InterpretationError(
            f"XpulpV2 has 32-bit registers, the interpreter's index bitwidth is {interpreter.index_bitwidth}"
        )


def _signed(op: Operation, value: Any) -> int:
    """An integer register's content as a signed number."""
    if not isinstance(value, IntegerAttr):
        raise InterpretationError(f"{op.name} computes with integers, found {value}")
    return to_signed(value.value.data, _BITS)


def _register(value: int) -> IntegerAttr[IntegerType]:
    """The low 32 bits of `value` as the content of an integer register."""
    return IntegerAttr(to_signed(value & 0xFFFFFFFF, _BITS), _BITS)


def _address(op: Operation, pointer: Any, size: int) -> tuple[bytearray, slice]:
    """The memory behind a pointer, and where its `size` bytes are."""
    if not isinstance(pointer, RawPtr):
        raise InterpretationError(f"{op.name} accesses memory through {pointer}, not a pointer")
    if not 0 <= pointer.offset <= len(pointer.memory) - size:
        raise InterpretationError(
            f"{op.name} accesses {size} bytes at {pointer.offset} of a buffer of {len(pointer.memory)}"
        )
    return pointer.memory, slice(pointer.offset, pointer.offset + size)


def _load(op: Operation, pointer: Any, size: int, signed: bool) -> IntegerAttr[IntegerType]:
    memory_, where = _address(op, pointer, size)
    return _register(int.from_bytes(memory_[where], "little", signed=signed))


def _store(op: Operation, pointer: Any, size: int, value: Any) -> None:
    memory_, where = _address(op, pointer, size)
    masked = to_unsigned(_signed(op, value), _BITS) & ((1 << (8 * size)) - 1)
    memory_[where] = masked.to_bytes(size, "little")


_ACCESS = {"lb": (1, True), "lbu": (1, False), "lh": (2, True), "lhu": (2, False), "lw": (4, True)}
"""Load -> bytes, sign extension."""

_STORE_SIZE = {"sb": 1, "sh": 2, "sw": 4}


# region arithmetic


def _elements(value: int, bits: int, signed: bool) -> list[int]:
    """The packed elements of a register, lowest first."""
    mask = (1 << bits) - 1
    lanes = [(value >> shift) & mask for shift in range(0, _BITS, bits)]
    return [to_signed(lane, bits) for lane in lanes] if signed else lanes


def dot_product(kind: dot.DotProduct, rs1: int, rs2: int) -> int:
    """The sum of the products of two registers' elements, not yet wrapped to 32 bits."""
    lhs = _elements(rs1, kind.bits, kind.lhs_signed)
    rhs = _elements(rs2, kind.bits, kind.rhs_signed)
    if kind.broadcast:
        rhs = rhs[:1] * len(lhs)
    return sum(a * b for a, b in zip(lhs, rhs, strict=True))


def _binary(op: Operation, rs1: int, rs2: int) -> int:
    match op:
        case alu.MinOp():
            return min(rs1, rs2)
        case alu.MaxOp():
            return max(rs1, rs2)
        case alu.MinuOp():
            return min(to_unsigned(rs1, _BITS), to_unsigned(rs2, _BITS))
        case alu.MaxuOp():
            return max(to_unsigned(rs1, _BITS), to_unsigned(rs2, _BITS))
        case alu.AddnOp():
            return to_signed((rs1 + rs2) & 0xFFFFFFFF, _BITS) >> op.shift
        case dot.DotOperation():
            return dot_product(dot.DotProduct.of(op.name), rs1, rs2)
        case _:
            raise InterpretationError(f"no interpretation of {op.name}")


def _accumulate(op: Operation, rd: int, rs1: int, rs2: int) -> int:
    match op:
        case alu.MacOp():
            return rd + rs1 * rs2
        case alu.MsuOp():
            return rd - rs1 * rs2
        case dot.DotAccumulateOperation():
            return rd + dot_product(dot.DotProduct.of(op.name), rs1, rs2)
        case alu.InsertOp():
            return (rd & ~op.mask) | ((rs1 << op.shift) & op.mask)
        case _:
            raise InterpretationError(f"no interpretation of {op.name}")


def _unary(op: Operation, rs1: int) -> int:
    match op:
        case alu.AbsOp():
            return abs(rs1)
        case alu.ClipOp():
            return min(max(rs1, op.lower), op.upper)
        case alu.ClipuOp():
            return min(max(rs1, 0), op.upper)
        case alu.ExtractOp():
            return to_signed((rs1 & op.mask) >> op.shift, op.bits)
        case alu.ExtractuOp():
            return (rs1 & op.mask) >> op.shift
        case alu.BclrOp():
            return rs1 & ~op.mask
        case alu.BsetOp():
            return rs1 | op.mask
        case _:
            raise InterpretationError(f"no interpretation of {op.name}")


_ARITY: dict[int, Callable[..., int]] = {1: _unary, 2: _binary, 3: _accumulate}


def _compute(op: Operation, values: tuple[int, ...]) -> int:
    if isinstance(op, alu.InsertOp):
        rd, rs1 = values
        return _accumulate(op, rd, rs1, 0)
    return _ARITY[len(values)](op, *values)


# endregion


class RiscvPulpFunctions(InterpreterFunctions):
    """Every op of the dialect."""

    def run_arithmetic(
        self, interpreter: Interpreter, op: Operation, args: PythonValues
    ) -> PythonValues:
        _check_width(interpreter)
        args = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        result = _register(_compute(op, tuple(_signed(op, a) for a in args)))
        return RiscvFunctions.set_reg_values(interpreter, op.results, (result,))

    def run_narrow_load(
        self, interpreter: Interpreter, op: memory.NarrowLoadOperation, args: PythonValues
    ) -> PythonValues:
        _check_width(interpreter)
        (pointer,) = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        offset = RiscvFunctions.get_immediate_value(interpreter, op.immediate)
        size, signed = _ACCESS[op.assembly_instruction_name()]
        value = _load(op, pointer + _signed(op, offset), size, signed)
        return RiscvFunctions.set_reg_values(interpreter, op.results, (value,))

    def run_narrow_store(
        self, interpreter: Interpreter, op: memory.NarrowStoreOperation, args: PythonValues
    ) -> PythonValues:
        _check_width(interpreter)
        pointer, value = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        size = _STORE_SIZE[op.assembly_instruction_name()]
        _store(op, pointer + op.immediate.value.data, size, value)
        return ()

    def run_load(
        self, interpreter: Interpreter, op: memory.PostIncrementLoadOperation, args: PythonValues
    ) -> PythonValues:
        _check_width(interpreter)
        pointer, *increment = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        size, signed = _ACCESS[op.encoding.mnemonic.removeprefix("p.")]
        value = _load(op, pointer, size, signed)
        if isinstance(op, memory.PostIncrementLoadImmOperation):
            step = op.immediate.value.data
        else:
            step = _signed(op, increment[0])
        return RiscvFunctions.set_reg_values(interpreter, op.results, (value, pointer + step))

    def run_store(
        self, interpreter: Interpreter, op: memory.PostIncrementOperation, args: PythonValues
    ) -> PythonValues:
        _check_width(interpreter)
        pointer, value, *increment = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        _store(op, pointer, _STORE_SIZE[op.encoding.mnemonic.removeprefix("p.")], value)
        if isinstance(op, memory.PostIncrementStoreImmOperation):
            step = op.immediate.value.data
        else:
            step = _signed(op, increment[0])
        return RiscvFunctions.set_reg_values(interpreter, op.results, (pointer + step,))

    @impl(memory.ElwOp)
    def run_elw(
        self, interpreter: Interpreter, op: memory.ElwOp, args: PythonValues
    ) -> PythonValues:
        """The value that memory holds now: no other core and no event unit exists here that it could wait for."""
        _check_width(interpreter)
        (pointer,) = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        value = _load(op, pointer + op.immediate.value.data, 4, True)
        return RiscvFunctions.set_reg_values(interpreter, op.results, (value,))

    @impl(hwloop.LpSetupOp)
    def run_lp_setup(
        self, interpreter: Interpreter, op: hwloop.LpSetupOp, args: PythonValues
    ) -> PythonValues:
        _check_width(interpreter)
        count, *carried = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        return self._repeat(interpreter, op, to_unsigned(_signed(op, count), _BITS), tuple(carried))

    @impl(hwloop.LpSetupiOp)
    def run_lp_setupi(
        self, interpreter: Interpreter, op: hwloop.LpSetupiOp, args: PythonValues
    ) -> PythonValues:
        _check_width(interpreter)
        carried = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        return self._repeat(interpreter, op, op.static_count(), carried)

    def _repeat(
        self,
        interpreter: Interpreter,
        op: hwloop.HardwareLoopOperation,
        count: int,
        carried: PythonValues,
    ) -> PythonValues:
        # A count of 0 does not skip the body: the counter is looked at when the last instruction was reached.
        for _ in range(max(count, 1)):
            carried = interpreter.run_ssacfg_region(op.body, carried, op.encoding.mnemonic)
        return carried

    @impl_terminator(hwloop.YieldOp)
    def run_yield(
        self, interpreter: Interpreter, op: hwloop.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        args = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        return ReturnedValues(args), ()


class Rv32BaseFunctions(Rv32Functions):
    """
    Instructions of RV32I that desugared code needs and xDSL does not interpret, and `slli`, which there raises when a
    bit is lost. To be registered instead of `Rv32Functions`.
    """

    @impl(riscv.NopOp)
    def run_nop(
        self, interpreter: Interpreter, op: riscv.NopOp, args: PythonValues
    ) -> PythonValues:
        return ()

    def run_base(self, interpreter: Interpreter, op: Operation, args: PythonValues) -> PythonValues:
        _check_width(interpreter)
        args = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        values = [_signed(op, value) for value in args]
        if len(values) == 1:
            values.append(_signed(op, op.attributes["immediate"]))
        result = _register(_BASE_ISA[type(op)](*values))
        return RiscvFunctions.set_reg_values(interpreter, op.results, (result,))


def _sltu(a: int, b: int) -> int:
    return to_unsigned(a, _BITS) < to_unsigned(b, _BITS)


def _srl(a: int, shift: int) -> int:
    return to_unsigned(a, _BITS) >> shift


_BASE_ISA: dict[type[Operation], Callable[[int, int], int]] = {
    riscv.AndOp: int.__and__,
    riscv.OrOp: int.__or__,
    riscv.XorOp: int.__xor__,
    riscv.AndiOp: int.__and__,
    riscv.XoriOp: int.__xor__,
    riscv.SltuOp: _sltu,
    rv32.SlliOp: int.__lshift__,
    rv32.SrliOp: _srl,
    rv32.SraiOp: int.__rshift__,
}


def _register_by_base() -> None:
    """Give each concrete op the method of its base class. `register_impls` sees only attributes of the class."""
    for op_type in (*alu.OPS, *dot.OPS):
        _set(RiscvPulpFunctions, op_type, impl(op_type)(RiscvPulpFunctions.run_arithmetic))
    for op_type in memory.OPS:
        if issubclass(op_type, memory.NarrowLoadOperation):
            _set(RiscvPulpFunctions, op_type, impl(op_type)(RiscvPulpFunctions.run_narrow_load))
        elif issubclass(op_type, memory.NarrowStoreOperation):
            _set(RiscvPulpFunctions, op_type, impl(op_type)(RiscvPulpFunctions.run_narrow_store))
        elif issubclass(op_type, memory.PostIncrementLoadOperation):
            _set(RiscvPulpFunctions, op_type, impl(op_type)(RiscvPulpFunctions.run_load))
        elif issubclass(op_type, memory.PostIncrementOperation):
            _set(RiscvPulpFunctions, op_type, impl(op_type)(RiscvPulpFunctions.run_store))
    for op_type in _BASE_ISA:
        _set(Rv32BaseFunctions, op_type, impl(op_type)(Rv32BaseFunctions.run_base))
    register_impls(RiscvPulpFunctions)
    register_impls(Rv32BaseFunctions)


def _set(functions: type[InterpreterFunctions], op_type: type[Operation], method: object) -> None:
    setattr(functions, f"impl_{op_type.name}", method)


_register_by_base()
