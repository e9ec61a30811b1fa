"""The inner product of a register block: which multiply-add and which load comes when.

A block of R rows and C columns takes R * C multiply-adds and R + C loads per step of K. Two cores share an FPU, so a core that
never waits alternates strictly: two multiply-adds, one load (4 x 4: 16 and 8). Any other order lets the two drift in and out of
step. Everything is loaded one step ahead. In the 4 x 4 schedule most operands of the next step go to the register of the one that
they replace, as soon as that was read for the last time: all of A, and columns 0 and 1 of W, which the last row reads first.
Columns 2 and 3 have two registers each, which alternate; so the loop body is two steps, and 16 + 4 + 6 registers hold the block.

Packed dot products share nothing and take one cycle. There every operand goes to the register of the one that it replaces, and no
load is followed by its use: a loop body of one step, in 16 + 4 + 4 registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["fma", "a", "w"]


@dataclass(frozen=True)
class Action:
    """One instruction of a step: `acc[row][column] += a[row] * w[column]`, or a load of `a[row]` or `w[column]`."""

    kind: Kind
    row: int = 0
    column: int = 0
    ahead: int = 1
    """A load's step, counted from the one that it stands in."""


@dataclass(frozen=True)
class Schedule:
    """The instructions of a block."""

    rows: int
    columns: int
    before: tuple[Action, ...]
    """Loads before the first step (`ahead` 0)."""
    step: tuple[Action, ...]
    """One step with the loads for the next one. The last step has those with `ahead` 0 only."""
    in_place_rows: frozenset[int]
    """Rows of A with one register: it is loaded again after its last use."""
    in_place_columns: frozenset[int]
    """The same for columns of W."""
    steps: int = 2
    """In a loop body: operands that are not loaded in place alternate between two registers."""

    @property
    def registers(self) -> int:
        """Accumulators and operands that are alive in a step."""
        a = 2 * self.rows - len(self.in_place_rows)
        w = 2 * self.columns - len(self.in_place_columns)
        return self.rows * self.columns + a + w


def schedule(rows: int, columns: int) -> Schedule:
    """The order for a block; columns of W are always read with column 0 last, so that its load can move the pointer on."""
    return _four_by_four() if (rows, columns) == (4, 4) else _doubled(rows, columns)


def integer_schedule(rows: int, columns: int) -> Schedule:
    """
    The order for a block of dot products. Each row of A is loaded again after its products, each column of W after its product
    with the last row, and the last row at the end, so that neither is what the next step begins with. One row has nothing to do
    in the meantime: its operands have two registers each.
    """
    if rows == 1:
        return _doubled(rows, columns)
    step: list[Action] = []
    order = list(reversed(range(columns)))
    for i in range(rows - 1):
        step += [Action("fma", i, j) for j in order]
        step.append(Action("a", row=i))
    for j in order:
        step += (Action("fma", rows - 1, j), Action("w", column=j))
    step.append(Action("a", row=rows - 1))
    before = [Action("w", column=j, ahead=0) for j in order]
    before += [Action("a", row=i, ahead=0) for i in range(rows)]
    in_place = frozenset(range(rows)), frozenset(range(columns))
    return Schedule(rows, columns, tuple(before), tuple(step), *in_place, steps=1)


def _four_by_four() -> Schedule:
    orders = ((2, 3, 1, 0), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
    products = [Action("fma", i, j) for i, columns in enumerate(orders) for j in columns]
    # Row 3 of A is loaded in the step that uses it: its register is busy until the step before ends.
    loads = (
        Action("a", row=3, ahead=0),
        Action("a", row=0),
        Action("w", column=2),
        Action("a", row=1),
        Action("w", column=3),
        Action("a", row=2),
        Action("w", column=1),
        Action("w", column=0),
    )
    step: list[Action] = []
    for i, load in enumerate(loads):
        step += (*products[2 * i : 2 * i + 2], load)
    before = [Action("w", column=j, ahead=0) for j in (2, 3, 1, 0)]
    before += [Action("a", row=i, ahead=0) for i in (0, 1, 2)]
    return Schedule(4, 4, tuple(before), tuple(step), frozenset(range(4)), frozenset((0, 1)))


def _doubled(rows: int, columns: int) -> Schedule:
    """Any block with two registers for each operand: the loads are spread over the step before. What is loaded last is not what
    the next step begins with."""
    products = [Action("fma", i, j) for i in range(rows) for j in reversed(range(columns))]
    a = [Action("a", row=i) for i in range(rows)]
    w = [Action("w", column=j) for j in reversed(range(columns))]
    loads = [*w, *a] if rows > 1 else [*a, *w]
    step: list[Action] = []
    placed = 0
    for i, product in enumerate(products, 1):
        step.append(product)
        due = i * len(loads) // len(products)
        step += loads[placed:due]
        placed = due
    before = [Action(x.kind, x.row, x.column, 0) for x in loads]
    return Schedule(rows, columns, tuple(before), tuple(step), frozenset(), frozenset())


def actions(block: Schedule, *, last: bool) -> Sequence[Action]:
    """A step's instructions."""
    return [x for x in block.step if not last or x.kind == "fma" or x.ahead == 0]
