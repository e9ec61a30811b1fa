"""`qkernel.pack`, `packed_matmul` and `row_sum` in every domain: by their definitions, and against `dequant_matmul`."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qfold.dialects.element_types import i4, i8, i16, integer_range, numpy_dtype, ui4, ui8, ui16
from qfold.dialects.qkernel import packed_shape, zero_point_type
from qfold.interpreters import Bounded, run
from tests.interpreters.helpers import parse, random

DOMAINS = ["exact", "f64", "bounded"]
STORAGE = (i8, ui8, i4, ui4, i16, ui16)
M, K, N, BLOCK = 5, 11, 6, 4
BLOCKS = 3
EPS = 2.0**-24


def numbers(value: Any) -> Any:
    return value.value if isinstance(value, Bounded) else value


def memref(shape: tuple[int, ...], element: object) -> str:
    return f"memref<{''.join(f'{d}x' for d in shape)}{element}>"


def packed(w: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[K, N] as panels of four columns, by the definition."""
    k, n = w.shape
    panels = np.zeros(packed_shape(k, n))
    for row, column in product(range(k), range(n)):
        panels[column // 4, row, column % 4] = w[row, column]
    return panels


def run_op(
    text: str, operands: dict[str, tuple[Any, object]], out: tuple[int, ...], domain: Any
) -> Any:
    """The output of one op; operands are (value, element type)."""
    arguments = "".join(
        f'%{name} : {memref(np.shape(v), t)} {{qmm.role = "input"}}, '
        for name, (v, t) in operands.items()
    )
    types = ", ".join([*(memref(np.shape(v), t) for v, t in operands.values()), memref(out, "f32")])
    module = parse(
        f"""
        func.func @main({arguments}%y : {memref(out, "f32")} {{qmm.role = "output"}}) {{
          {text} : ({types}) -> ()
          func.return
        }}
        """
    )
    return run(module, [v for v, _ in operands.values()], domain=domain)[0]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("storage", "zeros"), list(product(STORAGE, ["", "tensor", "axis", "block"]))
)
def test_pack(storage: Any, zeros: str, transposed: bool, domain: Any) -> None:
    rng = np.random.default_rng(5)
    low, high = integer_range(storage)
    w = rng.integers(low, high + 1, (K, N)).astype(numpy_dtype(storage))
    shape = {"": (), "tensor": (), "axis": (N,), "block": (BLOCKS, N)}[zeros]
    zero_type = zero_point_type(storage)
    zero = rng.integers(low, high + 1, shape).astype(numpy_dtype(zero_type))
    want = w.astype(np.float64)
    operands: dict[str, tuple[Any, object]] = {"w": (w, storage)}
    blocks = np.arange(K) // BLOCK
    scale = np.ones((BLOCKS, N))
    text = "qkernel.pack %w"
    attributes = ["transpose_b"] if transposed else []
    if zeros == "block":
        scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
        operands["s"] = (scale, "f32")
        text += " scale(%s)"
        attributes.append(f"block_size = {BLOCK} : i64")
    if zeros:
        operands["z"] = (zero, zero_type)
        text += " zero_point(%z)"
        want = want - (zero[blocks] if zeros == "block" else zero)
    want = want * np.asarray(scale, np.float64)[blocks]
    if transposed:
        operands = {n: (v.T.copy(), t) for n, (v, t) in operands.items()}
    y = run_op(f"{text} outs(%y) {{{', '.join(attributes)}}}", operands, packed_shape(K, N), domain)
    rounding = packed(np.abs(want)) * EPS if zeros == "block" else 0.0
    assert (np.abs(numbers(y) - packed(want)) <= (0.0 if domain != "exact" else rounding)).all()
    if isinstance(y, Bounded):
        # Integers are exact; a scaled one is rounded once.
        assert (y.bound >= rounding).all()
        assert (
            y.bound <= np.asarray(rounding) * 1.001 + (2.0**-149 if zeros == "block" else 0)
        ).all()


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("transposed", [False, True])
def test_packing_floats_only_rearranges(transposed: bool, domain: Any) -> None:
    w = random(1, K, N)
    stored = w.T.copy() if transposed else w
    flag = "transpose_b" if transposed else ""
    y = run_op(
        f"qkernel.pack %w outs(%y) {{{flag}}}", {"w": (stored, "f32")}, packed_shape(K, N), domain
    )
    np.testing.assert_array_equal(numbers(y), packed(w))
    if isinstance(y, Bounded):
        assert not y.bound.any()


