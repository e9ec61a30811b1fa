"""QONNX's Quant, and Brevitas' QuantizeLinear, Clip, DequantizeLinear, against what their definitions say in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, i16, ui4, ui8
from qfold.frontend import UnsupportedNodes, import_model
from qfold.interpreters.run import run
from tests.frontend.helpers import (
    Array,
    build,
    check,
    float_constants,
    import_checked,
    node,
    ops_of,
    weight_of,
)

DOMAINS = ["qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"]
RNG = np.random.default_rng(7)


def quant(
    x: Array,
    scale: Array,
    zero: Array,
    bits: int,
    *,
    signed: int = 1,
    narrow: int = 0,
    rounding: Any = np.rint,
) -> tuple[Array, Array]:
    """(integers, what they stand for): the operator's definition."""
    half = 2 ** (bits - 1)
    low, high = (narrow - half, half - 1) if signed else (0, 2 * half - 1 - narrow)
    q = rounding(np.clip(x / scale + zero, low, high))
    return q, ((q - zero) * scale).astype(np.float32)


def model(
    constants: dict[str, Any], data: str = "w", domain: str = DOMAINS[0], **attrs: Any
) -> ModelProto:
    """x [3, 8] @ Quant(w [8, 5]), or Quant(x) @ w."""
    left, right = ("x", "q") if data == "w" else ("q", "w")
    nodes = [
        node("Quant", [data, "s", "z", "b"], ["q"], "quant", domain=domain, **attrs),
        node("MatMul", [left, right], ["y"]),
    ]
    built = build(nodes, {"x": (np.float32, [3, 8])}, ["y"], constants)
    built.opset_import.append(helper.make_opsetid(domain, 1))
    return built


def parameters(bits: float, scale: Any = 0.03, zero: Any = 0.0) -> dict[str, Any]:
    return {
        "w": RNG.uniform(-4, 4, (8, 5)).astype(np.float32),
        "s": np.asarray(scale, np.float32),
        "z": np.asarray(zero, np.float32),
        "b": np.asarray(bits, np.float32),
    }


X = RNG.standard_normal((3, 8)).astype(np.float32)
X[0, 0], X[0, 1] = 1000.0, -1000.0


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    ("bits", "signed", "narrow", "storage"),
    [
        (1, 0, 0, ui4),
        (2, 1, 0, i4),
        (3, 1, 1, i4),
        (4, 1, 0, i4),
        (4, 0, 1, ui4),
        (5, 1, 0, i8),
        (8, 1, 1, i8),
        (8, 0, 0, ui8),
        (12, 1, 0, i16),
    ],
)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights(domain: str, bits: int, signed: int, narrow: int, storage: Any, axis: int | None):
    shape = {None: (), 0: (8, 1), 1: (1, 5)}[axis]
    zero = 0.0 if signed else 1.0
    constants = parameters(bits, RNG.uniform(0.3, 0.9, shape), np.full(shape, zero))
    built = model(constants, domain=domain, signed=signed, narrow=narrow)
    module = import_checked(built)
    q, real = quant(
        constants["w"], constants["s"], constants["z"], bits, signed=signed, narrow=narrow
    )
    (op,) = ops_of(module, qmm.DequantizeOp)
    assert op.q.type.element_type == storage
    assert op.quant.axis == axis
    np.testing.assert_array_equal(weight_of(op), q)
    assert not float_constants(module, 40)
    np.testing.assert_allclose(run(module, [X])[0], X @ real, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize(
    ("mode", "rounding"),
    [
        ("ROUND", np.rint),
        ("FLOOR", np.floor),
        ("CEIL", np.ceil),
        ("ROUND_TO_ZERO", np.trunc),
        ("UP", lambda x: np.sign(x) * np.ceil(np.abs(x))),
        ("HALF_UP", lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5)),
        ("HALF_DOWN", lambda x: np.sign(x) * np.ceil(np.abs(x) - 0.5)),
    ],
)
def test_rounding_modes_of_weights(mode: str, rounding: Any):
    constants = parameters(8, 0.5)
    constants["w"] = np.linspace(-5, 4.75, 40, dtype=np.float32).reshape(8, 5)
    module = import_checked(model(constants, rounding_mode=mode))
    q, _ = quant(constants["w"], constants["s"], constants["z"], 8, rounding=rounding)
    np.testing.assert_array_equal(weight_of(ops_of(module, qmm.DequantizeOp)[0]), q)


