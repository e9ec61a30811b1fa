"""Implementations of `tensor`: views of immutable arrays, copies only where elements are written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import EllipsisType

import numpy as np
from xdsl.dialects import tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IntegerType
from xdsl.interpreter import Interpreter, PythonValues, impl, register_impls
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects.contraction import shape_of
from qfold.interpreters.domains import Domain, element_type
from qfold.interpreters.scalar import DomainFunctions
from qfold.interpreters.values import Value, map_parts, scalar_int


def gather(domain: Domain, source: Value, indices: Sequence[Value | int]) -> Value:
    """The elements at `indices`, one per dimension, broadcast against each other. `IndexError` when one is out of range."""
    places = [(i, None) if isinstance(i, int) else domain.index(i) for i in indices]
    exact = [index for index, _ in places]
    for axis, index in enumerate(exact):
        size = source.shape[axis]
        if np.size(index) and (np.min(index) < 0 or np.max(index) >= size):
            raise IndexError(f"index {np.min(index)}..{np.max(index)} of a dimension of {size}")
    result = map_parts(lambda part: np.asarray(part[tuple(exact)]), source)
    for _, unsure in places:
        if unsure is not None:
            result = domain.unknown(result, np.broadcast_to(unsure, result.shape))
    return result


def dynamic_list(static: DenseArrayBase[IntegerType], operands: Sequence[object]) -> list[int]:
    """MLIR's mixed static and dynamic index lists."""
    dynamic = iter(operands)
    return [
        scalar_int(next(dynamic)) if v == DYNAMIC_INDEX else int(v) for v in static.get_values()
    ]


