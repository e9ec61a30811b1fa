"""`riscv.packed_matmul`: a register block of accumulators over panels of four columns.

One assembly function computes a block of rows for any number of panels: a hardware loop over panels around the one over K, the
operands read in order. Tails of rows and columns have functions of their own, whose loads and stores are of real elements
only. No load passes an operand: the last steps of K, which load nothing for a next one, are code of their own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import DenseArrayBase, IntegerType
from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer, Linear, access, variable
from qfold.backend.c.share import Range, Split, shares
from qfold.backend.c.text import Writer
from qfold.backend.riscv import cost
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.epilogue import Epilogue, EpilogueWriter, check_region
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.inner_product import InnerProduct
from qfold.backend.riscv.leaf import isa_of, only_op, split_of
from qfold.backend.riscv.operands import PanelReader, row_reader
from qfold.backend.riscv.registers import INTEGER_POOL, OutOfRegisters
from qfold.backend.riscv.schedule import schedule
from qfold.backend.riscv.streams import Stream, StreamPointers
from qfold.dialects import qkernel
from qfold.dialects.contraction import ints
from qfold.dialects.qkernel import PANEL
from qfold.ir.layouts import Layout
from qfold.targets import Isa

BLOCK = "qmm.block"
"""The attribute of a leaf function that overrides the cost model: [rows, columns] of the register block."""


@dataclass(frozen=True)
class _Problem:
    """What one leaf function computes."""

    m: int
    n: int
    k: int
    a: Buffer
    p: Buffer
    a_row_bytes: int
    epilogue: Epilogue

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


# region reading the leaf


def _problem(leaf: LeafKernel, op: qkernel.PackedMatmulOp) -> _Problem:
    buffers = leaf.buffers
    check_region(op)
    m, k = buffers[op.a].shape
    n = buffers[op.y].shape[1]
    if k < 1:
        raise CannotGenerate(op, f"a product of {m} x {k} by {k} x {n} has nothing to add up")
    a = buffers[op.a]
    row, column = a.strides
    if k > 1 and column != 1:
        raise CannotGenerate(op, f"the activation's rows must be contiguous, got {a.type}")
    for name in ("p", "scale", "zero_point", "row_sum"):
        value: SSAValue | None = getattr(op, name)
        if value is not None and not Layout.of(buffers[value].type).is_dense:
            raise CannotGenerate(op, f"{name} must be dense, got {value.type}")
    m_, n_ = variable("m"), variable("n")

    def stream(name: str, value: SSAValue | None, dims: tuple[Linear, ...]) -> Stream | None:
        if value is None:
            return None
        buffer = buffers[value]
        return Stream(name, buffer, buffer.at(dims[: len(buffer.shape)]), written=name == "y")

    operands: list[Stream] = []
    for i, (value, map_) in enumerate(zip(op.epilogue_operands, op.maps, strict=True)):
        position = access(buffers[value], map_, (m_, n_))
        if not isinstance(position, Linear):
            raise CannotGenerate(op, f"epilogue operand {i} is read at {map_}, which is not linear")
        operands.append(Stream(f"e{i}", buffers[value], position))
    y = stream("y", op.y, (m_, n_))
    assert y is not None
    return _Problem(
        m,
        n,
        k,
        a,
        buffers[op.p],
        row * WORD if m > 1 else k * WORD,
        Epilogue(
            y,
            stream("scale", op.scale, (n_,)),
            stream("zero_point", op.zero_point, (n_,)),
            stream("row_sum", op.row_sum, (m_,)),
            tuple(operands),
            op.epilogue_block,
        ),
    )


def _blocks(
    leaf: LeafKernel, op: qkernel.PackedMatmulOp, isa: Isa, problem: _Problem, split: Split
) -> list[cost.RegisterBlock]:
    """The blocks to try, best first: those of the cost model, or the one that the leaf function names."""
    parts = (split.at(0), split.at(1))
    ranked = cost.ranked(isa, problem.m, problem.a_row_bytes, parts, leaf.target.fpus)
    attribute = leaf.function.attributes.get(BLOCK)
    if attribute is None:
        return ranked
    wanted = list(ints(cast("DenseArrayBase[IntegerType]", attribute)))
    found = {c.name: c for c in ranked}
    name = "x".join(map(str, wanted))
    if name not in found:
        raise CannotGenerate(
            op, f"{BLOCK} = {wanted}: for {problem.m} rows there are {', '.join(found)}"
        )
    return [found[name]]


# endregion
# region assembly


def _function(
    isa: Isa, symbol: str, leaf: _Problem, block: cost.RegisterBlock, *, many: bool
) -> AssemblyFunction:
    """The function of one block; the first plan whose values all find a register."""
    pointers = len(leaf.epilogue.streams)
    held = isa.float_registers == "f" or block.integer_registers + pointers <= len(INTEGER_POOL)
    plans = dict.fromkeys(
        (
            _Plan(held, roomy=True, careful=False, addend=True),
            _Plan(held=False, roomy=True, careful=False, addend=True),
            _Plan(held, roomy=True, careful=False),
            _Plan(held=False, roomy=True, careful=False),
            _Plan(held=False, roomy=False, careful=False),
        )
    )
    for plan in plans:
        try:
            return _planned(isa, symbol, leaf, block, many, plan)
        except OutOfRegisters:
            continue
    last = _Plan(held=False, roomy=False, careful=True)
    return _planned(isa, symbol, leaf, block, many, last)


@dataclass(frozen=True)
class _Plan:
    """What is kept in registers beside the block."""

    held: bool
    """Pointers of the epilogue; else they are in the frame."""
    roomy: bool
    """Operands that all rows share, from before the product is finished; a row's results, while the next one is computed;
    pointers from the frame, until they move to the next panel."""
    careful: bool
    """`EpilogueWriter`'s."""
    addend: bool = False
    """What is added per column, for all rows."""


