"""The ops of `qmm` that stay in integers: contractions with i32 accumulators, and the way from an accumulator back to storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import (
    EpilogueOperation,
    conv_shape,
    epilogue_maps_attr,
    expect_shape,
    flag,
    matmul_shape,
    operands_in_order,
    region_or_none,
    shape_of,
    type_of,
    window_of,
    window_properties,
)
from qfold.dialects.element_types import bit_width, i4, i8, i32, is_unsigned, ui4, ui8

DATA_TYPES: tuple[IntegerType, ...] = (i8, ui8)
"""What an activation may be."""

WEIGHT_TYPES: tuple[IntegerType, ...] = (i8, ui8, i4, ui4)
"""What the other operand may be."""


def zero_point_type(storage: IntegerType) -> IntegerType:
    """The element type of a zero point: that of the data, four bits widened to eight."""
    if bit_width(storage) == 8:
        return storage
    return ui8 if is_unsigned(storage) else i8


def expect_integers(what: str, value: SSAValue, allowed: Sequence[IntegerType]) -> None:
    """`VerifyException` unless `value` has an element type of `allowed`."""
    if type_of(value).get_element_type() not in allowed:
        names = ", ".join(str(t) for t in allowed)
        raise VerifyException(f"{what} is one of {names}, got {value.type}")


def expect_zero_point(
    what: str, zero_point: SSAValue | None, data: SSAValue, shapes: Sequence[tuple[int, ...]]
) -> None:
    """`VerifyException` unless a zero point has the type that goes with `data` and one of `shapes`."""
    if zero_point is None:
        return
    expected = zero_point_type(cast(IntegerType, type_of(data).get_element_type()))
    if type_of(zero_point).get_element_type() != expected:
        raise VerifyException(f"{what} of {data.type} is {expected}, got {zero_point.type}")
    if shape_of(zero_point) not in shapes:
        allowed = " or ".join(str(list(s)) for s in dict.fromkeys(shapes))
        raise VerifyException(f"{what} has shape {allowed}, got {zero_point.type}")


class _IntegerContractionOp(EpilogueOperation):
    ACCUMULATOR: ClassVar[Attribute] = i32
    result = result_def(TensorType)

    def verify_result(self, shape: Sequence[int]) -> None:
        expect_shape("the result", self.result, shape)
        self.verify_epilogue()


@irdl_op_definition
class QuantMatmulOp(_IntegerContractionOp):
    """`(a - a_zero_point) @ (b - b_zero_point)` in i32, batch dimensions broadcast: ONNX MatMulInteger.

    ```mlir
    %y = qmm.quant_matmul %a, %b a_zero_point(%za) b_zero_point(%zb)
        : (tensor<4x8xui8>, tensor<8x3xi8>, tensor<ui8>, tensor<3xi8>) -> tensor<4x3xi32>
    ```

    a: [..., M, K] of i8 or ui8; b: [..., K, N], or [..., N, K] with `transpose_b`, of i8, ui8, i4 or ui4. Zero points have the
    type of their operand (four bits widened to eight): rank 0, or one per row of a ([..., M]), one per column of b ([N]).
    Absent: 0. Differences are exact; sums are modulo 2^32.
    """

    name = "qmm.quant_matmul"
    GROUPS: ClassVar = (
        ("a", None),
        ("b", None),
        ("a_zero_point", "a_zero_point"),
        ("b_zero_point", "b_zero_point"),
        ("epilogue_operands", "epilogue"),
    )
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    a_zero_point = opt_operand_def(TensorType)
    b_zero_point = opt_operand_def(TensorType)
    transpose_b = opt_prop_def(UnitAttr)
    traits = traits_def(Pure())

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        *,
        a_zero_point: SSAValue | None = None,
        b_zero_point: SSAValue | None = None,
        transpose_b: bool = False,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
        result_element_type: Attribute = i32,
    ):
        shape = matmul_shape(shape_of(a), shape_of(b), False, transpose_b)
        super().__init__(
            operands=operands_in_order(
                type(self),
                a=a,
                b=b,
                a_zero_point=a_zero_point,
                b_zero_point=b_zero_point,
                epilogue_operands=epilogue_operands,
            ),
            properties={
                "transpose_b": flag(transpose_b),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
            result_types=[TensorType(result_element_type, shape)],
        )

    def verify_(self) -> None:
        expect_integers("a", self.a, DATA_TYPES)
        expect_integers("b", self.b, WEIGHT_TYPES)
        shape = matmul_shape(
            shape_of(self.a), shape_of(self.b), False, self.transpose_b is not None
        )
        rows = shape_of(self.a)[:-1]
        expect_zero_point("the zero point of a", self.a_zero_point, self.a, [(), rows])
        expect_zero_point("the zero point of b", self.b_zero_point, self.b, [(), (shape[-1],)])
        self.verify_result(shape)


@irdl_op_definition
class QuantConvOp(_IntegerContractionOp):
    """The convolution of `x - x_zero_point` with `w - w_zero_point` in i32: ONNX ConvInteger. 1-D and 2-D.

    x: [N, C, spatial...] of i8 or ui8; w: [M, C / groups, kernel...] of i8, ui8, i4 or ui4. `x_zero_point` has rank 0,
    `w_zero_point` rank 0 or one per output channel ([M]). Padding is x's zero point, hence adds nothing, and is not
    materialised.
    """

    name = "qmm.quant_conv"
    GROUPS: ClassVar = (
        ("x", None),
        ("w", None),
        ("x_zero_point", "x_zero_point"),
        ("w_zero_point", "w_zero_point"),
        ("epilogue_operands", "epilogue"),
    )
    x = operand_def(TensorType)
    w = operand_def(TensorType)
    x_zero_point = opt_operand_def(TensorType)
    w_zero_point = opt_operand_def(TensorType)
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    traits = traits_def(Pure())

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
        x_zero_point: SSAValue | None = None,
        w_zero_point: SSAValue | None = None,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
        result_element_type: Attribute = i32,
    ):
        shape = conv_shape(shape_of(x), shape_of(w), groups, strides, pads, dilations)
        super().__init__(
            operands=operands_in_order(
                type(self),
                x=x,
                w=w,
                x_zero_point=x_zero_point,
                w_zero_point=w_zero_point,
                epilogue_operands=epilogue_operands,
            ),
            properties={
                **window_properties(strides, pads, dilations, groups),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
            result_types=[TensorType(result_element_type, shape)],
        )

    def verify_(self) -> None:
        expect_integers("x", self.x, DATA_TYPES)
        expect_integers("w", self.w, WEIGHT_TYPES)
        shape = conv_shape(shape_of(self.x), shape_of(self.w), *window_of(self))
        expect_zero_point("the zero point of x", self.x_zero_point, self.x, [()])
        channels = (shape_of(self.w)[0],)
        expect_zero_point("the zero point of w", self.w_zero_point, self.w, [(), channels])
        self.verify_result(shape)
