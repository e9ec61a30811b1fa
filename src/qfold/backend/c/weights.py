"""`weights.bin` and `weights.S`: every constant once, as bytes and as symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qfold.backend.c.program import NotLevel3, Program, WeightData
from qfold.backend.c.text import Writer

_MIN_ALIGNMENT = 16


@dataclass(frozen=True)
class Blob:
    """The constants side by side. Equal bytes of equal type are one constant already; equal bytes of two types share their
    place.
    """

    data: bytes
    offsets: Mapping[str, int]
    """Symbol -> bytes from the start."""
    alignment: int

    @staticmethod
    def of(program: Program) -> Blob:
        """Lay out the constants in order of first use. `NotLevel3` for one whose bytes were elided from the text."""
        data = bytearray()
        offsets: dict[str, int] = {}
        known: dict[str, int] = {}
        alignment = max((_alignment(w) for w in program.weights), default=_MIN_ALIGNMENT)
        for w in program.weights:
            if w.weight.is_elided:
                raise NotLevel3(f"the bytes of @{w.symbol} were elided from the text form")
            digest = w.weight.sha256
            if digest not in known:
                data += bytes(-len(data) % _alignment(w))
                known[digest] = len(data)
                data += w.weight.raw
            offsets[w.symbol] = known[digest]
        return Blob(bytes(data) or b"\0", offsets, alignment)


def _alignment(weight: WeightData) -> int:
    return max(_MIN_ALIGNMENT, weight.alignment)


def print_assembly(program: Program, blob: Blob) -> str:
    """`weights.S`: one symbol per constant, in the section of its memory level."""
    out = Writer()
    out.comment(
        "The constants of the network, taken from weights.bin; gcc, clang and zig assemble it for any ELF target.\n"
        "-DQFOLD_<level>_SECTION='.section .name,\"a\",%progbits' puts a level's constants in a section of yours."
    )
    spaces = sorted({w.space for w in program.weights})
    for space in spaces:
        out.line(f"#ifndef QFOLD_L{space}_SECTION")
        out.line(f'#define QFOLD_L{space}_SECTION .section .rodata,"a",%progbits')
        out.line("#endif")
    places: dict[tuple[int, int], list[WeightData]] = {}
    for w in program.weights:
        places.setdefault((w.space, blob.offsets[w.symbol]), []).append(w)
    current: int | None = None
    for (space, offset), users in sorted(places.items()):
        if space != current:
            current = space
            out.line()
            out.line(f"    QFOLD_L{space}_SECTION")
        # An empty constant has the offset of the one after it.
        size = max(len(w.weight.raw) for w in users)
        out.line()
        for w in users:
            shape = "x".join(map(str, w.weight.shape))
            out.line(f"/* {shape}x{w.weight.element_type}, sha256 {w.weight.sha256} */")
        out.line(f"    .balign {max(_alignment(w) for w in users)}")
        for w in users:
            out.line(f"    .globl {w.symbol}")
            out.line(f"    .type {w.symbol}, %object")
            out.line(f"    .size {w.symbol}, {max(1, len(w.weight.raw))}")
            out.line(f"{w.symbol}:")
        if size:
            out.line(f'    .incbin "weights.bin", {offset}, {size}')
        else:
            out.line("    .zero 1")
    out.line()
    out.line('    .section .note.GNU-stack,"",%progbits')
    return out.text()
