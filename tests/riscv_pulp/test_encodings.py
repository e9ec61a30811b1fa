"""The `.insn` text of every op, assembled by LLVM (which knows nothing of XpulpV2), against facts from outside this project."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from xdsl.dialects import riscv, riscv_func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region

from qfold.dialects.riscv_pulp import RISCV_PULP, alu, dot, hwloop, memory
from qfold.dialects.riscv_pulp.encoding import ENCODINGS
from tests.riscv_pulp.support import assemble, listing, needs_assembler, reg, value

OPS: dict[str, type[Operation]] = {
    op.name.removeprefix("riscv_pulp."): op for op in RISCV_PULP.operations
}

# fmt: off
PATTERNS = {
    # Where GVSoC's isa_pulpv2.py and MemPool's riscv_instr.sv (generated from PULP's fork of riscv-opcodes) agree:
    # funct7, rs2, rs1, funct3, rd, opcode. A dot is a bit of an operand.
    "lb_post":        "....... ..... ..... 000 ..... 0001011",
    "lh_post":        "....... ..... ..... 001 ..... 0001011",
    "lw_post":        "....... ..... ..... 010 ..... 0001011",
    "lbu_post":       "....... ..... ..... 100 ..... 0001011",
    "lhu_post":       "....... ..... ..... 101 ..... 0001011",
    "lb_post_reg":    "0000000 ..... ..... 111 ..... 0001011",
    "lh_post_reg":    "0001000 ..... ..... 111 ..... 0001011",
    "lw_post_reg":    "0010000 ..... ..... 111 ..... 0001011",
    "lbu_post_reg":   "0100000 ..... ..... 111 ..... 0001011",
    "lhu_post_reg":   "0101000 ..... ..... 111 ..... 0001011",
    "sb_post":        "....... ..... ..... 000 ..... 0101011",
    "sh_post":        "....... ..... ..... 001 ..... 0101011",
    "sw_post":        "....... ..... ..... 010 ..... 0101011",
    "sb_post_reg":    "0000000 ..... ..... 100 ..... 0101011",
    "sh_post_reg":    "0000000 ..... ..... 101 ..... 0101011",
    "sw_post_reg":    "0000000 ..... ..... 110 ..... 0101011",
    "abs":            "0000010 00000 ..... 000 ..... 0110011",
    "min":            "0000010 ..... ..... 100 ..... 0110011",
    "minu":           "0000010 ..... ..... 101 ..... 0110011",
    "max":            "0000010 ..... ..... 110 ..... 0110011",
    "maxu":           "0000010 ..... ..... 111 ..... 0110011",
    "clip":           "0001010 ..... ..... 001 ..... 0110011",
    "clipu":          "0001010 ..... ..... 010 ..... 0110011",
    "addn":           "00..... ..... ..... 010 ..... 1011011",
    "mac":            "0100001 ..... ..... 000 ..... 0110011",
    "msu":            "0100001 ..... ..... 001 ..... 0110011",
    "extract":        "11..... ..... ..... 000 ..... 0110011",
    "extractu":       "11..... ..... ..... 001 ..... 0110011",
    "insert":         "11..... ..... ..... 010 ..... 0110011",
    "bclr":           "11..... ..... ..... 011 ..... 0110011",
    "bset":           "11..... ..... ..... 100 ..... 0110011",
    "dotup.h":        "1000000 ..... ..... 000 ..... 1010111",
    "dotup.sc.h":     "1000000 ..... ..... 100 ..... 1010111",
    "dotup.b":        "1000000 ..... ..... 001 ..... 1010111",
    "dotup.sc.b":     "1000000 ..... ..... 101 ..... 1010111",
    "dotusp.h":       "1000100 ..... ..... 000 ..... 1010111",
    "dotusp.sc.h":    "1000100 ..... ..... 100 ..... 1010111",
    "dotusp.b":       "1000100 ..... ..... 001 ..... 1010111",
    "dotusp.sc.b":    "1000100 ..... ..... 101 ..... 1010111",
    "dotsp.h":        "1001100 ..... ..... 000 ..... 1010111",
    "dotsp.sc.h":     "1001100 ..... ..... 100 ..... 1010111",
    "dotsp.b":        "1001100 ..... ..... 001 ..... 1010111",
    "dotsp.sc.b":     "1001100 ..... ..... 101 ..... 1010111",
    "sdotup.h":       "1010000 ..... ..... 000 ..... 1010111",
    "sdotup.sc.h":    "1010000 ..... ..... 100 ..... 1010111",
    "sdotup.b":       "1010000 ..... ..... 001 ..... 1010111",
    "sdotup.sc.b":    "1010000 ..... ..... 101 ..... 1010111",
    "sdotusp.h":      "1010100 ..... ..... 000 ..... 1010111",
    "sdotusp.sc.h":   "1010100 ..... ..... 100 ..... 1010111",
    "sdotusp.b":      "1010100 ..... ..... 001 ..... 1010111",
    "sdotusp.sc.b":   "1010100 ..... ..... 101 ..... 1010111",
    "sdotsp.h":       "1011100 ..... ..... 000 ..... 1010111",
    "sdotsp.sc.h":    "1011100 ..... ..... 100 ..... 1010111",
    "sdotsp.b":       "1011100 ..... ..... 001 ..... 1010111",
    "sdotsp.sc.b":    "1011100 ..... ..... 101 ..... 1010111",
    # GVSoC's isa_pulpv2.py and RI5CY's decoder.sv and id_stage.sv; for the loops also its datasheet, chapter "PULP
    # Hardware Loop Extensions", for p.elw the words below.
    "elw":            "....... ..... ..... 110 ..... 0000011",
    "lp_setup":       "....... ..... ..... 100 0000. 1111011",
    "lp_setupi":      "....... ..... ..... 101 0000. 1111011",
}

# Instructions as PULP's binutils disassembled them, from listings that were published with programs for PULP (the
# tutorial of pulp-dsp among them).
WORDS: list[tuple[int, str, Callable[[], Operation]]] = [
    (0x0805080B, "p.lb a6, 128(a0!)", lambda: memory.LbPostOp(value("a0"), 128, rd=reg("a6"))),
    (0xFFF5C70B, "p.lbu a4, -1(a1!)", lambda: memory.LbuPostOp(value("a1"), -1, rd=reg("a4"))),
    (0x0025188B, "p.lh a7, 2(a0!)", lambda: memory.LhPostOp(value("a0"), 2, rd=reg("a7"))),
    (0x0088A38B, "p.lw t2, 8(a7!)", lambda: memory.LwPostOp(value("a7"), 8, rd=reg("t2"))),
    (0x0057758B, "p.lb a1, t0(a4!)", lambda: memory.LbPostRegOp(value("a4"), value("t0"), rd=reg("a1"))),
    (0x21BB768B, "p.lw a3, s11(s6!)", lambda: memory.LwPostRegOp(value("s6"), value("s11"), rd=reg("a3"))),
    (0xFEE78FAB, "p.sb a4, -1(a5!)", lambda: memory.SbPostOp(value("a5"), value("a4"), -1)),
    (0x0005112B, "p.sh zero, 2(a0!)", lambda: memory.ShPostOp(value("a0"), value("zero"), 2)),
    (0x00F6A22B, "p.sw a5, 4(a3!)", lambda: memory.SwPostOp(value("a3"), value("a5"), 4)),
    (0x00E8EB2B, "p.sw a4, s6(a7!)", lambda: memory.SwPostRegOp(value("a7"), value("a4"), value("s6"))),
    (0x0007E703, "p.elw a4, 0(a5)", lambda: memory.ElwOp(value("a5"), 0, rd=reg("a4"))),
    (0x03C7E683, "p.elw a3, 60(a5)", lambda: memory.ElwOp(value("a5"), 60, rd=reg("a3"))),
    (0x040706B3, "p.abs a3, a4", lambda: alu.AbsOp(value("a4"), rd=reg("a3"))),
    (0x051EC8B3, "p.min a7, t4, a7", lambda: alu.MinOp(value("t4"), value("a7"), rd=reg("a7"))),
    (0x04F6D7B3, "p.minu a5, a3, a5", lambda: alu.MinuOp(value("a3"), value("a5"), rd=reg("a5"))),
    (0x04D76733, "p.max a4, a4, a3", lambda: alu.MaxOp(value("a4"), value("a3"), rd=reg("a4"))),
    (0x04B67633, "p.maxu a2, a2, a1", lambda: alu.MaxuOp(value("a2"), value("a1"), rd=reg("a2"))),
    (0x14851533, "p.clip a0, a0, 8", lambda: alu.ClipOp(value("a0"), 8, rd=reg("a0"))),
    (0x14E7A7B3, "p.clipu a5, a5, 14", lambda: alu.ClipuOp(value("a5"), 14, rd=reg("a5"))),
    (0x42538733, "p.mac a4, t2, t0", lambda: alu.MacOp(value("a4"), value("t2"), value("t0"))),
    (0x42B61733, "p.msu a4, a2, a1", lambda: alu.MsuOp(value("a4"), value("a2"), value("a1"))),
    (0xC0B586B3, "p.extract a3, a1, 0, 11", lambda: alu.ExtractOp(value("a1"), 1, 11, rd=reg("a3"))),
    (0xCA5797B3, "p.extractu a5, a5, 5, 5", lambda: alu.ExtractuOp(value("a5"), 6, 5, rd=reg("a5"))),
    (0xD107A833, "p.insert a6, a5, 8, 16", lambda: alu.InsertOp(value("a6"), value("a5"), 9, 16)),
    (0xC20635B3, "p.bclr a1, a2, 1, 0", lambda: alu.BclrOp(value("a2"), 2, 0, rd=reg("a1"))),
    (0xC0B74733, "p.bset a4, a4, 0, 11", lambda: alu.BsetOp(value("a4"), 1, 11, rd=reg("a4"))),
    (0x987797D7, "pv.dotsp.b a5, a5, t2", lambda: dot.DotspBOp(value("a5"), value("t2"), rd=reg("a5"))),
    (0xA0F71557, "pv.sdotup.b a0, a4, a5", lambda: dot.SdotupBOp(value("a0"), value("a4"), value("a5"))),
    (0xA0B787D7, "pv.sdotup.h a5, a5, a1", lambda: dot.SdotupHOp(value("a5"), value("a5"), value("a1"))),
    (0xA0B7C7D7, "pv.sdotup.sc.h a5, a5, a1", lambda: dot.SdotupScHOp(value("a5"), value("a5"), value("a1"))),
    (0xA8A714D7, "pv.sdotusp.b s1, a4, a0", lambda: dot.SdotuspBOp(value("s1"), value("a4"), value("a0"))),
    (0xA8B757D7, "pv.sdotusp.sc.b a5, a4, a1", lambda: dot.SdotuspScBOp(value("a5"), value("a4"), value("a1"))),
    (0xB9089ED7, "pv.sdotsp.b t4, a7, a6", lambda: dot.SdotspBOp(value("t4"), value("a7"), value("a6"))),
    (0xB8F808D7, "pv.sdotsp.h a7, a6, a5", lambda: dot.SdotspHOp(value("a7"), value("a6"), value("a5"))),
    (0xB8A747D7, "pv.sdotsp.sc.h a5, a4, a0", lambda: dot.SdotspScHOp(value("a5"), value("a4"), value("a0"))),
]
# fmt: on


def nops(count: int) -> list[Operation]:
    return [riscv.NopOp() for _ in range(count)]


def loop_body(*ops: Operation) -> Region:
    return Region(Block([*ops, hwloop.YieldOp()]))


@needs_assembler
def test_words_of_pulps_binutils(tmp_path: Path) -> None:
    """Word for word what PULP's own tools made of the same instruction, and the same spelling."""
    for _, text, build in WORDS:
        assert listing([build()], insn=False) == [text]
    lines = [line for _, _, build in WORDS for line in listing([build()], insn=True)]
    assert all(line.startswith(".insn ") for line in lines)
    found = assemble(lines, tmp_path)
    expected = [word for word, _, _ in WORDS]
    assert [f"{w:08x}" for w in found] == [f"{w:08x}" for w in expected]


