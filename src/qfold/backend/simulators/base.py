"""What all simulators have in common."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qfold.backend.elf import ElfError, LinkedProgram
from qfold.backend.simulators.profile import Profile
from qfold.targets import Target

DEFAULT_TIMEOUT = 600.0
"""Seconds."""

SIGNAL = 128
"""Exit codes above it: a signal, as shells say it."""


class SimulatorError(Exception):
    """The simulator could not run the program: it is missing, was not built, or was stopped. A program that ends with an error
    of its own is a result."""


class SimulatorMissing(SimulatorError):
    """It is not installed; the message says how to get it."""


class SimulatorTimeout(SimulatorError):
    """The program ran for too long and was stopped."""


@dataclass(frozen=True)
class SimulationResult:
    """What a program did."""

    exit_code: int
    """The program's; 128 + N where a signal N ended it. Runner and ports say what theirs mean; 71 is a trap."""
    stdout: str
    """What it printed. A machine with one console prints its messages here too."""
    stderr: str
    """Messages of the program, where it has a console of its own for them, and of the simulator."""
    profile: Profile | None = None

    @property
    def messages(self) -> str:
        """All of the text, for an error message."""
        return "\n".join(t for t in (self.stdout.strip(), self.stderr.strip()) if t)


class Simulator(ABC):
    """A way to run programs. `name` is what users call it."""

    name: ClassVar[str]

    @abstractmethod
    def find(self) -> str:
        """Path of its executable. `SimulatorMissing` when it is not installed."""

    @abstractmethod
    def run(
        self,
        binary: Path,
        arguments: Sequence[str],
        target: Target,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        profile: bool = False,
    ) -> SimulationResult:
        """Run a program that was compiled for `target`; `arguments` are its own, without its name.

        Symbols are added to the addresses of traps. `profile`: count calls and loads (`SimulationResult.profile`), where the
        simulator can. `SimulatorError` when it is missing, cannot start or takes more than `timeout` seconds.
        """

    @property
    def is_installed(self) -> bool:
        try:
            self.find()
        except SimulatorMissing:
            return False
        return True


def run_command(
    command: Sequence[str],
    timeout: float,
    *,
    name: str,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    processor_seconds: float | None = None,
) -> SimulationResult:
    """Run the simulator `name`, and stop it with all that it started. Errors as `Simulator.run`.

    `processor_seconds`: what no process of it may compute for longer, even if this one is killed and stops nothing (on Linux).
    """
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    except OSError as e:
        raise SimulatorError(f"{name}: {command[0]}: {e.strerror or e}") from None
    if processor_seconds is not None and hasattr(resource, "prlimit"):
        seconds = int(processor_seconds) + 1
        with suppress(ProcessLookupError):  # it has ended already
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        tail = "\n".join(printed.splitlines()[-5:])
        raise SimulatorTimeout(
            f"{name}: the program ran for more than {timeout:g} s and was stopped\n{tail}".strip()
        ) from None
    except BaseException:
        # An interrupt from the terminal reaches this session only.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return SimulationResult(code, stdout, stderr)


_PC = re.compile(r"\bpc (0x[0-9a-f]+)")


def with_symbols(text: str, binary: Path) -> str:
    """`text` with `(symbol+0x...)` behind each `pc 0x...`. The text as it is when the program cannot be read."""
    if _PC.search(text) is None:
        return text
    try:
        program = LinkedProgram(binary)
    except (ElfError, OSError):
        return text
    return _PC.sub(lambda m: f"{m[0]} ({program.locate(int(m[1], 16))})", text)
