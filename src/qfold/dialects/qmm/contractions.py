"""The contractions of `qmm`, in float and of quantised weights, and the sums that hoisted zero points multiply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    TensorType,
    UnitAttr,
    f32,
    i64,
)
from xdsl.interfaces import HasCanonicalizationPatternsInterface
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
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
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import (
    EpilogueOperation,
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
    window_of,
    window_properties,
    window_shape,
)
from qfold.dialects.qmm.quant import QuantAttr
from qfold.dialects.qmm.weight import WeightAttr


class _ContractionOp(EpilogueOperation):
    result = result_def(TensorType)

    def verify_result(self, shape: Sequence[int]) -> None:
        expect_shape("the result", self.result, shape)
        self.verify_epilogue()


@irdl_op_definition
class MatmulOp(_ContractionOp, HasCanonicalizationPatternsInterface):
    """`a @ b` over the last two dimensions in f32, batch dimensions broadcast.

    ```mlir
    %y = qmm.matmul %a, %b {transpose_b} : (tensor<2x4x8xf32>, tensor<3x8xf32>) -> tensor<2x4x3xf32>
    ```
    """

    name = "qmm.matmul"
    GROUPS: ClassVar = (("a", None), ("b", None), ("epilogue_operands", "epilogue"))
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    transpose_a = opt_prop_def(UnitAttr)
    transpose_b = opt_prop_def(UnitAttr)
    traits = traits_def(Pure())

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
        result_element_type: Attribute = f32,
    ):
        shape = matmul_shape(shape_of(a), shape_of(b), transpose_a, transpose_b)
        super().__init__(
            operands=operands_in_order(type(self), a=a, b=b, epilogue_operands=epilogue_operands),
            properties={
                "transpose_a": flag(transpose_a),
                "transpose_b": flag(transpose_b),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
            result_types=[TensorType(result_element_type, shape)],
        )

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        from qfold.transforms.canonicalization_patterns.qmm import FoldTransposeIntoMatmul

        return (FoldTransposeIntoMatmul(),)

    def verify_(self) -> None:
        expect_f32(self, self.a, self.b)
        self.verify_result(
            matmul_shape(
                shape_of(self.a),
                shape_of(self.b),
                self.transpose_a is not None,
                self.transpose_b is not None,
            )
        )


@irdl_op_definition
class DequantMatmulOp(_ContractionOp, HasCanonicalizationPatternsInterface):
    """`a @ dequantize(W)`: an f32 activation [..., M, K] and an integer weight [K, N], or [N, K] with `transpose_b`.

    ```mlir
    %y = qmm.dequant_matmul %a {weight = #qmm.weight<...>, quant = #qmm.quant<i8, scale = 0.5>}
        : (tensor<4x8xf32>) -> tensor<4x3xf32>
    ```

    Plain: `y[m, n] = sum_k a[m, k] * scale * (w[k, n] - zp)`.
    `hoisted`: `y[m, n] = scale * (sum_k a[m, k] * w[k, n] - zp * row_sum[m])`, per block along K the sum over the blocks of
    that, with `row_sum` the result of `qmm.row_sum %a`: absent when every zero point is 0. The two are equal in the reals;
    hoisting assumes that both sums are finite in f32.

    The scale is per tensor, per axis along N, or per block along K. A scale per element of K belongs to the activation.
    """

    name = "qmm.dequant_matmul"
    GROUPS: ClassVar = (("a", None), ("row_sum", "row_sum"), ("epilogue_operands", "epilogue"))
    a = operand_def(TensorType)
    row_sum = opt_operand_def(TensorType)
    weight = prop_def(WeightAttr)
    quant = prop_def(QuantAttr)
    transpose_b = opt_prop_def(UnitAttr)
    hoisted = opt_prop_def(UnitAttr)
    traits = traits_def(Pure())

    def __init__(
        self,
        a: SSAValue,
        weight: WeightAttr,
        quant: QuantAttr,
        *,
        transpose_b: bool = False,
        hoisted: bool = False,
        row_sum: SSAValue | None = None,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
        result_element_type: Attribute = f32,
    ):
        shape = matmul_shape(shape_of(a), weight.shape, False, transpose_b)
        super().__init__(
            operands=operands_in_order(
                type(self), a=a, row_sum=row_sum, epilogue_operands=epilogue_operands
            ),
            properties={
                "weight": weight,
                "quant": quant,
                "transpose_b": flag(transpose_b),
                "hoisted": flag(hoisted),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
            result_types=[TensorType(result_element_type, shape)],
        )

    @property
    def k_axis(self) -> int:
        """The dimension of the weight that is summed over."""
        return 1 if self.transpose_b is not None else 0

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        from qfold.transforms.canonicalization_patterns.qmm import DropUnusedSum

        return (DropUnusedSum(),)

    def verify_(self) -> None:
        expect_f32(self, self.a)
        if len(self.weight.shape) != 2:
            raise VerifyException(f"the weight is a matrix, got {self.weight.type}")
        self.quant.verify_describes(self.weight.type)
        verify_matmul_granularity(self.quant, self.k_axis)
        shape = matmul_shape(
            shape_of(self.a), self.weight.shape, False, self.transpose_b is not None
        )
        verify_hoisting(self, "row_sum", self.row_sum)
        if self.row_sum is not None:
            expect_f32(self, self.row_sum)
            expect_shape(
                "row_sum", self.row_sum, row_sum_shape(shape_of(self.a), self.quant.block_size)
            )
        self.verify_result(shape)


def verify_matmul_granularity(quant: QuantAttr, k_axis: int) -> None:
    """A per-axis scale runs along N, a blockwise one is blocked along K."""
    if quant.granularity == "axis" and quant.axis == k_axis:
        raise VerifyException(
            f"a scale along K (axis {quant.axis} of the weight) cannot leave the sum over K: it belongs to the activation"
        )
    if quant.granularity == "block" and quant.axis != k_axis:
        raise VerifyException(
            f"blocks run along K (axis {k_axis} of the weight), got axis {quant.axis}"
        )


def verify_hoisting(
    op: DequantMatmulOp | DequantConvOp, name: str, operand: SSAValue | None
) -> None:
    """`row_sum`/`window_sum` is there exactly when hoisted with a zero point that is not 0."""
    needed = op.hoisted is not None and not op.quant.is_symmetric
    if needed and operand is None:
        raise VerifyException(f"hoisted with a non-zero zero point, but there is no {name}")
    if not needed and operand is not None:
        why = "every zero point is 0" if op.hoisted is not None else "the op is not hoisted"
        raise VerifyException(f"{name} has no use: {why}")


def row_sum_shape(a: Sequence[int], block_size: int | None) -> tuple[int, ...]:
    """[..., M, K] -> [..., M], or [..., M, ceil(K / block_size)]."""
    if block_size is None:
        return tuple(a[:-1])
    return (*a[:-1], -(-a[-1] // block_size))


@irdl_op_definition
class RowSumOp(IRDLOperation):
    """`sum_k a[..., m, k]`, or the same per block of K: what a hoisted zero point multiplies. Pure: CSE shares one.

    ```mlir
    %s = qmm.row_sum %a : (tensor<4x8xf32>) -> tensor<4xf32>
    %s = qmm.row_sum %a {block_size = 4 : i64} : (tensor<4x8xf32>) -> tensor<4x2xf32>
    ```
    """

    name = "qmm.row_sum"
    a = operand_def(TensorType)
    block_size = opt_prop_def(IntegerAttr)
    result = result_def(TensorType)
    assembly_format = "$a attr-dict `:` functional-type(operands, results)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    def __init__(self, a: SSAValue, block_size: int | None = None):
        super().__init__(
            operands=[a],
            properties={"block_size": None if block_size is None else IntegerAttr(block_size, i64)},
            result_types=[TensorType(f32, row_sum_shape(shape_of(a), block_size))],
        )

    @property
    def block(self) -> int | None:
        return None if self.block_size is None else self.block_size.value.data

    def verify_(self) -> None:
        expect_f32(self, self.a, self.result)
        if not shape_of(self.a) or (self.block is not None and self.block < 1):
            raise VerifyException("sums the last dimension, in blocks of at least 1")
        expect_shape("the result", self.result, row_sum_shape(shape_of(self.a), self.block))


@irdl_op_definition
class ConvOp(_ContractionOp):
    """Convolution in f32: x [N, C, spatial...], w [M, C / groups, kernel...]; 1-D and 2-D; `pads` begins, then ends (ONNX).

    ```mlir
    %y = qmm.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>,
                          groups = 1 : i64}
        : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x8x8xf32>
    ```
    """

    name = "qmm.conv"
    GROUPS: ClassVar = (("x", None), ("w", None), ("epilogue_operands", "epilogue"))
    x = operand_def(TensorType)
    w = operand_def(TensorType)
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
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
        result_element_type: Attribute = f32,
    ):
        shape = conv_shape(shape_of(x), shape_of(w), groups, strides, pads, dilations)
        super().__init__(
            operands=operands_in_order(type(self), x=x, w=w, epilogue_operands=epilogue_operands),
            properties={
                **window_properties(strides, pads, dilations, groups),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
            result_types=[TensorType(result_element_type, shape)],
        )

    def verify_(self) -> None:
        expect_f32(self, self.x, self.w)
        self.verify_result(conv_shape(shape_of(self.x), shape_of(self.w), *window_of(self)))


@irdl_op_definition
class DequantConvOp(_ContractionOp, HasCanonicalizationPatternsInterface):
    """Convolution of an f32 x with an integer weight [M, C / groups, kernel...], quantised per tensor or along M (axis 0).

    ```mlir
    %y = qmm.dequant_conv %x window_sum(%s) {weight = #qmm.weight<...>, quant = #qmm.quant<...>, hoisted, strides = ..., ...}
        : (tensor<1x3x8x8xf32>, tensor<1x1x8x8xf32>) -> tensor<1x4x8x8xf32>
    ```

    `hoisted`: `y = scale[m] * (sum x * w - zp[m] * window_sum[n, group(m), ...])`. Padding is a real zero, so the window sum at a
    border adds only what lies inside: `qmm.window_sum` says so, and a constant folded into the bias would be wrong there.
    """

    name = "qmm.dequant_conv"
    GROUPS: ClassVar = (
        ("x", None),
        ("window_sum", "window_sum"),
        ("epilogue_operands", "epilogue"),
    )
    x = operand_def(TensorType)
    window_sum = opt_operand_def(TensorType)
    weight = prop_def(WeightAttr)
    quant = prop_def(QuantAttr)
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    hoisted = opt_prop_def(UnitAttr)
    traits = traits_def(Pure())

    def __init__(
        self,
        x: SSAValue,
        weight: WeightAttr,
        quant: QuantAttr,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
        hoisted: bool = False,
        window_sum: SSAValue | None = None,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
        result_element_type: Attribute = f32,
    ):
        shape = conv_shape(shape_of(x), weight.shape, groups, strides, pads, dilations)
        super().__init__(
            operands=operands_in_order(
                type(self), x=x, window_sum=window_sum, epilogue_operands=epilogue_operands
            ),
            properties={
                **window_properties(strides, pads, dilations, groups),
                "weight": weight,
                "quant": quant,
                "hoisted": flag(hoisted),
                "epilogue_maps": epilogue_maps_attr(epilogue_maps),
            },
            regions=[region_or_none(epilogue)],
            result_types=[TensorType(result_element_type, shape)],
        )

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        from qfold.transforms.canonicalization_patterns.qmm import DropUnusedSum

        return (DropUnusedSum(),)

    def verify_(self) -> None:
        expect_f32(self, self.x)
        self.quant.verify_describes(self.weight.type)
        if self.quant.granularity == "block" or self.quant.axis not in (None, 0):
            raise VerifyException(
                f"a convolution takes a scale per tensor or per output channel (axis 0), "
                f"got one per {self.quant.granularity} on axis {self.quant.axis}"
            )
        window = window_of(self)
        shape = conv_shape(shape_of(self.x), self.weight.shape, *window)
        verify_hoisting(self, "window_sum", self.window_sum)
        if self.window_sum is not None:
            expect_f32(self, self.window_sum)
            expect_shape("window_sum", self.window_sum, (shape[0], window[0], *shape[2:]))
        self.verify_result(shape)


@irdl_op_definition
class WindowSumOp(IRDLOperation):
    """The sum of x over each window of a convolution, per group: [N, C, spatial...] -> [N, groups, out...]; padding adds nothing.

    ```mlir
    %s = qmm.window_sum %x {kernel_shape = array<i64: 3, 3>, strides = ..., pads = ..., dilations = ..., groups = 1 : i64}
        : (tensor<1x3x8x8xf32>) -> tensor<1x1x8x8xf32>
    ```
    """

    name = "qmm.window_sum"
    x = operand_def(TensorType)
    kernel_shape = prop_def(DenseArrayBase.constr(i64))
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    result = result_def(TensorType)
    assembly_format = "$x attr-dict `:` functional-type(operands, results)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    def __init__(
        self,
        x: SSAValue,
        *,
        kernel_shape: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
    ):
        shape = shape_of(x)
        out = window_shape(shape[2:], kernel_shape, strides, pads, dilations)
        super().__init__(
            operands=[x],
            properties={
                "kernel_shape": int_array(kernel_shape),
                **window_properties(strides, pads, dilations, groups),
            },
            result_types=[TensorType(f32, (shape[0], groups, *out))],
        )

    def verify_(self) -> None:
        expect_f32(self, self.x, self.result)
        shape = shape_of(self.x)
        groups, strides, pads, dilations = window_of(self)
        if len(shape) not in (3, 4) or groups < 1 or shape[1] % groups:
            raise VerifyException(f"{groups} groups do not divide the channels of {self.x.type}")
        out = window_shape(shape[2:], ints(self.kernel_shape), strides, pads, dilations)
        expect_shape("the result", self.result, (shape[0], groups, *out))
