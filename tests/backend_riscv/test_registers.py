"""Register allocation and frames of generated functions: no two live values in one register, everything saved that must be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects import riscv_func
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.riscv import ops as riscv
from xdsl.dialects.riscv.registers import Registers
from xdsl.ir import Block, SSAValue

from qfold.backend.riscv.builder import FunctionBuilder
from qfold.backend.riscv.emit import (
    Stage,
    _parallel_moves,  # pyright: ignore[reportPrivateUsage]
    finish,
    observing,
)
from qfold.backend.riscv.registers import (
    CALLEE_SAVED,
    FLOAT_POOL,
    INTEGER_POOL,
    OutOfRegisters,
    allocate,
)
from qfold.dialects.riscv_pulp.hwloop import HardwareLoopOperation
from qfold.targets import target_named
from qfold.targets.isa import FLOAT, PLAIN, ZFINX
from tests.backend_riscv.harness import Case
from tests.backend_riscv.on_spike import needs_spike, run_on_spike
from tests.backend_riscv.packed import ALL_EPILOGUES, Problem


def simulate(block: Block, registers: dict[object, object]) -> None:
    """Execute a block symbolically, each loop three times: a register holds the value that was written last, and a value that is
    read must still be there."""
    for op in block.ops:
        reads = list(op.operands)
        for value in reads:
            held = registers.get(value.type, value)
            assert value.type == Registers.ZERO or held is value, f"{op} reads a lost {value}"
        if isinstance(op, HardwareLoopOperation):
            body = op.body.block
            for arg in body.args:
                registers[arg.type] = arg
            for _ in range(3):
                simulate(body, registers)
                for arg, yielded in zip(body.args, op.yielded(), strict=True):
                    assert registers[arg.type] is yielded
                    registers[arg.type] = arg
        for result in op.results:
            registers[result.type] = result


def allocated(b: FunctionBuilder) -> riscv_func.FuncOp:
    b.emit(riscv_func.ReturnOp())
    module = ModuleOp([b.function])
    allocate(b.function, b.ties)
    module.verify()
    return b.function


@pytest.mark.parametrize("epilogue", ALL_EPILOGUES)
@pytest.mark.parametrize("k", [1, 8, 600])
def test_no_value_is_lost(epilogue: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of a kernel with whole blocks and tails, run symbolically after allocation."""
    seen: list[riscv_func.FuncOp] = []

    def remember(
        function: riscv_func.FuncOp, ties: Sequence[tuple[SSAValue, SSAValue]] = ()
    ) -> object:
        used = allocate(function, ties)
        block = function.body.block
        simulate(block, {a.type: a for a in block.args})
        seen.append(function)
        return used

    monkeypatch.setattr("qfold.backend.riscv.emit.allocate", remember)
    Problem(6, 7, k, epilogue).case(target_named("spike"))
    assert len(seen) == 4


def test_the_inner_loop_uses_every_register_at_most() -> None:
    """A block of 4 x 4 whose rows are too far apart for offsets: 30 values are alive, and there are 30 registers."""
    assert len(INTEGER_POOL) == 30
    (function, *_) = Problem(4, 8, 600).case(target_named("spike")).kernel.functions
    assert set(function.registers) == {r.register_name for r in INTEGER_POOL}
    assert set(function.saved) == {r.register_name for r in CALLEE_SAVED if r not in Registers.FS}
    assert function.frame_bytes % 16 == 0


def test_too_many_values() -> None:
    b = FunctionBuilder("f", ZFINX, ["p"])
    values = [b.lw(b.arguments["p"], 4 * i) for i in range(31)]
    for value in values:
        b.sw(value, b.zero, 0)
    with pytest.raises(OutOfRegisters, match=r"f: up to .*'integer': 3[12]"):
        finish(b)


def test_an_observer_sees_both_stages() -> None:
    seen: list[tuple[Stage, str]] = []
    b = FunctionBuilder("f", ZFINX, ["p"])
    b.sw(b.lw(b.arguments["p"]), b.arguments["p"], 4)
    with observing(lambda stage, function: seen.append((stage, str(function)))):
        finish(b)
    assert [stage for stage, _ in seen] == ["built", "allocated"]
    built, allocated = (text for _, text in seen)
    assert "riscv.lw %p, 0 : (!riscv.reg) -> !riscv.reg\n" in built
    assert re.search(r"riscv.lw %p, 0 : \(!riscv.reg<a0>\) -> !riscv.reg<t0>", allocated)
    # Only while it is asked for.
    other = FunctionBuilder("g", ZFINX, ["p"])
    finish(other)
    assert len(seen) == 2


