"""Running error analysis: each number is a float64 value and a bound on how far a correct program may be from it.

The formulas and where they come from: `docs/numerics.md`. Every float op of IR type T adds `unit(T) * |result|`, with the
result's own error inside, so that the bounds are rigorous and not to first order. They hold for any order of summation and
whether or not the C compiler contracts to fused multiply-adds (that only leaves roundings out).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.dialects.builtin import Float16Type, Float32Type, Float64Type, IntegerType, f32, f64
from xdsl.ir import Attribute
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects.element_types import is_float, numpy_dtype
from qfold.interpreters import elementwise
from qfold.interpreters.domains import REDUCERS, Domain, convert_exactly, garbage, matmul
from qfold.interpreters.propagation import (
    Error,
    deviation,
    elementary_error,
    integer_error,
    is_exact,
    linear,
    product_error,
)
from qfold.interpreters.values import Array, Bounded, ByteBuffer, Value
from qfold.runtime.ulp import ULP_BOUNDS

_SLACK = 1 + 2.0**-16
"""Covers the float64 arithmetic of values and bounds themselves."""

_UNIT: dict[type[Attribute], float] = {
    Float16Type: 2.0**-11 * _SLACK,
    Float32Type: 2.0**-24 * _SLACK,
    # The reference is float64 too: twice the unit, for its rounding and the program's.
    Float64Type: 2.0**-52 * _SLACK,
}
_UNDERFLOW: dict[type[Attribute], float] = {
    Float16Type: 2.0**-24,
    Float32Type: 2.0**-149,
    Float64Type: 5e-324,
}
_LARGEST: dict[type[Attribute], float] = {
    Float16Type: 65504.0 * (1 + 2.0**-10),
    # Within 2^-20 of overflow counts as finite: adding a score to a mask of -FLT_MAX does not overflow when rounded.
    Float32Type: float(np.finfo(np.float32).max) * (1 + 2.0**-20),
    Float64Type: np.inf,
}

_EXACT = frozenset(("arith.negf", "math.absf", "math.copysign"))
_ROUND_TO_INTEGER = frozenset(
    ("math.ceil", "math.floor", "math.trunc", "math.round", "math.roundeven")
)
_EXTREMES = frozenset(("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf"))


def split(x: Value | int) -> tuple[Array, Error]:
    """Value and bound; the bound is the float 0.0 when the number is exact."""
    if isinstance(x, Bounded):
        return x.value, x.bound if x.bound.any() else 0.0
    return np.asarray(x), 0.0


def pair(value: Array, bound: Error) -> Bounded:
    shape = np.broadcast_shapes(np.shape(value), np.shape(bound))
    return Bounded(
        np.broadcast_to(value, shape), np.broadcast_to(np.asarray(bound, np.float64), shape)
    )


def unit(element_type: Attribute) -> float:
    """The largest relative error of rounding to this float type."""
    return _UNIT[type(element_type)]


def gamma(n: int, element_type: Attribute) -> float:
    """n u / (1 - n u): the relative error of n roundings in any order."""
    nu = n * unit(element_type)
    return nu / (1 - nu) if nu < 1 else np.inf


def rounded(element_type: Attribute, value: Array, error: Error, ulps: float = 0.5) -> Bounded:
    """`value` with the propagated `error`, after an op whose own error is `ulps` units in the last place.

    An ulp of x is at most 2 u |x|. Where the result may overflow the bound is infinite. An infinity or NaN that follows from
    exact arguments is exact.
    """
    size = np.abs(value) + error
    bound = (
        error + size * (2 * ulps * unit(element_type)) + ulps * 2 * _UNDERFLOW[type(element_type)]
    )
    bound = np.where(size > _LARGEST[type(element_type)], np.inf, bound)
    return settle(value, bound, error)


def settle(value: Array, bound: Error, error: Error) -> Bounded:
    """`bound`, made meaningful where `value` is no number or the propagated `error` is undefined."""
    finite = np.isfinite(value)
    bound = np.where(np.isnan(bound), np.inf, bound)
    if not finite.all():
        certain = is_exact(error) or ~(np.asarray(error) > 0)
        bound = np.where(finite, bound, np.where(certain, 0.0, np.inf))
    return pair(value, bound)


class BoundedDomain(Domain):
    """Values in float64 beside error bounds."""

    name = "bounded"

    def dtype(self, element_type: Attribute) -> np.dtype[Any]:
        return np.dtype(np.float64) if is_float(element_type) else numpy_dtype(element_type)

    def allocate(self, shape: tuple[int, ...], element_type: Attribute) -> Value:
        return Bounded(garbage(shape, self.dtype(element_type)), np.zeros(shape))

    def byte_buffer(self, size: int) -> ByteBuffer:
        return ByteBuffer(size, 8, bounded=True)

    def writable(self, array: Value, element_type: Attribute) -> Value:
        if (
            isinstance(array, Bounded)
            and array.value.flags.writeable
            and array.bound.flags.writeable
        ):
            return array
        value, error = split(array)
        value = value.astype(self.dtype(element_type))
        return Bounded(value, np.broadcast_to(error, value.shape).astype(np.float64))

    def store(self, target: Value, source: Value | int) -> None:
        value, error = split(source)
        if isinstance(target, Bounded):
            target.value[...] = value
            target.bound[...] = error
        elif not is_exact(error):
            raise ValueError("a rounded number is stored to memory that holds exact ones only")
        else:
            target[...] = value

    def exact(self, x: Value) -> Array:
        value, error = split(x)
        if np.any(error):
            raise ValueError(
                "a number that must be exact (a weight, a scale) carries an error bound"
            )
        return value

    def index(self, x: Value) -> tuple[Array, Array | None]:
        value, error = split(x)
        return value, None if is_exact(error) else np.asarray(error) > 0

    def unknown(self, x: Value, where: Array) -> Value:
        value, error = split(x)
        return pair(value, np.where(where, np.inf, error))

    def _map_value(self, function: Callable[[Array], Array], x: Value) -> Value:
        if isinstance(x, Bounded):
            return Bounded(function(x.value), x.bound)
        return function(np.asarray(x))

    # Floats

    def float_op(self, name: str, element_type: Attribute, *args: Value) -> Value:
        values, errors = zip(*map(split, args), strict=True)
        if name in elementwise.FLOAT_ARITHMETIC:
            result = elementwise.FLOAT_ARITHMETIC[name](*values)
        elif name == "math.fma":
            result = values[0] * values[1] + values[2]
        else:
            result = np.asarray(elementwise.ELEMENTARY[name](*values))
        if name in _EXTREMES:
            return self._extreme(name, result, values, errors)
        if name in _EXACT:
            error = errors[0]
            if name == "math.copysign" and not is_exact(errors[1]):
                unsure = np.abs(values[1]) <= errors[1]
                error = error + np.where(unsure, 2 * np.abs(values[0]), 0.0)
            return settle(result, error, error)
        if name in _ROUND_TO_INTEGER:
            error = deviation(elementwise.FLOAT_ARITHMETIC[name], result, values[0], errors[0])
            return settle(result, error, error)
        if name in ("arith.addf", "arith.subf"):
            return rounded(element_type, result, errors[0] + errors[1])
        if name == "arith.mulf":
            if element_type == f64 and is_exact(errors[0]) and is_exact(errors[1]):
                # One rounding of numbers that the program has too, in the type that it has them in.
                return pair(result, 0.0)
            return rounded(element_type, result, product_error(*values, *errors))
        if name == "math.fma":
            error = product_error(values[0], values[1], errors[0], errors[1])
            inner = rounded(element_type, values[0] * values[1], error)
            return rounded(element_type, result, inner.bound + errors[2])
        if name == "arith.divf":
            error = 0.0
            if not (is_exact(errors[0]) and is_exact(errors[1])):
                room = np.abs(values[1]) - errors[1]
                error = (errors[0] + np.abs(result) * errors[1]) / room
                error = np.where((room > 0) | (np.asarray(errors[1]) == 0), error, np.inf)
            return rounded(element_type, result, error)
        ulps = ulp_bound(name, element_type)
        return rounded(element_type, result, elementary_error(name, result, values, errors), ulps)

    def _extreme(
        self, name: str, result: Array, values: tuple[Array, ...], errors: tuple[Error, ...]
    ) -> Value:
        if is_exact(errors[0]) and is_exact(errors[1]):
            return pair(result, 0.0)
        function = elementwise.FLOAT_ARITHMETIC[name]
        high = function(values[0] + errors[0], values[1] + errors[1])
        low = function(values[0] - errors[0], values[1] - errors[1])
        error = np.maximum(high - result, result - low)
        return settle(result, error, errors[0] + errors[1])

    # Integers and choices

    def integer_op(self, name: str, element_type: Attribute, *args: Value) -> Value:
        values, errors = zip(*map(split, args), strict=True)
        result = elementwise.integer_op(name, element_type, *values)
        if all(map(is_exact, errors)):
            return result
        return pair(result, integer_error(name, element_type, result, values, errors))

    def compare(self, name: str, predicate: int, a: Value, b: Value) -> Value:
        (x, ex), (y, ey) = split(a), split(b)
        compare = (
            elementwise.compare_integers if name == "arith.cmpi" else elementwise.compare_floats
        )
        result = compare(predicate, x, y)
        if is_exact(ex) and is_exact(ey):
            return result
        if name == "arith.cmpi":
            integer = IntegerType(1 if x.dtype == np.bool_ else 8 * x.dtype.itemsize)
            as_unsigned = predicate >= 6
            ex, ey = linear(integer, x, ex, as_unsigned), linear(integer, y, ey, as_unsigned)
            if as_unsigned:
                x, y = elementwise.unsigned(x), elementwise.unsigned(y)
        total = np.asarray(ex + ey)
        # At a distance of exactly the bound, a < b is certain: counting it as unsure is safe.
        unsure = (np.abs(x.astype(np.float64) - y.astype(np.float64)) <= total) & (total > 0)
        if name == "arith.cmpf" and predicate in (0, 7, 14, 15):
            return result  # constants, and tests for NaN
        return pair(result, unsure.astype(np.float64)) if unsure.any() else result

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        (c, ec), (x, ex), (y, ey) = split(condition), split(a), split(b)
        result = np.where(c, x, y)
        if is_exact(ec) and is_exact(ex) and is_exact(ey):
            return pair(result, 0.0) if isinstance(a, Bounded) or isinstance(b, Bounded) else result
        bound = np.where(c, ex, ey)
        if not is_exact(ec):
            gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
            gap = np.where(x == y, 0.0, np.where(np.isnan(gap), np.inf, gap))
            bound = np.where(np.asarray(ec) > 0, gap + np.maximum(ex, ey), bound)
        return pair(result, bound)

    def convert(self, name: str, source: Attribute, target: Attribute, x: Value) -> Value:
        value, error = split(x)
        result = convert_exactly(name, source, target, value, self.dtype(target), wide=True)
        if name in ("arith.sitofp", "arith.uitofp"):
            if not is_exact(error):
                error = linear(source, value, error, name == "arith.uitofp")
            exact = np.abs(result) + error <= _SLACK / unit(target)  # integers up to 1/u are floats
            return pair(result, np.where(exact, error, rounded(target, result, error).bound))
        if name == "arith.truncf":
            return rounded(target, result, error)
        if is_exact(error):
            return pair(result, 0.0) if is_float(target) else result
        if name in ("arith.fptosi", "arith.fptoui"):
            as_unsigned = name == "arith.fptoui"

            def function(v: Array) -> Array:
                whole = elementwise.float_to_integer(v, target, as_unsigned)
                number = elementwise.read_unsigned(whole, target) if as_unsigned else whole
                return number.astype(np.float64)

            bound = deviation(function, function(value), value, error)
            return pair(result, np.where(np.isnan(value) | np.isnan(bound), np.inf, bound))
        if name in ("arith.extsi", "arith.extui"):
            return pair(result, linear(source, value, error, name == "arith.extui"))
        if name == "arith.bitcast":
            return pair(result, np.where(np.asarray(error) > 0, np.inf, 0.0))
        return pair(result, error)  # extf, trunci, index_cast

    # Sums

    def reduce(
        self, name: str, element_type: Attribute, terms: Value, axes: tuple[int, ...], init: Value
    ) -> Value:
        (value, error), (start, start_error) = split(terms), split(init)
        ufunc = REDUCERS[name]

        def fold(x: Array, first: Array) -> Array:
            return ufunc(ufunc.reduce(x, axis=axes, keepdims=True, dtype=x.dtype), first)

        if not is_float(element_type):
            as_unsigned = name in ("arith.maxui", "arith.minui")
            if as_unsigned:
                value, start = elementwise.unsigned(value), elementwise.unsigned(start)
            total = fold(value, start).astype(value.dtype, copy=False)
            signed_total = elementwise.signed(total) if as_unsigned else total
            if is_exact(error) and is_exact(start_error):
                return signed_total
            errors = np.broadcast_to(error, value.shape)
            if name == "arith.addi":
                bound = errors.sum(axis=axes, keepdims=True) + start_error
            elif ufunc in (np.maximum, np.minimum) or element_type == IntegerType(1):
                reach = linear(element_type, value, errors, as_unsigned)
                first = linear(element_type, start, start_error, as_unsigned)
                bound = np.maximum(reach.max(axis=axes, keepdims=True), first)
            else:
                bound = np.where((errors > 0).any(axis=axes, keepdims=True), np.inf, start_error)
            return pair(signed_total, bound)
        total = fold(value, start)
        errors = np.broadcast_to(error, value.shape)
        if ufunc in (np.maximum, np.minimum, np.fmax, np.fmin):
            if is_exact(error) and is_exact(start_error):
                return pair(total, 0.0)
            high = fold(value + errors, start + start_error)
            low = fold(value - errors, start - start_error)
            bound = np.maximum(high - total, total - low)
            return settle(total, bound, errors.max(axis=axes, keepdims=True) + start_error)
        count = int(np.prod([value.shape[a] for a in axes], dtype=np.int64))
        size = fold(np.abs(value) + errors, np.abs(start) + start_error)
        relative = gamma(count, element_type)
        if ufunc is np.add:
            propagated = errors.sum(axis=axes, keepdims=True) + start_error
            bound = propagated + relative * size
        else:
            propagated = size - np.abs(total)
            bound = propagated + relative * size + count * _UNDERFLOW[type(element_type)]
        bound = np.where(size > _LARGEST[type(element_type)], np.inf, bound)
        return settle(total, bound, propagated)

    def contract(
        self,
        element_type: Attribute,
        x: Value,
        y: Value,
        init: Value | None = None,
        roundings: int = 0,
    ) -> Value:
        (a, ea), (b, eb) = split(x), split(y)
        total = matmul(a, b, self.dtype(element_type))
        start, start_error = (np.asarray(0.0), 0.0) if init is None else split(init)
        exact = is_exact(ea) and is_exact(eb)
        if not is_float(element_type):
            total = total if init is None else np.add(total, start, dtype=total.dtype)
            if exact and is_exact(start_error):
                return total
        else:
            total = total + start
        size = np.matmul(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
        largest = size
        if not exact:
            largest = np.matmul(np.abs(a) + ea, np.abs(b) + eb)
        propagated = largest - size + start_error
        if not is_float(element_type):
            return pair(total, propagated)
        depth = a.shape[-1]
        largest = largest + np.abs(start) + start_error
        bound = propagated + gamma(depth + 1 + roundings, element_type) * largest
        bound = bound + (depth + 1) * _UNDERFLOW[type(element_type)]
        bound = np.where(largest > _LARGEST[type(element_type)], np.inf, bound)
        return settle(total, bound, propagated)


def ulp_bound(name: str, element_type: Attribute) -> float:
    """The stated error of the C runtime's function behind an op of `math`, in ulp. `InterpretationError` if it has none."""
    if name not in ULP_BOUNDS or element_type != f32:
        known = ", ".join(ULP_BOUNDS)
        raise InterpretationError(
            f"{name} on {element_type} has no function in the C runtime, whose error is known; "
            f"on f32 there are {known}"
        )
    return ULP_BOUNDS[name]
