"""What integer contractions read, on tensors and on memrefs: element types, zero points, and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import IntegerAttr, IntegerType, i64
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import conv_shape, matmul_shape, shape_of, type_of
from qfold.dialects.element_types import (
    bit_width,
    i4,
    i8,
    i16,
    integer_range,
    is_unsigned,
    ui4,
    ui8,
    ui16,
)

DATA_TYPES: tuple[IntegerType, ...] = (i8, ui8)
"""What an activation may be."""

WEIGHT_TYPES: tuple[IntegerType, ...] = (i8, ui8, i4, ui4)
"""What the other operand may be."""


def zero_point_type(storage: IntegerType) -> IntegerType:
    """The element type of a zero point: that of the data, four bits widened to eight."""
    if bit_width(storage) <= 8:
        return ui8 if is_unsigned(storage) else i8
    return ui16 if is_unsigned(storage) else i16


def pad_value_attr(value: int | None) -> IntegerAttr[IntegerType] | None:
    """The `pad_value` property of a convolution of integers."""
    return None if value is None else IntegerAttr(value, i64)


def padding_of(pad_value: IntegerAttr | None) -> int | None:
    """The inverse of `pad_value_attr`."""
    return None if pad_value is None else cast("IntegerAttr[IntegerType]", pad_value).value.data


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


def quant_matmul_shape(
    a: SSAValue,
    b: SSAValue,
    a_zero_point: SSAValue | None,
    b_zero_point: SSAValue | None,
    transpose_b: bool,
) -> tuple[int, ...]:
    """The shape of a product of integers. `VerifyException` for operands that do not go together."""
    expect_integers("a", a, DATA_TYPES)
    expect_integers("b", b, WEIGHT_TYPES)
    shape = matmul_shape(shape_of(a), shape_of(b), False, transpose_b)
    expect_zero_point("the zero point of a", a_zero_point, a, [(), shape_of(a)[:-1]])
    expect_zero_point("the zero point of b", b_zero_point, b, [(), (shape[-1],)])
    return shape


def quant_conv_shape(
    x: SSAValue,
    w: SSAValue,
    x_zero_point: SSAValue | None,
    w_zero_point: SSAValue | None,
    window: tuple[int, Sequence[int], Sequence[int], Sequence[int]],
    padding: int | None = None,
) -> tuple[int, ...]:
    """The shape of a convolution of integers; `window` as `window_of` gives it, `padding` what `pad_value` says.
    `VerifyException` as above, for both a zero point of x and a `padding`, and for one that x cannot hold."""
    expect_integers("x", x, DATA_TYPES)
    if padding is not None:
        low, high = integer_range(cast(IntegerType, type_of(x).get_element_type()))
        if not low <= padding <= high:
            raise VerifyException(f"pad_value {padding} is no element of {x.type}")
        if x_zero_point is not None:
            raise VerifyException("padding is x's zero point, or has a pad_value: not both")
    expect_integers("w", w, WEIGHT_TYPES)
    shape = conv_shape(shape_of(x), shape_of(w), *window)
    expect_zero_point("the zero point of x", x_zero_point, x, [()])
    expect_zero_point("the zero point of w", w_zero_point, w, [(), (shape_of(w)[0],)])
    return shape
