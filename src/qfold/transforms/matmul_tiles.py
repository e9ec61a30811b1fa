"""How large the tiles of a matmul are: what fits the scratchpad, then what costs least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import f32

from qfold.dialects.element_types import byte_size
from qfold.dialects.qkernel import packed_shape
from qfold.transforms.matmul_operands import Problem
from qfold.transforms.staging import Operand, aligned
from qfold.transforms.tiling_cost import (
    BLOCK,
    CALL,
    CORE_CYCLES_PER_MAC,
    L2_ACCESS,
    balanced,
    best_grid,
    blocks,
    largest_share,
    transfer_cycles,
)

_SMALLER = 6
"""How many more tiles than fit are tried along the rows: a tile less of it may divide better over the cores."""


@dataclass(frozen=True)
class Form:
    """What becomes of a matmul."""

    packed: bool
    """Weights are made floats once per tile; or read as they are."""
    finished: bool
    """The kernel runs the epilogue itself; or a loop nest does, on accumulators in L1."""


@dataclass(frozen=True)
class Tiles:
    m: int
    n: int
    resident: bool
    """All rows of the activation stay in L1 while tiles of columns go by. Else tiles of rows go by, for each tile of columns."""
    double: bool
    """Two sets of buffers for what goes by, so that transfers go on during the work."""


class MatmulTiler:
    """The choices for one problem and form on `cores` cores with `budget` bytes of L1."""

    def __init__(self, problem: Problem, form: Form, cores: int, budget: int):
        self._p, self.form, self._cores, self._budget = problem, form, cores, budget
        own = [b.role for b in problem.matrices(weight=False)]
        varying = [*own, "m"]
        loops = [b.role for b in problem.batches] + ["n"]
        operands = list(problem.epilogue)
        if not form.packed:
            operands += [o for o in (problem.scale, problem.zero_point, problem.row_sum) if o]
        elif problem.block is None and problem.scale is not None:
            operands.append(problem.scale)
        # What comes twice, such as a scale that is a bias too, is brought once.
        operands = list(dict.fromkeys(operands))
        self.constant = [o for o in operands if not o.depends_on(*varying, *loops)]
        """Brought once."""
        self.per_column = [
            o for o in operands if not o.depends_on(*varying) and o.depends_on(*loops)
        ]
        """Brought for each tile of columns."""
        self.per_row = [o for o in operands if o.depends_on(*varying)]
        """Brought for each tile of the output."""
        self.packing: list[Operand] = []
        """What packing reads besides the weight."""
        if form.packed:
            self.packing = [
                o for o in (problem.scale if problem.block else None, problem.zero_point) if o
            ]

    @property
    def accumulates_in_place(self) -> bool:
        """Whether accumulators that a loop nest finishes have the place of what it makes of them."""
        return self.form.finished or self._p.y.element == f32

    def passing(self, tiles: Tiles) -> list[Operand]:
        """The operands of each tile of the sequence that goes by, besides the output."""
        if tiles.resident:
            return [*self.setup, *self.per_row]
        return [self._p.a, *self.per_row]

    @property
    def setup(self) -> list[Operand]:
        """The operands of each tile of columns."""
        return list(dict.fromkeys([self._p.w, *self.packing, *self.per_column]))

    def _sizes(self, m: int, n: int) -> dict[str, int]:
        return {b.role: 1 for b in self._p.batches} | {"m": m, "n": n}

    def _bytes(self, tiles: Tiles) -> int:
        """The most bytes of L1 that are in use at once, buffers aligned."""
        p = self._p
        sizes = self._sizes(tiles.m, tiles.n)

        def total(operands: Iterable[Operand]) -> int:
            return sum(o.tile_bytes(sizes) for o in operands)

        sets = 2 if tiles.double else 1
        passing = sets * total([*self.passing(tiles), p.y])
        if not self.accumulates_in_place:
            passing += aligned(4 * tiles.m * tiles.n)
        packed = aligned(4 * prod(packed_shape(p.k, tiles.n))) if self.form.packed else 0
        stay = total(self.constant) + packed
        if tiles.resident:
            return stay + p.a.tile_bytes(sizes) + passing
        stay += total(self.per_column)
        setup = total([p.w, *(o for o in self.packing if o not in self.per_column)])
        if self.form.packed:
            return stay + max(setup, passing)
        return stay + setup + passing

    def candidates(self) -> list[Tiles]:
        """What fits, best first."""
        found = [t for t in self._all() if self._fits(t)]
        if self._p.batches:
            # Many small matrices: each would have transfers and barriers of its own.
            limit = self._on_l2()
            found = [t for t in found if self.cost(t) < limit]
        return sorted(found, key=lambda t: (self.cost(t), -t.n, -t.m, not t.resident, t.double))

    def _on_l2(self) -> int:
        """Cycles of a leaf function that works on L2: a core loads both factors of each product."""
        p = self._p
        counts = (*(b.extent for b in p.batches), p.m, p.n)
        share = largest_share(counts, balanced(counts, self._cores))
        return CALL + share * p.k * (CORE_CYCLES_PER_MAC + 2 * L2_ACCESS)

    def _all(self) -> Iterator[Tiles]:
        p = self._p
        for n in size_choices(p.n):
            for double in (False, True):
                if not p.matrices(weight=False) and (n < p.n or not double):
                    yield Tiles(p.m, n, True, double)
                sizes = size_choices(p.m)
                low = next(
                    (c for c, m in enumerate(sizes) if self._fits(Tiles(m, n, False, double))), None
                )
                if low is not None:
                    for m in sizes[low : low + _SMALLER]:
                        if m < p.m or not double:
                            yield Tiles(m, n, False, double)

    def _fits(self, tiles: Tiles) -> bool:
        p = self._p
        sizes = self._sizes(tiles.m, tiles.n)
        moved = [p.a, p.w, p.y, *self.constant, *self.per_column, *self.per_row, *self.packing]
        return self._bytes(tiles) <= self._budget and all(o.moves(sizes) for o in moved)

    def cost(self, tiles: Tiles) -> int:
        """Cycles of the dispatch: the work of the core that has most of it, calls, and the transfers that nothing hides."""
        p = self._p
        weights = prod(b.extent for b in p.matrices(weight=True))
        inputs = prod(b.extent for b in p.matrices(weight=False))
        if tiles.resident:
            cycles = operand_cycles(p.a, self._sizes(p.m, p.n))
            return weights * (cycles + self._sequence(tiles, self._column_tiles(tiles)))
        cycles = 0
        for n, columns in pieces(p.n, tiles.n):
            sizes = self._sizes(tiles.m, n)
            once = sum(operand_cycles(o, sizes) for o in self.setup)
            once += self._packing_cycles(n)
            rows = [(self._sizes(m, n), count) for m, count in pieces(p.m, tiles.m)]
            cycles += columns * (once + inputs * self._sequence(tiles, rows))
        return weights * cycles

    def _column_tiles(self, tiles: Tiles) -> list[tuple[dict[str, int], int]]:
        return [(self._sizes(tiles.m, n), count) for n, count in pieces(self._p.n, tiles.n)]

    def _sequence(self, tiles: Tiles, sequence: Sequence[tuple[dict[str, int], int]]) -> int:
        """Cycles of the tiles that go by, each kind of tile with how many there are."""
        cycles = longest = 0
        for sizes, count in sequence:
            moved = sum(operand_cycles(o, sizes) for o in (*self.passing(tiles), self._p.y))
            work = self._work(sizes["m"], sizes["n"])
            if tiles.resident:
                work += self._packing_cycles(sizes["n"])
            cycles += count * (max(moved, work) if tiles.double else moved + work)
            longest = max(longest, moved)
        # The first operands and the last results have nothing to hide behind.
        return cycles + (longest if tiles.double else 0)

    def _packing_cycles(self, n: int) -> int:
        return CALL + -(-self._p.k * n // self._cores) if self.form.packed else 0

    def _work(self, m: int, n: int) -> int:
        if self.form.packed:
            counts = (blocks(m), blocks(n))
            share = largest_share(counts, best_grid(*counts, self._cores)) * BLOCK * BLOCK
        else:
            # A weight is converted for the rows that it meets.
            share = -(-n // self._cores) * (m + 1)
        cycles = CALL + share * self._p.k * CORE_CYCLES_PER_MAC
        if not self.form.finished:
            cycles += CALL + -(-m * n // self._cores)
        return cycles


def size_choices(extent: int, unit: int = BLOCK) -> list[int]:
    """Sizes that divide `extent` into tiles as equal as multiples of `unit` can be, largest first."""
    units = -(-extent // unit)
    sizes = [extent]
    count = 2
    while count <= units:
        size = -(-units // count)
        sizes.append(size * unit)
        # The next count that makes a difference.
        count = -(-units // (size - 1)) if size > 1 else units + 1
    return sizes


def pieces(extent: int, size: int) -> list[tuple[int, int]]:
    """(size, how many) of the tiles along a dimension."""
    whole, rest = divmod(extent, size)
    return [p for p in ((size, whole), (rest, 1 if rest else 0)) if p[1]]


def operand_cycles(operand: Operand, sizes: Mapping[str, int]) -> int:
    """Cycles to move one tile."""
    run, whole = 1, True
    elements = 1
    shape = operand.type.get_shape()
    for role, size in reversed(list(zip(operand.roles, shape, strict=True))):
        tile = min(sizes.get(role, size), size) if isinstance(role, str) else 1
        elements *= tile
        if whole:
            run *= tile
            whole = tile == size
    return transfer_cycles(byte_size(operand.element, elements), elements // max(1, run))
