"""The C around products of rows with panels of four columns: which assembly function computes which block of a core's share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

from xdsl.dialects.builtin import DenseArrayBase, IntegerType
from xdsl.ir import Operation

from qfold.backend.c.layout import Buffer, Linear, c_type, variable
from qfold.backend.c.share import Range, Split, shares
from qfold.backend.c.text import Writer
from qfold.backend.riscv.cost import RegisterBlock
from qfold.backend.riscv.emit import AssemblyFunction
from qfold.backend.riscv.generated import CannotGenerate, LeafKernel
from qfold.backend.riscv.streams import Stream
from qfold.dialects.contraction import ints
from qfold.dialects.qkernel import PANEL

BLOCK = "qmm.block"
"""The attribute of a leaf function that overrides the cost model: [rows, columns] of the register block."""

_Block = TypeVar("_Block", bound=RegisterBlock)


@dataclass(frozen=True)
class PanelProduct:
    """A product [M, N] of the rows of `a` with panels, as the functions of its blocks take it."""

    m: int
    n: int
    a: Buffer
    p: Buffer
    a_row: int
    """Elements of `a` from a row to the next."""
    column_elements: int
    """Elements of `p` that a column has."""
    y: Stream
    operands: tuple[Stream, ...]
    """Of the epilogue."""

    @property
    def full_panels(self) -> int:
        return self.n // PANEL

    @property
    def tail(self) -> int:
        """Columns of the last panel where N is no multiple of four, else 0."""
        return self.n % PANEL

    @property
    def panels(self) -> int:
        return self.full_panels + (self.tail > 0)

    def heights(self, rows: int) -> list[int]:
        """The rows of each block when blocks have `rows` and the last one what is left."""
        return [rows] * (self.m // rows) + [self.m % rows] * (self.m % rows > 0)

    def shapes(self, rows: int) -> list[tuple[int, int]]:
        """(rows, columns) of the functions that there must be."""
        widths = [w for w in (PANEL if self.full_panels else 0, self.tail) if w]
        return [(h, w) for h in dict.fromkeys(self.heights(rows)) for w in widths]

    def parameters(self, *, many: bool) -> list[str]:
        """Names of a function's parameters; `many`: it takes a number of panels."""
        return ["a", "p", "y", *(["panels"] if many else []), *(s.name for s in self.operands)]


@dataclass(frozen=True)
class Call:
    """An assembly function for blocks of one shape."""

    function: AssemblyFunction
    rows: int
    columns: int
    many: bool
    """Whether it takes a number of panels."""


def wanted_blocks(leaf: LeafKernel, op: Operation, m: int, ranked: list[_Block]) -> list[_Block]:
    """The blocks to try, best first: those of the cost model, or the one that the leaf function names."""
    attribute = leaf.function.attributes.get(BLOCK)
    if attribute is None:
        return ranked
    wanted = list(ints(cast("DenseArrayBase[IntegerType]", attribute)))
    found = {c.name: c for c in ranked}
    name = "x".join(map(str, wanted))
    if name not in found:
        raise CannotGenerate(op, f"{BLOCK} = {wanted}: for {m} rows there are {', '.join(found)}")
    return [found[name]]


def out_of_registers(op: Operation, blocks: Iterable[RegisterBlock]) -> CannotGenerate:
    """What there is to say when no block has registers for the epilogue."""
    tried = ", ".join(c.name for c in blocks)
    return CannotGenerate(op, f"its epilogue keeps more values at once than registers: {tried}")


def prototype(product: PanelProduct, call: Call) -> str:
    """The C declaration of an assembly function, without a semicolon."""
    parameters = [
        f"const {c_type(product.a.element)} *a",
        f"const {c_type(product.p.element)} *p",
        product.y.declaration,
        *(["ptrdiff_t panels"] if call.many else []),
        *(s.declaration for s in product.operands),
    ]
    return f"void {call.function.symbol}({', '.join(parameters)})"


