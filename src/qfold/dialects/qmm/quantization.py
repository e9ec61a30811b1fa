"""The ops of `qmm` on constants and quantised values, and the terminator of its regions."""

from __future__ import annotations

from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    IntegerType,
    TensorType,
    f32,
    i64,
)
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.interfaces import HasCanonicalizationPatternsInterface
from xdsl.ir import Attribute, SSAValue
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
from xdsl.parser import Parser
from xdsl.pattern_rewriter import RewritePattern
from xdsl.printer import Printer
from xdsl.traits import ConstantLike, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import (
    GroupedOperation,
    expect_f32,
    expect_shape,
    operands_in_order,
    shape_of,
)
from qfold.dialects.element_types import integer_range
from qfold.dialects.qmm.quant import QuantAttr
from qfold.dialects.qmm.weight import WeightAttr

Tensor = TensorType[Attribute]


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """Ends an epilogue region with the element to store."""

    name = "qmm.yield"
    traits = traits_def(IsTerminator(), Pure())


@irdl_op_definition
class ConstantOp(IRDLOperation, HasCanonicalizationPatternsInterface):
    """Constant tensor data as packed bytes.

    ```mlir
    %w = qmm.constant #qmm.weight<"0x01FF02FE" : tensor<2x2xi8>>
    ```
    """

    name = "qmm.constant"
    value = prop_def(WeightAttr)
    result = result_def(TensorType)

    traits = traits_def(Pure(), ConstantLike())

    def __init__(self, value: WeightAttr):
        super().__init__(properties={"value": value}, result_types=[value.type])

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        from qfold.transforms.canonicalization_patterns.qmm import FoldLayoutOfConstant

        return (FoldLayoutOfConstant(),)

    def verify_(self) -> None:
        if self.value.type != self.result.type:
            raise VerifyException(f"a constant {self.value.type} has the type {self.result.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.value)
        if self.attributes:
            printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        value = parser.parse_attribute()
        if not isinstance(value, WeightAttr):
            parser.raise_error("expected #qmm.weight<...>")
        op = cls(value)
        op.attributes |= parser.parse_optional_attr_dict()
        return op


class _RuntimeQuantOp(GroupedOperation):
    """Shared by quantize and dequantize: parameters are an attribute, or operands known only at run time."""

    runtime_scale = opt_operand_def(TensorType)
    """f32: rank 0, or one per row (the leading dimensions of the data without the last)."""
    runtime_zero_point = opt_operand_def(TensorType)
    """The storage type, shaped as the scale; absent: 0."""
    quant = opt_prop_def(QuantAttr)

    def verify_parameters(self, quantized: SSAValue, real: SSAValue) -> None:
        if shape_of(quantized) != shape_of(real):
            raise VerifyException(f"{quantized.type} and {real.type} differ in shape")
        expect_f32(self, real)
        storage = cast(Tensor, quantized.type).element_type
        if (self.quant is None) == (self.runtime_scale is None):
            raise VerifyException("takes either the attribute quant or the operand runtime_scale")
        if self.quant is not None:
            if self.runtime_zero_point is not None:
                raise VerifyException("a runtime_zero_point goes with a runtime_scale")
            self.quant.verify_describes(cast(Tensor, quantized.type))
            return
        assert self.runtime_scale is not None
        integer_range(storage)
        expect_f32(self, self.runtime_scale)
        shape = shape_of(real)
        if shape_of(self.runtime_scale) not in ((), shape[:-1]):
            raise VerifyException(
                f"a runtime scale has shape [] or {list(shape[:-1])}, got {self.runtime_scale.type}"
            )
        zero = self.runtime_zero_point
        if zero is not None and zero.type != TensorType(storage, shape_of(self.runtime_scale)):
            raise VerifyException(
                f"a runtime zero point is {storage} and shaped as the scale, got {zero.type}"
            )


@irdl_op_definition
class QuantizeOp(_RuntimeQuantOp, HasCanonicalizationPatternsInterface):
    """`q = saturate(roundeven(x / scale) + zero_point)`: ONNX QuantizeLinear, ties to even, NaN to the zero point.

    ```mlir
    %q = qmm.quantize %x {quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>} : (tensor<4xf32>) -> tensor<4xui8>
    %q = qmm.quantize %x scale(%s) zero_point(%z) : (tensor<4xf32>, tensor<f32>, tensor<i8>) -> tensor<4xi8>
    ```
    """

    name = "qmm.quantize"
    GROUPS: ClassVar = (
        ("x", None),
        ("runtime_scale", "scale"),
        ("runtime_zero_point", "zero_point"),
    )
    x = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def __init__(
        self,
        x: SSAValue,
        quant: QuantAttr | None,
        *,
        storage: IntegerType | None = None,
        runtime_scale: SSAValue | None = None,
        runtime_zero_point: SSAValue | None = None,
    ):
        storage = storage if quant is None else quant.storage
        assert storage is not None, "a run-time scale needs the storage type"
        super().__init__(
            operands=operands_in_order(
                type(self), x=x, runtime_scale=runtime_scale, runtime_zero_point=runtime_zero_point
            ),
            properties={"quant": quant},
            result_types=[TensorType(storage, shape_of(x))],
        )

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        from qfold.transforms.canonicalization_patterns.qmm import FoldQuantize

        return (FoldQuantize(),)

    def verify_(self) -> None:
        self.verify_parameters(self.result, self.x)


@irdl_op_definition
class DequantizeOp(_RuntimeQuantOp, HasCanonicalizationPatternsInterface):
    """`x = scale * (q - zero_point)`, the difference taken after widening: ONNX DequantizeLinear.

    ```mlir
    %x = qmm.dequantize %q {quant = #qmm.quant<i8, scale = [0.5, 0.25], axis = 1>} : (tensor<4x2xi8>) -> tensor<4x2xf32>
    ```
    """

    name = "qmm.dequantize"
    GROUPS: ClassVar = (
        ("q", None),
        ("runtime_scale", "scale"),
        ("runtime_zero_point", "zero_point"),
    )
    q = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def __init__(
        self,
        q: SSAValue,
        quant: QuantAttr | None,
        *,
        runtime_scale: SSAValue | None = None,
        runtime_zero_point: SSAValue | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self), q=q, runtime_scale=runtime_scale, runtime_zero_point=runtime_zero_point
            ),
            properties={"quant": quant},
            result_types=[TensorType(f32, shape_of(q))],
        )

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        from qfold.transforms.canonicalization_patterns.qmm import FoldDequantize

        return (FoldDequantize(),)

    def verify_(self) -> None:
        self.verify_parameters(self.q, self.result)


