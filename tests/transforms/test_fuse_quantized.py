"""`qmm-fuse-quantized`: what runs on integers, bit for bit by exact rationals, and what stays in floats for which reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from xdsl.context import Context
from xdsl.dialects import arith, math, tensor
from xdsl.dialects.builtin import IntegerType, ModuleOp, StringAttr, TensorType, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i4, i8, i16, i32, integer_range, ui4, ui8, ui16
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.interpreters import run
from qfold.ir.constants import constant_array
from qfold.ir.locations import node_names
from qfold.transforms.pipelines import run_passes, tensor_pipeline
from tests.transforms.graphs import Node, apply, integers, module, names, only, ops, weight

FUSE = "qmm-fuse-quantized"
Array = npt.NDArray[Any]


# Building


def dequantized(node: Node, q: SSAValue, quant: QuantAttr) -> SSAValue:
    return node("DequantizeLinear_x").insert(qmm.DequantizeOp(q, quant)).result


def quantized(node: Node, x: SSAValue, quant: QuantAttr) -> SSAValue:
    return node("QuantizeLinear").insert(qmm.QuantizeOp(x, quant)).result


def added(node: Node, *values: SSAValue) -> SSAValue:
    return node("Add").elementwise(values, f32, lambda b, e: b(arith.AddfOp, *e))


def relu(node: Node, x: SSAValue) -> SSAValue:
    return node("Relu").elementwise(
        [x], f32, lambda b, e: b(arith.MaximumfOp, e[0], b.constant(0.0, f32))
    )


def clip(node: Node, x: SSAValue, low: float, high: float) -> SSAValue:
    def body(b: Any, e: Sequence[SSAValue]) -> SSAValue:
        raised = b(arith.MaximumfOp, e[0], b.constant(low, f32))
        return b(arith.MinimumfOp, raised, b.constant(high, f32))

    return node("Clip").elementwise([x], f32, body)


def bias_of(node: Node, q: Array, quant: QuantAttr, shape: Sequence[int] | None = None) -> SSAValue:
    """A dequantised constant of i32."""
    constant = node("b").insert(qmm.ConstantOp(WeightAttr.from_array(q, i32))).result
    value = node("DequantizeLinear_b").insert(qmm.DequantizeOp(constant, quant)).result
    return value if shape is None else node("b").reshape(value, shape)


def matmul(node: Node, a: SSAValue, b: SSAValue, **flags: bool) -> SSAValue:
    return node("MatMul").insert(qmm.MatmulOp(a, b, **flags)).result


def conv(node: Node, x: SSAValue, w: SSAValue, **window: Any) -> SSAValue:
    rank = len(shape_of(x)) - 2
    given = {"strides": [1] * rank, "pads": [0] * 2 * rank, "dilations": [1] * rank, "groups": 1}
    return node("Conv").insert(qmm.ConvOp(x, w, **{**given, **window})).result


def max_pool(node: Node, x: SSAValue, pad: bool) -> SSAValue:
    """Windows of 2 along the last dimension, moving by 2; padded by one element before."""
    b = node("MaxPool")
    if pad:
        rank = len(shape_of(x))
        x = b.pad(x, [*[0] * (rank - 1), 1], [0] * rank, float("-inf"))
    *outer, n = shape_of(x)
    rank = len(outer)
    d = [AffineExpr.dimension(i) for i in range(rank + 2)]
    return b.generic(
        [
            (x, AffineMap(rank + 2, 0, (*d[:rank], d[rank] * 2 + d[rank + 1]))),
            (b.empty([2], f32), AffineMap(rank + 2, 0, (d[rank + 1],))),
        ],
        b.fill([*outer, n // 2], f32, float("-inf")),
        AffineMap(rank + 2, 0, tuple(d[: rank + 1])),
        ["parallel"] * (rank + 1) + ["reduction"],
        lambda s, e, acc: s(arith.MaximumfOp, acc, e[0]),
    )


def average_pool(node: Node, x: SSAValue, pad: bool) -> SSAValue:
    """Means of windows of 2 along the last dimension, moving by 2; padded by a 0 before, which counts."""
    b = node("AveragePool")
    if pad:
        rank = len(shape_of(x))
        x = b.pad(x, [*[0] * (rank - 1), 1], [0] * rank, 0.0)
    *outer, n = shape_of(x)
    rank = len(outer)
    d = [AffineExpr.dimension(i) for i in range(rank + 2)]
    total = b.generic(
        [
            (x, AffineMap(rank + 2, 0, (*d[:rank], d[rank] * 2 + d[rank + 1]))),
            (b.empty([2], f32), AffineMap(rank + 2, 0, (d[rank + 1],))),
        ],
        b.fill([*outer, n // 2], f32, 0.0),
        AffineMap(rank + 2, 0, tuple(d[: rank + 1])),
        ["parallel"] * (rank + 1) + ["reduction"],
        lambda s, e, acc: s(arith.AddfOp, acc, e[0]),
    )
    return b.elementwise([total], f32, lambda s, e: s(arith.DivfOp, e[0], s.constant(2.0, f32)))


# Checking


def requantized_exactly(
    real: Callable[..., Fraction],
    shape: Sequence[int],
    out: QuantAttr,
    bounds: Sequence[float] = (),
) -> Array:
    """`saturate(roundeven(real / scale) + zero_point)` by rationals; `real(*index)` is an element, then clamped to `bounds`."""
    low, high = integer_range(out.storage)
    result = np.empty(shape, np.int64)
    for index in np.ndindex(*shape):
        value = real(*index)
        if bounds:
            value = min(max(value, Fraction(bounds[0])), Fraction(bounds[1]))
        steps = round(value / Fraction(float(out.scales)))
        result[index] = min(max(steps + int(out.zero_points), low), high)
    return result


def real_matmul(
    a: Array, qa: QuantAttr, w: Array, qw: QuantAttr, bias: Array | None = None
) -> Callable[..., Fraction]:
    """Elements of `dequantize(a) @ dequantize(w) + bias * sA * sW`, w [K, N] with parameters along N."""
    scales = [Fraction(float(s)) for s in np.broadcast_to(qw.scales, w.shape[-1])]
    left = a.astype(np.int64) - int(qa.zero_points)
    sums = left @ (w.astype(np.int64) - qw.zero_points)
    if bias is not None:
        sums = sums + bias
    return lambda *i: int(sums[i]) * Fraction(float(qa.scales)) * scales[i[-1]]


def no_floats(made: ModuleOp) -> bool:
    """Whether no tensor of f32 is computed."""
    types = [r.type for op in ops(made) for r in op.results]
    return all(t.element_type != f32 for t in types if isinstance(t, TensorType))


def reason(op: Any) -> str:
    found = op.attributes["qmm.reason"]
    assert isinstance(found, StringAttr)
    return found.data


def check_near(made: ModuleOp, given: Sequence[Array], *passes: str) -> list[Array]:
    """Run passes; integers stay within one step of what the graph of floats gives, floats within f32's rounding."""
    before = run(made, given)
    apply(made, *passes)
    after = run(made, given)
    for x, y in zip(before, after, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape and x.dtype == y.dtype
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(x).max())
        else:
            far = np.abs(x.astype(int) - y.astype(int))
            assert far.max(initial=0) <= 1
            # Ties that f32 falls off of are rare.
            assert (far != 0).mean() <= 0.02
    return [np.asarray(y) for y in after]


