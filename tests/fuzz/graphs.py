"""Random ONNX graphs that grow node by node, each node evaluated by ONNX's reference as it is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]

LARGEST = 2000
"""Elements that a value may have."""
REACH = 1e4
"""Magnitude of floats beyond which a node is dropped, so that float32 never overflows on the way."""


@dataclass(frozen=True)
class Value:
    """A value of the graph with what it holds for the case's inputs."""

    name: str
    array: Array
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def type(self) -> str:
        return str(self.array.dtype)

    @property
    def is_float(self) -> bool:
        return self.type == "float32"


@dataclass(frozen=True)
class Case:
    """A model, inputs for it, and what ONNX's reference has for every value."""

    model: onnx.ModelProto
    feeds: dict[str, Array]
    values: dict[str, Array]
    label: str = ""

    @cached_property
    def operators(self) -> list[str]:
        return [n.op_type for n in self.model.graph.node]

    def expected(self) -> dict[str, Array]:
        return {o.name: self.values[o.name] for o in self.model.graph.output}


class Invalid(Exception):
    """A node that ONNX's reference does not take, or whose result is of no use; it is not added."""


def tensor_type(array: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def evaluate(node: onnx.NodeProto, opset: int, feeds: dict[str, Array]) -> list[Array]:
    """What ONNX's reference gives for one node (and what Deeploy's Dequant is defined as)."""
    if node.op_type == "Dequant":
        a = {x.name: helper.get_attribute_value(x) for x in node.attribute}
        data = feeds[node.input[0]].astype(np.float32)
        return [np.float32(a["scale"]) * (data - np.float32(a["zero_point"]))]
    infos = [
        helper.make_tensor_value_info(n, tensor_type(a), a.shape) for n, a in feeds.items() if n
    ]
    graph = helper.make_graph(
        [node], "one", infos, [onnx.ValueInfoProto(name=o) for o in node.output]
    )
    # In opset 13 the reference takes BatchNormalization's momentum for training.
    opset = max(opset, 15) if node.op_type == "BatchNormalization" else opset
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    with np.errstate(all="ignore"):
        results = [np.asarray(r) for r in ReferenceEvaluator(model).run(None, feeds)]
    # Some windows of pooling come out in the wrong shape; shape inference is a second opinion.
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output
    for info, result in zip(inferred, results, strict=True):
        if info.type.tensor_type.HasField("shape"):
            shape = info.type.tensor_type.shape.dim
            if len(shape) != result.ndim or any(
                d.HasField("dim_value") and d.dim_value != n
                for d, n in zip(shape, result.shape, strict=True)
            ):
                raise Invalid(f"{node.op_type}: reference and shape inference differ")
    return results


@dataclass
class GraphBuilder:
    """Grows one graph. Names get `prefix`, so that several graphs fit in one model."""

    random: Random
    opset: int = 21
    prefix: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    pool: list[Value] = field(default_factory=list)
    """Values that nodes may read and outputs may be: inputs and results."""
    weights: list[Value] = field(default_factory=list)
    """Dequantised (and float) constant weights, for other readers to share."""
    integers: list[Value] = field(default_factory=list)
    """Quantised constants as they are stored."""
    values: dict[str, Array] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    free: set[str] = field(default_factory=set)
    """Initializers that may be inputs too."""
    count: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.random.getrandbits(32))
        self.extents = self.random.sample([1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17], 4)
        if self.random.random() < 0.15:
            self.extents.append(0)

    # Choices

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def extent(self) -> int:
        return self.random.choice(self.extents)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        if rank is None:
            rank = self.random.choice([0, 1, 1, 2, 2, 2, 3, 3, 4, 5])
        shape = [self.extent() for _ in range(rank)]
        while np.prod(shape, dtype=np.int64) > LARGEST:
            shape[shape.index(max(shape))] = 1 + max(shape) // 3
        return tuple(shape)

    def pick(self, *types: str, rank: int | None = None, least: int = 0) -> Value:
        """A value of one of these types, more often a late one; `Invalid` if there is none."""
        found = [
            v
            for v in self.pool
            if v.type in types and v.rank >= least and (rank is None or v.rank == rank)
        ]
        if not found:
            raise Invalid(f"no value of {types}")
        return self.random.choice(found[-4:] if self.chance(0.6) else found)

    def floats(self, shape: Sequence[int], spread: float = 1.0) -> Array:
        return np.asarray(self.rng.standard_normal(tuple(shape)) * spread, np.float32)

    # Values

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{self.prefix}{stem}{self.count}"

    def input(self, array: Array) -> Value:
        value = Value(self.name("x"), np.asarray(array))
        self.inputs.append(value)
        self.pool.append(value)
        self.values[value.name] = value.array
        return value

    def constant(self, array: Array, *, node: bool | None = None) -> Value:
        """An initializer, or a Constant node."""
        array = np.asarray(array)
        value = Value(self.name("c"), array, constant=True)
        tensor = make_tensor(value.name, array)
        if node if node is not None else self.chance(0.15):
            self.nodes.append(
                helper.make_node("Constant", [], [value.name], self.name("const_"), value=tensor)
            )
        else:
            self.initializers.append(tensor)
        self.values[value.name] = array
        return value

    def ints(self, *values: int) -> Value:
        return self.constant(np.array(values, np.int64))

    def node(
        self, op: str, *inputs: Value | None, outputs: int = 1, keep: bool = True, **attributes: Any
    ) -> list[Value]:
        """Add a node; its results go to the pool if `keep` and no input is constant. `Invalid` if it cannot be."""
        names = [v.name if v is not None else "" for v in inputs]
        while names and not names[-1]:
            names.pop()
        outs = [self.name(op.lower() + "_") for _ in range(outputs)]
        feeds = {v.name: v.array for v in inputs if v is not None}
        try:
            node = helper.make_node(op, names, outs, name=self.name(op + "_"), **attributes)
            arrays = evaluate(node, self.opset, feeds)
        except Exception as error:
            raise Invalid(f"{op}: {error}") from error
        for array in arrays:
            if array.size > LARGEST:
                raise Invalid(f"{op}: too large")
            if array.dtype.kind == "f" and array.size and op != "Cast":
                with np.errstate(invalid="ignore"):
                    if np.abs(array[np.isfinite(array)]).max(initial=0.0) > REACH:
                        raise Invalid(f"{op}: too far")
                if not np.isfinite(array).all() and not self.chance(0.1):
                    raise Invalid(f"{op}: not finite")
        self.nodes.append(node)
        self.used.update(names)
        constant = all(v is None or v.constant for v in inputs)
        results = [Value(n, a, constant) for n, a in zip(outs, arrays, strict=True)]
        self.values.update({v.name: v.array for v in results})
        if keep:
            self.pool += results
        return results

    def one(self, op: str, *inputs: Value | None, keep: bool = True, **attributes: Any) -> Value:
        return self.node(op, *inputs, keep=keep, **attributes)[0]

    def along(
        self, op: str, x: Value, axes: Sequence[int], *, keep: bool = True, **attributes: Any
    ) -> Value:
        """A node with axes, which opset 13 made an input of."""
        if self.opset >= 13:
            return self.one(op, x, self.ints(*axes), keep=keep, **attributes)
        return self.one(op, x, keep=keep, axes=list(axes), **attributes)

    def outputs(self) -> list[Value]:
        """What the graph returns: what nothing reads, some intermediates, sometimes an input or a constant."""
        leaves = [v for v in self.pool if v.name not in self.used and v not in self.inputs]
        chosen = self.random.sample(leaves, min(len(leaves), 6))
        chosen += [v for v in self.pool if v not in self.inputs and self.chance(0.06)]
        if self.chance(0.05) or not chosen:
            chosen.append(self.random.choice(self.inputs))
        if self.chance(0.05):
            chosen.append(self.constant(self.floats(self.shape(2))))
        if self.weights and self.chance(0.05):
            chosen.append(self.random.choice(self.weights))
        return list({v.name: v for v in chosen}.values())


