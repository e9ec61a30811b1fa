"""Who may import whom: the table of docs/architecture.md, held by a test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import qfold

SOURCE = Path(qfold.__file__).parent
ALLOWED = {
    "dialects": set[str](),
    "ir": {"dialects"},
    "runtime": set[str](),
    "targets": set[str](),
    "interpreters": {"dialects", "ir", "runtime"},
    "frontend": {"dialects", "ir"},
    "transforms": {"dialects", "ir", "targets", "interpreters"},
    "backend": {"dialects", "ir", "targets", "runtime", "transforms"},
    "universe": {"dialects", "frontend", "transforms", "backend"},
}


def imports(node: ast.AST, *, lazy: bool) -> Iterator[str]:
    """Modules imported below `node`; inside of functions only where `lazy`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (a.name for a in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
        elif isinstance(child, ast.FunctionDef) and not lazy:
            continue
        else:
            yield from imports(child, lazy=lazy)


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        yield room, path, ast.parse(path.read_text())


def test_rooms_import_only_what_lies_below_them() -> None:
    wrong: list[str] = []
    seen: set[str] = set()
    for room, path, tree in modules():
        seen.add(room)
        if room in ("tools", "__init__"):
            continue
        # xDSL's registries and canonicalisation hooks name what they load on demand.
        lazy = room not in ("dialects", "universe")
        for name in imports(tree, lazy=lazy):
            parts = name.split(".")
            if parts[0] == "qfold" and len(parts) > 1 and parts[1] not in ALLOWED[room] | {room}:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong
    assert seen >= ALLOWED.keys()


def test_only_the_frontend_knows_onnx() -> None:
    wrong = [
        str(path.relative_to(SOURCE))
        for room, path, tree in modules()
        if room != "frontend"
        for name in imports(tree, lazy=True)
        if name.split(".")[0] == "onnx"
    ]
    assert not wrong


def test_the_table_in_the_documentation_is_this_one() -> None:
    text = (SOURCE.parent.parent / "docs" / "architecture.md").read_text()
    for room, allowed in ALLOWED.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| `qfold.{room}` |")]
        if room == "universe":
            continue
        assert len(rows) == 1, room
        last = rows[0].split("|")[-2]
        assert {n for n in ALLOWED if f"`{n}`" in last} == allowed, room
