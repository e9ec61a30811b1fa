"""`c.conv`, `c.dequant_conv` and `c.window_sum`: which of two forms prints them. Padding is never materialised as a copy of x.

A convolution with a 1 x 1 kernel, unit strides and no pads sees all pixels as one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod

from xdsl.dialects.builtin import MemRefType, f32

from qfold.backend.c.contraction import FLOATS, INTEGERS, Buffers, Epilogue, Weight
from qfold.backend.c.conv_columns import ColumnsPrinter
from qfold.backend.c.conv_direct import DirectPrinter
from qfold.backend.c.integer_elements import IntegerOperands, IntegerWeight
from qfold.backend.c.layout import Buffer, Linear, variable
from qfold.backend.c.plain_window import print_plain_window
from qfold.backend.c.share import BadSplit, Split, byte_safe
from qfold.backend.c.text import Writer
from qfold.backend.c.window import Axis, Window, Windowed, axes_of, source_of, spatial
from qfold.dialects import qkernel
from qfold.dialects.contraction import ints, window_of
from qfold.ir.layouts import Layout

_MANY_CHANNELS = 8
"""Output channels of a group from which gathering x into a panel pays."""
_SUMMED = 4096
"""Most pixels for which a window sum first sums over channels, so that a window adds taps and not taps * channels: 16 KiB."""


def print_conv(
    out: Writer,
    op: qkernel.ConvOp | qkernel.DequantConvOp,
    buffers: Buffers,
    split: Split | None = None,
    *,
    shared_registers: bool = False,
) -> None:
    """The body of `qkernel.conv` and `qkernel.dequant_conv`; with a `split` of the dimensions of y, this core's share.

    `shared_registers`: as for `print_plain_window`.
    """
    if split is not None:
        print_conv_share(out, op, buffers, split, shared_registers=shared_registers)
        return
    problem, _ = conv_problem(op, buffers)
    if 0 in buffers[op.y].shape:
        return
    w = problem.window
    many = w.rows.kernel * w.columns.kernel > 1 and w.outputs >= _MANY_CHANNELS
    if many and Layout.of(buffers[op.w].type).is_dense:
        ColumnsPrinter(out, problem).print()
    else:
        DirectPrinter(out, problem).print()


def print_conv_share(
    out: Writer,
    op: qkernel.ConvOp | qkernel.DequantConvOp | qkernel.QuantConvOp,
    buffers: Buffers,
    split: Split,
    *,
    shared_registers: bool,
) -> None:
    """This core's share of a convolution; `split` and `shared_registers` as for `print_conv`."""
    problem, flat = conv_problem(op, buffers)
    if 0 not in buffers[op.y].shape:
        parts = _parts(split, buffers[op.y], flat=flat)
        print_plain_window(out, problem, parts, shared_registers=shared_registers)


