"""The XpulpV2 extension of Spike, compiled at first use and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from qfold.backend.simulators.base import SimulatorError
from qfold.runtime import read_source

_SOURCES = ("xpulp.cc", "profile.h", "spike_abi.h")
_FOLDER = "ports/spike"
# Spike was built with the old std::string, which is part of what its headers lay out.
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0")
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT = 300
_SHOWN_LINES = 20


@dataclass(frozen=True)
class _Compiler:
    compile: tuple[str, ...]
    link: tuple[str, ...]


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/qfold or ~/.cache/qfold (XDG Base Directory Specification 0.8)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "qfold"


def extension(headers: Path, version: str) -> Path:
    """The extension's library for the Spike of that version, whose headers are in `headers`: from the cache, or compiled.

    By $CXX where it is set, else by the first of c++, g++, clang++ and the `ziglang` wheel that can. `SimulatorError` when
    none can.
    """
    sources = {name: read_source(f"{_FOLDER}/{name}") for name in _SOURCES}
    named = os.environ.get("CXX", "")
    text = "\0".join((*sources.values(), version, named, *_FLAGS))
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    library = cache_directory() / f"spike-xpulp-{key}" / "libxpulp.so"
    if not library.is_file():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            _build(sources, headers, library)
        except OSError as e:
            raise SimulatorError(
                f"{library.parent}, where the Spike extension is to be kept: {e.strerror or e}; "
                "XDG_CACHE_HOME names another place"
            ) from None
    return library


def _build(sources: dict[str, str], headers: Path, library: Path) -> None:
    """Several processes may do this at once: each compiles for itself, and the last one's file stays."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        for name, text in sources.items():
            (Path(scratch) / name).write_text(text, encoding="utf-8")
        source, built = str(Path(scratch) / _SOURCES[0]), Path(scratch) / library.name
        object_file = f"{source}.o"
        includes = [f"-isystem{headers / d}" for d in (".", "riscv", "softfloat")]
        for compiler in _compilers():
            commands = [
                [*compiler.compile, *_FLAGS, *includes, "-c", source, "-o", object_file],
                [*compiler.link, "-shared", object_file, "-o", str(built)],
            ]
            failure = next(filter(None, map(_failure, commands)), None)
            if failure is None:
                os.replace(built, library)
                return
            failures.append(failure)
    if not failures and os.environ.get("CXX"):
        raise SimulatorError(f"$CXX, {os.environ['CXX']!r}, is not an executable that is on PATH")
    if not failures:
        raise SimulatorError(
            f"no C++ compiler for the Spike extension: $CXX is not set, none of {', '.join(_COMPILERS)} is on PATH, and the "
            "wheel ziglang is not installed; pip install 'qfold[zig]', or on Debian or Ubuntu apt-get install g++"
        )
    raise SimulatorError("the Spike extension does not compile:\n" + "\n".join(failures))


def _compilers() -> list[_Compiler]:
    named = shlex.split(os.environ.get("CXX", ""))
    candidates = [named] if named else [[c] for c in _COMPILERS]
    found = [_Compiler(tuple(c), tuple(c)) for c in candidates if shutil.which(c[0])]
    if not named and find_spec("ziglang") is not None:
        # Linked with nothing: the library shall use the C++ library that Spike has loaded, and not bring libc++.
        # For any x86-64, as the others compile: machines may share the cache.
        zig = (sys.executable, "-m", "ziglang")
        found.append(_Compiler((*zig, "c++", "-mcpu=baseline"), (*zig, "cc", "-nostdlib")))
    return found


def _failure(command: list[str]) -> str | None:
    """What a compiler said when it failed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"{shlex.join(command)} took more than {_TIMEOUT} s"
    if done.returncode == 0:
        return None
    return "\n".join([shlex.join(command), *done.stderr.strip().splitlines()[:_SHOWN_LINES]])
