"""Node cases put side by side into few big networks: hundreds of small compilations would take minutes."""

from __future__ import annotations

from functools import cache

from onnx import GraphProto, ModelProto, compose, helper

from tests.conformance.cases import Case, collect
from tests.conformance.regenerate import load

BATCH = 64
"""Most cases in one network."""


def _label(opsets: tuple[tuple[str, int], ...]) -> str:
    return "+".join(f"{domain or 'opset'}{version}" for domain, version in opsets)


@cache
def batches() -> dict[str, list[Case]]:
    """Name -> cases that are compiled together."""
    by_opset: dict[tuple[tuple[str, int], ...], list[Case]] = {}
    expected = load()[1]
    for operator, cases in collect().items():
        for case in cases:
            if isinstance(case, tuple) or case.name not in expected[operator]["passed"]:
                continue
            if "_expanded" in case.name:
                continue
            key = tuple(sorted((o.domain, o.version) for o in case.model.opset_import))
            by_opset.setdefault(key, []).append(case)
    return {
        f"{_label(key)}-{start // BATCH}": cases[start : start + BATCH]
        for key, cases in sorted(by_opset.items())
        for start in range(0, len(cases), BATCH)
    }


def side_by_side(cases: list[Case]) -> ModelProto:
    """One model of all the cases' graphs."""
    graph = GraphProto(name="cases")
    for index, case in enumerate(cases):
        part = compose.add_prefix_graph(case.model.graph, f"c{index}_")
        graph.node.extend(part.node)
        graph.input.extend(part.input)
        graph.output.extend(part.output)
        graph.initializer.extend(part.initializer)
    return helper.make_model(graph, opset_imports=cases[0].model.opset_import, ir_version=10)
