"""Tensors become memrefs, constants become globals: level 1 -> level 2 of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith, func, memref, tensor
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    LocationAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    TensorType,
    UnknownLoc,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qkernel, qmm
from qfold.dialects.contraction import ACCUMULATOR_RANGE, ints, shape_of, window_of
from qfold.dialects.element_types import bit_width, numpy_dtype
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.builder import element_type
from qfold.ir.constants import constant_weight
from qfold.ir.globals import constant_global
from qfold.ir.layouts import Layout
from qfold.ir.locations import describe_location
from qfold.targets import Target
from qfold.transforms.buffer_assignment import (
    COMPUTE,
    VIEWS,
    Buffer,
    BufferAssignment,
    Root,
    captures,
    result_of,
    slice_of,
)
from qfold.transforms.buffer_preparation import (
    place_fills,
    read_behind_reshapes,
    remove_dead_ops,
)
from qfold.transforms.buffer_views import view_ops
from qfold.transforms.target_option import target_option

_MOVES = (*VIEWS, tensor.InsertSliceOp, tensor.EmptyOp)


@dataclass(frozen=True)
class QmmBufferizePass(ModulePass):
    """Turn `@main` on tensors into `@main` on buffers: inputs and outputs become arguments, each distinct constant one global."""

    name = "qmm-bufferize"
    target: str = "host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_option(self.target)
        for function in [f for f in op.body.block.ops if isinstance(f, func.FuncOp)]:
            if any(isinstance(t, TensorType) for t in function.function_type.inputs) or any(
                isinstance(t, TensorType) for t in function.function_type.outputs
            ):
                bufferize(op, function, target)
        op.attributes["qmm.target"] = StringAttr(target.name)


def bufferize(module: ModuleOp, function: func.FuncOp, target: Target) -> None:
    """Replace one function on tensors by one on memrefs."""
    check_supported(function)
    block = function.body.block
    read_behind_reshapes(block)
    remove_dead_ops(block)
    place_fills(block)
    assignment = BufferAssignment(block, target)
    emitter = _Emitter(function, assignment, target)
    emitter.run()
    Rewriter.insert_op(emitter.globals, InsertPoint.before(function))
    Rewriter.replace_op(function, emitter.function, [])


def check_supported(function: func.FuncOp) -> None:
    """`PassFailedException` naming what cannot be bufferized: more than straight-line code, a dynamic shape, an unknown op."""
    name = function.sym_name.data
    if len(function.body.blocks) != 1:
        raise PassFailedException(
            f"@{name} has {len(function.body.blocks)} blocks; straight-line code has one"
        )
    for op in function.body.block.ops:
        for value in (*op.operands, *op.results):
            type_: Attribute = value.type
            if isinstance(type_, TensorType) and any(d < 0 for d in shape_of(value)):
                raise PassFailedException(
                    f"{describe_location(op)}: {value.type} has a dynamic shape; fix it with --dim"
                )
        if isinstance(op, (*COMPUTE, *_MOVES)):
            if len(op.results) != 1:
                raise PassFailedException(
                    f"{describe_location(op)} has {len(op.results)} results; one is supported"
                )
            continue
        if isinstance(op, func.ReturnOp) or _is_scalar(op):
            continue
        if op.results and constant_weight(op.results[0]) is not None:
            continue
        raise PassFailedException(
            f"{describe_location(op)} cannot be bufferized; supported are "
            + ", ".join(sorted(o.name for o in (*COMPUTE, *_MOVES)))
            + " and constants (lower quantisation with qmm-lower-quantization first)"
        )


def _is_scalar(op: Operation) -> bool:
    """Whether `op` is a scalar constant (the value of a fill)."""
    return isinstance(op, arith.ConstantOp) and not isinstance(op.result.type, TensorType)


def frame(
    shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Disjoint boxes, each (offsets, sizes), that cover all of `shape` but the box inside of it."""
    boxes: list[tuple[list[int], list[int]]] = []
    for axis, (extent, offset, size) in enumerate(zip(shape, offsets, sizes, strict=True)):
        for start, length in ((0, offset), (offset + size, extent - offset - size)):
            if length:
                at = [*offsets[:axis], start, *(0 for _ in shape[axis + 1 :])]
                boxes.append((at, [*sizes[:axis], length, *shape[axis + 1 :]]))
    return boxes


