"""How reductions fold: the combiner that a body holds, and sums of products as matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects import arith, builtin
from xdsl.ir import Attribute, Block, Operation, SSAValue

from qfold.interpreters.domains import REDUCERS, Domain
from qfold.interpreters.spaces import Box
from qfold.interpreters.values import Array, Value, map_parts

_PRODUCTS = (arith.MulfOp, arith.MuliOp)
_SUMS = ("arith.addf", "arith.addi")


@dataclass(frozen=True)
class Combiner:
    """How one output folds: `combine(accumulator, term)`."""

    operation: Operation
    term: SSAValue
    deferred: frozenset[Operation]
    """Ops that only serve the folding: the combiner, and the casts between it, the accumulator and the yield."""

    @property
    def element_type(self) -> Attribute:
        return self.operation.results[0].type

    @property
    def factors(self) -> Operation | None:
        """The product that is summed, when this is a contraction."""
        owner = self.term.owner
        if (
            self.operation.name in _SUMS
            and isinstance(owner, _PRODUCTS)
            and owner.parent is self.operation.parent
            and owner.results[0].has_one_use()
        ):
            return owner
        return None


def match_combiner(block: Block, position: int, accumulator: SSAValue) -> Combiner | None:
    """The combiner of the output that `block` yields at `position`, or None when its body is not of that form."""
    assert block.last_op is not None
    value = block.last_op.operands[position]
    deferred: set[Operation] = set()
    if not accumulator.has_one_use():
        return None
    user = next(iter(accumulator.uses)).operation
    if isinstance(user, builtin.UnrealizedConversionCastOp):
        deferred.add(user)
        accumulator = user.results[0]
        if not accumulator.has_one_use():
            return None
    if isinstance(value.owner, builtin.UnrealizedConversionCastOp):
        deferred.add(value.owner)
        if not value.has_one_use():
            return None
        value = value.owner.operands[0]
    combiner = value.owner
    if not isinstance(combiner, Operation) or combiner.name not in REDUCERS:
        return None
    if not value.has_one_use() or accumulator not in combiner.operands:
        return None
    left, right = combiner.operands
    deferred.add(combiner)
    return Combiner(combiner, right if left is accumulator else left, frozenset(deferred))


def contract(
    domain: Domain,
    of_type: Attribute,
    x: Value,
    y: Value,
    init: Value,
    box: Box,
    reductions: Sequence[int],
) -> Value | None:
    """`init + sum over the reductions of x * y` as one matrix product, or None when it is none.

    All have one dimension per loop; the result has size 1 along the reductions.
    """
    shape = box.shape
    loops = range(len(shape))
    in_x = [x.shape[j] > 1 for j in loops]
    in_y = [y.shape[j] > 1 for j in loops]
    parallel = [j for j in loops if j not in reductions and shape[j] > 1]
    if not all(in_x[j] or in_y[j] for j in parallel):
        return None
    batch = [j for j in parallel if in_x[j] and in_y[j]]
    rows = [j for j in parallel if not in_y[j]]
    columns = [j for j in parallel if not in_x[j]]
    if not rows or not columns:
        # A plain sum of products is as cheap, unless it must materialise a broadcast one.
        if np.broadcast_shapes(x.shape, y.shape) in (x.shape, y.shape):
            return None
    single = [j for j in loops if shape[j] == 1 and j not in reductions]
    depth = list(reductions)

    def matrix(part: Array, first: list[int], second: list[int]) -> Array:
        """[batch..., first, second] from one dimension per loop."""
        full = np.broadcast_to(
            part, [shape[j] if j in depth else part.shape[j] for j in loops]
        ).transpose(
            *batch, *first, *second, *(j for j in loops if j not in {*batch, *first, *second})
        )
        sizes = [shape[j] for j in batch]
        return full.reshape(
            *sizes,
            int(np.prod([shape[j] for j in first], dtype=np.int64)),
            int(np.prod([shape[j] for j in second], dtype=np.int64)),
        )

    total = domain.contract(
        of_type,
        map_parts(lambda p: matrix(p, rows, depth), x),
        map_parts(lambda p: matrix(p, depth, columns), y),
        map_parts(
            lambda p: p.transpose(*batch, *rows, *columns, *single, *depth).reshape(
                *[shape[j] for j in batch],
                int(np.prod([shape[j] for j in rows], dtype=np.int64)),
                int(np.prod([shape[j] for j in columns], dtype=np.int64)),
            ),
            init,
        ),
    )
    order = [*batch, *rows, *columns, *single, *depth]
    sizes = [1 if j in depth else shape[j] for j in order]
    inverse = [order.index(j) for j in loops]
    return map_parts(lambda p: p.reshape(sizes).transpose(inverse), total)
