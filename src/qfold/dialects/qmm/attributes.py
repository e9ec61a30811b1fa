"""The attributes of `qmm`: packed weights and how they are quantised."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeVar, cast

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
    byte_size,
    element_type_of,
    integer_range,
    is_unsigned,
    numpy_dtype,
    pack,
    unpack,
)

INLINE_LIMIT = 1 << 20
"""Weights above this many bytes are printed as a reference to a file, or elided."""


@dataclass
class WeightFiles:
    """Where the text form of large weights lives: files already on disk, and a sidecar that printing appends to.

    Paths are relative to `root`, the directory of the `.mlir` file, and must not leave it.
    """

    root: Path
    sidecar: Path | None = None
    inline_limit: int = INLINE_LIMIT
    known: dict[str, tuple[str, int]] = field(default_factory=lambda: dict[str, tuple[str, int]]())
    """sha256 -> (relative path, byte offset) of bytes that are already in a file."""

    def place(self, weight: WeightAttr) -> tuple[str, int] | None:
        """The file and offset of the weight's bytes, written to the sidecar when nowhere else; None to elide."""
        if weight.sha256 in self.known:
            return self.known[weight.sha256]
        if self.sidecar is None:
            return None
        with self.sidecar.open("ab") as out:
            offset = out.tell()
            out.write(weight.raw)
        place = (str(self.sidecar.relative_to(self.root)), offset)
        self.known[weight.sha256] = place
        return place

    def read(self, path: str, offset: int, size: int, sha256: str) -> bytes:
        """The bytes of a reference; `ValueError` when the path leaves `root`, or the bytes are not those meant."""
        full = (self.root / path).resolve()
        if not full.is_relative_to(self.root.resolve()):
            raise ValueError(f"weight file {path!r} is outside of {self.root}")
        if not full.is_file():
            raise ValueError(f"weight file {path!r} is missing from {self.root}")
        with full.open("rb") as source:
            source.seek(offset)
            raw = source.read(size)
        if len(raw) != size or hashlib.sha256(raw).hexdigest() != sha256:
            raise ValueError(f"weight file {path!r} does not hold the {size} bytes that the module names")
        self.known[sha256] = (path, offset)
        return raw


WEIGHT_FILES: ContextVar[WeightFiles | None] = ContextVar("WEIGHT_FILES", default=None)
"""Set by tools around parsing and printing. None: large weights are elided in text."""


_T = TypeVar("_T")


def _memoised(attribute: Attribute, key: str, compute: Callable[[], _T]) -> _T:
    """`compute()`, once per attribute object: attributes are immutable, and a weight is worth hashing only once."""
    memo = attribute.__dict__
    if "_" + key not in memo:
        memo["_" + key] = compute()
    return memo["_" + key]


