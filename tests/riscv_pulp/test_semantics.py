"""What each op computes: the interpreter and the desugared code, against vectors from outside and against each other."""

from __future__ import annotations

import random

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreters.utils.ptr import RawPtr
from xdsl.utils.exceptions import DiagnosticException, InterpretationError

from qfold.dialects.riscv_pulp import RISCV_PULP, alu, dot
from qfold.interpreters.riscv_pulp import RiscvPulpFunctions
from qfold.transforms.riscv_pulp_desugar import RiscvPulpDesugarPass
from tests.riscv_pulp.support import interpret, parse, run_passes

R = "!riscv.reg"


def function_of(op: str, operands: int, attributes: tuple[int, ...] = ()) -> ModuleOp:
    """@f, which applies one op to its arguments."""
    names = [f"%x{i}" for i in range(operands)]
    arguments = ", ".join(f"{n} : {R}" for n in names)
    types = ", ".join([R] * operands)
    return parse(
        f"""
        riscv_func.func @f({arguments}) -> {R} {{
          %r = riscv_pulp.{op} {", ".join([*names, *map(str, attributes)])} : ({types}) -> {R}
          riscv_func.return %r : {R}
        }}
        """
    )


def both(module: ModuleOp) -> tuple[ModuleOp, ModuleOp]:
    """The module, and its desugared form, which has none of our ops but the narrow accesses."""
    plain = run_passes(module, RiscvPulpDesugarPass())
    ours = {op.name for op in plain.walk() if op.name.startswith("riscv_pulp.")}
    assert ours <= {f"riscv_pulp.{n}" for n in ("lb", "lbu", "lh", "lhu", "sb", "sh")}
    return module, plain


# fmt: off
VECTORS: list[tuple[str, int, tuple[int, ...], tuple[int, ...]]] = [
    # Op, result, registers (destination first where it is read), immediates. First those of MemPool's own instruction
    # tests, rv32uxpulpimg.
    ("dotusp.h", 0x2F5EA592, (0xFE67FB1A, 0x50E4DE57), ()),
    ("dotusp.h", 0xED3A210B, (0x3FDAEFE7, 0x7BA5CB0F), ()),
    ("dotusp.sc.h", 0xDE3EBCF3, (0x5E5C31BF, 0xCB24C409), ()),
    ("dotusp.b", 0x00000DDA, (0xEB8A58F5, 0xCAECEE54), ()),
    ("dotusp.b", 0xFFFFAD05, (0x47665939, 0x9E989665), ()),
    ("dotusp.sc.b", 0x000101DA, (0x77B8759A, 0xC1056E73), ()),
    ("dotup.h", 0x2A78A592, (0xFE67FB1A, 0x50E4DE57), ()),
    ("dotup.sc.h", 0x6E59BCF3, (0x5E5C31BF, 0xCB24C409), ()),
    ("dotup.b", 0x0001DADA, (0xEB8A58F5, 0xCAECEE54), ()),
    ("dotup.sc.b", 0x000059EF, (0x6F622436, 0x1E1E694D), ()),
    ("dotsp.h", 0x0023A592, (0xFE67FB1A, 0x50E4DE57), ()),
    ("dotsp.sc.h", 0x03F34EE4, (0xEC042250, 0x230A4695), ()),
    ("dotsp.b", 0x000003DA, (0xEB8A58F5, 0xCAECEE54), ()),
    ("dotsp.sc.b", 0x00001BDA, (0x77B8759A, 0xC1056E73), ()),
    ("sdotusp.h", 0xB4C3AF48, (0x856509B6, 0xFE67FB1A, 0x50E4DE57), ()),
    ("sdotusp.sc.h", 0x76464853, (0x98078B60, 0x5E5C31BF, 0xCB24C409), ()),
    ("sdotusp.b", 0x5D238DA6, (0x5D23E0A1, 0x47665939, 0x9E989665), ()),
    ("sdotusp.sc.b", 0xAC5302E2, (0xAC520108, 0x77B8759A, 0xC1056E73), ()),
    ("msu", 0xFFFFFFFE, (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF), ()),
    ("msu", 0x815BDDCB, (0x67287485, 0xB463DADE, 0x1C2D45F3), ()),
    ("msu", 0x2506EF75, (0x9B426C98, 0x0762A9A5, 0xAB420127), ()),
    ("abs", 0x00000001, (0xFFFFFFFF,), ()),
    ("abs", 0x7A89CDBB, (0x85763245,), ()),
    ("clip", 0xFFFFFC00, (0x8FFFAB52,), (0x0B,)),
    ("clip", 0xFFFFFC00, (0xFFFFFC00,), (0x1D,)),
    ("clip", 0x00003FFF, (0x00003FFF,), (0x0F,)),
    ("clip", 0x00000007, (0x0BCD0015,), (0x04,)),
    ("clip", 0xFFFFFFFF, (0xFFFFFFFE,), (0x00,)),
    ("clip", 0x00000000, (0x0FFF8CBD,), (0x00,)),
    ("clipu", 0x00000000, (0x8FFFAB52,), (0x0B,)),
    ("clipu", 0x00000A03, (0x00000A03,), (0x0F,)),
    ("clipu", 0x00000007, (0x0BCD0015,), (0x04,)),
    ("clipu", 0x00000000, (0x00000001,), (0x00,)),
    # By hand, from the RI5CY User Manual. The kernels' trick: the byte 0xA5 at bit 15 of 256.0f gives 256 + 165.
    ("insert", 0x43D28000, (0x43800000, 0xFFFFFFA5), (7, 15)),
    ("insert", 0x12345678, (0, 0x12345678), (31, 0)),
    ("addn", 0x00000003, (0x7FFFFFFF, 0xBFFFFFFF), (28,)),
    ("addn", 0x00000003, (0x00000005, 0x00000002), (1,)),
    ("addn", 0xFFFFFFFD, (0xFFFFFFFB, 0x00000000), (1,)),
    ("addn", 0x80000000, (0x7FFFFFFF, 0x00000001), (0,)),
    ("addn", 0xFFFFFFFF, (0x7FFFFFFF, 0x00000001), (31,)),
    ("extract", 0xFFFFFFF8, (0x00080000,), (3, 16)),
    ("extractu", 0x00000008, (0x00080000,), (3, 16)),
    ("extract", 0x80000001, (0x80000001,), (31, 0)),
    ("bset", 0x000000F0, (0,), (3, 4)),
    ("bclr", 0x7FFFFFFF, (0xFFFFFFFF,), (0, 31)),
]
# fmt: on


