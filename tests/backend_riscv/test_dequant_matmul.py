"""`riscv.dequant_matmul`: every number of rows and width of block, both layouts, every kind of zero point, on Spike (both
register files) and qemu, in bounds, and counted in instructions and loads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from qfold.backend.riscv.generated import CannotGenerate
from qfold.targets import target_named
from tests.backend_riscv.dequant import DequantProblem, InsertedProblem
from tests.backend_riscv.harness import needs_qemu, run_on_qemu
from tests.backend_riscv.on_spike import needs_spike, run_on_spike
from tests.backend_riscv.packed import EPILOGUES

DRIVER = 80
"""Most instructions of the C that finds a core's share."""
ZERO_POINTS = ("", "subtracted", "hoisted")


def problem(index: int, m: int, n: int, k: int, **given: object) -> DequantProblem:
    """A problem whose variants are spread over those of a list."""
    variants: dict[str, object] = {
        "epilogue": ("tensor", "column", "bias relu")[index % 3],
        "stored": ("i8", "ui8")[index // 3 % 2],
        "transposed": bool(index // 6 % 2),
        "zero_point": ZERO_POINTS[(index + index // 3) % 3],
    }
    return DequantProblem(m, n, k, **(variants | given))  # type: ignore[arg-type]


WIDTHS = [problem(i, 1 + i % 4, 1 + i, (1, 2, 3, 7)[i // 4 % 4]) for i in range(34)]
VARIANTS = [
    problem(i, m, n, k, split=(1, 8))
    for i, (m, n, k) in enumerate(
        (m, n, k) for m, n in ((1, 37), (2, 20), (3, 19), (4, 41)) for k in (5, 8, 64)
    )
]
# Rows or columns too far apart for an offset, steps too large for an immediate, more rows than a block has.
LARGE = [
    problem(0, 1, 40, 2100, transposed=True, split=(1, 4)),
    problem(1, 4, 7, 2100, transposed=False, split=(1, 2)),
    problem(2, 2, 2500, 6, transposed=False, split=(1, 8)),
    problem(3, 3, 9, 700, transposed=True, split=(1, 3)),
    problem(4, 9, 17, 33, split=(2, 4)),
    problem(5, 6, 5, 12),
    problem(6, 13, 3, 4, split=(8, 1)),
]
ALL_EPILOGUES = [
    problem(i, m, 11, 9, epilogue=name, split=(1, 2), zero_point=("", "hoisted")[i % 2])
    for i, (name, m) in enumerate((e, m) for e in EPILOGUES if EPILOGUES[e].scale for m in (1, 3))
]
STRIDED = [
    problem(7, 3, 9, 20, a_stride=33, y_stride=12, w_stride=23, transposed=True),
    problem(8, 2, 9, 20, a_stride=700, y_stride=700, w_stride=13, transposed=False),
]
BLOCKWISE = [
    problem(i, m, n, k, k_block=size, epilogue="bias relu", split=(1, 1 + i % 4))
    for i, (m, n, k, size) in enumerate(
        [(1, 9, 20, 8), (2, 7, 32, 16), (4, 5, 7, 8), (3, 18, 33, 1), (5, 6, 9, 9), (1, 40, 96, 32)]
        * 2
    )
]
EVERYTHING = {
    "blockwise": BLOCKWISE,
    "widths": WIDTHS,
    "variants": VARIANTS,
    "large": LARGE,
    "epilogues": ALL_EPILOGUES,
    "strided": STRIDED,
}


@needs_spike
@pytest.mark.parametrize(
    ("problems", "target"),
    [
        *((name, "spike") for name in EVERYTHING),
        *((name, "spike:isa=f") for name in ("blockwise", "widths", "large")),
    ],
)
def test_on_spike(problems: str, target: str, tmp_path: Path) -> None:
    """The byte after each operand is in no memory: a load of it traps. Each weight is loaded once for four rows, as a byte."""
    machine = target_named(target)
    found = EVERYTHING[problems]
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(found)]
    runs, profile = run_on_spike(cases, machine, tmp_path)
    for p, case, run in zip(found, cases, runs, strict=True):
        p.check(run.outputs["y"])
        loads: dict[str, int] = {}
        for function in case.kernel.functions:
            for name, count in profile[function.symbol].loads.items():
                loads[name.removeprefix("p.")] = loads.get(name.removeprefix("p."), 0) + count
        mine, other = ("lb", "lbu") if p.stored == "i8" else ("lbu", "lb")
        assert other not in loads, p
        blocks = -(-p.m // 4)
        if p.split is not None and p.split[0] > 1:
            blocks = sum(-(-len(range(i, p.m, p.split[0])) // 4) for i in range(p.split[0]))
        weights = blocks * p.k * p.n
        assert loads[mine] >= weights, p
        # Beside the weights: zero points, once per function call and column, or in the epilogue once per row and column at most.
        phases = 1 if p.k_block is None else -(-p.k // p.k_block)
        assert loads[mine] - weights <= (p.m * p.n * phases if p.zero_point else 0), p


@needs_qemu
@pytest.mark.parametrize("problems", ["blockwise", "variants", "large"])
def test_on_qemu(problems: str, tmp_path: Path) -> None:
    """The same code without XpulpV2, with a page that must not be touched after each operand."""
    machine = target_named("qemu")
    found = EVERYTHING[problems]
    outputs = run_on_qemu([p.case(machine, f"k{i}") for i, p in enumerate(found)], tmp_path)
    for p, output in zip(found, outputs, strict=True):
        p.check(output["y"])


@needs_spike
@pytest.mark.parametrize("target", ["spike", "spike:isa=f"])
def test_instructions_per_mac(target: str, tmp_path: Path) -> None:
    """Everything included within 10 % of what the block promises, the work even over the cores."""
    machine = target_named(target)
    problems = [
        DequantProblem(1, 128, 128, "column", split=(1, 8)),
        DequantProblem(
            1, 128, 128, "tensor", split=(1, 8), transposed=True, zero_point="subtracted"
        ),
        DequantProblem(4, 128, 128, "bias", split=(1, 8), zero_point="hoisted"),
        DequantProblem(2, 100, 64, "column", split=(1, 8), stored="ui8"),
    ]
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(problems)]
    runs, profile = run_on_spike(cases, machine, tmp_path)
    for p, case, run in zip(problems, cases, runs, strict=True):
        p.check(run.outputs["y"])
        promised = cast(float, case.kernel.facts["block_instructions_per_mac"])
        assert sum(run.work) <= 1.1 * promised * p.m * p.n * p.k, (p, run.work)
        predicted = cast(int, case.kernel.facts["instructions"])
        calls = sum(sum(profile[f.symbol].calls) for f in case.kernel.functions)
        most = predicted + 20 * calls + DRIVER * machine.cores
        assert predicted <= sum(run.work) <= most, (p, run.work)
        assert min(run.work) * 13 >= max(run.work) * 12, (p, run.work)


def body_of(assembly: str) -> list[str]:
    """The instructions of the only hardware loop of a function."""
    lines = [line.strip() for line in assembly.splitlines()]
    (start,) = (i for i, line in enumerate(lines) if line.startswith(".insn i 0x7b, 4, x0"))
    half_words = int(lines[start].rsplit(",", 1)[1])
    return lines[start + 1 : start + 1 + half_words // 2]


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_float_unit_is_never_left_idle(rows: int) -> None:
    """Two cores take turns at a float unit: of two neighbouring instructions in the loop at least one uses it (2 FMA, 1 load)."""
    case = DequantProblem(rows, 64, 32, "column", split=(1, 8)).case(target_named("spike"))
    body = body_of(case.kernel.functions[0].text)
    uses = [line.split()[0] in ("fcvt.s.w", "fmadd.s") for line in body]
    columns = int(str(case.kernel.facts["block"]).split("x")[1])
    assert sum(uses) == columns * (1 + rows)
    assert len(body) - sum(uses) == columns + rows
    assert all(a or b for a, b in zip(uses, [*uses[1:], uses[0]], strict=True))


def test_nothing_is_waited_for() -> None:
    """No instruction uses what the one before it loaded."""
    for p in (*WIDTHS[8:], *VARIANTS):
        for function in p.case(target_named("spike")).kernel.functions:
            if ".insn i 0x7b, 4, x0" not in function.text:
                continue  # K = 1
            body = body_of(function.text)
            for line, following in zip(body, [*body[1:], body[0]], strict=True):
                load = re.match(r"l[bw]u? (\w+)|\.insn [ir] 0xb, \d, (?:0x\w+, )?(\w+)", line)
                if load is not None:
                    loaded = load[1] or load[2]
                    operands = re.findall(r"\w+", following)[1:]
                    assert loaded not in operands, (p, line, following)


@pytest.mark.parametrize(
    ("rows", "zero_point", "isa", "columns"),
    [
        (1, "", "zfinx", 24),
        (2, "", "zfinx", 11),
        (3, "", "zfinx", 7),
        (4, "", "zfinx", 5),
        (1, "subtracted", "zfinx", 12),
        (1, "", "f", 30),
        (4, "", "f", 6),
    ],
)
def test_blocks_fill_the_registers(rows: int, zero_point: str, isa: str, columns: int) -> None:
    p = DequantProblem(rows, 10 * columns, 8, "column", zero_point=zero_point)
    case = p.case(target_named(f"spike:isa={isa}"))
    assert case.kernel.facts["block"] == f"{rows}x{columns}"


def test_a_rich_epilogue_gets_a_narrower_block() -> None:
    """Where the inner loop leaves too few registers for what follows it."""
    case = DequantProblem(1, 60, 6, "many").case(target_named("spike:isa=f"))
    assert case.kernel.facts["block"] == "1x20"


def test_shares_are_divided_evenly() -> None:
    """25 columns of a core: 13 and 12, not 24 and 1."""
    case = DequantProblem(1, 200, 8, "column", split=(1, 8)).case(target_named("spike"))
    assert case.kernel.facts["blocks"] == ["1x13", "1x12"]


def test_blocks_of_k_are_phases() -> None:
    """The first block of K stores, those between add, the last one, which may be shorter, ends with the epilogue."""
    case = problem(1, 1, 8, 70, k_block=32, split=(1, 1)).case(target_named("spike"))
    assert [f.symbol for f in case.kernel.functions] == [
        "leaf_1x8_first",
        "leaf_1x8_next",
        "leaf_1x8_last",
    ]
    assert [re.findall(r"li \w+, (31|5)$", f.text, re.M) for f in case.kernel.functions] == [
        ["31"],
        ["31"],
        ["5"],
    ]


# region inserted weights

INSERTED = [
    InsertedProblem(
        m,
        n,
        k,
        ("tensor", "column")[i % 2],
        zero_point=ZERO_POINTS[i % 3],
        transposed=bool(i // 2 % 2),
        split=(1, 1 + i % 8),
    )
    for i, (m, n, k) in enumerate(
        [
            *((1, n, k) for n in (1, 2, 3, 5, 17, 40) for k in (1, 2, 9)),
            (1, 128, 128),
            (1, 24, 1500),
            (3, 7, 20),
        ]
    )
] + [
    # Two weights at a time: few and many steps, all kinds of zero points.
    InsertedProblem(1, n, k, kind, zero_point=zero_point, split=split)
    for n, k, split in ((48, 1500, (1, 4)), (8, 3, (1, 1)))
    for kind in ("tensor", "column")
    for zero_point in ZERO_POINTS
]


@needs_spike
def test_inserted_weights(tmp_path: Path) -> None:
    """Every weight is loaded once, alone or with its neighbour, and none is converted. Several rows are left to the exact
    kernel."""
    machine = target_named("spike")
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(INSERTED)]
    runs, profile = run_on_spike(cases, machine, tmp_path)
    for p, case, run in zip(INSERTED, cases, runs, strict=True):
        p.check(run.outputs["y"])
        loads = 0
        for function in case.kernel.functions:
            counts = profile[function.symbol].loads
            halves = counts.get("lhu", 0) + counts.get("p.lhu", 0)
            assert bool(halves) == p.may_pair
            loads += counts.get("lbu", 0) + counts.get("p.lbu", 0) + 2 * halves
            assert not {"lb", "p.lb"} & set(counts)
            if p.m == 1:
                assert "fcvt.s.w" not in "".join(body_of(function.text))
                assert "0x33, 2, 0x67" in "".join(body_of(function.text))
        assert 0 <= loads - p.n * p.k <= (p.m * p.n if p.zero_point else 0), p


@needs_spike
def test_insertion_is_faster_and_less_exact(tmp_path: Path) -> None:
    """For the same operands: fewer operations of the float unit, for an error that the exact kernel does not make."""
    machine = target_named("spike")
    problems = [
        kind(1, 128, 512, "tensor", stored="ui8", zero_point="subtracted", split=(1, 8))
        for kind in (DequantProblem, InsertedProblem)
    ]
    cases = [p.case(machine, f"k{i}") for i, p in enumerate(problems)]
    runs, _ = run_on_spike(cases, machine, tmp_path)
    exact, inserted = (r.outputs["y"] for r in runs)
    value, bound = problems[0].expected().value, problems[0].expected().bound
    assert (abs(exact - value) <= bound).all()
    problems[1].check(inserted)
    assert abs(inserted - value).max() > 3 * abs(exact - value).max()
    assert cast(InsertedProblem, problems[1]).wide_bound().max() > 3 * bound.max()
    assert cases[0].kernel.facts["block_float_operations_per_mac"] == 2
    assert cases[1].kernel.facts["block_float_operations_per_mac"] == round(17 / 16, 4)
    assert sum(runs[1].work) < sum(runs[0].work)


def test_what_cannot_be_inserted_is_refused() -> None:
    with pytest.raises(CannotGenerate, match="inserted to floats are ui8, got memref<8x4xi8"):
        InsertedProblem(1, 4, 8, stored="i8").case(target_named("spike"))
    with pytest.raises(CannotGenerate, match="floats in x registers, isa=f has none"):
        InsertedProblem(1, 4, 8).case(target_named("spike:isa=f"))


# endregion
