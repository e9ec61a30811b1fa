"""Tiles one after the other: bring operands, work, take results back, and meanwhile bring those of the next tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from qfold.transforms.staging import Operand, Range, Stage

Buffers = Mapping[Operand, SSAValue]
Work = Callable[[Buffers, Mapping[str, Range]], None]
"""Writes the work on one tile: (the buffer of each operand, the part of each role) -> nothing."""

LOOP = 7
"""From how many whole tiles on a loop is written: the first two and the last stay outside of it."""


@dataclass(frozen=True)
class Use:
    """An operand of each tile, and which ways it goes."""

    operand: Operand
    reads: bool = True
    writes: bool = False


@dataclass(frozen=True)
class Along:
    """How the part of one role moves from tile to tile."""

    role: str
    size: int
    step: int
    """From one tile to the next."""
    first: int = 0

    def part(self, tile: int) -> Range:
        """Of tile number `tile`."""
        return Range(self.first + tile * self.step, self.size)

    def moving(self, stage: Stage, variable: SSAValue, unit: int, tiles: int) -> Range:
        """Of the tile whose number is `variable / unit`, one of `tiles`. `step` is a multiple of `unit`."""
        window = None
        if self.first:
            window = Range(self.first, (tiles - 1) * self.step + self.size)
        return Range(stage.scaled(variable, self.step // unit), self.size, window=window)


@dataclass(frozen=True)
class TileSequence:
    """The tiles of `size` along a role of `extent`.

    `double`: two sets of buffers take turns, so that transfers go on while the cores work. Tile t then is: wait for its operands;
    start to bring those of tile t + 1; wait until the results of tile t - 2 are gone from where this one's go; work; start to
    take the results back.
    """

    role: str
    extent: int
    size: int
    double: bool

    def write(
        self, stage: Stage, uses: Sequence[Use], parts: Mapping[str, Range], work: Work
    ) -> None:
        """Write the sequence; `parts` are those of other roles."""
        whole, rest = divmod(self.extent, self.size)
        if not self.double or whole + bool(rest) < 2:
            for offset, size in stage.tiles(self.extent, self.size):
                here = {**parts, self.role: Range(offset, size)}
                tile = _Tile(stage, uses, here)
                stage.wait(*tile.bring(here))
                work(tile.buffers, here)
                stage.wait(*tile.take(here))
            return
        last = {**parts, self.role: Range(whole * self.size, rest)} if rest else None
        tiles = _Numbered(whole, [Along(self.role, self.size, self.size)], parts, last)
        _Pipeline(tiles, stage, uses, work).write()


def write_run(
    stage: Stage,
    uses: Sequence[Use],
    count: int,
    along: Sequence[Along],
    parts: Mapping[str, Range],
    work: Work,
) -> None:
    """Write `count` equal tiles, two or more, of which several roles move, each step a multiple of the first role's. Two sets of
    buffers take turns. `parts` are those of other roles."""
    _Pipeline(_Numbered(count, along, parts, None), stage, uses, work).write()


@dataclass(frozen=True)
class _Numbered:
    """Equal tiles that are numbered from 0, and perhaps a smaller one after them."""

    whole: int
    along: Sequence[Along]
    parts: Mapping[str, Range]
    last: Mapping[str, Range] | None

    @property
    def total(self) -> int:
        return self.whole + (self.last is not None)

    def at(self, tile: int) -> dict[str, Range]:
        """The parts of tile number `tile`."""
        if tile == self.whole:
            assert self.last is not None
            return dict(self.last)
        return {**self.parts, **{a.role: a.part(tile) for a in self.along}}


class _Tile:
    """A set of buffers for tiles of one size."""

    def __init__(self, stage: Stage, uses: Sequence[Use], parts: Mapping[str, Range]):
        self._stage, self._uses = stage, uses
        self.buffers: dict[Operand, SSAValue] = {}
        for use in uses:
            name = f"{use.operand.value.name_hint or 'operand'}_tile"
            self.buffers[use.operand] = stage.tile(use.operand, parts, name)

    def bring(self, parts: Mapping[str, Range]) -> list[SSAValue]:
        """Start the transfers that fill the buffers."""
        return [
            self._stage.start(self._stage.part(u.operand, parts), self.buffers[u.operand])
            for u in self._uses
            if u.reads
        ]

    def take(self, parts: Mapping[str, Range]) -> list[SSAValue]:
        """Start the transfers of what was written."""
        return [
            self._stage.start(self.buffers[u.operand], self._stage.part(u.operand, parts))
            for u in self._uses
            if u.writes
        ]


def write_tiles(
    stage: Stage,
    uses: Sequence[Use],
    tiles: Iterable[tuple[Mapping[str, Range], Work]],
    *,
    double: bool = True,
) -> None:
    """Write tiles of any shapes one by one, each with (its parts, its work). `double`: transfers go on during the work, as above.

    No operand may be read and written.
    """
    if not double:
        for parts, work in tiles:
            tile = _Tile(stage, uses, parts)
            stage.wait(*tile.bring(parts))
            work(tile.buffers, parts)
            stage.wait(*tile.take(parts))
        return
    waiting = list(tiles)
    going: list[list[SSAValue]] = [[], []]
    tile = _Tile(stage, uses, waiting[0][0])
    coming = tile.bring(waiting[0][0])
    for index, (parts, work) in enumerate(waiting):
        stage.wait(*coming)
        current = tile
        if index + 1 < len(waiting):
            following = waiting[index + 1][0]
            tile = _Tile(stage, uses, following)
            coming = tile.bring(following)
        stage.wait(*going[0])
        work(current.buffers, parts)
        going = [going[1], current.take(parts)]
    stage.wait(*going[0], *going[1])


class _Pipeline:
    def __init__(self, tiles: _Numbered, stage: Stage, uses: Sequence[Use], work: Work):
        self._tiles, self._stage, self._uses, self._work = tiles, stage, uses, work
        # A buffer that goes both ways must be empty before it is filled again.
        self._shared = any(u.reads and u.writes for u in uses)
        count = min(2, tiles.whole)
        self._sets = [_Tile(stage, uses, tiles.at(0)) for _ in range(count)]
        self._last: _Tile | None = None

    def _set(self, tile: int) -> _Tile:
        if tile < self._tiles.whole:
            return self._sets[tile % 2]
        if self._last is None:
            self._last = _Tile(self._stage, self._uses, self._tiles.at(tile))
        return self._last

    def write(self) -> None:
        tiles, stage = self._tiles, self._stage
        coming = self._set(0).bring(tiles.at(0))
        going: list[list[SSAValue]] = [[], []]
        """The transfers that take back the results of the last tile but one, and of the last."""
        done = 0
        if tiles.whole >= LOOP:
            for tile in range(2):
                coming = self._numbered(tile, coming, going)
            # The loop's last tile brings operands of one more, which must be a whole one.
            pairs = (tiles.whole - 1) // 2
            coming, going = self._pairs(pairs, coming, going)
            done = 2 * pairs
        for tile in range(done, tiles.total):
            coming = self._numbered(tile, coming, going)
        stage.wait(*going[0], *going[1])

    def _numbered(
        self, tile: int, coming: Sequence[SSAValue], going: list[list[SSAValue]]
    ) -> list[SSAValue]:
        """One tile at a known place. Returns the transfers that bring the next one's operands."""
        tiles = self._tiles
        following = None
        if tile + 1 < tiles.total:
            following = self._set(tile + 1), tiles.at(tile + 1)
        return self._step(self._set(tile), tiles.at(tile), following, coming, going)

    def _step(
        self,
        tile: _Tile,
        parts: Mapping[str, Range],
        following: tuple[_Tile, Mapping[str, Range]] | None,
        coming: Sequence[SSAValue],
        going: list[list[SSAValue]],
    ) -> list[SSAValue]:
        stage = self._stage
        stage.wait(*coming)
        if self._shared:
            stage.wait(*going[0], *going[1])
            going[:] = [[], []]
        brought = [] if following is None else following[0].bring(following[1])
        stage.wait(*going[0])
        self._work(tile.buffers, parts)
        going[:] = [going[1], tile.take(parts)]
        return brought

    def _pairs(
        self, pairs: int, coming: list[SSAValue], going: list[list[SSAValue]]
    ) -> tuple[list[SSAValue], list[list[SSAValue]]]:
        """Tiles 2 to 2 * `pairs` - 1, two at a time in a loop that carries the transfers."""
        tiles, stage = self._tiles, self._stage
        carried = [*coming, *going[0], *going[1]]
        counts = [len(coming), len(going[0]), len(going[1])]
        unit = tiles.along[0].step
        with stage.loop(2 * pairs * unit, 2 * unit, carried, start=2 * unit) as loop:
            variable, inner, handed_on = loop
            ahead, *behind = _groups(inner, counts)
            windows = {
                a.role: replace(
                    a.moving(stage, variable, unit, tiles.whole), size=2 * a.step + a.size
                )
                for a in tiles.along
            }

            def at(tile: int) -> dict[str, Range]:
                moved = {
                    a.role: Range(tile * a.step, a.size, window=windows[a.role])
                    for a in tiles.along
                }
                return {**tiles.parts, **moved}

            first, second = self._sets
            ahead = self._step(first, at(0), (second, at(1)), ahead, behind)
            ahead = self._step(second, at(1), (first, at(2)), ahead, behind)
            handed_on += [*ahead, *behind[0], *behind[1]]
        ahead, *behind = _groups(stage.results, counts)
        return ahead, behind


def _groups(values: Sequence[SSAValue], counts: Sequence[int]) -> list[list[SSAValue]]:
    """`values` in groups of so many."""
    rest = iter(values)
    return [[next(rest) for _ in range(n)] for n in counts]