X = QuantAttr.get(ui8, 0.043, 113)
Y = QuantAttr.get(i8, 0.61, -7)


def weights(
    storage: IntegerType, n: int, per_channel: bool, zero: bool, axis: int = 1
) -> QuantAttr:
    rng = np.random.default_rng(n)
    low, high = integer_range(storage)
    scales = (rng.random(n) + 0.5).astype(np.float32) / (8 * (high - low))
    zeros = rng.integers(low, high + 1, n) if zero else np.zeros(n, int)
    if not per_channel:
        return QuantAttr.get(storage, scales[0], zeros[0])
    return QuantAttr.get(storage, scales, zeros, axis=axis)


# Matrices


@pytest.mark.parametrize("a", [i8, ui8], ids=str)
@pytest.mark.parametrize("b", [i8, ui8, i4, ui4], ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("out", [i8, ui8], ids=str)
def test_matmul_to_quantize_is_one_requantisation(a, b, per_channel, zero, out):
    """With a bias in i32 at the scale of the accumulator, bit for bit what exact arithmetic gives."""
    m, k, n = 5, 33, 6
    qa = QuantAttr.get(a, 0.043, 17 if zero else 0)
    qw = weights(b, n, per_channel, zero)
    qy = QuantAttr.get(out, 0.13, 3)
    bias = np.random.default_rng(2).integers(-2000, 2000, n).astype(np.int32)
    scale = np.float32(qa.scales) * qw.scales
    qb = QuantAttr.get(i32, scale, axis=0 if per_channel else None)

    def build(node: Node, x: SSAValue) -> SSAValue:
        y = matmul(node, dequantized(node, x, qa), weight(node, b, (k, n), qw))
        return quantized(node, added(node, y, bias_of(node, bias, qb)), qy)

    x = integers(a, (m, k), seed=5)
    made = module(build, (m, k), types=[a])
    (result,) = check_near(made, [x], FUSE)
    assert no_floats(made)
    expected = requantized_exactly(real_matmul(x, qa, integers(b, (k, n)), qw, bias), (m, n), qy)
    np.testing.assert_array_equal(result, expected)
    product, requantize = only(made, qmm.QuantMatmulOp), only(made, qmm.RequantizeOp)
    assert (product.a_zero_point is None, product.b_zero_point is None) == (not zero, not zero)
    assert requantize.axis_index == (1 if per_channel else None)
    assert set(node_names(product)) >= {"MatMul", "DequantizeLinear", "DequantizeLinear_x"}
    assert set(node_names(requantize)) == {"QuantizeLinear", "Add"}
    # And down to loops.
    apply(made, "qmm-lower-quantization", "qmm-fuse-epilogue", "qmm-check-accumulators")
    assert only(made, qmm.QuantMatmulOp).epilogue is not None
    np.testing.assert_array_equal(run(made, [x])[0], expected)


def simple(follow: Callable[[Node, SSAValue], SSAValue], quant: QuantAttr = X) -> ModuleOp:
    """`follow` of a matmul [4, 16] @ [16, 6] of dequantised integers."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i8, (16, 6), weights(i8, 6, True, False))
        return follow(node, matmul(node, dequantized(node, x, quant), w))

    return module(build, (4, 16), types=[quant.storage])


def simple_real(x: Array) -> Callable[..., Fraction]:
    return real_matmul(x, X, integers(i8, (16, 6)), weights(i8, 6, True, False))


INPUT = integers(ui8, (4, 16), seed=3)


@pytest.mark.parametrize(
    "out,low",
    [((ui8, 0), None), ((ui8, 10), 10), ((i8, -128), None), ((i8, 0), 0), ((i8, 127), 127)],
)
def test_relu_vanishes_only_where_saturation_is_it(out, low):
    quant = QuantAttr.get(out[0], 0.02, out[1])
    made = simple(lambda node, y: quantized(node, relu(node, y), quant))
    (result,) = check_near(made, [INPUT], FUSE)
    op = only(made, qmm.RequantizeOp)
    assert (op.low is None and low is None) or op.clamp[0] == low
    assert op.high is None and no_floats(made)
    expected = requantized_exactly(simple_real(INPUT), (4, 6), quant, (0.0, 1e9))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("bounds", [(0.0, 6.0), (-1.0, 0.5), (-0.3051, 0.0949), (3.0, -3.0)])
def test_clip_is_in_the_bounds_wherever_they_fall(bounds):
    """Rounding is monotone, so a bound may be rounded by itself, on a step or not. The upper one wins where they cross."""
    quant = QuantAttr.get(i8, 0.061, -7)
    made = simple(lambda node, y: quantized(node, clip(node, y, *bounds), quant))
    (result,) = check_near(made, [INPUT], FUSE)
    assert no_floats(made)
    op = only(made, qmm.RequantizeOp)
    assert [o.name for o in ops(made)][-2:] == ["qmm.requantize", "func.return"]
    expected = requantized_exactly(simple_real(INPUT), (4, 6), quant, bounds)
    np.testing.assert_array_equal(result, expected)
    assert op.low is not None or op.high is not None


@pytest.mark.parametrize(
    "steps,zero,high",
    [(255.0, 0, None), (254.6, 0, None), (254.4, 0, 254), (300.0, 0, None), (200.0, 0, 200), (255.0, 30, None)]
)  # fmt: skip
def test_a_clip_at_6_vanishes_only_where_the_integers_end_below(steps, zero, high):
    """255 steps of a ui8 that reach 6, or less: the upper bound is the saturation. Else it is the integer that 6 rounds to."""
    quant = QuantAttr.get(ui8, 6.0 / steps, zero)
    made = simple(lambda node, y: quantized(node, clip(node, y, 0.0, 6.0), quant))
    (result,) = check_near(made, [INPUT], FUSE)
    op = only(made, qmm.RequantizeOp)
    assert (None if op.high is None else op.clamp[1]) == high
    assert (None if op.low is None else op.clamp[0]) == (zero or None) and no_floats(made)
    expected = requantized_exactly(simple_real(INPUT), (4, 6), quant, (0.0, 6.0))
    np.testing.assert_array_equal(result, expected)


def test_ties_go_to_even():
    """Scales that are powers of two: quotients are exact, and every second sum is a tie."""
    qa, qw = QuantAttr.get(i8, 0.5), QuantAttr.get(i8, 0.25)
    quant = QuantAttr.get(i8, 0.25, 3)
    w = np.array([[1]], np.int8)

    def build(node: Node, x: SSAValue) -> SSAValue:
        value = node("w").insert(qmm.ConstantOp(WeightAttr.from_array(w, i8))).result
        y = matmul(node, dequantized(node, x, qa), dequantized(node, value, qw))
        return quantized(node, y, quant)

    x = np.arange(-128, 128, dtype=np.int8).reshape(-1, 1)
    made = apply(module(build, (256, 1), types=[i8]), FUSE)
    result = np.asarray(run(made, [x])[0]).reshape(-1)
    expected = [round(Fraction(int(v), 2)) + 3 for v in x.reshape(-1)]
    np.testing.assert_array_equal(result, expected)
    assert list(result[128:134]) == [3, 3, 4, 5, 5, 5]


def test_a_bias_at_another_scale_stays_a_float_of_the_epilogue():
    bias = np.linspace(-3, 3, 6).astype(np.float32) / np.float32(np.pi)

    def follow(node: Node, y: SSAValue) -> SSAValue:
        return quantized(node, relu(node, added(node, y, node("b").constant(bias))), Y)

    made = simple(follow)
    check_near(made, [INPUT], FUSE)
    assert names(made)["qmm.requantize"] == 0 and names(made)["qmm.quantize"] == 1
    assert only(made, qmm.QuantMatmulOp).output_type.element_type == i32
    # All of it goes into the epilogue: floats in registers, none in memory.
    check_near(made, [INPUT], "qmm-lower-quantization", "qmm-fuse-epilogue")
    assert no_floats(made) or names(made)["linalg.generic"] == 0
    assert only(made, qmm.QuantMatmulOp).output_type.element_type == i8


def test_a_float_bias_that_is_a_multiple_joins_the_accumulator():
    """Front ends fold a dequantised bias to floats."""
    scale = np.float32(X.scales) * weights(i8, 6, True, False).scales
    q = np.array([5, -7, 100000, 0, -1, 3], np.float32)

    def follow(node: Node, y: SSAValue) -> SSAValue:
        return quantized(node, added(node, y, node("b").constant(q * scale)), Y)

    made = simple(follow)
    (result,) = check_near(made, [INPUT], FUSE)
    assert no_floats(made)
    real = real_matmul(
        INPUT, X, integers(i8, (16, 6)), weights(i8, 6, True, False), q.astype(np.int64)
    )
    np.testing.assert_array_equal(result, requantized_exactly(real, (4, 6), Y))
    (bias,) = [v for op in ops(made) if isinstance(op, linalg.GenericOp) for v in op.inputs[1:]]
    np.testing.assert_array_equal(constant_array(bias), q.astype(np.int32))


def test_a_bias_behind_a_transpose_and_a_reshape():
    """Parameters along another dimension than that of the accumulator, and layout ops on the 8-bit result."""
    scale = np.float32(X.scales) * weights(i8, 6, True, False).scales
    q = np.array([5, -7, 100, 0, -1, 3], np.float32)

    def follow(node: Node, y: SSAValue) -> SSAValue:
        t = node("Reshape").reshape(node("Transpose").transpose(y, [1, 0]), (2, 3, 4))
        bias = node("b").constant((q * scale).reshape(2, 3, 1))
        t = node("Transpose").transpose(relu(node, added(node, t, bias)), [2, 0, 1])
        return quantized(node, t, Y)

    made = simple(follow)
    (result,) = check_near(made, [INPUT], FUSE)
    assert no_floats(made)
    real = real_matmul(
        INPUT, X, integers(i8, (16, 6)), weights(i8, 6, True, False), q.astype(np.int64)
    )
    expected = requantized_exactly(real, (4, 6), Y, (0.0, 1e9)).T.reshape(2, 3, 4)
    np.testing.assert_array_equal(result, expected.transpose(2, 0, 1))
    assert only(made, qmm.RequantizeOp).axis_index == 1


def test_alpha_joins_the_multiplier():
    made = simple(
        lambda node, y: quantized(
            node,
            node("Gemm").elementwise(
                [y], f32, lambda b, e: b(arith.MulfOp, e[0], b.constant(0.5, f32))
            ),
            Y,
        )
    )
    (result,) = check_near(made, [INPUT], FUSE)
    assert no_floats(made)
    real = simple_real(INPUT)
    expected = requantized_exactly(lambda *i: real(*i) / 2, (4, 6), Y)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_square_matrices_obey_the_flags(transpose_a, transpose_b, stored):
    """K = N: nothing but the axis tells columns from rows. `stored`: a transpose between dequantise and matmul."""
    axis = 0 if transpose_b != stored else 1
    qw = weights(i8, 6, True, True, axis)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i8, (6, 6), qw)
        a = dequantized(node, x, X)
        if stored:
            w = node("Transpose").transpose(w, [1, 0])
            a = node("Transpose").transpose(a, [1, 0])
        y = matmul(node, a, w, transpose_a=transpose_a, transpose_b=transpose_b)
        return quantized(node, y, Y)

    made = module(build, (6, 6), types=[ui8])
    x = integers(ui8, (6, 6), seed=9)
    (result,) = check_near(made, [x], FUSE)
    assert no_floats(made)
    w = integers(i8, (6, 6))
    a = x.T if transpose_a != stored else x
    w = w.T if axis == 0 else w
    qn = QuantAttr.get(i8, qw.scales, qw.zero_points, axis=1)
    np.testing.assert_array_equal(result, requantized_exactly(real_matmul(a, X, w, qn), (6, 6), Y))
    assert (only(made, qmm.QuantMatmulOp).transpose_b is not None) == (axis == 0)


def test_both_operands_at_run_time_with_batches():
    """Attention: q @ k^T of integers, the transpose a flag."""
    qb = QuantAttr.get(i8, 0.02, 4)

    def build(node: Node, q: SSAValue, k: SSAValue) -> SSAValue:
        t = node("Transpose").transpose(dequantized(node, k, qb), [0, 2, 1])
        return quantized(node, matmul(node, dequantized(node, q, X), t), Y)

    made = module(build, (2, 3, 8), (2, 5, 8), types=[ui8, i8])
    given = [integers(ui8, (2, 3, 8)), integers(i8, (2, 5, 8), seed=1)]
    check_near(made, given, FUSE)
    assert no_floats(made) and names(made)["linalg.transpose"] == 0
    assert only(made, qmm.QuantMatmulOp).transpose_b is not None


def test_weight_on_the_left_and_scales_of_rows():
    qw = weights(i8, 5, True, True, axis=0)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i8, (5, 7), qw)
        return quantized(node, matmul(node, w, dequantized(node, x, X)), Y)

    made = module(build, (7, 3), types=[ui8])
    check_near(made, [integers(ui8, (7, 3))], FUSE)
    assert no_floats(made) and only(made, qmm.RequantizeOp).axis_index == 0


def test_scales_of_rows_and_of_columns_end_in_floats():
    rows = QuantAttr.get(ui8, [0.02, 0.03, 0.04, 0.05], [1, 2, 3, 4], axis=0)
    made = simple(lambda node, y: quantized(node, y, Y), rows)
    check_near(made, [INPUT], FUSE)
    assert shape_of(only(made, qmm.QuantMatmulOp).a_zero_point) == (4,)
    assert names(made)["qmm.requantize"] == 0
    check_near(made, [INPUT], "qmm-lower-quantization", "qmm-fuse-epilogue")
    assert names(made)["linalg.generic"] == 0


def test_unit_batches_of_the_weight():
    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i8, (1, 8, 3), QuantAttr.get(i8, 0.01, 5))
        return quantized(node, matmul(node, dequantized(node, x, X), w), Y)

    made = module(build, (4, 8), types=[ui8])
    check_near(made, [integers(ui8, (4, 8))], FUSE)
    assert no_floats(made)
    assert shape_of(only(made, qmm.QuantMatmulOp).b) == (8, 3)


# Convolutions


@pytest.mark.parametrize(
    "x_shape,w_shape,window",
    [
        ((1, 4, 7, 7), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((2, 4, 8, 6), (8, 1, 3, 3), {"pads": [1, 0, 1, 2], "groups": 4, "strides": [2, 1]}),
        ((1, 3, 9), (5, 3, 3), {"pads": [2, 0], "dilations": [2]}),
    ],
)
@pytest.mark.parametrize("storage", [i8, ui8, i4], ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
def test_conv(x_shape, w_shape, window, storage, per_channel):
    """Borders are the zero point of the data, which is not 0."""
    n = w_shape[0]
    qw = weights(storage, n, per_channel, per_channel, axis=0)
    bias = np.random.default_rng(2).integers(-500, 500, n).astype(np.int32)
    scale = np.float32(X.scales) * qw.scales
    qb = QuantAttr.get(i32, scale, axis=0 if per_channel else None)

    def build(node: Node, x: SSAValue) -> SSAValue:
        y = conv(node, dequantized(node, x, X), weight(node, storage, w_shape, qw), **window)
        b = bias_of(node, bias, qb, (n, *[1] * (len(x_shape) - 2)))
        return quantized(node, relu(node, added(node, y, b)), Y)

    made = module(build, x_shape, types=[ui8])
    check_near(made, [integers(ui8, x_shape, seed=4)], FUSE)
    assert no_floats(made)
    assert only(made, qmm.RequantizeOp).axis_index == (1 if per_channel else None)
    assert only(made, qmm.RequantizeOp).clamp == (-7, 127)
    assert set(node_names(only(made, qmm.RequantizeOp))) == {"QuantizeLinear", "Relu", "Add"}


# Chains


def test_two_matmuls_with_relu_between():
    """No float between the first quantised input and the last quantised output."""
    mid = QuantAttr.get(ui8, 0.05)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w1 = weight(node, i8, (16, 8), weights(i8, 8, True, False))
        w2 = weight(node, i8, (8, 4), weights(i8, 4, True, False), seed=1)
        y = quantized(node, relu(node, matmul(node, dequantized(node, x, X), w1)), mid)
        return quantized(node, matmul(node, dequantized(node, y, mid), w2), Y)

    made = module(build, (4, 16), types=[ui8])
    check_near(made, [INPUT], FUSE)
    assert no_floats(made)
    assert {n: c for n, c in names(made).items() if n.startswith("qmm.") and "const" not in n} == {
        "qmm.quant_matmul": 2,
        "qmm.requantize": 2,
    }


@pytest.mark.parametrize("storage,zero", [(ui8, 0), (ui8, 30), (i8, -5)])
@pytest.mark.parametrize("pad", [False, True])
def test_max_pool_and_layout_run_on_integers(storage, zero, pad):
    """After a contraction, and between a dequantise and a quantise with the same parameters."""
    quant = QuantAttr.get(storage, 0.07, zero)
    width = 7 if pad else 8

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = weight(node, i8, (3, 2, 1), weights(i8, 3, True, False, axis=0))
        y = conv(node, dequantized(node, x, quant), w)
        y = node("Transpose").transpose(max_pool(node, relu(node, y), pad), [0, 2, 1])
        direct = relu(node, max_pool(node, dequantized(node, x, quant), pad))
        return [quantized(node, y, Y), quantized(node, direct, quant)]

    made = module(build, (1, 2, width), types=[storage])
    x = integers(storage, (1, 2, width), seed=1)
    _, direct = check_near(made, [x], FUSE)
    assert no_floats(made)
    padded = np.pad(x, [(0, 0), (0, 0), (int(pad), 0)], constant_values=integer_range(storage)[0])
    pooled = padded.reshape(1, 2, 4, 2).max(axis=-1)
    np.testing.assert_array_equal(direct, np.maximum(pooled, zero))


@pytest.mark.parametrize("storage,zero", [(ui8, 0), (ui8, 130), (i8, -5), (i8, 127)])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_averages_are_sums_of_integers(storage, zero, pad, same):
    """Exact, ties too: the padding is the zero point, the divisor part of the multiplier."""
    quant = QuantAttr.get(storage, 0.07, zero)
    out = quant if same else Y
    width = 7 if pad else 8

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        real = relu(node, dequantized(node, x, quant))
        pooled = quantized(node, relu(node, average_pool(node, real, pad)), out)
        total = node("Mean").reduce(real, [1], 0.0, lambda b, e, acc: b(arith.AddfOp, acc, e))
        mean = node("Mean").elementwise(
            [total], f32, lambda b, e: b(arith.MulfOp, e[0], b.constant(0.125, f32))
        )
        return [pooled, quantized(node, mean, out)]

    made = module(build, (3, width), types=[storage])
    x = integers(storage, (3, width), seed=3)
    found = run(apply(made, FUSE), [x])
    assert no_floats(made)
    positive = np.maximum(x.astype(int) - zero, 0)
    windows = np.pad(positive, [(0, 0), (int(pad), 0)]).reshape(3, 4, 2).sum(axis=-1)
    scale = Fraction(float(quant.scales))
    for y, sums, count in zip(found, (windows, positive.sum(axis=1)), (2, 8), strict=True):
        real = lambda *i, s=sums, n=count: int(s[i]) * scale / n  # noqa: E731
        expected = requantized_exactly(real, sums.shape, out, (0.0, 1e9))
        np.testing.assert_array_equal(np.asarray(y), expected)


def test_an_average_that_somebody_reads_as_floats_is_computed_as_floats():
    """A normalisation's mean: its floats are what they were."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        real = dequantized(node, x, X)
        total = node("Sum").reduce(
            real, [1], 0.0, lambda b, e, acc: b(arith.AddfOp, acc, e), keepdims=True
        )
        return node("Sub").elementwise([real, total], f32, lambda b, e: b(arith.SubfOp, *e))

    made = module(build, (4, 16), types=[ui8])
    before = run(made, [INPUT])
    np.testing.assert_array_equal(run(apply(made, FUSE), [INPUT])[0], before[0])
    assert names(made)["linalg.generic"] == 2


def test_sums_that_32_bits_may_not_hold_stay_floats():
    count = 2**31 // 142 + 1

    def build(node: Node, x: SSAValue) -> SSAValue:
        real = dequantized(node, x, X)  # 0 to 255, less 113
        total = node("Sum").reduce(real, [1], 0.0, lambda b, e, acc: b(arith.AddfOp, acc, e))
        return quantized(node, total, Y)

    for k, is_integer in ((count - 1, True), (count, False)):
        made = apply(module(build, (1, k), types=[ui8]), FUSE)
        assert no_floats(made) == is_integer


def test_layout_and_pooling_between_dequantise_and_contraction():
    """Exporters leave the pair out around them: the dequantise is taken past."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        real = node("Pad").pad(dequantized(node, x, X), [0, 0, 2], [0, 0, 0], 0.0)
        # No byte stands for a number above 1e9: that bound is none.
        y = clip(node, max_pool(node, real, False), 0.0, 1e9)
        y = node("Reshape").reshape(y, (4, 10))
        w = weight(node, i8, (10, 6), weights(i8, 6, True, False))
        return quantized(node, matmul(node, y, w), Y)

    made = module(build, (4, 2, 8), types=[ui8])
    check_near(made, [integers(ui8, (4, 2, 8))], FUSE)
    assert no_floats(made)


@pytest.mark.parametrize("low", [0.0861, 0.043 * 2.5])
def test_a_bound_off_the_steps_keeps_the_dequantise(low):
    """Before a contraction a value has to be one that the integers stand for."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        y = clip(node, dequantized(node, x, X), low, 1e9)
        w = weight(node, i8, (16, 6), weights(i8, 6, True, False))
        return quantized(node, matmul(node, y, w), Y)

    made = module(build, (4, 16), types=[ui8])
    check_near(made, [INPUT], FUSE)
    assert "not all ui8 times the scale" in reason(only(made, qmm.MatmulOp))


def test_concatenation_requantises_each_piece():
    other = QuantAttr.get(ui8, 0.1, 3)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i8, (16, 6), weights(i8, 6, True, False))
        real = dequantized(node, x, X)
        product = matmul(node, real, w)
        piece = dequantized(node, quantized(node, real, other), other)
        joined = node("Concat").concat([product, real, piece], 1)
        return quantized(node, joined, X)

    made = module(build, (4, 16), types=[ui8])
    check_near(made, [INPUT], FUSE)
    empty = [o.tensor.type for o in ops(made) if isinstance(o, tensor.EmptyOp)]
    assert TensorType(ui8, (4, 38)) in empty and no_floats(made)
    # The product, the input at another scale, and that back again.
    assert names(made)["qmm.requantize"] == 3 and names(made)["tensor.insert_slice"] == 3


