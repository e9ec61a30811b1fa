"""Writing staged dispatches: tiles of L2 operands, transfers to and from L1, loops over tiles, calls of leaf functions.

`docs/cluster.md`, "Level 3 on a cluster", says what such a function is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar, cast

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    LocationAttr,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    StringAttr,
    UnknownLoc,
    i64,
)
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from qfold.dialects import pulp
from qfold.dialects.element_types import bit_width, byte_size
from qfold.ir.builder import reassociation_attr
from qfold.ir.layouts import Layout, row_major
from qfold.ir.locations import fuse_locations
from qfold.ir.operands import named_operands

OpT = TypeVar("OpT", bound=Operation)
Type = MemRefType[Attribute]
Offset = int | SSAValue
"""Where a tile starts along a dimension: known, or the variable of a loop."""


@dataclass(frozen=True)
class Range:
    """A part of a dimension. Parts of one element may be dropped from the tile's shape."""

    offset: Offset
    size: int
    keep: bool = True
    window: Range | None = None
    """A larger part that `offset` counts from: how a loop names several tiles by one variable."""


def memref_type(value: SSAValue) -> Type:
    return cast(Type, value.type)


def tile_type(source: Type, ranges: Sequence[Range]) -> Type:
    """The type of `source` restricted to one range per dimension."""
    layout = Layout.of(source)
    start = source.get_offset()
    offset: int | None = start
    for part, stride in zip(ranges, layout.strides, strict=True):
        if not isinstance(part.offset, int):
            offset = None
        elif offset is not None:
            offset += part.offset * stride
    shape = [r.size for r in ranges if r.keep]
    strides = [s for r, s in zip(ranges, layout.strides, strict=True) if r.keep]
    part = Layout(tuple(shape), tuple(strides)).normalized()
    attribute: StridedLayoutAttr | NoneAttr = NoneAttr()
    if offset != 0 or part.strides != row_major(shape):
        attribute = StridedLayoutAttr(part.strides, offset)
    return MemRefType(source.element_type, shape, attribute, source.memory_space)


