"""`kernels.h` and `kernels.c`: one C function per level-3 function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Attribute, Operation, SSAValue

from qfold.backend.c.conv import print_conv, print_window_sum
from qfold.backend.c.joined import print_joined
from qfold.backend.c.layout import Buffer, c_type
from qfold.backend.c.loops import print_copy, print_fill, print_generic
from qfold.backend.c.matmul import print_dequant_matmul, print_matmul
from qfold.backend.c.program import Kernel, NotLevel3, Program
from qfold.backend.c.scalar import UnsupportedOp
from qfold.backend.c.text import Names, Writer
from qfold.dialects import qkernel
from qfold.dialects.contraction import EpilogueOperation
from qfold.ir.locations import describe_location
from qfold.ir.shared_loops import loaded, starts

_LISTED = 6
"""ONNX nodes named in a kernel's comment."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel function."""

    buffer: Buffer
    written: bool
    read: bool
    alone: bool
    """Whether nothing else that the function is called with overlaps it."""

    @property
    def declaration(self) -> str:
        return f"{self.c_type}{'restrict ' if self.alone else ''}{self.buffer.name}"

    @property
    def c_type(self) -> str:
        """The pointer type: `const` unless written."""
        return f"{'' if self.written else 'const '}{c_type(self.buffer.element)} *"


def compute_ops(function: func.FuncOp) -> list[Operation]:
    """The ops of a kernel function but for constants, its own variables and the return."""
    return [
        o
        for o in function.body.block.ops
        if not isinstance(o, arith.ConstantOp | memref.AllocOp | func.ReturnOp)
    ]


def parameters(kernel: Kernel) -> list[Parameter]:
    """The parameters of a kernel function, named after what they are to its op."""
    function = kernel.function
    block = function.body.block
    wanted: dict[SSAValue, str] = {}
    written: set[SSAValue] = set()
    read: set[SSAValue] = set()
    ops = compute_ops(function)
    for op in ops:
        _roles(op, wanted, written, read)
    if isinstance(kernel.op, linalg.GenericOp) and _joined_nests(ops) is not None:
        wanted = _joined_names(block.args, written, kernel.op.outputs[0])
    names = Names()
    result: list[Parameter] = []
    for argument in block.args:
        type_ = cast(MemRefType[Attribute], argument.type)
        name = names.unique(wanted.get(argument, f"unused{argument.index}"))
        result.append(
            Parameter(
                Buffer(name, type_), argument in written, argument in read, not kernel.overlaps
            )
        )
    return result


def _joined_names(
    arguments: Sequence[SSAValue], written: set[SSAValue], result: SSAValue
) -> dict[SSAValue, str]:
    """The names of what several loop nests share: their result is `y`, what else they write `y1` ..., what they read `x0` ..."""
    outputs = [v for v in arguments if v in written and v is not result]
    inputs = [v for v in arguments if v not in written]
    names = {v: f"y{i}" for i, v in enumerate(outputs, 1)} | {result: "y"}
    return names | {v: f"x{i}" for i, v in enumerate(inputs)}


def _roles(
    op: Operation, wanted: dict[SSAValue, str], written: set[SSAValue], read: set[SSAValue]
) -> None:
    """What an op does with its buffers; read is what it reads of what the ops before it have not written."""
    if isinstance(
        op,
        qkernel.MatmulOp
        | qkernel.DequantMatmulOp
        | qkernel.ConvOp
        | qkernel.DequantConvOp
        | qkernel.WindowSumOp,
    ):
        for name, _ in op.GROUPS:
            group: SSAValue | Sequence[SSAValue] | None = getattr(op, name)
            values: Sequence[SSAValue] = ()
            if group is not None:
                values = (group,) if isinstance(group, SSAValue) else group
            short = "e" if name == "epilogue_operands" else name
            for i, value in enumerate(values):
                wanted.setdefault(value, f"e{i}" if short == "e" else short)
                if name != "y":
                    read.add(value)
        written.add(op.y)
    elif isinstance(op, linalg.GenericOp):
        for i, value in enumerate(op.outputs):
            wanted.setdefault(value, "y" if i == 0 else f"y{i}")
        for i, value in enumerate(op.inputs):
            wanted.setdefault(value, f"x{i}")
        for inner in op.body.block.ops:
            if isinstance(inner, memref.LoadOp):
                wanted.setdefault(inner.memref, "table")
        read.update(v for v in _reads(op) if v not in written)
        written.update(op.outputs)
    elif isinstance(op, linalg.FillOp):
        wanted.setdefault(op.outputs[0], "y")
        written.add(op.outputs[0])
    elif isinstance(op, memref.CopyOp):
        wanted.setdefault(op.destination, "y")
        wanted.setdefault(op.source, "x")
        written.add(op.destination)
        read.add(op.source)
    else:
        raise UnsupportedOp(op, "a kernel is one qkernel op, linalg.generic, fill or copy")


