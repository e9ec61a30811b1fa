"""Convolutions and window sums on a cluster: blocks of channels x pixels in registers, the core's share of the output.

Which rows of the kernel fall inside x is decided once per output row. Which columns do is known for every output where a core
does whole rows: the few at the edges have code of their own. Elsewhere, blocks of pixels whose windows are all inside have no
check. Of each tap, a block loads one weight per channel and one element of x per pixel.
"""

from __future__ import annotations

from contextlib import ExitStack

from qfold.backend.c.contraction import Epilogue, Weight
from qfold.backend.c.layout import Buffer, Linear, variable
from qfold.backend.c.plain import Place, declare, inside, moved, outputs, sums
from qfold.backend.c.share import Range, Split, shares
from qfold.backend.c.text import Writer
from qfold.backend.c.window import Axis, Windowed

_PIXELS = {4: 4, 3: 4, 2: 7, 1: 7}
"""Channels of a block -> most pixels, where floats have 32 registers of their own."""
_PIXELS_OF_SHARED = {4: 3, 3: 4, 2: 5, 1: 7}
"""The same where addresses and counters are in these registers too. Measured with clang on RV32 with F and with Zfinx."""
_EDGES = 4
"""Most outputs of a row whose windows are not all inside that get code of their own."""


def print_plain_window(
    out: Writer,
    problem: Windowed,
    parts: tuple[int, int, int, int],
    *,
    shared_registers: bool = False,
) -> None:
    """The nest of a convolution or window sum; `parts` of images, output channels (of all groups), rows and columns.

    `shared_registers`: of floats and integers, as with Zfinx.
    """
    _Printer(out, problem, parts, shared_registers).print()


