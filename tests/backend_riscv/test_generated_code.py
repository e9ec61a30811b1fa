"""What `riscv.packed_matmul` emits: the inner loop by the instruction, register blocks, the driver, what is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest
from xdsl.dialects import func

from qfold.backend.riscv import GENERATORS, cost, generate, packed_matmul
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.inner_product import UNROLLED, loop_iterations
from qfold.backend.riscv.operands import OffsetReader, PointersReader
from qfold.backend.riscv.schedule import Schedule, integer_schedule, schedule
from qfold.targets import target_named
from qfold.targets.cluster import QEMU, SPIKE
from qfold.targets.isa import FLOAT, PLAIN, ZFINX
from tests.backend_riscv.harness import leaf_module
from tests.backend_riscv.packed import Problem

P_LW = ".insn i 0xb, 2,"
STEPS = schedule(4, 4).steps


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def inner_loop(text: str) -> list[str]:
    """The instructions that the hardware loop with the inner register set repeats."""
    found = lines(text)
    (start,) = [i for i, line in enumerate(found) if line.startswith(".insn i 0x7b, 4, x0,")]
    half_words = int(found[start].rsplit(",", 1)[1])
    return found[start + 1 : start + 1 + half_words // 2]


@pytest.mark.parametrize(("k", "is_post_increment"), [(64, 4), (600, 10)])
def test_inner_loop_of_a_zfinx_block(k: int, is_post_increment: int) -> None:
    """Two multiply-adds, one load, without exception; 16 to 8 per step, and no conversion."""
    (function, *_) = Problem(4, 8, k).case(target_named("spike")).kernel.functions
    body = inner_loop(function.text)
    kinds = ["fmadd" if line.startswith("fmadd.s") else "load" for line in body]
    assert kinds == ["fmadd", "fmadd", "load"] * (8 * STEPS)
    assert all(line.startswith(("fmadd.s", "lw", P_LW, ".insn r 0xb, 7,")) for line in body)
    moving = [line for line in body if line.startswith(".insn")]
    assert len(moving) == is_post_increment
    # What is loaded is not used by the next instruction.
    for load, following in zip(body, [*body[1:], body[0]], strict=True):
        if not load.startswith("fmadd"):
            register = re.split(
                r"[ ,]+", load.removeprefix(P_LW).removeprefix(".insn r 0xb, 7, 0x10,").strip()
            )
            target = register[1] if load.startswith("lw") else register[0]
            assert target not in re.split(r"[ ,]+", following)[1:], (load, following)


def test_inner_loop_of_a_float_block() -> None:
    (function, *_) = Problem(4, 8, 64).case(target_named("spike:isa=f")).kernel.functions
    counts = Counter(line.split()[0] for line in inner_loop(function.text))
    assert counts == {"fmadd.s": 16 * STEPS, "flw": 8 * STEPS, "addi": 2}


def test_plain_code_has_no_pulp_instruction() -> None:
    for function in Problem(6, 7, 64, "bias relu").case(target_named("qemu")).kernel.functions:
        assert ".insn" not in function.text
        assert not re.search(r"^\s*[pv]+\.", function.text, re.MULTILINE)


@pytest.mark.parametrize("k", range(1, 40))
def test_every_step_is_done_once(k: int) -> None:
    """Multiplications and multiply-adds, counted with their loops."""
    (function, *_) = Problem(4, 4, k, "none").case(target_named("spike")).kernel.functions
    iterations = loop_iterations(k)
    total = sum(line.startswith(("fmadd.s", "fmul.s")) for line in lines(function.text))
    if iterations:
        total += (iterations - 1) * 16 * STEPS
        assert 1 <= k - 1 - STEPS * iterations <= 2
    else:
        assert k <= UNROLLED
    assert total == 16 * k


@pytest.mark.parametrize("rows", range(1, 5))
@pytest.mark.parametrize("columns", range(1, 5))
@pytest.mark.parametrize("kind", [schedule, integer_schedule])
def test_schedules(kind: Callable[[int, int], Schedule], rows: int, columns: int) -> None:
    """Each product once per step; each operand loaded once, before its use, after the last use of what it replaces."""
    found = kind(rows, columns)
    products = [(x.row, x.column) for x in found.step if x.kind == "fma"]
    assert sorted(products) == [(i, j) for i in range(rows) for j in range(columns)]
    for kind, count in (("a", rows), ("w", columns)):
        lanes = [x.row if kind == "a" else x.column for x in found.step if x.kind == kind]
        assert sorted(lanes) == list(range(count))
    assert [x.column for x in found.step if x.kind == "w"][-1] == 0
    assert found.registers <= 28
    loaded = {(x.kind, x.row if x.kind == "a" else x.column, 0) for x in found.before}
    for step in (0, 1, 2):
        for place, action in enumerate(found.step):
            if action.kind == "fma":
                assert ("a", action.row, step) in loaded
                assert ("w", action.column, step) in loaded
                continue
            lane = action.row if action.kind == "a" else action.column
            key = (action.kind, lane, step + action.ahead)
            assert key not in loaded
            loaded.add(key)
            in_place = found.in_place_rows if action.kind == "a" else found.in_place_columns
            if lane in in_place and action.ahead:
                later = [x for x in found.step[place:] if x.kind == "fma"]
                assert lane not in [x.row if action.kind == "a" else x.column for x in later]


@pytest.mark.parametrize("rows", range(1, 5))
@pytest.mark.parametrize("columns", range(1, 5))
def test_integer_schedules(rows: int, columns: int) -> None:
    """What a step loads last is not what the next one begins with: that would take a cycle more. Operands have two registers only
    where a body of two steps lets them alternate."""
    found = integer_schedule(rows, columns)
    last, first = found.step[-1], found.step[0]
    assert (last.kind, first.kind) in (("a", "fma"), ("w", "fma"))
    if (rows, columns) != (1, 1):
        begun = first.row if last.kind == "a" else first.column
        assert begun != (last.row if last.kind == "a" else last.column)
    in_place = len(found.in_place_rows) + len(found.in_place_columns)
    assert in_place == (rows + columns if found.steps == 1 else 0)
    if (rows, columns) == (4, 4):
        assert (found.registers, found.steps) == (24, 1)


# region the cost model


def test_the_block_that_is_chosen() -> None:
    """4 x 4 wherever there are four rows: the fewest instructions per multiply-accumulate."""
    for isa in (ZFINX, FLOAT, PLAIN):
        for stride in (4, 256, 1024, 1028, 4096, 40000):
            chosen = cost.ranked(isa, 9, stride, (1, 1), SPIKE.fpus)[0]
            assert chosen.name == "4x4", (isa.name, stride)
            assert chosen.fits
        for m in (1, 2, 3):
            assert cost.ranked(isa, m, 256, (1, 1), SPIKE.fpus)[0].rows == m


def test_blocks_that_share_evenly() -> None:
    """Where whole blocks of four rows leave one core with clearly more than the others, blocks are smaller."""
    expected = {
        (6, (2, 1)): "3x4",
        (9, (3, 1)): "3x4",
        (5, (2, 4)): "3x4",
        (7, (2, 4)): "4x4",
        (32, (8, 1)): "4x4",
        # A pair of cores has 52 rows, or 51 in blocks of 3: not worth the loads.
        (196, (8, 1)): "4x4",
        (2, (2, 1)): "1x4",
    }
    for (m, parts), name in expected.items():
        assert cost.ranked(ZFINX, m, 256, parts, SPIKE.fpus)[0].name == name, (m, parts)
    # Three cores do not share FPUs; eight do.
    assert SPIKE.fpus == 4 and QEMU.fpus == 1
    assert cost.busiest_core(ZFINX, 9, 256, 4, (3, 1), SPIKE.fpus) == 4 * 1.5
    assert cost.busiest_core(ZFINX, 9, 256, 4, (1, 1), SPIKE.fpus) == 8 * 1.5 + 2.25
    assert cost.busiest_core(ZFINX, 32, 256, 4, (8, 1), SPIKE.fpus) == 8
    assert cost.busiest_core(ZFINX, 196, 256, 4, (8, 1), SPIKE.fpus) == 52
    assert cost.busiest_core(ZFINX, 8, 256, 4, (2, 4), SPIKE.fpus) == 8
    kernel = Problem(6, 8, 16, split=(2, 1)).case(target_named("spike")).kernel
    assert kernel.facts["block"] == "3x4"
    assert kernel.facts["busiest_core"] == {"1x4": 6.75, "2x4": 7.0, "3x4": 4.75, "4x4": 6.0}


def test_addressing() -> None:
    """One pointer while offsets of 12 bits reach all rows; beyond, one that walks over them, or several."""
    assert cost.block(ZFINX, 4, 4, 256 * 4).addressing == "offset"
    assert cost.block(ZFINX, 4, 4, 257 * 4).addressing == "walk"
    assert cost.block(ZFINX, 4, 4, 256 * 4).integer_registers == 28
    assert cost.block(ZFINX, 4, 4, 257 * 4).integer_registers == 30
    assert cost.block(FLOAT, 4, 4, 256).float_registers == 26
    assert OffsetReader.base_row(4, 1024) == 1
    assert OffsetReader.base_row(4, 500) == 0
    assert OffsetReader.base_row(4, 1028) is None
    for stride in (16, 600, 1000, 1500, 2000, 3000):
        starts, places = PointersReader.places(4, stride)
        assert len(places) == 4
        for row, (pointer, offset) in enumerate(places):
            assert starts[pointer] + offset == row * stride
            assert -2048 <= offset < 2048 - 64


def test_an_override() -> None:
    kernel = Problem(8, 8, 16, block=(2, 4)).case(target_named("spike")).kernel
    assert kernel.facts["block"] == "2x4"
    assert [f.symbol for f in kernel.functions] == ["leaf_2x4"]
    with pytest.raises(
        CannotGenerate, match=r"qmm.block = \[5, 4\]: for 8 rows there are 4x4, 3x4"
    ):
        Problem(8, 8, 16, block=(5, 4)).case(target_named("spike"))


def wide(terms: int) -> str:
    """An epilogue that holds `terms` values of each element at once."""
    products = [f"%t{i} = arith.mulf %acc, %x0 : f32" for i in range(terms)]
    sums = [f"%s{i} = arith.addf %{f's{i - 1}' if i else 'acc'}, %t{i} : f32" for i in range(terms)]
    body = "\n".join([*products, *sums])
    return Problem(4, 4, 2, "bias").text.replace(
        "%r = arith.addf %acc, %x0 : f32", f"{body}\n%r = arith.addf %s{terms - 1}, %acc : f32"
    )


def test_an_epilogue_that_needs_many_registers() -> None:
    """Fewer rows leave registers for it, until no block does."""

    def kernel(terms: int) -> GeneratedKernel:
        (function,) = (o for o in leaf_module(wide(terms)).walk() if isinstance(o, func.FuncOp))
        buffers = Problem(4, 4, 2, "bias").case(target_named("spike")).buffers
        named = dict(zip(function.body.block.args, buffers, strict=True))
        return packed_matmul.generate(LeafKernel(function, "leaf", target_named("spike"), named))

    assert kernel(6).facts["block"] == "4x4"
    assert kernel(16).facts["block"] == "3x4"
    assert kernel(20).facts["block"] == "2x4"
    with pytest.raises(CannotGenerate, match="more values at once than registers: 4x4, 3x4, 2x4"):
        kernel(40)


# endregion
# region the driver and the report


def test_functions_are_those_that_are_needed() -> None:
    def blocks(m: int, n: int) -> list[str]:
        kernel = Problem(m, n, 6).case(target_named("spike")).kernel
        assert [p.split("(")[0] for p in kernel.prototypes] == [
            f"void {f.symbol}" for f in kernel.functions
        ]
        return [f.symbol.removeprefix("leaf_") for f in kernel.functions]

    assert blocks(8, 8) == ["4x4"]
    assert blocks(7, 5) == ["4x4", "4x1", "3x4", "3x1"]
    assert blocks(2, 3) == ["2x3"]
    assert blocks(3, 12) == ["3x4"]


def test_facts() -> None:
    kernel = Problem(32, 64, 64).case(target_named("spike")).kernel
    assert kernel.facts["block"] == "4x4"
    assert kernel.facts["block_instructions_per_mac"] == 1.5
    assert 1.5 < cast(float, kernel.facts["instructions_per_mac"]) < 1.56
    (function,) = kernel.functions
    words = [x for x in lines(function.text) if re.match(r"(\.insn|[a-z])[^:]*$", x)]
    assert function.code_bytes == 4 * len(words)


def test_by_the_kernel_table() -> None:
    """`generate` finds the generator that `qmm.kernel` names."""
    wanted = {k.name for k in target_named("spike").kernels if k.name.startswith("riscv.")}
    assert wanted <= set(GENERATORS)
    text = Problem(4, 4, 4, "none").text.replace(
        "attributes {", 'attributes {qmm.kernel = "riscv.packed_matmul"'
    )
    (function,) = (o for o in leaf_module(text).walk() if isinstance(o, func.FuncOp))
    problem = Problem(4, 4, 4, "none").case(target_named("spike"))
    named = dict(zip(function.body.block.args, problem.buffers, strict=True))
    kernel = generate(function, "leaf", target_named("spike"), named)
    assert kernel.assembly == problem.kernel.assembly


# endregion
# region refusals


def refused(text: str, target: str = "spike") -> str:
    (function,) = (o for o in leaf_module(text).walk() if isinstance(o, func.FuncOp))
    problem = Problem(4, 4, 4, "bias")
    buffers = problem.case(target_named("spike")).buffers
    named = dict(zip(function.body.block.args, buffers, strict=True))
    with pytest.raises(ValueError) as error:
        packed_matmul.generate(LeafKernel(function, "leaf", target_named(target), named))
    return str(error.value)


def test_refusals() -> None:
    text = Problem(4, 4, 4, "bias").text
    divides = text.replace("arith.addf %acc, %x0", "arith.divf %acc, %x0")
    assert re.search(r"computes arith\.divf; .*arith\.addf, arith\.mulf", refused(divides))
    assert "names no instruction set" in refused(text, "threads")


def test_nothing_to_compute() -> None:
    """No rows or no columns: no code. No sum at all is refused, as no kernel starts from 0."""
    for m, n in ((0, 4), (4, 0)):
        kernel = Problem(m, n, 4, "none").case(target_named("spike")).kernel
        assert (kernel.driver, kernel.functions) == ((), ())
    with pytest.raises(CannotGenerate, match="nothing to add up"):
        Problem(4, 4, 0, "none").case(target_named("spike"))


def test_rows_of_a_are_contiguous() -> None:
    problem = Problem(4, 4, 4, "none")
    operand = problem.operands["a"]
    problem.operands["a"] = type(operand)(operand.array, (1, 4))
    with pytest.raises(CannotGenerate, match="rows must be contiguous"):
        problem.case(target_named("spike"))


# endregion