@dataclass(frozen=True)
class Operand:
    """A memref in L2 and what each of its dimensions stands for: tiles are cut along named dimensions.

    A role is a name (`m`, `n`, a batch loop ...), or the index at which the dimension is read, and dropped from tiles.
    """

    value: SSAValue
    roles: tuple[str | int, ...]
    unit: int = 1
    """Tiles have multiples of so many elements along a named dimension, or all of it."""
    row_alignment: int = 1
    """Rows of a tile are multiples of so many elements apart in L1."""

    @property
    def type(self) -> Type:
        return memref_type(self.value)

    @property
    def element(self) -> Attribute:
        return self.type.element_type

    @property
    def kept(self) -> tuple[str, ...]:
        """The roles of the dimensions that tiles have, when no loop is over one of them."""
        return tuple(r for r in self.roles if isinstance(r, str))

    def depends_on(self, *roles: str) -> bool:
        return any(r in roles for r in self.roles)

    def ranges(self, parts: Mapping[str, Range]) -> list[Range]:
        """One range per dimension: of its role in `parts`, or all of it."""
        found: list[Range] = []
        for role, size in zip(self.roles, self.type.get_shape(), strict=True):
            if isinstance(role, int):
                found.append(Range(role, 1, keep=False))
            else:
                part = parts.get(role, Range(0, size))
                found.append(replace(part, size=self._extent(part.size, size)))
        return found

    def _extent(self, wanted: int, size: int) -> int:
        return min(-(-wanted // self.unit) * self.unit, size)

    def tile_shape(self, sizes: Mapping[str, int]) -> list[int]:
        """The shape of a tile that has `sizes` elements along its roles (all of those that are not named)."""
        return [
            1 if isinstance(role, int) else self._extent(sizes.get(role, size), size)
            for role, size in zip(self.roles, self.type.get_shape(), strict=True)
        ]

    def padded(self, shape: Sequence[int]) -> list[int]:
        """The shape of the buffer for a tile of `shape`."""
        *rows, last = [1, *shape]
        return [*rows, -(-last // self.row_alignment) * self.row_alignment][1:]

    def tile_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the buffer for a tile of `sizes`."""
        return aligned(byte_size(self.element, prod(self.padded(self.tile_shape(sizes)))))

    def moves(self, sizes: Mapping[str, int]) -> bool:
        """Whether the DMA can move tiles of those sizes, from multiples of them on: forwards, and in whole bytes."""
        if any(s < 0 for s in Layout.of(self.type).strides):
            return False
        return not self._cuts_bytes(sizes)

    def _cuts_bytes(self, sizes: Mapping[str, int]) -> bool:
        per_byte = 8 // min(8, bit_width(self.element))
        if per_byte == 1:
            return False
        layout = Layout.of(self.type)
        run = 1
        for role, size, stride in reversed(
            list(zip(self.roles, layout.shape, layout.strides, strict=True))
        ):
            if size == 1:
                continue
            tile = sizes.get(role, size) if isinstance(role, str) else 1
            if stride != run:
                return True
            if tile < size:
                # What lies side by side ends here: it and the steps between such parts are whole bytes.
                return bool(run * tile % per_byte) or bool(run * size % per_byte)
            run *= size
        return False


ALIGNMENT = 16
"""Of buffers in the scratchpad, in bytes."""


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def argument_type(type_: Type) -> Type:
    """A leaf function's parameter for a value of `type_`: any offset in place of a particular one, so that calls can share it."""
    if not type_.get_offset():
        return type_
    layout = Layout.of(type_)
    return MemRefType(
        type_.element_type,
        type_.get_shape(),
        StridedLayoutAttr(layout.strides, None),
        type_.memory_space,
    )


class Leafs:
    """The leaf functions of a module: equal ones are made once."""

    def __init__(self, taken: set[str]):
        self._taken = taken
        self._equal: dict[str, list[func.FuncOp]] = {}
        self._locations: dict[func.FuncOp, list[LocationAttr]] = {}

    def add(self, function: func.FuncOp) -> func.FuncOp:
        """`function`, named and new, or the equal one that is there already."""
        base = function.sym_name.data
        for known in self._equal.setdefault(base, []):
            name = known.sym_name
            known.properties["sym_name"] = function.sym_name
            equal = known.is_structurally_equivalent(function)
            known.properties["sym_name"] = name
            if equal:
                self._locations[known].append(function.location)
                return known
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        function.properties["sym_name"] = StringAttr(name)
        self._equal[base].append(function)
        self._locations[function] = [function.location]
        return function

    def fuse_locations(self) -> None:
        """Give each function, and what it holds, the locations of everything that it was made for."""
        for function, locations in self._locations.items():
            if len(locations) > 1:
                location = fuse_locations(locations)
                function.location = location
                for op in function.body.block.ops:
                    if not isinstance(op, func.ReturnOp | arith.ConstantOp):
                        op.location = location


class Stage:
    """Writes the body of one staged dispatch, from its start."""

    def __init__(self, function: func.FuncOp, space: int, location: LocationAttr):
        self._space = space
        self._location = location
        self.block = Block(arg_types=function.body.block.arg_types)
        for new, old in zip(self.block.args, function.args, strict=True):
            new.name_hint = old.name_hint
        self._entry = self.block
        self._constants: dict[int, SSAValue] = {}
        self._last_constant: Operation | None = None
        self.results: list[SSAValue] = []
        """Of the last loop."""
        self.calls: list[tuple[func.CallOp, func.FuncOp]] = []
        """Calls, each with the leaf function that it is for."""

    def argument(self, old: SSAValue) -> SSAValue:
        """The parameter that takes the place of a parameter of the function as it was."""
        assert isinstance(old, BlockArgument)
        return self._entry.args[old.index]

    def insert(self, op: OpT) -> OpT:
        for inner in op.walk():
            if isinstance(inner.location, UnknownLoc):
                inner.location = self._location
        self.block.add_op(op)
        return op

    def finish(self) -> Block:
        self.insert(func.ReturnOp())
        return self._entry

    def index(self, value: int) -> SSAValue:
        """A constant, at the start of the function."""
        if value not in self._constants:
            op = arith.ConstantOp.from_int_and_width(value, IndexType())
            op.location = self._location
            first = self._entry.first_op
            if self._last_constant is not None:
                self._entry.insert_op_after(op, self._last_constant)
            elif first is not None:
                self._entry.insert_op_before(op, first)
            else:
                self._entry.add_op(op)
            self._last_constant = op
            self._constants[value] = op.result
        return self._constants[value]

    # Memory.

    def alloc(self, element: Attribute, shape: Sequence[int], name: str) -> SSAValue:
        """A dense buffer in L1."""
        type_ = MemRefType(element, shape, NoneAttr(), IntegerAttr(self._space, i64))
        value = self.insert(memref.AllocOp((), (), type_)).memref
        value.name_hint = name
        return value

    def view(self, source: SSAValue, ranges: Sequence[Range]) -> SSAValue:
        """A part of `source`: itself when that is all of it."""
        if any(r.window is not None for r in ranges):
            shape = memref_type(source).get_shape()
            windows = [
                Range(0, n) if r.window is None else r.window
                for r, n in zip(ranges, shape, strict=True)
            ]
            source = self.view(source, windows)
            ranges = [replace(r, window=None) for r in ranges]
        source_type = memref_type(source)
        whole = all(
            r.keep and r.offset == 0 and r.size == n
            for r, n in zip(ranges, source_type.get_shape(), strict=True)
        )
        if whole:
            return source
        op = memref.SubviewOp.get(
            source,
            [r.offset for r in ranges],
            [r.size for r in ranges],
            [1] * len(ranges),
            tile_type(source_type, ranges),
        )
        return self.insert(op).result

    def part(self, operand: Operand, parts: Mapping[str, Range]) -> SSAValue:
        """The tile of an operand, where it is."""
        return self.view(operand.value, operand.ranges(parts))

    def collapse(self, source: SSAValue, groups: Sequence[Sequence[int]]) -> SSAValue:
        """`source` with the dimensions of each group as one. `ValueError` where its strides do not allow it."""
        type_ = memref_type(source)
        shape = [prod(type_.get_shape()[d] for d in g) for g in groups]
        layout = Layout.of(type_).reshaped(shape)
        if layout is None:
            raise ValueError(f"{type_} cannot be seen as {shape} without a copy")
        offset = type_.get_offset()
        attribute: StridedLayoutAttr | NoneAttr = NoneAttr()
        if offset != 0 or layout.strides != row_major(shape):
            attribute = StridedLayoutAttr(layout.strides, offset)
        result = MemRefType(type_.element_type, shape, attribute, type_.memory_space)
        op = memref.CollapseShapeOp(
            operands=[source],
            result_types=[result],
            properties={"reassociation": reassociation_attr(groups)},
        )
        return self.insert(op).results[0]

    def reshape(self, source: SSAValue, shape: Sequence[int]) -> SSAValue:
        """`source`, which is dense, with another shape of as many elements."""
        flat = self.collapse(source, [range(len(memref_type(source).get_shape()))])
        type_ = memref_type(flat)
        attribute: StridedLayoutAttr | NoneAttr = NoneAttr()
        if (offset := type_.get_offset()) != 0:
            attribute = StridedLayoutAttr(row_major(shape), offset)
        result = MemRefType(type_.element_type, shape, attribute, type_.memory_space)
        groups = reassociation_attr([range(len(shape))])
        return self.insert(
            memref.ExpandShapeOp(
                operands=[flat, []],
                result_types=[result],
                properties={
                    "reassociation": groups,
                    "static_output_shape": DenseArrayBase.from_list(i64, shape),
                },
            )
        ).results[0]

    def tile(self, operand: Operand, parts: Mapping[str, Range], name: str) -> SSAValue:
        """A new buffer in L1 for a tile of an operand."""
        shape = [r.size for r in operand.ranges(parts) if r.keep]
        buffer = self.alloc(operand.element, operand.padded(shape), name)
        return self.view(buffer, [Range(0, n) for n in shape])

    # Transfers.

    def start(self, source: SSAValue, destination: SSAValue) -> SSAValue:
        return self.insert(pulp.DmaStartOp(source, destination)).transfer

    def wait(self, *transfers: SSAValue) -> None:
        for transfer in transfers:
            self.insert(pulp.DmaWaitOp(transfer))

    def fetch(
        self, operand: Operand, parts: Mapping[str, Range], name: str
    ) -> tuple[SSAValue, SSAValue]:
        """(a new buffer in L1, the transfer that fills it with the operand's tile)."""
        source = self.part(operand, parts)
        buffer = self.tile(operand, parts, name)
        return buffer, self.start(source, buffer)

    # Control.

    def scaled(self, variable: SSAValue, factor: int) -> SSAValue:
        """An index times a constant."""
        if factor == 1:
            return variable
        return self.insert(arith.MuliOp(variable, self.index(factor))).result

    @contextmanager
    def loop(
        self, stop: int, step: int, carried: Sequence[SSAValue] = (), *, start: int = 0
    ) -> Generator[tuple[SSAValue, list[SSAValue], list[SSAValue]]]:
        """`scf.for`: (variable, what is carried, list to append what is carried on to). `results` has its results afterwards."""
        body = Block(arg_types=[IndexType(), *(v.type for v in carried)])
        bounds = [self.index(v) for v in (start, stop, step)]
        outer = self.block
        self.block = body
        handed_on: list[SSAValue] = []
        yield body.args[0], list(body.args[1:]), handed_on
        self.insert(scf.YieldOp(*handed_on))
        self.block = outer
        op = self.insert(scf.ForOp(bounds[0], bounds[1], bounds[2], carried, Region(body)))
        self.results = list(op.results)

    def tiles(self, extent: int, size: int) -> Iterator[tuple[Offset, int]]:
        """(start, size) of each tile of a dimension: once for whole ones, in a loop when there are several, once for the rest.

        What is written between two steps of the iteration is the code of a tile.
        """
        whole = extent // size
        if whole > 1:
            with self.loop(whole * size, size) as (variable, _, _):
                yield variable, size
        elif whole:
            yield 0, size
        if extent % size:
            yield whole * size, extent % size

    # Leaf functions.

    def call(
        self,
        name: Callable[[Operation, LocationAttr], str],
        operands: Sequence[SSAValue],
        make: Callable[[Sequence[SSAValue]], Sequence[Operation]],
    ) -> None:
        """Call the leaf function whose ops `make` makes from its parameters, one for each of `operands` (equal ones once)."""
        unique = list(dict.fromkeys(operands))
        types = [argument_type(memref_type(v)) for v in unique]
        block = Block(arg_types=types)
        parameters = dict(zip(unique, block.args, strict=True))
        ops = make([parameters[v] for v in operands])
        block.add_ops(ops)
        block.add_op(func.ReturnOp())
        for op in ops:
            for inner in op.walk():
                if isinstance(inner.location, UnknownLoc):
                    inner.location = self._location
            hints = [] if not op.operands else named_operands(op)
            for hint, value in hints:
                if value in block.args:
                    value.name_hint = {"inputs": "in", "outputs": "out"}.get(hint, hint)
        base = name(ops[-1], self._location)
        leaf = func.FuncOp(base, (block.arg_types, ()), Region(block), "private")
        leaf.location = self._location
        arguments: list[SSAValue] = []
        for value, type_ in zip(unique, types, strict=True):
            if value.type != type_:
                value = self.insert(memref.CastOp.get(value, type_)).dest
            arguments.append(value)
        call = self.insert(func.CallOp(base, arguments, []))
        self.calls.append((call, leaf))
