"""Data and comparisons for the tests of operators on stored integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, compose, helper
from xdsl.dialects.builtin import ModuleOp

from qfold.backend.run import build_module
from qfold.interpreters.run import run
from qfold.tools.driver import Options, lower
from tests.frontend.helpers import Array, build, import_checked

I8, U8 = np.dtype(np.int8), np.dtype(np.uint8)


def full_range(dtype: Any, *shape: int, seed: int = 0) -> Array:
    """Random integers over the whole range of a type, its ends among them."""
    info = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)
    if values.size > 1:
        values.reshape(-1)[0], values.reshape(-1)[-1] = info.min, info.max
    return values


def contrib(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[Any, Sequence[int | str | None] | None]],
    outputs: Mapping[str, Any],
    constants: Mapping[str, Array | TensorProto],
    *,
    opset: int = 21,
) -> ModelProto:
    """A model with operators of com.microsoft, which leave the types of outputs (name -> dtype) to the model."""
    model = build(nodes, inputs, list(outputs), constants, opset=opset)
    for value, dtype in zip(model.graph.output, outputs.values(), strict=True):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def onnxruntime(model: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs by onnxruntime, without its graph optimisations, which change quantised graphs."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs: Any = session.run(None, dict(feeds))
    return list(outputs)


CHECKED: list[tuple[ModelProto, dict[str, Array], list[Array]]] = []
"""(model, inputs, outputs by the interpreter) of what was compared with onnxruntime."""


def compiled_side_by_side(
    cases: Sequence[tuple[ModelProto, dict[str, Array], list[Array]]],
) -> Iterator[tuple[Array, Array]]:
    """(output of compiled C, output of the interpreter) of several models, compiled as one network: many builds take minutes."""
    graph = GraphProto(name="cases")
    feeds: dict[str, Array] = {}
    for index, (model, inputs, _) in enumerate(cases):
        part = compose.add_prefix_graph(model.graph, f"c{index}_")
        graph.node.extend(part.node)
        graph.input.extend(part.input)
        graph.output.extend(part.output)
        graph.initializer.extend(part.initializer)
        feeds |= {f"c{index}_{name}": value for name, value in inputs.items()}
    opsets = {o.domain: o for model, _, _ in cases for o in model.opset_import}
    whole = helper.make_model(graph, opset_imports=list(opsets.values()), ir_version=10)
    module = import_checked(whole)
    names = [value.name for value in graph.input]
    lower(module, Options())
    network = build_module(module, extra_cflags=("-O1",))
    try:
        given = zip(network.inputs, (feeds[n] for n in names), strict=True)
        got = iter(network.run(dict(given)).values())
        for _, _, outputs in cases:
            for output in outputs:
                yield next(got), output
    finally:
        network.close()


def check_against_onnxruntime(
    model: ModelProto, feeds: Mapping[str, Array], *, steps: int = 0, rtol: float = 1e-5
) -> ModuleOp:
    """Imports, runs and compares: integers within `steps` of onnxruntime's, floats within `rtol` of the largest."""
    module = import_checked(model)
    got = [np.asarray(o) for o in run(module, [feeds[i.name] for i in model.graph.input])]
    CHECKED.append((model, dict(feeds), got))
    want = onnxruntime(model, feeds)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        if g.dtype.kind == "f":
            scale = max(1.0, float(np.abs(w).max(initial=0.0)))
            np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * scale)
        else:
            far = np.abs(g.astype(np.int64) - w.astype(np.int64))
            assert far.max(initial=0) <= steps, f"{int((far > steps).sum())} of {far.size} differ"
    return module
