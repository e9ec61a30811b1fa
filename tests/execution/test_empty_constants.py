"""Constants without elements, between ones that have some: C has no empty array, and addresses are shared."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from qfold.frontend import load_model
from qfold.tools.driver import compile_loaded
from qfold.tools.verify import verify


def test_empty_weights_keep_their_size() -> None:
    rng = np.random.default_rng(0)
    constants = {
        "none": np.zeros((0, 1, 1), np.float32),
        "q0": np.zeros((0, 24), np.int8),
        "scale": np.array(0.5, np.float32),
        "bias": rng.standard_normal((3, 24)).astype(np.float32),
        "q1": rng.integers(-128, 128, (24, 20)).astype(np.int8),
    }
    nodes = [
        helper.make_node("Div", ["x", "none"], ["z"]),
        helper.make_node("DequantizeLinear", ["q0", "scale"], ["w0"]),
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Add", ["a", "bias"], ["b"]),
        helper.make_node("DequantizeLinear", ["q1", "scale"], ["w1"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "empty",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 0])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 20]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [0, 3, 0]),
        ],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    loaded = load_model(model.SerializeToString())
    compilation = compile_loaded(loaded)
    expected = constants["bias"] @ (0.5 * constants["q1"].astype(np.float32))
    outputs = {"y": expected, "z": np.zeros((0, 3, 0), np.float32)}
    result = verify(compilation, loaded, {"x": np.zeros((3, 0), np.float32)}, outputs)
    assert result.ok, result
