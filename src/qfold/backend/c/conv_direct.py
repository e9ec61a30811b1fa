"""Convolutions tap by tap, without any copy of x: depthwise ones, few output channels, 1 x 1 kernels; and window sums.

Up to 4 output channels share each row of x. The loops over the output are clipped to where a tap falls inside x. Each pass
holds the sums of a stretch of one output row; the innermost loop runs along it. Integer weights are widened ahead of all
stretches, in a loop that vectorises, where they are few enough; others one by one, once per stretch.
"""

from __future__ import annotations

from contextlib import ExitStack

from qfold.backend.c.contraction import Epilogue
from qfold.backend.c.layout import Buffer, Linear, variable
from qfold.backend.c.text import Writer
from qfold.backend.c.window import Windowed, with_taps_as_one
from qfold.ir.layouts import Layout

_CHANNELS = 4
_STRETCH = 256
"""Output elements of a row whose sums are held: 4 KiB of floats with 4 channels."""
_WIDENED = 1024
"""Most weights of one output channel that are widened ahead: 16 KiB of floats with 4 channels."""


class DirectPrinter:
    """Prints one convolution or window sum."""

    def __init__(self, out: Writer, problem: Windowed):
        self.out = out
        self.problem = problem
        self.window = problem.window
        self.weight = problem.weight
        self.numbers = problem.numbers
        rows, columns = self.window.rows, self.window.columns
        self.taps = self.window.channels * rows.kernel * columns.kernel
        self.ahead = (
            problem.weight is not None
            and problem.weight.is_converted
            and Layout.of(problem.weight.w.type).is_dense
            and self.taps <= _WIDENED
        )
        """Whether the weights are widened before the loops over the output."""

    def print(self) -> None:
        out, w = self.out, self.window
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
        if self.ahead:
            self._widen(o0, size)
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
                out.line(f"{self.numbers.sum} s{r}[{held}] = {{{self.numbers.zero}}};")
            self._taps(o0, size, width > held)
            self._store(o0, size, width > held)

    def _widen(self, o0: str, size: int) -> None:
        """w_k[r][k] = the weight of tap k (channel, ky, kx) of output channel o0 + r: taps lie side by side in a dense weight."""
        assert self.weight is not None
        out = self.out
        out.line(f"{self.numbers.operand} w_k[{size}][{self.taps}];")
        with out.loop("k", self.taps):
            for r in range(size):
                at = self._at(with_taps_as_one(self.problem.at_w), o0, r, {})
                parameter = self._at(self.problem.channel, o0, r, {})
                out.line(f"w_k[{r}][k] = {self.weight.element(at, [parameter])};")

    def _tap(self) -> Linear:
        """The index k of the tap that the loops are at."""
        rows, columns = self.window.rows, self.window.columns
        extents = (("kx", columns.kernel, 1), ("ky", rows.kernel, columns.kernel))
        terms = {name: step for name, kernel, step in extents if kernel > 1}
        if self.window.channels > 1:
            terms["c"] = rows.kernel * columns.kernel
        return Linear(terms)

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
                    at = self._at(self.problem.at_w, o0, r, names)
                    parameter = self._at(self.problem.channel, o0, r, {})
                    value = weight.element(at, [parameter])
                    if self.ahead:
                        value = f"w_k[{r}][{self._tap().text()}]"
                    out.line(f"const {self.numbers.operand} w{r} = {value};")
            position, ix = self._input_column()
            with out.loop("ox", end, first):
                value = self.problem.source(position, variable("iy"), ix)
                out.line(f"const {self.numbers.operand} v = {value};")
                at = "ox - x0" if split else "ox"
                for r in range(size):
                    product = "v" if weight is None else self.numbers.product(f"w{r}", "v")
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

    def _input_column(self) -> tuple[Linear, Linear]:
        """Where the tap of output ox is in x, and its column."""
        w = self.window
        columns = w.columns
        ix = Linear({"ox": columns.stride, "kx": columns.dilation}, -columns.pad)
        if columns.kernel == 1:
            ix = Linear({"ox": columns.stride}, -columns.pad)
        x = w.x
        step = x.coefficient("ix")
        rest = {n: c for n, c in x.terms.items() if n != "ix" and self._live(n)}
        return Linear(rest, x.constant) + ix.scaled(step), ix

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
        acc_type = self.numbers.accumulator
        gone = {} if w.rows.output > 1 else {"oy": ""}
        for r in range(size):
            with out.loop("ox", end, first):
                raw = f"s{r}[ox - x0]" if split else f"s{r}[ox]"
                if self.weight is None:
                    assert isinstance(self.problem.epilogue, Buffer)
                    target = self.problem.targets[0]
                    assert isinstance(target, Linear)
                    out.line(self.problem.epilogue.store(self._at(target, o0, r, gone), raw))
                    continue
                assert isinstance(self.problem.epilogue, Epilogue)
                sums = (
                    None if self.problem.sums is None else self._at(self.problem.sums, o0, r, gone)
                )
                parameter = self._at(self.problem.channel, o0, r, {})
                out.line(f"const {acc_type} acc = {self.weight.scaled(raw, [parameter], sums)};")
                linear = [
                    self._at(x, o0, r, gone) for x in self.problem.targets if isinstance(x, Linear)
                ]
                if len(linear) != len(self.problem.targets):
                    dims = [self._at(x, o0, r, gone) for x in self.problem.dims]
                    self.problem.epilogue.print(out, "acc", self.problem.epilogue.positions(dims))
                else:
                    self.problem.epilogue.print(out, "acc", linear)
