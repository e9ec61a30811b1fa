"""Control flow that constants decide, functions of the model, operators that ONNX defines by others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from xdsl.dialects.linalg.ops import GenericOp

from qfold.dialects import qmm
from qfold.frontend import (
    FrontendError,
    UnsupportedNodes,
    import_model,
)
from qfold.ir.locations import node_names
from tests.frontend.helpers import (
    build,
    check,
    import_checked,
    main_of,
    node,
    ops_of,
)

RNG = np.random.default_rng(0)
X34 = {"x": (np.float32, [3, 4])}


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def branch(name: str, weight: str) -> onnx.GraphProto:
    return helper.make_graph(
        [node("MatMul", ["x", weight], [name], name="inner")],
        name,
        [],
        [helper.make_empty_tensor_value_info(name)],
    )


def if_model(condition: np.ndarray | None) -> onnx.ModelProto:
    nodes = [
        node(
            "If",
            ["c"],
            ["y"],
            name="choice",
            then_branch=branch("t", "w0"),
            else_branch=branch("e", "w1"),
        )
    ]
    inputs = dict(X34)
    constants = {"w0": rand(4, 2), "w1": rand(4, 2)}
    if condition is None:
        inputs["c"] = (np.bool_, [])  # type: ignore[assignment]
    else:
        constants["c"] = condition
    return build(nodes, inputs, ["y"], constants)


@pytest.mark.parametrize("condition", [True, False])
def test_if_with_a_known_condition(condition: bool):
    module = check(if_model(np.asarray(condition)), {"x": rand(3, 4)})
    (matmul,) = ops_of(module, qmm.MatmulOp)
    assert node_names(matmul) == ("choice/inner",)
    assert len(ops_of(module, qmm.ConstantOp)) + len(list(main_of(module).body.block.ops)) > 0


def test_if_at_run_time_is_refused():
    with pytest.raises(
        UnsupportedNodes, match=r"'choice' \(If.*condition that is computed at run time"
    ):
        import_model(if_model(None))


def test_model_functions_are_inlined():
    body = [
        node("MatMul", ["a", "b"], ["m"], name="mm"),
        onnx.NodeProto(op_type="Transpose", input=["m"], output=["r"], name="tr"),
    ]
    body[1].attribute.add(name="perm", ref_attr_name="order", type=onnx.AttributeProto.INTS)
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "Layer", ["a", "b"], ["r"], body, opsets, ["order"])
    nodes = [
        helper.make_node("Layer", ["x", "w"], ["h"], name="l0", domain="own", order=[1, 0]),
        helper.make_node("Layer", ["h", "v"], ["y"], name="l1", domain="own", order=[0, 1]),
    ]
    model = build(nodes, X34, ["y"], {"w": rand(4, 2), "v": rand(3, 5)})
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    module = check(model, {"x": rand(3, 4)})
    assert [node_names(op) for op in ops_of(module, qmm.MatmulOp)] == [("l0/mm",), ("l1/mm",)]


def test_a_function_that_calls_itself():
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    body = [helper.make_node("F", ["a"], ["r"], domain="own")]
    model = build([helper.make_node("F", ["x"], ["y"], domain="own")], X34, ["y"])
    model.functions.append(helper.make_function("own", "F", ["a"], ["r"], body, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(FrontendError, match="the function calls itself"):
        import_model(model)


def chain_of_functions(depth: int, calls: int) -> onnx.ModelProto:
    """F0 calls F1 `calls` times, F1 calls F2 ...; the last one is the identity."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    model = build([helper.make_node("F0", ["x"], ["y"], domain="own")], X34, ["y"])
    model.opset_import.append(opsets[1])
    for level in range(depth):
        names = ["a", *(f"t{i}" for i in range(1, calls)), "r"]
        callee, domain = (f"F{level + 1}", "own") if level + 1 < depth else ("Identity", "")
        body = [
            helper.make_node(callee, [names[i]], [names[i + 1]], domain=domain)
            for i in range(calls)
        ]
        model.functions.append(helper.make_function("own", f"F{level}", ["a"], ["r"], body, opsets))
    return model


def test_functions_that_grow_without_bound(monkeypatch: pytest.MonkeyPatch):
    import_checked(chain_of_functions(20, 1))
    with pytest.raises(FrontendError, match="call each other more than 32 deep"):
        import_model(chain_of_functions(40, 1))
    monkeypatch.setattr("qfold.frontend.importer.MAX_NODES", 1000)
    import_checked(chain_of_functions(5, 2))
    with pytest.raises(FrontendError, match="more than 1000 nodes"):
        import_model(chain_of_functions(30, 2))


def test_operators_without_an_importer_are_expanded_by_their_definition():
    model = build([node("Celu", ["x"], ["y"], name="celu", alpha=2.0)], X34, ["y"])
    module = check(model, {"x": rand(3, 4)})
    for op in main_of(module).body.block.ops:
        if isinstance(op, GenericOp):
            assert node_names(op) == ("celu",)
