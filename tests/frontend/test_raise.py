"""Every form in which exporters write a constant dequantise is one `qmm.dequantize`, or left to run time; never a float."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, ui4, ui8
from qfold.frontend import FrontendError, UnsupportedNodes, import_model
from qfold.interpreters.run import run
from qfold.ir.locations import node_names
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


# DequantizeLinear


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize(
    ("scale_shape", "axis"),
    [((), None), ((1,), None), ((K,), 0), ((N,), 1), ((N,), -1), ((K,), -2)],
)
@pytest.mark.parametrize("with_zero_point", [False, True])
def test_dequantize_linear(
    dtype: Any, scale_shape: tuple[int, ...], axis: int | None, with_zero_point: bool
):
    q = ints(dtype, K, N)
    constants = {"q": q, "s": scales(*scale_shape)}
    if with_zero_point:
        constants["z"] = ints(dtype, *scale_shape)
    inputs = ["q", "s", "z"] if with_zero_point else ["q", "s"]
    attrs = {} if axis is None else {"axis": axis}
    dq = node("DequantizeLinear", inputs, ["w"], name="dq", **attrs)
    module = check(model([dq], constants), {"x": rand(3, K)})
    op = only_dequantize(module, q)
    assert op.quant.axis == (None if axis is None else axis % 2)
    assert op.quant.granularity == ("tensor" if axis is None else "axis")
    assert node_names(op) == ("dq",)
    (matmul,) = ops_of(module, qmm.MatmulOp)
    assert matmul.b is op.result


@pytest.mark.parametrize(("axis", "block"), [(0, 8), (0, 24), (1, 5), (0, 5), (1, 7)])
def test_blockwise(axis: int, block: int):
    shape = [K, N]
    shape[axis] = -(-shape[axis] // block)
    constants = {"q": W8, "s": scales(*shape), "z": ints(np.int8, *shape)}
    dq = node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=axis, block_size=block)
    module = import_checked(model([dq], constants))
    op = only_dequantize(module, W8)
    assert (op.quant.granularity, op.quant.axis, op.quant.block_size) == ("block", axis, block)
    s, z = (np.repeat(constants[n], block, axis)[:K, :N] for n in "sz")
    w = (W8.astype(np.int32) - z).astype(np.float32) * s
    x = rand(3, K)
    np.testing.assert_allclose(run(module, [x])[0], x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "element"), [(TensorProto.INT4, i4), (TensorProto.UINT4, ui4)])
def test_four_bits(kind: int, element: Any):
    low = -8 if element == i4 else 0
    values = RNG.integers(low, low + 16, (K, N))
    q = helper.make_tensor("q", kind, [K, N], values.reshape(-1).tolist())
    z = helper.make_tensor("z", kind, [N], RNG.integers(low, low + 16, N).tolist())
    dq = node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1)
    module = check(model([dq], {"q": q, "s": scales(N), "z": z}), {"x": rand(3, K)})
    op = only_dequantize(module)
    assert op.q.type.element_type == element
    np.testing.assert_array_equal(weight_of(op), values)


def test_opset_10_has_no_axis():
    constants = {"q": W8, "s": scales(), "z": np.int8(3)}
    dq = node("DequantizeLinear", ["q", "s", "z"], ["w"])
    module = import_checked(model([dq], constants, opset=10))
    assert only_dequantize(module, W8).quant.zero_points == 3
    x = rand(3, K)
    w = (W8.astype(np.float32) - 3) * constants["s"]
    np.testing.assert_allclose(run(module, [x])[0], x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("constants", "attrs", "message"),
    [
        ({"s": np.float32(np.nan)}, {}, "finite and positive, found nan"),
        ({"s": np.float32(0)}, {}, "finite and positive, found 0"),
        ({"s": np.float32(-0.5)}, {}, "finite and positive, found -0.5"),
        ({"s": np.float32(np.inf)}, {}, "finite and positive, found inf"),
        ({"s": scales(K)}, {"axis": 1}, rf"{K} scales do not fit axis 1 of \[{K}, {N}\]"),
        ({"s": scales(N)}, {"axis": 2}, "axis 2 is out of range"),
        ({"s": scales(3, N)}, {"axis": 0}, "needs a block_size"),
        ({"s": scales(3, N)}, {"axis": 0, "block_size": 7}, r"take scales of shape \[4, 20\]"),
        ({"s": scales(), "z": np.uint8(128)}, {}, "the zero point is ui8, the data i8"),
        ({"s": scales(N), "z": ints(np.int8, 3)}, {}, r"the zero point has shape \[3\]"),
    ],
)
def test_wrong_parameters(constants: dict[str, Any], attrs: dict[str, int], message: str):
    inputs = ["q", "s", "z"] if "z" in constants else ["q", "s"]
    dq = node("DequantizeLinear", inputs, ["w"], name="dq", **attrs)
    with pytest.raises(FrontendError, match=message) as error:
        import_model(model([dq], {"q": W8, **constants}))
    assert "'dq'" in str(error.value)


def test_a_scale_that_is_computed_is_refused_with_a_reason():
    inputs = {**X, "s": (np.float32, [])}
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], name="dq"),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    with pytest.raises(
        UnsupportedNodes, match=r"'dq'.* a scale of the constant 'q' that is computed"
    ):
        import_model(build(nodes, inputs, ["y"], {"q": W8}))


def test_half_precision_output_is_refused():
    dq = node("DequantizeLinear", ["q", "s"], ["w"], name="dq")
    with pytest.raises(UnsupportedNodes, match=r"'dq'.* found an output of f16"):
        import_model(model([dq], {"q": W8, "s": np.float16(0.5)}))


def test_output_type_overrides_that_of_the_scale():
    dq = node("DequantizeLinear", ["q", "s"], ["w"], output_dtype=FLOAT)
    op = only_dequantize(import_checked(model([dq], {"q": W8, "s": np.float16(0.5)}, opset=23)), W8)
    assert op.quant.scales == 0.5


def test_an_i32_bias_becomes_a_float_constant():
    bias = ints(np.int32, N) // 1000
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("DequantizeLinear", ["b", "sb"], ["bias"]),
        node("Gemm", ["x", "w", "bias"], ["y"]),
    ]
    constants = {"q": W8, "s": scales(), "b": bias, "sb": scales()}
    module = check(build(nodes, X, ["y"], constants), {"x": rand(3, K)})
    only_dequantize(module, W8)


# Cast, Sub, Mul


def cast(source: str = "q", result: str = "f", to: int = FLOAT) -> onnx.NodeProto:
    return node("Cast", [source], [result], name="cast", to=to)


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


# Layout ops between


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


# Deeploy's Dequant, stored forms, DQ -> Q -> DQ


def dequant(**attrs: Any) -> onnx.NodeProto:
    return node(
        "Dequant",
        ["q"],
        ["w"],
        name="dq",
        **{"scale": 0.25, "zero_point": 3.0, "bit_width": 8, "signed": 1, **attrs},
    )


@pytest.mark.parametrize(
    ("q", "attrs", "element"),
    [
        (W8, {}, i8),
        (W8.astype(np.float32), {}, i8),
        (W8.astype(np.int64), {}, i8),
        (ints(np.uint8, K, N), {"signed": 0}, ui8),
        (ints(np.uint8, K, N).astype(np.float32), {"signed": 0}, ui8),
        (W8 >> 4, {"bit_width": 4}, i4),
        ((W8 >> 6).astype(np.float32), {"bit_width": 2, "zero_point": 0.0}, i4),
    ],
)
def test_dequant(q: Array, attrs: dict[str, Any], element: Any):
    module = import_checked(model([dequant(**attrs)], {"q": q}))
    op = only_dequantize(module)
    assert op.q.type.element_type == element
    np.testing.assert_array_equal(weight_of(op), q)
    x = rand(3, K)
    w = (q.astype(np.float32) - np.float32(attrs.get("zero_point", 3.0))) * np.float32(0.25)
    np.testing.assert_allclose(run(module, [x])[0], x @ w, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("q", "attrs", "message"),
    [
        (W8.astype(np.float32) * 2, {}, "integers of 8 bits, -128..127"),
        (W8.astype(np.float32) + 0.5, {}, "or fractions"),
        (W8, {"signed": 0}, "integers of 8 bits, 0..255"),
        (W8, {"bit_width": 2}, "integers of 2 bits, -2..1"),
        (W8, {"zero_point": 0.5}, "zero point 0.5 is not an integer"),
        (W8, {"zero_point": 300.0}, "zero point 300.0 is not an integer of i8"),
        (W8, {"scale": 0.0}, "finite and positive"),
        (W8, {"scale": float("nan")}, "finite and positive"),
    ],
)
def test_dequant_that_does_not_hold(q: Array, attrs: dict[str, Any], message: str):
    with pytest.raises(FrontendError, match=message):
        import_model(model([dequant(**attrs)], {"q": q}))


def test_dequant_of_an_unsupported_width():
    with pytest.raises(UnsupportedNodes, match="a bit_width of 32"):
        import_model(model([dequant(bit_width=32)], {"q": W8}))


def test_weights_in_constant_nodes():
    nodes = [
        node("Constant", [], ["q"], value=numpy_helper.from_array(W8)),
        node("Constant", [], ["s"], value_float=0.125),
        node("Identity", ["q"], ["q1"]),
        node("DequantizeLinear", ["q1", "s"], ["w0"]),
        node("Identity", ["w0"], ["w"]),
    ]
    only_dequantize(check(model(nodes, {}), {"x": rand(3, K)}), W8)


def test_requantised_constants():
    """DQ -> Q -> DQ: the integers that the Q gives are the weight."""
    s, s2 = scales(N), np.float32(0.05)
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["a"], axis=1),
        node("QuantizeLinear", ["a", "s2", "z2"], ["b"]),
        node("DequantizeLinear", ["b", "s2", "z2"], ["w"], name="last"),
    ]
    constants = {"q": W8, "s": s, "s2": s2, "z2": np.uint8(100)}
    op = only_dequantize(check(model(nodes, constants), {"x": rand(3, K)}))
    w = (W8.astype(np.float32) * s) / s2
    np.testing.assert_array_equal(weight_of(op), np.clip(np.rint(w) + 100, 0, 255).astype(np.uint8))
    assert node_names(op) == ("last",)


@pytest.mark.parametrize("clip", [False, True])
def test_float_weights_behind_a_fake_quantiser(clip: bool):
    w = rand(K, N)
    nodes = [node("QuantizeLinear", ["w0", "s", "z"], ["a"], axis=1)]
    if clip:
        nodes.append(node("Clip", ["a", "low", "high"], ["b"]))
    nodes.append(node("DequantizeLinear", ["b" if clip else "a", "s", "z"], ["w"], axis=1))
    constants = {
        "w0": w,
        "s": scales(N),
        "z": np.zeros(N, np.int8),
        "low": np.int8(-7),
        "high": np.int8(7),
    }
    op = only_dequantize(check(model(nodes, constants), {"x": rand(3, K)}))
    q = np.clip(np.rint(w / constants["s"]), -128, 127)
    np.testing.assert_array_equal(weight_of(op), np.clip(q, -7, 7) if clip else q)


def test_two_nodes_that_dequantise_alike_are_one_op():
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], name="first"),
        node("DequantizeLinear", ["q", "s"], ["v"], name="second"),
        node("MatMul", ["x", "w"], ["y"]),
        node("MatMul", ["x", "v"], ["z"]),
    ]
    module = check(build(nodes, X, ["y", "z"], {"q": W8, "s": scales()}), {"x": rand(3, K)})
    assert node_names(only_dequantize(module, W8)) == ("first", "second")


def test_one_constant_dequantised_in_two_ways_is_stored_once():
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("DequantizeLinear", ["q", "t"], ["v"]),
        node("MatMul", ["x", "w"], ["y"]),
        node("MatMul", ["x", "v"], ["z"]),
    ]
    module = check(
        build(nodes, X, ["y", "z"], {"q": W8, "s": scales(), "t": scales()}), {"x": rand(3, K)}
    )
    first, second = ops_of(module, qmm.DequantizeOp)
    assert first.q is second.q


# Data of run time


def test_quantised_activations():
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], name="dq"),
    ]
    constants = {"s": np.float32(0.03), "z": np.uint8(120)}
    module = check(build(nodes, X, ["q", "y"], constants), {"x": 3 * rand(3, K)})
    assert len(ops_of(module, qmm.QuantizeOp)) == len(ops_of(module, qmm.DequantizeOp)) == 1


def test_quantised_activations_per_axis():
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1)]
    constants = {"s": scales(K), "z": ints(np.int8, K)}
    (op,) = ops_of(check(build(nodes, X, ["q"], constants), {"x": rand(3, K)}), qmm.QuantizeOp)
    assert op.quant.axis == 1


def test_parameters_of_run_time():
    inputs = {**X, "s": (np.float32, [1]), "z": (np.int8, [])}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    feeds = {"x": rand(3, K), "s": np.float32([0.02]), "z": np.int8(-5)}
    module = import_checked(build(nodes, inputs, ["q", "y"]))
    got = run(module, list(feeds.values()))
    want = np.clip(np.rint(feeds["x"] / feeds["s"]) - 5, -128, 127)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_allclose(got[1], (want + 5) * feeds["s"], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "scale_shape", "attrs"),
    [
        ((2, 3, 4, 5), (3,), {"axis": 1}),
        ((2, 3, 4), (4,), {"axis": -1}),
        ((2, 3), (2,), {"axis": 0}),
        ((6, 4), (2, 4), {"axis": 0, "block_size": 3}),
        ((2, 8, 3), (2, 4, 3), {"axis": 1, "block_size": 2}),
        ((3, 8), (3, 2), {"axis": 1, "block_size": 4}),
    ],
)
def test_parameters_of_run_time_per_axis_and_block(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], attrs: dict[str, int]
):
    inputs = {
        "x": (np.float32, shape),
        "s": (np.float32, scale_shape),
        "z": (np.uint8, scale_shape),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], **attrs),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], **attrs),
    ]
    feeds = {"x": rand(*shape), "s": scales(*scale_shape), "z": ints(np.uint8, *scale_shape)}
    module = import_checked(build(nodes, inputs, ["q", "y"]))
    got = run(module, list(feeds.values()))
    axis, block = attrs["axis"], attrs.get("block_size")
    if block is None:
        view = [-1 if d == axis % len(shape) else 1 for d in range(len(shape))]
        s, z = feeds["s"].reshape(view), feeds["z"].reshape(view)
    else:
        s, z = np.repeat(feeds["s"], block, axis), np.repeat(feeds["z"], block, axis)
    want = np.clip(np.rint(feeds["x"] / s) + z, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], (want.astype(np.int32) - z).astype(np.float32) * s)
    assert len(ops_of(module, qmm.QuantizeOp)) == len(ops_of(module, qmm.DequantizeOp)) == 1


# All forms at once


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
