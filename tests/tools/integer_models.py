"""Networks of integers in every form that the report has to tell apart, with the arrays that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, helper, numpy_helper

from tests.frontend.helpers import build, node

Array = npt.NDArray[Any]
F32 = np.float32
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Network:
    """A model and its initializers."""

    model: ModelProto
    arrays: dict[str, Array]


def _network(
    nodes: list[NodeProto],
    shape: tuple[int, ...],
    arrays: dict[str, Array],
    outputs: tuple[str, ...] = ("y",),
    dtype: Any = F32,
    opset: int = 21,
) -> Network:
    model = build(nodes, {"x": (dtype, shape)}, outputs, arrays, opset=opset)
    for domain in (MICROSOFT, "PACTOps"):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return Network(model, arrays)


def _integers(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return rng.integers(low, high + 1, shape).astype(dtype)


def _dq(name: str, scale: str, zero: str, out: str, **attributes: Any) -> NodeProto:
    return node("DequantizeLinear", [name, scale, zero], [out], f"dq_{out}", **attributes)


def _q(name: str, scale: str, zero: str, out: str) -> NodeProto:
    return node("QuantizeLinear", [name, scale, zero], [out], f"q_{out}")


def qdq() -> Network:
    """x [4, 9] -> uint8 -> MatMul (int8, per column) -> Relu -> uint8 -> Softmax -> uint8 -> MatMul (uint8) -> uint8."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "w0": _integers(rng, np.int8, 9, 6),
        "s0": rng.uniform(0.005, 0.01, 6).astype(F32),
        "z0": np.zeros(6, np.int8),
        "w1": _integers(rng, np.uint8, 6, 5),
        "s1": np.array(0.01, F32),
        "z1": np.array(3, np.uint8),
        "sa": np.array(0.02, F32),
        "za": np.array(128, np.uint8),
        "sp": np.array(1 / 255, F32),
        "zp": np.array(0, np.uint8),
    }
    nodes = [
        _q("x", "sa", "za", "xq"),
        _dq("xq", "sa", "za", "xf"),
        _dq("w0", "s0", "z0", "w0f", axis=1),
        node("MatMul", ["xf", "w0f"], ["m0"], "first"),
        node("Relu", ["m0"], ["r0"], "relu"),
        _q("r0", "sa", "zp", "rq"),
        _dq("rq", "sa", "zp", "rf"),
        node("Softmax", ["rf"], ["p"], "softmax", axis=-1),
        _q("p", "sp", "zp", "pq"),
        _dq("pq", "sp", "zp", "pf"),
        _dq("w1", "s1", "z1", "w1f"),
        node("MatMul", ["pf", "w1f"], ["m1"], "second"),
        _q("m1", "sa", "za", "yq"),
        _dq("yq", "sa", "za", "y"),
    ]
    return _network(nodes, (4, 9), arrays)