def _sample(name: str, rd: int, rs1: int, rs2: int, imm: int) -> Operation:
    """An op of this name with these register numbers; the second register or the immediates are used as the op needs them."""
    op, x = OPS[name], (lambda number: value(f"x{number}"))
    if issubclass(op, memory.PostIncrementLoadImmOperation | memory.ElwOp):
        return op(x(rs1), imm, rd=reg(f"x{rd}"))
    if issubclass(op, memory.PostIncrementLoadRegOperation):
        return op(x(rs1), x(rs2), rd=reg(f"x{rd}"))
    if issubclass(op, memory.PostIncrementStoreImmOperation):
        return op(x(rs1), x(rs2), imm)
    if issubclass(op, memory.PostIncrementStoreRegOperation):
        return op(x(rs1), x(rs2), x(rd))
    if issubclass(op, alu.AccumulateOperation):
        return op(x(rd), x(rs1), x(rs2))
    if issubclass(op, alu.BinaryOperation):
        return op(x(rs1), x(rs2), rd=reg(f"x{rd}"))
    if issubclass(op, alu.AddnOp):
        return op(x(rs1), x(rs2), imm & 31, rd=reg(f"x{rd}"))
    if issubclass(op, alu.ClipOperation):
        return op(x(rs1), rs2, rd=reg(f"x{rd}"))
    if issubclass(op, alu.BitFieldOperation):
        return op(x(rs1), 32 - rs2, rs2, rd=reg(f"x{rd}"))
    if issubclass(op, alu.InsertOp):
        return op(x(rd), x(rs1), 32 - rs2, rs2)
    if issubclass(op, alu.AbsOp):
        return op(x(rs1), rd=reg(f"x{rd}"))
    if issubclass(op, hwloop.LpSetupOp):
        return op(x(rs1), [], loop_body(*nops(max(imm, 3))), level=rd % 2)
    if issubclass(op, hwloop.LpSetupiOp):
        return op(imm + 1, [], loop_body(*nops(3 + rs2 % 12)), level=rd % 2)
    raise AssertionError(name)


