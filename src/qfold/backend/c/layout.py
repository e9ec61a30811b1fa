"""Element types as C types, and memrefs as C arrays: which element an index means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from xdsl.dialects.builtin import IndexType, IntegerType, MemRefType, f32, f64
from xdsl.ir import Attribute
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

from qfold.backend.c.text import without_parentheses
from qfold.dialects.element_types import bit_width, byte_size, i1, i4, is_unsigned, ui4
from qfold.ir.layouts import Layout


def c_type(element_type: Attribute) -> str:
    """The C type of one stored element. Two four-bit integers are a struct, so that nothing else can be passed for them."""
    if element_type == f32:
        return "float"
    if element_type == f64:
        return "double"
    if element_type == i1:
        return "bool"
    if element_type == i4:
        return "qf_i4x2"
    if element_type == ui4:
        return "qf_u4x2"
    if isinstance(element_type, IndexType):
        return "int64_t"
    if isinstance(element_type, IntegerType):
        width = cast(IntegerType, element_type).width.data
        if width in (8, 16, 32, 64):
            return f"{'u' if is_unsigned(cast(Attribute, element_type)) else ''}int{width}_t"
    raise TypeError(f"element type {element_type} has no C type here")


def value_type(element_type: Attribute) -> str:
    """The C type of one element in a variable: as stored, four bits widened to eight."""
    if element_type == i4:
        return "int8_t"
    if element_type == ui4:
        return "uint8_t"
    return c_type(element_type)


@dataclass(frozen=True)
class Linear:
    """`constant + sum(coefficient * variable)`: a position in elements, over C variables."""

    terms: Mapping[str, int] = field(default_factory=dict[str, int])
    constant: int = 0

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for name, coefficient in other.terms.items():
            terms[name] = terms.get(name, 0) + coefficient
        return Linear(terms, self.constant + other.constant)

    def scaled(self, factor: int) -> Linear:
        return Linear({n: c * factor for n, c in self.terms.items()}, self.constant * factor)

    def coefficient(self, variable: str) -> int:
        return self.terms.get(variable, 0)

    def renamed(self, names: Mapping[str, str | None]) -> Linear:
        """With other variables; those renamed to None are dropped."""
        terms: dict[str, int] = {}
        for name, coefficient in self.terms.items():
            target = names.get(name, name)
            if target is not None:
                terms[target] = terms.get(target, 0) + coefficient
        return Linear(terms, self.constant)

    def text(self) -> str:
        """As C; `0` for nothing."""
        text = ""
        for name, coefficient in self.terms.items():
            if coefficient:
                sign = "-" if coefficient < 0 else "+"
                part = f"{name} * {abs(coefficient)}"
                if abs(coefficient) == 1:
                    part = without_parentheses(name) if sign == "+" else name
                text = f"{text} {sign} {part}" if text else f"-{part}" if sign == "-" else part
        if self.constant or not text:
            text = (
                f"{text} {'-' if self.constant < 0 else '+'} {abs(self.constant)}"
                if text
                else str(self.constant)
            )
        return text


def variable(name: str) -> Linear:
    return Linear({name: 1})


@dataclass(frozen=True)
class Buffer:
    """A memref argument of a kernel: a C pointer to its element [0, ..., 0]."""

    name: str
    type: MemRefType[Attribute]

    @property
    def element(self) -> Attribute:
        return self.type.get_element_type()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.get_shape()

    @property
    def strides(self) -> tuple[int, ...]:
        return Layout.of(self.type).strides

    def at(self, indices: Sequence[Linear]) -> Linear:
        """The position of the element at `indices`."""
        position = Linear()
        for index, stride, extent in zip(indices, self.strides, self.shape, strict=True):
            position += index.scaled(0 if extent == 1 else stride)
        return position

    def load(self, position: Linear | str) -> str:
        """The element at a position, as an expression of `value_type`."""
        text = position if isinstance(position, str) else position.text()
        if self.element == i4:
            return f"qf_load_i4({self.name}, {text})"
        if self.element == ui4:
            return f"qf_load_u4({self.name}, {text})"
        return f"{self.name}[{text}]"

    def store(self, position: Linear | str, value: str) -> str:
        """The statement that writes `value`."""
        text = position if isinstance(position, str) else position.text()
        if self.element == i4:
            return f"qf_store_i4({self.name}, {text}, {value});"
        if self.element == ui4:
            return f"qf_store_u4({self.name}, {text}, {value});"
        return f"{self.name}[{text}] = {without_parentheses(value)};"


def span(type_: MemRefType[Any]) -> int:
    """Elements from the first to the last that a memref reads (its size when dense)."""
    low, high = Layout.of(type_).extent
    return high - low + 1


def span_bytes(type_: MemRefType[Any]) -> int:
    """The bytes of `span`."""
    return byte_size(type_.get_element_type(), span(type_))


def stored_elements(type_: MemRefType[Any]) -> int:
    """Elements of the C type that `span` takes: four-bit integers count in pairs."""
    count = span(type_)
    return (count + 1) // 2 if bit_width(type_.get_element_type()) == 4 else count


def linearize(expression: AffineExpr, dims: Sequence[Linear]) -> Linear | None:
    """An affine expression over `dims`, or None when it is not linear (mod, floordiv, ceildiv)."""
    match expression:
        case AffineConstantExpr():
            return Linear({}, expression.value)
        case AffineDimExpr():
            return dims[expression.position]
        case AffineBinaryOpExpr():
            left, right = linearize(expression.lhs, dims), linearize(expression.rhs, dims)
            if left is None or right is None:
                return None
            if expression.kind is AffineBinaryOpKind.Add:
                return left + right
            if expression.kind is AffineBinaryOpKind.Mul:
                if not any(right.terms.values()):
                    return left.scaled(right.constant)
                if not any(left.terms.values()):
                    return right.scaled(left.constant)
            return None
        case _:
            return None


def affine_text(expression: AffineExpr, dims: Sequence[Linear]) -> str:
    """Any affine expression as C. Indices are not negative, so `/` and `%` round as floordiv and mod do."""
    linear = linearize(expression, dims)
    if linear is not None:
        text = linear.text()
        return f"({text})" if " " in text or text.startswith("-") else text
    if not isinstance(expression, AffineBinaryOpExpr):
        raise TypeError(f"affine expression {expression} has no C form")
    left, right = affine_text(expression.lhs, dims), affine_text(expression.rhs, dims)
    match expression.kind:
        case AffineBinaryOpKind.CeilDiv:
            return f"(({left} + {right} - 1) / {right})"
        case AffineBinaryOpKind.FloorDiv:
            operator = "/"
        case AffineBinaryOpKind.Mod:
            operator = "%"
        case AffineBinaryOpKind.Mul:
            operator = "*"
        case AffineBinaryOpKind.Add:
            operator = "+"
    return f"({left} {operator} {right})"


def access(buffer: Buffer, map_: AffineMap, dims: Sequence[Linear]) -> Linear | str:
    """Where `buffer[map_(dims)]` is: linear where it can be, else C text."""
    linears = [linearize(e, dims) for e in map_.results]
    known = [x for x in linears if x is not None]
    if len(known) == len(linears):
        return buffer.at(known)
    parts = [
        affine_text(e, dims) if stride == 1 else f"{affine_text(e, dims)} * {stride}"
        for e, stride in zip(map_.results, buffer.strides, strict=True)
        if stride
    ]
    return " + ".join(parts)
