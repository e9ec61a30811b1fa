"""`c.quant_conv`: convolutions of integers as products of a weight and the windows of x, gathered a tile at a time.

As in `c.quant_matmul`, differences from the zero points are laid out along K (channel, row and column of the kernel) in 16 bits.
Padding is a difference of 0, or `pad_value`. Nothing but a tile's windows is ever copied. Where a group has few output channels
(one, when it is depthwise), gathering does not pay: these go tap by tap, as convolutions of floats do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack

from qfold.backend.c.contraction import Buffers, Epilogue, Weight
from qfold.backend.c.conv import conv_problem, print_conv_share
from qfold.backend.c.conv_direct import DirectPrinter
from qfold.backend.c.integer_elements import IntegerOperands, difference
from qfold.backend.c.layout import Linear, variable
from qfold.backend.c.matmul_problem import MatmulProblem
from qfold.backend.c.quant_matmul import IntegerForm
from qfold.backend.c.share import Split
from qfold.backend.c.text import Writer
from qfold.backend.c.window import Axis, axes_of, spatial
from qfold.dialects import qkernel
from qfold.dialects.contraction import window_of

_FEW = 4
"""Output channels of a group, below which windows are not worth gathering: a depthwise convolution has one."""
_DEPTH = 288
"""Elements of windows that are laid out at a time: 32 channels of 3 x 3."""
_TILE = 32 * _DEPTH
"""Elements of the windows of a tile, if they can be that few: 18 KiB."""


class _Conv(IntegerForm):
    """Rows are the output channels of a group, columns its pixels."""

    def __init__(self, out: Writer, op: qkernel.QuantConvOp, buffers: Buffers):
        self.operands = o = IntegerOperands.of_conv(op, buffers)
        x, w, y = o.data, o.weight, buffers[op.y]
        groups, strides, pads, dilations = window_of(op)
        self.padding = op.padding or 0
        self.rows_axis, self.columns_axis = axes_of(
            x.shape[2:], w.shape[2:], y.shape[2:], strides, pads, dilations
        )
        self.taps = self.rows_axis.kernel * self.columns_axis.kernel
        self.channels = w.shape[1]
        outputs, pixels = y.shape[1] // groups, self.rows_axis.output * self.columns_axis.output
        self.images, self.groups = y.shape[0], groups
        image, group = variable("image"), Linear({"g": 1 if groups > 1 else 0})
        if self.images == 1:
            image = Linear()
        self.channel = group.scaled(outputs) + variable("m")
        rank = len(x.shape)
        epilogue = Epilogue.of(op, op.y, buffers)
        dims = [image, self.channel, *spatial(rank, variable("oy"), variable("ox"))]
        targets = epilogue.positions(dims)
        flat = _flattened(targets, self.rows_axis.output, self.columns_axis.output)
        if flat is not None:
            targets = flat
        at_w = w.at([self.channel, *(Linear() for _ in range(rank - 1))]) + variable("k")
        problem = MatmulProblem(
            (), outputs, pixels, self.channels * self.taps, self.channels * self.taps or 1,
            Linear(), at_w, None, (), Weight(w), x.name, epilogue, tuple(targets),
            tuple(dims), (),
        )  # fmt: skip
        super().__init__(out, problem)
        at_channel = group.scaled(self.channels) + variable("ci")
        self.at_x = x.at([image, at_channel, *spatial(rank, variable("iy"), variable("ix"))])

    @property
    def depth(self) -> int:
        """Whole channels, so that the windows of a chunk are whole; as many in each chunk, if possible."""
        parts = -(-self.channels // max(1, _DEPTH // self.taps))
        return -(-self.channels // max(1, parts)) * self.taps

    def print(self) -> None:
        out = self.out
        width = max(1, min(32, _TILE // self.chunk))
        with ExitStack() as stack:
            if self.images > 1:
                stack.enter_context(out.loop("image", self.images))
            if self.groups > 1:
                stack.enter_context(out.loop("g", self.groups))
            self.column_tiles(width)

    def locate(self, n0: str) -> None:
        self._pixel(n0, [x if isinstance(x, str) else x.text() for x in self.p.targets])

    def _pixel(self, n0: str, texts: Sequence[str]) -> None:
        """Row and column of pixel n0 + c, where `texts` mention them."""
        width = self.columns_axis.output
        pixel = self.plus(n0, "c")
        if " " in pixel:
            pixel = f"({pixel})"
        if _mentioned("oy", texts):
            self.out.line(f"const ptrdiff_t oy = {pixel} / {width};")
        if _mentioned("ox", texts):
            column = pixel if self.rows_axis.output == 1 else f"{pixel} % {width}"
            self.out.line(f"const ptrdiff_t ox = {column};")

    def lay_out_columns(self, n0: str, width: int, origin: str, depth: str) -> None:
        out = self.out
        axes = self._axes
        value = difference(self.operands.data, self.at_x, self.operands.data_zero, Linear())
        inside = [f"{i} >= 0 && {i} < {axis.size}" for _, i, _, axis in axes if axis.clipped]
        first, last = "0", str(self.channels)
        if origin != "0":
            first, last = f"{origin} / {self.taps}", f"({origin} + {depth}) / {self.taps}"
        # Of most pixels the whole window is inside.
        corners = [
            f"{self._place('0', output, axis)} >= 0 && "
            f"{self._place(str(axis.kernel - 1), output, axis)} < {axis.size}"
            for _, _, output, axis in axes
            if axis.clipped
        ]
        with out.loop("c", width), ExitStack() as stack:
            places = [
                self._place(t, output, a) for t, i, output, a in axes if _mentioned(i, [value])
            ]
            self._pixel(n0, [*places, *corners])
            out.line("ptrdiff_t k = 0;")
            if not inside:
                self._gather(value, first, last)
                return
            with out.block(f"if ({' && '.join(corners)})"):
                self._gather(value, first, last)
            stack.enter_context(out.otherwise())
            clipped = f"(int16_t)({' && '.join(inside)} ? {value} : {self.padding})"
            self._gather(clipped, first, last)

    @property
    def _axes(self) -> tuple[tuple[str, str, str, Axis], ...]:
        """(tap, place in x, output, axis) of rows and columns."""
        return (("ky", "iy", "oy", self.rows_axis), ("kx", "ix", "ox", self.columns_axis))

    def _gather(self, value: str, first: str, last: str) -> None:
        """The windows of one pixel in the channels from `first` up to `last`."""
        out = self.out
        with ExitStack() as stack:
            stack.enter_context(out.loop("ci", last, first))
            for tap, i, output, axis in self._axes:
                if axis.kernel > 1:
                    stack.enter_context(out.loop(tap, axis.kernel))
                if _mentioned(i, [value]):
                    out.line(f"const ptrdiff_t {i} = {self._place(tap, output, axis)};")
            out.line(f"columns[c][k++] = {value};")

    @staticmethod
    def _place(tap: str, output: str, axis: Axis) -> str:
        """The row or column of x that a tap, a variable or a number, reads for an output."""
        terms = {output: axis.stride if axis.output > 1 else 0}
        if tap.isdigit():
            return Linear(terms, int(tap) * axis.dilation - axis.pad).text()
        terms[tap] = axis.dilation if axis.kernel > 1 else 0
        return Linear(terms, -axis.pad).text()

    def row_element(self, row: str, origin: str) -> str:
        at = self.at(self.p.w, m=row, k=self.plus(origin, "k"))
        o = self.operands
        return difference(o.weight, at, o.weight_zero, self.at(self.channel, m=row))


def _mentioned(name: str, texts: Sequence[str]) -> bool:
    return any(re.search(rf"\b{name}\b", text) for text in texts)


def _flattened(targets: Sequence[Linear | str], height: int, width: int) -> list[Linear] | None:
    """Positions over oy and ox as positions over the pixel n, where every layout allows."""
    flat: list[Linear] = []
    for x in targets:
        if isinstance(x, str):
            return None
        if height > 1 and x.coefficient("oy") != x.coefficient("ox") * width:
            return None
        flat.append(x.renamed({"ox": "n", "oy": None}))
    return flat


def print_quant_conv(
    out: Writer,
    op: qkernel.QuantConvOp,
    buffers: Buffers,
    split: Split | None = None,
    *,
    shared_registers: bool = False,
) -> None:
    """The body of `qkernel.quant_conv`; `split` and `shared_registers` as for `print_conv`."""
    if split is not None:
        print_conv_share(out, op, buffers, split, shared_registers=shared_registers)
        return
    if 0 in buffers[op.y].shape:
        return
    form = _Conv(out, op, buffers)
    if form.p.m < _FEW:
        DirectPrinter(out, conv_problem(op, buffers)[0]).print()
    else:
        form.print()
