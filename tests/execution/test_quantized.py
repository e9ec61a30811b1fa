"""Integer arithmetic end to end: bit-exact with numpy in int64, interpreted in each domain, written out, and compiled."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import IntegerType, ModuleOp

from qfold.backend.run import build_module
from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, i32, integer_range, ui4, ui8
from qfold.dialects.integer_operands import zero_point_type
from qfold.interpreters import run
from qfold.interpreters.values import Bounded
from qfold.ir.builder import TensorBuilder
from qfold.transforms.convert_qmm_to_linalg import ConvertQmmToLinalgPass
from qfold.transforms.pipelines import compile_pipeline, run_passes, tensor_pipeline
from tests.backend.level3 import SANITIZED
from tests.execution.quantized_cases import (
    Array,
    Suite,
    add_bias,
    constant,
    conv,
    integers,
    matmul,
    requantized,
    scaled,
    shifted,
)

SHIFTS = (
    (1, 0, 0),
    (1, 0, 1),
    (3, 1, 2),
    (-5, 7, 3),
    (2**31 - 1, -(2**62) + 1, 62),
    (2**31 - 1, 2**62 - 1, 31),
    (1, 0, 62),
)
"""(mul, add, shift)."""

HALVES = (
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    -2.5,
    0.0,
    126.5,
    127.5,
    -127.5,
    -128.5,
    254.5,
    255.5,
    1e6,
    -1e6,
)


def add_matmul(
    suite: Suite,
    name: str,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    types: tuple[IntegerType, IntegerType] = (ui8, i8),
    *,
    zeros: tuple[Any, Any] = (None, None),
    at_run_time: bool = False,
    transpose_b: bool = False,
    constant_b: bool = True,
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> None:
    """A plain accumulator. `zeros`: of a and b: None, a number, or `rows` and `columns` of them."""
    (m, k, n), (data, weight) = shape, types
    a = integers(rng, data, *batch[0], m, k)
    b = integers(rng, weight, *batch[1], *((n, k) if transpose_b else (k, n)))
    zero_types = [zero_point_type(t) for t in types]
    values: list[Array | None] = []
    for given, type_, lengths in zip(zeros, zero_types, ((*batch[0], m), (n,)), strict=True):
        spread = isinstance(given, str)
        values.append(
            None
            if given is None
            else integers(rng, type_, *lengths)
            if spread
            else np.asarray(given, a.dtype if type_ == data else None)
        )
    inputs = [(data, a)] + ([] if constant_b else [(weight, b)])
    run_time = [
        (t, v) for t, v in zip(zero_types, values, strict=True) if v is not None and at_run_time
    ]

    def build(builder: TensorBuilder, *args: Any) -> Any:
        rest = list(args[1:])
        right = constant(builder, b, weight) if constant_b else rest.pop(0)
        found = [
            None if v is None else rest.pop(0) if at_run_time else constant(builder, v, t)
            for t, v in zip(zero_types, values, strict=True)
        ]
        op = qmm.QuantMatmulOp(
            args[0], right, a_zero_point=found[0], b_zero_point=found[1], transpose_b=transpose_b
        )
        return builder.insert(op).result

    left, right = (0 if v is None else v for v in values)
    layout = "nk" if transpose_b else "kn"
    suite.add(
        name,
        [*inputs, *run_time],
        build,
        [matmul(a, b, left, right, transpose_b)],
        symbols=(f"quant_matmul_{data}_{weight}_{layout}_",),
    )


def add_conv(
    suite: Suite,
    name: str,
    rng: np.random.Generator,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    types: tuple[IntegerType, IntegerType] = (ui8, i8),
    *,
    x_zero: int | None = None,
    w_zero: Any = None,
    at_run_time: bool = False,
    requantize: bool = False,
    **window: Any,
) -> None:
    rank = len(x_shape) - 2
    window = {
        "strides": window.get("strides", [1] * rank),
        "pads": window.get("pads", [0] * 2 * rank),
        "dilations": window.get("dilations", [1] * rank),
        "groups": window.get("groups", 1),
    }
    data, weight = types
    x, w = integers(rng, data, *x_shape), integers(rng, weight, *w_shape)
    zero_type = zero_point_type(weight)
    spread = isinstance(w_zero, str)
    w_zeros = integers(rng, zero_type, w_shape[0]) if spread else w_zero
    run_time = [] if x_zero is None or not at_run_time else [(data, np.asarray(x_zero, x.dtype))]
    sums = conv(x, w, window, x_zero or 0, 0 if w_zeros is None else w_zeros)
    multipliers = rng.uniform(0.1, 2.0, w_shape[0]) / max(1, int(np.abs(sums).max()) // 200)

    def build(builder: TensorBuilder, *args: Any) -> Any:
        given = args[1] if run_time else None if x_zero is None else constant(builder, x_zero, data)
        op = qmm.QuantConvOp(
            args[0],
            constant(builder, w, weight),
            x_zero_point=given,
            w_zero_point=None if w_zeros is None else constant(builder, w_zeros, zero_type),
            **window,
        )
        acc = builder.insert(op).result
        if not requantize:
            return acc
        acc = add_bias(builder, acc, np.arange(w_shape[0]).reshape(-1, *(1,) * rank) - 2)
        return builder.insert(qmm.RequantizeOp(acc, i8, multipliers, -3, axis=1)).result

    expected = sums
    if requantize:
        spread_out = (-1, *(1,) * rank)
        biased = sums + (np.arange(w_shape[0]).reshape(spread_out) - 2)
        expected = requantized(biased, i8, multipliers.reshape(spread_out), -3)
    suffix = "_to_i8" if requantize else ""
    dims = "x".join(map(str, x_shape)) + "_" + "x".join(map(str, w_shape))
    suite.add(
        name,
        [(data, x), *run_time],
        build,
        [expected],
        symbols=(f"quant_conv_{data}_{weight}_{dims}{suffix}",),
    )


def contractions() -> Suite:
    suite, rng = Suite(), np.random.default_rng(4)
    for data in (i8, ui8):
        low, high = integer_range(data)
        for weight in (i8, ui8, i4, ui4):
            w_low, w_high = integer_range(zero_point_type(weight))
            for t in (False, True):
                key = f"{data}_{weight}_{'nk' if t else 'kn'}"
                add_matmul(suite, f"plain_{key}", rng, (5, 37, 7), (data, weight), transpose_b=t)
                zeros = (low, w_high) if t else (high, w_low)
                add_matmul(
                    suite, f"ends_{key}", rng, (3, 9, 5), (data, weight), transpose_b=t, zeros=zeros
                )
                add_matmul(
                    suite,
                    f"each_{key}",
                    rng,
                    (6, 33, 35),
                    (data, weight),
                    transpose_b=t,
                    zeros=("rows", "columns"),
                    at_run_time=True,
                )
    shapes = [
        (1, 1, 1),
        (1, 300, 40),
        (4, 1, 33),
        (70, 8, 3),
        (2, 257, 34),
        (65, 520, 31),
        (9, 0, 4),
        (0, 3, 4),
        (3, 4, 0),
    ]
    for shape in shapes:
        for t in (False, True):
            name = f"shape_{'x'.join(map(str, shape))}_{'nk' if t else 'kn'}"
            add_matmul(suite, name, rng, shape, zeros=(7, "columns"), transpose_b=t)
    add_matmul(
        suite,
        "batch_both",
        rng,
        (3, 20, 5),
        zeros=("rows", 3),
        batch=((2, 3), (2, 3)),
        constant_b=False,
    )
    add_matmul(
        suite,
        "batch_a",
        rng,
        (2, 20, 5),
        zeros=("rows", "columns"),
        batch=((4,), ()),
        constant_b=False,
    )
    add_matmul(
        suite,
        "batch_b",
        rng,
        (2, 20, 5),
        zeros=("rows", None),
        batch=((1,), (3,)),
        at_run_time=True,
    )
    # The longest sums that i32 is sure to hold.
    for k, data, weight in ((131071, i8, i8), (65793, ui8, i8), (33025, ui8, ui8)):
        low, high = integer_range(data)
        worst = np.full((1, k), low if data == i8 else high)
        b = np.full((k, 2), integer_range(weight)[0])
        zero = 255 if weight == ui8 else None

        def build(
            builder: TensorBuilder,
            a: Any,
            b: Array = b,
            weight: IntegerType = weight,
            zero: Any = zero,
        ) -> Any:
            given = None if zero is None else constant(builder, zero, weight)
            return builder.insert(
                qmm.QuantMatmulOp(a, constant(builder, b, weight), b_zero_point=given)
            ).result

        a = worst.astype(np.int8 if data == i8 else np.uint8)
        suite.add(
            f"longest_{k}",
            [(data, a)],
            build,
            [matmul(a, b, 0, zero or 0)],
            symbols=("quant_matmul_",),
        )
    add_conv(suite, "conv1d", rng, (2, 3, 11), (4, 3, 3), x_zero=128, pads=[1, 2], strides=[2])
    add_conv(suite, "conv1x1", rng, (1, 16, 5, 7), (9, 16, 1, 1), x_zero=3, w_zero="columns")
    add_conv(suite, "conv3x3", rng, (2, 5, 9, 7), (6, 5, 3, 3), x_zero=255, pads=[1, 1, 1, 1])
    add_conv(
        suite,
        "conv_run_time",
        rng,
        (1, 5, 9, 7),
        (6, 5, 3, 3),
        (i8, i8),
        x_zero=-128,
        pads=[2, 0, 1, 3],
        at_run_time=True,
    )
    add_conv(
        suite,
        "conv_strided",
        rng,
        (1, 4, 10, 11),
        (8, 2, 3, 2),
        (i8, i4),
        x_zero=127,
        w_zero="columns",
        strides=[2, 3],
        pads=[1, 1, 0, 2],
        dilations=[2, 1],
        groups=2,
    )
    add_conv(
        suite,
        "depthwise",
        rng,
        (1, 6, 8, 9),
        (6, 1, 3, 3),
        x_zero=100,
        groups=6,
        pads=[1, 1, 1, 1],
        requantize=True,
    )
    add_conv(
        suite,
        "depthwise_strided",
        rng,
        (2, 6, 8, 9),
        (12, 1, 3, 3),
        (i8, ui4),
        x_zero=-5,
        w_zero=7,
        groups=6,
        pads=[1, 1, 1, 1],
        strides=[2, 2],
    )
    add_conv(
        suite,
        "conv_wide",
        rng,
        (1, 70, 4, 5),
        (5, 70, 3, 3),
        (ui8, ui8),
        x_zero=9,
        w_zero=128,
        pads=[1, 1, 1, 1],
        requantize=True,
    )
    add_conv(
        suite, "conv_pads_beyond", rng, (1, 2, 3, 3), (3, 2, 2, 2), x_zero=77, pads=[3, 3, 3, 3]
    )
    add_conv(suite, "conv_one_pixel", rng, (1, 3, 4, 4), (2, 3, 4, 4), (i8, i8), requantize=True)
    add_conv(
        suite,
        "conv_columns",
        rng,
        (1, 3, 1, 9),
        (4, 3, 1, 3),
        (i8, i8),
        x_zero=1,
        pads=[0, 1, 0, 1],
    )
    return suite


def epilogues() -> Suite:
    suite, rng = Suite(), np.random.default_rng(5)
    a, w = integers(rng, ui8, 5, 40), integers(rng, i8, 40, 12)
    bias = rng.integers(-5000, 5000, 12)
    acc = matmul(a, w, 130) + bias.astype(np.int32)
    each = rng.uniform(1e-4, 3e-3, 12)

    def product(b: TensorBuilder, x: Any) -> Any:
        op = qmm.QuantMatmulOp(x, constant(b, w, i8), a_zero_point=constant(b, 130, ui8))
        return add_bias(b, b.insert(op).result, bias)

    def after(name: str, build: Any, expected: Array, stored: str) -> None:
        symbol = f"quant_matmul_ui8_i8_kn_5x40x12_to_{stored}"
        suite.add(
            name, [(ui8, a)], lambda b, x: build(b, product(b, x)), [expected], symbols=(symbol,)
        )

    for storage, zero in ((i8, 127), (i8, -128), (ui8, 0), (ui8, 255), (ui8, 12)):
        after(
            f"per_channel_{storage}_{zero + 128}",
            lambda b, x, s=storage, z=zero: (
                b.insert(qmm.RequantizeOp(x, s, each, z, axis=1)).result
            ),
            requantized(acc, storage, each, zero),
            str(storage),
        )
    after(
        "relu6",
        lambda b, x: b.insert(qmm.RequantizeOp(x, ui8, np.array(0.01), 3, low=3, high=200)).result,
        requantized(acc, ui8, 0.01, 3, 3, 200),
        "ui8",
    )
    rows = rng.uniform(1e-3, 3e-3, 5)
    after(
        "per_row",
        lambda b, x: b.insert(qmm.RequantizeOp(x, i8, rows, 0, axis=0)).result,
        requantized(acc, i8, rows[:, None]),
        "i8",
    )
    mul, add = rng.integers(-(2**31) + 1, 2**31, 12), rng.integers(-(2**61), 2**61, 12)
    shift = rng.integers(40, 57, 12)
    for rounding in ("floor", "half_even"):
        after(
            f"shift_each_{rounding}",
            lambda b, x, r=rounding: (
                b.insert(
                    qmm.RequantizeShiftOp(
                        x,
                        i8,
                        [*map(int, mul)],
                        [*map(int, add)],
                        [*map(int, shift)],
                        rounding=r,
                        axis=1,
                    )
                ).result
            ),
            shifted(acc, i8, mul, add, shift, rounding),
            "i8",
        )
    after(
        "dequantised",
        lambda b, x: scaled(b, x, each),
        acc.astype(np.float32) * each.astype(np.float32),
        "f32",
    )
    return suite


def elementwise() -> Suite:
    """Accumulators as inputs: every tie, both ends, shifts of 0. A column for each multiplier, and one of them for all."""
    suite, rng = Suite(), np.random.default_rng(6)
    edges = np.array([-(2**31), 2**31 - 1, 0, 1, -1, 2**30, -(2**30)])
    halves = np.array([int(2 * h) for h in HALVES])
    acc = np.concatenate([edges, halves, rng.integers(-1000, 1000, 40)]).astype(np.int32)
    multipliers = np.array([0.5, 1.0, 0.25, 2.0**-31, 1e9, 1 / 3])
    # 11.499 is 11: to 11.5 and then to 12 by a tool that rounds twice.
    multipliers = np.append(multipliers, 11.499 / 1000)
    acc = np.append(acc, np.int32(1000))
    for storage in (i8, ui8):
        low, high = integer_range(storage)
        for zero in (low, high, low + 5):
            suite.add(
                f"requantize_{storage}_{zero - low}",
                [(i32, np.repeat(acc[:, None], len(multipliers), axis=1))],
                lambda b, x, s=storage, z=zero: (
                    b.insert(qmm.RequantizeOp(x, s, multipliers, z, axis=1)).result
                ),
                [requantized(acc[:, None], storage, multipliers, zero)],
            )
        suite.add(
            f"requantize_{storage}_all",
            [(i32, acc)],
            lambda b, x, s=storage: b.insert(qmm.RequantizeOp(x, s, multipliers[:1], 0)).result,
            [requantized(acc, storage, 0.5)],
        )
        mul, add, shift = zip(*SHIFTS, strict=True)
        for rounding in ("floor", "half_even"):
            suite.add(
                f"shift_{storage}_{rounding}",
                [(i32, np.repeat(acc[:, None], len(SHIFTS), axis=1))],
                lambda b, x, s=storage, r=rounding, p=(mul, add, shift): (
                    b.insert(qmm.RequantizeShiftOp(x, s, *p, rounding=r, axis=1)).result
                ),
                [shifted(acc[:, None], storage, mul, add, shift, rounding)],
            )
            for m, c, s in SHIFTS[:3]:
                suite.add(
                    f"shift_{storage}_{rounding}_{s}",
                    [(i32, acc)],
                    lambda b, x, t=storage, r=rounding, p=(m, c, s): (
                        b.insert(
                            qmm.RequantizeShiftOp(x, t, [p[0]], [p[1]], [p[2]], rounding=r)
                        ).result
                    ),
                    [shifted(acc, storage, m, c, s, rounding)],
                )
    return suite


def context() -> Context:
    """With the dialects that constant folding makes ops of."""
    made = Context()
    made.load_dialect(Arith)
    return made


SUITES = {"contractions": contractions, "epilogues": epilogues, "elementwise": elementwise}
suite_of = cache(lambda name: SUITES[name]())


@cache
def compiled(name: str, target: str) -> ModuleOp:
    module = suite_of(name).module()
    run_passes(context(), module, compile_pipeline(target), verify_each=True)
    return module


def compare(suite: Suite, found: dict[str, Array]) -> None:
    expected = suite.expected()
    assert set(found) == set(expected)
    wrong = [
        n
        for n, y in expected.items()
        if y.dtype != found[n].dtype or not np.array_equal(y, found[n])
    ]
    assert not wrong


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
def test_interpreted(name: str, domain: Any) -> None:
    suite = suite_of(name)
    results = run(suite.module(), suite.arrays(), domain=domain)
    for (key, y), found in zip(suite.expected().items(), results, strict=True):
        if isinstance(found, Bounded):
            if y.dtype.kind != "f":
                assert not found.bound.any(), key
            assert found.contains(y).all(), key
        elif y.dtype.kind == "f":
            np.testing.assert_allclose(found, y, rtol=1e-6)
        else:
            assert np.array_equal(found, y), key


@pytest.mark.parametrize("name", SUITES)
def test_written_out_as_generics(name: str) -> None:
    suite = suite_of(name)
    module = suite.module()
    run_passes(context(), module, [*tensor_pipeline(), ConvertQmmToLinalgPass()])
    assert not any(op.name.startswith("qmm.") for op in module.walk() if op.name != "qmm.yield")
    signless = [v.view(f"i{v.itemsize}") if v.dtype.kind == "u" else v for v in suite.arrays()]
    for (key, y), found in zip(suite.expected().items(), run(module, signless), strict=True):
        assert np.array_equal(np.asarray(found).view(y.dtype), y), key


@pytest.mark.parametrize("name", SUITES)
def test_compiled(name: str) -> None:
    suite = suite_of(name)
    executable = build_module(compiled(name, "host"))
    compare(suite, executable.run(suite.values()))
    executable.close()


@pytest.mark.parametrize("name", SUITES)
def test_compiled_with_sanitizers(name: str) -> None:
    suite = suite_of(name)
    executable = build_module(compiled(name, "host"), **SANITIZED)
    compare(suite, executable.run(suite.values()))
    executable.close()


@pytest.mark.parametrize("name", ["contractions", "epilogues"])
def test_on_threads(name: str) -> None:
    """Each core its share."""
    suite = suite_of(name)
    executable = build_module(
        compiled(name, "threads"), native=False, extra_cflags=["-O1", "-fsanitize=thread"]
    )
    compare(suite, executable.run(suite.values()))
    executable.close()


@pytest.mark.parametrize("name", ["contractions", "epilogues"])
def test_each_case_is_one_kernel(name: str) -> None:
    """Bias, requantisation and scale are in the contraction's epilogue: a call per case, by the name of what it computes."""
    module = compiled(name, "host")
    kernels = {
        op.sym_name.data: op.attributes["qmm.kernel"].data
        for op in module.body.block.ops
        if op.name == "func.func" and "qmm.kernel" in op.attributes
    }
    assert set(kernels.values()) <= {"c.quant_matmul", "c.quant_conv", "c.loops"}
    calls = [op for op in module.walk() if op.name == "func.call"]
    made = {str(c.location): c.callee.string_value() for c in calls}
    for case in suite_of(name).cases:
        of_case = [s for where, s in made.items() if f'"{case.name}"' in where]
        if 0 in case.expected[0].shape:
            continue
        assert len(of_case) == 1, (case.name, of_case)
        assert of_case[0].startswith(case.symbols[0]), (case.name, of_case)
