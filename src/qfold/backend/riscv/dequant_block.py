"""The inner loop of `riscv.dequant_matmul`: a block of rows times columns of integer weights, each converted once for all rows.

Per step in k and column: a load, a subtraction where the zero point is not hoisted, a conversion, and a multiply-add per row. The
float unit converts and multiplies, `1 + rows` operations per column, so that from two columns on it is what limits cores that
share one with a neighbour.

`insert` converts without it: the byte u at bit 15 of 256.0 is the float 256 + u. What that adds to a sum, `256 * sum_k a`, joins
the zero point's correction, at the price of a larger rounding error (docs/numerics.md). Unsigned weights only. Of two bytes u, v
that were loaded at once, both inserted 8 bits lower are 256 + v + u / 256: what is too much there is a sum that exists as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from xdsl.dialects.riscv import ops as riscv
from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.readers import Element, Reader, SideBySide, carried, set_carried
from qfold.backend.riscv.registers import FLOAT_POOL, INTEGER_POOL
from qfold.dialects.riscv_pulp import alu
from qfold.targets import Isa

MAX_ROWS: Final = 4
"""Rows of a block. More take registers from columns, and a weight is converted again for them."""

_AHEAD: Final = 2
"""Weights that are loaded before the one that is converted: a load's value is there one instruction later."""


_BYTE: Final = 8
_BIAS_BIT: Final = 15
"""Where a byte goes in the pattern of 256.0 so that its lowest bit counts 1."""

BIAS: Final = 256
"""What inserting adds to each weight."""

PAIR: Final = 256
"""Of two bytes inserted at once, what the lower one is divided by."""

_BIAS_BITS: Final = 0x43800000
"""256.0."""

_SOFTWARE_LOOP: Final = 2
"""Registers of a loop without hardware loops: its counter and where it ends."""


def insert_byte(b: FunctionBuilder, template: SSAValue, byte: SSAValue) -> SSAValue:
    """`BIAS + byte` as a float, in the register of `template`: `BIAS`, or what was inserted to before. All bits that are not the
    same for all bytes are replaced."""
    return b.emit(alu.InsertOp(template, byte, _BYTE, _BIAS_BIT)).rd_out


def insert_pair(b: FunctionBuilder, template: SSAValue, pair: SSAValue) -> SSAValue:
    """`BIAS + v + u / PAIR` as a float, for the bytes u (the lower) and v of `pair`."""
    return b.emit(alu.InsertOp(template, pair, 2 * _BYTE, _BIAS_BIT - _BYTE)).rd_out


def insert_lower_byte(b: FunctionBuilder, template: SSAValue, byte: SSAValue) -> SSAValue:
    """Replace the u of `insert_pair`."""
    return b.emit(alu.InsertOp(template, byte, _BYTE, _BIAS_BIT - _BYTE)).rd_out