def test_packing_keeps_the_bounds_of_an_activation() -> None:
    w = random(1, K, N).astype(np.float64)
    bound = np.abs(random(2, K, N)).astype(np.float64)
    y = run_op(
        "qkernel.pack %w outs(%y)", {"w": (Bounded(w, bound), "f32")}, packed_shape(K, N), "bounded"
    )
    np.testing.assert_array_equal(y.value, packed(w))
    np.testing.assert_array_equal(y.bound, packed(bound))


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    ("granularity", "hoisted"),
    [("", False), ("tensor", False), ("axis", False), ("tensor", True), ("axis", True)],
)
def test_packed_matmul_is_dequant_matmul(domain: Any, granularity: str, hoisted: bool) -> None:
    """With the zero point subtracted in the pack, or afterwards; in `bounded` with the bound of the same op."""
    rng = np.random.default_rng(7)
    a = random(3, M, K)
    w = rng.integers(-128, 128, (K, N)).astype(np.int8)
    shape = (N,) if granularity == "axis" else ()
    zero = rng.integers(-20, 20, shape).astype(np.int8)
    scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    real = w.astype(np.float64) - (0 if hoisted or not granularity else zero)
    panels = packed(real).astype(np.float32)
    # What is in the columns from N on does not matter.
    panels[-1, :, N % 4 :] = np.nan
    operands: dict[str, tuple[Any, object]] = {"a": (a, "f32"), "p": (panels, "f32")}
    text, flag = "qkernel.packed_matmul %a, %p", ""
    want = a.astype(np.float64) @ real
    if granularity:
        operands["s"] = (scale, "f32")
        text += " scale(%s)"
    if hoisted:
        sums = a.sum(-1, dtype=np.float32)
        operands |= {"z": (zero, "i8"), "r": (sums, "f32")}
        text, flag = text + " zero_point(%z) row_sum(%r)", "hoisted"
        want = want - zero.astype(np.float64) * sums.astype(np.float64)[:, None]
    if granularity:
        want = want * scale.astype(np.float64)
    y = run_op(f"{text} outs(%y) {{{flag}}}", operands, (M, N), domain)
    rtol, atol = (1e-4, 1e-3) if domain == "exact" else (1e-12, 1e-12)
    np.testing.assert_allclose(numbers(y), want, rtol=rtol, atol=atol)
    if not isinstance(y, Bounded) or not granularity:
        return
    # Hoisted, the two ops are one formula. Else the sum is scaled here, and there perhaps each weight.
    same: dict[str, tuple[Any, object]] = {
        "a": (a, "f32"),
        "w": (w, "i8"),
        "s": (scale, "f32"),
        "z": (zero, "i8"),
    }
    if hoisted:
        same["r"] = operands["r"]
    sums_text = " row_sum(%r)" if hoisted else ""
    other = run_op(
        f"qkernel.dequant_matmul %a, %w, %s zero_point(%z){sums_text} outs(%y) {{{flag}}}",
        same,
        (M, N),
        domain,
    )
    np.testing.assert_allclose(y.value, other.value, rtol=1e-12)
    ratio = y.bound / other.bound
    assert (ratio == 1).all() if hoisted else ((ratio > 0.8) & (ratio < 1.5)).all()


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_epilogue_finishes_a_packed_matmul(domain: Any) -> None:
    a, w, bias = random(3, M, K), random(4, K, N), random(5, N)
    shape, panels = memref((M, N), "f32"), memref(packed_shape(K, N), "f32")
    module = parse(
        f"""
        func.func @main(%a : memref<{M}x{K}xf32> {{qmm.role = "input"}}, %p : {panels} {{qmm.role = "input"}},
            %b : memref<{N}xf32> {{qmm.role = "input"}}, %y : {shape} {{qmm.role = "output"}}) {{
          qkernel.packed_matmul %a, %p epilogue(%b) outs(%y) maps [affine_map<(d0, d1) -> (d1)>]
              : (memref<{M}x{K}xf32>, {panels}, memref<{N}xf32>, {shape}) -> () {{
          ^bb0(%acc : f32, %e : f32):
            %sum = arith.addf %acc, %e : f32
            %zero = arith.constant 0.0 : f32
            %r = arith.maximumf %sum, %zero : f32
            qmm.yield %r : f32
          }}
          func.return
        }}
        """
    )
    (y,) = run(module, [a, packed(w).astype(np.float32), bias], domain=domain)
    want = np.maximum(a.astype(np.float64) @ w.astype(np.float64) + bias, 0)
    np.testing.assert_allclose(numbers(y), want, rtol=1e-5, atol=1e-5)
    if isinstance(y, Bounded):
        (exact,) = run(module, [a, packed(w).astype(np.float32), bias])
        assert y.contains(exact).all()


@pytest.mark.parametrize("domain", DOMAINS)
def test_row_sum(domain: Any) -> None:
    a = random(3, M, K)
    y = run_op("qkernel.row_sum %a outs(%y)", {"a": (a, "f32")}, (M,), domain)
    np.testing.assert_allclose(numbers(y), a.astype(np.float64).sum(-1), rtol=1e-5)
    if isinstance(y, Bounded):
        assert y.contains(a.sum(-1, dtype=np.float32)).all()
        assert (y.bound <= 1.01 * K * EPS * np.abs(a).sum(-1)).all()