def signature(kernel: Kernel) -> str:
    """`void name(type *a, ...)`, over several lines where one is too short."""
    declared = [p.declaration for p in parameters(kernel)]
    text = f"void {kernel.symbol}({', '.join(declared) or 'void'})"
    if len(text) <= 106:
        return text
    return f"void {kernel.symbol}(\n    " + ",\n    ".join(declared) + ")"


def _reads(op: linalg.GenericOp) -> Iterator[SSAValue]:
    """The buffers whose elements the body uses."""
    operands = (*op.inputs, *op.outputs)
    yield from (v for v, a in zip(operands, op.body.block.args, strict=True) if a.uses)
    yield from loaded(op)


KernelPrinter = Callable[[Writer, Operation, Mapping[SSAValue, Buffer]], None]
"""Writes the body of a kernel function for its op; the buffers are the function's parameters."""

_REGISTERED: dict[str, KernelPrinter] = {}


def register_kernel(name: str, printer: KernelPrinter) -> None:
    """Let `printer` write every kernel that a row called `name` of a target's kernel table selects.

    `ValueError` for a name of ours.
    """
    if name.startswith("c."):
        raise ValueError(f"kernel names that start with 'c.' are qfold's own, got {name!r}")
    _REGISTERED[name] = printer


def _print_op(
    out: Writer,
    kernel: str,
    op: Operation,
    buffers: Mapping[SSAValue, Buffer],
    fill: linalg.FillOp | None,
) -> None:
    """What the kernel named in the table prints for `op`. `NotLevel3` when it implements another op: selection went wrong."""
    if kernel in _REGISTERED and not isinstance(op, linalg.FillOp):
        _REGISTERED[kernel](out, op, buffers)
        return
    match kernel, op:
        case "c.matmul", qkernel.MatmulOp():
            print_matmul(out, op, buffers)
        case "c.dequant_matmul", qkernel.DequantMatmulOp():
            print_dequant_matmul(out, op, buffers)
        case "c.conv", qkernel.ConvOp():
            print_conv(out, op, buffers)
        case "c.dequant_conv", qkernel.DequantConvOp():
            print_conv(out, op, buffers)
        case "c.window_sum", qkernel.WindowSumOp():
            print_window_sum(out, op, buffers)
        case "c.loops", linalg.GenericOp():
            print_generic(out, op, buffers, fill)
        case "c.loops", linalg.FillOp():
            print_fill(out, op, buffers)
        case "c.loops", memref.CopyOp():
            print_copy(out, op, buffers)
        case _:
            types = ", ".join(str(v.type) for v in op.operands)
            raise NotLevel3(
                f"kernel {kernel} was selected for {describe_location(op)}, which it does not implement ({types})"
            )


def print_kernel(out: Writer, kernel: Kernel, nodes: tuple[str, ...]) -> None:
    """The definition of one kernel function, with its comment."""
    function = kernel.function
    found = parameters(kernel)
    buffers: dict[SSAValue, Buffer] = {
        a: p.buffer for a, p in zip(function.body.block.args, found, strict=True)
    }
    out.comment(description(kernel, nodes))
    with out.block(signature(kernel)):
        body = Writer()
        _print_ops(body, kernel, buffers)
        text = body.text()
        for p in found:
            if not _mentions(text, p.buffer.name):
                out.line(f"(void){p.buffer.name};")
        out.lines(text.rstrip("\n").split("\n") if text.strip() else [])


def _print_ops(out: Writer, kernel: Kernel, buffers: Mapping[SSAValue, Buffer]) -> None:
    """The statements of a kernel function."""
    function = kernel.function
    ops = compute_ops(function)
    nests = _joined_nests(ops)
    if nests is not None and kernel.kernel == "c.loops":
        variables = [o for o in function.body.block.ops if isinstance(o, memref.AllocOp)]
        print_joined(out, nests, buffers, variables)
        return
    fill: linalg.FillOp | None = None
    for op, following in zip(ops, [*ops[1:], None], strict=True):
        if isinstance(op, linalg.FillOp) and starts(op, following):
            fill = op
            continue
        _print_op(out, kernel.kernel, op, buffers, fill)
        fill = None


def _joined_nests(
    ops: Sequence[Operation],
) -> list[tuple[linalg.FillOp | None, linalg.GenericOp]] | None:
    """The generics of a function, each with the fill that it starts from, if they are several and there is nothing else."""
    nests: list[tuple[linalg.FillOp | None, linalg.GenericOp]] = []
    fill: linalg.FillOp | None = None
    for op, following in zip(ops, [*ops[1:], None], strict=True):
        if isinstance(op, linalg.FillOp) and starts(op, following):
            fill = op
        elif isinstance(op, linalg.GenericOp):
            nests.append((fill, op))
            fill = None
        else:
            return None
    return nests if len(nests) > 1 else None