def _planned(
    isa: Isa,
    symbol: str,
    leaf: _Problem,
    block: cost.RegisterBlock,
    many: bool,
    plan: _Plan,
) -> AssemblyFunction:
    epilogue = leaf.epilogue
    names = ["a", "p", "y", *(["panels"] if many else [])]
    names += [s.name for s in epilogue.streams if s is not epilogue.y]
    comment = f"{block.rows} rows by {block.columns} columns, K = {leaf.k}"
    b = FunctionBuilder(symbol, isa, names, f"{comment}, panel by panel" if many else comment)
    pointers = StreamPointers(b, epilogue.streams, held=plan.held)
    a = row_reader(block.addressing, b, b.arguments["a"], block.rows, leaf.a_row_bytes)
    w = PanelReader(b, b.arguments["p"], PANEL)
    product = InnerProduct(b, schedule(block.rows, block.columns), a, w)
    writer = EpilogueWriter(
        b,
        epilogue,
        pointers,
        careful=plan.careful,
        overlap=plan.roomy,
        keep_addend=plan.addend and block.rows > 1,
    )

    def panel() -> None:
        early = writer.early_loads(block.columns) if plan.roomy else ()
        writer.write(product.run(leaf.k, more=many, early=early))

    if not many:
        panel()
        return finish(b)
    count = len(a.pointers)

    def carried() -> list[SSAValue]:
        return [*a.pointers, *w.pointers, *pointers.carried]

    def take(values: tuple[SSAValue, ...]) -> None:
        a.pointers, w.pointers = values[:count], values[count : count + 1]
        pointers.take(values[count + 1 :])

    with b.loop(b.arguments["panels"], carried(), level=1) as loop:
        take(loop.args)
        panel()
        if not plan.roomy:
            pointers.forget()
        pointers.advance()
        loop.yield_(*carried())
    return finish(b)


# endregion
# region driver


@dataclass(frozen=True)
class _Call:
    function: AssemblyFunction
    rows: int
    columns: int
    many: bool


