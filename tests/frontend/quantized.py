"""Data and comparisons for the tests of operators on stored integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper
from xdsl.dialects.builtin import ModuleOp

from qfold.interpreters.run import run
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


def check_against_onnxruntime(
    model: ModelProto, feeds: Mapping[str, Array], *, steps: int = 0, rtol: float = 1e-5
) -> ModuleOp:
    """Imports, runs and compares: integers within `steps` of onnxruntime's, floats within `rtol` of the largest."""
    module = import_checked(model)
    got = [np.asarray(o) for o in run(module, [feeds[i.name] for i in model.graph.input])]
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
