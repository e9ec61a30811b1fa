"""The loops of a nest and what it reads and writes in them, before they are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from qfold.backend.c.layout import Buffer, Linear
from qfold.backend.c.share import Range
from qfold.backend.c.text import Writer


@dataclass
class Loop:
    """One loop of the nest: the iteration dimensions that it runs through, as one."""

    name: str
    extent: int
    reduction: bool
    range: Range
    """What this core does of it."""


@dataclass(frozen=True)
class Operand:
    """What a generic reads or writes, and where: a position over loop variables, or C text."""

    buffer: Buffer
    position: Linear | str

    def coefficient(self, name: str) -> int | None:
        """How far one step of a loop goes; None when that is no constant."""
        return self.position.coefficient(name) if isinstance(self.position, Linear) else None


def collapse(
    loops: Sequence[Loop], operands: Sequence[Operand], fixed: frozenset[str]
) -> tuple[list[Loop], list[Operand]]:
    """Merge neighbouring loops of a kind that every operand walks through as one; `fixed` loops keep their variable."""
    merged = [x for x in loops if x.extent != 1 or x.name in fixed]
    gone = {x.name for x in loops} - {x.name for x in merged}
    i = 0
    while i + 1 < len(merged):
        outer, inner = merged[i], merged[i + 1]
        together = outer.reduction == inner.reduction and not {outer.name, inner.name} & fixed
        together = together and inner.range.is_whole
        for operand in operands if together else ():
            a, b = operand.coefficient(outer.name), operand.coefficient(inner.name)
            together = together and a is not None and b is not None and a == b * inner.extent
        if together:
            gone.add(outer.name)
            range_ = outer.range.times(inner.extent)
            merged[i : i + 2] = [Loop(inner.name, range_.extent, inner.reduction, range_)]
            i = max(i - 1, 0)
        else:
            i += 1
    if any(isinstance(o.position, str) for o in operands):
        return merged, list(operands)
    return merged, [Operand(o.buffer, _without(o.position, gone)) for o in operands]


def _without(position: Linear | str, gone: set[str]) -> Linear | str:
    if isinstance(position, str):
        return position
    return Linear({n: c for n, c in position.terms.items() if n not in gone}, position.constant)


def renamed(position: Linear | str, names: Mapping[str, str]) -> Linear | str:
    """A position with other loop variables; C text is left alone."""
    if isinstance(position, str):
        return position
    return position.renamed(names)


def open_all(out: Writer, stack: ExitStack, loops: Sequence[Loop]) -> None:
    """Loops of every extent, also of 1 where the body reads the variable."""
    for x in loops:
        stack.enter_context(out.loop(x.name, x.range.last, x.range.first))


def accumulates_in_memory(loops: Sequence[Loop], output: Operand) -> bool:
    """Whether the innermost dimension is one along which the output is contiguous: then reductions go around it."""
    if not any(x.reduction for x in loops):
        return False
    last = loops[-1]
    return not last.reduction and last.extent > 1 and output.coefficient(last.name) == 1


def ordered(loops: Sequence[Loop], in_memory: bool) -> list[Loop]:
    """Reductions innermost, or around the innermost dimension where they accumulate in memory."""
    parallel = [x for x in loops if not x.reduction]
    reductions = [x for x in loops if x.reduction]
    if in_memory:
        return [*parallel[:-1], *reductions, parallel[-1]]
    return [*parallel, *reductions]
