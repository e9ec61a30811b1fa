"""The scalar ops of `arith` and `math` as numpy functions on whole arrays.

Integer arguments are signless: arrays of the signed dtype of their width (bool for `i1`), reinterpreted as unsigned by the ops
that are. Integer arithmetic wraps. Choices where MLIR leaves behaviour open, the same as in the C runtime: float to integer
conversion saturates and takes NaN to 0; a division by zero gives 0, a shift by the width or more gives what shifting one bit
at a time would.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute

from qfold.dialects.element_types import integer_range, is_unsigned, numpy_dtype
from qfold.interpreters.values import Array

_erf = cast(Callable[[Any], Any], np.frompyfunc(math.erf, 1, 1))


def erf(x: Array) -> Array:
    """The error function in float64, to the last place or so: numpy has none."""
    return np.asarray(_erf(np.asarray(x, np.float64)), np.float64)


def _round_half_away(x: Array) -> Array:
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1.0, x), 0.0).astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


FLOAT_ARITHMETIC: dict[str, Callable[..., Array]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "math.absf": np.abs,
    "math.copysign": np.copysign,
    "math.ceil": np.ceil,
    "math.floor": np.floor,
    "math.trunc": np.trunc,
    "math.round": _round_half_away,
    "math.roundeven": np.rint,
}
"""Computed in the type itself: each is exact or correctly rounded."""

ELEMENTARY: dict[str, Callable[..., Array]] = {
    "math.acos": np.arccos,
    "math.acosh": np.arccosh,
    "math.asin": np.arcsin,
    "math.asinh": np.arcsinh,
    "math.atan": np.arctan,
    "math.atan2": np.arctan2,
    "math.atanh": np.arctanh,
    "math.cbrt": np.cbrt,
    "math.cos": np.cos,
    "math.cosh": np.cosh,
    "math.erf": erf,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.fpowi": np.power,
    "math.log": np.log,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.log2": np.log2,
    "math.powf": np.power,
    "math.rsqrt": _rsqrt,
    "math.sin": np.sin,
    "math.sinh": np.sinh,
    "math.sqrt": np.sqrt,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
}
"""Computed in float64 and rounded once, so that results do not depend on how numpy was built."""


def unsigned(x: Array) -> Array:
    """The same bits as an unsigned integer (a bool is one already)."""
    return x if x.dtype.kind != "i" else x.view(x.dtype.str.replace("i", "u"))


def read_unsigned(x: Array, element_type: Attribute) -> Array:
    """Signless integers of `element_type` as the numbers that their bits are without a sign."""
    x = unsigned(x)
    return x & x.dtype.type(0xF) if width_of(element_type) == 4 else x


def signed(x: Array) -> Array:
    """The same bits as a signed integer (a bool stays one)."""
    return x if x.dtype.kind != "u" else x.view(x.dtype.str.replace("u", "i"))


def _divide(a: Array, b: Array) -> Array:
    """Truncating division; 0 where the divisor is 0."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":  # numpy floors
        quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, a.dtype.type(0), quotient).astype(a.dtype)


def _floor_divide(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, a.dtype.type(0), a // safe).astype(a.dtype)


def _ceil_divide(a: Array, b: Array) -> Array:
    floor = _floor_divide(a, b)
    return (floor + ((b != 0) & (floor * b != a))).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    """What truncating division leaves; 0 where the divisor is 0."""
    return np.where(b == 0, a.dtype.type(0), a - _divide(a, b) * b).astype(a.dtype)


def _bits(a: Array) -> int:
    return a.dtype.itemsize * 8


def _shift_left(a: Array, b: Array) -> Array:
    amount = unsigned(b)
    inside = amount < _bits(a)
    return np.where(inside, a << np.where(inside, b, 0), a.dtype.type(0)).astype(a.dtype)


def _shift_right(a: Array, b: Array) -> Array:
    last = b.dtype.type(_bits(a) - 1)
    if a.dtype.kind == "i":
        return (a >> np.where(unsigned(b) > last, last, b)).astype(a.dtype)
    return np.where(b > last, a.dtype.type(0), a >> np.minimum(b, last)).astype(a.dtype)


def _leading_zeros(a: Array) -> Array:
    bits = _bits(a)
    filled = unsigned(a)
    for step in (1, 2, 4, 8, 16, 32):
        if step < bits:
            filled = filled | (filled >> filled.dtype.type(step))
    return (bits - np.bitwise_count(filled).astype(np.int64)).astype(a.dtype)


def _trailing_zeros(a: Array) -> Array:
    below = unsigned(a & -a) - unsigned(a.dtype.type(1))
    return np.bitwise_count(below).astype(a.dtype)


def _population(a: Array) -> Array:
    return np.bitwise_count(unsigned(a))  # of a signed number it would count the magnitude's bits


def _power(a: Array, b: Array) -> Array:
    """Integer power; a negative exponent leaves 1 and -1 only."""
    odd = (b & 1) == 1
    negative = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, negative, np.power(a, np.maximum(b, 0))).astype(a.dtype)


_SIGNED_OPS: dict[str, Callable[..., Array]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _divide,
    "arith.floordivsi": _floor_divide,
    "arith.ceildivsi": _ceil_divide,
    "arith.remsi": _remainder,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": _shift_left,
    "arith.shrsi": _shift_right,
    "math.absi": np.abs,
    "math.ctlz": _leading_zeros,
    "math.cttz": _trailing_zeros,
    "math.ctpop": _population,
    "math.ipowi": _power,
}

