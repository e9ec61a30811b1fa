"""Compiles C that tests write."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

from qfold import runtime

INCLUDE = f"-I{Path(runtime.__file__).parent}"
STRICT = "-std=c99 -pedantic -Wall -Wextra -Werror".split()


def compiler() -> list[str]:
    """The host's C compiler as the start of a command line."""
    if os.environ.get("CC"):
        return os.environ["CC"].split()
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise RuntimeError("no C compiler: set CC, or install gcc, clang or the wheel ziglang")


def run_compiler(folder: Path, source: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compiles `source` as driver.c, in `folder`."""
    (folder / "driver.c").write_text(source)
    command = [*compiler(), "-std=c99", *flags, INCLUDE, "driver.c"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def compile_shared(folder: Path, source: str, flags: list[str]) -> ctypes.CDLL:
    """`source` as a loaded shared library; no warning is let through."""
    run = run_compiler(folder, source, *STRICT, *flags, "-shared", "-fPIC", "-o", "driver.so")
    assert run.returncode == 0, run.stderr
    return ctypes.CDLL(str(folder / "driver.so"))
