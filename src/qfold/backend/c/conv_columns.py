"""Convolutions with many output channels: what the window sees is gathered into a panel that all of them go through.

A tile is up to 64 outputs: a stretch of one output row, or several short rows. For it, the inputs under up to 128 taps
(channel, ky, kx) are gathered, zeros where the window leaves x. Then four output channels at a time multiply their weights,
widened once per tile, with 32 columns of the panel after another.
"""

from __future__ import annotations

from contextlib import ExitStack

from qfold.backend.c.contraction import Epilogue
from qfold.backend.c.layout import Linear
from qfold.backend.c.text import Writer
from qfold.backend.c.window import Windowed, with_taps_as_one

_WIDTH = 32
"""Outputs that are summed at once: two AVX-512 registers (see matmul.py)."""
_TILE = 64
"""Outputs of a tile. What widening a weight costs is spread over them: with 32 it is a tenth of all time."""
_DEPTH = 128
_ROWS = 4
_HELD = 128
"""Output channels whose sums are held, so that a panel is gathered once for all of them: 32 KiB of floats."""


class ColumnsPrinter:
    """Prints one convolution."""

    def __init__(self, out: Writer, problem: Windowed):
        assert problem.weight is not None and isinstance(problem.epilogue, Epilogue)
        self.out = out
        self.problem = problem
        self.window = problem.window
        self.weight = problem.weight
        self.epilogue = problem.epilogue
        w = self.window
        self.taps = w.rows.kernel * w.columns.kernel
        self.channels = _even_share(w.channels, max(1, _DEPTH // self.taps))
        """Input channels of a panel."""
        self.depth = self.channels * self.taps
        self.width = min(w.columns.output, _TILE)
        self.rows = min(w.rows.output, _TILE // self.width)
        self.lanes = -(-self.width * self.rows // _WIDTH) * _WIDTH
        self.held = min(w.outputs, _HELD)

    def print(self) -> None:
        out, w = self.out, self.window
        with ExitStack() as stack:
            for name, extent, step in (
                ("n", w.images, 1),
                ("g", w.groups, 1),
                ("o0", w.outputs, self.held),
                ("y0", w.rows.output, self.rows),
                ("x0", w.columns.output, self.width),
            ):
                if extent > step:
                    stack.enter_context(out.loop(name, extent, 0, step))
            self._limits()
            out.line(f"float sum[{self.held}][{self.lanes}] = {{{{0.0f}}}};")
            with ExitStack() as inner:
                if w.channels > self.channels:
                    inner.enter_context(out.loop("c0", w.channels, 0, self.channels))
                    self._limit("depth", "c0", w.channels, self.channels, self.taps)
                self._gather()
                self._multiply()
            self._store()

    def _limit(self, name: str, origin: str, extent: int, step: int, factor: int = 1) -> None:
        """Declare `name` for a tile that may be cut short by the extent; `_end` gives the constant where it is not."""
        if extent > step and extent % step:
            times = f" * {factor}" if factor > 1 else ""
            left = f"({extent} - {origin})" if factor > 1 else f"{extent} - {origin}"
            whole = step * factor
            self.out.line(
                f"const ptrdiff_t {name} = {extent} - {origin} < {step} ? {left}{times} : {whole};"
            )

    def _limits(self) -> None:
        w = self.window
        self._limit("outputs", "o0", w.outputs, self.held)
        self._limit("rows", "y0", w.rows.output, self.rows)
        self._limit("width", "x0", w.columns.output, self.width)

    @staticmethod
    def _end(name: str, extent: int, step: int, factor: int = 1) -> str:
        return name if extent > step and extent % step else str(min(extent, step) * factor)

    @property
    def _depth(self) -> str:
        return self._end("depth", self.window.channels, self.channels, self.taps)

    def _gather(self) -> None:
        """panel[k] = the inputs under tap k of each output of the tile."""
        out, w = self.out, self.window
        rows, columns = w.rows, w.columns
        out.line(f"float panel[{self.depth}][{self.lanes}] = {{{{0.0f}}}};")
        tap = Linear({"kx": 1}) + Linear({"ky": columns.kernel}) + Linear({"c": self.taps})
        with ExitStack() as stack:
            channels = self._depth
            if self._depth == "depth":
                channels = f"depth / {self.taps}" if self.taps > 1 else "depth"
            else:
                channels = str(self.channels)
            for name, extent in (("c", channels), ("ky", rows.kernel), ("kx", columns.kernel)):
                stack.enter_context(out.loop(name, extent))
            ends = self._end("rows", rows.output, self.rows)
            stack.enter_context(out.loop("r", ends))
            iy = Linear({"y": rows.stride, "ky": rows.dilation}, -rows.pad)
            y = self._origin("y0", rows.output, self.rows, "r")
            if rows.clipped or w.x.coefficient("iy"):
                out.line(f"const ptrdiff_t iy = {iy.renamed({'y': y}).text()};")
            if rows.clipped:
                stack.enter_context(out.block(f"if (iy >= 0 && iy < {rows.size})"))
            stack.enter_context(out.loop("i", self._end("width", columns.output, self.width)))
            ix = Linear({"x": columns.stride, "kx": columns.dilation}, -columns.pad)
            x = self._origin("x0", columns.output, self.width, "i")
            out.line(f"const ptrdiff_t ix = {ix.renamed({'x': x}).text()};")
            channel = self._origin("c0", w.channels, self.channels, "c")
            at = self._live(w.x).renamed({"c": channel})
            lane = f"r * {self.width} + i" if self.rows > 1 else "i"
            value = f"{w.source.name}[{at.text()}]"
            if columns.clipped:
                value = f"ix >= 0 && ix < {columns.size} ? {value} : 0.0f"
            out.line(f"panel[{tap.text()}][{lane}] = {value};")

    def _multiply(self) -> None:
        """Four output channels at a time, then one by one."""
        out, w = self.out, self.window
        end = self._end("outputs", w.outputs, self.held)
        if end == "outputs":
            blocks = [
                ("0", f"outputs - {_ROWS - 1}", _ROWS),
                (f"outputs - outputs % {_ROWS}", end, 1),
            ]
        else:
            whole = self.held - self.held % _ROWS
            blocks = [("0", str(whole), _ROWS)] if whole else []
            blocks += [(str(whole), end, 1)] if whole < self.held else []
        for start, stop, size in blocks:
            with out.loop("o", stop, start, size):
                channels = [f"o + {r}" if r else "o" for r in range(size)]
                out.line(f"float w_k[{size}][{self.depth}];")
                for r, channel in enumerate(channels):
                    with out.loop("k", self._depth):
                        out.line(f"w_k[{r}][k] = {self._weight(channel)};")
                lane = "i"
                with ExitStack() as stack:
                    if self.lanes > _WIDTH:
                        stack.enter_context(out.loop("i0", self.lanes, 0, _WIDTH))
                        lane = "i0 + i"
                    for r in range(size):
                        out.line(f"float s{r}[{_WIDTH}];")
                    with out.loop("i", _WIDTH):
                        out.lines(f"s{r}[i] = sum[{c}][{lane}];" for r, c in enumerate(channels))
                    with out.loop("k", self._depth), out.loop("i", _WIDTH):
                        out.line(f"const float v = panel[k][{lane}];")
                        out.lines(f"s{r}[i] += w_k[{r}][k] * v;" for r in range(size))
                    with out.loop("i", _WIDTH):
                        out.lines(f"sum[{c}][{lane}] = s{r}[i];" for r, c in enumerate(channels))

    def _tap(self) -> str:
        """The tap k of this panel among all taps."""
        if self.window.channels > self.channels:
            return f"(c0 * {self.taps} + k)"
        return "k"

    def _weight(self, channel: str) -> str:
        """The weight of tap k of an output channel: taps lie side by side in a dense weight."""
        o = self._origin("o0", self.window.outputs, self.held, channel)
        at = self._live(with_taps_as_one(self.problem.at_w)).renamed({"o": o, "k": self._tap()})
        parameter = self._live(self.problem.channel).renamed({"o": o})
        return self.weight.element(at, [parameter])

    def _store(self) -> None:
        out, w, p = self.out, self.window, self.problem
        with (
            out.loop("o", self._end("outputs", w.outputs, self.held)),
            out.loop("r", self._end("rows", w.rows.output, self.rows)),
            out.loop("i", self._end("width", w.columns.output, self.width)),
        ):
            names = {
                "o": self._origin("o0", w.outputs, self.held, "o"),
                "oy": self._origin("y0", w.rows.output, self.rows, "r"),
                "ox": self._origin("x0", w.columns.output, self.width, "i"),
            }
            lane = f"r * {self.width} + i" if self.rows > 1 else "i"
            sums = None if p.sums is None else self._live(p.sums).renamed(names)
            parameter = self._live(p.channel).renamed(names)
            out.line(
                f"const float acc = {self.weight.scaled(f'sum[o][{lane}]', [parameter], sums)};"
            )
            linear = [self._live(x).renamed(names) for x in p.targets if isinstance(x, Linear)]
            if len(linear) == len(p.targets):
                self.epilogue.print(out, "acc", linear)
            else:
                dims = [self._live(x).renamed(names) for x in p.dims]
                self.epilogue.print(out, "acc", self.epilogue.positions(dims))

    @staticmethod
    def _origin(origin: str, extent: int, step: int, offset: str) -> str:
        """`origin + offset` where the loop over `origin` exists."""
        if extent > step:
            return f"({origin} + {offset})"
        return f"({offset})" if " " in offset else offset

    def _live(self, x: Linear) -> Linear:
        """`x` without the variables of loops of one trip, which are not printed."""
        gone = {
            n: None for n, e in (("n", self.window.images), ("g", self.window.groups)) if e == 1
        }
        return x.renamed(gone)


def _even_share(extent: int, most: int) -> int:
    """Up to `most` of `extent`: all parts of one size, where that does not halve them, as then every loop's end is a constant."""
    if extent <= most:
        return extent
    shares = [n for n in range(most, most // 2, -1) if extent % n == 0]
    return shares[0] if shares else most
