"""Layout ops between a quantised constant and its reader move the axis along, and no bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qfold.dialects import qmm
from tests.frontend.helpers import (
    build,
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
    X,
    cast,
    ints,
    model,
    only_dequantize,
    rand,
    scales,
)


@pytest.mark.parametrize("where", ["before", "between", "after"])
@pytest.mark.parametrize("per", ["row", "column"])
def test_transpose(where: str, per: str):
    """W is stored [N, K], scaled per row or column of what is stored; N = K would hide a lost axis, so it is not."""
    q = ints(np.int8, N, K)
    s = scales(N, 1) if per == "row" else scales(1, K)
    transpose = {"perm": [1, 0]}
    if where == "before":
        nodes = [
            node("Transpose", ["q"], ["t"], **transpose),
            cast("t"),
            node("Mul", ["f", "s"], ["w"]),
        ]
        s = np.ascontiguousarray(s.T)
    elif where == "between":
        nodes = [
            cast(),
            node("Transpose", ["f"], ["t"], **transpose),
            node("Mul", ["t", "s"], ["w"]),
        ]
        s = np.ascontiguousarray(s.T)
    else:
        nodes = [
            cast(),
            node("Mul", ["f", "s"], ["t"]),
            node("Transpose", ["t"], ["w"], **transpose),
        ]
    module = check(model(nodes, {"q": q, "s": s}), {"x": rand(3, K)})
    op = only_dequantize(module, q)  # as stored: no second copy
    assert op.quant.axis == (0 if per == "row" else 1)
    (matmul,) = ops_of(module, qmm.MatmulOp)
    assert matmul.transpose_b is not None and matmul.b is op.result


def test_forward_and_backward_reads_share_the_bytes():
    """x @ w, and g @ w transposed: one constant, one dequantise."""
    inputs = {**X, "g": (np.float32, [3, N])}
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        node("MatMul", ["x", "w"], ["y"]),
        node("Transpose", ["w"], ["wt"]),
        node("MatMul", ["g", "wt"], ["dx"]),
        node("Gemm", ["g", "w"], ["dx2"], transB=1),
        node("Gemm", ["x", "wt"], ["y2"], transB=1),
    ]
    bound = build(nodes, inputs, ["y", "dx", "dx2", "y2"], {"q": W8, "s": scales(N)})
    module = check(bound, {"x": rand(3, K), "g": rand(3, N)})
    only_dequantize(module, W8)
    flags = [op.transpose_b is not None for op in ops_of(module, qmm.MatmulOp)]
    assert flags == [False, True, True, False]


def test_other_readers_of_a_transposed_weight_get_it_transposed():
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["d"], axis=0),
        node("Transpose", ["d"], ["w"]),
        node("Relu", ["w"], ["y"]),
    ]
    q = ints(np.int8, N, K)
    check(build(nodes, X, ["y"], {"q": q, "s": scales(N)}), {"x": rand(3, K)})


@pytest.mark.parametrize("square", [24])
def test_square_weights_keep_their_axis(square: int):
    q = ints(np.int8, square, square)
    nodes = [node("DequantizeLinear", ["q", "s"], ["d"], axis=0), node("Transpose", ["d"], ["w"])]
    module = check(model(nodes, {"q": q, "s": scales(square)}), {"x": rand(3, square)})
    assert only_dequantize(module, q).quant.axis == 0


def test_reshapes_remap_the_axis():
    q = ints(np.int8, 4, N, 6)
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["a"], axis=1),
        node("Unsqueeze", ["a", "axes"], ["b"]),
        node("Transpose", ["b"], ["c"], perm=[0, 1, 3, 2]),
        node("Reshape", ["c", "shape"], ["d"]),
        node("Squeeze", ["d", "axes"], ["w"]),
    ]
    constants = {"q": q, "s": scales(N), "axes": np.array([0]), "shape": np.array([1, K, N])}
    op = only_dequantize(check(model(nodes, constants), {"x": rand(3, K)}))
    assert op.quant.axis == 1
    np.testing.assert_array_equal(weight_of(op), q.transpose(0, 2, 1).reshape(K, N))


def test_a_conv_kernel_flattened_for_a_matmul():
    q = ints(np.int8, N, 6, 2, 2)
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["a"], axis=0),
        node("Flatten", ["a"], ["b"]),
        node("Transpose", ["b"], ["w"]),
    ]
    constants = {"q": q, "s": scales(N), "z": ints(np.int8, N)}
    op = only_dequantize(check(model(nodes, constants), {"x": rand(3, K)}), q.reshape(N, K))
    assert op.quant.axis == 0


@pytest.mark.parametrize("scale_shape", [(6, 1, N), (6, 1, 1)])
def test_groups_written_by_reshape_are_blocks(scale_shape: tuple[int, ...]):
    nodes = [
        node("Reshape", ["q", "grouped"], ["g"]),
        cast("g"),
        node("Sub", ["f", "z"], ["d"]),
        node("Mul", ["d", "s"], ["m"]),
        node("Reshape", ["m", "flat"], ["w"]),
    ]
    zero_point = RNG.integers(-9, 9, scale_shape).astype(np.float32)
    constants = {"q": W8, "z": zero_point, "s": scales(*scale_shape)}
    constants |= {"grouped": np.array([6, 4, N]), "flat": np.array([K, N])}
    op = only_dequantize(check(model(nodes, constants), {"x": rand(3, K)}), W8)
    assert (op.quant.granularity, op.quant.axis, op.quant.block_size) == ("block", 0, 4)


def test_a_reshape_that_breaks_the_axis_up_runs_on_the_dequantised_tensor():
    q = ints(np.int8, N, K)
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["a"], axis=1),
        node("Reshape", ["a", "shape"], ["w"]),
    ]
    op = only_dequantize(
        check(model(nodes, {"q": q, "s": scales(K), "shape": np.array([K, N])}), {"x": rand(3, K)}),
        q,
    )
    assert op.quant.axis == 1


def test_one_stored_matrix_split_into_three():
    q = ints(np.int8, K, 3 * N)
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["a"], axis=1),
        node("Split", ["a"], ["w0", "w1", "w2"], axis=1, num_outputs=3),
        *(node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in range(3)),
    ]
    constants = {"q": q, "s": scales(3 * N), "z": ints(np.int8, 3 * N)}
    module = check(build(nodes, X, ["y0", "y1", "y2"], constants), {"x": rand(3, K)})
    found = ops_of(module, qmm.DequantizeOp)
    assert len(found) == 3
    for i, op in enumerate(found):
        np.testing.assert_array_equal(weight_of(op), q[:, i * N : (i + 1) * N])
        np.testing.assert_array_equal(op.quant.scales, constants["s"][i * N : (i + 1) * N])


def test_slices_with_steps():
    q = ints(np.int8, 2 * K, N)
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["a"], axis=0),
        node("Slice", ["a", "start", "end", "axes", "step"], ["w"]),
    ]
    constants = {"q": q, "s": scales(2 * K), "start": np.array([-1]), "end": np.array([-(1 << 40)])}
    constants |= {"axes": np.array([0]), "step": np.array([-2])}
    only_dequantize(check(model(nodes, constants), {"x": rand(3, K)}), q[::-2])


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[onnx.NodeProto], dict[str, Any], tuple[int, ...]]:
    """A weight [a, b, c] of small odd sizes, dequantised on some axis, then permuted and reshaped to [?, ?]."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=3, max_size=3)))
    axis = draw(st.sampled_from([None, 0, 1, 2]))
    dtype = draw(st.sampled_from([np.int8, np.uint8]))
    parameters = () if axis is None else (shape[axis],)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    info = np.iinfo(dtype)
    constants: dict[str, Any] = {
        "q": rng.integers(info.min, info.max + 1, shape).astype(dtype),
        "s": np.asarray(rng.uniform(0.01, 1, parameters), np.float32),
        "z": rng.integers(info.min, info.max + 1, parameters).astype(dtype),
    }
    attrs = {} if axis is None else {"axis": axis}
    nodes = [node("DequantizeLinear", ["q", "s", "z"], ["v0"], **attrs)]
    count = draw(st.integers(1, 4))
    for step in range(count):
        source, result = f"v{step}", f"v{step + 1}"
        rank = len(shape)
        if draw(st.booleans()):
            perm = draw(st.permutations(range(rank)))
            nodes.append(node("Transpose", [source], [result], perm=perm))
            shape = tuple(shape[p] for p in perm)
        else:
            split = draw(st.integers(1, rank)) if rank > 1 else 1
            head = draw(st.booleans())
            size = int(np.prod(shape[:split]))
            rest = shape[split:]
            target = (size, *rest) if head else (*shape[:1], int(np.prod(shape[1:])))
            constants[f"shape{step}"] = np.asarray(target, np.int64)
            nodes.append(node("Reshape", [source, f"shape{step}"], [result]))
            shape = target
    return nodes, constants, shape


@given(chains())
def test_chains_of_layout_ops(case: tuple[list[onnx.NodeProto], dict[str, Any], tuple[int, ...]]):
    nodes, constants, _shape = case
    last = nodes[-1].output[0]
    bound = build([*nodes, node("Neg", [last], ["y"])], X, ["y"], constants)
    module = check(bound, {"x": np.zeros((3, K), np.float32)}, exact=True)
    # The integers are there, and as floats only if there is too little of them to tell.
    if constants["q"].size > 16:
        assert float_constants(module, constants["q"].size) == []
        assert len(ops_of(module, qmm.DequantizeOp)) == 1
