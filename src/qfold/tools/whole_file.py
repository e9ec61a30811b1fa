"""Files that are written whole or left as they were."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def whole_file(path: Path) -> Generator[IO[bytes]]:
    """A binary stream whose contents become `path` when the block ends well.

    What is not a regular file (`/dev/stdout`, a pipe) is written to directly; a symbolic link stays one.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            yield stream
        return
    target = path.resolve()
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Writes a text file."""
    with whole_file(path) as stream:
        stream.write(text.encode())
