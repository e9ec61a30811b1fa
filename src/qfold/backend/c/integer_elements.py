"""Elements of integer contractions in C: what is subtracted from what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from qfold.backend.c.contraction import Buffers, Weight
from qfold.backend.c.layout import Buffer, Linear
from qfold.dialects import qkernel


def difference(data: Buffer, at: Linear, zero_point: Buffer | None, at_zero: Linear) -> str:
    """An element less its zero point: at most 9 bits and a sign."""
    text = data.load(at)
    if zero_point is None:
        return text
    return f"(int16_t)({text} - {zero_point.load(at_zero if zero_point.shape else Linear())})"


@dataclass(frozen=True)
class IntegerWeight(Weight):
    """Integers that are multiplied as their differences from a zero point; sums are what they are."""

    @property
    def is_converted(self) -> bool:
        return True

    def element(self, position: Linear, parameters: Sequence[Linear]) -> str:
        return difference(self.w, position, self.zero_point, parameters[0])

    def scaled(self, accumulator: str, parameters: Sequence[Linear], sums: Linear | None) -> str:
        return f"(int32_t){accumulator}"


@dataclass(frozen=True)
class IntegerOperands:
    """The operands of an integer contraction."""

    data: Buffer
    weight: Buffer
    data_zero: Buffer | None
    weight_zero: Buffer | None

    @staticmethod
    def of_matmul(op: qkernel.QuantMatmulOp, buffers: Buffers) -> IntegerOperands:
        return _of(op.a, op.b, op.a_zero_point, op.b_zero_point, buffers)

    @staticmethod
    def of_conv(op: qkernel.QuantConvOp, buffers: Buffers) -> IntegerOperands:
        return _of(op.x, op.w, op.x_zero_point, op.w_zero_point, buffers)


def _of(
    data: SSAValue,
    weight: SSAValue,
    data_zero: SSAValue | None,
    weight_zero: SSAValue | None,
    buffers: Buffers,
) -> IntegerOperands:
    return IntegerOperands(
        buffers[data],
        buffers[weight],
        None if data_zero is None else buffers[data_zero],
        None if weight_zero is None else buffers[weight_zero],
    )
