"""The port `threads`: cores, barriers, forks and DMA on any number of cores, also under the sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.ports import build, run

HOLDS = ("forks", "barriers", "transfers")


@pytest.mark.parametrize("cores", [1, 3, 8, 16])
def test_cluster(tmp_path: Path, cores: int) -> None:
    program = build(tmp_path, "threads", "cluster.c", cores=cores)
    for scenario in HOLDS:
        done = run(program, scenario)
        assert (done.returncode, done.stderr) == (0, ""), scenario


def test_waiting_is_no_work(tmp_path: Path) -> None:
    done = run(build(tmp_path, "threads", "cluster.c", "-DQFOLD_COUNT", cores=4), "counters")
    assert (done.returncode, done.stderr) == (0, "")


def test_unequal_barriers_end_the_run(tmp_path: Path) -> None:
    done = run(build(tmp_path, "threads", "cluster.c", cores=4), "unequal-barriers")
    assert done.returncode == 73
    assert "qf_barrier" in done.stderr


def test_any_core_ends_the_run(tmp_path: Path) -> None:
    done = run(build(tmp_path, "threads", "cluster.c", cores=4), "last-core-exits")
    assert done.returncode == 9


def test_undefined_behaviour_sanitizer(tmp_path: Path) -> None:
    flags = ("-fsanitize=undefined", "-fno-sanitize-recover=all")
    for debug in ((), ("-DQFOLD_DEBUG_DMA",)):
        program = build(tmp_path, "threads", "cluster.c", *flags, *debug, cores=3)
        for scenario in HOLDS:
            done = run(program, scenario)
            assert (done.returncode, done.stderr) == (0, ""), scenario


@pytest.fixture(scope="module")
def under_thread_sanitizer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tsan")
    return build(folder, "threads", "cluster.c", "-fsanitize=thread", "-DQFOLD_DEBUG_DMA", cores=8)


@pytest.mark.parametrize("scenario", HOLDS)
def test_thread_sanitizer_is_silent(under_thread_sanitizer: list[str], scenario: str) -> None:
    done = run(under_thread_sanitizer, scenario)
    assert (done.returncode, done.stderr) == (0, "")


def test_thread_sanitizer_sees_a_missing_barrier(under_thread_sanitizer: list[str]) -> None:
    done = run(under_thread_sanitizer, "no-barrier")
    assert done.returncode != 0
    assert "data race" in done.stderr and "no_barrier" in done.stderr
