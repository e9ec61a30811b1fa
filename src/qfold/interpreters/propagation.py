"""How the error bounds of arguments become that of a result, without the result's own rounding.

The table of `docs/numerics.md`, "Every other op", op by op. A bound is an array, or the float 0.0 for exact numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute

from qfold.dialects.element_types import integer_range
from qfold.interpreters import elementwise
from qfold.interpreters.values import Array

Error: TypeAlias = Array | float


def is_exact(error: Error) -> bool:
    return isinstance(error, float)


def product_error(a: Array, b: Array, ea: Error, eb: Error) -> Error:
    if is_exact(ea) and is_exact(eb):
        return 0.0
    return np.abs(a) * eb + np.abs(b) * ea + ea * eb


def deviation(
    function: Callable[[Array], Array], result: Array, value: Array, error: Error
) -> Error:
    """How far a monotone function can get from `result` within `value` ± `error`."""
    if is_exact(error):
        return 0.0
    above, below = function(value + error), function(value - error)
    return np.where(
        np.asarray(error) == 0,
        0.0,
        np.maximum(np.abs(above - result), np.abs(result - below)),
    )


def elementary_error(
    name: str, result: Array, values: tuple[Array, ...], errors: tuple[Error, ...]
) -> Error:
    """The propagated error of a function of the C runtime, all of which are monotone but the power, without its own rounding."""
    if all(map(is_exact, errors)):
        return 0.0
    value, error = values[0], errors[0]
    if name == "math.powf":
        return _power_error(result, values, errors)
    return deviation(elementwise.ELEMENTARY[name], result, value, error)


def _power_error(result: Array, values: tuple[Array, ...], errors: tuple[Error, ...]) -> Error:
    """a^b is monotone in each argument for a > 0; for any other a, |a|^n is in |a| when n is an exact whole number."""
    (a, b), (ea, eb) = values, errors
    low, high = a - ea, a + ea
    corners = [np.power(x, y) for x in (low, high) for y in (b - eb, b + eb)]
    spread = np.maximum.reduce([np.abs(c - result) for c in corners])
    whole = (np.asarray(eb) == 0) & (b == np.rint(b)) & (b >= 1)
    reach = np.abs(a) + ea
    by_slope = np.abs(b) * np.power(reach, np.maximum(b - 1, 0)) * ea
    return np.where(low > 0, spread, np.where(whole, by_slope, np.inf))


def linear(element_type: Attribute, value: Array, error: Error, as_unsigned: bool) -> Array:
    """The bound of a signless integer once it is read as a number: unknown where the type's range may wrap."""
    low, high = integer_range(element_type)
    number = value.astype(np.float64)
    if as_unsigned:
        low, high = 0, (1 << elementwise.width_of(element_type)) - 1
        number = elementwise.read_unsigned(value, element_type).astype(np.float64)
    inside = (number - error >= low) & (number + error <= high)
    return np.where(inside | (np.asarray(error) == 0), error, float(high - low))


def integer_error(
    name: str,
    element_type: Attribute,
    result: Array,
    values: tuple[Array, ...],
    errors: tuple[Error, ...],
) -> Error:
    """Bounds of an integer op with an uncertain argument (a quantised number that may be off by a step)."""
    any_error = sum((np.asarray(e) for e in errors), np.zeros(()))
    if name in ("arith.addi", "arith.subi"):
        return any_error
    if name == "arith.muli":
        a, b = (v.astype(np.float64) for v in values)
        return product_error(a, b, *errors)
    if element_type == IntegerType(1):
        # and with a certain false, or with a certain true: certain
        deciding = {"arith.andi": False, "arith.ori": True}.get(name)
        certain = np.zeros(result.shape, np.bool_)
        for value, error in zip(values, errors, strict=True):
            if deciding is not None:
                certain = certain | ((value == deciding) & (np.asarray(error) == 0))
        return np.where(certain, 0.0, np.minimum(any_error, 1.0))
    as_unsigned = name in ("arith.minui", "arith.maxui", "arith.divui", "arith.shrui")
    read = [elementwise.read_unsigned(v, element_type) if as_unsigned else v for v in values]
    wide = [v.astype(np.float64) for v in read]
    reach = [linear(element_type, v, e, as_unsigned) for v, e in zip(values, errors, strict=True)]
    if name in ("arith.minui", "arith.maxui", "arith.minsi", "arith.maxsi"):
        function = np.minimum if "min" in name else np.maximum
        middle = function(*wide)
        high = function(wide[0] + reach[0], wide[1] + reach[1])
        low = function(wide[0] - reach[0], wide[1] - reach[1])
        return np.maximum(high - middle, middle - low)
    if name == "math.absi":
        return reach[0]
    exact_divisor = np.asarray(errors[-1]) == 0
    if name in ("arith.shrsi", "arith.shrui"):
        return np.where(exact_divisor, np.ceil(reach[0] / np.exp2(wide[1])), np.inf)
    if name in ("arith.divsi", "arith.divui", "arith.floordivsi", "arith.ceildivsi"):
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.ceil(reach[0] / np.abs(wide[1]))
        return np.where(exact_divisor & (wide[1] != 0), steps, np.where(exact_divisor, 0.0, np.inf))
    if name == "arith.shli":
        return np.where(exact_divisor, np.asarray(errors[0]) * np.exp2(wide[1]), np.inf)
    return np.where(any_error > 0, np.inf, 0.0)
