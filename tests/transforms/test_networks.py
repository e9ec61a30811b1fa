"""Whole networks through the tensor level: everything quantised is fused, nothing changes, and every node stays named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from xdsl.dialects.builtin import TensorType, f32
from xdsl.dialects.linalg import ops as linalg

from qfold.dialects import qmm
from qfold.dialects.element_types import bit_width, is_float
from qfold.frontend import import_model
from qfold.interpreters import run
from qfold.ir.locations import node_names
from tests.networks.builders import convnet, mlp, transformer
from tests.networks.weight_only import Scheme, quantize_weights
from tests.transforms.graphs import TENSOR_LEVEL, apply, assert_same, check, names, ops

SCHEMES = [
    Scheme(),
    Scheme(storage="uint8", asymmetric=True, form="arith"),
    Scheme(storage="uint8", granularity="tensor", asymmetric=True),
    Scheme(storage="int4", granularity="block", block_size=5, asymmetric=True),
    Scheme(storage="uint4", granularity="block", block_size=16),
]
FUSED = (qmm.DequantMatmulOp, qmm.DequantConvOp, qmm.DequantGatherOp)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("build", [mlp, convnet, transformer], ids=lambda f: f.__name__)
def test_weight_only_networks(build: Callable[[], onnx.ModelProto], scheme: Scheme):
    model, quantised = quantize_weights(build(), scheme)
    made = check(import_model(model), *TENSOR_LEVEL[:3])
    fused = [op for op in ops(made) if isinstance(op, FUSED)]
    assert len(fused) == quantised > 0
    assert names(made)["qmm.dequantize"] == 0
    assert not [op for op in made.walk() if "qmm.reason" in op.attributes]
    kinds = {"MatMul", "Gemm", "Conv", "Gather"}
    contractions = {n.name for n in model.graph.node if n.op_type in kinds}
    for op in fused:
        assert contractions & set(node_names(op)), f"{node_names(op)} names no contraction"
    check(made, *TENSOR_LEVEL[3:])


def test_real_int8_transformer(minilm_path: Path):
    """36 matmuls and both embeddings fused, no f32 constant as large as a weight, and few passes over memory."""
    made = import_model(minilm_path, {"batch": 1, "sequence": 16})
    tokens = np.random.default_rng(0).integers(0, 30000, (1, 16))
    inputs = [tokens, np.ones_like(tokens), np.zeros_like(tokens)]
    before = run(made, inputs, domain="f64")
    apply(made, *TENSOR_LEVEL[:4])
    assert names(made)["qmm.dequant_matmul"] == 36 and names(made)["qmm.dequant_gather"] == 2
    apply(made, *TENSOR_LEVEL[4:-1])
    assert_same(before, run(made, inputs, domain="f64"))
    matmuls = [op for op in ops(made) if isinstance(op, qmm.DequantMatmulOp)]
    # Bias everywhere; activation and residual where the network has them.
    assert all(op.epilogue is not None for op in matmuls)
    for op in made.walk():
        if isinstance(op, qmm.ConstantOp) and is_float(op.value.element_type):
            assert (
                op.value.nbytes <= 4 * 1536
                or bit_width(op.value.element_type) < 32
                or (op.value.shape == (30522,))
            ), op.value.type
    wide = TensorType(f32, (1, 16, 384))
    passes = [
        op
        for op in ops(made)
        if isinstance(op, linalg.GenericOp) and any(v.type == wide for v in op.operands)
    ]
    # Per normalisation a sum, a sum of squares and the normalisation; the embeddings; nothing else.
    assert len(passes) <= 13 * 3 + 2
