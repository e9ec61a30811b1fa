"""Networks of RequantShift: integers in FLOAT tensors, imported as the integers that their operators declare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp

from qfold.dialects import qmm
from qfold.dialects.element_types import i8, i32, ui8
from qfold.frontend import FrontendError, UnsupportedNodes, import_model
from qfold.interpreters.run import run
from qfold.tools.qfold import main
from tests.frontend.helpers import Array, build, float_constants, main_of, node, ops_of
from tests.frontend.quantized import full_range

RNG = np.random.default_rng(3)
F32 = np.float32


def requant(x: str, y: str, mul: str, add: str, **changes: Any) -> NodeProto:
    """A RequantShift by 2^8 to 256 signed levels, unless changed."""
    attrs: dict[str, Any] = {"div": 256.0, "n_levels_out": [256.0], "signed": [1.0]} | changes
    tensors = {k: numpy_helper.from_array(np.asarray(v, F32)) for k, v in attrs.items()}
    return node("RequantShift", [x, mul, add], [y], f"rq_{y}", domain="PACTOps", **tensors)


def shifted(x: Array, mul: Any, add: Any, div: int, low: int, high: int) -> Array:
    """What the deployment tools compute, in 64 bits: half of the divisor is added, then rounded down."""
    total = x.astype(np.int64) * np.asarray(mul, np.int64) + np.asarray(add, np.int64) + div // 2
    return np.clip(total // div, low, high)


def whole(low: int, high: int, *shape: int) -> Array:
    """Integers in a float array."""
    return RNG.integers(low, high + 1, shape).astype(F32)


def pact(
    nodes: list[NodeProto],
    shape: tuple[int, ...],
    constants: Mapping[str, Any],
    *,
    inputs: Mapping[str, Any] | None = None,
) -> ModelProto:
    """x: FLOAT; y: FLOAT."""
    model = build(nodes, inputs or {"x": (F32, shape)}, ["y"], constants, opset=13)
    model.graph.output[0].type.tensor_type.elem_type = 1
    model.opset_import.append(helper.make_opsetid("PACTOps", 1))
    return model


def imported(model: ModelProto, **options: Any) -> ModuleOp:
    module = import_model(model, **options)
    module.verify()
    return module


def small_net() -> tuple[ModelProto, dict[str, Array]]:
    """Conv, Add of a branch, MaxPool, Gemm: one of each kind of operator on integers."""
    constants = {
        "w": whole(-128, 127, 4, 2, 3, 3),
        "m": whole(20, 60, 4, 1, 1),
        "a": whole(-9000, 9000, 4, 1, 1),
        "m0": np.asarray(200, F32),
        "a0": np.asarray(0, F32),
        "shape": np.array([1, -1]),
        "g": whole(-128, 127, 5, 16),
        "c": whole(-3000, 3000, 5),
        "m1": np.asarray(3, F32),
    }
    nodes = [
        node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        requant("h", "u", "m", "a", signed=[0.0], div=65536.0),
        requant("u", "s", "m0", "a0"),
        node("Add", ["u", "s"], ["sum"]),
        requant("sum", "r", "m0", "a0", signed=[0.0], div=512.0),
        node("Relu", ["r"], ["k"]),
        node("MaxPool", ["k"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["p", "shape"], ["f"]),
        node("Gemm", ["f", "g", "c"], ["t"], transB=1),
        requant("t", "y", "m1", "a0", div=2048.0),
    ]
    return pact(nodes, (1, 2, 4, 4), constants), constants


def small_net_reference(x: Array, c: dict[str, Array]) -> Array:
    x = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    h = np.einsum("cijkl,mckl->mij", windows, c["w"].astype(np.int64))[None]
    u = shifted(h, c["m"], c["a"], 65536, 0, 255)
    s = shifted(u, 200, 0, 256, -128, 127)
    r = shifted(u + s, 200, 0, 512, 0, 255)
    pooled = r.reshape(1, 4, 2, 2, 2, 2).max(axis=(3, 5)).reshape(1, 16)
    t = pooled @ c["g"].astype(np.int64).T + c["c"].astype(np.int64)
    return shifted(t, 3, 0, 2048, -128, 127)


@pytest.mark.parametrize("storage", [None, ui8, i8])
def test_a_network(storage: Any):
    """Bit-exact whether the input is declared or not; declared, no float is left between input and output."""
    model, constants = small_net()
    low, high = {None: (-128, 255), ui8: (0, 255), i8: (-128, 127)}[storage]
    dtype = {None: F32, ui8: np.uint8, i8: np.int8}[storage]
    module = imported(model, input_types=None if storage is None else {"x": storage})
    for _ in range(4):
        x = whole(low, high, 1, 2, 4, 4).astype(dtype)
        (y,) = run(module, [x])
        assert np.asarray(y).dtype == F32
        np.testing.assert_array_equal(y, small_net_reference(x, constants))
    assert len(ops_of(module, qmm.RequantizeShiftOp)) == 4
    assert len(ops_of(module, qmm.QuantMatmulOp)) == 1
    assert len(ops_of(module, qmm.QuantConvOp)) == (storage is not None)
    assert len(ops_of(module, qmm.ConvOp)) == (storage is None)
    assert len(float_constants(module, 2)) == (storage is None)  # its weight
    if storage is not None:
        floats = [r for op in module.walk() for r in op.results if "xf32" in str(r.type)]
        returned = main_of(module).body.block.last_op
        assert returned is not None
        # The conversion to what the output is declared as, and its destination.
        assert {r.type for r in floats} == {returned.operands[0].type}


@pytest.mark.parametrize(
    ("changes", "low", "high", "storage"),
    [
        ({}, -128, 127, i8),
        ({"signed": [0.0]}, 0, 255, ui8),
        ({"n_levels_out": [16.0]}, -8, 7, i8),
        ({"n_levels_out": [16.0], "signed": [0.0]}, 0, 15, ui8),
        ({"div": 1.0}, -128, 127, i8),
        ({"div": 2.0}, -128, 127, i8),
    ],
)
@pytest.mark.parametrize("declared", [False, True])
def test_levels_ties_and_saturation(
    changes: dict[str, Any], low: int, high: int, storage: Any, declared: bool
):
    """Every i32 sum of a single product: halves are rounded upwards, at a shift of 0 nothing is added."""
    model = pact(
        [node("MatMul", ["x", "w"], ["t"]), requant("t", "y", "m", "a", **changes)],
        (256, 1),
        {"w": np.ones((1, 3), F32), "m": np.array([1, 64, 128], F32), "a": np.array(-128, F32)},
    )
    module = imported(model, input_types={"x": i8} if declared else None)
    x = np.arange(-128, 128).reshape(256, 1)
    div = int(changes.get("div", 256.0))
    want = shifted(np.repeat(x, 3, axis=1), [1, 64, 128], -128, div, low, high)
    (op,) = ops_of(module, qmm.RequantizeShiftOp)
    assert (op.storage, op.clamp, op.axis_index) == (storage, (low, high), 1)
    (y,) = run(module, [x.astype(np.int8 if declared else F32)])
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("clip", [(0, 100), (-200, 50), (-5, 500)])
def test_clip_and_relu_stay_integers(clip: tuple[int, int]):
    nodes = [
        requant("x", "q", "m", "a"),
        node("Clip", ["q", "low", "high"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[1, 0]),
        node("Concat", ["t", "t"], ["k"], axis=0),
        requant("k", "y", "m", "a"),
    ]
    bounds = {"low": np.asarray(clip[0], F32), "high": np.asarray(clip[1], F32)}
    model = pact(nodes, (4, 3), {"m": F32(300), "a": F32(7), **bounds})
    module = imported(model, input_types={"x": i8})
    x = whole(-128, 127, 4, 3).astype(np.int8)
    q = np.maximum(np.clip(shifted(x, 300, 7, 256, -128, 127), *clip), 0).T
    want = shifted(np.concatenate([q, q]), 300, 7, 256, -128, 127)
    np.testing.assert_array_equal(run(module, [x])[0], want)
    assert [op.accumulator.type.element_type for op in ops_of(module, qmm.RequantizeShiftOp)] == [
        i32,
        i32,
    ]


def test_parameters_of_run_time():
    """Inputs of i32, as kernels under test have them: no op holds those, so the node is a loop in 64 bits."""
    inputs: dict[str, Any] = {
        "x": (np.int32, [2, 3]),
        "m": (np.int32, [2, 1]),
        "a": (np.int32, [3]),
    }
    model = pact([requant("x", "y", "m", "a")], (), {}, inputs=inputs)
    model.graph.output[0].type.tensor_type.elem_type = 6
    module = imported(model)
    x = np.array([[2**30, -(2**30), 129], [-1, 0, 300]], np.int32)
    m, a = np.array([[2**20], [5]], np.int32), np.array([64, -(2**31), 2**31 - 1], np.int32)
    want = shifted(x, m, a, 256, -128, 127)
    np.testing.assert_array_equal(run(module, [x, m, a])[0], want)
    assert np.asarray(run(module, [x, m, a])[0]).dtype == np.int32


def test_an_average_leaves_floats():
    """RequantShift of fractions: computed in 64-bit floats, as written."""
    nodes = [
        requant("x", "q", "m", "a"),
        node("GlobalAveragePool", ["q"], ["p"]),
        requant("p", "y", "m", "a"),
    ]
    model = pact(nodes, (1, 2, 1, 4), {"m": F32(300), "a": F32(7)})
    module = imported(model, input_types={"x": i8})
    x = whole(-128, 127, 1, 2, 1, 4).astype(np.int8)
    mean = shifted(x, 300, 7, 256, -128, 127).mean(axis=(2, 3), keepdims=True)
    want = np.clip(np.floor((mean * 300 + 7 + 128) / 256), -128, 127)
    np.testing.assert_array_equal(run(module, [x])[0], want)


def test_a_transposed_weight_is_narrowed_where_it_is_stored():
    nodes = [
        requant("x", "q", "m", "a"),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["q", "t"], ["h"]),
        requant("h", "y", "m", "a"),
    ]
    model = pact(nodes, (4, 3), {"w": whole(-128, 127, 5, 3), "m": F32(30), "a": F32(7)})
    (op,) = ops_of(imported(model, input_types={"x": i8}), qmm.QuantMatmulOp)
    assert op.transpose_b is not None


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([[128.0, 1.0, 0.0]], "'w' is declared to hold integers of i8, but holds 0.0..128.0"),
        ([[0.5, 1.0, 0.0]], "'w' is declared to hold integers of i8"),
        ([[np.nan, 1.0, 0.0]], "'w' is declared to hold integers of i8"),
    ],
)
def test_a_weight_that_does_not_fit_is_an_error(weight: Any, message: str):
    nodes = [
        requant("x", "q", "m", "a"),
        node("Gemm", ["q", "w"], ["h"], "product", transB=1),
        requant("h", "y", "m", "a"),
    ]
    model = pact(nodes, (4, 3), {"w": np.array(weight, F32), "m": F32(30), "a": F32(7)})
    with pytest.raises(FrontendError, match=rf"'product'.*{message}"):
        import_model(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"div": 100.0}, "div = 100"),
        ({"div": 0.0}, "div = 0"),
        ({"n_levels_out": [512.0]}, "512 levels"),
        ({"n_levels_out": [256.0, 16.0]}, "2 numbers in 'n_levels_out'"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str):
    model = pact([requant("x", "y", "m", "a", **changes)], (4, 3), {"m": F32(1), "a": F32(0)})
    with pytest.raises(UnsupportedNodes, match=rf"'rq_y'.*{message}"):
        import_model(model)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"m": F32(1.5)}, "mul is declared to hold integers of i32"),
        ({"a": F32(2**31)}, "add is declared to hold integers of i32"),
        ({"m": np.ones(4, F32)}, r"mul of shape \[4\] does not broadcast to \[4, 3\]"),
    ],
)
def test_invalid_parameters(constants: dict[str, Any], message: str):
    given = {"m": F32(1), "a": F32(0)} | constants
    with pytest.raises(FrontendError, match=rf"'rq_y'.*{message}"):
        import_model(pact([requant("x", "y", "m", "a")], (4, 3), given))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"z": i8}, "no input is called 'z'"),
        ({"x": i32}, "is declared to hold i32"),
    ],
)
def test_input_types_are_checked(types: dict[str, Any], message: str):
    model = pact([requant("x", "y", "m", "a")], (4, 3), {"m": F32(1), "a": F32(0)})
    with pytest.raises(FrontendError, match=message):
        import_model(model, input_types=types)


def test_an_output_declared_as_integers_is_the_integers():
    model = pact([requant("x", "y", "m", "a")], (4, 3), {"m": F32(3), "a": F32(0)})
    model.graph.output[0].type.tensor_type.elem_type = 3
    module = imported(model, input_types={"x": i8})
    x = whole(-128, 127, 4, 3).astype(np.int8)
    (y,) = run(module, [x])
    assert np.asarray(y).dtype == np.int8
    np.testing.assert_array_equal(y, shifted(x, 3, 0, 256, -128, 127))


def test_an_input_of_integers_in_a_network_of_floats():
    """Only the input is integers: weights are what they are."""
    w = RNG.standard_normal((3, 5)).astype(F32)
    model = build([node("MatMul", ["x", "w"], ["y"])], {"x": (F32, [4, 3])}, ["y"], {"w": w})
    module = imported(model, input_types={"x": ui8})
    x = whole(0, 255, 4, 3).astype(np.uint8)
    np.testing.assert_allclose(run(module, [x])[0], x.astype(F32) @ w, rtol=1e-5)
    assert not ops_of(module, qmm.QuantMatmulOp)


def test_the_command_line_declares_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, _ = small_net()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert main(["import", str(path), "--input-type", "x=ui8"]) == 0
    text = capsys.readouterr().out
    assert "tensor<1x2x4x4xui8>" in text and "qmm.quant_conv" in text
    assert main(["import", str(path), "--input-type", "x=f32"]) == 2
    assert "NAME=i8 or NAME=ui8; found 'x=f32'" in capsys.readouterr().err


@pytest.mark.parametrize("wide", [np.int32, np.int64])
def test_an_input_of_wide_integers_may_be_declared_to_hold_bytes(wide: type) -> None:
    """Then it is one, and a product of two is a product of bytes; what is no byte of the type is the caller's mistake."""
    nodes = [node("MatMul", ["a", "b"], ["y"], "product")]
    model = build(nodes, {"a": (wide, (2, 5)), "b": (wide, (5, 3))}, ["y"], {}, opset=13)
    module = import_model(model, input_types={"a": ui8, "b": i8})
    (product,) = ops_of(module, qmm.QuantMatmulOp)
    a, b = full_range(np.uint8, 2, 5), full_range(np.int8, 5, 3)
    (got,) = run(module, [a, b])
    want = a.astype(wide) @ b.astype(wide)
    assert np.asarray(got).dtype == wide
    np.testing.assert_array_equal(got, want)
    assert str(product.result.type) == "tensor<2x3xi32>"
