"""Float instructions on either register file: encodings, semantics to the bit, register allocation."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreters.utils.ptr import RawPtr
from xdsl.transforms.riscv_allocate_registers import RISCVAllocateRegistersPass
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.riscv_zfinx import RISCV_ZFINX, MultiplyAddOperation
from qfold.interpreters.riscv_zfinx import fused_multiply_add
from tests.riscv_pulp.support import (
    assemble,
    interpret,
    needs_assembler,
    parse,
    printed,
    run_passes,
)

R, F = "!riscv.reg", "!riscv.freg"

# fmt: off
WORDS = {
    # From the RISC-V manual, "RV32/64G Instruction Set Listings" (Zfinx has the same encodings): funct7 and rs2 (two-operand
    # forms: rs2 fixed), funct3 (dyn = 111 where it is the rounding mode), opcode; or for four registers the opcode alone.
    "fadd.s":    "0000000 sssss ..... 111 ..... 1010011",
    "fsub.s":    "0000100 sssss ..... 111 ..... 1010011",
    "fmul.s":    "0001000 sssss ..... 111 ..... 1010011",
    "fdiv.s":    "0001100 sssss ..... 111 ..... 1010011",
    "fsqrt.s":   "0101100 00000 ..... 111 ..... 1010011",
    "fsgnj.s":   "0010000 sssss ..... 000 ..... 1010011",
    "fsgnjn.s":  "0010000 sssss ..... 001 ..... 1010011",
    "fsgnjx.s":  "0010000 sssss ..... 010 ..... 1010011",
    "fmin.s":    "0010100 sssss ..... 000 ..... 1010011",
    "fmax.s":    "0010100 sssss ..... 001 ..... 1010011",
    "feq.s":     "1010000 sssss ..... 010 ..... 1010011",
    "flt.s":     "1010000 sssss ..... 001 ..... 1010011",
    "fle.s":     "1010000 sssss ..... 000 ..... 1010011",
    "fcvt.w.s":  "1100000 00000 ..... 111 ..... 1010011",
    "fcvt.wu.s": "1100000 00001 ..... 111 ..... 1010011",
    "fcvt.s.w":  "1101000 00000 ..... 111 ..... 1010011",
    "fcvt.s.wu": "1101000 00001 ..... 111 ..... 1010011",
    "fmadd.s":   "ddddd00 sssss ..... 111 ..... 1000011",
    "fmsub.s":   "ddddd00 sssss ..... 111 ..... 1000111",
    "fnmsub.s":  "ddddd00 sssss ..... 111 ..... 1001011",
    "fnmadd.s":  "ddddd00 sssss ..... 111 ..... 1001111",
}
# fmt: on

COMPARISONS = ("feq.s", "flt.s", "fle.s")
FUSED = ("fmadd.s", "fmsub.s", "fnmsub.s", "fnmadd.s")


def word(name: str, rd: int, rs1: int, rs2: int) -> int:
    pattern = WORDS[name].replace(" ", "")
    pattern = pattern.replace("sssss", f"{rs2:05b}").replace("ddddd", f"{rd:05b}")
    return int(pattern[:12] + f"{rs1:05b}" + pattern[17:20] + f"{rd:05b}" + pattern[25:], 2)


def signature(name: str, file: str) -> tuple[list[str], str]:
    """Types of the operands and of the result."""
    if name in FUSED:
        return [file] * 3, file
    if name in COMPARISONS:
        return [file] * 2, R
    if name == "fsqrt.s":
        return [file], file
    if name.startswith("fcvt.w"):
        return [file], R
    if name.startswith("fcvt.s"):
        return [R], file
    return [file] * 2, file


def function_of(name: str, file: str = R, rounding: str | None = None) -> ModuleOp:
    """@f, which applies one op to its arguments. Floats come and go as bit patterns in integer registers."""
    operands, result = signature(name, file)
    arguments = ", ".join(f"%x{i} : {R}" for i in range(len(operands)))
    moves = [
        f"%y{i} = riscv.fmv.w.x %x{i} : ({R}) -> {F}" for i, t in enumerate(operands) if t == F
    ]
    names = [f"%y{i}" if t == F else f"%x{i}" for i, t in enumerate(operands)]
    mode = [] if rounding is None else [f'"{rounding}"']
    # xDSL's interpreter has no fmv.x.w: a store brings the bits of a float out.
    out = f"riscv.fsw %p, %r, 0 : ({R}, {F}) -> ()" if result == F else ""
    returned = "%zero" if result == F else "%r"
    return parse(
        f"""
        riscv_func.func @f({arguments}, %p : {R}) -> {R} {{
          {" ".join(moves)}
          %zero = rv32.li 0 : {R}
          %r = riscv_zfinx.{name} {", ".join([*names, *mode])} : ({", ".join(operands)}) -> {result}
          {out}
          riscv_func.return {returned} : {R}
        }}
        """
    )


@needs_assembler
@pytest.mark.parametrize(
    ("file", "cpu"), [("x", "generic_rv32+m+c+zfinx"), ("f", "generic_rv32+m+f+c")]
)
def test_untied_multiply_add_is_encoded(file: str, cpu: str, tmp_path: Path) -> None:
    """The addend has a register of its own, in the five bits that are the result's in the tied form."""
    kind, get = (R, "rv32.get_register") if file == "x" else (F, "riscv.get_float_register")
    registers = (11, 12, 13)
    lines = [f"%{n} = {get} : {kind}<{file}{n}>" for n in registers]
    types = ", ".join(f"{kind}<{file}{n}>" for n in registers)
    lines.append(f"%r = riscv_zfinx.fmadd4.s %11, %12, %13 : ({types}) -> {kind}<{file}10>")
    (text,) = (line.strip() for line in printed(parse("\n".join(lines))) if "fmadd" in line)
    assert assemble([text], tmp_path, cpu) == [
        13 << 27 | 12 << 20 | 11 << 15 | 7 << 12 | 10 << 7 | 0x43
    ]


