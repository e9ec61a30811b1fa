"""Integer contractions on a cluster: blocks of sums in registers, nothing copied, each core its share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import ClassVar

from qfold.backend.c.contraction import Buffers, Epilogue
from qfold.backend.c.integer_elements import IntegerOperands, difference
from qfold.backend.c.layout import Linear, variable
from qfold.backend.c.matmul_problem import MatmulProblem, quant_matmul_problem
from qfold.backend.c.plain import sums
from qfold.backend.c.plain_matmul import BlockPrinter
from qfold.backend.c.share import BadSplit, Split, byte_safe, shares
from qfold.backend.c.text import Writer
from qfold.backend.c.window import axes_of, spatial
from qfold.dialects import qkernel
from qfold.dialects.contraction import window_of


class _Matmul(BlockPrinter):
    SUM: ClassVar[str] = "uint32_t"
    ACCUMULATOR: ClassVar[str] = "int32_t"

    def __init__(self, out: Writer, p: MatmulProblem, operands: IntegerOperands):
        super().__init__(out, p)
        self.operands = operands

    def accumulate(self, height: int, width: int, first: str, last: str) -> None:
        out, p, o = self.out, self.p, self.operands
        names = sums(height, width)
        with out.loop("k", last, first):
            for r in range(height):
                zero = Linear() if p.sums is None else self.at(p.sums, m=r)
                value = difference(o.data, self.at(p.a, m=r), o.data_zero, zero)
                out.line(f"const int32_t a{r} = {value};")
            for c in range(width):
                value = difference(
                    o.weight, self.at(p.w, n=c), o.weight_zero, self.at(p.parameters[0], n=c)
                )
                out.line(f"const int32_t w{c} = {value};")
            for r in range(height):
                for c in range(width):
                    out.line(f"{names[r][c]} += (uint32_t)(a{r} * w{c});")

    def scaled(self, raw: str, block: str, place: object) -> str:
        return f"(int32_t){raw}"


def print_plain_quant_matmul(
    out: Writer, op: qkernel.QuantMatmulOp, buffers: Buffers, split: Split
) -> None:
    """This core's share of `qkernel.quant_matmul`; `split` is over the dimensions of y, `BadSplit` where it is not."""
    y = buffers[op.y]
    split = byte_safe(split, y)
    if len(split.parts) != len(y.shape):
        raise BadSplit(f"{len(y.shape)} dimensions of y are split as {list(split.parts)}")
    if 0 not in y.shape:
        problem = quant_matmul_problem(op, buffers, split)
        _Matmul(out, problem, IntegerOperands.of_matmul(op, buffers)).print()


def print_plain_quant_conv(
    out: Writer, op: qkernel.QuantConvOp, buffers: Buffers, split: Split
) -> None:
    """This core's share of `qkernel.quant_conv`, output by output; `split` as above."""
    y, o = buffers[op.y], IntegerOperands.of_conv(op, buffers)
    split = byte_safe(split, y)
    if 0 in y.shape:
        return
    groups, strides, pads, dilations = window_of(op)
    x_shape, w_shape = o.data.shape, o.weight.shape
    axes = axes_of(x_shape[2:], w_shape[2:], y.shape[2:], strides, pads, dilations)
    rank = len(y.shape)
    outputs = ["n", "o", "oy", "ox"] if rank == 4 else ["n", "o", "ox"]
    dims = [variable(name) for name in outputs]
    group = variable("g").scaled(w_shape[1]) if groups > 1 else Linear()
    at_x = o.data.at(
        [dims[0], group + variable("ci"), *spatial(rank, variable("iy"), variable("ix"))]
    )
    taps = [variable("ci"), *spatial(rank, variable("ky"), variable("kx"))]
    at_w = o.weight.at([dims[1], *taps])
    epilogue = Epilogue.of(op, op.y, buffers)
    with shares(out, split, y.shape) as ranges, ExitStack() as stack:
        for name, range_ in zip(outputs, ranges, strict=True):
            stack.enter_context(out.loop(name, range_.last, range_.first))
        if groups > 1:
            out.line(f"const ptrdiff_t g = o / {y.shape[1] // groups};")
        out.line("uint32_t sum = 0;")
        with ExitStack() as inner:
            inner.enter_context(out.loop("ci", w_shape[1]))
            for tap, place, output, axis in zip(
                ("ky", "kx"), ("iy", "ix"), ("oy", "ox"), axes, strict=True
            ):
                if rank == 3 and tap == "ky":
                    continue
                inner.enter_context(out.loop(tap, axis.kernel))
                where = Linear({output: axis.stride, tap: axis.dilation}, -axis.pad)
                if axis.clipped or at_x.coefficient(place):
                    out.line(f"const ptrdiff_t {place} = {where.text()};")
                if axis.clipped:
                    inner.enter_context(out.block(f"if ({place} >= 0 && {place} < {axis.size})"))
            left = difference(o.data, at_x, o.data_zero, Linear())
            right = difference(o.weight, at_w, o.weight_zero, dims[1])
            out.line(f"sum += (uint32_t)((int32_t){left} * {right});")
        out.line("const int32_t acc = (int32_t)sum;")
        epilogue.print(out, "acc", epilogue.positions(dims))
