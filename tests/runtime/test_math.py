"""The C elementary functions against float64, at their stated bounds, as two compilers' settings build them."""

from __future__ import annotations

import ctypes
import math
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from qfold.runtime import MATH_HEADER, read_source
from qfold.runtime.ulp import ULP_BOUNDS, ulp_float32
from tests.runtime.compiling import STRICT, compile_shared, compiler, run_compiler

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# The float functions of the header by the op that each implements.
C_FUNCTIONS: dict[str, str] = {
    "arith.maximumf": "qf_maximumf",
    "arith.maxnumf": "qf_maxnumf",
    "arith.minimumf": "qf_minimumf",
    "arith.minnumf": "qf_minnumf",
    "math.absf": "qf_absf",
    "math.ceil": "qf_ceilf",
    "math.copysign": "qf_copysignf",
    "math.erf": "qf_erff",
    "math.exp": "qf_expf",
    "math.expm1": "qf_expm1f",
    "math.floor": "qf_floorf",
    "math.log": "qf_logf",
    "math.log1p": "qf_log1pf",
    "math.powf": "qf_powf",
    "math.round": "qf_roundf",
    "math.roundeven": "qf_roundevenf",
    "math.rsqrt": "qf_rsqrtf",
    "math.sqrt": "qf_sqrtf",
    "math.tanh": "qf_tanhf",
    "math.trunc": "qf_truncf",
}
BINARY = {op for op in C_FUNCTIONS if op.startswith("arith.")} | {"math.powf", "math.copysign"}
UNARY = sorted(set(C_FUNCTIONS) - BINARY)

# Beyond what generated code promises: no silent narrowing, no double.
PICKY = ["-Wshadow", "-Wconversion", "-Wdouble-promotion"]
# -march=native brings in FMA where the machine has it, so that contraction happens.
BUILDS = {
    "plain": ["-O2", "-ffp-contract=off"],
    "contracted": ["-O3", "-march=native", "-ffp-contract=fast"],
}
INTEGERS = {
    f"qf_f32_to_{sign}{bits}": np.dtype(f"{kind}{bits // 8}")
    for sign, kind in (("i", "i"), ("u", "u"))
    for bits in (8, 16, 32, 64)
}


def driver_source() -> str:
    """One exported loop per function: `v_<function>(x, [z,] y, count)`."""
    lines = ['#include "qfold_math.h"', '#define EXPORT __attribute__((visibility("default")))']
    for op, name in C_FUNCTIONS.items():
        second, argument = ("const float *z, ", ", z[i]") if op in BINARY else ("", "")
        lines.append(
            f"void v_{name}(const float *x, {second}float *y, long count);\n"
            f"EXPORT void v_{name}(const float *x, {second}float *y, long count) {{\n"
            f"    for (long i = 0; i < count; ++i) y[i] = {name}(x[i]{argument});\n}}"
        )
    for name, dtype in INTEGERS.items():
        lines.append(
            f"void v_{name}(const float *x, {dtype.name}_t *y, long count);\n"
            f"EXPORT void v_{name}(const float *x, {dtype.name}_t *y, long count) {{\n"
            f"    for (long i = 0; i < count; ++i) y[i] = {name}(x[i]);\n}}"
        )
    return "\n".join(lines) + "\n"


class Library:
    """The driver, compiled and loaded."""

    def __init__(self, folder: Path, flags: list[str]):
        self.library = compile_shared(folder, driver_source(), [*PICKY, *flags])

    def __call__(self, name: str, *arguments: F32, dtype: npt.DTypeLike = np.float32) -> F32:
        arrays = [np.ascontiguousarray(a, np.float32) for a in arguments]
        out = np.empty(arrays[0].shape, dtype)
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*arrays, out)]
        self.library[f"v_{name}"](*pointers, ctypes.c_long(out.size))
        return out


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Library]:
    return {n: Library(tmp_path_factory.mktemp(n), flags) for n, flags in BUILDS.items()}