@pytest.mark.parametrize("a", [(i8, 0.043, -128), (ui8, 0.043, 255), (i8, 0.5, 3)], ids=str)
@pytest.mark.parametrize("b", [(i8, 0.061, 127), (ui8, 0.043, 0), (ui8, 0.25, 10)], ids=str)
def test_another_scale_is_a_requantisation(a, b):
    """Every integer, exactly, through a Relu and a concatenation of which no piece has the scale of the result."""
    qa, qb = QuantAttr.get(*a), QuantAttr.get(*b)
    low, high = integer_range(qa.storage)
    x = np.arange(low, high + 1).astype(np.int8 if qa.storage == i8 else np.uint8).reshape(4, 64)
    y = x[::-1]
    qc = QuantAttr.get(qa.storage, 0.077, 5)

    def build(node: Node, x: SSAValue, y: SSAValue) -> SSAValue:
        joined = node("Concat").concat(
            [relu(node, dequantized(node, x, qa)), dequantized(node, y, qc)], 1
        )
        return quantized(node, joined, qb)

    made = module(build, (4, 64), (4, 64), types=[qa.storage, qa.storage])
    (found,) = check_near(made, [x, y], FUSE)
    assert no_floats(made)

    def real(i: int, j: int) -> Fraction:
        if j < 64:
            steps = max(int(x[i, j]) - int(qa.zero_points), 0)
            return steps * Fraction(float(qa.scales))
        return (int(y[i, j - 64]) - 5) * Fraction(float(qc.scales))

    np.testing.assert_array_equal(found, requantized_exactly(real, (4, 128), qb))


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("negative", [False, True])
def test_a_factor_between_two_scales_is_in_the_multiplier(divide, negative):
    """As attention scales its scores. What a negative one does to the order of bounds is left to floats."""
    factor = np.float32(-0.176 if negative else 0.176)

    def build(node: Node, x: SSAValue) -> SSAValue:
        kind = arith.DivfOp if divide else arith.MulfOp
        real = node("Transpose").transpose(dequantized(node, x, X), [1, 0])
        y = node("Scale").elementwise(
            [real], f32, lambda b, e: b(kind, e[0], b.constant(float(factor), f32))
        )
        return quantized(node, relu(node, y), Y)

    made = module(build, (4, 64), types=[ui8])
    x = np.arange(256).astype(np.uint8).reshape(4, 64)
    (found,) = check_near(made, [x], FUSE)
    assert no_floats(made) != negative
    if not negative:
        exact = 1 / Fraction(float(factor)) if divide else Fraction(float(factor))
        scale = Fraction(float(X.scales)) * exact
        real = lambda i, j: (int(x[j, i]) - 113) * scale  # noqa: E731
        np.testing.assert_array_equal(found, requantized_exactly(real, (64, 4), Y, (0.0, 1e9)))


