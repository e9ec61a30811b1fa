"""`qmm-raise-dequant`: dequantises that are written in `arith`, inside of generics, become `qmm.dequantize`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    FloatAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    TensorType,
    UnrealizedConversionCastOp,
    f32,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint
from xdsl.traits import ConstantLike
from xdsl.utils.exceptions import VerifyException

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import STORAGE_TYPES, bit_width, is_unsigned, signless
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.builder import TensorBuilder, element_type
from qfold.ir.constants import constant_array, constant_weight
from qfold.ir.fusion import inputs_of, is_producer, loops_at
from qfold.ir.generics import erase_dead, function_blocks, is_identity, local_rewriter
from qfold.ir.locations import fuse_locations, replace_op

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Weight:
    """The integers of a constant, on their way to `scale * (q - zero_point)`."""

    constant: SSAValue
    storage: IntegerType
    """How the bits are read: decided by the first op that widens them."""
    order: tuple[int, ...]
    """Loop `order[i]` indexes dimension i of the constant."""
    zero_point: Array | None = None
    scale: Array | None = None
    widened: bool = False
    is_float: bool = False


_Term = _Weight | Array
"""A weight, or a constant that is laid out along the loops (extent 1 where it does not vary)."""

_UNSIGNED_STORAGE = {signless(t): t for t in STORAGE_TYPES if is_unsigned(t)}


class _Reader:
    """Reads what a generic computes, back through the generics that feed it."""

    def __init__(self, root: linalg.GenericOp):
        self.shape = shape_of(root.results[0])
        self.ops: list[Operation] = []
        self._terms: dict[tuple[SSAValue, AffineMap], _Term | None] = {}

    def result(self, op: linalg.GenericOp, loops: AffineMap) -> _Term | None:
        """The generic's result at the root's loops, `loops` mapping those to the generic's own."""
        last = op.body.block.last_op
        assert last is not None
        self.ops.append(op)
        return self._term(last.operands[0], op, loops)

    def _term(self, value: SSAValue, op: linalg.GenericOp, loops: AffineMap) -> _Term | None:
        key = (value, loops)
        if key not in self._terms:
            self._terms[key] = self._new_term(value, op, loops)
        return self._terms[key]

    def _new_term(self, value: SSAValue, op: linalg.GenericOp, loops: AffineMap) -> _Term | None:
        owner = value.owner
        if isinstance(value, BlockArgument) and owner is op.body.block:
            return self._input(op, value.index, loops)
        if not isinstance(owner, Operation) or owner.parent is not op.body.block:
            return self._scalar(owner)
        if isinstance(owner, arith.ConstantOp):
            return self._scalar(owner)
        if isinstance(owner, linalg.IndexOp):
            return None
        terms = [self._term(v, op, loops) for v in owner.operands]
        if any(t is None for t in terms):
            return None
        return _apply(owner, cast(list[_Term], terms))

    @staticmethod
    def _scalar(owner: Operation | Block) -> Array | None:
        if not isinstance(owner, arith.ConstantOp):
            return None
        if isinstance(owner.value, FloatAttr):
            return np.asarray(owner.value.value.data, np.float64)
        if isinstance(owner.value, IntegerAttr):
            return np.asarray(owner.value.value.data, np.int64)
        return None

    def _input(self, op: linalg.GenericOp, index: int, loops: AffineMap) -> _Term | None:
        if index >= len(op.inputs):
            return None
        value, map_ = inputs_of(op)[index]
        map_ = map_.compose(loops)
        producer = value.owner
        if isinstance(producer, linalg.GenericOp):
            if not is_producer(producer):
                return None
            own = AffineMap(map_.num_dims, 0, tuple(loops_at(producer, map_)))
            return self.result(producer, own)
        weight = constant_weight(value)
        if weight is None:
            return None
        positions: list[int | None] = []
        for expression, extent in zip(map_.results, shape_of(value), strict=True):
            if isinstance(expression, AffineDimExpr) and self.shape[expression.position] == extent:
                positions.append(expression.position)
            elif isinstance(expression, AffineConstantExpr) and extent == 1:
                positions.append(None)
            else:
                return None
        kept = [p for p in positions if p is not None]
        if len(kept) != len(set(kept)):
            return None
        covers = len(kept) == len(positions) == len(self.shape)
        if covers and len(self.shape) > 0 and weight.element_type in STORAGE_TYPES:
            storage = cast(IntegerType, weight.element_type)
            return _Weight(value, storage, tuple(kept))
        array = constant_array(value)
        if array is None:
            return None
        array = array.reshape(
            [n for n, p in zip(array.shape, positions, strict=True) if p is not None]
        )
        array = array.transpose(np.argsort(np.asarray(kept, int)))
        return array.reshape([n if d in kept else 1 for d, n in enumerate(self.shape)])


