"""`#qmm.weight`: constant tensor data as packed bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy.typing as npt
from xdsl.dialects.builtin import BytesAttr, StringAttr, TensorType
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.element_types import byte_size, element_type_of, pack, unpack

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
    elided: set[str] = field(default_factory=lambda: set[str]())
    """sha256 of the weights that were printed without their bytes."""

    def place(self, weight: WeightAttr) -> tuple[str, int] | None:
        """The file and offset of the weight's bytes, written to the sidecar when nowhere else; None to elide."""
        if weight.sha256 in self.known:
            return self.known[weight.sha256]
        if self.sidecar is None:
            self.elided.add(weight.sha256)
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
            raise ValueError(
                f"weight file {path!r} does not hold the {size} bytes that the module names"
            )
        self.known[sha256] = (path, offset)
        return raw


WEIGHT_FILES: ContextVar[WeightFiles | None] = ContextVar("WEIGHT_FILES", default=None)
"""Set by tools around parsing and printing. None: large weights are elided in text."""


_T = TypeVar("_T")


def memoised(attribute: Attribute, key: str, compute: Callable[[], _T]) -> _T:
    """`compute()`, once per attribute object: attributes are immutable, and a weight is worth hashing only once."""
    memo = cast(dict[str, Any], attribute.__dict__)
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
            raise VerifyException(f"{self.type} takes {expected} bytes, got {len(self.data.data)}")

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
        return memoised(self, "sha256", lambda: hashlib.sha256(data).hexdigest())

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
            printer.print_string(
                f"file {_quoted(place[0])} {place[1]} sha256 {_quoted(self.sha256)}"
            )
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