@irdl_attr_definition
class WeightAttr(ParametrizedAttribute):
    """Constant tensor data as packed bytes: little-endian, row-major, four-bit integers low nibble first.

    ```mlir
    #qmm.weight<"0x01FF02FE" : tensor<2x2xi8>>
    #qmm.weight<file "w.bin" 4096 sha256 "9f86..." : tensor<1024x2048xi8>>
    #qmm.weight<elided sha256 "9f86..." : tensor<1024x2048xi8>>
    ```

    Equality is by content. An elided weight keeps type and hash, can be passed around, and raises when its bytes are asked for.
    """

    name = "qmm.weight"
    type: TensorType[Attribute]
    data: BytesAttr | StringAttr
    """The bytes, or the sha256 of bytes that are not here."""

    def verify(self) -> None:
        shape = self.type.get_shape()
        if any(d < 0 for d in shape):
            raise VerifyException(f"a weight has a static shape, got {self.type}")
        try:
            expected = byte_size(self.type.element_type, prod(shape))
        except TypeError as e:
            raise VerifyException(str(e)) from None
        if isinstance(self.data, BytesAttr) and len(self.data.data) != expected:
            raise VerifyException(
                f"{self.type} takes {expected} bytes, got {len(self.data.data)}"
            )

    @staticmethod
    def from_array(array: npt.NDArray[Any], element_type: Attribute | None = None) -> WeightAttr:
        """The weight that holds `array`, stored as `element_type` (default: the dtype's own)."""
        if element_type is None:
            element_type = element_type_of(array.dtype)
        return WeightAttr(
            TensorType(element_type, array.shape), BytesAttr(pack(array, element_type))
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.get_shape()

    @property
    def element_type(self) -> Attribute:
        return self.type.element_type

    @property
    def is_elided(self) -> bool:
        return isinstance(self.data, StringAttr)

    @property
    def raw(self) -> bytes:
        """The packed bytes. `ValueError` when they were elided from the text that this was parsed from."""
        if isinstance(self.data, StringAttr):
            raise ValueError(
                f"the bytes of a weight {self.type} were elided when the module was printed; "
                "print it with --weights-out to keep them"
            )
        return self.data.data

    @property
    def nbytes(self) -> int:
        return byte_size(self.element_type, prod(self.shape))

    @property
    def sha256(self) -> str:
        """Hex digest of the packed bytes, computed once."""
        if isinstance(self.data, StringAttr):
            return self.data.data
        data = self.data.data
        return _memoised(self, "sha256", lambda: hashlib.sha256(data).hexdigest())

    def array(self) -> npt.NDArray[Any]:
        """The values, shaped; a read-only view of the bytes except for four-bit types."""
        return unpack(self.raw, self.element_type, self.shape)

    def with_shape(self, shape: Sequence[int]) -> WeightAttr:
        """The same bytes read with another shape of as many elements."""
        return WeightAttr(TensorType(self.element_type, shape), self.data)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            self.print_body(printer)

    def print_body(self, printer: Printer) -> None:
        files = WEIGHT_FILES.get()
        limit = INLINE_LIMIT if files is None else files.inline_limit
        place = None
        if not self.is_elided and self.nbytes > limit and files is not None:
            place = files.place(self)
        if place is not None:
            printer.print_string(f"file {_quoted(place[0])} {place[1]} sha256 {_quoted(self.sha256)}")
        elif self.is_elided or self.nbytes > limit:
            printer.print_string(f"elided sha256 {_quoted(self.sha256)}")
        else:
            printer.print_string(f'"0x{self.raw.hex().upper()}"')
        printer.print_string(" : ")
        printer.print_attribute(self.type)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return cls.parse_body(parser)

    @classmethod
    def parse_body(cls, parser: AttrParser) -> tuple[Attribute, Attribute]:
        pos = parser.pos
        place: tuple[str, int] | None = None
        sha256 = text = ""
        if parser.parse_optional_keyword("elided"):
            parser.parse_keyword("sha256")
            sha256 = parser.parse_str_literal()
        elif parser.parse_optional_keyword("file"):
            place = (parser.parse_str_literal(), parser.parse_integer(allow_boolean=False))
            parser.parse_keyword("sha256")
            sha256 = parser.parse_str_literal()
        else:
            text = parser.parse_str_literal(" of weight bytes in hexadecimal")
        parser.parse_punctuation(":")
        tensor_type = parser.parse_type()
        if not isinstance(tensor_type, TensorType):
            parser.raise_error("a weight has a tensor type", pos)
        tensor_type = cast(TensorType[Attribute], tensor_type)
        try:
            if place is not None:
                files = WEIGHT_FILES.get()
                if files is None:
                    raise ValueError(f"weight file {place[0]!r} cannot be read here")
                size = byte_size(tensor_type.element_type, prod(tensor_type.get_shape()))
                return tensor_type, BytesAttr(files.read(*place, size, sha256))
            if sha256:
                return tensor_type, StringAttr(sha256)
            if not text.startswith("0x"):
                raise ValueError('expected weight bytes as "0x..."')
            return tensor_type, BytesAttr(bytes.fromhex(text[2:]))
        except (ValueError, TypeError, OSError) as e:
            parser.raise_error(str(e), pos)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


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

    Scales are f32, finite and positive; zero points have the storage type. Per tensor both have rank 0, per axis rank 1 (`axis` is
    the dimension of the quantised tensor that they run along), per block the rank of the quantised tensor, with
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
        return _memoised(self, "is_symmetric", lambda: not np.any(self.zero_points))

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

    def dequantize(self, quantized: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """`scale * (q - zero_point)` in f32, as DequantizeLinear defines it. The oracle; compiled code never calls this on a weight."""
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
        if self.storage not in STORAGE_TYPES and self.storage != IntegerType(32):
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
            raise VerifyException(f"a per-tensor scale has rank 0 and no block, got {self.scale.type}")
        if self.granularity == "axis" and rank != 1:
            raise VerifyException(f"a per-axis scale has rank 1, got {self.scale.type}")
        if self.granularity == "block" and not 0 <= self.axis_attr.data < rank:
            raise VerifyException(f"axis {self.axis} is not an axis of the scale {self.scale.type}")
        if self.scale.is_elided:
            return
        bad = ~(np.isfinite(self.scales) & (self.scales > 0))
        if bad.any():
            raise VerifyException(
                f"a scale is finite and positive, got {self.scales[bad].flat[0]}"
            )

    def verify_describes(self, tensor_type: TensorType[Attribute]) -> None:
        """Check that this can describe a quantised tensor of `tensor_type`: storage type, axis, number of scales."""
        if tensor_type.element_type != self.storage:
            raise VerifyException(
                f"quantised as {self.storage}, but the tensor is {tensor_type}"
            )
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
            if not isinstance(storage, IntegerType):
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
    texts = [_number(v) for v in values.array().reshape(-1)]
    printer.print_string(f"[{', '.join(texts)}]" if values.shape else texts[0])


def _number(value: Any) -> str:
    """The shortest text that parses to the same value."""
    if isinstance(value, np.floating):
        return np.format_float_scientific(value, unique=True, trim="0")
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
    if isinstance(element_type, IntegerType):
        low, high = integer_range(element_type)
        sign = "unsigned" if is_unsigned(element_type) else "signed"
        if array.dtype.kind != "i" or (array.size and (array.min() < low or array.max() > high)):
            parser.raise_error(f"expected {sign} integers of {low}..{high}", pos)
    with np.errstate(over="ignore"):
        return WeightAttr.from_array(array.astype(numpy_dtype(element_type)), element_type)
