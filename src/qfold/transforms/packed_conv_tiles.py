"""How large the tiles of a convolution on packed windows are: what fits the scratchpad, then what costs least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from qfold.dialects import qkernel
from qfold.dialects.qkernel import packed_bytes_shape
from qfold.targets import Target
from qfold.transforms.matmul_tiles import block_share, operand_cycles, pieces, size_choices
from qfold.transforms.qmm_select_kernels import finishes
from qfold.transforms.staging import Operand, aligned
from qfold.transforms.tile_sequence import LOOP
from qfold.transforms.tiling_cost import (
    BLOCK,
    BYTE_CYCLES_PER_MAC,
    CALL,
    STORE_INTEGER,
    WINDOW_BYTE,
    blocks,
)
from qfold.transforms.window_spans import Run, Sliding, Span, runs

MOST_TILES = 32
"""Tiles that are written one by one, those of equal rows in a loop as one of them: more than this are not."""
BATCH, CHANNEL = "b", "m"
INPUTS, OUTPUTS = ("x0", "x1"), ("y0", "y1")
"""Spatial roles."""


@dataclass(frozen=True)
class PackedConv:
    """`y[b, m, n] = sum over k of w[m, k] * windows(x[b])[k, n]`, K = (channel, kernel position), N = output positions, and what
    follows."""

    op: qkernel.QuantConvOp
    windows: tuple[Sliding, ...]
    k: int
    batch: int
    channels: int
    """Of the output."""
    x: Operand
    w: Operand
    y: Operand
    epilogue: tuple[Operand, ...]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The spatial shape of the output."""
        return tuple(w.outputs for w in self.windows)


@dataclass(frozen=True)
class ConvTiles:
    """A tile of the output has so many channels of so many rows, or of a part of one row."""

    channels: int
    spatial: tuple[int, ...]
    double: bool
    """Two sets of buffers for what goes by, so that transfers go on during the work."""


@dataclass(frozen=True)
class Positions:
    """The output positions of a tile, dimension by dimension."""

    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        return prod(s.count for s in self.spans)

    @property
    def sizes(self) -> dict[str, int]:
        inputs = {role: s.input_count for role, s in zip(INPUTS, self.spans, strict=False)}
        outputs = {role: s.count for role, s in zip(OUTPUTS, self.spans, strict=False)}
        return {BATCH: 1, **inputs, **outputs}


