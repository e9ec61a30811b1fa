"""Implementations of `memref`: buffers are numpy arrays, views of them numpy views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, MemRefType
from xdsl.interpreter import Interpreter, PythonValues, impl, register_impls
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import bit_width
from qfold.interpreters.domains import Domain, element_type
from qfold.interpreters.scalar import DomainFunctions
from qfold.interpreters.structured import dynamic_list, gather, slices_of
from qfold.interpreters.values import Array, Bounded, ByteBuffer, Value, map_parts, scalar_int
from qfold.ir.constants import constant_array
from qfold.ir.globals import global_weight


def global_array(op: memref.GlobalOp) -> Array:
    """The contents of a constant `memref.global`, in its shape; read-only. `VerifyException` when it has none."""
    initial = op.properties["initial_value"]
    if isinstance(initial, DenseIntOrFPElementsAttr):
        array = constant_array(arith.ConstantOp(cast(Any, initial)).result)
        assert array is not None
    else:
        array = global_weight(op).array()
    view = array.reshape(op.type.get_shape()).view()
    view.flags.writeable = False
    return view


def view_as(part: Array, shape: tuple[int, ...]) -> Array:
    """`part` in another shape, never a copy."""
    view = part.reshape(shape)
    if view.size and not np.may_share_memory(view, part):
        raise ValueError(
            f"strides {part.strides} of shape {part.shape} cannot be seen as {shape} without a copy"
        )
    return view


def bytes_behind(domain: Domain, source: Value | ByteBuffer) -> ByteBuffer:
    """The buffer that `memref.view` reads: arguments that hold plain bytes become one where the domain's numbers fit."""
    if isinstance(source, ByteBuffer):
        return source
    if isinstance(source, Bounded) or domain.name != "exact":
        raise InterpretationError(
            f"memref.view in the domain {domain.name} takes a buffer made by Domain.byte_buffer"
        )
    return ByteBuffer.over(source)


