"""Writes a matmul as a staged dispatch: `docs/cluster.md`, "Which form a matmul takes"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import Operation, SSAValue

from qfold.dialects import qkernel
from qfold.dialects.integer_operands import zero_point_type
from qfold.dialects.qkernel import packed_bytes_shape, packed_shape
from qfold.ir.generics import cloned_epilogue
from qfold.targets import Target
from qfold.transforms.kernel_symbols import symbol_base
from qfold.transforms.matmul_leafs import Finish, finish_tile, tile_of
from qfold.transforms.matmul_operands import Batch, Matmul, Problem, problem_of
from qfold.transforms.matmul_tiles import (
    PACKED_BYTES,
    PACKED_FLOATS,
    STORED_BYTES,
    STORED_FLOATS,
    Form,
    MatmulTiler,
    Tiles,
)
from qfold.transforms.packing import is_packed
from qfold.transforms.qmm_select_kernels import finishes
from qfold.transforms.staging import Operand, Range, Stage, memref_type
from qfold.transforms.tile_sequence import Buffers, TileSequence, Use, Work
from qfold.transforms.tiled_symbols import tiled_symbol


def form_of(op: Matmul, rows: int, target: Target) -> Form:
    """What becomes of `op` when each of its products has `rows` rows."""
    match op:
        case qkernel.PackedQuantMatmulOp():
            product, packs = PACKED_BYTES, False
        case qkernel.QuantMatmulOp():
            packs = _multiplies_bytes(op, target)
            product = PACKED_BYTES if packs else STORED_BYTES
        case qkernel.DequantMatmulOp():
            packs = is_packed(target, rows, op.storage, op.block)
            product = PACKED_FLOATS if packs else STORED_FLOATS
        case qkernel.MatmulOp():
            product, packs = PACKED_FLOATS, True
    return Form(packs, finishes(op, product.leaf.name, target), product)


def _multiplies_bytes(op: qkernel.QuantMatmulOp, target: Target) -> bool:
    """Whether `op` is a product of the stored integers, and the target has kernels that multiply them by fours."""
    plain = op.a_zero_point is None and op.b_zero_point is None
    leafs = (qkernel.PackBytesOp, qkernel.PackedQuantMatmulOp)
    return plain and all(target.kernels_of(leaf.name) for leaf in leafs)


class MatmulStaging:
    """One way to stage a matmul per entry of `choices`, best first."""

    def __init__(self, op: Matmul, target: Target):
        self._op, self._target = op, target

    def choices(self, stage: Stage) -> Sequence[Tiles]:
        """Tile sizes that fit. `stage` is used up."""
        problem = problem_of(self._op, stage)
        return [] if problem is None else self._tiler(problem).candidates()

    def _tiler(self, problem: Problem) -> MatmulTiler:
        form = form_of(self._op, problem.m, self._target)
        return MatmulTiler(problem, form, self._target.cores, self._target.scratchpad_bytes)

    def write(self, stage: Stage, tiles: Tiles) -> None:
        problem = problem_of(self._op, stage)
        assert problem is not None
        _Writer(stage, problem, self._tiler(problem), tiles).write()


class _Writer:
    def __init__(self, stage: Stage, problem: Problem, tiler: MatmulTiler, tiles: Tiles):
        self._stage, self._p, self._form = stage, problem, tiler.form
        self._tiler, self._tiles = tiler, tiles
        self._buffers: dict[Operand, SSAValue] = {}
        """Operands that are in L1."""

    def write(self) -> None:
        p, stage, tiles = self._p, self._stage, self._tiles
        stage.wait(*self._fetch(self._tiler.constant, {}))
        uses = [Use(o) for o in self._tiler.passing(tiles)]
        uses.append(Use(p.y, reads=False, writes=True))
        for outer in self._batches(p.matrices(weight=True), {}):
            if tiles.resident:
                stage.wait(*self._fetch([p.a], outer))
                columns = TileSequence("n", p.n, tiles.n, tiles.double)
                columns.write(stage, uses, outer, self._columns_of_all_rows)
                continue
            for j, n in stage.tiles(p.n, tiles.n):
                parts = {**outer, "n": Range(j, n)}
                weight = self._weight(parts)
                for inner in self._batches(p.matrices(weight=False), parts):
                    rows = TileSequence("m", p.m, tiles.m, tiles.double)
                    rows.write(stage, uses, inner, self._rows_of(weight))

    def _batches(
        self, batches: Sequence[Batch], parts: Mapping[str, Range]
    ) -> Iterator[dict[str, Range]]:
        """Loops over matrices, one inside of the other."""
        if not batches:
            yield dict(parts)
            return
        first, *rest = batches
        for offset, _ in self._stage.tiles(first.extent, 1):
            inner = {**parts, first.role: Range(offset, 1, keep=False)}
            yield from self._batches(rest, inner)

    def _fetch(self, operands: Sequence[Operand], parts: Mapping[str, Range]) -> list[SSAValue]:
        """Start to bring operands to L1."""
        transfers: list[SSAValue] = []
        for operand in operands:
            name = operand.value.name_hint or "operand"
            buffer, transfer = self._stage.fetch(operand, parts, f"{name}_tile")
            self._buffers[operand] = buffer
            transfers.append(transfer)
        return transfers

    def _weight(self, parts: Mapping[str, Range]) -> SSAValue:
        """Bring a tile of columns of the weight, and what goes with it. The weight as the kernel takes it."""
        p = self._p
        first = [p.w, *self._tiler.packing]
        ready = self._fetch(first, parts)
        later = self._fetch([o for o in self._tiler.setup if o not in first], parts)
        self._stage.wait(*ready)
        weight = self._prepared()
        self._stage.wait(*later)
        return weight

    def _prepared(self) -> SSAValue:
        """The weight that is in L1 as the kernel takes it: packed, if it is to be."""
        stored = self._buffers[self._p.w]
        shape = memref_type(stored).get_shape()
        if self._p.panels:
            return self._stage.reshape(stored, packed_bytes_shape(shape[1], shape[0]))
        if not self._form.packs:
            return stored
        k, n = shape[:: -1 if self._p.transposed else 1]
        if self._form.product is PACKED_BYTES:
            return self._packed_bytes(stored, k, n)
        packed = self._stage.alloc(f32, packed_shape(k, n), "packed")
        self._pack(packed)
        return packed

    def _packed_bytes(self, stored: SSAValue, k: int, n: int) -> SSAValue:
        element = zero_point_type(cast(IntegerType, memref_type(stored).element_type))
        packed = self._stage.alloc(element, packed_bytes_shape(k, n), "packed")

        def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
            return [qkernel.PackBytesOp(*values, transpose_b=self._p.transposed)]

        self._stage.call(symbol_base, [stored, packed], make)
        return packed

    def _columns_of_all_rows(self, buffers: Buffers, parts: Mapping[str, Range]) -> None:
        self._buffers.update(buffers)
        self._product(self._prepared())

    def _rows_of(self, weight: SSAValue) -> Work:
        def work(buffers: Buffers, parts: Mapping[str, Range]) -> None:
            self._buffers.update(buffers)
            self._product(weight)

        return work

    def _product(self, weight: SSAValue) -> None:
        """One tile of the output."""
        y = accumulators = self._buffers[self._p.y]
        if not self._tiler.accumulates_in_place:
            shape = memref_type(y).get_shape()
            accumulators = self._stage.alloc(self._form.accumulator, shape, "acc_tile")
        self._multiply(weight, accumulators)
        if not self._form.finished:
            self._finish(accumulators, y)

    def _pack(self, packed: SSAValue) -> None:
        p = self._p
        block = p.block
        scale = self._buffers[p.scale] if block is not None and p.scale is not None else None
        zero = None if p.zero_point is None else self._buffers[p.zero_point]
        operands = [v for v in (self._buffers[p.w], scale, zero, packed) if v is not None]

        def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
            rest = iter(values)
            w = next(rest)
            return [
                qkernel.PackOp(
                    w,
                    values[-1],
                    scale=None if scale is None else next(rest),
                    zero_point=None if zero is None else next(rest),
                    transpose_b=p.transposed,
                    block_size=block,
                )
            ]

        self._stage.call(symbol_base, operands, make)

    def _multiply(self, weight: SSAValue, y: SSAValue) -> None:
        """The leaf that multiplies."""
        p, form = self._p, self._form
        given: dict[str, SSAValue] = {"a": self._buffers[p.a], "w": weight}
        packed = form.packs or p.panels
        if p.scale is not None and not (packed and p.block is not None):
            given["scale"] = self._buffers[p.scale]
        if not packed:
            if p.zero_point is not None:
                given["zero_point"] = self._buffers[p.zero_point]
            given |= {name: self._buffers[operand] for name, operand in p.per_row}
        names = list(given)
        operands = list(given.values())
        epilogue: Sequence[Operand] = p.epilogue if form.finished else ()
        operands += [self._buffers[o] for o in epilogue]

        def make(values: Sequence[SSAValue]) -> Sequence[Operation]:
            by_name = dict(zip(names, values, strict=False))
            finish = Finish(
                values[len(names) : -1],
                [p.map(o) for o in epilogue],
                cloned_epilogue(p.op) if form.finished else None,
            )
            return [tile_of(p, form.product.leaf, by_name, values[-1], finish)]

        self._stage.call(tiled_symbol, [*operands, y], make)

    def _finish(self, accumulators: SSAValue, y: SSAValue) -> None:
        p = self._p
        operands = [(self._buffers[o], p.map(o)) for o in p.epilogue]
        finish_tile(self._stage, p.op, accumulators, operands, y)
