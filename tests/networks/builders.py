"""Small float networks with seeded weights: an MLP, a convnet and a CCT-like vision transformer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


class NetworkBuilder:
    """Appends nodes to an ONNX graph; weights come from a seeded generator, scaled as Glorot and Bengio (2010) do."""

    def __init__(self, name: str, opset: int = 20, seed: int = 0):
        self.name = name
        self.opset = opset
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int], type_: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, type_, list(shape)))
        return name

    def output(self, name: str, shape: Sequence[int], type_: int = TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, type_, list(shape)))

    def constant(self, array: Array, name: str | None = None) -> str:
        name = name or f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, *shape: int, fan: int | None = None) -> str:
        spread = np.sqrt(2.0 / (fan if fan is not None else shape[0] + shape[-1]))
        return self.constant((self.rng.standard_normal(shape) * spread).astype(np.float32))

    def vector(self, size: int, mean: float = 0.0) -> str:
        return self.constant((mean + 0.1 * self.rng.standard_normal(size)).astype(np.float32))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, list(inputs), [name + "_out"], name=name, **attributes)
        )
        return name + "_out"

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, self.initializers
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def mlp(
    batch: int = 3, features: Sequence[int] = (20, 33, 17, 5), *, gemm: bool = True
) -> onnx.ModelProto:
    """Dense layers with Relu between: Gemm with transB as PyTorch exports it, or MatMul and Add."""
    b = NetworkBuilder("mlp")
    x = b.input("x", [batch, features[0]])
    for i, (k, n) in enumerate(itertools.pairwise(features)):
        if gemm:
            x = b.node("Gemm", x, b.weight(n, k), b.vector(n), transB=1)
        else:
            x = b.node("Add", b.node("MatMul", x, b.weight(k, n)), b.vector(n))
        if i + 2 < len(features):
            x = b.node("Relu", x)
    b.output(x, [batch, features[-1]])
    return b.model()


def convnet(size: int = 9, channels: int = 6) -> onnx.ModelProto:
    """Padded, strided, depthwise and 1x1 convolutions, batch normalisation, pooling, a dense head."""
    b = NetworkBuilder("convnet", seed=1)
    x = b.input("x", [1, 3, size, size])
    x = b.node(
        "Conv", x, b.weight(channels, 3, 3, 3, fan=27), b.vector(channels), pads=[1, 1, 1, 1]
    )
    x = b.node(
        "BatchNormalization",
        x,
        b.vector(channels, 1.0),
        b.vector(channels),
        b.vector(channels),
        b.constant(np.abs(1 + 0.1 * b.rng.standard_normal(channels)).astype(np.float32)),
    )
    x = b.node("Relu", x)
    x = b.node(
        "Conv",
        x,
        b.weight(channels, 1, 3, 3, fan=9),
        b.vector(channels),
        pads=[1, 1, 1, 1],
        strides=[2, 2],
        group=channels,
    )
    x = b.node("HardSwish", x)
    x = b.node(
        "Conv", x, b.weight(2 * channels, channels, 1, 1, fan=channels), b.vector(2 * channels)
    )
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.weight(4, 2 * channels), b.vector(4), transB=1)
    b.output(b.node("Softmax", x, axis=-1), [1, 4])
    return b.model()


def transformer(
    *,
    image: int = 16,
    width: int = 24,
    heads: int = 3,
    layers: int = 2,
    mlp_ratio: int = 2,
    classes: int = 7,
    batch: int = 1,
) -> onnx.ModelProto:
    """A compact convolutional transformer: conv tokenizer, encoder layers, sequence pooling, linear head."""
    b = NetworkBuilder("transformer", seed=2)
    x = b.input("image", [batch, 3, image, image])
    x = b.node("Conv", x, b.weight(width, 3, 3, 3, fan=27), pads=[1, 1, 1, 1])
    x = b.node("MaxPool", b.node("Relu", x), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    tokens = ((image - 1) // 2 + 1) ** 2
    x = b.node("Reshape", x, b.constant(np.array([batch, width, tokens])))
    x = b.node("Transpose", x, perm=[0, 2, 1])
    x = b.node("Add", x, b.weight(1, tokens, width, fan=2 * width))
    depth = width // heads

    def split(y: str) -> str:
        y = b.node("Reshape", y, b.constant(np.array([batch, tokens, heads, depth])))
        return b.node("Transpose", y, perm=[0, 2, 1, 3])

    for _ in range(layers):
        h = b.node("LayerNormalization", x, b.vector(width, 1.0), b.vector(width), axis=-1)
        q, k, v = (split(b.node("MatMul", h, b.weight(width, width))) for _ in range(3))
        q = b.node("Mul", q, b.constant(np.array(depth**-0.5, np.float32)))
        scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
        y = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
        y = b.node("Transpose", y, perm=[0, 2, 1, 3])
        y = b.node("Reshape", y, b.constant(np.array([batch, tokens, width])))
        y = b.node("Add", b.node("MatMul", y, b.weight(width, width)), b.vector(width))
        x = b.node("Add", x, y)
        h = b.node("LayerNormalization", x, b.vector(width, 1.0), b.vector(width), axis=-1)
        h = b.node("MatMul", h, b.weight(width, mlp_ratio * width))
        h = b.node("Gelu", b.node("Add", h, b.vector(mlp_ratio * width)))
        h = b.node("Add", b.node("MatMul", h, b.weight(mlp_ratio * width, width)), b.vector(width))
        x = b.node("Add", x, h)
    pool = b.node("MatMul", x, b.weight(width, 1))
    pool = b.node("Transpose", b.node("Softmax", pool, axis=1), perm=[0, 2, 1])
    x = b.node("Squeeze", b.node("MatMul", pool, x), b.constant(np.array([1])))
    x = b.node("Gemm", x, b.weight(classes, width), b.vector(classes), transB=1)
    b.output(x, [batch, classes])
    return b.model()
