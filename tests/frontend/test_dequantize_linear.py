"""DequantizeLinear and QuantizeLinear in all granularities, on constants and on data of run time; Deeploy's Dequant."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, ui4, ui8
from qfold.frontend import FrontendError, UnsupportedNodes, import_model
from qfold.interpreters.run import run
from qfold.ir.locations import node_names
from tests.frontend.helpers import (
    Array,
    build,
    check,
    import_checked,
    node,
    ops_of,
    weight_of,
)
from tests.frontend.weights import (
    FLOAT,
    RNG,
    W8,
    K,
    N,
    X,
    ints,
    model,
    only_dequantize,
    rand,
    scales,
)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize(
    ("scale_shape", "axis"),
    [((), None), ((1,), None), ((K,), 0), ((N,), 1), ((N,), -1), ((K,), -2)],
)
@pytest.mark.parametrize("with_zero_point", [False, True])
def test_dequantize_linear(
    dtype: Any, scale_shape: tuple[int, ...], axis: int | None, with_zero_point: bool
):
    q = ints(dtype, K, N)
    constants = {"q": q, "s": scales(*scale_shape)}
    if with_zero_point:
        constants["z"] = ints(dtype, *scale_shape)
    inputs = ["q", "s", "z"] if with_zero_point else ["q", "s"]
    attrs = {} if axis is None else {"axis": axis}
    dq = node("DequantizeLinear", inputs, ["w"], name="dq", **attrs)
    module = check(model([dq], constants), {"x": rand(3, K)})
    op = only_dequantize(module, q)
    assert op.quant.axis == (None if axis is None else axis % 2)
    assert op.quant.granularity == ("tensor" if axis is None else "axis")
    assert node_names(op) == ("dq",)
    (matmul,) = ops_of(module, qmm.MatmulOp)
    assert matmul.b is op.result


@pytest.mark.parametrize(("axis", "block"), [(0, 8), (0, 24), (1, 5), (0, 5), (1, 7)])
def test_blockwise(axis: int, block: int):
    shape = [K, N]
    shape[axis] = -(-shape[axis] // block)
    constants = {"q": W8, "s": scales(*shape), "z": ints(np.int8, *shape)}
    dq = node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=axis, block_size=block)
    module = import_checked(model([dq], constants))
    op = only_dequantize(module, W8)
    assert (op.quant.granularity, op.quant.axis, op.quant.block_size) == ("block", axis, block)
    s, z = (np.repeat(constants[n], block, axis)[:K, :N] for n in "sz")
    w = (W8.astype(np.int32) - z).astype(np.float32) * s
    x = rand(3, K)
    np.testing.assert_allclose(run(module, [x])[0], x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "element"), [(TensorProto.INT4, i4), (TensorProto.UINT4, ui4)])
def test_four_bits(kind: int, element: Any):
    low = -8 if element == i4 else 0
    values = RNG.integers(low, low + 16, (K, N))
    q = helper.make_tensor("q", kind, [K, N], values.reshape(-1).tolist())
    z = helper.make_tensor("z", kind, [N], RNG.integers(low, low + 16, N).tolist())
    dq = node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1)
    module = check(model([dq], {"q": q, "s": scales(N), "z": z}), {"x": rand(3, K)})
    op = only_dequantize(module)
    assert op.q.type.element_type == element
    np.testing.assert_array_equal(weight_of(op), values)


def test_opset_10_has_no_axis():
    constants = {"q": W8, "s": scales(), "z": np.int8(3)}
    dq = node("DequantizeLinear", ["q", "s", "z"], ["w"])
    module = import_checked(model([dq], constants, opset=10))
    assert only_dequantize(module, W8).quant.zero_points == 3
    x = rand(3, K)
    w = (W8.astype(np.float32) - 3) * constants["s"]
    np.testing.assert_allclose(run(module, [x])[0], x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("constants", "attrs", "message"),
    [
        ({"s": np.float32(np.nan)}, {}, "finite and positive, found nan"),
        ({"s": np.float32(0)}, {}, "finite and positive, found 0"),
        ({"s": np.float32(-0.5)}, {}, "finite and positive, found -0.5"),
        ({"s": np.float32(np.inf)}, {}, "finite and positive, found inf"),
        ({"s": scales(K)}, {"axis": 1}, rf"{K} scales do not fit axis 1 of \[{K}, {N}\]"),
        ({"s": scales(N)}, {"axis": 2}, "axis 2 is out of range"),
        ({"s": scales(3, N)}, {"axis": 0}, "needs a block_size"),
        ({"s": scales(3, N)}, {"axis": 0, "block_size": 7}, r"take scales of shape \[4, 20\]"),
        ({"s": scales(), "z": np.uint8(128)}, {}, "the zero point is ui8, the data i8"),
        ({"s": scales(N), "z": ints(np.int8, 3)}, {}, r"the zero point has shape \[3\]"),
    ],
)
def test_wrong_parameters(constants: dict[str, Any], attrs: dict[str, int], message: str):
    inputs = ["q", "s", "z"] if "z" in constants else ["q", "s"]
    dq = node("DequantizeLinear", inputs, ["w"], name="dq", **attrs)
    with pytest.raises(FrontendError, match=message) as error:
        import_model(model([dq], {"q": W8, **constants}))
    assert "'dq'" in str(error.value)


def test_a_scale_that_is_computed_is_refused_with_a_reason():
    inputs = {**X, "s": (np.float32, [])}
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], name="dq"),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    with pytest.raises(
        UnsupportedNodes, match=r"'dq'.* a scale of the constant 'q' that is computed"
    ):
        import_model(build(nodes, inputs, ["y"], {"q": W8}))


def test_half_precision_output_is_refused():
    dq = node("DequantizeLinear", ["q", "s"], ["w"], name="dq")
    with pytest.raises(UnsupportedNodes, match=r"'dq'.* found an output of f16"):
        import_model(model([dq], {"q": W8, "s": np.float16(0.5)}))


def test_output_type_overrides_that_of_the_scale():
    dq = node("DequantizeLinear", ["q", "s"], ["w"], output_dtype=FLOAT)
    op = only_dequantize(import_checked(model([dq], {"q": W8, "s": np.float16(0.5)}, opset=23)), W8)
    assert op.quant.scales == 0.5


def test_an_i32_bias_becomes_a_float_constant():
    bias = ints(np.int32, N) // 1000
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("DequantizeLinear", ["b", "sb"], ["bias"]),
        node("Gemm", ["x", "w", "bias"], ["y"]),
    ]
    constants = {"q": W8, "s": scales(), "b": bias, "sb": scales()}
    module = check(build(nodes, X, ["y"], constants), {"x": rand(3, K)})
    only_dequantize(module, W8)


# Deeploy's Dequant, stored forms, DQ -> Q -> DQ


def dequant(**attrs: Any) -> onnx.NodeProto:
    return node(
        "Dequant",
        ["q"],
        ["w"],
        name="dq",
        **{"scale": 0.25, "zero_point": 3.0, "bit_width": 8, "signed": 1, **attrs},
    )


@pytest.mark.parametrize(
    ("q", "attrs", "element"),
    [
        (W8, {}, i8),
        (W8.astype(np.float32), {}, i8),
        (W8.astype(np.int64), {}, i8),
        (ints(np.uint8, K, N), {"signed": 0}, ui8),
        (ints(np.uint8, K, N).astype(np.float32), {"signed": 0}, ui8),
        (W8 >> 4, {"bit_width": 4}, i4),
        ((W8 >> 6).astype(np.float32), {"bit_width": 2, "zero_point": 0.0}, i4),
    ],
)
def test_dequant(q: Array, attrs: dict[str, Any], element: Any):
    module = import_checked(model([dequant(**attrs)], {"q": q}))
    op = only_dequantize(module)
    assert op.q.type.element_type == element
    np.testing.assert_array_equal(weight_of(op), q)
    x = rand(3, K)
    w = (q.astype(np.float32) - np.float32(attrs.get("zero_point", 3.0))) * np.float32(0.25)
    np.testing.assert_allclose(run(module, [x])[0], x @ w, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("q", "attrs", "message"),
    [
        (W8.astype(np.float32) * 2, {}, "integers of 8 bits, -128..127"),
        (W8.astype(np.float32) + 0.5, {}, "or fractions"),
        (W8, {"signed": 0}, "integers of 8 bits, 0..255"),
        (W8, {"bit_width": 2}, "integers of 2 bits, -2..1"),
        (W8, {"zero_point": 0.5}, "zero point 0.5 is not an integer"),
        (W8, {"zero_point": 300.0}, "zero point 300.0 is not an integer of i8"),
        (W8, {"scale": 0.0}, "finite and positive"),
        (W8, {"scale": float("nan")}, "finite and positive"),
    ],
)
def test_dequant_that_does_not_hold(q: Array, attrs: dict[str, Any], message: str):
    with pytest.raises(FrontendError, match=message):
        import_model(model([dequant(**attrs)], {"q": q}))


def test_dequant_of_an_unsupported_width():
    with pytest.raises(UnsupportedNodes, match="a bit_width of 32"):
        import_model(model([dequant(bit_width=32)], {"q": W8}))


def test_weights_in_constant_nodes():
    nodes = [
        node("Constant", [], ["q"], value=numpy_helper.from_array(W8)),
        node("Constant", [], ["s"], value_float=0.125),
        node("Identity", ["q"], ["q1"]),
        node("DequantizeLinear", ["q1", "s"], ["w0"]),
        node("Identity", ["w0"], ["w"]),
    ]
    only_dequantize(check(model(nodes, {}), {"x": rand(3, K)}), W8)


def test_requantised_constants():
    """DQ -> Q -> DQ: the integers that the Q gives are the weight."""
    s, s2 = scales(N), np.float32(0.05)
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["a"], axis=1),
        node("QuantizeLinear", ["a", "s2", "z2"], ["b"]),
        node("DequantizeLinear", ["b", "s2", "z2"], ["w"], name="last"),
    ]
    constants = {"q": W8, "s": s, "s2": s2, "z2": np.uint8(100)}
    op = only_dequantize(check(model(nodes, constants), {"x": rand(3, K)}))
    w = (W8.astype(np.float32) * s) / s2
    np.testing.assert_array_equal(weight_of(op), np.clip(np.rint(w) + 100, 0, 255).astype(np.uint8))
    assert node_names(op) == ("last",)


@pytest.mark.parametrize("clip", [False, True])
def test_float_weights_behind_a_fake_quantiser(clip: bool):
    w = rand(K, N)
    nodes = [node("QuantizeLinear", ["w0", "s", "z"], ["a"], axis=1)]
    if clip:
        nodes.append(node("Clip", ["a", "low", "high"], ["b"]))
    nodes.append(node("DequantizeLinear", ["b" if clip else "a", "s", "z"], ["w"], axis=1))
    constants = {
        "w0": w,
        "s": scales(N),
        "z": np.zeros(N, np.int8),
        "low": np.int8(-7),
        "high": np.int8(7),
    }
    op = only_dequantize(check(model(nodes, constants), {"x": rand(3, K)}))
    q = np.clip(np.rint(w / constants["s"]), -128, 127)
    np.testing.assert_array_equal(weight_of(op), np.clip(q, -7, 7) if clip else q)


def test_two_nodes_that_dequantise_alike_are_one_op():
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], name="first"),
        node("DequantizeLinear", ["q", "s"], ["v"], name="second"),
        node("MatMul", ["x", "w"], ["y"]),
        node("MatMul", ["x", "v"], ["z"]),
    ]
    module = check(build(nodes, X, ["y", "z"], {"q": W8, "s": scales()}), {"x": rand(3, K)})
    assert node_names(only_dequantize(module, W8)) == ("first", "second")


def test_one_constant_dequantised_in_two_ways_is_stored_once():
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("DequantizeLinear", ["q", "t"], ["v"]),
        node("MatMul", ["x", "w"], ["y"]),
        node("MatMul", ["x", "v"], ["z"]),
    ]
    module = check(
        build(nodes, X, ["y", "z"], {"q": W8, "s": scales(), "t": scales()}), {"x": rand(3, K)}
    )
    first, second = ops_of(module, qmm.DequantizeOp)
    assert first.q is second.q


# Data of run time


def test_quantised_activations():
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], name="dq"),
    ]
    constants = {"s": np.float32(0.03), "z": np.uint8(120)}
    module = check(build(nodes, X, ["q", "y"], constants), {"x": 3 * rand(3, K)})
    assert len(ops_of(module, qmm.QuantizeOp)) == len(ops_of(module, qmm.DequantizeOp)) == 1


def test_quantised_activations_per_axis():
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1)]
    constants = {"s": scales(K), "z": ints(np.int8, K)}
    (op,) = ops_of(check(build(nodes, X, ["q"], constants), {"x": rand(3, K)}), qmm.QuantizeOp)
    assert op.quant.axis == 1


def test_parameters_of_run_time():
    inputs = {**X, "s": (np.float32, [1]), "z": (np.int8, [])}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    feeds = {"x": rand(3, K), "s": np.float32([0.02]), "z": np.int8(-5)}
    module = import_checked(build(nodes, inputs, ["q", "y"]))
    got = run(module, list(feeds.values()))
    want = np.clip(np.rint(feeds["x"] / feeds["s"]) - 5, -128, 127)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_allclose(got[1], (want + 5) * feeds["s"], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "scale_shape", "attrs"),
    [
        ((2, 3, 4, 5), (3,), {"axis": 1}),
        ((2, 3, 4), (4,), {"axis": -1}),
        ((2, 3), (2,), {"axis": 0}),
        ((6, 4), (2, 4), {"axis": 0, "block_size": 3}),
        ((2, 8, 3), (2, 4, 3), {"axis": 1, "block_size": 2}),
        ((3, 8), (3, 2), {"axis": 1, "block_size": 4}),
    ],
)
def test_parameters_of_run_time_per_axis_and_block(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], attrs: dict[str, int]
):
    inputs = {
        "x": (np.float32, shape),
        "s": (np.float32, scale_shape),
        "z": (np.uint8, scale_shape),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], **attrs),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], **attrs),
    ]
    feeds = {"x": rand(*shape), "s": scales(*scale_shape), "z": ints(np.uint8, *scale_shape)}
    module = import_checked(build(nodes, inputs, ["q", "y"]))
    got = run(module, list(feeds.values()))
    axis, block = attrs["axis"], attrs.get("block_size")
    if block is None:
        view = [-1 if d == axis % len(shape) else 1 for d in range(len(shape))]
        s, z = feeds["s"].reshape(view), feeds["z"].reshape(view)
    else:
        s, z = np.repeat(feeds["s"], block, axis), np.repeat(feeds["z"], block, axis)
    want = np.clip(np.rint(feeds["x"] / s) + z, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], (want.astype(np.int32) - z).astype(np.float32) * s)
    assert len(ops_of(module, qmm.QuantizeOp)) == len(ops_of(module, qmm.DequantizeOp)) == 1


def test_scales_of_blocks_have_either_sign():
    """As onnxruntime's symmetric quantiser writes them: the largest element of a block has the lowest integer."""
    s = scales(3, N) * np.where(RNG.random((3, N)) < 0.5, -1, 1).astype(np.float32)
    s[1, 0] = 0
    dq = node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=8)
    module = import_checked(model([dq], {"q": W8, "s": s}))
    op = only_dequantize(module, W8)
    np.testing.assert_array_equal(op.quant.scales, s)
    x = rand(3, K)
    w = W8.astype(np.float32) * np.repeat(s, 8, 0)
    np.testing.assert_allclose(run(module, [x])[0], x @ w, rtol=1e-4, atol=1e-4)
    with pytest.raises(FrontendError, match="has to be finite, found inf"):
        import_model(model([dq], {"q": W8, "s": np.full((3, N), np.inf, np.float32)}))
