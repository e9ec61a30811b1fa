"""Sliding windows as the C printer sees them: axes, taps, and which outputs a tap reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from qfold.backend.c.contraction import FLOATS, Epilogue, Numbers, Weight
from qfold.backend.c.layout import Buffer, Linear, variable


@dataclass(frozen=True)
class Axis:
    """One spatial dimension: output o and tap k read input o * stride + k * dilation - pad."""

    size: int
    kernel: int
    output: int
    stride: int
    dilation: int
    pad: int
    filled: bool = False
    """Whether what lies beyond the input has a value: no tap is left out."""

    def inside(self, tap: int) -> tuple[int, int]:
        """The outputs [first, end) for which `tap` falls inside the input, or all where it is filled."""
        if self.filled:
            return 0, self.output
        shift = tap * self.dilation - self.pad
        first = max(0, -(shift // self.stride)) if shift < 0 else 0
        end = (self.size - 1 - shift) // self.stride + 1 if shift < self.size else 0
        end = max(0, min(self.output, end))
        return min(first, end), end

    @property
    def clipped(self) -> bool:
        return any(self.inside(t) != (0, self.output) for t in range(self.kernel))

    def fill(self) -> Axis:
        """The axis with its padding filled, if there is any."""
        return replace(self, filled=self.clipped)

    def condition(self, index: Linear) -> list[str]:
        """What has to hold for a place on a filled axis to be in the input: of a known one, `false` or nothing."""
        if not self.filled:
            return []
        text = index.text()
        if not any(index.terms.values()):
            return [] if 0 <= index.constant < self.size else ["false"]
        return [f"{text} >= 0", f"{text} < {self.size}"]


@dataclass(frozen=True)
class Window:
    """A windowed sum over x: rows (y axis, trivial for 1-D) and columns (x axis)."""

    images: int
    groups: int
    channels: int
    """Input channels of a group."""
    outputs: int
    """Output channels of a group (1 for a window sum)."""
    rows: Axis
    columns: Axis
    x: Linear
    """Over n, g, ci, iy, ix."""
    source: Buffer


def axes_of(
    spatial: Sequence[int], kernel: Sequence[int], output: Sequence[int],
    strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int],
) -> tuple[Axis, Axis]:  # fmt: skip
    axes = [
        Axis(size, k, o, s, d, p)
        for size, k, o, s, d, p in zip(
            spatial, kernel, output, strides, dilations, pads[: len(spatial)], strict=True
        )
    ]
    return (Axis(1, 1, 1, 1, 1, 0), axes[0]) if len(axes) == 1 else (axes[0], axes[1])


def spatial(rank: int, y: Linear, x: Linear) -> list[Linear]:
    return [x] if rank == 3 else [y, x]


def channel_of(extent: int, groups: int) -> Linear:
    """The index of a channel: g * (channels of a group) + c."""
    per_group = extent // groups
    return Linear({"g": per_group if groups > 1 else 0, "c": 1 if per_group > 1 else 0})


def source_of(x: Buffer, groups: int) -> Linear:
    rank = len(x.shape)
    at = [variable("n"), channel_of(x.shape[1], groups)]
    return x.at([*at, *spatial(rank, variable("iy"), variable("ix"))])


@dataclass(frozen=True)
class Windowed:
    """A convolution or window sum: positions are over n, g, o (output channel of the group), c, ky, kx, oy, ox."""

    window: Window
    epilogue: Epilogue | Buffer
    """What is done with a finished sum; for a window sum just the buffer that it is stored to."""
    dims: Sequence[Linear]
    """The output indices."""
    targets: Sequence[Linear | str]
    """Where the output and the epilogue's operands are."""
    weight: Weight | None = None
    at_w: Linear = field(default_factory=Linear)
    channel: Linear = field(default_factory=Linear)
    """The output channel, which scales and zero points run along."""
    sums: Linear | None = None
    """Where the window sum of a hoisted zero point is."""
    numbers: Numbers = FLOATS
    zero_point: Buffer | None = None
    """What is subtracted from each element of x: of rank 0."""

    padding: int = 0
    """What filled axes hold beyond the input."""

    def source(self, at: Linear, iy: Linear, ix: Linear) -> str:
        """An element of x, in that row and column, less its zero point."""
        text = self.window.source.load(at)
        inside = [*self.window.rows.condition(iy), *self.window.columns.condition(ix)]
        if "false" in inside:
            return str(self.padding)
        if inside:
            return f"({self.numbers.operand})({' && '.join(inside)} ? {text} : {self.padding})"
        if self.zero_point is None:
            return text
        return f"({self.numbers.operand})({text} - {self.zero_point.load(Linear())})"


def with_taps_as_one(at_w: Linear) -> Linear:
    """Channel, ky and kx of a dense weight as one index k."""
    terms = {n: c for n, c in at_w.terms.items() if n not in ("c", "ky", "kx")}
    return replace(at_w, terms={**terms, "k": 1})
