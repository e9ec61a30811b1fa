"""Tiles of a sliding window's output along one dimension, and what of the input they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A tile of outputs, and the inputs that it needs: those that exist, and how many padding stands for."""

    first: int
    count: int
    input_first: int
    input_count: int
    before: int
    after: int


@dataclass(frozen=True)
class Sliding:
    """A window along one dimension."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    before: int
    """Padding before the first input."""
    dilation: int

    def spans(self, size: int) -> list[Span]:
        """The tiles of `size` outputs. One that only padding is in has no inputs."""
        reach = (self.kernel - 1) * self.dilation + 1
        found: list[Span] = []
        for first in range(0, self.outputs, size):
            count = min(size, self.outputs - first)
            low = first * self.stride - self.before
            high = low + (count - 1) * self.stride + reach
            start, stop = max(low, 0), min(high, self.inputs)
            found.append(Span(first, count, start, stop - start, start - low, high - stop))
        return found


@dataclass(frozen=True)
class Run:
    """`count` spans, each as `first` but `step` outputs, and `input_step` inputs, further than the one before."""

    first: Span
    count: int
    step: int
    input_step: int


def runs(spans: Sequence[Span], least: int) -> list[Span | Run]:
    """`spans` with those in a row that differ in nothing but their place as runs, where there are at least so many."""
    found: list[Span | Run] = []
    at = 0
    while at < len(spans):
        first = spans[at]
        end = at + 1
        while end < len(spans) and _alike(spans[end], first):
            end += 1
        if end - at >= least and first.before == 0:
            second = spans[at + 1]
            step, moved = second.first - first.first, second.input_first - first.input_first
            found.append(Run(first, end - at, step, moved))
        else:
            found += spans[at:end]
        at = end
    return found


def _alike(a: Span, b: Span) -> bool:
    return (a.count, a.input_count, a.before, a.after) == (
        b.count,
        b.input_count,
        b.before,
        b.after,
    )