class _Emitter:
    """Writes the function on memrefs that an assignment describes."""

    def __init__(self, function: func.FuncOp, assignment: BufferAssignment, target: Target):
        self.old, self.assignment, self.target = function, assignment, target
        self.globals: list[Operation] = []
        self._space = target.default_space
        self._scalars: dict[SSAValue, SSAValue] = {}
        self._views: dict[Buffer, SSAValue] = {}
        self._location: LocationAttr = UnknownLoc()
        types = function.function_type
        self._inputs = len(types.inputs)
        tensors = cast(Sequence[TensorType[Attribute]], (*types.inputs, *types.outputs))
        self._block = Block(arg_types=[self._type(t.element_type, t.get_shape()) for t in tensors])
        self.function = func.FuncOp(
            function.sym_name.data,
            (self._block.arg_types, ()),
            Region(self._block),
            function.sym_visibility,
            arg_attrs=self._argument_attributes(),
        )
        self.function.attributes.update(function.attributes)
        self.function.location = function.location

    def _argument_attributes(self) -> ArrayAttr[DictionaryAttr]:
        def attributes(
            given: ArrayAttr[DictionaryAttr] | None, count: int, role: str
        ) -> list[DictionaryAttr]:
            known = [DictionaryAttr({})] * count if given is None else list(given)
            return [DictionaryAttr({**d.data, "qmm.role": StringAttr(role)}) for d in known]

        types = self.old.function_type
        return ArrayAttr(
            attributes(self.old.arg_attrs, len(types.inputs), "input")
            + attributes(self.old.res_attrs, len(types.outputs), "output")
        )

    def _type(self, element_type: Attribute, shape: Sequence[int]) -> MemRefType[Attribute]:
        return Layout.dense(shape).memref_type(element_type, self._space)

    def run(self) -> None:
        for op in list(self.old.body.block.ops):
            self._location = op.location
            if _is_scalar(op):
                clone = op.clone()
                self._insert(clone)
                self._scalars[op.results[0]] = clone.results[0]
                continue
            for source, target in self.assignment.copies.get(op, ()):
                self._insert(memref.CopyOp(self._view(source), self._view(target)))
            if isinstance(op, func.ReturnOp):
                self._insert(func.ReturnOp())
            elif isinstance(op, COMPUTE):
                self._compute(op)

    def _insert(self, op: Operation) -> None:
        """Append `op`; it and what is in it have the current location, unless they bring one."""
        for inner in op.walk():
            if isinstance(inner.location, UnknownLoc):
                inner.location = self._location
        self._block.add_op(op)

    # Buffers.

    def _memref(self, value: SSAValue) -> SSAValue:
        return self._view(self.assignment.buffers[value])

    def _optional(self, value: SSAValue | None) -> SSAValue | None:
        return None if value is None else self._memref(value)

    def _view(self, buffer: Buffer) -> SSAValue:
        """The memref value of a buffer, made when it is first asked for."""
        value = self._views.get(buffer)
        if value is None:
            whole = Buffer.whole(buffer.root)
            if buffer == whole:
                value = self._root(buffer.root)
            else:
                steps = view_ops(self._view(whole), buffer.layout, self._space)
                for step in steps:
                    self._insert(step)
                value = steps[-1].results[0]
            self._views[buffer] = value
        return value

    def _root(self, root: Root) -> SSAValue:
        if root.kind == "input":
            return self._block.args[root.index]
        if root.kind == "output":
            return self._block.args[self._inputs + root.index]
        type_ = self._type(root.element_type, root.shape)
        if root.kind == "alloc":
            alloc = memref.AllocOp((), (), type_)
            self._insert(alloc)
            return alloc.memref
        assert root.weight is not None
        get = memref.GetGlobalOp(self._global(root.weight), type_)
        self._insert(get)
        return get.memref

    def _global(self, weight: WeightAttr) -> str:
        """Make the global of a constant; equal bytes of another type get a name that says the type."""
        name = f"w_{weight.sha256[:12]}"
        taken = {cast(memref.GlobalOp, g).sym_name.data for g in self.globals}
        if name in taken:
            name = f"{name}_{weight.element_type}"
        op = constant_global(name, weight, self._space, self.target.alignment)
        op.location = self._location
        self.globals.append(op)
        return name

    def _constant(self, weight: WeightAttr) -> SSAValue:
        return self._view(self.assignment.constant(weight))

    # Ops.

    def _compute(self, op: Operation) -> None:
        if isinstance(op, linalg.FillOp):
            for part in self._filled(op):
                fill = linalg.FillOp((self._scalars[op.inputs[0]],), (self._view(part),), ())
                fill.attributes.update(op.attributes)
                self._insert(fill)
            return
        y = self._memref(result_of(op))
        if isinstance(op, linalg.GenericOp):
            new = self._generic(op, y)
        else:
            new = self._contraction(op, y)
        # Kernels that differ in nothing else are one.
        kept = {k: v for k, v in op.attributes.items() if k != ACCUMULATOR_RANGE}
        new.attributes.update(kept)
        self._insert(new)

    def _filled(self, op: linalg.FillOp) -> list[Buffer]:
        """What has to be filled: only the frame, when a slice goes into the middle and nobody else reads the value."""
        value = op.results[0]
        buffer = self.assignment.buffers[value]
        use = next(iter(value.uses), None)
        insert = None if use is None else use.operation
        if (
            not isinstance(insert, tensor.InsertSliceOp)
            or not value.has_one_use()
            or value is not insert.dest
            or self.assignment.buffers[result_of(insert)] != buffer
            or bit_width(element_type(value)) % 8  # a part may start in the middle of a byte
        ):
            return [buffer]
        offsets, sizes, strides = slice_of(insert)
        if 0 in sizes or any(s != 1 for s in strides):
            return [buffer]
        parts = [
            buffer.layout.sliced(at, lengths, strides).reshaped(lengths)
            for at, lengths in frame(shape_of(value), offsets, sizes)
        ]
        return [Buffer(buffer.root, layout) for layout in parts if layout is not None]

    def _generic(self, op: linalg.GenericOp, y: SSAValue) -> Operation:
        inputs = [self._memref(v) for v in op.inputs]
        captured = {value: self._memref(value) for value in captures(op)}
        region = op.detach_region(op.body)
        for inner in list(region.walk()):
            if isinstance(inner, tensor.ExtractOp):
                load = memref.LoadOp.get(captured[inner.tensor], inner.indices)
                load.location = inner.location
                Rewriter.replace_op(inner, load)
                continue
            for index, operand in enumerate(inner.operands):
                if operand in self._scalars:
                    inner.operands[index] = self._scalars[operand]
        return linalg.GenericOp(
            inputs, [y], region, op.indexing_maps, op.iterator_types, (), op.doc, op.library_call
        )

    def _contraction(self, op: Operation, y: SSAValue) -> Operation:
        if isinstance(op, qmm.WindowSumOp):
            groups, strides, pads, dilations = window_of(op)
            return qkernel.WindowSumOp(
                self._memref(op.x),
                y,
                kernel_shape=ints(op.kernel_shape),
                strides=strides,
                pads=pads,
                dilations=dilations,
                groups=groups,
            )
        assert isinstance(
            op,
            qmm.MatmulOp
            | qmm.DequantMatmulOp
            | qmm.QuantMatmulOp
            | qmm.ConvOp
            | qmm.DequantConvOp
            | qmm.QuantConvOp,
        )
        epilogue: dict[str, Any] = {
            "epilogue_operands": [self._memref(v) for v in op.epilogue_operands],
            "epilogue_maps": op.maps,
            "epilogue": None if op.epilogue is None else op.detach_region(op.epilogue),
        }
        match op:
            case qmm.MatmulOp():
                return qkernel.MatmulOp(
                    self._memref(op.a),
                    self._memref(op.b),
                    y,
                    transpose_a=op.transpose_a is not None,
                    transpose_b=op.transpose_b is not None,
                    **epilogue,
                )
            case qmm.DequantMatmulOp():
                scale, zero_point = self._parameters(op.quant)
                return qkernel.DequantMatmulOp(
                    self._memref(op.a),
                    self._constant(op.weight),
                    scale,
                    y,
                    zero_point=zero_point,
                    row_sum=self._optional(op.row_sum),
                    transpose_b=op.transpose_b is not None,
                    block_size=op.quant.block_size,
                    hoisted=op.hoisted is not None,
                    **epilogue,
                )
            case qmm.ConvOp():
                return qkernel.ConvOp(
                    self._memref(op.x), self._memref(op.w), y, **_window(op), **epilogue
                )
            case qmm.DequantConvOp():
                scale, zero_point = self._parameters(op.quant)
                return qkernel.DequantConvOp(
                    self._memref(op.x),
                    self._constant(op.weight),
                    scale,
                    y,
                    zero_point=zero_point,
                    window_sum=self._optional(op.window_sum),
                    hoisted=op.hoisted is not None,
                    **_window(op),
                    **epilogue,
                )
            case qmm.QuantMatmulOp():
                return qkernel.QuantMatmulOp(
                    self._memref(op.a),
                    self._memref(op.b),
                    y,
                    a_zero_point=self._optional(op.a_zero_point),
                    b_zero_point=self._optional(op.b_zero_point),
                    transpose_b=op.transpose_b is not None,
                    **epilogue,
                )
            case qmm.QuantConvOp():
                return qkernel.QuantConvOp(
                    self._memref(op.x),
                    self._memref(op.w),
                    y,
                    x_zero_point=self._optional(op.x_zero_point),
                    w_zero_point=self._optional(op.w_zero_point),
                    pad_value=op.padding,
                    **_window(op),
                    **epilogue,
                )

    def _parameters(self, quant: QuantAttr) -> tuple[SSAValue, SSAValue | None]:
        """(scale, zero point) as constants; no zero point when all are 0."""
        scale = self._constant(quant.scale)
        if quant.is_symmetric:
            return scale, None
        type_ = qkernel.zero_point_type(quant.storage)
        zeros = np.asarray(quant.zero_points).astype(numpy_dtype(type_))
        return scale, self._constant(WeightAttr.from_array(zeros, type_))


def _window(op: qmm.ConvOp | qmm.DequantConvOp | qmm.QuantConvOp) -> dict[str, Any]:
    groups, strides, pads, dilations = window_of(op)
    return {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
