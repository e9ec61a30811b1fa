"""Quantisation written as Div, Add, Round, Clip, Sub, Mul: against the same arithmetic in numpy, and as what it is held."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, i16, i32, ui8
from tests.frontend.helpers import Array, build, check, float_constants, node, ops_of

F32 = np.float32
RNG = np.random.default_rng(17)


def fake_quantized(name: str, prefix: str, zero: bool = True) -> list[NodeProto]:
    """`<prefix>q` the integers of `name`, `<prefix>y` what they stand for."""
    p = prefix
    nodes = [node("Div", [name, p + "s"], [p + "d"])]
    if zero:
        nodes.append(node("Add", [p + "d", p + "z"], [p + "a"]))
    return [
        *nodes,
        node("Round", [p + ("a" if zero else "d")], [p + "r"]),
        node("Clip", [p + "r", p + "low", p + "high"], [p + "q"]),
        node("Sub", [p + "q", p + "z"], [p + "c"])
        if zero
        else node("Identity", [p + "q"], [p + "c"]),
        node("Mul", [p + "c", p + "s"], [p + "y"]),
    ]


def parameters(
    prefix: str, scale: Any, low: float, high: float, zero: Any = None
) -> dict[str, Array]:
    found = {"s": scale, "low": low, "high": high} | ({} if zero is None else {"z": zero})
    return {prefix + name: np.asarray(value, F32) for name, value in found.items()}


def data(*shape: int) -> Array:
    x = RNG.uniform(-20, 20, shape).astype(F32)
    x.reshape(-1)[:2] = 1e30, -1e30
    return x


@pytest.mark.parametrize(
    ("low", "high", "zero", "storage"),
    [
        (-128, 127, None, i8),
        (-128, 127, 0, i8),
        (0, 255, 128, ui8),
        (-8, 7, 0, i8),
        (0, 15, 4, ui8),
        (-128, 100, -6, i8),
        (-1000, 1000, 0, i16),
    ],
)
@pytest.mark.parametrize("scale_shape", [(), (1,), (6, 1)])
def test_data_is_quantised_and_dequantised(
    low: int, high: int, zero: int | None, storage: Any, scale_shape: tuple[int, ...]
):
    constants = parameters("p", RNG.uniform(0.02, 0.3, scale_shape), low, high, zero)
    model = build(
        fake_quantized("x", "p", zero is not None), {"x": (F32, [2, 6, 5])}, ["py"], constants
    )
    module = check(model, {"x": data(2, 6, 5)}, rtol=1e-6)
    (q,), (dq,) = ops_of(module, qmm.QuantizeOp), ops_of(module, qmm.DequantizeOp)
    assert q.quant.storage == storage and q.quant.axis == (1 if len(scale_shape) == 2 else None)
    assert dq.quant == q.quant
    names = {op.name for op in module.walk()}
    assert ("linalg.generic" in names) == ((low, high) not in ((-128, 127), (0, 255)))


@pytest.mark.parametrize(
    ("changes", "constants"),
    [
        ({}, parameters("p", 0.1, -128, 127, 3)),
        ({}, parameters("p", 0.1, -128.5, 127, 0)),
        ({}, parameters("p", 0.1, -(2**20), 2**20, 0)),
        ({}, parameters("p", -0.1, -128, 127, 0)),
        ({"Round": "Floor"}, parameters("p", 0.1, -128, 127, 0)),
        ({"Div": "Mul"}, parameters("p", 10, -128, 127, 0)),
    ],
    ids=["odd", "fraction", "wide", "negative", "floor", "reciprocal"],
)
def test_what_is_not_quantisation_stays_arithmetic(
    changes: dict[str, str], constants: dict[str, Array]
):
    nodes = fake_quantized("x", "p")
    for n in nodes:
        n.op_type = changes.get(n.op_type, n.op_type)
    module = check(build(nodes, {"x": (F32, [4, 5])}, ["py"], constants), {"x": data(4, 5)})
    assert not ops_of(module, qmm.QuantizeOp)


def test_integers_as_outputs_and_for_other_readers():
    """The rounded numbers, the integers and a sum of them are read as the floats that they are."""
    nodes = [
        *fake_quantized("x", "p"),
        node("Add", ["pr", "pq"], ["sum"]),
        node("Exp", ["pq"], ["e"]),
    ]
    constants = parameters("p", 2.0, -128, 127, 4)
    model = build(nodes, {"x": (F32, [4, 5])}, ["pq", "sum", "e", "py"], constants)
    check(model, {"x": RNG.uniform(-20, 20, (4, 5)).astype(F32)})


@pytest.mark.parametrize("weight_bits", [4, 8])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_integers(weight_bits: int, transposed: bool):
    """Data and weight clipped, a bias clipped to 32 bits: i32 sums, dequantised once."""
    half = 2.0 ** (weight_bits - 1)
    constants = {
        **parameters("x", 0.25, -128, 127, 0),
        **parameters("w", 0.5, -half, half - 1, 0),
        **parameters("b", 0.125, -(2**31), 2**31 - 1, 0),
        "weight": data(6, 12) if transposed else data(12, 6),
        "bias": data(6) / F32(1e29),
    }
    constants["scale"] = np.asarray(0.125, F32)
    operand = [node("Transpose", ["wq"], ["t"], perm=[1, 0])] if transposed else []
    nodes = [
        *fake_quantized("x", "x"),
        *fake_quantized("weight", "w"),
        *fake_quantized("bias", "b"),
        *operand,
        node("MatMul", ["xq", "t" if transposed else "wq"], ["m"]),
        node("Add", ["m", "bq"], ["sum"]),
        node("Mul", ["sum", "scale"], ["y"]),
    ]
    module = check(build(nodes, {"x": (F32, [3, 12])}, ["y"], constants), {"x": data(3, 12)})
    (op,) = ops_of(module, qmm.QuantMatmulOp)
    assert op.b.type.element_type == (i4 if weight_bits == 4 else i8)
    assert (op.transpose_b is not None) == transposed
    (dequantize,) = ops_of(module, qmm.DequantizeOp)
    assert dequantize.q.type.element_type == i32
    assert not float_constants(module, 2)


def test_a_weight_that_nothing_declares_is_not_narrowed():
    """Its values are integers by chance."""
    constants = parameters("p", 0.25, -128, 127) | {
        "w": np.rint(RNG.uniform(-9, 9, (5, 3))).astype(F32)
    }
    nodes = [*fake_quantized("x", "p", zero=False), node("MatMul", ["pq", "w"], ["y"])]
    module = check(build(nodes, {"x": (F32, [4, 5])}, ["y"], constants), {"x": data(4, 5)})
    assert not ops_of(module, qmm.QuantMatmulOp)
    assert float_constants(module, 15) == [(5, 3)]


def test_a_scaled_product_of_integers_is_one_of_floats():
    constants = {**parameters("x", 0.25, -128, 127), **parameters("w", 0.5, -128, 127)}
    constants["weight"] = data(5, 3)
    nodes = [
        *fake_quantized("x", "x", zero=False),
        *fake_quantized("weight", "w", zero=False),
        node("Gemm", ["xq", "wq"], ["y"], alpha=0.5),
    ]
    module = check(build(nodes, {"x": (F32, [4, 5])}, ["y"], constants), {"x": data(4, 5)})
    assert not ops_of(module, qmm.QuantMatmulOp)
