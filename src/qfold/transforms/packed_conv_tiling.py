"""Stages convolutions of bytes with one group: windows of the image are packed, and weights multiply them as rows of a matmul.

`docs/cluster.md`, "Which form a convolution takes".
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

from xdsl.dialects.builtin import i32
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineMap

from qfold.dialects import qkernel
from qfold.dialects.contraction import shape_of, window_of
from qfold.dialects.integer_operands import DATA_TYPES
from qfold.dialects.qkernel import packed_bytes_shape
from qfold.dialects.qkernel.packed_integers import STEPS
from qfold.ir.generics import cloned_epilogue
from qfold.ir.layouts import Layout
from qfold.targets import Target
from qfold.transforms.kernel_symbols import symbol_base
from qfold.transforms.matmul_leafs import finish_tile
from qfold.transforms.packed_conv_tiles import (
    BATCH,
    CHANNEL,
    INPUTS,
    OUTPUTS,
    ConvTiler,
    ConvTiles,
    PackedConv,
    Positions,
)
from qfold.transforms.staging import Operand, Range, Stage, memref_type
from qfold.transforms.tile_sequence import (
    Along,
    Buffers,
    TileSequence,
    Use,
    Work,
    write_run,
    write_tiles,
)
from qfold.transforms.tiled_symbols import tiled_symbol
from qfold.transforms.window_spans import Run, Sliding, Span

LEAFS = (qkernel.PackWindowOp, qkernel.PackedQuantMatmulOp)


def multiplies_windows(op: qkernel.QuantConvOp, target: Target) -> bool:
    """Whether `op` is a product of stored bytes with one group, and the target has kernels that multiply them by fours."""
    stored = op.x_zero_point is None and op.w_zero_point is None
    return (
        stored
        and window_of(op)[0] == 1
        and memref_type(op.w).element_type in DATA_TYPES
        and all(target.kernels_of(leaf.name) for leaf in LEAFS)
    )


class PackedConvStaging:
    """One way to stage a convolution per entry of `choices`, best first."""

    def __init__(self, op: qkernel.QuantConvOp, target: Target):
        self._op, self._target = op, target

    def choices(self, stage: Stage) -> Sequence[ConvTiles]:
        """Tile sizes that fit. `stage` is used up."""
        problem = packed_conv(self._op, stage)
        return [] if problem is None else ConvTiler(problem, self._target).candidates()

    def write(self, stage: Stage, tiles: ConvTiles) -> None:
        problem = packed_conv(self._op, stage)
        assert problem is not None
        _Writer(stage, problem, ConvTiler(problem, self._target), tiles).write()


def packed_conv(op: qkernel.QuantConvOp, stage: Stage) -> PackedConv | None:
    """How `op` looks when its operands are parameters of `stage`'s function; None when it is not one to tile."""
    if any(0 in shape_of(v) for v in op.operands) or list(op.operands).count(op.y) > 1:
        return None
    _, strides, pads, dilations = window_of(op)
    batch, channels, *outputs = shape_of(op.y)
    _, depth, *inputs = shape_of(op.x)
    kernel = shape_of(op.w)[2:]
    rank = len(kernel)
    windows = [
        Sliding(*extents)
        for extents in zip(inputs, outputs, kernel, strides, pads, dilations, strict=False)
    ]
    k = depth
    for extent in kernel:
        k *= extent
    if Layout.of(memref_type(op.w)).reshaped([channels, k]) is None:
        return None
    names = (BATCH, CHANNEL, *OUTPUTS[:rank])
    epilogue: list[Operand] = []
    for value, map_ in zip(op.epilogue_operands, op.maps, strict=True):
        roles = _roles(map_, names)
        if roles is None:
            return None
        epilogue.append(Operand(stage.argument(value), roles))
    weights = stage.collapse(stage.argument(op.w), [[0], range(1, rank + 2)])
    weights.name_hint = "w"
    return PackedConv(
        op,
        tuple(windows),
        k,
        batch,
        channels,
        Operand(stage.argument(op.x), (BATCH, "k", *INPUTS[:rank])),
        Operand(weights, (CHANNEL, "k"), row_alignment=STEPS),
        Operand(stage.argument(op.y), names),
        tuple(epilogue),
    )


