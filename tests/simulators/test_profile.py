"""Calls and loads that Spike counts, of a program that says how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from qfold.backend.elf import LinkedProgram
from qfold.backend.simulators.profile import ProfileError, read_profile
from tests.simulators.support import BOTH, RUNTIME_TESTS, SOURCES, Machine, needs_spike


@pytest.mark.parametrize("target", BOTH)
def test_calls_loads_and_dot_products(tmp_path: Path, target: str) -> None:
    needs_spike()
    machine = Machine(tmp_path, target, SOURCES / "profiled.c")
    done = machine.run(profile=True)
    assert (done.exit_code, done.messages) == (0, "")
    profile = done.profile
    assert profile is not None
    words, kinds = profile["words"], profile["kinds"]
    assert words.calls == tuple(2 * (core + 1) for core in range(8))
    floats = {"flw": 2 * 72} if target.endswith("f") else {}
    assert words.loads == {"lw": 2 * 72, **floats}
    assert kinds.calls == (0,) * 7 + (2,)
    once = {"lb": 2, "lbu": 1, "lh": 1, "lhu": 1, "lw": 2, "p.lb": 10, "p.lbu": 5}
    once |= {"p.lw": 1, "p.lh": 1, "p.lhu": 1, "p.elw": 1}
    assert kinds.loads == {name: 2 * count for name, count in once.items()}
    assert kinds.dots == {"pv.sdotsp.b": 2 * 5, "pv.dotusp.sc.h": 2 * 5} and not words.dots
    assert profile["no such function"].loads == {} == profile["no such function"].dots


def test_counts_do_not_depend_on_profiling(tmp_path: Path) -> None:
    needs_spike()
    machine = Machine(tmp_path, "spike", SOURCES / "waiting.c")
    plain, profiled = machine.run("barriers"), machine.run("barriers", profile=True)
    assert plain.profile is None and profiled.profile is not None
    assert plain.stdout == profiled.stdout


def test_other_text_is_refused(tmp_path: Path) -> None:
    needs_spike()
    program = LinkedProgram(Machine(tmp_path, "spike", RUNTIME_TESTS / "machine.c").binary)
    with pytest.raises(ProfileError, match="not a line of a profile: 'walk 0 0x0 1'"):
        read_profile("jump 0 0x0 1\nwalk 0 0x0 1\n", program, 8)