def _fields(name: str, rd: int, rs1: int, rs2: int, imm: int) -> Iterator[tuple[int, int, int]]:
    """Where the formats of the RISC-V manual put the operands: (lowest bit, number of bits, content)."""
    op = OPS[name]
    stores = memory.PostIncrementStoreImmOperation
    loops = hwloop.HardwareLoopOperation
    if issubclass(op, stores):
        yield from ((7, 5, imm & 31), (15, 5, rs1), (20, 5, rs2), (25, 7, imm >> 5))
    elif issubclass(op, memory.PostIncrementLoadImmOperation | memory.ElwOp):
        yield from ((7, 5, rd), (15, 5, rs1), (20, 12, imm))
    elif issubclass(op, hwloop.LpSetupiOp):
        # The end in half-words where rs1 would be, the count in the immediate.
        yield from ((7, 1, rd % 2), (15, 5, 2 * (3 + rs2 % 12)), (20, 12, imm + 1))
    elif issubclass(op, loops):
        yield from ((7, 1, rd % 2), (15, 5, rs1), (20, 12, 2 * max(imm, 3)))
    elif issubclass(op, alu.AddnOp):
        yield from ((7, 5, rd), (15, 5, rs1), (20, 5, rs2), (25, 5, imm & 31))
    elif issubclass(op, alu.BitFieldOperation | alu.InsertOp):
        yield from ((7, 5, rd), (15, 5, rs1), (20, 5, rs2), (25, 5, 31 - rs2))
    else:
        yield from ((7, 5, rd), (15, 5, rs1), (20, 5, 0 if op is alu.AbsOp else rs2))


