"""Loads and stores: with post-increment, the event load, and the narrow ones of the base ISA.

The narrow loads and stores of xDSL's `riscv` dialect print `lb rd, rs1, imm`, which no assembler takes. Those here print
`lb rd, imm(rs1)`.
"""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Final

from xdsl.backend.register_allocatable import RegisterConstraints
from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.riscv.abstract_ops import (
    AssemblyInstructionArg,
    RdRsImmIntegerOperation,
    RsRsImmIntegerOperation,
    assembly_arg_str,
)
from xdsl.dialects.riscv.attrs import SI12, si12
from xdsl.dialects.riscv.registers import IntRegisterType, Registers
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.irdl import (
    VarConstraint,
    attr_def,
    base,
    irdl_op_definition,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.riscv_pulp.assembly import PulpInstruction
from qfold.dialects.riscv_pulp.tied import verify_overwritten

# region bases


class NarrowLoadOperation(RdRsImmIntegerOperation, ABC):
    """`l{b,bu,h,hu} rd, imm(rs1)` of RV32I."""

    traits = traits_def(MemoryReadEffect())

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, f"{assembly_arg_str(self.immediate)}({assembly_arg_str(self.rs1)})"


class NarrowStoreOperation(RsRsImmIntegerOperation, ABC):
    """`s{b,h} rs2, imm(rs1)` of RV32I."""

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rs2, f"{assembly_arg_str(self.immediate)}({assembly_arg_str(self.rs1)})"


class PostIncrementOperation(PulpInstruction, ABC):
    """
    An access at `rs1` that then adds to `rs1`: the sum is the result `rs1_out`, in the same register. `rs1` is the first operand
    and `rs1_out` the last result; each subclass defines all of its operands, for the order's sake.
    """

    POINTER: ClassVar = VarConstraint("POINTER", base(IntRegisterType))

    @property
    def pointer(self) -> SSAValue:
        """`rs1`."""
        return self.operands[0]

    @property
    def pointer_out(self) -> OpResult:
        """`rs1_out`."""
        return self.results[-1]

    def verify_(self) -> None:
        verify_overwritten(self, self.pointer, self.pointer_out)


class PostIncrementLoadOperation(PostIncrementOperation, ABC):
    """A load with post-increment. `rd` and the pointer are both written, so they are different registers."""

    rd = result_def(IntRegisterType)
    rs1_out = result_def(PostIncrementOperation.POINTER)

    traits = traits_def(MemoryReadEffect())

    def verify_(self) -> None:
        super().verify_()
        if self.rd.type.is_allocated and self.rd.type == self.rs1_out.type:
            raise VerifyException(
                f"rd and the incremented pointer are both {self.rd.type.register_name}"
            )


class PostIncrementLoadImmOperation(PostIncrementLoadOperation, ABC):
    """`p.l* rd, imm(rs1!)`: rd = memory[rs1]; rs1 += imm (bytes, 12 bits signed)."""

    rs1 = operand_def(PostIncrementOperation.POINTER)
    immediate = attr_def(IntegerAttr[SI12])

    assembly_format = "$rs1 `,` $immediate attr-dict `:` functional-type(operands, results)"

    def __init__(
        self,
        rs1: SSAValue | Operation,
        immediate: int,
        *,
        rd: IntRegisterType = Registers.UNALLOCATED_INT,
    ):
        rs1 = SSAValue.get(rs1)
        super().__init__(
            operands=[rs1],
            result_types=[rd, rs1.type],
            attributes={"immediate": IntegerAttr(immediate, si12)},
        )

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, f"{assembly_arg_str(self.immediate)}({assembly_arg_str(self.rs1)}!)"

    def insn_args(self) -> str:
        rd, imm, rs1 = map(assembly_arg_str, (self.rd, self.immediate, self.rs1))
        return f"i {self.encoding.opcode:#x}, {self.encoding.funct3}, {rd}, {imm}({rs1})"

    def get_register_constraints(self) -> RegisterConstraints:
        return RegisterConstraints((), (self.rd,), ((self.rs1, self.rs1_out),))


class PostIncrementLoadRegOperation(PostIncrementLoadOperation, ABC):
    """`p.l* rd, rs2(rs1!)`: rd = memory[rs1]; rs1 += rs2 (bytes)."""

    rs1 = operand_def(PostIncrementOperation.POINTER)
    rs2 = operand_def(IntRegisterType)

    assembly_format = "$rs1 `,` $rs2 attr-dict `:` functional-type(operands, results)"

    def __init__(
        self,
        rs1: SSAValue | Operation,
        rs2: SSAValue | Operation,
        *,
        rd: IntRegisterType = Registers.UNALLOCATED_INT,
    ):
        rs1 = SSAValue.get(rs1)
        super().__init__(operands=[rs1, rs2], result_types=[rd, rs1.type])

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, f"{assembly_arg_str(self.rs2)}({assembly_arg_str(self.rs1)}!)"

    def insn_args(self) -> str:
        e = self.encoding
        rd, rs1, rs2 = map(assembly_arg_str, (self.rd, self.rs1, self.rs2))
        return f"r {e.opcode:#x}, {e.funct3}, {e.funct7:#x}, {rd}, {rs1}, {rs2}"

    def get_register_constraints(self) -> RegisterConstraints:
        return RegisterConstraints((self.rs2,), (self.rd,), ((self.rs1, self.rs1_out),))


class PostIncrementStoreImmOperation(PostIncrementOperation, ABC):
    """`p.s* rs2, imm(rs1!)`: memory[rs1] = rs2; rs1 += imm (bytes, 12 bits signed)."""

    rs1 = operand_def(PostIncrementOperation.POINTER)
    rs2 = operand_def(IntRegisterType)
    rs1_out = result_def(PostIncrementOperation.POINTER)
    immediate = attr_def(IntegerAttr[SI12])

    assembly_format = (
        "$rs1 `,` $rs2 `,` $immediate attr-dict `:` functional-type(operands, results)"
    )

    traits = traits_def(MemoryWriteEffect())

    def __init__(self, rs1: SSAValue | Operation, rs2: SSAValue | Operation, immediate: int):
        rs1 = SSAValue.get(rs1)
        super().__init__(
            operands=[rs1, rs2],
            result_types=[rs1.type],
            attributes={"immediate": IntegerAttr(immediate, si12)},
        )

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rs2, f"{assembly_arg_str(self.immediate)}({assembly_arg_str(self.rs1)}!)"

    def insn_args(self) -> str:
        rs1, rs2, imm = map(assembly_arg_str, (self.rs1, self.rs2, self.immediate))
        return f"s {self.encoding.opcode:#x}, {self.encoding.funct3}, {rs2}, {imm}({rs1})"

    def get_register_constraints(self) -> RegisterConstraints:
        return RegisterConstraints((self.rs2,), (), ((self.rs1, self.rs1_out),))


class PostIncrementStoreRegOperation(PostIncrementOperation, ABC):
    """`p.s* rs2, rs3(rs1!)`: memory[rs1] = rs2; rs1 += rs3 (bytes). rs3 is encoded where rd would be."""

    rs1 = operand_def(PostIncrementOperation.POINTER)
    rs2 = operand_def(IntRegisterType)
    rs3 = operand_def(IntRegisterType)
    rs1_out = result_def(PostIncrementOperation.POINTER)

    assembly_format = "$rs1 `,` $rs2 `,` $rs3 attr-dict `:` functional-type(operands, results)"

    traits = traits_def(MemoryWriteEffect())

    def __init__(
        self, rs1: SSAValue | Operation, rs2: SSAValue | Operation, rs3: SSAValue | Operation
    ):
        rs1 = SSAValue.get(rs1)
        super().__init__(operands=[rs1, rs2, rs3], result_types=[rs1.type])

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rs2, f"{assembly_arg_str(self.rs3)}({assembly_arg_str(self.rs1)}!)"

    def insn_args(self) -> str:
        e = self.encoding
        rs1, rs2, rs3 = map(assembly_arg_str, (self.rs1, self.rs2, self.rs3))
        return f"r {e.opcode:#x}, {e.funct3}, {e.funct7:#x}, {rs3}, {rs1}, {rs2}"

    def get_register_constraints(self) -> RegisterConstraints:
        return RegisterConstraints((self.rs2, self.rs3), (), ((self.rs1, self.rs1_out),))


# endregion
# region ops


@irdl_op_definition
class LbOp(NarrowLoadOperation):
    """Load a byte, sign-extended."""

    name = "riscv_pulp.lb"


@irdl_op_definition
class LbuOp(NarrowLoadOperation):
    """Load a byte, zero-extended."""

    name = "riscv_pulp.lbu"


@irdl_op_definition
class LhOp(NarrowLoadOperation):
    """Load a half-word, sign-extended."""

    name = "riscv_pulp.lh"


@irdl_op_definition
class LhuOp(NarrowLoadOperation):
    """Load a half-word, zero-extended."""

    name = "riscv_pulp.lhu"


@irdl_op_definition
class SbOp(NarrowStoreOperation):
    """Store a byte."""

    name = "riscv_pulp.sb"


@irdl_op_definition
class ShOp(NarrowStoreOperation):
    """Store a half-word."""

    name = "riscv_pulp.sh"


@irdl_op_definition
class LbPostOp(PostIncrementLoadImmOperation):
    """Load a byte, sign-extended, then add an immediate to the pointer."""

    name = "riscv_pulp.lb_post"


@irdl_op_definition
class LbuPostOp(PostIncrementLoadImmOperation):
    """Load a byte, zero-extended, then add an immediate to the pointer."""

    name = "riscv_pulp.lbu_post"


@irdl_op_definition
class LhPostOp(PostIncrementLoadImmOperation):
    """Load a half-word, sign-extended, then add an immediate to the pointer."""

    name = "riscv_pulp.lh_post"


@irdl_op_definition
class LhuPostOp(PostIncrementLoadImmOperation):
    """Load a half-word, zero-extended, then add an immediate to the pointer."""

    name = "riscv_pulp.lhu_post"


@irdl_op_definition
class LwPostOp(PostIncrementLoadImmOperation):
    """Load a word, then add an immediate to the pointer."""

    name = "riscv_pulp.lw_post"


@irdl_op_definition
class LbPostRegOp(PostIncrementLoadRegOperation):
    """Load a byte, sign-extended, then add a register to the pointer."""

    name = "riscv_pulp.lb_post_reg"


@irdl_op_definition
class LbuPostRegOp(PostIncrementLoadRegOperation):
    """Load a byte, zero-extended, then add a register to the pointer."""

    name = "riscv_pulp.lbu_post_reg"


@irdl_op_definition
class LhPostRegOp(PostIncrementLoadRegOperation):
    """Load a half-word, sign-extended, then add a register to the pointer."""

    name = "riscv_pulp.lh_post_reg"


@irdl_op_definition
class LhuPostRegOp(PostIncrementLoadRegOperation):
    """Load a half-word, zero-extended, then add a register to the pointer."""

    name = "riscv_pulp.lhu_post_reg"


@irdl_op_definition
class LwPostRegOp(PostIncrementLoadRegOperation):
    """Load a word, then add a register to the pointer."""

    name = "riscv_pulp.lw_post_reg"


@irdl_op_definition
class SbPostOp(PostIncrementStoreImmOperation):
    """Store a byte, then add an immediate to the pointer."""

    name = "riscv_pulp.sb_post"


@irdl_op_definition
class ShPostOp(PostIncrementStoreImmOperation):
    """Store a half-word, then add an immediate to the pointer."""

    name = "riscv_pulp.sh_post"


@irdl_op_definition
class SwPostOp(PostIncrementStoreImmOperation):
    """Store a word, then add an immediate to the pointer."""

    name = "riscv_pulp.sw_post"


@irdl_op_definition
class SbPostRegOp(PostIncrementStoreRegOperation):
    """Store a byte, then add a register to the pointer."""

    name = "riscv_pulp.sb_post_reg"


@irdl_op_definition
class ShPostRegOp(PostIncrementStoreRegOperation):
    """Store a half-word, then add a register to the pointer."""

    name = "riscv_pulp.sh_post_reg"


@irdl_op_definition
class SwPostRegOp(PostIncrementStoreRegOperation):
    """Store a word, then add a register to the pointer."""

    name = "riscv_pulp.sw_post_reg"


@irdl_op_definition
class ElwOp(PulpInstruction):
    """
    Event load: loads a word, and sleeps until the event unit answers. Neither moved nor removed, even if nobody reads `rd`.
    """

    name = "riscv_pulp.elw"

    rs1 = operand_def(IntRegisterType)
    rd = result_def(IntRegisterType)
    immediate = attr_def(IntegerAttr[SI12])

    assembly_format = "$rs1 `,` $immediate attr-dict `:` functional-type(operands, results)"

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

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
            attributes={"immediate": IntegerAttr(immediate, si12)},
        )

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, f"{assembly_arg_str(self.immediate)}({assembly_arg_str(self.rs1)})"

    def insn_args(self) -> str:
        rd, imm, rs1 = map(assembly_arg_str, (self.rd, self.immediate, self.rs1))
        return f"i {self.encoding.opcode:#x}, {self.encoding.funct3}, {rd}, {imm}({rs1})"


# endregion


OPS: Final[tuple[type[Operation], ...]] = (
    LbOp,
    LbuOp,
    LhOp,
    LhuOp,
    SbOp,
    ShOp,
    LbPostOp,
    LbuPostOp,
    LhPostOp,
    LhuPostOp,
    LwPostOp,
    LbPostRegOp,
    LbuPostRegOp,
    LhPostRegOp,
    LhuPostRegOp,
    LwPostRegOp,
    SbPostOp,
    ShPostOp,
    SwPostOp,
    SbPostRegOp,
    ShPostRegOp,
    SwPostRegOp,
    ElwOp,
)
