"""ONNX node names as MLIR locations, and the one way to replace an op without losing them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    FileLineColLoc,
    FusedLoc,
    LocationAttr,
    NameLoc,
    NoneAttr,
    StringAttr,
    UnknownLoc,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter


def name_location(name: str) -> NameLoc:
    """The location of everything that comes from the ONNX node `name`."""
    return NameLoc(StringAttr(name), NoneAttr())


def _leaves(location: Attribute) -> Iterator[LocationAttr]:
    if isinstance(location, FusedLoc):
        for inner in cast(ArrayAttr[Attribute], location.locations):
            yield from _leaves(inner)
    elif isinstance(location, NameLoc | FileLineColLoc):
        yield location


def fuse_locations(locations: Iterable[LocationAttr]) -> LocationAttr:
    """One location for an op that stands for several: each named part once, in order of appearance."""
    leaves = list(dict.fromkeys(leaf for loc in locations for leaf in _leaves(loc)))
    if not leaves:
        return UnknownLoc()
    if len(leaves) == 1:
        return leaves[0]
    return FusedLoc(tuple(leaves), NoneAttr())


def node_names(op: Operation) -> tuple[str, ...]:
    """The names of the ONNX nodes that `op` comes from, in order; empty when it comes from none."""
    return location_names(op.location)


def location_names(location: LocationAttr) -> tuple[str, ...]:
    """The names of the ONNX nodes in a location, in order."""
    return tuple(leaf.desc.data for leaf in _leaves(location) if isinstance(leaf, NameLoc))


def describe_location(op: Operation) -> str:
    """For messages: the op's ONNX nodes, or its name when it has none."""
    names = node_names(op)
    return f"{op.name} (from ONNX node {', '.join(repr(n) for n in names)})" if names else op.name


def replace_op(
    rewriter: PatternRewriter,
    op: Operation,
    new_ops: Operation | Sequence[Operation],
    new_results: Sequence[SSAValue | None] | None = None,
    *,
    merged: Iterable[Operation] = (),
) -> None:
    """Replace `op` by `new_ops`, each of which inherits the locations of `op` and of the `merged` ops matched with it."""
    ops = (new_ops,) if isinstance(new_ops, Operation) else new_ops
    location = fuse_locations((op.location, *(m.location for m in merged)))
    for new_op in ops:
        if isinstance(new_op.location, UnknownLoc):
            new_op.location = location
        for inner in new_op.walk():
            if isinstance(inner.location, UnknownLoc):
                inner.location = location
    rewriter.replace(op, ops, new_results)