@pytest.mark.parametrize(
    ("bits", "signed", "narrow"), [(8, 1, 0), (8, 1, 1), (8, 0, 0), (4, 1, 0), (3, 0, 1), (9, 1, 0)]
)
@pytest.mark.parametrize("scale", [0.03, 0.5])
def test_data_of_run_time(bits: int, signed: int, narrow: int, scale: float):
    """Of fewer bits than a type has: clamped. A scale of 0.5 and halves of it make ties."""
    constants = parameters(bits, scale, 0.0 if signed else 4.0)
    built = model(constants, "x", signed=signed, narrow=narrow)
    x = np.linspace(-4, 4, 24, dtype=np.float32).reshape(3, 8) if scale == 0.03 else X
    x = np.rint(x * 4) / np.float32(4) if scale == 0.5 else x
    module = import_checked(built)
    _, real = quant(x, constants["s"], constants["z"], bits, signed=signed, narrow=narrow)
    np.testing.assert_allclose(run(module, [x])[0], real @ constants["w"], rtol=1e-5, atol=1e-5)
    assert len(ops_of(module, qmm.QuantizeOp)) == len(ops_of(module, qmm.DequantizeOp)) == 1


def test_a_bias_of_32_bits_is_floats():
    constants = parameters(32, 0.001)
    module = import_checked(model(constants))
    _, real = quant(constants["w"], constants["s"], constants["z"], 32)
    np.testing.assert_allclose(run(module, [X])[0], X @ real, rtol=1e-5, atol=1e-2)
    assert not ops_of(module, qmm.DequantizeOp)


@pytest.mark.parametrize(
    ("changes", "data", "attrs", "message"),
    [
        ({"b": np.float32(2.5)}, "w", {}, "a bitwidth of 2.5"),
        ({"b": np.float32(33)}, "w", {}, "a bitwidth of 33"),
        ({"b": np.ones(5, np.float32)}, "w", {}, "5 bit widths"),
        ({"z": np.float32(0.5)}, "w", {}, "a zeropt that is a fraction"),
        ({"z": np.float32(300)}, "w", {}, "a zeropt outside"),
        ({"s": np.ones((8, 5), np.float32)}, "w", {}, "one along a dimension"),
        ({}, "w", {"rounding_mode": "STOCHASTIC"}, "'STOCHASTIC'"),
        ({}, "x", {"rounding_mode": "FLOOR"}, "'FLOOR' of data computed at run time"),
        ({"z": np.float32(3)}, "x", {}, "an odd zeropt"),
        ({"b": np.float32(17)}, "x", {}, "17 bits of data computed at run time"),
    ],
)
def test_refusals(changes: dict[str, Any], data: str, attrs: dict[str, Any], message: str):
    with pytest.raises(UnsupportedNodes, match=rf"'quant'.*{message}"):
        import_model(model(parameters(8) | changes, data, **attrs))


def test_brevitas_qcdq():
    """Seven bits as QuantizeLinear, Clip, DequantizeLinear: of data, and of a weight that is stored as floats."""
    constants = {
        "s": np.float32(0.05),
        "z": np.int8(0),
        "low": np.int8(-64),
        "high": np.int8(63),
        "w": RNG.uniform(-6, 6, (8, 5)).astype(np.float32),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("Clip", ["xq", "low", "high"], ["xc"]),
        node("DequantizeLinear", ["xc", "s", "z"], ["xf"]),
        node("QuantizeLinear", ["w", "s", "z"], ["wq"]),
        node("Clip", ["wq", "low", "high"], ["wc"]),
        node("DequantizeLinear", ["wc", "s", "z"], ["wf"]),
        node("MatMul", ["xf", "wf"], ["y"]),
    ]
    module = check(build(nodes, {"x": (np.float32, [3, 8])}, ["y"], constants), {"x": X})
    assert len(ops_of(module, qmm.QuantizeOp)) == 1
    weight = next(op for op in ops_of(module, qmm.DequantizeOp) if op.q.type.get_shape() == (8, 5))
    assert weight_of(weight).min() == -64 and weight_of(weight).max() == 63
