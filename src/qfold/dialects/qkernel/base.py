"""What the ops of `qkernel` share: an output that is written, quantised weights and their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import (
    IntegerType,
    MemRefType,
    UnitAttr,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    opt_prop_def,
)
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import (
    EpilogueOperation,
    expect_f32,
    expect_shape,
    shape_of,
    type_of,
)
from qfold.dialects.element_types import STORAGE_TYPES
from qfold.dialects.integer_operands import zero_point_type


class KernelOp(EpilogueOperation):
    y = operand_def(MemRefType)
    """Written, never read first."""

    @property
    def output_type(self) -> MemRefType[Attribute]:
        return cast(MemRefType[Attribute], self.y.type)

    def verify_output(self, shape: Sequence[int]) -> None:
        expect_shape("the output", self.y, shape)
        self.verify_epilogue()


class DequantKernelOp(KernelOp):
    w = operand_def(MemRefType)
    """Integers of a storage type."""
    scale = operand_def(MemRefType)
    """f32: rank 0 per tensor, [N] per axis, [blocks, N] (or [N, blocks] with transpose_b) per block."""
    zero_point = opt_operand_def(MemRefType)
    """Shaped as the scale, of `zero_point_type(storage)`. Absent: every zero point is 0."""
    hoisted = opt_prop_def(UnitAttr)

    @property
    def storage(self) -> IntegerType:
        return cast(IntegerType, type_of(self.w).get_element_type())

    def verify_parameters(self, scale_shapes: Sequence[tuple[int, ...]]) -> None:
        storage = type_of(self.w).get_element_type()
        if storage not in STORAGE_TYPES:
            names = ", ".join(str(t) for t in STORAGE_TYPES)
            raise VerifyException(f"a quantised weight is one of {names}, got {self.w.type}")
        expect_f32(self, self.scale)
        if shape_of(self.scale) not in scale_shapes:
            allowed = " or ".join(str(list(s)) for s in scale_shapes)
            raise VerifyException(f"the scale has shape {allowed}, got {self.scale.type}")
        if self.zero_point is None:
            return
        expect_shape("the zero point", self.zero_point, shape_of(self.scale))
        expected = zero_point_type(self.storage)
        if type_of(self.zero_point).get_element_type() != expected:
            raise VerifyException(
                f"the zero point of {storage} is {expected}, got {self.zero_point.type}"
            )

    def verify_sum(self, name: str, operand: SSAValue | None, shape: Sequence[int]) -> None:
        needed = self.hoisted is not None and self.zero_point is not None
        if needed != (operand is not None):
            raise VerifyException(f"takes a {name} exactly when hoisted with a zero point")
        if operand is not None:
            expect_f32(self, operand)
            expect_shape(name, operand, shape)
