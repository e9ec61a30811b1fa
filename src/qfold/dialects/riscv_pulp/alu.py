"""Arithmetic: multiply-accumulate, packed dot products, minimum, maximum, clipping, bit fields."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Final

from xdsl.backend.register_allocatable import RegisterConstraints
from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.riscv.abstract_ops import AssemblyInstructionArg, assembly_arg_str
from xdsl.dialects.riscv.attrs import UI5, ui5
from xdsl.dialects.riscv.registers import IntRegisterType, Registers
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    VarConstraint,
    attr_def,
    base,
    irdl_op_definition,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.riscv_pulp.assembly import PulpInstruction
from qfold.dialects.riscv_pulp.tied import verify_overwritten

# region bases


class _RegisterInstruction(PulpInstruction, ABC):
    """An R-type instruction without side effects. The arguments are printed rd, rs1, rs2."""

    traits = traits_def(Pure())

    def insn_args(self) -> str:
        e = self.encoding
        rd, rs1, rs2 = map(assembly_arg_str, self._fields())
        return f"r {e.opcode:#x}, {e.funct3}, {e.funct7:#x}, {rd}, {rs1}, {rs2}"

    def _fields(self) -> tuple[AssemblyInstructionArg, ...]:
        """rd, rs1 and rs2 of the encoding."""
        rd, rs1, rs2 = self.assembly_line_args()
        assert rd is not None and rs1 is not None and rs2 is not None
        return rd, rs1, rs2


class AccumulateOperation(_RegisterInstruction, ABC):
    """rd += f(rs1, rs2): the accumulator `rd_in` is overwritten by `rd_out`, in the same register."""

    ACCUMULATOR: ClassVar = VarConstraint("ACCUMULATOR", base(IntRegisterType))

    rd_in = operand_def(ACCUMULATOR)
    rs1 = operand_def(IntRegisterType)
    rs2 = operand_def(IntRegisterType)
    rd_out = result_def(ACCUMULATOR)

    assembly_format = "$rd_in `,` $rs1 `,` $rs2 attr-dict `:` functional-type(operands, results)"

    def __init__(
        self, rd_in: SSAValue | Operation, rs1: SSAValue | Operation, rs2: SSAValue | Operation
    ):
        rd_in = SSAValue.get(rd_in)
        super().__init__(operands=[rd_in, rs1, rs2], result_types=[rd_in.type])

    def verify_(self) -> None:
        verify_overwritten(self, self.rd_in, self.rd_out)

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd_in, self.rs1, self.rs2

    def get_register_constraints(self) -> RegisterConstraints:
        return RegisterConstraints((self.rs1, self.rs2), (), ((self.rd_in, self.rd_out),))


class BinaryOperation(_RegisterInstruction, ABC):
    """rd = f(rs1, rs2)."""

    rs1 = operand_def(IntRegisterType)
    rs2 = operand_def(IntRegisterType)
    rd = result_def(IntRegisterType)

    assembly_format = "$rs1 `,` $rs2 attr-dict `:` functional-type(operands, results)"

    def __init__(
        self,
        rs1: SSAValue | Operation,
        rs2: SSAValue | Operation,
        *,
        rd: IntRegisterType = Registers.UNALLOCATED_INT,
    ):
        super().__init__(operands=[rs1, rs2], result_types=[rd])

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, self.rs2


class ClipOperation(_RegisterInstruction, ABC):
    """rd = rs1 limited to a range that the 5-bit immediate gives. For 0 the upper limit is 0, as for 1."""

    rs1 = operand_def(IntRegisterType)
    rd = result_def(IntRegisterType)
    immediate = attr_def(IntegerAttr[UI5])

    assembly_format = "$rs1 `,` $immediate attr-dict `:` functional-type(operands, results)"

    def __init__(
        self,
        rs1: SSAValue | Operation,
        immediate: int,
        *,
        rd: IntRegisterType = Registers.UNALLOCATED_INT,
    ):
        super().__init__(
            operands=[rs1],
            result_types=[rd],
            attributes={"immediate": IntegerAttr(immediate, ui5)},
        )

    @property
    def upper(self) -> int:
        """The largest result."""
        return (1 << max(self.immediate.value.data - 1, 0)) - 1

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, self.immediate

    def _fields(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, f"x{self.immediate.value.data}"


class _BitField(_RegisterInstruction, ABC):
    """
    Works on a bit field of a register. The instruction has the field's length, minus 1, in the low bits of funct7 and its
    position in rs2's place. The manuals contradict each other on fields that reach beyond bit 31: they are refused.
    """

    length = attr_def(IntegerAttr[UI5])
    """The field's length minus 1, as the instruction has it."""

    position = attr_def(IntegerAttr[UI5])

    @property
    def bits(self) -> int:
        """The field's length, 1 to 32."""
        return self.length.value.data + 1

    @property
    def shift(self) -> int:
        """The number of the field's lowest bit."""
        return self.position.value.data

    @property
    def mask(self) -> int:
        """The field's bits, as an unsigned number."""
        return ((1 << self.bits) - 1) << self.shift

    def verify_(self) -> None:
        if self.bits + self.shift > 32:
            raise VerifyException(
                f"a field of {self.bits} bits at bit {self.shift} does not fit in 32 bits"
            )

    def insn_args(self) -> str:
        e = self.encoding
        rd, rs1 = map(assembly_arg_str, self._fields())
        funct7 = e.funct7 | self.length.value.data
        return f"r {e.opcode:#x}, {e.funct3}, {funct7:#x}, {rd}, {rs1}, x{self.shift}"


