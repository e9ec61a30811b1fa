"""`c.conv`, `c.dequant_conv` and `c.window_sum` against float64."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerType, f32
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qkernel, qmm
from qfold.dialects.contraction import conv_shape
from qfold.dialects.element_types import i8 as I8
from qfold.dialects.element_types import integer_range, numpy_dtype, ui4, ui8
from qfold.dialects.qkernel import zero_point_type
from tests.backend.level3 import SANITIZED, Arg, Array, Level3, assert_within, gamma


@dataclass(frozen=True)
class Conv:
    name: str
    x: tuple[int, ...]
    """N, C, spatial."""
    channels: int
    kernel: tuple[int, ...]
    groups: int = 1
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()

    @property
    def window(self) -> dict[str, Any]:
        rank = len(self.kernel)
        return {
            "strides": self.strides or (1,) * rank,
            "pads": self.pads or (0,) * (2 * rank),
            "dilations": self.dilations or (1,) * rank,
            "groups": self.groups,
        }

    @property
    def weight(self) -> tuple[int, ...]:
        return (self.channels, self.x[1] // self.groups, *self.kernel)


CONVS = [
    Conv("plain", (1, 3, 7, 9), 6, (3, 3)),
    Conv("padded", (2, 3, 6, 7), 5, (3, 3), pads=(1, 2, 0, 1)),
    Conv("strided", (1, 2, 9, 11), 4, (3, 2), strides=(2, 3), pads=(1, 0, 1, 1)),
    Conv("dilated", (1, 2, 9, 10), 3, (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
    Conv("grouped", (1, 6, 5, 5), 9, (3, 3), groups=3, pads=(1, 1, 1, 1)),
    Conv("depthwise", (1, 5, 6, 6), 5, (3, 3), groups=5, pads=(1, 1, 1, 1)),
    Conv("multiplier", (1, 3, 6, 6), 6, (2, 2), groups=3),
    Conv("pointwise", (2, 7, 4, 5), 6, (1, 1)),
    Conv("pointwise_padded", (1, 2, 3, 3), 2, (1, 1), pads=(1, 1, 1, 1)),
    Conv("one_d", (1, 4, 21), 5, (5,), pads=(2, 1), strides=(2,)),
    Conv("one_d_wide", (1, 1, 700), 2, (3,), pads=(1, 1)),
    Conv("far_pads", (1, 1, 2, 2), 2, (1, 1), pads=(3, 0, 0, 3)),
    Conv("column", (1, 2, 8, 1), 3, (3, 1)),
    Conv("whole", (1, 4, 3, 3), 3, (3, 3)),
    # more than is held on the stack: weights that are widened one by one, pixels that are not summed over channels first
    Conv("many_taps", (1, 1030, 1, 3), 2, (1, 1)),
    Conv("many_pixels", (1, 2, 4100), 3, (3,), pads=(1, 1)),
    # many output channels: the columns form, with every kind of tail
    Conv("columns", (2, 20, 7, 9), 13, (3, 3), pads=(1, 1, 1, 1)),
    Conv("columns_wide", (1, 3, 4, 70), 8, (3, 3), pads=(1, 2, 1, 0), strides=(1, 2)),
    Conv("columns_cut", (1, 17, 5, 40), 9, (3, 3), dilations=(2, 2), pads=(2, 2, 2, 2)),
    Conv("columns_grouped", (1, 6, 6, 6), 20, (2, 3), groups=2, strides=(2, 1), pads=(0, 1, 1, 1)),
    Conv("columns_1d", (2, 5, 50), 10, (4,), pads=(3, 0)),
    Conv("columns_many", (1, 2, 3, 3), 150, (2, 2), pads=(1, 0, 0, 1)),
    Conv("columns_big_window", (1, 2, 16, 16), 8, (16, 16)),
]


def windows(conv: Conv, x: Array) -> Array:
    """[N, groups, C / groups, taps ..., outputs ...] in float64, padding as zeros."""
    window = conv.window
    rank = len(conv.kernel)
    pads = window["pads"]
    padded = np.pad(
        x.astype(np.float64), [(0, 0), (0, 0), *((pads[i], pads[rank + i]) for i in range(rank))]
    )
    shape = conv_shape(
        conv.x, conv.weight, conv.groups, window["strides"], pads, window["dilations"]
    )
    out = np.empty((*x.shape[:2], *conv.kernel, *shape[2:]))
    for tap in np.ndindex(*conv.kernel):
        index = tuple(
            slice(t * d, t * d + s * (o - 1) + 1, s)
            for t, d, s, o in zip(
                tap, window["dilations"], window["strides"], shape[2:], strict=True
            )
        )
        out[(slice(None), slice(None), *tap)] = padded[(slice(None), slice(None), *index)]
    return out.reshape(x.shape[0], conv.groups, -1, *out.shape[2:])


def reference(conv: Conv, x: Array, w: Array) -> Array:
    w64 = w.astype(np.float64).reshape(conv.groups, -1, *w.shape[1:])
    taps = "xy"[: len(conv.kernel)]
    outs = "pq"[: len(conv.kernel)]
    y = np.einsum(f"ngc{taps}{outs},gmc{taps}->ngm{outs}", windows(conv, x), w64)
    return y.reshape(x.shape[0], conv.channels, *y.shape[3:])


def relu_bias(rank: int) -> dict[str, Any]:
    block = Block(arg_types=[f32, f32])
    total = arith.AddfOp(block.args[0], block.args[1])
    zero = arith.ConstantOp(FloatAttr(0.0, f32))
    top = arith.MaximumfOp(total.result, zero.result)
    block.add_ops([total, zero, top, qmm.YieldOp(top.result)])
    return {
        "epilogue_maps": [AffineMap(rank, 0, (AffineExpr.dimension(1),))],
        "epilogue": Region(block),
    }


def add_float(suite: Level3, conv: Conv, rng: np.random.Generator) -> tuple[str, Array, Array]:
    x = rng.standard_normal(conv.x).astype(np.float32)
    w = rng.standard_normal(conv.weight).astype(np.float32)
    bias = rng.standard_normal(conv.channels).astype(np.float32)
    column = bias.astype(np.float64).reshape(-1, *(1,) * len(conv.kernel))
    expected = np.maximum(reference(conv, x, w) + column, 0)
    magnitude = reference(conv, np.abs(x), np.abs(w)) + np.abs(column)
    out = suite.add(
        f"conv_{conv.name}",
        "c.conv",
        [Arg(f32, x), Arg(f32, w), Arg(f32, bias), Arg(f32, shape=expected.shape)],
        lambda v: [
            qkernel.ConvOp(
                v[0], v[1], v[3], **conv.window, epilogue_operands=[v[2]], **relu_bias(len(conv.x))
            )
        ],
    )
    return out, expected, gamma(int(np.prod(conv.weight[1:])) + 3) * magnitude


def add_dequant(
    suite: Level3, conv: Conv, storage: IntegerType, per_axis: bool, zero_point: bool, hoisted: bool,
    rng: np.random.Generator,
) -> tuple[str, Array, Array]:  # fmt: skip
    low, high = integer_range(storage)
    x = rng.standard_normal(conv.x).astype(np.float32)
    q = rng.integers(low, high + 1, conv.weight).astype(numpy_dtype(storage))
    shape = (conv.channels,) if per_axis else ()
    scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    zero = rng.integers(low, high + 1, shape) if zero_point else np.zeros(shape, np.int64)
    ones = (1,) * (len(conv.x) - 1)
    s, z = (
        np.asarray(v, np.float64).reshape((*shape, *(ones if per_axis else ())))
        for v in (scale, zero)
    )
    expected = reference(conv, x, s * (q - z))
    magnitude = reference(conv, np.abs(x), s * (np.abs(q.astype(np.float64)) + np.abs(z)))
    args = [Arg(f32, x), Arg(storage, q), Arg(f32, scale)]
    named: dict[str, int] = {}
    if zero_point:
        type_ = zero_point_type(storage)
        named["zero_point"] = len(args)
        args.append(Arg(type_, np.asarray(zero).astype(numpy_dtype(type_))))
        if hoisted:
            sums = windows(conv, x)
            sums = sums.sum(axis=tuple(range(2, 3 + len(conv.kernel)))).astype(np.float32)
            named["window_sum"] = len(args)
            args.append(Arg(f32, sums))
    args.append(Arg(f32, shape=expected.shape))

    def body(v: Any) -> list[Any]:
        keywords: dict[str, SSAValue] = {k: v[i] for k, i in named.items()}
        return [
            qkernel.DequantConvOp(
                v[0], v[1], v[2], v[-1], **conv.window, hoisted=hoisted, **keywords
            )
        ]

    name = f"dequant_{conv.name}_{storage}_{per_axis:d}{zero_point:d}{hoisted:d}"
    out = suite.add(name, "c.dequant_conv", args, body)
    return out, expected, gamma(int(np.prod(conv.weight[1:])) + 6) * magnitude


def add_window_sum(suite: Level3, conv: Conv, rng: np.random.Generator) -> tuple[str, Array, Array]:
    x = rng.standard_normal(conv.x).astype(np.float32)
    axes = tuple(range(2, 3 + len(conv.kernel)))
    expected = windows(conv, x).sum(axis=axes)
    magnitude = windows(conv, np.abs(x)).sum(axis=axes)
    out = suite.add(
        f"window_sum_{conv.name}",
        "c.window_sum",
        [Arg(f32, x), Arg(f32, shape=expected.shape)],
        lambda v: [qkernel.WindowSumOp(v[0], v[1], kernel_shape=conv.kernel, **conv.window)],
    )
    return out, expected, gamma(int(np.prod(conv.weight[1:]))) * magnitude


def all_cases() -> tuple[Level3, list[tuple[str, Array, Array]]]:
    suite, rng = Level3(), np.random.default_rng(3)
    cases = [add_float(suite, c, rng) for c in CONVS]
    cases += [add_window_sum(suite, c, rng) for c in CONVS]
    cases += [add_dequant(suite, c, I8, True, True, h, rng) for c in CONVS for h in (False, True)]
    for storage, axis, zero, hoisted in product(
        (ui8, ui4), (False, True), (False, True), (False, True)
    ):
        cases.append(add_dequant(suite, CONVS[1], storage, axis, zero, hoisted, rng))
    return suite, cases


def test_every_window_type_and_form() -> None:
    suite, cases = all_cases()
    results = suite.run(**SANITIZED)
    for name, expected, bound in cases:
        assert results[name].shape == expected.shape
        assert_within(results[name], expected, bound, name)


def test_at_full_optimisation() -> None:
    suite, rng = Level3(), np.random.default_rng(4)
    cases = [add_float(suite, c, rng) for c in CONVS[:3]]
    cases.append(add_dequant(suite, CONVS[4], I8, True, True, True, rng))
    cases.append(add_window_sum(suite, CONVS[1], rng))
    results = suite.run()
    for name, expected, bound in cases:
        assert_within(results[name], expected, bound, name)
