"""Implementations of `pulp`, with a DMA that punishes: it copies as late as it may and looks for every race on the way.

A start overwrites the destination with garbage (NaN for floats) and remembers what the source holds; the wait checks that the
source still holds it and that nobody wrote to the destination, and copies. What a program reads or overwrites too early is an
error or a wrong number, never luck.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.exceptions import TooHardError
from xdsl.interpreter import Interpreter, PythonValues, impl, register_impls
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects import pulp
from qfold.interpreters.domains import element_type
from qfold.interpreters.scalar import DomainFunctions
from qfold.interpreters.values import Array, Bounded, Value, map_parts
from qfold.ir.locations import describe_location

_SEARCH = 10_000
"""How long numpy looks for a common element of two strided views before they count as apart."""


@dataclass(frozen=True, eq=False)
class Transfer:
    """A copy under way: what `!pulp.transfer` is at run time."""

    op: pulp.DmaStartOp
    source: Value
    destination: Value
    snapshot: Value
    """What the source held at the start."""
    poison: Value
    """What the start wrote to the destination."""


class Transfers:
    """The copies under way, by the function call that started them."""

    def __init__(self) -> None:
        # The outermost is that of an embedder who calls a function by xDSL's own means.
        self._frames: list[list[Transfer]] = [[]]

    @contextmanager
    def frame(self) -> Generator[None]:
        """Around a call: `InterpretationError` when it returns with a copy of its own under way."""
        started: list[Transfer] = []
        self._frames.append(started)
        try:
            yield
        finally:
            self._frames.pop()
        if started:
            raise InterpretationError(
                f"the function returns before it waits for {describe_location(started[0].op)}"
            )

    def start(self, transfer: Transfer) -> None:
        """`InterpretationError` for a copy that races with one under way."""
        for other in (t for frame in self._frames for t in frame):
            for what, ours, theirs in (
                ("writes what {} writes", transfer.destination, other.destination),
                ("writes what {} reads", transfer.destination, other.source),
                ("reads what {} writes", transfer.source, other.destination),
            ):
                if _overlap(_numbers(ours), _numbers(theirs)):
                    which = what.format(f"{describe_location(other.op)}, which is under way,")
                    raise InterpretationError(f"{describe_location(transfer.op)} {which}")
        self._frames[-1].append(transfer)

    def finish(self, transfer: Transfer) -> None:
        """`InterpretationError` for a copy that is not under way in the running function."""
        if transfer not in self._frames[-1]:
            raise InterpretationError(
                f"{describe_location(transfer.op)} is waited for a second time, or by another function"
            )
        self._frames[-1].remove(transfer)


def transfers_of(interpreter: Interpreter) -> Transfers:
    """The copies under way in a run."""
    return interpreter.get_data(PulpFunctions, "transfers", Transfers)


def _numbers(value: Value) -> Array:
    return value.value if isinstance(value, Bounded) else value


def _overlap(a: Array, b: Array) -> bool:
    try:
        # numpy's annotation knows only two of the numbers that it takes.
        return cast(Any, np.shares_memory)(a, b, max_work=_SEARCH)
    except TooHardError:
        return False


def _same(a: Value, b: Value) -> bool:
    """Whether two values hold the same numbers and bounds; NaN is NaN."""
    if isinstance(a, Bounded) and isinstance(b, Bounded):
        return _same(a.value, b.value) and _same(a.bound, b.bound)
    return np.array_equal(_numbers(a), _numbers(b), equal_nan=_numbers(a).dtype.kind == "f")


@register_impls
class PulpFunctions(DomainFunctions):
    """`pulp`. Functions are called inside of `Transfers.frame`."""

    @impl(pulp.DmaStartOp)
    def run_start(
        self, interpreter: Interpreter, op: pulp.DmaStartOp, args: PythonValues
    ) -> PythonValues:
        source, destination = args
        poison = self.domain.allocate(destination.shape, element_type(op.destination.type))
        if isinstance(poison, Bounded) and not isinstance(destination, Bounded):
            poison = poison.value
        transfer = Transfer(op, source, destination, map_parts(np.copy, source), poison)
        transfers_of(interpreter).start(transfer)
        self.domain.store(destination, poison)
        return (transfer,)

    @impl(pulp.DmaWaitOp)
    def run_wait(
        self, interpreter: Interpreter, op: pulp.DmaWaitOp, args: PythonValues
    ) -> PythonValues:
        transfer: Transfer = args[0]
        transfers_of(interpreter).finish(transfer)
        started = describe_location(transfer.op)
        if not _same(transfer.source, transfer.snapshot):
            raise InterpretationError(f"the source of {started} changed before the wait for it")
        if not _same(transfer.destination, transfer.poison):
            raise InterpretationError(
                f"the destination of {started} was written before the wait for it"
            )
        self.domain.store(transfer.destination, transfer.snapshot)
        return ()
