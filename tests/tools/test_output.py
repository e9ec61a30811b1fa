"""Output directories appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from qfold.tools.errors import ToolError
from qfold.tools.output import new_directory


def _snapshot(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def _write(path: Path, **files: str) -> None:
    path.mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)


def test_a_new_directory_with_its_parents(tmp_path: Path):
    with new_directory(tmp_path / "a" / "b") as staging:
        (staging / "report.json").write_text("{}")
        assert not (tmp_path / "a" / "b").exists()
    assert _snapshot(tmp_path) == {"a/b/report.json": b"{}"}


def test_a_failure_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), new_directory(tmp_path / "out") as staging:
        (staging / "network.c").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_an_earlier_output_as_it_was(tmp_path: Path):
    _write(tmp_path / "out", report__json="{}", network__c="old", notes__txt="mine")
    before = _snapshot(tmp_path)
    with pytest.raises(ZeroDivisionError), new_directory(tmp_path / "out") as staging:
        (staging / "network.c").write_text("new")
        raise ZeroDivisionError
    assert _snapshot(tmp_path) == before


def test_an_earlier_output_is_replaced_and_what_others_added_is_kept(tmp_path: Path):
    _write(tmp_path / "out", report__json="{}", network__c="old", network__o="stale", notes__txt="mine")
    _write(tmp_path / "out" / "build", kernels__o="stale")
    with new_directory(tmp_path / "out") as staging:
        _write(staging, report__json="{1}", network__c="new")
    assert _snapshot(tmp_path) == {
        "out/report.json": b"{1}",
        "out/network.c": b"new",
        "out/notes.txt": b"mine",
    }


def test_an_empty_directory_is_taken(tmp_path: Path):
    (tmp_path / "out").mkdir()
    with new_directory(tmp_path / "out") as staging:
        _write(staging, report__json="{}")
    assert _snapshot(tmp_path) == {"out/report.json": b"{}"}


def test_somebody_elses_directory_is_refused(tmp_path: Path):
    _write(tmp_path / "out", thesis__tex="years of work")
    with pytest.raises(ToolError, match="is not an output of qfold"), new_directory(tmp_path / "out"):
        pass
    assert _snapshot(tmp_path) == {"out/thesis.tex": b"years of work"}


def test_a_file_is_refused(tmp_path: Path):
    _write(tmp_path, out="text")
    with pytest.raises(ToolError, match="not a directory"), new_directory(tmp_path / "out"):
        pass
