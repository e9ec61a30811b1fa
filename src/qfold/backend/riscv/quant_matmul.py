"""`riscv.packed_quant_matmul`: a register block of i32 sums over panels of bytes, four multiply-accumulates an instruction.

Functions, loops and driver are those of `riscv.packed_matmul`, with a word of four consecutive k where that has a float. Panels
are filled up with zeros, so that their last word is read whole; of the last word of a row only what belongs to it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer, Linear, variable
from qfold.backend.riscv import cost
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.dot_product import DotProducts, Words, alignment_of
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.inner_product import InnerProduct
from qfold.backend.riscv.integer_epilogue import IntegerEpilogueWriter
from qfold.backend.riscv.integer_region import TYPES, IntegerEpilogue, check_region
from qfold.backend.riscv.leaf import isa_of, only_op, split_of
from qfold.backend.riscv.operands import PanelReader, row_reader
from qfold.backend.riscv.panel_driver import (
    Call,
    PanelProduct,
    driver,
    executed,
    out_of_registers,
    prototype,
    wanted_blocks,
)
from qfold.backend.riscv.registers import INTEGER_POOL, OutOfRegisters
from qfold.backend.riscv.schedule import integer_schedule
from qfold.backend.riscv.streams import Stream, StreamPointers, epilogue_operands
from qfold.dialects import qkernel
from qfold.dialects.element_types import is_unsigned
from qfold.dialects.qkernel import PANEL
from qfold.ir.layouts import Layout
from qfold.targets import Isa


@dataclass(frozen=True)
class _Problem:
    """What one leaf function computes."""

    product: PanelProduct
    k: int
    alignment: int
    """Of the words of `a`, in bytes."""
    dots: DotProducts
    epilogue: IntegerEpilogue

    @property
    def words(self) -> int:
        """Of a row or a column: steps of the loop over K."""
        return -(-self.k // WORD)

    @property
    def last_size(self) -> int:
        """Bytes of a row in its last word."""
        return self.k - WORD * (self.words - 1)

    def block(self, isa: Isa, rows: int, columns: int = PANEL) -> cost.RegisterBlock:
        return cost.integer_block(isa, rows, columns, self.product.a_row, self.alignment)

    def block_of(self, isa: Isa) -> cost.BlockOf:
        return lambda rows: self.block(isa, rows)


def _problem(leaf: LeafKernel, op: qkernel.PackedQuantMatmulOp) -> _Problem:
    buffers = leaf.buffers
    check_region(op)
    a, p, y = buffers[op.a], buffers[op.p], buffers[op.y]
    (m, k), n = a.shape, y.shape[1]
    if k < 1:
        raise CannotGenerate(op, f"a product of {m} x {k} by {k} x {n} has nothing to add up")
    row, _ = a.strides
    if not Layout.of(p.type).is_dense or alignment_of(p.type, 1, 0) < WORD:
        raise CannotGenerate(op, f"p must be dense and aligned to {WORD} bytes, got {p.type}")
    m_, n_ = variable("m"), variable("n")
    operands = tuple(_stream(op, *found) for found in epilogue_operands(op, buffers, (m_, n_)))
    output = _stream(op, "y", y, y.at((m_, n_)), written=True)
    a_row = row if m > 1 else k
    words = -(-k // WORD)
    return _Problem(
        PanelProduct(m, n, a, p, a_row, words * WORD, output, operands),
        k,
        alignment_of(a.type, m, a_row),
        DotProducts(not is_unsigned(a.element), not is_unsigned(p.element)),
        IntegerEpilogue(output, operands, op.epilogue_block),
    )


def _stream(
    op: qkernel.PackedQuantMatmulOp,
    name: str,
    buffer: Buffer,
    position: Linear,
    *,
    written: bool = False,
) -> Stream:
    if buffer.element not in TYPES:
        names = ", ".join(sorted(map(str, TYPES)))
        raise CannotGenerate(op, f"{name} is one of {names}, got {buffer.type}")
    return Stream(name, buffer, position, written=written)


# region assembly


@dataclass(frozen=True)
class _Plan:
    """What is kept in registers beside the block."""

    held: int
    """How many pointers of the epilogue; the others are in the frame."""
    keep: bool
    """`IntegerEpilogueWriter`'s."""
    group: int
    """The same."""


