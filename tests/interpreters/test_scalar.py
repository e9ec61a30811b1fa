"""Every scalar op against independent numpy or Python code, edge cases included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qfold.interpreters import run
from qfold.runtime.ulp import ULP_BOUNDS
from tests.interpreters.helpers import elementwise

I8 = np.array([-128, -127, -7, -1, 0, 1, 2, 7, 100, 127], np.int8)
PAIRS = [(int(a), int(b)) for a in I8 for b in I8]
A = np.array([a for a, _ in PAIRS], np.int8)
B = np.array([b for _, b in PAIRS], np.int8)


def wrap8(value: int) -> int:
    return (value + 128) % 256 - 128


def u8(value: int) -> int:
    return value % 256


def truncated(a: int, b: int) -> int:
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


INTEGER: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "divsi": truncated,
    "divui": lambda a, b: u8(a) // u8(b) if b else 0,
    "remsi": lambda a, b: a - truncated(a, b) * b if b else 0,
    "remui": lambda a, b: u8(a) % u8(b) if b else 0,
    "floordivsi": lambda a, b: a // b if b else 0,
    "ceildivsi": lambda a, b: -(-a // b) if b else 0,
    "ceildivui": lambda a, b: -(-u8(a) // u8(b)) if b else 0,
    "minsi": min,
    "maxsi": max,
    "minui": lambda a, b: min(u8(a), u8(b)),
    "maxui": lambda a, b: max(u8(a), u8(b)),
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "shli": lambda a, b: a << u8(b) if u8(b) < 8 else 0,
    "shrsi": lambda a, b: a >> min(u8(b), 7),
    "shrui": lambda a, b: u8(a) >> u8(b) if u8(b) < 8 else 0,
}


@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
@pytest.mark.parametrize("name", INTEGER)
def test_integer_ops(name: str, domain: Any) -> None:
    module = elementwise(f"%r = arith.{name} %a0, %a1 : i8", ["i8", "i8"], "i8", len(A))
    (y,) = run(module, [A, B], domain=domain)
    if domain == "bounded":
        assert not y.bound.any()
        y = y.value
    expected = [wrap8(INTEGER[name](a, b)) for a, b in PAIRS]
    np.testing.assert_array_equal(y, np.array(expected, np.int8))


CMPI: list[tuple[str, Callable[[int, int], bool]]] = [
    ("eq", lambda a, b: a == b),
    ("ne", lambda a, b: a != b),
    ("slt", lambda a, b: a < b),
    ("sle", lambda a, b: a <= b),
    ("sgt", lambda a, b: a > b),
    ("sge", lambda a, b: a >= b),
    ("ult", lambda a, b: u8(a) < u8(b)),
    ("ule", lambda a, b: u8(a) <= u8(b)),
    ("ugt", lambda a, b: u8(a) > u8(b)),
    ("uge", lambda a, b: u8(a) >= u8(b)),
]


@pytest.mark.parametrize(("predicate", "expected"), CMPI)
def test_cmpi(predicate: str, expected: Callable[[int, int], bool]) -> None:
    module = elementwise(f"%r = arith.cmpi {predicate}, %a0, %a1 : i8", ["i8", "i8"], "i1", len(A))
    (y,) = run(module, [A, B])
    np.testing.assert_array_equal(y, np.array([expected(a, b) for a, b in PAIRS]))


SPECIAL = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan]
FA = np.array([a for a in SPECIAL for _ in SPECIAL], np.float32)
FB = np.array([b for _ in SPECIAL for b in SPECIAL], np.float32)

ORDERED: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "ne": lambda a, b: a != b,
}


@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
@pytest.mark.parametrize(
    "predicate",
    ["false", "ord", "uno", "true", *("o" + p for p in ORDERED), *("u" + p for p in ORDERED)],
)
def test_cmpf(predicate: str, domain: Any) -> None:
    def expected(a: float, b: float) -> bool:
        nan = math.isnan(a) or math.isnan(b)
        if predicate in ("false", "true"):
            return predicate == "true"
        if predicate in ("ord", "uno"):
            return nan == (predicate == "uno")
        return predicate[0] == "u" if nan else ORDERED[predicate[1:]](a, b)

    module = elementwise(
        f"%r = arith.cmpf {predicate}, %a0, %a1 : f32", ["f32", "f32"], "i1", len(FA)
    )
    (y,) = run(module, [FA, FB], domain=domain)
    y = y.value if domain == "bounded" else y
    want = [expected(a, b) for a, b in zip(FA.tolist(), FB.tolist(), strict=True)]
    np.testing.assert_array_equal(y, np.array(want))


FLOAT: dict[str, Callable[[float, float], float]] = {
    "addf": lambda a, b: a + b,
    "subf": lambda a, b: a - b,
    "mulf": lambda a, b: a * b,
    "maximumf": lambda a, b: (
        math.nan if math.isnan(a + b) and (a != -b or math.isnan(a)) else max(a, b)
    ),
    "maxnumf": lambda a, b: b if math.isnan(a) else a if math.isnan(b) else max(a, b),
    "minnumf": lambda a, b: b if math.isnan(a) else a if math.isnan(b) else min(a, b),
}


@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
@pytest.mark.parametrize("name", FLOAT)
def test_float_ops_on_special_values(name: str, domain: Any) -> None:
    module = elementwise(f"%r = arith.{name} %a0, %a1 : f32", ["f32", "f32"], "f32", len(FA))
    (y,) = run(module, [FA, FB], domain=domain)
    want = np.array([FLOAT[name](a, b) for a, b in zip(FA.tolist(), FB.tolist(), strict=True)])
    if domain == "bounded":
        assert y.contains(want.astype(np.float32)).all()
        # Exact infinities and NaNs are no excuse for an infinite bound.
        assert np.isfinite(y.bound).all()
        y = y.value
    np.testing.assert_array_equal(y, want)


MATH: dict[str, Callable[[float], float]] = {
    "math.absf": abs,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "math.roundeven": round,
    "math.round": lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
    "math.exp": math.exp,
    "math.expm1": math.expm1,
    "math.exp2": lambda x: 2.0**x,
    "math.tanh": math.tanh,
    "math.erf": math.erf,
    "math.sin": math.sin,
    "math.cos": math.cos,
    "math.atan": math.atan,
    "math.sinh": math.sinh,
    "math.cosh": math.cosh,
    "math.cbrt": math.cbrt,
    "arith.negf": lambda x: -x,
}
POSITIVE: dict[str, Callable[[float], float]] = {
    "math.log": math.log,
    "math.log1p": math.log1p,
    "math.log2": math.log2,
    "math.log10": math.log10,
    "math.sqrt": math.sqrt,
    "math.rsqrt": lambda x: 1 / math.sqrt(x),
}


@pytest.mark.parametrize("name", [*MATH, *POSITIVE])
def test_unary_floats(name: str) -> None:
    x = np.array([-2.5, -1.5, -0.75, -0.5, 0.5, 1.5, 2.5, 3.25, 0.1], np.float32)
    if name in POSITIVE:
        x = np.abs(x)
    function = {**MATH, **POSITIVE}[name]
    want = np.array([function(v) for v in x.tolist()])
    module = elementwise(f"%r = {name} %a0 : f32", ["f32"], "f32", len(x))
    (exact,) = run(module, [x])
    assert exact.dtype == np.float32
    np.testing.assert_array_equal(exact, want.astype(np.float32))
    (wide,) = run(module, [x], domain="f64")
    np.testing.assert_allclose(wide, want, rtol=1e-14)
    if name.startswith("math.") and name not in ULP_BOUNDS:
        return  # no bound without a function in the C runtime
    (bounded,) = run(module, [x], domain="bounded")
    assert bounded.contains(want).all() and bounded.contains(exact).all()
    assert (bounded.bound <= 1e-6 * np.maximum(np.abs(want), 1e-30)).all()


@pytest.mark.parametrize(
    ("name", "kind", "values", "expected"),
    [
        (
            "fptosi",
            "i8",
            [1.9, -1.9, 127.5, 300.0, -300.0, math.nan, math.inf],
            [1, -1, 127, 127, -128, 0, 127],
        ),
        (
            "fptoui",
            "i8",
            [1.9, -1.9, 127.5, 300.0, 200.0, math.nan, -math.inf],
            [1, 0, 127, -1, -56, 0, 0],
        ),
        ("fptosi", "i64", [1e30, -1e30, 2.5], [2**63 - 1, -(2**63), 2]),
        ("fptoui", "i64", [1e30, -1.0, 2.0**63], [-1, 0, -(2**63)]),
        ("fptosi", "i32", [2147483648.0, -2147483648.0], [2**31 - 1, -(2**31)]),
    ],
)
def test_float_to_integer_saturates(
    name: str, kind: str, values: list[float], expected: list[int]
) -> None:
    module = elementwise(f"%r = arith.{name} %a0 : f32 to {kind}", ["f32"], kind, len(values))
    (y,) = run(module, [np.array(values, np.float32)])
    assert y.tolist() == expected


@pytest.mark.parametrize(
    ("body", "source", "result", "x", "expected"),
    [
        ("%r = arith.extsi %a0 : i8 to i32", "i8", "i32", np.int8([-3, 100]), [-3, 100]),
        ("%r = arith.extui %a0 : i8 to i32", "i8", "i32", np.int8([-3, 100]), [253, 100]),
        ("%r = arith.extui %a0 : i1 to i32", "i1", "i32", np.array([True, False]), [1, 0]),
        ("%r = arith.extsi %a0 : i1 to i32", "i1", "i32", np.array([True, False]), [-1, 0]),
        ("%r = arith.trunci %a0 : i32 to i8", "i32", "i8", np.int32([300, -129]), [44, 127]),
        ("%r = arith.trunci %a0 : i32 to i1", "i32", "i1", np.int32([2, 3]), [False, True]),
        ("%r = arith.sitofp %a0 : i8 to f32", "i8", "f32", np.int8([-3, 100]), [-3.0, 100.0]),
        ("%r = arith.uitofp %a0 : i8 to f32", "i8", "f32", np.int8([-3, 100]), [253.0, 100.0]),
        ("%r = arith.uitofp %a0 : i4 to f32", "i4", "f32", np.int8([-1, -8, 7]), [15.0, 8.0, 7.0]),
        ("%r = arith.sitofp %a0 : i4 to f32", "i4", "f32", np.int8([-1, -8, 7]), [-1.0, -8.0, 7.0]),
        ("%r = arith.extui %a0 : i4 to i32", "i4", "i32", np.int8([-1, -8, 7]), [15, 8, 7]),
        ("%r = arith.extsi %a0 : i4 to i32", "i4", "i32", np.int8([-1, -8, 7]), [-1, -8, 7]),
        ("%r = arith.trunci %a0 : i32 to i4", "i32", "i4", np.int32([15, 8, -9]), [-1, -8, 7]),
        ("%r = arith.uitofp %a0 : i1 to f32", "i1", "f32", np.array([True, False]), [1.0, 0.0]),
        (
            "%r = arith.extf %a0 : f32 to f64",
            "f32",
            "f64",
            np.float32([0.1]),
            [float(np.float32(0.1))],
        ),
        (
            "%r = arith.truncf %a0 : f64 to f32",
            "f64",
            "f32",
            np.float64([0.1]),
            [float(np.float32(0.1))],
        ),
        ("%r = arith.bitcast %a0 : f32 to i32", "f32", "i32", np.float32([1.0]), [0x3F800000]),
        ("%r = math.ctlz %a0 : i32", "i32", "i32", np.int32([0, 1, -1, 65536]), [32, 31, 0, 15]),
        ("%r = math.cttz %a0 : i32", "i32", "i32", np.int32([0, 1, 8]), [32, 0, 3]),
        ("%r = math.ctpop %a0 : i32", "i32", "i32", np.int32([0, -1, 5]), [0, 32, 2]),
        ("%r = math.absi %a0 : i8", "i8", "i8", np.int8([-128, -3, 3]), [-128, 3, 3]),
    ],
)
def test_conversions(body: str, source: str, result: str, x: Any, expected: list[Any]) -> None:
    (y,) = run(elementwise(body, [source], result, len(x)), [x])
    assert y.tolist() == expected


def test_unsigned_storage_is_read_through_a_cast() -> None:
    body = """
      %s = builtin.unrealized_conversion_cast %a0 : ui8 to i8
      %one = arith.constant 1 : i8
      %t = arith.addi %s, %one : i8
      %m = arith.minui %t, %s : i8
      %r = builtin.unrealized_conversion_cast %m : i8 to ui8"""
    x = np.array([0, 127, 128, 255], np.uint8)
    (y,) = run(elementwise(body, ["ui8"], "ui8", 4), [x])
    assert y.dtype == np.uint8
    assert y.tolist() == [0, 127, 128, 0]


def test_select() -> None:
    module = elementwise("%r = arith.select %a0, %a1, %a2 : f32", ["i1", "f32", "f32"], "f32", 2)
    (y,) = run(module, [np.array([True, False]), np.float32([1, 2]), np.float32([3, 4])])
    assert y.tolist() == [1.0, 4.0]


def test_powers() -> None:
    x, n = np.float32([2.0, 0.5, -3.0]), np.float32([3.0, -2.0, 3.0])
    (y,) = run(elementwise("%r = math.powf %a0, %a1 : f32", ["f32", "f32"], "f32", 3), [x, n])
    assert y.tolist() == [8.0, 4.0, -27.0]
    i, k = np.int32([2, -3, 5, -1]), np.int32([10, 3, -1, -3])
    (y,) = run(elementwise("%r = math.ipowi %a0, %a1 : i32", ["i32", "i32"], "i32", 4), [i, k])
    assert y.tolist() == [1024, -27, 0, -1]


def test_constants_are_what_their_type_holds() -> None:
    body = "%c = arith.constant 0.1 : f32\n %r = arith.addf %a0, %c : f32"
    (y,) = run(elementwise(body, ["f32"], "f32", 1), [np.float32([0])], domain="f64")
    assert y[0] == float(np.float32(0.1))
