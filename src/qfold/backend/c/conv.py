"""`c.conv`, `c.dequant_conv` and `c.window_sum`: up to 4 output channels share each row of x.

Padding is never materialised: the loops over the output are clipped to where a tap of the window falls inside x. Each pass holds the
sums of a stretch of one output row; the innermost loop runs along it, and a weight is widened once per stretch. A convolution
with a 1 x 1 kernel, unit strides and no pads sees all pixels as one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from qfold.backend.c.contraction import Buffers, Epilogue, Weight
from qfold.backend.c.layout import Buffer, Linear, variable
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel
from qfold.dialects.contraction import ints, window_of

_CHANNELS = 4
_STRETCH = 256
"""Output elements of a row whose sums are held: 4 KiB of floats with 4 channels."""


@dataclass(frozen=True)
class _Axis:
    """One spatial dimension: output o and tap k read input o * stride + k * dilation - pad."""

    size: int
    kernel: int
    output: int
    stride: int
    dilation: int
    pad: int

    def inside(self, tap: int) -> tuple[int, int]:
        """The outputs [first, end) for which `tap` falls inside the input."""
        shift = tap * self.dilation - self.pad
        first = max(0, -(shift // self.stride)) if shift < 0 else 0
        end = (self.size - 1 - shift) // self.stride + 1 if shift < self.size else 0
        end = max(0, min(self.output, end))
        return min(first, end), end

    @property
    def clipped(self) -> bool:
        return any(self.inside(t) != (0, self.output) for t in range(self.kernel))


@dataclass(frozen=True)
class _Window:
    """A windowed sum over x: rows (y axis, trivial for 1-D) and columns (x axis)."""

    images: int
    groups: int
    channels: int
    """Input channels of a group."""
    outputs: int
    """Output channels of a group (1 for a window sum)."""
    rows: _Axis
    columns: _Axis
    x: Linear
    """Over n, g, ci, iy, ix."""
    source: Buffer


def _axes(
    spatial: Sequence[int], kernel: Sequence[int], output: Sequence[int],
    strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int],
) -> tuple[_Axis, _Axis]:  # fmt: skip
    axes = [
        _Axis(size, k, o, s, d, p)
        for size, k, o, s, d, p in zip(
            spatial, kernel, output, strides, dilations, pads[: len(spatial)], strict=True
        )
    ]
    return (_Axis(1, 1, 1, 1, 1, 0), axes[0]) if len(axes) == 1 else (axes[0], axes[1])


def _spatial(rank: int, y: Linear, x: Linear) -> list[Linear]:
    return [x] if rank == 3 else [y, x]


def _channel(extent: int, groups: int) -> Linear:
    """The index of a channel: g * (channels of a group) + c."""
    per_group = extent // groups
    return Linear({"g": per_group if groups > 1 else 0, "c": 1 if per_group > 1 else 0})


def _source(x: Buffer, groups: int) -> Linear:
    rank = len(x.shape)
    at = [variable("n"), _channel(x.shape[1], groups)]
    return x.at([*at, *_spatial(rank, variable("iy"), variable("ix"))])


def print_conv(out: Writer, op: qkernel.ConvOp | qkernel.DequantConvOp, buffers: Buffers) -> None:
    """The body of `qkernel.conv` and `qkernel.dequant_conv`."""
    x, w, y = buffers[op.x], buffers[op.w], buffers[op.y]
    groups, strides, pads, dilations = window_of(op)
    rows, columns = _axes(x.shape[2:], w.shape[2:], y.shape[2:], strides, pads, dilations)
    rank = len(x.shape)
    per_group = y.shape[1] // groups
    channel = Linear({"g": per_group if groups > 1 else 0, "o": 1 if per_group > 1 else 0})
    dims = [variable("n"), channel, *_spatial(rank, variable("oy"), variable("ox"))]
    epilogue = Epilogue.of(op, op.y, buffers)
    targets = epilogue.positions(dims)
    sums: Linear | None = None
    weight = Weight(w)
    if isinstance(op, qkernel.DequantConvOp):
        weight = Weight.of(op, op.window_sum, buffers)
        if op.window_sum is not None:
            group = variable("g") if groups > 1 else Linear()
            sums = buffers[op.window_sum].at([variable("n"), group, *dims[2:]])
    ci = variable("c") if x.shape[1] // groups > 1 else Linear()
    at_w = w.at([channel, ci, *_spatial(rank, variable("ky"), variable("kx"))])
    source = _source(x, groups)
    flat = _flattened(rows, columns, [source], targets, sums)
    if flat is not None:
        rows, columns = flat
    window = _Window(x.shape[0], groups, x.shape[1] // groups, per_group, rows, columns, source, x)
    _Printer(out, window, weight, at_w, channel, dims, epilogue, targets, sums).print()


def print_window_sum(out: Writer, op: qkernel.WindowSumOp, buffers: Buffers) -> None:
    """The body of `qkernel.window_sum`."""
    x, y = buffers[op.x], buffers[op.y]
    groups, strides, pads, dilations = window_of(op)
    kernel = ints(op.kernel_shape)
    rows, columns = _axes(x.shape[2:], kernel, y.shape[2:], strides, pads, dilations)
    rank = len(x.shape)
    group = variable("g") if groups > 1 else Linear()
    at_y = y.at([variable("n"), group, *_spatial(rank, variable("oy"), variable("ox"))])
    window = _Window(
        x.shape[0], groups, x.shape[1] // groups, 1, rows, columns, _source(x, groups), x
    )
    _Printer(out, window, None, Linear(), Linear(), [], y, [at_y], None).print()


def _flattened(
    rows: _Axis,
    columns: _Axis,
    sources: Sequence[Linear],
    targets: Sequence[Linear | str],
    sums: Linear | None,
) -> tuple[_Axis, _Axis] | None:
    """For a 1 x 1 kernel that reads each pixel once: all pixels as one row, where every operand's layout allows."""
    for axis in (rows, columns):
        if (axis.kernel, axis.stride, axis.pad) != (1, 1, 0) or axis.size != axis.output:
            return None
    if rows.size == 1:
        return None
    for x in sources:
        if x.coefficient("iy") != x.coefficient("ix") * columns.size:
            return None
    for x in (*targets, *([] if sums is None else [sums])):
        if isinstance(x, str) or x.coefficient("oy") != x.coefficient("ox") * columns.size:
            return None
    pixels = rows.size * columns.size
    return _Axis(1, 1, 1, 1, 1, 0), _Axis(pixels, 1, pixels, 1, 1, 0)


