"""What the ops that stay in integers mean, on values of any domain: shared by `qmm` (tensors) and `qkernel` (memrefs).

Integers are exact in each domain, and so is everything here that is computed from exact integers; error bounds pass through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import cast

import numpy as np
from xdsl.dialects.builtin import IntegerType, f32, f64, i32, i64
from xdsl.ir import Attribute, SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import type_of
from qfold.dialects.element_types import integer_range, is_unsigned, signless
from qfold.dialects.integer_operands import zero_point_type
from qfold.dialects.qmm.requantization import FLOOR, HALF_ODD
from qfold.interpreters.contractions import Window, as_image, conv, multiply
from qfold.interpreters.domains import Domain
from qfold.interpreters.values import Array, Value, map_parts


@dataclass(frozen=True)
class Integers:
    """Stored integers and what is subtracted from them."""

    storage: IntegerType
    values: Value
    zero_point: Value | None = None
    """Of `zero_point_type(storage)`, broadcasting against the values; None: 0."""

    @staticmethod
    def of(operand: SSAValue, values: Value, zero_point: tuple[Value, ...]) -> Integers:
        """What an op's operand holds, and what stands for the optional zero point."""
        return Integers(storage_of(operand), values, zero_point[0] if zero_point else None)

    def centred(self, domain: Domain) -> Value:
        """The differences, in i32."""
        wide = widened(domain, self.storage, self.values, i32)
        if self.zero_point is None:
            return wide
        zero = widened(domain, zero_point_type(self.storage), self.zero_point, i32)
        return domain.integer_op("arith.subi", i32, wide, zero)

    def reshaped(self, *shape: int) -> Integers:
        """With a zero point of that shape."""
        zero = self.zero_point
        return Integers(
            self.storage,
            self.values,
            None if zero is None else map_parts(lambda part: part.reshape(shape), zero),
        )


def storage_of(operand: SSAValue) -> IntegerType:
    """The element type of integers."""
    return cast(IntegerType, type_of(operand).get_element_type())


def widened(domain: Domain, storage: Attribute, q: Value, target: IntegerType) -> Value:
    """Quantised integers, sign- or zero-extended to `target`."""
    name = "arith.extui" if is_unsigned(storage) else "arith.extsi"
    plain = signless(storage)
    if plain != storage:
        q = domain.reinterpret(storage, plain, q)
    return q if plain == target else domain.convert(name, plain, target, q)


def narrowed(domain: Domain, source: IntegerType, x: Value, storage: IntegerType) -> Value:
    """Integers within the range of `storage`, as `storage`."""
    plain = signless(storage)
    narrow = x if plain == source else domain.convert("arith.trunci", source, plain, x)
    return narrow if plain == storage else domain.reinterpret(plain, storage, narrow)


def clamped(domain: Domain, type_: IntegerType, x: Value, low: int, high: int) -> Value:
    """Signed integers within [low, high]."""
    dtype = domain.dtype(type_)
    x = domain.integer_op("arith.maxsi", type_, x, np.asarray(low, dtype))
    return domain.integer_op("arith.minsi", type_, x, np.asarray(high, dtype))


def quant_matmul(domain: Domain, a: Integers, b: Integers, transpose_b: bool) -> Value:
    """`(a - za) [..., M, K] @ (b - zb) [..., K, N]`; za has rank 0 or one element per row, zb per column."""
    if a.zero_point is not None and a.zero_point.ndim:
        a = a.reshaped(*a.zero_point.shape, 1)
    if transpose_b:
        if b.zero_point is not None and b.zero_point.ndim:
            b = b.reshaped(-1, 1)
        right = map_parts(lambda part: np.swapaxes(part, -1, -2), b.centred(domain))
    else:
        right = b.centred(domain)
    return domain.contract(i32, a.centred(domain), right)


def quant_conv(
    domain: Domain, x: Integers, w: Integers, window: Window, padding: int | None = None
) -> Value:
    """`conv(x - zx, w - zw)`; zw has rank 0 or one element per output channel. `padding`: what it holds, where x has no zx."""
    if w.zero_point is not None and w.zero_point.ndim:
        w = w.reshaped(-1, *(1,) * (w.values.ndim - 1))
    image = x.centred(domain)
    if padding is not None:
        image, window = padded(domain, i32, image, window, padding)
    total = conv(domain, image, w.centred(domain), window, element_type=i32)
    return as_image(total, image, window)


def padded(
    domain: Domain, element_type: IntegerType, x: Value, window: Window, padding: int
) -> tuple[Value, Window]:
    """x [N, C, spatial...] with its padding written out, and the window without."""
    rank = len(window.kernel)
    low, high = window.pads[:rank], window.pads[rank:]
    spatial = [a + n + b for a, n, b in zip(low, x.shape[2:], high, strict=True)]
    whole = domain.allocate((*x.shape[:2], *spatial), element_type)
    domain.store(whole, np.asarray(padding, domain.dtype(element_type)))
    inside = tuple(slice(a, a + n) for a, n in zip(low, x.shape[2:], strict=True))
    domain.store(map_parts(lambda part: part[(..., *inside)], whole), x)
    return whole, replace(window, pads=(0,) * (2 * rank))


