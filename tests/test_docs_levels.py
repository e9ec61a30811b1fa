"""docs/levels_of_a_kernel.md is what the compiler makes today."""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(repo_root: Path) -> ModuleType:
    path = repo_root / "scripts" / "levels_of_a_kernel.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_levels_is_up_to_date(script: ModuleType) -> None:
    text: str = script.page()
    written: str = script.PAGE.read_text(encoding="utf-8")
    changes = list(difflib.unified_diff(written.splitlines(), text.splitlines(), "page", "now"))
    assert not changes, "\n".join(
        ["docs is stale: python scripts/levels_of_a_kernel.py", *changes[:40]]
    )
    headings = re.findall("^## (.*)", text, re.M)
    assert headings[0] == "ONNX" and headings[-1].startswith("Assembly") and len(headings) == 10


def test_lines_break_where_fewest_brackets_are_open(script: ModuleType) -> None:
    types = "tensor<1000x1000xf32>, " * 3
    line = f"  %1 = op %2, %3 {{first = [{'1, ' * 10}1], second = [{'2, ' * 10}2]}} : ({types}i8) -> i8"
    parts: list[str] = script.broken(line)
    assert len(parts) > 1 and max(len(p) for p in parts) <= script.WIDTH
    assert " ".join(p.strip() for p in parts) == line.strip()
    assert parts[1].startswith("      : (tensor")
    assert script.broken("x" * 200) == ["x" * 200]


def test_what_is_beside_an_op(script: ModuleType) -> None:
    ops = ["  %0 = riscv.lw %a, 0 : (!riscv.reg<a0>) -> !riscv.reg<t0>", "}"]
    assert script.beside(ops, ["lw t0, 0(a0)"]) == [
        "  %0 = riscv.lw %a, 0 : (<a0>) -> <t0>  // lw t0, 0(a0)",
        "}",
    ]
    with pytest.raises(ValueError, match="more instructions"):
        script.beside(ops, ["lw t0, 0(a0)", "ret"])
