"""The port `gvsoc`, and the simulator that runs it. What needs GVSoC is skipped by name where it is not installed."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qfold.backend.build import BuildError
from qfold.backend.simulators import SimulatorError, SimulatorMissing, SimulatorTimeout
from qfold.backend.simulators.gvsoc import CONFLICTS_VARIABLE, VARIABLE, Gvsoc
from qfold.targets import target_named
from tests.simulators.support import RUNTIME_TESTS, SOURCES, Machine

PULP_OPEN = SOURCES / "pulp_open.c"

needs_gvsoc = pytest.mark.skipif(
    not Gvsoc().is_installed,
    reason=f"target gvsoc is not run: no `gvsoc` on PATH, and ${VARIABLE} names none",
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("gvsoc")
    return Machine(folder, "gvsoc", PULP_OPEN, flags=("-DQFOLD_COUNT",))


@needs_gvsoc
@pytest.mark.parametrize("scenario", ["forks", "transfers", "stack", "counters"])
def test_holds(machine: Machine, scenario: str) -> None:
    done = machine.run(scenario, "3")
    assert (done.exit_code, done.stderr) == (0, "")


@needs_gvsoc
def test_any_number_of_cores(tmp_path: Path) -> None:
    for cores in (1, 3):
        few = Machine(tmp_path / str(cores), f"gvsoc:cores={cores}", PULP_OPEN)
        for scenario in ("forks", "stack"):
            done = few.run(scenario)
            assert (done.exit_code, done.stderr) == (0, ""), (cores, scenario)


@needs_gvsoc
@pytest.mark.parametrize("flag", ["-DDMA_LENGTH_MAX=100", "-DQFOLD_DEBUG_DMA"])
def test_transfers(tmp_path: Path, flag: str) -> None:
    """All shapes, both ways: with a length field so short that most are split, and with the checked DMA."""
    cluster = Machine(tmp_path, "gvsoc", RUNTIME_TESTS / "cluster.c", flags=(flag,))
    for scenario in ("barriers", "transfers"):
        done = cluster.run(scenario)
        assert (done.exit_code, done.stderr) == (0, ""), scenario


@needs_gvsoc
@pytest.mark.parametrize(
    ("scenario", "core", "message"),
    [
        ("illegal", "5", r"trap: core 5: illegal instruction \(cause 2\), pc 0x\w+ \(trap\+0x\w+\)"),
        ("breakpoint", "0", r"trap: core 0: breakpoint \(cause 3\), pc 0x\w+ \(trap\+0x\w+\)"),
        ("environment-call", "7", r"trap: core 7: environment call \(cause 11\), pc 0x\w+ \(trap\+"),
        ("all-trap", "0", r"trap: core \d: illegal instruction \(cause 2\), pc 0x\w+ \(trap\+0x\w+\)"),
        ("no-memory", "2", r"trap: core 2: .*, pc 0x\w+ \(trap\+0x\w+\), address 0x50000000"),
        ("no-code", "1", r"trap: core 1: .*, pc 0x60000000"),
    ],
)  # fmt: skip
def test_traps(machine: Machine, scenario: str, core: str, message: str) -> None:
    done = machine.run(scenario, core)
    assert done.exit_code == 71
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("trap: ") == 1


@needs_gvsoc
def test_a_stack_that_is_too_small_ends_the_run(machine: Machine) -> None:
    done = machine.run("stack-overflow", "0")
    assert done.exit_code == 72
    assert "stack overflow: core 0 used all 2048 bytes" in done.stderr


@needs_gvsoc
def test_any_core_ends_the_run(machine: Machine) -> None:
    assert machine.run("exit", "6").exit_code == 9


@needs_gvsoc
def test_a_run_without_end_is_stopped(machine: Machine) -> None:
    start = time.monotonic()
    with pytest.raises(SimulatorTimeout, match="more than 2 s"):
        Gvsoc().run(machine.binary, ["for-ever"], machine.target, timeout=2)
    assert time.monotonic() - start < 20
    assert not _processes_of(machine.binary)


@needs_gvsoc
def test_a_run_without_end_ends_when_nobody_is_left_to_stop_it(machine: Machine) -> None:
    """The process that waits for it is killed."""
    code = (
        "import sys; from pathlib import Path; from qfold.backend.simulators.gvsoc import Gvsoc; "
        "from qfold.targets import target_named; "
        "Gvsoc().run(Path(sys.argv[1]), ['for-ever'], target_named('gvsoc'), timeout=3)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(machine.binary)])
    _wait_until(lambda: len(_processes_of(machine.binary)) > 1)
    parent.kill()
    parent.wait()
    _wait_until(lambda: not _processes_of(machine.binary))


def _wait_until(condition: Callable[[], bool]) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 120
        time.sleep(0.1)


def _processes_of(binary: Path) -> list[str]:
    """Command lines of processes that run it."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(binary) in text:
            found.append(text)
    return found


def test_what_pulp_open_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="pulp-open has 8 cores"):
        Machine(tmp_path / "cores", "gvsoc:cores=9", PULP_OPEN)
    with pytest.raises(BuildError, match="one register file"):
        Machine(tmp_path / "isa", "gvsoc:isa=f", PULP_OPEN)
    with pytest.raises(SimulatorError, match=r"65,536 bytes of L1, target gvsoc:l1=131072 131,072"):
        Gvsoc().run(tmp_path / "none", [], target_named("gvsoc:l1=131072"))


def test_how_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(CONFLICTS_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for conflicts, variable in ((False, VARIABLE), (True, CONFLICTS_VARIABLE)):
        simulator = Gvsoc(conflicts=conflicts)
        assert not simulator.is_installed
        with pytest.raises(SimulatorMissing, match=rf"\${variable} does not name it.*README"):
            simulator.find()
        other = tmp_path / f"elsewhere{conflicts}"
        other.write_text("#!/bin/sh\n")
        monkeypatch.setenv(variable, str(other))
        with pytest.raises(SimulatorMissing, match=f"{other.name}.*not an executable"):
            simulator.find()
        other.chmod(other.stat().st_mode | stat.S_IXUSR)
        assert simulator.find() == str(other)
