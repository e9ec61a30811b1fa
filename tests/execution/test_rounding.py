"""Quantising on every machine: over all exponents, at ties, with infinities, NaN, zeros and subnormals, the same integers."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue

from qfold.backend.c.emit import emit
from qfold.backend.run import build_module
from qfold.dialects import qmm
from qfold.dialects.element_types import (
    i4,
    i8,
    i16,
    i32,
    integer_range,
    numpy_dtype,
    ui4,
    ui8,
    ui16,
)
from qfold.dialects.qmm import QuantAttr
from qfold.ir.builder import TensorBuilder
from qfold.transforms.pipelines import compile_pipeline, run_passes
from tests.execution.quantized_cases import Array, Suite
from tests.runtime.compiling import compile_shared

TARGETS = ["host", "threads", "qemu"]


def numbers() -> Array:
    """[3, 900]: anything; near ties of a scale of 0.25; specials and their neighbours."""
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 1 << 32, 900, dtype=np.uint32).view(np.float32)
    ties = ((rng.integers(-140, 270, 900) + 0.5) * 0.25).astype(np.float32)
    towards = np.where(rng.random(900) < 0.5, np.inf, -np.inf).astype(np.float32)
    ties = np.where(rng.random(900) < 0.5, ties, np.nextafter(ties, towards))
    special = [0.0, np.inf, np.nan, 1e-45, 1e-38, 3.4e38, 2.0**22, 2.0**31, 2.0**23 + 1, 8388607.5]
    specials = np.resize(np.array(special + [-v for v in special], np.float32), 900)
    return np.stack([anything, ties, specials])


def quantized(x: Array, storage: IntegerType, scale: Any, zero: Any) -> Array:
    """The definition: halves to even, the zero point added as an integer, NaN is the zero point."""
    low, high = integer_range(storage)
    with np.errstate(all="ignore"):
        steps = np.rint(x / np.asarray(scale, np.float32)).astype(np.float64)
    whole = np.where(np.isnan(steps), 0, steps) + np.asarray(zero, np.float64)
    return np.clip(whole, low, high).astype(numpy_dtype(storage))


def extreme(a: Array, b: Array, smaller: bool) -> Array:
    """The larger or smaller one; -0 is less than +0, NaN if either is one."""
    before = (a < b) | ((a == b) & np.signbit(a))
    chosen = np.where(before == smaller, a, b)
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), chosen)


@cache
def suite() -> Suite:
    made, x = Suite(), numbers()
    for storage in (i8, ui8, i16, ui16, i4, ui4):
        for zero in {0, *integer_range(storage)}:
            quant = QuantAttr.get(storage, 0.25, zero)
            made.add(
                f"known_{storage}_{zero}",
                [(f32, x)],
                lambda b, v, q=quant: b.insert(qmm.QuantizeOp(v, q)).result,
                [quantized(x, storage, 0.25, zero)],
            )
    made.add(
        "no_power_of_two",
        [(f32, x)],
        lambda b, v: b.insert(qmm.QuantizeOp(v, QuantAttr.get(i8, 0.3, 7))).result,
        [quantized(x, i8, 0.3, 7)],
    )
    scales = np.array([0.25, 3.0, 1e-3], np.float32)
    for storage in (i8, ui8):
        quant = QuantAttr.get(storage, scales, [0, 5, 100], axis=0)
        made.add(
            f"rows_{storage}",
            [(f32, x)],
            lambda b, v, q=quant: b.insert(qmm.QuantizeOp(v, q)).result,
            [quantized(x, storage, scales[:, None], [[0], [5], [100]])],
        )
        for zero in integer_range(storage):
            given = np.array(zero, numpy_dtype(storage))

            def at_run_time(
                b: TensorBuilder, v: SSAValue, s: SSAValue, z: SSAValue, t: IntegerType = storage
            ) -> SSAValue:
                op = qmm.QuantizeOp(v, None, storage=t, runtime_scale=s, runtime_zero_point=z)
                return b.insert(op).result

            made.add(
                f"run_time_{storage}_{zero}",
                [(f32, x), (f32, scales[0]), (storage, given)],
                at_run_time,
                [quantized(x, storage, 0.25, zero)],
            )
    pair = np.meshgrid(x[2, :20], x[2, :20])
    for kind, smaller in ((arith.MaximumfOp, False), (arith.MinimumfOp, True)):
        made.add(
            f"smaller_{smaller}",
            [(f32, pair[0]), (f32, pair[1])],
            lambda b, v, w, k=kind: b.elementwise([v, w], f32, lambda s, e: s(k, e[0], e[1])),
            [extreme(*pair, smaller)],
        )
    magnitude = x[[0, 2], :64]
    made.add(
        "magnitude",
        [(f32, magnitude)],
        lambda b, v: b.reduce(
            v,
            [1],
            0.0,
            lambda s, e, acc: s(arith.MaximumfOp, acc, e),
            element=lambda s, e: s(math.AbsFOp, e),
        ),
        [np.abs(magnitude).max(axis=1)],
    )
    return made


def same_zeros(x: Array, y: Array) -> bool:
    return bool((np.signbit(x) == np.signbit(y))[x == 0].all())


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_integers_everywhere(target: str) -> None:
    if target == "qemu" and shutil.which("qemu-riscv32") is None:
        pytest.skip("qemu-riscv32 is not installed")
    module = suite().module()
    run_passes(Context(), module, compile_pipeline(target))
    text = emit(module)["kernels.c"].decode().replace("math.roundeven", "")
    assert "qf_round_within(" in text and "qf_maximum_magnitude(" in text
    # A division by what a row, or everything, shares goes by its reciprocal where cores share a divider.
    assert ("qf_round_quotient(" in text) == (target != "host")
    assert (", 0.3f, (-135), 120)" in text) == (target != "host")
    assert "roundeven" not in text
    executable = build_module(module)
    found = executable.run(suite().values())
    executable.close()
    wrong = [
        name
        for name, y in suite().expected().items()
        if y.dtype != found[name].dtype
        or not np.array_equal(y, found[name], equal_nan=True)
        or (y.dtype.kind == "f" and not same_zeros(y, found[name]))
    ]
    assert not wrong


@pytest.mark.parametrize(
    "flags", [["-O0"], ["-O3", "-fsanitize=undefined", "-fno-sanitize-recover"]]
)
def test_the_functions_on_the_host(tmp_path: Path, flags: list[str]) -> None:
    source = """
