"""Output directories that appear whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from qfold.tools.errors import ToolError

MARKER = "report.json"
"""A directory that holds this was written by `qfold compile` and may be replaced."""


@contextmanager
def new_directory(path: Path) -> Generator[Path]:
    """A directory to fill, which becomes `path` when the block ends well; else `path` stays as it was.

    `ToolError` when `path` exists and is neither empty nor an earlier output. What others have put into an earlier output is kept.
    """
    if path.exists() and not path.is_dir():
        raise ToolError(f"{path} exists and is not a directory")
    if path.is_dir() and any(path.iterdir()) and not (path / MARKER).is_file():
        raise ToolError(
            f"{path} exists and holds no {MARKER}: it is not an output of qfold, and nothing in it is touched"
        )
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        staging.chmod(0o755)
        yield staging
        _swap(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _swap(staging: Path, path: Path) -> None:
    """Puts `staging` where `path` is, with what `path` holds beside it in files of other names."""
    if not path.exists():
        staging.rename(path)
        return
    for entry in path.iterdir():
        target = staging / entry.name
        # Build products of the earlier output are stale; anything else is the user's own.
        if not target.exists() and entry.name != "build" and entry.suffix not in (".o", ".d"):
            if entry.is_dir() and not entry.is_symlink():
                shutil.copytree(entry, target, symlinks=True)
            else:
                shutil.copy2(entry, target, follow_symlinks=False)
    old = path.with_name(f"{staging.name}.old")
    path.rename(old)
    try:
        staging.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)
