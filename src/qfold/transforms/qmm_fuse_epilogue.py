"""`qmm-fuse-epilogue`: elementwise work on a contraction's result moves into its epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    ModuleOp,
    UnrealizedConversionCastOp,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import EpilogueOperation, shape_of
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.fusion import (
    Access,
    fits,
    inline_body,
    inline_single_values,
    inputs_of,
    is_producer,
    tidy_body,
    tidy_inputs,
)
from qfold.ir.generics import (
    erase_dead,
    extents_of,
    function_blocks,
    indexing_maps,
    is_unit_reshape,
    local_rewriter,
    on_tensors,
    rebuilt,
)
from qfold.ir.locations import fuse_locations, replace_op
from qfold.ir.quantized import is_view, permutation_of


def single_reader(value: SSAValue) -> tuple[linalg.GenericOp, list[Operation]] | None:
    """The generic that alone reads the value, and the views between; None when there is no such one."""
    views: list[Operation] = []
    while True:
        users = {use.operation for use in value.uses}
        if len(users) != 1:
            return None
        user = users.pop()
        if is_view(user) and on_tensors(user):
            views.append(user)
            value = user.results[0]
            continue
        if isinstance(user, linalg.GenericOp) and value not in user.outputs:
            return user, views
        return None


def is_unary(generic: linalg.GenericOp) -> bool:
    """Whether each element of the result comes from the element at the same place of the one input, and constants."""
    if len(generic.inputs) != 1:
        return False
    read, written = indexing_maps(generic)
    return read == written and shape_of(generic.inputs[0]) == shape_of(generic.results[0])


def _loops_of_output(
    generic: linalg.GenericOp, read: AffineMap, shape: tuple[int, ...]
) -> list[AffineExpr] | None:
    """The generic's loops as expressions of the indices of what it reads through `read`, if it reads each element once."""
    extents = extents_of(generic)
    found: dict[int, int] = {}
    for d, (expression, size) in enumerate(zip(read.results, shape, strict=True)):
        if isinstance(expression, AffineDimExpr):
            if expression.position in found and size != 1:
                return None
            found.setdefault(expression.position, d)
        elif size != 1:
            return None
    loops: list[AffineExpr] = []
    for loop, extent in enumerate(extents):
        if extent == 1:
            loops.append(AffineExpr.constant(0))
        elif loop in found:
            loops.append(AffineExpr.dimension(found[loop]))
        else:
            return None
    return loops


def _keeps_order(output: AffineMap, loops: list[AffineExpr], shape: tuple[int, ...]) -> bool:
    """Whether the generic writes elements in the row-major order of the tensor of `shape` that it reads."""
    written = output.replace_dims_and_symbols(loops, [], len(shape), 0)
    real = [e.position for e in written.results if isinstance(e, AffineDimExpr)]
    return real == sorted(real)


def _movable(block: Block) -> bool:
    """Whether the body refers to nothing but its arguments and scalar constants, and to no loop index."""
    for op in block.ops:
        if isinstance(op, linalg.IndexOp):
            return False
        for operand in op.operands:
            owner = operand.owner
            inside = owner is block or (isinstance(owner, Operation) and owner.parent is block)
            if not inside and not isinstance(owner, arith.ConstantOp):
                return False
    return True


def _copies(block: Block) -> bool:
    """Whether a body yields what it reads: signedness does not make it a computation."""
    return all(isinstance(op, UnrealizedConversionCastOp | linalg.YieldOp) for op in block.ops)


