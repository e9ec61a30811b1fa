"""Cases of what comes before and after products of integers: requantisation, scales, quantisation at run time, views."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32

from qfold.dialects import qmm
from qfold.dialects.element_types import i8, i32, integer_range, ui8
from qfold.ir.builder import TensorBuilder
from tests.execution.quantized_cases import (
    Array,
    Suite,
    add_bias,
    constant,
    conv,
    integers,
    matmul,
    quantized_dynamically,
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


def dynamic() -> Suite:
    """Quantisation at run time, alone and in front of a product whose sums are scaled."""
    suite, rng = Suite(), np.random.default_rng(7)
    x = rng.standard_normal((6, 20)).astype(np.float32)
    x[1] = 0
    x[2] = np.abs(x[2])
    x[3] = -np.abs(x[3])
    for storage in (i8, ui8):
        for per_row in (False, True):
            for name, data in (("some", x), ("nothing", x * 0), ("line", x[4])):
                suite.add(
                    f"dynamic_{storage}_{per_row}_{name}",
                    [(f32, data)],
                    lambda b, v, s=storage, r=per_row: list(
                        b.insert(qmm.DynamicQuantizeOp(v, s, per_row=r)).results
                    ),
                    [*quantized_dynamically(data, storage, per_row)],
                )
    w, w_scale = integers(rng, i8, 20, 9), rng.uniform(0.01, 0.02, 9).astype(np.float32)
    bias = rng.standard_normal(9).astype(np.float32)
    for per_row in (False, True):
        q, scale, zero = quantized_dynamically(x, ui8, per_row)
        spread = scale[:, None] if per_row else scale
        scales = spread * w_scale

        def build(b: TensorBuilder, v: Any, per_row: bool = per_row) -> Any:
            op = b.insert(qmm.DynamicQuantizeOp(v, ui8, per_row=per_row))
            product = qmm.QuantMatmulOp(op.result, constant(b, w, i8), a_zero_point=op.zero_point)
            acc = b.insert(product).result
            rows = b.reshape(op.scale, [6, 1]) if per_row else op.scale
            both = b.elementwise(
                [rows, b.constant(w_scale)], f32, lambda s, e: s(arith.MulfOp, e[0], e[1])
            )
            real = b.elementwise(
                [acc, both], f32, lambda s, e: s(arith.MulfOp, s(arith.SIToFPOp, e[0], f32), e[1])
            )
            return b.elementwise(
                [real, b.constant(bias)], f32, lambda s, e: s(arith.AddfOp, e[0], e[1])
            )

        expected = matmul(q, w, zero).astype(np.float32) * scales + bias
        suite.add(
            f"product_{per_row}",
            [(f32, x)],
            build,
            [expected],
            symbols=("quant_matmul_ui8_i8_kn_6x20x9_to_f32",),
        )
    return suite


def strided() -> Suite:
    """Activations and outputs as permuted views."""
    suite, rng = Suite(), np.random.default_rng(8)
    a, w = integers(rng, ui8, 3, 40, 6), integers(rng, i8, 40, 10)

    def product(b: TensorBuilder, x: Any) -> Any:
        rows = b.transpose(x, [0, 2, 1])
        acc = b.insert(
            qmm.QuantMatmulOp(rows, constant(b, w, i8), a_zero_point=constant(b, 9, ui8))
        ).result
        q = b.insert(qmm.RequantizeOp(acc, i8, np.array(0.001), 1)).result
        return b.transpose(q, [2, 0, 1])

    expected = requantized(matmul(a.swapaxes(1, 2), w, 9), i8, 0.001, 1).transpose(2, 0, 1)
    suite.add(
        "turned",
        [(ui8, a)],
        product,
        [expected],
        symbols=("quant_matmul_ui8_i8_kn_3x6x40x10_to_i8",),
    )
    x, k = integers(rng, i8, 2, 7, 9, 5), integers(rng, i8, 6, 5, 3, 3)
    for name, inner in (("nhwc", False), ("nhwc_to_nhwc", True)):
        window = {"strides": [1, 2], "pads": [1, 1, 1, 1], "dilations": [1, 1], "groups": 1}

        def convolution(b: TensorBuilder, v: Any, inner: bool = inner, window: Any = window) -> Any:
            image = b.transpose(v, [0, 3, 1, 2])
            acc = b.insert(
                qmm.QuantConvOp(
                    image, constant(b, k, i8), x_zero_point=constant(b, -9, i8), **window
                )
            )
            q = b.insert(qmm.RequantizeOp(acc.result, ui8, np.array(0.01), 100)).result
            return b.transpose(q, [0, 2, 3, 1]) if inner else q

        expected = requantized(conv(x.transpose(0, 3, 1, 2), k, window, -9), ui8, 0.01, 100)
        expected = expected.transpose(0, 2, 3, 1) if inner else expected
        suite.add(
            name,
            [(i8, x)],
            convolution,
            [expected],
            symbols=("quant_conv_i8_i8_2x5x7x9_6x5x3x3_to_ui8",),
        )
    return suite
