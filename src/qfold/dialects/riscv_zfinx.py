"""The `riscv_zfinx` dialect: single-precision float instructions on whichever registers a core keeps floats in.

With Zfinx these are the integer registers, as on stock PULP cores; with F a file of their own. Mnemonics and semantics are the
same ("Zfinx" chapter of the RISC-V manual), and upstream assemblers know both, so that one kernel generator serves both kinds of
core: an op's float operands are all `!riscv.reg` or all `!riscv.freg`. xDSL's own float ops take `!riscv.freg` only, and its
multiply-adds do not overwrite their addend.
"""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Final, TypeAlias

from xdsl.backend.register_allocatable import RegisterConstraints
from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.riscv.abstract_ops import AssemblyInstructionArg, RISCVInstruction
from xdsl.dialects.riscv.registers import FloatRegisterType, IntRegisterType, Registers
from xdsl.ir import Dialect, Operation, SSAValue
from xdsl.irdl import (
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.riscv_pulp.tied import verify_overwritten

FloatRegister: TypeAlias = IntRegisterType | FloatRegisterType
"""A register that holds a float."""

_FLOAT = base(IntRegisterType) | base(FloatRegisterType)

ROUNDING_MODES: Final = ("rne", "rtz", "rdn", "rup", "rmm")
"""To nearest even, toward zero, down, up, to nearest with ties away from zero."""


def _fresh(value: SSAValue) -> FloatRegister:
    """An unallocated register of the file that `value` is in."""
    if isinstance(value.type, FloatRegisterType):
        return Registers.UNALLOCATED_FLOAT
    return Registers.UNALLOCATED_INT


# region bases


class FloatInstruction(RISCVInstruction, ABC):
    """An instruction without side effects: nobody reads the exception flags."""

    traits = traits_def(Pure())

    def _verify_one_file(self, *values: SSAValue) -> None:
        if len({type(v.type) for v in values}) != 1:
            found = ", ".join(str(v.type) for v in values)
            raise VerifyException(f"float operands are in one kind of register, found {found}")


class UnaryFloatOperation(FloatInstruction, ABC):
    """rd = f(rs1)."""

    rs1 = operand_def(_FLOAT)
    rd = result_def(_FLOAT)

    assembly_format = "$rs1 attr-dict `:` functional-type(operands, results)"

    def __init__(self, rs1: SSAValue | Operation, *, rd: FloatRegister | None = None):
        rs1 = SSAValue.get(rs1)
        super().__init__(operands=[rs1], result_types=[rd or _fresh(rs1)])

    def verify_(self) -> None:
        self._verify_one_file(self.rs1, self.rd)

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1


class BinaryFloatOperation(FloatInstruction, ABC):
    """rd = f(rs1, rs2)."""

    rs1 = operand_def(_FLOAT)
    rs2 = operand_def(_FLOAT)
    rd = result_def(_FLOAT)

    assembly_format = "$rs1 `,` $rs2 attr-dict `:` functional-type(operands, results)"

    def __init__(
        self,
        rs1: SSAValue | Operation,
        rs2: SSAValue | Operation,
        *,
        rd: FloatRegister | None = None,
    ):
        rs1 = SSAValue.get(rs1)
        super().__init__(operands=[rs1, rs2], result_types=[rd or _fresh(rs1)])

    def verify_(self) -> None:
        self._verify_one_file(self.rs1, self.rs2, self.rd)

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, self.rs2


class CompareOperation(FloatInstruction, ABC):
    """rd = 1 if the relation holds, else 0; 0 for a NaN. `rd` is an integer register."""

    rs1 = operand_def(_FLOAT)
    rs2 = operand_def(_FLOAT)
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

    def verify_(self) -> None:
        self._verify_one_file(self.rs1, self.rs2)

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, self.rs2


class MultiplyAddOperation(FloatInstruction, ABC):
    """
    rd = ±(rs1 * rs2) ± rd, rounded once. The instruction has four registers; here the addend is overwritten by the result,
    in the same register, so that an accumulator stays where it is through all iterations of a loop.
    """

    ACCUMULATOR: ClassVar = VarConstraint("ACCUMULATOR", _FLOAT)

    rd_in = operand_def(ACCUMULATOR)
    rs1 = operand_def(_FLOAT)
    rs2 = operand_def(_FLOAT)
    rd_out = result_def(ACCUMULATOR)

    assembly_format = "$rd_in `,` $rs1 `,` $rs2 attr-dict `:` functional-type(operands, results)"

    def __init__(
        self, rd_in: SSAValue | Operation, rs1: SSAValue | Operation, rs2: SSAValue | Operation
    ):
        rd_in = SSAValue.get(rd_in)
        super().__init__(operands=[rd_in, rs1, rs2], result_types=[rd_in.type])

    def verify_(self) -> None:
        self._verify_one_file(self.rd_in, self.rs1, self.rs2)
        verify_overwritten(self, self.rd_in, self.rd_out)

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd_in, self.rs1, self.rs2, self.rd_in

    def get_register_constraints(self) -> RegisterConstraints:
        return RegisterConstraints((self.rs1, self.rs2), (), ((self.rd_in, self.rd_out),))


class UntiedMultiplyAddOperation(FloatInstruction, ABC):
    """
    rd = rs1 * rs2 + rs3, rounded once: the instruction with all four registers, for an addend that is read again.
    """

    rs1 = operand_def(_FLOAT)
    rs2 = operand_def(_FLOAT)
    rs3 = operand_def(_FLOAT)
    rd = result_def(_FLOAT)

    assembly_format = "$rs1 `,` $rs2 `,` $rs3 attr-dict `:` functional-type(operands, results)"

    def __init__(
        self,
        rs1: SSAValue | Operation,
        rs2: SSAValue | Operation,
        rs3: SSAValue | Operation,
        *,
        rd: FloatRegister | None = None,
    ):
        rs1 = SSAValue.get(rs1)
        super().__init__(operands=[rs1, rs2, rs3], result_types=[rd or _fresh(rs1)])

    def verify_(self) -> None:
        self._verify_one_file(self.rs1, self.rs2, self.rs3, self.rd)

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1, self.rs2, self.rs3


class FromIntegerOperation(FloatInstruction, ABC):
    """rd = the float nearest to the integer rs1; exact for up to 24 bits. With F, `rd` is given as `!riscv.freg`."""

    rs1 = operand_def(IntRegisterType)
    rd = result_def(_FLOAT)

    assembly_format = "$rs1 attr-dict `:` functional-type(operands, results)"

    def __init__(self, rs1: SSAValue | Operation, *, rd: FloatRegister = Registers.UNALLOCATED_INT):
        super().__init__(operands=[rs1], result_types=[rd])

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return self.rd, self.rs1


class ToIntegerOperation(FloatInstruction, ABC):
    """
    rd = rs1 rounded to an integer as `rounding` says (one of `ROUNDING_MODES`; without it as the core was told, to nearest
    even after reset), limited to the integer's range; the largest integer for a NaN.
    """

    rs1 = operand_def(_FLOAT)
    rd = result_def(IntRegisterType)
    rounding = opt_attr_def(StringAttr)

    assembly_format = "$rs1 (`,` $rounding^)? attr-dict `:` functional-type(operands, results)"

    def __init__(
        self,
        rs1: SSAValue | Operation,
        rounding: str | None = None,
        *,
        rd: IntRegisterType = Registers.UNALLOCATED_INT,
    ):
        super().__init__(
            operands=[rs1],
            result_types=[rd],
            attributes={"rounding": None if rounding is None else StringAttr(rounding)},
        )

    def verify_(self) -> None:
        if self.rounding is not None and self.rounding.data not in ROUNDING_MODES:
            raise VerifyException(
                f"unknown rounding mode {self.rounding.data!r}; there are {', '.join(ROUNDING_MODES)}"
            )

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return (self.rd, self.rs1, *(() if self.rounding is None else (self.rounding,)))


# endregion
# region ops


@irdl_op_definition
class FAddSOp(BinaryFloatOperation):
    """rs1 + rs2."""

    name = "riscv_zfinx.fadd.s"


@irdl_op_definition
class FSubSOp(BinaryFloatOperation):
    """rs1 - rs2."""

    name = "riscv_zfinx.fsub.s"


@irdl_op_definition
class FMulSOp(BinaryFloatOperation):
    """rs1 * rs2."""

    name = "riscv_zfinx.fmul.s"


@irdl_op_definition
class FDivSOp(BinaryFloatOperation):
    """rs1 / rs2."""

    name = "riscv_zfinx.fdiv.s"


@irdl_op_definition
class FSqrtSOp(UnaryFloatOperation):
    """The square root."""

    name = "riscv_zfinx.fsqrt.s"


@irdl_op_definition
class FMinSOp(BinaryFloatOperation):
    """The smaller number, -0 before +0; of a number and a NaN the number."""

    name = "riscv_zfinx.fmin.s"


@irdl_op_definition
class FMaxSOp(BinaryFloatOperation):
    """The larger number, +0 before -0; of a number and a NaN the number."""

    name = "riscv_zfinx.fmax.s"


@irdl_op_definition
class FSgnjSOp(BinaryFloatOperation):
    """rs1 with the sign of rs2; for equal operands a copy."""

    name = "riscv_zfinx.fsgnj.s"


@irdl_op_definition
class FSgnjnSOp(BinaryFloatOperation):
    """rs1 with the opposite of the sign of rs2; for equal operands the negation."""

    name = "riscv_zfinx.fsgnjn.s"


@irdl_op_definition
class FSgnjxSOp(BinaryFloatOperation):
    """rs1, negated if rs2 is negative; for equal operands the magnitude."""

    name = "riscv_zfinx.fsgnjx.s"


@irdl_op_definition
class FMAddSOp(MultiplyAddOperation):
    """rs1 * rs2 + rd."""

    name = "riscv_zfinx.fmadd.s"


@irdl_op_definition
class FMAdd4SOp(UntiedMultiplyAddOperation):
    """rs1 * rs2 + rs3. The mnemonic is that of `FMAddSOp`."""

    name = "riscv_zfinx.fmadd4.s"

    def assembly_instruction_name(self) -> str:
        return "fmadd.s"


@irdl_op_definition
class FMSubSOp(MultiplyAddOperation):
    """rs1 * rs2 - rd."""

    name = "riscv_zfinx.fmsub.s"


@irdl_op_definition
class FNMSubSOp(MultiplyAddOperation):
    """-(rs1 * rs2) + rd."""

    name = "riscv_zfinx.fnmsub.s"


@irdl_op_definition
class FNMAddSOp(MultiplyAddOperation):
    """-(rs1 * rs2) - rd."""

    name = "riscv_zfinx.fnmadd.s"


@irdl_op_definition
class FCvtSWOp(FromIntegerOperation):
    """The float of a signed integer."""

    name = "riscv_zfinx.fcvt.s.w"


@irdl_op_definition
class FCvtSWuOp(FromIntegerOperation):
    """The float of an unsigned integer."""

    name = "riscv_zfinx.fcvt.s.wu"


@irdl_op_definition
class FCvtWSOp(ToIntegerOperation):
    """The signed integer of a float."""

    name = "riscv_zfinx.fcvt.w.s"


@irdl_op_definition
class FCvtWuSOp(ToIntegerOperation):
    """The unsigned integer of a float."""

    name = "riscv_zfinx.fcvt.wu.s"


@irdl_op_definition
class FeqSOp(CompareOperation):
    """rs1 == rs2."""

    name = "riscv_zfinx.feq.s"


@irdl_op_definition
class FltSOp(CompareOperation):
    """rs1 < rs2."""

    name = "riscv_zfinx.flt.s"


@irdl_op_definition
class FleSOp(CompareOperation):
    """rs1 <= rs2."""

    name = "riscv_zfinx.fle.s"


# endregion

RISCV_ZFINX = Dialect(
    "riscv_zfinx",
    [
        FAddSOp,
        FSubSOp,
        FMulSOp,
        FDivSOp,
        FSqrtSOp,
        FMinSOp,
        FMaxSOp,
        FSgnjSOp,
        FSgnjnSOp,
        FSgnjxSOp,
        FMAddSOp,
        FMAdd4SOp,
        FMSubSOp,
        FNMSubSOp,
        FNMAddSOp,
        FCvtSWOp,
        FCvtSWuOp,
        FCvtWSOp,
        FCvtWuSOp,
        FeqSOp,
        FltSOp,
        FleSOp,
    ],
    [],
)
