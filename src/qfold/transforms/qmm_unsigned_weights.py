"""`qmm-unsigned-weights`: the weights of matmuls of one row become unsigned, for kernels that insert them to floats."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import BytesAttr, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from qfold.dialects import qmm
from qfold.dialects.contraction import WEIGHT_BIAS, shape_of
from qfold.dialects.element_types import i8, ui8
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.generics import erase_dead, function_blocks, local_rewriter, rebuilt
from qfold.ir.locations import replace_op
from qfold.targets import Target
from qfold.transforms.packing import is_packed
from qfold.transforms.target_option import target_option

MIDDLE = 128
"""What i8 and ui8 are apart: the top bit."""


@dataclass(frozen=True)
class QmmUnsignedWeightsPass(ModulePass):
    """On a target that inserts weights, let each 8-bit `dequant_matmul` of one row be computed that way: its weight is read as
    unsigned (i8 with zero point 0 is ui8 with 128), and `qmm.weight_bias` says what the kernel may add to it.

    The kernel sums the row of the activation itself: a hoisted op takes its zero points back, and a `row_sum` that nobody else
    reads goes. A weight that other ops read as well stays as it is, so that no bytes are stored twice.
    """

    name = "qmm-unsigned-weights"

    target: str = "host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_option(self.target)
        if target.inserts_weights:
            allow_insertion(op, target)


def allow_insertion(module: ModuleOp, target: Target) -> None:
    """The pass, for a target that inserts weights."""
    bias = next(k.weight_bias for k in target.kernels if k.weight_bias)
    readers: dict[str, list[qmm.DequantMatmulOp]] = {}
    kept: set[str] = set()
    for block in function_blocks(module):
        for op in block.ops:
            if isinstance(op, qmm.DequantMatmulOp) and _is_for_insertion(op, target):
                readers.setdefault(op.weight.sha256, []).append(op)
                continue
            for attribute in (*op.properties.values(), *op.attributes.values()):
                if isinstance(attribute, WeightAttr):
                    kept.add(attribute.sha256)
    for sha256, ops in readers.items():
        if sha256 not in kept:
            for op in ops:
                _allow(op, bias)


def _is_for_insertion(op: qmm.DequantMatmulOp, target: Target) -> bool:
    storage, block_size = op.weight.element_type, op.quant.block_size
    if prod(shape_of(op.a)[:-1]) != 1 or storage not in (i8, ui8) or op.weight.is_elided:
        return False
    return not is_packed(target, 1, storage, block_size)


def _allow(op: qmm.DequantMatmulOp, bias: int) -> None:
    dead = [] if op.row_sum is None else [cast(Operation, op.row_sum.owner)]
    new_op = rebuilt(
        op,
        {"row_sum": []},
        {
            "weight": _unsigned_weight(op.weight),
            "quant": _unsigned_quant(op.quant),
            "hoisted": None,
        },
    )
    new_op.attributes[WEIGHT_BIAS] = IntegerAttr(bias, i64)
    replace_op(local_rewriter(op), op, new_op)
    erase_dead(dead)


def _unsigned_weight(weight: WeightAttr) -> WeightAttr:
    if weight.element_type == ui8:
        return weight
    flipped = np.frombuffer(weight.raw, np.uint8) ^ np.uint8(MIDDLE)
    return WeightAttr(TensorType(ui8, weight.shape), BytesAttr(flipped.tobytes()))


def _unsigned_quant(quant: QuantAttr) -> QuantAttr:
    if quant.storage == ui8:
        return quant
    return QuantAttr.get(
        ui8,
        quant.scales,
        quant.zero_points.astype(np.int32) + MIDDLE,
        axis=quant.axis,
        block_size=quant.block_size,
    )
