"""Node cases put side by side into few big networks: hundreds of small compilations would take minutes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from onnx import GraphProto, ModelProto, compose, helper

from qfold.backend.run import build_module
from qfold.frontend.module import import_model
from qfold.tools.driver import Options, lower
from tests.conformance.cases import ROUNDED_REFERENCES, Case, collect, difference
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


def compiled_failures(cases: list[Case]) -> Iterator[tuple[str, str]]:
    """(case, how its compiled outputs differ) for those that do."""
    module = import_model(side_by_side(cases), name="cases")
    lower(module, Options())
    # The code is what is tested here, not what the optimiser makes of it.
    network = build_module(module, extra_cflags=("-O1",))
    try:
        values = [array for case in cases for array in case.inputs]
        outputs = iter(network.run(dict(zip(network.inputs, values, strict=True))).values())
        for case in cases:
            for expected in case.outputs:
                rounded = ROUNDED_REFERENCES.get(case.name, 0.0)
                found = difference(next(outputs), expected, rounded)
                if found is not None:
                    yield case.name, found
        assert next(outputs, None) is None
    finally:
        network.close()
