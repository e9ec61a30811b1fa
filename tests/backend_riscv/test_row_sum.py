"""`riscv.row_sum`: tails of the unrolled loop, strided rows, shares of several cores."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qfold.backend.riscv import row_sum
from qfold.targets import target_named
from tests.backend_riscv.harness import (
    Array,
    Case,
    generate_case,
    memref,
    needs_qemu,
    run_on_qemu,
    unwritten,
)
from tests.backend_riscv.on_spike import needs_spike, run_on_spike

DRIVER = 80
"""Most instructions of the C that finds a core's share."""
SHAPES = [(1, 1), (3, 2), (5, 3), (2, 4), (4, 5), (9, 7), (7, 64), (3, 67), (1, 130)]


def case_of(m: int, k: int, target: str, parts: int, name: str) -> Case:
    a = np.random.default_rng([m, k]).standard_normal((m, k)).astype(np.float32)
    operands: dict[str, Array] = {"a": a, "y": unwritten(m)}
    types = {n: memref(x) for n, x in operands.items()}
    text = f"""
        func.func @f(%a: {types["a"]}, %y: {types["y"]}) attributes {{qmm.split = array<i64: {parts}>}} {{
          qkernel.row_sum %a outs(%y) : ({types["a"]}, {types["y"]}) -> ()
          func.return
        }}
    """
    return generate_case(text, row_sum.generate, target_named(target), operands, name)


def check(case: Case, found: Array) -> None:
    """Within the bound of `docs/numerics.md`, which holds for any order of summation."""
    a = case.operands["a"].astype(np.float64)
    n = a.shape[1] * 2.0**-24
    bound = n / (1 - n) * np.abs(a).sum(axis=1)
    assert (np.abs(found - a.sum(axis=1)) <= bound).all(), case.kernel.symbol


@needs_qemu
def test_on_qemu(tmp_path: Path) -> None:
    cases = [case_of(m, k, "qemu", 1 + i % 3, f"k{i}") for i, (m, k) in enumerate(SHAPES)]
    for case, result in zip(cases, run_on_qemu(cases, tmp_path), strict=True):
        check(case, result["y"])


@needs_spike
@pytest.mark.parametrize("target", ["spike", "spike:isa=f"])
def test_on_spike(target: str, tmp_path: Path) -> None:
    """Every element is loaded once, as a float, and costs two instructions."""
    machine = target_named(target)
    cases = [case_of(m, k, target, 1 + i % 8, f"k{i}") for i, (m, k) in enumerate(SHAPES)]
    cases.append(case_of(32, 128, target, 8, "even"))
    runs, profile = run_on_spike(cases, machine, tmp_path)
    for case, run in zip(cases, runs, strict=True):
        check(case, run.outputs["y"])
        (function,) = case.kernel.functions
        loads = profile[function.symbol].loads
        assert sum(loads.values()) == case.operands["a"].size
        assert set(loads) <= ({"lw", "p.lw"} if target == "spike" else {"flw"})
    promised = cases[-1].kernel.facts["block_instructions_per_element"]
    assert isinstance(promised, float)
    assert sum(runs[-1].work) <= 1.1 * promised * 32 * 128
    predicted = cases[-1].kernel.facts["instructions"]
    assert isinstance(predicted, int)
    assert predicted <= sum(runs[-1].work) <= predicted + DRIVER * machine.cores
    assert len(set(runs[-1].work)) == 1


def test_additions_are_apart() -> None:
    """Four partial sums: no addition in the loop waits for another one of the same round."""
    text = case_of(4, 64, "spike", 1, "k").kernel.assembly
    bodies = re.findall(r"\.insn i 0x7b, 4, x0, \w+, (\d+)", text)
    assert bodies == ["16"]
    assert len(re.findall(r"fadd\.s", text)) == 4 + 3
