"""What a report says about inputs and outputs, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qfold.tools.report import Report


def interface_lines(report: Report) -> Iterator[str]:
    """A line for each input and output: type, shape, layout, what integers stand for, why a float stayed one."""
    for direction in ("input", "output"):
        for entry in report[f"{direction}s"]:
            yield f"{direction} {entry['name']}: {_described(entry)}"


def _described(entry: dict[str, Any]) -> str:
    text = f"{entry['element_type']} {entry['shape']}"
    if entry["layout"] is not None:
        text += f" {entry['layout']}"
    if entry["scale"] is not None:
        text += f", scale {entry['scale']:.9g}, zero point {entry['zero_point']}"
    return text if entry["note"] is None else f"{text}; {entry['note']}"
