"""Several generics in one function: under the outer loops that they can share, what they hand over per point in variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineDimExpr

from qfold.backend.c.layout import Buffer, Linear, access, value_type, variable
from qfold.backend.c.loops import GenericPrinter, Variable, check_split, loop_extents
from qfold.backend.c.scalar import UnsupportedOp
from qfold.backend.c.share import Range, Split, byte_safe, shares
from qfold.backend.c.text import Writer
from qfold.ir.generics import indexing_maps
from qfold.ir.shared_loops import SharedLoops, accesses, shared_loops

_DECLARATION = re.compile(r"(const )?\w+ \w+( =|\[)")
"""A line of C that declares a variable."""


def print_joined(
    out: Writer,
    nests: Sequence[tuple[linalg.FillOp | None, linalg.GenericOp]],
    buffers: Mapping[SSAValue, Buffer],
    locals_: Sequence[memref.AllocOp],
    split: Split | None = None,
) -> None:
    """The loop nests of one function, each with the fill that its accumulator starts from.

    Of a `split` one, this core's share; `BadSplit` where the split divides a loop that the nests do not share: one core
    would then read what another writes.
    """
    shared = shared_loops([op for _, op in nests])
    variables = _variables([op for _, op in nests], buffers, locals_, shared)
    known = {**buffers, **variables}
    last = {op.outputs[0]: op for _, op in nests}
    with ExitStack() as stack:
        ranges: Sequence[Range] | None = None
        if split is not None:
            first = nests[0][1]
            check_split(first, split, shared.depth)
            for _, op in nests:
                split = byte_safe(split, buffers.get(op.outputs[0]))
            ranges = stack.enter_context(shares(out, split, loop_extents(first)))
        for loop, extent in enumerate(shared.extents):
            if extent != 1:
                range_ = Range.whole(extent) if ranges is None else ranges[loop]
                stack.enter_context(out.loop(f"i{loop}", range_.last, range_.first))
        for value, buffer in variables.items():
            type_ = value_type(buffer.element)
            if isinstance(buffer, Row):
                out.line(f"{type_} {buffer.name}[{buffer.elements}];")
            else:
                out.line(f"{type_} {buffer.name}{_start(value, nests, buffers, shared)};")
        for fill, op in nests:
            value = op.outputs[0]
            _print_nest(out, op, known, fill, shared.depth, alone=split is None)
            if value in variables and value in buffers and last[value] is op:
                target = buffers[value]
                out.line(target.store(_position(op, target, shared), variables[value].name))


@dataclass(frozen=True)
class Row(Buffer):
    """What one point of the loops around holds of a buffer: an array, that each point writes again."""

    looped: frozenset[int]
    """Dimensions that the shared loops run through."""

    @property
    def strides(self) -> tuple[int, ...]:
        strides: list[int] = []
        count = 1
        for d, extent in reversed(list(enumerate(self.shape))):
            strides.insert(0, 0 if d in self.looped else count)
            count *= 1 if d in self.looped else extent
        return tuple(strides)

    @property
    def elements(self) -> int:
        return prod(n for d, n in enumerate(self.shape) if d not in self.looped)


def _row(
    name: str, op: memref.AllocOp, nests: Sequence[linalg.GenericOp], shared: SharedLoops
) -> Row:
    """The array for a function's own buffer. Its dimensions are indexed by the shared loops in the same way everywhere."""
    written = next(nest for nest in nests if nest.outputs[0] is op.memref)
    looped = frozenset(
        d
        for d, e in enumerate(indexing_maps(written)[-1].results)
        if isinstance(e, AffineDimExpr) and e.position < shared.depth
    )
    return Row(name, op.memref.type, looped)


def _variables(
    nests: Sequence[linalg.GenericOp],
    buffers: Mapping[SSAValue, Buffer],
    locals_: Sequence[memref.AllocOp],
    shared: SharedLoops,
) -> dict[SSAValue, Buffer]:
    """A variable for each value that is made and read at one point of the shared loops, and is one element there.

    A function's own buffer of which a point has more is an array.
    """
    own: dict[SSAValue, MemRefType[Attribute]] = {op.memref: op.memref.type for op in locals_}
    found: dict[SSAValue, Buffer] = {}
    for op in locals_:
        if shared.elements_per_point(op.memref) > 1:
            if shared.points == 1:
                raise UnsupportedOp(op, "a function's own buffer is of one point of its loops")
            found[op.memref] = _row(f"p{len(found)}", op, nests, shared)
            del own[op.memref]
    for index, op in enumerate(nests):
        value = op.outputs[0]
        before = {v for nest in nests[:index] for v, _ in accesses(nest)} | {*op.inputs}
        after = {v for nest in nests[index + 1 :] for v, _ in accesses(nest)}
        handed_over = value in after and value not in before
        if value in own or (handed_over and shared.elements_per_point(value) == 1):
            type_ = own[value] if value in own else buffers[value].type
            found.setdefault(value, Variable(f"p{len(found)}", type_))
    return found


def _start(
    value: SSAValue,
    nests: Sequence[tuple[linalg.FillOp | None, linalg.GenericOp]],
    buffers: Mapping[SSAValue, Buffer],
    shared: SharedLoops,
) -> str:
    """The initialiser of a variable: what is in memory, where the generic that writes it first goes on from there."""
    fill, first = next(nest for nest in nests if nest[1].outputs[0] is value)
    if fill is not None or value not in buffers or not first.body.block.args[-1].uses:
        return ""
    target = buffers[value]
    return f" = {target.load(_position(first, target, shared))}"


def _print_nest(
    out: Writer,
    op: linalg.GenericOp,
    buffers: Mapping[SSAValue, Buffer],
    fill: linalg.FillOp | None,
    shared: int,
    *,
    alone: bool,
) -> None:
    inner = Writer()
    ranges = None if alone else [Range.whole(n) for n in loop_extents(op)]
    GenericPrinter(inner, op, buffers, fill, shared, ranges).print()
    text = inner.text().rstrip("\n").split("\n")
    if not any(_DECLARATION.match(line) for line in text):
        out.lines(text)
        return
    with out.block(""):
        out.lines(text)


def _position(op: linalg.GenericOp, target: Buffer, shared: SharedLoops) -> Linear | str:
    """Where the element of the point is in memory."""
    output = indexing_maps(op)[-1]
    dims = [Linear()] * output.num_dims
    for loop, extent in enumerate(shared.extents):
        if extent != 1:
            dims[loop] = variable(f"i{loop}")
    return access(target, output, dims)