@pytest.fixture(params=list(BUILDS))
def library(request: pytest.FixtureRequest, libraries: dict[str, Library]) -> Library:
    return libraries[request.param]


@pytest.fixture(autouse=True)
def quiet_numpy() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def floats(bits: npt.ArrayLike) -> F32:
    return np.asarray(bits, np.uint32).view(np.float32)


def around(points: npt.ArrayLike, width: int = 64) -> F32:
    """Every float within `width` steps of each point (of either sign of zero, for 0)."""
    bits = np.asarray(points, np.float32).view(np.uint32).reshape(-1, 1).astype(np.int64)
    return floats(((bits + np.arange(-width, width + 1)) % 2**32).astype(np.uint32).ravel())


EVERYWHERE = np.concatenate(
    [
        floats(np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)),  # all exponents alike
        around([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 2.0**-126, -(2.0**-126)], 512),
        around([s * 2.0**e for s in (1, -1) for e in range(-148, 128)], 4),
    ]
)
POWERS = 2.0 ** np.arange(-126, 128)
# Where each function does its work, and where its formula changes.
REGIONS: dict[str, tuple[float, float, npt.ArrayLike]] = {
    "math.exp": (-104.5, 89.5, np.arange(-302, 260) * (math.log(2) / 2)),
    "math.expm1": (-19.0, 1.5, np.arange(-60, 260) * (math.log(2) / 2)),
    "math.tanh": (
        -1.2,
        10.0,
        [*(np.arange(1, 60) * (math.log(2) / 4)), 0.625, -0.625, 9.0109, 9.5],
    ),
    "math.erf": (-1.2, 4.5, [1.0, -1.0, 3.8325, 4.0, *(np.arange(1, 60) * 0.0625)]),
    "math.log": (0.4, 2.0, [*(POWERS * 2 / 3), *POWERS]),
    "math.log1p": (-0.9, 1.5, [*(POWERS[100:] * 2 / 3 - 1), -1 / 3, 1 / 3, -1.0, 2.0**96]),
    "math.sqrt": (0.25, 4.0, POWERS),
    "math.rsqrt": (0.25, 4.0, POWERS),
}
REFERENCES: dict[str, Callable[[F64], F64]] = {
    "math.absf": np.abs,
    "math.ceil": np.ceil,
    "math.erf": lambda x: np.fromiter(map(math.erf, x), np.float64, x.size),
    "math.exp": np.exp,
    "math.expm1": np.expm1,
    "math.floor": np.floor,
    "math.log": np.log,
    "math.log1p": np.log1p,
    "math.round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "math.roundeven": np.rint,
    "math.rsqrt": lambda x: 1.0 / np.sqrt(x),
    "math.sqrt": np.sqrt,
    "math.tanh": np.tanh,
    "math.trunc": np.trunc,
}


def samples(op: str) -> F32:
    if op not in REGIONS:
        halves = np.arange(-2048, 2048) * 0.5
        return np.concatenate(
            [EVERYWHERE, around([*halves, 2.0**22, 2.0**23, 2.0**24, -(2.0**23)])]
        )
    low, high, edges = REGIONS[op]
    return np.concatenate(
        [EVERYWHERE, np.linspace(low, high, 2**20, dtype=np.float32), around(edges)]
    )


def worst_ulp(computed: F32, exact: F64, arguments: tuple[F32, ...]) -> float:
    """The largest error in ulp. NaN, overflow and the sign of zero are right or wrong, never close."""
    rounded = exact.astype(np.float32)
    special = np.isnan(rounded) | np.isinf(rounded) | (exact == 0) | ~np.isfinite(computed)
    same = (computed == rounded) & (np.signbit(computed) == np.signbit(rounded))
    wrong = special & ~(same | (np.isnan(computed) & np.isnan(rounded)))
    wrong |= ~np.isnan(rounded) & (np.signbit(computed) != np.signbit(rounded))
    if wrong.any():
        i = int(wrong.argmax())
        pytest.fail(f"{[float(a[i]).hex() for a in arguments]}: {computed[i]}, not {rounded[i]}")
    usual = ~special
    error = np.abs(computed[usual] - exact[usual]) / ulp_float32(exact[usual])
    return float(error.max(initial=0.0))