def test_every_op_has_a_pattern() -> None:
    narrow = {n for n, op in OPS.items() if issubclass(op, memory.NarrowLoadOperation)}
    narrow |= {n for n, op in OPS.items() if issubclass(op, memory.NarrowStoreOperation)}
    assert set(PATTERNS) == set(ENCODINGS) == set(OPS) - narrow - {"yield"}
    assert len(narrow) == 6
    assert all(len(p.replace(" ", "")) == 32 for p in PATTERNS.values())


@needs_assembler
def test_fixed_bits_and_fields(tmp_path: Path) -> None:
    """Each fixed bit as the pattern says, each operand in its place; no pattern matches another op."""
    samples = [(31, 1, 2, 1), (1, 31, 17, 1023), (10, 20, 30, 2046), (21, 8, 5, 0)]
    rows = [(name, *sample) for name in PATTERNS for sample in samples]
    # Of a loop only the setup: the body is nops.
    lines = [listing([_sample(*row)], insn=True)[0] for row in rows]
    words = assemble(lines, tmp_path)
    regexes = {n: re.compile(p.replace(" ", "")) for n, p in PATTERNS.items()}
    for row, word in zip(rows, words, strict=True):
        bits = f"{word:032b}"
        assert [n for n, regex in regexes.items() if regex.fullmatch(bits)] == [row[0]], row
        for low, size, content in _fields(*row):
            assert (word >> low) & ((1 << size) - 1) == content, (row, low, f"{word:08x}")


