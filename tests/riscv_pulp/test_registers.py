"""Register allocation: tied operands, loop-carried values, and what the liveness analysis sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.backend.liveness import VerifyLivenessContext
from xdsl.backend.riscv.lowering.convert_riscv_scf_to_riscv_cf import ConvertRiscvScfToRiscvCfPass
from xdsl.dialects import riscv_func
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreters.utils.ptr import RawPtr
from xdsl.transforms.dead_code_elimination import DeadCodeElimination
from xdsl.transforms.riscv_allocate_registers import RISCVAllocateRegistersPass
from xdsl.utils.exceptions import DiagnosticException, VerifyException

from qfold.dialects.riscv_pulp import alu, hwloop, memory
from qfold.transforms.riscv_pulp_desugar import RiscvPulpDesugarPass
from tests.riscv_pulp.support import (
    assemble,
    interpret,
    needs_assembler,
    parse,
    printed,
    run_passes,
)

R = "!riscv.reg"
A0, A1, A2 = (f"!riscv.reg<a{i}>" for i in range(3))

DOT = f"""
riscv_func.func @f(%a : {A0}, %b : {A1}, %n : {A2}) -> {A0} {{
  %p = riscv.mv %a : ({A0}) -> {R}
  %q = riscv.mv %b : ({A1}) -> {R}
  %count = riscv.mv %n : ({A2}) -> {R}
  %zero = rv32.li 0 : {R}
  %start = rv32.li 0 : {R}
  %s, %t, %pe, %qe = riscv_pulp.lp_setup 0, %count : {R}
      iter_args(%acc = %zero, %sum = %start, %pi = %p, %qi = %q) -> ({R}, {R}, {R}, {R}) {{
    %l, %p1 = riscv_pulp.lw_post %pi, 4 : ({R}) -> ({R}, {R})
    %r, %q1 = riscv_pulp.lw_post %qi, 4 : ({R}) -> ({R}, {R})
    %acc1 = riscv_pulp.sdotsp.b %acc, %l, %r : ({R}, {R}, {R}) -> {R}
    %sum1 = riscv_pulp.sdotup.b %sum, %l, %r : ({R}, {R}, {R}) -> {R}
    riscv_pulp.yield %acc1, %sum1, %p1, %q1 : {R}, {R}, {R}, {R}
  }}
  %total = riscv.sub %s, %t : ({R}, {R}) -> {A0}
  riscv_func.return %total : {A0}
}}
"""


def allocate(module: ModuleOp) -> ModuleOp:
    return run_passes(module, RISCVAllocateRegistersPass())


def function(module: ModuleOp) -> riscv_func.FuncOp:
    (found,) = (op for op in module.walk() if isinstance(op, riscv_func.FuncOp))
    return found


def test_allocated_kernel() -> None:
    """
    Every tied pair has one register, and the interpreter, which compares each value with its register's content, still finds
    the same result: nothing was overwritten too early.
    """
    module = parse(DOT)
    allocated = allocate(module)
    tied = 0
    for op in allocated.walk():
        if isinstance(op, memory.PostIncrementOperation):
            assert op.pointer.type == op.pointer_out.type
            tied += 1
        if isinstance(op, alu.AccumulateOperation):
            assert op.rd_in.type == op.rd_out.type
            tied += 1
    assert tied == 4
    a = bytearray(bytes([1, 2, 255, 128, 7, 0, 200, 9]))
    b = bytearray(bytes([3, 254, 1, 127, 2, 1, 100, 255]))
    signed = sum((x - 256 * (x > 127)) * (y - 256 * (y > 127)) for x, y in zip(a, b, strict=True))
    unsigned = sum(x * y for x, y in zip(a, b, strict=True))
    expected = ((signed - unsigned) & 0xFFFFFFFF,)
    assert interpret(module, RawPtr(a), RawPtr(b), 2) == expected
    assert interpret(allocated, RawPtr(a), RawPtr(b), 2) == expected


def test_registers_of_a_loop() -> None:
    """Carried values are in different registers; the count's register is free inside of the body."""
    allocated = allocate(parse(DOT))
    (loop,) = (op for op in allocated.walk() if isinstance(op, hwloop.LpSetupOp))
    carried = [value.type for value in loop.iter_args]
    assert len(set(carried)) == 4
    assert carried == [v.type for v in loop.body.block.args] == [v.type for v in loop.res]
    temporaries = {op.rd.type for op in loop.body.block.ops if isinstance(op, memory.LwPostOp)}
    assert loop.count.type in temporaries
    assert not temporaries & set(carried)


