"""The C integer helpers against Python's integers, at every corner."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from qfold.runtime import INT_HEADER, read_source
from tests.runtime.compiling import compile_shared

WIDTHS = (8, 16, 32, 64)


def trunc_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# On unbounded integers; the result is reduced to the width afterwards.
REFERENCES: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, w: a + b,
    "sub": lambda a, b, w: a - b,
    "mul": lambda a, b, w: a * b,
    "divs": lambda a, b, w: trunc_div(a, b) if b else 0,
    "rems": lambda a, b, w: a - trunc_div(a, b) * b if b else 0,
    "floordivs": lambda a, b, w: a // b if b else 0,
    "ceildivs": lambda a, b, w: -(-a // b) if b else 0,
    "divu": lambda a, b, w: (a % 2**w) // (b % 2**w) if b else 0,
    "remu": lambda a, b, w: (a % 2**w) % (b % 2**w) if b else 0,
    "ceildivu": lambda a, b, w: -(-(a % 2**w) // (b % 2**w)) if b else 0,
    # An amount of the width or more shifts all bits out; a negative one is such a one.
    "shl": lambda a, b, w: a << b if b % 2**w < w else 0,
    "shru": lambda a, b, w: (a % 2**w) >> b if b % 2**w < w else 0,
    "shrs": lambda a, b, w: a >> min(b % 2**w, w - 1),
    "maxs": lambda a, b, w: max(a, b),
    "mins": lambda a, b, w: min(a, b),
    "maxu": lambda a, b, w: max(a % 2**w, b % 2**w),
    "minu": lambda a, b, w: min(a % 2**w, b % 2**w),
}


BOUNDS = ((-128, 127), (0, 255), (-136, 119), (7, 9), (-9, -7), (-(2**21), 2**21))
"""Of rounded doubles."""


def source() -> str:
    lines = [f'#include "{INT_HEADER}"']

    def export(name: str, a: str, y: str, call: str, b: str = "") -> None:
        second = f"const {b} *b, " if b else ""
        head = f"void v_{name}(const {a} *a, {second}{y} *y, long count)"
        lines.append(f"{head};\n{head} {{")
        lines.append(f"    for (long i = 0; i < count; ++i) y[i] = {call};\n}}")

    for bits in WIDTHS:
        t = f"int{bits}_t"
        for op in REFERENCES:
            export(f"{op}_i{bits}", t, t, f"qf_{op}_i{bits}(a[i], b[i])", t)
        export(f"abs_i{bits}", t, t, f"qf_abs_i{bits}(a[i])")
        export(f"f64_to_i{bits}", "double", t, f"qf_f64_to_i{bits}(a[i])")
        export(f"f64_to_u{bits}", "double", f"u{t}", f"qf_f64_to_u{bits}(a[i])")
    export("roundeven_double", "double", "double", "qf_roundevend(a[i])")
    for i, (low, high) in enumerate(BOUNDS):
        export(f"round_within_{i}", "double", "int32_t", f"qf_roundd_within(a[i], {low}, {high})")
    for sign, t in (("i", "int8_t"), ("u", "uint8_t")):
        packed = f"qf_{sign}4x2"
        export(f"load_{sign}4", packed, t, f"qf_load_{sign}4(a, i)")
        head = f"void v_store_{sign}4(const {t} *a, {packed} *y, long count)"
        lines.append(f"{head};\n{head} {{")
        lines.append(f"    for (long i = 0; i < count; ++i) qf_store_{sign}4(y, i, a[i]);\n}}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    # Undefined behaviour stops the process here rather than giving the value that was hoped for.
    flags = ["-O2", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    return compile_shared(tmp_path_factory.mktemp("int"), source(), flags)


def call(library: ctypes.CDLL, name: str, out: npt.NDArray[np.generic], *arrays: object) -> None:
    pointers = [np.asarray(x).ctypes.data_as(ctypes.c_void_p) for x in (*arrays, out)]
    library[f"v_{name}"](*pointers, ctypes.c_long(out.size))


def corners(bits: int) -> list[int]:
    """All values of 8 bits; of more, those near an end, near 0, and a third of the way."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    if bits == 8:
        return list(range(low, high + 1))
    near = {v + d for v in (low, -bits, 0, bits, high // 3, high) for d in range(-3, 4)}
    return sorted(v for v in near if low <= v <= high)


def wrap(value: int, bits: int) -> int:
    half = 2 ** (bits - 1)
    return (value + half) % 2**bits - half


def test_every_function_is_covered() -> None:
    named = set(re.findall(r" qf_([a-z]+)_i##w\(int##w##_t a", read_source(INT_HEADER)))
    assert named == {*REFERENCES, "abs"}


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("op", list(REFERENCES))
def test_binary(op: str, bits: int, library: ctypes.CDLL) -> None:
    pairs = list(itertools.product(corners(bits), repeat=2))
    a, b = (np.array(column, f"i{bits // 8}") for column in zip(*pairs, strict=True))
    out = np.empty_like(a)
    call(library, f"{op}_i{bits}", out, a, b)
    expected = [wrap(REFERENCES[op](x, y, bits), bits) for x, y in pairs]
    np.testing.assert_array_equal(out, np.array(expected, a.dtype))


@pytest.mark.parametrize("bits", WIDTHS)
def test_abs(bits: int, library: ctypes.CDLL) -> None:
    a = np.array(corners(bits), f"i{bits // 8}")
    out = np.empty_like(a)
    call(library, f"abs_i{bits}", out, a)
    expected = [wrap(abs(v), bits) for v in corners(bits)]
    np.testing.assert_array_equal(out, np.array(expected, a.dtype))


@pytest.mark.parametrize("kind", ["i", "u"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_from_double(bits: int, kind: str, library: ctypes.CDLL) -> None:
    """Towards zero and saturating; a NaN gives 0."""
    dtype = np.dtype(f"{kind}{bits // 8}")
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    points = [
        0.0,
        -0.0,
        0.5,
        -0.99,
        1e300,
        -1e300,
        np.inf,
        -np.inf,
        np.nan,
        float(low),
        float(high),
    ]
    x = np.array([*points, *(p + d for p in (low, high) for d in (-1.5, -0.5, 0.5, 1.0, 1.5))])
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
    out = np.empty(x.shape, dtype)
    call(library, f"f64_to_{kind}{bits}", out, x)

    def convert(v: float) -> int:
        if np.isnan(v):
            return 0
        if np.isinf(v):
            return high if v > 0 else low
        return min(max(int(v), low), high)

    expected = np.array([convert(float(v)) for v in x], dtype)
    np.testing.assert_array_equal(out, expected)


def test_round_to_even(library: ctypes.CDLL) -> None:
    """Of doubles: signed zeros and numbers without a fraction are kept."""
    whole = [
        0.0,
        1.0,
        2.0,
        3.0,
        2.0**51,
        2.0**52,
        2.0**52 + 1,
        2.0**53 + 2,
        1e300,
        np.inf,
        np.nan,
        5e-324,
    ]
    x = np.array([v + d for v in whole for d in (0.0, 0.5, -0.5, 0.25)])
    x = np.concatenate([x, -x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
    out = np.empty(x.shape, x.dtype)
    call(library, "roundeven_double", out, x)
    np.testing.assert_array_equal(out.view(np.uint64), np.rint(x).view(np.uint64))


@pytest.mark.parametrize(("kind", "low"), [("i", -8), ("u", 0)])
def test_four_bits(kind: str, low: int, library: ctypes.CDLL) -> None:
    """Low nibble first, an odd count, and a store that leaves its neighbour alone."""
    values = np.array([*range(low, low + 16), low + 15], f"{kind}1")
    packed = np.full(9, 0xA5, np.uint8)
    call(library, f"store_{kind}4", np.empty(0, np.uint8), values)  # a count of 0 touches nothing
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (values, packed)]
    library[f"v_store_{kind}4"](*pointers, ctypes.c_long(17))
    nibbles = [int(v) & 15 for v in values]
    pairs = [lo | hi << 4 for lo, hi in zip(nibbles[0:16:2], nibbles[1:16:2], strict=True)]
    assert packed.tolist() == [*pairs, nibbles[16] | 0xA0]
    out = np.empty_like(values)
    call(library, f"load_{kind}4", out, packed)
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize("bounds", range(len(BOUNDS)))
def test_rounding_a_double_within_bounds(bounds: int, library: ctypes.CDLL) -> None:
    """What a requantise does: ties, both ends, beyond any integer, infinities, and the lower end for a NaN."""
    near = np.arange(-2000, 2001) * 0.125
    around = [np.nextafter(near, -np.inf), near, np.nextafter(near, np.inf)]
    hard = [-0.0, 1e-300, -1e-300, 2.0**31, -(2.0**40), 1e300, -1e300, np.inf, -np.inf, np.nan]
    x = np.concatenate([*around, np.array(hard)])
    low, high = BOUNDS[bounds]
    out = np.empty(x.size, np.int32)
    call(library, f"round_within_{bounds}", out, x)
    expected = np.clip(np.rint(np.where(np.isnan(x), -np.inf, x)), low, high)
    np.testing.assert_array_equal(out, expected)
