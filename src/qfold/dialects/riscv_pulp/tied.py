"""Registers that an instruction both reads and overwrites."""

from __future__ import annotations

from xdsl.dialects.riscv import Registers
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException


def _name(value: SSAValue) -> str:
    return f"%{value.name_hint}" if value.name_hint is not None else "a value"


def verify_overwritten(op: Operation, value: SSAValue, result: SSAValue) -> None:
    """
    Verify that `op`, whose `result` has the register of its operand `value`, may overwrite that register: nothing reads `value`
    afterwards, not even a later iteration of a loop around `op`. Register allocation itself does not look.

    This also catches a `cse` that merged the equal initial values of two accumulators.
    """
    if result.type == Registers.ZERO:
        raise VerifyException(f"the result that overwrites {_name(value)} cannot be in x0")
    block = op.parent
    if block is None:
        return
    owner = value.owner
    if (owner if isinstance(owner, Block) else owner.parent) is not block:
        raise VerifyException(
            f"{_name(value)} is overwritten here but defined outside of this block; carry it as an argument of the loop"
        )
    for use in value.uses:
        if use.operation is op:
            continue
        reader = block.find_ancestor_op_in_block(use.operation)
        if reader is op or (reader is not None and op.is_before_in_block(reader)):
            raise VerifyException(
                f"{_name(value)} is overwritten here and read again by {use.operation.name}; copy it with riscv.mv first"
            )