@register_impls
class MemRefFunctions(DomainFunctions):
    """`memref`."""

    @impl(memref.GlobalOp)
    def run_global(
        self, interpreter: Interpreter, op: memref.GlobalOp, args: PythonValues
    ) -> PythonValues:
        return ()

    @impl(memref.GetGlobalOp)
    def run_get_global(
        self, interpreter: Interpreter, op: memref.GetGlobalOp, args: PythonValues
    ) -> PythonValues:
        def load() -> Value:
            definition = interpreter.get_op_for_symbol(op.name_)
            if not isinstance(definition, memref.GlobalOp):
                raise InterpretationError(f"{op.name_} is not a memref.global")
            return self.domain.constant(global_array(definition), element_type(definition.type))

        return (interpreter.get_data(MemRefFunctions, op.name_.string_value(), load),)

    @impl(memref.AllocOp)
    def run_alloc(
        self, interpreter: Interpreter, op: memref.AllocOp, args: PythonValues
    ) -> PythonValues:
        return (self._allocate(op.memref, args),)

    @impl(memref.AllocaOp)
    def run_alloca(
        self, interpreter: Interpreter, op: memref.AllocaOp, args: PythonValues
    ) -> PythonValues:
        return (self._allocate(op.memref, args),)

    def _allocate(self, result: SSAValue, sizes: PythonValues) -> Value | ByteBuffer:
        dynamic = iter(sizes)
        shape = tuple(scalar_int(next(dynamic)) if d < 0 else d for d in shape_of(result))
        if any(isinstance(use.operation, memref.ViewOp) for use in result.uses):
            return self.domain.byte_buffer(shape[0])
        return self.domain.allocate(shape, element_type(result.type))

    @impl(memref.DeallocOp)
    def run_dealloc(
        self, interpreter: Interpreter, op: memref.DeallocOp, args: PythonValues
    ) -> PythonValues:
        return ()

    @impl(memref.CastOp)
    def run_cast(
        self, interpreter: Interpreter, op: memref.CastOp, args: PythonValues
    ) -> PythonValues:
        return args

    @impl(memref.MemorySpaceCastOp)
    def run_space_cast(
        self, interpreter: Interpreter, op: memref.MemorySpaceCastOp, args: PythonValues
    ) -> PythonValues:
        return args

    @impl(memref.DimOp)
    def run_dim(
        self, interpreter: Interpreter, op: memref.DimOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].shape[scalar_int(args[1])],)

    @impl(memref.CollapseShapeOp)
    def run_collapse(
        self, interpreter: Interpreter, op: memref.CollapseShapeOp, args: PythonValues
    ) -> PythonValues:
        return (self._reshape(op, args[0]),)

    @impl(memref.ExpandShapeOp)
    def run_expand(
        self, interpreter: Interpreter, op: memref.ExpandShapeOp, args: PythonValues
    ) -> PythonValues:
        return (self._reshape(op, args[0]),)

    def _reshape(self, op: Operation, source: Value) -> Value:
        shape = shape_of(op.results[0])
        return map_parts(lambda part: view_as(part, shape), source)

    @impl(memref.SubviewOp)
    def run_subview(
        self, interpreter: Interpreter, op: memref.SubviewOp, args: PythonValues
    ) -> PythonValues:
        source, dynamic = args[0], list(args[1:])
        offsets = dynamic_list(op.static_offsets, dynamic[: len(op.offsets)])
        dynamic = dynamic[len(op.offsets) :]
        sizes = dynamic_list(op.static_sizes, dynamic[: len(op.sizes)])
        strides = dynamic_list(op.static_strides, dynamic[len(op.sizes) :])
        where = slices_of(source.shape, offsets, sizes, strides)
        shape = shape_of(op.result)
        return (map_parts(lambda part: view_as(part[where], shape), source),)

    @impl(memref.ReinterpretCastOp)
    def run_reinterpret_cast(
        self, interpreter: Interpreter, op: memref.ReinterpretCastOp, args: PythonValues
    ) -> PythonValues:
        source, dynamic = args[0], list(args[1:])
        (offset,) = dynamic_list(op.static_offsets, dynamic[: len(op.offsets)])
        dynamic = dynamic[len(op.offsets) :]
        sizes = dynamic_list(op.static_sizes, dynamic[: len(op.sizes)])
        strides = dynamic_list(op.static_strides, dynamic[len(op.sizes) :])
        source_type = cast(MemRefType[Attribute], op.source.type)
        start, layout = source_type.get_offset(), source_type.get_strides()
        if start is None or layout is None:
            raise InterpretationError(
                f"memref.reinterpret_cast of {source_type}, whose layout is dynamic"
            )

        def view(part: Array) -> Array:
            step = element_step(part, layout)
            return strided(part, (offset - start) * step, sizes, [s * step for s in strides])

        return (map_parts(view, source),)

    @impl(memref.ViewOp)
    def run_view(
        self, interpreter: Interpreter, op: memref.ViewOp, args: PythonValues
    ) -> PythonValues:
        buffer = bytes_behind(self.domain, args[0])
        dynamic = iter(args[2:])
        shape = tuple(scalar_int(next(dynamic)) if d < 0 else d for d in shape_of(op.result))
        of_type = element_type(op.result.type)
        dtype = self.domain.dtype(of_type)
        view = buffer.view(scalar_int(args[1]), shape, dtype, bit_width(of_type))
        return (view,)

    @impl(memref.LoadOp)
    def run_load(
        self, interpreter: Interpreter, op: memref.LoadOp, args: PythonValues
    ) -> PythonValues:
        return (gather(self.domain, args[0], args[1:]),)

    @impl(memref.StoreOp)
    def run_store(
        self, interpreter: Interpreter, op: memref.StoreOp, args: PythonValues
    ) -> PythonValues:
        value, target = args[:2]
        where = tuple(scalar_int(i) for i in args[2:])
        for axis, index in enumerate(where):
            if not 0 <= index < target.shape[axis]:
                raise IndexError(f"index {index} of a dimension of {target.shape[axis]}")
        self.domain.store(map_parts(lambda part: part[(*where, ...)], target), value)
        return ()

    @impl(memref.CopyOp)
    def run_copy(
        self, interpreter: Interpreter, op: memref.CopyOp, args: PythonValues
    ) -> PythonValues:
        source, target = args
        # Through a copy: the two may overlap.
        self.domain.store(target, map_parts(np.copy, source))
        return ()


def element_step(part: Array, layout: Sequence[int | None]) -> int:
    """Bytes from one element of the IR to the next: more than an element's size where a `ByteBuffer` is behind `part`."""
    for size, stride, declared in zip(part.shape, part.strides, layout, strict=True):
        if size > 1 and declared:
            return stride // declared
    return part.itemsize


def strided(part: Array, start: int, sizes: list[int], strides: list[int]) -> Array:
    """The view of `sizes` and `strides` (bytes) whose first element is `start` bytes after that of `part`.

    `IndexError` when it leaves the buffer that `part` is a view of.
    """
    if 0 in sizes:
        return np.empty(sizes, part.dtype)
    root = part
    owner: Any = part.base
    while owner is not None:
        if isinstance(owner, np.ndarray):
            root = cast(Array, owner)
        owner = getattr(cast(Any, owner), "base", None)
    lowest, end = byte_bounds(root)
    first = part.ctypes.data + start - lowest
    reach = [(n - 1) * s for n, s in zip(sizes, strides, strict=True)]
    low = first + sum(r for r in reach if r < 0)
    high = first + sum(r for r in reach if r > 0) + part.itemsize
    if low < 0 or high > end - lowest:
        raise IndexError(f"bytes {low}..{high} of a buffer of {end - lowest}")
    if not root.flags.c_contiguous:
        raise InterpretationError("memref.reinterpret_cast of an argument that is itself strided")
    return np.ndarray(sizes, part.dtype, root, first, strides)
