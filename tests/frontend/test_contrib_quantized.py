"""The quantised operators of com.microsoft, against onnxruntime without optimisations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from qfold.dialects import qmm
from qfold.dialects.element_types import ui4, ui8
from qfold.frontend import FrontendError, UnsupportedNodes, import_model
from qfold.interpreters.run import run
from tests.frontend.helpers import Array, build, import_checked, node, ops_of
from tests.frontend.quantized import (
    CHECKED,
    I8,
    U8,
    check_against_onnxruntime,
    compiled_side_by_side,
    contrib,
    full_range,
)

MICROSOFT = "com.microsoft"
EXTREME = {I8: (-128, 127, -5), U8: (0, 255, 131)}
"""Zero points: the ends of the range, and one within."""


def float_data(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def has_ops(module: ModuleOp, *kinds: Any) -> None:
    for kind in kinds:
        assert ops_of(module, kind), f"no {kind.name}"


@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (0, 1), (1, 1)])
def test_qgemm(dtype: Any, per_column: bool, floats: bool, trans_a: int, trans_b: int):
    m, k, n = 5, 19, 6
    constants: dict[str, Any] = {
        "sa": np.float32(0.021),
        "za": np.asarray(EXTREME[dtype][2], dtype),
        "b": full_range(dtype, *((n, k) if trans_b else (k, n)), seed=1),
        "sb": np.linspace(0.01, 0.03, n, dtype=np.float32) if per_column else np.float32(0.02),
        "zb": full_range(dtype, n, seed=2) if per_column else np.asarray(EXTREME[dtype][0], dtype),
        "c": np.random.default_rng(5).integers(-30000, 30000, n).astype(np.int32),
    }
    inputs = ["a", "sa", "za", "b", "sb", "zb", "c"]
    if not floats:
        constants |= {"sy": np.float32(0.61), "zy": np.asarray(EXTREME[dtype][2], dtype)}
        inputs += ["sy", "zy"]
    gemm = node("QGemm", inputs, ["y"], domain=MICROSOFT, transA=trans_a, transB=trans_b, alpha=0.5)
    shape = (k, m) if trans_a else (m, k)
    model = contrib(
        [gemm], {"a": (dtype, shape)}, {"y": np.float32 if floats else dtype}, constants
    )
    module = check_against_onnxruntime(model, {"a": full_range(dtype, *shape, seed=7)})
    has_ops(module, qmm.QuantMatmulOp)
    assert len(ops_of(module, qmm.RequantizeOp)) == (0 if floats else 1)


ARITHMETIC: dict[str, Any] = {"QLinearAdd": np.add, "QLinearMul": np.multiply}


@pytest.mark.parametrize("operator", list(ARITHMETIC))
@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("b_shape", [(4, 33), (33,), ()])
def test_qlinear_add_and_mul(operator: str, dtype: Any, zero: int, b_shape: tuple[int, ...]):
    z = [np.asarray(EXTREME[dtype][(zero + i) % 3], dtype) for i in range(3)]
    constants = {"sa": np.float32(0.0317), "za": z[0], "sb": np.float32(0.0113), "zb": z[1]}
    constants |= {"sc": np.float32(0.0419), "zc": z[2]}
    inputs = ["a", "sa", "za", "b", "sb", "zb", "sc", "zc"]
    model = contrib(
        [node(operator, inputs, ["y"], domain=MICROSOFT)],
        {"a": (dtype, [4, 33]), "b": (dtype, b_shape)},
        {"y": dtype},
        constants,
    )
    feeds = {"a": full_range(dtype, 4, 33, seed=1), "b": full_range(dtype, *b_shape, seed=2)}
    # onnxruntime folds the scales before it adds: one step at near ties.
    module = check_against_onnxruntime(model, feeds, steps=1)
    has_ops(module, qmm.DequantizeOp, qmm.QuantizeOp)


@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize(
    ("operator", "attrs"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.3}),
        ("QLinearSoftmax", {"axis": -1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 1, "opset": 11}),
    ],
)
def test_functions_of_one_tensor(dtype: Any, operator: str, attrs: dict[str, Any]):
    z = np.asarray(EXTREME[dtype][2], dtype)
    constants = {"sx": np.float32(0.037), "zx": z, "sy": np.float32(1 / 256)}
    constants["zy"] = np.asarray(np.iinfo(dtype).min, dtype)
    if operator == "QLinearLeakyRelu":
        constants |= {"sy": np.float32(0.029), "zy": z}
    qnode = node(operator, ["x", "sx", "zx", "sy", "zy"], ["y"], domain=MICROSOFT, **attrs)
    model = contrib([qnode], {"x": (dtype, [3, 5, 16])}, {"y": dtype}, constants)
    steps = 1 if operator == "QLinearSoftmax" else 0
    check_against_onnxruntime(model, {"x": full_range(dtype, 3, 5, 16)}, steps=steps)


@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("everything", [False, True])
def test_average_pools(dtype: Any, channels_last: int, everything: bool):
    z = EXTREME[dtype]
    constants = {"sx": np.float32(0.037), "zx": np.asarray(z[2], dtype), "sy": np.float32(0.029)}
    constants["zy"] = np.asarray(z[1], dtype)
    attrs: dict[str, Any] = {"channels_last": channels_last}
    if not everything:
        attrs |= {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
        attrs["count_include_pad"] = 0
    operator = "QLinearGlobalAveragePool" if everything else "QLinearAveragePool"
    qnode = node(operator, ["x", "sx", "zx", "sy", "zy"], ["y"], domain=MICROSOFT, **attrs)
    shape = (2, 6, 7, 4) if channels_last else (2, 4, 6, 7)
    model = contrib([qnode], {"x": (dtype, shape)}, {"y": dtype}, constants)
    check_against_onnxruntime(model, {"x": full_range(dtype, *shape)}, steps=1)


@pytest.mark.parametrize("dtype", [I8, U8])
def test_concat_keeps_the_parts_that_have_its_scale(dtype: Any):
    z = [np.asarray(v, dtype) for v in EXTREME[dtype]]
    constants = {"sy": np.float32(0.04), "zy": z[2], "sb": np.float32(0.1), "zb": z[0]}
    parts = ["a", "sy", "zy", "b", "sb", "zb"]
    qnode = node("QLinearConcat", ["sy", "zy", *parts], ["y"], domain=MICROSOFT, axis=1)
    model = contrib([qnode], {"a": (dtype, [2, 9]), "b": (dtype, [2, 5])}, {"y": dtype}, constants)
    feeds = {"a": full_range(dtype, 2, 9), "b": full_range(dtype, 2, 5, seed=2)}
    module = check_against_onnxruntime(model, feeds)
    assert len(ops_of(module, qmm.DequantizeOp)) == 1


@pytest.mark.parametrize("a_type", [U8])
@pytest.mark.parametrize("b_type", [I8, U8])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_integer_to_float(a_type: Any, b_type: Any, per_column: bool, bias: bool):
    n = 6
    constants: dict[str, Any] = {
        "b": full_range(b_type, 19, n, seed=1),
        "sa": np.float32(0.021),
        "sb": np.linspace(0.01, 0.03, n, dtype=np.float32) if per_column else np.float32(0.02),
        "za": np.asarray(201, a_type),
        "zb": full_range(b_type, n, seed=2) if per_column else np.asarray(17, b_type),
        "bias": float_data(n),
    }
    inputs = ["a", "b", "sa", "sb", "za", "zb", *(["bias"] if bias else [])]
    qnode = node("MatMulIntegerToFloat", inputs, ["y"], domain=MICROSOFT)
    model = contrib([qnode], {"a": (a_type, [2, 4, 19])}, {"y": np.float32}, constants)
    module = check_against_onnxruntime(model, {"a": full_range(a_type, 2, 4, 19)})
    has_ops(module, qmm.QuantMatmulOp)


@pytest.mark.parametrize("b_type", [I8, U8])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("optional", [False, True])
def test_dynamic_quantize_matmul(b_type: Any, per_column: bool, optional: bool):
    n = 6
    constants: dict[str, Any] = {
        "b": full_range(b_type, 19, n, seed=1),
        "sb": np.linspace(0.01, 0.03, n, dtype=np.float32) if per_column else np.float32(0.02),
        "zb": full_range(b_type, n, seed=2) if per_column else np.asarray(17, b_type),
        "bias": float_data(n),
    }
    inputs = ["a", "b", "sb", *(["zb", "bias"] if optional else [])]
    qnode = node("DynamicQuantizeMatMul", inputs, ["y"], domain=MICROSOFT)
    model = contrib([qnode], {"a": (np.float32, [4, 19])}, {"y": np.float32}, constants)
    module = check_against_onnxruntime(model, {"a": float_data(4, 19)})
    has_ops(module, qmm.DynamicQuantizeOp, qmm.QuantMatmulOp)


def pack_nibbles(values: Array) -> Array:
    """The last dimension two to a byte, low nibble first; an odd end is filled with 0."""
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
    return (values[..., 0::2] | values[..., 1::2] << 4).astype(np.uint8)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("k", "block"), [(64, 16), (70, 32), (48, 16), (31, 32)])
@pytest.mark.parametrize("zero_points", ["none", "packed", "float"])
@pytest.mark.parametrize(("bias", "signed"), [(False, False), (True, False), (True, True)])
def test_matmul_nbits(bits: int, k: int, block: int, zero_points: str, bias: bool, signed: bool):
    """`signed`: scales of both signs, and 0, as onnxruntime's symmetric quantiser writes them."""
    n, blocks = 7, -(-k // block)
    rng = np.random.default_rng(k + bits)
    q = rng.integers(0, 1 << bits, (n, blocks, block)).astype(np.uint8)
    z = rng.integers(0, 1 << bits, (n, blocks)).astype(np.uint8)
    scale = rng.uniform(0.01, 0.1, (n, blocks)).astype(np.float32)
    if signed:
        scale[::2] *= -1
        scale[1, 0] = 0
    constants: dict[str, Any] = {
        "b": pack_nibbles(q) if bits == 4 else q,
        "s": scale,
        "bias": float_data(n),
    }
    names = ["a", "b", "s", "", "", "bias" if bias else ""]
    if zero_points != "none":
        names[3] = "z"
        constants["z"] = z.astype(np.float32)
        if zero_points == "packed":
            constants["z"] = pack_nibbles(z) if bits == 4 else z
    while not names[-1]:
        names.pop()
    qnode = node(
        "MatMulNBits", names, ["y"], domain=MICROSOFT, K=k, N=n, bits=bits, block_size=block
    )
    model = contrib([qnode], {"a": (np.float32, [2, 3, k])}, {"y": np.float32}, constants)
    a = float_data(2, 3, k)
    if zero_points == "float" and bits == 8:
        module = import_checked(model)  # onnxruntime does not have these
    else:
        module = check_against_onnxruntime(model, {"a": a}, rtol=1e-5)
    (op,) = ops_of(module, qmm.DequantizeOp)
    assert op.q.type.element_type == {4: ui4, 8: ui8}[bits]
    assert op.quant.granularity == ("axis" if blocks == 1 and not signed else "block")
    (matmul,) = ops_of(module, qmm.MatmulOp)
    assert matmul.b is op.result and matmul.transpose_b is not None
    points = z if zero_points != "none" else np.full_like(z, 1 << (bits - 1))
    difference = q.astype(np.float64) - points[:, :, None]
    real = (difference * scale[:, :, None]).reshape(n, -1)
    want = a.astype(np.float64) @ real[:, :k].T + (constants["bias"] if bias else 0)
    np.testing.assert_allclose(run(module, [a])[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("attrs", "inputs", "message"),
    [
        ({"bits": 2}, ["a", "b", "s"], "weights of 2 bits"),
        ({}, ["a", "b", "s", "", "g"], "g_idx"),
        ({}, ["a", "b", "s", "half"], "zero points that are fractions"),
    ],
)
def test_matmul_nbits_refusals(attrs: dict[str, int], inputs: list[str], message: str):
    given = {"K": 32, "N": 2, "bits": 4, "block_size": 16} | attrs
    constants = {
        "b": np.zeros((2, 2, 8), np.uint8),
        "s": np.ones((2, 2), np.float32),
        "g": np.zeros(32, np.int32),
        "half": np.full((2, 2), 7.5, np.float32),
    }
    qnode = node("MatMulNBits", inputs, ["y"], "wide", domain=MICROSOFT, **given)
    model = contrib([qnode], {"a": (np.float32, [3, 32])}, {"y": np.float32}, constants)
    with pytest.raises(UnsupportedNodes, match=rf"'wide'.*{message}"):
        import_model(model)


def test_matmul_nbits_of_a_wrong_size_is_no_weight():
    constants = {"b": np.zeros((2, 2, 7), np.uint8), "s": np.ones((2, 2), np.float32)}
    attrs = {"K": 32, "N": 2, "bits": 4, "block_size": 16}
    qnode = node("MatMulNBits", ["a", "b", "s"], ["y"], "wide", domain=MICROSOFT, **attrs)
    model = contrib([qnode], {"a": (np.float32, [3, 32])}, {"y": np.float32}, constants)
    with pytest.raises(FrontendError, match=r"'wide'.*a weight has shape \[2, 2, 7\]"):
        import_model(model)


@pytest.mark.parametrize("dtype", [I8, U8])
def test_quantize_and_dequantize_of_the_other_domain(dtype: Any):
    """A constant becomes a weight; data of run time is quantised and dequantised."""
    constants: dict[str, Any] = {
        "q": full_range(dtype, 6, 5),
        "s": np.linspace(0.01, 0.05, 5, dtype=np.float32),
        "z": full_range(dtype, 5, seed=9),
        "sx": np.float32(0.02),
        "zx": np.asarray(3, dtype),
    }
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"], domain=MICROSOFT, axis=1),
        node("QuantizeLinear", ["x", "sx", "zx"], ["xq"], domain=MICROSOFT),
        node("DequantizeLinear", ["xq", "sx", "zx"], ["xf"], domain=MICROSOFT),
        node("MatMul", ["xf", "w"], ["y"]),
    ]
    model = contrib(nodes, {"x": (np.float32, [4, 6])}, {"y": np.float32}, constants)
    module = check_against_onnxruntime(model, {"x": float_data(4, 6)})
    assert len(ops_of(module, qmm.DequantizeOp)) == 2


def test_convolution_with_channels_last():
    """Data and result [N, H, W, C], the weight as ever."""
    constants = {
        "sa": np.float32(0.02),
        "za": np.uint8(250),
        "b": full_range(I8, 3, 2, 3, 3),
        "sb": np.array([0.01, 0.02, 0.03], np.float32),
        "zb": np.array([1, -2, 3], I8),
        "sy": np.float32(0.4),
        "zy": np.uint8(77),
    }
    inputs = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    attrs = {"pads": [1, 0, 1, 2], "strides": [2, 1]}
    first = build(
        [node("QLinearConv", inputs, ["y"], **attrs)], {"a": (U8, [1, 2, 6, 5])}, ["y"], constants
    )
    last = contrib(
        [node("QLinearConv", inputs, ["y"], domain=MICROSOFT, channels_last=1, **attrs)],
        {"a": (U8, [1, 6, 5, 2])},
        {"y": U8},
        constants,
    )
    x = full_range(U8, 1, 2, 6, 5)
    want = np.asarray(run(import_checked(first), [x])[0]).transpose(0, 2, 3, 1)
    got = run(import_checked(last), [np.ascontiguousarray(x.transpose(0, 2, 3, 1))])[0]
    np.testing.assert_array_equal(got, want)


def test_all_of_these_compiled():
    """What ran above, thinned out, as one network in C: integers are those of the interpreter."""
    if not CHECKED:
        pytest.skip("no other test of this file ran")
    for got, want in compiled_side_by_side(CHECKED[::6]):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if got.dtype.kind == "f":
            bound = 1e-5 * max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=bound)
        else:
            np.testing.assert_array_equal(got, want)
