"""`riscv.pack_window` for images of few channels: an assembly function copies one whole window, two instructions a byte.

That is for windows inside of the image. Those that reach into its padding are copied in C, byte by byte.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer
from qfold.backend.c.share import shares
from qfold.backend.c.text import Writer
from qfold.backend.riscv.builder import WORD, FunctionBuilder, fits_12_bits
from qfold.backend.riscv.emit import finish
from qfold.backend.riscv.generated import GeneratedKernel, LeafKernel
from qfold.backend.riscv.leaf import function_facts, isa_of, split_of
from qfold.backend.riscv.windows import Windows, as_bytes
from qfold.dialects.qkernel import PANEL
from qfold.dialects.riscv_pulp import memory
from qfold.targets import Isa

_FEW: Final = 8
"""Channels from which on a call for each tap is cheaper than one for each window: 8 instructions a channel and about 20, or 75
where positions are no neighbours."""
_LARGEST: Final = 256
"""K up to which all of a window is straight code: 2 KiB."""
_AHEAD: Final = 2
"""As in `byte_copies`."""


def is_better(windows: Windows) -> bool:
    """Whether this is how to pack them. Where no window is inside of the image, as in a tile of its border, there is nothing for
    the function to copy."""
    return (
        windows.channels < _FEW
        and windows.k <= _LARGEST
        and any(_is_whole(windows, n) for n in range(windows.positions))
    )


def kernel(leaf: LeafKernel, windows: Windows, x: Buffer, y: Buffer) -> GeneratedKernel:
    """The kernel of a leaf that packs `windows` of `x`; the second entry of `qmm.split` divides the columns of a panel."""
    w = windows
    symbol = f"{leaf.symbol}_window"
    function = finish(_function(symbol, isa_of(leaf), w))
    out = Writer()
    split = split_of(leaf, 2)
    with ExitStack() as stack:
        panels, columns = stack.enter_context(shares(out, split, (w.panels, PANEL)))
        stack.enter_context(out.loop("p", panels.last, panels.first))
        stack.enter_context(out.loop("c", columns.last, columns.first))
        out.line(f"const ptrdiff_t n = p * {PANEL} + c;")
        place = f"p * {w.words * WORD * PANEL} + c * {WORD}"
        out.line(f"uint8_t *const to = {as_bytes(y)} + {place};")
        if w.positions % PANEL:
            with out.block(f"if (n >= {w.positions})"):
                with out.loop("k", w.words * WORD):
                    out.line(f"{_byte('k')} = 0;")
                out.line("continue;")
        w.origin(out, "n")
        call = f"{symbol}({as_bytes(x, 'const ')} + {w.at_origin()}, to);"
        inside = _inside(w)
        if not inside:
            out.line(call)
        else:
            with out.block(f"if ({inside})"):
                out.line(call)
            with out.otherwise():
                _clipped(out, w, x)
    whole = sum(_is_whole(w, n) for n in range(w.positions))
    executed = whole * function.executed()
    return GeneratedKernel(
        leaf.symbol,
        (f"void {symbol}(const uint8_t *x, uint8_t *y)",),
        tuple(out.text().splitlines()),
        (function,),
        {
            "panel": PANEL,
            "moves": "windows",
            "whole_windows": whole,
            "windows": w.positions,
            "instructions": executed,
            "instructions_per_byte": round(executed / (w.k * whole), 4),
            "functions": function_facts([function]),
        },
    )


def _byte(k: str) -> str:
    """The place of a k in its column."""
    return f"to[{k} / {WORD} * {WORD * PANEL} + {k} % {WORD}]"


def _inside(w: Windows) -> str:
    """Whether the window at i0, i1 is inside of x, as C; empty where all are."""
    found: list[str] = []
    for d, axis in enumerate(w.axes):
        if axis.clipped:
            reach = (axis.kernel - 1) * axis.dilation
            found.append(f"i{d} >= 0 && i{d} + {reach} < {axis.size}")
    return " && ".join(found)


def _is_whole(w: Windows, position: int) -> bool:
    """The same of an output position."""
    for axis in reversed(w.axes):
        position, index = divmod(position, axis.output)
        begin = index * axis.stride - axis.pad
        if begin < 0 or begin + (axis.kernel - 1) * axis.dilation >= axis.size:
            return False
    return True


def _clipped(out: Writer, w: Windows, x: Buffer) -> None:
    """A window that reaches beyond x, and zeros from K on to the end of its last word."""
    out.line("ptrdiff_t k = 0;")
    with ExitStack() as stack:
        if w.channels > 1:
            stack.enter_context(out.loop("ci", w.channels))
        places = [f"ci * {w.channel_stride}"] if w.channels > 1 else []
        inside: list[str] = []
        for d, (axis, stride) in enumerate(zip(w.axes, w.strides, strict=True)):
            index = f"i{d}"
            if axis.kernel > 1:
                stack.enter_context(out.loop(f"k{d}", axis.kernel))
                index = f"(i{d} + k{d} * {axis.dilation})"
            places.append(f"{index} * {stride}")
            if axis.clipped:
                inside.append(f"(size_t){index} < {axis.size}")
        value = f"({as_bytes(x, 'const ')})[{' + '.join(places)}]"
        out.line(f"{_byte('k')} = {' && '.join(inside)} ? {value} : {w.padding};")
        out.line("k++;")
    if w.k % WORD:
        with out.block(f"for (; k < {w.words * WORD}; k++)"):
            out.line(f"{_byte('k')} = 0;")


def _function(symbol: str, isa: Isa, windows: Windows) -> FunctionBuilder:
    """`void symbol(x, y)`: the window that begins at `x` to the column at `y`, with zeros from K on."""
    b = FunctionBuilder(symbol, isa, ("x", "y"), f"a window of {windows.k} bytes")
    x, y = b.arguments["x"], b.arguments["y"]
    taps = windows.tap_offsets()
    offsets = [c * windows.channel_stride + t for c in range(windows.channels) for t in taps]
    pointer, moved = x, 0
    loaded: list[SSAValue] = []
    for k in range(len(offsets)):
        for offset in offsets[len(loaded) : k + 1 + _AHEAD]:
            if not fits_12_bits(offset - moved):
                pointer, moved = b.addi(x, offset), offset
            loaded.append(b.emit(memory.LbuOp(pointer, offset - moved)).rd)
        _store(b, loaded[k], y, k)
    for k in range(windows.k, windows.words * WORD):
        _store(b, b.zero, y, k)
    return b


def _store(b: FunctionBuilder, value: SSAValue, y: SSAValue, k: int) -> None:
    b.emit(memory.SbOp(y, value, k // WORD * WORD * PANEL + k % WORD))
