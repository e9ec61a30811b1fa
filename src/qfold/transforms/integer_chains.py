"""Float values between a dequantise and a quantise, computed on integers: layout, bounds, maxima, and accumulators at the start.

Quantising is monotone, so it changes places with everything that picks an element or the larger or smaller of two: the
quantised maximum is the maximum of the quantised. A bound is quantised like any other number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import FloatAttr, LocationAttr, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import integer_range, is_unsigned, signless
from qfold.dialects.qmm import QuantAttr
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.constants import constant_array
from qfold.ir.generics import indexing_maps, on_tensors
from qfold.ir.locations import fuse_locations
from qfold.ir.quantized import constant_quant, is_view
from qfold.transforms.accumulated_values import (
    MAXIMUM,
    MINIMUM,
    Accumulated,
    AccumulatedValues,
    Step,
    difference,
    replayed,
    requantized_accumulator,
    steps_of,
)

_LONGEST = 100
"""Values that a chain may consist of: it is written by recursion."""

_PICKS = (arith.MaximumfOp, arith.MinimumfOp)


def quantized_number(value: float, quant: QuantAttr) -> int:
    """`saturate(roundeven(value / scale) + zero_point)` of one real number, per tensor, without any error."""
    low, high = integer_range(quant.storage)
    if value in (float("inf"), float("-inf")):
        return high if value > 0 else low
    steps = round(Fraction(value) / Fraction(float(quant.scales)))
    return min(max(steps + int(quant.zero_points), low), high)


def _is_exact(value: float, quant: QuantAttr) -> bool:
    """Whether the number is one that the integers stand for."""
    q = quantized_number(value, quant) - int(quant.zero_points)
    return np.float32(q) * quant.scales == np.float32(value)


def _reals(quant: QuantAttr) -> tuple[float, float]:
    """The smallest and the largest number that the integers stand for."""
    least, most = (np.float32(q - int(quant.zero_points)) for q in integer_range(quant.storage))
    return float(least * quant.scales), float(most * quant.scales)


@dataclass(frozen=True)
class Chain:
    """What is asked of a value: its integers by `quant`, clamped to [low, high]."""

    quant: QuantAttr
    low: int
    high: int
    exact: bool = False
    """The value has to be `dequantize` of the integers, and starts at dequantises with these parameters only."""
    picked: bool = False
    """Read by the maximum of a window, in which an infinity is no value but the absence of one."""

    @staticmethod
    def of(quant: QuantAttr, *, exact: bool = False) -> Chain:
        """Over the whole range of the storage type."""
        return Chain(quant, *integer_range(quant.storage), exact)

    def clamped(self, q: int) -> int:
        """`q` within the bounds."""
        return min(max(q, self.low), self.high)

    def bounded(self, step: Step) -> Chain | None:
        """What is asked of the value before a bound by one number, so that the bound need not be computed; None for others."""
        if step.constant.size != 1 or step.kind not in (MAXIMUM, MINIMUM):
            return None
        value = float(step.constant.flat[0])
        least, most = _reals(self.quant)
        if value <= least if step.kind == MAXIMUM else value >= most:
            # No bound to what was dequantised; to anything else it is what saturation does.
            return self
        number = self.number(value)
        if number is None:
            return None
        return replace(self, low=number) if step.kind == MAXIMUM else replace(self, high=number)

    def number(self, value: float) -> int | None:
        """The integer of a constant; None where there is none that means the same."""
        infinite = value in (float("inf"), float("-inf"))
        if isnan(value) or (
            self.exact and not (self.picked if infinite else _is_exact(value, self.quant))
        ):
            return None
        return self.clamped(quantized_number(value, self.quant))


@dataclass
class IntegerChains:
    """Writes the integers of float values, each once."""

    accumulated: AccumulatedValues
    _written: dict[tuple[SSAValue, Chain], SSAValue | None] = field(
        default_factory=dict[tuple[SSAValue, Chain], "SSAValue | None"]
    )

    def quantized(self, op: qmm.QuantizeOp, quant: QuantAttr) -> SSAValue | None:
        """The result of a quantise as the result of work on integers; None where floats are needed."""
        if not any(self._is_integer(start) for start in self._starts(op.x)):
            return None
        return self._write(op.x, Chain.of(quant), InsertPoint.before(op), (op.location,))

    def dequantize_of(self, value: SSAValue) -> qmm.DequantizeOp | None:
        """The first dequantise that `value` is made of by moving and comparing elements."""
        owners = (start.owner for start in self._starts(value))
        return next((o for o in owners if isinstance(o, qmm.DequantizeOp)), None)

    def dequantized(self, value: SSAValue, quant: QuantAttr, before: Operation) -> SSAValue | None:
        """The integers of which `value` is the dequantise; None when it is not known to be one."""
        chain = Chain.of(quant, exact=True)
        return self._write(value, chain, InsertPoint.before(before), ())

    def _is_integer(self, start: SSAValue) -> bool:
        """Whether a start is an accumulator, or dequantised at run time: without any such there is nothing to gain."""
        op = start.owner
        if isinstance(op, qmm.DequantizeOp):
            return constant_array(op.q) is None and constant_quant(op, op.q) is not None
        return self._accumulated(start) is not None

    def _accumulated(self, value: SSAValue) -> Accumulated | None:
        """The accumulator of a value, or of one of which it is bounds."""
        found = self.accumulated.of(value)
        if found is None and isinstance(value.owner, linalg.GenericOp):
            steps = steps_of(value.owner)
            if steps is not None and (first := steps.split()[0]):
                found = self.accumulated.after(value.owner, steps.source, first)
        return found

    def _starts(self, value: SSAValue) -> list[SSAValue]:
        """What `value` is made of by moving, bounding and comparing elements; nothing where those are too many."""
        starts: list[SSAValue] = []
        seen: set[SSAValue] = set()
        stack = [value]
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if len(seen) > _LONGEST:
                return []
            sources = [] if self._accumulated(value) is not None else _sources(value)
            if not sources:
                starts.append(value)
            stack.extend(reversed(sources))
        return starts

    def _write(
        self, value: SSAValue, chain: Chain, at: InsertPoint, outer: tuple[LocationAttr, ...]
    ) -> SSAValue | None:
        key = (value, chain)
        if key not in self._written:
            self._written[key] = self._written_now(value, chain, at, outer)
        return self._written[key]

    def _written_now(
        self, value: SSAValue, chain: Chain, at: InsertPoint, outer: tuple[LocationAttr, ...]
    ) -> SSAValue | None:
        op = value.owner
        if not isinstance(op, Operation):
            return None
        storage = chain.quant.storage
        builder = TensorBuilder(at, fuse_locations((*outer, op.location)))
        known = constant_array(value)
        if known is not None:
            return self._constant(known, chain, builder)
        if not chain.exact and (start := self.accumulated.of(value)) is not None:
            written = requantized_accumulator(start, chain.quant, chain.low, chain.high, builder)
            if written is not None:
                return written
        match op:
            case qmm.DequantizeOp():
                return self._dequantize(op, chain, builder)
            case tensor.EmptyOp():
                return builder.empty(shape_of(value), storage)
            case linalg.FillOp():
                return self._fill(op, chain, builder)
            case tensor.InsertSliceOp() | tensor.ExtractSliceOp():
                return self._slice(op, chain, at, outer)
            case linalg.GenericOp():
                return self._generic(op, chain, at, outer)
            case _ if is_view(op):
                source = self._write(op.operands[0], chain, at, outer)
                builder.location = op.location
                return None if source is None else replayed(op, source, builder)
            case _:
                return None

    def _constant(
        self, known: npt.NDArray[Any], chain: Chain, builder: TensorBuilder
    ) -> SSAValue | None:
        if known.dtype != np.float32 or chain.exact:
            return None
        integers = np.clip(chain.quant.quantize(known), chain.low, chain.high)
        return builder.constant(integers, chain.quant.storage)

    def _dequantize(
        self, op: qmm.DequantizeOp, chain: Chain, builder: TensorBuilder
    ) -> SSAValue | None:
        quant = constant_quant(op, op.q)
        if quant is None:
            return None
        if quant != chain.quant:
            # Of other parameters: the difference from the zero point is an accumulator.
            value = None if chain.exact else difference(op, builder)
            if value is None:
                return None
            return requantized_accumulator(value, chain.quant, chain.low, chain.high, builder)
        integers: SSAValue = op.q
        if (chain.low, chain.high) == integer_range(chain.quant.storage) or 0 in shape_of(integers):
            return integers
        return builder.elementwise(
            [integers], chain.quant.storage, lambda b, e: _clamped(b, e[0], chain)
        )

    def _fill(self, op: linalg.FillOp, chain: Chain, builder: TensorBuilder) -> SSAValue | None:
        scalar = op.inputs[0].owner
        if not isinstance(scalar, arith.ConstantOp) or not isinstance(scalar.value, FloatAttr):
            return None
        number = chain.number(scalar.value.value.data)
        if number is None:
            return None
        return builder.fill(shape_of(op.results[0]), chain.quant.storage, number)

    def _slice(
        self,
        op: tensor.InsertSliceOp | tensor.ExtractSliceOp,
        chain: Chain,
        at: InsertPoint,
        outer: tuple[LocationAttr, ...],
    ) -> SSAValue | None:
        if op.offsets or op.sizes or op.strides:
            return None
        source = self._write(op.source, chain, at, outer)
        if source is None:
            return None
        builder = TensorBuilder(at, op.location)
        offsets, sizes, strides = (
            [int(v) for v in a.get_values()]
            for a in (op.static_offsets, op.static_sizes, op.static_strides)
        )
        if isinstance(op, tensor.InsertSliceOp):
            into = self._write(op.dest, chain, at, outer)
            same_rank = len(shape_of(op.source)) == len(shape_of(op.result))
            if into is None or not same_rank:
                return None
            return builder.insert_slice(source, into, offsets, strides)
        if tuple(sizes) != shape_of(op.result):
            return None
        return builder.slice(source, offsets, sizes, strides)

    def _generic(
        self,
        op: linalg.GenericOp,
        chain: Chain,
        at: InsertPoint,
        outer: tuple[LocationAttr, ...],
    ) -> SSAValue | None:
        """Bounds of an accumulator and its biases, or picks among elements."""
        steps = steps_of(op)
        if steps is not None:
            first, bounds = steps.split()
            inner: Chain | None = chain
            for step in reversed(bounds):
                inner = None if inner is None else inner.bounded(step)
            if inner is not None:
                here = (*outer, op.location)
                if not first:
                    written = self._write(steps.source, inner, at, here)
                    if written is not None:
                        return written
                elif not chain.exact:
                    start = self.accumulated.after(op, steps.source, first)
                    builder = TensorBuilder(at, fuse_locations(here))
                    if start is not None:
                        return requantized_accumulator(
                            start, inner.quant, inner.low, inner.high, builder
                        )
        return self._picks(op, chain, at, outer) if picks_elements(op) else None

    def _picks(
        self,
        op: linalg.GenericOp,
        chain: Chain,
        at: InsertPoint,
        outer: tuple[LocationAttr, ...],
    ) -> SSAValue | None:
        """The same loops over integers, with integer maxima and minima."""
        block = op.body.block
        storage = chain.quant.storage
        kinds = [str(t.data) for t in op.get_iterator_types()]
        inner = replace(chain, picked="reduction" in kinds)
        values: list[SSAValue] = []
        builder = TensorBuilder(at, op.location)
        for value, argument in zip((*op.inputs, *op.outputs), block.args, strict=True):
            if argument.first_use is not None:
                written = self._write(value, inner, at, outer)
                if written is None:
                    return None
            else:
                # Of its shape only: it bounds a loop, or is written to.
                written = builder.empty(shape_of(value), storage)
            values.append(written)
        numbers: dict[SSAValue, int] = {}
        for inside in block.ops:
            if isinstance(inside, arith.ConstantOp):
                assert isinstance(inside.value, FloatAttr)
                number = inner.number(inside.value.value.data)
                if number is None:
                    return None
                numbers[inside.result] = number
        maps = indexing_maps(op)

        def body(b: ScalarBuilder, elements: list[SSAValue], accumulator: SSAValue) -> SSAValue:
            known: dict[SSAValue, SSAValue] = dict(
                zip(block.args, (*elements, accumulator), strict=True)
            )
            for inside in block.ops:
                if isinstance(inside, arith.ConstantOp):
                    known[inside.result] = b.constant(numbers[inside.result], signless(storage))
                elif isinstance(inside, _PICKS):
                    largest = isinstance(inside, arith.MaximumfOp)
                    pair = (known[inside.lhs], known[inside.rhs])
                    known[inside.result] = b(_pick(chain.quant, largest), *pair)
            last = block.last_op
            assert last is not None
            return known[last.operands[0]]

        return builder.generic(
            list(zip(values[:-1], maps[:-1], strict=True)),
            values[-1],
            maps[-1],
            kinds,
            lambda b, e, acc: body(b, list(e), acc),
        )


def _sources(value: SSAValue) -> list[SSAValue]:
    """What a movement, a bound or a maximum of tensors reads; nothing for other ops."""
    op = value.owner
    if not isinstance(op, Operation) or not on_tensors(op):
        return []
    if is_view(op) or isinstance(op, tensor.ExtractSliceOp):
        return [op.operands[0]]
    if isinstance(op, tensor.InsertSliceOp):
        return [op.source, op.dest]
    if isinstance(op, linalg.GenericOp) and picks_elements(op):
        values = [*op.inputs, *op.outputs]
        return [
            v for v, a in zip(values, op.body.block.args, strict=True) if a.first_use is not None
        ]
    return []


def _pick(quant: QuantAttr, largest: bool) -> Callable[..., Operation]:
    if is_unsigned(quant.storage):
        return arith.MaxUIOp if largest else arith.MinUIOp
    return arith.MaxSIOp if largest else arith.MinSIOp


def _clamped(b: ScalarBuilder, q: SSAValue, chain: Chain) -> SSAValue:
    low, high = integer_range(chain.quant.storage)
    type_ = signless(chain.quant.storage)
    if chain.low > low:
        q = b(_pick(chain.quant, True), q, b.constant(chain.low, type_))
    if chain.high < high:
        q = b(_pick(chain.quant, False), q, b.constant(chain.high, type_))
    return q


def picks_elements(op: linalg.GenericOp) -> bool:
    """Whether each result of the body is one of the elements that it reads, or the larger or smaller of such."""
    block = op.body.block
    for inside in block.ops:
        if isinstance(inside, arith.ConstantOp):
            if not isinstance(inside.value, FloatAttr):
                return False
        elif not isinstance(inside, (*_PICKS, linalg.YieldOp)):
            return False
        for operand in inside.operands:
            outside = operand.owner
            if not isinstance(operand, BlockArgument) and (
                not isinstance(outside, Operation) or outside.parent is not block
            ):
                return False
    values = [*op.inputs, *op.outputs]
    return on_tensors(op) and all(
        element_type(v) == f32
        for v, a in zip(values, block.args, strict=True)
        if a.first_use is not None
    )
