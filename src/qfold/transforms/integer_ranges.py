"""Between which numbers the elements of integer tensors lie: interval arithmetic back to contractions and constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import IntegerAttr, IntegerType, UnrealizedConversionCastOp
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import integer_range, is_unsigned
from qfold.ir.builder import element_type
from qfold.ir.constants import constant_array
from qfold.ir.generics import extents_of, is_parallel
from qfold.ir.quantized import is_view
from qfold.transforms.qmm_check_accumulators import Contraction, Range, accumulator_of


def range_of_type(type_: Attribute) -> Range:
    """Whatever an integer type holds; signless ones have a sign."""
    return Range(*integer_range(type_))


def _of_corners(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """An op that is monotone in each operand, on ranges."""

    def apply(a: Range, b: Range) -> Range:
        corners = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return Range(min(corners), max(corners))

    return apply


_OPS: dict[type[Operation], Callable[[Range, Range], Range]] = {
    arith.AddiOp: _of_corners(lambda x, y: x + y),
    arith.SubiOp: _of_corners(lambda x, y: x - y),
    arith.MuliOp: _of_corners(lambda x, y: x * y),
    arith.MaxSIOp: _of_corners(max),
    arith.MinSIOp: _of_corners(min),
}


def _union(a: Range | None, b: Range | None) -> Range | None:
    if a is None or b is None:
        return b if a is None else a
    return Range(min(a.low, b.low), max(a.high, b.high))


@dataclass
class IntegerRanges:
    """Ranges of tensors of integers, each found once."""

    _known: dict[SSAValue, Range | None] = field(default_factory=dict[SSAValue, "Range | None"])

    def of(self, value: SSAValue) -> Range:
        """The range of a tensor's elements; all of its type where nothing better is known."""
        found = self._of(value)
        return range_of_type(element_type(value)) if found is None else found

    def _of(self, value: SSAValue) -> Range | None:
        """None for what is written before it is read."""
        if value not in self._known:
            # Straight-line code has no cycles: what is not found yet is asked for further up.
            self._known[value] = self._found(value)
        return self._known[value]

    def _found(self, value: SSAValue) -> Range | None:
        whole = range_of_type(element_type(value))
        array = constant_array(value)
        if array is not None:
            return Range(int(array.min()), int(array.max())) if array.size else Range(0, 0)
        op = value.owner
        match op:
            case tensor.EmptyOp():
                return None
            case tensor.InsertSliceOp():
                return _union(self._of(op.source), self._of(op.dest))
            case tensor.ExtractSliceOp():
                return self._of(op.source)
            case linalg.FillOp():
                # The scalar of an unsigned tensor is the signless integer of the same bits.
                scalar = None if whole.low == 0 else _scalar(op.inputs[0])
                return scalar or whole
            case linalg.GenericOp() if is_parallel(op) and len(op.results) == 1:
                inputs = [_of_integers(v, self.of) for v in op.inputs]
                return _of_block(op.body.block, [*inputs, None]) or whole
            case linalg.GenericOp() if len(op.results) == 1:
                return self._of_sum(op) or whole
            case qmm.QuantMatmulOp() | qmm.QuantConvOp():
                return self._of_contraction(op) or whole
            case Operation() if is_view(op):
                return self._of(op.operands[0])
            case _:
                return whole

    def _of_sum(self, op: linalg.GenericOp) -> Range | None:
        """Of a reduction that adds integers up, such as a pooling's."""
        block = op.body.block
        last, accumulator = block.last_op, block.args[-1]
        total = None if last is None else last.operands[0].owner
        start = self._of(op.outputs[0])
        if not isinstance(total, arith.AddiOp) or start is None or not accumulator.has_one_use():
            return None
        if accumulator not in total.operands:
            return None
        inputs = [_of_integers(v, self.of) for v in op.inputs]
        one = _of_block(block, [*inputs, Range(0, 0)])
        count = prod(extents_of(op)) // max(prod(shape_of(op.results[0])), 1)
        if one is None:
            return None
        sums = Range(min(count * one.low, 0), max(count * one.high, 0)) + start
        return sums if sums.fits else None

    def _of_contraction(self, op: Contraction) -> Range | None:
        sums = accumulator_of(op).sums
        if not sums.fits:
            return None
        block = op.epilogue_block
        if block is None:
            return sums
        operands = [_of_integers(v, self.of) for v in op.epilogue_operands]
        return _of_block(block, [sums, *operands])


def _of_integers(value: SSAValue, of: Callable[[SSAValue], Range]) -> Range | None:
    return of(value) if isinstance(element_type(value), IntegerType) else None


def _scalar(value: SSAValue) -> Range | None:
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        number = cast("IntegerAttr[Any]", owner.value).value.data
        return Range(number, number)
    return None


def _of_block(block: Block, arguments: list[Range | None]) -> Range | None:
    """The range of what a body yields; None: not known."""
    known: dict[SSAValue, Range] = {}
    for argument, range_ in zip(block.args, arguments, strict=True):
        if range_ is not None:
            known[argument] = range_

    def of(value: SSAValue) -> Range | None:
        found = known.get(value) or _scalar(value)
        type_: Attribute = value.type
        if found is None and isinstance(type_, IntegerType):
            return range_of_type(cast(Attribute, type_))
        return found

    for op in block.ops:
        found: Range | None = None
        operands = [of(v) for v in op.operands]
        first = operands[0] if operands else None
        match op:
            case arith.ExtUIOp():
                # The number of an unsigned element, which is cast to a signless one before.
                source = op.input.owner
                if isinstance(source, UnrealizedConversionCastOp):
                    found = of(source.operands[0])
            case arith.ExtSIOp() | arith.TruncIOp():
                found = first
            case UnrealizedConversionCastOp():
                unsigned = any(is_unsigned(v.type) for v in (*op.operands, *op.results))
                found = None if unsigned else first
            case arith.SelectOp():
                found = _union(operands[1], operands[2]) if all(operands[1:]) else None
            case _ if type(op) in _OPS and None not in operands:
                left, right = cast("list[Range]", operands)
                found = _OPS[type(op)](left, right)
            case _:
                continue
        (result,) = op.results
        type_: Attribute = result.type
        if found is not None and isinstance(type_, IntegerType):
            whole = range_of_type(cast(Attribute, type_))
            if whole.low <= found.low and found.high <= whole.high:
                known[result] = found
    last = block.last_op
    assert last is not None
    value = last.operands[0]
    if isinstance(value, BlockArgument) and value not in known:
        return None
    return of(value)
