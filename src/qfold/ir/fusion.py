"""Moving the work of one generic into the body of another op: composition of indexing maps, inlining of bodies, tidying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    TensorType,
    UnrealizedConversionCastOp,
    i32,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import ConstantLike

from qfold.dialects.contraction import SEGMENTS, shape_of
from qfold.dialects.element_types import signless
from qfold.ir.builder import ScalarBuilder, element_type
from qfold.ir.constants import constant_array
from qfold.ir.generics import (
    add_location,
    erase_dead,
    extents_of,
    indexing_maps,
    is_parallel,
    is_projection,
    is_pure,
    is_unit_reshape,
    on_tensors,
    unit_reshape_map,
)
from qfold.ir.quantized import permutation_of, uniform

_VIEWS = (
    linalg.TransposeOp,
    tensor.CollapseShapeOp,
    tensor.ExpandShapeOp,
    tensor.ExtractSliceOp,
)

BODY_LIMIT = 64
"""Ops that a body may come to hold by fusion. One more pass over memory costs little beside that many ops per element, and
each fusion costs as much as the body is long: without a limit, a chain of n nodes would cost n^2.
"""

_SPLAT_LIMIT = 4096
"""Constants of more elements than this are not searched for a single value."""


@dataclass(frozen=True)
class Access:
    """A read of a tensor: `value[map(loops)]`, the value found behind `views`, the reader's side first."""

    value: SSAValue
    map: AffineMap
    views: tuple[Operation, ...] = ()

    def through_view(self) -> Access | None:
        """The same elements, read from what the value is a view of; None when it is no view or its map is not linear."""
        op = self.value.owner
        if not isinstance(op, Operation):
            return None
        results = self.map.results
        if isinstance(op, linalg.TransposeOp):
            source: list[AffineExpr] = [AffineExpr.constant(0)] * len(results)
            for expression, d in zip(results, permutation_of(op), strict=True):
                source[d] = expression
        elif is_unit_reshape(op):
            map_ = unit_reshape_map(shape_of(op.src), shape_of(op.result))
            source = list(map_.compose(self.map).results)
        elif isinstance(op, tensor.ExpandShapeOp):
            shape = shape_of(op.result)
            source = []
            for group in op.reassociation:
                index: AffineExpr = AffineExpr.constant(0)
                for d in group:
                    index = index * shape[d.value.data] + results[d.value.data]
                source.append(index)
        elif isinstance(op, tensor.ExtractSliceOp) and not (op.offsets or op.sizes or op.strides):
            if len(shape_of(op.source)) != len(results):
                return None
            offsets = cast(Sequence[int], op.static_offsets.get_values())
            strides = cast(Sequence[int], op.static_strides.get_values())
            source = [
                e * int(stride) + int(offset)
                for e, stride, offset in zip(results, strides, offsets, strict=True)
            ]
        else:
            return None
        map_ = AffineMap(self.map.num_dims, 0, tuple(source))
        return Access(op.operands[0], map_, (*self.views, op))

    def behind_views(self) -> Iterator[Access]:
        """This access, then the same through one more view at a time."""
        access: Access | None = self
        while access is not None:
            yield access
            access = access.through_view()


