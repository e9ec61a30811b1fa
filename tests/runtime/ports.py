"""Programs on the ports of the runtime."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import util
from pathlib import Path

import pytest

from qfold import runtime
from qfold.targets.isa import PLAIN
from tests.runtime.compiling import STRICT, compiler

SOURCES = Path(__file__).parent / "c"
RUNTIME = Path(runtime.__file__).parent
QEMU = "qemu-riscv32"


def build(
    folder: Path, port: str, source: str, *flags: str, cores: int = 1, l1: int = 4096
) -> list[str]:
    """`c/<source>` with a port and without runner.c, whose place it takes when it is not a network. The command that runs it."""
    program = folder / f"{Path(source).stem}-{port}"
    files = runtime.port_sources(port, debug_dma="-DQFOLD_DEBUG_DMA" in flags)
    if not source.startswith("network"):
        files = tuple(f for f in files if f != "runner.c")
    command = [
        *_compiler(port),
        *STRICT,
        "-O2",
        *flags,
        f"-DQF_CORES={cores}",
        f"-DQF_L1_BYTES={l1}",
    ]
    command += [
        f"-I{RUNTIME}",
        f"-I{SOURCES}",
        str(SOURCES / source),
        *(str(RUNTIME / f) for f in files),
    ]
    command += ["-o", str(program), *(["-lpthread"] if port == "threads" else [])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [QEMU, str(program)] if port == "qemu" else [str(program)]


def _compiler(port: str) -> list[str]:
    if port != "qemu":
        return compiler()
    if util.find_spec("ziglang") is None:
        pytest.skip("the wheel ziglang is not installed: no compiler for the port qemu")
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU} is not on PATH: install Debian's qemu-user")
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "riscv32-freestanding"]
    return [*zig, f"-mcpu={PLAIN.zig_cpu}", "-ffreestanding", "-nostdlib", "-static"]


def run(
    command: Sequence[str], *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )
