"""The debug build of the DMA: every broken rule is found, and is said by the name of the function that broke it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.ports import build, run

BROKEN = {
    "first_wait_removed": ("tiles", "two transfers under way write the same bytes"),
    "last_wait_removed": ("tiles", "the end of the fork: a transfer was never waited for"),
    "source_written": ("source_written_broken", "the source changed during the transfer"),
    "destination_written": ("destination_written_broken", "the destination was written during the transfer, at 0x"),
    "waited_twice": ("waited_twice_broken", "a transfer is waited for twice: 1\n"),
    "never_started": ("never_started_broken", "what is waited for is no transfer: 12345\n"),
    "same_destination": ("same_destination_broken", "two transfers under way write the same bytes"),
    "reads_what_another_writes": ("reads_what_another_writes_broken", "a transfer under way reads what another one writes"),
    "onto_itself": ("onto_itself_broken", "source and destination overlap"),
    "leaves_the_scratchpad": ("leaves_the_scratchpad_broken", "a transfer leaves the scratchpad\n"),
    "begins_before_the_scratchpad": ("begins_before_the_scratchpad_broken", "a transfer leaves the scratchpad\n"),
    "outside_the_scratchpad": (
        "outside_the_scratchpad_broken",
        "a transfer is not between the scratchpad and another memory",
    ),
    "rows_overlap": ("rows_overlap_broken", "rows of the destination overlap"),
}  # fmt: skip
ALLOWED = {
    "good": 0,
    "buffer_swapped": 42,
    "reads_poison": 42,
    "between_rows_written": 42,
    "interleaved": 42,
    "up_to_the_end": 42,
}
"""Scenarios that break no rule, or only by what they read; 42: they saw what they expect."""


@pytest.fixture(scope="module", params=["threads", "qemu"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    port: str = request.param
    folder = tmp_path_factory.mktemp("dma")
    cores = 4 if port == "threads" else 1
    return build(folder, port, "dma_rules.c", "-DQFOLD_DEBUG_DMA", cores=cores)


@pytest.mark.parametrize("scenario", BROKEN)
def test_broken_rule(program: list[str], scenario: str) -> None:
    function, message = BROKEN[scenario]
    done = run(program, scenario)
    assert done.returncode == 70, done.stderr
    assert "DMA: core 0, fork 0, " in done.stderr
    assert message in done.stderr
    assert function in done.stderr


@pytest.mark.parametrize("scenario", ALLOWED)
def test_allowed(program: list[str], scenario: str) -> None:
    done = run(program, scenario)
    assert (done.returncode, done.stderr) == (ALLOWED[scenario], "")


def test_both_transfers_are_shown(program: list[str]) -> None:
    message = run(program, "same_destination").stderr.splitlines()
    assert len(message) == 3
    first = "  transfer 2 of same_destination_broken: 1 bytes from 0x"
    second = "  transfer 1 of same_destination_broken: 8 x 4 bytes from 0x"
    assert message[1].startswith(first) and message[2].startswith(second)
    assert message[2].endswith("stride 16") and " stride 4 to 0x" in message[2]


def test_only_core_0_transfers(tmp_path: Path) -> None:
    done = run(
        build(tmp_path, "threads", "dma_rules.c", "-DQFOLD_DEBUG_DMA", cores=4), "other_core"
    )
    assert done.returncode == 70
    assert "DMA: core 3, " in done.stderr and "another core than 0" in done.stderr


def test_plain_build_copies_at_once(tmp_path: Path) -> None:
    """What the debug build is for: without it, a missing wait and a source written too early go unseen."""
    program = build(tmp_path, "threads", "dma_rules.c", cores=4)
    assert run(program, "good").returncode == 0
    assert run(program, "last_wait_removed").returncode == 0
    assert run(program, "source_written").returncode == 0
