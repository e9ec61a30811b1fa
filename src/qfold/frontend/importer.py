"""The driver: walks a graph's nodes in order and turns each into constants or IR.

For every node, in this order: integers that the model holds as floats stay integers (`carrying.py`); layout and arithmetic on
constants that stand for quantised weights are only recorded (`raising.py`); a node whose inputs are all constants is evaluated
(`folding.py`); `If` with a known condition is replaced by its branch; a registered importer (`ops/`) emits IR; an operator that
ONNX or the model defines as a function is replaced by its body. What is left is collected and reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias, cast

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, NodeProto, TypeProto, ValueInfoProto
from onnx.defs import OpSchema
from xdsl.dialects.builtin import f32
from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.element_types import i32, i64
from qfold.frontend import carrying, folding, raising, registry, schema
from qfold.frontend.context import NodeContext, value_type
from qfold.frontend.errors import FrontendError, NodeRef, Unsupported, shortened
from qfold.frontend.graph import display_name, node_reads, ordered_nodes
from qfold.frontend.materialize import Materializer
from qfold.frontend.ops import load_importers
from qfold.frontend.reader import LoadedModel
from qfold.frontend.tensors import (
    MAX_ELEMENTS,
    declared_shape,
    decode_tensor,
    element_type_of_onnx,
    onnx_type_of,
)
from qfold.frontend.values import Carried, Const, Quantized, Value
from qfold.ir.builder import element_type
from qfold.ir.locations import name_location


@dataclass(frozen=True)
class Poison:
    """Stands for what could not be imported, so that the walk can go on and find the rest of it."""

    if_read: Unsupported | None = None
    """What to report if anything reads this; None: it was reported."""


POISON = Poison()

MAX_FUNCTION_DEPTH = 32
"""Calls inside of calls that are inlined."""
MAX_NODES = 1 << 20
"""Nodes that are imported, inlined ones counted each time: functions that call each other twice grow exponentially."""

Slot: TypeAlias = "Value | Carried | Poison"


@dataclass
class Scope:
    """The names that are visible to the nodes of one graph or function body."""

    values: dict[str, Slot]
    opsets: Mapping[str, int]
    parent: Scope | None = None
    prefix: str = ""
    """Comes before the names of nodes."""
    fixed_name: str | None = None
    """Instead of the names of nodes."""
    initializers: dict[str, onnx.TensorProto] = field(
        default_factory=lambda: dict[str, onnx.TensorProto]()
    )
    """Not decoded yet."""
    functions: tuple[tuple[str, str], ...] = ()
    """The functions that are being expanded."""
    read: set[str] = field(default_factory=lambda: set[str]())
    """The names that needed nodes and outputs read."""

    def names(self) -> set[str]:
        outer = self.parent.names() if self.parent else set[str]()
        return outer | self.values.keys() | self.initializers.keys()


class GraphImporter:
    """Imports one model into the body of a function."""

    def __init__(self, model: LoadedModel, block: Block):
        load_importers()
        self.model = model
        self.materializer = Materializer(block)
        self.reasons: list[Unsupported] = []
        self.nodes = 0
        self.origins: dict[Value, NodeContext] = {}
        """The nodes that values come from."""
        self.functions = {
            (registry.canonical_domain(f.domain), f.name): f for f in model.proto.functions
        }

    # Names

    def lookup(self, scope: Scope, name: str) -> Slot:
        """The value called `name`, decoding an initializer on first use."""
        here: Scope | None = scope
        while here is not None:
            if name in here.values:
                return here.values[name]
            if name in here.initializers:
                const = decode_tensor(here.initializers[name], name, self.model.directory)
                here.values[name] = const
                return const
            here = here.parent
        raise FrontendError(f"value '{name}' is read before anything defines it")

    # Graphs

    def run_graph(self, graph: GraphProto, scope: Scope) -> list[Slot]:
        """Imports the nodes that the outputs of `graph` need; returns the outputs."""
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise FrontendError(f"initializer '{name}' is sparse, which is not supported")
        for tensor in graph.initializer:
            if tensor.name not in scope.values:
                scope.initializers[tensor.name] = tensor
        declared = {v.name: v for v in (*graph.output, *graph.value_info)}
        outer = scope.names()
        order = ordered_nodes(graph, outer)
        scope.read = {n for _, node in order for n in node_reads(node)}
        scope.read.update(o.name for o in graph.output)
        for index, node in order:
            self.run_node(node, index, scope, declared)
        outputs = [self.lookup(scope, o.name) for o in graph.output]
        self.report_read(outputs)
        return outputs

    def report_read(self, slots: Sequence[Slot | None]) -> bool:
        """Whether a slot is missing; reports those that are missed only when read."""
        missing = [s for s in slots if isinstance(s, Poison)]
        for slot in missing:
            if slot.if_read is not None and slot.if_read not in self.reasons:
                self.reasons.append(slot.if_read)
        return bool(missing)

    def run_node(
        self, node: NodeProto, index: int, scope: Scope, declared: Mapping[str, ValueInfoProto]
    ) -> None:
        """Imports one node and defines its outputs in `scope`."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise FrontendError(
                f"the model has more than {MAX_NODES} nodes, inlined functions counted"
            )
        domain = registry.canonical_domain(node.domain)
        name = scope.fixed_name or scope.prefix + display_name(node, index)
        ref = NodeRef(name, node.op_type, domain, scope.opsets.get(domain, 1))
        slots = [self.lookup(scope, n) if n else None for n in node.input]
        results: Sequence[Slot]
        try:
            if self.report_read(slots):
                self.check_supported(node, ref)
                results = [POISON] * len(node.output)
            else:
                given = cast("list[Value | Carried | None]", slots)
                results = self.import_node(node, ref, given, scope)
        except Unsupported as reason:
            self.reasons.append(reason)
            results = [POISON] * len(node.output)
        except (VerifyException, ValueError, IndexError, OverflowError) as error:
            raise FrontendError(f"{ref} is not valid: {shortened(error)}") from error
        for output, result in zip(node.output, results, strict=False):
            if output:
                result = as_declared(result, declared.get(output))
                check_size(result, ref)
                check_declared(declared.get(output), result, ref)
                scope.values[output] = result
        for output in node.output[len(results) :]:
            if output:
                why = Unsupported(
                    ref, f"a use of its output '{output}'", f"its first {len(results)}"
                )
                scope.values[output] = Poison(if_read=why)

    def import_node(
        self, node: NodeProto, ref: NodeRef, given: list[Value | Carried | None], scope: Scope
    ) -> Sequence[Slot]:
        """The outputs of one node whose inputs are all known."""
        definition = schema.find_schema(ref.domain, node.op_type, ref.opset)
        if definition is not None:
            schema.check_node(node, definition, ref)
            if schema.is_too_old(definition, ref):
                raise Unsupported(
                    ref,
                    f"the definition of opset {definition.since_version}",
                    f"that of opset {schema.OLDEST_OPSET} and later ones",
                )

        def context(inputs: list[Value | None]) -> NodeContext:
            return NodeContext(
                node,
                ref.opset,
                ref.name,
                self.materializer.at(name_location(ref.name)),
                inputs,
                ref,
                self.model.directory,
                self.materializer,
                scope.read,
                self.origins,
            )

        kept = carrying.keep_integers(given, context)
        if kept is not None:
            return kept
        inputs = [self.materializer.carried(v, ref) if isinstance(v, Carried) else v for v in given]
        ctx = context(inputs)
        results = self.import_in(ctx, definition, scope)
        for result in results:
            if isinstance(result, SSAValue | Const):
                self.origins.setdefault(result, ctx)
        return results

    def import_in(
        self, ctx: NodeContext, definition: OpSchema | None, scope: Scope
    ) -> Sequence[Slot]:
        """The outputs of the node of `ctx`, by the first way that applies."""
        node, ref = ctx.node, ctx.ref
        raised = raising.raise_node(ctx)
        if raised is not None:
            return raised
        inputs = list(ctx.inputs)  # a rule may have replaced some
        if node.op_type == "If" and not ref.domain:
            return self.import_if(node, ctx, scope)
        consts = [None if v is None else raising.plain_const(v) for v in inputs]
        known = all((v is None) == (c is None) for v, c in zip(inputs, consts, strict=True))
        if known and definition is not None and schema.is_deterministic(definition):
            opsets = {**scope.opsets, ref.domain: ref.opset}
            folded = folding.fold_node(node, definition, consts, opsets, ref, ref.name)
            if folded is not None:
                results = iter(folded)
                return [next(results) if o else POISON for o in node.output]
        function = self.functions.get((ref.domain, node.op_type))
        if function is not None:
            return self.expand_function(function, None, node, ref, inputs, scope, local=True)
        importer = registry.lookup(ref.domain, node.op_type, ref.opset)
        if importer is not None:
            produced = importer(ctx)
            return (
                [produced] if isinstance(produced, SSAValue | Const | Quantized) else list(produced)
            )
        if definition is not None:
            types = [_type_proto(v) for v in inputs]
            body = schema.function_body(definition, node, ref.opset, types)
            if body is not None:
                return self.expand_function(body, definition, node, ref, inputs, scope, local=False)
        raise self.not_supported(node, ref, definition)

    # What is not imported by an importer

    def check_supported(self, node: NodeProto, ref: NodeRef) -> None:
        """`Unsupported` if nothing could import an operator of this name, whatever its inputs."""
        if registry.lookup(ref.domain, node.op_type, ref.opset) is not None:
            return
        if (ref.domain, node.op_type) in self.functions or raising.handles(
            ref.domain, node.op_type
        ):
            return
        definition = schema.find_schema(ref.domain, node.op_type, ref.opset)
        if definition is None or not schema.has_function_body(definition):
            raise self.not_supported(node, ref, definition)

    def not_supported(
        self, node: NodeProto, ref: NodeRef, definition: OpSchema | None
    ) -> Unsupported:
        """Says which supported operator is nearest to the one that `node` asks for."""
        near = registry.nearest(ref.domain, node.op_type)
        found = "an unknown operator"
        if definition is not None:
            found = "an operator that is supported on constant inputs only"
            if not schema.is_deterministic(definition):
                found = "an operator that is not supported"
        nearest = (
            f"the nearest supported operator is {near}" if near else "nothing of a similar name"
        )
        return Unsupported(ref, found, nearest)

    def import_if(self, node: NodeProto, ctx: NodeContext, scope: Scope) -> Sequence[Slot]:
        """The branch of an `If` whose condition is constant."""
        condition = ctx.const(0)
        if condition is None:
            ctx.refuse("a condition that is computed at run time", "a constant condition")
        taken = "then_branch" if bool(np.asarray(condition).reshape(-1)[0]) else "else_branch"
        branch = ctx.attr(taken)
        inner = Scope(
            {},
            scope.opsets,
            parent=scope,
            prefix=f"{ctx.name}/",
            fixed_name=scope.fixed_name,
            functions=scope.functions,
        )
        return self.run_graph(cast(GraphProto, branch), inner)

    def expand_function(
        self,
        function: FunctionProto,
        definition: OpSchema | None,
        node: NodeProto,
        ref: NodeRef,
        inputs: Sequence[Value | None],
        scope: Scope,
        *,
        local: bool,
    ) -> Sequence[Slot]:
        """Imports the body of `function` in place of `node`.

        Inside a function of the model, node names are prefixed by that of `node`; the body of an ONNX operator goes by the
        name of the node itself.
        """
        key = (ref.domain, node.op_type)
        if key in scope.functions:
            raise FrontendError(f"{ref}: the function calls itself")
        if len(scope.functions) >= MAX_FUNCTION_DEPTH:
            raise FrontendError(
                f"{ref}: functions call each other more than {MAX_FUNCTION_DEPTH} deep"
            )
        opsets = dict(scope.opsets)
        for entry in function.opset_import:
            opsets[registry.canonical_domain(entry.domain)] = entry.version
        inner = Scope(
            {},
            opsets,
            prefix=f"{ref.name}/",
            fixed_name=scope.fixed_name if local else ref.name,
            functions=(*scope.functions, key),
        )
        absent: set[str] = set()
        for index, formal in enumerate(function.input):
            value = inputs[index] if index < len(inputs) else None
            if value is None:
                absent.add(formal)
            else:
                inner.values[formal] = value
        bound = schema.bind_attributes(function, node, definition)
        body = GraphProto()
        for inner_node in function.node:
            copy = schema.substitute_attributes(inner_node, bound)
            for position, name in enumerate(copy.input):
                if name in absent:
                    copy.input[position] = ""
            body.node.append(copy)
        for name in function.output[: len(node.output)]:
            body.output.add().name = name
        before = len(self.reasons)
        results = self.run_graph(body, inner)
        inside = self.reasons[before:]
        if inside and not local:
            # The model holds the operator, not what ONNX defines it by.
            del self.reasons[before:]
            why = f"found {inside[0].found}; supported: {inside[0].supported}"
            parts = ", ".join(dict.fromkeys(r.node.op_type for r in inside))
            raise Unsupported(
                ref,
                f"an operator that is defined by {parts}, for which the importer {why}",
                "operators whose definitions are supported",
            )
        return results


