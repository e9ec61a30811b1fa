"""MatMul, Gemm and Conv against ONNX's reference evaluator, and which op each becomes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from xdsl.dialects.linalg.ops import FillOp, GenericOp
from xdsl.dialects.tensor import CollapseShapeOp, ExpandShapeOp

from qfold.dialects import qmm
from qfold.frontend import FrontendError, UnsupportedNodes, import_model
from qfold.interpreters.run import run
from qfold.ir.constants import constant_array
from tests.frontend.helpers import (
    Array,
    build,
    check,
    float_constants,
    import_checked,
    node,
    ops_of,
)

RNG = np.random.default_rng(2)


def rand(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def matmul(a: tuple[int, ...], b: tuple[int, ...]) -> onnx.ModelProto:
    return build(
        [node("MatMul", ["a", "b"], ["y"])], {"a": (np.float32, a), "b": (np.float32, b)}, ["y"]
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((1, 4), (4, 5)),
        ((3, 4), (4, 1)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((2, 3, 4), (1, 2, 4, 5)),
        ((0, 4), (4, 5)),
        ((2, 0, 4), (4, 5)),
    ],
)
def test_matmul_shapes(a: tuple[int, ...], b: tuple[int, ...]):
    module = check(matmul(a, b), {"a": rand(*a), "b": rand(*b)})
    assert len(ops_of(module, qmm.MatmulOp)) == 1
    assert not ops_of(module, GenericOp)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((1,), (1,)),
    ],
)
def test_matmul_of_vectors(a: tuple[int, ...], b: tuple[int, ...]):
    module = check(matmul(a, b), {"a": rand(*a), "b": rand(*b)})
    assert len(ops_of(module, qmm.MatmulOp)) == 1
    assert ops_of(module, ExpandShapeOp) or ops_of(module, CollapseShapeOp)


@pytest.mark.parametrize(("a", "b"), [((3, 0), (0, 5)), ((2, 3, 0), (0, 5)), ((0,), (0, 5))])
def test_an_empty_sum_is_zero(a: tuple[int, ...], b: tuple[int, ...]):
    module = check(matmul(a, b), {"a": rand(*a), "b": rand(*b)}, exact=True)
    assert not ops_of(module, qmm.MatmulOp)
    assert len(ops_of(module, FillOp)) == 1


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (5, 4)), ((2, 3, 4), (3, 4, 5)), ((), (4, 5)), ((3,), (4, 5))]
)
def test_matmul_that_does_not_fit(a: tuple[int, ...], b: tuple[int, ...]):
    with pytest.raises(FrontendError, match=r"node 'y' \(MatMul.*"):
        import_model(matmul(a, b))


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.uint8])
def test_matmul_of_other_types_is_refused(dtype: Any):
    model = build([node("MatMul", ["a", "a"], ["y"])], {"a": (dtype, [4, 4])}, ["y"])
    with pytest.raises(
        UnsupportedNodes, match=r"MatMul.* found operand 0 of .*; supported: operands of f32"
    ):
        import_model(model)


@pytest.mark.parametrize("leading", [(1,), (1, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_weights_with_unit_dimensions_are_matrices(leading: tuple[int, ...], transposed: bool):
    """A weight [1, K, N] is [K, N] to the contraction; the result keeps its rank."""
    stored = rand(*leading, 30, 20) if transposed else rand(*leading, 20, 30)
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    if transposed:
        perm = [*range(len(leading)), len(leading) + 1, len(leading)]
        nodes = [node("Transpose", ["v"], ["w"], perm=perm), *nodes]
    model = build(nodes, {"x": (np.float32, [3, 20])}, ["y"], {"v" if transposed else "w": stored})
    module = check(model, {"x": rand(3, 20)})
    (op,) = ops_of(module, qmm.MatmulOp)
    assert len(op.b.type.get_shape()) == 2
    assert (op.transpose_b is not None) == transposed
    np.testing.assert_array_equal(constant_array(op.b), stored.reshape(stored.shape[-2:]))


def test_a_float_weight_read_both_ways_is_stored_once():
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        node("MatMul", ["g", "wt"], ["dx"]),
    ]
    inputs = {"x": (np.float32, [3, 20]), "g": (np.float32, [3, 30])}
    module = check(
        build(nodes, inputs, ["y", "dx"], {"w": rand(20, 30)}), {"x": rand(3, 20), "g": rand(3, 30)}
    )
    assert float_constants(module, 100) == [(20, 30)]


# Gemm


@pytest.mark.parametrize(("trans_a", "trans_b"), itertools.product([0, 1], [0, 1]))
@pytest.mark.parametrize("c", [None, (), (1,), (5,), (3, 1), (1, 5), (3, 5)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, -2.0), (0.25, 0.5)])
@pytest.mark.parametrize("constant", [False, True])
def test_gemm(
    trans_a: int, trans_b: int, c: tuple[int, ...] | None, alpha: float, beta: float, constant: bool
):
    a, b = rand(*((4, 3) if trans_a else (3, 4))), rand(*((5, 4) if trans_b else (4, 5)))
    feeds = {"a": a, "b": b}
    inputs: dict[str, Any] = {n: (np.float32, v.shape) for n, v in feeds.items()}
    constants = {}
    if c is not None:
        if constant:
            constants["c"] = rand(*c)
        else:
            inputs["c"], feeds["c"] = (np.float32, c), rand(*c)
    operands = ["a", "b"] if c is None else ["a", "b", "c"]
    gemm = node("Gemm", operands, ["y"], transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)
    module = check(build([gemm], inputs, ["y"], constants), feeds)
    (op,) = ops_of(module, qmm.MatmulOp)
    assert (op.transpose_a is not None, op.transpose_b is not None) == (
        bool(trans_a),
        bool(trans_b),
    )
    # alpha, beta and C are one generic; nothing is left of factors of 1.
    generics = ops_of(module, GenericOp)
    assert len(generics) == (0 if c is None and alpha == 1 else 1)
    if generics:
        multiplications = [o for o in generics[0].walk() if o.name == "arith.mulf"]
        assert len(multiplications) == (alpha != 1) + (c is not None and beta != 1 and not constant)


def test_gemm_of_batches():
    """What ONNX forbids and exporters write: A [2, 3, 4]."""
    inputs = {"a": (np.float32, [2, 3, 4])}
    w, c = rand(5, 4), rand(5)
    module = import_checked(
        build([node("Gemm", ["a", "w", "c"], ["y"], transB=1)], inputs, ["y"], {"w": w, "c": c})
    )
    a = rand(2, 3, 4)
    np.testing.assert_allclose(run(module, [a])[0], a @ w.T + c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("c", [(4,), (2, 5), (5, 1), (1, 3, 5)])
def test_gemm_bias_that_does_not_fit(c: tuple[int, ...]):
    inputs = {"a": (np.float32, [3, 4]), "b": (np.float32, [4, 5]), "c": (np.float32, c)}
    with pytest.raises(FrontendError, match="node 'y' "):
        import_model(build([node("Gemm", ["a", "b", "c"], ["y"])], inputs, ["y"]))


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm_of_old_opsets(opset: int):
    inputs = {"a": (np.float32, [3, 4])}
    constants = {"b": rand(4, 5), "c": rand(5)}
    model = build(
        [node("Gemm", ["a", "b", "c"], ["y"], beta=0.5)], inputs, ["y"], constants, opset=opset
    )
    a = rand(3, 4)
    got = run(import_checked(model), [a])[0]
    np.testing.assert_allclose(got, a @ constants["b"] + 0.5 * constants["c"], rtol=1e-5, atol=1e-5)


# Conv


def conv(
    x: tuple[int, ...], w: tuple[int, ...], bias: bool = True, **attrs: Any
) -> tuple[onnx.ModelProto, Array]:
    operands = ["x", "w", "b"] if bias else ["x", "w"]
    constants = {"w": rand(*w), "b": rand(w[0])} if bias else {"w": rand(*w)}
    model = build(
        [node("Conv", operands, ["y"], name="conv", **attrs)],
        {"x": (np.float32, x)},
        ["y"],
        constants,
    )
    return model, rand(*x)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 3, 8, 8), (4, 3, 3, 3), {}),
        ((2, 3, 8, 7), (4, 3, 3, 2), {"pads": [1, 0, 1, 1]}),
        ((1, 3, 9, 8), (4, 3, 3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
        ((1, 3, 9, 9), (4, 3, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
        ((1, 4, 6, 6), (6, 2, 3, 3), {"group": 2}),
        ((1, 4, 6, 6), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        ((1, 4, 6, 6), (8, 1, 1, 1), {"group": 4, "kernel_shape": [1, 1]}),
        ((1, 3, 7, 6), (4, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((1, 3, 7, 6), (4, 3, 3, 2), {"auto_pad": "SAME_LOWER"}),
        ((1, 3, 7, 6), (4, 3, 3, 2), {"auto_pad": "VALID", "strides": [2, 1]}),
        ((2, 3, 16), (4, 3, 5), {"pads": [2, 2], "strides": [2]}),
        ((1, 4, 11), (4, 1, 3), {"group": 4, "dilations": [2], "auto_pad": "SAME_UPPER"}),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_conv(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], bias: bool):
    model, data = conv(x, w, bias, **attrs)
    module = check(model, {"x": data})
    assert len(ops_of(module, qmm.ConvOp)) == 1
    assert len(ops_of(module, GenericOp)) == bias


def test_conv_with_a_quantised_weight():
    q = RNG.integers(-128, 128, (8, 3, 3, 3)).astype(np.int8)
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0),
        node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    constants = {"q": q, "s": np.abs(rand(8)) + 0.1, "z": q[:, 0, 0, 0]}
    module = check(
        build(nodes, {"x": (np.float32, [1, 3, 6, 6])}, ["y"], constants), {"x": rand(1, 3, 6, 6)}
    )
    (op,), (dq,) = ops_of(module, qmm.ConvOp), ops_of(module, qmm.DequantizeOp)
    assert op.w is dq.result and dq.quant.axis == 0
    assert float_constants(module, q.size) == []


def test_conv_in_three_dimensions_is_refused():
    model, _ = conv((1, 2, 4, 4, 4), (2, 2, 3, 3, 3))
    with pytest.raises(UnsupportedNodes, match="data of 5 dimensions; supported: 1 or 2 spatial"):
        import_model(model)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "message"),
    [
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, "not valid"),
        ((1, 3, 8, 8), (4, 3, 3), {}, "the weight"),
        ((1, 4, 8, 8), (4, 2, 3, 3), {"group": 3}, "not valid"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"kernel_shape": [5, 5]}, r"kernel_shape is \[5, 5\]"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"strides": [0, 1]}, r"strides is \[0, 1\]"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"pads": [1, 1]}, "pads has 2 numbers"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"auto_pad": "SAME"}, "auto_pad 'SAME' is not one of"),
        ((1, 3, 2, 2), (4, 3, 3, 3), {}, "not valid"),
    ],
)
def test_conv_that_does_not_fit(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], message: str
):
    model, _ = conv(x, w, False, **attrs)
    with pytest.raises(FrontendError, match=rf"node 'conv' .*{message}"):
        import_model(model)


def test_conv_bias_that_does_not_fit():
    model, _ = conv((1, 3, 8, 8), (4, 3, 3, 3))
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(rand(3), "b"))
    with pytest.raises(FrontendError, match=r"the bias has shape \[3\], not \[4\]"):
        import_model(model)
