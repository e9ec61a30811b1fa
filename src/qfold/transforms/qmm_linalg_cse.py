"""`qmm-linalg-cse`: equal ops on tensors become one and dead ones go, linalg ops too, which no trait calls pure."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import tensor
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
        tuple(_operand(v, numbers) for v in op.operands),
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


def _operand(value: SSAValue, numbers: dict[SSAValue, int]) -> object:
    """A value that is read, or all that went into one that is built upon."""
    parts: list[object] = []
    while isinstance(owner := value.owner, Operation) and is_built_upon(owner):
        if not isinstance(owner, tensor.InsertSliceOp):
            return (*parts, structure(owner, numbers))
        source, value, *sizes = owner.operands
        parts.append((source, *sizes, frozenset(owner.properties.items()), *owner.result_types))
    seen = numbers.get(value, value)
    return (*parts, seen) if parts else seen


def is_built_upon(op: Operation) -> bool:
    """Whether the result only is what an `insert_slice` completes.

    Two tensors that are put together from an equal first part would be worse off sharing it: each would begin with a copy.
    """
    if len(op.results) != 1 or not op.results[0].has_one_use():
        return False
    use = next(iter(op.results[0].uses))
    return isinstance(use.operation, tensor.InsertSliceOp) and use.index == 1


def share_equal(block: Block) -> None:
    """Replace each op that computes what an earlier one did by that one, which then stands for both."""
    known: dict[Key, Operation] = {}
    stands_for: dict[Operation, list[Operation]] = {}
    for op in list(block.ops):
        if not is_pure(op) or is_built_upon(op):
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
            erase_unused(block)