_UNSIGNED_OPS: dict[str, Callable[..., Array]] = {
    "arith.divui": _divide,
    "arith.ceildivui": _ceil_divide,
    "arith.remui": _remainder,
    "arith.minui": np.minimum,
    "arith.maxui": np.maximum,
    "arith.shrui": _shift_right,
}

INTEGER_OPS = frozenset(_SIGNED_OPS) | frozenset(_UNSIGNED_OPS)

_ON_BOOLS = frozenset(("arith.andi", "arith.ori", "arith.xori", "arith.minui", "arith.maxui"))


def width_of(element_type: Attribute) -> int:
    """Bits of an integer type; 0 for any other."""
    return cast(Any, element_type).width.data if isinstance(element_type, IntegerType) else 0


def wrap(x: Array, element_type: Attribute) -> Array:
    """`x`, of any integer dtype, reduced modulo two to the type's width and read as that type."""
    dtype = numpy_dtype(element_type)
    if dtype == np.bool_:
        return (x & 1).astype(np.bool_)
    x = x.astype(dtype, copy=False)
    if width_of(element_type) == 4:
        low = x & dtype.type(0xF)
        return low if is_unsigned(element_type) else (low ^ dtype.type(8)) - dtype.type(8)
    return x


def integer_op(name: str, element_type: Attribute, *args: Array) -> Array:
    """An integer op of `arith` or `math` on signless arguments of `element_type`."""
    dtype = numpy_dtype(element_type)
    arrays = [np.asarray(a, dtype) for a in args]
    if dtype == np.bool_ and name not in _ON_BOOLS:
        # One bit is 0 or -1 when signed, which only decides comparisons; arithmetic is modulo two either way.
        arrays = [a.astype(np.int8) for a in arrays]
    if name in _UNSIGNED_OPS:
        arrays = [read_unsigned(a, element_type) for a in arrays]
        return wrap(signed(_UNSIGNED_OPS[name](*arrays)), element_type)
    return wrap(_SIGNED_OPS[name](*arrays), element_type)


_INTEGER_PREDICATES: list[Callable[[Array, Array], Array]] = [
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
]
"""By `arith.cmpi` predicate; 6 to 9 are the unsigned forms of 2 to 5."""


def compare_integers(predicate: int, a: Array, b: Array) -> Array:
    """`arith.cmpi`. A true `i1` is -1 when signed."""
    if predicate < 6:
        if a.dtype == np.bool_ and predicate >= 2:
            a, b = -a.astype(np.int8), -np.asarray(b).astype(np.int8)
        return _INTEGER_PREDICATES[predicate](a, b)
    return _INTEGER_PREDICATES[predicate - 4](unsigned(a), unsigned(b))


_ORDERED: list[Callable[[Array, Array], Array]] = [
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    np.not_equal,
]


def compare_floats(predicate: int, a: Array, b: Array) -> Array:
    """`arith.cmpf`: 0 false, 1-6 oeq ogt oge olt ole one, 7 ord, 8-13 ueq ugt uge ult ule une, 14 uno, 15 true."""
    either_nan = np.isnan(a) | np.isnan(b)
    if predicate in (0, 15):
        return np.full(either_nan.shape, predicate == 15)
    if predicate == 7:
        return ~either_nan
    if predicate == 14:
        return either_nan
    if predicate < 7:
        return _ORDERED[predicate - 1](a, b) & ~either_nan
    return _ORDERED[predicate - 8](a, b) | either_nan


def float_to_integer(x: Array, element_type: Attribute, as_unsigned: bool) -> Array:
    """`arith.fptosi`/`fptoui`: toward zero, saturating, NaN to 0. The result is signless."""
    width = width_of(element_type)
    if as_unsigned:
        low, high = 0, (1 << width) - 1
    else:
        low, high = integer_range(element_type)
    wide = np.trunc(np.asarray(x, np.float64))
    wide = np.where(np.isnan(wide), 0.0, wide)
    if width < 64:
        whole = np.clip(wide, low, high).astype(np.int64)
    else:  # `high` is not a float64: decide the ends by comparison
        dtype = np.uint64 if as_unsigned else np.int64
        limit = float(high)
        inside = (wide >= low) & (wide < limit)
        whole = np.where(inside, wide, 0.0).astype(dtype)
        whole = np.where(wide >= limit, dtype(high), np.where(wide < low, dtype(low), whole))
        whole = whole.view(np.int64)
    return wrap(np.asarray(whole), element_type)


def integer_to_float(x: Array, source: Attribute, dtype: np.dtype[Any], as_unsigned: bool) -> Array:
    """`arith.sitofp`/`uitofp`, rounded to nearest."""
    x = np.asarray(x)
    if x.dtype == np.bool_ and not as_unsigned:
        x = -x.astype(np.int8)
    return (read_unsigned(x, source) if as_unsigned else x).astype(dtype)


def extend(x: Array, source: Attribute, target: Attribute, as_unsigned: bool) -> Array:
    """`arith.extsi`/`extui`."""
    x = np.asarray(x)
    if x.dtype == np.bool_:
        return wrap(x.astype(np.int8) if as_unsigned else -x.astype(np.int8), target)
    return wrap(read_unsigned(x, source) if as_unsigned else x, target)