def _type_proto(value: Value | None) -> TypeProto:
    if value is None:
        return TypeProto()
    tensor_type = value_type(value)
    return onnx.helper.make_tensor_type_proto(
        onnx_type_of(tensor_type.element_type), tensor_type.get_shape()
    )


def as_declared(result: Slot, declared: ValueInfoProto | None) -> Slot:
    """Carried integers in the type that the model declares for them, which may differ from that of what they come from."""
    if not isinstance(result, Carried) or declared is None or result.zero_point is not None:
        return result
    kind = declared.type.tensor_type.elem_type
    wanted = element_type_of_onnx(kind, f"value '{declared.name}'") if kind else result.type
    holds = (f32, i32, i64, element_type(result.integers))
    return replace(result, type=wanted) if wanted in holds else result


def check_size(result: Slot, ref: NodeRef) -> None:
    """`FrontendError` when a node gives more elements than any tensor may have."""
    if not isinstance(result, Poison):
        count = prod(value_type(result).get_shape())
        if count > MAX_ELEMENTS:
            raise FrontendError(
                f"{ref} gives {count} elements; at most {MAX_ELEMENTS} are supported"
            )


def check_declared(declared: ValueInfoProto | None, result: Slot, ref: NodeRef) -> None:
    """`FrontendError` when the model declares another type or shape for a value than its node gives."""
    if declared is None or isinstance(result, Poison):
        return
    found = value_type(result)
    if not declared.type.HasField("tensor_type"):
        return
    shape = declared_shape(declared.type)
    wanted = declared.type.tensor_type.elem_type
    what = f"value '{declared.name}'"
    if wanted and element_type_of_onnx(wanted, what) != found.element_type:
        raise FrontendError(
            f"{what} is declared as {element_type_of_onnx(wanted, what)}, but {ref} gives {found}"
        )
    if shape is None:
        return
    actual = found.get_shape()
    agrees = len(shape) == len(actual) and all(
        not isinstance(want, int) or want == have for want, have in zip(shape, actual, strict=True)
    )
    if not agrees:
        dims = ["?" if d is None else d for d in shape]
        raise FrontendError(f"{what} is declared with shape {dims}, but {ref} gives {list(actual)}")
