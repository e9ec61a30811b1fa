"""Each compute op becomes a private function, and a call: level 2 -> the outlined part of level 3 of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    IntegerAttr,
    LocationAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    UnknownLoc,
    i64,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qkernel
from qfold.dialects.contraction import GroupedOperation, shape_of, type_of
from qfold.dialects.element_types import bit_width, byte_size
from qfold.ir.generics import indexing_maps, is_parallel, loop_extents
from qfold.ir.layouts import Layout
from qfold.ir.locations import describe_location, fuse_locations
from qfold.ir.operands import named_operands
from qfold.ir.shared_loops import SharedLoops, accesses, loaded, shared_loops, starts
from qfold.transforms.kernel_symbols import symbol_base

COMPUTE = (*qkernel.CONTRACTIONS, linalg.GenericOp, linalg.FillOp, memref.CopyOp)
VIEWS = (
    memref.CollapseShapeOp,
    memref.ExpandShapeOp,
    memref.SubviewOp,
    memref.ReinterpretCastOp,
    memref.CastOp,
)
"""Ops on memrefs that only see a buffer in another way."""

_HINTS = {"inputs": "in", "outputs": "out"}

_NEAR_BYTES = 16 * 1024
"""Loop nests share loops when what they hand to each other at one point of them stays in the nearest cache until it is read."""

_DISPATCH = 900
"""Scalar ops that take a core as long as another dispatch does, with its transfers."""


@dataclass(frozen=True)
class QmmOutlineKernelsPass(ModulePass):
    """Move each contraction and loop nest of `@main` to a private function, one for all equal contractions.

    A `linalg.fill` goes with the reduction that starts from it, so that it makes no pass over memory of its own. For the same
    reason a loop nest joins the one before it when it reads what that one writes, and both can run under common outer loops:
    a normalisation goes through each row once, and what it holds per row (a mean, a maximum) is a variable, not a buffer.
    With `join=false` each loop nest has a function of its own. Where one core does all the work (`local_bytes` not 0), a row that
    nests hand over is a buffer of the function as well, up to that many bytes: it is written again at each point of the loops.
    A nest that fewer of the `cores` could work on under common loops than by itself stays alone, if that is worth a dispatch.
    """

    name = "qmm-outline-kernels"
    join: bool = True
    local_bytes: int = 0
    cores: int = 1

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        main = main_function(op)
        outliner = _Outliner(main, {f.sym_name.data for f in functions(op)}, self.local_bytes)
        for ordinal, group in enumerate(_groups(main.body.block, self.join, self.cores)):
            outliner.outline(group, ordinal)
        outliner.fuse_locations()
        outliner.erase_unused_scalars()
        Rewriter.insert_op(outliner.functions, InsertPoint.before(main))


def functions(module: ModuleOp) -> list[func.FuncOp]:
    """The functions of a module, in order."""
    return [f for f in module.body.block.ops if isinstance(f, func.FuncOp)]


def is_staged(function: func.FuncOp) -> bool:
    """Whether `function` works by calling others: `@main`, or a dispatch that brings tiles to L1."""
    return any(isinstance(op, func.CallOp) for op in function.walk())


def main_function(module: ModuleOp) -> func.FuncOp:
    """`@main`. `PassFailedException` when there is none, or it is not on buffers yet."""
    for function in functions(module):
        if function.sym_name.data == "main" and not function.is_declaration:
            if function.function_type.outputs.data:
                raise PassFailedException("@main returns values; run qmm-bufferize first")
            return function
    raise PassFailedException("the module has no function @main")


def _groups(block: Block, join: bool, cores: int) -> Iterator[Sequence[Operation]]:
    """The compute ops of each dispatch, in order: an op, with the fill that it accumulates on, and the nests that join it."""
    group: list[Operation] = []
    for unit in _units(block):
        if not (join and _joins(group, unit, cores)):
            if group:
                yield group
            group = []
        group += unit
    if group:
        yield group


def _units(block: Block) -> Iterator[Sequence[Operation]]:
    """Each compute op, with the fill right before it if it accumulates on that."""
    fill: linalg.FillOp | None = None
    for op in list(block.ops):
        if not isinstance(op, COMPUTE):
            continue
        if fill is not None and starts(fill, op):
            yield (fill, op)
            fill = None
            continue
        if fill is not None:
            yield (fill,)
        fill = op if isinstance(op, linalg.FillOp) else None
        if fill is None:
            yield (op,)
    if fill is not None:
        yield (fill,)


def _generics(group: Sequence[Operation]) -> list[linalg.GenericOp] | None:
    """The loop nests of a group; None when it holds another compute op."""
    ops = [op for op in group if not isinstance(op, linalg.FillOp)]
    generics = [op for op in ops if isinstance(op, linalg.GenericOp)]
    return generics if generics and len(generics) == len(ops) else None


def _joins(group: Sequence[Operation], unit: Sequence[Operation], cores: int) -> bool:
    """Whether the loop nest of `unit` runs best under common loops with those of `group`, some of which it depends on."""
    together = [*group, *unit]
    if group and all(isinstance(op, linalg.FillOp) for op in together):
        return len({_root(op.operands[-1]) for op in together}) == 1  # a frame
    before, joined = _generics(group), _generics(together)
    if before is None or joined is None or not isinstance(unit[-1], linalg.GenericOp):
        return False
    written = {op.outputs[0] for op in before}
    if not any(value in written for value in joined[-1].inputs) or _aliases(joined):
        return False
    known, shared = shared_loops(before), shared_loops(joined)
    if shared.depth == 0 or (shared.points == 1 and known.points > 1):
        return False
    if _work(unit[-1]) * (cores - shared.points) > _DISPATCH * shared.points * cores:
        return False
    return sum(_bytes_per_point(v, shared) for v in _handed_over(joined)) <= _NEAR_BYTES


def _work(op: linalg.GenericOp) -> int:
    """Scalar ops that cores could divide between them: those of all points of the parallel loops, of a reduction none."""
    if not is_parallel(op):
        return 0
    extents = loop_extents(indexing_maps(op), [shape_of(v) for v, _ in accesses(op)])
    return prod(extents or ()) * len(op.body.block.ops)


def _handed_over(generics: Sequence[linalg.GenericOp]) -> set[SSAValue]:
    """What one of the ops writes and another one reads or writes."""
    written = {op.outputs[0] for op in generics}
    seen: set[SSAValue] = set()
    again: set[SSAValue] = set()
    for op in generics:
        values = {value for value, _ in accesses(op)} & written
        again |= values & seen
        seen |= values
    return again


def _bytes_per_point(value: SSAValue, shared: SharedLoops) -> int:
    return byte_size(type_of(value).get_element_type(), shared.elements_per_point(value))


def _aliases(generics: Sequence[linalg.GenericOp]) -> bool:
    """Whether one of the ops writes a buffer that is also used through another view: in which order then matters."""
    used = {v for op in generics for v in (*(value for value, _ in accesses(op)), *loaded(op))}
    return any(
        value is not other and _root(value) is _root(other)
        for value in {op.outputs[0] for op in generics}
        for other in used
    )


def _root(value: SSAValue) -> SSAValue:
    """The buffer that a memref is a view of."""
    while isinstance(value.owner, VIEWS):
        value = value.owner.operands[0]
    return value


class _Outliner:
    def __init__(self, main: func.FuncOp, taken: set[str], local_bytes: int):
        self._main = main.body.block
        self._local_bytes = local_bytes
        self._taken = taken
        self._equal: dict[str, list[func.FuncOp]] = {}
        self._locations: dict[func.FuncOp, list[LocationAttr]] = {}
        """Of everything that a function stands for."""
        self._casts: dict[SSAValue, SSAValue] = {}
        self.functions: list[func.FuncOp] = []

    def outline(self, group: Sequence[Operation], ordinal: int) -> None:
        """Replace a group of ops of main by a call."""
        variables = _variables(group, self._local_bytes)
        arguments = [
            v
            for v in dict.fromkeys(v for op in group for v in self._arguments(op))
            if v.owner not in variables
        ]
        # What is written comes last.
        last = group[-1].operands[-1] if not isinstance(group[-1], GroupedOperation) else None
        if last is not None:
            arguments.remove(last)
            arguments.append(last)
        location = _location(group)
        call_before = group[-1].next_op
        assert call_before is not None
        function = self._function([*variables, *group], arguments, location)
        operands = self._operands(arguments, call_before, location)
        call = func.CallOp(function.sym_name.data, operands, [])
        call.attributes["qmm.dispatch"] = IntegerAttr(ordinal, i64)
        call.location = location
        Rewriter.insert_op(call, InsertPoint.before(call_before))

    def _arguments(self, op: Operation) -> Iterator[SSAValue]:
        """Memrefs from outside that `op` uses: operands in the order of the assembly, then what its body loads from."""
        operands = named_operands(op)
        if isinstance(op, GroupedOperation):
            order = [name for name, _ in op.GROUPS]
            operands.sort(key=lambda pair: order.index(pair[0]))
        for _, value in operands:
            if isinstance(value.type, MemRefType):
                yield value
        for inner in op.walk():
            if inner is not op:
                for value in inner.operands:
                    if isinstance(value.type, MemRefType):
                        yield value

    def _operands(
        self, arguments: Sequence[SSAValue], before: Operation, location: LocationAttr
    ) -> list[SSAValue]:
        """The arguments with the types that the function takes: views at an offset of their own are cast to any offset."""
        operands: list[SSAValue] = []
        for value in arguments:
            type_ = argument_type(value)
            if type_ != value.type:
                if value not in self._casts:
                    cast_op = memref.CastOp.get(value, type_)
                    cast_op.location = location
                    Rewriter.insert_op(cast_op, InsertPoint.before(before))
                    self._casts[value] = cast_op.dest
                value = self._casts[value]
            operands.append(value)
        return operands

    def _function(
        self, group: Sequence[Operation], arguments: Sequence[SSAValue], location: LocationAttr
    ) -> func.FuncOp:
        """The function of a group, which is taken out of main: a new one, or an equal one that is there already."""
        kernel = group[-1]
        base = symbol_base(kernel, location)
        block = Block(arg_types=[argument_type(v) for v in arguments])
        values: dict[SSAValue, SSAValue] = dict(zip(arguments, block.args, strict=True))
        for op in group:
            op.detach()
            for inner in op.walk():
                for index, operand in enumerate(inner.operands):
                    if operand not in values and self._is_outside(operand):
                        scalar = operand.owner
                        if not isinstance(scalar, arith.ConstantOp):
                            raise PassFailedException(
                                f"{describe_location(op)} uses a scalar that is not a constant: {operand.type}"
                            )
                        clone = scalar.clone()
                        clone.location = scalar.location
                        block.add_op(clone)
                        values[operand] = clone.results[0]
                    inner.operands[index] = values.get(operand, operand)
            block.add_op(op)
        block.add_op(func.ReturnOp())
        operands = [pair for op in group for pair in reversed(named_operands(op))]
        # What is read and written is called an output.
        for name, value in sorted(operands, key=lambda pair: pair[0] == "outputs"):
            value.name_hint = _HINTS.get(name, name)
        function = func.FuncOp(base, (block.arg_types, ()), Region(block), "private")
        function.location = location
        if isinstance(kernel, qkernel.CONTRACTIONS):
            for known in self._equal.setdefault(base, []):
                name = known.sym_name
                known.properties["sym_name"] = function.sym_name
                equal = known.is_structurally_equivalent(function)
                known.properties["sym_name"] = name
                if equal:
                    self._locations[known].append(function.location)
                    return known
            self._equal[base].append(function)
            self._locations[function] = [function.location]
        function.properties["sym_name"] = StringAttr(self._unique(base))
        self.functions.append(function)
        return function

    def _is_outside(self, value: SSAValue) -> bool:
        owner = value.owner
        return owner is self._main or (isinstance(owner, Operation) and owner.parent is self._main)

    def _unique(self, base: str) -> str:
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def fuse_locations(self) -> None:
        """Give each function that several calls share the locations of them all."""
        for function, locations in self._locations.items():
            if len(locations) > 1:
                function.location = _kernel(function).location = fuse_locations(locations)

    def erase_unused_scalars(self) -> None:
        for op in reversed(list(self._main.ops)):
            if isinstance(op, arith.ConstantOp) and not op.result.uses:
                Rewriter.erase_op(op)


def _location(group: Sequence[Operation]) -> LocationAttr:
    """That of the ops that the group is there for: a fill before one may start the reductions of many nodes."""
    location = fuse_locations(op.location for op in group if not isinstance(op, linalg.FillOp))
    if isinstance(location, UnknownLoc):
        return fuse_locations(op.location for op in group)
    return location


def _variables(group: Sequence[Operation], local_bytes: int) -> list[memref.AllocOp]:
    """The buffers that only loop nests of the group use, and of which one point of their loops has one element, or few bytes."""
    generics = _generics(group)
    if generics is None or len(generics) == 1:
        return []
    shared = shared_loops(generics)

    def is_row(value: SSAValue) -> bool:
        # Two elements of four bits share a byte: an array has no place for half a pair.
        whole = bit_width(type_of(value).get_element_type()) >= 8
        return whole and shared.points > 1 and _bytes_per_point(value, shared) <= local_bytes

    return [
        value.owner
        for value in dict.fromkeys(op.outputs[0] for op in generics)
        if isinstance(value.owner, memref.AllocOp)
        and (shared.elements_per_point(value) == 1 or is_row(value))
        and all(_user(use.operation) in group for use in value.uses)
    ]


def _user(op: Operation) -> Operation:
    """The compute op that uses a buffer, itself or in its body."""
    parent = op.parent_op()
    return parent if isinstance(parent, linalg.GenericOp) else op


def _kernel(function: func.FuncOp) -> Operation:
    return next(op for op in function.body.block.ops if isinstance(op, COMPUTE))


def argument_type(value: SSAValue) -> MemRefType[Attribute]:
    """The type of a function's parameter for `value`: any offset in place of a particular one, so that calls can share it."""
    type_ = cast(MemRefType[Attribute], value.type)
    if not type_.get_offset():
        return type_
    space = cast(IntegerAttr, type_.memory_space).value.data
    return Layout.of(type_).memref_type(type_.element_type, space, dynamic_offset=True)
