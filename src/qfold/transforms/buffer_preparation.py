"""What is put right on tensors before they become buffers: dead ops, reads through reshapes, where fills are made."""

from __future__ import annotations

from typing import cast

from xdsl.dialects import arith, func, tensor
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from qfold.dialects.contraction import shape_of
from qfold.ir.fusion import Access, compose_views, inputs_of
from qfold.ir.generics import indexing_maps, is_unit_reshape
from qfold.transforms.buffer_assignment import COMPUTE, VIEWS


def remove_dead_ops(block: Block) -> None:
    """Erase what nobody reads; every op of the tensor level is pure."""
    for op in reversed(list(block.ops)):
        if not isinstance(op, func.ReturnOp) and not any(r.uses for r in op.results):
            Rewriter.erase_op(op)


def read_behind_reshapes(block: Block) -> None:
    """Have generics read what is behind a reshape that only adds or drops dimensions of extent 1, where that leaves no reader.

    A loop nest that reads the very buffer that another one writes can join it. A reshape stays for a reader that may write its
    result over what it reads, which takes equal shapes.
    """
    for op in block.ops:
        if not is_unit_reshape(op):
            continue
        uses = [(use.operation, use.index) for use in op.result.uses]
        if not all(_reads_only(reader, index) for reader, index in uses):
            continue
        for reader, index in uses:
            assert isinstance(reader, linalg.GenericOp)
            behind = Access(*inputs_of(reader)[index]).through_view()
            assert behind is not None
            compose_views(reader, index, behind)


def _reads_only(op: Operation, index: int) -> bool:
    """Whether the operand is an input of a generic that cannot be updated in place."""
    if not isinstance(op, linalg.GenericOp) or index >= len(op.inputs):
        return False
    maps = indexing_maps(op)
    return maps[index] != maps[-1] or shape_of(op.inputs[index]) != shape_of(op.results[0])


def place_fills(block: Block) -> None:
    """Give each op that starts from a fill one of its own, right before it, or before the values that go into it are made.

    A shared fill would have to be copied for each reader but the last, and one that comes early would hold its buffer for long.
    """
    position = {op: i for i, op in enumerate(block.ops)}
    # Insertions first: what a fill for a reduction is put before may itself go into a filled buffer.
    for op in position:
        if isinstance(op, tensor.InsertSliceOp):
            _own_fill(op, op.dest, _first_writer(op.source, position) or op)
    for op in position:
        if isinstance(op, linalg.GenericOp):
            _own_fill(op, op.outputs[0], op)
    remove_dead_ops(block)


def _own_fill(op: Operation, start: SSAValue, before: Operation) -> None:
    """Where `op` starts from a fill, have it start from a copy of that op, made before another."""
    fill = start.owner
    if not isinstance(fill, linalg.FillOp):
        return
    empty, value = fill.outputs[0].owner, fill.inputs[0].owner
    if not isinstance(empty, tensor.EmptyOp) or not isinstance(value, arith.ConstantOp):
        return
    new_value, new_empty = value.clone(), empty.clone()
    new_fill = linalg.FillOp((new_value.result,), (new_empty.tensor,), (start.type,))
    copies: tuple[Operation, ...] = (new_value, new_empty, new_fill)
    for copy in copies:
        copy.location = fill.location
    Rewriter.insert_op(copies, InsertPoint.before(before))
    op.operands[list(op.operands).index(start)] = new_fill.results[0]


def _first_writer(value: SSAValue, position: dict[Operation, int]) -> Operation | None:
    """The first op that would write to the buffer of `value`, were it made where it is wanted."""
    owner = value.owner
    while isinstance(owner, VIEWS):
        owner = owner.operands[0].owner
    if not isinstance(owner, Operation):
        return None
    if not isinstance(owner, tensor.InsertSliceOp):
        return owner if isinstance(owner, COMPUTE) else None
    writers = [owner, *(_first_writer(v, position) for v in (owner.source, owner.dest))]
    return min((w for w in writers if w in position), key=lambda w: position[cast(Operation, w)])