def test_untied_multiply_add_leaves_its_addend() -> None:
    module = parse(
        f"""
        riscv_func.func @f(%a : {R}, %b : {R}, %c : {R}) -> ({R}, {R}) {{
          %r = riscv_zfinx.fmadd4.s %a, %b, %c : ({R}, {R}, {R}) -> {R}
          riscv_func.return %r, %c : {R}, {R}
        }}
        """
    )
    # (1 + 2^-12)^2 - 1 = 2^-11 + 2^-24, whose last bit a product that is rounded first does not have.
    one, minus = 0x3F800800, 0xBF800000
    result, addend = interpret(module, one, one, minus)
    assert result == 0x3A000400
    assert addend & 0xFFFFFFFF == minus


def compute(name: str, *bits: int, file: str = R, rounding: str | None = None) -> int:
    memory = bytearray(4)
    (result,) = interpret(function_of(name, file, rounding), *bits, RawPtr(memory))
    return int.from_bytes(memory, "little") if signature(name, file)[1] == F else result


def test_every_op_is_here() -> None:
    names = {op.name.removeprefix("riscv_zfinx.") for op in RISCV_ZFINX.operations}
    assert names == {*WORDS, "fmadd4.s"}


def printed_instruction(name: str, file: str, rd: int, rs1: int, rs2: int) -> str:
    operands, result = signature(name, file)
    numbers = {1: (rs1,), 2: (rs1, rs2), 3: (rd, rs1, rs2)}[len(operands)]
    registers = [
        f"{t}<{'x' if t == R else 'f'}{n}>" for t, n in zip(operands, numbers, strict=True)
    ]
    destination = f"{result}<{'x' if result == R else 'f'}{rd}>"
    lines = [
        f"%{i} = {'rv32.get_register' if '<x' in r else 'riscv.get_float_register'} : {r}"
        for i, r in enumerate(registers)
    ]
    names = ", ".join(f"%{i}" for i in range(len(registers)))
    lines.append(f"%r = riscv_zfinx.{name} {names} : ({', '.join(registers)}) -> {destination}")
    (found,) = (line.strip() for line in printed(parse("\n".join(lines))) if f"{name} " in line)
    return found


@needs_assembler
@pytest.mark.parametrize(
    ("file", "cpu"), [(R, "generic_rv32+m+c+zfinx"), (F, "generic_rv32+m+f+c")]
)
def test_encodings(file: str, cpu: str, tmp_path: Path) -> None:
    """What LLVM makes of the printed text is the manual's word, for a core of either kind."""
    rows = [(name, *registers) for name in WORDS for registers in ((10, 11, 12), (31, 1, 21))]
    lines = [printed_instruction(name, file, *registers) for name, *registers in rows]
    if file == R:
        assert "fmadd.s a0, a1, a2, a0" in lines
    assert [f"{w:08x}" for w in assemble(lines, tmp_path, cpu)] == [f"{word(*r):08x}" for r in rows]


