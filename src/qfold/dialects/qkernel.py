"""`qkernel`: the contractions of `qmm` on memrefs, in destination-passing style: what a kernel computes.

Weight, scale and zero point are operands here, so that a kernel's signature says every type that it reads. Each op is the whole
body of a kernel function; docs/dialects/qkernel.md has a page per op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    MemRefType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Dialect, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import (
    EpilogueOperation,
    GroupedOperation,
    conv_shape,
    epilogue_maps_attr,
    expect_f32,
    expect_shape,
    flag,
    int_array,
    ints,
    matmul_shape,
    operands_in_order,
    region_or_none,
    shape_of,
    type_of,
    window_of,
    window_properties,
    window_shape,
)
from qfold.dialects.element_types import STORAGE_TYPES, bit_width, i8, i16, is_unsigned, ui8, ui16


def zero_point_type(storage: IntegerType) -> IntegerType:
    """The element type of a zero-point operand: the storage type, four bits widened to eight."""
    if bit_width(storage) <= 8:
        return ui8 if is_unsigned(storage) else i8
    return ui16 if is_unsigned(storage) else i16


class _KernelOp(EpilogueOperation):
    y = operand_def(MemRefType)
    """Written, never read first."""

    @property
    def output_type(self) -> MemRefType[Attribute]:
        return cast(MemRefType[Attribute], self.y.type)

    def verify_output(self, shape: Sequence[int]) -> None:
        expect_shape("the output", self.y, shape)
        self.verify_epilogue()


class _DequantKernelOp(_KernelOp):
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


@irdl_op_definition
class MatmulOp(_KernelOp):
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
class DequantMatmulOp(_DequantKernelOp):
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
class ConvOp(_KernelOp):
    """`y = epilogue(conv(x, w))`, as `qmm.conv`; padding is not materialised."""

    name = "qkernel.conv"
    GROUPS: ClassVar = (
        ("x", None),
        ("w", None),
        ("epilogue_operands", "epilogue"),
        ("y", "outs"),
    )
    x = operand_def(MemRefType)
    w = operand_def(MemRefType)
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        y: SSAValue,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self), x=x, w=w, y=y, epilogue_operands=epilogue_operands
            ),
            properties={
                **window_properties(strides, pads, dilations, groups),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
        )

    def verify_(self) -> None:
        expect_f32(self, self.x, self.w)
        self.verify_output(conv_shape(shape_of(self.x), shape_of(self.w), *window_of(self)))


@irdl_op_definition
class DequantConvOp(_DequantKernelOp):
    """`y = epilogue(conv(x, dequantize(w)))`, as `qmm.dequant_conv`: scale per tensor or [M]."""

    name = "qkernel.dequant_conv"
    GROUPS: ClassVar = (
        ("x", None),
        ("w", None),
        ("scale", None),
        ("zero_point", "zero_point"),
        ("window_sum", "window_sum"),
        ("epilogue_operands", "epilogue"),
        ("y", "outs"),
    )
    x = operand_def(MemRefType)
    window_sum = opt_operand_def(MemRefType)
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        scale: SSAValue,
        y: SSAValue,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
        zero_point: SSAValue | None = None,
        window_sum: SSAValue | None = None,
        hoisted: bool = False,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self),
                x=x,
                w=w,
                scale=scale,
                zero_point=zero_point,
                window_sum=window_sum,
                y=y,
                epilogue_operands=epilogue_operands,
            ),
            properties={
                **window_properties(strides, pads, dilations, groups),
                "hoisted": flag(hoisted),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
        )

    def verify_(self) -> None:
        expect_f32(self, self.x)
        window = window_of(self)
        shape = conv_shape(shape_of(self.x), shape_of(self.w), *window)
        self.verify_parameters([(), (shape[1],)])
        self.verify_sum("window_sum", self.window_sum, (shape[0], window[0], *shape[2:]))
        self.verify_output(shape)


@irdl_op_definition
class WindowSumOp(GroupedOperation):
    """`y` = the sum of x over each window and group, as `qmm.window_sum`; padding is not materialised."""

    name = "qkernel.window_sum"
    GROUPS: ClassVar = (("x", None), ("y", "outs"))
    x = operand_def(MemRefType)
    y = operand_def(MemRefType)
    kernel_shape = prop_def(DenseArrayBase.constr(i64))
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    irdl_options = ()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        x: SSAValue,
        y: SSAValue,
        *,
        kernel_shape: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
    ):
        super().__init__(
            operands=[x, y],
            properties={
                "kernel_shape": int_array(kernel_shape),
                **window_properties(strides, pads, dilations, groups),
            },
        )

    def verify_(self) -> None:
        expect_f32(self, self.x, self.y)
        shape = shape_of(self.x)
        groups, strides, pads, dilations = window_of(self)
        out = window_shape(shape[2:], ints(self.kernel_shape), strides, pads, dilations)
        expect_shape("the output", self.y, (shape[0], groups, *out))


CONTRACTIONS: tuple[type[IRDLOperation], ...] = (
    MatmulOp,
    DequantMatmulOp,
    ConvOp,
    DequantConvOp,
    WindowSumOp,
)
"""Every op that a kernel is selected for."""

QKERNEL = Dialect("qkernel", [*CONTRACTIONS], [])
