"""The leaf ops of staged products: what multiplies a tile, and what finishes accumulators that it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.ir import Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap

from qfold.dialects import qkernel
from qfold.dialects.contraction import WEIGHT_BIAS, EpilogueOperation
from qfold.ir.generics import cloned_epilogue
from qfold.transforms.matmul_operands import Problem
from qfold.transforms.staging import Stage, memref_type
from qfold.transforms.tiled_symbols import tiled_symbol


@dataclass(frozen=True)
class Finish:
    """What a leaf does to its accumulators before it stores them."""

    operands: Sequence[SSAValue] = ()
    maps: Sequence[AffineMap] = ()
    region: Region | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """As constructors of contractions take it."""
        return {
            "epilogue_operands": self.operands,
            "epilogue_maps": self.maps,
            "epilogue": self.region,
        }


def tile_of(
    p: Problem,
    leaf: type[EpilogueOperation],
    by_name: Mapping[str, SSAValue],
    y: SSAValue,
    finish: Finish,
) -> Operation:
    """One tile of a product. `by_name`: `a`, the weight `w` as `leaf` takes it, and its other operands."""
    a, w = by_name["a"], by_name["w"]
    if leaf is qkernel.PackedQuantMatmulOp:
        return qkernel.PackedQuantMatmulOp(a, w, y, **finish.arguments)
    if leaf is qkernel.PackedMatmulOp:
        scale = by_name.get("scale")
        return qkernel.PackedMatmulOp(a, w, y, scale=scale, **finish.arguments)
    if leaf is qkernel.QuantMatmulOp:
        return qkernel.QuantMatmulOp(
            a,
            w,
            y,
            a_zero_point=by_name.get("a_zero_point"),
            b_zero_point=by_name.get("zero_point"),
            transpose_b=p.transposed,
            **finish.arguments,
        )
    assert leaf is qkernel.DequantMatmulOp and isinstance(p.op, qkernel.DequantMatmulOp)
    tile = qkernel.DequantMatmulOp(
        a,
        w,
        by_name["scale"],
        y,
        zero_point=by_name.get("zero_point"),
        row_sum=by_name.get("row_sum"),
        transpose_b=p.transposed,
        hoisted=p.op.hoisted is not None,
        **finish.arguments,
    )
    if WEIGHT_BIAS in p.op.attributes:
        tile.attributes[WEIGHT_BIAS] = p.op.attributes[WEIGHT_BIAS]
    return tile


def finish_tile(
    stage: Stage,
    op: EpilogueOperation,
    accumulators: SSAValue,
    operands: Sequence[tuple[SSAValue, AffineMap]],
    y: SSAValue,
) -> None:
    """The epilogue of `op` as a loop nest on a tile, which is a matrix. `operands`: each with (m, n) -> its indices."""
    identity = AffineMap.identity(2)
    maps = [identity, *(map_ for _, map_ in operands), identity]

    def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
        region = epilogue_body(op)
        region.block.insert_arg(memref_type(values[-1]).element_type, len(region.block.args))
        kinds = [IteratorTypeAttr(IteratorType.PARALLEL)] * 2
        return [
            linalg.GenericOp(
                values[:-1],
                [values[-1]],
                region,
                ArrayAttr([AffineMapAttr(m) for m in maps]),
                ArrayAttr(kinds),
                (),
            )
        ]

    stage.call(tiled_symbol, [accumulators, *(v for v, _ in operands), y], make)


def epilogue_body(op: EpilogueOperation) -> Region:
    """The epilogue of a contraction as the body of a generic on its accumulators and operands."""
    region = cloned_epilogue(op)
    assert region is not None
    last = region.block.last_op
    assert last is not None
    result = last.operands[0]
    location = last.location
    last.detach()
    last.erase()
    end = linalg.YieldOp(result)
    end.location = location
    region.block.add_op(end)
    return region