def test_zero_is_not_an_accumulator() -> None:
    """xDSL gives a constant 0 that is only read the register x0. An accumulator that starts at 0 needs one of its own."""
    allocated = allocate(parse(DOT))
    (loop,) = (op for op in allocated.walk() if isinstance(op, hwloop.LpSetupOp))
    assert all(value.type.register_name != "zero" for value in loop.res)  # type: ignore[union-attr]


def test_liveness() -> None:
    """xDSL's own liveness verification accepts the kernel."""
    VerifyLivenessContext(alive=set()).process_block(function(parse(DOT)).body.block)


@pytest.mark.parametrize(
    "after",
    [
        f"%again = riscv.addi %zero, 1 : ({R}) -> {R}",
        f"%again = riscv.addi %p, 1 : ({R}) -> {R}",
    ],
)
def test_reading_an_overwritten_register(after: str) -> None:
    """Found by the op's verifier, and by xDSL's liveness verification through the same constraints."""
    text = DOT.replace("  %total", f"  {after}\n  %total")
    with pytest.raises(VerifyException, match=r"is overwritten here and read again by riscv\.addi"):
        parse(text)
    module = parse(text, verify=False)
    with pytest.raises((VerifyException, DiagnosticException), match="in/out"):
        VerifyLivenessContext(alive=set()).process_block(function(module).body.block)


def test_a_loop_must_not_lose_what_it_uses_again() -> None:
    """A value from outside that the body overwrites is gone in the second iteration."""
    text = DOT.replace("iter_args(%acc = %zero, ", "iter_args(").replace("%s, %t,", "%t,")
    text = text.replace("sdotsp.b %acc,", "sdotsp.b %zero,").replace("yield %acc1, ", "yield ")
    text = text.replace("(!riscv.reg, !riscv.reg, !riscv.reg, !riscv.reg) {", f"({R}, {R}, {R}) {{")
    text = text.replace(f"%q1 : {R}, {R}, {R}, {R}", f"%q1 : {R}, {R}, {R}").replace(
        "sub %s,", "sub %t,"
    )
    with pytest.raises(VerifyException, match="defined outside of this block"):
        parse(text)
    with pytest.raises((VerifyException, DiagnosticException), match="in/out"):
        VerifyLivenessContext(alive=set()).process_block(
            function(parse(text, verify=False)).body.block
        )


def test_dead_code() -> None:
    """Arithmetic and loads that nobody needs go; stores, event loads and loops that store stay."""
    module = parse(
        f"""
        riscv_func.func @f(%p : {R}, %q : {R}, %r : {R}, %x : {R}, %y : {R}) {{
          %a = riscv_pulp.dotsp.b %x, %y : ({R}, {R}) -> {R}
          %e = riscv_pulp.elw %y, 0 : ({R}) -> {R}
          %b = riscv_pulp.mac %x, %y, %y : ({R}, {R}, {R}) -> {R}
          %l, %p1 = riscv_pulp.lw_post %p, 4 : ({R}) -> ({R}, {R})
          %q1 = riscv_pulp.sw_post %q, %y, 4 : ({R}, {R}) -> {R}
          %r1 = riscv_pulp.lp_setupi 0, 8 iter_args(%r0 = %r) -> ({R}) {{
            %r2 = riscv_pulp.sb_post %r0, %y, 4 : ({R}, {R}) -> {R}
            %r3 = riscv_pulp.sb_post %r2, %y, 4 : ({R}, {R}) -> {R}
            %r4 = riscv_pulp.sb_post %r3, %y, 4 : ({R}, {R}) -> {R}
            riscv_pulp.yield %r4 : {R}
          }}
          riscv_func.return
        }}
        """
    )
    left = run_passes(module, DeadCodeElimination())
    names = [op.name.removeprefix("riscv_pulp.") for op in function(left).body.block.ops]
    assert names == ["elw", "sw_post", "lp_setupi", "riscv_func.return"]


@needs_assembler
def test_desugared_kernel_is_plain_rv32(tmp_path: Path) -> None:
    """The whole way down to words, none of which is in an opcode that XpulpV2 uses, nor M's funct7 with another meaning."""
    lowered = run_passes(
        parse(DOT),
        RiscvPulpDesugarPass(),
        RISCVAllocateRegistersPass(),
        ConvertRiscvScfToRiscvCfPass(),
    )
    words = assemble(printed(lowered), tmp_path)
    assert len(words) > 30
    opcodes = {word & 0x7F for word in words}
    assert opcodes <= {0x03, 0x13, 0x33, 0x63, 0x67}
    funct7 = {word >> 25 for word in words if word & 0x7F == 0x33}
    assert funct7 <= {0x00, 0x01, 0x20}
