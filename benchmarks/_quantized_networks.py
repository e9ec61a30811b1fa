"""Float networks for `quantized.py`, and what onnxruntime's quantiser makes of them: int8 weights, and int8 activations too."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

CALIBRATIONS = 4
"""Inputs that the ranges of activations are taken from."""


@dataclass
class Builder:
    """Nodes and seeded weights, scaled so that values keep their size from layer to layer."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    constants: list[TensorProto] = field(default_factory=list[TensorProto])

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, fan: int) -> str:
        spread = np.sqrt(2.0 / fan)
        return self.constant((self.rng.standard_normal(shape) * spread).astype(np.float32))

    def bias(self, size: int) -> str:
        return self.constant((0.1 * self.rng.standard_normal(size)).astype(np.float32))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_y"], name, **attributes))
        return f"{name}_y"

    def linear(self, x: str, k: int, n: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(k, n, fan=k)), self.bias(n))

    def conv(self, x: str, c: int, m: int, kernel: int, *, stride: int = 1, groups: int = 1) -> str:
        w = self.weight(m, c // groups, kernel, kernel, fan=c // groups * kernel * kernel)
        y = self.node(
            "Conv", x, w, self.bias(m), pads=[kernel // 2] * 4, strides=[stride] * 2, group=groups
        )
        return self.node("Relu", y)

    def normalized(self, x: str, width: int) -> str:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return self.node(
            "LayerNormalization", x, self.constant(ones), self.constant(zeros), axis=-1
        )

    def shaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def attention(self, x: str, tokens: int, width: int, heads: int) -> str:
        """Multi-head self-attention with its residual: x is [1, tokens, width]."""
        size = width // heads
        parts: list[str] = []
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            split = self.shaped(self.linear(x, width, width), 1, tokens, heads, size)
            parts.append(self.node("Transpose", split, perm=order))
        scores = self.node("MatMul", parts[0], parts[1])
        scores = self.node("Mul", scores, self.constant(np.float32(1 / np.sqrt(size))))
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), parts[2])
        mixed = self.shaped(self.node("Transpose", mixed, perm=[0, 2, 1, 3]), 1, tokens, width)
        return self.node("Add", self.linear(mixed, width, width), x)

    def encoder(self, x: str, tokens: int, width: int, heads: int, hidden: int) -> str:
        """A pre-norm transformer layer."""
        x = self.attention(self.normalized(x, width), tokens, width, heads)
        y = self.linear(self.normalized(x, width), width, hidden)
        return self.node("Add", self.linear(self.node("Gelu", y), hidden, width), x)

    def model(
        self, name: str, shape: Sequence[int], result: str, result_shape: Sequence[int]
    ) -> ModelProto:
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, result_shape)],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model


def mlp(rows: int, widths: Sequence[int]) -> ModelProto:
    """Dense layers with Relu between."""
    b, x = Builder(), "x"
    for i, (k, n) in enumerate(itertools.pairwise(widths)):
        x = b.linear(x, k, n)
        if i + 2 < len(widths):
            x = b.node("Relu", x)
    return b.model("mlp", [rows, widths[0]], x, [rows, widths[-1]])


def convnet(size: int, width: int) -> ModelProto:
    """3 x 3 on an image, then twice a depthwise 3 x 3 and a 1 x 1 that doubles the channels, pooled and classified."""
    b = Builder()
    x = b.conv("x", 3, width, 3, stride=2)
    for i in range(2):
        x = b.conv(x, width, width, 3, stride=1 + i, groups=width)
        x = b.conv(x, width, 2 * width, 1)
        width *= 2
    x = b.conv(x, width, width, 3)
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    return b.model("convnet", [1, 3, size, size], b.linear(x, width, 10), [1, 10])


def attention(tokens: int, width: int, heads: int) -> ModelProto:
    """One transformer layer."""
    b = Builder()
    return b.model(
        "attention",
        [1, tokens, width],
        b.encoder("x", tokens, width, heads, 4 * width),
        [1, tokens, width],
    )


def cct(layers: int = 2, width: int = 128, size: int = 32) -> ModelProto:
    """A compact convolutional transformer, CCT-2/3x2 of Hassani et al. (2021): two convolutions make tokens of an image, `layers`
    encoders, a pooling over the sequence by attention, a classifier.
    """
    b = Builder()
    x = b.conv("x", 3, 64, 3)
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = b.conv(x, 64, width, 3)
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    tokens = (size // 4) ** 2
    x = b.node("Transpose", b.shaped(x, 1, width, tokens), perm=[0, 2, 1])
    for _ in range(layers):
        x = b.encoder(x, tokens, width, 2, width)
    x = b.normalized(x, width)
    share = b.node("Softmax", b.linear(x, width, 1), axis=1)
    pooled = b.node("MatMul", b.node("Transpose", share, perm=[0, 2, 1]), x)
    return b.model(
        "cct", [1, 3, size, size], b.linear(b.shaped(pooled, 1, width), width, 10), [1, 10]
    )


def inputs_of(model: ModelProto, count: int = 1, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Standard normal inputs."""
    rng = np.random.default_rng(seed)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


class _Calibration(CalibrationDataReader):
    def __init__(self, model: ModelProto):
        self._feeds = iter(inputs_of(model, CALIBRATIONS, seed=2))

    def get_next(self) -> Any:
        return next(self._feeds, None)


def quantized(model: ModelProto) -> ModelProto:
    """int8 x int8: QDQ by onnxruntime's quantiser, weights per channel, activations by calibration."""
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        onnx.save(model, source)
        quantize_static(
            source,
            target,
            _Calibration(model),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            extra_options={"QDQKeepRemovableActivations": True},
        )
        return onnx.load(target)


def weights_only(model: ModelProto) -> ModelProto:
    """f32 x int8: the same model without the quantising of activations, with the same integers for weights."""
    twin = ModelProto()
    twin.CopyFrom(model)
    graph = twin.graph
    constants = {t.name for t in graph.initializer}
    quantizes = {
        n.output[0]: n.input[0]
        for n in graph.node
        if n.op_type == "QuantizeLinear" and n.input[0] not in constants
    }
    renamed = {
        n.output[0]: quantizes[n.input[0]]
        for n in graph.node
        if n.op_type == "DequantizeLinear" and n.input[0] in quantizes
    }
    gone = quantizes.keys() | renamed.keys()
    kept = [n for n in graph.node if n.output[0] not in gone]

    def source(name: str) -> str:
        while name in renamed:
            name = renamed[name]
        return name

    for node in kept:
        for i, name in enumerate(node.input):
            node.input[i] = source(name)
    for output in graph.output:
        if output.name in renamed:
            kept.append(
                helper.make_node(
                    "Identity", [source(output.name)], [output.name], f"{output.name}_is"
                )
            )
    read = {name for n in kept for name in n.input}
    initializers = [t for t in graph.initializer if t.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(initializers)
    return twin
