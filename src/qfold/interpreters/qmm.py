"""Implementations of `qmm`, on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, f32, i32
from xdsl.interpreter import (
    Interpreter,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation

from qfold.dialects import qmm
from qfold.dialects.contraction import ints, weight_bias, window_of
from qfold.dialects.element_types import i64
from qfold.interpreters.contractions import (
    Dequant,
    Window,
    as_image,
    conv,
    dequant_conv,
    dequant_matmul,
    epilogue,
    row_sum,
    swap_last,
    window_sum,
)
from qfold.interpreters.domains import element_type
from qfold.interpreters.integers import (
    Integers,
    dequantize,
    dynamic_quantize,
    quant_conv,
    quant_matmul,
    quantize,
    requantize,
    requantize_shift,
    storage_of,
    widened,
)
from qfold.interpreters.scalar import DomainFunctions
from qfold.interpreters.values import Array, Value, map_parts

_T = TypeVar("_T")


def groups_of(op: IRDLOperation, args: Sequence[_T]) -> dict[str, tuple[_T, ...]]:
    """What stands for an op's operands, by the name of their definition; optional ones that are absent are empty."""
    names = [name for name, _ in op.get_irdl_definition().operands]
    sizes = [1] * len(names)
    if "operandSegmentSizes" in op.properties:
        segments = op.properties["operandSegmentSizes"]
        assert isinstance(segments, DenseArrayBase)
        sizes = [int(n) for n in segments.get_values()]
    groups: dict[str, tuple[_T, ...]] = {}
    start = 0
    for name, size in zip(names, sizes, strict=True):
        groups[name] = tuple(args[start : start + size])
        start += size
    return groups


def first(values: tuple[Value, ...]) -> Value | None:
    """The value of an optional operand."""
    return values[0] if values else None


def window_from(op: IRDLOperation, kernel: tuple[int, ...]) -> Window:
    return Window(kernel, *window_of(op))


