"""User-mode qemu-riscv32: one core, no XpulpV2."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from qfold.backend.simulators.base import (
    DEFAULT_TIMEOUT,
    SimulationResult,
    Simulator,
    SimulatorError,
    SimulatorMissing,
    run_command,
    with_symbols,
)
from qfold.targets import Target

_EXECUTABLES = ("qemu-riscv32", "qemu-riscv32-static")


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
        if profile:
            raise SimulatorError("qemu counts no calls and no loads; spike does")
        command = [self.find(), str(binary), *arguments]
        result = run_command(command, timeout, name=self.name)
        return SimulationResult(
            result.exit_code,
            with_symbols(result.stdout, binary),
            with_symbols(result.stderr, binary),
        )
