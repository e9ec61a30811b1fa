"""`qmm-hoist-zero-point`: the zero point leaves the inner loop: `sum a * (w - zp) = sum a * w - zp * sum a`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import BytesAttr, IntegerType, ModuleOp, TensorType, UnitAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of, window_of
from qfold.dialects.element_types import bit_width, signless
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.generics import add_location, erase_dead, function_blocks, local_rewriter, rebuilt
from qfold.ir.locations import replace_op
from qfold.ir.quantized import middle, reads_better_as_signed
from qfold.targets import Target
from qfold.transforms.packing import is_packed
from qfold.transforms.target_option import target_option

Hoistable = qmm.DequantMatmulOp | qmm.DequantConvOp
WeightKey = tuple[str, TensorType[Attribute]]


def centred_quant(quant: QuantAttr) -> QuantAttr:
    """The quantisation of the weight that `centred_weight` returns."""
    return QuantAttr.get(
        cast(IntegerType, signless(quant.storage)),
        quant.scales,
        quant.zero_points - middle(quant.storage),
        axis=quant.axis,
        block_size=quant.block_size,
    )


def centred_weight(weight: WeightAttr) -> WeightAttr:
    """The weight minus the middle of its unsigned type: the top bit of each element flips."""
    raw = np.frombuffer(weight.raw, np.uint8)
    width = bit_width(weight.element_type)
    if width == 4:
        flipped = raw ^ np.uint8(0x88)
        if np.prod(weight.shape, dtype=np.int64) % 2:
            flipped[-1] &= 0x0F  # the last nibble is padding
    else:
        flipped = raw.copy()
        step = width // 8
        flipped[step - 1 :: step] ^= np.uint8(0x80)
    type_ = TensorType(signless(weight.element_type), weight.shape)
    return WeightAttr(type_, BytesAttr(flipped.tobytes()))


@dataclass
class _Centring:
    """Reads unsigned weights as signed ones where every reader gains by it, each content once."""

    flipped: dict[WeightKey, WeightAttr] = field(
        default_factory=lambda: dict[WeightKey, WeightAttr]()
    )
    constants: dict[SSAValue, SSAValue] = field(default_factory=lambda: dict[SSAValue, SSAValue]())

    def run(self, blocks: list[Block]) -> None:
        readers: dict[str, list[Operation]] = {}
        kept: set[str] = set()
        for block in blocks:
            for op in block.ops:
                for weight, quant in _weight_reads(op):
                    if quant is None or weight.is_elided or not reads_better_as_signed(quant):
                        kept.add(weight.sha256)
                    else:
                        readers.setdefault(weight.sha256, []).append(op)
        dead: list[Operation] = []
        for sha256, ops in readers.items():
            if sha256 not in kept:
                for op in ops:
                    self._centre(op, dead)
        erase_dead(dead)

    def _weight(self, weight: WeightAttr) -> WeightAttr:
        key = (weight.sha256, weight.type)
        if key not in self.flipped:
            # One content in several shapes flips once: the bytes are shared.
            same = next(
                (
                    flipped
                    for (sha256, type_), flipped in self.flipped.items()
                    if sha256 == weight.sha256 and type_.element_type == weight.element_type
                ),
                None,
            )
            flipped = centred_weight(weight) if same is None else same.with_shape(weight.shape)
            self.flipped[key] = flipped
        return self.flipped[key]

    def _centre(self, op: Operation, dead: list[Operation]) -> None:
        if isinstance(op, Hoistable | qmm.DequantGatherOp):
            op.properties["weight"] = self._weight(op.weight)
            op.properties["quant"] = centred_quant(op.quant)
            return
        assert isinstance(op, qmm.DequantizeOp) and op.quant is not None
        constant = op.q.owner
        assert isinstance(constant, qmm.ConstantOp)
        if op.q not in self.constants:
            new = qmm.ConstantOp(self._weight(constant.value))
            new.location = constant.location
            Rewriter.insert_op(new, InsertPoint.before(constant))
            self.constants[op.q] = new.result
            dead.append(constant)
        new_op = qmm.DequantizeOp(self.constants[op.q], centred_quant(op.quant))
        new_op.attributes |= op.attributes
        replace_op(local_rewriter(op), op, new_op)


def centre_unsigned_weights(blocks: list[Block]) -> None:
    """Read unsigned weights whose zero points lie about the middle of their type as signed ones, where all readers gain by it."""
    _Centring().run(blocks)


def _weight_reads(op: Operation) -> Iterator[tuple[WeightAttr, QuantAttr | None]]:
    """The constant integers that the op reads, and how it understands them (None: as integers)."""
    if isinstance(op, Hoistable | qmm.DequantGatherOp):
        already = isinstance(op, Hoistable) and op.hoisted is not None
        yield op.weight, None if already else op.quant
    elif isinstance(op, qmm.ConstantOp) and isinstance(op.value.element_type, IntegerType):
        # Any other use than a dequantise needs the integers as they are.
        for use in op.result.uses:
            if not isinstance(use.operation, qmm.DequantizeOp):
                yield op.value, None
    elif isinstance(op, qmm.DequantizeOp) and isinstance(op.q.owner, qmm.ConstantOp):
        yield op.q.owner.value, op.quant


def _summed(op: Hoistable) -> tuple[object, ...]:
    """What the sum that `op` needs is over: ops with equal keys share one."""
    if isinstance(op, qmm.DequantMatmulOp):
        return (op.a, op.quant.block_size)
    return (op.x, op.weight.shape[2:], *window_of(op))


def _additions(op: Hoistable) -> int:
    """What the sum that `op` needs costs, in additions."""
    if isinstance(op, qmm.DequantMatmulOp):
        return prod(shape_of(op.a))
    batch, channels, *_ = shape_of(op.x)
    taps = prod(op.weight.shape[2:])
    return batch * channels * taps * prod(shape_of(op.result)[2:])


def _subtractions(op: Hoistable, target: Target) -> int:
    """What hoisting saves `op`, in subtractions, on kernels of the target."""
    size = prod(op.weight.shape)
    if isinstance(op, qmm.DequantMatmulOp):
        rows = prod(shape_of(op.a)[:-1])
        if is_packed(target, rows, op.weight.element_type, op.quant.block_size):
            return 0  # they are subtracted from integers on the way
    if target.widens_weights_once:
        return size
    outputs = prod(shape_of(op.result))
    return outputs * (size // max(1, shape_of(op.result)[_OUTPUTS[type(op)]]))


_OUTPUTS = {qmm.DequantMatmulOp: -1, qmm.DequantConvOp: 1}
"""The dimension of the result that counts the outputs of one row or window."""


def hoist(op: Hoistable, sums: dict[tuple[object, ...], Operation]) -> None:
    """Make `op` hoisted; `sums` holds the sums that are there already, by what they sum, and gets new ones."""
    if op.quant.is_symmetric:
        op.properties["hoisted"] = UnitAttr()
        return
    key = _summed(op)
    if key not in sums:
        new_sum: qmm.RowSumOp | qmm.WindowSumOp
        if isinstance(op, qmm.DequantMatmulOp):
            new_sum = qmm.RowSumOp(op.a, op.quant.block_size)
        else:
            groups, strides, pads, dilations = window_of(op)
            new_sum = qmm.WindowSumOp(
                op.x,
                kernel_shape=op.weight.shape[2:],
                strides=strides,
                pads=pads,
                dilations=dilations,
                groups=groups,
            )
        new_sum.location = op.location
        Rewriter.insert_op(new_sum, InsertPoint.before(op))
        sums[key] = new_sum
    else:
        add_location(sums[key], op)
    result = sums[key].results[0]
    name = "row_sum" if isinstance(op, qmm.DequantMatmulOp) else "window_sum"
    new_op = rebuilt(op, {name: [result]}, {"hoisted": UnitAttr()})
    replace_op(local_rewriter(op), op, new_op)


def _worthwhile(ops: list[Hoistable], target: Target) -> list[Hoistable]:
    """Those of `ops` whose sums cost fewer additions than the subtractions that all readers of the sum save together."""
    saved: dict[tuple[object, ...], int] = {}
    for op in ops:
        if not op.quant.is_symmetric:
            saved[_summed(op)] = saved.get(_summed(op), 0) + _subtractions(op, target)
    return [op for op in ops if op.quant.is_symmetric or _additions(op) < saved[_summed(op)]]


@dataclass(frozen=True)
class QmmHoistZeroPointPass(ModulePass):
    """Hoist the zero points of `dequant_matmul` and `dequant_conv`.

    Unsigned weights whose zero points lie about the middle of the range become signed ones first, when all readers of the bytes
    agree: ui8 with 128 is i8 with 0. Zero points that are not 0 then multiply a `qmm.row_sum` or `qmm.window_sum` of the
    activation, which contractions of the same activation share.

    With a target, only where the sum costs less than it saves: a kernel that widens each weight once, for all rows, subtracts the
    zero point then, and a sum over many rows for few columns is dearer. Without one, everywhere.
    """

    name = "qmm-hoist-zero-point"

    target: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = None if self.target is None else target_option(self.target)
        blocks = list(function_blocks(op))
        centre_unsigned_weights(blocks)
        for block in blocks:
            sums: dict[tuple[object, ...], Operation] = {}
            ops = [o for o in block.ops if isinstance(o, Hoistable) and o.hoisted is None]
            if target is not None:
                ops = _worthwhile(ops, target)
            for inner in ops:
                hoist(inner, sums)