def check_bound(op: str, errors: dict[str, float]) -> None:
    """No build beyond the bound, and the bound not loose: honest to a factor of two."""
    assert max(errors.values()) <= ULP_BOUNDS[op], errors
    assert max(errors.values()) >= ULP_BOUNDS[op] / 2, f"{op}: the bound is loose: {errors}"


def test_table_is_complete() -> None:
    assert set(ULP_BOUNDS) == {op for op in C_FUNCTIONS if op.startswith("math.")}
    assert set(REFERENCES) == set(UNARY)
    declared = set(re.findall(r"static inline float (qf_[a-z0-9]+f)\(", read_source(MATH_HEADER)))
    assert declared == set(C_FUNCTIONS.values())


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str, libraries: dict[str, Library]) -> None:
    x = samples(op)
    assert len(x) >= 2**20
    exact = REFERENCES[op](x.astype(np.float64))
    check_bound(
        op, {n: worst_ulp(lib(C_FUNCTIONS[op], x), exact, (x,)) for n, lib in libraries.items()}
    )


def test_sqrt_is_ieee(library: Library) -> None:
    x = samples("math.sqrt")
    root = library("qf_sqrtf", x)
    expected = np.sqrt(x)
    keep = ~np.isnan(expected)
    np.testing.assert_array_equal(root.view(np.uint32)[keep], expected.view(np.uint32)[keep])


SPECIAL = np.array(
    [s * v for v in (0.0, 1e-45, 2.0**-126, 0.5, 1.0, 1 + 2.0**-23, 2.0, 3.0, 4194303.5, 8388607.0)
     for s in (1.0, -1.0)]
    + [s * v for v in (2.0**23, 2.0**24, 2.0**31, 3.4e38, np.inf, np.nan) for s in (1.0, -1.0)],
    np.float32,
)  # fmt: skip
LEFT, RIGHT = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))


def pow_samples() -> tuple[F32, F32]:
    """All pairs of special values, any bits, and pairs whose power is an ordinary number."""
    rng = np.random.default_rng(20)
    anything = rng.integers(0, 2**32, (2, 2**18), dtype=np.uint32).view(np.float32)
    base = np.concatenate([
        np.abs(floats(rng.integers(0, 0x7F800000, 2**19))),
        rng.uniform(0.6, 1.6, 2**19).astype(np.float32),
    ])  # fmt: skip
    exponent = rng.uniform(-105, 90, base.size) / np.log(base.astype(np.float64))
    small = rng.uniform(-20, 20, 2**17).astype(np.float32)
    integers = rng.integers(-20, 21, small.size).astype(np.float32)
    x = np.concatenate([LEFT, anything[0], base, small])
    y = np.concatenate([RIGHT, anything[1], exponent.astype(np.float32), integers])
    return x, y


def test_pow(libraries: dict[str, Library]) -> None:
    x, y = pow_samples()
    exact = np.power(x.astype(np.float64), y.astype(np.float64))
    check_bound(
        "math.powf",
        {n: worst_ulp(lib("qf_powf", x, y), exact, (x, y)) for n, lib in libraries.items()},
    )


def test_copysign(library: Library) -> None:
    out = library("qf_copysignf", LEFT, RIGHT)
    np.testing.assert_array_equal(out, np.copysign(LEFT, RIGHT))
    np.testing.assert_array_equal(np.signbit(out), np.signbit(RIGHT))


@pytest.mark.parametrize("op", ["maximumf", "minimumf", "maxnumf", "minnumf"])
def test_extremes(op: str, library: Library) -> None:
    out = library(f"qf_{op}", LEFT, RIGHT)
    reference = {
        "maximumf": np.maximum, "minimumf": np.minimum, "maxnumf": np.fmax, "minnumf": np.fmin,
    }[op]  # fmt: skip
    np.testing.assert_array_equal(out, reference(LEFT, RIGHT))
    # -0 orders below +0 (numpy leaves that open)
    zeros = (LEFT == 0) & (RIGHT == 0)
    negative = [np.signbit(LEFT[zeros]), np.signbit(RIGHT[zeros])]
    both = np.logical_and(*negative) if op.startswith("max") else np.logical_or(*negative)
    assert zeros.sum() == 4
    np.testing.assert_array_equal(np.signbit(out[zeros]), both)


@pytest.mark.parametrize("name", list(INTEGERS))
def test_float_to_integer(name: str, library: Library) -> None:
    dtype = INTEGERS[name]
    low, high = (int(v) for v in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    x = np.concatenate([EVERYWHERE[::7], SPECIAL, around([0.5, -0.5, low, high, float(high) + 1])])

    def convert(v: float) -> int:
        if math.isnan(v):
            return 0
        if math.isinf(v):
            return high if v > 0 else low
        return min(max(int(v), low), high)

    expected = np.array([convert(v) for v in x.tolist()], dtype)
    np.testing.assert_array_equal(library(name, x, dtype=dtype), expected)


def test_same_bits_at_every_optimisation(tmp_path: Path, libraries: dict[str, Library]) -> None:
    """Without contraction the result is defined to the bit."""
    other = Library(tmp_path, ["-O3", "-march=native", "-ffp-contract=off"])
    x, y = pow_samples()
    for op, name in C_FUNCTIONS.items():
        arguments = (x, y) if op in BINARY else (samples(op)[::5],)
        first = libraries["plain"](name, *arguments)
        second = other(name, *arguments)
        both_nan = np.isnan(first) & np.isnan(second)
        assert ((first.view(np.uint32) == second.view(np.uint32)) | both_nan).all(), name


def test_needs_no_library(tmp_path: Path) -> None:
    """A cluster has no libm: nothing may be left for the linker to find."""
    elffile = pytest.importorskip("elftools.elf.elffile")
    flags = [*STRICT, "-O2", "-ffreestanding", "-ffp-contract=off", "-c"]
    run = run_compiler(tmp_path, driver_source(), *flags, "-o", "driver.o")
    assert run.returncode == 0, run.stderr
    with (tmp_path / "driver.o").open("rb") as file:
        symbols = elffile.ELFFile(file).get_section_by_name(".symtab")
        defined = {s.name for s in symbols.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"}
        undefined = {s.name for s in symbols.iter_symbols() if s["st_shndx"] == "SHN_UNDEF"}
    assert "v_qf_powf" in defined
    assert undefined - {"", "_GLOBAL_OFFSET_TABLE_"} == set()


def test_loops_vectorise(tmp_path: Path) -> None:
    """gcc says so for the loop around each function (the functions have no branch)."""
    version = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True)
    if "Free Software Foundation" not in version.stdout:
        pytest.skip("only gcc reports on loops in the form that this test reads")
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"no vector unit to count on, on {platform.machine()}")
    source = driver_source()
    flags = ["-O3", "-fopt-info-vec-optimized", "-c", "-o", "driver.o"]
    run = run_compiler(tmp_path, source, *flags)
    assert run.returncode == 0, run.stderr
    lines = source.splitlines()
    vectorised = {
        lines[int(line.split(":")[1]) - 1].split("y[i] = ")[1].split("(")[0]
        for line in run.stderr.splitlines()
        if line.startswith("driver.c:") and "loop vectorized" in line
    }
    assert vectorised >= set(C_FUNCTIONS.values())


def test_fast_math_is_refused(tmp_path: Path) -> None:
    run = run_compiler(tmp_path, driver_source(), "-ffast-math", "-fsyntax-only")
    assert run.returncode != 0
    assert "compile without -ffast-math" in run.stderr
