"""What ONNX's node cases leave out: old forms, exporters' quirks, integers, and which IR an operator becomes.

References are ONNX's own evaluator, or numpy where that one does not know the form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xdsl.dialects import linalg, tensor
from xdsl.dialects.builtin import ModuleOp

from qfold.dialects import qmm
from qfold.frontend.errors import FrontendError
from qfold.frontend.module import import_model
from qfold.interpreters import run
from qfold.tools.driver import Options, lower
from tests.conformance.batches import compiled_failures
from tests.conformance.cases import Case, difference

Array = npt.NDArray[Any]
RNG = np.random.default_rng(7)


CHECKED: list[Case] = []
"""What `check` saw, for the compilation at the end."""


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    opset: int = 21,
) -> ModelProto:
    """A model whose outputs declare nothing."""
    graph = helper.make_graph(
        list(nodes),
        "details",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def check(
    nodes: Sequence[NodeProto] | NodeProto,
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    opset: int = 21,
    expected: Sequence[Array] | None = None,
) -> ModuleOp:
    """Import, verify, run and compare the outputs of the last node, at the tensor and at the kernel level.

    Returns the module at the tensor level.
    """
    nodes = [nodes] if isinstance(nodes, NodeProto) else nodes
    outputs = [o for o in nodes[-1].output if o]
    model = model_of(nodes, inputs, outputs, constants, opset)
    module = import_model(model)
    module.verify()
    if expected is None:
        with np.errstate(all="ignore"):
            expected = [np.asarray(o) for o in ReferenceEvaluator(model).run(None, dict(inputs))]
    kernels = module.clone()
    lower(kernels, Options())
    for level in (module, kernels):
        actual = run(level, list(inputs.values()))
        assert len(actual) == len(expected)
        for have, want in zip(actual, expected, strict=True):
            assert isinstance(have, np.ndarray)
            assert difference(have, want) is None
    CHECKED.append(Case(nodes[-1].op_type, "", model, list(inputs.values()), list(expected)))
    return module


def count(module: ModuleOp, kind: type[Any]) -> int:
    return sum(isinstance(op, kind) for op in module.walk())


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


# Old forms and exporters' quirks


@pytest.mark.parametrize(
    ("operator", "axis"), [("Softmax", 1), ("LogSoftmax", 1), ("Softmax", 0), ("Softmax", -1)]
)
def test_softmax_until_opset_12_normalises_all_dimensions_from_axis_on(
    operator: str, axis: int
) -> None:
    x = floats(2, 3, 4)
    flat = x.reshape(int(np.prod(x.shape[: axis % 3])), -1).astype(np.float64)
    powers = np.exp(flat - flat.max(axis=1, keepdims=True))
    value = powers / powers.sum(axis=1, keepdims=True)
    if operator == "LogSoftmax":
        value = np.log(value)
    expected = value.reshape(x.shape).astype(np.float32)
    node = helper.make_node(operator, ["x"], ["y"], axis=axis)
    check(node, {"x": x}, opset=11, expected=[expected])


def test_softmax_of_large_values_does_not_overflow() -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    module = check(helper.make_node("Softmax", ["x"], ["y"]), {"x": x})
    assert count(module, linalg.ops.GenericOp) == 4


@pytest.mark.parametrize("opset", [12, 13, 18])
def test_reduce_sum_with_axes_as_attribute_in_any_opset(opset: int) -> None:
    x = floats(2, 3, 4)
    node = helper.make_node("ReduceSum", ["x"], ["y"], axes=[-1], keepdims=0)
    check(node, {"x": x}, opset=opset, expected=[x.sum(axis=-1)])


@pytest.mark.parametrize("opset", [12, 13])
def test_squeeze_and_unsqueeze_with_axes_as_attribute_in_any_opset(opset: int) -> None:
    x = floats(2, 1, 3)
    nodes = [
        helper.make_node("Squeeze", ["x"], ["s"], axes=[1]),
        helper.make_node("Unsqueeze", ["s"], ["y"], axes=[0, -1]),
    ]
    check(nodes, {"x": x}, opset=opset, expected=[x.reshape(1, 2, 3, 1)])


def test_gelu_without_attribute_in_an_opset_older_than_the_operator() -> None:
    x = floats(3, 5)
    reference = model_of([helper.make_node("Gelu", ["x"], ["y"])], {"x": x}, ["y"], opset=20)
    expected = [np.asarray(o) for o in ReferenceEvaluator(reference).run(None, {"x": x})]
    check(helper.make_node("Gelu", ["x"], ["y"]), {"x": x}, opset=13, expected=expected)


def test_layer_normalization_in_an_opset_older_than_the_operator() -> None:
    x, scale, bias = floats(2, 3, 8), floats(8), floats(8)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    expected = (normal * scale + bias).astype(np.float32)
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"])
    check(node, {"x": x}, {"s": scale, "b": bias}, opset=13, expected=[expected])


def test_layer_normalization_is_accurate_far_from_zero() -> None:
    """The variance is that of the differences from the mean: a mean of squares would lose all digits here."""
    x = (floats(4, 64) * 0.01 + 1000).astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y"])
    model = model_of([node], {"x": x}, ["y"], {"s": np.ones(64, np.float32)})
    (actual,) = run(import_model(model), [x])
    # The mean itself is rounded: 2^-24 of 1000 in differences of 0.01.
    assert np.abs(np.asarray(actual) - expected).max() < 0.05


def test_clip_with_attributes_until_opset_10() -> None:
    x = floats(3, 4)
    node = helper.make_node("Clip", ["x"], ["y"], min=-0.5, max=0.25)
    check(node, {"x": x}, opset=10, expected=[np.clip(x, np.float32(-0.5), np.float32(0.25))])
    module = check(
        helper.make_node("Clip", ["x"], ["y"], max=0.25),
        {"x": x},
        opset=10,
        expected=[np.minimum(x, np.float32(0.25))],
    )
    assert [op.name for op in module.walk() if op.name.startswith("arith.m")] == ["arith.minimumf"]


def test_pad_with_attributes_until_opset_10() -> None:
    x = floats(2, 3)
    node = helper.make_node("Pad", ["x"], ["y"], pads=[0, 1, 2, 0], value=3.0)
    expected = np.pad(x, ((0, 2), (1, 0)), constant_values=3.0)
    check(node, {"x": x}, opset=10, expected=[expected])


# Integers


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod"])
def test_integer_arithmetic_on_the_whole_range(operator: str, dtype: str) -> None:
    """Wraps, truncates, and orders by the type's own signedness."""
    info = np.iinfo(dtype)
    x = np.array([info.min, info.min + 1, 0, 1, 7, info.max // 2 + 1, info.max], dtype)
    y = np.array([3, 2, 5, info.max, 2, info.max // 2 + 2, 1], dtype)
    wide = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    python = {
        "Add": lambda a, b: a + b,
        "Sub": lambda a, b: a - b,
        "Mul": lambda a, b: a * b,
        "Div": lambda a, b: abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1),
        "Max": max,
        "Min": min,
        "Mod": lambda a, b: a % b,
    }[operator]
    bits = info.bits
    values = [python(a, b) % (1 << bits) for a, b in wide]
    expected = np.array([v - (1 << bits) if v > info.max else v for v in values], dtype)
    check(helper.make_node(operator, ["x", "y"], ["z"]), {"x": x, "y": y}, expected=[expected])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(
    "operator", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceL1"]
)
def test_integer_reductions(operator: str, dtype: str) -> None:
    x = RNG.integers(0, 20, (3, 4)).astype(dtype)
    if np.iinfo(dtype).min < 0:
        x[1] = -x[1]
    functions = {
        "ReduceMax": lambda a: a.max(1),
        "ReduceMin": lambda a: a.min(1),
        "ReduceSum": lambda a: a.sum(1),
        "ReduceMean": lambda a: np.trunc(a.sum(1) / 4),
        "ReduceL1": lambda a: np.abs(a).sum(1),
    }
    expected = functions[operator](x.astype(np.int64)).astype(dtype)
    node = helper.make_node(operator, ["x", "axes"], ["y"], keepdims=0)
    check(node, {"x": x}, {"axes": np.array([1])}, expected=[expected])


@pytest.mark.parametrize(
    "source", ["bool", "int8", "uint8", "int32", "uint32", "int64", "float32", "float64"]
)
@pytest.mark.parametrize(
    "target", ["bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64"]
)
def test_cast_of_values_in_range(source: str, target: str) -> None:
    x = np.array([0, 1, 2, 100, 127], source)
    if source.startswith("float"):
        x = np.array([0, 0.5, 1.75, 100.99, 127], source)
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    check(node, {"x": x}, expected=[x.astype(target)])


def test_cast_of_negative_and_wide_integers_wraps() -> None:
    x = np.array([-1, 255, 256, -129, 40000], np.int32)
    for target in ("int8", "uint8", "int16", "uint16", "int64"):
        to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
        check(helper.make_node("Cast", ["x"], ["y"], to=to), {"x": x}, expected=[x.astype(target)])


def test_f64_arithmetic_keeps_its_precision_and_its_nans() -> None:
    x = np.array([1e-300, np.nan, 1 / 3, -2.0])
    y = np.array([3e-300, 1.0, np.nan, -3.0])
    check(helper.make_node("Max", ["x", "y"], ["z"]), {"x": x, "y": y}, expected=[np.maximum(x, y)])
    check(helper.make_node("Mul", ["x", "y"], ["z"]), {"x": x, "y": y}, expected=[x * y])
    check(helper.make_node("Abs", ["x"], ["z"]), {"x": x}, expected=[np.abs(x)])


@pytest.mark.parametrize("operator", ["Exp", "Erf", "Tanh", "Sigmoid", "Sqrt", "Softmax"])
def test_f64_functions_are_refused_by_name(operator: str) -> None:
    node = helper.make_node(operator, ["x"], ["y"], name="the_node")
    with pytest.raises(FrontendError, match=rf"'the_node' \({operator}.*f64.*f32"):
        import_model(model_of([node], {"x": np.ones(3)}, ["y"]))


# Powers


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 0.5, -1.0, 2.5])
def test_pow_by_a_constant(exponent: float) -> None:
    x = np.abs(floats(3, 4)) + np.float32(0.1)
    node = helper.make_node("Pow", ["x", "p"], ["y"])
    module = check(node, {"x": x}, {"p": np.array(exponent, np.float32)})
    powers = [op for op in module.walk() if op.name == "math.powf"]
    assert len(powers) == (0 if exponent in (1.0, 2.0, 3.0) else 1)


def test_pow_of_integers_by_constant_integers() -> None:
    x = np.array([-3, 0, 2, 7], np.int32)
    node = helper.make_node("Pow", ["x", "p"], ["y"])
    check(
        node,
        {"x": x},
        {"p": np.array([5, 0, 31, 2], np.int64)},
        expected=[np.array([-243, 1, -(2**31), 49], np.int32)],
    )


# Layout and indexing


def test_gather_of_rows_is_marked_and_keeps_the_quantised_table() -> None:
    table = RNG.integers(-128, 128, (40, 6)).astype(np.int8)
    scale = (RNG.random(40).astype(np.float32) + 0.5) / 100
    indices = np.array([[0, 39, -1], [5, -40, 7]], np.int64)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["t"], axis=0),
        helper.make_node("Gather", ["t", "i"], ["y"]),
    ]
    module = check(nodes, {"i": indices}, {"w": table, "s": scale})
    (gather,) = [op for op in module.walk() if "qmm.gather" in op.attributes]
    assert isinstance(gather, linalg.ops.GenericOp)
    assert len(gather.inputs) == 1
    (extract,) = [op for op in gather.walk() if isinstance(op, tensor.ExtractOp)]
    assert isinstance(extract.tensor.owner, qmm.DequantizeOp)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_along_any_axis(axis: int, dtype: type[np.integer[Any]]) -> None:
    x = floats(3, 4, 5)
    indices = np.array([[0, -1], [2, 1]], dtype)
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=axis)
    check(node, {"x": x, "i": indices})


