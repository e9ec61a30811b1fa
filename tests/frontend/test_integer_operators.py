"""MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, DynamicQuantizeLinear, against ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from qfold.dialects import qmm
from qfold.frontend import FrontendError, UnsupportedNodes, import_model
from qfold.interpreters.run import run
from tests.frontend.helpers import Array, build, check, import_checked, node, ops_of
from tests.frontend.quantized import I8, U8, check_against_onnxruntime, full_range

TYPES = [(U8, I8), (I8, I8), (U8, U8), (I8, U8)]


def zero_point(dtype: Any, form: str, size: int) -> Array | None:
    """None, one at an end of the range, or a vector."""
    if form == "none":
        return None
    if form in ("low", "high", "one"):
        info = np.iinfo(dtype)
        value = np.asarray({"low": info.min, "high": info.max, "one": 5}[form], dtype)
        return value.reshape(1) if form == "one" else value
    return full_range(dtype, size, seed=11)


@pytest.mark.parametrize(("a_type", "b_type"), TYPES)
@pytest.mark.parametrize("za", ["none", "low", "high", "one", "vector"])
@pytest.mark.parametrize("zb", ["none", "low", "high", "one", "vector"])
def test_matmul_integer(a_type: Any, b_type: Any, za: str, zb: str):
    m, k, n = 4, 9, 5
    given = {"za": zero_point(a_type, za, m), "zb": zero_point(b_type, zb, n)}
    constants = {"b": full_range(b_type, k, n, seed=1)}
    feeds = {"a": full_range(a_type, m, k)}
    inputs = ["a", "b", *(name if v is not None else "" for name, v in given.items())]
    constants |= {name: v for name, v in given.items() if v is not None}
    model = build([node("MatMulInteger", inputs, ["y"])], {"a": (a_type, [m, k])}, ["y"], constants)
    module = import_checked(model)
    wide = [feeds["a"].astype(np.int64), constants["b"].astype(np.int64)]
    if given["za"] is not None:
        wide[0] -= given["za"].reshape(-1, 1)
    if given["zb"] is not None:
        wide[1] -= given["zb"].reshape(1, -1)
    np.testing.assert_array_equal(run(module, [feeds["a"]])[0], wide[0] @ wide[1])
    (op,) = ops_of(module, qmm.QuantMatmulOp)
    absent = [v is None or not v.any() for v in given.values()]
    assert [op.a_zero_point is None, op.b_zero_point is None] == absent


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((7,), (7, 3)), ((2, 5, 7), (7,)), ((2, 5, 7), (2, 7, 3)), ((3, 1, 5, 7), (2, 7, 3))],
)
def test_matmul_integer_at_run_time(a_shape: tuple[int, ...], b_shape: tuple[int, ...]):
    """Both operands and both zero points."""
    kinds = {"a": (U8, a_shape), "b": (I8, b_shape), "za": (U8, []), "zb": (I8, [])}
    model = build([node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])], kinds, ["y"])
    feeds = {"a": full_range(U8, *a_shape), "b": full_range(I8, *b_shape, seed=1)}
    check(model, {**feeds, "za": np.asarray(255, U8), "zb": np.asarray(-128, I8)}, exact=True)


def test_a_transposed_weight_is_read_where_it_is_stored():
    nodes = [node("Transpose", ["b"], ["t"]), node("MatMulInteger", ["a", "t"], ["y"])]
    model = build(nodes, {"a": (U8, [4, 9])}, ["y"], {"b": full_range(I8, 5, 9)})
    module = check(model, {"a": full_range(U8, 4, 9)}, exact=True)
    (op,) = ops_of(module, qmm.QuantMatmulOp)
    assert op.transpose_b is not None


def test_an_empty_product_is_zero():
    model = build(
        [node("MatMulInteger", ["a", "b"], ["y"])],
        {"a": (U8, [2, 0])},
        ["y"],
        {"b": np.zeros((0, 3), I8)},
    )
    assert np.array_equal(run(import_checked(model), [np.zeros((2, 0), U8)])[0], np.zeros((2, 3)))


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 6, 5), (3, 2, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 4, 7, 6), (4, 1, 3, 2), {"group": 4, "strides": [2, 1], "pads": [0, 1, 2, 0]}),
    ((1, 2, 9), (4, 2, 3), {"dilations": [2], "pads": [2, 2]}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attrs"), CONVOLUTIONS)
@pytest.mark.parametrize(("x_type", "w_type"), TYPES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_conv_integer(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attrs: dict[str, Any],
    x_type: Any,
    w_type: Any,
    per_channel: bool,
):
    """At padded borders nothing is added: padding is the zero point of the data."""
    zw = full_range(w_type, w_shape[0], seed=4) if per_channel else np.asarray(7, w_type)
    x, w, zx = full_range(x_type, *x_shape), full_range(w_type, *w_shape, seed=2), 100
    model = build(
        [node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], **attrs)],
        {"x": (x_type, x_shape), "zx": (x_type, [])},
        ["y"],
        {"w": w, "zw": zw},
    )
    wide = build(
        [node("Conv", ["x", "w"], ["y"], **attrs)],
        {"x": (np.float32, x_shape), "w": (np.float32, w_shape)},
        ["y"],
    )
    module = import_checked(model)
    shifted = w.astype(np.float32) - zw.reshape([-1] + [1] * (w.ndim - 1))
    want = run(import_checked(wide), [x.astype(np.float32) - zx, shifted])[0]
    np.testing.assert_array_equal(run(module, [x, np.asarray(zx, x_type)])[0], want)
    assert len(ops_of(module, qmm.QuantConvOp)) == 1


def qlinear(sa: Any, za: Any, sb: Any, zb: Any, sy: Any, zy: Any) -> dict[str, Array]:
    return {
        "sa": np.asarray(sa, np.float32),
        "za": np.asarray(za),
        "sb": np.asarray(sb, np.float32),
        "zb": np.asarray(zb),
        "sy": np.asarray(sy, np.float32),
        "zy": np.asarray(zy),
    }


INPUTS = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]


def exactly(accumulator: Array, parameters: dict[str, Array], view: tuple[int, ...]) -> Array:
    """The definition: the quotient rounded half to even, the zero point added, saturated."""
    scale = parameters["sa"].astype(np.float64) * parameters["sb"].reshape(view)
    zero = parameters["zy"]
    info = np.iinfo(zero.dtype)
    rounded = np.rint(accumulator * (scale / parameters["sy"])) + int(zero)
    return np.clip(rounded, info.min, info.max).astype(zero.dtype)


@pytest.mark.parametrize(("a_type", "b_type"), TYPES)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("sy", [0.0013, 0.21, 3.7], ids=["saturates", "spreads", "small"])
def test_qlinear_matmul(a_type: Any, b_type: Any, per_column: bool, sy: float):
    k, n = 13, 6
    za, zy = np.asarray(np.iinfo(a_type).max, a_type), np.asarray(np.iinfo(a_type).min + 3, a_type)
    zb: Any = full_range(b_type, n, seed=3) if per_column else np.asarray(9, b_type)
    sb = np.linspace(0.01, 0.02, n) if per_column else 0.015
    parameters = qlinear(0.02, za, sb, zb, sy, zy)
    b = full_range(b_type, k, n, seed=1)
    model = build(
        [node("QLinearMatMul", INPUTS, ["y"])],
        {"a": (a_type, [2, 4, k])},
        ["y"],
        {"b": b, **parameters},
    )
    a = full_range(a_type, 2, 4, k)
    module = check(model, {"a": a}, exact=True)
    wide = (a.astype(np.int64) - int(za)) @ (b.astype(np.int64) - zb)
    np.testing.assert_array_equal(run(module, [a])[0], exactly(wide, parameters, (-1,)))
    (op,) = ops_of(module, qmm.RequantizeOp)
    assert len(op.multipliers) == (n if per_column else 1)
    assert op.axis_index == (2 if per_column else None)


def test_ties_go_to_even_before_the_zero_point_is_added():
    """Quotients of n + 1/2, with an odd zero point: rounding after the addition would give another integer."""
    parameters = qlinear(0.5, np.int8(0), 1.0, np.int8(0), 1.0, np.int8(1))
    model = build(
        [node("QLinearMatMul", INPUTS, ["y"])],
        {"a": (I8, [8, 1])},
        ["y"],
        {"b": np.ones((1, 1), I8), **parameters},
    )
    a = np.array([[-3], [-1], [1], [3], [5], [7], [127], [-128]], I8)
    got = np.asarray(run(import_checked(model), [a])[0]).reshape(-1)
    assert got.tolist() == [-1, 1, 1, 3, 3, 5, 65, -63]


def test_scales_of_rows():
    parameters = qlinear([0.01, 0.02, 0.04], np.uint8(7), 0.03, np.int8(0), 0.05, np.uint8(128))
    model = build(
        [node("QLinearMatMul", INPUTS, ["y"])],
        {"a": (U8, [3, 5])},
        ["y"],
        {"b": full_range(I8, 5, 4), **parameters},
    )
    module = import_checked(model)
    a = full_range(U8, 3, 5)
    wide = (a.astype(np.int64) - 7) @ full_range(I8, 5, 4).astype(np.int64)
    scale = parameters["sa"].astype(np.float64).reshape(-1, 1) * parameters["sb"]
    want = np.clip(np.rint(wide * (scale / parameters["sy"])) + 128, 0, 255)
    np.testing.assert_array_equal(run(module, [a])[0], want)
    assert ops_of(module, qmm.RequantizeOp)[0].axis_index == 0


@pytest.mark.parametrize(("x_shape", "w_shape", "attrs"), CONVOLUTIONS)
@pytest.mark.parametrize(("x_type", "w_type"), TYPES)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_qlinear_conv(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attrs: dict[str, Any],
    x_type: Any,
    w_type: Any,
    per_channel: bool,
    bias: bool,
):
    m = w_shape[0]
    info = np.iinfo(x_type)
    zw: Any = full_range(w_type, m, seed=3) if per_channel else np.asarray(9, w_type)
    sw = np.linspace(0.01, 0.02, m) if per_channel else 0.015
    zx, zy = np.asarray(info.min, x_type), np.asarray(info.max - 90, x_type)
    parameters = qlinear(0.02, zx, sw, zw, 0.11, zy)
    w = full_range(w_type, *w_shape, seed=1)
    rng = np.random.default_rng(0)
    constants = {"b": w, **parameters, "bias": rng.integers(-9000, 9000, m).astype(np.int32)}
    qconv = node("QLinearConv", [*INPUTS, *(["bias"] if bias else [])], ["y"], **attrs)
    model = build([qconv], {"a": (x_type, x_shape)}, ["y"], constants)
    x = full_range(x_type, *x_shape)
    module = import_checked(model)
    channels = [-1] + [1] * (len(x_shape) - 2)
    wide = build(
        [node("Conv", ["x", "w"], ["y"], **attrs)],
        {"x": (np.float32, x_shape), "w": (np.float32, w_shape)},
        ["y"],
    )
    weight = w.astype(np.float32) - zw.reshape([*channels, 1] if per_channel else ())
    accumulator = np.asarray(
        run(import_checked(wide), [x.astype(np.float32) - np.float32(zx), weight])[0]
    )
    if bias:
        accumulator = accumulator + constants["bias"].reshape(channels)
    want = exactly(accumulator, parameters, tuple(channels) if per_channel else ())
    np.testing.assert_array_equal(run(module, [x])[0], want)
    assert len(ops_of(module, qmm.QuantConvOp)) == 1


@pytest.mark.parametrize("x_type", [I8, U8])
def test_qlinear_conv_in_onnxruntime(x_type: Any):
    """Another implementation than ONNX's, which clamps before it rounds."""
    zero = np.asarray(np.iinfo(x_type).min + 20, x_type)
    parameters = qlinear(0.02, zero, [0.01, 0.02, 0.03], np.zeros(3, I8), 0.19, zero)
    bias = np.array([500, -700, 9], np.int32)
    model = build(
        [node("QLinearConv", [*INPUTS, "bias"], ["y"], pads=[1, 1, 1, 1])],
        {"a": (x_type, [1, 2, 6, 5])},
        ["y"],
        {"b": full_range(I8, 3, 2, 3, 3), **parameters, "bias": bias},
    )
    model.graph.output[0].type.tensor_type.elem_type = 3 if x_type == I8 else 2
    check_against_onnxruntime(model, {"a": full_range(x_type, 1, 2, 6, 5)})