@needs_assembler
def test_loops_of_pulps_gcc(tmp_path: Path) -> None:
    """The two inner loops that the tutorial of pulp-dsp shows, as a whole. The end is the last instruction."""
    body: list[Operation] = [
        memory.LwPostOp(value("a7"), 8, rd=reg("t2")),
        memory.LwPostOp(value("t1"), 8, rd=reg("t0")),
        memory.LwPostOp(value("t4"), 8, rd=reg("t6")),
        memory.LwPostOp(value("t3"), 8, rd=reg("t5")),
        alu.MacOp(value("a4"), value("t2"), value("t0")),
        alu.MacOp(value("a6"), value("t6"), value("t5")),
    ]
    loop = _loop_of_registers(body, level=1, count="a5")
    expected = [0x00C7C0FB, 0x0088A38B, 0x0083228B, 0x008EAF8B, 0x008E2F0B, 0x42538733, 0x43EF8833]
    assert assemble(listing([loop], insn=True), tmp_path) == expected

    body = [
        memory.LwPostOp(value("t6"), 8, rd=reg("a7")),
        memory.LwPostOp(value("t5"), 8, rd=reg("a6")),
        memory.LwPostOp(value("t2"), 8, rd=reg("a4")),
        memory.LwPostOp(value("t0"), 8, rd=reg("a5")),
        dot.SdotspBOp(value("t4"), value("a7"), value("a6")),
        dot.SdotspBOp(value("t3"), value("a4"), value("a5")),
    ]
    loop = _loop_of_registers(body, level=1, count="t1")
    expected = [0x00C340FB, 0x008FA88B, 0x008F280B, 0x0083A70B, 0x0082A78B, 0xB9089ED7, 0xB8F71E57]
    assert assemble(listing([loop], insn=True), tmp_path) == expected


@needs_assembler
def test_immediate_loop_of_pulps_gcc(tmp_path: Path) -> None:
    """`lp.setupi x1, 18` around three instructions: the count is the 12-bit field, the end the 5-bit one."""
    loop = hwloop.LpSetupiOp(18, [], loop_body(*nops(3)), level=1)
    assert assemble(listing([loop], insn=True)[:1], tmp_path) == [0x012350FB]


def _loop_of_registers(body: list[Operation], *, level: int, count: str) -> Operation:
    """A loop whose body names its registers by `get_register`, which prints nothing."""
    block = Block()
    for op in body:
        for operand in op.operands:
            assert isinstance(operand.owner, Operation)
            block.add_op(operand.owner)
        block.add_op(op)
    block.add_op(hwloop.YieldOp())
    return hwloop.LpSetupOp(value(count), [], Region(block), level=level)


@needs_assembler
def test_narrow_accesses_are_those_of_the_base_isa(tmp_path: Path) -> None:
    """Opcodes and funct3 from the RISC-V manual, chapter "RV32/64G Instruction Set Listings"."""
    loads = zip((0, 4, 1, 5), (memory.LbOp, memory.LbuOp, memory.LhOp, memory.LhuOp), strict=True)
    stores = zip((0, 1), (memory.SbOp, memory.ShOp), strict=True)
    ops: list[Operation] = []
    expected: list[int] = []
    for funct3, load in loads:
        ops.append(load(value("x11"), -3, rd=reg("x12")))
        expected.append((-3 & 0xFFF) << 20 | 11 << 15 | funct3 << 12 | 12 << 7 | 0x03)
    for funct3, store in stores:
        ops.append(store(value("x11"), value("x12"), 70))
        expected.append(2 << 25 | 12 << 20 | 11 << 15 | funct3 << 12 | 6 << 7 | 0x23)
    lines = list(itertools.chain.from_iterable(listing([op], insn=False) for op in ops))
    assert lines[0] == "lb a2, -3(a1)"
    assert assemble(lines, tmp_path) == expected


def test_loop_needs_the_pulp_target() -> None:
    """`riscv-asm` cannot print the label that a loop ends at."""
    from io import StringIO

    from xdsl.dialects.riscv.abstract_ops import print_assembly
    from xdsl.utils.exceptions import DiagnosticException

    loop = hwloop.LpSetupiOp(18, [], loop_body(*nops(3)))
    function = riscv_func.FuncOp("f", Region(Block([loop, riscv_func.ReturnOp()])), ([], []))
    with pytest.raises(DiagnosticException, match="-t riscv-pulp-asm"):
        print_assembly(ModuleOp([function]), StringIO())
