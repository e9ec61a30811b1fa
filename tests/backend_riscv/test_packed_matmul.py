"""`riscv.packed_matmul`: every shape of tail and every epilogue, computed on Spike (both register files) and qemu, in bounds, and
counted in instructions and loads."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from qfold.targets import target_named
from tests.backend_riscv.harness import needs_qemu, run_on_qemu
from tests.backend_riscv.on_spike import needs_spike, run_on_spike
from tests.backend_riscv.packed import ALL_EPILOGUES, Problem

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32)
TAILS = [
    Problem(m, n, DEPTHS[(m + 3 * n) % len(DEPTHS)], list(ALL_EPILOGUES)[(5 * m + n) % 10])
    for m in range(1, 10)
    for n in range(1, 10)
]
ALL_DEPTHS = [Problem(5, 6, k, split=(2, 2)) for k in (*DEPTHS, 255, 256, 257, 300, 513)]
EACH_EPILOGUE = [
    Problem(m, n, 7, name, split=(1, 2))
    for i, name in enumerate(ALL_EPILOGUES)
    for m, n in (((4, 8), (7, 7))[i % 2], (2, 5))
]
SPLITS = [
    Problem(m, n, 5, "bias", split=split)
    for m, n in ((9, 18), (32, 7), (1, 33))
    for split in ((8, 1), (1, 8), (2, 4), (4, 2), (3, 1))
]
STRIDED = [Problem(7, 9, 5, "in place", y_stride=700)] + [
    Problem(6, 9, 5, "hoisted, bias, residual", a_stride=a, y_stride=y)
    for a, y in ((5, 12), (300, 300), (511, 9), (513, 700), (3000, 3000))
]
BLOCKS = [Problem(7, 9, 12, "bias relu", block=(rows, 4)) for rows in (1, 2, 3, 4)]
EVERYTHING = {
    "tails": TAILS,
    "depths": ALL_DEPTHS,
    "epilogues": EACH_EPILOGUE,
    "splits": SPLITS,
    "strided": STRIDED,
    "blocks": BLOCKS,
}


@needs_spike
@pytest.mark.parametrize("target", ["spike", "spike:isa=f"])
@pytest.mark.parametrize("problems", EVERYTHING)
def test_on_spike(problems: str, target: str, tmp_path: Path) -> None:
    """The byte after each operand is in no memory: a load of it traps."""
    machine = target_named(target)
    found = EVERYTHING[problems]
    if problems == "tails":
        # Between them the two register files have all tails.
        found = found[target != "spike" :: 2]
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(found)]
    runs, _ = run_on_spike(cases, machine, tmp_path)
    for problem, run in zip(found, runs, strict=True):
        problem.check(run.outputs["y"])


@needs_qemu
@pytest.mark.parametrize("problems", EVERYTHING)
def test_on_qemu(problems: str, tmp_path: Path) -> None:
    """The same code without XpulpV2, with a page that must not be touched after each operand."""
    machine = target_named("qemu")
    found = EVERYTHING[problems][:: 5 if problems == "tails" else 2]
    outputs = run_on_qemu([p.case(machine, f"k{i}") for i, p in enumerate(found)], tmp_path)
    for problem, output in zip(found, outputs, strict=True):
        problem.check(output["y"])


@needs_spike
@pytest.mark.parametrize("target", ["spike", "spike:isa=f"])
def test_counts(target: str, tmp_path: Path) -> None:
    """What executes is what the report says: instructions of the assembly within what the C around it takes, and per
    multiply-accumulate within 10 % of what the register block promises; floats are loaded once per block and step."""
    machine = target_named(target)
    problems = [
        Problem(32, 64, 64, "bias relu", split=(8, 1)),
        Problem(32, 128, 128, "column", split=(4, 2)),
        Problem(8, 32, 300, "column", split=(2, 4)),
        Problem(7, 5, 3, "none", split=(2, 2)),
    ]
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(problems)]
    runs, profile = run_on_spike(cases, machine, tmp_path)
    for problem, case, run in zip(problems, cases, runs, strict=True):
        problem.check(run.outputs["y"])
        facts = case.kernel.facts
        predicted = cast(int, facts["instructions"])
        driver = 100 * machine.cores
        assert predicted <= sum(run.work) <= predicted + driver, problem
        macs = problem.m * problem.n * problem.k
        if macs > 10000:
            promised = cast(float, facts["block_instructions_per_mac"])
            assert sum(run.work) / macs <= 1.1 * promised, problem
    # The first: W and A once per block of 4 x 4 and step, the scale and the bias once per block.
    loads = profile["k0_4x4"].loads
    blocks = 8 * 16
    if target == "spike":
        assert loads["p.lw"] == blocks * 64 * 2
        assert "flw" not in loads
        assert loads["lw"] + loads["p.lw"] >= blocks * (64 * 8 + 4 + 4)
        assert loads["lw"] + loads["p.lw"] <= blocks * (64 * 8 + 4 + 4 + 6)
    else:
        assert loads["flw"] == blocks * (64 * 8 + 4 + 4) + 8 * _saved_floats(cases[0].kernel)
        assert not {"p.lw", "lb", "p.lb"} & loads.keys()


def _saved_floats(kernel: object) -> int:
    (function, *_) = kernel.functions  # type: ignore[attr-defined]
    return sum(r.startswith("f") for r in function.saved)


@needs_spike
@pytest.mark.parametrize("target", ["spike", "spike:isa=f"])
def test_nan_and_signed_zero(target: str, tmp_path: Path) -> None:
    """`maximumf` and `minimumf` hand a NaN on, from the product and from operands, whatever its sign; `maxnumf` does not."""
    machine = target_named(target)
    problems = [Problem(4, 8, 6, name) for name in ("bias relu", "clip", "row and scalar", "many")]
    negative_nan = np.array([0xFFC00001], np.uint32).view(np.float32)[0]
    for problem in problems:
        a = problem.operands["a"].array
        a[1, 2] = np.nan
        a[2, 3] = np.inf
        a[3, 1] = negative_nan
        if "e0" in problem.operands:
            problem.operands["e0"].array.flat[3] = negative_nan
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(problems)]
    runs, _ = run_on_spike(cases, machine, tmp_path)
    for problem, run in zip(problems, runs, strict=True):
        y = run.outputs["y"]
        expected = problem.exact()
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected), err_msg=str(problem))
        finite = np.isfinite(expected)
        np.testing.assert_allclose(y[finite], expected[finite], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(np.isinf(y), np.isinf(expected))
    assert np.isnan(runs[0].outputs["y"][1]).all()
    assert not np.isnan(runs[2].outputs["y"][1]).any()
