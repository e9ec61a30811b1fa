"""Small models for the tests of the tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper


def linear_model(zero_point: int = 3, batch: int | str = 4) -> ModelProto:
    """x [batch, 8] @ dequantize(int8 [8, 5], per column), plus a bias, Relu; ids [2] into a quantised table of 6 rows."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(-128, 128, (8, 5), np.int8),
        "s": np.linspace(0.01, 0.02, 5, dtype=np.float32),
        "z": np.full(5, zero_point, np.int8),
        "b": rng.standard_normal(5).astype(np.float32),
        "t": rng.integers(0, 256, (6, 3), np.uint8),
        "ts": np.float32(0.5),
        "tz": np.uint8(128),
    }
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wf"], "weight", axis=1),
            helper.make_node("MatMul", ["x", "wf"], ["m"], "matmul"),
            helper.make_node("Add", ["m", "b"], ["a"], "bias"),
            helper.make_node("Relu", ["a"], ["y"], "relu"),
            helper.make_node("DequantizeLinear", ["t", "ts", "tz"], ["tf"], "table"),
            helper.make_node("Gather", ["tf", "ids"], ["g"], "gather"),
        ],
        "linear",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 8]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [2]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5]),
            helper.make_tensor_value_info("g", TensorProto.FLOAT, [2, 3]),
        ],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def reference(model: ModelProto, x: np.ndarray, ids: np.ndarray) -> dict[str, np.ndarray]:
    """What the model computes, in float64."""
    w = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    wide = (w["w"].astype(np.float64) - w["z"]) * w["s"].astype(np.float64)
    table = (w["t"].astype(np.float64) - float(w["tz"])) * float(w["ts"])
    return {"y": np.maximum(x.astype(np.float64) @ wide + w["b"], 0), "g": table[ids]}


def inputs() -> dict[str, np.ndarray]:
    """Inputs of `linear_model`."""
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    return {"x": x, "ids": np.array([5, -6])}


def save(model: ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """Writes the model; returns its path."""
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def unsupported_model() -> ModelProto:
    """Two operators that nobody knows."""
    graph = helper.make_graph(
        [
            helper.make_node("Frobnicate", ["x"], ["a"], "first"),
            helper.make_node("Twiddle", ["a"], ["y"], "second", domain="com.example"),
        ],
        "unsupported",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
