"""Hardware loops on Spike: what they compute, how many instructions they count, and how they trap."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from qfold.backend.elf import LinkedProgram
from tests.simulators.support import BOTH, SOURCES, Machine, needs_spike

NOWHERE = 0x40000000
"""No memory of the target."""


@pytest.fixture(scope="module", params=BOTH)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    needs_spike()
    folder = tmp_path_factory.mktemp("loops")
    target = str(request.param)
    spec = f"{target},cores=2" if ":" in target else f"{target}:cores=2"
    return Machine(folder, spec, SOURCES / "loops.c", SOURCES / "loops.S")


COUNTING = 1
"""The first reading of the counter, which is counted itself."""

# Function -> what it returns for n and m, and how many instructions lie between its readings of the counter.
LOOPS: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "single": lambda n, m: (7 * n, 1 + 3 * n),
    "outer_level": lambda n, m: (7 * n, 1 + 3 * n),
    "immediate": lambda n, m: (4 * 5, 1 + 4 * 5),
    "nested": lambda n, m: (n * (0x201 + 0x30 * m), 1 + n * (1 + 1 + 3 * m + 2)),
    "twice": lambda n, m: (n * (3 * m + 2 * 0x30 + 0x200), 1 + n * (1 + 3 * m + 1 + 2 * 3 + 2)),
}


@pytest.mark.parametrize("n, m", [(1, 1), (2, 3), (7, 1), (1000, 17)])
@pytest.mark.parametrize("name", LOOPS)
def test_results_and_counts(machine: Machine, name: str, n: int, m: int) -> None:
    done = machine.run(name, str(n), str(m))
    assert done.exit_code == 0, done.messages
    result, instructions = map(int, done.stdout.split())
    expected, between = LOOPS[name](n, m)
    assert (result, instructions) == (expected, COUNTING + between)


def test_a_count_of_0_does_not_skip_the_body(machine: Machine) -> None:
    assert machine.run("single", "0", "0").stdout == machine.run("single", "1", "0").stdout


def trap(machine: Machine, name: str, n: int, m: int) -> tuple[str, int, int]:
    """Cause, pc relative to the function, and address of a trap that core 1 must have reported, with its symbol."""
    done = machine.run(name, str(n), str(m))
    assert done.exit_code == 71, done.messages
    pattern = r"trap: core 1: (.+) \(cause \d+\), pc (0x\w+) \((\w+)\+(0x\w+)\), address (0x\w+)\n"
    match = re.fullmatch(pattern, done.stdout)
    assert match is not None, done.stdout
    cause, pc, symbol, offset, address = match.groups()
    function = LinkedProgram(machine.binary).functions[name]
    assert symbol == name and int(pc, 16) == function.address + int(offset, 16)
    return cause, int(offset, 16), int(address, 16)


SECOND_OF_BODY = 12
"""After the move, the setup and a nop."""


@pytest.mark.parametrize(
    "name, cause",
    [
        ("loads", "load access fault"),
        ("stores", "store access fault"),
        ("post_increment", "load access fault"),
    ],
)
def test_a_trap_in_a_body_names_its_instruction(machine: Machine, name: str, cause: str) -> None:
    assert trap(machine, name, 3, NOWHERE) == (cause, SECOND_OF_BODY, NOWHERE)


def test_a_trap_in_an_inner_body(machine: Machine) -> None:
    """After 64 rounds over a page that exists: `addi, setup, addi, addi, lw`."""
    l2 = machine.target.level(2)
    assert l2.origin is not None and l2.size is not None
    end = l2.origin + l2.size
    found = trap(machine, "loads_in_the_inner", 3, end - 64 * 1024)
    assert found == ("load access fault", 5 * 4, end)


@pytest.mark.parametrize(
    "name",
    ["branches", "jumps", "calls", "reads_csr", "reads_counter", "fences", "waits", "asks", "sleeps", "loops_again"],
)  # fmt: skip
def test_what_may_not_be_in_a_body(machine: Machine, name: str) -> None:
    cause, offset, address = trap(machine, name, 3, NOWHERE)
    assert (cause, offset) == ("illegal instruction", SECOND_OF_BODY)
    # The address of an illegal instruction is the instruction.
    assert address & 3 == 3


@pytest.mark.parametrize(
    "name, offset",
    [
        ("short_body", 0),
        ("too_close", 4),
        ("no_such_level", 0),
        ("short_instruction", 8),
        ("same_register", 0),
        ("long_field", 0),
    ],
)
def test_what_the_core_leaves_undefined_is_illegal(
    machine: Machine, name: str, offset: int
) -> None:
    assert trap(machine, name, 3, NOWHERE)[:2] == ("illegal instruction", offset)