def test_the_pipeline_leaves_no_float_between():
    """Two layers from bytes to bytes are two contractions, all else in their epilogues; without fusion they are of floats."""
    mid = QuantAttr.get(ui8, 0.05, 9)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w1 = weight(node, i8, (16, 8), weights(i8, 8, True, True))
        w2 = weight(node, i8, (8, 4), weights(i8, 4, True, False), seed=1)
        bias = np.arange(8, dtype=np.float32) * (
            np.float32(X.scales) * weights(i8, 8, True, True).scales
        )
        y = added(node, matmul(node, dequantized(node, x, X), w1), node("b").constant(bias))
        y = node("Reshape").reshape(relu(node, y), (2, 2, 8))
        y = dequantized(node, quantized(node, y, mid), mid)
        return quantized(node, matmul(node, y, w2), Y)

    made, plain = (module(build, (4, 16), types=[ui8]) for _ in range(2))
    expected = run(apply(made, FUSE), [INPUT])[0]
    run_passes(Context(), made, tensor_pipeline())
    np.testing.assert_array_equal(run(made, [INPUT])[0], expected)
    assert no_floats(made)
    assert names(made)["qmm.quant_matmul"] == 2 and names(made)["linalg.generic"] == 0
    run_passes(Context(), plain, tensor_pipeline(fuse=False))
    assert names(plain)["qmm.matmul"] == 2 and names(plain)["qmm.quant_matmul"] == 0