def slices_of(
    shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> tuple[slice | EllipsisType, ...]:
    """A numpy index for offsets, sizes and strides, which must stay inside `shape` (`IndexError`); a view of rank 0 too."""
    slices: list[slice] = []
    for axis, (extent, start, size, step) in enumerate(
        zip(shape, offsets, sizes, strides, strict=True)
    ):
        last = start + (size - 1) * step
        if size and not (0 <= start < extent and 0 <= last < extent):
            raise IndexError(
                f"a slice reaches {start}..{last} of dimension {axis}, which has {extent}"
            )
        stop = last + (1 if step > 0 else -1) if size else start
        slices.append(slice(start, None if stop < 0 else stop, step))
    return (*slices, ...)


@register_impls
class TensorFunctions(DomainFunctions):
    """`tensor`."""

    @impl(tensor.EmptyOp)
    def run_empty(
        self, interpreter: Interpreter, op: tensor.EmptyOp, args: PythonValues
    ) -> PythonValues:
        dynamic = iter(args)
        shape = tuple(scalar_int(next(dynamic)) if d < 0 else d for d in shape_of(op.tensor))
        # One element of garbage seen everywhere: nobody writes to a tensor.
        one = self.domain.allocate((), element_type(op.tensor.type))
        return (map_parts(lambda part: np.broadcast_to(part, shape), one),)

    @impl(tensor.CastOp)
    def run_cast(
        self, interpreter: Interpreter, op: tensor.CastOp, args: PythonValues
    ) -> PythonValues:
        return args

    @impl(tensor.CollapseShapeOp)
    def run_collapse(
        self, interpreter: Interpreter, op: tensor.CollapseShapeOp, args: PythonValues
    ) -> PythonValues:
        return (reshape(args[0], op.result),)

    @impl(tensor.ExpandShapeOp)
    def run_expand(
        self, interpreter: Interpreter, op: tensor.ExpandShapeOp, args: PythonValues
    ) -> PythonValues:
        return (reshape(args[0], op.result),)

    @impl(tensor.ReshapeOp)
    def run_reshape(
        self, interpreter: Interpreter, op: tensor.ReshapeOp, args: PythonValues
    ) -> PythonValues:
        return (reshape(args[0], op.result),)

    @impl(tensor.DimOp)
    def run_dim(
        self, interpreter: Interpreter, op: tensor.DimOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].shape[scalar_int(args[1])],)

    @impl(tensor.ExtractSliceOp)
    def run_extract_slice(
        self, interpreter: Interpreter, op: tensor.ExtractSliceOp, args: PythonValues
    ) -> PythonValues:
        source = args[0]
        dynamic = list(args[1:])
        offsets = dynamic_list(op.static_offsets, dynamic[: len(op.offsets)])
        dynamic = dynamic[len(op.offsets) :]
        sizes = dynamic_list(op.static_sizes, dynamic[: len(op.sizes)])
        strides = dynamic_list(op.static_strides, dynamic[len(op.sizes) :])
        where = slices_of(source.shape, offsets, sizes, strides)
        return (reshape(map_parts(lambda part: part[where], source), op.result),)

    @impl(tensor.InsertSliceOp)
    def run_insert_slice(
        self, interpreter: Interpreter, op: tensor.InsertSliceOp, args: PythonValues
    ) -> PythonValues:
        source, target = args[:2]
        dynamic = list(args[2:])
        offsets = dynamic_list(op.static_offsets, dynamic[: len(op.offsets)])
        dynamic = dynamic[len(op.offsets) :]
        sizes = dynamic_list(op.static_sizes, dynamic[: len(op.sizes)])
        strides = dynamic_list(op.static_strides, dynamic[len(op.sizes) :])
        where = slices_of(target.shape, offsets, sizes, strides)
        result = self.domain.writable(map_parts(np.array, target), element_type(op.result.type))
        part = map_parts(lambda p: p.reshape(sizes), source)
        self.domain.store(map_parts(lambda p: p[where], result), part)
        return (result,)

    @impl(tensor.ConcatOp)
    def run_concat(
        self, interpreter: Interpreter, op: tensor.ConcatOp, args: PythonValues
    ) -> PythonValues:
        result = self.domain.allocate(shape_of(op.result), element_type(op.result.type))
        axis, start = op.dim.value.data, 0
        for part in args:
            where = (slice(None),) * axis + (slice(start, start + part.shape[axis]),)
            self.domain.store(map_parts(lambda p, w=where: p[w], result), part)
            start += part.shape[axis]
        return (result,)

    @impl(tensor.ExtractOp)
    def run_extract(
        self, interpreter: Interpreter, op: tensor.ExtractOp, args: PythonValues
    ) -> PythonValues:
        return (gather(self.domain, args[0], args[1:]),)

    @impl(tensor.InsertOp)
    def run_insert(
        self, interpreter: Interpreter, op: tensor.InsertOp, args: PythonValues
    ) -> PythonValues:
        scalar, target = args[:2]
        where = tuple(scalar_int(i) for i in args[2:])
        result = self.domain.writable(map_parts(np.array, target), element_type(op.result.type))
        self.domain.store(map_parts(lambda p: p[(*where, ...)], result), scalar)
        return (result,)

    @impl(tensor.FromElementsOp)
    def run_from_elements(
        self, interpreter: Interpreter, op: tensor.FromElementsOp, args: PythonValues
    ) -> PythonValues:
        shape = shape_of(op.result)
        result = self.domain.allocate((len(args),), element_type(op.result.type))
        for i, element in enumerate(args):
            self.domain.store(map_parts(lambda p, i=i: p[i, ...], result), element)
        return (map_parts(lambda p: p.reshape(shape), result),)

    @impl(tensor.SplatOp)
    def run_splat(
        self, interpreter: Interpreter, op: tensor.SplatOp, args: PythonValues
    ) -> PythonValues:
        shape = shape_of(op.result)
        return (map_parts(lambda p: np.broadcast_to(p, shape), args[0]),)

    @impl(tensor.PadOp)
    def run_pad(
        self, interpreter: Interpreter, op: tensor.PadOp, args: PythonValues
    ) -> PythonValues:
        source, dynamic = args[0], list(args[1:])
        low = dynamic_list(op.static_low, dynamic[: len(op.low)])
        shape = shape_of(op.result)
        result = self.domain.allocate(shape, element_type(op.result.type))
        terminator = op.region.block.last_op
        if terminator is None or terminator.operands[0].owner is op.region.block:
            raise InterpretationError("tensor.pad with a padding that depends on its position")
        padding = interpreter.run_ssacfg_region(op.region, (0,) * len(shape), "pad")
        self.domain.store(result, padding[0])
        where = tuple(slice(a, a + n) for a, n in zip(low, source.shape, strict=True))
        self.domain.store(map_parts(lambda p: p[where], result), source)
        return (result,)


def reshape(value: Value, result: SSAValue) -> Value:
    """The same elements in the static shape of `result`."""
    return map_parts(partial(np.reshape, shape=shape_of(result)), value)