def conv_problem(
    op: qkernel.ConvOp | qkernel.DequantConvOp | qkernel.QuantConvOp, buffers: Buffers
) -> tuple[Windowed, bool]:
    """The convolution, and whether its pixels are one row."""
    x, w, y = buffers[op.x], buffers[op.w], buffers[op.y]
    groups, strides, pads, dilations = window_of(op)
    rows, columns = axes_of(x.shape[2:], w.shape[2:], y.shape[2:], strides, pads, dilations)
    rank = len(x.shape)
    per_group = y.shape[1] // groups
    channel = Linear({"g": per_group if groups > 1 else 0, "o": 1 if per_group > 1 else 0})
    dims = [variable("n"), channel, *spatial(rank, variable("oy"), variable("ox"))]
    epilogue = Epilogue.of(op, op.y, buffers)
    targets = epilogue.positions(dims)
    sums: Linear | None = None
    weight = Weight(w)
    if isinstance(op, qkernel.DequantConvOp):
        weight = Weight.of(op, op.window_sum, buffers)
        if op.window_sum is not None:
            group = variable("g") if groups > 1 else Linear()
            sums = buffers[op.window_sum].at([variable("n"), group, *dims[2:]])
    numbers, zero_point, padding = FLOATS, None, 0
    if isinstance(op, qkernel.QuantConvOp):
        if op.padding is not None:
            rows, columns, padding = rows.fill(), columns.fill(), op.padding
        operands = IntegerOperands.of_conv(op, buffers)
        numbers, zero_point = INTEGERS, operands.data_zero
        weight = IntegerWeight(w, zero_point=operands.weight_zero)
    ci = variable("c") if x.shape[1] // groups > 1 else Linear()
    at_w = w.at([channel, ci, *spatial(rank, variable("ky"), variable("kx"))])
    source = source_of(x, groups)
    flat = _flattened(rows, columns, [source], targets, sums)
    if flat is not None:
        rows, columns = flat
    window = Window(x.shape[0], groups, x.shape[1] // groups, per_group, rows, columns, source, x)
    problem = Windowed(
        window, epilogue, dims, targets, weight, at_w, channel, sums, numbers, zero_point, padding
    )
    return problem, flat is not None


def _parts(split: Split, y: Buffer, *, flat: bool) -> tuple[int, int, int, int]:
    """`split`, which is over the dimensions of y, over images, channels, rows and columns.

    `BadSplit` where it has another length.
    """
    parts = byte_safe(split, y).parts
    if len(parts) != len(y.shape):
        raise BadSplit(f"{len(y.shape)} dimensions of y are split as {list(parts)}")
    images, channels, *pixels = parts
    if flat or len(pixels) == 1:
        return images, channels, 1, prod(pixels)
    return images, channels, pixels[0], pixels[1]


def print_window_sum(
    out: Writer, op: qkernel.WindowSumOp, buffers: Buffers, split: Split | None = None
) -> None:
    """The body of `qkernel.window_sum`; with a `split` of the dimensions of y, this core's share."""
    x, y = buffers[op.x], buffers[op.y]
    groups, strides, pads, dilations = window_of(op)
    kernel = ints(op.kernel_shape)
    rows, columns = axes_of(x.shape[2:], kernel, y.shape[2:], strides, pads, dilations)
    rank = len(x.shape)
    group = variable("g") if groups > 1 else Linear()
    at_y = y.at([variable("n"), group, *spatial(rank, variable("oy"), variable("ox"))])
    window = Window(
        x.shape[0], groups, x.shape[1] // groups, 1, rows, columns, source_of(x, groups), x
    )
    if 0 in y.shape:
        return
    if split is not None:
        problem = Windowed(window, y, [], [at_y])
        print_plain_window(out, problem, _parts(split, y, flat=False))
        return
    taps = rows.kernel * columns.kernel
    pixels = window.images * window.groups * rows.size * columns.size
    if window.channels > 1 and taps > 1 and 0 < pixels <= _SUMMED:
        window = _summed_over_channels(out, window)
    DirectPrinter(out, Windowed(window, y, [], [at_y])).print()


def _summed_over_channels(out: Writer, window: Window) -> Window:
    """Sums each pixel over its channels into `total`; what is left is a window over one channel."""
    w, rows, columns = window, window.rows, window.columns
    shape = (w.images, w.groups, rows.size, columns.size)
    total = Buffer("total", MemRefType(f32, shape))
    indices = [variable(name) for name in ("n", "g", "iy", "ix")]
    at = total.at(indices)
    out.line(f"float total[{prod(shape)}] = {{0.0f}};")
    loops = zip(
        ("n", "g", "c", "iy", "ix"),
        (w.images, w.groups, w.channels, rows.size, columns.size),
        strict=True,
    )
    with ExitStack() as stack:
        gone: dict[str, str | None] = {}
        for name, extent in loops:
            if extent > 1:
                stack.enter_context(out.loop(name, extent))
            else:
                gone[name] = None
        source = w.source.load(w.x.renamed(gone))
        out.line(f"total[{at.renamed(gone).text()}] += {source};")
    return replace(w, channels=1, x=at, source=total)


def _flattened(
    rows: Axis,
    columns: Axis,
    sources: Sequence[Linear],
    targets: Sequence[Linear | str],
    sums: Linear | None,
) -> tuple[Axis, Axis] | None:
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
    return Axis(1, 1, 1, 1, 1, 0), Axis(pixels, 1, pixels, 1, 1, 0)
