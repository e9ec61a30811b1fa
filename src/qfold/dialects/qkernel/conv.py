"""Convolutions, and the sums over their windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    MemRefType,
    i64,
)
from xdsl.ir import Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect

from qfold.dialects.contraction import (
    GroupedOperation,
    conv_shape,
    epilogue_maps_attr,
    expect_f32,
    expect_shape,
    flag,
    int_array,
    ints,
    operands_in_order,
    region_or_none,
    shape_of,
    window_of,
    window_properties,
    window_shape,
)
from qfold.dialects.qkernel.base import DequantKernelOp, KernelOp


@irdl_op_definition
class ConvOp(KernelOp):
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
class DequantConvOp(DequantKernelOp):
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
