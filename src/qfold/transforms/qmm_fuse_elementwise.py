"""`qmm-fuse-elementwise`: generics that work element by element move into the generics that read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, UnrealizedConversionCastOp
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects.contraction import EpilogueOperation, shape_of
from qfold.dialects.element_types import STORAGE_TYPES, is_float
from qfold.ir.builder import TensorBuilder, element_type
from qfold.ir.fusion import (
    Access,
    compose_views,
    fits,
    fuse_producer,
    inline_single_values,
    inputs_of,
    is_producer,
    readers,
    tidy_body,
    tidy_inputs,
)
from qfold.ir.generics import (
    add_location,
    erase_dead,
    extents_of,
    function_blocks,
    local_rewriter,
    on_tensors,
)
from qfold.ir.locations import replace_op
from qfold.ir.quantized import permutation_of

_FREE = (
    arith.ConstantOp,
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
    arith.SIToFPOp,
    arith.UIToFPOp,
    UnrealizedConversionCastOp,
    linalg.IndexOp,
    linalg.YieldOp,
)
_CHEAP = (
    arith.AddfOp,
    arith.SubfOp,
    arith.MulfOp,
    arith.NegfOp,
    arith.MaximumfOp,
    arith.MinimumfOp,
    arith.MaxnumfOp,
    arith.MinnumfOp,
    arith.AddiOp,
    arith.SubiOp,
    arith.CmpfOp,
    arith.CmpiOp,
    arith.SelectOp,
)
_EXPENSIVE = 1000
_CHEAP_LIMIT = 2
"""Work of up to this many cheap ops is repeated in each reader rather than written to memory and read back."""
DEQUANTIZE = 2
"""What dequantising takes, and is worth: a reader loads a quarter of the bytes."""
MAX_READERS = 4
"""Work that is not free is repeated in up to this many generics."""


def cost(op: linalg.GenericOp) -> int:
    """Ops that one element takes: loads and conversions are free, divisions, math functions and look-ups never are."""
    total = 0
    for inner in op.body.block.ops:
        if isinstance(inner, _CHEAP) and total < _CHEAP_LIMIT + DEQUANTIZE:
            total += 1
        elif not isinstance(inner, _FREE):
            return _EXPENSIVE
    return total


def is_widening(op: linalg.GenericOp) -> bool:
    """Whether each element of a float result is made of stored integers, and of what is smaller than the result."""
    result = op.results[0]
    if not is_producer(op) or not is_float(element_type(result)):
        return False
    large = [v for v in op.inputs if _size(v) >= _size(result)]
    return bool(large) and all(element_type(v) in STORAGE_TYPES for v in large)


def cost_limit(op: linalg.GenericOp) -> int:
    """The cost up to which work is repeated in each reader."""
    return _CHEAP_LIMIT + (DEQUANTIZE if is_widening(op) else 0)


def _points(op: linalg.GenericOp) -> int:
    return prod(extents_of(op))


def _size(value: SSAValue) -> int:
    return prod(shape_of(value))


def _only_reader(value: SSAValue, op: Operation) -> bool:
    return all(reader is op for reader, _ in readers(value))


def _accesses(op: linalg.GenericOp, producer: linalg.GenericOp) -> list[AffineMap]:
    """The maps, different ones only, through which `op` reads the producer."""
    maps: list[AffineMap] = []
    for value, map_ in inputs_of(op):
        for access in Access(value, map_).behind_views():
            if access.value.owner is producer and access.map not in maps:
                maps.append(access.map)
    return maps


def repeats_work(op: linalg.GenericOp, producer: linalg.GenericOp) -> bool:
    """Whether `op` would compute an element of the producer more than once."""
    return _points(op) > _size(producer.results[0]) or len(_accesses(op, producer)) > 1


def may_fuse(op: linalg.GenericOp, producer: linalg.GenericOp) -> bool:
    """Whether computing the producer inside of `op` saves memory traffic and costs next to nothing."""
    result = producer.results[0]
    if _only_reader(result, op) and not repeats_work(op, producer):
        return True
    work = cost(producer)
    if work > cost_limit(producer):
        return False
    if work == 0 and all(_size(v) < _size(result) for v in producer.inputs):
        return True  # a broadcast copy
    others: dict[int, linalg.GenericOp] = {}
    for reader, index in readers(result):
        if not isinstance(reader, linalg.GenericOp) or not fuses_generics(reader, index):
            return False
        others[id(reader)] = reader
        if work > 0 and len(others) > MAX_READERS:
            return False
    return work == 0 or (
        not any(repeats_work(r, producer) for r in others.values())
        and sum(2 * _size(v) > _size(result) for v in producer.inputs) <= 1
        and not any(_is_for_epilogue(v) for v in producer.inputs)
    )


def fuses_generics(op: Operation, index: int) -> bool:
    """Whether operand `index` of `op` is one that a generic could compute by itself."""
    return isinstance(op, linalg.GenericOp) and on_tensors(op) and index < len(op.inputs)


def _is_for_epilogue(value: SSAValue) -> bool:
    """Whether the value is a contraction's, whose epilogue does work on it best."""
    return isinstance(value.owner, EpilogueOperation) and value.has_one_use()