class ConvTiler:
    """The choices for one convolution on `target`."""

    def __init__(self, problem: PackedConv, target: Target):
        self._p, self._cores, self._budget = problem, target.cores, target.scratchpad_bytes
        self.finished = finishes(problem.op, qkernel.PackedQuantMatmulOp.name, target)
        """Whether the kernel runs the epilogue itself; or a loop nest does, on accumulators in L1."""

    # Operands, by what they come with.

    @cached_property
    def _others(self) -> list[Operand]:
        return list(dict.fromkeys(self._p.epilogue))

    @cached_property
    def constant(self) -> list[Operand]:
        """Brought once."""
        return [o for o in self._others if not o.depends_on(CHANNEL, BATCH, *OUTPUTS)]

    @cached_property
    def per_channel(self) -> list[Operand]:
        """Brought with the weights of channels."""
        rows = [
            o for o in self._others if o.depends_on(CHANNEL) and not o.depends_on(BATCH, *OUTPUTS)
        ]
        return [self._p.w, *rows]

    @cached_property
    def per_position(self) -> list[Operand]:
        """Brought with a part of the image."""
        positions = [
            o for o in self._others if o.depends_on(BATCH, *OUTPUTS) and not o.depends_on(CHANNEL)
        ]
        return [self._p.x, *positions]

    @cached_property
    def per_element(self) -> list[Operand]:
        """Brought for each tile of the output."""
        return [o for o in self._others if o.depends_on(CHANNEL) and o.depends_on(BATCH, *OUTPUTS)]

    @property
    def accumulates_in_place(self) -> bool:
        """Whether accumulators that a loop nest finishes have the place of what it makes of them."""
        return self.finished or self._p.y.element == self._p.op.ACCUMULATOR

    def resident(self, tiles: ConvTiles) -> bool:
        """Whether the weights of all channels stay in L1 while positions go by."""
        return tiles.channels == self._p.channels

    def rows(self, tiles: ConvTiles) -> list[Span | Run]:
        """The tiles along the first spatial dimension, in order."""
        return runs(self._p.windows[0].spans(tiles.spatial[0]), LOOP)

    def across(self, tiles: ConvTiles) -> list[tuple[Span, ...]]:
        """The tiles along the other one, for each of `rows`."""
        if len(tiles.spatial) == 1:
            return [()]
        return [(span,) for span in self._p.windows[1].spans(tiles.spatial[1])]

    def _counted(self, tiles: ConvTiles) -> Counter[tuple[int, Positions]]:
        """(number in the code, positions) of each kind of tile -> how often it comes in an image."""
        found: Counter[tuple[int, Positions]] = Counter()
        rows, across = self.rows(tiles), self.across(tiles)
        for i, row in enumerate(rows):
            span, count = (row.first, row.count) if isinstance(row, Run) else (row, 1)
            for j, rest in enumerate(across):
                found[i * len(across) + j, Positions((span, *rest))] += count
        return found

    # What fits.

    def candidates(self) -> list[ConvTiles]:
        """What fits, best first."""
        found: list[tuple[int, int, int, ConvTiles]] = []
        for index, tiles in enumerate(self._all()):
            counted = self._counted(tiles)
            if self._fits(tiles, counted):
                found.append((self._cycles(tiles, counted), -tiles.channels, index, tiles))
        return [tiles for *_, tiles in sorted(found, key=lambda f: f[:3])]

    def _all(self) -> Iterator[ConvTiles]:
        p = self._p
        rows, *rest = p.outputs
        shapes = [(r, *rest) for r in size_choices(rows, 1)]
        if rest:
            shapes += [(1, c) for c in size_choices(rest[0], BLOCK)[1:]]
        for spatial in shapes:
            for channels in size_choices(p.channels, BLOCK):
                several = channels < p.channels or spatial != p.outputs
                for double in (False, True) if several else (False,):
                    yield ConvTiles(channels, spatial, double)

    def _fits(self, tiles: ConvTiles, counted: Counter[tuple[int, Positions]]) -> bool:
        if len(counted) > MOST_TILES:
            return False
        if any(s.input_count < 1 for _, t in counted for s in t.spans):
            return False
        moved = [*self.constant, *self.per_channel, *self.per_position, *self.per_element]
        for _, tile in counted:
            sizes = tile.sizes | {CHANNEL: tiles.channels}
            if self._bytes(tiles, tile, sizes) > self._budget:
                return False
            if not all(o.moves(sizes) for o in (*moved, self._p.y)):
                return False
        return True

    def _bytes(self, tiles: ConvTiles, tile: Positions, sizes: Mapping[str, int]) -> int:
        """The most bytes of L1 that are in use at once, buffers aligned."""

        def total(operands: Iterable[Operand]) -> int:
            return sum(o.tile_bytes(sizes) for o in operands)

        sets = 2 if tiles.double else 1
        packed = aligned(prod(packed_bytes_shape(self._p.k, tile.count)))
        output = total([*self.per_element, self._p.y])
        accumulators = 0
        if not self.accumulates_in_place:
            accumulators = aligned(4 * tiles.channels * tile.count)
        stay = total(self.constant) + packed
        if self.resident(tiles):
            moving = sets * (total(self.per_position) + output)
            return stay + total(self.per_channel) + moving + accumulators
        moving = sets * (total(self.per_channel) + output) + accumulators
        image = self._p.x.tile_bytes(sizes)
        return stay + total(self.per_position) - image + max(image, moving)

    # What it costs.

    def _cycles(self, tiles: ConvTiles, counted: Counter[tuple[int, Positions]]) -> int:
        """Of the dispatch: the work of the core that has most of it, calls, and the transfers that nothing hides."""
        p = self._p
        channels = pieces(p.channels, tiles.channels)
        resident = self.resident(tiles)
        cycles = longest = 0
        for (_, tile), often in counted.items():
            here = self._packing(tile.count)
            if not resident:
                here += self._moved(self.per_position, tile.sizes)
                longest = 0
            for m, count in channels:
                sizes = tile.sizes | {CHANNEL: m}
                moved = self._moved([*self._passing(tiles), *self.per_element, p.y], sizes)
                work = self._product(m, tile.count)
                if resident and tiles.double:
                    here = max(here + work, moved)
                else:
                    here += count * (max(moved, work) if tiles.double else moved + work)
                longest = max(longest, moved)
            # The first operands and the last results have nothing to hide behind.
            here += longest if tiles.double and not resident else 0
            cycles += often * here
        if resident:
            once = [*self.per_channel, *self.constant]
            if tiles.double:
                # Rows of several tiles do not overlap.
                rows = sum(r.count if isinstance(r, Run) else 1 for r in self.rows(tiles))
                cycles += longest * (rows if len(self.across(tiles)) > 1 else 1)
            return p.batch * cycles + self._moved(once, {})
        return p.batch * cycles + self._moved(self.constant, {})

    def _passing(self, tiles: ConvTiles) -> list[Operand]:
        return self.per_position if self.resident(tiles) else self.per_channel

    def _moved(self, operands: Iterable[Operand], sizes: Mapping[str, int]) -> int:
        return sum(operand_cycles(o, sizes) for o in operands)

    def _packing(self, n: int) -> int:
        return CALL + WINDOW_BYTE * -(-self._p.k * BLOCK * blocks(n) // self._cores)

    def _product(self, m: int, n: int) -> int:
        share = block_share(m, n, self._cores)
        cycles = CALL + int(share * (self._p.k * BYTE_CYCLES_PER_MAC + STORE_INTEGER))
        if not self.finished:
            cycles += CALL + -(-m * n // self._cores)
        return cycles
