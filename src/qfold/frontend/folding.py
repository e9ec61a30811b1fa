"""Evaluates nodes whose inputs are all constants, by ONNX's own reference implementation, with a bound on what they may make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np
import onnx
from onnx import NodeProto, TypeProto, helper, numpy_helper
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator

from qfold.frontend.errors import FrontendError, NodeRef
from qfold.frontend.tensors import (
    bit_width_of,
    const_from_onnx_array,
    element_type_of_onnx,
    onnx_type_of,
    to_onnx_array,
)
from qfold.frontend.values import Const

MAX_FOLDED_BYTES = 256 << 20
"""Most bytes that one folded node may produce: a hostile Range or Expand asks for terabytes in a few bytes of model."""

_SHAPE_INPUT_LIMIT = 1024
"""Constants of up to this many elements are given to shape inference as data: enough for shapes, repeats and ranges."""


_NOT_FOLDED = frozenset(
    (
        "AveragePool",
        "BatchNormalization",
        "GlobalLpPool",
        "GlobalMaxPool",
        "LogSoftmax",
        "LpPool",
        "MaxPool",
        "QLinearConv",
        "QLinearMatMul",
        "Softmax",
    )
)
"""Not left to the reference evaluator, which is wrong about some: it takes the batch's own statistics for BatchNormalization in
opsets 9 to 13, one axis for Softmax below opset 13, where it is all from there on, and other windows than ONNX defines for
pooling with `auto_pad`, `ceil_mode` or one spatial dimension; it adds a zero point before it rounds."""


def tensor_type_proto(const: Const) -> TypeProto:
    """The ONNX type of a constant."""
    return helper.make_tensor_type_proto(onnx_type_of(const.type), const.shape)


def check_folded_size(
    node: NodeProto,
    schema: OpSchema,
    inputs: Mapping[str, Const],
    opsets: Mapping[str, int],
    ref: NodeRef,
) -> None:
    """`FrontendError` when ONNX's shape inference says that evaluating `node` takes more than `MAX_FOLDED_BYTES`."""
    types = {name: tensor_type_proto(const) for name, const in inputs.items()}
    data = {
        name: numpy_helper.from_array(np.asarray(to_onnx_array(const), order="C"), name)
        for name, const in inputs.items()
        if const.array.size <= _SHAPE_INPUT_LIMIT
    }
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        outputs = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=imports
        )
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
    ) as error:
        raise FrontendError(f"{ref} is not valid: {_first_line(error)}") from error
    for output in outputs.values():
        if not output.HasField("tensor_type"):
            continue
        dims = [d.dim_value if d.HasField("dim_value") else 1 for d in output.tensor_type.shape.dim]
        width = bit_width_of(element_type_of_onnx(output.tensor_type.elem_type, str(ref)))
        size = prod(dims) * width // 8
        if size > MAX_FOLDED_BYTES:
            raise FrontendError(
                f"{ref} makes a constant of shape {dims}, {size} bytes; at most "
                f"{MAX_FOLDED_BYTES} are computed at import"
            )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def fold_node(
    node: NodeProto,
    schema: OpSchema,
    inputs: Sequence[Const | None],
    opsets: Mapping[str, int],
    ref: NodeRef,
    name: str,
) -> list[Const] | None:
    """The outputs of `node` on constant inputs; None when the evaluator cannot be asked or does not give plain tensors for it.

    `opsets` are those in force for the node; `name` is what the constants are called in locations.
    """
    if node.op_type in _NOT_FOLDED and not ref.domain:
        return None
    named = {n: c for n, c in zip(node.input, inputs, strict=False) if n and c is not None}
    check_folded_size(node, schema, named, opsets, ref)
    graph = helper.make_graph(
        [node],
        "fold",
        [helper.make_value_info(n, tensor_type_proto(c)) for n, c in named.items()],
        [helper.make_empty_tensor_value_info(o) for o in node.output if o],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports)
    feeds: dict[str, Any] = {n: to_onnx_array(c) for n, c in named.items()}
    try:
        with np.errstate(all="ignore"):
            results = cast("list[Any]", cast(Any, ReferenceEvaluator(model)).run(None, feeds))
    except NotImplementedError:
        return None
    except MemoryError as error:
        raise FrontendError(f"{ref} makes a constant that does not fit in memory") from error
    except (ValueError, IndexError, TypeError, RuntimeError, KeyError, OverflowError) as error:
        raise FrontendError(f"{ref} cannot be evaluated: {_first_line(error)}") from error
    consts: list[Const] = []
    for result in results:
        if not isinstance(result, np.ndarray | np.generic):
            return None
        try:
            consts.append(const_from_onnx_array(np.asarray(cast(Any, result)), name))
        except TypeError:
            return None
    return consts
