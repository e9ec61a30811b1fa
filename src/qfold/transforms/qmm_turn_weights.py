"""`qmm-turn-weights`: constant operands of integer products along K, where kernels would turn them round at each call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i8, ui8
from qfold.dialects.qmm import WeightAttr
from qfold.ir.generics import erase_dead, function_blocks, rebuilt
from qfold.ir.locations import fuse_locations
from qfold.transforms.target_option import target_option


@dataclass(frozen=True)
class QmmTurnWeightsPass(ModulePass):
    """On a target that says so (`unturned_rows`), store constants [K, N] of 8 bits as [N, K], with `transpose_b` on the
    `qmm.quant_matmul`s that read them.

    All that reads such bytes has to be such products, of more rows: nothing is stored twice.
    """

    name = "qmm-turn-weights"
    target: str = "host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rows = target_option(self.target).unturned_rows
        if rows is None:
            return
        for block in function_blocks(op):
            turn_weights(block, rows)


def turn_weights(block: Block, rows: int) -> None:
    """The pass, for one function and products of more than so many rows."""
    constants: dict[WeightAttr, list[qmm.ConstantOp]] = {}
    kept: set[str] = set()
    for op in block.ops:
        if isinstance(op, qmm.ConstantOp):
            constants.setdefault(op.value, []).append(op)
        for attribute in op.properties.values():
            if isinstance(attribute, WeightAttr) and not isinstance(op, qmm.ConstantOp):
                kept.add(attribute.sha256)
    for value, ops in constants.items():
        readers = [r for op in ops for r in _readers(op, rows)]
        if value.sha256 in kept or not readers or None in readers:
            continue
        turned = WeightAttr.from_array(np.ascontiguousarray(value.array().T), value.element_type)
        constant = qmm.ConstantOp(turned)
        constant.location = fuse_locations(o.location for o in ops)
        Rewriter.insert_op(constant, InsertPoint.before(ops[0]))
        for reader in readers:
            assert reader is not None
            new = rebuilt(reader, {"b": [constant.result]}, {"transpose_b": UnitAttr()})
            new.location = reader.location
            Rewriter.replace_op(reader, new)
        erase_dead(ops)


def _readers(op: qmm.ConstantOp, rows: int) -> Iterator[qmm.QuantMatmulOp | None]:
    """The products that read a constant matrix; None for anything else that does, or of it."""
    value = op.value
    turnable = value.element_type in (i8, ui8) and len(value.shape) == 2 and not value.is_elided
    for use in op.result.uses:
        reader = use.operation
        fits = (
            turnable
            and isinstance(reader, qmm.QuantMatmulOp)
            and reader.b is op.result
            and list(reader.operands).count(op.result) == 1
            and reader.transpose_b is None
            and prod(shape_of(reader.a)[:-1]) > rows
        )
        yield reader if fits and isinstance(reader, qmm.QuantMatmulOp) else None