@pytest.mark.parametrize(
    ("indices", "looked_up"),
    [
        (np.array(2), False),
        (np.array([1]), False),
        (np.array([3, 2, 1, 0]), False),
        (np.array([[0, 2], [-1, -1]]), False),
        (RNG.permutation(64), True),
    ],
)
def test_gather_at_constant_indices_is_slices_where_they_are_few(
    indices: Array, looked_up: bool
) -> None:
    x = floats(2, 64 if looked_up else 4, 3)
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    module = check(node, {"x": x}, {"i": indices.astype(np.int64)})
    assert count(module, tensor.ExtractOp) == int(looked_up)


def test_gather_never_reads_outside_of_its_table() -> None:
    """ONNX calls such indices an error; the nearest row is read."""
    x = floats(3, 2)
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    module = import_model(model_of([node], {"x": x, "i": np.zeros(4, np.int64)}, ["y"]))
    extremes = np.array([3, -4, np.iinfo(np.int64).max, np.iinfo(np.int64).min])
    (actual,) = run(module, [x, extremes])
    np.testing.assert_array_equal(np.asarray(actual), x[[2, 0, 2, 0]])


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap", "constant"])
@pytest.mark.parametrize("pads", [[0, 1, 0, 2], [2, 3, 1, 2], [0, -1, 1, 2], [5, 0, 4, 0]])
def test_pad_modes_with_negative_and_long_pads(mode: str, pads: list[int]) -> None:
    x = floats(3, 4)
    cut = x[max(0, -pads[0]) : 3 + min(0, pads[2]), max(0, -pads[1]) : 4 + min(0, pads[3])]
    widths = [(max(0, pads[0]), max(0, pads[2])), (max(0, pads[1]), max(0, pads[3]))]
    expected = np.pad(cut, widths, mode=mode)  # pyright: ignore
    node = helper.make_node("Pad", ["x", "p"], ["y"], mode=mode)
    check(node, {"x": x}, {"p": np.array(pads)}, expected=[expected])