def fuse(op: EpilogueOperation) -> EpilogueOperation | None:
    """Take the generic that reads `op`'s result into its epilogue: the new op, or None when there is none that can."""
    result = op.results[0]
    found = single_reader(result)
    if found is None:
        return None
    generic, views = found
    if not is_producer(generic) or not _movable(generic.body.block):
        return None
    body = generic.body.block
    if not fits(op.epilogue_block, body):
        return None
    if not shape_of(generic.results[0]) and _copies(body):
        return None  # a reshape to a scalar, which the new op would have to end in again
    inline_single_values(generic)
    tidy_inputs(generic)
    shape = shape_of(result)
    accumulator: list[int] = []
    others: list[tuple[int, SSAValue, AffineMap]] = []
    unary = not all(map(is_unit_reshape, views))
    if unary:
        # Such work does not care in which order the elements are: it may as well be done before the views.
        if not is_unary(generic):
            return None
        accumulator = [0]
        loops: list[AffineExpr] | None = []
    else:
        read: AffineMap | None = None
        for i, (value, map_) in enumerate(inputs_of(generic)):
            access = Access(value, map_)
            while access.value is not result and access.value.owner in views:
                behind = access.through_view()
                assert behind is not None
                access = behind
            if access.value is not result:
                others.append((i, value, map_))
            elif read not in (None, access.map):
                return None
            else:
                read = access.map
                accumulator.append(i)
        if read is None:
            return None
        loops = _loops_of_output(generic, read, shape)
        if loops is None or not _keeps_order(indexing_maps(generic)[-1], loops, shape):
            return None

    block = Block(arg_types=[op.ACCUMULATOR]) if op.epilogue_block is None else None
    if op.epilogue_block is not None:
        region = Region()
        assert op.epilogue is not None
        op.epilogue.clone_into(region)
        block = region.block
    else:
        assert block is not None
        region = Region(block)
        ScalarBuilder(block, op.location).insert(qmm.YieldOp(block.args[0]))
    last = block.last_op
    assert last is not None
    location = fuse_locations((op.location, *(v.location for v in views), generic.location))
    arguments: dict[int, SSAValue] = {i: last.operands[0] for i in accumulator}
    for i, value, _ in others:
        arguments[i] = block.insert_arg(element_type(value), len(block.args))
    value = inline_body(
        generic.body.block,
        [arguments[i] for i in range(len(generic.inputs))],
        InsertPoint.before(last),
    )
    _own_constants(block, generic.body.block)
    end = qmm.YieldOp(value)
    end.location = last.location
    block.insert_op_before(end, last)
    last.detach()
    last.erase()
    maps = [m.replace_dims_and_symbols(loops, [], len(shape), 0) for _, _, m in others]
    operands = [*op.epilogue_operands, *(v for _, v, _ in others)]
    operands, all_maps = _merged(block, operands, [*op.maps, *maps])
    tidy_body(block)
    new_op = rebuilt(
        op,
        {"epilogue_operands": operands},
        {"epilogue_maps": ArrayAttr([AffineMapAttr(m) for m in all_maps]) if all_maps else None},
        epilogue=region,
        result_element_type=element_type(generic.results[0]),
    )
    for name, attribute in generic.attributes.items():
        new_op.attributes.setdefault(name, attribute)
    builder = TensorBuilder(InsertPoint.before(generic), location)
    new_result = builder.insert(new_op).results[0]
    for inner in new_op.walk():
        inner.location = fuse_locations((inner.location,))
    final = new_result
    for view in views if unary else []:
        if isinstance(view, linalg.TransposeOp):
            final = builder.transpose(final, permutation_of(view))
        else:
            final = builder.reshape(final, shape_of(view.results[0]))
    final = builder.reshape(final, shape_of(generic.results[0]))
    inits = [v.owner for v in generic.outputs if isinstance(v.owner, Operation)]
    replace_op(local_rewriter(generic), generic, [], [final])
    erase_dead([*reversed(views), *inits])
    erase_dead([op])
    return new_op


def _own_constants(block: Block, source: Block) -> None:
    """Scalar constants from outside of the generic become constants of the epilogue."""
    for op in list(block.ops):
        for i, operand in enumerate(op.operands):
            owner = operand.owner
            if isinstance(owner, arith.ConstantOp) and owner.parent is not block:
                copy = owner.clone()
                block.insert_op_before(copy, op)
                op.operands[i] = copy.result


def _merged(
    block: Block, operands: list[SSAValue], maps: list[AffineMap]
) -> tuple[list[SSAValue], list[AffineMap]]:
    """Operands without repetitions and without those that the epilogue never reads; its arguments follow."""
    first: dict[tuple[SSAValue, AffineMap], BlockArgument] = {}
    kept: list[tuple[SSAValue, AffineMap]] = []
    for key, argument in list(zip(zip(operands, maps, strict=True), block.args[1:], strict=True)):
        if key in first:
            argument.replace_all_uses_with(first[key])
        if argument.first_use is None:
            block.erase_arg(argument)
            continue
        first[key] = argument
        kept.append(key)
    return [v for v, _ in kept], [m for _, m in kept]


@dataclass(frozen=True)
class QmmFuseEpiloguePass(ModulePass):
    """Fuse elementwise generics into the epilogues of the contractions that they alone read, as many as follow one another.

    Bias, activation, residual and quantisation end up there, so that none takes a pass of its own over memory. The contraction
    moves down to where the generic was, as its operands are defined by then. No epilogue grows beyond `ir.fusion.BODY_LIMIT` ops.
    """

    name = "qmm-fuse-epilogue"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            for inner in list(block.ops):
                contraction: EpilogueOperation | None = None
                if isinstance(inner, EpilogueOperation):
                    contraction = inner
                while contraction is not None:
                    contraction = fuse(contraction)
