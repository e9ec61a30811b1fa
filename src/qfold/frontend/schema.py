"""ONNX's own operator definitions: checks of a node against them, and the function bodies that some operators have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto
from onnx.defs import OpSchema

from qfold.frontend.errors import FrontendError, NodeRef

_KINDS: dict[int, str] = {
    AttributeProto.FLOAT: "a float",
    AttributeProto.INT: "an integer",
    AttributeProto.STRING: "a string",
    AttributeProto.TENSOR: "a tensor",
    AttributeProto.GRAPH: "a graph",
    AttributeProto.FLOATS: "a list of floats",
    AttributeProto.INTS: "a list of integers",
    AttributeProto.STRINGS: "a list of strings",
}

OLDEST_OPSET = 7
"""Opset 7 brought numpy broadcasting. Of older models, operators are read that opset 7 did not change."""


@lru_cache(maxsize=1024)
def find_schema(domain: str, op_type: str, opset: int) -> OpSchema | None:
    """ONNX's definition of an operator at an opset version, or None when ONNX has none (then or at all)."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def check_node(node: NodeProto, schema: OpSchema, ref: NodeRef) -> None:
    """`FrontendError` when attributes or the number of inputs do not fit `schema`.

    Exporters mix the attribute and input forms of opset 13: an attribute that the schema does not know has to fit an older one
    that does, if there is one.
    """
    present = len(node.input)
    while present and not node.input[present - 1]:
        present -= 1
    if present > schema.max_input:
        raise FrontendError(f"{ref} has {present} inputs; the operator takes {schema.max_input}")
    required = 0
    for formal in schema.inputs:
        if formal.option != OpSchema.FormalParameterOption.Single:
            break
        required += 1
    for index in range(required):
        if index >= present or not node.input[index]:
            # An attribute of the same name is the form that older opsets have.
            formal = schema.inputs[index]
            if any(a.name == formal.name for a in node.attribute):
                continue
            raise FrontendError(f"{ref} lacks its input {index} ('{formal.name}')")
    given = {a.name: a for a in node.attribute}
    for name, definition in schema.attributes.items():
        attribute = given.get(name)
        if attribute is None:
            if definition.required:
                raise FrontendError(f"{ref} lacks its attribute '{name}'")
            continue
        _check_kind(attribute, definition, ref)
    for name, attribute in given.items():
        older: OpSchema | None = schema
        while older is not None and name not in older.attributes:
            older = find_schema(ref.domain, node.op_type, older.since_version - 1)
        if older is not None:
            _check_kind(attribute, older.attributes[name], ref)


def _check_kind(attribute: AttributeProto, definition: OpSchema.Attribute, ref: NodeRef) -> None:
    kind = int(cast(Any, definition.type).value)
    if not attribute.ref_attr_name and attribute.type != kind:
        found = _KINDS.get(attribute.type, "of another kind")
        wanted = _KINDS.get(kind, "of another kind")
        raise FrontendError(f"{ref}: attribute '{attribute.name}' is {found}; expected {wanted}")


def is_too_old(schema: OpSchema, ref: NodeRef) -> bool:
    """Whether `schema` is a definition from before `OLDEST_OPSET` that this opset replaced."""
    if ref.domain or ref.opset >= OLDEST_OPSET:
        return False
    later = find_schema(ref.domain, ref.op_type, OLDEST_OPSET)
    return later is None or later.since_version != schema.since_version


def is_deterministic(schema: OpSchema) -> bool:
    """Whether equal inputs give equal outputs (an operator with subgraphs counts as not)."""
    untyped: Any = schema  # as in has_function_body
    return bool(untyped.node_determinism == untyped.NodeDeterminism.Deterministic)


def has_function_body(schema: OpSchema) -> bool:
    """Whether ONNX defines the operator by other operators, for some inputs at least."""
    untyped: Any = schema  # these members are missing from the stubs of onnx
    return bool(untyped.has_function or untyped.has_context_dependent_function)


def function_body(
    schema: OpSchema, node: NodeProto, opset: int, input_types: Sequence[TypeProto]
) -> FunctionProto | None:
    """The operator written as other ONNX operators, or None when ONNX does not define it so."""
    untyped: Any = schema
    if untyped.has_function:
        versions = [int(v) for v in untyped.function_opset_versions if v <= opset]
        if versions:
            return FunctionProto.FromString(untyped.get_function_with_opset_version(max(versions)))
    if untyped.has_context_dependent_function:
        versions = [int(v) for v in untyped.context_dependent_function_opset_versions if v <= opset]
        if versions:
            raw: bytes = untyped.get_context_dependent_function_with_opset_version(
                max(versions),
                node.SerializeToString(),
                [t.SerializeToString() for t in input_types],
            )
            return FunctionProto.FromString(raw) if raw else None
    return None


def bind_attributes(
    function: FunctionProto, node: NodeProto, defaults: OpSchema | None
) -> dict[str, AttributeProto]:
    """The attributes that the body of `function` may refer to: the node's, else the function's or the schema's defaults."""
    bound: dict[str, AttributeProto] = {}
    if defaults is not None:
        for name, definition in defaults.attributes.items():
            if definition.default_value.name:
                bound[name] = definition.default_value
    bound.update({a.name: a for a in function.attribute_proto})
    bound.update({a.name: a for a in node.attribute})
    return bound


def substitute_attributes(node: NodeProto, bound: dict[str, AttributeProto]) -> NodeProto:
    """`node` with its references to function attributes replaced by what they are bound to, in subgraphs too."""
    copy = NodeProto()
    copy.CopyFrom(node)
    _substitute(copy, bound)
    return copy


def _substitute(node: NodeProto, bound: dict[str, AttributeProto]) -> None:
    kept: list[AttributeProto] = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            if attribute.type == AttributeProto.GRAPH:
                for inner in attribute.g.node:
                    _substitute(inner, bound)
            kept.append(attribute)
            continue
        value = bound.get(attribute.ref_attr_name)
        if value is None:
            continue  # an optional attribute that the caller does not give
        replaced = AttributeProto()
        replaced.CopyFrom(value)
        replaced.name = attribute.name
        kept.append(replaced)
    # Copies: clearing the field frees what it holds.
    fresh = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
    del node.attribute[:]
    node.attribute.extend(fresh)
