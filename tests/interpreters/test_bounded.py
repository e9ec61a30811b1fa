"""The bounded domain: what a program may compute is within the bound, and the bound is not absurdly wide."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute
from xdsl.utils.exceptions import InterpretationError

from qfold.interpreters import Bounded, register_implementations, run
from qfold.interpreters.domains import PlainDomain
from qfold.interpreters.values import Value
from qfold.runtime.ulp import ULP_BOUNDS
from tests.interpreters.helpers import elementwise, parse, random

LOOSE = 1000
"""A bound may be this many times the largest error that is seen."""


class Sloppy(PlainDomain):
    """`exact`, but each function of `math` errs at random, up to its stated ULP bound."""

    def __init__(self, rng: np.random.Generator):
        super().__init__(wide=False)
        self.rng = rng

    def float_op(self, name: str, element_type: Attribute, *args: Value) -> Value:
        result = super().float_op(name, element_type, *args)
        ulps = ULP_BOUNDS.get(name, 0.5)
        if not name.startswith("math.") or ulps <= 0.5:
            return result
        wide = PlainDomain(wide=True).float_op(name, element_type, *args)
        steps = self.rng.uniform(-1, 1, np.shape(wide)) * (ulps - 0.5)
        return np.asarray(wide + steps * np.spacing(np.abs(result))).astype(np.float32)


def run_sloppily(module: ModuleOp, inputs: list[Any], seed: int) -> Any:
    interpreter = Interpreter(module)
    register_implementations(interpreter, Sloppy(np.random.default_rng(seed)))
    main = interpreter.get_op_for_symbol("main")
    assert isinstance(main, FuncOp)
    with np.errstate(all="ignore"):
        (result,) = interpreter.call_op(main, tuple(inputs))
    return result


UNARY = ["math.exp", "math.tanh", "math.erf", "math.absf", "arith.negf", "math.floor", "math.log1p"]
BINARY = ["arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.maximumf", "arith.minnumf"]


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """A straight-line f32 body on %a0, %a1; any op may read any earlier value."""
    values = ["%a0", "%a1"]
    lines: list[str] = []
    count = draw(st.integers(1, 6))
    for i in range(count):
        name = "%r" if i == count - 1 else f"%v{i}"
        pick = st.sampled_from(values)
        kind = draw(st.integers(0, 4))
        if kind == 0:
            lines.append(f"{name} = {draw(st.sampled_from(UNARY))} {draw(pick)} : f32")
        elif kind == 1:
            lines.append(f"%c{i} = arith.cmpf olt, {draw(pick)}, {draw(pick)} : f32")
            lines.append(f"{name} = arith.select %c{i}, {draw(pick)}, {draw(pick)} : f32")
        else:
            op = draw(st.sampled_from(BINARY))
            lines.append(f"{name} = {op} {draw(pick)}, {draw(pick)} : f32")
        values.append(name)
    return "\n".join(lines)


@settings(max_examples=150)
@given(body=bodies(), seed=st.integers(0, 2**16), size=st.sampled_from([0.01, 1.0, 30.0]))
def test_random_expressions_stay_within_their_bound(body: str, seed: int, size: float) -> None:
    """Rounding in f32, with functions as bad as they may be, on inputs that are themselves off by up to their bound."""
    n = 64
    rng = np.random.default_rng(seed)
    module = elementwise(body, ["f32", "f32"], "f32", n)
    centre = (rng.standard_normal((2, n)) * size).astype(np.float32)
    spread = np.where(
        rng.random((2, n)) < 0.5, 0.0, np.abs(centre) * 10.0 ** rng.uniform(-7, -2, (2, n))
    )
    inputs = [Bounded(c.astype(np.float64), e) for c, e in zip(centre, spread, strict=True)]
    (bounded,) = run(module, inputs, domain="bounded")
    for trial in range(4):
        moved = centre + spread * rng.uniform(-1, 1, (2, n))
        (real,) = run(module, list(moved), domain="f64")
        assert bounded.contains(real).all()
        # Of f32 inputs within the bound, what an f32 program computes.
        single = moved.astype(np.float32)
        single = np.where(np.abs(single - centre.astype(np.float64)) <= spread, single, centre)
        assert bounded.contains(run_sloppily(module, list(single), trial)).all()


def shuffled_sum(
    terms: npt.NDArray[np.float32], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """The sum over the last axis in f32, in a random order and association."""
    parts = list(np.moveaxis(terms, -1, 0))
    while len(parts) > 1:
        i, j = rng.choice(len(parts), 2, replace=False)
        a, b = parts[i], parts[j]
        parts = [p for k, p in enumerate(parts) if k not in (i, j)] + [a + b]
    return parts[0]


MATMUL = """
  func.func @main(%a : tensor<MxKxf32>, %b : tensor<KxNxf32>) -> tensor<MxNxf32> {
    %y = qmm.matmul %a, %b : (tensor<MxKxf32>, tensor<KxNxf32>) -> tensor<MxNxf32>
    func.return %y : tensor<MxNxf32>
  }
