"""`kernels.h` and `kernels.c`: one C function per level-3 function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from xdsl.dialects import memref
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Operation, SSAValue

from qfold.backend.c.conv import print_conv, print_window_sum
from qfold.backend.c.description import description
from qfold.backend.c.generated import Generated
from qfold.backend.c.joined import print_joined
from qfold.backend.c.layout import Buffer
from qfold.backend.c.loops import print_copy, print_fill, print_generic
from qfold.backend.c.matmul import print_dequant_matmul, print_matmul
from qfold.backend.c.packed import print_pack, print_packed_matmul, print_row_sum
from qfold.backend.c.packed_integers import (
    print_pack_bytes,
    print_pack_window,
    print_packed_quant_matmul,
)
from qfold.backend.c.program import Kernel, NotLevel3, Program
from qfold.backend.c.quant_conv import print_quant_conv
from qfold.backend.c.quant_matmul import print_quant_matmul
from qfold.backend.c.share import SPLIT, BadSplit, Split
from qfold.backend.c.signature import compute_ops, joined_nests, parameters, signature
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel
from qfold.ir.locations import describe_location
from qfold.ir.shared_loops import starts
from qfold.targets import target_named

if TYPE_CHECKING:
    from qfold.backend.riscv import GeneratedKernel

KernelPrinter = Callable[[Writer, Operation, Mapping[SSAValue, Buffer]], None]
"""Writes the body of a kernel function for its op; the buffers are the function's parameters."""

_REGISTERED: dict[str, KernelPrinter] = {}


def register_kernel(name: str, printer: KernelPrinter) -> None:
    """Let `printer` write every kernel that a row called `name` of a target's kernel table selects.

    `ValueError` for a name of ours.
    """
    if name.startswith(("c.", "riscv.")):
        prefix = name.partition(".")[0]
        raise ValueError(f"kernel names that start with '{prefix}.' are qfold's own, got {name!r}")
    _REGISTERED[name] = printer


def _print_op(
    out: Writer,
    kernel: str,
    op: Operation,
    buffers: Mapping[SSAValue, Buffer],
    fill: linalg.FillOp | None,
    split: Split | None,
    shared_registers: bool,
) -> None:
    """What the kernel named in the table prints for `op`; of a `split` one, a core's share.

    `NotLevel3` when the kernel implements another op: selection went wrong.
    """
    if kernel in _REGISTERED and not isinstance(op, linalg.FillOp):
        # It knows nothing of shares.
        with nullcontext() if split is None else out.block("if (qf_core_id() == 0)"):
            _REGISTERED[kernel](out, op, buffers)
        return
    match kernel, op:
        case "c.matmul", qkernel.MatmulOp():
            print_matmul(out, op, buffers, split)
        case "c.dequant_matmul", qkernel.DequantMatmulOp():
            print_dequant_matmul(out, op, buffers, split)
        case "c.conv", qkernel.ConvOp():
            print_conv(out, op, buffers, split, shared_registers=shared_registers)
        case "c.dequant_conv", qkernel.DequantConvOp():
            print_conv(out, op, buffers, split, shared_registers=shared_registers)
        case "c.quant_matmul", qkernel.QuantMatmulOp():
            print_quant_matmul(out, op, buffers, split)
        case "c.quant_conv", qkernel.QuantConvOp():
            print_quant_conv(out, op, buffers, split, shared_registers=shared_registers)
        case "c.window_sum", qkernel.WindowSumOp():
            print_window_sum(out, op, buffers, split)
        case "c.pack", qkernel.PackOp() if split is not None:
            print_pack(out, op, buffers, split)
        case "c.packed_matmul", qkernel.PackedMatmulOp() if split is not None:
            print_packed_matmul(out, op, buffers, split)
        case "c.row_sum", qkernel.RowSumOp() if split is not None:
            print_row_sum(out, op, buffers, split)
        case "c.pack_bytes", qkernel.PackBytesOp() if split is not None:
            print_pack_bytes(out, op, buffers, split)
        case "c.pack_window", qkernel.PackWindowOp() if split is not None:
            print_pack_window(out, op, buffers, split)
        case "c.packed_quant_matmul", qkernel.PackedQuantMatmulOp() if split is not None:
            print_packed_quant_matmul(out, op, buffers, split)
        case "c.loops", linalg.GenericOp():
            print_generic(out, op, buffers, fill, split)
        case "c.loops", linalg.FillOp():
            print_fill(out, op, buffers, split)
        case "c.loops", memref.CopyOp():
            print_copy(out, op, buffers, split)
        case _:
            types = ", ".join(str(v.type) for v in op.operands)
            raise NotLevel3(
                f"kernel {kernel} was selected for {describe_location(op)}, which it does not implement ({types})"
            )


