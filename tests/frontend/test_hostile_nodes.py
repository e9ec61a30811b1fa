"""Nodes that are not what ONNX defines, or that ONNX's reference evaluator gets wrong."""

from __future__ import annotations

import numpy as np
import pytest

from qfold.dialects import qmm
from qfold.frontend import FrontendError, import_model
from qfold.interpreters import run
from tests.frontend.helpers import Array, build, check, import_checked, node, ops_of

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def test_an_attribute_that_became_an_input_is_still_checked() -> None:
    """Exporters write `axes` as the attribute of older opsets; then it has to be what it was there."""
    model = build([node("ReduceMax", ["x"], ["y"], axes=1)], {"x": (np.float32, X.shape)}, ["y"])
    with pytest.raises(FrontendError, match="'axes' is an integer; expected a list of integers"):
        import_model(model)


def test_attributes_of_operators_that_onnx_does_not_define_are_checked() -> None:
    dequant = node("Dequant", ["q"], ["y"], scale=1.0, zero_point=0.0, bit_width=[8], signed=1)
    model = build([dequant], {}, ["y"], {"q": np.zeros((3, 4), np.float32)})
    with pytest.raises(FrontendError, match=r"'bit_width' is \[8\]; expected a number"):
        import_model(model)


def test_a_type_that_inference_refuses_is_a_sentence() -> None:
    model = build([node("Sigmoid", ["c"], ["y"])], {}, ["y"], {"c": np.ones(3, np.uint8)})
    with pytest.raises(FrontendError, match="Sigmoid"):
        import_model(model)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_padding_that_fits_no_memory(mode: str) -> None:
    pads = np.array([0, 0, 0, 0, 0, 2**39])
    model = build(
        [node("Pad", ["x", "pads"], ["y"], mode=mode)],
        {"x": (np.float32, X.shape)},
        ["y"],
        {"pads": pads},
    )
    with pytest.raises(FrontendError, match="elements; at most"):
        import_model(model)


def test_results_have_a_largest_size() -> None:
    shape = np.array([2**20, 2**20])
    model = build(
        [node("Expand", ["x", "shape"], ["y"])], {"x": (np.float32, [1])}, ["y"], {"shape": shape}
    )
    with pytest.raises(FrontendError, match=r"Expand.*gives 1099511627776 elements"):
        import_model(model)


def test_messages_do_not_list_every_element() -> None:
    shape = np.arange(3, 4000)
    model = build(
        [node("Reshape", ["x", "shape"], ["y"])],
        {"x": (np.float32, X.shape)},
        ["y"],
        {"shape": shape},
    )
    with pytest.raises(FrontendError) as caught:
        import_model(model)
    assert len(str(caught.value)) < 1000


def outputs_of_constants(
    op: str, expected: Array, *constants: Array, opset: int, **attributes: object
) -> None:
    names = [f"c{i}" for i in range(len(constants))]
    model = build(
        [node(op, names, ["y"], **attributes)],
        {},
        ["y"],
        dict(zip(names, constants, strict=True)),
        opset=opset,
    )
    (result,) = run(import_checked(model), [])
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-6)


def test_batch_normalization_of_a_constant_takes_the_given_statistics() -> None:
    """ONNX's evaluator mixes in those of the batch, in opsets 9 to 13."""
    scale, bias, mean = (np.array(v, np.float32) for v in ([1, 2, 3], [0, 1, 2], [0.5, -1, 0]))
    variance = np.array([1, 4, 0.25], np.float32)
    column = [v[:, None] for v in (scale, bias, mean, variance)]
    expected = column[0] * (X - column[2]) / np.sqrt(column[3] + 1e-5) + column[1]
    outputs_of_constants("BatchNormalization", expected, X, scale, bias, mean, variance, opset=13)


def test_old_softmax_of_a_constant_is_over_all_dimensions_from_its_axis() -> None:
    """ONNX's evaluator takes one axis in every opset."""
    e = np.exp(X)
    outputs_of_constants("Softmax", e / e.sum(axis=(1, 2), keepdims=True), X, opset=11, axis=1)


def test_pooling_of_a_constant_keeps_the_channels() -> None:
    """ONNX's evaluator pools the channels too, with one spatial dimension."""
    outputs_of_constants("GlobalMaxPool", X.max(axis=2, keepdims=True), X, opset=21)


def test_block_scales_with_one_zero_point_are_transposed() -> None:
    q, scale, zero = (
        np.array([[7]], np.int8),
        np.array([[0.5]], np.float32),
        np.array([[3]], np.int8),
    )
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=-2, block_size=1),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["y"]),
    ]
    x = np.array([[2.0], [-1.0]], np.float32)
    model = build(nodes, {"x": (np.float32, x.shape)}, ["y"], {"q": q, "s": scale, "z": zero})
    module = check(model, {"x": x})
    assert len(ops_of(module, qmm.DequantizeOp)) == 1


def test_slice_forwards_and_backwards_at_once() -> None:
    x = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
    model = build(
        [node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])],
        {"x": (np.float32, x.shape)},
        ["y"],
        {
            "starts": np.array([0, -1]),
            "ends": np.array([3, -(2**31)]),
            "axes": np.array([0, 1]),
            "steps": np.array([1, -2]),
        },
    )
    check(model, {"x": x}, exact=True)
