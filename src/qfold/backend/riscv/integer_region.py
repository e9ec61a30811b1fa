"""What an epilogue region on i32 sums computes: which ops one instruction does together, what differs from row to row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, UnrealizedConversionCastOp, f32
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from qfold.backend.riscv import float_ops
from qfold.backend.riscv.generated import CannotGenerate
from qfold.backend.riscv.streams import Stream
from qfold.dialects.contraction import EpilogueOperation
from qfold.dialects.element_types import i8, i32, ui8

ARITHMETIC: Final = (
    arith.AddiOp,
    arith.SubiOp,
    arith.MuliOp,
    arith.ShLIOp,
    arith.ShRSIOp,
    arith.MulSIExtendedOp,
    arith.MaxSIOp,
    arith.MinSIOp,
)
"""Of i32."""

CONVERSIONS: Final = (
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
    arith.SIToFPOp,
    arith.UIToFPOp,
    UnrealizedConversionCastOp,
)
"""Between i32, i8 and f32; a cast between i8 and ui8."""

COMPUTED: Final = (*ARITHMETIC, *CONVERSIONS, *float_ops.COMPUTED)
"""Ops of a region that there is code for, besides constants and the yield."""

TYPES: Final[frozenset[Attribute]] = frozenset((i32, i8, ui8, f32))

Line = Literal["row", "column"]
BOTH: Final[frozenset[Line]] = frozenset(("row", "column"))


def check_region(op: EpilogueOperation) -> None:
    """`CannotGenerate` for an op or a type of the epilogue that there is no code for."""
    block = op.epilogue_block
    if block is None:
        return
    for inner in block.ops:
        if inner is block.last_op:
            continue
        if not isinstance(inner, (*COMPUTED, arith.ConstantOp)):
            names = ", ".join(o.name for o in COMPUTED)
            raise CannotGenerate(
                op, f"its epilogue computes {inner.name}; generated kernels do {names}"
            )
        allowed = {i32} if isinstance(inner, ARITHMETIC) else TYPES
        if isinstance(inner, arith.UIToFPOp):
            allowed = {i8, f32}
        for value in (*inner.operands, *inner.results):
            if value.type not in allowed:
                names = ", ".join(sorted(str(t) for t in allowed))
                raise CannotGenerate(
                    op, f"its epilogue has {inner.name} of {value.type}; generated kernels: {names}"
                )


@dataclass(frozen=True)
class Step:
    """One op of the region, or several that one instruction does."""

    op: Operation
    """Whose results it computes; the last one, of several."""
    operands: tuple[SSAValue, ...]
    fused: Literal["", "mac", "addn", "clip", "clipu"] = ""
    bits: int = 0
    """The constant of the instruction: how far to shift, or to how many bits to limit."""


@dataclass(frozen=True)
class IntegerEpilogue:
    """What happens to a sum before it is stored."""

    y: Stream
    operands: tuple[Stream, ...]
    region: Block | None

    @property
    def streams(self) -> tuple[Stream, ...]:
        return (self.y, *self.operands)

    def stream_of(self, value: SSAValue) -> Stream | None:
        """The operand that a value of the region is an element of."""
        if isinstance(value, BlockArgument) and value.block is self.region and value.index:
            return self.operands[value.index - 1]
        return None

    @property
    def line(self) -> Line:
        """What is finished together: more operands are per column, or per row."""
        if self.region is None:
            return "row"
        later = [
            s for s, a in zip(self.operands, self.region.args[1:], strict=True) if self.reads(a)
        ]
        per_column = sum(bool(s.column_bytes) and not s.row_bytes for s in later)
        per_row = sum(bool(s.row_bytes) and not s.column_bytes for s in later)
        return "column" if per_column > per_row else "row"

    @cached_property
    def addition(self) -> arith.AddiOp | None:
        """The op that adds an operand of 32 bits to the sum, if nothing else reads the sum: sums may begin with that operand."""
        if self.region is None or not only_use(self.region.args[0]):
            return None
        (use,) = self.region.args[0].uses
        op = use.operation
        if not isinstance(op, arith.AddiOp):
            return None
        stream = self.stream_of(op.operands[1 - use.index])
        return op if stream is not None and stream.element == i32 else None

    @property
    def initial(self) -> Stream | None:
        """What sums begin with; None: with 0."""
        if self.addition is None:
            return None
        return self.stream_of(self.addition.lhs) or self.stream_of(self.addition.rhs)

    @property
    def accumulator(self) -> SSAValue | None:
        """The value of the region that a sum is."""
        if self.region is None:
            return None
        return self.region.args[0] if self.addition is None else self.addition.result

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """What is left of the region: without constants and casts, and with ops together that one instruction does."""
        if self.region is None:
            return ()
        found: list[Step] = []
        inside: set[Operation] = set()
        for op in reversed(list(self.region.ops)):
            skipped = arith.ConstantOp | UnrealizedConversionCastOp | arith.TruncIOp
            if op in inside or op is self.region.last_op or isinstance(op, skipped):
                continue
            if op is self.addition:
                continue
            step = _clip(op) or self._addn(op) or _mac(op) or Step(op, tuple(op.operands))
            inside.update(_inner(step))
            found.append(step)
        return tuple(reversed(found))

    def _addn(self, op: Operation) -> Step | None:
        """A sum that is only shifted right, by a constant; not one that is done before the first product is."""
        if not isinstance(op, arith.ShRSIOp) or not only_use(op.lhs):
            return None
        shift, added = integer_of(op.rhs), op.lhs.owner
        if shift is None or not 0 <= shift < 32 or not isinstance(added, arith.AddiOp):
            return None
        if added is self.addition:
            return None
        return Step(op, (added.lhs, added.rhs), "addn", shift)

    def reads(self, argument: SSAValue) -> bool:
        """Whether anything but `addition` reads an operand."""
        return any(use.operation is not self.addition for use in argument.uses)

    @cached_property
    def varies(self) -> dict[SSAValue, frozenset[Line]]:
        """Value of the region -> whether it differs from row to row, from column to column."""
        found: dict[SSAValue, frozenset[Line]] = {}
        if self.region is None:
            return found
        for argument in self.region.args:
            stream = self.stream_of(argument)
            lines = BOTH
            if stream is not None:
                strides: dict[Line, int] = {"row": stream.row_bytes, "column": stream.column_bytes}
                lines = frozenset[Line](line for line, stride in strides.items() if stride)
            found[argument] = lines
        for op in self.region.ops:
            of_operands = [found[v] for v in op.operands]
            for result in op.results:
                found[result] = frozenset[Line]().union(*of_operands)
        return found


def _inner(step: Step) -> Iterator[Operation]:
    """The other ops that a fused step stands for."""
    if not step.fused:
        return
    for operand in step.op.operands:
        if isinstance(operand.owner, Operation) and operand not in step.operands:
            if not isinstance(operand.owner, arith.ConstantOp):
                yield operand.owner


def only_use(value: SSAValue) -> bool:
    return value.uses.get_length() == 1


def _mac(op: Operation) -> Step | None:
    """A product that is only added to something."""
    if not isinstance(op, arith.AddiOp):
        return None
    for product, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        owner = product.owner
        if isinstance(owner, arith.MuliOp) and only_use(product):
            return Step(op, (other, owner.lhs, owner.rhs), "mac")
    return None


def _clip(op: Operation) -> Step | None:
    """A maximum and a minimum with constants that limit a number to a range of so many bits."""
    outer = _bounded(op)
    if outer is None:
        return None
    value, bound = outer
    if not isinstance(value.owner, Operation) or not only_use(value):
        return None
    inner = _bounded(value.owner)
    if inner is None or isinstance(op, arith.MaxSIOp) == isinstance(value.owner, arith.MaxSIOp):
        return None
    low, high = (inner[1], bound) if isinstance(op, arith.MinSIOp) else (bound, inner[1])
    size = (high + 1).bit_length()
    if high < 0 or high != (1 << size - 1) - 1 or size > 31:
        return None
    if low == -high - 1:
        return Step(op, (inner[0],), "clip", size)
    return Step(op, (inner[0],), "clipu", size) if low == 0 else None


def _bounded(op: Operation) -> tuple[SSAValue, int] | None:
    """The operand of a maximum or minimum, and the constant."""
    if not isinstance(op, arith.MaxSIOp | arith.MinSIOp):
        return None
    for value, bound in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        number = integer_of(bound)
        if number is not None:
            return value, number
    return None


def limits(value: SSAValue) -> tuple[int, int] | None:
    """Between which constants a maximum and a minimum keep a number."""
    ends: dict[bool, int] = {}
    for _ in range(2):
        found = _bounded(value.owner) if isinstance(value.owner, Operation) else None
        if found is None or isinstance(value.owner, arith.MaxSIOp) in ends:
            return None
        ends[isinstance(value.owner, arith.MaxSIOp)] = found[1]
        value = found[0]
    return (ends[True], ends[False]) if ends[True] <= ends[False] else None


def integer_of(value: SSAValue) -> int | None:
    """The number that an integer constant is."""
    if not isinstance(value.owner, arith.ConstantOp):
        return None
    attribute = value.owner.value
    return attribute.value.data if isinstance(attribute, IntegerAttr) else None
