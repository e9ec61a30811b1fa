"""A core's share of a kernel: loops over an output are divided into parts, and each core does the parts that fall to it.

`qmm-split-work` says into how many parts each loop is divided. Part `p` goes to core `p % cores`, so that what is compiled for
one number of cores is right on any other; a part may be empty.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import DenseArrayBase

from qfold.backend.c.layout import Buffer
from qfold.backend.c.text import Writer
from qfold.dialects.contraction import ints
from qfold.dialects.element_types import bit_width

SPLIT = "qmm.split"


class BadSplit(ValueError):
    """`qmm.split` says what a kernel cannot do; the message says why."""


@dataclass(frozen=True)
class Range:
    """The loop `first` to `last` (exclusive), of `extent` iterations over all cores."""

    first: str
    last: str
    extent: int

    @staticmethod
    def whole(extent: int) -> Range:
        return Range("0", str(extent), extent)

    @property
    def is_whole(self) -> bool:
        """Whether one core does all of it."""
        return (self.first, self.last) == ("0", str(self.extent))

    def times(self, factor: int) -> Range:
        """The range that loops of `extent * factor` iterations have when each of these iterations stands for `factor`."""
        if self.is_whole:
            return Range.whole(self.extent * factor)
        if factor == 1:
            return self
        return Range(f"{self.first} * {factor}", f"{self.last} * {factor}", self.extent * factor)


@dataclass(frozen=True)
class Split:
    """Into how many parts each loop is divided."""

    parts: tuple[int, ...]

    @staticmethod
    def of(function: func.FuncOp) -> Split | None:
        """What `qmm.split` says; None without it. `BadSplit` for anything else than numbers from 1."""
        attribute = function.attributes.get(SPLIT)
        if attribute is None:
            return None
        parts = ints(attribute) if isinstance(attribute, DenseArrayBase) else (0,)  # pyright: ignore[reportUnknownArgumentType]
        if any(p < 1 for p in parts):
            raise BadSplit(f"{SPLIT} is {attribute}, expected numbers from 1")
        return Split(parts)

    @property
    def total(self) -> int:
        return prod(self.parts)

    def at(self, dimension: int) -> int:
        return self.parts[dimension]


@contextmanager
def shares(
    out: Writer, split: Split, extents: Sequence[int], units: Sequence[int] = ()
) -> Generator[list[Range]]:
    """The loop over this core's parts, with the range of each dimension in it.

    `units[d]`: iterations of dimension d that stay together. The range then counts those: it goes up to
    `ceil(extents[d] / units[d])`. No loop gets more parts than it has iterations. `BadSplit` where `split` is for another
    number of loops.
    """
    if len(split.parts) != len(extents):
        raise BadSplit(f"{SPLIT} has {len(split.parts)} entries for {len(extents)} loops")
    steps = units or [1] * len(extents)
    counts = [-(-n // u) for n, u in zip(extents, steps, strict=True)]
    split = Split(tuple(min(p, max(n, 1)) for p, n in zip(split.parts, counts, strict=True)))
    if split.total == 1:
        with out.block("if (qf_core_id() == 0)"):
            yield [Range.whole(n) for n in counts]
        return
    head = f"for (uint32_t part = qf_core_id(); part < {split.total}; part += qf_num_cores())"
    with out.block(head):
        ranges: list[Range] = []
        inner = split.total
        divided = [d for d, p in enumerate(split.parts) if p > 1]
        names = ", ".join(f"first{d}, last{d}" for d in divided)
        out.line(f"ptrdiff_t {names};")
        for d, (parts, count) in enumerate(zip(split.parts, counts, strict=True)):
            if parts == 1:
                ranges.append(Range.whole(count))
                continue
            outer, inner = inner, inner // parts
            index = "part" if inner == 1 else f"part / {inner}"
            if outer != split.total:
                index = f"{index} % {parts}"
            out.line(f"qf_share({count}, {index}, {parts}, &first{d}, &last{d});")
            ranges.append(Range(f"first{d}", f"last{d}", count))
        yield ranges


def byte_safe(split: Split, output: Buffer | None) -> Split:
    """`split`, or one part where cores would write the two halves of one byte: four-bit outputs in memory."""
    if output is not None and bit_width(output.element) == 4:
        return Split((1,) * len(split.parts))
    return split
