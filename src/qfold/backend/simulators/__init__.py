"""Simulators that run what was compiled for a target with an instruction set of its own."""

from __future__ import annotations

from qfold.backend.simulators.base import (
    SimulationResult,
    Simulator,
    SimulatorError,
    SimulatorMissing,
    SimulatorTimeout,
)
from qfold.backend.simulators.gvsoc import Gvsoc
from qfold.backend.simulators.profile import FunctionProfile, Profile
from qfold.backend.simulators.qemu import Qemu
from qfold.backend.simulators.spike import Spike
from qfold.targets import Target

_SIMULATORS: dict[str, Simulator] = {"spike": Spike(), "qemu": Qemu(), "gvsoc": Gvsoc()}
"""By the port that they run."""


def simulator_for(target: Target) -> Simulator:
    """The simulator that runs a target's programs. `ValueError` for a target whose programs the machine runs itself."""
    try:
        return _SIMULATORS[target.port]
    except KeyError:
        raise ValueError(f"programs for target {target.name} need no simulator") from None


__all__ = [
    "FunctionProfile",
    "Profile",
    "SimulationResult",
    "Simulator",
    "SimulatorError",
    "SimulatorMissing",
    "SimulatorTimeout",
    "simulator_for",
]
