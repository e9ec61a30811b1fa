"""Graph structure: order, names, signature, shape computations, what is unsupported."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import BlockArgument

from qfold.dialects import qmm
from qfold.frontend import (
    FrontendError,
    UnsupportedNodes,
    default_inputs,
    import_model,
    load_model,
)
from qfold.interpreters.run import run
from qfold.ir.constants import constant_array
from qfold.ir.locations import node_names
from tests.frontend.helpers import (
    build,
    check,
    import_checked,
    main_of,
    names_of,
    node,
    ops_of,
    returned,
)

RNG = np.random.default_rng(0)
X34 = {"x": (np.float32, [3, 4])}


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# Order and names


def test_nodes_in_any_order():
    nodes = [
        node("MatMul", ["b", "w"], ["y"], name="last"),
        node("MatMul", ["a", "w"], ["b"], name="middle"),
        node("MatMul", ["x", "w"], ["a"], name="first"),
    ]
    model = build(nodes, X34, ["y"], {"w": rand(4, 4)})
    module = import_checked(model)
    assert [node_names(op) for op in ops_of(module, qmm.MatmulOp)] == [
        ("first",),
        ("middle",),
        ("last",),
    ]
    model.graph.node.reverse()
    check_against = import_checked(model)
    assert str(check_against) == str(module)


def test_file_order_is_kept_where_it_can_be():
    nodes = [node("MatMul", ["x", "w"], [f"y{i}"], name=f"n{i}") for i in (3, 1, 2)]
    module = import_checked(build(nodes, X34, ["y1", "y2", "y3"], {"w": rand(4, 4)}))
    assert [node_names(op)[0] for op in ops_of(module, qmm.MatmulOp)] == ["n3", "n1", "n2"]


def test_a_cycle_is_named():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="outside"),
        node("Sum", ["a", "d"], ["b"], name="one"),
        node("Relu", ["b"], ["c"], name="two"),
        node("Relu", ["c"], ["d"], name="three"),
        node("Relu", ["d"], ["y"], name="behind"),
    ]
    with pytest.raises(FrontendError, match="cycle through the nodes") as error:
        import_model(build(nodes, X34, ["y"], {"w": rand(4, 4)}))
    text = str(error.value)
    assert all(f"'{n}'" in text for n in ("one", "two", "three"))
    assert "outside" not in text and "behind" not in text


def test_a_node_that_reads_itself():
    with pytest.raises(FrontendError, match="cycle through the nodes 'loop'"):
        import_model(build([node("Sum", ["x", "y"], ["y"], name="loop")], X34, ["y"]))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", ["q"], ["y"], name="n")], "node 'n' reads 'q', which no node"),
        (
            [node("Relu", ["x"], ["y"], name="n"), node("Tanh", ["x"], ["y"], name="m")],
            "'y' is defined twice, by nodes 'n' and 'm'",
        ),
        ([node("Relu", ["x"], ["x"], name="n")], "node 'n' defines 'x', which is already"),
        ([node("Relu", ["x"], ["z"])], "graph output 'y' is not defined"),
    ],
)
def test_bad_names(nodes: list[onnx.NodeProto], message: str):
    with pytest.raises(FrontendError, match=message):
        import_model(build(nodes, X34, ["y"]))


def test_names_defined_twice():
    model = build([node("MatMul", ["x", "w"], ["y"])], X34, ["y"], {"w": rand(4, 4)})
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(FrontendError, match="initializer 'w' is defined twice"):
        import_model(model)
    del model.graph.initializer[1]
    model.graph.input.append(model.graph.input[0])
    with pytest.raises(FrontendError, match="graph input 'x' is defined twice"):
        import_model(model)


def test_dead_nodes_are_not_imported():
    nodes = [node("NoSuchOp", ["x"], ["dead"]), node("MatMul", ["x", "w"], ["y"])]
    module = import_checked(build(nodes, X34, ["y"], {"w": rand(4, 4)}))
    assert len(ops_of(module, qmm.MatmulOp)) == 1


def test_identity_chains_vanish():
    nodes = [
        node("Identity", ["w"], ["w1"]),
        node("Identity", ["w1"], ["w2"]),
        node("Identity", ["x"], ["x1"]),
        node("MatMul", ["x1", "w2"], ["a"]),
        node("Identity", ["a"], ["y"]),
    ]
    module = check(build(nodes, X34, ["y"], {"w": rand(4, 2)}), {"x": rand(3, 4)})
    assert len(list(main_of(module).body.block.ops)) == 3  # constant, matmul, return


# Signature


def test_signature_keeps_names_and_unused_inputs():
    inputs = {"a": (np.float32, [3, 4]), "unused": (np.uint8, [5]), "b": (np.float32, [4, 2])}
    module = import_checked(build([node("MatMul", ["a", "b"], ["y"])], inputs, ["y"]))
    function = main_of(module)
    assert function.sym_name.data == "main"
    assert names_of(function.arg_attrs) == ["a", "unused", "b"]
    assert names_of(function.res_attrs) == ["y"]
    assert str(function.function_type.inputs.data[1]) == "tensor<5xui8>"


def test_outputs_may_be_inputs_and_constants():
    c = np.arange(40, dtype=np.int64)
    nodes = [node("Identity", ["x"], ["same"]), node("Constant", [], ["k"], value_float=2.5)]
    model = build(nodes, X34, ["same", "c", "k", "x"], {"c": c})
    del model.graph.output[-1]
    x = rand(3, 4)
    module = check(model, {"x": x}, exact=True)
    assert isinstance(returned(module).arguments[0], BlockArgument)
    assert constant_array(returned(module).arguments[1]) is not None


def test_an_output_listed_twice():
    model = build([node("Identity", ["x"], ["y"])], X34, ["y", "y"])
    with pytest.raises(FrontendError, match="output 'y' is listed twice"):
        import_model(model)


def overridable() -> onnx.ModelProto:
    inputs = {"x": (np.float32, [3, 4]), "w": (np.float32, [4, 2])}
    return build(
        [node("MatMul", ["x", "w"], ["y"])], inputs, ["y"], {"w": np.ones((4, 2), np.float32)}
    )


def test_an_initializer_that_is_an_input_is_no_constant():
    model = overridable()
    module = import_checked(model)
    x, w = rand(3, 4), rand(4, 2)
    np.testing.assert_allclose(run(module, [x, w])[0], x @ w, rtol=1e-5)
    assert list(default_inputs(load_model(model))) == ["w"]


def test_freezing_initializers_that_are_inputs():
    module = import_checked(overridable(), freeze_initializers=True)
    x = rand(3, 4)
    np.testing.assert_allclose(run(module, [x])[0], x.sum(1, keepdims=True).repeat(2, 1), rtol=1e-5)


def test_before_ir_version_4_initializers_are_constants():
    model = overridable()
    model.ir_version = 3
    assert names_of(main_of(import_checked(model)).arg_attrs) == ["x"]


# Dynamic dimensions

DYNAMIC = {"x": (np.float32, ["batch", "sequence", 8]), "z": (np.float32, ["batch", None])}


def dynamic_model() -> onnx.ModelProto:
    return build([node("MatMul", ["x", "w"], ["y"])], DYNAMIC, ["y"], {"w": rand(8, 2)})


def test_named_dimensions():
    module = import_checked(dynamic_model(), {"batch": 2, "sequence": 5, "z:1": 3})
    assert [str(t) for t in main_of(module).function_type.inputs] == [
        "tensor<2x5x8xf32>",
        "tensor<2x3xf32>",
    ]


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({}, "3 dynamic dimensions .* --dim batch=N --dim sequence=N --dim z:1=N"),
        ({"batch": 1, "z:1": 2}, "1 dynamic dimension is not known: give it by --dim sequence=N"),
        ({"bacth": 1}, "called 'bacth': they are batch, sequence, z:1"),
        ({"batch": 0, "sequence": 1, "z:1": 1}, "'batch' is given the length 0"),
        ({"batch": -3, "sequence": 1, "z:1": 1}, "'batch' is given the length -3"),
    ],
)
def test_wrong_dimensions(dims: dict[str, int], message: str):
    with pytest.raises(FrontendError, match=message):
        import_model(dynamic_model(), dims)


def test_a_dimension_for_a_static_model():
    model = build([node("MatMul", ["x", "w"], ["y"])], X34, ["y"], {"w": rand(4, 2)})
    with pytest.raises(FrontendError, match="no input has a dynamic dimension"):
        import_model(model, {"batch": 1})


def test_an_input_without_a_shape():
    model = build([node("Relu", ["x"], ["y"])], {"x": (np.float32, None)}, ["y"])
    with pytest.raises(FrontendError, match="graph input 'x' has no shape"):
        import_model(model)


def test_declared_shapes_are_compared():
    model = build([node("MatMul", ["x", "w"], ["y"], name="mm")], X34, ["y"], {"w": rand(4, 2)})
    model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5]))
    with pytest.raises(FrontendError, match=r"'y' is declared with shape \[3, 5\], but node 'mm'"):
        import_model(model)
    model.graph.value_info[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.INT64, [3, 2])
    )
    with pytest.raises(FrontendError, match="'y' is declared as i64"):
        import_model(model)
    # A dimension that is not declared fits any.
    model.graph.value_info[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    )
    import_checked(model)


# Shape computations


def test_shape_arithmetic_folds_away():
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"], axis=0),
        node("Mul", ["rows", "two"], ["rows2"]),
        node("Unsqueeze", ["rows2", "zero1"], ["r1"]),
        node("Concat", ["r1", "minus1"], ["target"], axis=0),
        node("Range", ["zero", "rows", "one"], ["range"]),
        node("Equal", ["range", "zero"], ["mask"]),
        node("Where", ["mask", "one", "zero"], ["picked"]),
        node("ConstantOfShape", ["r1"], ["zeros"]),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {
        "zero": np.int64(0),
        "one": np.int64(1),
        "two": np.int64(2),
        "zero1": np.array([0]),
        "minus1": np.array([-1]),
    }
    model = build(nodes, X34, ["y", "picked", "zeros"], constants)
    module = check(model, {"x": rand(3, 4)}, exact=True)
    assert not ops_of(module, GenericOp)


@pytest.mark.parametrize(
    ("made", "constants"),
    [
        (node("ConstantOfShape", ["n"], ["big"], name="hog"), {"n": np.array([1 << 20, 1 << 20])}),
        (
            node("Range", ["a", "n", "b"], ["big"], name="hog"),
            {"a": np.int64(0), "n": np.int64(1 << 40), "b": np.int64(1)},
        ),
        (
            node("Expand", ["one", "n"], ["big"], name="hog"),
            {"one": np.float32([1]), "n": np.array([1 << 30])},
        ),
        (
            node("Tile", ["one", "n"], ["big"], name="hog"),
            {"one": np.float32([1]), "n": np.array([1 << 30])},
        ),
    ],
)
def test_hostile_sizes_are_refused_before_they_are_made(made: onnx.NodeProto, constants: dict):
    nodes = [made, node("Shape", ["big"], ["y"])]
    with pytest.raises(FrontendError, match=r"node 'hog' .* at most 268435456 are computed"):
        import_model(build(nodes, X34, ["y"], constants))


def test_evaluation_failure_is_a_sentence():
    nodes = [node("Reshape", ["c", "bad"], ["y"], name="r")]
    with pytest.raises(FrontendError, match=r"node 'r' .* cannot be reshaped to \[7\]"):
        import_model(build(nodes, X34, ["y"], {"c": rand(3, 4), "bad": np.array([7])}))
    nodes = [node("Gather", ["c", "bad"], ["y"], name="g")]
    with pytest.raises(
        FrontendError, match=r"node 'g' .* cannot be evaluated: index 7 is out of bounds"
    ):
        import_model(build(nodes, X34, ["y"], {"c": rand(3, 4), "bad": np.array([7])}))


# Unsupported


def test_all_unsupported_nodes_are_listed_at_once():
    nodes = [
        node("MatMull", ["x", "w"], ["a"], name="typo"),
        helper.make_node("FusedThing", ["x"], ["b"], name="foreign", domain="com.acme"),
        node("MatMul", ["a", "w"], ["c"], name="fine"),
        node("Det", ["x4"], ["d"], name="real"),
        node("SomethingElse", ["c"], ["e"], name="behind"),
    ]
    inputs = {"x": (np.float32, [4, 4]), "x4": (np.float32, [1, 4, 2, 2])}
    model = build(nodes, inputs, ["b", "d", "e"], {"w": rand(4, 4)})
    model.opset_import.append(helper.make_opsetid("com.acme", 3))
    with pytest.raises(UnsupportedNodes) as error:
        import_model(model)
    text = str(error.value)
    assert text.startswith("4 nodes of the model cannot be imported:")
    assert [r.node.name for r in error.value.reasons] == ["typo", "foreign", "real", "behind"]
    assert "node 'typo' (MatMull, domain 'ai.onnx', opset 21)" in text
    assert "nearest supported operator is MatMul" in text
    assert "domain 'com.acme', opset 3" in text
    assert "'fine'" not in text


def test_outputs_beyond_those_supported_matter_only_when_read():
    x = {"x": (np.float32, [1, 2, 6, 6])}
    pool = node("MaxPool", ["x"], ["y", "where"], name="pool", kernel_shape=[2, 2])
    import_checked(build([pool], x, ["y"]))
    with pytest.raises(UnsupportedNodes, match=r"'pool' .*a use of"):
        import_model(build([pool], x, ["y", "where"]))
    with pytest.raises(UnsupportedNodes, match=r"'pool' .*a use of"):
        import_model(build([pool, node("Identity", ["where"], ["z"])], x, ["z"]))


def test_random_operators_are_not_folded():
    nodes = [
        node("RandomNormal", [], ["r"], name="dice", shape=[3, 4]),
        node("Identity", ["r"], ["y"]),
    ]
    with pytest.raises(UnsupportedNodes, match="'dice'"):
        import_model(build(nodes, X34, ["y"]))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (node("MatMul", ["x"], ["y"], name="n"), "lacks its input 1"),
        (node("MatMul", ["x", "x", "x"], ["y"], name="n"), "has 3 inputs; the operator takes 2"),
        (
            node("Flatten", ["x"], ["y"], name="n", axis="one"),
            "'axis' is a string; expected an integer",
        ),
        (node("Cast", ["x"], ["y"], name="n"), "lacks its attribute 'to'"),
        (node("MatMul", ["x", "x"], ["y"], name="n"), "not valid"),
    ],
)
def test_malformed_nodes(bad: onnx.NodeProto, message: str):
    with pytest.raises(FrontendError, match=rf"node 'n' .*{message}"):
        import_model(build([bad], X34, ["y"]))


def test_every_op_is_located():
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Gemm", ["a", "v", "b"], ["y"], name="g", alpha=2.0),
    ]
    constants = {"w": rand(4, 20), "v": rand(20, 30), "b": rand(30)}
    module = import_checked(build(nodes, X34, ["y"], constants))
    for op in main_of(module).body.block.ops:
        if op is not returned(module):
            assert node_names(op), str(op)
    (first, _second) = ops_of(module, qmm.MatmulOp)
    assert node_names(first) == ("a",)
    assert isinstance(main_of(module).body.block.args[0].type, TensorType)