# Sharing


def test_each_user_has_what_it_needs():
    """A float output, two quantises with other parameters, and a weight that two products share and one returns."""
    other = QuantAttr.get(ui8, 0.03, 100)

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = weight(node, i8, (16, 6), weights(i8, 6, True, False))
        real = dequantized(node, x, X)
        y = matmul(node, real, w)
        again = matmul(node, node("Transpose").transpose(y, [1, 0]), real)
        return [y, quantized(node, y, Y), quantized(node, relu(node, y), other), w, again]

    made = module(build, (4, 16), types=[ui8])
    check_near(made, [INPUT], FUSE)
    assert names(made)["qmm.quant_matmul"] == 1 and names(made)["qmm.requantize"] == 2
    assert "an operand of f32 beside one of integers" in reason(only(made, qmm.MatmulOp))
    # What is left dequantised are the weight, which is an output, and the operand of that product.
    assert names(made)["qmm.dequantize"] == 2


def test_tied_weights():
    """One table, read as it is and transposed."""
    quant = QuantAttr.get(i8, 0.01, 3)

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = weight(node, i8, (6, 6), quant)
        real = dequantized(node, x, X)
        t = node("Transpose").transpose(w, [1, 0])
        return [quantized(node, matmul(node, real, v), Y) for v in (w, t)]

    made = module(build, (4, 6), types=[ui8])
    check_near(made, [integers(ui8, (4, 6))], FUSE, "qmm-linalg-cse")
    assert no_floats(made)
    shared = {op.b for op in ops(made) if isinstance(op, qmm.QuantMatmulOp)}
    assert len(shared) == 1


