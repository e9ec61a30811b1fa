"""What onnxruntime's quantiser makes of float networks: each of its ways, and three small networks to try them on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import onnx
from onnx import ModelProto
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.frontend.helpers import Array, build, node, value_info

TYPES = {
    "u8s8": (QuantType.QUInt8, QuantType.QInt8),
    "s8s8": (QuantType.QInt8, QuantType.QInt8),
    "u8u8": (QuantType.QUInt8, QuantType.QUInt8),
}
"""Name -> (type of activations, type of weights)."""

Form = Literal["QDQ", "QOperator"]
FORMS: tuple[Form, ...] = ("QDQ", "QOperator")


@dataclass(frozen=True)
class Network:
    """A float network and one input for each of its inputs."""

    model: ModelProto
    inputs: dict[str, Array]


@dataclass(frozen=True)
class Static:
    """`quantize_static`: weights and activations, by calibration."""

    form: Form
    types: str
    per_channel: bool

    def __str__(self) -> str:
        return (
            f"static {self.form} {self.types} {'per channel' if self.per_channel else 'per tensor'}"
        )

    def apply(self, network: Network) -> ModelProto:
        activation, weight = TYPES[self.types]
        with _files(network.model) as (source, target):
            quantize_static(
                source,
                target,
                Calibration(network.inputs),
                quant_format=QuantFormat[self.form],
                per_channel=self.per_channel,
                activation_type=activation,
                weight_type=weight,
            )
            return onnx.load(target)


@dataclass(frozen=True)
class Dynamic:
    """`quantize_dynamic`: weights; activations at run time."""

    types: str
    per_channel: bool

    def __str__(self) -> str:
        return f"dynamic {self.types[2:]} weights {'per channel' if self.per_channel else 'per tensor'}"

    def apply(self, network: Network) -> ModelProto:
        with _files(network.model) as (source, target):
            quantize_dynamic(
                source, target, per_channel=self.per_channel, weight_type=TYPES[self.types][1]
            )
            return onnx.load(target)


@dataclass(frozen=True)
class NBits:
    """`MatMulNBitsQuantizer`: weights of matmuls by blocks. Needs the package onnx_ir."""

    form: Form
    bits: int
    symmetric: bool
    block: int = 16

    def __str__(self) -> str:
        return f"weights of {self.bits} bits {self.form} {'symmetric' if self.symmetric else 'asymmetric'}"

    def apply(self, network: Network) -> ModelProto:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        copy = ModelProto()
        copy.CopyFrom(network.model)
        if self.form == "QDQ":
            copy.opset_import[0].version = max(21, copy.opset_import[0].version)
            copy.ir_version = 10
        quantizer = MatMulNBitsQuantizer(
            copy,
            bits=self.bits,
            block_size=self.block,
            is_symmetric=self.symmetric,
            quant_format=QuantFormat[self.form],
        )
        with _quiet():
            quantizer.process()
        quantized: Any = quantizer.model.model
        return quantized


Method = Static | Dynamic | NBits

STATIC = tuple(
    Static(form, types, per_channel)
    for form in FORMS
    for types in TYPES
    for per_channel in (False, True)
)
DYNAMIC = tuple(
    Dynamic(types, per_channel) for types in ("u8s8", "u8u8") for per_channel in (False, True)
)
NBITS = tuple(
    NBits(form, bits, symmetric)
    for form, bits in (("QOperator", 4), ("QOperator", 8), ("QDQ", 4))
    for symmetric in (False, True)
)
METHODS: tuple[Method, ...] = (*STATIC, *DYNAMIC, *NBITS)


class Calibration(CalibrationDataReader):
    """The inputs as they are, and negated."""

    def __init__(self, inputs: dict[str, Array]):
        negated = {name: -x for name, x in inputs.items()}
        self.feeds: Iterator[dict[str, Array]] = iter([inputs, negated])

    def get_next(self) -> Any:
        return next(self.feeds, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser warns by the root logger of what it always does."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _files(model: ModelProto) -> Iterator[tuple[Path, Path]]:
    with TemporaryDirectory() as folder, _quiet():
        source = Path(folder, "float.onnx")
        onnx.save(model, source)
        yield source, Path(folder, "quantized.onnx")


_RNG = np.random.default_rng(23)


def _floats(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[-1]))


def _typed(
    nodes: list[Any],
    shape: tuple[int, ...],
    result: tuple[int, ...],
    constants: dict[str, Any],
) -> Network:
    model = build(nodes, {"x": (np.float32, shape)}, ["y"], constants, opset=17)
    model.graph.output[0].CopyFrom(value_info("y", np.float32, result))
    model.ir_version = 8
    return Network(model, {"x": _floats(*shape) * np.float32(4)})


def _convnet() -> Network:
    constants = {"w0": _floats(8, 3, 3, 3), "b0": _floats(8), "w1": _floats(8, 1, 3, 3)}
    constants |= {"b1": _floats(8), "w2": _floats(12, 8, 1, 1)}
    constants |= {"w3": _floats(5, 12), "b3": _floats(5)}
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], "conv0", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c0"], ["r0"], "relu0"),
        node("Conv", ["r0", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1], group=8),
        node("Clip", ["c1", "low", "high"], ["r1"], "clip1"),
        node("MaxPool", ["r1"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2"], ["c2"], "conv2"),
        node("GlobalAveragePool", ["c2"], ["g"], "gap"),
        node("Flatten", ["g"], ["f"], "flatten"),
        node("Gemm", ["f", "w3", "b3"], ["y"], "gemm", transB=1),
    ]
    bounds = {"low": np.float32(0), "high": np.float32(6)}
    return _typed(nodes, (1, 3, 12, 12), (1, 5), constants | bounds)


def _mlp() -> Network:
    constants = {"w0": _floats(24, 33), "b0": _floats(33), "w1": _floats(33, 16)}
    constants |= {"w2": _floats(7, 16)}
    nodes = [
        node("MatMul", ["x", "w0"], ["m0"], "matmul0"),
        node("Add", ["m0", "b0"], ["a0"], "add0"),
        node("Relu", ["a0"], ["r0"], "relu0"),
        node("MatMul", ["r0", "w1"], ["m1"], "matmul1"),
        node("LeakyRelu", ["m1"], ["r1"], "leaky", alpha=0.1),
        node("Gemm", ["r1", "w2"], ["g"], "gemm", transB=1),
        node("Sigmoid", ["g"], ["y"], "sigmoid"),
    ]
    return _typed(nodes, (4, 24), (4, 7), constants)


def _attention() -> Network:
    n, d = 6, 16
    constants: dict[str, Any] = {f"w{i}": _floats(d, d) for i in range(4)}
    constants["s"] = np.float32(0.25)
    nodes = [
        node("MatMul", ["x", "w0"], ["q"], "q"),
        node("MatMul", ["x", "w1"], ["k"], "k"),
        node("MatMul", ["x", "w2"], ["v"], "v"),
        node("Transpose", ["k"], ["t"], "t", perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["qk"], "scores"),
        node("Mul", ["qk", "s"], ["scaled"], "scale"),
        node("Softmax", ["scaled"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "v"], ["h"], "heads"),
        node("MatMul", ["h", "w3"], ["o"], "out"),
        node("Add", ["o", "x"], ["y"], "residual"),
    ]
    return _typed(nodes, (2, n, d), (2, n, d), constants)


NETWORKS = {"convnet": _convnet(), "mlp": _mlp(), "attention": _attention()}
"""Every kind of layer that the quantiser knows, in shapes of odd sizes."""


def applicable(name: str, method: Method) -> bool:
    """Whether a way changes a network: weights by blocks are those of matmuls."""
    return not (isinstance(method, NBits) and name == "convnet")