def _mentions(text: str, name: str) -> bool:
    padded = "".join(c if c.isalnum() or c == "_" else " " for c in text)
    return name in padded.split()


def description(kernel: Kernel, nodes: tuple[str, ...]) -> str:
    """What a kernel computes, of which types, for which ONNX nodes."""
    nests = [o for o in compute_ops(kernel.function) if not isinstance(o, linalg.FillOp)]
    lines = [f"{kernel.kernel}: {', then '.join(_formula(o) for o in nests or [kernel.op])}"]
    for p in parameters(kernel):
        note = "" if p.written and not p.read else " in and out" if p.written else ""
        role = "writes" if p.written and not p.read else "updates" if note else "reads"
        lines.append(f"  {role} {p.buffer.name}: {p.buffer.type}")
    if nodes:
        shown = ", ".join(nodes[:_LISTED])
        more = f" and {len(nodes) - _LISTED} more" if len(nodes) > _LISTED else ""
        lines.append(f"ONNX: {shown}{more}")
    return "\n".join(lines)


def _formula(op: Operation) -> str:
    suffix = ""
    if isinstance(op, EpilogueOperation) and op.epilogue_block is not None:
        suffix = ", then the epilogue"
    match op:
        case qkernel.MatmulOp():
            b = "b[n, k]" if op.transpose_b is not None else "b[k, n]"
            a = "a[k, m]" if op.transpose_a is not None else "a[m, k]"
            return f"y[m, n] = sum over k of {a} * {b}{suffix}"
        case qkernel.DequantMatmulOp():
            w = "w[n, k]" if op.transpose_b is not None else "w[k, n]"
            per = " per block of K" if op.block is not None else ""
            return f"y[m, n] = {_dequantized(op, f'a[m, k] * {w}', 'row_sum')}{per}{suffix}"
        case qkernel.DequantConvOp():
            return f"y = {_dequantized(op, 'x * w', 'window_sum')} over each window{suffix}"
        case qkernel.ConvOp():
            return f"y = sum of x * w over each window{suffix}"
        case qkernel.WindowSumOp():
            return "y = sum of x over each window and group"
        case linalg.GenericOp():
            inner = [o.name for o in op.body.block.ops if not isinstance(o, linalg.YieldOp)]
            named = ", ".join(dict.fromkeys(inner)) or "copy"
            kinds = [i.data for i in op.iterator_types]
            what = "reduction" if IteratorType.REDUCTION in kinds else "elementwise"
            return f"{what} ({named})"
        case linalg.FillOp():
            return "y = one value"
        case _:
            return "y = x"


def _dequantized(
    op: qkernel.DequantMatmulOp | qkernel.DequantConvOp, product: str, sums: str
) -> str:
    if op.zero_point is None:
        return f"scale * sum of {product}"
    if op.hoisted is not None:
        return f"scale * (sum of {product} - zero_point * {sums})"
    factor, w = product.split(" * ")
    return f"scale * sum of {factor} * ({w} - zero_point)"


def print_header(program: Program) -> str:
    """`kernels.h`."""
    out = Writer()
    out.comment("The kernels that network.c calls: one function per shape and type, no others.")
    out.lines(["#ifndef KERNELS_H", "#define KERNELS_H", "", '#include "qfold_int.h"', ""])
    for kernel in program.kernels:
        out.line(f"{signature(kernel)};")
    out.lines(["", "#endif"])
    return out.text()


_SUM = """
/* The sum of {n} partial results, as a tree. */
static inline float qf_sum{n}(float s[{n}]) {{
{folds}    return (s[0] + s[1]) + (s[2] + s[3]);
}}
"""


def _sum_helper(n: int) -> str:
    folds = ""
    half = n // 2
    while half >= 4:
        folds += f"    for (ptrdiff_t l = 0; l < {half}; l++) {{\n        s[l] += s[l + {half}];\n    }}\n"
        half //= 2
    return _SUM.format(n=n, folds=folds)


def print_source(program: Program) -> str:
    """`kernels.c`."""
    kernels = Writer()
    for kernel in program.kernels:
        kernels.line()
        print_kernel(kernels, kernel, program.nodes_of[kernel.symbol])
    text = kernels.text()
    out = Writer()
    out.comment(
        "Loops over constant extents: shapes, strides and tails are all decided. Pointers are to an array's "
        "element [0, ..., 0] and overlap only where a kernel updates in place (one pointer then)."
    )
    out.lines(['#include "kernels.h"', "", '#include "qfold_math.h"'])
    helpers = "".join(_sum_helper(n) for n in (8, 32) if f"qf_sum{n}(" in text)
    return out.text() + helpers + text