def _arguments(leaf: _Problem, call: _Call, panel: str, panels: str) -> str:
    """The arguments of a call for `panels` panels from `panel` (a C expression) on, at row `m`."""
    first = Linear({}, int(panel)) if panel.isdecimal() else variable(panel)
    places = {"m": variable("m"), "n": first.scaled(PANEL)}

    def at(buffer: Buffer, position: Linear) -> str:
        moved = Linear({}, position.constant)
        for name, coefficient in position.terms.items():
            moved += places[name].scaled(coefficient)
        text = moved.text()
        return buffer.name if text == "0" else f"{buffer.name} + {text}"

    y = leaf.epilogue.y
    values = [
        at(leaf.a, Linear({"m": leaf.a_row_bytes // WORD})),
        at(leaf.p, Linear({"n": leaf.k})),
        at(y.buffer, y.position),
        *([panels] if call.many else []),
        *(at(s.buffer, s.position) for s in leaf.epilogue.streams if s is not y),
    ]
    return ", ".join(values)


def _driver(leaf: _Problem, rows: int, split: Split, calls: Iterable[_Call]) -> list[str]:
    """The body of the C function. Whoever has the last panel also does the columns past the last whole one."""
    by_block = {(c.rows, c.columns): c for c in calls}
    whole = leaf.full_panels
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
            arguments = _arguments(leaf, full, panels.first, several)
            with guarded(f"{panels.first} < {last}", panels):
                out.line(f"{full.function.symbol}({arguments});")
        if leaf.tail:
            tail = by_block[count, leaf.tail]
            arguments = _arguments(leaf, tail, str(whole), "1")
            has_last = f"{panels.first} < {panels.last} && {panels.last} == {leaf.panels}"
            with guarded(has_last, panels):
                out.line(f"{tail.function.symbol}({arguments});")

    with shares(out, split, (-(-leaf.m // rows), leaf.panels)) as (blocks, panels):
        last = str(whole) if panels.is_whole else panels.last
        if leaf.tail and whole and not panels.is_whole:
            out.line(f"const ptrdiff_t last = {last} < {whole} ? {last} : {whole};")
            last = "last"
        with out.loop("block", blocks.last, blocks.first):
            out.line(f"const ptrdiff_t m = block * {rows};")
            remaining = leaf.m % rows
            if not remaining:
                of_rows(rows, panels, last)
            else:
                with out.block(f"if (block < {leaf.m // rows})"):
                    of_rows(rows, panels, last)
                with out.block("else"):
                    of_rows(remaining, panels, last)
    return out.text().splitlines()


def _calls(symbol: str, isa: Isa, problem: _Problem, rows: int) -> list[_Call]:
    """The functions for blocks of so many rows, and for what is left of rows and columns. `OutOfRegisters`."""
    calls: list[_Call] = []
    for height in dict.fromkeys((rows, problem.m % rows)):
        for width in (PANEL if problem.full_panels else 0, problem.tail):
            if height and width:
                block = cost.block(isa, height, width, problem.a_row_bytes)
                many = width == PANEL
                function = _function(isa, f"{symbol}_{block.name}", problem, block, many=many)
                calls.append(_Call(function, height, width, many))
    return calls


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one `qkernel.packed_matmul`; `qmm.split` has two entries, for rows and for columns.

    `a` may have any row stride, `y` and the epilogue operands any static strides. Sums are in order of k, each product fused with
    its addition. `CannotGenerate` for other layouts, and for an epilogue that computes something else than `epilogue.COMPUTED` or
    too many things at once.
    """
    op = only_op(leaf, qkernel.PackedMatmulOp)
    isa = isa_of(leaf)
    problem = _problem(leaf, op)
    if not problem.m or not problem.n:
        return GeneratedKernel(leaf.symbol, (), (), (), {})
    split = split_of(leaf, 2)
    blocks = _blocks(leaf, op, isa, problem, split)
    for chosen in blocks:
        try:
            calls = _calls(leaf.symbol, isa, problem, chosen.rows)
            break
        except OutOfRegisters:
            continue
    else:
        tried = ", ".join(c.name for c in blocks)
        raise CannotGenerate(op, f"its epilogue keeps more values at once than registers: {tried}")
    return GeneratedKernel(
        leaf.symbol,
        tuple(_prototype(problem, c) for c in calls),
        tuple(_driver(problem, chosen.rows, split, calls)),
        tuple(c.function for c in calls),
        _facts(leaf, problem, chosen, calls),
    )


def _prototype(leaf: _Problem, call: _Call) -> str:
    parameters = [
        "const float *a",
        "const float *p",
        leaf.epilogue.y.declaration,
        *(["ptrdiff_t panels"] if call.many else []),
        *(s.declaration for s in leaf.epilogue.streams if s is not leaf.epilogue.y),
    ]
    return f"void {call.function.symbol}({', '.join(parameters)})"


def _facts(
    leaf: LeafKernel, problem: _Problem, chosen: cost.RegisterBlock, calls: Iterable[_Call]
) -> dict[str, object]:
    isa, split = isa_of(leaf), split_of(leaf, 2)
    m, stride = problem.m, problem.a_row_bytes
    parts = (split.at(0), split.at(1))
    busiest = {
        c.name: cost.busiest_core(isa, m, stride, c.rows, parts, leaf.target.fpus)
        for c in cost.candidates(isa, m, stride)
    }
    executed = _executed(problem, chosen.rows, split.at(1), calls)
    return {
        "block": chosen.name,
        "addressing": chosen.addressing,
        "integer_registers": chosen.integer_registers,
        "float_registers": chosen.float_registers,
        "block_instructions_per_mac": round(chosen.instructions, 4),
        "busiest_core": {name: round(cycles, 4) for name, cycles in busiest.items()},
        "instructions": executed,
        "instructions_per_mac": round(executed / (m * problem.n * problem.k), 4),
    }


def _executed(problem: _Problem, rows: int, column_parts: int, calls: Iterable[_Call]) -> int:
    """Instructions of all assembly functions on all cores."""
    by_block = {(c.rows, c.columns): c.function for c in calls}
    # A part of the columns is a call, unless all that it has is the last, narrower panel.
    parts = min(column_parts, problem.panels)
    size, larger = divmod(problem.panels, parts)
    wide = sum(i * size + min(i, larger) < problem.full_panels for i in range(parts))
    executed = 0
    for height in [rows] * (problem.m // rows) + [problem.m % rows] * (problem.m % rows > 0):
        if problem.full_panels:
            function = by_block[height, PANEL]
            executed += wide * function.instructions
            executed += problem.full_panels * function.instructions_per_iteration
        if problem.tail:
            executed += by_block[height, problem.tail].instructions
    return executed


# endregion
