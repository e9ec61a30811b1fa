"""Float tensors that are integer accumulators times scales, through biases, factors and views: what a requantisation replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineMap
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i8, i32, integer_range, ui8
from qfold.dialects.qmm import QuantAttr
from qfold.ir.builder import ScalarBuilder, TensorBuilder
from qfold.ir.constants import constant_array
from qfold.ir.fusion import is_producer
from qfold.ir.generics import indexing_maps, is_identity
from qfold.ir.locations import fuse_locations
from qfold.ir.quantized import constant_quant, is_view, permutation_of
from qfold.transforms.qmm_check_accumulators import Range
from qfold.transforms.quantization_scalars import widened

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

STORAGE = (i8, ui8)
"""What integers between two contractions are stored as."""

SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30
"""Between these an f32 product of two scales, and what it multiplies, neither over- nor underflows."""

_LARGEST_CONSTANT = 1 << 24
"""Constants are laid out along an accumulator up to this many elements."""

ADD, MULTIPLY, DIVIDE, MAXIMUM, MINIMUM = "add", "multiply", "divide", "maximum", "minimum"
_KINDS: dict[type[Operation], str] = {
    arith.AddfOp: ADD,
    arith.MulfOp: MULTIPLY,
    arith.DivfOp: DIVIDE,
    arith.MaximumfOp: MAXIMUM,
    arith.MinimumfOp: MINIMUM,
}


@dataclass(frozen=True)
class Step:
    """What is done to each element, with a constant that is laid out along the loops (extent 1 where it does not vary)."""

    kind: str
    constant: Array


@dataclass(frozen=True)
class Steps:
    """What a generic does to each element of the one tensor that is no constant."""

    source: SSAValue
    steps: tuple[Step, ...]

    def split(self) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """(the steps up to the last sum, product or quotient, the bounds after it)."""
        last = max(
            (i + 1 for i, s in enumerate(self.steps) if s.kind not in (MAXIMUM, MINIMUM)), default=0
        )
        return self.steps[:last], self.steps[last:]


def _constant_floats(value: SSAValue) -> Array | None:
    """The values of a float constant, or of a view of a dequantised one; None when `value` is neither."""
    known = constant_array(value)
    if known is not None:
        return known
    owner = value.owner
    if not isinstance(owner, Operation) or prod(shape_of(value)) > _LARGEST_CONSTANT:
        return None
    if isinstance(owner, qmm.DequantizeOp):
        integers, quant = constant_array(owner.q), constant_quant(owner, owner.q)
        if integers is None or quant is None or quant.scale.is_elided:
            return None
        return quant.dequantize(integers)
    if is_view(owner):
        source = _constant_floats(owner.operands[0])
        if source is None:
            return None
        if isinstance(owner, linalg.TransposeOp):
            return source.transpose(permutation_of(owner))
        return source.reshape(shape_of(value))
    return None


def along_loops(array: Array, map_: AffineMap) -> Array | None:
    """A constant that is read through `map_`, laid out along the loops; None for reads that are not plain."""
    loops: list[int] = []
    for d, expression in enumerate(map_.results):
        if isinstance(expression, AffineDimExpr):
            loops.append(expression.position)
        elif isinstance(expression, AffineConstantExpr) and expression.value == 0:
            array = array.take([0], axis=d)
            loops.append(-1)
        else:
            return None
    kept = [p for p in loops if p >= 0]
    if len(set(kept)) != len(kept):
        return None
    array = array.reshape([n for n, p in zip(array.shape, loops, strict=True) if p >= 0])
    array = array.transpose([int(d) for d in np.argsort(kept)])
    extents = [1] * map_.num_dims
    for p, n in zip(sorted(kept), array.shape, strict=True):
        extents[p] = n
    return array.reshape(extents)


def steps_of(op: linalg.GenericOp) -> Steps | None:
    """What `op` computes, when that is sums, products and bounds by constants of one tensor's elements, in their places."""
    if not is_producer(op):
        return None
    block = op.body.block
    *reads, written = indexing_maps(op)
    if not is_identity(written):
        return None

    def constant_of(value: SSAValue) -> Array | None:
        if isinstance(value, BlockArgument):
            array = _constant_floats(op.inputs[value.index])
            return None if array is None else along_loops(array, reads[value.index])
        owner = value.owner
        if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, FloatAttr):
            return np.full([1] * written.num_dims, owner.value.value.data, np.float32)
        return None

    last = block.last_op
    assert last is not None
    value = last.operands[0]
    steps: list[Step] = []
    while not isinstance(value, BlockArgument):
        inner = value.owner
        kind = _KINDS.get(type(inner)) if isinstance(inner, Operation) else None
        if kind is None or not isinstance(inner, Operation):
            return None
        left, right = inner.operands
        constants = (constant_of(left), constant_of(right))
        if constants[1] is not None and constants[0] is None:
            constant, value = constants[1], left
        elif constants[0] is not None and constants[1] is None and kind != DIVIDE:
            constant, value = constants[0], right
        else:
            return None
        steps.append(Step(kind, constant))
    source = op.inputs[value.index]
    if not is_identity(reads[value.index]) or shape_of(source) != shape_of(op.results[0]):
        return None
    return Steps(source, tuple(reversed(steps)))


