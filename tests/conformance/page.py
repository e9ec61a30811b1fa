"""`python -m tests.conformance.page`: writes docs/conformance.md from what the "
"tests of conformance expect."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.conformance.regenerate import Expectation, load
from tests.networks.onnxruntime_quantizer import METHODS, NETWORKS, applicable

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"

QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "QLinearMatMul",
    "QLinearConv",
    "MatMulInteger",
    "ConvInteger",
)
"""Operators whose cases are shown one by one."""

_WIDTH = 130


def _wrapped(text: str, indent: str = "") -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(indent) + len(line) + 1 + len(word) > _WIDTH:
            lines.append(indent + line)
            line = ""
        line = f"{line} {word}" if line else word
    return "\n".join([*lines, indent + line])


def _totals(operators: dict[str, Expectation]) -> tuple[int, int]:
    return (
        sum(len(e["passed"]) for e in operators.values()),
        sum(len(e["refused"]) for e in operators.values()),
    )


def _quantized_cases(operators: dict[str, Expectation]) -> list[str]:
    lines = ["| operator | case | outcome |", "|---|---|---|"]
    for name in QUANTIZED:
        expected = operators[name]
        for case in sorted([*expected["passed"], *expected["refused"]]):
            reason = expected["refused"].get(case)
            outcome = "pass" if reason is None else f"refused: {reason}"
            lines.append(f"| {name} | `{case.removeprefix('test_')}` | {outcome} |")
    return lines


def _others(operators: dict[str, Expectation]) -> list[str]:
    lines = ["| operator | pass | refused |", "|---|---|---|"]
    for name, expected in operators.items():
        if name not in QUANTIZED:
            lines.append(f"| {name} | {len(expected['passed'])} | {len(expected['refused'])} |")
    return lines


def _matrix() -> list[str]:
    ways: dict[str, list[str]] = defaultdict(list)
    for name in NETWORKS:
        for method in METHODS:
            if applicable(name, method):
                ways[str(method)].append(name)
    lines = ["| quantised | networks that agree |", "|---|---|"]
    lines += [f"| {method} | {', '.join(names)} |" for method, names in ways.items()]
    return [*lines, f"| total | {sum(len(n) for n in ways.values())} |"]


def page() -> str:
    """The text of the page."""
    version, operators = load()
    passed, refused = _totals(operators)
    quantized = _totals({name: operators[name] for name in QUANTIZED})
    return "\n".join(
        [
            "# Conformance",
            "",
            "<!-- Written by `python -m tests.conformance.page`; a test compares. -->",
            "",
            _wrapped(
                f"ONNX {version}'s own node cases, for every operator that is imported: "
                f"{passed:,} pass, {refused} are refused by name, 0 fail. "
                f"Of the quantised operators: {quantized[0]} pass, {quantized[1]} are refused."
            ),
            "",
            _wrapped(
                "A case passes when the imported network gives the outputs that ONNX gives: "
                "integers exactly, floats within the case's own tolerance. "
                "Refused means an error that names the node, the graph input or the tensor. "
                "`tests/conformance` holds the expectations "
                "per case, and runs most of the passing ones as compiled C too."
            ),
            "",
            "## Quantised operators, case by case",
            "",
            *_quantized_cases(operators),
            "",
            "## What onnxruntime's quantiser makes",
            "",
            _wrapped(
                "Three float networks (convolutions, grouped ones among them; an MLP; "
                "attention), quantised in every way that `onnxruntime.quantization` has, "
                "compared with "
                "onnxruntime without graph optimisations: as they are imported, and fused to "
                "integer arithmetic. They agree when all but "
                "2 % of the elements are equal within the rounding of floats, and the others "
                "within one step of the last quantisation. "
                "`python -m tests.conformance.quantizer MODEL.onnx ...` does the same for any "
                "float model, and prints how far each is."
            ),
            "",
            *_matrix(),
            "",
            "## All other operators",
            "",
            *_others(operators),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