"""


def sized(text: str, **sizes: int) -> ModuleOp:
    for name, size in sizes.items():
        text = text.replace(f"<{name}x", f"<{size}x").replace(f"x{name}x", f"x{size}x")
    return parse(text)


@settings(max_examples=40)
@given(
    m=st.integers(1, 4),
    k=st.integers(1, 64),
    n=st.integers(1, 4),
    spread=st.sampled_from([0, 3, 10]),
    seed=st.integers(0, 2**16),
)
def test_matmul_in_any_order_of_summation(m: int, k: int, n: int, spread: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = (rng.standard_normal((m, k)) * np.exp2(rng.uniform(-spread, spread, (m, k)))).astype(
        np.float32
    )
    b = rng.standard_normal((k, n)).astype(np.float32)
    (bounded,) = run(sized(MATMUL, M=m, K=k, N=n), [a, b], domain="bounded")
    worst = 0.0
    for _ in range(4):
        terms = a[:, None, :] * b.T[None, :, :]
        y = shuffled_sum(terms, rng)
        assert bounded.contains(y).all()
        # With fused multiply-adds: the product is not rounded.
        fused = np.zeros((m, n), np.float32)
        for i in rng.permutation(k):
            fused = (fused + a[:, i : i + 1].astype(np.float64) * b[i]).astype(np.float32)
        assert bounded.contains(fused).all()
        worst = max(
            worst,
            float(np.abs(y - bounded.value).max()),
            float(np.abs(fused - bounded.value).max()),
        )
    if m * n >= 4 and worst > 0:
        assert bounded.bound.max() <= LOOSE * worst


def test_bound_of_a_contraction_is_the_documented_formula() -> None:
    m, k, n = 3, 50, 4
    a, b = random(0, m, k), random(1, k, n)
    (y,) = run(sized(MATMUL, M=m, K=k, N=n), [a, b], domain="bounded")
    u = 2.0**-24
    gamma = (k + 1) * u / (1 - (k + 1) * u)
    np.testing.assert_allclose(y.bound, gamma * (np.abs(a).astype(float) @ np.abs(b)), rtol=1e-3)


HOISTED = """
  func.func @main(%a : tensor<3x40xf32>) -> (tensor<3x5xf32>, tensor<3x5xf32>) {
    %p = qmm.dequant_matmul %a {weight = WEIGHT, quant = QUANT} : (tensor<3x40xf32>) -> tensor<3x5xf32>
    %s = qmm.row_sum %a : (tensor<3x40xf32>) -> tensor<3xf32>
    %h = qmm.dequant_matmul %a row_sum(%s) {weight = WEIGHT, quant = QUANT, hoisted}
        : (tensor<3x40xf32>, tensor<3xf32>) -> tensor<3x5xf32>
    func.return %p, %h : tensor<3x5xf32>, tensor<3x5xf32>
  }
