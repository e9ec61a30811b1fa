"""Quantised weights whose scales and zero points run along K, and what fusion refuses: ONNX to executed C, and the report."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType

from tests.execution.test_networks import assert_ok, compiled, kernel_ops
from tests.networks.builders import NetworkBuilder

DTYPES = {
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int4": np.dtype(ml_dtypes.int4),
    "uint4": np.dtype(ml_dtypes.uint4),
}
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}


def quantized(
    b: NetworkBuilder, storage: str, shape: tuple[int, ...], axis: int, block: int | None = None
) -> str:
    """A weight of random bytes behind a DequantizeLinear, all zero points different."""
    low, high = RANGES[storage]
    extents = (
        (shape[axis],)
        if block is None
        else tuple(-(-n // block) if d == axis else n for d, n in enumerate(shape))
    )

    def random_integers(extents: tuple[int, ...]) -> str:
        return b.constant(b.rng.integers(low, high + 1, extents).astype(DTYPES[storage]))

    scale = b.constant((0.5 + b.rng.random(extents)).astype(np.float32) / (high - low))
    attributes = {} if block is None else {"block_size": block}
    data, zero_point = random_integers(shape), random_integers(extents)
    return b.node("DequantizeLinear", data, scale, zero_point, axis=axis, **attributes)


def tied(storage: str, rows: int, n: int) -> onnx.ModelProto:
    """`h = x @ W^T`, `y = relu(h) @ W + residual`: a tied autoencoder that reads one weight both ways."""
    b = NetworkBuilder("tied", opset=21, seed=5)
    x = b.input("x", [2, rows, 12])
    w = quantized(b, storage, (n, 12), 0)
    h = b.node("MatMul", x, b.node("Transpose", w, perm=[1, 0]))
    y = b.node("MatMul", b.node("Relu", h), w)
    b.output(b.node("Add", y, x), [2, rows, 12])
    return b.model()


def shape_of_global(op: memref.GlobalOp) -> tuple[int, ...]:
    assert isinstance(op.type, MemRefType)
    return op.type.get_shape()


@pytest.mark.parametrize("storage", list(DTYPES))
@pytest.mark.parametrize("rows,n", [(1, 12), (5, 7)], ids=["one-row-square", "wide"])
def test_one_weight_read_along_both_axes(storage: str, rows: int, n: int) -> None:
    compilation, result = compiled(tied(storage, rows, n))
    assert_ok(result)
    assert kernel_ops(compilation)["qkernel.dequant_matmul"] == 2
    totals = compilation.report["totals"]
    assert totals["float_copies_of_quantized_weights"] == totals["run_time_dequantizations"] == 0
    # One string of integers for both readers, whether read as signed or not.
    weights = [
        op
        for op in compilation.kernels.walk()
        if isinstance(op, memref.GlobalOp) and shape_of_global(op) == (n * 12,)
    ]
    assert len(weights) == 1


def test_the_reference_of_onnx_agrees() -> None:
    """On f32 throughout, as onnx computes it."""
    from onnx.reference import ReferenceEvaluator

    model = tied("uint8", 5, 7)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 5, 12)).astype(np.float32)}
    names = [o.name for o in model.graph.output]
    expected = ReferenceEvaluator(model).run(None, feeds)
    _, result = compiled(model, feeds, dict(zip(names, expected, strict=True)))
    assert_ok(result)
    assert all(o.golden is not None for o in result.outputs)


def left(storage: str) -> onnx.ModelProto:
    b = NetworkBuilder("left", opset=21, seed=6)
    x = b.input("x", [2, 6, 4])
    b.output(b.node("MatMul", quantized(b, storage, (5, 6), 1), x), [2, 5, 4])
    return b.model()


@pytest.mark.parametrize("storage", ["uint8", "int4"])
def test_a_weight_on_the_left(storage: str) -> None:
    compilation, result = compiled(left(storage))
    assert_ok(result)
    assert kernel_ops(compilation)["qkernel.dequant_matmul"] == 1


def matmul_of(shape: tuple[int, ...], axis: int, block: int | None) -> onnx.ModelProto:
    b = NetworkBuilder("refused", opset=21, seed=7)
    x = b.input("x", [2, 3, shape[-2]])
    b.output(b.node("MatMul", x, quantized(b, "int8", shape, axis, block)), [2, 3, shape[-1]])
    return b.model()


def conv_of(axis: int, block: int | None) -> onnx.ModelProto:
    b = NetworkBuilder("refused", opset=21, seed=8)
    x = b.input("x", [1, 4, 5, 5])
    b.output(b.node("Conv", x, quantized(b, "int8", (6, 4, 3, 3), axis, block)), [1, 6, 3, 3])
    return b.model()


def gather_of() -> onnx.ModelProto:
    b = NetworkBuilder("refused", opset=21, seed=9)
    indices = b.input("i", [3], TensorProto.INT64)
    b.output(b.node("Gather", quantized(b, "int8", (4, 9), 0), indices, axis=1), [4, 3])
    return b.model()


def left_in_blocks() -> onnx.ModelProto:
    """Blocks along the rows of a weight on the left, which are the output features."""
    b = NetworkBuilder("refused", opset=21, seed=10)
    x = b.input("x", [6, 4])
    b.output(b.node("MatMul", quantized(b, "int8", (8, 6), 0, 4), x), [8, 4])
    return b.model()


REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], str, str]] = {
    "batch": (lambda: matmul_of((2, 6, 4), 2, None), "matmul", "a batch of weights [2, 6, 4]"),
    "blocks-along-n": (
        lambda: matmul_of((6, 8), 1, 4),
        "matmul",
        "blocks along axis 1 of the weight, the output features",
    ),
    "left-blocks": (
        left_in_blocks,
        "matmul",
        "blocks along axis 0 of the weight, the output features",
    ),
    "conv-input-channels": (
        lambda: conv_of(1, None),
        "conv",
        "scales along axis 1 of the weight",
    ),
    "conv-blocks-of-inputs": (lambda: conv_of(1, 2), "conv", "blocks along axis 1 of the weight"),
    "conv-blocks": (lambda: conv_of(0, 2), "conv", "blocks along the output channels"),
    "gather-columns": (gather_of, "gather", "indices into other axes"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_refused_says_why_in_the_report_and_still_computes(name: str) -> None:
    build, kind, reason = REFUSED[name]
    model = build()
    rng = np.random.default_rng(2)
    inputs = {
        i.name: np.array([0, 8, -3])
        if i.type.tensor_type.elem_type == TensorProto.INT64
        else rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype("f4")
        for i in model.graph.input
    }
    compilation, result = compiled(model, inputs)
    assert_ok(result)
    node = next(n for n in model.graph.node if n.op_type.lower() == kind)
    (entry,) = [n for n in compilation.report["nodes"] if n["name"] == node.name]
    assert entry["status"] == "not_fused"
    (text,) = entry["reasons"]
    assert reason in text and "; supported: " in text
    totals = compilation.report["totals"]
    assert totals["fused"][kind] == 0 and totals["run_time_dequantizations"] == 1
