"""User-mode qemu-riscv32: one core, no XpulpV2."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from qfold.backend.elf import LinkedProgram
from qfold.backend.simulators.base import (
    DEFAULT_TIMEOUT,
    SimulationResult,
    Simulator,
    SimulatorMissing,
    run_command,
    with_symbols,
)
from qfold.backend.simulators.profile import FunctionProfile, Profile
from qfold.targets import Target

_EXECUTABLES = ("qemu-riscv32", "qemu-riscv32-static")
_ENTERED = re.compile(r"Trace \d+: 0x[0-9a-f]+ \[[0-9a-f]+/([0-9a-f]+)/")
"""A line of `-d exec`: host code, then base, pc and flags of the block."""


class Qemu(Simulator):
    """`qemu-riscv32` of PATH."""

    name = "qemu"

    def find(self) -> str:
        for name in _EXECUTABLES:
            if path := shutil.which(name):
                return path
        raise SimulatorMissing(
            "qemu-riscv32 is not on PATH; on Debian or Ubuntu: apt-get install qemu-user"
        )

    def run(
        self,
        binary: Path,
        arguments: Sequence[str],
        target: Target,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        profile: bool = False,
    ) -> SimulationResult:
        """As `Simulator.run`. A profile has calls, no loads."""
        found = None
        if profile:
            result, found = self._profiled(binary, arguments, timeout)
        else:
            result = run_command([self.find(), str(binary), *arguments], timeout, name=self.name)
        return SimulationResult(
            result.exit_code,
            with_symbols(result.stdout, binary),
            with_symbols(result.stderr, binary),
            found,
        )

    def _profiled(
        self, binary: Path, arguments: Sequence[str], timeout: float
    ) -> tuple[SimulationResult, Profile]:
        """Run with a log of each block of instructions that is entered at the start of a function."""
        program = LinkedProgram(binary)
        entries = {s.address: s.name for s in program.functions.values()}
        with tempfile.TemporaryDirectory(prefix="qfold-qemu-") as scratch:
            log = Path(scratch) / "entries.txt"
            # Chained blocks would run one after the other without the log.
            options = ["-d", "exec,nochain", "-dfilter", ",".join(f"{a:#x}+0x1" for a in entries)]
            command = [self.find(), *options, "-D", str(log), str(binary), *arguments]
            result = run_command(command, timeout, name=self.name)
            calls: Counter[str] = Counter()
            with log.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if (entered := _ENTERED.match(line)) is not None:
                        calls[entries[int(entered[1], 16)]] += 1
        functions = {name: FunctionProfile((count,), {}) for name, count in calls.items()}
        return result, Profile(functions, has_loads=False)
