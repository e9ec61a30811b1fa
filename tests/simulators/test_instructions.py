"""Every instruction of the dialect on Spike, against the interpreter, with values at the edges of what registers hold."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreters.utils.ptr import RawPtr
from xdsl.ir import Operation

from qfold.dialects.riscv_pulp import RISCV_PULP, alu, dot, hwloop, memory
from tests.riscv_pulp.support import interpret, listing, parse, reg, value
from tests.simulators.support import BOTH, SOURCES, Machine, needs_spike

OPS: dict[str, type[Operation]] = {
    op.name.removeprefix("riscv_pulp."): op for op in RISCV_PULP.operations
}
R = "!riscv.reg"
AT = 8
"""Where in the program's memory accesses begin."""
MEMORY = bytes((j * 37 + 129) & 0xFF for j in range(32))

EDGES = (0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x80FF7F01, 0x7FFF8000)
FIELDS = ((1, 0), (1, 31), (8, 15), (9, 16), (32, 0), (31, 1), (7, 3))
"""Bits and position."""
SHIFTS = (0, 1, 7, 31)
CLIPS = (0, 1, 2, 8, 14, 31)
STEPS = (0, 1, -1, 4, 2047, -2048)


@dataclass(frozen=True)
class Case:
    """One op with its immediates: what it is called, how it is written for the machine, and what the interpreter makes of it."""

    name: str
    assembly: tuple[str, ...]
    """a0 = f(a0, a1, a2); for an access also a1, the pointer's offset from a3."""
    module: ModuleOp
    operands: tuple[int, ...]
    """Which of the three arguments are the op's registers, in its order."""
    kind: type[Operation]


def arithmetic(name: str, *immediates: int) -> Case:
    op = OPS[name]
    a0, a1, a2 = value("a0"), value("a1"), value("a2")
    if issubclass(op, alu.InsertOp):
        sample, operands = op(a0, a1, *immediates), (0, 1)
        immediates = (immediates[0] - 1, immediates[1])
    elif issubclass(op, alu.AccumulateOperation | dot.DotAccumulateOperation):
        sample, operands = op(a0, a1, a2), (0, 1, 2)
    elif issubclass(op, alu.AddnOp):
        sample, operands = op(a1, a2, *immediates, rd=reg("a0")), (1, 2)
    elif issubclass(op, alu.BinaryOperation | dot.DotOperation):
        sample, operands = op(a1, a2, rd=reg("a0")), (1, 2)
    elif issubclass(op, alu.BitFieldOperation):
        sample, operands = op(a1, *immediates, rd=reg("a0")), (1,)
        immediates = (immediates[0] - 1, immediates[1])
    else:
        sample, operands = op(a1, *immediates, rd=reg("a0")), (1,)
    names = [f"%x{i}" for i in range(len(operands))]
    text = f"riscv_pulp.{name} {', '.join([*names, *map(str, immediates)])}"
    module = parse(
        f"""
        riscv_func.func @f({", ".join(f"{n} : {R}" for n in names)}) -> {R} {{
          %r = {text} : ({", ".join([R] * len(names))}) -> {R}
          riscv_func.return %r : {R}
        }}
        """
    )
    label = "_".join([name, *map(str, immediates)])
    return Case(label, (*listing([sample], insn=True), "li a1, 0"), module, operands, op)


def access(name: str, step: int | None) -> Case:
    """`step` None: in a register. %v is the stored value."""
    op = OPS[name]
    a0, a1, a2 = value("a0"), value("a1"), value("a2")
    loads = issubclass(op, memory.PostIncrementLoadOperation)
    by = "%s" if step is None else str(step)
    types = [R] * (1 + (not loads) + (step is None))
    if loads:
        sample = op(a1, a2 if step is None else step, rd=reg("a0"))
        text = f"%r, %q = riscv_pulp.{name} %p, {by} : ({', '.join(types)}) -> ({R}, {R})"
        result = "%r"
    else:
        sample = op(a1, a0, a2 if step is None else step)
        text = f"%q = riscv_pulp.{name} %p, %v, {by} : ({', '.join(types)}) -> {R}"
        result = "%v"
    module = parse(
        f"""
        riscv_func.func @f(%v : {R}, %p : {R}, %s : {R}) -> ({R}, {R}) {{
          {text}
          riscv_func.return {result}, %q : {R}, {R}
        }}
        """
    )
    assembly = (f"addi a1, a3, {AT}", *listing([sample], insn=True), "sub a1, a1, a3")
    return Case(f"{name}_{'reg' if step is None else step}", assembly, module, (0, 1, 2), op)


