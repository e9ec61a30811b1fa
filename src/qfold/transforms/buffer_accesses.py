"""Which buffers an op on memrefs reads and writes. For the checkers; the passes that they check do not use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from xdsl.dialects import memref
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qkernel
from qfold.ir.locations import describe_location


def accesses(op: Operation) -> tuple[list[SSAValue], list[SSAValue]]:
    """(buffers that a compute op reads, buffers that it writes). `PassFailedException` for an op that is none."""
    if isinstance(op, linalg.FillOp):
        return [], list(op.outputs)
    if isinstance(op, memref.CopyOp):
        return [op.source], [op.destination]
    if isinstance(op, qkernel.CONTRACTIONS):
        y: SSAValue = cast(Any, op).y
        return [v for v in op.operands if v is not y], [y]
    if isinstance(op, linalg.GenericOp):
        operands = [*op.inputs, *op.outputs]
        # An operand whose elements the body does not use is there for its shape alone.
        reads = [v for v, a in zip(operands, op.body.block.args, strict=True) if a.uses]
        return [*reads, *loads(op)], list(op.outputs)
    raise PassFailedException(f"{describe_location(op)}: a kernel function does not hold {op.name}")


def loads(op: Operation) -> Iterator[SSAValue]:
    """The memrefs that the body of `op` loads single elements from."""
    for inner in op.walk():
        if isinstance(inner, memref.LoadOp):
            yield inner.memref