@needs_assembler
def test_rounding_modes_are_encoded(tmp_path: Path) -> None:
    lines: list[str] = []
    for mode in ("rne", "rtz", "rdn", "rup", "rmm"):
        text = f"""
            %0 = rv32.get_register : {R}<a1>
            %r = riscv_zfinx.fcvt.w.s %0, "{mode}" : ({R}<a1>) -> {R}<a0>
        """
        lines += [line for line in printed(parse(text)) if "fcvt" in line]
    found = assemble(lines, tmp_path, "generic_rv32+m+c+zfinx")
    assert [(w >> 12) & 7 for w in found] == [0, 1, 2, 3, 4]


# region semantics

EDGES = (
    0x00000000,
    0x80000000,
    0x00000001,
    0x80000001,
    0x007FFFFF,
    0x00800000,
    0x3F800000,
    0xBF800000,
    0x3F800001,
    0x33800000,
    0x4B800000,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0x7F800001,
    0xFFC12345,
)
"""Zeros, subnormals, one and its neighbours, half an ulp of it, 2^24, the largest, infinities, quiet and signalling NaNs."""


def f32(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def bits_of(value: np.float32) -> int:
    return 0x7FC00000 if np.isnan(value) else int(value.view(np.uint32))


def pairs(seed: str) -> list[tuple[int, int]]:
    source = random.Random(seed)
    close = [(a, a + source.randrange(-3, 4)) for a in (0x3F812345, 0x00801234, 0xC0000005)]
    edges = [(a, b) for a in EDGES for b in EDGES]
    drawn = [(source.getrandbits(32), source.getrandbits(32)) for _ in range(200)]
    return source.sample(edges, 120) + drawn + close


@pytest.mark.parametrize("file", [R, F])
@pytest.mark.parametrize("name", ["fadd.s", "fsub.s", "fmul.s", "fdiv.s"])
def test_arithmetic_is_numpys(name: str, file: str) -> None:
    operation = {
        "fadd.s": np.add,
        "fsub.s": np.subtract,
        "fmul.s": np.multiply,
        "fdiv.s": np.divide,
    }[name]
    with np.errstate(all="ignore"):
        for a, b in pairs(name)[:: 1 if file == R else 8]:
            expected = bits_of(operation(f32(a), f32(b)))
            assert compute(name, a, b, file=file) == expected, (hex(a), hex(b))


def test_square_root() -> None:
    with np.errstate(all="ignore"):
        for a, _ in pairs("sqrt"):
            assert compute("fsqrt.s", a) == bits_of(np.sqrt(f32(a))), hex(a)


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name: str) -> None:
    operation = {"feq.s": np.equal, "flt.s": np.less, "fle.s": np.less_equal}[name]
    with np.errstate(all="ignore"):
        for a, b in [*pairs(name), *((e, e) for e in EDGES)]:
            assert compute(name, a, b) == int(operation(f32(a), f32(b))), (hex(a), hex(b))


def test_minimum_and_maximum() -> None:
    """The manual orders -0 before +0, and any NaN, signalling ones too, gives way to a number."""
    for a, b in pairs("minmax"):
        numbers = [v for v in (a, b) if not np.isnan(f32(v))]
        ordered = sorted(numbers, key=lambda v: (f32(v), not v >> 31)) or [0x7FC00000]
        expected_min, expected_max = ordered[0], ordered[-1]
        assert compute("fmin.s", a, b) == expected_min
        assert compute("fmax.s", a, b) == expected_max
    assert compute("fmin.s", 0, 0x80000000) == 0x80000000
    assert compute("fmax.s", 0x80000000, 0) == 0


def test_signs() -> None:
    for a, b in pairs("signs"):
        sign = b & 0x80000000
        assert compute("fsgnj.s", a, b) == (a & 0x7FFFFFFF) | sign
        assert compute("fsgnjn.s", a, b) == (a & 0x7FFFFFFF) | (sign ^ 0x80000000)
        assert compute("fsgnjx.s", a, b) == a ^ sign


def round_to_f32(value: Fraction) -> int:
    """The nearest float32's bits, ties to even, of a number that is not zero; by integers alone."""
    sign = 0x80000000 if value < 0 else 0
    value = abs(value)
    exponent = max(value.numerator.bit_length() - value.denominator.bit_length(), -126) + 1
    while exponent > -126 and value < Fraction(2) ** exponent:
        exponent -= 1
    units = value / Fraction(2) ** (exponent - 23)
    # Python rounds a Fraction to even. 2^24 units carry into the exponent field by themselves.
    magnitude = round(units) + ((exponent + 126) << 23 if units >= 1 << 23 else 0)
    return sign | min(magnitude, 0x7F800000)