@pytest.mark.parametrize(
    "x",
    [
        np.linspace(-1.3, 2.9, 24, dtype=np.float32).reshape(4, 6),
        np.linspace(0.4, 2.9, 24, dtype=np.float32).reshape(4, 6),
        np.linspace(-2.9, -0.4, 24, dtype=np.float32).reshape(4, 6),
        np.zeros((2, 3), np.float32),
    ],
    ids=["both", "positive", "negative", "zero"],
)
def test_dynamic_quantize_linear(x: Array):
    """The range is stretched to hold 0."""
    model = build(
        [node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])],
        {"x": (np.float32, x.shape)},
        ["y", "s", "z"] if x.any() else ["y", "z"],
    )
    module = check(model, {"x": x}, rtol=1e-7)
    assert len(ops_of(module, qmm.DynamicQuantizeOp)) == 1


def test_what_dynamic_quantisation_writes():
    """DynamicQuantizeLinear, MatMulInteger, Cast, Mul, Add: the chain of onnxruntime's quantiser."""
    k, n = 12, 5
    constants: dict[str, Any] = {
        "w": full_range(I8, k, n),
        "zw": full_range(I8, n, seed=5),
        "sw": np.linspace(0.01, 0.02, n, dtype=np.float32),
        "bias": np.linspace(-1, 1, n, dtype=np.float32),
    }
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("Mul", ["s", "sw"], ["scale"]),
        node("MatMulInteger", ["q", "w", "z", "zw"], ["i"]),
        node("Cast", ["i"], ["f"], to=1),
        node("Mul", ["f", "scale"], ["m"]),
        node("Add", ["m", "bias"], ["y"]),
    ]
    model = build(nodes, {"x": (np.float32, [3, k])}, ["y"], constants)
    x = np.random.default_rng(0).standard_normal((3, k)).astype(np.float32)
    module = check(model, {"x": x})
    assert len(ops_of(module, qmm.QuantMatmulOp)) == 1


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_matmul_of_wide_integers_wraps(dtype: Any):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(info.min, info.max, s, dtype=dtype, endpoint=True) for s in ((2, 3, 4), (4, 5))
    )
    model = build(
        [node("MatMul", ["a", "b"], ["y"])], {"a": (dtype, [2, 3, 4]), "b": (dtype, [4, 5])}, ["y"]
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(import_checked(model), [a, b])[0], a @ b)


