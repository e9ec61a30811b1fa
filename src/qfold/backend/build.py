"""Compiling a generated directory with the machine's C compiler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from qfold.targets import Target

_TIMEOUT = 600
_SOURCES = ("network.c", "kernels.c", "weights.S")
_SHOWN_LINES = 40


class BuildError(Exception):
    """No compiler, or it refused the sources; the message is what the compiler said."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler command."""

    command: tuple[str, ...]

    @property
    def text(self) -> str:
        return shlex.join(self.command)


def find_compiler(target: Target, cc: str | None = None) -> Compiler:
    """`cc` when given, else $CC, the target's compilers in order, and the `ziglang` wheel's clang. `BuildError` when there
    is none.
    """
    for name, command in (("the compiler given", cc), ("$CC", os.environ.get("CC"))):
        if command:
            words = shlex.split(command)
            if not words or shutil.which(words[0]) is None:
                raise BuildError(f"{name}, {command!r}, is not an executable that is on PATH")
            return Compiler(tuple(words))
    for name in target.toolchain.compilers:
        if shutil.which(name):
            return Compiler((name,))
    if find_spec("ziglang") is not None:
        return Compiler((sys.executable, "-m", "ziglang", "cc"))
    tried = ", ".join(target.toolchain.compilers)
    raise BuildError(
        f"no C compiler: $CC is not set and none of {tried} is on PATH; install gcc or clang, or `pip install ziglang`"
    )


@dataclass(frozen=True)
class Built:
    """A compiled network."""

    binary: Path
    directory: Path
    compiler: Compiler
    traced: bool
    objects: tuple[Path, ...]
    """The object files of network.c, kernels.c and weights.S: what an audit reads."""


def compile_directory(
    directory: str | os.PathLike[str],
    target: Target,
    *,
    output: str | os.PathLike[str],
    cc: str | None = None,
    trace: bool = False,
    extra_cflags: Sequence[str] = (),
    native: bool = True,
) -> Built:
    """Compile the generated sources in `directory` with the host's runner; objects and binary go to `output`, which exists.

    `trace`: the checked build. `native`: for this machine's instruction set (where the compiler knows the flag).
    `extra_cflags` come last.
    `BuildError` with the compiler's own message.
    """
    source, out = Path(directory).absolute(), Path(output).absolute()
    compiler = find_compiler(target, cc)
    flags = [*target.toolchain.flags]
    if native and _takes_native(compiler):
        flags.append("-march=native")
    if trace:
        flags.append("-DQFOLD_TRACE")
    flags += extra_cflags
    objects: list[Path] = []
    for name in _SOURCES:
        if not (source / name).is_file():
            raise BuildError(f"{directory} holds no {name}: it is not a generated network")
        target_object = out / f"{Path(name).stem}.o"
        # .incbin looks in the directory that the assembler runs in.
        _run([*compiler.command, *flags, "-c", name, "-o", str(target_object)], source)
        objects.append(target_object)
    binary = out / "runner"
    with ExitStack() as stack:
        port = resources.files("qfold.runtime") / "ports" / target.name / "runner.c"
        runner = stack.enter_context(resources.as_file(port))
        libraries = list(target.toolchain.libraries)
        _run(
            [*compiler.command, *flags, f"-I{source}", str(runner), *map(str, objects), *libraries, "-o", str(binary)],
            source,
        )  # fmt: skip
    return Built(binary, source, compiler, trace, tuple(objects))


@cache
def _takes_native(compiler: Compiler) -> bool:
    """Whether the compiler knows `-march=native` for its target."""
    command = [*compiler.command, "-march=native", "-fsyntax-only", "-x", "c", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, timeout=_TIMEOUT).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run(command: Sequence[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
        )
    except OSError as e:
        raise BuildError(f"{command[0]}: {e.strerror or e}") from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"{shlex.join(command)} took more than {_TIMEOUT} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        shown = "\n".join(lines[:_SHOWN_LINES])
        raise BuildError(f"{shlex.join(command)} failed ({done.returncode}):\n{shown}")


class BuildDirectory:
    """A directory for objects and binaries that is removed when this is closed or collected."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="qfold-build-")

    @property
    def path(self) -> Path:
        return Path(self._temporary.name)

    def close(self) -> None:
        self._temporary.cleanup()