#include "qfold_math.h"
void round_within(const float *x, int32_t *y, int n, int32_t low, int32_t high) {
    for (int i = 0; i < n; i++) { y[i] = qf_round_within(x[i], low, high); }
}
void clamp(const int32_t *x, int32_t *y, int n, int32_t low, int32_t high) {
    for (int i = 0; i < n; i++) { y[i] = qf_clamp_i32(x[i], low, high); }
}
"""
    library = compile_shared(tmp_path, source, flags)
    x = numbers().reshape(-1)
    with np.errstate(invalid="ignore"):
        steps = np.rint(x.astype(np.float64))
    wide = np.nan_to_num(steps, nan=0, posinf=2**40, neginf=-(2**40))
    for low, high in ((-128, 127), (0, 255), (-255, 0), (0, 0), (1 - 2**22, 2**22 - 1)):
        y = np.zeros(x.size, np.int32)
        library.round_within(x.ctypes, y.ctypes, x.size, low, high)
        assert np.array_equal(y, np.clip(wide, low, high))
    whole = np.array([-(2**31), -129, -128, -1, 0, 127, 128, 2**31 - 1], np.int32)
    for low, high in ((-128, 127), (-(2**31), 2**31 - 1), (0, 0), (2**31 - 1, 2**31 - 1)):
        y = np.zeros(whole.size, np.int32)
        library.clamp(whole.ctypes, y.ctypes, whole.size, low, high)
        assert np.array_equal(y, np.clip(whole, low, high))


def test_every_range_is_recognised() -> None:
    """Bounds that are known are below 2^22, so that one function rounds them all; what is stored in 32 bits is not."""
    widest = max(high - low for low, high in map(integer_range, (i8, ui8, i4, ui4, i16, ui16)))
    assert widest < 1 << 22 < integer_range(i32)[1]
