"""Proves a memory plan by replaying the calls of `@main` on shadow memory. Shares no code with the planner, on purpose.

Every byte of the arena remembers through which buffer it was written last. A read must find its own buffer there; a call must
not write what it reads through another argument; every output must be written to the last element; inputs and constants never
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import NoReturn, cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects.element_types import bit_width
from qfold.ir.locations import describe_location
from qfold.transforms.buffer_accesses import accesses

_Indices = npt.NDArray[np.int64]
_NOBODY = -1
_VARIABLE = 1 << 30
"""The identity of buffers inside of functions, which are in no plan."""


@dataclass(frozen=True)
class QmmCheckPlanPass(ModulePass):
    """Replay `@main` and refuse a plan under which a kernel would read what another has overwritten. Changes nothing."""

    name = "qmm-check-plan"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        table: dict[str, func.FuncOp] = {}
        for function in op.body.block.ops:
            if isinstance(function, func.FuncOp):
                table[function.sym_name.data] = function
        if "main" not in table:
            raise PassFailedException("the module has no function @main")
        _Replay(table).run()


@dataclass(eq=False)
class _Memory:
    """Memory that is replayed: the arena, or one output."""

    name: str
    owners: npt.NDArray[np.int32]
    """Per unit: which buffer wrote it last."""
    readers: npt.NDArray[np.int64]
    """Per unit: the last (dispatch, op) that read it through an argument that it does not write."""


@dataclass(eq=False)
class _Buffer:
    """What an SSA value stands for: the units where each of its elements starts. `memory` is None for inputs and constants."""

    memory: _Memory | None
    identity: int
    elements: _Indices
    width: int
    """Units per element."""
    whole: _Indices = field(repr=False)
    """Elements of the buffer that this is a view of."""

    def units(self) -> _Indices:
        flat = self.elements.reshape(-1)
        if self.width == 1:
            return flat
        return (flat[:, None] + np.arange(self.width)).reshape(-1)


class _Replay:
    def __init__(self, functions: dict[str, func.FuncOp]):
        self._functions = functions
        self._main = functions["main"]
        self._values: dict[SSAValue, _Buffer | int] = {}
        self._names: dict[int, str] = {}
        """Buffer -> who wrote it first."""
        self._spans: dict[int, tuple[int, int]] = {}
        """Buffer -> first and last dispatch that touched it."""
        self._places: dict[int, tuple[int, int]] = {}
        """Buffer -> offset and size in bytes."""
        self._outputs: list[_Memory] = []
        self._arena: _Memory | None = None
        self._step = 0
        self._unit = self._choose_unit()

    def _choose_unit(self) -> int:
        """Bits of the largest unit that every element and offset is a multiple of."""
        bits = 0
        for op in self._main.body.block.ops:
            if isinstance(op, memref.ViewOp):
                bits = gcd(bits, _bits(op.result), 8 * _offset(op))
        for argument in self._main.args:
            bits = gcd(bits, _bits(argument))
        return max(bits, 4)

    # The walk.

    def run(self) -> None:
        self._bind_arguments()
        ordinal = 0
        for op in self._main.body.block.ops:
            if isinstance(op, func.CallOp):
                self._call(op, ordinal)
                ordinal += 1
            elif isinstance(op, memref.AllocOp):
                raise PassFailedException(
                    f"{describe_location(op)}: a buffer without a place; run qmm-plan-memory first"
                )
            elif not isinstance(op, func.ReturnOp):
                self._bind(op)
        for memory in self._outputs:
            missing = int(np.count_nonzero(memory.owners == _NOBODY))
            if missing:
                raise PassFailedException(
                    f"{missing * self._unit // 8} bytes of output {memory.name} are never written"
                )
        self._check_record(ordinal)

    def _bind_arguments(self) -> None:
        attributes = self._main.arg_attrs
        if attributes is None:
            raise PassFailedException("the arguments of @main have no qmm.role")
        for index, (argument, entry) in enumerate(
            zip(self._main.args, attributes.data, strict=True)
        ):
            role = entry.data.get("qmm.role")
            role = role.data if isinstance(role, StringAttr) else "input"
            name = entry.data.get("qmm.name")
            text = repr(name.data) if isinstance(name, StringAttr) else f"number {index}"
            shape = cast(MemRefType[Attribute], argument.type).get_shape()
            width = _bits(argument) // self._unit
            elements = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64) * width
            memory = None
            if role in ("output", "arena"):
                units = elements.size * width
                memory = _Memory(
                    text, np.full(units, _NOBODY, np.int32), np.full(units, -1, np.int64)
                )
            if role == "output":
                assert memory is not None
                self._outputs.append(memory)
            if role == "arena":
                self._arena = memory
            elements = elements.reshape(shape)
            self._values[argument] = _Buffer(memory, -2 - index, elements, width, elements)

    def _bind(self, op: Operation) -> None:
        """Follow one op of main that is not a call: what its result stands for."""
        if isinstance(op, arith.ConstantOp):
            if isinstance(op.value, IntegerAttr):
                self._values[op.result] = op.value.value.data
            return
        result = op.results[0]
        shape = cast(MemRefType[Attribute], result.type).get_shape()
        if isinstance(op, memref.GetGlobalOp):
            # Where constants lie is no matter, as long as nobody writes there.
            elements = np.zeros(shape, np.int64)
            self._values[result] = _Buffer(None, _NOBODY, elements, 0, elements)
            return
        if isinstance(op, memref.ViewOp):
            self._values[result] = self._carve(op, shape)
            return
        source = self._values[op.operands[0]]
        assert isinstance(source, _Buffer)
        elements = source.elements
        if isinstance(op, memref.CollapseShapeOp | memref.ExpandShapeOp | memref.CastOp):
            seen = elements.reshape(shape)
        elif isinstance(op, memref.SubviewOp):
            where = tuple(
                slice(o, o + (n - 1) * s + 1 if n else o, s)
                for o, n, s in zip(
                    _ints(op.static_offsets),
                    _ints(op.static_sizes),
                    _ints(op.static_strides),
                    strict=True,
                )
            )
            seen = elements[where].reshape(shape)
        elif isinstance(op, memref.ReinterpretCastOp):
            positions = np.full(shape, _ints(op.static_offsets)[0], np.int64)
            for axis, step in enumerate(_ints(op.static_strides)):
                along = [1] * len(shape)
                along[axis] = -1
                positions += (np.arange(shape[axis]) * step).reshape(along)
            flat = source.whole.reshape(-1)
            if positions.size and (positions.min() < 0 or positions.max() >= flat.size):
                raise PassFailedException(
                    f"{describe_location(op)}: reaches element {positions.max()} of {flat.size}"
                )
            seen = flat[positions]
        else:
            raise PassFailedException(f"{describe_location(op)} has no place in a planned @main")
        self._values[result] = _Buffer(
            source.memory, source.identity, seen, source.width, source.whole
        )

    def _carve(self, op: memref.ViewOp, shape: Sequence[int]) -> _Buffer:
        source = self._values[op.source]
        assert isinstance(source, _Buffer)
        if self._arena is None or source.memory is not self._arena:
            raise PassFailedException(
                f"{describe_location(op)}: a view of something that is no arena"
            )
        offset = self._values[op.byte_shift]
        assert isinstance(offset, int)
        count, width = int(np.prod(shape, dtype=np.int64)), _bits(op.result) // self._unit
        start = offset * 8 // self._unit
        size = -(-count * _bits(op.result) // 8)
        if offset < 0 or start + count * width > self._arena.owners.size:
            raise PassFailedException(
                f"{describe_location(op)}: {size} bytes at offset {offset} leave the arena"
            )
        identity = len(self._places)
        self._places[identity] = offset, size
        elements = (start + np.arange(count, dtype=np.int64) * width).reshape(shape)
        return _Buffer(self._arena, identity, elements, width, elements)

    # Calls.

    def _call(self, call: func.CallOp, ordinal: int) -> None:
        callee = call.callee.string_value()
        function = self._functions[callee]
        values: dict[SSAValue, _Buffer] = {}
        for parameter, argument in zip(function.args, call.arguments, strict=True):
            buffer = self._values[argument]
            assert isinstance(buffer, _Buffer)
            values[parameter] = buffer
        self._check_apart(call, callee, ordinal, function, values)
        for op in function.body.block.ops:
            if isinstance(op, arith.ConstantOp | func.ReturnOp):
                continue
            if isinstance(op, memref.AllocOp):
                values[op.memref] = self._variable(op.memref, callee)
                continue
            self._step += 1
            reads, writes = accesses(op)
            for value in reads:
                self._read(call, callee, ordinal, values[value], value in writes)
            for value in writes:
                self._write(call, callee, ordinal, values[value])

    def _variable(self, value: SSAValue, callee: str) -> _Buffer:
        """A buffer inside of a function, which is memory of its own for one call."""
        shape = cast(MemRefType[Attribute], value.type).get_shape()
        size = int(np.prod(shape, dtype=np.int64))
        memory = _Memory(
            f"a variable of @{callee}", np.full(size, _NOBODY, np.int32), np.full(size, -1)
        )
        elements = np.arange(size, dtype=np.int64).reshape(shape)
        return _Buffer(memory, _VARIABLE, elements, 1, elements)

    def _check_apart(
        self,
        call: Operation,
        callee: str,
        ordinal: int,
        function: func.FuncOp,
        values: dict[SSAValue, _Buffer],
    ) -> None:
        """Loop nests that share a function may run interleaved: then what one writes must be no part of another argument."""
        nests = [op for op in function.body.block.ops if isinstance(op, linalg.GenericOp)]
        if len(nests) < 2:
            return
        pairs = [accesses(op) for op in nests]
        written = {v for _, writes in pairs for v in writes if v in values}
        used = {v for reads, _ in pairs for v in reads if v in values} | written
        for value in written:
            here = values[value]
            for other in used - {value}:
                there = values[other]
                if here.memory is None or there.memory is not here.memory:
                    continue
                if np.intersect1d(here.units(), there.units()).size:
                    self._fail(call, callee, ordinal, "passes loop nests the same bytes twice")

    def _read(
        self, call: Operation, callee: str, ordinal: int, buffer: _Buffer, also_written: bool
    ) -> None:
        memory = buffer.memory
        if memory is None:
            return
        self._touch(buffer, callee, ordinal)
        units = buffer.units()
        owners = memory.owners[units]
        wrong = np.flatnonzero(owners != buffer.identity)
        if wrong.size:
            other = int(owners[wrong[0]])
            where = int(units[wrong[0]]) * self._unit // 8
            named = other < _NOBODY or buffer.identity == _VARIABLE
            by = (
                "nobody has written"
                if other == _NOBODY
                else f"the buffer of {self._names.get(other, memory.name)} has overwritten"
            )
            self._fail(
                call,
                callee,
                ordinal,
                f"reads byte {where} of {memory.name if named else 'the arena'}, which {by}",
            )
        if not also_written:
            memory.readers[units] = self._step

    def _write(self, call: Operation, callee: str, ordinal: int, buffer: _Buffer) -> None:
        memory = buffer.memory
        if memory is None:
            self._fail(call, callee, ordinal, "writes to an input or a constant")
        self._touch(buffer, callee, ordinal)
        units = buffer.units()
        clash = np.flatnonzero(memory.readers[units] == self._step)
        if clash.size:
            where = int(units[clash[0]]) * self._unit // 8
            self._fail(
                call,
                callee,
                ordinal,
                f"writes byte {where}, which it reads through another argument",
            )
        memory.owners[units] = buffer.identity

    def _touch(self, buffer: _Buffer, callee: str, ordinal: int) -> None:
        if buffer.identity == _VARIABLE:
            return
        first, _ = self._spans.setdefault(buffer.identity, (ordinal, ordinal))
        self._spans[buffer.identity] = first, ordinal
        self._names.setdefault(buffer.identity, f"@{callee}")

    def _fail(self, call: Operation, callee: str, ordinal: int, what: str) -> NoReturn:
        raise PassFailedException(
            f"the memory plan is wrong: dispatch {ordinal}, {describe_location(call)} of @{callee}, {what}"
        )

    # The record.

    def _check_record(self, dispatches: int) -> None:
        """Whether `qmm.plan` says what the code does."""
        record = self._main.attributes.get("qmm.plan")
        if not isinstance(record, DictionaryAttr):
            raise PassFailedException("@main has no qmm.plan")
        alignment = _number(record, "alignment")
        arena = 0 if self._arena is None else self._arena.owners.size * self._unit // 8
        live = [0] * (dispatches + 1)
        for identity, (_, size) in self._places.items():
            first, last = self._spans.get(identity, (0, -1))
            for time in range(first, last + 1):
                live[time] += size
        expected: dict[str, int] = {"arena_bytes": arena, "lower_bound_bytes": max(live)}
        for key, value in expected.items():
            if _number(record, key) != value:
                raise PassFailedException(
                    f"qmm.plan says {key} = {_number(record, key)}, but it is {value}"
                )
        entries = cast(ArrayAttr[DictionaryAttr], record.data["buffers"]).data
        # A buffer that no kernel touches is there for its shape alone.
        places = {i: place for i, place in self._places.items() if i in self._spans}
        if len(entries) != len(places):
            raise PassFailedException(
                f"qmm.plan lists {len(entries)} buffers, but there are {len(places)}"
            )
        for (identity, (offset, size)), entry in zip(places.items(), entries, strict=True):
            first, last = self._spans[identity]
            found = (offset, size, first, last)
            said = tuple(_number(entry, k) for k in ("offset", "bytes", "first", "last"))
            if said != found:
                raise PassFailedException(
                    f"qmm.plan says (offset, bytes, first, last) = {said} of buffer {identity}, but it is {found}"
                )
            if offset % alignment:
                raise PassFailedException(
                    f"buffer {identity} is at offset {offset}, which is not aligned to {alignment}"
                )


def _bits(value: SSAValue) -> int:
    return bit_width(cast(MemRefType[Attribute], value.type).element_type)


def _offset(op: memref.ViewOp) -> int:
    constant = op.byte_shift.owner
    if not isinstance(constant, arith.ConstantOp) or not isinstance(constant.value, IntegerAttr):
        raise PassFailedException(
            f"{describe_location(op)}: the offset in the arena is no constant"
        )
    return constant.value.value.data


def _ints(attribute: DenseArrayBase[IntegerType]) -> list[int]:
    return [int(v) for v in attribute.get_values()]


def _number(record: DictionaryAttr, key: str) -> int:
    value = record.data.get(key)
    if not isinstance(value, IntegerAttr):
        raise PassFailedException(f"qmm.plan has no {key}")
    return value.value.data
