"""What flows between kernel calls: each tensor in memory, its type, who writes it and who reads it, and why one is a float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import cast

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import MemRefType, ModuleOp, StringAttr
from xdsl.ir import Attribute, SSAValue

from qfold.backend.c.program import Program
from qfold.backend.c.signature import parameters
from qfold.dialects.element_types import byte_size, is_float
from qfold.tools.arrays import main_function
from qfold.tools.tensor_facts import TensorFacts
from qfold.transforms.qmm_outline_kernels import VIEWS

_RUN_TIME = "qmm.dynamic_quantize"

_NO_ISLANDS = frozenset(
    (
        "QuantizeLinear DequantizeLinear Cast Transpose Reshape Flatten Squeeze Unsqueeze Identity "
        "Slice Split Concat Expand Gather Pad"
    ).split()
)
"""Operators that lead from and to integers, or move elements: where one stands for an op that computes, so does what reads it."""

_INTEGER_FORMS = frozenset({"RequantShift", "Relu", "Clip", "Conv", "MatMul", "Gemm"})
"""Operators that are floats only where what they read is."""

_READS_INPUT = "reads the input"


@dataclass(frozen=True)
class OnnxNode:
    """One node of the model, as the report names it."""

    name: str
    op_type: str
    domain: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class FlowingTensor:
    """A tensor in memory that kernel calls hand to each other."""

    name: str
    """The ONNX value that it holds; where none is known, the node that it comes from last."""
    role: str
    """`input`, `output` or `inner`."""
    element_type: Attribute
    shape: tuple[int, ...]
    producers: tuple[int, ...]
    """Ordinals of the calls that write it; none of an input."""
    consumers: tuple[int, ...]
    float_reason: str | None
    """Why an inner one is a float in a network that multiplies integers."""

    @property
    def nbytes(self) -> int:
        return byte_size(self.element_type, prod(self.shape))

    @property
    def is_float(self) -> bool:
        return is_float(self.element_type)


@dataclass(frozen=True)
class Island:
    """An ONNX node that computes in floats, in a network that multiplies integers."""

    node: str
    op_type: str
    dispatches: tuple[int, ...]
    reason: str


def islands(
    nodes: Sequence[OnnxNode], facts: TensorFacts, program: Program, inputs: Sequence[str]
) -> list[Island]:
    """The nodes that compute in floats, in the model's order; none where nothing multiplies integers anyway.

    `inputs`: names of the network's float inputs.
    """
    if not facts.is_integer:
        return []
    known = {n.name: n for n in nodes}
    # Whose float initializers are integers, of widths that only the operators declare.
    untyped = any(n.op_type == "RequantShift" for n in nodes)
    found: list[Island] = []
    before: dict[str, str] = {}
    for name in [*known, *(n for n in facts.nodes if n not in known)]:
        node = facts.nodes.get(name)
        if node is None or not node.computes_floats:
            continue
        onnx = known.get(name)
        op_type = onnx.op_type if onnx is not None else name
        if op_type in _NO_ISLANDS:
            continue
        calls = tuple(d.ordinal for d in program.dispatches if name in d.nodes)
        reason = _reason(op_type, onnx, node.reasons, inputs, before)
        if untyped and reason.startswith(_READS_INPUT):
            reason += "; --input-type declares the integers that it holds"
        found.append(Island(name, op_type, calls, reason))
        before |= dict.fromkeys(() if onnx is None else onnx.outputs, name)
    return found


def _reason(
    op_type: str,
    node: OnnxNode | None,
    refused: Sequence[str],
    inputs: Sequence[str],
    before: Mapping[str, str],
) -> str:
    """`before`: value -> the island that makes it."""
    if refused:
        return refused[0]
    if op_type.startswith("QLinear"):
        return "integers at both ends, f32 between them, as the operator is defined"
    read = () if node is None else node.inputs
    if op_type in _INTEGER_FORMS:
        for name in read:
            if name in inputs:
                return f"{_READS_INPUT} {name!r}, which is f32"
            if name in before:
                return f"reads what {before[name]!r} computes in f32"
    return f"no integer form of {op_type} in the model"


@dataclass
class _Root:
    """A value of `@main` that is memory of its own."""

    value: SSAValue
    role: str
    name: str | None
    producers: list[int] = field(default_factory=list[int])
    consumers: list[int] = field(default_factory=list[int])


def flowing_tensors(
    module: ModuleOp,
    program: Program,
    nodes: Sequence[OnnxNode],
    facts: TensorFacts,
    floats: Sequence[Island],
) -> list[FlowingTensor]:
    """Inputs, what calls hand to each other in the order in which it is first written, outputs."""
    main = main_function(module)
    ordinals = {
        op: i for i, op in enumerate(o for o in main.body.block.ops if isinstance(o, func.CallOp))
    }
    access = {
        d.ordinal: [(p.read, p.written) for p in parameters(d.kernel)] for d in program.dispatches
    }
    roots = _roots(main)
    for root in roots:
        _follow(root.value, root, ordinals, access)
    # What a call hands to itself, between loop nests of it, flows nowhere.
    inner = [r for r in roots if r.role == "inner" and r.producers and r.consumers]
    inner.sort(key=lambda r: r.producers[0])
    ordered = [
        *(r for r in roots if r.role == "input"),
        *inner,
        *(r for r in roots if r.role == "output"),
    ]
    names = _Names(nodes, program)
    known = {id(r): r.name or names.of(r.producers, r.consumers) for r in ordered}
    for root in sorted(inner, key=_bytes, reverse=True):
        # A value is the largest that a call writes for it; sums of its rows, say, are beside it.
        alike = [r for r in inner if r is not root and r.producers == root.producers]
        for other in alike:
            if known[id(other)] == known[id(root)] and _bytes(other) < _bytes(root):
                known[id(other)] = names.beside(other.producers)
    found: list[FlowingTensor] = []
    for root in ordered:
        type_ = cast("MemRefType[Attribute]", root.value.type)
        element = type_.get_element_type()
        reason = None
        if root.role == "inner" and is_float(element):
            reason = _float_reason(root, program, facts, floats)
        found.append(
            FlowingTensor(
                known[id(root)],
                root.role,
                element,
                type_.get_shape(),
                tuple(root.producers),
                tuple(root.consumers),
                reason,
            )
        )
    return found


def _roots(main: func.FuncOp) -> list[_Root]:
    found: list[_Root] = []
    attributes = () if main.arg_attrs is None else main.arg_attrs.data
    for argument, entries in zip(main.body.block.args, attributes, strict=False):
        role, name = (entries.data.get(key) for key in ("qmm.role", "qmm.name"))
        if isinstance(role, StringAttr) and role.data in ("input", "output"):
            text = name.data if isinstance(name, StringAttr) else f"v{argument.index}"
            found.append(_Root(argument, role.data, text))
    found += [
        _Root(op.results[0], "inner", None)
        for op in main.body.block.ops
        if isinstance(op, memref.ViewOp)
    ]
    return found


def _follow(
    value: SSAValue,
    root: _Root,
    ordinals: Mapping[func.CallOp, int],
    access: Mapping[int, Sequence[tuple[bool, bool]]],
) -> None:
    """Adds the calls that get `value`, or a view of it."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, func.CallOp):
            ordinal = ordinals[user]
            read, written = access[ordinal][use.index]
            for matters, calls in ((read, root.consumers), (written, root.producers)):
                if matters and ordinal not in calls:
                    calls.append(ordinal)
                    calls.sort()
        elif isinstance(user, VIEWS):
            _follow(user.results[0], root, ordinals, access)