def reference_fma(a: int, b: int, c: int) -> int:
    x, y, z = (float(f32(v)) for v in (a, b, c))
    if not all(map(math.isfinite, (x, y, z))):
        total = x * y + z
        return 0x7FC00000 if math.isnan(total) else bits_of(np.float32(total))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        # The sign of an exact zero: double arithmetic, exact here, has the rules of IEEE 754.
        product_sign = math.copysign(1, x) * math.copysign(1, y)
        negative = (x == 0 or y == 0) and product_sign < 0 and math.copysign(1, z) < 0
        return 0x80000000 if negative else 0
    return round_to_f32(exact)


def test_fused_multiply_add_is_rounded_once() -> None:
    """Against integers. Random operands seldom meet a tie, so that most are made near one."""
    source = random.Random("fma")
    hard = [
        # 1 + 2^-24 exactly between two floats, and a little beside it: rounded twice through a double, the second is wrong.
        (0x3F800000, 0x33800000, 0x3F800000),
        (0x00000001, 0x00000001, 0x3F800000),
        (0x3F800001, 0x3F7FFFFF, 0xBF800000),
    ]
    for _ in range(4000):
        a, b = (source.getrandbits(23) | source.randrange(90, 160) << 23 for _ in range(2))
        product = float(f32(a)) * float(f32(b))
        scale = source.choice((1.0, 2.0**23, 2.0**24, 2.0**25, 2.0**29, 2.0**-24))
        rough = np.float32(product * scale)
        c = int(rough.view(np.uint32)) & ~source.choice((0, 1, 0xFFF, 0x7FFFFF))
        hard.append((a, b, c ^ source.choice((0, 0x80000000))))
    hard += [tuple(source.choice(EDGES) for _ in range(3)) for _ in range(1500)]  # type: ignore[misc]
    hard += [tuple(source.getrandbits(32) for _ in range(3)) for _ in range(1500)]  # type: ignore[misc]
    for a, b, c in hard:
        assert fused_multiply_add(a, b, c) == reference_fma(a, b, c), (hex(a), hex(b), hex(c))


def test_double_rounding_is_seen() -> None:
    """1 + 2^-23 plus a little less than half an ulp: in double precision a tie, which goes the other way."""
    a, b, c = (np.float32(v) for v in (1 + 2**-23, 2**-24 * (1 - 2**-23), 1 + 2**-23))
    assert np.float32(float(a) * float(b) + float(c)) == np.float32(1 + 2**-22)
    assert fused_multiply_add(*map(bits_of, (a, b, c))) == bits_of(c)
    assert reference_fma(*map(bits_of, (a, b, c))) == bits_of(c)


@pytest.mark.parametrize("file", [R, F])
@pytest.mark.parametrize("name", FUSED)
def test_signs_of_multiply_adds(name: str, file: str) -> None:
    product, addend = {
        "fmadd.s": (1, 1),
        "fmsub.s": (1, -1),
        "fnmsub.s": (-1, 1),
        "fnmadd.s": (-1, -1),
    }[name]
    for rd, rs1, rs2 in ((3.0, 5.0, 7.0), (0.1, -1.25, 3e-3), (-2.5, 0.0, 4.0)):
        bits = [bits_of(np.float32(v)) for v in (rd, rs1, rs2)]
        exact = [Fraction(float(f32(b))) for b in bits]
        expected = round_to_f32(product * exact[1] * exact[2] + addend * exact[0])
        assert compute(name, *bits, file=file) == expected


@pytest.mark.parametrize("file", [R, F])
def test_conversions_from_integers(file: str) -> None:
    source = random.Random("integers")
    numbers = [0, 1, 0x7F, 0xFFFFFF80, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x01000001, 0x01000003]
    for number in numbers + [source.getrandbits(32) for _ in range(20)]:
        signed = np.int32(number - (1 << 32) if number >> 31 else number)
        assert compute("fcvt.s.w", number, file=file) == bits_of(signed.astype(np.float32))
        unsigned = np.uint32(number).astype(np.float32)
        assert compute("fcvt.s.wu", number, file=file) == bits_of(unsigned)


# fmt: off
ROUNDED = [
    # Value, and the integers to nearest even, toward zero, down, up, to nearest away.
    (2.5, (2, 2, 2, 3, 3)), (3.5, (4, 3, 3, 4, 4)), (-2.5, (-2, -2, -3, -2, -3)), (1.75, (2, 1, 1, 2, 2)),
    (-0.25, (0, 0, -1, 0, 0)), (0.49999997, (0, 0, 0, 1, 0)), (3e9, (2147483647,) * 5), (-3e9, (-2147483648,) * 5),
    (math.inf, (2147483647,) * 5), (-math.inf, (-2147483648,) * 5), (math.nan, (2147483647,) * 5),
]
# fmt: on