@irdl_op_definition
class DequantGatherOp(IRDLOperation):
    """Rows of a quantised table, dequantised after they are read: `dequantize(W)[i]` without ever widening W.

    ```mlir
    %y = qmm.dequant_gather %i {weight = #qmm.weight<...>, quant = #qmm.quant<i8, scale = [...], axis = 0>}
        : (tensor<1x16xi64>) -> tensor<1x16x384xf32>
    ```

    `i` holds signed integers of any width, negative ones count from the end (ONNX Gather, axis 0), and must be in range. The
    result has the shape of `i` followed by that of a row.
    """

    name = "qmm.dequant_gather"
    indices = operand_def(TensorType)
    weight = prop_def(WeightAttr)
    quant = prop_def(QuantAttr)
    result = result_def(TensorType)
    assembly_format = "$indices attr-dict `:` functional-type(operands, results)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    def __init__(self, indices: SSAValue, weight: WeightAttr, quant: QuantAttr):
        super().__init__(
            operands=[indices],
            properties={"weight": weight, "quant": quant},
            result_types=[TensorType(f32, (*shape_of(indices), *weight.shape[1:]))],
        )

    def verify_(self) -> None:
        expect_f32(self, self.result)
        if cast(Tensor, self.indices.type).element_type not in (IntegerType(32), i64):
            raise VerifyException(f"indices are i32 or i64, got {self.indices.type}")
        if not self.weight.shape:
            raise VerifyException("the table has at least one dimension")
        self.quant.verify_describes(self.weight.type)
        expect_shape("the result", self.result, (*shape_of(self.indices), *self.weight.shape[1:]))
