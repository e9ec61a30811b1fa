"""What the values of a staged dispatch are views of, and which of its operands it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerAttr, MemRefType
from xdsl.ir import Attribute, Operation, SSAValue

from qfold.backend.c.layout import span_bytes
from qfold.backend.c.program import Kernel, NotLevel3, Program, memref_type
from qfold.dialects import pulp
from qfold.dialects.element_types import bit_width
from qfold.ir.layouts import Layout
from qfold.ir.locations import describe_location

PASSED_ON = (
    memref.CollapseShapeOp,
    memref.ExpandShapeOp,
    memref.CastOp,
    memref.MemorySpaceCastOp,
)
"""Views that start where their source does."""


@dataclass(frozen=True)
class Region:
    """Bytes of an argument that a value may lie in: [low, high)."""

    root: SSAValue
    low: float
    high: float

    def overlaps(self, other: Region) -> bool:
        return self.root is other.root and self.low < other.high and other.low < self.high


def operations(function: func.FuncOp) -> Iterator[Operation]:
    """All ops of a function in order, those in loops too."""
    for op in function.body.walk():
        if op is not function:
            yield op


def regions(function: func.FuncOp) -> dict[SSAValue, Region]:
    """Where every memref of a staged dispatch lies. `NotLevel3` for an op that makes one in another way than by views."""
    found: dict[SSAValue, Region] = {
        a: Region(a, 0, inf) for a in function.body.block.args if isinstance(a.type, MemRefType)
    }
    for op in operations(function):
        if isinstance(op, memref.ViewOp):
            shift = constant(op.byte_shift)
            if shift is None:
                raise NotLevel3(f"{describe_location(op)} at an offset that is no constant")
            found[op.result] = Region(op.source, shift, shift + span_bytes(op.result.type))
        elif isinstance(op, memref.SubviewOp):
            found[op.result] = _subview(op, found[op.source])
        elif isinstance(op, PASSED_ON):
            found[op.results[0]] = found[op.operands[0]]
        elif isinstance(op, scf.ForOp):
            carried = zip(op.iter_args, op.body.block.args[1:], op.results, strict=True)
            for start, inner, after in carried:
                if isinstance(start.type, MemRefType):
                    found[inner] = found[after] = Region(found[start].root, 0, inf)
        elif any(isinstance(r.type, MemRefType) for r in op.results):
            raise NotLevel3(
                f"{describe_location(op)} in @{function.sym_name.data}: a staged dispatch has views of its arguments only "
                "(qmm-plan-scratchpad makes them)"
            )
    return found


def _subview(op: memref.SubviewOp, source: Region) -> Region:
    """The bytes of a part at constant offsets; of one that moves, all of the source."""
    offsets = list(op.static_offsets.get_values())
    if DYNAMIC_INDEX in offsets:
        return source
    type_ = memref_type(op.source)
    strides = Layout.of(type_).strides
    bits = bit_width(type_.get_element_type())
    moved = sum(int(a) * b for a, b in zip(offsets, strides, strict=True)) * bits // 8
    return Region(source.root, source.low + moved, source.low + moved + span_bytes(op.result.type))


def constant(value: SSAValue) -> int | None:
    """The integer that an index is, if it is a constant."""
    owner = value.owner
    attribute = owner.properties.get("value") if isinstance(owner, Operation) else None
    return attribute.value.data if isinstance(attribute, IntegerAttr) else None


def calls(function: func.FuncOp) -> Iterator[func.CallOp]:
    """The calls of leaf functions."""
    for op in operations(function):
        if isinstance(op, func.CallOp):
            yield op


def overlapping_leafs(function: func.FuncOp, *, arguments_overlap: bool) -> set[str]:
    """The callees that get two pointers into memory that overlaps, or may: two different arguments where those do."""
    known = regions(function)
    found: set[str] = set()
    for call in calls(function):
        used = [known[v] for v in call.arguments]
        for i, a in enumerate(used):
            for b in used[:i]:
                if a.overlaps(b) or (arguments_overlap and a.root is not b.root):
                    found.add(call.callee.string_value())
    return found


def transfers(kernel: Kernel) -> tuple[set[SSAValue], set[SSAValue]]:
    """(arguments that a staged dispatch copies from, those that it copies to)."""
    known = regions(kernel.function)
    starts = [op for op in operations(kernel.function) if isinstance(op, pulp.DmaStartOp)]
    return {known[op.source].root for op in starts}, {known[op.destination].root for op in starts}


def view_accessor(element: Attribute) -> str:
    """The name of the accessor of network_buffers.h that makes a typed pointer into the scratchpad."""
    return f"net_view_{element}"


def viewed_elements(program: Program) -> list[Attribute]:
    """The element types of the views that staged dispatches have of the scratchpad, each once."""
    found: dict[str, Attribute] = {}
    for kernel in program.staged:
        for op in kernel.function.body.block.ops:
            if isinstance(op, memref.ViewOp):
                element = memref_type(op.result).get_element_type()
                found.setdefault(str(element), element)
    return [found[name] for name in sorted(found)]
