"""Stages the sum of each row, which a hoisted zero point needs, for a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Operation, SSAValue

from qfold.dialects import qkernel
from qfold.dialects.contraction import shape_of
from qfold.ir.generics import indexing_maps, is_identity
from qfold.ir.layouts import Layout
from qfold.targets import Target
from qfold.transforms.kernel_symbols import symbol_base
from qfold.transforms.staging import Operand, Stage, aligned, memref_type


@dataclass(frozen=True)
class RowSumStaging:
    """The one way to stage `y[..., m] = sum over k of a[..., m, k]`: everything at once."""

    a: SSAValue
    y: SSAValue
    target: Target

    def choices(self, stage: Stage) -> Sequence[None]:
        size = sum(aligned(4 * prod(shape_of(v))) for v in (self.a, self.y))
        fits = size <= self.target.scratchpad_bytes and 0 not in shape_of(self.a)
        return [None] if fits else []

    def write(self, stage: Stage, choice: None) -> None:
        rank = len(shape_of(self.y))
        rows = list(range(rank))
        a = Operand(stage.collapse(stage.argument(self.a), [rows, [rank]]), ("m", "k"))
        y = stage.collapse(stage.argument(self.y), [rows])
        tile, transfer = stage.fetch(a, {}, "a_tile")
        sums = stage.alloc(f32, shape_of(y), "y_tile")
        stage.wait(transfer)

        def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
            return [qkernel.RowSumOp(*values)]

        stage.call(symbol_base, [tile, sums], make)
        stage.wait(stage.start(sums, y))


def row_sum_staging(ops: Sequence[Operation], target: Target) -> RowSumStaging | None:
    """How to stage a function that holds `ops`, if they are a sum over the last dimension of dense f32 rows."""
    if len(ops) != 3:
        return None
    zero, fill, nest = ops
    if not (
        isinstance(zero, arith.ConstantOp)
        and isinstance(zero.value, FloatAttr)
        and zero.value.value.data == 0.0
        and isinstance(fill, linalg.FillOp)
        and isinstance(nest, linalg.GenericOp)
        and len(nest.inputs) == 1
        and fill.outputs[0] is nest.outputs[0]
    ):
        return None
    read, written = indexing_maps(nest)
    kinds = [k.data for k in nest.iterator_types]
    sums_last = (
        len(kinds) > 1
        and all(k is IteratorType.PARALLEL for k in kinds[:-1])
        and kinds[-1] is IteratorType.REDUCTION
        and is_identity(read)
        and written.results == read.results[:-1]
    )
    block = nest.body.block
    add, end = block.first_op, block.last_op
    adds = (
        isinstance(add, arith.AddfOp)
        and end is not None
        and add.next_op is end
        and set(add.operands) == set(block.args)
        and end.operands[0] is add.result
        and add.result.type == f32
    )
    dense = all(Layout.of(memref_type(v)).is_dense for v in (nest.inputs[0], nest.outputs[0]))
    if not (sums_last and adds and dense):
        return None
    return RowSumStaging(nest.inputs[0], nest.outputs[0], target)