def requantize(domain: Domain, op: qmm.RequantizeOp, accumulator: Value) -> Value:
    """`clamp(roundeven(acc * multiplier) + zero_point)`, clamped as a float."""
    low, high = op.clamp
    factor = _along(op, op.multipliers, accumulator.ndim)
    product = domain.convert("arith.sitofp", i32, f64, accumulator)
    product = domain.float_op("arith.mulf", f64, product, factor)
    steps = domain.float_op("math.roundeven", f64, product)
    for name, bound in (("arith.maxnumf", low - op.zero), ("arith.minnumf", high - op.zero)):
        steps = domain.float_op(name, f64, steps, np.asarray(bound, np.float64))
    whole = domain.convert("arith.fptosi", f64, i32, steps)
    whole = domain.integer_op("arith.addi", i32, whole, np.asarray(op.zero, np.int32))
    return narrowed(domain, i32, whole, op.storage)


def requantize_shift(domain: Domain, op: qmm.RequantizeShiftOp, accumulator: Value) -> Value:
    """`clamp((acc * mul + add) >> shift)`: exact in 64 bits, rounded down or to nearest, halves to even or odd."""
    mul, add, shift = (_along(op, p, accumulator.ndim) for p in op.parameters)

    def integer(name: str, *args: Value) -> Value:
        return domain.integer_op(name, i64, *args)

    wide = domain.convert("arith.extsi", i32, i64, accumulator)
    total = integer("arith.addi", integer("arith.muli", wide, mul), add)
    result = integer("arith.shrsi", total, shift)
    if op.rounding.data != FLOOR:
        # To nearest, halves up; then those that went to odd (even) are taken back.
        one = np.asarray(1, np.int64)
        half = integer("arith.shrsi", integer("arith.shli", one, shift), one)
        total = integer("arith.addi", total, half)
        odd = integer("arith.andi", integer("arith.shrsi", total, shift), one)
        if op.rounding.data == HALF_ODD:
            odd = integer("arith.subi", one, odd)
        ties = _along(op, op.tie_widths, accumulator.ndim)
        back = integer("arith.subi", total, integer("arith.muli", odd, ties))
        result = integer("arith.shrsi", back, shift)
    return narrowed(domain, i64, clamped(domain, i64, result, *op.clamp), op.storage)


def _along(op: qmm.RequantizeOp | qmm.RequantizeShiftOp, parameters: Array, rank: int) -> Array:
    """Parameters that broadcast against the accumulator."""
    if parameters.size == 1 or op.axis_index is None:
        return parameters.reshape(())
    shape = [1] * rank
    shape[op.axis_index] = -1
    return parameters.reshape(shape)


def quantize(domain: Domain, storage: IntegerType, x: Value, scale: Value, zero: Value) -> Value:
    """`saturate(roundeven(x / scale) + zero)`; NaN becomes the zero point.

    `scale` and `zero` (i32) broadcast against x. The quotient is clamped to +-2^30 before it becomes an integer.
    """
    steps = domain.float_op("math.roundeven", f32, domain.float_op("arith.divf", f32, x, scale))
    limit = np.asarray(2.0**30, domain.dtype(f32))
    for name, bound in (("arith.minimumf", limit), ("arith.maximumf", -limit)):
        steps = domain.float_op(name, f32, steps, bound)
    whole = domain.integer_op(
        "arith.addi", i32, domain.convert("arith.fptosi", f32, i32, steps), zero
    )
    return narrowed(domain, i32, clamped(domain, i32, whole, *integer_range(storage)), storage)


def dequantize(domain: Domain, storage: Attribute, q: Value, scale: Value, zero: Value) -> Value:
    """`scale * (q - zero)`, the difference (with `zero` i64) taken after widening, then one rounding."""
    difference = domain.integer_op("arith.subi", i64, widened(domain, storage, q, i64), zero)
    return multiply(domain, domain.convert("arith.sitofp", i64, f32, difference), scale)


def dynamic_quantize(
    domain: Domain, storage: IntegerType, x: Value, per_row: bool
) -> tuple[Value, Value, Value]:
    """(integers, scale, zero point) by the range of the data, which is stretched to hold 0."""
    dtype = domain.dtype(f32)
    shape = x.shape
    rows = shape[:-1] if per_row else ()
    flat = map_parts(lambda part: part.reshape(prod(rows), -1), x)
    nothing = np.zeros((), dtype)

    def fold(name: str, values: Value) -> Value:
        return domain.reduce(name, f32, values, (1,), nothing)

    if is_unsigned(storage):
        high, low, steps = fold("arith.maximumf", flat), fold("arith.minimumf", flat), 255.0
    else:
        high = fold("arith.maximumf", domain.float_op("math.absf", f32, flat))
        low, steps = np.zeros(high.shape, dtype), 127.0
    span = domain.float_op("arith.subf", f32, high, low)
    scale = domain.float_op("arith.divf", f32, span, np.asarray(steps, dtype))
    is_zero = domain.compare("arith.cmpf", _EQUAL, high, low)
    scale = domain.select(is_zero, np.ones((), dtype), scale)
    zero: Value = np.zeros(scale.shape, np.int32)
    if is_unsigned(storage):
        places = quantize(
            domain, storage, domain.float_op("arith.negf", f32, low), scale, np.asarray(0, np.int32)
        )
        zero = widened(domain, storage, places, i32)
    q = quantize(domain, storage, flat, scale, zero)

    def of(value: Value, target: tuple[int, ...]) -> Value:
        return map_parts(lambda part: part.reshape(target), value)

    return of(q, shape), of(scale, rows), of(narrowed(domain, i32, zero, storage), rows)


_EQUAL = 1
"""Predicate of `arith.cmpf`: ordered equal."""
