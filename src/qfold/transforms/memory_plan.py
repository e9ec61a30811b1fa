"""Where buffers go in one arena: offsets such that buffers that are alive at the same time do not overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lifetime:
    """A buffer that is needed from dispatch `first` to dispatch `last`, both included; `size` in bytes."""

    size: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Plan:
    """Byte offsets, in the order of the buffers, and what bounds them."""

    offsets: tuple[int, ...]
    size: int
    """Bytes that the arena takes."""
    lower_bound: int
    """The most bytes that are alive at any one dispatch: no plan takes less."""


_ORDERS: tuple[Callable[[Lifetime], Any], ...] = (
    lambda b: -b.size,
    lambda b: (-(b.last - b.first + 1) * b.size, -b.size),
    lambda b: (b.first, -b.size),
    lambda b: (-b.last, -b.size),
    lambda b: (b.first - b.last, -b.size),
)
"""In which buffers are placed; ties keep their order, so that a plan is the same from run to run."""


def plan(buffers: Sequence[Lifetime], alignment: int) -> Plan:
    """The smallest of several greedy best-fit plans: each buffer goes to the tightest gap that is free for all of its life."""
    bound = lower_bound(buffers)
    best: tuple[int, tuple[int, ...]] | None = None
    for order in _ORDERS:
        size, offsets = _best_fit(buffers, order, alignment)
        if best is None or size < best[0]:
            best = size, offsets
        if best[0] <= bound:
            break
    assert best is not None
    return Plan(best[1], best[0], bound)


def lower_bound(buffers: Sequence[Lifetime]) -> int:
    """The most bytes alive at once; alignment left out, so that no plan beats it."""
    changes: dict[int, int] = {}
    for b in buffers:
        changes[b.first] = changes.get(b.first, 0) + b.size
        changes[b.last + 1] = changes.get(b.last + 1, 0) - b.size
    alive = most = 0
    for time in sorted(changes):
        alive += changes[time]
        most = max(most, alive)
    return most


def _best_fit(
    buffers: Sequence[Lifetime], order: Callable[[Lifetime], Any], alignment: int
) -> tuple[int, tuple[int, ...]]:
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int]] = []
    """(offset, index), by offset."""
    size = 0
    for index in sorted(range(len(buffers)), key=lambda i: order(buffers[i])):
        buffer = buffers[index]
        end, best, slack = 0, -1, -1
        for offset, other in placed:
            if not buffer.overlaps(buffers[other]):
                continue
            gap = offset - end
            if gap >= buffer.size and (best < 0 or gap < slack):
                best, slack = end, gap
            end = max(end, _align(offset + buffers[other].size, alignment))
        offsets[index] = end if best < 0 else best
        placed.append((offsets[index], index))
        placed.sort()
        size = max(size, offsets[index] + buffer.size)
    return size, tuple(offsets)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
