"""The port `spike`: cores, barriers, forks and DMA on harts; counters; stacks; files; how a run ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qfold.backend.simulators import SimulatorTimeout, simulator_for
from tests.runtime.test_debug_dma import ALLOWED, BROKEN
from tests.simulators.support import BOTH, RUNTIME_TESTS, SOURCES, Machine, needs_spike

STACK = 2048


@pytest.fixture(scope="module", autouse=True)
def _spike() -> None:
    needs_spike()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("port"), "spike", RUNTIME_TESTS / "machine.c")


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("counts"), "spike", SOURCES / "waiting.c")


@pytest.mark.parametrize("target", [*BOTH, "spike:cores=1", "spike:cores=3", "spike:cores=16"])
def test_cluster(tmp_path: Path, target: str) -> None:
    cluster = Machine(tmp_path, target, RUNTIME_TESTS / "cluster.c")
    for scenario in ("forks", "barriers", "transfers"):
        done = cluster.run(scenario)
        assert (done.exit_code, done.messages) == (0, ""), scenario


def test_unequal_barriers_end_the_run(tmp_path: Path) -> None:
    cluster = Machine(tmp_path, "spike", RUNTIME_TESTS / "cluster.c")
    done = cluster.run("unequal-barriers")
    assert (done.exit_code, done.stdout) == (
        73,
        "qf_barrier: core 0 and core 7 did not call it equally often in a fork\n",
    )
    assert cluster.run("last-core-exits").exit_code == 9


def test_the_debug_dma(tmp_path: Path) -> None:
    flags = ("-DQFOLD_DEBUG_DMA",)
    cluster = Machine(tmp_path / "good", "spike", RUNTIME_TESTS / "cluster.c", flags=flags)
    assert cluster.run("transfers").exit_code == 0
    rules = Machine(tmp_path / "rules", "spike", RUNTIME_TESTS / "dma_rules.c", flags=flags)
    for scenario, (function, message) in BROKEN.items():
        done = rules.run(scenario)
        assert done.exit_code == 70, scenario
        assert function in done.stdout and message in done.stdout, scenario
    for scenario, code in ALLOWED.items():
        assert rules.run(scenario).exit_code == code, scenario


# Counters


def test_waiting_is_not_counted(counting: Machine) -> None:
    """Core c works c * 1000 loops of 3 instructions before a barrier, however long the others are busy."""
    done = counting.run("barriers")
    work = [int(line) for line in done.stdout.split()]
    assert len(work) == 8
    overhead = work[0]
    assert 0 < overhead < 100
    assert [w - overhead for w in work] == [c * 1000 * 3 for c in range(8)]


def test_copies_are_not_counted(counting: Machine) -> None:
    """A transfer of 64 bytes and one of 4096 are the same work for core 0."""
    small, large = counting.run("dma", "64"), counting.run("dma", "4096")
    work = [int(done.stdout.split()[0]) for done in (small, large)]
    assert 0 < work[0] == work[1] < 200
    elapsed = [int(done.stdout.split()[1]) for done in (small, large)]
    assert elapsed[1] > elapsed[0] + 1000


def test_runs_repeat_exactly(counting: Machine) -> None:
    assert len({counting.run("barriers").stdout for _ in range(3)}) == 1


# Ends


@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_exit_status(machine: Machine, status: int) -> None:
    assert machine.run("x", str(status)).exit_code == status


def test_arguments(machine: Machine) -> None:
    done = machine.run("arguments", "one", "", "two words")
    assert (done.exit_code, done.stdout) == (0, "one\n\ntwo words\n")


def test_numbers(machine: Machine) -> None:
    values = [0, 9, 10, 2**32, 10**19, 2**64 - 1]
    assert machine.run("decimal").stdout.splitlines() == [f"{v} {v:#x}" for v in values]


def test_a_trap_names_core_cause_pc_address_and_symbol(machine: Machine) -> None:
    done = machine.run("load", "20")
    assert done.exit_code == 71
    assert re.fullmatch(
        r"trap: core 0: load access fault \(cause 5\), pc 0x1c01\w+ \(qf_main\+0x\w+\), address 0x14\n",
        done.stdout,
    )


def test_a_misaligned_load(machine: Machine) -> None:
    done = machine.run("load", str(0x20000002))
    assert done.exit_code == 71
    assert (
        "load address misaligned (cause 4)" in done.stdout and "address 0x20000002" in done.stdout
    )


def test_an_illegal_instruction(machine: Machine) -> None:
    done = machine.run("illegal")
    assert done.exit_code == 71
    pc, trap = done.stdout.splitlines()
    assert (
        trap == f"trap: core 0: illegal instruction (cause 2), pc {pc} (illegal+0x0), address 0x0"
    )


def test_of_several_traps_one_is_reported(counting: Machine) -> None:
    done = counting.run("traps")
    assert done.exit_code == 71
    (line,) = done.stdout.splitlines()
    core = re.match(r"trap: core (\d): store access fault", line)
    assert core is not None and line.endswith(f"address {0x40000000 + 4096 * int(core[1]):#x}")


def test_cores_print_without_mixing_bytes(counting: Machine) -> None:
    lines = counting.run("print").stdout.split()
    assert sorted(lines) == sorted(f"core{c}" for c in range(8) for _ in range(20))


def test_a_program_that_hangs_is_stopped(counting: Machine) -> None:
    with pytest.raises(SimulatorTimeout, match="spike: the program ran for more than 1 s"):
        simulator_for(counting.target).run(counting.binary, ["hang"], counting.target, timeout=1.0)


# Stacks


def test_stack_is_measured(machine: Machine) -> None:
    used = [int(machine.run("stack", str(n)).stdout) for n in (100, 600, 1200)]
    assert 100 < used[0] < used[1] < used[2] <= STACK
    assert used[1] > 600 and used[2] > 1200


@pytest.mark.parametrize("bytes_", [STACK, 9000])
def test_stack_overflow_is_named(machine: Machine, bytes_: int) -> None:
    """At the instruction that leaves the stack: what lies below it is another core's, or the runtime's."""
    done = machine.run("stack", str(bytes_))
    assert done.exit_code == 72
    trap, overflow = done.stdout.splitlines()
    assert re.match(
        r"trap: core 0: store access fault \(cause 7\), pc 0x\w+ \(descend\+0x\w+\), address 0x2000c00\w$",
        trap,
    )
    assert overflow == f"stack overflow: core 0 used all {STACK} bytes of its stack"


def test_stack_size_is_chosen(tmp_path: Path) -> None:
    larger = Machine(tmp_path, "spike:stack=4096", RUNTIME_TESTS / "machine.c")
    assert larger.run("stack", str(STACK)).exit_code == 0
