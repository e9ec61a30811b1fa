"""Stages convolutions of which no operand fits L1 whole: tiles of output channels, and for each of them tiles of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr

from qfold.dialects import qkernel
from qfold.dialects.contraction import WORD_WINDOWS, int_array, ints, shape_of, window_of
from qfold.ir.operands import named_operands
from qfold.targets import Target
from qfold.transforms.conv_tiling import Convolution, reads_words, with_groups, word_cycles
from qfold.transforms.matmul_tiles import operand_cycles, pieces, size_choices
from qfold.transforms.staging import Operand, Range, Stage
from qfold.transforms.tile_sequence import Buffers, Use, Work, write_tiles
from qfold.transforms.tiled_symbols import tiled_symbol
from qfold.transforms.tiling_cost import CALL, CORE_CYCLES_PER_MAC, balanced, largest_share
from qfold.transforms.window_spans import Sliding, Span
from qfold.transforms.work_split import conv_split

_MOST_TILES = 32
"""Tiles of rows are written one by one: more than this are not."""
_BATCH, _CHANNEL, _ROW, _INPUT_ROW = "b", "m", "r", "x"
_ROLES = (_BATCH, _CHANNEL, _ROW)


@dataclass(frozen=True)
class ConvTiles:
    channels: int
    rows: int


class ConvRowStaging:
    """Ways to stage one convolution by channels and rows."""

    def __init__(self, op: Convolution, target: Target):
        self._op, self._target = op, target
        self._groups, self._strides, self._pads, self._dilations = window_of(op)
        kernel = (
            ints(op.kernel_shape) if isinstance(op, qkernel.WindowSumOp) else shape_of(op.w)[2:]
        )
        self._kernel = tuple(kernel)
        self._words = reads_words(op, target)
        self._depthwise = self._groups > 1 and (
            self._groups == shape_of(op.x)[1] == shape_of(op.y)[1]
        )

    def _rows(self, size: int) -> list[Span]:
        """The tiles of `size` output rows."""
        inputs, outputs = shape_of(self._op.x)[2], shape_of(self._op.y)[2]
        rows = Sliding(
            inputs,
            outputs,
            self._kernel[0],
            self._strides[0],
            self._pads[0],
            self._dilations[0],
        )
        return rows.spans(size)

    def _operands(self, stage: Stage) -> list[tuple[Operand, str]] | None:
        """Each operand with its name; None when an epilogue operand is read at indices that are computed."""
        op = self._op
        found: list[tuple[Operand, str]] = []
        maps = iter(() if isinstance(op, qkernel.WindowSumOp) else op.maps)
        for name, value in named_operands(op):
            rank = len(shape_of(value))
            roles: list[str | int] = [f"d{d}" for d in range(rank)]
            if name == "epilogue_operands":
                for d, expression in enumerate(next(maps).results):
                    used = expression.used_dims() & {0, 1, 2}
                    if used and not isinstance(expression, AffineDimExpr):
                        return None
                    if used:
                        roles[d] = _ROLES[used.pop()]
            elif name in ("x", "y", "window_sum"):
                roles[0] = _BATCH
                roles[2] = _INPUT_ROW if name == "x" else _ROW
                if name == "y" or self._depthwise:
                    roles[1] = _CHANNEL
            elif rank:
                roles[0] = _CHANNEL
            found.append((Operand(stage.argument(value), tuple(roles)), name))
        return found

    def choices(self, stage: Stage) -> Sequence[ConvTiles]:
        """What fits, best first."""
        operands = self._operands(stage)
        if operands is None or any(0 in o.type.get_shape() for o, _ in operands):
            return []
        channels = shape_of(self._op.y)[1]
        whole_groups = self._groups == 1 or self._depthwise
        found: list[tuple[int, int, ConvTiles]] = []
        for size in size_choices(channels, 1) if whole_groups else [channels]:
            for rows in size_choices(shape_of(self._op.y)[2], 1):
                tiles = ConvTiles(size, rows)
                if self._fits(tiles, operands):
                    found.append((self._cycles(tiles, operands), -rows, tiles))
        return [tiles for _, _, tiles in sorted(found, key=lambda x: x[:2])]

    def _fits(self, tiles: ConvTiles, operands: Sequence[tuple[Operand, str]]) -> bool:
        rows = self._rows(tiles.rows)
        if len(rows) > _MOST_TILES or any(r.input_count < 1 for r in rows):
            return False
        sizes = self._sizes(tiles.channels, max(rows, key=lambda r: r.input_count))
        sets = 2 if len(rows) > 1 else 1
        used = sum(
            o.tile_bytes(sizes) * (sets if o.depends_on(_ROW, _INPUT_ROW) else 1)
            for o, _ in operands
        )
        return used <= self._target.scratchpad_bytes and all(o.moves(sizes) for o, _ in operands)

    def _sizes(self, channels: int, rows: Span) -> dict[str, int]:
        return {_BATCH: 1, _CHANNEL: channels, _ROW: rows.count, _INPUT_ROW: rows.input_count}

    def _cycles(self, tiles: ConvTiles, operands: Sequence[tuple[Operand, str]]) -> int:
        batch, channels, _, *rest = shape_of(self._op.y)
        taps = prod(self._kernel) * shape_of(self._op.x)[1] // self._groups
        cycles = 0
        for size, count in pieces(channels, tiles.channels):
            for rows in self._rows(tiles.rows):
                sizes = self._sizes(size, rows)
                counts = (size, rows.count, *rest)
                work = CALL + self._work(counts, taps)
                moved = sum(
                    operand_cycles(o, sizes) for o, _ in operands if o.depends_on(_ROW, _INPUT_ROW)
                )
                cycles += count * max(work, moved)
            whole = self._sizes(size, self._rows(tiles.rows)[0])
            cycles += count * sum(
                operand_cycles(o, whole) for o, _ in operands if not o.depends_on(_ROW, _INPUT_ROW)
            )
        return batch * cycles

    def _work(self, counts: tuple[int, ...], taps: int) -> int:
        cores = self._target.cores
        if self._words:
            divided = balanced((*counts[:-1], 1), cores)
            return largest_share(counts, divided) * word_cycles(self._op)
        return largest_share(counts, conv_split(counts, cores)) * taps * CORE_CYCLES_PER_MAC

    def write(self, stage: Stage, tiles: ConvTiles) -> None:
        operands = self._operands(stage)
        assert operands is not None
        batch, channels = shape_of(self._op.y)[:2]
        moving = [o for o, _ in operands if o.depends_on(_ROW, _INPUT_ROW)]
        output = next(o for o, name in operands if name == "y")
        uses = [Use(o, reads=o is not output, writes=o is output) for o in dict.fromkeys(moving)]
        staying = [o for o, _ in operands if o not in moving]
        for n, _ in stage.tiles(batch, 1):
            for m, size in stage.tiles(channels, tiles.channels):
                parts = {_BATCH: Range(n, 1), _CHANNEL: Range(m, size)}
                buffers: dict[Operand, SSAValue] = {}
                transfers: list[SSAValue] = []
                for operand in dict.fromkeys(staying):
                    name = f"{operand.value.name_hint or 'operand'}_tile"
                    buffers[operand], transfer = stage.fetch(operand, parts, name)
                    transfers.append(transfer)
                stage.wait(*transfers)
                write_tiles(stage, uses, self._parts(tiles.rows, parts, stage, operands, buffers))

    def _parts(
        self,
        size: int,
        parts: Mapping[str, Range],
        stage: Stage,
        operands: Sequence[tuple[Operand, str]],
        staying: Mapping[Operand, SSAValue],
    ) -> Iterator[tuple[dict[str, Range], Work]]:
        """The parts of each tile of rows, and its work."""
        for rows in self._rows(size):
            here = {
                **parts,
                _ROW: Range(rows.first, rows.count),
                _INPUT_ROW: Range(rows.input_first, rows.input_count),
            }

            def work(buffers: Buffers, _: Mapping[str, Range], rows: Span = rows) -> None:
                known = {**staying, **buffers}
                self._call(stage, [known[o] for o, _ in operands], rows)

            yield here, work

    def _call(self, stage: Stage, buffers: Sequence[SSAValue], rows: Span) -> None:
        def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
            copy = self._op.clone()
            copy.operands = values
            for new, original in zip(copy.walk(), self._op.walk(), strict=True):
                new.location = original.location
            rank = len(self._kernel)
            pads = list(self._pads)
            pads[0], pads[rank] = rows.before, rows.after
            copy.properties["pads"] = int_array(pads)
            with_groups(copy)
            if self._words:
                copy.attributes[WORD_WINDOWS] = UnitAttr()
            return [copy]

        stage.call(tiled_symbol, buffers, make)
