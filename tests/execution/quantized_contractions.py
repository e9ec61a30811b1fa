"""Cases of products and convolutions: types, zero points, layouts, shapes, windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects.builtin import IntegerType

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, integer_range, ui4, ui8
from qfold.dialects.integer_operands import zero_point_type
from qfold.ir.builder import TensorBuilder
from tests.execution.quantized_cases import (
    Array,
    Suite,
    add_bias,
    constant,
    conv,
    integers,
    matmul,
    requantized,
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
                if data == weight:
                    add_matmul(
                        suite, f"plain_{key}", rng, (5, 37, 7), (data, weight), transpose_b=t
                    )
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
