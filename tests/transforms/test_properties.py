"""Random small graphs around a dequantised weight: each pass keeps what they compute, and everything that can fuses."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import STORAGE_TYPES
from tests.transforms.graphs import (
    TENSOR_LEVEL,
    Node,
    apply,
    assert_same,
    check,
    inputs_for,
    module,
    names,
    ops,
    quantization,
    weight,
)

ZEROS = st.sampled_from(["none", "low", "high", "middle", "mixed"])
TAILS = st.lists(
    st.sampled_from(["bias", "residual", "relu", "exp", "scale", "transpose", "split", "quantize"]),
    max_size=4,
)


@st.composite
def granularities(draw: st.DrawFn, rank: int) -> tuple[str, int, int]:
    kind = draw(st.sampled_from(["tensor", "axis", "block"]))
    return kind, draw(st.integers(0, rank - 1)), draw(st.integers(1, 9))


def tail(node: Node, y: SSAValue, steps: list[str], seed: int) -> list[SSAValue]:
    """What follows the contraction, as networks have it."""
    rng = np.random.default_rng(seed)
    results: list[SSAValue] = []
    for number, step in enumerate(steps):
        b, shape = node(f"{step}{number}"), shape_of(y)
        match step:
            case "bias":
                vector = b.constant(rng.standard_normal(shape[-1:]).astype(np.float32))
                y = b.elementwise([y, vector], f32, lambda s, e: s(arith.AddfOp, *e))
            case "residual":
                other = b.constant(rng.standard_normal(shape).astype(np.float32))
                y = b.elementwise([other, y], f32, lambda s, e: s(arith.SubfOp, *e))
            case "relu":
                zero = b.fill((), f32, 0.0)
                y = b.elementwise([y, zero], f32, lambda s, e: s(arith.MaximumfOp, *e))
            case "exp":
                small = b.elementwise([y], f32, lambda s, e: s(math.TanhOp, *e))
                y = b.elementwise([y, small], f32, lambda s, e: s(arith.MulfOp, *e))
            case "scale":
                half = b.constant(np.float32(0.125))
                y = b.elementwise([y, half], f32, lambda s, e: s(arith.MulfOp, *e))
            case "transpose":
                y = b.transpose(y, rng.permutation(len(shape)).tolist())
            case "split":
                results.append(b.reduce(y, [0], 0.0, lambda s, e, acc: s(arith.AddfOp, acc, e)))
                y = b.reshape(y, (*shape[:-1], 1, shape[-1]))
            case _:
                # Rounding turns the last bit of a sum into a whole step: behind it, nothing could be compared.
                quant = quantization(STORAGE_TYPES[seed % 6], shape, "tensor", zero="middle")
                b.insert(qmm.QuantizeOp(y, quant))
    return [y, *results]


def run_all(made: Any) -> None:
    check(made, *TENSOR_LEVEL)


@settings(max_examples=60)
@given(
    storage=st.sampled_from(STORAGE_TYPES),
    how=granularities(2),
    zero=ZEROS,
    extents=st.tuples(*[st.integers(1, 7)] * 3),
    square=st.booleans(),
    batch=st.sampled_from([(), (1,), (2,), (2, 3)]),
    transposed=st.booleans(),
    left=st.booleans(),
    twice=st.booleans(),
    steps=TAILS,
    seed=st.integers(0, 1000),
)
def test_matmul(storage, how, zero, extents, square, batch, transposed, left, twice, steps, seed):
    m, k, n = extents
    n = k if square else n
    kind, axis, block = how
    stored = (n, k) if transposed else (k, n)
    quant = quantization(storage, stored, kind, axis, block, zero, seed)

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = weight(node, storage, stored, quant, seed)
        if transposed:
            w = node("Transpose").transpose(w, (1, 0))
        if left:
            w = node("Transpose2").transpose(w, (1, 0))
            y = node("MatMul").insert(qmm.MatmulOp(w, x)).result
        else:
            y = node("MatMul").insert(qmm.MatmulOp(x, w)).result
        results = tail(node, y, steps, seed)
        if twice and not left:
            results.append(node("Again").insert(qmm.MatmulOp(x, w)).result)
        return results

    made = module(build, (*batch, k, m) if left else (*batch, m, k))
    run_all(made)
    made = apply(module(build, (*batch, k, m) if left else (*batch, m, k)), "qmm-fuse-dequant")
    refused = [op for op in ops(made) if "qmm.reason" in op.attributes]
    assert bool(refused) == (names(made)["qmm.matmul"] > 0) == (names(made)["qmm.dequantize"] > 0)
    along_k = axis == (1 if transposed else 0)
    if kind == "tensor" or (kind == "axis" and not along_k) or (kind == "block" and along_k):
        assert not refused, "everything but a scale along K that cannot leave the sum is fused"


@settings(max_examples=40)
@given(
    storage=st.sampled_from(STORAGE_TYPES),
    how=granularities(1),
    zero=ZEROS,
    groups=st.sampled_from([1, 2, 3]),
    channels=st.integers(1, 2),
    outputs=st.integers(1, 2),
    rank=st.integers(1, 2),
    kernel=st.tuples(*[st.integers(1, 3)] * 2),
    strides=st.tuples(*[st.integers(1, 3)] * 2),
    dilations=st.tuples(*[st.integers(1, 2)] * 2),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    size=st.tuples(*[st.integers(5, 8)] * 2),
    steps=TAILS,
    seed=st.integers(0, 1000),
)
def test_conv(
    storage,
    how,
    zero,
    groups,
    channels,
    outputs,
    rank,
    kernel,
    strides,
    dilations,
    pads,
    size,
    steps,
    seed,
):
    shape = (groups * outputs, channels, *kernel[:rank])
    kind = "axis" if how[0] == "block" else how[0]
    quant = quantization(storage, shape, kind, 0, 1, zero, seed)

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        op = qmm.ConvOp(
            x,
            weight(node, storage, shape, quant, seed),
            strides=strides[:rank],
            pads=(*pads[:rank], *pads[2 : 2 + rank]),
            dilations=dilations[:rank],
            groups=groups,
        )
        return tail(node, node("Conv").insert(op).result, steps, seed)

    made = module(build, (2, groups * channels, *size[:rank]))
    run_all(made)
    made = apply(module(build, (2, groups * channels, *size[:rank])), "qmm-fuse-dequant")
    assert names(made)["qmm.dequant_conv"] == 1 and names(made)["qmm.dequantize"] == 0


@settings(max_examples=30)
@given(steps=st.lists(TAILS, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_elementwise_graphs(steps, seed):
    """Without any contraction: several branches of elementwise work and layout changes on one input."""

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        results: list[SSAValue] = []
        for number, branch in enumerate(steps):
            results += tail(node, x if number < 2 else results[0], branch, seed + number)
        return results

    made = module(build, (2, 3, 4))
    inputs = inputs_for(made)
    before = str(made)
    run_all(made)
    again = module(build, (2, 3, 4))
    assert str(again) == before
    assert_same(inputs_for(again), inputs)
