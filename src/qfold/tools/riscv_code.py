"""Which instructions RISC-V machine code holds: enough to prove what a kernel loads and computes with.

Nothing here trusts the assembly text: the words come from the ELF. Encodings: The RISC-V Instruction Set Manual, Volume I
(chapters "RV32/64G Instruction Set Listings" and "C"), and `qfold.dialects.riscv_pulp.encoding` for XpulpV2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qfold.dialects.riscv_pulp.encoding import ENCODINGS

_BASE_LOADS = {0: "lb", 1: "lh", 2: "lw", 4: "lbu", 5: "lhu"}
_FP_LOADS = {2: "flw", 3: "fld"}
_FUSED = {0x43: "fmadd.s", 0x47: "fmsub.s", 0x4B: "fnmsub.s", 0x4F: "fnmadd.s"}
_FP_OPS = {0x00: "fadd.s", 0x04: "fsub.s", 0x08: "fmul.s", 0x0C: "fdiv.s", 0x68: "fcvt.s.w"}
# (quadrant, funct3) of the compressed loads of RV32FC.
_COMPRESSED_LOADS = {(0, 2): "lw", (0, 3): "flw", (2, 2): "lw", (2, 3): "flw"}

LOAD_OF: dict[str, frozenset[str]] = {
    "i8": frozenset({"lb", "p.lb"}),
    "ui8": frozenset({"lbu", "p.lbu"}),
    "i16": frozenset({"lh", "p.lh"}),
    "ui16": frozenset({"lhu", "p.lhu"}),
    "f32": frozenset({"lw", "p.lw", "flw"}),
}
"""Element type -> the instructions that load one element of it as what it is."""

LOADS: frozenset[str] = frozenset(name for names in LOAD_OF.values() for name in names)
"""Every instruction that loads an element."""

DOT_PRODUCTS: frozenset[str] = frozenset(
    e.mnemonic for e in ENCODINGS.values() if e.mnemonic.startswith(("pv.dot", "pv.sdot"))
)
"""Every packed dot product."""

_FLOAT_OPCODES = frozenset({0x07, 0x27, 0x43, 0x47, 0x4B, 0x4F, 0x53})
"""LOAD-FP, STORE-FP, the fused multiply-adds, OP-FP: those of Zfinx too."""
_COMPRESSED_FLOATS = frozenset({(0, 3), (0, 7), (2, 3), (2, 7)})
"""c.flw, c.fsw, c.flwsp, c.fswsp of RV32FC, by (quadrant, funct3)."""


@dataclass(frozen=True)
class Instruction:
    """One instruction."""

    offset: int
    """From the start of the code, in bytes."""
    size: int
    """2 or 4 bytes."""
    mnemonic: str
    """As assemblers spell it (a compressed load as what it expands to); empty for what this module has no name for."""
    base: int | None = None
    """Of a load: the number of the register that it adds its offset to."""
    is_float: bool = False
    """Whether it is one of the float unit: computes with floats, or moves them to or from float registers."""


STACK_POINTER = 2
"""Loads from there are a function's own variables, saved registers and arguments."""


def instructions(code: bytes) -> Iterator[Instruction]:
    """The instructions of `code`, in order. `ValueError` where it ends inside of one, or one is longer than four bytes."""
    at = 0
    while at < len(code):
        half = int.from_bytes(code[at : at + 2], "little")
        size = 4 if half & 3 == 3 else 2
        if at + size > len(code) or half & 0x1F == 0x1F:
            raise ValueError(f"no whole instruction of 2 or 4 bytes at offset {at}")
        if size == 2:
            name = _COMPRESSED_LOADS.get((half & 3, half >> 13), "")
            # Loads from the stack are in quadrant 2; the others have three bits for one of the registers 8 to 15.
            base = STACK_POINTER if half & 3 == 2 else 8 + (half >> 7 & 7)
            is_float = (half & 3, half >> 13) in _COMPRESSED_FLOATS
        else:
            word = int.from_bytes(code[at : at + 4], "little")
            name, base = _name(word), word >> 15 & 31
            is_float = word & 0x7F in _FLOAT_OPCODES
        yield Instruction(at, size, name, base if name in LOADS else None, is_float)
        at += size


def _name(word: int) -> str:
    opcode, funct3, funct7 = word & 0x7F, word >> 12 & 7, word >> 25
    match opcode:
        case 0x03 if funct3 in _BASE_LOADS:
            return _BASE_LOADS[funct3]
        case 0x07 if funct3 in _FP_LOADS:
            return _FP_LOADS[funct3]
        case 0x43 | 0x47 | 0x4B | 0x4F if word >> 25 & 3 == 0:
            return _FUSED[opcode]
        case 0x53:
            name = _FP_OPS.get(funct7, "")
            unsigned = name == "fcvt.s.w" and word >> 20 & 31 == 1
            return "fcvt.s.wu" if unsigned else name
        case _:
            return _pulp_name(opcode, funct3, funct7)


def _pulp_name(opcode: int, funct3: int, funct7: int) -> str:
    for encoding in ENCODINGS.values():
        if (encoding.opcode, encoding.funct3) != (opcode, funct3):
            continue
        # Bit fields have their length in the low bits of funct7, and only two bits that say so.
        mask = 0x60 if encoding.funct7 == 0x60 else 0x7F
        has_funct7 = opcode in (0x33, 0x57) or (opcode, funct3) == (0x0B, 7)
        if not has_funct7 or funct7 & mask == encoding.funct7:
            return encoding.mnemonic
    return ""