def elw() -> Case:
    sample = memory.ElwOp(value("a3"), AT, rd=reg("a0"))
    module = parse(
        f"""
        riscv_func.func @f(%v : {R}, %p : {R}, %s : {R}) -> ({R}, {R}) {{
          %r = riscv_pulp.elw %p, 0 : ({R}) -> {R}
          riscv_func.return %r, %p : {R}, {R}
        }}
        """
    )
    assembly = (*listing([sample], insn=True), f"li a1, {AT}")
    return Case("elw", assembly, module, (0, 1, 2), memory.ElwOp)


def cases() -> Iterator[Case]:
    for name, op in OPS.items():
        if issubclass(op, hwloop.HardwareLoopOperation | hwloop.YieldOp):
            continue  # test_loops.py
        if issubclass(op, memory.NarrowLoadOperation | memory.NarrowStoreOperation):
            continue  # RV32I
        if op is memory.ElwOp:
            yield elw()
        elif issubclass(op, memory.PostIncrementOperation):
            for step in (None,) if name.endswith("_reg") else STEPS:
                yield access(name, step)
        elif issubclass(op, alu.ClipOperation):
            yield from (arithmetic(name, i) for i in CLIPS)
        elif issubclass(op, alu.AddnOp):
            yield from (arithmetic(name, i) for i in SHIFTS)
        elif issubclass(op, alu.BitFieldOperation | alu.InsertOp):
            yield from (arithmetic(name, *field) for field in FIELDS)
        else:
            yield arithmetic(name)


def lines() -> list[tuple[int, int, int]]:
    """a, b, c: all pairs of edges as b and c, and some random words."""
    rng = random.Random(1)
    edges = [
        (EDGES[(i + j) % len(EDGES)], b, c)
        for i, b in enumerate(EDGES)
        for j, c in enumerate(EDGES)
    ]
    return edges + [tuple(rng.getrandbits(32) for _ in range(3)) for _ in range(12)]  # pyright: ignore


def expected(case: Case, line: tuple[int, int, int]) -> tuple[int, int, bytes]:
    if not issubclass(case.kind, memory.PostIncrementOperation | memory.ElwOp):
        (result,) = interpret(case.module, *(line[i] for i in case.operands))
        return result, 0, MEMORY
    buffer = bytearray(MEMORY)
    a, _, c = line
    result, pointer = interpret(case.module, a, RawPtr(buffer, offset=AT), c)
    return result, pointer.offset & 0xFFFFFFFF, bytes(buffer)


ALL = list(cases())


def write_assembly(path: Path) -> None:
    names = [f"case_{i}" for i in range(len(ALL))]
    text = [".text", ".option norvc"]
    for name, case in zip(names, ALL, strict=True):
        text += [f"{name}:", *case.assembly, "ret"]
    text += [".section .rodata", ".balign 4", ".globl instructions, instructions_count"]
    text += ["instructions:", *(f".word {n}" for n in names)]
    text += [f"instructions_count: .word {len(names)}"]
    path.write_text("\n".join(text) + "\n")


def test_every_instruction_is_here() -> None:
    tested = {c.kind for c in ALL}
    rv32i = (memory.NarrowLoadOperation, memory.NarrowStoreOperation)
    loops = (hwloop.HardwareLoopOperation, hwloop.YieldOp)
    assert tested == {op for op in OPS.values() if not issubclass(op, (*rv32i, *loops))}


@pytest.mark.parametrize("target", BOTH)
def test_instructions(tmp_path: Path, target: str) -> None:
    needs_spike()
    assembly = tmp_path / "cases.S"
    write_assembly(assembly)
    machine = Machine(tmp_path / "out", f"{target},cores=1" if ":" in target else f"{target}:cores=1",
                      SOURCES / "instructions.c", assembly)  # fmt: skip
    # The interpreter is slow: the second instruction set, whose integer part is the same, gets fewer lines.
    given = lines() if target == BOTH[0] else lines()[::7]
    arguments, results = tmp_path / "arguments.bin", tmp_path / "results.bin"
    arguments.write_bytes(b"".join(struct.pack("<3I", *line) for line in given))
    done = machine.run(str(arguments), str(results))
    assert done.exit_code == 0, done.messages
    raw = results.read_bytes()
    rows = [struct.unpack_from("<2I32s", raw, at) for at in range(0, len(raw), 40)]
    assert len(rows) == len(ALL) * len(given)
    wrong = [
        (case.name, [hex(x) for x in line], row, want)
        for (case, line), row in zip(((c, li) for c in ALL for li in given), rows, strict=True)
        if row != (want := expected(case, line))
    ]
    assert not wrong, f"{len(wrong)} of {len(rows)}: {wrong[:5]}"
