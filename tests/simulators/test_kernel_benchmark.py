"""The kernel benchmark measures what it says: right results, counts near what the register blocks predict, and a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from qfold.backend.simulators.gvsoc import VARIABLE, Gvsoc
from tests.simulators.support import needs_spike

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("how", ["packed", "by panels", "few rows"])
def test_instructions_are_those_of_the_register_block(how: str) -> None:
    needs_spike()
    from kernels import SPIKE, contests, machines, run_contest

    shape = {"packed": (32, 64, 64), "by panels": (32, 128, 32), "few rows": (1, 128, 128)}[how]
    for contest, target in contests(shape, how, "spike"):
        ours = [j for j in contest.jobs if j.instructions is not None]
        if not ours:
            continue
        chosen = replace(contest, jobs=tuple(ours))
        rows = run_contest(chosen, target, "L1", {SPIKE: machines()[SPIKE]})
        assert [r.kernel for r in rows] == [j.name for j in ours]
        for row in rows:
            assert row.predicted is not None
            predicted = row.predicted / row.macs
            assert predicted < row.instructions_per_mac < 1.1 * predicted, row.kernel
            # All cores work, and about as much.
            work = [c.work for c in row.cores]
            assert len(work) == 8 and min(work) > 0.8 * max(work), row.kernel


def test_a_wrong_result_is_found() -> None:
    needs_spike()
    from kernels import SPIKE, contests, machines, run_contest

    contest, target = contests((7, 5, 3), "packed", "spike")[0]
    # The weight as its own zero points.
    broken = tuple(
        replace(job, statements=tuple(s.replace("AT_z", "AT_w") for s in job.statements))
        for job in contest.jobs
        if job.instructions is not None
    )
    with pytest.raises(
        SystemExit, match="7x5x3: ours, int8 exact on spike computed something else"
    ):
        run_contest(replace(contest, jobs=broken), target, "L1", {SPIKE: machines()[SPIKE]})


@pytest.mark.skipif(
    not Gvsoc().is_installed,
    reason=f"target gvsoc is not run: no `gvsoc` on PATH, and ${VARIABLE} names none",
)
def test_cycles(tmp_path: Path) -> None:
    """Of the smallest problem, with every contestant: what the events count is less than what the job took."""
    from kernels import PLAIN, contests, run_contest, show

    contest, target = contests((7, 5, 3), "packed", "gvsoc")[0]
    rows = run_contest(contest, target, "L1", {PLAIN: Gvsoc()})
    assert [r.kernel for r in rows] == [
        "peer 1x7, C, int8",
        "plain C, int8",
        "ours, int8 exact",
        "ours, int8 exact, no bias",
    ]
    for row in rows:
        busiest = max(row.cores, key=lambda c: c.work)
        assert 0 < busiest.instructions <= busiest.work < row.cold and row.warm < row.cold
        assert (len(row.shifted), row.spread is None) == (
            (10, False) if "ours" in row.kernel else (0, True)
        )
    with (tmp_path / "table.txt").open("w") as file:
        show(Console(file=file, width=130), rows)
    table = (tmp_path / "table.txt").read_text()
    assert all(f"{row.warm:,}" in table for row in rows)


def test_the_network_is_the_problem() -> None:
    from _leaf_jobs import Problem
    from _networks import matmul_network
    from onnx.reference import ReferenceEvaluator

    problem = Problem.random(3, 20, 9)
    model = matmul_network(3, problem.w, problem.scale, problem.zero, problem.bias)
    (y,) = ReferenceEvaluator(model).run(None, {"x": problem.a})
    error = np.abs(y - problem.expected(int8=True))
    assert (error <= problem.tolerance(int8=True) + 1e-5).all()
