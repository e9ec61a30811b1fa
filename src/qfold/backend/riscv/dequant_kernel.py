"""What `riscv.dequant_matmul` reads off a leaf function: its operands as streams, and the phases of a blockwise scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import Block, SSAValue

from qfold.backend.c.layout import Buffer, Linear, c_type
from qfold.backend.c.matmul_problem import MatmulProblem, dequant_matmul_problem
from qfold.backend.riscv.dequant_block import DequantLoop
from qfold.backend.riscv.epilogue import Epilogue, check_region
from qfold.backend.riscv.generated import CannotGenerate, LeafKernel
from qfold.backend.riscv.leaf import isa_of, only_op, split_of
from qfold.backend.riscv.readers import Element
from qfold.backend.riscv.streams import Stream
from qfold.dialects import qkernel, qmm
from qfold.targets import Isa


@dataclass(frozen=True)
class Phase:
    """
    What one assembly function computes of a block: all of K, or with a blockwise scale one block of it. There the first phase
    stores its sum to y, the next ones add to that, and the last one runs the epilogue.
    """

    suffix: str
    """Of the function's symbol."""
    loop: DequantLoop
    epilogue: Epilogue
    first: int
    """The first block of K that it is for."""
    blocks: int
    """For how many."""


@dataclass(frozen=True)
class DequantKernel:
    """A leaf function, ready to be generated."""

    symbol: str
    isa: Isa
    problem: MatmulProblem
    a: Buffer
    w: Buffer
    phases: tuple[Phase, ...]
    zero_point: Stream | None
    """That the epilogue does not know: subtracted from each weight, or, of inserted weights, in the correction."""
    row_sum: Stream | None
    """For the correction of inserted weights, where the loop itself does not sum."""

    @property
    def loop(self) -> DequantLoop:
        """Of the first phase; those of the others differ in K only."""
        return self.phases[0].loop

    def streams(self, phase: Phase) -> tuple[Stream, ...]:
        """Everything but `a` and `w`, as an assembly function takes it."""
        own = tuple(s for s in (self.zero_point, self.row_sum) if s is not None)
        return (*own, *phase.epilogue.streams)

    def symbol_of(self, phase: Phase, rows: int, columns: int) -> str:
        return f"{self.symbol}_{rows}x{columns}{phase.suffix}"

    def prototype(self, phase: Phase, rows: int, columns: int) -> str:
        """The C declaration of an assembly function, without a semicolon."""
        declarations = [
            "const float *a",
            f"const {c_type(self.w.element)} *w",
            *(s.declaration for s in self.streams(phase)),
        ]
        return f"void {self.symbol_of(phase, rows, columns)}({', '.join(declarations)})"

    def call(self, phase: Phase, rows: int, columns: int) -> str:
        """The C statement for the block at row `m` and column `n`, and of K at `kb`, where the phase is for several."""
        block = self.problem.block
        steps = [(self.a, self.problem.a), (self.w, self.problem.w)]
        places = [
            (buffer, at.renamed({"k": None}) + Linear({"kb": block * at.coefficient("k")}))
            for buffer, at in steps
        ]
        places += [(s.buffer, s.position) for s in self.streams(phase)]
        arguments: list[str] = []
        for buffer, position in places:
            if phase.blocks == 1:
                first = Linear({}, phase.first * position.coefficient("kb"))
                position = position.renamed({"kb": None}) + first
            text = position.text()
            arguments.append(buffer.name if text == "0" else f"{buffer.name} + {text}")
        return f"{self.symbol_of(phase, rows, columns)}({', '.join(arguments)});"