# What stays in floats


@pytest.mark.parametrize("storage", [i16, ui16, i32], ids=str)
def test_wider_activations_are_refused(storage):
    made = simple(lambda node, y: y, QuantAttr.get(storage, 0.01))
    before = names(made)
    check_near(made, [integers(storage, (4, 16))], FUSE)
    assert names(made) == before
    assert f"an operand of {storage}" in reason(only(made, qmm.MatmulOp))


@pytest.mark.parametrize("storage", [i8, i4, i16], ids=str)
@pytest.mark.parametrize("on_the_left", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_weight_only_stays_for_the_other_pass(storage, on_the_left, axis):
    """Without a reason, though some of these weights would not do beside integers either."""
    qw = weights(storage, 6, True, True, axis)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, storage, (6, 6), qw)
        return matmul(node, w, x) if on_the_left else matmul(node, x, w)

    made = apply(module(build, (6, 6)), FUSE)
    assert "qmm.reason" not in only(made, qmm.MatmulOp).attributes
    apply(made, "qmm-fuse-dequant")
    assert names(made)["qmm.dequant_matmul"] == 1


def test_four_bits_on_the_left_are_refused():
    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i4, (5, 7), QuantAttr.get(i4, 0.5))
        return matmul(node, w, dequantized(node, x, X))

    made = apply(module(build, (7, 3), types=[ui8]), FUSE)
    assert "a weight of i4 on the left" in reason(only(made, qmm.MatmulOp))