def _apply(op: Operation, terms: list[_Term]) -> _Term | None:
    """What an op of a body makes of its operands, when it is a step of a dequantise."""
    first = terms[0]
    if isinstance(op, UnrealizedConversionCastOp):
        return first
    if isinstance(op, arith.ExtSIOp | arith.ExtUIOp | arith.SIToFPOp | arith.UIToFPOp):
        unsigned = isinstance(op, arith.ExtUIOp | arith.UIToFPOp)
        to_float = isinstance(op, arith.SIToFPOp | arith.UIToFPOp)
        if to_float and op.results[0].type != f32:
            return None
        source = cast(IntegerType, op.operands[0].type)
        if isinstance(first, _Weight):
            return _widen(first, unsigned, to_float)
        return _converted(first, source, unsigned, to_float)
    if len(terms) != 2:
        return None
    second = terms[1]
    if isinstance(op, arith.SubiOp | arith.SubfOp):
        if isinstance(first, _Weight) and not isinstance(second, _Weight):
            return _centre(first, second, op)
    elif isinstance(op, arith.AddiOp | arith.AddfOp):
        for weight, other in ((first, second), (second, first)):
            if isinstance(weight, _Weight) and not isinstance(other, _Weight):
                return _centre(weight, -other.astype(np.float64), op)
    elif isinstance(op, arith.MulfOp):
        for weight, other in ((first, second), (second, first)):
            if isinstance(weight, _Weight) and not isinstance(other, _Weight):
                if weight.is_float and weight.scale is None:
                    return replace(weight, scale=other)
    return None


def _widen(weight: _Weight, unsigned: bool, to_float: bool) -> _Weight | None:
    if weight.is_float:
        return None
    if weight.widened:
        # A difference may be negative: only the signed conversion reads it right.
        return None if unsigned or not to_float else replace(weight, is_float=True)
    storage = weight.storage
    if is_unsigned(storage) and not unsigned:
        return None
    if unsigned and not is_unsigned(storage):
        # Signless bits that are read as unsigned ones.
        storage = _UNSIGNED_STORAGE[storage]
    return replace(weight, storage=storage, widened=True, is_float=to_float)


def _converted(array: Array, source: IntegerType, unsigned: bool, to_float: bool) -> Array:
    """Constant integers of `source`'s width, read as signed or unsigned."""
    width = source.width.data
    values = array.astype(np.int64)
    if width < 64:
        values = values & ((1 << width) - 1)
        if not unsigned:
            values = np.where(values >= 1 << (width - 1), values - (1 << width), values)
    return values.astype(np.float64) if to_float else values


def _centre(weight: _Weight, zero_point: Array, op: Operation) -> _Weight | None:
    if weight.zero_point is not None or weight.scale is not None or not weight.widened:
        return None
    if not np.array_equal(zero_point, np.rint(zero_point)):
        return None
    if isinstance(op, arith.SubiOp | arith.AddiOp):
        type_ = cast(IntegerType, op.results[0].type)
        if type_.width.data < bit_width(weight.storage) + 2:
            return None  # the difference could wrap
    return replace(weight, zero_point=zero_point)


