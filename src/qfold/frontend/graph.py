"""Puts the nodes of an ONNX graph in an order in which they can be imported, and checks the graph's names."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from onnx import AttributeProto, GraphProto, NodeProto

from qfold.frontend.errors import FrontendError

T = TypeVar("T")


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in the attributes of `node` (the branches of If, the body of Loop)."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _captured(graph: GraphProto) -> set[str]:
    """Names that `graph` reads and does not define: those of an outer graph."""
    defined = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    defined |= {t.values.name for t in graph.sparse_initializer}
    read = {o.name for o in graph.output}
    for node in graph.node:
        read.update(node_reads(node))
        defined.update(node.output)
    return read - defined - {""}


def node_reads(node: NodeProto) -> list[str]:
    """The names of all values that `node` needs, those captured by its subgraphs included."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        names.extend(sorted(_captured(graph)))
    return names


def display_name(node: NodeProto, index: int) -> str:
    """What locations and messages call a node: its name, else its first output, else its operator and position."""
    if node.name:
        return node.name
    first = next((name for name in node.output if name), None)
    return first or f"{node.op_type}_{index}"


def _check_unique(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FrontendError(f"{what} '{name}' is defined twice")
        seen.add(name)


def producers(graph: GraphProto, outer: Collection[str] = ()) -> dict[str, int]:
    """Value name -> index of the node that defines it; `FrontendError` if a name is defined twice."""
    inputs = [i.name for i in graph.input]
    _check_unique(inputs, "graph input")
    initializers = [t.name for t in graph.initializer]
    _check_unique(initializers, "initializer")
    taken = {*inputs, *initializers, *outer}
    defined: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if not name:
                continue
            if name in defined:
                other = display_name(graph.node[defined[name]], defined[name])
                raise FrontendError(
                    f"value '{name}' is defined twice, by nodes '{other}' and "
                    f"'{display_name(node, index)}'"
                )
            if name in taken:
                raise FrontendError(
                    f"node '{display_name(node, index)}' defines '{name}', which is already the name of "
                    "a graph input or initializer"
                )
            defined[name] = index
    return defined


def _find_cycle(graph: GraphProto, depends: dict[int, set[int]]) -> list[int]:
    """Indices of nodes that form a cycle in `depends`, all of whose entries depend on one another or on a cycle."""
    path: list[int] = []
    position: dict[int, int] = {}
    index = min(depends)
    while index not in position:
        position[index] = len(path)
        path.append(index)
        index = min(depends[index])
    return path[position[index] :]


def _needed(outputs: Sequence[str], defined: dict[str, int], reads: list[list[str]]) -> set[int]:
    """Indices of the nodes that the outputs depend on."""
    needed: set[int] = set()
    pending = list(outputs)
    while pending:
        index = defined.get(pending.pop())
        if index is not None and index not in needed:
            needed.add(index)
            pending.extend(reads[index])
    return needed


def ordered_nodes(graph: GraphProto, outer: Collection[str] = ()) -> list[tuple[int, NodeProto]]:
    """The nodes that the graph's outputs need, as `(position in the file, node)`, each after those that it reads from.

    The order is that of the file wherever the file's order is possible. `outer` holds names that an enclosing graph defines.
    `FrontendError` names doubly defined values, undefined ones, and the nodes of a cycle.
    """
    defined = producers(graph)
    sources = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    sources |= {t.values.name for t in graph.sparse_initializer}
    sources.update(outer)
    reads = [node_reads(node) for node in graph.node]
    needed = _needed([o.name for o in graph.output], defined, reads)
    depends: dict[int, set[int]] = {}
    readers: dict[int, list[int]] = {}
    for index in needed:
        depends[index] = set()
        for name in reads[index]:
            if name in defined:
                depends[index].add(defined[name])
            elif name not in sources:
                raise FrontendError(
                    f"node '{display_name(graph.node[index], index)}' reads '{name}', which no node, "
                    "graph input or initializer defines"
                )
        for source in depends[index]:
            readers.setdefault(source, []).append(index)
    for output in graph.output:
        if output.name not in defined and output.name not in sources:
            raise FrontendError(
                f"graph output '{output.name}' is not defined by any node, graph input or initializer"
            )
    waiting = {index: len(sources_) for index, sources_ in depends.items()}
    ready = [index for index, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[tuple[int, NodeProto]] = []
    while ready:
        index = heapq.heappop(ready)
        order.append((index, graph.node[index]))
        del waiting[index]
        for reader in readers.get(index, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if waiting:
        stuck = {index: {d for d in depends[index] if d in waiting} for index in waiting}
        names = [display_name(graph.node[i], i) for i in _find_cycle(graph, stuck)]
        raise FrontendError(
            f"the graph has a cycle through the nodes {', '.join(map(repr, names))}"
        )
    return order
