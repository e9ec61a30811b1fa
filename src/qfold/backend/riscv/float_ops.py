"""Ops on floats of an epilogue region as instructions, in either kind of register file."""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, isnan
from typing import Final

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr
from xdsl.dialects.riscv import ops as riscv
from xdsl.dialects.riscv.registers import FloatRegisterType
from xdsl.ir import Operation, SSAValue

from qfold.backend.riscv.builder import FunctionBuilder
from qfold.dialects import riscv_zfinx as zfinx
from qfold.dialects.riscv_pulp import alu

COMPUTED: Final = (
    arith.AddfOp,
    arith.MulfOp,
    arith.MaximumfOp,
    arith.MinimumfOp,
    arith.MaxnumfOp,
    arith.MinnumfOp,
)
"""Ops of a region that there is code for, besides constants and the yield."""

Read = Callable[[SSAValue], SSAValue]
"""A value of the region -> its register."""


class FloatOps:
    """Code for the ops of a region."""

    def __init__(self, b: FunctionBuilder):
        self._b = b
        self.canonical: set[SSAValue] = set()
        """Results of float instructions: if they are NaN, then the canonical one, whose sign bit is 0."""

    def compute(self, op: Operation, read: Read) -> SSAValue:
        """The result of an op of `COMPUTED`: a float, or its bits in an integer register."""
        b = self._b
        if isinstance(op, arith.MaximumfOp):
            rectified = self._rectified(op, read)
            if rectified is not None:
                return rectified
        x, y = (self.as_float(read(v)) for v in op.operands)
        match op:
            case arith.AddfOp():
                result = b.fadd(x, y)
            case arith.MulfOp():
                result = b.fmul(x, y)
            case arith.MaxnumfOp():
                result = b.emit(zfinx.FMaxSOp(x, y)).rd
            case arith.MinnumfOp():
                result = b.emit(zfinx.FMinSOp(x, y)).rd
            case arith.MaximumfOp() | arith.MinimumfOp():
                return self._propagating(op, x, y)
            case _:
                raise AssertionError(op.name)
        self.canonical.add(result)
        return result

    def as_float(self, value: SSAValue) -> SSAValue:
        """A value that an op before left as bits."""
        if isinstance(value.type, FloatRegisterType) or self._b.float_in_x:
            return value
        moved = self._b.bits_to_float(value)
        if value in self.canonical:
            self.canonical.add(moved)
        return moved

    def _rectified(self, op: arith.MaximumfOp, read: Read) -> SSAValue | None:
        """
        The maximum with +0 of what the FPU computed, as bits; None for another maximum. The larger of a float and +0, as
        integers, is the larger float, and a NaN if that has a positive sign, as those from the FPU have.
        """
        for operand, bound in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if not _is_positive_zero(bound) or isinstance(operand.owner, arith.ConstantOp):
                continue
            value = self.as_float(read(operand))
            if value in self.canonical:
                b = self._b
                result = b.emit(alu.MaxOp(b.float_to_bits(value), b.zero)).rd
                self.canonical.add(result)
                return result
        return None

    def _propagating(self, op: Operation, x: SSAValue, y: SSAValue) -> SSAValue:
        """
        A maximum or minimum that is NaN if an operand is: `fmax.s` and `fmin.s` return the other one. The result is bits, in an
        integer register.
        """
        b = self._b
        is_maximum = isinstance(op, arith.MaximumfOp)
        left, right = op.operands
        picked = b.emit((zfinx.FMaxSOp if is_maximum else zfinx.FMinSOp)(x, y)).rd
        checks = [
            b.emit(zfinx.FeqSOp(value, value)).rd
            for value, operand in ((x, left), (y, right))
            if not _is_a_number(operand)
        ]
        if not checks:
            return picked
        ordered = checks[0] if len(checks) == 1 else b.emit(riscv.AndOp(*checks)).rd
        # 0 where both are numbers, else all bits: a NaN.
        mask = b.addi(ordered, -1)
        return b.emit(riscv.OrOp(b.float_to_bits(picked), mask)).rd


def number_of(op: arith.ConstantOp) -> float:
    """A constant of the region."""
    assert isinstance(op.value, FloatAttr)
    return op.value.value.data


def _is_a_number(value: SSAValue) -> bool:
    """Whether it cannot be NaN."""
    return isinstance(value.owner, arith.ConstantOp) and not isnan(number_of(value.owner))


def _is_positive_zero(value: SSAValue) -> bool:
    if not isinstance(value.owner, arith.ConstantOp):
        return False
    number = number_of(value.owner)
    return number == 0 and copysign(1.0, number) > 0