def _quant(weight: _Weight, shape: tuple[int, ...]) -> QuantAttr | None:
    """The weight's quantisation along the loops, when it is per tensor, per axis or per whole-axis block."""
    scale = np.asarray(1.0 if weight.scale is None else weight.scale, np.float32)
    zero = np.asarray(0 if weight.zero_point is None else weight.zero_point).astype(np.int64)
    if not np.all(np.isfinite(scale)) or not np.all(scale > 0):
        return None
    both = np.broadcast_shapes(scale.shape, zero.shape)
    scale, zero = np.broadcast_to(scale, both), np.broadcast_to(zero, both)
    long = [d for d, n in enumerate(both) if n != 1]
    try:
        if not long:
            return QuantAttr.get(weight.storage, scale.reshape(()), zero.reshape(()))
        if len(long) == 1:
            return QuantAttr.get(weight.storage, scale.reshape(-1), zero.reshape(-1), axis=long[0])
        short = [d for d, n in enumerate(both) if n == 1 and shape[d] != 1]
        if len(short) != 1:
            return None
        return QuantAttr.get(weight.storage, scale, zero, axis=short[0], block_size=shape[short[0]])
    except VerifyException:
        return None  # a zero point outside of the storage type


def constant_generics(block: Block) -> list[linalg.GenericOp]:
    """The generics that read nothing but constants, directly or through one another."""
    found: list[linalg.GenericOp] = []
    known: set[SSAValue] = set()
    for op in block.ops:
        if op.has_trait(ConstantLike):
            known.update(op.results)
        elif isinstance(op, linalg.GenericOp) and op.inputs and known.issuperset(op.inputs):
            known.update(op.results)
            found.append(op)
    return found


def raise_generic(op: linalg.GenericOp) -> None:
    """Replace a generic that dequantises a constant."""
    if not is_producer(op) or element_type(op.results[0]) != f32:
        return
    output = op.get_indexing_maps().data[-1].data
    if not is_identity(output):
        return
    reader = _Reader(op)
    weight = reader.result(op, AffineMap.identity(len(reader.shape)))
    if not isinstance(weight, _Weight) or not weight.is_float:
        return
    quant = _quant(weight, reader.shape)
    if quant is None:
        return
    inverse = list(weight.order)
    if quant.axis is not None:
        # From the loops' order to that of the constant's dimensions.
        scales, zeros = quant.scales, quant.zero_points
        if quant.block_size is not None:
            scales, zeros = scales.transpose(inverse), zeros.transpose(inverse)
        quant = QuantAttr.get(
            quant.storage,
            scales,
            zeros,
            axis=inverse.index(quant.axis),
            block_size=quant.block_size,
        )
    location = fuse_locations(o.location for o in reader.ops)
    builder = TensorBuilder(InsertPoint.before(op), location)
    source = weight.constant
    if element_type(source) != weight.storage:
        packed = constant_weight(source)
        assert packed is not None
        type_ = TensorType(weight.storage, packed.shape)
        source = builder.insert(qmm.ConstantOp(WeightAttr(type_, packed.data))).result
    result = builder.insert(qmm.DequantizeOp(source, quant)).result
    permutation = [inverse.index(d) for d in range(len(inverse))]
    result = builder.transpose(result, permutation)
    inputs = [v.owner for v in op.operands if isinstance(v.owner, Operation)]
    replace_op(local_rewriter(op), op, [], [result])
    erase_dead([*inputs, *reader.ops])


@dataclass(frozen=True)
class QmmRaiseDequantPass(ModulePass):
    """Recognise dequantises of constants that a front end wrote in `arith`.

    Matched is `[ext] -> [sub zero point] -> to float -> [sub zero point] -> [mul scale]`, in one generic or in several, on a
    constant of a storage type; zero point and scale are scalars, or constants that are broadcast. The conversions say whether
    signless bits are signed. The last op of the longest chain is replaced; what else reads the ops before it keeps them.
    """

    name = "qmm-raise-dequant"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            for generic in reversed(constant_generics(block)):
                if generic.parent is not None:
                    raise_generic(generic)
