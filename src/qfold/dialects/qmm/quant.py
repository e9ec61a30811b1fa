"""`#qmm.quant`: how integers stand for reals."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import BytesAttr, IntAttr, IntegerType, StringAttr, TensorType, f32
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.element_types import (
    STORAGE_TYPES,
    i32,
    integer_range,
    is_integer,
    is_unsigned,
    numpy_dtype,
)
from qfold.dialects.qmm.weight import WeightAttr, memoised

_LISTED = 16
"""Scales and zero points up to this many are printed as numbers, more of them as hexadecimal bytes."""


@irdl_attr_definition
class QuantAttr(ParametrizedAttribute):
    """How integers stand for reals: `real = scale * (q - zero_point)`, computed after widening.

    ```mlir
    #qmm.quant<i8, scale = 0.5>
    #qmm.quant<ui8, scale = [0.5, 0.25], zero_point = [128, 3], axis = 1>
    #qmm.quant<ui4, scale = "0x..." : tensor<2x64xf32>, axis = 0, block_size = 32>
    ```

    Scales are f32, finite and positive, those of blocks of either sign or 0 (onnxruntime gives the block's largest element the
    lowest integer, whatever its sign); zero points have the storage type. Per tensor both have rank 0, per axis rank 1 (`axis`
    is the dimension of the quantised tensor that they run along), per block the rank of the quantised tensor, with
    `ceil(D / block_size)` for its `axis`. A one-element axis is the same thing as per tensor and is built as such. ONNX
    QuantizeLinear-21 defines the three granularities.
    """

    name = "qmm.quant"
    storage: IntegerType
    scale: WeightAttr
    zero_point: WeightAttr
    axis_attr: IntAttr
    """-1: per tensor."""
    block_attr: IntAttr
    """0: not per block."""

    @staticmethod
    def get(
        storage: IntegerType,
        scale: npt.ArrayLike,
        zero_point: npt.ArrayLike | None = None,
        *,
        axis: int | None = None,
        block_size: int | None = None,
    ) -> QuantAttr:
        """`scale` f32, `zero_point` integers of the same shape (or one for all, or None: 0); `axis` not negative.

        One element per axis (without blocks) becomes per tensor. `VerifyException` says what is wrong with a value.
        """
        scales = np.asarray(scale, np.float32)
        zeros = np.asarray(0 if zero_point is None else zero_point)
        low, high = integer_range(storage)
        if zeros.size and (zeros.min() < low or zeros.max() > high):
            raise VerifyException(f"zero point {zeros.min()}..{zeros.max()} does not fit {storage}")
        if block_size is None and scales.size == 1:
            scales, zeros, axis = scales.reshape(()), zeros.reshape(()), None
        zeros = np.broadcast_to(zeros.astype(numpy_dtype(storage)), scales.shape)
        return QuantAttr(
            storage,
            WeightAttr.from_array(scales, f32),
            WeightAttr.from_array(zeros, storage),
            IntAttr(-1 if axis is None else axis),
            IntAttr(block_size or 0),
        )

    @property
    def axis(self) -> int | None:
        return None if self.axis_attr.data < 0 else self.axis_attr.data

    @property
    def block_size(self) -> int | None:
        return self.block_attr.data or None

    @property
    def granularity(self) -> str:
        """`tensor`, `axis` or `block`."""
        return "tensor" if self.axis is None else "axis" if self.block_size is None else "block"

    @property
    def scales(self) -> npt.NDArray[np.float32]:
        return self.scale.array()

    @property
    def zero_points(self) -> npt.NDArray[np.int32]:
        """The zero points, widened, in the shape of the scales."""
        return self.zero_point.array().astype(np.int32)

    @property
    def is_symmetric(self) -> bool:
        """Whether every zero point is 0."""
        return memoised(self, "is_symmetric", lambda: not np.any(self.zero_points))

    def broadcast(
        self, shape: Sequence[int]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Scales and zero points shaped so that they broadcast against a quantised tensor of `shape`."""
        if self.axis is None:
            return self.scales, self.zero_points
        if self.block_size is None:
            view = [1] * len(shape)
            view[self.axis] = -1
            return self.scales.reshape(view), self.zero_points.reshape(view)

        def expand(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            assert self.axis is not None and self.block_size is not None
            whole = np.repeat(values, self.block_size, axis=self.axis)
            return np.take(whole, np.arange(shape[self.axis]), axis=self.axis)

        return expand(self.scales), expand(self.zero_points)

    def quantize(self, real: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`saturate(roundeven(x / scale) + zero_point)` in f32, as QuantizeLinear defines it; NaN gives the zero point."""
        scale, zero_point = self.broadcast(real.shape)
        low, high = integer_range(self.storage)
        with np.errstate(all="ignore"):
            steps = np.rint(real.astype(np.float32) / scale).astype(np.float64)
        # f64 holds the sum exactly wherever it is not far out of range.
        values = np.clip(np.where(np.isnan(steps), 0.0, steps) + zero_point, low, high)
        return values.astype(numpy_dtype(self.storage))

    def dequantize(self, quantized: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """`scale * (q - zero_point)` in f32, as DequantizeLinear defines it. An oracle: no pass calls this on a weight."""
        scale, zero_point = self.broadcast(quantized.shape)
        return (quantized.astype(np.int32) - zero_point).astype(np.float32) * scale

    def with_axis(self, axis: int) -> QuantAttr:
        """The same along another axis (per axis only)."""
        return QuantAttr(self.storage, self.scale, self.zero_point, IntAttr(axis), self.block_attr)

    def transposed(self, permutation: Sequence[int]) -> QuantAttr:
        """What describes `transpose(q, permutation)` when this describes `q`."""
        if self.axis is None:
            return self
        axis = list(permutation).index(self.axis)
        if self.block_size is None:
            return self.with_axis(axis)
        return QuantAttr.get(
            self.storage,
            self.scales.transpose(permutation),
            self.zero_points.transpose(permutation),
            axis=axis,
            block_size=self.block_size,
        )

    def verify(self) -> None:
        if self.storage not in STORAGE_TYPES and self.storage != i32:
            names = ", ".join(str(t) for t in STORAGE_TYPES)
            raise VerifyException(f"storage type {self.storage} is not one of {names}, i32")
        if self.scale.element_type != f32:
            raise VerifyException(f"scales are f32, got {self.scale.element_type}")
        if self.zero_point.element_type != self.storage:
            raise VerifyException(
                f"the zero point has type {self.zero_point.element_type}, the storage {self.storage}"
            )
        if self.zero_point.shape != self.scale.shape:
            raise VerifyException(
                f"scale {self.scale.type} and zero point {self.zero_point.type} differ in shape"
            )
        if self.block_attr.data < 0:
            raise VerifyException(f"block size {self.block_attr.data} is negative")
        rank = len(self.scale.shape)
        if self.granularity == "tensor" and (rank != 0 or self.block_size):
            raise VerifyException(
                f"a per-tensor scale has rank 0 and no block, got {self.scale.type}"
            )
        if self.granularity == "axis" and rank != 1:
            raise VerifyException(f"a per-axis scale has rank 1, got {self.scale.type}")
        if self.granularity == "block" and not 0 <= self.axis_attr.data < rank:
            raise VerifyException(f"axis {self.axis} is not an axis of the scale {self.scale.type}")
        if self.scale.is_elided:
            return
        bad, expected = ~np.isfinite(self.scales), "finite"
        if self.granularity != "block":
            bad, expected = bad | (self.scales <= 0), "finite and positive"
        if bad.any():
            raise VerifyException(f"a scale is {expected}, got {self.scales[bad].flat[0]}")

    def verify_describes(self, tensor_type: TensorType[Attribute]) -> None:
        """Check that this can describe a quantised tensor of `tensor_type`: storage type, axis, number of scales."""
        if tensor_type.element_type != self.storage:
            raise VerifyException(f"quantised as {self.storage}, but the tensor is {tensor_type}")
        if self.axis is None:
            return
        shape = tensor_type.get_shape()
        if self.axis >= len(shape):
            raise VerifyException(f"axis {self.axis} is not an axis of {tensor_type}")
        expected = [shape[self.axis]]
        if self.block_size is not None:
            expected = list(shape)
            expected[self.axis] = -(-shape[self.axis] // self.block_size)
        if list(self.scale.shape) != expected:
            raise VerifyException(
                f"{tensor_type} per {self.granularity} on axis {self.axis} takes scales of shape "
                f"{expected}, got {list(self.scale.shape)}"
            )

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.storage)
            printer.print_string(", scale = ")
            _print_values(printer, self.scale)
            if self.zero_point.is_elided or not self.is_symmetric:
                printer.print_string(", zero_point = ")
                _print_values(printer, self.zero_point)
            if self.axis is not None:
                printer.print_string(f", axis = {self.axis}")
            if self.block_size is not None:
                printer.print_string(f", block_size = {self.block_size}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            pos = parser.pos
            storage = parser.parse_type()
            if not is_integer(storage):
                parser.raise_error("expected the storage type, such as i8 or ui8", pos)
            parser.parse_punctuation(",")
            parser.parse_keyword("scale")
            parser.parse_punctuation("=")
            scale = _parse_values(parser, f32)
            zero_point, axis, block = None, -1, 0
            while parser.parse_optional_punctuation(","):
                key_pos = parser.pos
                key = parser.parse_identifier()
                parser.parse_punctuation("=")
                if key == "zero_point":
                    zero_point = _parse_values(parser, storage)
                elif key == "axis":
                    axis = parser.parse_integer(allow_boolean=False)
                elif key == "block_size":
                    block = parser.parse_integer(allow_boolean=False)
                else:
                    parser.raise_error("expected zero_point, axis or block_size", key_pos)
            if zero_point is None:
                zeros = np.zeros(scale.shape, numpy_dtype(storage))
                zero_point = WeightAttr.from_array(zeros, storage)
        return storage, scale, zero_point, IntAttr(axis), IntAttr(block)


def _print_values(printer: Printer, values: WeightAttr) -> None:
    if values.is_elided or len(values.shape) > 1 or prod(values.shape) > _LISTED:
        values.print_body(printer)
        return
    texts = [_number(v, values.element_type) for v in values.array().reshape(-1)]
    printer.print_string(f"[{', '.join(texts)}]" if values.shape else texts[0])


def _number(value: Any, element_type: Attribute) -> str:
    """The shortest text that parses to the same value."""
    if element_type == f32:
        return np.format_float_scientific(np.float32(value), unique=True, trim="0")
    return str(int(value))


def _parse_values(parser: AttrParser, element_type: Attribute) -> WeightAttr:
    pos = parser.pos

    def number() -> int | float:
        return parser.parse_number(allow_boolean=False)

    values = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, number)
    if values is None:
        scalar = parser.parse_optional_number(allow_boolean=False)
        if scalar is None:
            tensor_type, data = WeightAttr.parse_body(parser)
            return WeightAttr(
                cast(TensorType[Attribute], tensor_type), cast(BytesAttr | StringAttr, data)
            )
        array = np.asarray(scalar)
    else:
        array = np.asarray(values)
    if is_integer(element_type):
        low, high = integer_range(element_type)
        sign = "unsigned" if is_unsigned(element_type) else "signed"
        if array.dtype.kind != "i" or (array.size and (array.min() < low or array.max() > high)):
            parser.raise_error(f"expected {sign} integers of {low}..{high}", pos)
    with np.errstate(over="ignore"):
        return WeightAttr.from_array(array.astype(numpy_dtype(element_type)), element_type)
