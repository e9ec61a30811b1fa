"""What the loop nests of a cluster's contractions have in common: blocks of sums in registers, cut short at the edges.

Cores of a cluster have no vectors, no cache, 32 registers, and stacks of a kilobyte or two. So nothing is copied: a block of
outputs is summed in registers, each operand that several of them read is loaded once, and integer weights are converted as
they are loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from qfold.backend.c.layout import Linear
from qfold.backend.c.share import Range
from qfold.backend.c.text import Writer


def moved(x: Linear, steps: Mapping[str, int]) -> Linear:
    """`x` with constants added to variables: at `{"m": 2}`, m + 2 for m."""
    return replace(x, constant=x.constant + sum(x.coefficient(n) * s for n, s in steps.items()))


@contextmanager
def blocks(
    out: Writer, variable: str, range_: Range, size: int, extent: int
) -> Generator[list[int]]:
    """The loop over blocks of `size`, of which `range_` counts whole ones: sets `variable` to the first of the block.

    Yields the sizes that a block may have: `size`, and what is left of `extent` at its end. With two, the caller prints both
    cases, by `case`. Where there is one block there is no loop and no variable (see `is_alone`).
    """
    tail = extent % size
    sizes = [size] if extent >= size else []
    sizes += [tail] if tail else []
    if is_alone(range_):
        yield sizes
        return
    last = str(extent) if range_.is_whole else range_.times(size).last
    with out.loop(variable, last, range_.times(size).first, size):
        yield sizes


def is_alone(range_: Range) -> bool:
    """Whether a range is one iteration."""
    return range_.extent == 1 and range_.is_whole


@contextmanager
def case(
    out: Writer, variable: str, sizes: Sequence[int], index: int, extent: int
) -> Generator[int]:
    """The code for the block size `sizes[index]`: a branch where there are several."""
    size = sizes[index]
    if len(sizes) == 1:
        yield size
        return
    whole = f"if ({variable} + {sizes[0]} <= {extent})"
    with out.block(whole) if index == 0 else out.otherwise():
        yield size


def sums(rows: int, columns: int) -> list[list[str]]:
    """Names of the accumulators of a block."""
    return [[f"s{r}{c}" for c in range(columns)] for r in range(rows)]


def declare(out: Writer, names: Sequence[Sequence[str]]) -> None:
    """The accumulators, zero."""
    for row in names:
        out.line("float " + ", ".join(f"{n} = 0.0f" for n in row) + ";")


def as_table(names: Sequence[Sequence[str]]) -> str:
    """The accumulators as the initialiser of `float sum[rows][columns]`, for a loop over a finished block."""
    return "{" + ", ".join("{" + ", ".join(row) + "}" for row in names) + "}"
