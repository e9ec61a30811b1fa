"""Generics that the operator importers share: operands given by the loops that they run along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import signless
from qfold.frontend.context import NodeContext
from qfold.ir.builder import Body, ScalarBuilder, TensorBuilder, element_type

Along = tuple[SSAValue, Sequence[int]]
"""A tensor, and for each of its dimensions the loop that indexes it."""

Fold = Callable[[ScalarBuilder, Sequence[SSAValue], SSAValue], SSAValue]
"""(builder, element of each operand, accumulator) -> accumulator."""


def select_dims(rank: int, dims: Sequence[int]) -> AffineMap:
    """The map from `rank` loops to those in `dims`."""
    return AffineMap(rank, 0, tuple(AffineExpr.dimension(d) for d in dims))


def mapped(
    b: TensorBuilder,
    operands: Sequence[Along],
    shape: Sequence[int],
    result_type: Attribute,
    body: Body,
) -> SSAValue:
    """`body` at every point of `shape`."""
    rank = len(shape)
    return b.generic(
        [(value, select_dims(rank, dims)) for value, dims in operands],
        b.empty(shape, result_type),
        AffineMap.identity(rank),
        ["parallel"] * rank,
        lambda scalars, elements, _: body(scalars, elements),
    )


def folded(
    b: TensorBuilder,
    operands: Sequence[Along],
    shape: Sequence[int],
    axes: Sequence[int],
    init: float | int,
    result_type: Attribute,
    body: Fold,
) -> SSAValue:
    """A reduction of the space `shape` over `axes`, which the result lacks, from `init`."""
    rank = len(shape)
    kept = [d for d in range(rank) if d not in axes]
    start = b.fill([shape[d] for d in kept], result_type, init)
    if 0 in shape:
        return start
    return b.generic(
        [(value, select_dims(rank, dims)) for value, dims in operands],
        start,
        select_dims(rank, kept),
        ["reduction" if d in axes else "parallel" for d in range(rank)],
        body,
    )


def kept_dims(rank: int, axes: Sequence[int]) -> list[int]:
    """The loops of a space of `rank` dimensions that are not in `axes`."""
    return [d for d in range(rank) if d not in axes]


def pointwise(
    ctx: NodeContext, indices: Sequence[int], result_type: Attribute, body: Body
) -> SSAValue:
    """An elementwise generic on the given inputs, numpy's broadcasting; constants of one element become scalars of the body."""
    scalars: dict[int, float | int] = {}
    tensors: list[SSAValue] = []
    shapes = [ctx.type(i).get_shape() for i in indices]
    for position, index in enumerate(indices):
        known = ctx.const(index)
        if known is not None and known.size == 1 and len(indices) > 1:
            scalars[position] = known.reshape(-1)[0].item()
        else:
            tensors.append(ctx.value(index))
    types = [signless(ctx.type(i).element_type) for i in indices]

    def with_scalars(b: ScalarBuilder, elements: Sequence[SSAValue]) -> SSAValue:
        given = iter(elements)
        return body(
            b,
            [
                b.constant(scalars[position], types[position])
                if position in scalars
                else next(given)
                for position in range(len(indices))
            ],
        )

    shape = np.broadcast_shapes(*shapes)
    return ctx.b.elementwise(tensors, result_type, with_scalars, shape=shape)


def unary(
    ctx: NodeContext, result_type: Attribute, body: Callable[[ScalarBuilder, SSAValue], SSAValue]
) -> SSAValue:
    """An elementwise generic on input 0."""
    return pointwise(ctx, [0], result_type, lambda b, e: body(b, e[0]))


def take(b: TensorBuilder, x: SSAValue, axis: int, indices: Sequence[int]) -> SSAValue:
    """`x` at known `indices` (not negative) along `axis`: the runs of equal steps as slices, put together."""
    shape = shape_of(x)
    parts: list[SSAValue] = []
    for start, step, count in _runs(indices):
        offsets = [start if d == axis else 0 for d in range(len(shape))]
        if step == 0:
            sizes = [1 if d == axis else n for d, n in enumerate(shape)]
            one = b.slice(x, offsets, sizes, [1] * len(shape))
            parts.append(
                b.broadcast_to(one, [count if d == axis else n for d, n in enumerate(shape)])
            )
            continue
        sizes = [count if d == axis else n for d, n in enumerate(shape)]
        parts.append(
            b.slice(x, offsets, sizes, [step if d == axis else 1 for d in range(len(shape))])
        )
    if not parts:
        return b.empty([0 if d == axis else n for d, n in enumerate(shape)], element_type(x))
    return b.concat(parts, axis)


def count_runs(indices: Sequence[int]) -> int:
    """How many slices `take` makes."""
    return len(_runs(indices))


def _runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """(start, step, count) of maximal arithmetic progressions, greedily from the front."""
    runs: list[tuple[int, int, int]] = []
    position = 0
    while position < len(indices):
        end = position + 1
        step = indices[end] - indices[position] if end < len(indices) else 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        count = end - position
        runs.append((indices[position], step if count > 1 else 1, count))
        position = end
    return runs