def print_kernel(
    out: Writer,
    kernel: Kernel,
    nodes: tuple[str, ...],
    *,
    cluster: bool = False,
    shared_registers: bool = False,
    generated: GeneratedKernel | None = None,
) -> None:
    """The definition of one kernel function, with its comment; of a `generated` one the driver, which calls assembly.

    On a `cluster` each core does its share, as `qmm.split` says; `NotLevel3` where it says nothing that the kernel can do.
    `shared_registers`: whether its cores keep floats and integers in the same 32 registers.
    """
    found = parameters(kernel)
    buffers: dict[SSAValue, Buffer] = {
        a: p.buffer for a, p in zip(kernel.function.body.block.args, found, strict=True)
    }
    for prototype in () if generated is None else generated.prototypes:
        out.line(f"{prototype};")
    out.comment(description(kernel, nodes))
    with out.block(signature(kernel)):
        body = Writer()
        try:
            if generated is not None:
                body.lines(generated.driver)
            else:
                split = _split_of(kernel) if cluster else None
                _print_ops(body, kernel, buffers, split, shared_registers)
        except BadSplit as e:
            raise NotLevel3(f"{describe_location(kernel.op)}: {e}") from None
        text = body.text()
        for p in found:
            if not _mentions(text, p.buffer.name):
                out.line(f"(void){p.buffer.name};")
        out.lines(text.rstrip("\n").split("\n") if text.strip() else [])


def _split_of(kernel: Kernel) -> Split:
    split = Split.of(kernel.function)
    if split is None:
        raise NotLevel3(f"@{kernel.symbol} has no {SPLIT}: run qmm-split-work first")
    return split


def _print_ops(
    out: Writer,
    kernel: Kernel,
    buffers: Mapping[SSAValue, Buffer],
    split: Split | None,
    shared_registers: bool,
) -> None:
    """The statements of a kernel function."""
    function = kernel.function
    ops = compute_ops(function)
    nests = joined_nests(ops)
    if nests is not None and kernel.kernel == "c.loops":
        variables = [o for o in function.body.block.ops if isinstance(o, memref.AllocOp)]
        print_joined(out, nests, buffers, variables, split)
        return
    fill: linalg.FillOp | None = None
    done: list[Operation] = []
    for op, following in zip(ops, [*ops[1:], None], strict=True):
        if isinstance(op, linalg.FillOp) and starts(op, following):
            fill = op
            continue
        if split is not None and not all(isinstance(o, linalg.FillOp) for o in done):
            raise BadSplit("its ops follow on each other, and cores do not wait in between")
        part = split
        if isinstance(op, linalg.FillOp) and split is not None and len(ops) > 1:
            part = _of_fill(split, buffers[op.outputs[0]].shape)
        _print_op(out, kernel.kernel, op, buffers, fill, part, shared_registers)
        fill = None
        done.append(op)


def _of_fill(split: Split, shape: Sequence[int]) -> Split:
    """The split of one of several fills (the frame around a padded image), which have different shapes."""
    if len(split.parts) == len(shape):
        return split
    longest = max(range(len(shape)), key=lambda d: shape[d], default=None)
    return Split(tuple(split.total if d == longest else 1 for d in range(len(shape))))


def _mentions(text: str, name: str) -> bool:
    padded = "".join(c if c.isalnum() or c == "_" else " " for c in text)
    return name in padded.split()


def print_header(program: Program) -> str:
    """`kernels.h`."""
    out = Writer()
    caller = "network.c and dispatches.c call" if program.is_cluster else "network.c calls"
    out.comment(f"The kernels that {caller}: one function per shape and type, no others.")
    out.lines(["#ifndef KERNELS_H", "#define KERNELS_H", "", '#include "qfold_int.h"'])
    if program.is_cluster:
        out.line('#include "qfold_rt.h"')
    out.line()
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


_ONLY_OWN_STORES = (
    "",
    "/* GCC from version 8 on, with -O3, reads elements beyond a core's share and writes them back as they were (predictive",
    " * commoning, where it eliminates stores). Another core's results may be lost by that. */",
    "#if defined(__GNUC__) && !defined(__clang__)",
    '#pragma GCC optimize("no-predictive-commoning")',
    "#endif",
    "",
)
"""Before anything that is compiled for cores that share an array."""


def print_source(program: Program, generated: Generated | None = None) -> str:
    """`kernels.c`; `generated` are the kernels in assembly."""
    kernels = Writer()
    isa = target_named(program.target).isa
    shared_registers = isa is not None and isa.float_registers == "x"
    for kernel in program.kernels:
        kernels.line()
        print_kernel(
            kernels,
            kernel,
            program.nodes_of[kernel.symbol],
            cluster=program.is_cluster,
            shared_registers=shared_registers,
            generated=(generated or {}).get(kernel.symbol),
        )
    text = kernels.text()
    out = Writer()
    out.comment(
        "Loops over constant extents: shapes, strides and tails are all decided. Pointers are to an array's "
        "element [0, ..., 0] and overlap only where a kernel updates in place (one pointer then)."
        + (" Each core does its share, and none waits for another." if program.is_cluster else "")
    )
    if program.is_cluster:
        out.lines(_ONLY_OWN_STORES)
    out.lines(['#include "kernels.h"', "", '#include "qfold_math.h"'])
    helpers = "".join(_sum_helper(n) for n in (8, 32) if f"qf_sum{n}(" in text)
    return out.text() + helpers + text