Rule = Callable[[linalg.GenericOp, linalg.GenericOp], bool]
"""(reader, producer) -> whether the one is to compute the other."""


def _step(op: linalg.GenericOp, rule: Rule, *, transposes: bool) -> list[Operation] | None:
    """Fuse one producer or transpose into `op`: it and the views of it, or None when there is none left."""
    for index, (value, map_) in enumerate(inputs_of(op)):
        transposed: Access | None = None
        for access in Access(value, map_).behind_views():
            producer = access.value.owner
            if isinstance(producer, linalg.GenericOp):
                if is_producer(producer) and rule(op, producer):
                    if fits(op.body.block, producer.body.block) and fuse_producer(
                        op, index, access
                    ):
                        return [*access.views, producer]
                break
            if access.views and isinstance(access.views[-1], linalg.TransposeOp):
                transposed = access
        if transposes and transposed is not None:
            view = transposed.views[-1]
            if all(fuses_generics(r, i) for r, i in readers(view.results[0])):
                if compose_views(op, index, transposed):
                    return list(transposed.views)
    return None


def fuse_producers(op: linalg.GenericOp, rule: Rule, *, transposes: bool = False) -> bool:
    """Fuse what `rule` allows into `op`, which comes to stand for what was fused; whether anything was."""
    changed = False
    # An input that is read twice must not bring its producer in twice.
    tidy_inputs(op)
    while (fused := _step(op, rule, transposes=transposes)) is not None:
        changed = True
        add_location(op, *fused)
        for name, attribute in fused[-1].attributes.items():
            op.attributes.setdefault(name, attribute)
        tidy_inputs(op)
        # Dead views would count as readers of what they look at.
        erase_dead(fused)
        inline_single_values(op)
    return changed


def fuse_into(op: linalg.GenericOp) -> bool:
    """Fuse all that can be into `op`; whether anything was."""
    changed = inline_single_values(op)
    return fuse_producers(op, may_fuse, transposes=True) or changed


def generalized(op: linalg.TransposeOp) -> linalg.GenericOp | None:
    """The transpose as a generic when that lets it compute what it transposes, which then needs no pass of its own."""
    source = op.inputs[0]
    producer = source.owner
    if not isinstance(producer, linalg.GenericOp) or not is_producer(producer):
        return None
    if not source.has_one_use() or not on_tensors(op):
        return None
    builder = TensorBuilder(InsertPoint.before(op), op.location)
    shape = shape_of(op.results[0])
    read = Access(op.results[0], AffineMap.identity(len(shape))).through_view()
    assert read is not None and len(permutation_of(op)) == len(shape)
    result = builder.generic(
        [(source, read.map)],
        builder.empty(shape, element_type(source)),
        AffineMap.identity(len(shape)),
        ["parallel"] * len(shape),
        lambda b, e, _: e[0],
    )
    replace_op(local_rewriter(op), op, [], [result])
    assert isinstance(result.owner, linalg.GenericOp)
    return result.owner


def run_on_block(block: Block) -> None:
    """Fuse into each generic of the block, from its first op on: producers have absorbed theirs by then."""
    changed: list[linalg.GenericOp] = []
    for op in list(block.ops):
        if op.parent is None or not on_tensors(op):
            continue
        generic: Operation | None = op
        if isinstance(op, linalg.TransposeOp):
            generic = generalized(op)
        if isinstance(generic, linalg.GenericOp) and fuse_into(generic):
            changed.append(generic)
    for generic in changed:
        if generic.parent is not None:
            tidy_body(generic.body.block)


@dataclass(frozen=True)
class QmmFuseElementwisePass(ModulePass):
    """Fuse elementwise producers into the generics that read them, by composing indexing maps.

    A producer with one reader is always fused; one with several when it is cheap (no division, no math function), reads one
    tensor of its own size, and all of its readers can take it. Nothing is computed again along a dimension that it is broadcast
    over, unless it is a mere copy. Fills and constants of one value become constants in the body, transposes indexing maps.
    """

    name = "qmm-fuse-elementwise"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            run_on_block(block)
