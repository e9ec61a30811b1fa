"""Proves a memory plan by replaying the calls of `@main` on shadow memory. Shares no code with the planner, on purpose.

Every byte of the arena remembers through which buffer it was written last. A read must find its own buffer there; a call must
not write what it reads through another argument; every output must be written to the last element; inputs and constants never
are. Staged dispatches are replayed tile by tile, the scratchpad as another arena: a leaf function must find its tile in L1, and
nobody touches what a transfer under way reads or writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import NoReturn, cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import pulp
from qfold.dialects.element_types import bit_width
from qfold.ir.locations import describe_location
from qfold.transforms.buffer_accesses import accesses
from qfold.transforms.shadow_memory import (
    NOBODY,
    Buffer,
    Fail,
    Memory,
    ShadowMemory,
    Transfer,
    subview_offsets,
    view_of,
)

VIEWS = (
    arith.ConstantOp,
    memref.ViewOp,
    memref.CollapseShapeOp,
    memref.ExpandShapeOp,
    memref.SubviewOp,
    memref.ReinterpretCastOp,
    memref.CastOp,
)
"""Ops that only say where something is."""


Value = Buffer | Transfer | int
LOCAL = 1 << 30
"""Identities from here on are of buffers inside of functions, which are not in the plan of `@main`."""


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


class _Replay:
    def __init__(self, functions: dict[str, func.FuncOp]):
        self._functions = functions
        self._main = functions["main"]
        self._values: dict[SSAValue, Value] = {}
        """Of `@main`."""
        self._spans: dict[int, tuple[int, int]] = {}
        """Buffer -> first and last dispatch that touched it."""
        self._places: dict[int, tuple[int, int]] = {}
        """Buffer -> offset and size in bytes."""
        self._outputs: list[Memory] = []
        self._arena: Memory | None = None
        self._scratchpad: Memory | None = None
        self._local = LOCAL
        """The identity of the last buffer inside of a function."""
        self._shadow = ShadowMemory(self._choose_unit())

    def _choose_unit(self) -> int:
        """Bits of the largest unit that every element and offset is a multiple of."""
        bits = 0
        for function in self._functions.values():
            for op in function.walk():
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
                self._dispatch(op, ordinal)
                ordinal += 1
            elif isinstance(op, memref.AllocOp):
                raise PassFailedException(
                    f"{describe_location(op)}: a buffer without a place; run qmm-plan-memory first"
                )
            elif not isinstance(op, func.ReturnOp):
                self._bind(op, self._values)
        for memory in self._outputs:
            missing = int(np.count_nonzero(memory.owners == NOBODY))
            if missing:
                raise PassFailedException(
                    f"{missing * self._shadow.unit // 8} bytes of output {memory.name} are never written"
                )
        self._check_record(ordinal)

    def _bind_arguments(self) -> None:
        attributes = self._main.arg_attrs
        if attributes is None:
            raise PassFailedException("the arguments of @main have no qmm.role")
        arenas: list[tuple[int, Memory]] = []
        for index, (argument, entry) in enumerate(
            zip(self._main.args, attributes.data, strict=True)
        ):
            role = entry.data.get("qmm.role")
            role = role.data if isinstance(role, StringAttr) else "input"
            name = entry.data.get("qmm.name")
            text = repr(name.data) if isinstance(name, StringAttr) else f"number {index}"
            type_ = cast(MemRefType[Attribute], argument.type)
            shape = type_.get_shape()
            width = _bits(argument) // self._shadow.unit
            elements = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64) * width
            memory = None
            if role in ("output", "arena"):
                text = text if role == "output" else "the arena"
                memory = Memory.of(text, elements.size * width)
            if role == "output":
                assert memory is not None
                self._outputs.append(memory)
            if role == "arena":
                assert memory is not None
                space = type_.memory_space
                arenas.append((space.value.data if isinstance(space, IntegerAttr) else 0, memory))
            elements = elements.reshape(shape)
            self._values[argument] = Buffer(memory, -2 - index, elements, width, elements)
        # Scratchpads are nearer, and have lower numbers, than where the activations are.
        arenas.sort(key=lambda pair: pair[0])
        if arenas and not (len(arenas) == 1 and self._is_handed_on(arenas[0][1])):
            self._arena = arenas[-1][1]
        for _, memory in arenas:
            if memory is not self._arena:
                memory.name = "the scratchpad"
                self._scratchpad = memory

    def _is_handed_on(self, memory: Memory) -> bool:
        """Whether the argument that `memory` is goes to calls as it is."""
        (argument,) = (
            a
            for a in self._main.args
            if isinstance(b := self._values[a], Buffer) and b.memory is memory
        )
        return any(isinstance(use.operation, func.CallOp) for use in argument.uses)

    def _bind(self, op: Operation, values: dict[SSAValue, Value]) -> None:
        """Follow an op that only says where something is: what its result stands for."""
        if isinstance(op, arith.ConstantOp):
            if isinstance(op.value, IntegerAttr):
                values[op.result] = op.value.value.data
            return
        result = op.results[0]
        shape = cast(MemRefType[Attribute], result.type).get_shape()
        if isinstance(op, memref.GetGlobalOp):
            # Where constants lie is no matter, as long as nobody writes there.
            elements = np.zeros(shape, np.int64)
            values[result] = Buffer(None, NOBODY, elements, 0, elements)
        elif isinstance(op, memref.ViewOp):
            values[result] = self._carve(op, shape, values)
        else:
            source = _buffer(values, op.operands[0])
            offsets = subview_offsets(op, lambda v: _number_of(values, v))
            values[result] = view_of(op, source, offsets)

    def _carve(
        self, op: memref.ViewOp, shape: Sequence[int], values: dict[SSAValue, Value]
    ) -> Buffer:
        memory = _buffer(values, op.source).memory
        if memory is None or memory not in (self._arena, self._scratchpad):
            raise PassFailedException(
                f"{describe_location(op)}: a view of something that is no arena"
            )
        offset = _number_of(values, op.byte_shift)
        unit = self._shadow.unit
        count, width = int(np.prod(shape, dtype=np.int64)), _bits(op.result) // unit
        start = offset * 8 // unit
        size = -(-count * _bits(op.result) // 8)
        if offset < 0 or start + count * width > memory.owners.size:
            raise PassFailedException(
                f"{describe_location(op)}: {size} bytes at offset {offset} leave {memory.name}"
            )
        if memory is self._arena:
            identity = len(self._places)
            self._places[identity] = offset, size
        else:
            identity = self._new_local()
            if offset % 16:
                raise PassFailedException(
                    f"{describe_location(op)}: offset {offset} in the scratchpad is not aligned to 16 bytes"
                )
        elements = (start + np.arange(count, dtype=np.int64) * width).reshape(shape)
        return Buffer(memory, identity, elements, width, elements)

    def _new_local(self) -> int:
        self._local += 1
        return self._local

    # Calls.

    def _dispatch(self, call: func.CallOp, ordinal: int) -> None:
        callee = call.callee.string_value()

        def fail(what: str) -> NoReturn:
            raise PassFailedException(
                f"the memory plan is wrong: dispatch {ordinal}, {describe_location(call)} of @{callee}, {what}"
            )

        self._call(call, self._values, ordinal, f"@{callee}", fail)

    def _call(
        self,
        call: func.CallOp,
        outer: dict[SSAValue, Value],
        ordinal: int,
        by: str,
        fail: Fail,
    ) -> None:
        """Replay a function, on the buffers that it is called with. `by` is the dispatch."""
        function = self._functions[call.callee.string_value()]
        values: dict[SSAValue, Value] = {
            parameter: outer[argument]
            for parameter, argument in zip(function.args, call.arguments, strict=True)
        }
        self._check_apart(function, values, fail)
        self._run(function.body.block, values, ordinal, by, fail)

    def _run(
        self,
        block: Block,
        values: dict[SSAValue, Value],
        ordinal: int,
        by: str,
        fail: Fail,
    ) -> None:
        shadow = self._shadow
        for op in block.ops:
            match op:
                case func.ReturnOp() | scf.YieldOp():
                    pass
                case memref.AllocOp():
                    values[op.memref] = self._variable(op.memref, by)
                case func.CallOp():
                    self._call(op, values, ordinal, by, fail)
                case scf.ForOp():
                    self._loop(op, values, ordinal, by, fail)
                case pulp.DmaStartOp():
                    source, target = (_buffer(values, v) for v in (op.source, op.destination))
                    self._touch(source, by, ordinal)
                    self._touch(target, by, ordinal)
                    values[op.transfer] = shadow.start(source, target, fail)
                case pulp.DmaWaitOp():
                    transfer = values[op.transfer]
                    assert isinstance(transfer, Transfer)
                    shadow.wait(transfer)
                case arith.MuliOp():
                    a, b = (_number_of(values, v) for v in op.operands)
                    values[op.result] = a * b
                case _ if isinstance(op, VIEWS):
                    self._bind(op, values)
                case _:
                    self._compute(op, values, ordinal, by, fail)

    def _loop(
        self,
        op: scf.ForOp,
        values: dict[SSAValue, Value],
        ordinal: int,
        by: str,
        fail: Fail,
    ) -> None:
        low, high, step = (_number_of(values, v) for v in (op.lb, op.ub, op.step))
        variable, *carried = op.body.block.args
        current = [values[v] for v in op.iter_args]
        end = op.body.block.last_op
        assert end is not None
        for index in range(low, high, step):
            values[variable] = index
            values.update(zip(carried, current, strict=True))
            self._run(op.body.block, values, ordinal, by, fail)
            current = [values[v] for v in end.operands]
        values.update(zip(op.results, current, strict=True))

    def _compute(
        self,
        op: Operation,
        values: dict[SSAValue, Value],
        ordinal: int,
        by: str,
        fail: Fail,
    ) -> None:
        self._shadow.step += 1
        reads, writes = accesses(op)
        for value in reads:
            buffer = _buffer(values, value)
            self._touch(buffer, by, ordinal)
            self._shadow.read(buffer, fail, also_written=value in writes)
        for value in writes:
            buffer = _buffer(values, value)
            self._touch(buffer, by, ordinal)
            self._shadow.write(buffer, fail)

    def _variable(self, value: SSAValue, by: str) -> Buffer:
        """A buffer inside of a function, which is memory of its own for one call."""
        shape = cast(MemRefType[Attribute], value.type).get_shape()
        size = int(np.prod(shape, dtype=np.int64))
        elements = np.arange(size, dtype=np.int64).reshape(shape)
        memory = Memory.of(f"a variable of {by}", size)
        return Buffer(memory, self._new_local(), elements, 1, elements)

    def _check_apart(
        self, function: func.FuncOp, values: dict[SSAValue, Value], fail: Fail
    ) -> None:
        """Loop nests that share a function may run interleaved: then what one writes must be no part of another argument."""
        nests = [op for op in function.body.block.ops if isinstance(op, linalg.GenericOp)]
        if len(nests) < 2:
            return
        pairs = [accesses(op) for op in nests]
        written = {v for _, writes in pairs for v in writes if v in values}
        used = {v for reads, _ in pairs for v in reads if v in values} | written
        for value in written:
            here = _buffer(values, value)
            for other in used - {value}:
                there = _buffer(values, other)
                if here.memory is None or there.memory is not here.memory:
                    continue
                if np.intersect1d(here.listed(), there.listed()).size:
                    fail("passes loop nests the same bytes twice")

    def _touch(self, buffer: Buffer, by: str, ordinal: int) -> None:
        if buffer.memory is None or buffer.identity >= LOCAL:
            return
        first, _ = self._spans.setdefault(buffer.identity, (ordinal, ordinal))
        self._spans[buffer.identity] = first, ordinal
        self._shadow.names.setdefault(buffer.identity, by)

    # The record.

    def _check_record(self, dispatches: int) -> None:
        """Whether `qmm.plan` says what the code does."""
        record = self._main.attributes.get("qmm.plan")
        if not isinstance(record, DictionaryAttr):
            raise PassFailedException("@main has no qmm.plan")
        alignment = _number(record, "alignment")
        arena = 0 if self._arena is None else self._arena.owners.size * self._shadow.unit // 8
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


def _buffer(values: dict[SSAValue, Value], value: SSAValue) -> Buffer:
    found = values[value]
    assert isinstance(found, Buffer)
    return found


def _number_of(values: dict[SSAValue, Value], value: SSAValue) -> int:
    found = values[value]
    assert isinstance(found, int)
    return found


def _bits(value: SSAValue) -> int:
    return bit_width(cast(MemRefType[Attribute], value.type).element_type)


def _offset(op: memref.ViewOp) -> int:
    constant = op.byte_shift.owner
    if not isinstance(constant, arith.ConstantOp) or not isinstance(constant.value, IntegerAttr):
        raise PassFailedException(
            f"{describe_location(op)}: the offset in the arena is no constant"
        )
    return constant.value.value.data


def _number(record: DictionaryAttr, key: str) -> int:
    value = record.data.get(key)
    if not isinstance(value, IntegerAttr):
        raise PassFailedException(f"qmm.plan has no {key}")
    return value.value.data
