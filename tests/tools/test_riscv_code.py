"""The instruction names that are read off machine code, against what an assembler was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from qfold.dialects.riscv_pulp.encoding import ENCODINGS
from qfold.tools.riscv_code import instructions

_COMMON = {
    "lb a0, 3(a1)": "lb",
    "lbu a0, -3(s1)": "lbu",
    "lh t0, 2(sp)": "lh",
    "lhu t6, 0(zero)": "lhu",
    "lw t0, 2000(a1)": "lw",
    "lw a0, 4(a1)": "lw",  # compressed
    "lw ra, 12(sp)": "lw",  # compressed, from the stack
    "sw a0, 4(a1)": "",
    "sb a0, 4(a1)": "",
    "addi a0, a0, 1": "",
    "add a0, a0, a1": "",
    "mul a0, a0, a1": "",
    "j .": "",
    "jal ra, .": "",
    "csrr a0, mhartid": "",
}
_REGISTERS = {"f": ("fa0", "fa1", "fa2"), "zfinx": ("a0", "a1", "a2")}


def _float(isa: str) -> dict[str, str]:
    d, a, b = _REGISTERS[isa]
    lines = {f"{op}.s {d}, {a}, {b}": f"{op}.s" for op in ("fadd", "fsub", "fmul", "fdiv")}
    lines |= {
        f"{op}.s {d}, {a}, {b}, {d}": f"{op}.s" for op in ("fmadd", "fmsub", "fnmsub", "fnmadd")
    }
    lines |= {f"fcvt.s.w {d}, a3": "fcvt.s.w", f"fcvt.s.wu {d}, a3": "fcvt.s.wu"}
    if isa == "f":
        lines |= {"flw fa0, 2000(a1)": "flw", "flw fa0, 4(a1)": "flw", "flw fa0, 8(sp)": "flw"}
        lines |= {"fsw fa0, 4(a1)": "", "c.fsw fa0, 4(a1)": ""}
    return lines


def _pulp() -> dict[str, str]:
    """Each XpulpV2 instruction as raw fields; formats as the table's opcodes have them."""
    lines: dict[str, str] = {}
    for e in ENCODINGS.values():
        match e.opcode:
            case 0x2B if e.funct3 < 4:
                line = f".insn s 0x2b, {e.funct3}, a0, 4(a1)"
            case 0x0B if e.funct3 != 7:
                line = f".insn i 0x0b, {e.funct3}, a0, a1, 4"
            case 0x03 | 0x7B:
                line = f".insn i {e.opcode}, {e.funct3}, x1, a1, 8"
            case _:
                # The low bits of a bit field's length do not change what it is.
                low = 5 if e.funct7 == 0x60 else 0
                line = f".insn r {e.opcode}, {e.funct3}, {e.funct7 + low}, a0, a1, a2"
        lines[line] = e.mnemonic
    return lines


@pytest.mark.parametrize("isa", ["f", "zfinx"])
def test_names_are_what_the_assembler_was_given(isa: str, tmp_path: Path) -> None:
    lines = _COMMON | _float(isa) | _pulp()
    source, target = tmp_path / "a.S", tmp_path / "a.o"
    source.write_text("\n".join(["f:", *lines, ""]))
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "riscv32-freestanding"]
    command += [f"-mcpu=generic_rv32+m+c+{isa}", "-c", str(source), "-o", str(target)]
    subprocess.run(command, check=True, timeout=120)
    with target.open("rb") as stream:
        code = ELFFile(stream).get_section_by_name(".text").data()
    found = list(instructions(code))
    assert [i.mnemonic for i in found] == list(lines.values())
    assert sum(i.size for i in found) == len(code)
    assert any(i.size == 2 and i.mnemonic == "lw" for i in found)
    assert any(i.size == 2 and i.mnemonic == "flw" for i in found) == (isa == "f")


def test_the_register_of_a_load_s_address() -> None:
    """The words are `lw a0, 4(a1)`, `lw a0, 0(sp)`, `p.lb a0, 1(a1!)`, `add`, `c.lw a0, 4(a1)` and `c.lwsp ra, 12(sp)`."""
    full = (0x0045A503, 0x00012503, 0x0015850B, 0x00C58533)
    code = b"".join(word.to_bytes(4, "little") for word in full)
    code += b"".join(half.to_bytes(2, "little") for half in (0x41C8, 0x40B2))
    found = [(i.mnemonic, i.base) for i in instructions(code)]
    assert found == [("lw", 11), ("lw", 2), ("p.lb", 11), ("", None), ("lw", 11), ("lw", 2)]


@pytest.mark.parametrize("code", [b"\x03", b"\x03\x25\x00", b"\x1f\x00\x00\x00\x00\x00"])
def test_half_an_instruction_is_refused(code: bytes) -> None:
    with pytest.raises(ValueError, match="no whole instruction"):
        list(instructions(code))
