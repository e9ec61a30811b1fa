"""Arithmetic by which exporters dequantise a constant is one `qmm.dequantize`, or left to run time; never a float constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qfold.dialects import qmm
from qfold.frontend import FrontendError, import_model
from qfold.ir.locations import node_names
from tests.frontend.helpers import (
    Array,
    check,
    float_constants,
    node,
    ops_of,
    weight_of,
)
from tests.frontend.weights import (
    RNG,
    W8,
    K,
    N,
    cast,
    ints,
    model,
    only_dequantize,
    rand,
    scales,
)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("shape", [(), (1,), (N,), (1, N), (K, 1), (1, 1)])
@pytest.mark.parametrize("swap", [False, True])
def test_cast_sub_mul(dtype: Any, shape: tuple[int, ...], swap: bool):
    q = ints(dtype, K, N)
    zero_point = np.asarray(RNG.integers(-20 if dtype is np.int8 else 0, 100, shape), np.float32)
    factors = ["s", "d"] if swap else ["d", "s"]
    nodes = [
        cast(),
        node("Sub", ["f", "z"], ["d"], name="sub"),
        node("Mul", factors, ["w"], name="mul"),
    ]
    module = check(model(nodes, {"q": q, "z": zero_point, "s": scales(*shape)}), {"x": rand(3, K)})
    op = only_dequantize(module, q)
    assert op.quant.axis == {(N,): 1, (1, N): 1, (K, 1): 0}.get(shape)
    np.testing.assert_array_equal(op.quant.zero_points.reshape(-1), zero_point.reshape(-1))
    assert node_names(op) == ("cast", "sub", "mul")


def test_cast_alone_has_the_scale_one():
    module = check(model([cast(result="w")], {"q": W8}), {"x": rand(3, K)})
    assert only_dequantize(module, W8).quant.scales == 1.0


def test_a_zero_point_per_tensor_beside_a_scale_per_axis():
    nodes = [cast(), node("Sub", ["f", "z"], ["d"]), node("Mul", ["d", "s"], ["w"])]
    module = check(model(nodes, {"q": W8, "z": np.float32(5), "s": scales(N)}), {"x": rand(3, K)})
    assert only_dequantize(module, W8).quant.zero_points.tolist() == [5] * N


def test_a_zero_point_that_is_stored_and_cast_like_the_weight():
    nodes = [
        cast(),
        cast("z8", "z"),
        node("Sub", ["f", "z"], ["d"]),
        node("Mul", ["d", "s"], ["w"]),
    ]
    constants = {"q": W8, "z8": ints(np.int8, 1, N), "s": scales(1, N)}
    module = check(model(nodes, constants), {"x": rand(3, K)})
    assert only_dequantize(module, W8).quant.axis == 1


def test_an_added_negative_zero_point():
    nodes = [cast(), node("Add", ["z", "f"], ["d"]), node("Mul", ["d", "s"], ["w"])]
    module = check(model(nodes, {"q": W8, "z": np.float32(-7), "s": scales()}), {"x": rand(3, K)})
    assert only_dequantize(module, W8).quant.zero_points == 7


@pytest.mark.parametrize("wide", [TensorProto.INT32, TensorProto.INT16, TensorProto.INT64])
def test_sub_in_a_wide_integer_type_before_the_cast(wide: int):
    dtype = helper.tensor_dtype_to_np_dtype(wide)
    q = ints(np.uint8, K, N)
    nodes = [
        cast("q", "i", wide),
        node("Sub", ["i", "z"], ["d"]),
        cast("d", "f"),
        node("Mul", ["f", "s"], ["w"]),
    ]
    constants = {"q": q, "z": np.asarray([128], dtype), "s": scales(1, N)}
    module = check(model(nodes, constants), {"x": rand(3, K)})
    assert only_dequantize(module, q).quant.zero_points.tolist() == [128] * N


def test_sub_in_eight_bits_wraps_as_onnx_does():
    q = np.full((K, N), -100, np.int8)
    nodes = [node("Sub", ["q", "z"], ["d"]), cast("d", "f"), node("Mul", ["f", "s"], ["w"])]
    module = check(model(nodes, {"q": q, "z": np.int8(100), "s": scales(N)}), {"x": rand(3, K)})
    assert only_dequantize(module, np.full((K, N), 56, np.int8)).quant.is_symmetric


@pytest.mark.parametrize(
    "divisor", [np.float32([4.0]), np.exp2(RNG.integers(-9, 9, (1, N))).astype("f")]
)
def test_division_by_powers_of_two(divisor: Array):
    nodes = [cast(), node("Div", ["f", "s"], ["w"])]
    module = check(model(nodes, {"q": W8, "s": divisor}), {"x": rand(3, K)})
    np.testing.assert_array_equal(
        only_dequantize(module, W8).quant.scales.reshape(-1), 1 / divisor.reshape(-1)
    )


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Div", ["f", "s"], ["w"])], {"s": np.float32(3)}),
        ([node("Mul", ["f", "s"], ["w"])], {"s": np.float32(-0.5)}),
        ([node("Mul", ["f", "s"], ["w"])], {"s": scales(K, N)}),
        ([node("Sub", ["f", "z"], ["w"])], {"z": np.float32(0.5)}),
        ([node("Sub", ["f", "z"], ["w"])], {"z": np.float32(300)}),
        ([node("Sub", ["z", "f"], ["w"])], {"z": np.float32(3)}),
        (
            [node("Mul", ["f", "s"], ["m"]), node("Sub", ["m", "z"], ["w"])],
            {"s": scales(), "z": np.float32(3)},
        ),
        (
            [node("Mul", ["f", "s"], ["m"]), node("Mul", ["m", "t"], ["w"])],
            {"s": scales(), "t": scales(N)},
        ),
    ],
    ids=[
        "div",
        "negative",
        "elementwise",
        "fraction",
        "large",
        "reversed",
        "late zero point",
        "two scales",
    ],
)
def test_other_arithmetic_runs_on_the_integers(
    nodes: list[onnx.NodeProto], constants: dict[str, Any]
):
    module = check(model([cast(), *nodes], {"q": W8, **constants}), {"x": rand(3, K)})
    (op,) = ops_of(module, qmm.DequantizeOp)
    np.testing.assert_array_equal(weight_of(op), W8)
    # A scale for each element is a float of that size by itself; the weight is not.
    assert len(float_constants(module, K * N)) == sum(c.size == K * N for c in constants.values())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_factor_that_is_not_finite_is_an_error(value: float):
    s = scales(N)
    s[3] = value
    with pytest.raises(FrontendError, match="the scale of 'q' is not finite"):
        import_model(model([cast(), node("Mul", ["f", "s"], ["w"])], {"q": W8, "s": s}))