def _function(
    isa: Isa, symbol: str, leaf: _Problem, block: cost.RegisterBlock, *, many: bool
) -> AssemblyFunction:
    """The function of one block; the first plan whose values all find a register. `OutOfRegisters`."""
    # One register is for the loop's counter, until the loop begins.
    free = max(0, len(INTEGER_POOL) - block.integer_registers - 1)
    most = min(free, len(leaf.epilogue.streams))
    plans = [
        *(_Plan(held, keep=True, group=PANEL) for held in range(most, -1, -1)),
        _Plan(0, keep=False, group=PANEL),
        _Plan(0, keep=False, group=PANEL // 2),
    ]
    for plan in plans:
        try:
            return _planned(isa, symbol, leaf, block, many, plan)
        except OutOfRegisters:
            continue
    return _planned(isa, symbol, leaf, block, many, _Plan(0, keep=False, group=1))


def _planned(
    isa: Isa, symbol: str, leaf: _Problem, block: cost.RegisterBlock, many: bool, plan: _Plan
) -> AssemblyFunction:
    epilogue = leaf.epilogue
    comment = f"{block.rows} rows by {block.columns} columns, K = {leaf.k}"
    b = FunctionBuilder(
        symbol,
        isa,
        leaf.product.parameters(many=many),
        f"{comment}, panel by panel" if many else comment,
    )
    pointers = StreamPointers(b, epilogue.streams, held=plan.held)
    unit = Words(leaf.alignment)
    stride = leaf.product.a_row
    a = row_reader(block.addressing, b, b.arguments["a"], block.rows, stride, unit)
    w = PanelReader(b, b.arguments["p"], PANEL, Words(WORD))
    product = InnerProduct(b, integer_schedule(block.rows, block.columns), a, w, leaf.dots)
    writer = IntegerEpilogueWriter(b, epilogue, pointers, keep=plan.keep, group=plan.group)
    first = epilogue.initial

    def initial(row: int, column: int) -> SSAValue:
        assert first is not None
        return pointers.element(first, row, column)

    def panel() -> None:
        begin = None if first is None else initial
        sums = product.run(leaf.words, more=many, initial=begin, last_size=leaf.last_size)
        writer.write(sums)

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
        pointers.advance()
        loop.yield_(*carried())
    return finish(b)


# endregion
# region kernel


def _calls(symbol: str, isa: Isa, problem: _Problem, rows: int) -> list[Call]:
    """The functions for blocks of so many rows, and for what is left of rows and columns. `OutOfRegisters`."""
    calls: list[Call] = []
    for height, width in problem.product.shapes(rows):
        block = problem.block(isa, height, width)
        many = width == PANEL
        function = _function(isa, f"{symbol}_{block.name}", problem, block, many=many)
        calls.append(Call(function, height, width, many))
    return calls


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one `qkernel.packed_quant_matmul`; `qmm.split` has two entries, for rows and for columns.

    Rows of `a` may be any number of bytes apart; `y` and the epilogue operands have any static strides. `CannotGenerate` for
    panels that are not dense, and for an epilogue of other ops than `integer_region.COMPUTED` on i32, i8 and f32.
    """
    op = only_op(leaf, qkernel.PackedQuantMatmulOp)
    isa = isa_of(leaf)
    problem = _problem(leaf, op)
    product = problem.product
    if not product.m or not product.n:
        return GeneratedKernel(leaf.symbol, (), (), (), {})
    split = split_of(leaf, 2)
    parts = (split.at(0), split.at(1))
    ranked = cost.ranking(problem.block_of(isa), product.m, parts)
    blocks = wanted_blocks(leaf, op, product.m, ranked)
    for chosen in blocks:
        try:
            calls = _calls(leaf.symbol, isa, problem, chosen.rows)
            break
        except OutOfRegisters:
            continue
    else:
        raise out_of_registers(op, blocks)
    return GeneratedKernel(
        leaf.symbol,
        tuple(prototype(product, c) for c in calls),
        tuple(driver(product, chosen.rows, split, calls)),
        tuple(c.function for c in calls),
        _facts(leaf, problem, chosen, calls),
    )


def _facts(
    leaf: LeafKernel, problem: _Problem, chosen: cost.RegisterBlock, calls: Iterable[Call]
) -> dict[str, object]:
    isa, split = isa_of(leaf), split_of(leaf, 2)
    product = problem.product
    parts = (split.at(0), split.at(1))
    block_of = problem.block_of(isa)
    busiest = {
        c.name: cost.longest_share(block_of, product.m, c.rows, parts)
        for c in cost.fitting(block_of, product.m)
    }
    instructions = executed(product, chosen.rows, split.at(1), calls)
    return {
        "block": chosen.name,
        "addressing": chosen.addressing,
        "dot_product": f"pv.sdot{problem.dots.kind}.b",
        "a_alignment": problem.alignment,
        "integer_registers": chosen.integer_registers,
        "block_instructions_per_mac": round(chosen.instructions, 4),
        "busiest_core": {name: round(cycles, 4) for name, cycles in busiest.items()},
        "instructions": instructions,
        "instructions_per_mac": round(instructions / (product.m * product.n * problem.k), 4),
    }


# endregion