def test_conversions_to_integers() -> None:
    for value, expected in ROUNDED:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        for mode, number in zip(("rne", "rtz", "rdn", "rup", "rmm"), expected, strict=True):
            assert compute("fcvt.w.s", bits, rounding=mode) == number & 0xFFFFFFFF, (value, mode)
        unsigned = 0xFFFFFFFF if math.isnan(value) else None
        if math.isfinite(value) and value > -1 and value < 4e9:
            unsigned = math.trunc(value)
        if value == math.inf:
            unsigned = 0xFFFFFFFF
        assert compute("fcvt.wu.s", bits, rounding="rtz") == (unsigned or 0), value
    assert compute("fcvt.w.s", bits_of(np.float32(2.5))) == 2


# endregion

DOT = f"""
riscv_func.func @f(%a : {R}<a0>, %b : {R}<a1>, %n : {R}<a2>) -> {R}<a0> {{
  %p = riscv.mv %a : ({R}<a0>) -> {R}
  %q = riscv.mv %b : ({R}<a1>) -> {R}
  %count = riscv.mv %n : ({R}<a2>) -> {R}
  %start = rv32.li 0 : {R}
  %sum, %pe, %qe = riscv_pulp.lp_setup 0, %count : {R}
      iter_args(%acc = %start, %pi = %p, %qi = %q) -> ({R}, {R}, {R}) {{
    %l, %p1 = riscv_pulp.lw_post %pi, 4 : ({R}) -> ({R}, {R})
    %w, %q1 = riscv_pulp.lb_post %qi, 1 : ({R}) -> ({R}, {R})
    %f = riscv_zfinx.fcvt.s.w %w : ({R}) -> {R}
    %acc1 = riscv_zfinx.fmadd.s %acc, %l, %f : ({R}, {R}, {R}) -> {R}
    riscv_pulp.yield %acc1, %p1, %q1 : {R}, {R}, {R}
  }}
  %total = riscv.mv %sum : ({R}) -> {R}<a0>
  riscv_func.return %total : {R}<a0>
}}
"""


def test_accumulator_keeps_its_register_through_a_loop() -> None:
    """
    f32 times int8 in a hardware loop, after register allocation: the interpreter compares each value with its register, so
    that an addend that was overwritten too early is an error.
    """
    allocated = run_passes(parse(DOT), RISCVAllocateRegistersPass())
    (fma,) = (op for op in allocated.walk() if isinstance(op, MultiplyAddOperation))
    assert fma.rd_in.type == fma.rd_out.type
    assert fma.assembly_line_args()[0] is fma.assembly_line_args()[3]
    source = np.random.default_rng(7)
    a = source.standard_normal(9).astype(np.float32)
    w = source.integers(-128, 128, 9).astype(np.int8)
    expected = 0
    for x, y in zip(a, w, strict=True):
        expected = reference_fma(bits_of(x), bits_of(np.float32(y)), expected)
    pointers = (RawPtr(bytearray(a.tobytes())), RawPtr(bytearray(w.tobytes())))
    assert interpret(allocated, *pointers, 9) == (expected,)


def test_refusals() -> None:
    registers = f"%a = rv32.get_register : {R}<a0>\n%b = riscv.get_float_register : {F}<fa0>\n"
    types = f"({R}<a0>, {F}<fa0>)"
    with pytest.raises(VerifyException, match="one kind of register"):
        parse(f"{registers}%r = riscv_zfinx.fadd.s %a, %b : {types} -> {R}")
    with pytest.raises(VerifyException, match="one kind of register"):
        parse(f"{registers}%r = riscv_zfinx.flt.s %a, %b : {types} -> {R}")
    with pytest.raises(VerifyException, match="one kind of register"):
        parse(f"{registers}%r = riscv_zfinx.fsqrt.s %b : ({F}<fa0>) -> {R}")
    with pytest.raises(VerifyException, match="unknown rounding mode 'down'"):
        parse(f'{registers}%r = riscv_zfinx.fcvt.w.s %b, "down" : ({F}<fa0>) -> {R}')
    addend = f"""
        riscv_func.func @f(%x : {R}, %y : {R}) -> {R} {{
          %s = riscv_zfinx.fmadd.s %x, %y, %y : ({R}, {R}, {R}) -> {R}
          %t = riscv_zfinx.fadd.s %s, %x : ({R}, {R}) -> {R}
          riscv_func.return %t : {R}
        }}
    """
    with pytest.raises(VerifyException, match="%x is overwritten here and read again"):
        parse(addend)
