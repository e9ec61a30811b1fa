"""What the body of a hardware loop may contain."""

from __future__ import annotations

from typing import Final

from xdsl.dialects import riscv_func, rv32
from xdsl.dialects.builtin import StringAttr, UnrealizedConversionCastOp
from xdsl.dialects.riscv import ops as riscv
from xdsl.dialects.riscv.abstract_ops import (
    CsrBitwiseImmOperation,
    CsrBitwiseOperation,
    CsrReadWriteImmOperation,
    CsrReadWriteOperation,
    GetAnyRegisterOperation,
    RdImmJumpOperation,
    RdRsImmJumpOperation,
    RISCVInstruction,
    RsRsOffIntegerOperation,
)
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.riscv_pulp.memory import ElwOp

MIN_BODY: Final = 3
"""
Fewest instructions of a body. The RI5CY User Manual (chapter "PULP Hardware Loop Extensions") names two in one place and
three in another. Its authors settled on three (openhwgroup/cv32e40p#284), as the CV32E40P User Manual v1.1.0 says
("Hardware Loop constraints"). PULP's GCC does emit loops of two.
"""

MIN_TAIL: Final = 2
"""
How many instructions follow the inner loop in the outer loop's body, at least: the two ends are 8 bytes apart (the same chapter
of the CV32E40P User Manual).
"""

_SILENT = (riscv.CommentOp, GetAnyRegisterOperation, UnrealizedConversionCastOp)
"""Ops of a body that no instruction is printed for."""

_FORBIDDEN: dict[type[Operation] | tuple[type[Operation], ...], str] = {
    (
        CsrReadWriteOperation,
        CsrBitwiseOperation,
        CsrReadWriteImmOperation,
        CsrBitwiseImmOperation,
    ): "accesses a CSR",
    (
        RsRsOffIntegerOperation,
        RdImmJumpOperation,
        RdRsImmJumpOperation,
        riscv.ReturnOp,
        riscv_func.CallOp,
        riscv_func.ReturnOp,
    ): "branches",
    (riscv.EcallOp, riscv.WfiOp): "is privileged",
    ElwOp: "sleeps",
    riscv.CustomAssemblyInstructionOp: "is unknown: it may be a fence or a branch",
}
"""
What the same chapter forbids in a body (xDSL has no op for `fence` and `mret`), and any CSR access and `p.elw`, although later
versions of the manual name the loops' own CSRs only. They also forbid to branch into a body.
"""


def _single_instruction_li(op: rv32.LiOp) -> bool:
    """Whether the assembler makes one instruction of a `li`: `addi`, or `lui`."""
    if isinstance(op.immediate, StringAttr):
        return False
    value = op.immediate.value.data
    return -2048 <= value < 2048 or value % 4096 == 0


def verify_body_op(op: Operation) -> None:
    """
    Verify that `op`, which is no hardware loop and not the terminator, may be in the body of a hardware loop and becomes one
    instruction, or none.
    """
    for types, what in _FORBIDDEN.items():
        if isinstance(op, types):
            raise VerifyException(f"{op.name} in the body of a hardware loop {what}")
    if op.successors:
        raise VerifyException(f"{op.name} in the body of a hardware loop branches")
    if isinstance(op, rv32.LiOp) and not _single_instruction_li(op):
        raise VerifyException(
            f"{op.name} in the body of a hardware loop takes more than one instruction; move it before the loop"
        )
    if not isinstance(op, (RISCVInstruction, *_SILENT)) or op.regions:
        raise VerifyException(f"{op.name} cannot be in the body of a hardware loop")
