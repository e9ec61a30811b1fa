"""Contractions of integers: products of differences from zero points, summed up in i32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, MemRefType, UnitAttr, i64
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect

from qfold.dialects.contraction import (
    epilogue_maps_attr,
    flag,
    operands_in_order,
    region_or_none,
    window_of,
    window_properties,
)
from qfold.dialects.element_types import i32
from qfold.dialects.integer_operands import (
    pad_value_attr,
    padding_of,
    quant_conv_shape,
    quant_matmul_shape,
)
from qfold.dialects.qkernel.base import KernelOp


@irdl_op_definition
class QuantMatmulOp(KernelOp):
    """`y = epilogue((a - a_zero_point) @ (b - b_zero_point))` in i32, as `qmm.quant_matmul`.

    ```mlir
    qkernel.quant_matmul %a, %b a_zero_point(%za) b_zero_point(%zb) outs(%y)
        : (memref<4x8xui8>, memref<8x3xi8>, memref<ui8>, memref<3xi8>, memref<4x3xi32>) -> ()
    ```
    """

    name = "qkernel.quant_matmul"
    ACCUMULATOR: ClassVar[Attribute] = i32
    GROUPS: ClassVar = (
        ("a", None),
        ("b", None),
        ("a_zero_point", "a_zero_point"),
        ("b_zero_point", "b_zero_point"),
        ("epilogue_operands", "epilogue"),
        ("y", "outs"),
    )
    a = operand_def(MemRefType)
    b = operand_def(MemRefType)
    a_zero_point = opt_operand_def(MemRefType)
    b_zero_point = opt_operand_def(MemRefType)
    transpose_b = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        y: SSAValue,
        *,
        a_zero_point: SSAValue | None = None,
        b_zero_point: SSAValue | None = None,
        transpose_b: bool = False,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self),
                a=a,
                b=b,
                a_zero_point=a_zero_point,
                b_zero_point=b_zero_point,
                y=y,
                epilogue_operands=epilogue_operands,
            ),
            properties={
                "transpose_b": flag(transpose_b),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
        )

    def verify_(self) -> None:
        self.verify_output(
            quant_matmul_shape(
                self.a,
                self.b,
                self.a_zero_point,
                self.b_zero_point,
                self.transpose_b is not None,
            )
        )


@irdl_op_definition
class QuantConvOp(KernelOp):
    """`y = epilogue(conv(x - x_zero_point, w - w_zero_point))` in i32, as `qmm.quant_conv`.

    Padding adds nothing, or is `pad_value`.
    """

    name = "qkernel.quant_conv"
    ACCUMULATOR: ClassVar[Attribute] = i32
    GROUPS: ClassVar = (
        ("x", None),
        ("w", None),
        ("x_zero_point", "x_zero_point"),
        ("w_zero_point", "w_zero_point"),
        ("epilogue_operands", "epilogue"),
        ("y", "outs"),
    )
    x = operand_def(MemRefType)
    w = operand_def(MemRefType)
    x_zero_point = opt_operand_def(MemRefType)
    w_zero_point = opt_operand_def(MemRefType)
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    pad_value = opt_prop_def(IntegerAttr)
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
        pad_value: int | None = None,
        x_zero_point: SSAValue | None = None,
        w_zero_point: SSAValue | None = None,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self),
                x=x,
                w=w,
                x_zero_point=x_zero_point,
                w_zero_point=w_zero_point,
                y=y,
                epilogue_operands=epilogue_operands,
            ),
            properties={
                **window_properties(strides, pads, dilations, groups),
                "pad_value": pad_value_attr(pad_value),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
        )

    @property
    def padding(self) -> int | None:
        """What the padding holds, as a stored integer; None: x's zero point, which adds nothing."""
        return padding_of(self.pad_value)

    def verify_(self) -> None:
        self.verify_output(
            quant_conv_shape(
                self.x,
                self.w,
                self.x_zero_point,
                self.w_zero_point,
                window_of(self),
                self.padding,
            )
        )
