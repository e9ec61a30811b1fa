"""Reads an ONNX model from a file, bytes or a proto, and checks what every later step relies on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto

from qfold.frontend.errors import FrontendError
from qfold.frontend.graph import subgraphs
from qfold.frontend.registry import canonical_domain

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | ModelProto"


@dataclass(frozen=True)
class LoadedModel:
    """A model that parsed, and where it came from."""

    proto: ModelProto
    directory: Path | None
    """Where external data may be read from; None when the model was not read from a file."""
    opsets: Mapping[str, int]
    """Domain -> version; the empty string is the domain of ONNX itself."""
    name: str
    """What messages call the model."""


def merge_opsets(model: ModelProto) -> dict[str, int]:
    """The opset of each domain. A domain that is listed twice has its highest version: the list's order carries no meaning."""
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = canonical_domain(entry.domain)
        opsets[domain] = max(entry.version, opsets.get(domain, 0))
    return opsets


def _parse(raw: bytes, name: str) -> ModelProto:
    if not raw:
        raise FrontendError(f"{name} is empty: expected an ONNX model")
    model = ModelProto()
    try:
        model.ParseFromString(raw)
    except DecodeError:
        raise FrontendError(
            f"{name} is not an ONNX model, or is truncated: it does not parse as one"
        ) from None
    return model


def _texts(graph: GraphProto) -> Iterator[object]:
    """Every name in a graph and the graphs inside it."""
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        for dimension in value.type.tensor_type.shape.dim:
            yield dimension.dim_param
    for tensor in graph.initializer:
        yield tensor.name
    yield from _node_texts(graph.node)


def _node_texts(nodes: Iterable[NodeProto]) -> Iterator[object]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            yield attribute.ref_attr_name
        for inner in subgraphs(node):
            yield from _texts(inner)


def _check_texts(model: ModelProto, name: str) -> None:
    """protobuf hands a name that is not UTF-8 out as bytes: refuse it here rather than meet it everywhere."""
    texts = [*_texts(model.graph), *(o.domain for o in model.opset_import)]
    for function in model.functions:
        texts += [function.name, function.domain, *function.input, *function.output]
        texts += _node_texts(function.node)
    for text in texts:
        if isinstance(text, bytes):
            raise FrontendError(f"{name} is not a valid ONNX model: the name {text!r} is not UTF-8")


def load_model(
    source: ModelSource, *, directory: Path | None = None, name: str | None = None
) -> LoadedModel:
    """Parses `source`; `FrontendError` when it is not an ONNX model of a version that is read here.

    `directory` holds external data (default: the directory of the file that `source` names).
    """
    if isinstance(source, ModelProto):
        model = source
        name = name or "the model"
    elif isinstance(source, bytes):
        name = name or "the model"
        model = _parse(source, name)
    else:
        path = Path(source)
        name = name or str(path)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise FrontendError(f"{path} cannot be read: {error.strerror}") from error
        model = _parse(raw, name)
        directory = directory or path.parent
    if not model.HasField("graph"):
        raise FrontendError(f"{name} is not an ONNX model: it holds no graph")
    if not model.graph.output:
        raise FrontendError(f"{name} has a graph without outputs: there is nothing to compile")
    _check_texts(model, name)
    opsets = merge_opsets(model)
    newest = onnx.defs.onnx_opset_version()
    version = opsets.get("")
    if version is None:
        uses_onnx = any(canonical_domain(node.domain) == "" for node in model.graph.node)
        if uses_onnx:
            raise FrontendError(f"{name} uses ONNX operators but imports no version of them")
    elif not 1 <= version <= newest:
        raise FrontendError(f"{name} uses opset {version}; opsets 1 to {newest} are supported")
    return LoadedModel(model, directory, opsets, name)
