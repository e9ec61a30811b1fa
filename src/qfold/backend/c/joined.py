"""Several generics in one function: under the outer loops that they can share, what they hand over per point in variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, SSAValue

from qfold.backend.c.layout import Buffer, Linear, access, value_type, variable
from qfold.backend.c.loops import GenericPrinter, Variable
from qfold.backend.c.scalar import UnsupportedOp
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
) -> None:
    """The loop nests of one function, each with the fill that its accumulator starts from."""
    shared = shared_loops([op for _, op in nests])
    variables = _variables([op for _, op in nests], buffers, locals_, shared)
    known = {**buffers, **variables}
    last = {op.outputs[0]: op for _, op in nests}
    with ExitStack() as stack:
        for loop, extent in enumerate(shared.extents):
            if extent != 1:
                stack.enter_context(out.loop(f"i{loop}", extent))
        for value, buffer in variables.items():
            start = _start(value, nests, buffers, shared)
            out.line(f"{value_type(buffer.element)} {buffer.name}{start};")
        for fill, op in nests:
            value = op.outputs[0]
            _print_nest(out, op, known, fill, shared.depth)
            if value in variables and value in buffers and last[value] is op:
                target = buffers[value]
                out.line(target.store(_position(op, target, shared), variables[value].name))


def _variables(
    nests: Sequence[linalg.GenericOp],
    buffers: Mapping[SSAValue, Buffer],
    locals_: Sequence[memref.AllocOp],
    shared: SharedLoops,
) -> dict[SSAValue, Variable]:
    """A variable for each value that is made and read at one point of the shared loops, and is one element there."""
    for op in locals_:
        if shared.elements_per_point(op.memref) > 1:
            raise UnsupportedOp(
                op, "a function's own buffer has one element per point of its loops"
            )
    own: dict[SSAValue, MemRefType[Attribute]] = {op.memref: op.memref.type for op in locals_}
    found: dict[SSAValue, Variable] = {}
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
) -> None:
    inner = Writer()
    GenericPrinter(inner, op, buffers, fill, shared).print()
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
