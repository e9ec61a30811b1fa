"""Writing a set of files as one directory, all or nothing."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_directory(directory: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Make `directory` hold exactly `files` (name -> contents).

    They are written beside it first and renamed into place: on any failure an existing directory is as it was. One is
    replaced only when it is empty or holds a generated network (`network.h`); otherwise `OSError`, as for a full disk or a
    path that cannot be written.
    """
    target = Path(directory).absolute()
    if target.exists() or target.is_symlink():
        if not target.is_dir():
            raise _exists(directory, "exists and is not a directory")
        if any(target.iterdir()) and not (target / "network.h").is_file():
            raise _exists(directory, "holds files that are not a generated network")
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        fresh = staging / "new"
        fresh.mkdir()
        for name, contents in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as stream:
                stream.write(contents)
                stream.flush()
        if not target.exists():
            fresh.rename(target)
            return
        old = staging / "old"
        target.rename(old)
        try:
            fresh.rename(target)
        except OSError:
            old.rename(target)
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _exists(directory: str | os.PathLike[str], why: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, why, os.fspath(directory))
