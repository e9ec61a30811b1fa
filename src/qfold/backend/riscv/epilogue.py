"""From accumulators to stored elements: scale, correction for zero points, and the ops of the epilogue region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import copysign

from xdsl.dialects import arith
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from qfold.backend.riscv.builder import FunctionBuilder
from qfold.backend.riscv.float_ops import COMPUTED, FloatOps, number_of
from qfold.backend.riscv.generated import CannotGenerate
from qfold.backend.riscv.streams import PANEL, Stream, StreamPointers
from qfold.dialects.contraction import EpilogueOperation


@dataclass(frozen=True)
class Epilogue:
    """What happens to an accumulator before it is stored."""

    y: Stream
    scale: Stream | None = None
    zero_point: Stream | None = None
    row_sum: Stream | None = None
    operands: tuple[Stream, ...] = ()
    region: Block | None = None

    @property
    def streams(self) -> tuple[Stream, ...]:
        found = (self.y, self.scale, self.zero_point, self.row_sum, *self.operands)
        return tuple(s for s in found if s is not None)

    @property
    def fused_addend(self) -> Stream | None:
        """The operand that is added to the scaled accumulator by the multiply-add that scales it: the region starts with that
        addition, and neither of the two is read again."""
        block = self.region
        if self.scale is None or block is None:
            return None
        addition = self.first_op
        if not isinstance(addition, arith.AddfOp):
            return None
        left, right = addition.lhs, addition.rhs
        accumulator = block.args[0]
        other = right if left is accumulator else left
        if accumulator not in (left, right) or not isinstance(other, BlockArgument):
            return None
        if other is accumulator or not (_read_once(accumulator) and _read_once(other)):
            return None
        return self.operands[other.index - 1]

    @property
    def first_op(self) -> Operation | None:
        """The first op of the region that computes."""
        block = self.region
        assert block is not None
        return next((o for o in block.ops if not isinstance(o, arith.ConstantOp)), None)

    @property
    def computed(self) -> tuple[Operation, ...]:
        """The ops of the region that are left when the first may be part of the scaling."""
        if self.region is None:
            return ()
        ops = [o for o in self.region.ops if isinstance(o, COMPUTED)]
        return tuple(ops[1:] if self.fused_addend is not None else ops)


def _read_once(value: SSAValue) -> bool:
    return value.uses.get_length() == 1


def check_region(op: EpilogueOperation) -> None:
    """`CannotGenerate` for an op of the epilogue that there is no code for."""
    block = op.epilogue_block
    if block is None:
        return
    for inner in block.ops:
        if isinstance(inner, (*COMPUTED, arith.ConstantOp)) or inner is block.last_op:
            continue
        names = ", ".join(o.name for o in COMPUTED)
        raise CannotGenerate(
            op, f"its epilogue computes {inner.name}; generated kernels do {names}"
        )


class EpilogueWriter:
    """
    Code for one block. `overlap`: a row is stored while the next one is computed, so that cores that share an FPU take turns.
    `careful`: one element at a time and nothing kept, for when registers are short. `keep_addend`: what is added per column is
    loaded for all rows at once. `group`: how many elements of a row are finished side by side.
    """

    def __init__(
        self,
        b: FunctionBuilder,
        epilogue: Epilogue,
        pointers: StreamPointers,
        *,
        careful: bool,
        overlap: bool = True,
        keep_addend: bool = False,
        group: int = PANEL,
    ):
        self._b = b
        self._epilogue = epilogue
        self._pointers = pointers
        self._careful = careful
        self._group = 1 if careful else group
        self._overlap = overlap and not careful
        addend = epilogue.fused_addend
        self._keeps_addend = (
            keep_addend and not careful and addend is not None and not addend.row_bytes
        )
        self._kept: dict[object, SSAValue] = {}
        """What is the same for all rows: (stream, column) or a constant's bits -> the value."""
        self._unstored: list[tuple[int, int, SSAValue]] = []
        """Row, column and value of what is computed and not stored."""
        self._ops = FloatOps(b)

    def write(self, accumulators: Sequence[Sequence[SSAValue]]) -> None:
        """Finish and store a block."""
        for i, row in enumerate(accumulators):
            for first in range(0, len(row), self._group):
                group = range(first, min(first + self._group, len(row)))
                values = self._finish(i, group, row)
                self._store_all()
                self._unstored = [(i, j, value) for j, value in values.items()]
                if not self._overlap:
                    self._store_all()
                if self._careful:
                    self._kept.clear()
                    self._pointers.forget()
        self._store_all()
        self._kept.clear()

    def early_loads(self, columns: int) -> list[Callable[[], object]]:
        """Loads of what all rows share, for gaps in the code before `write`."""
        stream = self._epilogue.zero_point or self._epilogue.scale
        if self._careful or stream is None:
            return []
        found = range(columns) if stream.column_bytes else range(1)
        return [partial(self._kept_load, stream, 0, j) for j in found]

    def _store(self) -> None:
        """Store one of the elements that wait for it."""
        if self._unstored:
            i, j, value = self._unstored.pop(0)
            pointer, offset = self._pointers.address(self._epilogue.y, i, j)
            self._b.fstore(value, pointer, offset)

    def _store_all(self) -> None:
        while self._unstored:
            self._store()

    def _kept_load(self, stream: Stream, row: int, column: int) -> SSAValue:
        """An operand that does not change from row to row, loaded once."""
        key = (stream.name, column if stream.column_bytes else 0)
        if key not in self._kept:
            self._kept[key] = self._pointers.load(stream, row, column)
        return self._kept[key]

    def _finish(self, i: int, group: Sequence[int], row: Sequence[SSAValue]) -> dict[int, SSAValue]:
        """Some elements of a row: column -> what is to be stored."""
        b, e = self._b, self._epilogue
        values = {j: row[j] for j in group}
        if e.zero_point is not None:
            assert e.row_sum is not None
            total = self._pointers.load(e.row_sum, i, 0)
            zero_points = [self._kept_load(e.zero_point, i, j) for j in group]
            for j, zero_point in zip(group, zero_points, strict=True):
                values[j] = b.fnmsub(values[j], zero_point, total)
                self._store()
        addend = e.fused_addend
        environments: dict[int, dict[SSAValue, SSAValue]] = {j: {} for j in group}
        if e.scale is not None:
            # All loads before their uses: a value that was loaded by the instruction before costs a cycle.
            scales = {j: self._kept_load(e.scale, i, j) for j in group}
            loaded = {}
            if addend is not None:
                load = self._kept_load if self._keeps_addend else self._pointers.load
                loaded = {j: load(addend, i, j) for j in group}
            for j in group:
                if j in loaded and self._keeps_addend:
                    values[j] = b.fmadd4(values[j], scales[j], loaded[j])
                elif j in loaded:
                    values[j] = b.fmadd(loaded[j], values[j], scales[j])
                else:
                    values[j] = b.fmul(values[j], scales[j])
                self._store()
        self._ops.canonical.update(values.values())
        if e.region is not None:
            start = e.region.args[0]
            if addend is not None:
                first = e.first_op
                assert first is not None
                start = first.results[0]
            for j in group:
                environments[j][start] = values[j]
            for op in e.computed:
                self._load_operands(op, i, environments)
                for environment in environments.values():
                    read = partial(self._read, environment=environment)
                    environment[op.results[0]] = self._ops.compute(op, read)
                    self._store()
            last = e.region.last_op
            assert last is not None
            self._load_operands(last, i, environments)
            values = {j: self._read(last.operands[0], environments[j]) for j in group}
        return values

    def _load_operands(
        self, op: Operation, i: int, environments: Mapping[int, dict[SSAValue, SSAValue]]
    ) -> None:
        """What an op of the region reads for the first time: elements of the epilogue operands."""
        for value in op.operands:
            for j, environment in environments.items():
                if value in environment:
                    continue
                if isinstance(value, BlockArgument) and value.block is self._epilogue.region:
                    stream = self._epilogue.operands[value.index - 1]
                    if stream.row_bytes or stream.column_bytes:
                        environment[value] = self._pointers.load(stream, i, j)
                    else:
                        environment[value] = self._kept_load(stream, i, j)

    def _read(self, value: SSAValue, environment: Mapping[SSAValue, SSAValue]) -> SSAValue:
        """The register of a value of the region: constants get one when they are read."""
        if isinstance(value.owner, arith.ConstantOp):
            return self._constant(value.owner)
        return environment[value]

    def _constant(self, op: arith.ConstantOp) -> SSAValue:
        number = number_of(op)
        key = ("constant", str(number), copysign(1.0, number))
        if key not in self._kept:
            self._kept[key] = self._b.fconst(number)
        return self._kept[key]