@dataclass(frozen=True)
class DequantLoop:
    """What the inner loops of one kernel have in common. Strides are in elements."""

    k: int
    a_row: int
    a_step: int
    weight: Element
    w_column: int
    w_step: int
    subtract: Literal["none", "tensor", "column"] = "none"
    """Which zero points are subtracted from each weight."""
    insert: bool = False
    """Whether weights become floats without the float unit, each `BIAS` too large. For one row only: more of them amortise
    conversions, and the float unit is what limits them."""
    own_sums: bool = False
    """Whether the loop also adds up the row of `a`."""
    pairs: bool = False
    """Whether inserted weights are loaded two at a time, which lie side by side, the first of them at an even address."""

    def weights(self, columns: int) -> SideBySide:
        """The weights of that many columns."""
        if self.pairs:
            return SideBySide(Element.of("ui16"), columns // 2, 2, self.w_step)
        size = self.weight.size
        return SideBySide(self.weight, columns, self.w_column * size, self.w_step * size)

    def activations(self, rows: int) -> SideBySide:
        """That many rows of `a`."""
        return SideBySide(Element.of("f32"), rows, self.a_row * WORD, self.a_step * WORD)

    def zeros(self, columns: int) -> int:
        """Registers that hold zero points."""
        return {"none": 0, "tensor": 1, "column": columns}[self.subtract]

    def registers(self, rows: int, columns: int, isa: Isa) -> tuple[int, int]:
        """(integer, float) registers that the loop takes."""
        integers = self.weights(columns).registers + self.activations(rows).registers
        integers += self.zeros(columns) + (1 if self.pairs else min(columns, _AHEAD))
        integers += 0 if isa.xpulpv2 else _SOFTWARE_LOOP
        floats = rows * columns + rows + 1 + self.pairs + self.own_sums * rows
        return (integers + floats, 0) if isa.float_registers == "x" else (integers, floats)

    def fits(self, rows: int, columns: int, isa: Isa) -> bool:
        """Whether the loop finds enough registers."""
        integers, floats = self.registers(rows, columns, isa)
        return integers <= len(INTEGER_POOL) and floats <= len(FLOAT_POOL)

    def widest(self, rows: int, most: int, isa: Isa) -> int:
        """The columns of a block of `rows`, at most `most`: as many as fit, since each loaded activation then serves the most."""
        columns = 1
        while columns < most and self.fits(rows, columns + 1, isa):
            columns += 1
        return columns

    def instructions_per_step(self, rows: int, columns: int, isa: Isa) -> int:
        """Of the loop over k, for `rows * columns` multiply-accumulates."""
        reads = rows + (columns // 2 if self.pairs else columns)
        if isa.float_registers == "f" or not isa.xpulpv2:
            reads += self.activations(rows).pointers
        if not isa.xpulpv2:
            reads += self.weights(columns).pointers + 2
        per_column = 1 + (self.subtract != "none") + rows
        return reads + columns * per_column + self.own_sums * rows

    def float_operations_per_step(self, rows: int, columns: int) -> int:
        """Of the loop over k: what cores that share a float unit take turns at."""
        return columns * (rows + (not self.insert)) + self.own_sums * rows

    def accumulate(
        self,
        b: FunctionBuilder,
        a: SSAValue,
        w: SSAValue,
        z: SSAValue | None,
        rows: int,
        columns: int,
    ) -> Sums:
        """
        The sums over k of `a * (w - z)`, by row and column, with `insert` of `a * (w + BIAS)`, and with `own_sums` those of `a`.
        With `pairs` those of odd columns are of `a * (w + BIAS + u / PAIR)`, u the weight to the left.
        `a` and `w` point at the first element of the block and are overwritten; `z` at its first zero point.
        """
        zeros: Sequence[SSAValue] = ()
        if z is not None:
            zeros = [self.weight.load(b, z, i) for i in range(self.zeros(columns))]
        activations = self.activations(rows).open(b, a)
        weights = self.weights(columns).open(b, w)
        block = _Block(b, rows, columns, activations, weights, zeros)
        # Without conversions the float unit is idle a third of the time: nothing is gained by loads across steps.
        pipelined = not self.insert
        if pipelined:
            block.load_first()
        block.sums = [b.fzero() for _ in range(rows * columns)]
        if self.insert:
            block.template = [b.li(_BIAS_BITS) for _ in range(1 + self.pairs)]
        if self.own_sums:
            block.totals = [b.fzero() for _ in range(rows)]
        steps = self.k - pipelined
        if steps > 0:
            with b.loop(steps, block.carried) as loop:
                block.take(loop.args)
                if not pipelined:
                    block.load_first()
                if self.pairs:
                    block.paired_step()
                else:
                    block.step(last=not pipelined)
                loop.yield_(*block.carried)
            block.take(loop.results)
        if pipelined:
            block.step(last=True)
        grid = [block.sums[r * columns : (r + 1) * columns] for r in range(rows)]
        return Sums(grid, block.totals, block.template)


@dataclass(frozen=True)
class Sums:
    """What the inner loop leaves in registers."""

    grid: list[list[SSAValue]]
    """By row and column."""
    totals: list[SSAValue]
    """Of each row of `a`, where the loop was asked for them."""
    templates: list[SSAValue]
    """The floats that weights were inserted to: one for single bytes and, where there are any, one for pairs."""


@dataclass
class _Block:
    """The steps in k of one block while its code is built. The values are the current ones."""

    b: FunctionBuilder
    rows: int
    columns: int
    activations: Reader
    weights: Reader
    zeros: Sequence[SSAValue]
    sums: list[SSAValue] = field(default_factory=list[SSAValue])
    queue: list[SSAValue] = field(default_factory=list[SSAValue])
    """Weights that were loaded and not yet converted."""
    x: list[SSAValue] = field(default_factory=list[SSAValue])
    """The activations, in the order in which they are read."""
    template: list[SSAValue] = field(default_factory=list[SSAValue])
    """The floats that weights are inserted to, if they are: of single bytes and of pairs."""
    totals: list[SSAValue] = field(default_factory=list[SSAValue])
    """The sum of the activations of each row, if it is wanted."""

    def _lists(self) -> tuple[list[SSAValue], ...]:
        return self.sums, self.queue, self.x, self.template, self.totals

    @property
    def carried(self) -> list[SSAValue]:
        """What a loop over steps carries."""
        return [
            *(v for values in self._lists() for v in values),
            *carried(self.activations, self.weights),
        ]

    def take(self, values: Sequence[SSAValue]) -> None:
        """Go on with a loop's arguments or results, in the order of `carried`."""
        at = 0
        for target in self._lists():
            target[:] = values[at : at + len(target)]
            at += len(target)
        set_carried(values[at:], self.activations, self.weights)

    def load_first(self) -> None:
        """The loads before the first conversion of a step."""
        order = self.weights.order()
        self.queue = [self.weights.read(self.b, order[0])]
        self.x = list(self.activations.read_all(self.b).values())
        ahead = 1 if len(self.template) > 1 else _AHEAD
        self.queue += [self.weights.read(self.b, column) for column in order[1:ahead]]
        if self.zeros:
            self._subtract(order[0])

    def _subtract(self, column: int) -> None:
        """Take the zero point off the weight that is converted next."""
        zero = self.zeros[column % len(self.zeros)]
        self.queue[0] = self.b.emit(riscv.SubOp(self.queue[0], zero)).rd

    def _convert(self, weight: SSAValue) -> SSAValue:
        if not self.template:
            return self.b.int_to_float(weight)
        self.template[0] = insert_byte(self.b, self.template[0], weight)
        return self.template[0]

    def paired_step(self) -> None:
        """One step in k of one row: five instructions for two weights. The unit is idle in one of five cycles, for two cores."""
        b, sums = self.b, self.sums
        (x,), (pair,) = self.x, self.queue
        single, both = self.template
        first, *following = self.weights.order()
        for column, upcoming in zip([first, *following], [*following, None], strict=True):
            single = insert_byte(b, single, pair)
            sums[2 * column] = b.fmadd(sums[2 * column], x, single)
            both = insert_pair(b, both, pair)
            if upcoming is not None:
                pair = self.weights.read(b, upcoming)
            else:
                self.totals = [b.fadd(total, x) for total in self.totals]
            sums[2 * column + 1] = b.fmadd(sums[2 * column + 1], x, both)
        self.template = [single, both]
        self.queue, self.x = [], []

    def step(self, *, last: bool) -> None:
        """
        One step in k, with the loads for the next one unless it is the `last` before others are loaded.

        An instruction of the float unit is never followed by two that are not, but where zero points are subtracted or weights
        inserted: with such a gap two cores that share the unit would leave it idle. So weights are loaded between conversion and
        multiply-adds, and each activation directly after its last use.
        """
        b, sums = self.b, self.sums
        order = self.weights.order()
        following = order if last else [*order, *order]
        for place, column in enumerate(order):
            value = self._convert(self.queue.pop(0))
            if self.totals and place == max(self.columns - 2, 0):
                # Here two cores with a float unit between them stay out of each other's way; at the end they would not.
                self.totals = [b.fadd(t, x) for t, x in zip(self.totals, self.x, strict=True)]
            if (upcoming := place + len(self.queue) + 1) < len(following):
                self.queue.append(self.weights.read(b, following[upcoming]))
            for index, row in enumerate(self.activations.order()):
                at = row * self.columns + column
                sums[at] = b.fmadd(sums[at], self.x[index], value)
                if place == self.columns - 1 and not last:
                    self.x[index] = self.activations.read(b, row)
            if self.zeros and place + 1 < len(following):
                self._subtract(following[place + 1])
        if last:
            self.queue, self.x = [], []
