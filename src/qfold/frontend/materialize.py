"""Writes constants to the IR, each at most once and where first used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import BytesAttr, IntegerType, LocationAttr, TensorType, f32
from xdsl.ir import Attribute, Block, SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import bit_width, is_float, is_unsigned, numpy_dtype
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.frontend.errors import NodeRef, Unsupported
from qfold.frontend.tensors import CONSTANT_ONLY
from qfold.frontend.values import Array, Carried, Const, Quantized, Value, fits, swaps_last_two
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.locations import fuse_locations, name_location

_LARGE = 1 << 12
"""Constants of this many bytes and more take over the bytes that they were read as."""


class Materializer:
    """Turns values into SSA values at the end of one block."""

    def __init__(self, block: Block):
        self.block = block
        self._constants: dict[Const, SSAValue] = {}
        self._dequantized: dict[tuple[Const, QuantAttr], qmm.DequantizeOp] = {}
        self._integers: dict[Quantized, SSAValue] = {}
        self._carried: dict[Carried, SSAValue] = {}
        self._narrowed: dict[tuple[Const, IntegerType], Const] = {}

    def at(self, location: LocationAttr) -> TensorBuilder:
        """A builder at the end of the block."""
        return TensorBuilder(self.block, location)

    def carried(self, value: Carried, reader: NodeRef) -> SSAValue:
        """Carried integers in the type that the model gives them."""
        source = element_type(value.integers)
        if source == value.type and value.zero_point is None:
            return value.integers
        if value not in self._carried:
            builder = self.at(name_location(reader.name))
            operands = [value.integers]
            if value.zero_point is not None:
                operands.append(builder.constant(value.zero_point.astype(np.float32), f32))

            def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
                x = _converted(b, source, value.type, e[0])
                return b(arith.SubfOp, x, e[1]) if len(e) > 1 else x

            self._carried[value] = builder.elementwise(operands, value.type, body)
        return self._carried[value]

    def narrowed(self, const: Const, target: IntegerType) -> Const | None:
        """The integers of a constant in `target`, or None where they do not fit; each constant is narrowed once."""
        if const.view_of is not None:
            origin = self.narrowed(const.view_of[0], target)
            return None if origin is None else origin.transposed(const.view_of[1])
        if (const, target) not in self._narrowed:
            if not np.isfinite(const.array).all() or not fits(const.array, target):
                return None
            array = const.array.astype(numpy_dtype(target))
            self._narrowed[const, target] = Const(array, target, const.name)
        return self._narrowed[const, target]

    def value(self, value: Value, reader: NodeRef) -> SSAValue:
        """A tensor that holds `value`; `Unsupported` (naming `reader`) for a type that no op computes with."""
        if isinstance(value, SSAValue):
            return value
        if value.type in CONSTANT_ONLY:
            raise Unsupported(
                reader,
                f"the constant '{value.name}' of {value.type}",
                "constants of f16 and bf16 that are cast to f32",
            )
        if isinstance(value, Const):
            return self._constant(value)
        if value.type == f32:
            return self._dequantize(value)
        if value not in self._integers:
            const = Const(value.evaluate(), value.type, value.name)
            self._integers[value] = self._constant(const)
        return self._integers[value]

    def matrix(self, value: Value, reader: NodeRef) -> tuple[SSAValue, bool]:
        """A tensor, and whether its last two dimensions are to be swapped to get `value`.

        Constants whose pending permutation is that swap are given as they were before it.
        """
        const = value.q if isinstance(value, Quantized) else value
        if isinstance(const, SSAValue) or const.view_of is None:
            return self.value(value, reader), False
        permutation = const.view_of[1]
        if not swaps_last_two(permutation):
            return self.value(value, reader), False
        original = (
            value.transposed(permutation, None)
            if isinstance(value, Quantized)
            else const.transposed(permutation)
        )
        return self.value(original, reader), True

    def _constant(self, const: Const) -> SSAValue:
        if const not in self._constants:
            builder = self.at(name_location(const.name))
            raw = _whole_bytes(const.array) if const.array.nbytes >= _LARGE else None
            if raw is None or bit_width(const.type) == 4:
                self._constants[const] = builder.constant(np.asarray(const.array), const.type)
            else:
                weight = WeightAttr(TensorType(const.type, const.shape), BytesAttr(raw))
                self._constants[const] = builder.insert(qmm.ConstantOp(weight)).result
        return self._constants[const]

    def _dequantize(self, value: Quantized) -> SSAValue:
        scale, zero_point = value.parameters()
        quant = QuantAttr.get(
            value.storage,
            scale,
            zero_point,
            axis=value.axis,
            block_size=value.block_size,
        )
        location = _location((value.name, *value.nodes))
        known = self._dequantized.get((value.q, quant))
        if known is None:
            known = qmm.DequantizeOp(self._constant(value.q), quant)
            self._dequantized[value.q, quant] = self.at(location).insert(known)
        else:
            # Another node dequantises the same constant in the same way: one op stands for both.
            known.location = fuse_locations([known.location, location])
        return known.result


def _converted(b: ScalarBuilder, source: Attribute, target: Attribute, x: SSAValue) -> SSAValue:
    """An integer, or a float that holds one, as `target`: f32 or a signed integer that is wider."""
    if source == target:
        return x
    if is_float(source):
        return b(arith.FPToSIOp, x, target)
    if is_float(target):
        return b(arith.UIToFPOp if is_unsigned(source) else arith.SIToFPOp, x, target)
    return b(arith.ExtUIOp if is_unsigned(source) else arith.ExtSIOp, x, target)


def _whole_bytes(array: Array) -> bytes | None:
    """The bytes object that `array` is a view of, if it holds just this array: then they need no copy."""
    base: Any = array.base
    while isinstance(base, np.ndarray):
        base = cast(Any, base).base
    if isinstance(base, bytes) and len(base) == array.nbytes and array.flags.c_contiguous:
        return base
    return None


def _location(names: Sequence[str]) -> LocationAttr:
    return fuse_locations([name_location(name) for name in names])
