"""Simulators as the commands see them: is it there, what does it count."""

from __future__ import annotations

from qfold.backend.simulators import Simulator, SimulatorMissing, simulator_for
from qfold.targets import Target
from qfold.tools.errors import ToolError

_UNITS = {"spike": "instructions", "gvsoc": "cycles"}
"""What `qf_cycles` of a port counts."""

_PROFILING = frozenset({"spike", "qemu"})


def simulator_of(target: Target) -> Simulator | None:
    """What runs the target's programs; None for those that the machine runs itself."""
    return None if target.isa is None else simulator_for(target)


def require_simulator(target: Target) -> None:
    """`ToolError`, which says how to get it, when the target's simulator is missing: before anything is built."""
    simulator = simulator_of(target)
    if simulator is None:
        return
    try:
        simulator.find()
    except SimulatorMissing as error:
        raise ToolError(f"target {target.name}: {error}") from error


def can_profile(target: Target) -> bool:
    """Whether its simulator counts calls of functions."""
    simulator = simulator_of(target)
    return simulator is not None and simulator.name in _PROFILING


def unit_of(target: Target) -> str:
    """What counts of work are in: `instructions`, `cycles`, or `ns` of the core's time."""
    return _UNITS.get(target.port, "ns")