class _Printer:
    def __init__(
        self,
        out: Writer,
        window: _Window,
        weight: Weight | None,
        at_w: Linear,
        channel: Linear,
        dims: Sequence[Linear],
        epilogue: Epilogue | Buffer,
        targets: Sequence[Linear | str],
        sums: Linear | None,
    ):
        self.out = out
        self.window = window
        self.weight = weight
        self.at_w = at_w
        self.channel = channel
        self.dims = dims
        self.epilogue = epilogue
        self.targets = targets
        self.sums = sums

    def print(self) -> None:
        out, w = self.out, self.window
        if 0 in (w.images, w.groups, w.outputs, w.rows.output, w.columns.output):
            return
        self._tables()
        with ExitStack() as stack:
            for name, extent in (("n", w.images), ("g", w.groups)):
                if extent > 1:
                    stack.enter_context(out.loop(name, extent))
            size = min(_CHANNELS, w.outputs)
            whole = w.outputs - w.outputs % size
            if whole > size:
                with out.loop("o0", whole, 0, size):
                    self._rows("o0", size)
            else:
                with out.block(""):
                    self._rows("0", size)
            if whole != w.outputs:
                with out.block(""):
                    self._rows(str(whole), w.outputs - whole)

    def _tables(self) -> None:
        """Per tap, the outputs for which it falls inside x."""
        columns = self.window.columns
        if not columns.clipped:
            return
        ranges = [columns.inside(t) for t in range(columns.kernel)]
        for name, values in (("first", [a for a, _ in ranges]), ("end", [b for _, b in ranges])):
            text = ", ".join(str(v) for v in values)
            self.out.line(f"static const ptrdiff_t {name}_ox[{columns.kernel}] = {{{text}}};")

    def _rows(self, o0: str, size: int) -> None:
        out, w = self.out, self.window
        with ExitStack() as stack:
            if w.rows.output > 1:
                stack.enter_context(out.loop("oy", w.rows.output))
            width = w.columns.output
            held = min(width, _STRETCH)
            if width > held:
                stack.enter_context(out.loop("x0", width, 0, held))
                limit = f"x0 + {held}"
                out.line(f"const ptrdiff_t x1 = {limit} < {width} ? {limit} : {width};")
            for r in range(size):
                out.line(f"float s{r}[{held}] = {{0.0f}};")
            self._taps(o0, size, width > held)
            self._store(o0, size, width > held)

    def _taps(self, o0: str, size: int, split: bool) -> None:
        out, w = self.out, self.window
        with ExitStack() as stack:
            if w.channels > 1:
                stack.enter_context(out.loop("c", w.channels))
            if w.rows.kernel > 1:
                stack.enter_context(out.loop("ky", w.rows.kernel))
            self._input_row(stack)
            if w.columns.kernel > 1:
                stack.enter_context(out.loop("kx", w.columns.kernel))
            first, end = "0", str(w.columns.output)
            if w.columns.clipped:
                kx = "kx" if w.columns.kernel > 1 else "0"
                first, end = f"first_ox[{kx}]", f"end_ox[{kx}]"
            if split:
                if w.columns.clipped:
                    out.line(f"const ptrdiff_t begin = {first} > x0 ? {first} : x0;")
                    out.line(f"const ptrdiff_t stop = {end} < x1 ? {end} : x1;")
                    first, end = "begin", "stop"
                else:
                    first, end = "x0", "x1"
            names = {} if w.columns.kernel > 1 else {"kx": ""}
            if w.rows.kernel == 1:
                names["ky"] = ""
            weight = self.weight
            if weight is not None:
                for r in range(size):
                    at = self._at(self.at_w, o0, r, names)
                    parameter = self._at(self.channel, o0, r, {})
                    out.line(f"const float w{r} = {weight.element(at, [parameter])};")
            position = self._input_column()
            with out.loop("ox", end, first):
                out.line(f"const float v = {w.source.name}[{position.text()}];")
                at = "ox - x0" if split else "ox"
                for r in range(size):
                    product = "v" if weight is None else f"w{r} * v"
                    out.line(f"s{r}[{at}] += {product};")

    def _input_row(self, stack: ExitStack) -> None:
        """The row of x that this tap reads; taps outside of x are skipped."""
        out, rows = self.out, self.window.rows
        if rows.size == 1 and rows.kernel == 1 and rows.output == 1 and rows.pad == 0:
            return
        terms = Linear({"oy": rows.stride if rows.output > 1 else 0}, -rows.pad)
        if rows.kernel > 1:
            terms += Linear({"ky": rows.dilation})
        out.line(f"const ptrdiff_t iy = {terms.text()};")
        if rows.clipped:
            stack.enter_context(out.block(f"if (iy >= 0 && iy < {rows.size})"))

    def _input_column(self) -> Linear:
        """Where the tap of output ox is in x."""
        w = self.window
        columns = w.columns
        ix = Linear({"ox": columns.stride, "kx": columns.dilation}, -columns.pad)
        if columns.kernel == 1:
            ix = Linear({"ox": columns.stride}, -columns.pad)
        x = w.x
        step = x.coefficient("ix")
        rest = {n: c for n, c in x.terms.items() if n != "ix" and self._live(n)}
        return Linear(rest, x.constant) + ix.scaled(step)

    def _live(self, name: str) -> bool:
        """Whether a loop variable exists: loops of one trip are not printed."""
        w = self.window
        extents = {"n": w.images, "g": w.groups, "c": w.channels}
        if name == "iy":
            r = w.rows
            return not (r.size == 1 and r.kernel == 1 and r.output == 1 and r.pad == 0)
        return extents.get(name, 2) > 1

    def _at(self, x: Linear, o0: str, r: int, gone: dict[str, str]) -> Linear:
        """`x` at output channel o0 + r of the group."""
        terms: dict[str, int] = {}
        constant = x.constant
        for name, coefficient in x.terms.items():
            if name in gone or not self._live(name):
                continue
            if name == "o":
                constant += r * coefficient
                if o0.isdigit():
                    constant += int(o0) * coefficient
                else:
                    terms[o0] = coefficient
            else:
                terms[name] = coefficient
        return Linear(terms, constant)

    def _store(self, o0: str, size: int, split: bool) -> None:
        out, w = self.out, self.window
        first, end = ("x0", "x1") if split else ("0", str(w.columns.output))
        gone = {} if w.rows.output > 1 else {"oy": ""}
        for r in range(size):
            with out.loop("ox", end, first):
                raw = f"s{r}[ox - x0]" if split else f"s{r}[ox]"
                if self.weight is None:
                    assert isinstance(self.epilogue, Buffer)
                    target = self.targets[0]
                    assert isinstance(target, Linear)
                    out.line(self.epilogue.store(self._at(target, o0, r, gone), raw))
                    continue
                assert isinstance(self.epilogue, Epilogue)
                sums = None if self.sums is None else self._at(self.sums, o0, r, gone)
                parameter = self._at(self.channel, o0, r, {})
                out.line(f"const float acc = {self.weight.scaled(raw, [parameter], sums)};")
                linear = [self._at(x, o0, r, gone) for x in self.targets if isinstance(x, Linear)]
                if len(linear) != len(self.targets):
                    dims = [self._at(x, o0, r, gone) for x in self.dims]
                    self.epilogue.print(out, "acc", self.epilogue.positions(dims))
                else:
                    self.epilogue.print(out, "acc", linear)