def _roles(map_: AffineMap, names: Sequence[str]) -> tuple[str | int, ...] | None:
    """The roles of an epilogue operand's dimensions; None for indices that are computed, and for operands of which a matrix with
    a column per output position has no part for each."""
    roles: list[str | int] = []
    for expression in map_.results:
        if isinstance(expression, AffineConstantExpr):
            roles.append(expression.value)
        elif isinstance(expression, AffineDimExpr):
            roles.append(names[expression.position])
        else:
            return None
    used = [r for r in roles if isinstance(r, str)]
    if len(used) != len(set(used)):
        return None
    # All spatial dimensions, side by side and in order, or none.
    spatial = [r for r in used if r in OUTPUTS]
    if spatial:
        at = used.index(spatial[0])
        if used[at : at + len(spatial)] != list(names[2:]):
            return None
    return tuple(roles)


class _Writer:
    def __init__(self, stage: Stage, problem: PackedConv, tiler: ConvTiler, tiles: ConvTiles):
        self._stage, self._p = stage, problem
        self._tiler, self._tiles = tiler, tiles
        self._buffers: dict[Operand, SSAValue] = {}
        """Operands that are in L1."""

    def write(self) -> None:
        p, stage, tiler = self._p, self._stage, self._tiler
        resident = tiler.resident(self._tiles)
        staying = [*tiler.constant, *(tiler.per_channel if resident else ())]
        self._fetch(staying, {})
        for image, _ in stage.tiles(p.batch, 1):
            parts = {BATCH: Range(image, 1, keep=False)}
            if resident:
                self._image(parts)
            else:
                for here, tile in self._tiles_of(tiler.rows(self._tiles), parts):
                    self._channels(here, tile)

    def _tiles_of(
        self, rows: Sequence[Span | Run], parts: Mapping[str, Range]
    ) -> Iterator[tuple[dict[str, Range], Positions]]:
        """The parts and positions of each tile of some rows; of runs in a loop, where what is written between two steps of the
        iteration is the code of a tile."""
        across = self._tiler.across(self._tiles)
        for row in rows:
            if isinstance(row, Run):
                with self._run(row) as moved:
                    for rest in across:
                        tile = Positions((row.first, *rest))
                        yield {**parts, **_ranges(tile), **moved}, tile
            else:
                for rest in across:
                    tile = Positions((row, *rest))
                    yield {**parts, **_ranges(tile)}, tile

    @contextmanager
    def _run(self, row: Run) -> Generator[dict[str, Range]]:
        """A loop over a run, with the parts of the roles that move."""
        with self._stage.loop(row.count * row.step, row.step) as (variable, _, _):
            yield {
                a.role: a.moving(self._stage, variable, row.step, row.count) for a in _along(row)
            }

    def _fetch(self, operands: Sequence[Operand], parts: Mapping[str, Range]) -> None:
        """Bring operands to L1."""
        transfers: list[SSAValue] = []
        for operand in operands:
            name = f"{operand.value.name_hint or 'operand'}_tile"
            self._buffers[operand], transfer = self._stage.fetch(operand, parts, name)
            transfers.append(transfer)
        self._stage.wait(*transfers)

    def _image(self, parts: Mapping[str, Range]) -> None:
        """An image, tile by tile; the weights of all channels are there."""
        p, tiler, stage = self._p, self._tiler, self._stage
        uses = [Use(o) for o in (*tiler.per_position, *tiler.per_element)]
        uses.append(Use(p.y, reads=False, writes=True))
        double = self._tiles.double
        across = tiler.across(self._tiles)
        # Rows between the runs are written one by one, their transfers overlapping.
        for is_run, group in groupby(tiler.rows(self._tiles), lambda row: isinstance(row, Run)):
            rows = list(group)
            if not is_run:
                tiles = ((here, self._work(t)) for here, t in self._tiles_of(rows, parts))
                write_tiles(stage, uses, tiles, double=double)
                continue
            for row in rows:
                assert isinstance(row, Run)
                if double and len(across) == 1:
                    tile = Positions((row.first, *across[0]))
                    others = {**parts, **_ranges(tile)}
                    write_run(stage, uses, row.count, _along(row), others, self._work(tile))
                    continue
                with self._run(row) as moved:
                    written = [Positions((row.first, *rest)) for rest in across]
                    tiles = [({**parts, **_ranges(t), **moved}, self._work(t)) for t in written]
                    write_tiles(stage, uses, tiles, double=double)

    def _work(self, tile: Positions) -> Work:
        def work(buffers: Buffers, _: Mapping[str, Range]) -> None:
            self._buffers.update(buffers)
            self._product(self._packed(tile))

        return work

    def _channels(self, parts: Mapping[str, Range], tile: Positions) -> None:
        """A tile of an image, which is packed once for all channels."""
        p, tiler = self._p, self._tiler
        self._fetch(tiler.per_position, parts)
        packed = self._packed(tile)
        uses = [Use(o) for o in (*tiler.per_channel, *tiler.per_element)]
        uses.append(Use(p.y, reads=False, writes=True))

        def work(buffers: Buffers, _: Mapping[str, Range]) -> None:
            self._buffers.update(buffers)
            self._product(packed)

        sequence = TileSequence(CHANNEL, p.channels, self._tiles.channels, self._tiles.double)
        sequence.write(self._stage, uses, parts, work)

    def _packed(self, tile: Positions) -> SSAValue:
        """The windows of the part of the image that is in L1."""
        p = self._p
        x = self._buffers[p.x]
        shape = packed_bytes_shape(p.k, tile.count)
        packed = self._stage.alloc(p.x.element, shape, "packed")
        _, strides, _, dilations = window_of(p.op)

        def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
            return [
                qkernel.PackWindowOp(
                    *values,
                    kernel_shape=shape_of(p.op.w)[2:],
                    strides=strides,
                    pads=[*(s.before for s in tile.spans), *(s.after for s in tile.spans)],
                    dilations=dilations,
                    pad_value=p.op.padding or 0,
                )
            ]

        self._stage.call(symbol_base, [x, packed], make)
        return packed

    def _product(self, packed: SSAValue) -> None:
        """One tile of the output."""
        p, stage = self._p, self._stage
        y = accumulators = self._matrix(p.y)[0]
        if not self._tiler.accumulates_in_place:
            accumulators = stage.alloc(i32, memref_type(y).get_shape(), "acc_tile")
        epilogue = [self._matrix(o) for o in p.epilogue]
        finished = self._tiler.finished
        operands = [self._buffers[p.w], packed, *(v for v, _ in epilogue if finished)]

        def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
            a, panels, *rest, output = values
            return [
                qkernel.PackedQuantMatmulOp(
                    a,
                    panels,
                    output,
                    epilogue_operands=rest,
                    epilogue_maps=[m for _, m in epilogue] if finished else (),
                    epilogue=cloned_epilogue(p.op) if finished else None,
                )
            ]

        stage.call(tiled_symbol, [*operands, accumulators], make)
        if not finished:
            finish_tile(stage, p.op, accumulators, epilogue, y)

    def _matrix(self, operand: Operand) -> tuple[SSAValue, AffineMap]:
        """A tile with all output positions as one dimension, and (m, n) -> its indices."""
        value = self._buffers[operand]
        kept = [r for r in operand.kept if r != BATCH]
        groups: list[list[int]] = []
        results: list[AffineDimExpr] = []
        for d, role in enumerate(kept):
            if role in OUTPUTS and role != OUTPUTS[0]:
                groups[-1].append(d)
                continue
            groups.append([d])
            results.append(AffineDimExpr(0 if role == CHANNEL else 1))
        if any(len(g) > 1 for g in groups):
            value = self._stage.collapse(value, groups)
        return value, AffineMap(2, 0, tuple(results))


def _along(row: Run) -> list[Along]:
    """How the roles of the first spatial dimension move in a run."""
    first = row.first
    return [
        Along(OUTPUTS[0], first.count, row.step, first.first),
        Along(INPUTS[0], first.input_count, row.input_step, first.input_first),
    ]


def _ranges(tile: Positions) -> dict[str, Range]:
    """The parts of spatial roles that a tile has."""
    parts: dict[str, Range] = {}
    for inputs, outputs, span in zip(INPUTS, OUTPUTS, tile.spans, strict=False):
        parts[inputs] = Range(span.input_first, span.input_count)
        parts[outputs] = Range(span.first, span.count)
    return parts
