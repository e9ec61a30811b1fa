"""Stages everything but matmuls: operands whole in L1, or tiles along one parallel dimension of what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from qfold.dialects.contraction import shape_of
from qfold.ir.generics import indexing_maps, loop_extents
from qfold.ir.shared_loops import accesses, loaded, shared_loops
from qfold.targets import Target
from qfold.transforms.matmul_tiles import operand_cycles, pieces, size_choices
from qfold.transforms.staging import Operand, Range, Stage
from qfold.transforms.tile_sequence import Buffers, TileSequence, Use
from qfold.transforms.tiled_symbols import tiled_symbol
from qfold.transforms.tiling_cost import CALL, L2_ACCESS, LOAD, balanced, largest_share
from qfold.transforms.work_split import loop_counts

TILED = "t"
"""The role of the dimension that tiles are cut along."""


@dataclass
class Argument:
    """How the ops of a function use one of its parameters."""

    value: SSAValue
    reads: bool = False
    """Whether its elements are read before they are written."""
    writes: bool = False
    captured: bool = False
    """Whether bodies load from it, at indices that they compute."""
    touched: bool = False
    """Whether any element of it is read or written: it may be there for its shape alone."""
    scratch: bool = False
    """Whether nobody else uses it: then it needs to be in L1 only."""

    @property
    def stays(self) -> bool:
        """Whether it is no tile: it is not touched, or only here and there."""
        return self.captured or not self.touched


@dataclass(frozen=True)
class Dimension:
    """A dimension that tiles may be cut along: its extent, and which dimension of each parameter it is (None: of none)."""

    extent: int
    where: Mapping[SSAValue, int | None]
    loop: int
    """Which of the loops that cores may divide it is."""


@dataclass(frozen=True)
class Cut:
    """One way to stage: tiles of `size` along `dimension`; None: everything whole."""

    dimension: Dimension | None = None
    size: int = 0
    double: bool = False
    """Two sets of buffers take turns."""


@dataclass
class Work:
    """What a function does, as far as staging is concerned."""

    ops: Sequence[Operation]
    """Everything in it but the return."""
    arguments: list[Argument]
    dimensions: list[Dimension]
    loads: int
    """Elements that all its loops load and store together."""
    counts: tuple[int, ...]
    """Iterations of the loops that cores may divide."""
    adapt: Callable[[Operation, int | None], None] = field(default=lambda op, size: None)
    """Changes a copy of one of the ops for tiles of a size."""


class LoopStaging:
    """Ways to stage the work of one function."""

    def __init__(self, work: Work, target: Target):
        self._work, self._target = work, target

    @cached_property
    def _used(self) -> list[Argument]:
        return [a for a in self._work.arguments if not a.stays]

    def choices(self, stage: Stage) -> Sequence[Cut]:
        """What fits and costs less than working on L2, best first."""
        if any(a.captured and a.writes for a in self._work.arguments):
            return []
        if any(0 in shape_of(a.value) for a in self._work.arguments):
            return []
        budget = self._target.scratchpad_bytes
        found = [
            (self._cycles(cut), -cut.size, index, cut)
            for index, cut in enumerate(self._cuts())
            if self._bytes(cut) <= budget and self._moves(cut)
        ]
        limit = self._compute(self._work.counts) * (LOAD + L2_ACCESS) // LOAD
        return [cut for cycles, _, _, cut in sorted(found, key=lambda x: x[:3]) if cycles < limit]

    def _cuts(self) -> Iterator[Cut]:
        yield Cut()
        tables = [a.value for a in self._work.arguments if a.captured]
        for dimension in self._work.dimensions:
            if any(dimension.where.get(v) is not None for v in tables):
                continue  # bodies count its elements from the first
            for size in size_choices(dimension.extent, 1)[1:]:
                yield Cut(dimension, size)
                yield Cut(dimension, size, double=True)

    def _operand(self, argument: Argument, value: SSAValue, cut: Cut) -> Operand:
        where = None if cut.dimension is None else cut.dimension.where.get(argument.value)
        rank = len(shape_of(argument.value))
        return Operand(value, tuple(TILED if d == where else f"d{d}" for d in range(rank)))

    def _bytes(self, cut: Cut) -> int:
        sizes = _sizes(cut)
        total = 0
        for a in self._used:
            operand = self._operand(a, a.value, cut)
            sets = 2 if cut.double and operand.depends_on(TILED) and not a.scratch else 1
            total += sets * operand.tile_bytes(sizes)
        return total

    def _moves(self, cut: Cut) -> bool:
        return all(self._operand(a, a.value, cut).moves(_sizes(cut)) for a in self._used)

    def _cycles(self, cut: Cut) -> int:
        """Of the work, of calls, and of the transfers that nothing hides."""
        operands = [(a, self._operand(a, a.value, cut)) for a in self._used]

        def moved(sizes: Mapping[str, int], *, tiled: bool) -> int:
            return sum(
                (int(a.reads) + int(a.writes)) * operand_cycles(o, sizes)
                for a, o in operands
                if o.depends_on(TILED) == tiled and not a.scratch
            )

        cycles = moved({}, tiled=False)
        if cut.dimension is None:
            return cycles + CALL + self._compute(self._work.counts)
        longest = 0
        for size, count in pieces(cut.dimension.extent, cut.size):
            counts = list(self._work.counts)
            counts[cut.dimension.loop] = size
            work = CALL + self._compute(tuple(counts))
            transfers = moved({TILED: size}, tiled=True)
            longest = max(longest, transfers)
            cycles += count * (max(work, transfers) if cut.double else work + transfers)
        return cycles + (longest if cut.double else 0)

    def _compute(self, counts: tuple[int, ...]) -> int:
        """Of the core that has most to do, when the loops have `counts` iterations."""
        share = largest_share(counts, balanced(counts, self._target.cores))
        return LOAD * self._work.loads * share // prod(self._work.counts)

    def write(self, stage: Stage, cut: Cut) -> None:
        values = {a.value: stage.argument(a.value) for a in self._work.arguments}
        operands = {a.value: self._operand(a, values[a.value], cut) for a in self._used}
        once = [a for a in self._used if not operands[a.value].depends_on(TILED)]
        tiled = [a for a in self._used if operands[a.value].depends_on(TILED)]
        buffers: dict[SSAValue, SSAValue] = {a.value: values[a.value] for a in self._stays}
        stage.wait(*self._bring(stage, once, operands, buffers))
        if cut.dimension is None:
            self._call(stage, buffers, None, cut)
        else:
            moved = [a for a in tiled if not a.scratch]
            uses = [Use(operands[a.value], a.reads, a.writes) for a in moved]
            shapes = {
                a.value: operand
                for a in self._stays
                if (operand := self._operand(a, values[a.value], cut)).depends_on(TILED)
            }

            def work(tiles: Buffers, parts: Mapping[str, Range]) -> None:
                here = buffers | {a.value: tiles[operands[a.value]] for a in moved}
                for a in tiled:
                    if a.scratch:
                        here[a.value] = self._scratch(stage, operands[a.value], parts)
                # What is there for its shape alone has the tile's.
                here |= {value: stage.part(o, parts) for value, o in shapes.items()}
                self._call(stage, here, parts[TILED].size, cut)

            sequence = TileSequence(TILED, cut.dimension.extent, cut.size, cut.double)
            sequence.write(stage, uses, {}, work)
        written = [a.value for a in once if a.writes and not a.scratch]
        stage.wait(*[stage.start(buffers[v], operands[v].value) for v in written])

    @property
    def _stays(self) -> list[Argument]:
        return [a for a in self._work.arguments if a.stays]

    def _bring(
        self,
        stage: Stage,
        arguments: Sequence[Argument],
        operands: Mapping[SSAValue, Operand],
        buffers: dict[SSAValue, SSAValue],
    ) -> list[SSAValue]:
        """Buffers for whole operands, and the transfers that fill those that are read."""
        transfers: list[SSAValue] = []
        for a in arguments:
            operand = operands[a.value]
            if a.reads:
                name = f"{a.value.name_hint or 'operand'}_whole"
                buffers[a.value], transfer = stage.fetch(operand, {}, name)
                transfers.append(transfer)
            else:
                buffers[a.value] = self._scratch(stage, operand, {})
        return transfers

    def _scratch(self, stage: Stage, operand: Operand, parts: Mapping[str, Range]) -> SSAValue:
        """A buffer for a part of an operand that nothing has to be brought to."""
        shape = [r.size for r in operand.ranges(parts)]
        name = f"{operand.value.name_hint or 'operand'}_{'tile' if parts else 'whole'}"
        return stage.alloc(operand.element, shape, name)

    def _call(
        self, stage: Stage, buffers: Mapping[SSAValue, SSAValue], size: int | None, cut: Cut
    ) -> None:
        arguments = [a.value for a in self._work.arguments]

        def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
            mapper = dict(zip(arguments, values, strict=True))
            copies: list[Operation] = []
            for op in self._work.ops:
                if isinstance(op, memref.AllocOp):
                    copy: Operation = self._variable(op, size, cut)
                    mapper[op.memref] = copy.results[0]
                else:
                    copy = op.clone(mapper)
                    for new, old in zip(copy.walk(), op.walk(), strict=True):
                        new.location = old.location
                copy.location = op.location
                self._work.adapt(copy, size)
                copies.append(copy)
            return copies

        stage.call(tiled_symbol, [buffers[v] for v in arguments], make)

    def _variable(self, op: memref.AllocOp, size: int | None, cut: Cut) -> memref.AllocOp:
        """A buffer of the function, as large as a tile needs."""
        type_ = op.memref.type
        shape = list(type_.get_shape())
        where = None if cut.dimension is None else cut.dimension.where.get(op.memref)
        if where is not None and size is not None:
            shape[where] = size
        new = MemRefType(type_.element_type, shape, type_.layout, type_.memory_space)
        return memref.AllocOp((), (), new)


def _sizes(cut: Cut) -> dict[str, int]:
    return {} if cut.dimension is None else {TILED: cut.size}


# What loop nests, fills and copies do.


def loop_work(ops: Sequence[Operation], scratch: Set[SSAValue] = frozenset()) -> Work:
    """The work of a function that holds `ops`: generics, fills, copies, and what they need.

    `scratch`: parameters that nobody uses after the call, and nobody has written before.
    """
    arguments = list(_arguments(ops))
    for argument in arguments:
        argument.scratch = argument.value in scratch and argument.touched and not argument.reads
    generics = [op for op in ops if isinstance(op, linalg.GenericOp)]
    computed = [op for op in ops if isinstance(op, linalg.FillOp | memref.CopyOp)]
    loads = 0
    for op in ops:
        if isinstance(op, linalg.GenericOp):
            extents = loop_extents(indexing_maps(op), [shape_of(v) for v, _ in accesses(op)])
            inputs = sum(1 for a in op.body.block.args[: len(op.inputs)] if a.uses)
            loads += prod(extents or ()) * (inputs + len(list(loaded(op))))
            # A scalar op takes one cycle, half of what a load is taken for.
            loads += prod(extents or ()) * len(op.body.block.ops) // LOAD
            loads += prod(shape_of(op.outputs[0]))
        elif isinstance(op, linalg.FillOp) and not generics:
            loads += prod(shape_of(op.outputs[0]))
        elif isinstance(op, memref.CopyOp):
            loads += 2 * prod(shape_of(op.destination))
    counts = loop_counts(generics) if generics else shape_of(computed[-1].operands[-1])
    return Work(ops, arguments, list(_dimensions(ops)), loads, counts)


@dataclass(frozen=True)
class _Uses:
    """The loops of an op and how it indexes its operands."""

    extents: tuple[int, ...]
    parallel: tuple[bool, ...]
    maps: tuple[tuple[SSAValue, AffineMap], ...]
    written: SSAValue


def _uses_of(op: Operation) -> _Uses | None:
    if isinstance(op, linalg.GenericOp):
        maps = tuple(accesses(op))
        extents = loop_extents(indexing_maps(op), [shape_of(v) for v, _ in maps])
        assert extents is not None
        fixed = {i.dim.value.data for i in op.walk() if isinstance(i, linalg.IndexOp)}
        parallel = tuple(
            k.data is IteratorType.PARALLEL and d not in fixed
            for d, k in enumerate(op.iterator_types)
        )
        return _Uses(extents, parallel, maps, op.outputs[0])
    if isinstance(op, linalg.FillOp | memref.CopyOp):
        values = list(op.outputs) if isinstance(op, linalg.FillOp) else list(op.operands)
        shape = shape_of(values[-1])
        identity = AffineMap.identity(len(shape))
        maps = tuple((v, identity) for v in values)
        return _Uses(shape, (True,) * len(shape), maps, values[-1])
    return None


def _arguments(ops: Sequence[Operation]) -> Iterator[Argument]:
    """The parameters that ops use, in order of the function's parameters."""
    found: dict[SSAValue, Argument] = {}

    def of(value: SSAValue) -> Argument:
        return found.setdefault(value, Argument(value))

    for op in ops:
        reads: list[SSAValue] = []
        writes: list[SSAValue] = []
        if isinstance(op, linalg.GenericOp):
            operands = [v for v, _ in accesses(op)]
            for value, argument in zip(operands, op.body.block.args, strict=True):
                of(value)
                if argument.uses:
                    reads.append(value)
            for value in loaded(op):
                of(value).captured = of(value).touched = True
            writes = list(op.outputs)
        elif isinstance(op, linalg.FillOp):
            writes = list(op.outputs)
        elif isinstance(op, memref.CopyOp):
            reads, writes = [op.source], [op.destination]
        for value in reads:
            argument = of(value)
            argument.touched = True
            argument.reads = argument.reads or not argument.writes
        for value in writes:
            of(value).writes = of(value).touched = True
    local = {op.memref for op in ops if isinstance(op, memref.AllocOp)}
    block = ops[0].parent
    assert block is not None
    yield from (found[v] for v in block.args if v in found and v not in local)


