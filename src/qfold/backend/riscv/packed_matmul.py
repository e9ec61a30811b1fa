"""`riscv.packed_matmul`: a register block of accumulators over panels of four columns.

One assembly function computes a block of rows for any number of panels: a hardware loop over panels around the one over K, the
operands read in order. Tails of rows and columns have functions of their own, whose loads and stores are of real elements
only. No load passes an operand: the last steps of K, which load nothing for a next one, are code of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.ir import SSAValue

from qfold.backend.c.layout import Linear, variable
from qfold.backend.riscv import cost
from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.emit import AssemblyFunction, finish
from qfold.backend.riscv.epilogue import Epilogue, EpilogueWriter, check_region
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.inner_product import FLOAT_PRODUCTS, InnerProduct
from qfold.backend.riscv.leaf import isa_of, only_op, split_of
from qfold.backend.riscv.operands import FLOATS, PanelReader, row_reader
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
from qfold.backend.riscv.schedule import schedule
from qfold.backend.riscv.streams import Stream, StreamPointers, epilogue_operands
from qfold.dialects import qkernel
from qfold.dialects.qkernel import PANEL
from qfold.ir.layouts import Layout
from qfold.targets import Isa


@dataclass(frozen=True)
class _Problem:
    """What one leaf function computes."""

    product: PanelProduct
    k: int
    epilogue: Epilogue

    @property
    def a_row_bytes(self) -> int:
        return self.product.a_row * WORD


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

    operands = tuple(Stream(*found) for found in epilogue_operands(op, buffers, (m_, n_)))
    y = stream("y", op.y, (m_, n_))
    assert y is not None
    epilogue = Epilogue(
        y,
        stream("scale", op.scale, (n_,)),
        stream("zero_point", op.zero_point, (n_,)),
        stream("row_sum", op.row_sum, (m_,)),
        operands,
        op.epilogue_block,
    )
    beside = tuple(s for s in epilogue.streams if s is not y)
    product = PanelProduct(m, n, a, buffers[op.p], row if m > 1 else k, k, y, beside)
    return _Problem(product, k, epilogue)


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
    names = leaf.product.parameters(many=many)
    comment = f"{block.rows} rows by {block.columns} columns, K = {leaf.k}"
    b = FunctionBuilder(symbol, isa, names, f"{comment}, panel by panel" if many else comment)
    pointers = StreamPointers(b, epilogue.streams, held=len(epilogue.streams) * plan.held)
    a = row_reader(block.addressing, b, b.arguments["a"], block.rows, leaf.a_row_bytes, FLOATS)
    w = PanelReader(b, b.arguments["p"], PANEL, FLOATS)
    product = InnerProduct(b, schedule(block.rows, block.columns), a, w, FLOAT_PRODUCTS)
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
# region kernel


def _calls(symbol: str, isa: Isa, problem: _Problem, rows: int) -> list[Call]:
    """The functions for blocks of so many rows, and for what is left of rows and columns. `OutOfRegisters`."""
    calls: list[Call] = []
    for height, width in problem.product.shapes(rows):
        block = cost.block(isa, height, width, problem.a_row_bytes)
        many = width == PANEL
        function = _function(isa, f"{symbol}_{block.name}", problem, block, many=many)
        calls.append(Call(function, height, width, many))
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
    product = problem.product
    if not product.m or not product.n:
        return GeneratedKernel(leaf.symbol, (), (), (), {})
    split = split_of(leaf, 2)
    parts = (split.at(0), split.at(1))
    ranked = cost.ranked(isa, product.m, problem.a_row_bytes, parts, leaf.target.fpus)
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
    product, stride = problem.product, problem.a_row_bytes
    parts = (split.at(0), split.at(1))
    busiest = {
        c.name: cost.busiest_core(isa, product.m, stride, c.rows, parts, leaf.target.fpus)
        for c in cost.candidates(isa, product.m, stride)
    }
    instructions = executed(product, chosen.rows, split.at(1), calls)
    return {
        "block": chosen.name,
        "addressing": chosen.addressing,
        "integer_registers": chosen.integer_registers,
        "float_registers": chosen.float_registers,
        "block_instructions_per_mac": round(chosen.instructions, 4),
        "busiest_core": {name: round(cycles, 4) for name, cycles in busiest.items()},
        "instructions": instructions,
        "instructions_per_mac": round(instructions / (product.m * product.n * problem.k), 4),
    }


# endregion