def _bytes(root: _Root) -> int:
    type_ = cast("MemRefType[Attribute]", root.value.type)
    return byte_size(type_.get_element_type(), prod(type_.get_shape()))


class _Names:
    """ONNX values by the calls that write and read them."""

    def __init__(self, nodes: Sequence[OnnxNode], program: Program):
        self._nodes = [n for n in nodes if n.outputs]
        self._calls = [set(d.nodes) for d in program.dispatches]
        self._first = [d.nodes[0] if d.nodes else d.kernel.symbol for d in program.dispatches]
        self._last = [d.nodes[-1] if d.nodes else d.kernel.symbol for d in program.dispatches]
        self._readers: dict[str, set[str]] = {}
        for node in nodes:
            for value in node.inputs:
                self._readers.setdefault(value, set()).add(node.name)

    def of(self, producers: Sequence[int], consumers: Sequence[int]) -> str:
        """The value that leaves the calls `producers`: of their nodes' outputs the last one that the readers' nodes read, or that
        other nodes read where nodes between them became views."""
        inside = set[str]().union(*(self._calls[i] for i in producers))
        others = [self._calls[i] for i in consumers if i not in producers]
        after = set[str]().union(*others)
        # What reads it may be computed in part beside what writes it.
        if inside - after:
            inside = inside - after
        else:
            after -= inside
        if not after or not inside:
            return self._first[producers[0]]  # between the parts of one node
        handed: list[list[str]] = []
        leaving: list[list[str]] = []
        for node in self._nodes:
            if node.name not in inside:
                continue
            outside = {v: self._readers.get(v, set[str]()) - inside for v in node.outputs if v}
            outputs = [v for v, readers in outside.items() if readers & after]
            if outputs:
                handed.append(outputs)
            elif any(outside.values()):
                leaving.append([v for v, readers in outside.items() if readers])
        found = handed or leaving
        # Nothing tells here which of several outputs of one node it is.
        return found[-1][0] if found and len(found[-1]) == 1 else self._last[producers[-1]]

    def beside(self, producers: Sequence[int]) -> str:
        """The name of what is no value of the model: the node that it is computed with."""
        return self._first[producers[0]]


def _float_reason(
    root: _Root, program: Program, facts: TensorFacts, floats: Sequence[Island]
) -> str | None:
    """Whom it is a float for: the islands that read it, else those that write it."""
    if not facts.is_integer:
        return None
    for what, calls in (("read", root.consumers), ("written", root.producers)):
        near = [i for i in floats if set(i.dispatches) & set(calls)]
        if near:
            others = f" and {len(near) - 1} more" if len(near) > 1 else ""
            return f"{what} by {near[0].op_type} ({near[0].node}){others}"
        nodes = [n for i in calls for n in program.dispatches[i].nodes]
        if any(_RUN_TIME in facts.nodes[n].ops for n in nodes if n in facts.nodes):
            return "quantised at run time"
    return "the model dequantises it"