@register_impls
class QmmFunctions(DomainFunctions):
    """`qmm`."""

    @impl_terminator(qmm.YieldOp)
    def run_yield(
        self, interpreter: Interpreter, op: qmm.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()

    @impl(qmm.ConstantOp)
    def run_constant(
        self, interpreter: Interpreter, op: qmm.ConstantOp, args: PythonValues
    ) -> PythonValues:
        return (self.domain.constant(op.value.array(), op.value.element_type),)

    def _parameters(
        self, op: qmm.QuantizeOp | qmm.DequantizeOp, args: PythonValues, storage: Attribute
    ) -> tuple[Value, Value, Value]:
        """(data, scale, zero point as i64), all broadcasting against the data."""
        groups = groups_of(op, args)
        (data,) = groups["x" if isinstance(op, qmm.QuantizeOp) else "q"]
        if op.quant is not None:
            scale, zero = op.quant.broadcast(data.shape)
            return data, self.domain.constant(scale, f32), zero.astype(np.int64)
        scale = groups["runtime_scale"][0]
        zeros = first(groups["runtime_zero_point"])
        zero = np.asarray(0) if zeros is None else widened(self.domain, storage, zeros, i64)
        if scale.ndim:
            scale = map_parts(lambda part: part[..., None], scale)
            zero = map_parts(lambda part: part[..., None], zero)
        return data, scale, zero

    @impl(qmm.QuantizeOp)
    def run_quantize(
        self, interpreter: Interpreter, op: qmm.QuantizeOp, args: PythonValues
    ) -> PythonValues:
        storage = storage_of(op.result)
        x, scale, zero = self._parameters(op, args, storage)
        zero = self.domain.convert("arith.trunci", i64, i32, zero)
        return (quantize(self.domain, storage, x, scale, zero),)

    @impl(qmm.DequantizeOp)
    def run_dequantize(
        self, interpreter: Interpreter, op: qmm.DequantizeOp, args: PythonValues
    ) -> PythonValues:
        storage = element_type(op.q.type)
        q, scale, zero = self._parameters(op, args, storage)
        return (dequantize(self.domain, storage, q, scale, zero),)

    @impl(qmm.MatmulOp)
    def run_matmul(
        self, interpreter: Interpreter, op: qmm.MatmulOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (a,), (b,) = groups["a"], groups["b"]
        a = a if op.transpose_a is None else swap_last(a)
        b = b if op.transpose_b is None else swap_last(b)
        total = self.domain.contract(f32, a, b)
        return (epilogue(interpreter, op, total, groups["epilogue_operands"]),)

    @impl(qmm.DequantMatmulOp)
    def run_dequant_matmul(
        self, interpreter: Interpreter, op: qmm.DequantMatmulOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (a,) = groups["a"]
        total = dequant_matmul(
            self.domain,
            a,
            matmul_weight(
                op.weight.array(),
                op.quant.scales,
                None if op.quant.is_symmetric else op.quant.zero_points,
                op.transpose_b is not None,
                op.quant.block_size,
            ),
            op.hoisted is not None,
            first(groups["row_sum"]),
            bias=weight_bias(op),
        )
        return (epilogue(interpreter, op, total, groups["epilogue_operands"]),)

    @impl(qmm.RowSumOp)
    def run_row_sum(
        self, interpreter: Interpreter, op: qmm.RowSumOp, args: PythonValues
    ) -> PythonValues:
        return (row_sum(self.domain, args[0], op.block),)

    @impl(qmm.ConvOp)
    def run_conv(
        self, interpreter: Interpreter, op: qmm.ConvOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (x,), (w,) = groups["x"], groups["w"]
        window = window_from(op, w.shape[2:])
        total = as_image(conv(self.domain, x, w, window), x, window)
        return (epilogue(interpreter, op, total, groups["epilogue_operands"]),)

    @impl(qmm.DequantConvOp)
    def run_dequant_conv(
        self, interpreter: Interpreter, op: qmm.DequantConvOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (x,) = groups["x"]
        weight = op.weight.array()
        scale, zero = op.quant.broadcast(weight.shape)
        total = dequant_conv(
            self.domain,
            x,
            Dequant(weight, scale, None if op.quant.is_symmetric else zero),
            window_from(op, weight.shape[2:]),
            op.hoisted is not None,
            first(groups["window_sum"]),
        )
        return (epilogue(interpreter, op, total, groups["epilogue_operands"]),)

    @impl(qmm.WindowSumOp)
    def run_window_sum(
        self, interpreter: Interpreter, op: qmm.WindowSumOp, args: PythonValues
    ) -> PythonValues:
        return (window_sum(self.domain, args[0], window_from(op, ints(op.kernel_shape))),)

    @impl(qmm.QuantMatmulOp)
    def run_quant_matmul(
        self, interpreter: Interpreter, op: qmm.QuantMatmulOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        total = quant_matmul(
            self.domain,
            Integers.of(op.a, groups["a"][0], groups["a_zero_point"]),
            Integers.of(op.b, groups["b"][0], groups["b_zero_point"]),
            op.transpose_b is not None,
        )
        return (epilogue(interpreter, op, total, groups["epilogue_operands"]),)

    @impl(qmm.QuantConvOp)
    def run_quant_conv(
        self, interpreter: Interpreter, op: qmm.QuantConvOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (x,), (w,) = groups["x"], groups["w"]
        total = quant_conv(
            self.domain,
            Integers.of(op.x, x, groups["x_zero_point"]),
            Integers.of(op.w, w, groups["w_zero_point"]),
            window_from(op, w.shape[2:]),
            op.padding,
        )
        return (epilogue(interpreter, op, total, groups["epilogue_operands"]),)

    @impl(qmm.RequantizeOp)
    def run_requantize(
        self, interpreter: Interpreter, op: qmm.RequantizeOp, args: PythonValues
    ) -> PythonValues:
        return (requantize(self.domain, op, args[0]),)

    @impl(qmm.RequantizeShiftOp)
    def run_requantize_shift(
        self, interpreter: Interpreter, op: qmm.RequantizeShiftOp, args: PythonValues
    ) -> PythonValues:
        return (requantize_shift(self.domain, op, args[0]),)

    @impl(qmm.DynamicQuantizeOp)
    def run_dynamic_quantize(
        self, interpreter: Interpreter, op: qmm.DynamicQuantizeOp, args: PythonValues
    ) -> PythonValues:
        storage = storage_of(op.result)
        return dynamic_quantize(self.domain, storage, args[0], op.per_row is not None)

    @impl(qmm.DequantGatherOp)
    def run_dequant_gather(
        self, interpreter: Interpreter, op: qmm.DequantGatherOp, args: PythonValues
    ) -> PythonValues:
        table = op.weight.array()
        numbers, unsure = self.domain.index(args[0])
        rows = row_numbers(numbers, table.shape[0])

        def pick(parameters: Array) -> Array:
            """The parameters of those rows: as they are when all rows share them."""
            if parameters.ndim and parameters.shape[0] == table.shape[0]:
                return parameters[rows]
            return parameters.reshape(parameters.shape[1:]) if parameters.ndim else parameters

        scale, zero = op.quant.broadcast(table.shape)
        real = dequantize(
            self.domain,
            op.weight.element_type,
            table[rows],
            self.domain.constant(pick(scale), f32),
            pick(zero).astype(np.int64),
        )
        if unsure is not None:
            unsure = unsure.reshape(unsure.shape + (1,) * (real.ndim - unsure.ndim))
            real = self.domain.unknown(real, unsure)
        return (real,)


def row_numbers(indices: Array, size: int) -> Array:
    """ONNX Gather indices: negative ones count from the end. `IndexError` when one is out of range."""
    if indices.size and (indices.min() < -size or indices.max() >= size):
        raise IndexError(f"index {indices.min()}..{indices.max()} of a table of {size} rows")
    return np.where(indices < 0, indices + size, indices)


def matmul_weight(
    weight: Array, scale: Array, zero_point: Array | None, transposed: bool, block: int | None
) -> Dequant:
    """The weight as [K, N]; per tensor and per axis (along N) parameters broadcast, per block they are [blocks, N]."""
    if transposed:
        weight = weight.T
        if block is not None:
            scale = scale.T
            zero_point = None if zero_point is None else zero_point.T
    return Dequant(weight, scale, zero_point, block)
