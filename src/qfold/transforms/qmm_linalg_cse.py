"""`qmm-linalg-cse`: equal ops on tensors become one and dead ones go, linalg ops too, which no trait calls pure."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from qfold.ir.generics import add_location, function_blocks, has_no_uses, is_pure

Key = tuple[object, ...]


def structure(op: Operation, inside: dict[SSAValue, int] | None = None) -> Key:
    """A key that equal computations share: of the op, what it reads, and the structure of its regions.

    `inside` numbers the values that are defined in the region being described; others stand for themselves.
    """
    numbers = {} if inside is None else inside
    key: Key = (
        op.name,
        tuple(numbers.get(v, v) for v in op.operands),
        frozenset(op.properties.items()),
        frozenset(op.attributes.items()),
        tuple(op.result_types),
    )
    if not op.regions:
        return key
    parts: list[object] = []
    for region in op.regions:
        for block in region.blocks:
            for argument in block.args:
                numbers[argument] = len(numbers)
                parts.append(argument.type)
            for inner in block.ops:
                parts.append(structure(inner, numbers))
                for result in inner.results:
                    numbers[result] = len(numbers)
    return (*key, *parts)


def share_equal(block: Block) -> None:
    """Replace each op that computes what an earlier one did by that one, which then stands for both."""
    known: dict[Key, Operation] = {}
    stands_for: dict[Operation, list[Operation]] = {}
    for op in list(block.ops):
        if not is_pure(op):
            continue
        first = known.setdefault(structure(op), op)
        if first is op:
            continue
        for old, new in zip(op.results, first.results, strict=True):
            old.replace_all_uses_with(new)
        stands_for.setdefault(first, []).append(op)
        op.detach()
        op.erase()
    for first, others in stands_for.items():
        add_location(first, *others)


def erase_unused(block: Block) -> None:
    """Erase pure ops without readers, the last ones first."""
    for op in reversed(list(block.ops)):
        if has_no_uses(op) and is_pure(op):
            op.detach()
            op.erase()


@dataclass(frozen=True)
class QmmLinalgCsePass(ModulePass):
    """Common subexpression and dead code elimination for ops on tensors, generics compared by the structure of their bodies.

    The op that stays gets the locations of those that it stands for.
    """

    name = "qmm-linalg-cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            erase_unused(block)
            share_equal(block)