def replayed(view: Operation, value: SSAValue, builder: TensorBuilder) -> SSAValue:
    """The same transpose or reshape of another tensor of the shape that it had."""
    if isinstance(view, linalg.TransposeOp):
        return builder.transpose(value, permutation_of(view))
    return builder.reshape(value, shape_of(view.results[0]))


def _before(views: Sequence[Operation], array: Array) -> Array | None:
    """A constant that is laid out along the last view, laid out along what the first is a view of."""
    if not views:
        return array
    shape = shape_of(views[-1].results[0])
    if prod(shape) > _LARGEST_CONSTANT:
        return None
    full = np.broadcast_to(array, shape)
    for view in reversed(views):
        if isinstance(view, linalg.TransposeOp):
            full = full.transpose([int(d) for d in np.argsort(permutation_of(view))])
        else:
            full = full.reshape(shape_of(view.operands[0]))
    return compressed(full)


def compressed(array: Array) -> Array:
    """One element along each dimension that the array does not vary along."""
    for d, extent in enumerate(array.shape):
        if extent > 1:
            first = array.take([0], axis=d)
            if (array == first).all():
                array = first
    return array


def without_leading_ones(array: Array) -> Array:
    shape = list(array.shape)
    while shape and shape[0] == 1:
        del shape[0]
    return array.reshape(shape)


@dataclass(frozen=True)
class Accumulated:
    """A float tensor that is `views(scale * accumulator)` in the reals."""

    accumulator: SSAValue
    scale: Floats
    """As many dimensions as the accumulator, extent 1 where it does not vary. f64 holds a product of two f32 exactly."""
    sums: Range
    """What the accumulator may be."""
    views: tuple[Operation, ...] = ()
    """The accumulator's side first."""
    made_of: tuple[Operation, ...] = ()
    """The biases and factors that are in it."""


@dataclass
class AccumulatedValues:
    """The float values of a function that are known to be accumulators times scales."""

    known: dict[SSAValue, Accumulated | None] = field(
        default_factory=dict[SSAValue, "Accumulated | None"]
    )
    _parts: dict[tuple[SSAValue, int], Accumulated | None] = field(
        default_factory=dict[tuple[SSAValue, int], "Accumulated | None"]
    )

    def of(self, value: SSAValue) -> Accumulated | None:
        """`value` as an accumulator, to which biases that are multiples of its scale are added as integers; else None."""
        if value not in self.known:
            owner = value.owner
            found: Accumulated | None = None
            if isinstance(owner, linalg.GenericOp):
                steps = steps_of(owner)
                if steps is not None and steps.steps:
                    found = self.after(owner, steps.source, steps.steps)
            elif isinstance(owner, Operation) and is_view(owner):
                found = self.of(owner.operands[0])
                if found is not None:
                    found = replace(found, views=(*found.views, owner))
            self.known[value] = found
        return self.known[value]

    def after(
        self, op: linalg.GenericOp, source: SSAValue, steps: Sequence[Step]
    ) -> Accumulated | None:
        """`steps`, the first ones of `op`, applied to `source`; None when that does not stay with integers."""
        key = (op.results[0], len(steps))
        if key not in self._parts:
            self._parts[key] = self._after(op, source, steps)
        return self._parts[key]

    def _after(
        self, op: linalg.GenericOp, source: SSAValue, steps: Sequence[Step]
    ) -> Accumulated | None:
        if any(s.kind in (MAXIMUM, MINIMUM) for s in steps):
            return None
        found = self.of(source)
        if found is None and steps and isinstance(source.owner, qmm.DequantizeOp):
            builder = TensorBuilder(InsertPoint.before(op), source.owner.location)
            found = difference(source.owner, builder)
        if found is None:
            return None
        for step in steps:
            constant = _before(found.views, step.constant)
            if constant is None:
                return None
            found = (
                _with_bias(found, constant, op)
                if step.kind == ADD
                else _scaled(found, constant, divide=step.kind == DIVIDE)
            )
            if found is None:
                return None
        return replace(found, made_of=(*found.made_of, op)) if steps else found


