"""Checks of memref IR that xDSL's own verifiers leave out: layouts of views, bounds, and who may be written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException, VerifyException

from qfold.dialects import pulp, qkernel
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import bit_width, byte_size
from qfold.interpreters.spaces import Box, evaluate
from qfold.ir.generics import indexing_maps, is_parallel, is_projection, loop_extents
from qfold.ir.globals import global_weight
from qfold.ir.layouts import Layout
from qfold.ir.locations import describe_location
from qfold.transforms.buffer_accesses import accesses
from qfold.transforms.qmm_outline_kernels import is_staged

_COMPUTE = (*qkernel.CONTRACTIONS, linalg.GenericOp, linalg.FillOp, memref.CopyOp)
_VIEWS = (
    memref.CollapseShapeOp,
    memref.ExpandShapeOp,
    memref.SubviewOp,
    memref.ReinterpretCastOp,
    memref.CastOp,
)
Type = MemRefType[Attribute]


@dataclass(frozen=True)
class QmmVerifyBuffersPass(ModulePass):
    """Refuse views whose type lies about their layout, reads and writes out of bounds, and writes to inputs and constants.

    Changes nothing; works before and after outlining and planning.
    """

    name = "qmm-verify-buffers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        globals_ = {g.sym_name.data: g for g in op.body.block.ops if isinstance(g, memref.GlobalOp)}
        functions = {
            f.sym_name.data: f
            for f in op.body.block.ops
            if isinstance(f, func.FuncOp) and not f.is_declaration
        }
        for op_global in globals_.values():
            try:
                global_weight(op_global)
            except VerifyException as e:
                raise PassFailedException(str(e)) from None
        written: dict[str, set[int]] = {}
        for name, function in sorted(functions.items(), key=lambda pair: is_staged(pair[1])):
            if name != "main":
                written[name] = _written_arguments(function, written)
        for function in functions.values():
            _Verifier(function, globals_, written).run()


def _written_arguments(function: func.FuncOp, written: dict[str, set[int]]) -> set[int]:
    """Which parameters a function writes to: itself, by transfers, or by functions that it calls, of which `written` tells."""
    values: list[SSAValue] = []
    for op in function.walk():
        if isinstance(op, func.CallOp):
            indices = written.get(op.callee.string_value(), ())
            values += [op.arguments[i] for i in indices]
        elif isinstance(op, pulp.DmaStartOp):
            values.append(op.destination)
        elif isinstance(op, _COMPUTE):
            values += accesses(op)[1]
    roots = (_behind_views(value) for value in values)
    return {
        root.index
        for root in roots
        if isinstance(root, BlockArgument) and root.block is function.body.block
    }


def _behind_views(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, (*_VIEWS, memref.ViewOp)):
        value = value.owner.operands[0]
    return value


def _fail(op: Operation, message: str) -> NoReturn:
    raise PassFailedException(f"{describe_location(op)}: {message}")


class _Verifier:
    def __init__(
        self,
        function: func.FuncOp,
        globals_: dict[str, memref.GlobalOp],
        written: dict[str, set[int]],
    ):
        self._function, self._globals, self._written = function, globals_, written
        self._read_only: set[SSAValue] = set()
        """Inputs, constants, and views of them."""
        self._root: dict[SSAValue, SSAValue] = {}
        self._variables: dict[SSAValue, range] = {}
        """Loop variables, and what they run through."""

    def run(self) -> None:
        attributes = self._function.arg_attrs
        if attributes is not None:
            for argument, entry in zip(self._function.args, attributes, strict=True):
                if entry.data.get("qmm.role") == StringAttr("input"):
                    self._read_only.add(argument)
        for op in self._function.body.block.walk():
            self._check(op)

    def _check(self, op: Operation) -> None:
        for value in op.results:
            if isinstance(value.type, MemRefType):
                self._layout(op, value)
        if isinstance(op, memref.GetGlobalOp):
            self._get_global(op)
        elif isinstance(op, memref.ViewOp):
            self._view(op)
        elif isinstance(op, _VIEWS):
            self._derived(op)
        elif isinstance(op, _COMPUTE):
            self._compute(op)
        elif isinstance(op, pulp.DmaStartOp):
            self._writable(op, op.destination)
        elif isinstance(op, scf.ForOp):
            self._loop(op)
        elif isinstance(op, func.CallOp):
            for index in self._written.get(op.callee.string_value(), ()):
                self._writable(op, op.arguments[index])

    def _layout(self, op: Operation, value: SSAValue) -> Layout:
        try:
            return Layout.of(cast(Type, value.type))
        except ValueError as e:
            _fail(op, str(e))

    def _writable(self, op: Operation, value: SSAValue) -> None:
        if value in self._read_only:
            _fail(op, f"writes to an input or a constant: {value.type}")

    def _loop(self, op: scf.ForOp) -> None:
        """Remember from where to where the variable goes."""
        bounds = [_constant(v) for v in (op.lb, op.ub, op.step)]
        if None in bounds:
            _fail(op, "the bounds of a loop over tiles are no constants")
        low, high, step = cast(Sequence[int], bounds)
        if step < 1 or low >= high:
            _fail(op, f"a loop over tiles from {low} to {high} by {step}")
        self._variables[op.body.block.args[0]] = range(low, high, step)

    # Views.

    def _get_global(self, op: memref.GetGlobalOp) -> None:
        definition = self._globals.get(op.name_.string_value())
        if definition is None or definition.type != op.memref.type:
            found = "nothing" if definition is None else str(definition.type)
            _fail(op, f"{op.name_} is read as {op.memref.type}, but defined as {found}")
        self._read_only.add(op.memref)

    def _view(self, op: memref.ViewOp) -> None:
        type_ = op.result.type
        offset = _constant(op.byte_shift)
        if offset is None:
            _fail(op, "the byte offset is no constant")
        size = byte_size(type_.element_type, prod(type_.get_shape()))
        arena = shape_of(op.source)[0]
        if offset < 0 or offset + size > arena:
            _fail(op, f"bytes {offset}..{offset + size} leave the arena of {arena} bytes")
        step = max(1, bit_width(type_.element_type) // 8)
        if offset % step:
            _fail(op, f"offset {offset} is not aligned for {type_.element_type}")
        if op.source in self._read_only:
            self._read_only.add(op.result)

    def _derived(self, op: Operation) -> None:
        source, result = op.operands[0], op.results[0]
        a, b = cast(Type, source.type), cast(Type, result.type)
        if a.element_type != b.element_type or a.memory_space != b.memory_space:
            _fail(op, f"a view of {a} cannot be {b}")
        found, expected = Layout.of(b), self._expected(op, Layout.of(a))
        if expected is None:
            _fail(op, f"{a} cannot be seen as {b} without a copy")
        if isinstance(op, memref.CastOp):
            same = found.strides == expected.strides and b.get_offset() in (a.get_offset(), None)
        else:
            dynamic = a.get_offset() is None or (isinstance(op, memref.SubviewOp) and op.offsets)
            if bool(dynamic) != (b.get_offset() is None):
                _fail(op, f"a view whose offset is static on one side only: {a} to {b}")
            if dynamic:
                expected = replace(expected, offset=found.offset)
            same = _significant(found) == _significant(expected)
        if not same:
            _fail(op, f"the type says {found}, but the view is {expected}")
        self._root[result] = self._root.get(source, source)
        if source in self._read_only:
            self._read_only.add(result)

    def _expected(self, op: Operation, source: Layout) -> Layout | None:
        shape = shape_of(op.results[0])
        if isinstance(op, memref.CastOp):
            return source if source.shape == shape else None
        if isinstance(op, memref.CollapseShapeOp | memref.ExpandShapeOp):
            collapse = isinstance(op, memref.CollapseShapeOp)
            wide, narrow = (source.shape, shape) if collapse else (shape, source.shape)
            groups = [[int(d.value.data) for d in g] for g in cast(Any, op.reassociation)]
            if [d for g in groups for d in g] != list(range(len(wide))) or tuple(
                prod(wide[d] for d in g) for g in groups
            ) != narrow:
                _fail(op, f"the groups {groups} do not lead from {list(wide)} to {list(narrow)}")
            return source.reshaped(shape)
        if isinstance(op, memref.SubviewOp):
            sizes, steps = _ints(op.static_sizes), _ints(op.static_strides)
            starts = self._starts(op)
            for axis, (o, n, s, d) in enumerate(
                zip(starts, sizes, steps, source.shape, strict=True)
            ):
                ends = (o[0], o[-1] + (n - 1) * s) if s > 0 else (o[0] + (n - 1) * s, o[-1])
                if n and (min(ends) < 0 or max(ends) >= d):
                    _fail(op, f"elements {ends[0]}..{ends[1]} of dimension {axis}, which has {d}")
            return source.sliced([o[0] for o in starts], sizes, steps).reshaped(shape)
        assert isinstance(op, memref.ReinterpretCastOp)
        if not source.is_dense or source.offset:
            _fail(op, f"reinterprets a part of a buffer: {source}")
        result = Layout(
            _ints(op.static_sizes), _ints(op.static_strides), _ints(op.static_offsets)[0]
        )
        low, high = result.extent
        if low < 0 or high >= prod(source.shape):
            _fail(op, f"elements {low}..{high} of a buffer of {prod(source.shape)}")
        return result

    def _starts(self, op: memref.SubviewOp) -> list[range]:
        """Where a subview may start along each dimension."""
        dynamic = iter(op.offsets)
        starts: list[range] = []
        for offset in _ints(op.static_offsets):
            if offset != DYNAMIC_INDEX:
                starts.append(range(offset, offset + 1))
                continue
            values = self._values(next(dynamic))
            if values is None:
                _fail(
                    op,
                    "the offset of a subview is neither a constant nor the variable of a loop, "
                    "or a multiple of it",
                )
            starts.append(values)
        return starts

    def _values(self, index: SSAValue) -> range | None:
        """What the variable of a loop, or a multiple of it, runs through."""
        if isinstance(index.owner, arith.MuliOp):
            variable, number = index.owner.operands
            factor, values = _constant(number), self._values(variable)
            if factor is None or factor < 1 or values is None:
                return None
            return range(values.start * factor, values.stop * factor, values.step * factor)
        return self._variables.get(index)

    # Compute.

    def _compute(self, op: Operation) -> None:
        reads, writes = accesses(op)
        for value in writes:
            self._writable(op, value)
            if _overlaps_itself(Layout.of(cast(Type, value.type))):
                _fail(op, f"two elements of {value.type} are one in memory, and it is written")
        if isinstance(op, linalg.GenericOp):
            self._generic(op)
        for value in writes:
            for other in reads:
                if other is not value:
                    self._apart(op, other, value)

    def _apart(self, op: Operation, read: SSAValue, written: SSAValue) -> None:
        """An op must not write what it reads through another view."""
        if self._root.get(read, read) is not self._root.get(written, written):
            return
        there, here = (_elements(Layout.of(cast(Type, v.type))) for v in (read, written))
        common = np.intersect1d(there, here)
        if common.size:
            _fail(op, f"writes elements of {written.type} that it reads as {read.type}")

    def _generic(self, op: linalg.GenericOp) -> None:
        maps, values = indexing_maps(op), [*op.inputs, *op.outputs]
        shapes = [shape_of(v) for v in values]
        for map_, shape in zip(maps, shapes, strict=True):
            if len(map_.results) != len(shape):
                _fail(op, f"map {map_} does not index an operand of shape {list(shape)}")
        extents = loop_extents(maps, shapes)
        if extents is None:
            _fail(op, "a loop that no operand bounds")
        for map_, shape in zip(maps, shapes, strict=True):
            self._in_bounds(op, map_, shape, extents)
        if not is_projection(maps[-1]):
            _fail(op, f"the output map {maps[-1]} writes an element more than once")
        for value, map_ in zip(op.inputs, maps, strict=False):
            if value is op.outputs[0] and (map_ != maps[-1] or not is_parallel(op)):
                _fail(
                    op, "updates a buffer in place, but reads other elements of it than it writes"
                )

    def _in_bounds(
        self, op: Operation, map_: AffineMap, shape: Sequence[int], extents: Sequence[int]
    ) -> None:
        if 0 in extents:
            return
        for axis, (expression, size) in enumerate(zip(map_.results, shape, strict=True)):
            if isinstance(expression, AffineDimExpr):
                if extents[expression.position] != size:
                    _fail(
                        op,
                        f"operands disagree on loop d{expression.position}: {extents[expression.position]} and {size}",
                    )
                continue
            indices = evaluate(expression, Box.of(extents))
            low, high = int(indices.min()), int(indices.max())
            if low < 0 or high >= size:
                _fail(op, f"map {map_} reads {low}..{high} of dimension {axis}, which has {size}")


def _constant(value: SSAValue) -> int | None:
    """The number that an `arith.constant` gives."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


