"""What the loop nests of a cluster's contractions have in common: blocks of sums in registers, cut short at the edges.

Cores of a cluster have no vectors, no cache, 32 registers, and stacks of a kilobyte or two. So nothing is copied: a block of
outputs is summed in registers, each operand that several of them read is loaded once, and integer weights are converted as
they are loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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


def inside(origin: str, offset: str | None) -> str:
    """An index in a block: a variable, and how far from it."""
    return origin if offset is None else f"({origin} + {offset})"


def sums(rows: int, columns: int) -> list[list[str]]:
    """Names of the accumulators of a block."""
    return [[f"s{r}{c}" for c in range(columns)] for r in range(rows)]


def declare(out: Writer, names: Sequence[Sequence[str]], type_: str = "float") -> None:
    """The accumulators, zero."""
    zero = "0.0f" if type_ == "float" else "0"
    for row in names:
        out.line(f"{type_} " + ", ".join(f"{n} = {zero}" for n in row) + ";")


Place = tuple[str | None, str | None]
"""Row and column in a block, None where it has one."""


@contextmanager
def over_block(out: Writer, height: int, width: int, row: str, column: str) -> Generator[Place]:
    """Loops over the outputs of a finished block: what is in them is printed once, however many there are."""
    with ExitStack() as stack:
        for name, extent in ((row, height), (column, width)):
            if extent > 1:
                stack.enter_context(out.loop(name, extent))
        yield row if height > 1 else None, column if width > 1 else None


@contextmanager
def outputs(
    out: Writer, names: Sequence[Sequence[str]], row: str, column: str, type_: str = "float"
) -> Generator[tuple[str, Place]]:
    """`over_block` with the accumulators `names`: (the sum, where it is)."""
    height, width = len(names), len(names[0])
    if height * width == 1:
        yield names[0][0], (None, None)
        return
    out.line(f"const {type_} sum[{height}][{width}] = {as_table(names)};")
    with over_block(out, height, width, row, column) as place:
        yield f"sum{subscript(place)}", place


def subscript(place: Place) -> str:
    """Of an array with an element for each output of a block."""
    return "".join(f"[{index or 0}]" for index in place)


def as_table(names: Sequence[Sequence[str]]) -> str:
    """The accumulators as the initialiser of `sum[rows][columns]`, for a loop over a finished block."""
    return "{" + ", ".join("{" + ", ".join(row) + "}" for row in names) + "}"
