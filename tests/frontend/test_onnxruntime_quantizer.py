"""What onnxruntime's quantiser makes of a convnet, an MLP and an attention block, against onnxruntime without optimisations."""

from __future__ import annotations

import pytest
from onnx import ModelProto

from qfold.dialects import qmm
from tests.conformance.quantizer import imported_and_compared
from tests.frontend.helpers import ops_of
from tests.networks.onnxruntime_quantizer import (
    DYNAMIC,
    NBITS,
    NETWORKS,
    STATIC,
    Dynamic,
    NBits,
    Static,
)


def _count(model: ModelProto, *kinds: str) -> int:
    return sum(n.op_type in kinds for n in model.graph.node)


@pytest.mark.parametrize("method", STATIC, ids=str)
@pytest.mark.parametrize("name", list(NETWORKS))
def test_static(name: str, method: Static) -> None:
    network = NETWORKS[name]
    module = imported_and_compared(method.apply(network), network.inputs)
    integer = len(ops_of(module, qmm.QuantMatmulOp)) + len(ops_of(module, qmm.QuantConvOp))
    products = _count(network.model, "MatMul", "Gemm", "Conv")
    assert integer == (products if method.form == "QOperator" else 0)


@pytest.mark.parametrize("method", DYNAMIC, ids=str)
@pytest.mark.parametrize("name", list(NETWORKS))
def test_dynamic(name: str, method: Dynamic) -> None:
    network = NETWORKS[name]
    module = imported_and_compared(method.apply(network), network.inputs)
    assert ops_of(module, qmm.DynamicQuantizeOp)
    assert ops_of(module, qmm.QuantConvOp if name == "convnet" else qmm.QuantMatmulOp)


@pytest.mark.parametrize("method", NBITS, ids=str)
@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_weights_of_few_bits(name: str, method: NBits) -> None:
    pytest.importorskip("onnx_ir", reason="onnxruntime's MatMulNBitsQuantizer needs onnx_ir")
    network = NETWORKS[name]
    module = imported_and_compared(method.apply(network), network.inputs)
    weights = [
        t for t in network.model.graph.initializer if t.name.startswith("w") and len(t.dims) == 2
    ]
    read_by_matmul = [t for t in weights if t.name != "w2" or name == "attention"]
    assert len(ops_of(module, qmm.DequantizeOp)) == len(read_by_matmul)
