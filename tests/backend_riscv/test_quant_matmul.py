"""`riscv.packed_quant_matmul`: every shape of tail, signedness and epilogue, to the bit, on Spike (both register files) and
qemu, in bounds; which dot products and which loads it executes, and how many."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from qfold.backend.riscv.generated import CannotGenerate
from qfold.targets import target_named
from tests.backend_riscv.harness import needs_qemu, run_on_qemu
from tests.backend_riscv.on_spike import needs_spike, run_on_spike
from tests.backend_riscv.quantised import EPILOGUES, Problem, generate_text

DEPTHS = (*range(1, 14), 64, 255)
TYPES = (("i8", "i8"), ("ui8", "i8"), ("i8", "ui8"), ("ui8", "ui8"))
DOTS = {TYPES[0]: "sp", TYPES[1]: "usp", TYPES[2]: "usp", TYPES[3]: "up"}
TAILS = [
    Problem(m, n, DEPTHS[(m + 4 * n) % len(DEPTHS)], list(EPILOGUES)[(m + 5 * n) % len(EPILOGUES)],
            TYPES[(m + n) % 4])
    for m in range(1, 10)
    for n in range(1, 10)
]  # fmt: skip
ALL_DEPTHS = [
    Problem((2, 3, 4)[i % 3], 6, k, types=TYPES[i % 4], split=(2, 2))
    for i, k in enumerate((*range(1, 24), 64, 255, 256, 257, 258))
]
EACH_EPILOGUE = [
    Problem(m, n, 7, name, TYPES[i % 4], split=(1, 2))
    for i, name in enumerate(EPILOGUES)
    for m, n in (((4, 8), (7, 7))[i % 2], (2, 5))
]
SPLITS = [
    Problem(m, n, 5, "form 2", split=split)
    for m, n in ((9, 18), (32, 7), (1, 33))
    for split in ((8, 1), (1, 8), (2, 4), (4, 2), (3, 1))
]
STRIDED = [
    Problem(6, 9, k, name, TYPES[k % 4], a_stride=a, y_strides=y)
    for k, a, y, name in (
        (5, 8, (12, 1), "form 1"),  # words
        (5, 6, (1, 6), "bias"),  # half-words
        (12, 14, (1, 7), "form 2, rows"),
        (5, 5, None, "none"),  # bytes
        (17, 19, (700, 3), "dequantised"),
        (7, 700, None, "residual"),  # as far as offsets reach, and beyond
        (6, 1024, (2000, 1), "form 1, rows"),
        (9, 1028, None, "corrections"),
        (9, 2000, (3000, 1), "form 2"),
        (11, 2001, None, "form 2"),
        (11, 2998, None, "none"),
    )
] + [Problem(m, 5, 10, "form 1", unknown_offset=True) for m in (1, 4)]
BLOCKS = [
    Problem(7, 9, k, name, block=(rows, 4))
    for rows in (1, 2, 3, 4)
    for k, name in ((23, "form 2"), (24, "form 1, rows"))
]
EVERYTHING = [*TAILS, *ALL_DEPTHS, *EACH_EPILOGUE, *SPLITS, *STRIDED, *BLOCKS]
FLOATS = [p for p in EACH_EPILOGUE if EPILOGUES[p.epilogue].output == "f32"]


@needs_spike
@pytest.mark.parametrize(
    ("target", "problems"),
    [("spike", EVERYTHING), ("spike:isa=f", [*EVERYTHING[::4], *FLOATS])],
    ids=["zfinx", "f"],
)
def test_on_spike(target: str, problems: list[Problem], tmp_path: Path) -> None:
    """Spike refuses misaligned loads, and the byte after each operand is in no memory."""
    machine = target_named(target)
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(problems)]
    runs, _ = run_on_spike(cases, machine, tmp_path)
    for problem, case, run in zip(problems, cases, runs, strict=True):
        problem.check(run.outputs["the_y"])
        predicted = cast(int, case.kernel.facts["instructions"])
        assert predicted <= sum(run.work) <= predicted + 150 * machine.cores, problem


@needs_qemu
def test_on_qemu(tmp_path: Path) -> None:
    """The same code without XpulpV2, with a page that must not be touched after each operand."""
    machine = target_named("qemu")
    # Blocks that do not fit the registers without hardware loops and dot products are not for this machine.
    found = [p for p in EVERYTHING if p.block is None or p.block[0] < 2][::5]
    outputs = run_on_qemu([p.case(machine, f"k{i}") for i, p in enumerate(found)], tmp_path)
    for problem, output in zip(found, outputs, strict=True):
        problem.check(output["the_y"])


def _macs(problem: Problem) -> int:
    return problem.m * problem.n * problem.k


@needs_spike
def test_counts(tmp_path: Path) -> None:
    """A dot product of the right kind for each word and element, words of the panels and of the rows loaded once per block, no
    byte of the panels, and instructions per multiply-accumulate within 10 % of what the register block promises."""
    machine = target_named("spike")
    problems = [
        *(Problem(32, 32, 256, "form 2", types, split=(8, 1)) for types in TYPES),
        Problem(32, 32, 258, "none", a_stride=260, split=(4, 2)),
        Problem(32, 32, 256, "form 1, rows", split=(2, 4)),
        Problem(8, 8, 36, "none", a_stride=38, split=(2, 1)),
        Problem(1, 64, 512, "form 2", split=(1, 8)),
    ]
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(problems)]
    runs, profile = run_on_spike(cases, machine, tmp_path)
    for problem, case, run in zip(problems, cases, runs, strict=True):
        problem.check(run.outputs["the_y"])
        (function,) = case.kernel.functions
        counted = profile[function.symbol]
        words = -(-problem.k // 4)
        kind = DOTS[problem.types]
        assert counted.dots.keys() <= {f"pv.dot{kind}.b", f"pv.sdot{kind}.b"}
        assert sum(counted.dots.values()) == words * problem.m * problem.n
        assert case.kernel.facts["dot_product"] == f"pv.sdot{kind}.b"
        if _macs(problem) > 100_000:
            promised = cast(float, case.kernel.facts["block_instructions_per_mac"])
            assert promised == (0.5625 if problem.m == 1 else 0.375)
            assert sum(run.work) / _macs(problem) <= 1.1 * promised, problem
    # 64 blocks of 4 x 4: 8 words a step, the bias once per element, three parameters per column.
    blocks = 8 * 8
    for i in range(4):
        loads = profile[f"k{i}_4x4"].loads
        assert not loads.keys() - {"lw", "p.lw"}
        assert loads["p.lw"] == blocks * 64 * 2
        needed = blocks * (64 * 8 + 16 + 12)
        assert needed <= loads["lw"] + loads["p.lw"] <= needed + 3 * blocks + 8 * 13
    # 258 = 64 words and two bytes: a half-word of each row, a whole word of each column.
    loads = profile["k4_4x4"].loads
    assert loads["lhu"] + loads["p.lhu"] == blocks * 4
    assert not loads.keys() - {"lw", "p.lw", "lhu", "p.lhu"}
    # Rows 38 bytes apart: words of a are put together of half-words, those of the panels are not.
    loads = profile["k6_4x4"].loads
    assert loads["lhu"] == 4 * 9 * 4 * 2
    assert 4 * 9 * 4 <= loads["lw"] + loads["p.lw"] <= 4 * 9 * 4 + 2 * 16


def test_epilogue_instructions() -> None:
    """What requantising costs: five instructions an element where only the multiplier differs by column, and no addition of the
    bias; the byte range by one instruction."""
    machine = target_named("spike")
    text = Problem(4, 8, 64, "form 2, constants").case(machine).kernel.assembly
    assert text.count("mulh ") == 16
    assert len(re.findall(r"\.insn r 0x5b, 2, 0x2,", text)) == 16  # p.addn
    assert (
        len(re.findall(r"\.insn r 0x33, 2, 0xa, \w+, \w+, x8$", text, re.M)) == 16
    )  # p.clipu: 0 to 127
    assert not re.findall(r"^ *(add|sra|srai) ", text, re.M)
    text = Problem(4, 8, 64, "form 1").case(machine).kernel.assembly
    assert len(re.findall(r"\.insn r 0x33, 0, 0x21,", text)) == 16  # p.mac


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("arith.shrsi", "arith.shrui", "its epilogue computes arith.shrui; generated kernels do "),
        (
            "%r = arith.trunci %limited : i32 to i8",
            "%s = arith.trunci %limited : i32 to i16\n%r = arith.trunci %s : i16 to i8",
            "its epilogue has arith.trunci of i16; generated kernels: f32, i32, i8, ui8",
        ),
    ],
)
def test_refused(before: str, after: str, message: str) -> None:
    """By name."""
    text = Problem(4, 8, 9, "form 1").text
    assert before in text
    with pytest.raises(CannotGenerate, match=message):
        generate_text(text.replace(before, after), target_named("spike"))
