"""The port `qemu`: a program without a C library, by system calls; how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.ports import build, run


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return build(tmp_path_factory.mktemp("qemu"), "qemu", "machine.c")


def test_arguments(machine: list[str]) -> None:
    done = run(machine, "arguments", "one", "", "two words")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "one\n\ntwo words\n")


@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_exit_status(machine: list[str], status: int) -> None:
    assert run(machine, "x", str(status)).returncode == status


def test_numbers(machine: list[str]) -> None:
    values = [0, 9, 10, 2**32, 10**19, 2**64 - 1]
    assert run(machine, "decimal").stderr.splitlines() == [f"{v} {v:#x}" for v in values]


def test_load_from_nowhere(machine: list[str]) -> None:
    done = run(machine, "load", "20")
    assert done.returncode == 71
    assert done.stderr.startswith("trap: core 0: SIGSEGV, pc 0x")
    assert done.stderr.endswith(", address 0x14\n")


def test_illegal_instruction(machine: list[str]) -> None:
    done = run(machine, "illegal")
    assert done.returncode == 71
    pc, trap = done.stderr.splitlines()
    assert trap == f"trap: core 0: SIGILL, pc {pc}, address {pc}"


def test_stack_is_measured(machine: list[str]) -> None:
    used = [int(run(machine, "stack", str(n)).stderr) for n in (100, 4000, 7000)]
    assert 100 < used[0] < 1000
    assert 4000 < used[1] < 4000 * 2 and 7000 < used[2] <= 8192
    assert used[0] < used[1] < used[2]


def test_stack_overflow_is_named(machine: list[str]) -> None:
    done = run(machine, "stack", "9000")
    assert done.returncode == 72
    assert done.stderr == "stack overflow: core 0 used all 8192 bytes of its stack\n"


def test_stack_size_is_chosen(tmp_path: Path) -> None:
    program = build(tmp_path, "qemu", "machine.c", "-DQF_STACK_BYTES=16384")
    assert run(program, "stack", "9000").returncode == 0


def test_cluster_of_one(tmp_path: Path) -> None:
    program = build(tmp_path, "qemu", "cluster.c")
    for scenario in ("forks", "barriers", "transfers"):
        done = run(program, scenario)
        assert (done.returncode, done.stderr) == (0, ""), scenario


def test_more_cores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="user-mode qemu is one core"):
        build(tmp_path, "qemu", "cluster.c", cores=2)