def _dimensions(ops: Sequence[Operation]) -> Iterator[Dimension]:
    """The loops that all ops have in common and that may run tile by tile."""
    generics = [op for op in ops if isinstance(op, linalg.GenericOp)]
    computes = [op for op in ops if isinstance(op, linalg.FillOp | memref.CopyOp)]
    if not generics and len(computes) > 1:
        return  # the fills of a frame, each of another shape
    nests = [u for op in generics or computes if (u := _uses_of(op)) is not None]
    if not nests:
        return
    depth = len(nests[0].extents)
    if len(generics) > 1:
        depth = shared_loops(generics).depth
    for loop in range(depth):
        extent = nests[0].extents[loop]
        if extent < 2 or not all(u.parallel[loop] for u in nests):
            continue
        where: dict[SSAValue, int | None] = {}
        if all(_place(u, loop, where) for u in nests) and all(
            where[u.written] is not None for u in nests
        ):
            yield Dimension(extent, where, loop)


def _place(uses: _Uses, loop: int, where: dict[SSAValue, int | None]) -> bool:
    """Note which dimension of each operand the loop is; False when it is more than one, or part of a computed index."""
    for value, map_ in uses.maps:
        at: int | None = None
        for d, expression in enumerate(map_.results):
            if isinstance(expression, AffineDimExpr):
                if expression.position != loop:
                    continue
                if at is not None:
                    return False
                at = d
            elif _mentions(expression, loop):
                return False
        if where.setdefault(value, at) != at:
            return False
    return True


def _mentions(expression: AffineExpr, loop: int) -> bool:
    return any(isinstance(e, AffineDimExpr) and e.position == loop for e in expression.dfs())