@pytest.mark.parametrize("storage", [i8, i4], ids=str)
def test_batches_of_weights(storage):
    """Of bytes: as any operand. Of four bits there are none."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, storage, (2, 8, 3), QuantAttr.get(storage, 0.01, 5))
        return quantized(node, matmul(node, dequantized(node, x, X), w), Y)

    made = module(build, (2, 4, 8), types=[ui8])
    check_near(made, [integers(ui8, (2, 4, 8))], FUSE)
    assert no_floats(made) == (storage == i8)
    if storage == i4:
        assert "an operand of i4" in reason(only(made, qmm.MatmulOp))


@pytest.mark.parametrize("order", [(FUSE, "qmm-fuse-dequant"), ("qmm-fuse-dequant", FUSE)])
def test_either_order_of_the_two_passes(order):
    """A graph of both kinds."""

    def build(node: Node, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        w = weight(node, i8, (16, 6), weights(i8, 6, True, True))
        f = weight(node, i8, (3, 2, 1), weights(i8, 3, True, False, axis=0))
        z = conv(node, dequantized(node, node("Reshape").reshape(x, (4, 2, 8)), X), f)
        return [
            quantized(node, matmul(node, dequantized(node, x, X), w), Y),
            quantized(node, z, Y),
            matmul(node, y, w),
        ]

    made = module(build, (4, 16), (4, 16), types=[ui8])
    floats = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    check_near(made, [INPUT, floats], *order)
    found = names(made)
    assert (found["qmm.quant_matmul"], found["qmm.quant_conv"]) == (1, 1)
    assert (found["qmm.dequant_matmul"], found["qmm.requantize"]) == (1, 2)
    assert found["qmm.dequantize"] == 0


def test_scales_along_k_are_refused():
    qw = weights(i8, 16, True, False, axis=0)

    def build(node: Node, x: SSAValue) -> SSAValue:
        return matmul(node, dequantized(node, x, X), weight(node, i8, (16, 6), qw))

    made = apply(module(build, (4, 16), types=[ui8]), FUSE)
    assert "scales along K" in reason(only(made, qmm.MatmulOp))


def test_sums_beyond_32_bits_are_refused():
    """Of constants the sums are known: 66,000 products of 255 and -128 are too many, half of them are not."""
    for k, fits in ((33_000, True), (66_000, False)):
        low = np.full((k, 1), -128, np.int8)

        def build(node: Node, x: SSAValue, low: Array = low) -> SSAValue:
            w = node("w").insert(qmm.ConstantOp(WeightAttr.from_array(low, i8))).result
            w = dequantized(node, w, QuantAttr.get(i8, 0.01))
            return matmul(node, dequantized(node, x, QuantAttr.get(ui8, 0.01)), w)

        made = apply(module(build, (1, k), types=[ui8]), FUSE)
        assert names(made)["qmm.quant_matmul"] == fits
        if not fits:
            assert f"K = {k}" in reason(only(made, qmm.MatmulOp))


def test_a_bias_that_could_overflow_stays_a_float():
    def follow(node: Node, y: SSAValue) -> SSAValue:
        scale = np.float32(X.scales) * weights(i8, 6, True, False).scales
        bias = np.full(6, 2**31 - 128, np.float32) * scale
        return quantized(node, added(node, y, node("b").constant(bias)), Y)

    made = simple(follow)
    check_near(made, [INPUT], FUSE)
    assert names(made)["qmm.requantize"] == 0 and names(made)["qmm.quant_matmul"] == 1


@pytest.mark.parametrize("kind", ["Add", "Tanh", "Softmax"])
def test_islands_say_why(kind):
    def build(node: Node, x: SSAValue) -> SSAValue:
        real = dequantized(node, x, X)
        if kind == "Add":
            return quantized(node, added(node, real, real), Y)
        if kind == "Softmax":
            total = node("Sum").reduce(
                real, [1], 0.0, lambda b, e, acc: b(arith.AddfOp, acc, e), keepdims=True
            )
            y = node("Div").elementwise([real, total], f32, lambda b, e: b(arith.DivfOp, *e))
            return quantized(node, node("Transpose").transpose(y, [1, 0]), Y)
        y = node("Tanh").elementwise([real], f32, lambda b, e: b(math.TanhOp, e[0]))
        return quantized(node, y, Y)

    made = module(build, (4, 16), types=[ui8])
    check_near(made, [INPUT], FUSE)
    last = [op for op in ops(made) if isinstance(op, linalg.GenericOp)][-1]
    assert "an operation on f32" in reason(last)
    assert sum("qmm.reason" in op.attributes for op in ops(made)) == 1


@pytest.mark.parametrize("weight_only", [False, True])
def test_a_residual_after_a_contraction_says_nothing_of_it(weight_only):
    """The sum joins the epilogue, which is no float in memory."""

    def build(node: Node, x: SSAValue, r: SSAValue) -> SSAValue:
        w = weight(node, i8, (16, 6), weights(i8, 6, True, False))
        real = dequantized(node, x, X)
        if weight_only:
            real = node("Tanh").elementwise([real], f32, lambda b, e: b(math.TanhOp, e[0]))
        y = added(node, matmul(node, real, w), dequantized(node, r, Y))
        return quantized(node, y, Y)

    made = module(build, (4, 16), (4, 6), types=[ui8, i8])
    check_near(made, [INPUT, integers(i8, (4, 6))], FUSE)
    assert not any("qmm.reason" in op.attributes for op in ops(made))


def test_a_contraction_of_nothing_stays():
    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i8, (0, 6), QuantAttr.get(i8, 0.5))
        return quantized(node, matmul(node, dequantized(node, x, X), w), Y)

    made = apply(module(build, (4, 0), types=[ui8]), FUSE)
    assert names(made)["qmm.matmul"] == 1


# Anything after anything


class _Chains:
    """Random graphs of what may lie between quantised ends."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def quant(self) -> QuantAttr:
        storage = (i8, ui8)[self.rng.integers(2)]
        low, high = integer_range(storage)
        return QuantAttr.get(
            storage, 0.02 + self.rng.random() / 5, self.rng.integers(low, high + 1)
        )

    def step(self, node: Node, x: SSAValue, others: list[SSAValue]) -> SSAValue:
        """One op on a matrix that gives a matrix."""
        m, n = shape_of(x)
        match self.rng.integers(10):
            case 0:
                return relu(node, x)
            case 1:
                low, high = np.sort(self.rng.normal(size=2) * 3).tolist()
                return clip(node, x, low, high)
            case 2:
                return node("Transpose").transpose(x, [1, 0])
            case 3 if n % 2 == 0:
                return node("Reshape").reshape(x, (m * 2, n // 2))
            case 4:
                odd = n % 2 == 1
                return max_pool(node, x, odd)
            case 5 if others:
                other = others[self.rng.integers(len(others))]
                if shape_of(other)[0] == m:
                    return node("Concat").concat([x, other], 1)
                return x
            case 6:
                return node("Slice").slice(x, [0, 0], [m, n], [1, -1])
            case 8:
                return average_pool(node, x, n % 2 == 1)
            case 9:
                factor = float(np.float32(self.rng.random() + 0.3))
                return node("Mul").elementwise(
                    [x], f32, lambda b, e: b(arith.MulfOp, e[0], b.constant(factor, f32))
                )
            case 7:
                return node("Pad").pad(x, [0, 1], [1, 0], float(self.rng.integers(-2, 3)))
            case _:
                return self.product(node, x)

    def product(self, node: Node, x: SSAValue) -> SSAValue:
        k = shape_of(x)[1]
        n = int(self.rng.integers(1, 7))
        storage = (i8, ui8, i4)[self.rng.integers(3)]
        quant = weights(storage, n, bool(self.rng.integers(2)), bool(self.rng.integers(2)))
        return matmul(
            node, x, weight(node, storage, (k, n), quant, seed=int(self.rng.integers(99)))
        )

    def build(self, node: Node, q: SSAValue) -> list[SSAValue]:
        quant = X
        results: list[SSAValue] = []
        for _ in range(3):
            real = dequantized(node, q, quant)
            seen = [real]
            real = self.product(node, real) if self.rng.integers(4) else real
            for _ in range(self.rng.integers(5)):
                real = self.step(node, real, seen)
                seen.append(real)
            quant = quant if self.rng.integers(3) == 0 else self.quant()
            q = quantized(node, real, quant)
            results.append(q)
            if self.rng.integers(4) == 0:
                results.append(seen[self.rng.integers(len(seen))])
        return results


@pytest.mark.parametrize("part", range(6))
def test_random_chains(part):
    """In the reals, so that integers are equal; and enough of them are of interest."""
    counts: Counter[str] = Counter()
    for seed in range(8 * part, 8 * part + 8):
        made = module(_Chains(seed).build, (6, 8), types=[ui8])
        given = [integers(ui8, (6, 8), seed=seed)]
        before = run(made, given, domain="f64")
        apply(made, FUSE)
        counts += names(made)
        for x, y in zip(before, run(made, given, domain="f64"), strict=True):
            x, y = np.asarray(x), np.asarray(y)
            assert x.shape == y.shape and x.dtype == y.dtype
            if x.dtype.kind == "f":
                np.testing.assert_allclose(x, y, atol=1e-6 * np.abs(x).max(initial=1.0))
            else:
                np.testing.assert_array_equal(x, y)
    assert counts["qmm.quant_matmul"] >= 8 and counts["qmm.requantize"] >= 8
