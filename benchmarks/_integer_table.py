"""The integer part of the kernel benchmark: runs the jobs of `_integer_jobs` and prints them beside their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _cluster_programs import Job, Measured, Memory, run_jobs
from _integer_jobs import IntegerProblem, packings, products
from _leaf_jobs import LeafSet
from rich.console import Console
from rich.table import Table

from qfold.backend.simulators import Simulator
from qfold.targets import Target, target_named

SHAPES = ((64, 256, 64), (1, 256, 64))

TARGETS: Mapping[tuple[str, str], tuple[float, float | None]] = {
    ("64x256x64", "int8 x int8, i32 out"): (20.5, 19.5),
    ("64x256x64", "int8 x int8, requantised, mulh"): (18.5, None),
}
"""(Problem, job) -> multiply-accumulates per cycle that are asked for, without and with bank conflicts."""

PUBLISHED = 15.5
"""Multiply-accumulates per cycle that hand-written libraries for such a cluster publish for int8 x int8: not measured here."""


@dataclass(frozen=True)
class IntegerRow:
    """One job on one machine."""

    problem: str
    kernel: str
    work: int
    """Multiply-accumulates, or bytes that are packed."""
    predicted: float
    """Instructions, of the register blocks' inner loops or of all assembly functions."""
    machine: str
    warm: int
    instructions: int
    """Of all cores; cycles where that is what a machine counts."""


def measure_integers(simulators: Mapping[str, Mapping[str, Simulator]]) -> list[IntegerRow]:
    """Every job on every machine; `simulators` by port. Ends the benchmark where a result is wrong."""
    rows: list[IntegerRow] = []
    for port, machines in simulators.items():
        target = target_named(f"{port}:stack=1024")
        for shape in SHAPES:
            problem = IntegerProblem.random(*shape)
            contest = products(problem, target)
            measured = _run(contest.jobs, contest.memory, contest.leaves, target, machines)
            rows += _rows(problem.name, problem.macs, contest.jobs, contest.expected, measured)
        for packing in packings(target):
            measured = _run([packing.job], packing.memory, packing.leaves, target, machines)
            k, n = packing.size
            rows += _rows("packing", k * n, [packing.job], [packing.expected], measured)
    return rows


def _run(
    jobs: Sequence[Job],
    memory: Memory,
    leaves: LeafSet,
    target: Target,
    machines: Mapping[str, Simulator],
) -> dict[str, list[Measured]]:
    return run_jobs(
        jobs,
        memory,
        "y",
        target,
        machines,
        definitions="\n".join(leaves.definitions),
        assembly="\n".join(leaves.assembly),
    )


def _rows(
    problem: str,
    work: int,
    jobs: Sequence[Job],
    expected: Sequence[bytes],
    measured: Mapping[str, Sequence[Measured]],
) -> list[IntegerRow]:
    rows: list[IntegerRow] = []
    for machine, results in measured.items():
        for job, right, result in zip(jobs, expected, results, strict=True):
            if result.output[: len(right)] != right:
                raise SystemExit(f"{problem}: {job.name} on {machine} computed something else")
            total = sum(c.work for c in result.cores)
            assert job.instructions is not None
            rows.append(
                IntegerRow(problem, job.name, work, job.instructions, machine, result.warm, total)
            )
    return rows


def show_integers(
    console: Console, rows: Sequence[IntegerRow], spike: str, plain: str, conflicts: str
) -> None:
    """A line for each job; `spike`, `plain` and `conflicts` are machines."""
    table = Table(title="Kernels on bytes in L1, 8 cores", title_justify="left")
    for column in ("M x K x N", "kernel"):
        table.add_column(column)
    headings = (
        "instr / MAC",
        "block's",
        "cycles",
        "MAC / cycle",
        "target",
        "with conflicts",
        "target",
    )
    for column in headings:
        table.add_column(column, justify="right")
    found = {(r.problem, r.kernel, r.machine): r for r in rows}
    seen = ""
    for problem, kernel in dict.fromkeys((r.problem, r.kernel) for r in rows):
        counted, timed, conflicted = (
            found.get((problem, kernel, m)) for m in (spike, plain, conflicts)
        )
        targets = TARGETS.get((problem, kernel), (None, None))
        table.add_row(
            "" if problem == seen else problem,
            kernel,
            "" if counted is None else f"{counted.instructions / counted.work:.3f}",
            "" if counted is None else f"{counted.predicted / counted.work:.3f}",
            "" if timed is None else f"{timed.warm:,}",
            "" if timed is None else f"{timed.work / timed.warm:.2f}",
            "" if targets[0] is None else f">= {targets[0]}",
            "" if conflicted is None else f"{conflicted.work / conflicted.warm:.2f}",
            "" if targets[1] is None else f">= {targets[1]}",
        )
        seen = problem
    console.print(table)
    console.print(
        "packing: per byte in place of per MAC; block's: what the register block promises, for packing what assembly executes; "
        f"published for such clusters: {PUBLISHED} MAC / cycle, not measured here"
    )
