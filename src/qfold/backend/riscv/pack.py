"""`riscv.pack`: a weight as panels of four columns of floats, `y[p, k, c] = float(w[k, 4p + c] - z)`.

Three instructions per weight, and a fourth where there is a zero point: load, subtract as integers, convert, store. A byte minus
a byte is exact in f32. f32 weights are only rearranged, by two instructions each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from xdsl.dialects.riscv import ops as riscv
from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer, c_type
from qfold.backend.c.share import Range, Split
from qfold.backend.c.text import Writer
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.emit import finish
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.leaf import (
    function_facts,
    isa_of,
    only_op,
    share_sizes,
    split_of,
)
from qfold.backend.riscv.panel_driver import each_packed_panel
from qfold.backend.riscv.readers import Element, SideBySide, carried, set_carried
from qfold.dialects import qkernel
from qfold.dialects.qkernel import PANEL
from qfold.targets import Isa

_AHEAD: Final = 2
"""Weights that are loaded before the one that is converted: a load's value is there one instruction later."""


@dataclass(frozen=True)
class PackShape:
    """What the assembly functions of one kernel are specialised for. Strides are in elements."""

    k: int
    n: int
    weight: Element
    column_stride: int
    row_stride: int
    """From one k to the next."""
    zero_point: Literal["none", "tensor", "column"]

    @property
    def full_panels(self) -> int:
        """Panels without columns past N."""
        return self.n // PANEL

    @property
    def panels(self) -> int:
        return -(-self.n // PANEL)

    @property
    def widths(self) -> list[int]:
        """The numbers of columns that panels have."""
        return [c for c in (PANEL if self.full_panels else 0, self.n % PANEL) if c]

    def reads(self, columns: int) -> SideBySide:
        """The weights of a panel."""
        size = self.weight.size
        return SideBySide(self.weight, columns, self.column_stride * size, self.row_stride * size)

    def instructions_per_weight(self, isa: Isa) -> float:
        """In the loop over k, for a panel without columns past N."""
        converted = self.weight.kind != "f32"
        per_weight = 2 + converted + (self.zero_point != "none")
        # Stores of a float file have no post-increment, and nothing has it without XpulpV2, nor a loop for free.
        pointers = self.reads(PANEL).pointers
        float_file = isa.float_registers == "f"
        additions = float_file + (pointers if float_file and not converted else 0)
        if not isa.xpulpv2:
            additions = 1 + pointers + 2
        return per_weight + additions / PANEL


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one `qkernel.pack`; `qmm.split` has two entries, for panels and for K. `w` may have any
    static strides. Blockwise scales are not for it (`CannotGenerate`).
    """
    op = only_op(leaf, qkernel.PackOp)
    if op.block is not None:
        raise CannotGenerate(
            op, f"block_size {op.block}: generated packing has no scales, c.pack has"
        )
    isa = isa_of(leaf)
    w, y = leaf.buffers[op.w], leaf.buffers[op.y]
    zero = None if op.zero_point is None else leaf.buffers[op.zero_point]
    k, n = op.weight_shape
    if min(k, n) < 1:
        raise CannotGenerate(op, f"a weight of {k} x {n} has nothing to pack")
    row, column = w.strides if op.transpose_b is None else w.strides[::-1]
    shape = PackShape(
        k,
        n,
        Element.of(str(w.element)),
        column,
        row,
        "none" if zero is None else "column" if zero.shape else "tensor",
    )
    symbols = {columns: f"{leaf.symbol}_panel{columns}" for columns in shape.widths}
    pointer = f"const {c_type(w.element)} *"
    parameters = f"{pointer}w, float *y, {f'{pointer}z, ' if zero else ''}ptrdiff_t count"
    split = split_of(leaf, 2)
    functions = {
        columns: finish(panel_function(symbol, isa, shape, columns))
        for columns, symbol in symbols.items()
    }
    parts = len(share_sizes(k, split.at(1)))
    executed = 0
    for columns, function in functions.items():
        panels = shape.full_panels if columns == PANEL else 1
        executed += panels * (function.executed(k) + (parts - 1) * function.executed())
    return GeneratedKernel(
        leaf.symbol,
        tuple(f"void {symbol}({parameters})" for symbol in symbols.values()),
        tuple(_driver(shape, symbols, split, w, y, zero)),
        tuple(functions.values()),
        {
            "panel": PANEL,
            "block_instructions_per_weight": shape.instructions_per_weight(isa),
            "instructions": executed,
            "instructions_per_weight": round(executed / (k * n), 4),
            "functions": function_facts(functions.values()),
        },
    )


def _driver(
    shape: PackShape,
    symbols: dict[int, str],
    split: Split,
    w: Buffer,
    y: Buffer,
    zero: Buffer | None,
) -> Sequence[str]:
    """The C that finds a core's panels and steps in k, and calls an assembly function for each panel."""
    out = Writer()

    def call(columns: int, panel: str, steps: Range) -> None:
        row = f"{steps.first} * {shape.row_stride}"
        zeros: list[str] = []
        if zero is not None:
            zeros = [f"{zero.name} + {panel} * {PANEL}" if zero.shape else zero.name]
        arguments = [
            f"{w.name} + {panel} * {PANEL * shape.column_stride} + {row}",
            f"{y.name} + ({panel} * {shape.k} + {steps.first}) * {PANEL}",
            *zeros,
            f"{steps.last} - {steps.first}",
        ]
        out.line(f"{symbols[columns]}({', '.join(arguments)});")

    each_packed_panel(out, split, shape.n, shape.k, call)
    return out.text().splitlines()


def panel_function(symbol: str, isa: Isa, shape: PackShape, columns: int) -> FunctionBuilder:
    """
    `void symbol(w, y, [z,] count)`: `count` >= 1 steps in k of a panel with `columns` columns; the others become 0. `w` points at
    the first weight, `y` at the first row of the panel to write, `z` at the first column's zero point.
    """
    has_zero = shape.zero_point != "none"
    b = FunctionBuilder(symbol, isa, ("w", "y", *(("z",) if has_zero else ()), "count"))
    zeros: list[SSAValue] = []
    if has_zero:
        reads = columns if shape.zero_point == "column" else 1
        zeros = [shape.weight.load(b, b.arguments["z"], i) for i in range(reads)]
        zeros *= columns // reads
    reader = shape.reads(columns).open(b, b.arguments["w"])
    with b.loop(b.arguments["count"], [*carried(reader), b.arguments["y"]]) as loop:
        set_carried(loop.args[:-1], reader)
        y = loop.args[-1]
        moved = 0
        order = reader.order()
        # Loads, conversions and stores alternate: two cores that share a float unit never ask for it several times in a row.
        loaded = [reader.read(b, c) for c in order[:_AHEAD]]
        for c in range(columns, PANEL):
            b.sw(b.zero, y, c * WORD)
        for place, c in enumerate(order):
            value = loaded[place]
            if has_zero:
                value = b.emit(riscv.SubOp(value, zeros[c])).rd
            if shape.weight.kind != "f32":
                value = b.int_to_float(value)
            if place + _AHEAD < columns:
                loaded.append(reader.read(b, order[place + _AHEAD]))
            if c == 0:
                y = b.fstore_post(value, y, PANEL * WORD)
                moved = PANEL * WORD
            else:
                b.fstore(value, y, c * WORD - moved)
        loop.yield_(*carried(reader), y)
    return b
