"""Compilers for bare-metal RISC-V: which one, and how it is told the instruction set."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from qfold.targets import Isa, Target

_TIMEOUT = 60
_GCC_WITH_ZFINX = 14

Kind = Literal["zig", "clang", "gcc"]


class CompilerError(Exception):
    """There is no compiler for the target, or the one that was named cannot compile for it."""


@dataclass(frozen=True)
class CrossCompiler:
    """A command that compiles and links for RISC-V."""

    command: tuple[str, ...]
    kind: Kind

    def machine_flags(self, isa: Isa) -> list[str]:
        """What every compilation for `isa` needs."""
        if self.kind == "zig":
            return ["-target", "riscv32-freestanding", f"-mcpu={isa.zig_cpu}"]
        target = ["--target=riscv32-unknown-elf"] if self.kind == "clang" else []
        # The CSRs of the runtime: GCC does not take Zicsr as part of F and Zfinx.
        march = isa.march if self.kind == "clang" else f"{isa.march}_zicsr"
        return [*target, f"-march={march}", f"-mabi={isa.mabi}"]

    def link_flags(self, script: Path | None) -> list[str]:
        """Without start files and a C library. Zig adds its own run-time library, which 64-bit divisions and f64 need."""
        flags = ["-static", "-Wl,--gc-sections"]
        if script is not None:
            flags += ["-T", str(script)]
        if self.kind == "clang":
            flags += ["-nostdlib", "-fuse-ld=lld"]
        if self.kind == "gcc":
            flags += ["-nostdlib", "-lgcc"]
        return flags


def find_cross_compiler(target: Target, cc: str | None = None) -> CrossCompiler:
    """`cc` when given, else the `ziglang` wheel, else the target's compilers (with lld) in order.

    The environment's CC is not looked at: it names a compiler for the machine that compiles. `CompilerError` when there is
    none, or when `cc` cannot do it.
    """
    isa = target.isa
    if isa is None:
        raise ValueError(f"target {target.name} is compiled by the machine's own compiler")
    if cc is not None:
        words = tuple(shlex.split(cc))
        if not words or shutil.which(words[0]) is None:
            raise CompilerError(f"the compiler given, {cc!r}, is not an executable that is on PATH")
        compiler = CrossCompiler(words, _kind(words))
        if compiler.kind == "gcc":
            _check_gcc(compiler, isa)
        return compiler
    if find_spec("ziglang") is not None:
        return CrossCompiler((sys.executable, "-m", "ziglang", "cc"), "zig")
    for name in target.toolchain.compilers:
        if shutil.which(name) and _links(name):
            return CrossCompiler((name,), "clang")
    tried = ", ".join(target.toolchain.compilers)
    raise CompilerError(
        f"no compiler for target {target.name}: the wheel ziglang is not installed and none of {tried} is on PATH with lld; "
        "pip install 'qfold[zig]', or on Debian apt-get install clang lld"
    )


@cache
def _kind(command: tuple[str, ...]) -> Kind:
    if "ziglang" in command or Path(command[0]).name == "zig":
        return "zig"
    text = _ask(command, "--version").lower()
    if "clang" in text:
        return "clang"
    if "free software foundation" in text:
        return "gcc"
    raise CompilerError(f"{shlex.join(command)} is not clang, GCC or zig: {text.splitlines()[:1]}")


def _check_gcc(compiler: CrossCompiler, isa: Isa) -> None:
    name = shlex.join(compiler.command)
    machine = _ask(compiler.command, "-dumpmachine").strip()
    if not machine.startswith("riscv"):
        raise CompilerError(f"{name} compiles for {machine}, not for RISC-V")
    version = _ask(compiler.command, "-dumpversion").strip()
    if isa.float_registers == "x" and int(version.split(".")[0]) < _GCC_WITH_ZFINX:
        raise CompilerError(
            f"{name} is GCC {version}, which calls a library for each float operation instead of using Zfinx ({isa.march}); "
            f"GCC {_GCC_WITH_ZFINX}, clang and zig do"
        )


@cache
def _links(clang: str) -> bool:
    """Whether that clang has an lld beside it."""
    return Path(_ask((clang,), "-print-prog-name=ld.lld").strip()).is_absolute()


def _ask(command: tuple[str, ...], question: str) -> str:
    try:
        done = subprocess.run(
            [*command, question], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT
        )
    except OSError as e:
        raise CompilerError(f"{command[0]}: {e.strerror or e}") from None
    except subprocess.TimeoutExpired:
        raise CompilerError(
            f"{shlex.join(command)} {question} took more than {_TIMEOUT} s"
        ) from None
    return done.stdout