class BitFieldOperation(_BitField, ABC):
    """rd = f(rs1), with a bit field of constant length and position."""

    rs1 = operand_def(IntRegisterType)
    rd = result_def(IntRegisterType)

    assembly_format = (
        "$rs1 `,` $length `,` $position attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        rs1: SSAValue | Operation,
        bits: int,
        shift: int,
        *,
        rd: IntRegisterType = Registers.UNALLOCATED_INT,
    ):
        super().__init__(
            operands=[rs1],
            result_types=[rd],
            attributes={"length": IntegerAttr(bits - 1, ui5), "position": IntegerAttr(shift, ui5)},
        )

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, self.length, self.position

    def _fields(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1


# endregion
# region ops


@irdl_op_definition
class MacOp(AccumulateOperation):
    """rd += rs1 * rs2 (the low 32 bits)."""

    name = "riscv_pulp.mac"


@irdl_op_definition
class MsuOp(AccumulateOperation):
    """rd -= rs1 * rs2 (the low 32 bits)."""

    name = "riscv_pulp.msu"


@irdl_op_definition
class AbsOp(_RegisterInstruction):
    """rd = |rs1|; the smallest integer stays as it is."""

    name = "riscv_pulp.abs"

    rs1 = operand_def(IntRegisterType)
    rd = result_def(IntRegisterType)

    assembly_format = "$rs1 attr-dict `:` functional-type(operands, results)"

    def __init__(
        self, rs1: SSAValue | Operation, *, rd: IntRegisterType = Registers.UNALLOCATED_INT
    ):
        super().__init__(operands=[rs1], result_types=[rd])

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1

    def _fields(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, "x0"


@irdl_op_definition
class MinOp(BinaryOperation):
    """The smaller of two signed integers."""

    name = "riscv_pulp.min"


@irdl_op_definition
class MinuOp(BinaryOperation):
    """The smaller of two unsigned integers."""

    name = "riscv_pulp.minu"


@irdl_op_definition
class MaxOp(BinaryOperation):
    """The larger of two signed integers."""

    name = "riscv_pulp.max"


@irdl_op_definition
class MaxuOp(BinaryOperation):
    """The larger of two unsigned integers."""

    name = "riscv_pulp.maxu"


@irdl_op_definition
class ClipOp(ClipOperation):
    """rs1 limited to [-2^(imm - 1), 2^(imm - 1) - 1], for imm = 0 to [-1, 0]."""

    name = "riscv_pulp.clip"

    @property
    def lower(self) -> int:
        """The smallest result."""
        return -self.upper - 1


@irdl_op_definition
class ClipuOp(ClipOperation):
    """rs1, signed, limited to [0, 2^(imm - 1) - 1], for imm = 0 to 0."""

    name = "riscv_pulp.clipu"


@irdl_op_definition
class AddnOp(_RegisterInstruction):
    """rd = (rs1 + rs2) >> imm, a sum of 32 bits as it wraps, shifted as a signed number."""

    name = "riscv_pulp.addn"

    rs1 = operand_def(IntRegisterType)
    rs2 = operand_def(IntRegisterType)
    rd = result_def(IntRegisterType)
    immediate = attr_def(IntegerAttr[UI5])

    assembly_format = (
        "$rs1 `,` $rs2 `,` $immediate attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        rs1: SSAValue | Operation,
        rs2: SSAValue | Operation,
        immediate: int,
        *,
        rd: IntRegisterType = Registers.UNALLOCATED_INT,
    ):
        super().__init__(
            operands=[rs1, rs2],
            result_types=[rd],
            attributes={"immediate": IntegerAttr(immediate, ui5)},
        )

    @property
    def shift(self) -> int:
        return self.immediate.value.data

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, self.rs2, self.immediate

    def insn_args(self) -> str:
        e = self.encoding
        rd, rs1, rs2 = map(assembly_arg_str, (self.rd, self.rs1, self.rs2))
        return f"r {e.opcode:#x}, {e.funct3}, {e.funct7 | self.shift:#x}, {rd}, {rs1}, {rs2}"


@irdl_op_definition
class ExtractOp(BitFieldOperation):
    """The field of rs1, sign-extended."""

    name = "riscv_pulp.extract"


@irdl_op_definition
class ExtractuOp(BitFieldOperation):
    """The field of rs1, zero-extended."""

    name = "riscv_pulp.extractu"


@irdl_op_definition
class BclrOp(BitFieldOperation):
    """rs1 with the bits of the field cleared."""

    name = "riscv_pulp.bclr"


@irdl_op_definition
class BsetOp(BitFieldOperation):
    """rs1 with the bits of the field set."""

    name = "riscv_pulp.bset"


@irdl_op_definition
class InsertOp(_BitField):
    """
    The lowest bits of rs1 replace the field of rd, whose other bits stay. GVSoC calls it `p.inserti`; the assembler's name is
    `p.insert`.
    """

    name = "riscv_pulp.insert"

    DESTINATION: ClassVar = VarConstraint("DESTINATION", base(IntRegisterType))

    rd_in = operand_def(DESTINATION)
    rs1 = operand_def(IntRegisterType)
    rd_out = result_def(DESTINATION)

    assembly_format = (
        "$rd_in `,` $rs1 `,` $length `,` $position attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self, rd_in: SSAValue | Operation, rs1: SSAValue | Operation, bits: int, shift: int
    ):
        rd_in = SSAValue.get(rd_in)
        super().__init__(
            operands=[rd_in, rs1],
            result_types=[rd_in.type],
            attributes={"length": IntegerAttr(bits - 1, ui5), "position": IntegerAttr(shift, ui5)},
        )

    def verify_(self) -> None:
        super().verify_()
        verify_overwritten(self, self.rd_in, self.rd_out)

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd_in, self.rs1, self.length, self.position

    def _fields(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd_in, self.rs1

    def get_register_constraints(self) -> RegisterConstraints:
        return RegisterConstraints((self.rs1,), (), ((self.rd_in, self.rd_out),))


# endregion


OPS: Final[tuple[type[Operation], ...]] = (
    MacOp,
    MsuOp,
    AbsOp,
    MinOp,
    MinuOp,
    MaxOp,
    MaxuOp,
    ClipOp,
    ClipuOp,
    AddnOp,
    ExtractOp,
    ExtractuOp,
    BclrOp,
    BsetOp,
    InsertOp,
)