def _arguments(product: PanelProduct, call: Call, panel: str, panels: str) -> str:
    """The arguments of a call for `panels` panels from `panel` (a C expression) on, at row `m`."""
    first = Linear({}, int(panel)) if panel.isdecimal() else variable(panel)
    places = {"m": variable("m"), "n": first.scaled(PANEL)}

    def at(buffer: Buffer, position: Linear) -> str:
        moved = Linear({}, position.constant)
        for name, coefficient in position.terms.items():
            moved += places[name].scaled(coefficient)
        text = moved.text()
        return buffer.name if text == "0" else f"{buffer.name} + {text}"

    values = [
        at(product.a, Linear({"m": product.a_row})),
        at(product.p, Linear({"n": product.column_elements})),
        at(product.y.buffer, product.y.position),
        *([panels] if call.many else []),
        *(at(s.buffer, s.position) for s in product.operands),
    ]
    return ", ".join(values)


def driver(product: PanelProduct, rows: int, split: Split, calls: Iterable[Call]) -> list[str]:
    """The body of the C function. Whoever has the last panel also does the columns past the last whole one."""
    by_block = {(c.rows, c.columns): c for c in calls}
    whole = product.full_panels
    out = Writer()

    @contextmanager
    def guarded(condition: str, panels: Range) -> Generator[None]:
        # Whoever does all panels need not ask whether it has some.
        if panels.is_whole:
            yield
        else:
            with out.block(f"if ({condition})"):
                yield

    def of_rows(count: int, panels: Range, last: str) -> None:
        full = by_block.get((count, PANEL))
        if full is not None:
            several = last if panels.is_whole else f"{last} - {panels.first}"
            arguments = _arguments(product, full, panels.first, several)
            with guarded(f"{panels.first} < {last}", panels):
                out.line(f"{full.function.symbol}({arguments});")
        if product.tail:
            tail = by_block[count, product.tail]
            arguments = _arguments(product, tail, str(whole), "1")
            has_last = f"{panels.first} < {panels.last} && {panels.last} == {product.panels}"
            with guarded(has_last, panels):
                out.line(f"{tail.function.symbol}({arguments});")

    with shares(out, split, (-(-product.m // rows), product.panels)) as (blocks, panels):
        last = str(whole) if panels.is_whole else panels.last
        if product.tail and whole and not panels.is_whole:
            out.line(f"const ptrdiff_t last = {last} < {whole} ? {last} : {whole};")
            last = "last"
        with out.loop("block", blocks.last, blocks.first):
            out.line(f"const ptrdiff_t m = block * {rows};")
            remaining = product.m % rows
            if not remaining:
                of_rows(rows, panels, last)
            else:
                with out.block(f"if (block < {product.m // rows})"):
                    of_rows(rows, panels, last)
                with out.block("else"):
                    of_rows(remaining, panels, last)
    return out.text().splitlines()


def executed(product: PanelProduct, rows: int, column_parts: int, calls: Iterable[Call]) -> int:
    """Instructions of all assembly functions on all cores."""
    by_block: Mapping[tuple[int, int], AssemblyFunction] = {
        (c.rows, c.columns): c.function for c in calls
    }
    # A part of the columns is a call, unless all that it has is the last, narrower panel.
    parts = min(column_parts, product.panels)
    size, larger = divmod(product.panels, parts)
    wide = sum(i * size + min(i, larger) < product.full_panels for i in range(parts))
    total = 0
    for height in product.heights(rows):
        if product.full_panels:
            function = by_block[height, PANEL]
            total += wide * function.instructions
            total += product.full_panels * function.instructions_per_iteration
        if product.tail:
            total += by_block[height, product.tail].instructions
    return total


def each_packed_panel(
    out: Writer, split: Split, n: int, steps: int, call: Callable[[int, str, Range], None]
) -> None:
    """
    The C that packs a core's share of [`steps`, `n`] into panels: `call` writes what becomes of one panel, given its columns, its
    number as a C expression, and the steps of K. `split` is over panels and steps.
    """
    full, panels = n // PANEL, -(-n // PANEL)
    with shares(out, split, (panels, steps)) as (share, part):
        if full:
            last = share.last
            if full < panels:
                last = str(full) if share.is_whole else f"({last} < {full} ? {last} : {full})"
            with out.loop("p", last, share.first):
                call(PANEL, "p", part)
        if full < panels:
            # The last panel, which has fewer columns, belongs to the last part.
            condition = "" if share.is_whole else f"if ({share.last} == {panels})"
            with out.block(condition):
                call(n % PANEL, str(full), part)
