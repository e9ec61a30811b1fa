"""Small ONNX models, and the comparison of what they import to with ONNX's own reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation

from qfold.dialects import qmm
from qfold.dialects.element_types import is_float
from qfold.frontend import import_model
from qfold.interpreters.run import run
from qfold.ir.constants import constant_array

Array = npt.NDArray[Any]
node = helper.make_node


def value_info(name: str, dtype: Any, shape: Sequence[int | str | None] | None) -> Any:
    """A graph input or output; `dtype` is a numpy dtype or an ONNX type number."""
    kind = dtype if isinstance(dtype, int) else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)


def build(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[Any, Sequence[int | str | None] | None]],
    outputs: Sequence[str],
    constants: Mapping[str, Array | TensorProto] | None = None,
    *,
    opset: int = 21,
    **graph: Any,
) -> ModelProto:
    """A model; output types are left open."""
    initializers = [
        c if isinstance(c, TensorProto) else numpy_helper.from_array(np.asarray(c), name)
        for name, c in (constants or {}).items()
    ]
    return helper.make_model(
        helper.make_graph(
            list(nodes),
            "test",
            [value_info(name, *spec) for name, spec in inputs.items()],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            initializers,
            **graph,
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )


def main_of(module: ModuleOp) -> FuncOp:
    """The function `@main`."""
    (function,) = (op for op in module.ops if isinstance(op, FuncOp))
    return function


def ops_of(module: ModuleOp, kind: type[Operation]) -> list[Any]:
    """All ops of a kind."""
    return [op for op in module.walk() if isinstance(op, kind)]


def import_checked(
    model: ModelProto, dims: Mapping[str, int] | None = None, **options: Any
) -> ModuleOp:
    """Imports and verifies."""
    module = import_model(model, dims, **options)
    module.verify()
    return module


def check(
    model: ModelProto,
    feeds: Mapping[str, Array],
    dims: Mapping[str, int] | None = None,
    *,
    rtol: float = 1e-5,
    exact: bool = False,
) -> ModuleOp:
    """Imports `model`, runs it, and compares every output with ONNX's reference evaluator; returns the module."""
    module = import_checked(model, dims)
    want: list[Array] = ReferenceEvaluator(model).run(None, dict(feeds))  # type: ignore[assignment]
    got = run(module, [feeds[i.name] for i in model.graph.input])
    assert len(got) == len(want)
    for name, g, w in zip((o.name for o in model.graph.output), got, want, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert g.shape == w.shape, name
        if exact or g.dtype.kind != "f":
            np.testing.assert_array_equal(g, w, err_msg=name)
        else:
            scale = max(1.0, float(np.abs(w).max(initial=0.0)))
            np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * scale, err_msg=name)
    return module


def weight_of(op: qmm.DequantizeOp) -> Array:
    """The integers that a dequantise reads."""
    array = constant_array(op.q)
    assert array is not None, "the weight is not a constant"
    return array


def float_constants(module: ModuleOp, at_least: int) -> list[tuple[int, ...]]:
    """Shapes of the float constants of `at_least` elements: where a weight that was widened would show."""
    found: list[tuple[int, ...]] = []
    for op in module.walk():
        for result in op.results:
            array = constant_array(result)
            if array is None or not isinstance(result.type, TensorType):
                continue
            if is_float(result.type.element_type) and array.size >= at_least:
                found.append(array.shape)
    return found


def returned(module: ModuleOp) -> ReturnOp:
    """The terminator of `@main`."""
    last = main_of(module).body.block.last_op
    assert isinstance(last, ReturnOp)
    return last


def names_of(attrs: object) -> list[str]:
    """The `qmm.name` of each entry of `arg_attrs` or `res_attrs`."""
    found: list[str] = []
    for entry in attrs:  # type: ignore[attr-defined]
        assert isinstance(entry, DictionaryAttr)
        name = entry.data["qmm.name"]
        assert isinstance(name, StringAttr)
        found.append(name.data)
    return found
