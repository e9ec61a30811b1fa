"""The windows of a convolution, as the generators of packed bytes see them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from qfold.backend.c.layout import Buffer
from qfold.backend.c.text import Writer
from qfold.backend.c.window import Axis
from qfold.backend.riscv.builder import WORD
from qfold.backend.riscv.pack_bytes import ByteMatrix
from qfold.dialects.qkernel import PANEL


@dataclass(frozen=True)
class Windows:
    """The windows of an image that one leaf function packs. Strides are in bytes."""

    channels: int
    channel_stride: int
    axes: tuple[Axis, ...]
    strides: tuple[int, ...]
    """Of the spatial dimensions of x."""
    padding: int

    @property
    def kernels(self) -> list[int]:
        return [a.kernel for a in self.axes]

    @property
    def taps(self) -> int:
        return prod(self.kernels)

    @property
    def k(self) -> int:
        return self.channels * self.taps

    @property
    def words(self) -> int:
        return -(-self.k // WORD)

    @property
    def positions(self) -> int:
        return prod(a.output for a in self.axes)

    @property
    def panels(self) -> int:
        return -(-self.positions // PANEL)

    @property
    def row(self) -> int:
        """Taps of a row of the kernel."""
        return self.kernels[-1]

    @property
    def is_clipped(self) -> bool:
        return any(a.clipped for a in self.axes)

    def tap_offsets(self) -> list[int]:
        """How far each tap reads from where its window begins."""
        steps = [a.dilation * s for a, s in zip(self.axes, self.strides, strict=True)]
        places = product(*(range(k) for k in self.kernels))
        return [sum(i * s for i, s in zip(place, steps, strict=True)) for place in places]

    def matrix(self, alignment: int) -> ByteMatrix | None:
        """The windows as a [channels, positions] matrix, if that is all they are."""
        if self.taps > 1 or self.is_clipped:
            return None
        distance, count = 0, 1
        for axis, stride in zip(reversed(self.axes), reversed(self.strides), strict=True):
            if axis.output == 1:
                continue
            step = axis.stride * stride
            if count > 1 and step != distance * count:
                return None
            distance = step if count == 1 else distance
            count *= axis.output
        return ByteMatrix(self.channels, self.positions, self.channel_stride, distance, alignment)

    def is_near(self, panel: int) -> bool:
        """Whether the positions of a panel are neighbours in x, all of their windows inside."""
        inner = self.axes[-1]
        first, column = panel * PANEL, panel * PANEL % inner.output
        if column + PANEL > inner.output:
            return False
        rest = first
        for axis in reversed(self.axes):
            rest, index = divmod(rest, axis.output)
            last = index + (PANEL - 1 if axis is inner else 0)
            begin, end = index * axis.stride - axis.pad, last * axis.stride - axis.pad
            if begin < 0 or end + (axis.kernel - 1) * axis.dilation >= axis.size:
                return False
        return True

    def origin(self, out: Writer, position: str, suffix: str = "") -> None:
        """Where the window of an output position begins, in each dimension of x."""
        inner = self.positions
        for d, axis in enumerate(self.axes):
            inner //= axis.output
            index = position if inner == 1 else f"{position} / {inner}"
            if d:
                index = f"{index} % {axis.output}"
            pad = f" - {axis.pad}" if axis.pad else ""
            out.line(f"const ptrdiff_t i{d}{suffix} = {index} * {axis.stride}{pad};")

    def at_origin(self) -> str:
        """How far from the start of x a window begins whose `origin` is known."""
        return " + ".join(f"i{d} * {s}" for d, s in enumerate(self.strides))


def as_bytes(buffer: Buffer, qualifier: str = "") -> str:
    """A pointer to the bytes of an argument, in C."""
    return f"({qualifier}uint8_t *){buffer.name}"