def readers(value: SSAValue) -> Iterator[tuple[Operation, int]]:
    """(op, operand number) of everything that reads the value, directly or through views; readers inside of bodies too."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, _VIEWS) and use.index == 0:
            yield from readers(op.results[0])
        else:
            yield op, use.index


def fits(body: Block | None, other: Block) -> bool:
    """Whether one body made of both, which end in a yield each, would stay within `BODY_LIMIT`."""
    blocks = [other] if body is None else [body, other]
    return sum(len(b.ops) - 1 for b in blocks) <= BODY_LIMIT


def is_producer(op: linalg.GenericOp) -> bool:
    """Whether the generic computes each element of its one result by itself, once."""
    output = indexing_maps(op)[-1]
    return (
        on_tensors(op)
        and is_parallel(op)
        and is_projection(output)
        and len(output.results) == output.num_dims
        and op.body.block.args[-1].first_use is None
    )


def loops_at(producer: linalg.GenericOp, element: AffineMap) -> list[AffineExpr]:
    """The producer's loop indices at which it computes its element `element(consumer's loops)`."""
    output = indexing_maps(producer)[-1]
    loops: list[AffineExpr] = [AffineExpr.constant(0)] * output.num_dims
    for result, index in zip(output.results, element.results, strict=True):
        assert isinstance(result, AffineDimExpr)
        loops[result.position] = index
    return loops


def bounded(inputs: Sequence[tuple[SSAValue, AffineMap]], op: linalg.GenericOp) -> bool:
    """Whether the operands of `op` would still say how far each loop runs, and all the same, had it these inputs.

    Behind a slice that starts at 0 a dimension is longer than the loop that indexes it.
    """
    maps = [m for _, m in inputs] + [indexing_maps(op)[-1]]
    shapes = [shape_of(v) for v in (*(v for v, _ in inputs), op.outputs[0])]
    extents = extents_of(op)
    seen: set[int] = set()
    for map_, shape in zip(maps, shapes, strict=True):
        for e, size in zip(map_.results, shape, strict=True):
            if isinstance(e, AffineDimExpr):
                if size != extents[e.position]:
                    return False
                seen.add(e.position)
    return len(seen) == len(extents)


def inputs_of(op: linalg.GenericOp) -> list[tuple[SSAValue, AffineMap]]:
    """The inputs, each with its map."""
    return list(zip(op.inputs, indexing_maps(op)[:-1], strict=True))


def set_inputs(op: linalg.GenericOp, inputs: Sequence[tuple[SSAValue, AffineMap]]) -> None:
    """Give a generic other inputs. The body's arguments are the caller's business."""
    output_map = op.indexing_maps.data[-1]
    count = len(op.outputs)
    op.operands = [*(v for v, _ in inputs), *op.outputs]
    op.properties[SEGMENTS] = DenseArrayBase.from_list(i32, [len(inputs), count])
    op.properties["indexing_maps"] = ArrayAttr([*(AffineMapAttr(m) for _, m in inputs), output_map])


def inline_body(
    source: Block,
    arguments: Sequence[SSAValue],
    at: InsertPoint,
    loops: Sequence[AffineExpr] | None = None,
) -> SSAValue:
    """Copy the ops of a generic's body to `at`, on other arguments, and return what it yields.

    `loops` gives the generic's loop indices as expressions of those of the generic that it moves into.
    """
    mapper: dict[SSAValue, SSAValue] = dict(zip(source.args, arguments, strict=False))
    last = source.last_op
    assert last is not None
    for op in source.ops:
        if op is last:
            break
        if isinstance(op, linalg.IndexOp):
            assert loops is not None
            builder = ScalarBuilder(at, op.location)
            mapper[op.results[0]] = index_value(loops[op.dim.value.data], builder)
            continue
        copy = op.clone(mapper)
        Rewriter.insert_op(copy, at)
    value = last.operands[0]
    return mapper.get(value, value)


def move_body(
    source: Block,
    arguments: Sequence[SSAValue],
    at: InsertPoint,
    loops: Sequence[AffineExpr],
) -> SSAValue:
    """As `inline_body`, of a generic that is not needed afterwards: its ops move, so that long chains cost no copies."""
    for old, new in zip(source.args, arguments, strict=False):
        old.replace_all_uses_with(new)
    last = source.last_op
    assert last is not None
    for op in list(source.ops):
        if isinstance(op, linalg.IndexOp):
            index = index_value(loops[op.dim.value.data], ScalarBuilder(at, op.location))
            op.results[0].replace_all_uses_with(index)
        elif op is not last:
            op.detach()
            Rewriter.insert_op(op, at)
    return last.operands[0]


def index_value(expression: AffineExpr, b: ScalarBuilder) -> SSAValue:
    """Ops that compute an affine expression of the loop indices of the generic around them."""
    match expression:
        case AffineConstantExpr():
            return b(arith.ConstantOp, IntegerAttr(expression.value, IndexType()))
        case AffineDimExpr():
            return b.index(expression.position)
        case AffineBinaryOpExpr():
            operations: dict[AffineBinaryOpKind, Callable[..., Operation]] = {
                AffineBinaryOpKind.Add: arith.AddiOp,
                AffineBinaryOpKind.Mul: arith.MuliOp,
                AffineBinaryOpKind.FloorDiv: arith.FloorDivSIOp,
                AffineBinaryOpKind.Mod: arith.RemUIOp,
            }
            left, right = index_value(expression.lhs, b), index_value(expression.rhs, b)
            return b(operations[expression.kind], left, right)
        case _:
            raise NotImplementedError(f"affine expression {expression}")


def single_value(value: SSAValue) -> Attribute | None:
    """The element as a scalar attribute, when all elements are equal by construction: a fill, or a constant of one value."""
    owner = value.owner
    if isinstance(owner, linalg.FillOp):
        scalar = owner.inputs[0].owner
        return scalar.value if isinstance(scalar, arith.ConstantOp) else None
    type_ = value.type
    if not isinstance(type_, TensorType):
        return None
    array = constant_array(value)
    if array is None or not array.size or array.size > _SPLAT_LIMIT or not uniform(array):
        return None
    scalar_type = signless(element_type(value))
    builder = ScalarBuilder(Block())
    constant = builder.constant(array.flat[0].item(), scalar_type).owner
    assert isinstance(constant, arith.ConstantOp)
    return constant.value


def inline_single_values(op: linalg.GenericOp) -> bool:
    """Turn inputs of a single value into constants of the body; whether there were any."""
    changed = False
    index = 0
    while index < len(op.inputs):
        inputs = inputs_of(op)
        rest = inputs[:index] + inputs[index + 1 :]
        access = Access(*inputs[index])
        values = (single_value(a.value) for a in access.behind_views())
        attribute = next((v for v in values if v is not None), None)
        if attribute is None or not bounded(rest, op):
            index += 1
            continue
        block = op.body.block
        argument = block.args[index]
        if argument.first_use is not None:
            builder = ScalarBuilder(InsertPoint.at_start(block), op.location)
            constant = builder(arith.ConstantOp, attribute)
            argument.replace_all_uses_with(builder.to_storage(constant, argument.type))
        block.erase_arg(argument)
        source = inputs[index][0].owner
        set_inputs(op, rest)
        if isinstance(source, Operation):
            if not source.has_trait(ConstantLike):
                add_location(op, source)
            erase_dead([source])
        changed = True
    return changed


def fuse_producer(op: linalg.GenericOp, index: int, access: Access) -> bool:
    """Compute input `index` of `op` in its body, by the generic behind `access`; False when no loop bound would be left."""
    producer = access.value.owner
    assert isinstance(producer, linalg.GenericOp)
    loops = loops_at(producer, access.map)
    count = access.map.num_dims
    new = [
        (value, map_.replace_dims_and_symbols(loops, [], count, 0))
        for value, map_ in inputs_of(producer)
    ]
    inputs = inputs_of(op)
    inputs[index : index + 1] = new
    if not bounded(inputs, op):
        return False
    block = op.body.block
    argument = block.args[index]
    arguments = [
        block.insert_arg(a.type, index + 1 + i)
        for i, a in enumerate(producer.body.block.args[: len(new)])
    ]
    start = InsertPoint.at_start(block)
    if all(op.results[0].has_one_use() for op in (producer, *access.views)):
        value = move_body(producer.body.block, arguments, start, loops)
    else:
        value = inline_body(producer.body.block, arguments, start, loops)
    argument.replace_all_uses_with(value)
    block.erase_arg(argument)
    set_inputs(op, inputs)
    return True


def compose_views(op: linalg.GenericOp, index: int, access: Access) -> bool:
    """Read input `index` of `op` from behind the views of `access`; False when no loop bound would be left."""
    inputs = inputs_of(op)
    inputs[index] = (access.value, access.map)
    if not bounded(inputs, op):
        return False
    set_inputs(op, inputs)
    return True


def tidy_inputs(op: linalg.GenericOp) -> None:
    """Merge inputs that are read through the same map, and drop those never read that no loop needs for its extent."""
    block = op.body.block
    inputs = inputs_of(op)
    first: dict[tuple[SSAValue, AffineMap], int] = {}
    for i, key in enumerate(inputs):
        if key in first:
            block.args[i].replace_all_uses_with(block.args[first[key]])
        else:
            first[key] = i
    i = 0
    while i < len(inputs):
        rest = inputs[:i] + inputs[i + 1 :]
        if block.args[i].first_use is None and bounded(rest, op):
            block.erase_arg(block.args[i])
            inputs = rest
        else:
            i += 1
    if len(inputs) != len(op.inputs):
        set_inputs(op, inputs)


def tidy_body(block: Block) -> None:
    """Cancel casts there and back, share equal ops, drop dead ones."""
    known: dict[tuple[object, ...], Operation] = {}
    for op in list(block.ops):
        if isinstance(op, UnrealizedConversionCastOp) and len(op.operands) == 1:
            before = op.operands[0].owner
            if isinstance(before, UnrealizedConversionCastOp):
                if before.operands[0].type == op.results[0].type:
                    op.results[0].replace_all_uses_with(before.operands[0])
        if op.regions or not is_pure(op):
            continue
        key = (
            op.name,
            tuple(op.operands),
            frozenset(op.properties.items()),
            tuple(op.result_types),
        )
        same = known.setdefault(key, op)
        if same is not op:
            for old, new in zip(op.results, same.results, strict=True):
                old.replace_all_uses_with(new)
    for op in reversed(list(block.ops)):
        if is_pure(op) and all(r.first_use is None for r in op.results):
            op.detach()
            op.erase()
