"""`riscv.quant_conv`: depthwise convolutions of bytes, a dot product for each row of a window.

A core does whole rows of channels. Four outputs side by side are a *group*. Of each row of x that a group's windows cover, words
are loaded once and handed on from group to group; a window's bytes are shifted out of the one or two words that hold them, and
multiplied by a word of weights that is 0 beyond the kernel's width. Rows of the output whose windows have the same rows inside of
x are a function. No load is misaligned and none passes a row of x: words of rows that start anywhere are put together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qfold.backend.c.layout import Buffer, Linear, access, c_type, variable
from qfold.backend.c.share import shares
from qfold.backend.c.text import Writer, call_lines
from qfold.backend.c.window import Axis, axes_of
from qfold.backend.riscv.builder import WORD, fits_12_bits
from qfold.backend.riscv.depthwise_rows import ROW, Depthwise, rows_function
from qfold.backend.riscv.dot_product import DotProducts
from qfold.backend.riscv.emit import AssemblyFunction
from qfold.backend.riscv.generated import CannotGenerate, GeneratedKernel, LeafKernel
from qfold.backend.riscv.integer_region import TYPES, IntegerEpilogue, check_region
from qfold.backend.riscv.leaf import function_facts, isa_of, only_op, split_of
from qfold.backend.riscv.streams import Stream
from qfold.dialects import qkernel
from qfold.dialects.contraction import WORD_WINDOWS, shape_of, window_of
from qfold.dialects.element_types import is_unsigned
from qfold.dialects.qkernel import PANEL

_IMAGE, _CHANNEL, _COLUMN = "image", "channel", "n"


def _problem(leaf: LeafKernel, op: qkernel.QuantConvOp) -> Depthwise:
    check_region(op)
    x, w, y = (leaf.buffers[v] for v in (op.x, op.w, op.y))
    groups, strides, pads, dilations = window_of(op)
    rows, columns = axes_of(x.shape[2:], shape_of(op.w)[2:], y.shape[2:], strides, pads, dilations)
    row_stride = x.strides[2] if len(x.shape) == 4 else 0
    reach = (rows.kernel - 1) * rows.dilation * row_stride + columns.size
    refusals = {
        f"it has the attribute {WORD_WINDOWS}": WORD_WINDOWS in op.attributes,
        "each input channel is a group": shape_of(op.w)[1] == 1 and groups == x.shape[1],
        "there are no zero points": op.x_zero_point is None and op.w_zero_point is None,
        "a row of a window is at most a word": columns.kernel <= WORD,
        "windows are at most a word apart, and dense": columns.stride <= WORD
        and columns.dilation == 1,
        "rows of x are contiguous": columns.size == 1 or x.strides[-1] == 1,
        "offsets reach all rows of a window": fits_12_bits(reach + WORD),
        "no dimension is 0": 0 not in (*x.shape, *y.shape),
    }
    for what, holds in refusals.items():
        if not holds:
            raise CannotGenerate(op, f"the kernel is for convolutions in which {what}")
    place = [variable(v) for v in (_IMAGE, _CHANNEL, ROW, _COLUMN)]
    if len(y.shape) == 3:
        del place[2]
    operands: list[Stream] = []
    for i, (value, map_) in enumerate(zip(op.epilogue_operands, op.maps, strict=True)):
        position = access(leaf.buffers[value], map_, place)
        if not isinstance(position, Linear):
            raise CannotGenerate(op, f"epilogue operand {i} is read at {map_}, which is not linear")
        operands.append(_stream(f"e{i}", leaf.buffers[value], position, columns))
    output = replace(_stream("y", y, y.at(place), columns), written=True)
    for stream in (output, *operands):
        if stream.element not in TYPES:
            names = ", ".join(sorted(map(str, TYPES)))
            raise CannotGenerate(op, f"{stream.name} is one of {names}, got {stream.buffer.type}")
        if not stream.column_bytes and stream.position.coefficient(ROW):
            raise CannotGenerate(op, f"{stream.name} has one element per row")
    return Depthwise(
        y.shape[0],
        y.shape[1],
        y.shape[1] // x.shape[1],
        rows,
        columns,
        row_stride,
        (op.padding or 0) % 256,
        _alignment(x),
        x,
        w,
        DotProducts(not is_unsigned(x.element), not is_unsigned(w.element)),
        IntegerEpilogue(output, tuple(operands), op.epilogue_block),
    )


def _stream(name: str, buffer: Buffer, position: Linear, columns: Axis) -> Stream:
    if columns.output == 1 and position.coefficient(ROW):
        # Pointers that move with the columns are those that move with the rows.
        position += variable(_COLUMN)
    return Stream(name, buffer, position)


def _alignment(x: Buffer) -> int:
    """The bytes (4, 2 or 1) that all rows of x are aligned to."""
    offset = x.type.get_offset()
    steps = [s for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True) if n > 1]
    if offset is None:
        return 1
    return next(n for n in (4, 2, 1) if not any(s % n for s in (offset, *steps)))


def generate(leaf: LeafKernel) -> GeneratedKernel:
    """
    The kernel of a function that holds one depthwise `qkernel.quant_conv` that `WORD_WINDOWS` marks; `qmm.split` has an entry for
    each dimension of `y`, 1 for the last.

    `y` and the epilogue operands have any static strides. `CannotGenerate` for what `_problem` names.
    """
    op = only_op(leaf, qkernel.QuantConvOp)
    problem = _problem(leaf, op)
    isa = isa_of(leaf)
    functions: dict[tuple[int, ...], AssemblyFunction] = {}
    for _, _, taps in problem.runs():
        if taps not in functions:
            symbol = f"{leaf.symbol}_{'_'.join(map(str, taps)) or 'around'}"
            functions[taps] = rows_function(isa, symbol, problem, taps)
    executed = problem.images * problem.channels
    executed *= sum(functions[taps].executed(count) for _, count, taps in problem.runs())
    macs = problem.images * problem.channels * problem.rows.output * problem.columns.output
    macs *= problem.rows.kernel * problem.columns.kernel
    return GeneratedKernel(
        leaf.symbol,
        tuple(_prototype(problem, f) for f in functions.values()),
        tuple(_driver(leaf, op, problem, functions)),
        tuple(functions.values()),
        {
            "group": PANEL,
            "dot_product": f"pv.sdot{problem.dots.kind}.b",
            "instructions": executed,
            "instructions_per_mac": round(executed / macs, 4),
            "functions": function_facts(functions.values()),
        },
    )


def _prototype(p: Depthwise, function: AssemblyFunction) -> str:
    parameters = [f"const {c_type(p.x.element)} *x", f"const {c_type(p.w.element)} *w"]
    parameters += [s.declaration for s in p.epilogue.streams]
    return f"void {function.symbol}({', '.join(parameters)}, ptrdiff_t rows)"


def _driver(
    leaf: LeafKernel,
    op: qkernel.QuantConvOp,
    p: Depthwise,
    functions: Mapping[tuple[int, ...], AssemblyFunction],
) -> list[str]:
    """Each channel of the core's share, run of rows by run of rows."""
    rank = len(shape_of(op.y))
    split = split_of(leaf, rank)
    if split.at(rank - 1) != 1:
        raise CannotGenerate(op, f"columns are not divided, but qmm.split is {split.parts}")
    out = Writer()
    with shares(out, split, shape_of(op.y)) as (images, channels, *rest):
        rows = rest[0] if rank == 4 else None
        with (
            out.loop(_IMAGE, images.last, images.first),
            out.loop(_CHANNEL, channels.last, channels.first),
        ):
            for first, count, taps in p.runs():
                symbol = functions[taps].symbol
                if rows is None or rows.is_whole:
                    _print_call(out, p, symbol, taps, Linear({}, first), str(count))
                    continue
                end = first + count
                with out.block(""):
                    starts, ends = f"{rows.first} > {first}", f"{rows.last} < {end}"
                    out.line(f"const ptrdiff_t {ROW} = {starts} ? {rows.first} : {first};")
                    out.line(f"const ptrdiff_t end = {ends} ? {rows.last} : {end};")
                    with out.block(f"if ({ROW} < end)"):
                        _print_call(out, p, symbol, taps, variable(ROW), f"end - {ROW}")
    return out.text().splitlines()


def _print_call(
    out: Writer, p: Depthwise, symbol: str, taps: Sequence[int], row: Linear, count: str
) -> None:
    channel = _CHANNEL if p.multiplier == 1 else f"({_CHANNEL} / {p.multiplier})"
    read = Linear()
    if taps:  # else nothing is read, and the pointer may be any
        read = row.scaled(p.rows.stride)
        read += Linear({}, taps[0] * p.rows.dilation - p.rows.pad)
    place = [variable(_IMAGE), variable(channel), read, Linear()]
    if len(p.x.shape) == 3:
        del place[2]
    kernel = p.rows.kernel * p.columns.kernel
    arguments = [
        f"{p.x.name} + {p.x.at(place).text()}",
        f"{p.w.name} + {variable(_CHANNEL).scaled(kernel).text()}",
    ]
    for stream in p.epilogue.streams:
        moved = row.scaled(stream.position.coefficient(ROW))
        position = stream.position.renamed({_COLUMN: None, ROW: None}) + moved
        arguments.append(f"{stream.buffer.name} + {position.text()}")
    out.lines(call_lines(symbol, [*arguments, count]))
