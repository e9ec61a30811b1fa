"""The ops of `qmm` that stay in integers: contractions with i32 accumulators, and the way from an accumulator back to storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.interfaces import HasCanonicalizationPatternsInterface
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
from xdsl.pattern_rewriter import RewritePattern
from xdsl.traits import Pure

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


class _IntegerContractionOp(EpilogueOperation, HasCanonicalizationPatternsInterface):
    ACCUMULATOR: ClassVar[Attribute] = i32
    result = result_def(TensorType)

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        from qfold.transforms.canonicalization_patterns.qmm import (
            FoldTransposeIntoMatmul,
            SimplifyZeroPoints,
        )

        return (SimplifyZeroPoints(), FoldTransposeIntoMatmul())

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
        self.verify_result(
            quant_matmul_shape(
                self.a,
                self.b,
                self.a_zero_point,
                self.b_zero_point,
                self.transpose_b is not None,
            )
        )


@irdl_op_definition
class QuantConvOp(_IntegerContractionOp):
    """The convolution of `x - x_zero_point` with `w - w_zero_point` in i32: ONNX ConvInteger. 1-D and 2-D.

    x: [N, C, spatial...] of i8 or ui8; w: [M, C / groups, kernel...] of i8, ui8, i4 or ui4. `x_zero_point` has rank 0,
    `w_zero_point` rank 0 or one per output channel ([M]). Padding is x's zero point, hence adds nothing. Where x
    has none, `pad_value` may say what the padding holds instead, as a stored integer of x's type: what the zero point was that
    `qmm-expand-zero-points` took out. It is not materialised either way.
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
    pad_value = opt_prop_def(IntegerAttr)
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
        pad_value: int | None = None,
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
                "pad_value": pad_value_attr(pad_value),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
            result_types=[TensorType(result_element_type, shape)],
        )

    @property
    def padding(self) -> int | None:
        """What the padding holds, as a stored integer; None: x's zero point, which adds nothing."""
        return padding_of(self.pad_value)

    def verify_(self) -> None:
        self.verify_result(
            quant_conv_shape(
                self.x,
                self.w,
                self.x_zero_point,
                self.w_zero_point,
                window_of(self),
                self.padding,
            )
        )
