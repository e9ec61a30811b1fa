"""Compiling a generated directory with a C compiler: the machine's own, or one for the target's instruction set."""

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

from qfold.backend.cross import CompilerError, find_cross_compiler
from qfold.backend.elf import ElfError, LinkedProgram
from qfold.backend.linking import LinkError, MemoryUse, check_memory, write_linker_script
from qfold.runtime import port_sources
from qfold.targets import Target

_TIMEOUT = 600
_SOURCES = ("network.c", "kernels.c", "weights.S")
_CLUSTER_SOURCES = ("dispatches.c", "kernels.S")
"""Where a network has staged dispatches, and assembly."""
_RUNNER = "runner.c"
_SHOWN_LINES = 40
_COUNT, _DEBUG_DMA = "-DQFOLD_COUNT", "-DQFOLD_DEBUG_DMA"


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
    counted: bool
    """Whether it takes a file for counts (`-DQFOLD_COUNT`)."""
    objects: tuple[Path, ...]
    """The object files of what was generated, weights included: what an audit reads."""
    memory: MemoryUse | None = None
    """What is where, for a target with a link script."""


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
    """Compile the generated sources in `directory` with the target's port of the runtime; objects and binary go to `output`,
    which exists.

    `trace`: the checked build. `native`: for this machine's instruction set (where the compiler knows the flag, and the target is
    this machine). `extra_cflags` come last; `qfold_rt.h` and `runner.c` say what `-DQFOLD_COUNT` and `-DQFOLD_DEBUG_DMA` do.
    `BuildError` with the compiler's own message, or with a table when the program is larger than a memory of the target.
    """
    source = Path(directory).absolute()
    names = [*_SOURCES, *(n for n in _CLUSTER_SOURCES if (source / n).is_file())]
    for name in _SOURCES:
        if not (source / name).is_file():
            raise BuildError(f"{directory} holds no {name}: it is not a generated network")
    flags = [*(["-DQFOLD_TRACE"] if trace else []), *extra_cflags]
    built = compile_program(
        [source / n for n in names],
        target,
        output=output,
        directory=source,
        cc=cc,
        flags=flags,
        native=native,
    )
    counted = _COUNT in flags
    return Built(built.binary, source, built.compiler, trace, counted, built.objects, built.memory)


@dataclass(frozen=True)
class BuiltProgram:
    """Sources that were compiled and linked with a port of the runtime."""

    binary: Path
    compiler: Compiler
    objects: tuple[Path, ...]
    """Of the sources, in order."""
    memory: MemoryUse | None
    """What is where, for a target with a link script."""


def compile_program(
    sources: Sequence[Path],
    target: Target,
    *,
    output: str | os.PathLike[str],
    directory: Path,
    cc: str | None = None,
    flags: Sequence[str] = (),
    native: bool = False,
    runner: bool = True,
) -> BuiltProgram:
    """Compile `sources` in `directory`, which they may include from, and link them with the target's port of the runtime.

    `runner` False: they define `qf_main` (`port.h`) themselves. The rest, and errors, as `compile_directory`.
    """
    out = Path(output).absolute()
    commands = _commands(target, cc, out, native)
    flags = [*target.toolchain.flags, *_sizes(target), *flags]
    port = port_sources(target.port, debug_dma=_DEBUG_DMA in flags)
    binary = out / "runner"
    with ExitStack() as stack:
        runtime = stack.enter_context(resources.as_file(resources.files("qfold.runtime")))
        compile_ = [*commands.command, *flags, f"-I{directory}", f"-I{runtime}"]
        # .incbin looks in the directory that the assembler runs in.
        objects = tuple(_compile(compile_, s, directory, out / "program") for s in sources)
        rest = [
            _compile(compile_, runtime / name, directory, out / "runtime")
            for name in port
            if runner or name != _RUNNER
        ]
    # A sanitizer is a flag of linking too, for a machine that has it.
    link = [*commands.command, *(flags if target.isa is None else ())]
    link += [*map(str, objects), *map(str, rest), *commands.link_flags]
    try:
        _run([*link, "-o", str(binary)], directory)
    except BuildError as e:
        raise BuildError(f"{e}{commands.hint(str(e))}") from None
    memory = None
    if commands.script is not None:
        try:
            memory = check_memory(LinkedProgram(binary), target)
        except (LinkError, ElfError) as e:
            raise BuildError(str(e)) from None
    return BuiltProgram(binary, commands.compiler, objects, memory)


def _sizes(target: Target) -> list[str]:
    """What the runtime is told about the target."""
    flags = [f"-DQF_CORES={target.cores}"]
    if target.is_cluster:
        flags.append(f"-DQF_L1_BYTES={target.scratchpad_bytes}")
    if target.isa is not None:
        flags.append(f"-DQF_STACK_BYTES={target.stack_bytes}")
    return flags


@dataclass(frozen=True)
class _Commands:
    """How one target is compiled and linked."""

    compiler: Compiler
    command: tuple[str, ...]
    """The compiler with the flags of the machine."""
    link_flags: tuple[str, ...]
    """Last, of the command that links."""
    script: Path | None
    has_library: bool = True
    """Whether the compiler brings what its code may call: divisions of 64 bits, f64."""

    def hint(self, message: str) -> str:
        """What to do about a link that failed with that message."""
        if self.has_library or "undefined symbol: __" not in message:
            return ""
        return "\nclang has no run-time library for RISC-V here, which 64-bit divisions and f64 need: compile with zig or GCC"


def _commands(target: Target, cc: str | None, output: Path, native: bool) -> _Commands:
    if target.isa is None:
        compiler = find_compiler(target, cc)
        command = compiler.command
        if native and _takes_native(compiler):
            command = (*command, "-march=native")
        return _Commands(compiler, command, target.toolchain.libraries, None)
    try:
        cross = find_cross_compiler(target, cc)
    except CompilerError as e:
        raise BuildError(str(e)) from None
    command = (*cross.command, *cross.machine_flags(target.isa))
    script = None
    if target.level(target.default_space).origin is not None:
        script = write_linker_script(target, output)
    return _Commands(
        Compiler(cross.command),
        command,
        tuple(cross.link_flags(script)),
        script,
        has_library=cross.kind != "clang",
    )


def _compile(command: Sequence[str], source: Path, directory: Path, output: Path) -> Path:
    """The object file of one source, in `output`."""
    output.mkdir(exist_ok=True)
    result = output / f"{source.name}.o"
    _run([*command, "-c", str(source), "-o", str(result)], directory)
    return result


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