"""


@settings(max_examples=25)
@given(zero=st.integers(-128, 127), seed=st.integers(0, 2**16))
def test_hoisted_and_plain_kernels(zero: int, seed: int) -> None:
    """Both forms, however a kernel writes them, are within their bounds of the one real result."""
    rng = np.random.default_rng(seed)
    w = rng.integers(-128, 128, (40, 5), np.int8)
    scale = np.float32(0.01)
    text = HOISTED.replace("WEIGHT", f'#qmm.weight<"0x{w.tobytes().hex()}" : tensor<40x5xi8>>')
    text = text.replace("QUANT", f"#qmm.quant<i8, scale = 1.0e-2, zero_point = {zero}>")
    if zero == 0:
        text = text.replace(" row_sum(%s)", "").replace(
            ", tensor<3xf32>) -> tensor<3x5xf32>", ") -> tensor<3x5xf32>"
        )
    a = (rng.standard_normal((3, 40)) + rng.standard_normal()).astype(np.float32)
    plain, hoisted = run(parse(text), [a], domain="bounded")
    np.testing.assert_allclose(plain.value, hoisted.value, rtol=1e-9, atol=1e-9)
    wf, zf = w.astype(np.float32), np.float32(zero)
    sums = shuffled_sum(a, rng)
    acc = shuffled_sum(a[:, None, :] * wf.T[None], rng)
    candidates = {
        "scale inside": (plain, shuffled_sum(a[:, None, :] * ((wf - zf) * scale).T[None], rng)),
        "scale outside": (plain, scale * shuffled_sum(a[:, None, :] * (wf - zf).T[None], rng)),
        "hoisted": (hoisted, scale * (acc - zf * sums[:, None])),
        "factored": (hoisted, scale * acc - (scale * zf) * sums[:, None]),
    }
    for name, (bounded, y) in candidates.items():
        assert y.dtype == np.float32
        assert bounded.contains(y).all(), name
        worst = np.abs(y - bounded.value).max()
        assert bounded.bound.max() <= LOOSE * max(worst, 1e-7 * np.abs(y).max()), name


SOFTMAX = """
  #ij = affine_map<(i, j) -> (i, j)>
  #i = affine_map<(i, j) -> (i)>
  #j = affine_map<(i, j) -> (j)>
  func.func @main(%x : tensor<4x33xf32>, %mask : tensor<33xf32>) -> tensor<4x33xf32> {
    %low = arith.constant 0xFF800000 : f32
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x33xf32>
    %e1 = tensor.empty() : tensor<4xf32>
    %masked = linalg.generic {indexing_maps = [#ij, #j, #ij],
        iterator_types = ["parallel", "parallel"]} ins(%x, %mask : tensor<4x33xf32>, tensor<33xf32>) outs(%e : tensor<4x33xf32>) {
    ^bb0(%a : f32, %b : f32, %o : f32):
      %r = arith.addf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<4x33xf32>
    %m0 = linalg.fill ins(%low : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
    %m = linalg.generic {indexing_maps = [#ij, #i],
        iterator_types = ["parallel", "reduction"]} ins(%masked : tensor<4x33xf32>) outs(%m0 : tensor<4xf32>) {
    ^bb0(%a : f32, %acc : f32):
      %r = arith.maximumf %acc, %a : f32
      linalg.yield %r : f32
    } -> tensor<4xf32>
    %p = linalg.generic {indexing_maps = [#ij, #i, #ij],
        iterator_types = ["parallel", "parallel"]}
        ins(%masked, %m : tensor<4x33xf32>, tensor<4xf32>) outs(%e : tensor<4x33xf32>) {
    ^bb0(%a : f32, %b : f32, %o : f32):
      %d = arith.subf %a, %b : f32
      %r = math.exp %d : f32
      linalg.yield %r : f32
    } -> tensor<4x33xf32>
    %s0 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
    %s = linalg.generic {indexing_maps = [#ij, #i],
        iterator_types = ["parallel", "reduction"]} ins(%p : tensor<4x33xf32>) outs(%s0 : tensor<4xf32>) {
    ^bb0(%a : f32, %acc : f32):
      %r = arith.addf %a, %acc : f32
      linalg.yield %r : f32
    } -> tensor<4xf32>
    %y = linalg.generic {indexing_maps = [#ij, #i, #ij],
        iterator_types = ["parallel", "parallel"]} ins(%p, %s : tensor<4x33xf32>, tensor<4xf32>) outs(%e : tensor<4x33xf32>) {
    ^bb0(%a : f32, %b : f32, %o : f32):
      %r = arith.divf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<4x33xf32>
    func.return %y : tensor<4x33xf32>
  }
"""


def test_softmax_with_a_mask() -> None:
    """A mask of -FLT_MAX neither overflows nor spoils the bound; masked places are zero for certain."""
    module = parse(SOFTMAX)
    x = random(0, 4, 33) * np.float32(5)
    mask = np.zeros(33, np.float32)
    mask[20:] = np.finfo(np.float32).min
    (bounded,) = run(module, [x, mask], domain="bounded")
    wide = np.exp(x[:, :20].astype(np.float64) - x[:, :20].max(1, keepdims=True))
    np.testing.assert_allclose(bounded.value[:, :20], wide / wide.sum(1, keepdims=True), rtol=1e-6)
    assert (bounded.value[:, 20:] == 0).all() and (bounded.bound[:, 20:] < 1e-40).all()
    (exact,) = run(module, [x, mask])
    assert bounded.contains(exact).all()
    errors = np.abs(exact - bounded.value).max(axis=1)
    assert (bounded.bound.max(axis=1) <= LOOSE * errors).all()


@pytest.mark.parametrize(
    ("body", "x", "low", "high"),
    [
        # 1.5 +- 0.25 floors to 1; 2.1 +- 0.25 to 1 or 2.
        ("%r = math.floor %a0 : f32", [(1.5, 0.25), (2.1, 0.25)], [0, 1], [0, 1]),
        ("%r = math.roundeven %a0 : f32", [(0.5, 0.1), (0.3, 0.1)], [1, 0], [1, 0]),
        # A division whose divisor may be zero says nothing.
        (
            "%c = arith.constant 1.0 : f32\n%r = arith.divf %c, %a0 : f32",
            [(0.1, 0.2)],
            [np.inf],
            [np.inf],
        ),
        ("%r = math.log %a0 : f32", [(0.1, 0.2)], [np.inf], [np.inf]),
        ("%r = math.rsqrt %a0 : f32", [(1.0, 0.5)], [0.414], [0.4143]),
        # relu as a select: near zero the branch is unsure, and the result still within the input's error.
        (
            "%z = arith.constant 0.0 : f32\n%c = arith.cmpf ogt, %a0, %z : f32\n"
            "%r = arith.select %c, %a0, %z : f32",
            [(0.1, 0.25), (2.0, 0.25), (-2.0, 0.25)],
            [0.25, 0.25, 0.0],
            [0.36, 0.25, 0.0],
        ),
        # a step function: between 0 and 1 where the sign is unsure
        (
            "%z = arith.constant 0.0 : f32\n%one = arith.constant 1.0 : f32\n"
            "%c = arith.cmpf ogt, %a0, %z : f32\n%r = arith.select %c, %one, %z : f32",
            [(0.1, 0.25), (2.0, 0.25)],
            [1.0, 0.0],
            [1.0, 0.0],
        ),
        (
            "%c = arith.constant 2.0 : f32\n%r = math.powf %a0, %c : f32",
            [(-3.0, 0.1)],
            [0.61],
            [0.63],
        ),
    ],
)
def test_propagation(
    body: str, x: list[tuple[float, float]], low: list[float], high: list[float]
) -> None:
    pairs = np.array(x)
    (y,) = run(
        elementwise(body, ["f32"], "f32", len(x)),
        [Bounded(pairs[:, 0], pairs[:, 1])],
        domain="bounded",
    )
    assert (np.array(low) <= y.bound + 1e-12).all() and (y.bound <= np.array(high) + 1e-6).all(), (
        y.bound
    )


INTEGER = [
    "addi",
    "subi",
    "muli",
    "minsi",
    "maxsi",
    "minui",
    "maxui",
    "divsi",
    "floordivsi",
    "shrsi",
    "shli",
    "xori",
    "remsi",
]


@settings(max_examples=150)
@given(name=st.sampled_from(INTEGER), seed=st.integers(0, 2**16), second=st.booleans())
def test_integers_that_may_be_off_by_steps(name: str, seed: int, second: bool) -> None:
    """i32 results stay within the bound when an i8 argument moves within its own."""
    rng = np.random.default_rng(seed)
    n = 64
    # Wide enough results that none wraps: i8 values widened to i32.
    body = f"""%x = arith.extsi %a0 : i8 to i32
               %y = arith.extsi %a1 : i8 to i32
               %r = arith.{name} %x, %y : i32"""
    x = rng.integers(-120, 121, n).astype(np.int8)
    y = rng.integers(0 if name in ("shrsi", "shli") else -9, 9, n).astype(np.int8)
    ex = rng.integers(0, 4, n).astype(np.float64)
    ey = (
        rng.integers(0, 2, n).astype(np.float64)
        if second and name not in ("shrsi", "shli")
        else np.zeros(n)
    )
    module = elementwise(body, ["i8", "i8"], "i32", n)
    (bounded,) = run(module, [Bounded(x, ex), Bounded(y, ey)], domain="bounded")
    for _ in range(4):
        moved = [
            (v + np.rint(rng.uniform(-1, 1, n) * e)).astype(np.int8) for v, e in ((x, ex), (y, ey))
        ]
        (actual,) = run(module, moved)
        assert bounded.contains(actual).all()


def test_unsigned_bytes_keep_their_bound_through_signless_casts() -> None:
    """127 +- 1 read as ui8 is 127 +- 1, although 128 is -128 on the way."""
    body = """%s = builtin.unrealized_conversion_cast %a0 : ui8 to i8
              %f = arith.uitofp %s : i8 to f32
              %b = arith.fptoui %f : f32 to i8
              %r = builtin.unrealized_conversion_cast %b : i8 to ui8"""
    x = Bounded(np.array([127, 128, 0], np.uint8), np.array([1.0, 1.0, 0.0]))
    (y,) = run(elementwise(body, ["ui8"], "ui8", 3), [x], domain="bounded")
    assert y.value.tolist() == [127, 128, 0]
    assert y.bound.tolist() == [1, 1, 0]


def test_comparing_integers_that_may_wrap_is_unsure() -> None:
    """254 +- 2 may be 0 modulo 256, so whether it is below 10 is not known; for 250 +- 2 it is."""
    x = Bounded(np.array([-2, -6], np.int8), np.array([2.0, 2.0]))
    module = elementwise("%r = arith.cmpi ult, %a0, %a1 : i8", ["i8", "i8"], "i1", 2)
    (y,) = run(module, [x, np.int8([10, 10])], domain="bounded")
    assert y.value.tolist() == [False, False]
    assert y.bound.tolist() == [1.0, 0.0]


def test_small_integers_become_floats_exactly() -> None:
    module = elementwise("%r = arith.sitofp %a0 : i32 to f32", ["i32"], "f32", 3)
    (y,) = run(module, [np.int32([2**24, -5, 7])], domain="bounded")
    assert not y.bound.any()
    (y,) = run(module, [np.int32([2**24 + 1, -5, 7])], domain="bounded")
    assert y.contains(np.float32(2**24)).tolist()[0]


def test_overflow_has_no_bound() -> None:
    module = elementwise("%r = arith.mulf %a0, %a0 : f32", ["f32"], "f32", 2)
    (y,) = run(module, [np.float32([1e30, 2.0])], domain="bounded")
    assert np.isinf(y.bound[0]) and y.bound[1] < 1e-6


def test_contains() -> None:
    b = Bounded(np.array([1.0, np.nan, np.inf, 5.0]), np.array([0.1, 0.0, 0.0, np.inf]))
    assert b.contains([1.05, np.nan, np.inf, -7.0]).all()
    assert not b.contains([1.2, 0.0, 1.0, 0.0])[:3].any()


@pytest.mark.parametrize(
    ("body", "kind", "found"),
    [
        ("%r = math.sin %a0 : f32", "f32", "math.sin on f32"),
        ("%r = math.cbrt %a0 : f32", "f32", "math.cbrt on f32"),
        ("%r = math.exp %a0 : f64", "f64", "math.exp on f64"),
    ],
)
def test_a_function_whose_error_nobody_states_has_no_bound(
    body: str, kind: str, found: str
) -> None:
    module = elementwise(body, [kind], kind, 2)
    x = np.array([0.5, 1.0], np.float32 if kind == "f32" else np.float64)
    with pytest.raises(InterpretationError, match=f"{found} has no function in the C runtime"):
        run(module, [x], domain="bounded")


def test_four_bits_without_a_sign_keep_their_bound() -> None:
    """15 +- 1 could be 16, which is 0: anything of the type; 9 +- 1 is that."""
    body = """%s = builtin.unrealized_conversion_cast %a0 : ui4 to i4
              %r = arith.uitofp %s : i4 to f32"""
    module = elementwise(body, ["ui4"], "f32", 2)
    x = Bounded(np.array([9, 15], np.uint8), np.ones(2))
    (y,) = run(module, [x], domain="bounded")
    assert y.value.tolist() == [9.0, 15.0] and y.bound[0] == 1.0 and y.bound[1] >= 15.0


@pytest.mark.parametrize("sure", [True, False])
def test_reads_at_an_index_that_is_not_certain(sure: bool) -> None:
    """Any element may be read then, so nothing is known about it; a certain index keeps its row exact."""
    module = parse(
        """
        func.func @main(%x: tensor<2xf32>, %table: tensor<3xf32>) -> tensor<2xf32> {
          %empty = tensor.empty() : tensor<2xf32>
          %y = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
              iterator_types = ["parallel"]} ins(%x : tensor<2xf32>) outs(%empty : tensor<2xf32>) {
          ^bb0(%e: f32, %o: f32):
            %whole = arith.fptosi %e : f32 to i64
            %i = arith.index_cast %whole : i64 to index
            %r = tensor.extract %table[%i] : tensor<3xf32>
            linalg.yield %r : f32
          } -> tensor<2xf32>
          func.return %y : tensor<2xf32>
        }
        """
    )
    x = np.array([0.5, 2.0])
    table = np.array([1.0, 2.0, 3.0], np.float32)
    (y,) = run(module, [Bounded(x, np.array([0.1, 0.0 if sure else 0.1])), table], domain="bounded")
    assert isinstance(y, Bounded)
    np.testing.assert_array_equal(y.value, [1.0, 3.0])
    np.testing.assert_array_equal(y.bound, [0.0, 0.0 if sure else np.inf])