def qlinear() -> Network:
    """x [1, 2, 5, 5] uint8 -> QLinearConv (int8, per channel, bias) -> MaxPool -> QLinearConv (uint8)."""
    rng = np.random.default_rng(1)
    arrays: dict[str, Array] = {
        "sx": np.array(0.05, F32),
        "zx": np.array(10, np.uint8),
        "w": _integers(rng, np.int8, 4, 2, 3, 3),
        "sw": rng.uniform(0.005, 0.01, 4).astype(F32),
        "zw": np.zeros(4, np.int8),
        "b": rng.integers(-500, 500, 4).astype(np.int32),
        "v": _integers(rng, np.uint8, 3, 4, 1, 1),
        "sv": np.array(0.01, F32),
        "zv": np.array(120, np.uint8),
    }
    nodes = [
        node(
            "QLinearConv",
            ["x", "sx", "zx", "w", "sw", "zw", "sx", "zx", "b"],
            ["c"],
            "conv",
            pads=[1, 1, 1, 1],
        ),
        node("MaxPool", ["c"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("QLinearConv", ["p", "sx", "zx", "v", "sv", "zv", "sx", "zx"], ["y"], "point"),
    ]
    return _network(nodes, (1, 2, 5, 5), arrays, dtype=np.uint8)


def _requant(x: str, y: str, mul: str, add: str) -> NodeProto:
    attributes = {"div": 256.0, "n_levels_out": [256.0], "signed": [0.0]}
    tensors = {k: numpy_helper.from_array(np.asarray(v, F32)) for k, v in attributes.items()}
    return node("RequantShift", [x, mul, add], [y], f"shift_{y}", domain="PACTOps", **tensors)


def pact() -> Network:
    """Integers in FLOAT initializers: a Conv on floats that nobody declares, then Conv on the uint8 of a RequantShift."""
    rng = np.random.default_rng(2)
    arrays: dict[str, Array] = {
        "w": rng.integers(-128, 128, (4, 1, 3, 3)).astype(F32),
        "v": rng.integers(-128, 128, (6, 4, 1, 1)).astype(F32),
        "mul": rng.integers(1, 4, (4, 1, 1)).astype(F32),
        "mul2": rng.integers(1, 4, (6, 1, 1)).astype(F32),
        "add": np.zeros((), F32),
    }
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        _requant("a", "b", "mul", "add"),
        node("Conv", ["b", "v"], ["c"], "point"),
        _requant("c", "y", "mul2", "add"),
    ]
    made = _network(nodes, (1, 1, 4, 4), arrays, opset=13)
    made.model.graph.output[0].type.tensor_type.elem_type = 1
    return made


def nbits() -> Network:
    """MatMulNBits: [3, 24] by 4 bits in blocks of 16 along K (the last one is half), packed zero points."""
    rng = np.random.default_rng(3)
    n, k, block = 5, 24, 16
    blocks = -(-k // block)
    arrays: dict[str, Array] = {
        "w": _integers(rng, np.uint8, n, blocks, block // 2),
        "s": rng.uniform(0.01, 0.02, n * blocks).astype(F32),
        "z": _integers(rng, np.uint8, n * -(-blocks // 2)),
    }
    matmul = node(
        "MatMulNBits",
        ["x", "w", "s", "z"],
        ["y"],
        "matmul",
        domain=MICROSOFT,
        K=k,
        N=n,
        bits=4,
        block_size=block,
    )
    return _network([matmul], (3, k), arrays)


def mixed() -> Network:
    """A matmul of integers, and one of floats by an int8 weight, of the same activation before and after it was quantised."""
    rng = np.random.default_rng(4)
    arrays: dict[str, Array] = {
        "w": _integers(rng, np.int8, 8, 6),
        "v": _integers(rng, np.int8, 8, 7),
        "s": np.array(0.01, F32),
        "z": np.array(0, np.int8),
        "za": np.array(0, np.uint8),
    }
    nodes = [
        _q("x", "s", "za", "xq"),
        _dq("xq", "s", "za", "xf"),
        _dq("w", "s", "z", "wf"),
        node("MatMul", ["xf", "wf"], ["y"], "integers"),
        node("Exp", ["x"], ["e"], "exp"),
        _dq("v", "s", "z", "vf"),
        node("MatMul", ["e", "vf"], ["y2"], "floats"),
    ]
    return _network(nodes, (3, 8), arrays, outputs=("y", "y2"))


def depthwise() -> Network:
    """x [1, 5, 6, 7] uint8 -> QLinearConv 3x3 of each channel, padded by 1."""
    rng = np.random.default_rng(7)
    arrays: dict[str, Array] = {
        "sx": np.array(0.05, F32),
        "zx": np.array(0, np.uint8),
        "w": _integers(rng, np.int8, 5, 1, 3, 3),
        "sw": rng.uniform(0.005, 0.01, 5).astype(F32),
        "zw": np.zeros(5, np.int8),
        "sy": np.array(0.2, F32),
        "zy": np.array(100, np.uint8),
    }
    conv = node(
        "QLinearConv",
        ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"],
        ["y"],
        "depthwise",
        pads=[1, 1, 1, 1],
        group=5,
    )
    return _network([conv], (1, 5, 6, 7), arrays, dtype=np.uint8)
