"""Loop nests on memrefs that run one after the other, and how many outer loops they can have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from xdsl.dialects import memref
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from qfold.dialects.contraction import shape_of
from qfold.ir.generics import indexing_maps, loop_extents


@dataclass(frozen=True)
class SharedLoops:
    """The first `depth` loops of each of several generics, run as one nest around them all.

    One point of the shared loops does the work of every generic there before the next point is begun. That keeps the order of
    all writes and reads of an element when whoever writes or reads a value that one of the generics writes, does so at the
    index of the shared loop, in the same dimension: then no point sees another's elements.
    """

    extents: tuple[int, ...]

    @property
    def depth(self) -> int:
        return len(self.extents)

    @property
    def points(self) -> int:
        """How often the body of the shared loops runs."""
        return prod(self.extents)

    def elements_per_point(self, value: SSAValue) -> int:
        """Elements that one point has of a value that a generic writes."""
        points = self.points
        return prod(shape_of(value)) // points if points else 0


def accesses(op: linalg.GenericOp) -> Iterator[tuple[SSAValue, AffineMap]]:
    """(operand, its map): the inputs, then what is written."""
    yield from zip((*op.inputs, *op.outputs), indexing_maps(op), strict=True)


def loaded(op: linalg.GenericOp) -> Iterator[SSAValue]:
    """What the body reads at indices that it computes."""
    for inner in op.body.block.ops:
        if isinstance(inner, memref.LoadOp):
            yield inner.memref


def starts(fill: linalg.FillOp, following: Operation | None) -> bool:
    """Whether `following` is a reduction whose accumulator starts from `fill`."""
    return (
        isinstance(following, linalg.GenericOp)
        and len(following.outputs) == 1
        and following.outputs[0] is fill.outputs[0]
        and bool(following.body.block.args[-1].uses)
        and fill.outputs[0] not in following.inputs
    )


def shared_loops(ops: Sequence[linalg.GenericOp]) -> SharedLoops:
    """As many outer loops as `ops`, in this order, can share; none when they share no loop, or it would change what they read."""
    extents = [
        loop_extents(indexing_maps(op), [shape_of(v) for v, _ in accesses(op)]) for op in ops
    ]
    written = {value for op in ops for value in op.outputs}
    if any(value in written for op in ops for value in loaded(op)):
        return SharedLoops(())
    maps: dict[SSAValue, list[AffineMap]] = {}
    for op in ops:
        for value, map_ in accesses(op):
            if value in written:
                maps.setdefault(value, []).append(map_)
    limit = min(_leading_parallel_loops(op) for op in ops)
    shared: list[int] = []
    for loop in range(limit):
        lengths = {None if e is None else e[loop] for e in extents}
        length = lengths.pop()
        if length is None or lengths:
            break
        if length != 1 and not all(_same_index(loop, found) for found in maps.values()):
            break
        shared.append(length)
    return SharedLoops(tuple(shared))


def _leading_parallel_loops(op: linalg.GenericOp) -> int:
    kinds = (i.data for i in op.iterator_types)
    return sum(1 for _ in takewhile(lambda kind: kind is IteratorType.PARALLEL, kinds))


def _same_index(loop: int, maps: Sequence[AffineMap]) -> bool:
    """Whether the loop is the index of one and the same dimension in all maps of a value."""
    return any(
        all(isinstance(e, AffineDimExpr) and e.position == loop for e in column)
        for column in zip(*(m.results for m in maps), strict=True)
    )
