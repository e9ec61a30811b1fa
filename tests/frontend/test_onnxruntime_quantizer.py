"""What onnxruntime's quantiser makes of a convnet, an MLP and an attention block, against onnxruntime without optimisations."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from xdsl.dialects.builtin import ModuleOp

from qfold.dialects import qmm
from qfold.interpreters.run import run
from tests.frontend.helpers import Array, build, import_checked, node, ops_of, value_info
from tests.frontend.quantized import onnxruntime

RNG = np.random.default_rng(23)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[-1]))


def convnet() -> tuple[ModelProto, Array]:
    constants = {"w0": floats(8, 3, 3, 3), "b0": floats(8), "w1": floats(8, 1, 3, 3)}
    constants |= {"b1": floats(8), "w2": floats(12, 8, 1, 1), "w3": floats(5, 12), "b3": floats(5)}
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
    return _typed(nodes, (1, 3, 12, 12), (1, 5), constants | bounds), floats(1, 3, 12, 12) * 4


def mlp() -> tuple[ModelProto, Array]:
    constants = {"w0": floats(24, 33), "b0": floats(33), "w1": floats(33, 16), "w2": floats(7, 16)}
    nodes = [
        node("MatMul", ["x", "w0"], ["m0"], "matmul0"),
        node("Add", ["m0", "b0"], ["a0"], "add0"),
        node("Relu", ["a0"], ["r0"], "relu0"),
        node("MatMul", ["r0", "w1"], ["m1"], "matmul1"),
        node("LeakyRelu", ["m1"], ["r1"], "leaky", alpha=0.1),
        node("Gemm", ["r1", "w2"], ["g"], "gemm", transB=1),
        node("Sigmoid", ["g"], ["y"], "sigmoid"),
    ]
    return _typed(nodes, (4, 24), (4, 7), constants), floats(4, 24) * 4


def attention() -> tuple[ModelProto, Array]:
    n, d = 6, 16
    constants = {f"w{i}": floats(d, d) for i in range(4)} | {"s": np.float32(0.25)}
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
    return _typed(nodes, (2, n, d), (2, n, d), constants), floats(2, n, d) * 4


def _typed(
    nodes: list[Any], shape: tuple[int, ...], result: tuple[int, ...], constants: dict[str, Any]
) -> ModelProto:
    model = build(nodes, {"x": (np.float32, shape)}, ["y"], constants, opset=17)
    model.graph.output[0].CopyFrom(value_info("y", np.float32, result))
    model.ir_version = 8
    return model


NETWORKS = {"convnet": convnet(), "mlp": mlp(), "attention": attention()}
TYPES = {
    "u8s8": (QuantType.QUInt8, QuantType.QInt8),
    "s8s8": (QuantType.QInt8, QuantType.QInt8),
    "u8u8": (QuantType.QUInt8, QuantType.QUInt8),
}


class Calibration(CalibrationDataReader):
    """One input, a few times larger and smaller."""

    def __init__(self, x: Array):
        self.feeds: Iterator[dict[str, Array]] = iter([{"x": x}, {"x": -x}])

    def get_next(self) -> Any:
        return next(self.feeds, None)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def compared(model: ModelProto, x: Array) -> ModuleOp:
    """Imports; the output is within rounding of onnxruntime's, or at a tie within one step of it."""
    module = import_checked(model)
    (got,), (want,) = run(module, [x]), onnxruntime(model, {"x": x})
    step = max(
        [float(op.quant.scales) for op in ops_of(module, qmm.DequantizeOp) if _last(op)],
        default=0.0,
    )
    got = np.asarray(got)
    bound = np.float32(1e-5) * np.abs(want).max()
    far = np.abs(got - want)
    assert (far > bound).mean() < 0.02 and far.max() <= bound + step
    return module


def _last(op: qmm.DequantizeOp) -> bool:
    """Whether the result of an op is that of the network."""
    return any(use.operation.name == "func.return" for use in op.result.uses)


@pytest.mark.parametrize("types", list(TYPES))
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_static(name: str, form: str, per_channel: bool, types: str, tmp_path: Path):
    model, x = NETWORKS[name]
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, source)
    activation, weight = TYPES[types]
    quantize_static(
        source,
        target,
        Calibration(x),
        quant_format=QuantFormat[form],
        per_channel=per_channel,
        activation_type=activation,
        weight_type=weight,
    )
    module = compared(onnx.load(target), x)
    integer = len(ops_of(module, qmm.QuantMatmulOp)) + len(ops_of(module, qmm.QuantConvOp))
    kinds = [n.op_type for n in model.graph.node]
    products = sum(kinds.count(k) for k in ("MatMul", "Gemm", "Conv"))
    assert integer == (products if form == "QOperator" else 0)


@pytest.mark.parametrize("types", list(TYPES))
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_dynamic(name: str, per_channel: bool, types: str, tmp_path: Path):
    model, x = NETWORKS[name]
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, source)
    quantize_dynamic(source, target, per_channel=per_channel, weight_type=TYPES[types][1])
    module = compared(onnx.load(target), x)
    assert ops_of(module, qmm.DynamicQuantizeOp)
    assert ops_of(module, qmm.QuantConvOp if name == "convnet" else qmm.QuantMatmulOp)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("form", "bits"), [("QOperator", 4), ("QOperator", 8), ("QDQ", 4)])
@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_weights_of_few_bits(name: str, form: str, bits: int, symmetric: bool):
    pytest.importorskip("onnx_ir", reason="onnxruntime's MatMulNBitsQuantizer needs onnx_ir")
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model, x = NETWORKS[name]
    copy = ModelProto()
    copy.CopyFrom(model)
    if form == "QDQ":
        copy.opset_import[0].version = 21
        copy.ir_version = 10
    quantizer = MatMulNBitsQuantizer(
        copy, bits=bits, block_size=16, is_symmetric=symmetric, quant_format=QuantFormat[form]
    )
    quantizer.process()
    quantized: ModelProto = quantizer.model.model
    module = compared(quantized, x)
    weights = [t for t in model.graph.initializer if t.name.startswith("w") and len(t.dims) == 2]
    read_by_matmul = [t for t in weights if t.name != "w2" or name == "attention"]
    assert len(ops_of(module, qmm.DequantizeOp)) == len(read_by_matmul)
