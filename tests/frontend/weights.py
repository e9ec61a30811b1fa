"""A product with a quantised weight, whose form is what the tests are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from qfold.dialects import qmm
from tests.frontend.helpers import (
    Array,
    build,
    float_constants,
    node,
    ops_of,
    weight_of,
)

RNG = np.random.default_rng(1)
K, N = 24, 20
"""More than 16 elements in every row, so that no parameter is mistaken for the weight."""
X = {"x": (np.float32, [3, K])}
FLOAT = TensorProto.FLOAT


def rand(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def scales(*shape: int) -> Array:
    return np.asarray(RNG.uniform(0.01, 0.2, shape), np.float32)


W8 = ints(np.int8, K, N)


def model(
    nodes: Sequence[onnx.NodeProto], constants: dict[str, Any], **options: Any
) -> onnx.ModelProto:
    """`nodes` make "w" of the constants; y = x @ w."""
    return build(
        [*nodes, node("MatMul", ["x", "w"], ["y"], name="mm")], X, ["y"], constants, **options
    )


def only_dequantize(module: Any, q: Array | None = None) -> qmm.DequantizeOp:
    """The one dequantise, whose weight is `q`; no float constant is as large as the weight."""
    (op,) = ops_of(module, qmm.DequantizeOp)
    if q is not None:
        np.testing.assert_array_equal(weight_of(op), q)
        assert weight_of(op).dtype == q.dtype
    assert float_constants(module, K * N) == []
    return op


def cast(source: str = "q", result: str = "f", to: int = FLOAT) -> onnx.NodeProto:
    return node("Cast", [source], [result], name="cast", to=to)