def _significant(layout: Layout) -> Layout:
    """A layout without the strides that say nothing: those of dimensions of one element."""
    strides = tuple(1 if n == 1 else s for n, s in zip(layout.shape, layout.strides, strict=True))
    return replace(layout, strides=strides).normalized()


def _ints(attribute: DenseArrayBase[IntegerType]) -> tuple[int, ...]:
    return tuple(int(v) for v in attribute.get_values())


def _elements(layout: Layout) -> npt.NDArray[np.int64]:
    positions = np.full((1,) * len(layout.shape), layout.offset, np.int64)
    for axis, (extent, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        along = [1] * len(layout.shape)
        along[axis] = -1
        positions = positions + (np.arange(extent, dtype=np.int64) * stride).reshape(along)
    return positions.reshape(-1)


def _overlaps_itself(layout: Layout) -> bool:
    """Whether two indices mean the same element. Exact when the strides nest, and a count of positions otherwise."""
    if layout.is_dense:
        return False
    dims = sorted((abs(s), n) for n, s in zip(layout.shape, layout.strides, strict=True) if n > 1)
    reach = 0
    for stride, extent in dims:
        if stride <= reach:
            return bool(np.unique(_elements(layout)).size < prod(layout.shape))
        reach += stride * (extent - 1)
    return False