def test_pad_with_a_value_that_is_computed_and_some_axes() -> None:
    x, value = floats(2, 3), np.array(1.5, np.float32)
    node = helper.make_node("Pad", ["x", "p", "v", "a"], ["y"])
    constants = {"p": np.array([1, 2]), "a": np.array([-1])}
    expected = np.pad(x, ((0, 0), (1, 2)), constant_values=1.5)
    check(node, {"x": x, "v": value}, constants, expected=[expected])


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1], [1000], [1], [2]),
        ([-1], [-1000], [-1], [-1]),
        ([3], [0], [1], [-2]),
        ([-2, 0], [1000, 2], [1, 0], [1, 1]),
        ([2], [1], [0], [1]),
        ([-1000], [1000], [2], [3]),
        ([2**31], [-(2**31)], [1], [-1]),
    ],
)
def test_slices(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
    x = floats(2, 4, 5)
    node = helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"])
    named = {"s": starts, "e": ends, "a": axes, "t": steps}
    check(node, {"x": x}, {n: np.array(v, np.int64) for n, v in named.items()})


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_split_into_given_and_equal_parts(opset: int) -> None:
    x = floats(2, 6)
    if opset < 13:
        node = helper.make_node("Split", ["x"], ["a", "b"], axis=1, split=[2, 4])
        check(node, {"x": x}, opset=opset, expected=[x[:, :2], x[:, 2:]])
    else:
        node = helper.make_node("Split", ["x", "s"], ["a", "b"], axis=1)
        check(node, {"x": x}, {"s": np.array([5, 1])}, opset=opset, expected=[x[:, :5], x[:, 5:]])
    node = helper.make_node("Split", ["x"], ["a", "b", "c"], axis=-1)
    if opset >= 18:
        node.attribute.append(helper.make_attribute("num_outputs", 3))
    check(node, {"x": x}, opset=opset, expected=np.split(x, 3, axis=1))


@pytest.mark.parametrize("shape", [(6, 4), (1, 24), (2, 3, 2, 2), (24,), (3, 8), (1, 1, 24, 1)])
def test_reshape_between_any_shapes(shape: tuple[int, ...]) -> None:
    x = floats(2, 3, 4)
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    check(node, {"x": x}, {"s": np.array(shape)})


def test_reshape_to_and_from_a_scalar() -> None:
    x = floats(1, 1)
    nodes = [
        helper.make_node("Squeeze", ["x"], ["s"]),
        helper.make_node("Neg", ["s"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "a"], ["y"]),
    ]
    check(nodes, {"x": x}, {"a": np.array([0, 1, 2])}, expected=[-x.reshape(1, 1, 1)])


@pytest.mark.parametrize("repeats", [[1, 3, 1], [2, 1, 2], [1, 1, 1], [0, 1, 2]])
def test_tile(repeats: list[int]) -> None:
    x = floats(2, 3, 4)
    node = helper.make_node("Tile", ["x", "r"], ["y"])
    check(node, {"x": x}, {"r": np.array(repeats)}, expected=[np.tile(x, repeats)])


# Pooling


def average_pool(x: Array, k: int, stride: int, low: int, high: int, with_padding: bool) -> Array:
    """1-D, by the definition."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (low, high)))
    valid = np.pad(np.ones(x.shape[2]), (low, high))
    starts = range(0, padded.shape[2] - k + 1, stride)
    sums = [padded[:, :, s : s + k].sum(-1) for s in starts]
    counts = [k if with_padding else valid[s : s + k].sum() for s in starts]
    return np.stack([s / c for s, c in zip(sums, counts, strict=True)], -1).astype(np.float32)


@pytest.mark.parametrize("with_padding", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 1), (0, 2)])
def test_average_pool_in_one_dimension(with_padding: bool, low: int, high: int) -> None:
    x = floats(2, 3, 9)
    node = helper.make_node(
        "AveragePool",
        ["x"],
        ["y"],
        kernel_shape=[3],
        strides=[2],
        pads=[low, high],
        count_include_pad=int(with_padding),
    )
    check(node, {"x": x}, expected=[average_pool(x, 3, 2, low, high, with_padding)])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_max_pool_of_integers_pads_with_the_lowest_value(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max + 1, (1, 2, 5, 5)).astype(dtype)
    x[0, 0, 0, 0] = info.min
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1, 1, 0, 0], strides=[2, 2]
    )
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 0), (1, 0)), constant_values=-1000)
    expected = padded.reshape(1, 2, 3, 2, 3, 2).max(axis=(3, 5)).astype(dtype)
    check(node, {"x": x}, expected=[expected])


def test_max_pool_indices_are_refused_by_name() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], name="the_pool")
    model = model_of([node], {"x": floats(1, 1, 4, 4)}, ["y", "i"])
    with pytest.raises(FrontendError, match=r"'the_pool'.*Indices"):
        import_model(model)


# Normalisation


@pytest.mark.parametrize("constant", [True, False])
def test_batch_normalization_with_constant_and_computed_parameters(constant: bool) -> None:
    x = floats(2, 3, 4)
    parameters = {"s": floats(3), "b": floats(3), "m": floats(3), "v": np.abs(floats(3))}
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=1e-3)
    if constant:
        module = check(node, {"x": x}, parameters)
    else:
        module = check(node, {"x": x, **parameters})
    assert count(module, linalg.ops.GenericOp) == (1 if constant else 2)


# Shared behaviour


def test_constants_of_one_element_are_scalars_of_the_body() -> None:
    x = floats(2, 3)
    node = helper.make_node("Mul", ["x", "c"], ["y"])
    module = check(node, {"x": x}, {"c": np.array([[2.0]], np.float32)})
    (generic,) = [op for op in module.walk() if isinstance(op, linalg.ops.GenericOp)]
    assert len(generic.inputs) == 1


def test_a_constant_of_one_element_still_broadcasts_the_rank() -> None:
    x = floats(3)
    node = helper.make_node("Add", ["x", "c"], ["y"])
    check(
        node, {"x": x}, {"c": np.ones((1, 1, 1), np.float32)}, expected=[(x + 1).reshape(1, 1, 3)]
    )


def test_every_op_of_a_node_is_located_at_it() -> None:
    from qfold.ir.locations import node_names

    x = floats(2, 4)
    node = helper.make_node("Softmax", ["x"], ["y"], name="attention_softmax")
    module = check(node, {"x": x})
    generics = [op for op in module.walk() if isinstance(op, linalg.ops.GenericOp)]
    assert generics
    assert {node_names(op) for op in generics} == {("attention_softmax",)}


@pytest.mark.parametrize(
    "operator", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean"]
)
def test_reductions_of_nothing(operator: str) -> None:
    x = np.zeros((2, 0, 3), np.float32)
    value = {
        "ReduceSum": 0,
        "ReduceMax": -np.inf,
        "ReduceMin": np.inf,
        "ReduceProd": 1,
        "ReduceMean": np.nan,
    }
    node = helper.make_node(operator, ["x", "a"], ["y"], keepdims=0)
    expected = np.full((2, 3), value[operator], np.float32)
    check(node, {"x": x}, {"a": np.array([1])}, opset=18, expected=[expected])


def test_half_precision_is_refused_by_name() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16, name="narrow")
    with pytest.raises(FrontendError, match=r"'narrow'.*cast to f16"):
        import_model(model_of([node], {"x": floats(2)}, ["y"]))


# Several operators: what the passes make of them


def test_a_slice_behind_a_transpose_does_not_lengthen_the_reduction_that_reads_it() -> None:
    x = floats(8, 2)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("Slice", ["t", "s", "e", "a"], ["z"]),
        helper.make_node("Neg", ["z"], ["n"]),
        helper.make_node("ReduceSum", ["n", "a"], ["y"]),
    ]
    constants = {"s": np.array([0]), "e": np.array([4]), "a": np.array([1])}
    check(nodes, {"x": x}, constants, expected=[-x.T[:, :4].sum(axis=1, keepdims=True)])


def test_tensors_with_an_equal_part_are_put_together_apart() -> None:
    x, y, zeros = floats(2, 4), floats(2, 4), np.zeros((2, 3), np.float32)
    nodes = [
        helper.make_node("Concat", ["c", "x"], ["a"], axis=1),
        helper.make_node("Concat", ["c", "y"], ["b"], axis=1),
        helper.make_node("Concat", ["c", "x"], ["d"], axis=1),
        helper.make_node("Sum", ["a", "b", "d"], ["s"]),
    ]
    expected = np.concatenate([3 * zeros, 2 * x + y], axis=1)
    check(nodes, {"x": x, "y": y}, {"c": zeros}, expected=[expected])


def test_a_vector_product_is_a_scalar() -> None:
    x, y = floats(5), floats(5)
    nodes = [
        helper.make_node("MatMul", ["x", "y"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
    ]
    check(nodes, {"x": x, "y": y}, expected=[np.maximum(np.asarray(x @ y), 0)])


def test_attention_of_one_head() -> None:
    q, k, v = floats(2, 6, 8), floats(2, 6, 8), floats(2, 6, 8)
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Mul", ["s", "c"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    check(nodes, {"q": q, "k": k, "v": v}, {"c": np.array(8**-0.5, np.float32)})


def test_all_of_these_compiled() -> None:
    """Whatever ran above, as one network per opset."""
    if not CHECKED:
        pytest.skip("no other test of this file ran")
    opsets = {case.model.opset_import[0].version for case in CHECKED}
    for opset in sorted(opsets):
        cases = [c for c in CHECKED if c.model.opset_import[0].version == opset]
        assert dict(compiled_failures(cases)) == {}
