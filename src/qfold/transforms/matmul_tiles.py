"""How large the tiles of a matmul are: what fits the scratchpad, then what costs least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute

from qfold.dialects import qkernel
from qfold.dialects.contraction import EpilogueOperation
from qfold.dialects.element_types import byte_size
from qfold.dialects.qkernel import packed_bytes_shape, packed_shape
from qfold.ir.layouts import Layout
from qfold.transforms.matmul_operands import Problem
from qfold.transforms.staging import Operand, aligned
from qfold.transforms.tiling_cost import (
    BLOCK,
    BYTE_CYCLES_PER_MAC,
    CALL,
    CORE_CYCLES_PER_MAC,
    L1_ROW,
    L2_ACCESS,
    PLAIN_CYCLES_PER_MAC,
    STORE_INTEGER,
    balanced,
    best_grid,
    blocks,
    largest_share,
    transfer_cycles,
)

_SMALLER = 6
"""How many more tiles than fit are tried along the rows: a tile less of it may divide better over the cores."""


@dataclass(frozen=True)
class Product:
    """A kernel that multiplies, as far as tiles are concerned."""

    leaf: type[EpilogueOperation]
    blocks: bool
    """Whether it works on whole blocks of rows and columns; or on columns, weights being turned into floats for all rows."""
    cycles: Fraction
    """Of a core per multiply-accumulate."""

    @property
    def accumulator(self) -> Attribute:
        return self.leaf.ACCUMULATOR

    @property
    def finishes(self) -> int:
        """Cycles to store an element."""
        return 0 if self.accumulator == f32 else STORE_INTEGER


PACKED_FLOATS = Product(qkernel.PackedMatmulOp, True, Fraction(CORE_CYCLES_PER_MAC))
STORED_FLOATS = Product(qkernel.DequantMatmulOp, False, Fraction(CORE_CYCLES_PER_MAC))
PACKED_BYTES = Product(qkernel.PackedQuantMatmulOp, True, BYTE_CYCLES_PER_MAC)
STORED_BYTES = Product(qkernel.QuantMatmulOp, True, Fraction(PLAIN_CYCLES_PER_MAC))


@dataclass(frozen=True)
class Form:
    """What becomes of a matmul."""

    packs: bool
    """Weights are packed once per tile (floats, or bytes by fours); or read as they are."""
    finished: bool
    """The kernel runs the epilogue itself; or a loop nest does, on accumulators in L1."""
    product: Product
    """What is summed up, and from what."""

    @property
    def accumulator(self) -> Attribute:
        return self.product.accumulator


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
        if not (form.packs or problem.panels):
            operands += [o for o in (problem.scale, problem.zero_point) if o]
            operands += [o for _, o in problem.per_row]
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
        if form.packs:
            self.packing = [
                o for o in (problem.scale if problem.block else None, problem.zero_point) if o
            ]

    @property
    def accumulates_in_place(self) -> bool:
        """Whether accumulators that a loop nest finishes have the place of what it makes of them."""
        return self.form.finished or self._p.y.element == self.form.accumulator

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
        packed = aligned(self._packed_bytes(tiles.n)) if self.form.packs else 0
        stay = total(self.constant) + packed
        if tiles.resident:
            return stay + p.a.tile_bytes(sizes) + passing
        stay += total(self.per_column)
        setup = total([p.w, *(o for o in self.packing if o not in self.per_column)])
        if self.form.packs:
            return stay + max(setup, passing)
        return stay + setup + passing

    def _packed_bytes(self, n: int) -> int:
        if self.form.product is PACKED_BYTES:
            return prod(packed_bytes_shape(self._p.k, n))
        return 4 * prod(packed_shape(self._p.k, n))

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
        plain = CORE_CYCLES_PER_MAC if self.form.accumulator == f32 else PLAIN_CYCLES_PER_MAC
        return CALL + share * p.k * (plain + 2 * L2_ACCESS)

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
        return CALL + -(-self._p.k * n // self._cores) if self.form.packs else 0

    def _work(self, m: int, n: int) -> int:
        product = self.form.product
        if product.blocks:
            share = block_share(m, n, self._cores)
        else:
            # A weight is converted for the rows that it meets.
            share = -(-n // self._cores) * (m + 1)
        cycles = CALL + int(share * (self._p.k * product.cycles + product.finishes))
        if not self.form.finished:
            cycles += CALL + -(-m * n // self._cores)
        return cycles


def block_share(m: int, n: int, cores: int) -> int:
    """Elements of an output of `m` rows and `n` columns that the core with most blocks computes."""
    counts = (blocks(m), blocks(n))
    return largest_share(counts, best_grid(*counts, cores)) * BLOCK * BLOCK


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
    """Cycles to move one tile, in as many transfers as there are matrices in it."""
    tile = operand.tile_shape(sizes)
    dims = [(n, s) for n, s in zip(tile, Layout.of(operand.type).strides, strict=True) if n > 1]
    run = 1
    apart = bool(tile) and operand.padded(tile) != tile
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
        if apart:
            break
    rows = transfers = 1
    step = 0
    for size, stride in reversed(dims):
        if rows == 1 or stride == step * rows:
            step = step or stride
            rows *= size
        else:
            transfers *= size
    whole = transfer_cycles(byte_size(operand.element, run * rows), rows)
    return transfers * whole + (L1_ROW * transfers * rows if apart else 0)
