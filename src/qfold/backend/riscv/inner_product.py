"""The products of one register block over all of K."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import FunctionBuilder
from qfold.backend.riscv.operands import Reader
from qfold.backend.riscv.schedule import Schedule, actions

STEPS = 2
"""Steps of K in a loop body: operands that are loaded one step ahead alternate between two registers."""

UNROLLED = 4
"""K up to which there is no loop."""


def loop_iterations(k: int) -> int:
    """How often the loop body runs: all steps but the first, which has nothing to add to, and the last one or two, which load
    nothing past the operands."""
    return 0 if k <= UNROLLED else (k - 2) // STEPS


class InnerProduct:
    """`acc[i][j] = sum_k a[i][k] * w[k][j]` for a block."""

    def __init__(self, b: FunctionBuilder, block: Schedule, a: Reader, w: Reader):
        self._b = b
        self._block = block
        self._a = a
        self._w = w
        self._operands: dict[tuple[str, int, int], SSAValue] = {}
        """(kind, row or column, step) -> the value that was loaded."""
        self._acc: dict[int, SSAValue] = {}
        self._early: list[Callable[[], object]] = []

    def run(
        self, k: int, *, more: bool, early: Sequence[Callable[[], object]] = ()
    ) -> list[list[SSAValue]]:
        """
        The accumulators after `k` (at least 1) steps. With `more` to come, the readers are at the next panel. `early` emit
        instructions of the epilogue, which the last step has room for: it loads nothing for a next one.
        """
        self._early = list(early)
        b, block = self._b, self._block
        self._a.begin(b)
        for action in block.before:
            self._load(action.kind, action.row, action.column, 0)
        self._step(0, last=k == 1)
        iterations = loop_iterations(k)
        moved = STEPS * iterations
        if iterations:
            self._loop(iterations)
        for step in range(1, k - moved):
            self._step(step, last=step == k - moved - 1)
        if more:
            self._a.end(b, k, moved)
            self._w.end(b, k, moved)
        self._operands.clear()
        columns = block.columns
        return [[self._acc[i * columns + j] for j in range(columns)] for i in range(block.rows)]

    def _loop(self, iterations: int) -> None:
        b = self._b
        # What the first step of the body finds loaded.
        keys = [key for key in self._operands if key[2] == 1]
        order = list(self._acc)
        split = len(order)
        pointers = len(self._a.pointers)

        def carried() -> list[SSAValue]:
            operands = [self._operands[key] for key in keys]
            return [*self._acc.values(), *operands, *self._a.pointers, *self._w.pointers]

        def take(values: tuple[SSAValue, ...]) -> None:
            self._acc = dict(zip(order, values, strict=False))
            rest = values[split + len(keys) :]
            self._operands = dict(zip(keys, values[split:], strict=False))
            self._a.pointers, self._w.pointers = rest[:pointers], rest[pointers:]

        with b.loop(iterations, carried()) as loop:
            take(loop.args)
            for step in range(1, 1 + STEPS):
                self._step(step, last=False)
            self._a.end_body(b, STEPS)
            self._w.end_body(b, STEPS)
            self._operands = {
                (kind, lane, step): self._operands[kind, lane, step + STEPS]
                for kind, lane, step in keys
            }
            loop.yield_(*carried())
        take(loop.results)

    def _load(self, kind: str, row: int, column: int, step: int) -> None:
        lane = row if kind == "a" else column
        reader = self._a if kind == "a" else self._w
        value = reader.load(self._b, lane, step)
        in_place = self._block.in_place_rows if kind == "a" else self._block.in_place_columns
        replaced = self._operands.get((kind, lane, step - 1))
        if lane in in_place and replaced is not None:
            self._b.tie(replaced, value)
        self._operands[kind, lane, step] = value

    def _step(self, step: int, *, last: bool) -> None:
        products = 0
        for action in actions(self._block, last=last):
            if action.kind != "fma":
                self._load(action.kind, action.row, action.column, step + action.ahead)
                continue
            index = action.row * self._block.columns + action.column
            a = self._operands["a", action.row, step]
            w = self._operands["w", action.column, step]
            if step == 0:
                self._acc[index] = self._b.fmul(a, w)
            else:
                self._acc[index] = self._b.fmadd(self._acc[index], a, w)
            products += 1
            if last and products % 2 == 0 and self._early:
                self._early.pop(0)()
