"""Makes a failing case smaller: outputs and nodes go for as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx

from tests.fuzz.graphs import Case, Value, value_info

Fails = Callable[[Case], bool]


def shrink(case: Case, fails: Fails, attempts: int = 400) -> Case:
    """A small case for which `fails` still holds; `attempts` limits how often that is asked."""
    left = attempts

    def try_(smaller: Case) -> bool:
        nonlocal case, left
        if left <= 0 or smaller.model == case.model:
            return False
        left -= 1
        if not fails(smaller):
            return False
        case = smaller
        return True

    for output in list(case.model.graph.output):
        if try_(_with(case, outputs=[output])):
            break
    else:
        for output in list(case.model.graph.output):
            try_(_with(case, outputs=[o for o in case.model.graph.output if o.name != output.name]))
    changed = True
    while changed and left > 0:
        changed = False
        for node in reversed(list(case.model.graph.node)):
            if node.name in {n.name for n in case.model.graph.node}:
                # What the node gives becomes an input of the graph, or the output itself.
                changed |= try_(_with(case, cut=node.name))
        for node in list(case.model.graph.node):
            outputs = [o for o in node.output if o in case.values]
            names = {o.name for o in case.model.graph.output}
            if outputs and names.isdisjoint(outputs) and len(names) == 1:
                array = case.values[outputs[0]]
                changed |= try_(_with(case, outputs=[value_info(Value(outputs[0], array))]))
    return case


def _with(
    case: Case, outputs: Iterable[onnx.ValueInfoProto] | None = None, cut: str | None = None
) -> Case:
    """The part of the model that its outputs need, without the node `cut`."""
    old = case.model.graph
    kept = list(old.output) if outputs is None else list(outputs)
    nodes = [n for n in old.node if n.name != cut]
    made = {name: n for n in nodes for name in n.output}
    stored = {t.name: t for t in old.initializer}
    needed: set[str] = set()
    pending = [o.name for o in kept]
    while pending:
        name = pending.pop()
        if name and name not in needed:
            needed.add(name)
            pending += made[name].input if name in made else []
    alive = [n for n in nodes if needed.intersection(n.output)]
    missing = [n for n in needed if n not in made and n not in stored]
    order = [i.name for i in old.input if i.name in needed]
    order += [n for n in sorted(missing) if n not in order]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    for field in ("node", "input", "output", "initializer"):
        graph.ClearField(field)
    graph.node.extend(alive)
    graph.input.extend(value_info(Value(n, case.values[n])) for n in order)
    graph.output.extend(kept)
    graph.initializer.extend(t for n, t in stored.items() if n in needed)
    return Case(model, {n: case.values[n] for n in order}, case.values, case.label)