@pytest.mark.parametrize(("op", "result", "registers", "immediates"), VECTORS)
def test_vectors(
    op: str, result: int, registers: tuple[int, ...], immediates: tuple[int, ...]
) -> None:
    for module in both(function_of(op, len(registers), immediates)):
        assert interpret(module, *registers) == (result,)


EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def _immediates(op: type) -> list[tuple[int, ...]]:
    if issubclass(op, alu.ClipOperation | alu.AddnOp):
        return [(0,), (1,), (2,), (8,), (31,)]
    if issubclass(op, alu.BitFieldOperation | alu.InsertOp):
        return [(0, 0), (7, 15), (31, 0), (0, 31), (15, 16)]
    return [()]


@pytest.mark.parametrize("op", [*alu.OPS, *dot.OPS], ids=lambda op: op.name)
def test_desugared_arithmetic(op: type) -> None:
    """The interpreter computes with Python's integers, the desugared code with RV32's: the same for edges and random numbers."""
    operands = 1
    if issubclass(op, alu.BinaryOperation | alu.InsertOp | alu.AddnOp):
        operands = 2
    elif issubclass(op, alu.AccumulateOperation):
        operands = 3
    source = random.Random(op.name)
    for immediates in _immediates(op):
        ours, plain = both(function_of(op.name.removeprefix("riscv_pulp."), operands, immediates))
        for _ in range(12):
            registers = [source.choice((*EDGES, source.getrandbits(32))) for _ in range(operands)]
            assert interpret(ours, *registers) == interpret(plain, *registers), registers


def test_accumulator_may_be_an_operand() -> None:
    """rd is read before it is written."""
    module = parse(
        f"""
        riscv_func.func @f(%x : {R}) -> {R} {{
          %r = riscv_pulp.sdotsp.b %x, %x, %x : ({R}, {R}, {R}) -> {R}
          riscv_func.return %r : {R}
        }}
        """
    )
    x = 0x01020304
    for one in both(module):
        assert interpret(one, x) == (x + 1 + 4 + 9 + 16,)


LOADED = {"lb": 0xFFFFFF81, "lbu": 0x81, "lh": 0xFFFF8281, "lhu": 0x8281, "lw": 0x84838281}
STORED = {"sb": "04", "sh": "0403", "sw": "04030201"}


@pytest.mark.parametrize("name", LOADED)
@pytest.mark.parametrize("form", ["post", "post_reg"])
def test_loads(name: str, form: str) -> None:
    """Little-endian, sign- or zero-extended; the pointer moves afterwards, backwards too."""
    step, types = ("-4", R) if form == "post" else ("%step", f"{R}, {R}")
    module = parse(
        f"""
        riscv_func.func @f(%p : {R}, %step : {R}) -> ({R}, {R}) {{
          %r, %q = riscv_pulp.{name}_{form} %p, {step} : ({types}) -> ({R}, {R})
          riscv_func.return %r, %q : {R}, {R}
        }}
        """
    )
    data = bytearray(bytes.fromhex("00000000 81828384"))
    for one in both(module):
        value, pointer = interpret(one, RawPtr(data, 4), -4)
        assert value == LOADED[name]
        assert pointer.memory is data and pointer.offset == 0


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("form", ["post", "post_reg"])
def test_stores(name: str, form: str) -> None:
    step, types = ("2", f"{R}, {R}") if form == "post" else ("%step", f"{R}, {R}, {R}")
    module = parse(
        f"""
        riscv_func.func @f(%p : {R}, %v : {R}, %step : {R}) -> {R} {{
          %q = riscv_pulp.{name}_{form} %p, %v, {step} : ({types}) -> {R}
          riscv_func.return %q : {R}
        }}
        """
    )
    for one in both(module):
        data = bytearray(b"\xee" * 8)
        (pointer,) = interpret(one, RawPtr(data, 2), 0x01020304, 2)
        stored = bytes.fromhex(STORED[name])
        assert data == (b"\xee" * 2 + stored).ljust(8, b"\xee")
        assert pointer.offset == 4