def test_holes_are_used() -> None:
    """A carried value that is dead from its last use on lends its register until the next one is there."""
    b = FunctionBuilder("f", ZFINX, ["p"])
    p = b.arguments["p"]
    held = [b.lw(p, 4 * i) for i in range(27)]
    carried = b.lw(p, 0)
    with b.loop(5, [carried]) as loop:
        (x,) = loop.args
        b.sw(x, p, 0)
        for _ in range(3):
            temporary = b.lw(p, 4)
            other = b.lw(p, 8)
            b.sw(temporary, p, 4)
            b.sw(other, p, 8)
        loop.yield_(b.lw(p, 12))
    for value in (*held, *loop.results):
        b.sw(value, p, 0)
    function = allocated(b)
    simulate(function.body.block, {a.type: a for a in function.body.block.args})


def test_ties() -> None:
    b = FunctionBuilder("f", ZFINX, ["p"])
    first = b.lw(b.arguments["p"])
    b.sw(first, b.arguments["p"])
    second = b.lw(b.arguments["p"], 4)
    b.tie(first, second)
    b.sw(second, b.arguments["p"])
    loads = [op for op in allocated(b).body.block.ops if isinstance(op, riscv.LwOp)]
    assert loads[0].rd.type == loads[1].rd.type
    b = FunctionBuilder("f", ZFINX, ["p"])
    first, second = b.lw(b.arguments["p"]), b.lw(b.arguments["p"], 4)
    b.sw(first, b.arguments["p"])
    b.sw(second, b.arguments["p"])
    b.tie(first, second)
    with pytest.raises(AssertionError, match="at the same time"):
        allocated(b)


def test_arguments_move_all_at_once() -> None:
    """Permutations of the argument registers, cycles among them: the moves of the prologue read each before it is overwritten."""
    registers = Registers.A[:4]
    for order in itertools.permutations(range(4)):
        moves = {registers[i]: registers[j] for i, j in enumerate(order)}
        ops, used = _parallel_moves(moves, 32)
        content: dict[object, object] = {r: r for r in (*registers, Registers.SP)}
        for op in ops:
            match op:
                case riscv.MVOp():
                    content[op.rd.type] = content[op.rs.type]
                case riscv.SwOp():
                    assert used
                    content["scratch"] = content[op.rs2.type]
                case riscv.LwOp():
                    content[op.rd.type] = content["scratch"]
                case _:
                    assert not op.operands
        assert all(content[d] == s for d, s in moves.items()), order


@pytest.mark.parametrize("isa", [FLOAT, PLAIN])
def test_saved_float_registers(isa: object) -> None:
    """fs0 ... come back by the instructions of their own width."""
    assert isa in (FLOAT, PLAIN)
    b = FunctionBuilder("f", isa, ["p"])  # type: ignore[arg-type]
    values = [b.fload(b.arguments["p"], 4 * i) for i in range(len(FLOAT_POOL))]
    for value in values:
        b.fstore(value, b.arguments["p"])
    function = finish(b)
    saved = [f"fs{i}" for i in range(12)]
    assert list(function.saved) == saved
    for register in saved:
        (offset,) = re.findall(rf"fsw {register}, (\d+)\(sp\)", function.text)
        assert f"flw {register}, {offset}(sp)" in function.text
    assert function.frame_bytes == 48


@needs_spike
@pytest.mark.parametrize("target", ["spike", "spike:isa=f"])
def test_callers_keep_their_registers(target: str, tmp_path: Path) -> None:
    """ra, sp, gp, tp and s0 to s11 are as before a call, and arguments on the stack arrive."""
    machine = target_named(target)
    case = Problem(4, 8, 9, "many").case(machine, "k")
    names = ["ra", "sp", "gp", "tp", *(f"s{i}" for i in range(12))]
    (function,) = case.kernel.functions
    assert len(function.registers) > 20
    # A wrapper with the symbol of the function, which compares all of them before it returns.
    real = f"{function.symbol}_real"
    save = "\n".join(f"    la t0, kept\n    sw {r}, {4 * i}(t0)" for i, r in enumerate(names))
    compare = "\n".join(
        f"    la t0, kept\n    lw t1, {4 * i}(t0)\n    bne t1, {r}, 1f"
        for i, r in enumerate(names)
        if r != "ra"
    )
    wrapper = f"""
.bss
kept: .space 64
returns: .space 4
.text
.globl {function.symbol}
.type {function.symbol}, @function
{function.symbol}:
    la t0, returns
    sw ra, 0(t0)
{save}
    call {real}
{compare}
    la t0, returns
    lw ra, 0(t0)
    ret
1:  ebreak
"""
    text = function.text.replace(f"{function.symbol}", real) + wrapper
    changed = Case(_Text(case.kernel, text), case.buffers, case.operands)  # type: ignore[arg-type]
    runs, _ = run_on_spike([changed], machine, tmp_path)
    Problem(4, 8, 9, "many").check(runs[0].outputs["y"])
    assert np.isfinite(runs[0].outputs["y"]).all()


class _Text:
    """A kernel with other assembly."""

    def __init__(self, kernel: object, assembly: str):
        self._kernel = kernel
        self.assembly = assembly

    def __getattr__(self, name: str) -> object:
        return getattr(self._kernel, name)
