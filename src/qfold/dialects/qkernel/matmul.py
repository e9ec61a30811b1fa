"""Matrix products, and the sums over the rows of their activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    IntegerAttr,
    MemRefType,
    UnitAttr,
    i64,
)
from xdsl.ir import Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import (
    GroupedOperation,
    epilogue_maps_attr,
    expect_f32,
    expect_shape,
    flag,
    matmul_shape,
    operands_in_order,
    region_or_none,
    shape_of,
)
from qfold.dialects.qkernel.base import DequantKernelOp, KernelOp


@irdl_op_definition
class MatmulOp(KernelOp):
    """`y = epilogue(a @ b)`, as `qmm.matmul`; any strides.

    ```mlir
    qkernel.matmul %a, %b outs(%y) {transpose_b} : (memref<4x8xf32>, memref<3x8xf32>, memref<4x3xf32>) -> ()
    ```
    """

    name = "qkernel.matmul"
    GROUPS: ClassVar = (
        ("a", None),
        ("b", None),
        ("epilogue_operands", "epilogue"),
        ("y", "outs"),
    )
    a = operand_def(MemRefType)
    b = operand_def(MemRefType)
    transpose_a = opt_prop_def(UnitAttr)
    transpose_b = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        y: SSAValue,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self), a=a, b=b, y=y, epilogue_operands=epilogue_operands
            ),
            properties={
                "transpose_a": flag(transpose_a),
                "transpose_b": flag(transpose_b),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
        )

    def verify_(self) -> None:
        expect_f32(self, self.a, self.b)
        self.verify_output(
            matmul_shape(
                shape_of(self.a),
                shape_of(self.b),
                self.transpose_a is not None,
                self.transpose_b is not None,
            )
        )


@irdl_op_definition
class DequantMatmulOp(DequantKernelOp):
    """`y = epilogue(a @ dequantize(w))`, as `qmm.dequant_matmul`.

    ```mlir
    qkernel.dequant_matmul %a, %w, %scale zero_point(%z) row_sum(%s) outs(%y) {hoisted}
        : (memref<4x8xf32>, memref<8x3xi8>, memref<3xf32>, memref<3xi8>, memref<4xf32>, memref<4x3xf32>) -> ()
    ```

    With `block_size` the scale has one row per block of K: [blocks, N], or [N, blocks] with `transpose_b`.
    """

    name = "qkernel.dequant_matmul"
    GROUPS: ClassVar = (
        ("a", None),
        ("w", None),
        ("scale", None),
        ("zero_point", "zero_point"),
        ("row_sum", "row_sum"),
        ("epilogue_operands", "epilogue"),
        ("y", "outs"),
    )
    a = operand_def(MemRefType)
    row_sum = opt_operand_def(MemRefType)
    transpose_b = opt_prop_def(UnitAttr)
    block_size = opt_prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        a: SSAValue,
        w: SSAValue,
        scale: SSAValue,
        y: SSAValue,
        *,
        zero_point: SSAValue | None = None,
        row_sum: SSAValue | None = None,
        transpose_b: bool = False,
        block_size: int | None = None,
        hoisted: bool = False,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self),
                a=a,
                w=w,
                scale=scale,
                zero_point=zero_point,
                row_sum=row_sum,
                y=y,
                epilogue_operands=epilogue_operands,
            ),
            properties={
                "transpose_b": flag(transpose_b),
                "block_size": None if block_size is None else IntegerAttr(block_size, i64),
                "hoisted": flag(hoisted),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
        )

    @property
    def block(self) -> int | None:
        """The block size along K, or None."""
        return None if self.block_size is None else self.block_size.value.data

    def verify_(self) -> None:
        expect_f32(self, self.a)
        if len(shape_of(self.w)) != 2:
            raise VerifyException(f"the weight is a matrix, got {self.w.type}")
        transposed = self.transpose_b is not None
        shape = matmul_shape(shape_of(self.a), shape_of(self.w), False, transposed)
        n, k = shape[-1], shape_of(self.a)[-1]
        sums = shape_of(self.a)[:-1]
        if self.block is None:
            self.verify_parameters([(), (n,)])
        else:
            blocks = -(-k // self.block)
            self.verify_parameters([(n, blocks) if transposed else (blocks, n)])
            sums = (*sums, blocks)
        self.verify_sum("row_sum", self.row_sum, sums)
        self.verify_output(shape)


@irdl_op_definition
class RowSumOp(GroupedOperation):
    """`y[m] = sum_k a[m, k]`: `a` [M, K] and `y` [M], both f32.

    ```mlir
    qkernel.row_sum %a outs(%y) : (memref<4x8xf32>, memref<4xf32>) -> ()
    ```
    """

    name = "qkernel.row_sum"
    GROUPS: ClassVar = (("a", None), ("y", "outs"))
    a = operand_def(MemRefType)
    y = operand_def(MemRefType)
    irdl_options = ()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, a: SSAValue, y: SSAValue):
        super().__init__(operands=[a, y])

    def verify_(self) -> None:
        expect_f32(self, self.a, self.y)
        shape = shape_of(self.a)
        if len(shape) != 2:
            raise VerifyException(f"row_sum reads a matrix, got {self.a.type}")
        expect_shape("the output", self.y, shape[:1])
