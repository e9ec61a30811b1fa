"""Into how many parts each loop of a leaf function is divided, by what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import memref
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Operation, SSAValue

from qfold.dialects import qkernel
from qfold.dialects.contraction import WORD_WINDOWS, shape_of, type_of
from qfold.dialects.element_types import bit_width
from qfold.ir.generics import indexing_maps, loop_extents
from qfold.ir.shared_loops import accesses, shared_loops
from qfold.transforms.tiling_cost import (
    BLOCK,
    PANEL_CALL,
    PANEL_STEP,
    balanced,
    best_grid,
    blocks,
    largest_share,
)


def split_of(ops: Sequence[Operation], cores: int) -> tuple[int, ...]:
    """The parts for a leaf function that holds `ops`."""
    generics = [op for op in ops if isinstance(op, linalg.GenericOp)]
    if generics:
        values = (op.outputs[0] for op in generics)
        written = [v for v in values if not isinstance(v.owner, memref.AllocOp)]
        return _whole_bytes(balanced(loop_counts(generics), cores), written)
    op = ops[-1]
    match op:
        case qkernel.PackedMatmulOp():
            m, n = shape_of(op.y)
            return best_grid(blocks(m), blocks(n), cores)
        case qkernel.PackOp():
            panels, k, _ = shape_of(op.y)
            return _panels_and_steps(max(1, panels), max(1, k), cores)
        case qkernel.PackedQuantMatmulOp():
            m, n = shape_of(op.y)
            return _whole_bytes(best_grid(blocks(m), blocks(n), cores), [op.y])
        case qkernel.PackBytesOp() | qkernel.PackWindowOp():
            panels, words, *_ = shape_of(op.y)
            return _panels_and_steps(max(1, panels), max(1, words), cores)
        case qkernel.RowSumOp():
            return balanced(shape_of(op.y), cores)
        case qkernel.DequantMatmulOp() | qkernel.MatmulOp() | qkernel.QuantMatmulOp():
            *rows, n = shape_of(op.y)
            if prod(rows) <= BLOCK:
                # Each weight is converted once, for all rows.
                return (*(1 for _ in rows), max(1, min(n, cores)))
            return balanced((*rows, n), cores)
        case qkernel.ConvOp() | qkernel.DequantConvOp() | qkernel.WindowSumOp():
            return _whole_bytes(conv_split(shape_of(op.y), cores), [op.y])
        case qkernel.QuantConvOp():
            y = op.y
            if WORD_WINDOWS in op.attributes:
                return balanced((*shape_of(y)[:-1], 1), cores)
        case _:
            y = op.operands[-1]
    return _whole_bytes(balanced(shape_of(y), cores), [y])


def conv_split(shape: tuple[int, ...], cores: int) -> tuple[int, ...]:
    """The parts of an output whose last dimension is better not divided: a core that has whole rows knows which windows are
    inside of x, and takes 1.5 to 2.5 times less for an output than one that asks (c.conv on RV32)."""
    divided = balanced(shape, cores)
    rows = balanced((*shape[:-1], 1), cores)
    worth = 2 * largest_share(shape, rows) <= 3 * largest_share(shape, divided)
    return rows if worth else divided


def _panels_and_steps(panels: int, k: int, cores: int) -> tuple[int, int]:
    """The parts of a packed weight that keep the busiest core for the shortest time: each of its panels is a call."""
    found: list[tuple[int, int]] = []
    for p in range(1, min(panels, cores) + 1):
        steps = -(-k // min(k, cores // p))
        found.append((p, -(-k // steps)))

    def cost(parts: tuple[int, int]) -> tuple[int, int]:
        calls = -(-panels // parts[0])
        return PANEL_STEP * largest_share((panels, k), parts) + PANEL_CALL * calls, prod(parts)

    return min(found, key=cost)


def loop_counts(generics: Sequence[linalg.GenericOp]) -> tuple[int, ...]:
    """Iterations of the first generic's loops that may be divided: of those that all share when there are several; 1 of
    reductions."""
    first = generics[0]
    extents = loop_extents(indexing_maps(first), [shape_of(v) for v, _ in accesses(first)])
    assert extents is not None
    depth = shared_loops(generics).depth if len(generics) > 1 else len(extents)
    kinds = [i.data for i in first.iterator_types]
    return tuple(
        n if d < depth and kind is IteratorType.PARALLEL else 1
        for d, (n, kind) in enumerate(zip(extents, kinds, strict=True))
    )


def _whole_bytes(parts: tuple[int, ...], written: Sequence[SSAValue]) -> tuple[int, ...]:
    """No division where two cores would write the halves of one byte."""
    if any(bit_width(type_of(v).get_element_type()) == 4 for v in written):
        return (1,) * len(parts)
    return parts