def tensor_quant(op: qmm.DequantizeOp) -> QuantAttr | None:
    """The parameters of integers that work between contractions may be done on: of 8 bits, constant, per tensor; else None."""
    quant = constant_quant(op, op.q)
    if quant is None or quant.granularity != "tensor" or quant.storage not in STORAGE:
        return None
    if quant.scale.is_elided or not SMALLEST_SCALE < quant.scales < LARGEST_SCALE:
        return None
    return quant


def difference(op: qmm.DequantizeOp, builder: TensorBuilder) -> Accumulated | None:
    """`q - zero_point` in i32, an accumulator of one product by 1; None unless quantised per tensor, by constants."""
    quant = tensor_quant(op)
    if quant is None:
        return None
    zero = int(quant.zero_points)
    low, high = integer_range(quant.storage)

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        wide = widened(b, e[0], quant.storage)
        return b(arith.SubiOp, wide, b.constant(zero, i32)) if zero else wide

    wide = builder.elementwise([op.q], i32, body)
    scale = quant.scales.astype(np.float64).reshape([1] * len(shape_of(op.q)))
    return Accumulated(wide, scale, Range(low - zero, high - zero))


def _scaled(value: Accumulated, factor: Array, *, divide: bool) -> Accumulated | None:
    if not (np.isfinite(factor).all() and (factor > 0).all()):
        return None
    wide = factor.astype(np.float64)
    return replace(value, scale=value.scale / wide if divide else value.scale * wide)


def _with_bias(value: Accumulated, bias: Array, op: Operation) -> Accumulated | None:
    """The bias in the accumulator, if f32 makes each of its elements of some integer times the scale."""
    shape = np.broadcast_shapes(bias.shape, value.scale.shape)
    scale = np.broadcast_to(value.scale.astype(np.float32), shape)
    bias = np.broadcast_to(bias, shape)
    with np.errstate(all="ignore"):
        steps = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
        low, high = integer_range(i32)
        if not ((steps >= low) & (steps <= high)).all():
            return None
        if not np.array_equal(steps.astype(np.float32) * scale, bias):
            return None
    integers = compressed(steps.astype(np.int32))
    if not integers.any():
        return value
    sums = value.sums + Range(int(integers.min()), int(integers.max()))
    if not sums.fits:
        return None
    builder = TensorBuilder(InsertPoint.before(op), op.location)
    total = builder.elementwise(
        [value.accumulator, builder.constant(without_leading_ones(integers), i32)],
        i32,
        lambda b, e: b(arith.AddiOp, e[0], e[1]),
        shape=shape_of(value.accumulator),
    )
    return replace(value, accumulator=total, sums=sums)


def dequantized_accumulator(value: Accumulated, builder: TensorBuilder) -> SSAValue:
    """`scale * accumulator` in f32: a conversion and a product for each element."""
    scale = compressed(value.scale.astype(np.float32))
    if scale.size == 1:
        factor = float(scale.reshape(()))
        return builder.elementwise(
            [value.accumulator],
            f32,
            lambda b, e: b(arith.MulfOp, b(arith.SIToFPOp, e[0], f32), b.constant(factor, f32)),
        )
    return builder.elementwise(
        [value.accumulator, builder.constant(without_leading_ones(scale), f32)],
        f32,
        lambda b, e: b(arith.MulfOp, b(arith.SIToFPOp, e[0], f32), e[1]),
    )


def requantized_accumulator(
    value: Accumulated, quant: QuantAttr, low: int, high: int, builder: TensorBuilder
) -> SSAValue | None:
    """`clamp(roundeven(accumulator * scale / quant.scale) + zero_point)`, then the views.

    None where scales of rows meet scales of columns, or a quotient is none that f64 holds.
    """
    with np.errstate(all="ignore"):
        multiplier = compressed(value.scale / np.float64(quant.scales))
    along = [d for d, n in enumerate(multiplier.shape) if n != 1]
    if len(along) > 1 or not (np.isfinite(multiplier).all() and (multiplier > 0).all()):
        return None
    builder.location = fuse_locations((builder.location, *(o.location for o in value.made_of)))
    smallest, largest = integer_range(quant.storage)
    op = qmm.RequantizeOp(
        value.accumulator,
        quant.storage,
        multiplier,
        int(quant.zero_points),
        axis=along[0] if along else None,
        low=None if low == smallest else low,
        high=None if high == largest else high,
    )
    result = builder.insert(op).result
    for view in value.views:
        builder.location = view.location
        result = replayed(view, result, builder)
    return result
