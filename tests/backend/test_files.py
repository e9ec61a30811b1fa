"""`write_directory`: all or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from qfold.backend.files import write_directory


def contents(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir())}


def test_writes_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "a" / "net"
    write_directory(target, {"network.h": b"1", "old.c": b"2"})
    assert contents(target) == {"network.h": b"1", "old.c": b"2"}
    write_directory(target, {"network.h": b"3"})
    assert contents(target) == {"network.h": b"3"}
    assert [p.name for p in target.parent.iterdir()] == ["net"], "nothing else is left behind"


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    write_directory(tmp_path, {"network.h": b"1"})
    assert contents(tmp_path) == {"network.h": b"1"}


def test_does_not_delete_what_it_did_not_write(tmp_path: Path) -> None:
    target = tmp_path / "photos"
    target.mkdir()
    (target / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(FileExistsError, match="not a generated network"):
        write_directory(target, {"network.h": b"1"})
    assert contents(target) == {"cat.jpg": b"cat"}
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with pytest.raises(FileExistsError, match="not a directory"):
        write_directory(file, {"network.h": b"1"})


@pytest.mark.parametrize("failing", ["write", "rename"])
def test_a_full_disk_leaves_the_old_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    target = tmp_path / "net"
    write_directory(target, {"network.h": b"old", "kernels.c": b"old"})
    before = contents(target)
    if failing == "write":
        original = Path.open

        def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if self.name == "kernels.c" and "w" in mode:
                raise OSError(28, os.strerror(28), str(self))
            return original(self, mode, *args, **kwargs)

        monkeypatch.setattr(Path, "open", full)
    else:
        rename = Path.rename

        def refused(self: Path, to: Any) -> Any:
            if self.name == "new":
                raise PermissionError(13, os.strerror(13), str(self))
            return rename(self, to)

        monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(OSError):
        write_directory(target, {"network.h": b"new", "kernels.c": b"new"})
    monkeypatch.undo()
    assert contents(target) == before
    assert [p.name for p in tmp_path.iterdir()] == ["net"]


def test_a_parent_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        write_directory(tmp_path / "file" / "net", {"network.h": b""})