def make_tensor(name: str, array: Array) -> onnx.TensorProto:
    if array.dtype.kind in "fiub":
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    values = array.astype(np.int64).reshape(-1).tolist()
    return helper.make_tensor(name, tensor_type(array), array.shape, values)


def value_info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, tensor_type(value.array), value.shape)


def finish(builders: Sequence[GraphBuilder], label: str = "") -> Case:
    """One model that holds the graphs side by side."""
    first = builders[0]
    outputs = [v for b in builders for v in b.outputs()]
    nodes = [n for b in builders for n in b.nodes]
    if first.chance(0.1):
        first.random.shuffle(nodes)
    values = {n: a for b in builders for n, a in b.values.items()}
    graph = helper.make_graph(
        nodes,
        "fuzz",
        [value_info(v) for b in builders for v in b.inputs],
        [value_info(v) for v in outputs],
        [t for b in builders for t in b.initializers],
    )
    feeds = {v.name: v.array for b in builders for v in b.inputs}
    for tensor in graph.initializer:
        # A default that callers may override, and do with the same value.
        if any(tensor.name in b.free for b in builders) and first.chance(0.03):
            feeds[tensor.name] = values[tensor.name]
            graph.input.append(value_info(Value(tensor.name, values[tensor.name])))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", first.opset)], ir_version=10
    )
    return Case(model, feeds, values, label)
