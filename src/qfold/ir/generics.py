"""Questions about ops on tensors, and small edits, that the tensor-level passes share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard, TypeVar, cast

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.traits import IsTerminator, is_side_effect_free

from qfold.dialects.contraction import SEGMENTS, EpilogueOperation, region_or_none, shape_of
from qfold.ir.locations import fuse_locations

ContractionT = TypeVar("ContractionT", bound=EpilogueOperation)


def function_blocks(module: ModuleOp) -> Iterator[Block]:
    """The block of each function with a body: where tensor-level ops live."""
    for op in module.body.block.ops:
        if isinstance(op, func.FuncOp) and op.body.blocks:
            yield op.body.block


def indexing_maps(op: LinalgStructuredOperation) -> list[AffineMap]:
    """The maps of the inputs, then of the outputs."""
    return [m.data for m in op.get_indexing_maps()]


def is_parallel(op: LinalgStructuredOperation) -> bool:
    """Whether no loop reduces."""
    return all(t.data == IteratorType.PARALLEL for t in op.get_iterator_types())


def on_tensors(op: Operation) -> bool:
    """Whether the op has one result, a tensor, and reads no memref."""
    return len(op.results) == 1 and isinstance(op.results[0].type, TensorType)


def is_pure(op: Operation) -> bool:
    """Whether the op only computes its results. Linalg ops on tensors are, though they carry no trait that says so."""
    if op.has_trait(IsTerminator):
        return False
    if isinstance(op, LinalgStructuredOperation | tensor.EmptyOp):
        return on_tensors(op)
    return bool(op.results) and is_side_effect_free(op)


def has_no_uses(op: Operation) -> bool:
    return all(r.first_use is None for r in op.results)


def erase_dead(candidates: Iterable[Operation], rewriter: PatternRewriter | None = None) -> None:
    """Erase those of the pure `candidates` that nobody reads, and what only they read."""
    stack = list(candidates)
    while stack:
        op = stack.pop()
        if op.parent is None or not is_pure(op) or not has_no_uses(op):
            continue
        sources = [v.owner for inner in op.walk() for v in inner.operands]
        if rewriter is None:
            op.detach()
            op.erase()
        else:
            rewriter.erase(op)
        stack.extend(s for s in sources if isinstance(s, Operation))


def local_rewriter(op: Operation) -> PatternRewriter:
    """A rewriter for passes that walk a block themselves."""
    return PatternRewriter(op)


def add_location(op: Operation, *others: Operation) -> None:
    """Let `op` stand for `others` too."""
    op.location = fuse_locations((op.location, *(o.location for o in others)))


def cloned_epilogue(op: EpilogueOperation) -> Region | None:
    """A copy of a contraction's epilogue, if it has one."""
    return None if op.epilogue is None else op.epilogue.clone()


def rebuilt(
    op: ContractionT,
    groups: Mapping[str, Sequence[SSAValue]],
    properties: Mapping[str, Attribute | None],
    *,
    epilogue: Region | None = None,
    result_element_type: Attribute | None = None,
) -> ContractionT:
    """The same contraction with some operand groups and properties (None: absent) replaced, not inserted.

    It takes a copy of `op`'s epilogue, unless another is given.
    """
    operands: list[Sequence[SSAValue]] = []
    for name, _ in op.get_irdl_definition().operands:
        if name in groups:
            operands.append(groups[name])
            continue
        value = cast("SSAValue | Sequence[SSAValue] | None", getattr(op, name))
        one = () if value is None else (value,) if isinstance(value, SSAValue) else value
        operands.append(one)
    kept: dict[str, Attribute | None] = {**op.properties, **properties}
    del kept[SEGMENTS]
    region = cloned_epilogue(op) if epilogue is None else epilogue
    type_ = op.output_type
    if result_element_type is not None:
        type_ = TensorType(result_element_type, type_.get_shape())
    return type(op).build(
        operands=operands,
        result_types=[type_],
        properties={k: v for k, v in kept.items() if v is not None},
        attributes=op.attributes,
        regions=[region_or_none(region)],
    )


def is_projection(map_: AffineMap) -> bool:
    """Whether each result is a plain loop, each at most once."""
    positions = [e.position for e in map_.results if isinstance(e, AffineDimExpr)]
    return len(positions) == len(map_.results) == len(set(positions))


def is_identity(map_: AffineMap) -> bool:
    """Whether result i is loop i, for all loops."""
    return len(map_.results) == map_.num_dims and all(
        isinstance(e, AffineDimExpr) and e.position == i for i, e in enumerate(map_.results)
    )


def loop_extents(
    maps: Sequence[AffineMap], shapes: Sequence[Sequence[int]]
) -> tuple[int, ...] | None:
    """The extent of each loop, which some operand's dimension is indexed by plainly; None when one has no such operand."""
    extents: list[int | None] = [None] * (maps[0].num_dims if maps else 0)
    for map_, shape in zip(maps, shapes, strict=True):
        for e, size in zip(map_.results, shape, strict=True):
            if isinstance(e, AffineDimExpr):
                extents[e.position] = size
    if None in extents:
        return None
    return cast(tuple[int, ...], tuple(extents))


def extents_of(op: LinalgStructuredOperation) -> tuple[int, ...]:
    """The extent of each loop of an op that verifies."""
    operands = [*op.inputs, *op.outputs]
    extents = loop_extents(indexing_maps(op), [_shape(v) for v in operands])
    assert extents is not None, f"{op.name} has a loop that no operand bounds"
    return extents


def _shape(value: SSAValue) -> tuple[int, ...]:
    return shape_of(value) if isinstance(value.type, TensorType) else ()


def is_unit_reshape(op: Operation) -> TypeGuard[tensor.CollapseShapeOp | tensor.ExpandShapeOp]:
    """Whether the op only adds or drops dimensions of extent 1."""
    if not isinstance(op, tensor.CollapseShapeOp | tensor.ExpandShapeOp):
        return False
    source, target = shape_of(op.src), shape_of(op.result)
    return [d for d in source if d != 1] == [d for d in target if d != 1]


def unit_reshape_map(source: Sequence[int], target: Sequence[int]) -> AffineMap:
    """Indices of `target` -> indices of `source`, which differ in dimensions of extent 1 only."""
    real = iter(d for d, n in enumerate(target) if n != 1)
    return AffineMap(
        len(target),
        0,
        tuple(
            AffineExpr.constant(0) if n == 1 else AffineExpr.dimension(next(real)) for n in source
        ),
    )