@pytest.mark.parametrize("offset", [-1, 7])
def test_access_outside_of_memory(offset: int) -> None:
    module = parse(
        f"""
        riscv_func.func @f(%p : {R}) -> {R} {{
          %r, %q = riscv_pulp.lh_post %p, 0 : ({R}) -> ({R}, {R})
          riscv_func.return %r : {R}
        }}
        """
    )
    with pytest.raises(InterpretationError, match=f"2 bytes at {offset} of a buffer of 8"):
        interpret(module, RawPtr(bytearray(8), offset))


COUNTER = f"""
riscv_func.func @f(%n : {R}, %x : {R}) -> {R} {{
  %r = riscv_pulp.lp_setup 0, %n : {R} iter_args(%i = %x) -> ({R}) {{
    %a = riscv.addi %i, 1 : ({R}) -> {R}
    riscv.nop
    riscv.nop
    riscv_pulp.yield %a : {R}
  }}
  riscv_func.return %r : {R}
}}
"""


@pytest.mark.parametrize(("count", "iterations"), [(0, 1), (1, 1), (2, 2), (100, 100)])
def test_a_count_of_zero_runs_once(count: int, iterations: int) -> None:
    for module in both(parse(COUNTER)):
        assert interpret(module, count, 10) == (10 + iterations,)


def test_nested_loops() -> None:
    """y[i] = dot(a[i], b) over two levels, pointers carried by both."""
    module = parse(
        f"""
        riscv_func.func @f(%a : {R}, %b : {R}, %y : {R}, %k : {R}) -> ({R}, {R}) {{
          %back = rv32.li -8 : {R}
          %ar, %br, %yr = riscv_pulp.lp_setupi 1, 3 iter_args(%a0 = %a, %b0 = %b, %y0 = %y) -> ({R}, {R}, {R}) {{
            %zero = rv32.li 0 : {R}
            %s, %a1, %b1 = riscv_pulp.lp_setup 0, %k : {R} iter_args(%acc = %zero, %ai = %a0, %bi = %b0) -> ({R}, {R}, {R}) {{
              %l, %a2 = riscv_pulp.lh_post %ai, 2 : ({R}) -> ({R}, {R})
              %r, %b2 = riscv_pulp.lhu_post %bi, 2 : ({R}) -> ({R}, {R})
              %m = riscv_pulp.mac %acc, %l, %r : ({R}, {R}, {R}) -> {R}
              riscv_pulp.yield %m, %a2, %b2 : {R}, {R}, {R}
            }}
            %y1 = riscv_pulp.sw_post %y0, %s, 4 : ({R}, {R}) -> {R}
            %b3 = riscv.add %b1, %back : ({R}, {R}) -> {R}
            riscv_pulp.yield %a1, %b3, %y1 : {R}, {R}, {R}
          }}
          riscv_func.return %ar, %yr : {R}, {R}
        }}
        """
    )
    a = [[-3, 2, 7, 1], [100, -200, 300, -400], [0, 0, -32768, 5]]
    b = [40000, 3, 65535, 9]
    expected = [sum(x * y for x, y in zip(row, b, strict=True)) for row in a]
    for one in both(module):
        memory_a = bytearray(b"".join(x.to_bytes(2, "little", signed=True) for r in a for x in r))
        memory_b = bytearray(b"".join(x.to_bytes(2, "little") for x in b))
        y = bytearray(12)
        pointer_a, pointer_y = interpret(one, RawPtr(memory_a), RawPtr(memory_b), RawPtr(y), 4)
        found = [int.from_bytes(y[i : i + 4], "little", signed=True) for i in range(0, 12, 4)]
        assert found == expected
        assert (pointer_a.offset, pointer_y.offset) == (24, 12)


def test_event_load() -> None:
    """Interpreted as a load; not desugared, as a plain load would not wait."""
    module = parse(
        f"""
        riscv_func.func @f(%p : {R}) -> {R} {{
          %r = riscv_pulp.elw %p, 4 : ({R}) -> {R}
          riscv_func.return %r : {R}
        }}
        """
    )
    assert interpret(module, RawPtr(bytearray(b"\0\0\0\0\1\2\0\0"))) == (0x201,)
    with pytest.raises(DiagnosticException, match="waits for the event unit"):
        run_passes(module, RiscvPulpDesugarPass())


def test_every_op_is_interpreted() -> None:
    known = {op for op, _ in RiscvPulpFunctions()._impls()}
    assert known == set(RISCV_PULP.operations)