def model_of_qlinear(**changes: Any) -> ModelProto:
    parameters = qlinear(0.02, np.uint8(3), 0.01, np.int8(0), 0.3, np.uint8(5)) | changes
    inputs = {"a": (U8, [3, 4])}
    for name in [n for n, v in parameters.items() if v is None]:
        inputs[name] = (np.dtype(np.float32), [])
        del parameters[name]
    return build(
        [node("QLinearMatMul", INPUTS, ["y"], "product")],
        inputs,
        ["y"],
        {"b": full_range(I8, 4, 2), **parameters},
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sa": None}, "scale of the left operand .* computed at run time"),
        ({"sa": np.ones(3, np.float32), "sb": np.ones(2, np.float32)}, "one scale per row, or"),
        ({"sy": np.ones(2, np.float32)}, "2 scales of the result"),
    ],
)
def test_refusals_by_name(changes: dict[str, Any], message: str):
    with pytest.raises(UnsupportedNodes, match=rf"'product'.*{message}"):
        import_model(model_of_qlinear(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"za": np.int8(3)}, "the zero point of the left operand is i8, the data ui8"),
        ({"zb": np.zeros(3, np.int8)}, r"has shape \[3\], the data takes \[2\]"),
        ({"sa": np.float32(0)}, "finite and positive"),
        ({"sa": np.float32(np.nan)}, "finite and positive"),
    ],
)
def test_invalid_parameters(changes: dict[str, Any], message: str):
    with pytest.raises(FrontendError, match=rf"'product'.*{message}"):
        import_model(model_of_qlinear(**changes))
