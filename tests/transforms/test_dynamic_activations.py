"""`qmm-dynamic-activations`: the whole chain bit for bit by numpy, on rows chosen to break it, interpreted and compiled."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, StringAttr, f32
from xdsl.ir import SSAValue

from qfold.backend.c.emit import emit
from qfold.backend.run import build_module
from qfold.dialects import qmm
from qfold.dialects.contraction import DYNAMIC_ACTIVATIONS
from qfold.dialects.element_types import i4, i8, i16, ui4, ui8
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.interpreters import run
from qfold.interpreters.values import Bounded
from qfold.ir.builder import TensorBuilder
from qfold.ir.locations import node_names
from qfold.transforms.pipelines import compile_pipeline, run_passes
from qfold.transforms.qmm_dynamic_activations import QmmDynamicActivationsPass
from tests.execution.quantized_cases import Suite, conv, integers, matmul
from tests.tools.clusters import needs_qemu
from tests.transforms.graphs import Node, apply, module, names, only, ops

NAME = "qmm-dynamic-activations"
PASS = f"{NAME}{{least_products=1}}"
"""However small."""
Array = npt.NDArray[Any]


# The definition


def quantized_rows(x: Array) -> tuple[Array, Array]:
    """(i8 integers, f32 scale of each row): half to even, NaN is 0."""
    with np.errstate(all="ignore"):
        largest = np.abs(x).max(axis=-1)
        scale = np.where(largest == 0, np.float32(1), largest / np.float32(127)).astype(np.float32)
        steps = np.rint(x / scale[..., None])
    q = np.clip(np.where(np.isnan(steps), 0, steps), -128, 127)
    return q.astype(np.int8), scale


def chain(x: Array, w: Array, quant: QuantAttr, transpose_b: bool = False) -> Array:
    """`f32(acc) * (sA * sB)`."""
    q, scale = quantized_rows(x)
    acc = matmul(q, w, 0, quant.zero_points, transpose_b).astype(np.float32)
    with np.errstate(all="ignore"):
        return acc * (scale[..., None] * quant.scales)


def quant_of(
    rng: np.random.Generator, storage: IntegerType, columns: int, axis: int | None, zero: str
) -> QuantAttr:
    count = () if axis is None else (columns,)
    zeros = {"none": np.zeros(count, int), "any": integers(rng, storage, *count).astype(int)}
    zeros["middle"] = np.full(count, 128)
    scale = rng.uniform(0.001, 0.02, count).astype(np.float32)
    return QuantAttr.get(storage, scale, zeros[zero], axis=axis)


WEIGHTS: dict[str, tuple[IntegerType, str, bool, bool]] = {
    "i8_columns": (i8, "none", True, False),
    "i8_zeros": (i8, "any", True, False),
    "i8_turned": (i8, "any", True, True),
    "i8_one_scale": (i8, "any", False, False),
    "ui8_middle": (ui8, "middle", True, False),
    "ui8_zeros": (ui8, "any", True, True),
    "i4_columns": (i4, "none", True, False),
    "ui4_zeros": (ui4, "any", True, True),
}
"""Name -> storage type, zero points, whether a scale for each column, whether the weight is stored transposed."""

SHAPES = {
    "one_row": ((1, 37), 16),
    "batch": ((2, 3, 17), 19),
    "square": ((16, 16), 16),
    "k1": ((3, 1), 18),
}


def rows(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def difficult_rows(rng: np.random.Generator, k: int) -> Array:
    """Nothing but zeros, an outlier, ties, the smallest and largest numbers, infinities and NaN."""
    x = rows(rng, 12, k)
    x[0] = 0
    x[1] = -0.0
    x[2, 3] = 1e6
    x[3] = (rng.integers(-126, 126, k) + np.float32(0.5)) * np.float32(0.25)
    x[3, 0] = 127 * 0.25
    x[4] = x[4] * np.float32(1e-38)
    x[5] = 0
    x[5, 1] = 1e-45
    x[6] = np.sign(x[6]) * np.float32(3.4e38)
    x[7, 2] = np.nan
    x[8, 0] = np.inf
    x[9, 5], x[9, 6] = np.inf, -np.inf
    x[10] = np.float32(2.5)
    x[11, :] = -np.abs(x[11])
    return x


def weight(rng: np.random.Generator, storage: IntegerType, k: int, n: int, turned: bool) -> Array:
    return integers(rng, storage, *((n, k) if turned else (k, n)))


def product(b: TensorBuilder, a: SSAValue, w: Array, quant: QuantAttr, turned: bool) -> SSAValue:
    stored = WeightAttr.from_array(w, quant.storage)
    return b.insert(qmm.DequantMatmulOp(a, stored, quant, transpose_b=turned)).result


@cache
def suite() -> Suite:
    made, rng = Suite(), np.random.default_rng(3)
    kinds = list(SHAPES.items())
    for i, (name, (storage, zero, per_column, turned)) in enumerate(WEIGHTS.items()):
        axis = None if not per_column else 0 if turned else 1
        for kind, (shape, n) in (kinds[i % 4], kinds[(i + 1 + i // 4) % 4]):
            quant = quant_of(rng, storage, n, axis, zero)
            w = weight(rng, storage, shape[-1], n, turned)
            x = rows(rng, *shape)
            made.add(
                f"{name}_{kind}",
                [(f32, x)],
                lambda b, a, w=w, q=quant, t=turned: product(b, a, w, q, t),
                [chain(x, w, quant, turned)],
            )
    quant = quant_of(rng, i8, 17, 1, "any")
    w = weight(rng, i8, 33, 17, False)
    x = difficult_rows(rng, 33)
    made.add(
        "difficult",
        [(f32, x)],
        lambda b, a: product(b, a, w, quant, False),
        [chain(x, w, quant)],
    )
    return made


def dynamic(made: ModuleOp, target: str) -> ModuleOp:
    run_passes(
        Context(), made, compile_pipeline(target, dynamic_activations=True), verify_each=True
    )
    return made


def same(found: Array, expected: Array) -> bool:
    return found.dtype == expected.dtype and np.array_equal(found, expected, equal_nan=True)


def wrong(found: dict[str, Array], expected: dict[str, Array]) -> list[str]:
    return [n for n, y in expected.items() if not same(found[n], y)]


def test_definition_in_f32_is_what_interpreters_compute() -> None:
    made = suite().module()
    run_passes(Context(), made, [QmmDynamicActivationsPass(1)])
    assert names(made)["qmm.dequant_matmul"] == 0
    expected = suite().expected()
    found = run(made, suite().arrays())
    assert not wrong(dict(zip(expected, map(np.asarray, found), strict=True)), expected)


def test_bounds_hold() -> None:
    """Of the kernels, on the inputs of the network: what numpy computes in f32 is within them, ties and special rows included."""
    made = dynamic(suite().module(), "host")
    found = run(made, suite().arrays(), domain="bounded")
    for (name, y), value in zip(suite().expected().items(), found, strict=True):
        assert isinstance(value, Bounded)
        assert value.contains(y).all(), name


@pytest.mark.parametrize("target", ["host", "threads", "qemu"])
def test_compiled_bit_for_bit(target: str) -> None:
    """On RV32 too, where rounding is one instruction and the reciprocal of a scale stands for a division."""
    if target == "qemu":
        needs_qemu()
    made = dynamic(suite().module(), target)
    kinds = kernels(made)
    assert not any("dequant" in k for k in kinds)
    assert any(k.endswith("quant_matmul") for k in kinds)
    executable = build_module(made)
    found = executable.run(suite().values())
    executable.close()
    assert not wrong(found, suite().expected())


def kernels(made: ModuleOp) -> Counter[str]:
    """What computes: the kernel names of the functions, with how many functions there are of each."""
    found = (op.attributes.get("qmm.kernel") for op in made.walk() if op.name == "func.func")
    return Counter(k.data for k in found if isinstance(k, StringAttr))


def test_close_to_the_float_network() -> None:
    """Half a step of 127 for each element, and a 24-bit float: a bound for any row."""
    rng = np.random.default_rng(0)
    x, w = rows(rng, 9, 40), integers(rng, i8, 40, 6)
    quant = quant_of(rng, i8, 6, 1, "any")
    made = module(lambda node, a: product(node("m"), a, w, quant, False), x.shape)
    exact = np.asarray(run(made, [x], domain="f64")[0])
    found = np.asarray(run(apply(made, PASS), [x])[0])
    weights = np.abs(quant.dequantize(w)).sum(axis=0)
    bound = np.abs(x).max(axis=1)[:, None] / 127 / 2 * weights * 1.001
    assert (np.abs(found - exact) <= bound).all()
    assert np.abs(found - exact).max() > bound.max() * 1e-3


def test_infinities_and_nans_make_their_row_nan_and_no_other() -> None:
    rng = np.random.default_rng(1)
    x, w = rows(rng, 4, 8), integers(rng, i8, 8, 3)
    x[1, 2], x[2, 3] = np.nan, -np.inf
    quant = quant_of(rng, i8, 3, 1, "none")
    made = apply(module(lambda node, a: product(node("m"), a, w, quant, False), x.shape), PASS)
    y = np.asarray(run(made, [x])[0])
    assert np.isnan(y[1:3]).all() and np.isfinite(y[[0, 3]]).all()


# Structure


def test_what_several_read_is_quantised_once() -> None:
    rng = np.random.default_rng(2)
    quant = quant_of(rng, i8, 9, 1, "none")
    weights = [integers(rng, i8, 8, 9) for _ in range(3)]

    def build(node: Node, a: SSAValue) -> list[SSAValue]:
        return [product(node(f"m{i}"), a, w, quant, False) for i, w in enumerate(weights)]

    made = apply(module(build, (5, 8)), PASS)
    assert names(made)["qmm.quant_matmul"] == 3
    quantize = only(made, qmm.DynamicQuantizeOp)
    assert node_names(quantize) == ("m0", "m1", "m2")
    assert all(op.a is quantize.result for op in ops(made) if isinstance(op, qmm.QuantMatmulOp))
    compiled = dynamic(module(build, (5, 8)), "host")
    # Largest magnitude, scale and integers of a row: one function.
    assert kernels(compiled) == {"c.loops": 1, "c.quant_matmul": 1}


@pytest.mark.parametrize(("m", "k", "loops"), [(8, 256, 1), (1, 256, 3), (1, 37, 1)])
def test_all_cores_of_a_cluster_quantise(m: int, k: int, loops: int) -> None:
    """Rows where there are enough, in one call. Few rows are cut into parts: their maxima, the scale, and then the integers, if
    there are enough of them to divide."""
    rng = np.random.default_rng(12)
    quant = quant_of(rng, i8, 16, 1, "none")
    w, x = integers(rng, i8, k, 16), rows(rng, m, k)
    made = module(lambda node, a: product(node("m"), a, w, quant, False), x.shape)
    expected = chain(x, w, quant)
    compiled = dynamic(made, "threads")
    assert kernels(compiled)["c.loops"] == loops
    text = emit(compiled)["kernels.c"].decode()
    (quantizing,) = [f for f in text.split("\nvoid ") if "qf_round_quotient(" in f]
    assert ("part < 8" in quantizing) == (k == 256)
    executable = build_module(compiled)
    (name,) = executable.inputs
    (found,) = executable.run({name: x}).values()
    executable.close()
    assert same(found, expected)


def test_the_scale_is_in_the_epilogue() -> None:
    """With the bias: the i32 sums are never stored."""
    rng = np.random.default_rng(5)
    quant = quant_of(rng, i8, 4, 1, "any")
    w, bias = integers(rng, i8, 8, 4), rows(rng, 4)

    def build(node: Node, a: SSAValue) -> SSAValue:
        real = product(node("m"), a, w, quant, False)
        b = node("add")
        return b.elementwise(
            [real, b.constant(bias)], f32, lambda s, e: s(arith.AddfOp, e[0], e[1])
        )

    x = rows(rng, 5, 8)
    made = module(build, x.shape)
    passes = ["qmm-lower-quantization", "qmm-fuse-epilogue", "qmm-canonicalize"]
    apply(made, PASS, *passes)
    op = only(made, qmm.QuantMatmulOp)
    assert op.result.type.element_type == f32 and len(op.epilogue_operands) == 3
    assert same(np.asarray(run(made, [x])[0]), chain(x, w, quant) + bias)


def test_an_epilogue_stays() -> None:
    """`sum_k a z_k`, which fusing a weight with zero points along K leaves there."""
    rng = np.random.default_rng(6)
    w, x = integers(rng, i8, 8, 4), rows(rng, 5, 8)
    zeros = rng.integers(-9, 9, 8)
    quant = QuantAttr.get(i8, np.full(8, 0.5, np.float32), zeros, axis=0)

    def build(node: Node, a: SSAValue) -> SSAValue:
        constant = node("w").insert(qmm.ConstantOp(WeightAttr.from_array(w, i8))).result
        real = node("dq").insert(qmm.DequantizeOp(constant, quant)).result
        return node("m").insert(qmm.MatmulOp(a, real)).result

    made = apply(module(build, x.shape), "qmm-fuse-dequant")
    assert only(made, qmm.DequantMatmulOp).epilogue is not None
    exact = np.asarray(run(made, [x], domain="f64")[0])
    apply(made, PASS)
    assert names(made)["qmm.quant_matmul"] == 1
    found = np.asarray(run(made, [x])[0])
    q, scale = quantized_rows(x)
    expected = matmul(q, w).astype(np.float32) * (scale[:, None] * np.float32(0.5))
    expected -= np.float32(0.5) * (x.astype(np.float64) @ zeros)[:, None].astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    assert np.abs(found - exact).max() < 0.02 * np.ptp(exact)


def test_scales_along_k_are_factors_of_what_is_quantised() -> None:
    rng = np.random.default_rng(7)
    w, x = integers(rng, i8, 8, 4), rows(rng, 5, 8)
    factors = rng.uniform(0.5, 2, 8).astype(np.float32)
    quant = QuantAttr.get(i8, factors, axis=0)

    def build(node: Node, a: SSAValue) -> SSAValue:
        constant = node("w").insert(qmm.ConstantOp(WeightAttr.from_array(w, i8))).result
        real = node("dq").insert(qmm.DequantizeOp(constant, quant)).result
        return node("m").insert(qmm.MatmulOp(a, real)).result

    made = apply(module(build, x.shape), "qmm-fuse-dequant", PASS)
    expected = chain(x * factors, w, QuantAttr.get(i8, 1.0))
    assert same(np.asarray(run(made, [x])[0]), expected)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(groups: int) -> None:
    """A scale per sample: no result depends on another sample. Of several groups: left in floats."""
    rng = np.random.default_rng(8)
    x, w = rows(rng, 3, 4, 6, 5), integers(rng, i8, 6, 4 // groups, 3, 3)
    x[1] *= 1000
    x[2] = 0
    window: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 1]}
    quant = quant_of(rng, i8, 6, 0, "any")

    def build(node: Node, a: SSAValue) -> SSAValue:
        stored = WeightAttr.from_array(w, i8)
        op = qmm.DequantConvOp(a, stored, quant, groups=groups, **window)
        return node("conv").insert(op).result

    made = apply(module(build, x.shape), PASS)
    if groups == 2:
        op = only(made, qmm.DequantConvOp)
        assert "a convolution of 2 groups" in op.attributes[DYNAMIC_ACTIVATIONS].data
        return
    q, scale = quantized_rows(x.reshape(3, -1))
    sums = conv(q.reshape(x.shape), w, {**window, "groups": 1}, 0, quant.zero_points)
    factors = scale[:, None] * quant.scales
    expected = sums.astype(np.float32) * factors[..., None, None]
    assert same(np.asarray(run(made, [x])[0]), expected)
    compiled = dynamic(module(build, x.shape), "host")
    assert kernels(compiled)["c.quant_conv"] == 1 and not kernels(compiled)["c.dequant_conv"]
    executable = build_module(compiled)
    (name,) = executable.inputs
    (found,) = executable.run({name: x}).values()
    executable.close()
    assert same(found, expected)


def test_what_stays_in_floats_says_why() -> None:
    rng = np.random.default_rng(9)
    blocks = QuantAttr.get(i8, np.ones((2, 3), np.float32), axis=0, block_size=4)
    wide = QuantAttr.get(i16, 1.0)

    def build(node: Node, a: SSAValue, long: SSAValue) -> list[SSAValue]:
        return [
            product(node("blocks"), a, integers(rng, i8, 8, 3), blocks, False),
            product(node("wide"), a, integers(rng, i16, 8, 3), wide, False),
            product(
                node("long"),
                long,
                np.full((140_000, 1), -128, np.int8),
                QuantAttr.get(i8, 1.0),
                False,
            ),
        ]

    made = apply(module(build, (2, 8), (1, 140_000)), PASS)
    assert names(made)["qmm.dequant_matmul"] == 3 and not names(made)["qmm.dynamic_quantize"]
    reasons = [
        op.attributes[DYNAMIC_ACTIVATIONS].data
        for op in ops(made)
        if isinstance(op, qmm.DequantMatmulOp)
    ]
    assert [r.split(";")[0] for r in reasons] == [
        "none: found a weight with a scale for each block of 4 along K",
        "none: found a weight of i16",
        "none: found sums of K = 140000 products that 32 bits may not hold",
    ]


def test_unsigned_weights_keep_their_bytes_where_another_reader_needs_them() -> None:
    rng = np.random.default_rng(10)
    w, x = integers(rng, ui8, 8, 4), rows(rng, 2, 8)
    quant = quant_of(rng, ui8, 4, 1, "middle")

    def build(node: Node, a: SSAValue) -> list[SSAValue]:
        constant = node("w").insert(qmm.ConstantOp(WeightAttr.from_array(w, ui8))).result
        return [product(node("m"), a, w, quant, False), constant]

    made = apply(module(build, x.shape), PASS)
    op = only(made, qmm.QuantMatmulOp)
    assert op.b.type.element_type == ui8 and op.b_zero_point is not None
    assert same(np.asarray(run(made, [x])[0]), chain(x, w, quant))


def test_one_after_the_other() -> None:
    """What the second one reads is what became of the first one."""
    rng = np.random.default_rng(13)
    quants = [quant_of(rng, i8, n, 1, "any") for n in (20, 16)]
    weights = [integers(rng, i8, 8, 20), integers(rng, i8, 20, 16)]

    def build(node: Node, a: SSAValue) -> SSAValue:
        for i, (w, quant) in enumerate(zip(weights, quants, strict=True)):
            a = product(node(f"m{i}"), a, w, quant, False)
        return a

    x = rows(rng, 3, 8)
    made = apply(module(build, x.shape), NAME)
    assert names(made)["qmm.dynamic_quantize"] == names(made)["qmm.quant_matmul"] == 2
    expected = x
    for w, quant in zip(weights, quants, strict=True):
        expected = chain(expected, w, quant)
    assert same(np.asarray(run(made, [x])[0]), expected)


def test_few_products_of_an_element_stay_in_floats() -> None:
    """Those of all readers count: making integers costs once."""
    rng = np.random.default_rng(11)

    def build(node: Node, a: SSAValue, c: SSAValue) -> list[SSAValue]:
        made: list[SSAValue] = []
        for name, x, n in (("a", a, 8), ("b", a, 8), ("c", c, 15)):
            quant = quant_of(rng, i8, n, 1, "none")
            made.append(product(node(name), x, integers(rng, i8, 4, n), quant, False))
        return made

    made = apply(module(build, (3, 4), (3, 4)), NAME)
    left = only(made, qmm.DequantMatmulOp)
    assert node_names(left) == ("c",)
    assert "an activation with 15 products of each" in left.attributes[DYNAMIC_ACTIVATIONS].data
    assert names(made)["qmm.quant_matmul"] == 2 and names(made)["qmm.dynamic_quantize"] == 1


def test_nothing_without_the_option() -> None:
    names_of = [p.name for p in compile_pipeline("host")]
    assert NAME not in names_of
    assert NAME in [p.name for p in compile_pipeline("host", dynamic_activations=True)]
    assert NAME not in [
        p.name for p in compile_pipeline("host", fuse=False, dynamic_activations=True)
    ]
