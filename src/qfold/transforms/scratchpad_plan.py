"""Where the L1 buffers of a staged dispatch go: liveness within the function, then offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from qfold.dialects import pulp
from qfold.dialects.element_types import byte_size
from qfold.transforms.memory_plan import Lifetime, Plan, plan
from qfold.transforms.qmm_outline_kernels import VIEWS
from qfold.transforms.staging import ALIGNMENT


@dataclass(frozen=True)
class ScratchpadPlan:
    """The L1 buffers of one function, in order, and where they go."""

    buffers: tuple[memref.AllocOp, ...]
    plan: Plan


def plan_scratchpad(body: Block, space: int) -> ScratchpadPlan:
    """Offsets for the buffers in `space` that the function of `body` allocates.

    A buffer is alive from its first use to its last: a loop around a use, inside of the block that allocates the buffer, counts
    as a whole, and what a transfer reads or writes is used until the wait.
    """
    spans = _spans(body)
    buffers: list[memref.AllocOp] = []
    lifetimes: list[Lifetime] = []
    for op in body.walk():
        if not isinstance(op, memref.AllocOp) or _space(op) != space:
            continue
        block = op.parent
        assert block is not None
        users = [spans[_ancestor(user, block)] for user in _users(op.memref)]
        type_ = op.memref.type
        size = byte_size(type_.element_type, prod(type_.get_shape()))
        first, last = min((a for a, _ in users), default=0), max((b for _, b in users), default=0)
        buffers.append(op)
        lifetimes.append(Lifetime(size, first, last))
    return ScratchpadPlan(tuple(buffers), plan(lifetimes, ALIGNMENT))


def _space(op: memref.AllocOp) -> int:
    space = op.memref.type.memory_space
    return space.value.data if isinstance(space, IntegerAttr) else 0


def _spans(body: Block) -> dict[Operation, tuple[int, int]]:
    """The position of each op, and that of the last op inside of it, in program order."""
    spans: dict[Operation, tuple[int, int]] = {}

    def number(block: Block, position: int) -> int:
        for op in block.ops:
            first = position
            position += 1
            for region in op.regions:
                for inner in region.blocks:
                    position = number(inner, position)
            spans[op] = first, position - 1
        return position

    number(body, 0)
    return spans


def _ancestor(op: Operation, block: Block) -> Operation:
    """The op of `block` that `op` is, or is inside of."""
    while op.parent is not block:
        parent = op.parent_op()
        assert parent is not None
        op = parent
    return op


def _users(value: SSAValue) -> Iterator[Operation]:
    """The ops that need what `value` holds, themselves or through views, and the waits for transfers from and to it."""
    for use in value.uses:
        user = use.operation
        yield user
        if isinstance(user, VIEWS):
            yield from _users(user.results[0])
        elif isinstance(user, pulp.DmaStartOp):
            for carrier in pulp.carriers(user.transfer):
                yield from (u.operation for u in carrier.uses)
        elif isinstance(user, scf.ForOp | scf.YieldOp):
            raise TypeError("a loop carries an L1 buffer; loops carry transfers only")
