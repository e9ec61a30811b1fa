"""The encodings of XpulpV2 as RI5CY has them (CORE-V's later `xcv*` extensions moved almost all of them).

Every entry was confirmed by at least two sources that are independent of this project: GVSoC's `isa_pulpv2.py`, MemPool's
`riscv_instr.sv` (generated from PULP's fork of riscv-opcodes; without hardware loops and `p.elw`), the RI5CY datasheet (hardware
loops), and instruction words that PULP's binutils disassembled. `tests/riscv_pulp/test_encodings.py` has the words and patterns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Encoding:
    """The fixed fields of an instruction. Which format they belong to is known to the op."""

    mnemonic: str
    """What PULP's binutils call it."""

    opcode: int
    funct3: int
    funct7: int = 0
    """Also the upper bits of a 2 + 5 bit field pair: 0x60 for the instructions with two 5-bit immediates."""


_LOAD = 0x03
_LOAD_POST = 0x0B
_STORE_POST = 0x2B
_OP = 0x33
_VECTOR = 0x57
_NORMALIZED = 0x5B
_HARDWARE_LOOP = 0x7B

_LOADS = {"lb": (0, 0x00), "lh": (1, 0x08), "lw": (2, 0x10), "lbu": (4, 0x20), "lhu": (5, 0x28)}
"""Width -> funct3 of the immediate form, funct7 of the register form (its funct3 is 7)."""

_STORES = {"sb": 0, "sh": 1, "sw": 2}
"""Width -> funct3 of the immediate form. The register form has 4 more."""

_DOT_PRODUCTS = {
    "dotup": 0x40,
    "dotusp": 0x44,
    "dotsp": 0x4C,
    "sdotup": 0x50,
    "sdotusp": 0x54,
    "sdotsp": 0x5C,
}
_VECTOR_FORMS = {"h": 0, "b": 1, "sc.h": 4, "sc.b": 5}

ENCODINGS: Final[dict[str, Encoding]] = {
    **{f"{n}_post": Encoding(f"p.{n}", _LOAD_POST, f3) for n, (f3, _) in _LOADS.items()},
    **{f"{n}_post_reg": Encoding(f"p.{n}", _LOAD_POST, 7, f7) for n, (_, f7) in _LOADS.items()},
    **{f"{n}_post": Encoding(f"p.{n}", _STORE_POST, f3) for n, f3 in _STORES.items()},
    **{f"{n}_post_reg": Encoding(f"p.{n}", _STORE_POST, f3 + 4) for n, f3 in _STORES.items()},
    "elw": Encoding("p.elw", _LOAD, 6),
    "abs": Encoding("p.abs", _OP, 0, 0x02),
    "min": Encoding("p.min", _OP, 4, 0x02),
    "minu": Encoding("p.minu", _OP, 5, 0x02),
    "max": Encoding("p.max", _OP, 6, 0x02),
    "maxu": Encoding("p.maxu", _OP, 7, 0x02),
    "clip": Encoding("p.clip", _OP, 1, 0x0A),
    "clipu": Encoding("p.clipu", _OP, 2, 0x0A),
    "addn": Encoding("p.addn", _NORMALIZED, 2),
    "mac": Encoding("p.mac", _OP, 0, 0x21),
    "msu": Encoding("p.msu", _OP, 1, 0x21),
    "extract": Encoding("p.extract", _OP, 0, 0x60),
    "extractu": Encoding("p.extractu", _OP, 1, 0x60),
    "insert": Encoding("p.insert", _OP, 2, 0x60),
    "bclr": Encoding("p.bclr", _OP, 3, 0x60),
    "bset": Encoding("p.bset", _OP, 4, 0x60),
    **{
        f"{n}.{form}": Encoding(f"pv.{n}.{form}", _VECTOR, f3, f7)
        for n, f7 in _DOT_PRODUCTS.items()
        for form, f3 in _VECTOR_FORMS.items()
    },
    "lp_setup": Encoding("lp.setup", _HARDWARE_LOOP, 4),
    "lp_setupi": Encoding("lp.setupi", _HARDWARE_LOOP, 5),
}
"""Op name without the dialect -> encoding."""