class _Printer:
    def __init__(
        self, out: Writer, problem: Windowed, parts: tuple[int, int, int, int], shared: bool
    ):
        self.out = out
        self.problem = problem
        self.window = w = problem.window
        self.parts = parts
        first, end = _interior(w.columns)
        self.interior = (first, end)
        self.channels, self.pixels = _block_of(
            w.groups,
            w.outputs,
            -(-(end - first) // parts[3]),
            parts[1],
            _conversion(problem.weight),
            shared,
        )
        extents = {"n": w.images, "g": w.groups, "c": w.channels, "oy": w.rows.output}
        extents |= {"ky": w.rows.kernel, "kx": w.columns.kernel}
        rows = w.rows
        self._no_row = (rows.size, rows.kernel, rows.output, rows.pad) == (1, 1, 1, 0)
        self._gone = {name for name, extent in extents.items() if extent == 1}
        if self._no_row:
            self._gone.add("iy")
        if w.outputs == self.channels:
            self._gone.add("o")
        self._ox: int | None = None
        """The place of the block in its row, where that is no variable."""

    def print(self) -> None:
        out, w = self.out, self.window
        units = -(-w.outputs // self.channels)
        extents = [w.images, w.groups * units, w.rows.output, w.columns.output]
        with shares(out, Split(self.parts), extents) as ranges, ExitStack() as stack:
            images, channels, rows, columns = ranges
            self._loop(stack, "n", images)
            self._channel_loop(stack, channels, units)
            tail = w.outputs % self.channels
            sizes = [self.channels] if w.outputs >= self.channels else []
            for size in [*sizes, *([tail] if tail else [])]:
                with ExitStack() as inner:
                    if tail and units > 1:
                        whole = f"if (o + {self.channels} <= {w.outputs})"
                        branch = out.block(whole) if size != tail else out.otherwise()
                        inner.enter_context(branch)
                    self._loop(inner, "oy", rows)
                    self._row_of_window()
                    self._pixels(size, columns)

    def _loop(self, stack: ExitStack, name: str, range_: Range) -> None:
        if name not in self._gone:
            stack.enter_context(self.out.loop(name, range_.last, range_.first))

    def _channel_loop(self, stack: ExitStack, range_: Range, units: int) -> None:
        """Over the blocks of channels of all groups: sets g, and o to the first channel of the block in its group."""
        out = self.out
        if units == 1:
            self._loop(stack, "g", range_)
            return
        if "g" in self._gone:
            last = str(self.window.outputs)
            if not range_.is_whole:
                last = range_.times(self.channels).last
            first = range_.times(self.channels).first
            stack.enter_context(out.loop("o", last, first, self.channels))
            return
        stack.enter_context(out.loop("u", range_.last, range_.first))
        out.line(f"const ptrdiff_t g = u / {units};")
        factor = f" * {self.channels}" if self.channels > 1 else ""
        out.line(f"const ptrdiff_t o = u % {units}{factor};")

    def _row_of_window(self) -> None:
        """ky0 to ky1: the rows of the kernel that fall inside x."""
        rows = self.window.rows
        if rows.clipped:
            self._clip("ky", "oy", rows)

    def _clip(self, tap: str, output: str, axis: Axis) -> None:
        """`tap`0 to `tap`1: the taps that fall inside x for this output."""
        out = self.out
        origin = Linear({output: axis.stride}, -axis.pad).renamed(dict.fromkeys(self._gone))
        out.line(f"const ptrdiff_t {tap}_at = {origin.text()};")
        low, high = f"-{tap}_at", f"{axis.size} - {tap}_at"
        if axis.dilation > 1:
            low = f"({low} + {axis.dilation - 1}) / {axis.dilation}"
            high = f"({high} + {axis.dilation - 1}) / {axis.dilation}"
        out.line(f"const ptrdiff_t {tap}0 = {tap}_at < 0 ? {low} : 0;")
        # A window that begins beyond x sees nothing of it.
        reach = f"{tap}_at >= {axis.size} ? 0 : " if _may_pass(axis) else ""
        span = (axis.kernel - 1) * axis.dilation
        out.line(
            f"const ptrdiff_t {tap}1 = {reach}{tap}_at + {span} < {axis.size} ? {axis.kernel} : {high};"
        )

    def _pixels(self, size: int, range_: Range) -> None:
        """All outputs of a row: blocks where the window is inside, one by one at the edges."""
        columns = self.window.columns
        first, end = self.interior
        if range_.is_whole and columns.output - (end - first) <= _EDGES:
            self._known_pixels(size)
            return
        out, pixels = self.out, self.pixels
        with out.block(f"for (ptrdiff_t ox = {range_.first}; ox < {range_.last};)"):
            if pixels == 1:
                self._clipped_pixel(size)
                return
            limits = [f"ox >= {first}"] if first else []
            limits.append(f"ox + {pixels} <= {end}")
            if not range_.is_whole:
                limits.append(f"ox + {pixels} <= {range_.last}")
            with out.block(f"if ({' && '.join(limits)})"):
                self._block(size, pixels)
                out.line(f"ox += {pixels};")
            with out.otherwise():
                self._clipped_pixel(size)

    def _clipped_pixel(self, size: int) -> None:
        if self.window.columns.clipped:
            self._clip("kx", "ox", self.window.columns)
            self._block(size, 1, taps=("kx0", "kx1"))
        else:
            self._block(size, 1)
        self.out.line("ox++;")

    def _known_pixels(self, size: int) -> None:
        """A whole row: its left edge, blocks, what is left of them, its right edge."""
        out, columns, pixels = self.out, self.window.columns, self.pixels
        first, end = self.interior
        blocks = (end - first) // pixels
        rest = first + blocks * pixels
        fixed = [(ox, 1) for ox in range(first)]
        if blocks == 1:
            fixed.append((first, pixels))
        for ox, width in fixed:
            self._fixed_block(size, width, ox)
        if blocks > 1:
            with out.loop("ox", rest, first, pixels):
                self._block(size, pixels)
        fixed = [(rest, end - rest)] if rest < end else []
        for ox, width in [*fixed, *((ox, 1) for ox in range(end, columns.output))]:
            self._fixed_block(size, width, ox)

    def _fixed_block(self, size: int, pixels: int, ox: int) -> None:
        """A block at a place that is known, with the taps that are inside there."""
        columns = self.window.columns
        seen = [
            t
            for t in range(columns.kernel)
            if columns.inside(t)[0] <= ox and ox + pixels <= columns.inside(t)[1]
        ]
        first, last = (seen[0], seen[-1] + 1) if seen else (0, 0)
        whole = (first, last) == (0, columns.kernel)
        self._ox = ox
        more = f" to {ox + pixels - 1}" if pixels > 1 else ""
        with self.out.block(""):
            self.out.comment(f"ox = {ox}{more}")
            self._block(size, pixels, taps=None if whole else (str(first), str(last)))
        self._ox = None

    def _block(self, size: int, pixels: int, taps: tuple[str, str] | None = None) -> None:
        """The outputs of `size` channels and `pixels` pixels from o and ox on; `taps`: of a row of the kernel, all if None."""
        out, w, p = self.out, self.window, self.problem
        names = sums(size, pixels)
        numbers = p.numbers
        declare(out, names, numbers.sum)
        rows = ("ky0", "ky1") if w.rows.clipped else None
        with ExitStack() as stack:
            self._loop(stack, "c", Range.whole(w.channels))
            for name, axis, bounds in (("ky", w.rows, rows), ("kx", w.columns, taps)):
                if bounds is not None:
                    # A loop even over one tap, which may be outside.
                    stack.enter_context(out.loop(name, bounds[1], bounds[0]))
                elif axis.kernel > 1:
                    stack.enter_context(out.loop(name, axis.kernel))
                if name == "ky" and not self._no_row and (w.x.coefficient("iy") or w.rows.filled):
                    iy = Linear({"oy": axis.stride, "ky": axis.dilation}, -axis.pad)
                    out.line(f"const ptrdiff_t iy = {self._at(iy).text()};")
            for r in range(size) if p.weight is not None else ():
                parameter = self._at(p.channel, o=r)
                assert p.weight is not None
                value = p.weight.element(self._at(p.at_w, o=r), [parameter])
                out.line(f"const {numbers.operand} w{r} = {value};")
            ix = Linear({"ox": w.columns.stride, "kx": w.columns.dilation}, -w.columns.pad)
            for i in range(pixels):
                step = w.x.coefficient("ix")
                rest = Linear({n: c for n, c in w.x.terms.items() if n != "ix"}, w.x.constant)
                column = moved(ix, {"ox": i})
                at = self._at(rest + column.scaled(step))
                value = p.source(at, variable("iy"), self._at(column))
                out.line(f"const {numbers.operand} v{i} = {value};")
            for r in range(size):
                for i in range(pixels):
                    s = names[r][i]
                    if p.weight is None:
                        out.line(f"{s} += v{i};")
                    else:
                        out.line(numbers.accumulation(s, f"w{r}", f"v{i}"))
        self._store(names)

    def _store(self, names: list[list[str]]) -> None:
        out, p = self.out, self.problem
        if p.weight is None:
            assert isinstance(p.epilogue, Buffer)
            target = p.targets[0]
            assert isinstance(target, Linear)
            for i, name in enumerate(names[0]):
                out.line(p.epilogue.store(self._at(target, ox=i), name))
            return
        assert isinstance(p.epilogue, Epilogue)
        with outputs(out, names, "r", "i", p.numbers.sum) as (total, place):
            at_sum = None if p.sums is None else self._at_output(p.sums, place)
            value = p.weight.scaled(total, [self._at_output(p.channel, place)], at_sum)
            out.line(f"const {p.numbers.accumulator} acc = {value};")
            linear = [self._at_output(x, place) for x in p.targets if isinstance(x, Linear)]
            if len(linear) != len(p.targets):
                dims = [self._at_output(x, place) for x in p.dims]
                p.epilogue.print(out, "acc", p.epilogue.positions(dims))
            else:
                p.epilogue.print(out, "acc", linear)

    def _at(self, x: Linear, **steps: int) -> Linear:
        """`x` that many channels or pixels on."""
        return self._placed(moved(x, steps)).renamed(dict.fromkeys(self._gone))

    def _at_output(self, x: Linear, place: Place) -> Linear:
        """`x` at a channel and pixel of the block."""
        r, i = place
        names: dict[str, str | None] = dict.fromkeys(self._gone)
        names["o"] = r if "o" in names else inside("o", r)
        names["ox"] = i if "ox" in names or self._ox is not None else inside("ox", i)
        if self._ox is not None:
            x = moved(x, {"ox": self._ox})
        return x.renamed(names)

    def _placed(self, x: Linear) -> Linear:
        """`x` at the place where the block is, if that is known."""
        if self._ox is None:
            return x
        return moved(x, {"ox": self._ox}).renamed({"ox": None})


def _conversion(weight: Weight | None) -> int:
    """Instructions from a weight in memory to a float: a load, a conversion, a subtraction of the zero point."""
    if weight is None:
        return 0
    subtracts = weight.zero_point is not None and weight.sums is None
    return 1 + (weight.scale is not None) + subtracts


def _block_of(
    groups: int, outputs: int, pixels: int, parts: int, conversion: int, shared: bool
) -> tuple[int, int]:
    """(channels, pixels) of a block, for `outputs` channels of each group and rows of so many pixels: what takes the busiest of
    `parts`, to which blocks of channels are dealt out, the least instructions per tap.

    A block takes `conversion` per channel, a load per pixel, a multiplication for each pair, and two for the loop.
    """

    def cost(channels: int, width: int) -> int:
        size = conversion * channels + width + channels * width + 2
        return size if channels and width else 0

    def total(block: tuple[int, int]) -> int:
        channels, width = block
        whole, tail = divmod(outputs, channels)
        most = -(-groups * (whole + (tail > 0)) // parts)
        full = min(most, groups * whole)
        return sum(
            times * (pixels // width * cost(c, width) + cost(c, pixels % width))
            for times, c in ((full, channels), (most - full, tail))
        )

    table = _PIXELS_OF_SHARED if shared else _PIXELS
    # Subtracting a zero point too takes registers from the sums.
    most = min(2 if shared and conversion > 2 else 4, outputs)
    pixels = max(1, pixels)
    blocks = [(c, n) for c in range(most, 0, -1) for n in range(min(table[c], pixels), 0, -1)]
    return min(blocks, key=total)


def _interior(axis: Axis) -> tuple[int, int]:
    """The outputs [first, end) whose windows are inside x."""
    ranges = [axis.inside(t) for t in range(axis.kernel)]
    first = max(a for a, _ in ranges)
    return first, max(first, min(b for _, b in ranges))


def _may_pass(axis: Axis) -> bool:
    """Whether a window may begin beyond the end of x: at the last output, with more pads than the kernel is long."""
    return (axis.output - 1) * axis.stride - axis.pad >= axis.size