def read_kernel(leaf: LeafKernel, *, insert: bool) -> DequantKernel:
    """The `qkernel.dequant_matmul` of a leaf function. `insert`: turn weights into floats without the float unit, if there is one
    row. `CannotGenerate` for what there is no code for. The output is not empty."""
    op = only_op(leaf, qkernel.DequantMatmulOp)
    isa = isa_of(leaf)
    a, w, y = leaf.buffers[op.a], leaf.buffers[op.w], leaf.buffers[op.y]
    if insert and not (isa.float_registers == "x" and isa.xpulpv2):
        raise CannotGenerate(
            op, f"weights are inserted to floats in x registers, isa={isa.name} has none"
        )
    if insert and str(w.element) != "ui8":
        raise CannotGenerate(op, f"weights that are inserted to floats are ui8, got {op.w.type}")
    if 0 in a.shape:
        raise CannotGenerate(op, f"a product of {op.a.type} and {op.w.type} adds nothing up")
    if op.block is not None and str(y.element) != "f32":
        raise CannotGenerate(
            op, f"sums of blocks of K are kept in an output of f32, got {op.y.type}"
        )
    check_region(op)
    problem = dequant_matmul_problem(op, leaf.buffers, split_of(leaf, len(y.shape)))
    insert = insert and prod(a.shape[:-1]) == 1

    def parameter(name: str, value: SSAValue | None) -> Stream | None:
        """A scale or zero point: one, one per column, or one per column and block of K."""
        if value is None:
            return None
        buffer = leaf.buffers[value]
        return Stream(name, buffer, buffer.at(problem.parameters if buffer.shape else ()))

    zero = parameter("zero_point", op.zero_point)
    sums = None
    if op.row_sum is not None and problem.sums is not None:
        sums = Stream("row_sum", leaf.buffers[op.row_sum], problem.sums)
    subtract: Literal["none", "tensor", "column"] = "none"
    if zero is not None and sums is None and not insert:
        subtract = "column" if zero.column_bytes else "tensor"
    loop = DequantLoop(
        problem.block,
        problem.a.coefficient("m"),
        problem.a.coefficient("k"),
        Element.of(str(w.element)),
        problem.w.coefficient("n"),
        problem.w.coefficient("k"),
        subtract,
        insert,
        own_sums=insert and sums is None,
    )
    place, *operands = _linear(op, problem)
    in_epilogue = sums is not None and not insert
    epilogue = Epilogue(
        Stream("y", y, place, written=True),
        parameter("scale", op.scale),
        zero if in_epilogue else None,
        sums if in_epilogue else None,
        tuple(
            Stream(f"e{i}", leaf.buffers[value], position)
            for i, (value, position) in enumerate(zip(op.epilogue_operands, operands, strict=True))
        ),
        op.epilogue_block,
    )
    return DequantKernel(
        leaf.symbol,
        isa,
        problem,
        a,
        w,
        _phases(problem, loop, epilogue),
        None if in_epilogue else zero,
        sums if insert else None,
    )


def _linear(op: qkernel.DequantMatmulOp, problem: MatmulProblem) -> list[Linear]:
    """Where y and the operands of the epilogue are."""
    found: list[Linear] = []
    for target in problem.targets:
        if isinstance(target, str):
            detail = f"its epilogue reads an operand at {target}; generated kernels read at linear indices"
            raise CannotGenerate(op, detail)
        found.append(target)
    return found


def _phases(problem: MatmulProblem, loop: DequantLoop, epilogue: Epilogue) -> tuple[Phase, ...]:
    blocks = problem.blocks
    last = problem.k - (blocks - 1) * problem.block
    if blocks == 1:
        return (Phase("", replace(loop, k=last), epilogue, 0, 1),)
    partial = Stream("partial", epilogue.y.buffer, epilogue.y.position)
    start = replace(epilogue, operands=(), region=None)
    adding = replace(start, operands=(partial,), region=_adding(None, 0))
    ending = replace(
        epilogue,
        operands=(*epilogue.operands, partial),
        region=_adding(epilogue.region, len(epilogue.operands)),
    )
    phases = [
        Phase("_first", loop, start, 0, 1),
        Phase("_next", loop, adding, 1, blocks - 2),
        Phase("_last", replace(loop, k=last), ending, blocks - 1, 1),
    ]
    return tuple(p for p in phases if p.blocks)


def _adding(region: Block | None, operands: int) -> Block:
    """An epilogue's region that first adds one more operand, its last, to the accumulator."""
    block = Block(arg_types=[f32] * (operands + 2))
    total = arith.AddfOp(block.args[0], block.args[-1])
    block.add_op(total)
    if region is None:
        block.add_op(qmm.YieldOp(total.result))
        return block
    values: dict[SSAValue, SSAValue] = dict(zip(region.args, block.args, strict=False))
    values[region.args[0]] = total.result
    for op in region.ops:
        block.add_op(op.clone(values))
    return block
