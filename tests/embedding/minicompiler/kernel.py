"""The kernel: a matrix-vector product for int8 weights per tensor, and the table that prefers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from qfold.backend.c.contraction import Epilogue
from qfold.backend.c.kernels import register_kernel
from qfold.backend.c.layout import Buffer, variable
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel
from qfold.targets import HOST, Kernel

NAME = "mini.gemv_i8"

(_OURS,) = HOST.kernels_of("qkernel.dequant_matmul")
_TYPES = dict(_OURS.operands) | {"w": frozenset({"i8"})}

TARGET = replace(HOST, kernels=(Kernel(NAME, "qkernel.dequant_matmul", _TYPES), *HOST.kernels))
"""The host, with our kernel before qfold's: it takes int8 weights, all others stay with qfold."""


def print_gemv(out: Writer, op: Operation, buffers: Mapping[SSAValue, Buffer]) -> None:
    """A plain triple loop: `y = scale * (sum_k a * w - zero_point * row_sum)`, then whatever was fused."""
    assert isinstance(op, qkernel.DequantMatmulOp) and op.hoisted is not None
    a, w, y, scale = (buffers[v] for v in (op.a, op.w, op.y, op.scale))
    m, n, k = variable("m"), variable("n"), variable("k")
    per_column = [n] if len(scale.shape) else []
    out.comment("mini.gemv_i8")
    with out.loop("m", y.shape[-2]), out.loop("n", y.shape[-1]):
        out.line("float sum = 0.0f;")
        with out.loop("k", a.shape[-1]):
            out.line(f"sum += {a.load(a.at([m, k]))} * (float){w.load(w.at([k, n]))};")
        if op.zero_point is not None and op.row_sum is not None:
            zero, rows = buffers[op.zero_point], buffers[op.row_sum]
            out.line(f"sum -= (float){zero.load(zero.at(per_column))} * {rows.load(rows.at([m]))};")
        out.line(f"sum *= {scale.load(scale.at(per_column))};")
        epilogue = Epilogue.of(op, op.y, buffers)
        epilogue.print(out, "sum", epilogue.positions([m, n]))


register_kernel(NAME, print_gemv)
