"""The products of one register block over all of K."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import WORD, FunctionBuilder
from qfold.backend.riscv.operands import Reader
from qfold.backend.riscv.schedule import Schedule, actions

UNROLLED = 4
"""K up to which there is no loop."""


def loop_iterations(k: int, steps: int = 2, *, first: int = 1, partial: bool = False) -> int:
    """How often a loop body of so many steps runs: for all steps from `first` but the last one or two, which load nothing past
    the operands. `partial`: what the last step reads is not a whole word, so that no loop may load it."""
    return 0 if k <= UNROLLED else (k - first - 1 - partial) // steps


class Products(ABC):
    """The instructions that multiply and add."""

    @abstractmethod
    def first(self, b: FunctionBuilder, a: SSAValue, w: SSAValue) -> SSAValue:
        """`a * w`."""

    @abstractmethod
    def next(self, b: FunctionBuilder, total: SSAValue, a: SSAValue, w: SSAValue) -> SSAValue:
        """`total + a * w`, in the register of `total`."""


class _FloatProducts(Products):
    def first(self, b: FunctionBuilder, a: SSAValue, w: SSAValue) -> SSAValue:
        return b.fmul(a, w)

    def next(self, b: FunctionBuilder, total: SSAValue, a: SSAValue, w: SSAValue) -> SSAValue:
        return b.fmadd(total, a, w)


FLOAT_PRODUCTS: Final = _FloatProducts()


class InnerProduct:
    """`acc[i][j] = sum_k a[i][k] * w[k][j]` for a block; a step of K is what one instruction multiplies."""

    def __init__(
        self, b: FunctionBuilder, block: Schedule, a: Reader, w: Reader, products: Products
    ):
        self._products = products
        self._last_size = WORD
        self._final = 0
        """The last step, as steps are counted where code is emitted: each iteration of a loop begins with the same. -1 in it."""
        self._b = b
        self._block = block
        self._a = a
        self._w = w
        self._operands: dict[tuple[str, int, int], SSAValue] = {}
        """(kind, row or column, step) -> the value that was loaded."""
        self._acc: dict[int, SSAValue] = {}
        self._early: list[Callable[[], object]] = []

    def run(
        self,
        k: int,
        *,
        more: bool,
        early: Sequence[Callable[[], object]] = (),
        initial: Callable[[int, int], SSAValue] | None = None,
        last_size: int = WORD,
    ) -> list[list[SSAValue]]:
        """
        The accumulators after `k` (at least 1) steps, of the last of which `last_size` bytes of A are read. With `more` to come,
        the readers are at the next panel. `early` emit instructions of the epilogue, which the last step has room for: it loads
        nothing for a next one. `initial`: what the accumulator of a row and a column begins with, in place of 0.
        """
        b, block = self._b, self._block
        self._early = list(early)
        self._last_size = last_size
        self._acc = {}
        first = 1
        if initial is not None:
            places = ((i, j) for i in range(block.rows) for j in range(block.columns))
            self._acc = {i * block.columns + j: initial(i, j) for i, j in places}
            first = 0
        iterations = loop_iterations(k, block.steps, first=first, partial=last_size < WORD)
        self._final = -1 if iterations else k - 1
        self._a.begin(b)
        for action in block.before:
            self._load(action.kind, action.row, action.column, 0)
        if first:
            self._step(0, last=k == 1)
        moved = block.steps * iterations
        if iterations:
            self._loop(iterations, first)
            self._final = k - moved - 1
        for step in range(first, k - moved):
            self._step(step, last=step == k - moved - 1)
        if more:
            self._a.end(b, k, moved)
            self._w.end(b, k, moved)
        self._operands.clear()
        columns = block.columns
        return [[self._acc[i * columns + j] for j in range(columns)] for i in range(block.rows)]

    def _loop(self, iterations: int, first: int) -> None:
        b, steps = self._b, self._block.steps
        # What the first step of the body finds loaded.
        keys = [key for key in self._operands if key[2] == first]
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
            for step in range(first, first + steps):
                self._step(step, last=False)
            self._a.end_body(b, steps)
            self._w.end_body(b, steps)
            self._operands = {
                (kind, lane, step): self._operands[kind, lane, step + steps]
                for kind, lane, step in keys
            }
            loop.yield_(*carried())
        take(loop.results)

    def _load(self, kind: str, row: int, column: int, step: int) -> None:
        lane = row if kind == "a" else column
        reader = self._a if kind == "a" else self._w
        partial = kind == "a" and step == self._final
        value = reader.load(self._b, lane, step, self._last_size if partial else WORD)
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
            if index not in self._acc:
                self._acc[index] = self._products.first(self._b, a, w)
            else:
                self._acc[index] = self._products.next(self._b, self._acc[index], a, w)
            products += 1
            if last and products % 2 == 0 and self._early:
                self._early.pop(0)()
