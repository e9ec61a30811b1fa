"""Matrix products on packed weights: panels of `PANEL` columns of floats, made from stored weights in a scratchpad.

A panel holds its columns side by side for each k, so that a kernel that keeps `PANEL` columns of accumulators reads the weight in
order, by the widest loads there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.builtin import IntegerAttr, IntegerType, MemRefType, UnitAttr, f32, i64
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
    operands_in_order,
    region_or_none,
    shape_of,
    type_of,
)
from qfold.dialects.element_types import STORAGE_TYPES, i8, i16, ui8, ui16
from qfold.dialects.integer_operands import zero_point_type
from qfold.dialects.qkernel.base import KernelOp

PANEL = 4
"""Columns of a panel."""

_ZERO_POINTS = (i8, ui8, i16, ui16)


def packed_shape(k: int, n: int) -> tuple[int, int, int]:
    """The shape of a packed [K, N] weight: [panels, K, columns of a panel]."""
    return (-(-n // PANEL), k, PANEL)


@irdl_op_definition
class PackOp(GroupedOperation):
    """`y[p, k, c] = float(w[k, 4 p + c] - zero_point)`, times the scale where there is one; 0 in columns from N on.

    ```mlir
    qkernel.pack %w zero_point(%z) outs(%y) {transpose_b} : (memref<6x8xi8>, memref<6xi8>, memref<2x8x4xf32>) -> ()
    ```

    `w` is [K, N], or [N, K] with `transpose_b`: integers, or f32 without zero point and scale (the op then only rearranges). The
    zero point has rank 0, or one element per column. With `block_size` there is a scale, and both have one row per block of K:
    [blocks, N], or [N, blocks] with `transpose_b`. Without, the scale is left to `qkernel.packed_matmul`.
    """

    name = "qkernel.pack"
    GROUPS: ClassVar = (
        ("w", None),
        ("scale", "scale"),
        ("zero_point", "zero_point"),
        ("y", "outs"),
    )
    w = operand_def(MemRefType)
    scale = opt_operand_def(MemRefType)
    """f32, shaped as the zero point; exactly with `block_size`."""
    zero_point = opt_operand_def(MemRefType)
    """Of `zero_point_type(storage)`. Absent: every zero point is 0, or is corrected for later."""
    y = operand_def(MemRefType)
    """f32, `packed_shape(K, N)`. Written, never read."""
    transpose_b = opt_prop_def(UnitAttr)
    block_size = opt_prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        w: SSAValue,
        y: SSAValue,
        *,
        scale: SSAValue | None = None,
        zero_point: SSAValue | None = None,
        transpose_b: bool = False,
        block_size: int | None = None,
    ):
        super().__init__(
            operands=operands_in_order(type(self), w=w, scale=scale, zero_point=zero_point, y=y),
            properties={
                "transpose_b": flag(transpose_b),
                "block_size": None if block_size is None else IntegerAttr(block_size, i64),
            },
        )

    @property
    def block(self) -> int | None:
        """The block size along K, or None."""
        return None if self.block_size is None else self.block_size.value.data

    @property
    def weight_shape(self) -> tuple[int, int]:
        """(K, N), however the weight is laid out."""
        rows, columns = shape_of(self.w)
        return (rows, columns) if self.transpose_b is None else (columns, rows)

    def verify_(self) -> None:
        if len(shape_of(self.w)) != 2:
            raise VerifyException(f"the weight is a matrix, got {self.w.type}")
        stored = type_of(self.w).get_element_type()
        if stored == f32:
            if self.zero_point is not None or self.scale is not None:
                raise VerifyException(
                    f"an f32 weight has no zero point and no scale, got {self.w.type}"
                )
        elif stored not in STORAGE_TYPES:
            names = ", ".join(str(t) for t in (f32, *STORAGE_TYPES))
            raise VerifyException(f"a weight to pack is one of {names}, got {self.w.type}")
        k, n = self.weight_shape
        shapes: list[tuple[int, ...]] = [(), (n,)]
        if self.block is not None:
            if self.block < 1:
                raise VerifyException(f"block_size is at least 1, got {self.block}")
            blocks = -(-k // self.block)
            shapes = [(blocks, n) if self.transpose_b is None else (n, blocks)]
        if (self.scale is None) != (self.block is None):
            raise VerifyException(
                "takes a scale exactly with block_size: any other scale is for the accumulator"
            )
        if self.scale is not None:
            expect_f32(self, self.scale)
            _expect_one_of("the scale", self.scale, shapes)
        if self.zero_point is not None:
            expected = zero_point_type(cast(IntegerType, stored))
            if type_of(self.zero_point).get_element_type() != expected:
                raise VerifyException(
                    f"the zero point of {stored} is {expected}, got {self.zero_point.type}"
                )
            _expect_one_of("the zero point", self.zero_point, shapes)
        expect_f32(self, self.y)
        expect_shape("the packed weight", self.y, packed_shape(k, n))


@irdl_op_definition
class PackedMatmulOp(KernelOp):
    """`y = epilogue(scale * (a @ P - zero_point * row_sum))`, where P [K, N] is the matrix that `p` holds in panels.

    ```mlir
    qkernel.packed_matmul %a, %p scale(%s) zero_point(%z) row_sum(%r) outs(%y) {hoisted}
        : (memref<4x8xf32>, memref<2x8x4xf32>, memref<6xf32>, memref<6xi8>, memref<4xf32>, memref<4x6xf32>) -> ()
    ```

    Without a scale: the product itself. Without a zero point, nothing is subtracted: `qkernel.pack` did it, or all are 0. N is
    that of `y`; columns of the last panel from N on do not matter.
    """

    name = "qkernel.packed_matmul"
    GROUPS: ClassVar = (
        ("a", None),
        ("p", None),
        ("scale", "scale"),
        ("zero_point", "zero_point"),
        ("row_sum", "row_sum"),
        ("epilogue_operands", "epilogue"),
        ("y", "outs"),
    )
    a = operand_def(MemRefType)
    """f32, [M, K]."""
    p = operand_def(MemRefType)
    """f32, `packed_shape(K, N)`."""
    scale = opt_operand_def(MemRefType)
    """f32, rank 0 or [N]."""
    zero_point = opt_operand_def(MemRefType)
    """Shaped as the scale; exactly when `hoisted` and not every zero point is 0."""
    row_sum = opt_operand_def(MemRefType)
    """f32, [M]: the sum of each row of `a`; exactly with a zero point."""
    hoisted = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        a: SSAValue,
        p: SSAValue,
        y: SSAValue,
        *,
        scale: SSAValue | None = None,
        zero_point: SSAValue | None = None,
        row_sum: SSAValue | None = None,
        hoisted: bool = False,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self),
                a=a,
                p=p,
                scale=scale,
                zero_point=zero_point,
                row_sum=row_sum,
                y=y,
                epilogue_operands=epilogue_operands,
            ),
            properties={
                "hoisted": flag(hoisted),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
        )

    def verify_(self) -> None:
        expect_f32(self, self.a, self.p)
        if len(shape_of(self.a)) != 2 or len(shape_of(self.y)) != 2:
            raise VerifyException(
                f"the activation and the output are matrices, got {self.a.type} and {self.y.type}"
            )
        (m, k), n = shape_of(self.a), shape_of(self.y)[1]
        expect_shape("the packed weight", self.p, packed_shape(k, n))
        if self.scale is not None:
            expect_f32(self, self.scale)
            _expect_one_of("the scale", self.scale, [(), (n,)])
        if self.zero_point is not None:
            if self.scale is None or self.hoisted is None:
                raise VerifyException("takes a zero point only when hoisted and with a scale")
            expect_shape("the zero point", self.zero_point, shape_of(self.scale))
            if type_of(self.zero_point).get_element_type() not in _ZERO_POINTS:
                names = ", ".join(str(t) for t in _ZERO_POINTS)
                raise VerifyException(f"a zero point is one of {names}, got {self.zero_point.type}")
        if (self.row_sum is None) != (self.zero_point is None):
            raise VerifyException("takes a row_sum exactly with a zero point")
        if self.row_sum is not None:
            expect_f32(self, self.row_sum)
            expect_shape("row_sum", self.row_sum, (m,))
        self.verify_output((m, n))


def _expect_one_of(what: str, value: SSAValue, shapes: Sequence[tuple[int, ...]]) -> None:
    if shape_of(value) not in shapes:
        allowed = " or ".join(str(list(s)) for s in shapes)
        raise VerifyException(f"{what} has shape {allowed}, got {value.type}")
