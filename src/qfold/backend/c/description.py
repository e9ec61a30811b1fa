"""What a kernel computes, in words and a formula: the comment above its C function."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Operation, SSAValue

from qfold.backend.c.program import Kernel
from qfold.backend.c.signature import compute_ops, parameters
from qfold.dialects import qkernel
from qfold.dialects.contraction import EpilogueOperation

_LISTED = 6
"""ONNX nodes named in a comment."""


def description(kernel: Kernel, nodes: tuple[str, ...]) -> str:
    """What a kernel computes, of which types, for which ONNX nodes."""
    nests = [o for o in compute_ops(kernel.function) if not isinstance(o, linalg.FillOp)]
    lines = [f"{kernel.kernel}: {', then '.join(_formula(o) for o in nests or [kernel.op])}"]
    for p in parameters(kernel):
        note = "" if p.written and not p.read else " in and out" if p.written else ""
        role = "writes" if p.written and not p.read else "updates" if note else "reads"
        lines.append(f"  {role} {p.buffer.name}: {p.buffer.type}")
    if nodes:
        lines.append(f"ONNX: {listed(nodes)}")
    return "\n".join(lines)


def listed(nodes: Sequence[str]) -> str:
    """The first few ONNX nodes."""
    more = f" and {len(nodes) - _LISTED} more" if len(nodes) > _LISTED else ""
    return f"{', '.join(nodes[:_LISTED])}{more}"


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
        case qkernel.QuantMatmulOp():
            w = "b[n, k]" if op.transpose_b is not None else "b[k, n]"
            a = _difference("a[m, k]", op.a_zero_point)
            return f"y[m, n] = sum over k of {a} * {_difference(w, op.b_zero_point)} in 32 bits{suffix}"
        case qkernel.QuantConvOp():
            x, w = _difference("x", op.x_zero_point), _difference("w", op.w_zero_point)
            padded = "" if op.padding is None else f", padding {op.padding},"
            return f"y = sum of {x} * {w} over each window{padded} in 32 bits{suffix}"
        case qkernel.DequantConvOp():
            return f"y = {_dequantized(op, 'x * w', 'window_sum')} over each window{suffix}"
        case qkernel.ConvOp():
            return f"y = sum of x * w over each window{suffix}"
        case qkernel.WindowSumOp():
            return "y = sum of x over each window and group"
        case qkernel.PackOp():
            w = "w[n, k]" if op.transpose_b is not None else "w[k, n]"
            less = "" if op.zero_point is None else " - zero_point"
            times = "" if op.scale is None else "scale * "
            return f"y[n / 4, k, n % 4] = {times}({w}{less}), panels of four columns"
        case qkernel.PackedMatmulOp():
            product = "sum over k of a[m, k] * p[n / 4, k, n % 4]"
            if op.zero_point is not None:
                product = f"({product} - zero_point * row_sum)"
            return f"y[m, n] = {'' if op.scale is None else 'scale * '}{product}{suffix}"
        case qkernel.PackBytesOp():
            w = "w[n, k]" if op.transpose_b is not None else "w[k, n]"
            return f"y[n / 4, k / 4, n % 4, k % 4] = {w}, words of four k, panels of four columns"
        case qkernel.PackWindowOp():
            what = "the windows of x as columns n, their elements (channel first) as k"
            return f"y[n / 4, k / 4, n % 4, k % 4] = {what}; {op.padding} around x"
        case qkernel.PackedQuantMatmulOp():
            p = "p[n / 4, k / 4, n % 4, k % 4]"
            return f"y[m, n] = sum over k of a[m, k] * {p} in 32 bits{suffix}"
        case qkernel.RowSumOp():
            return "y[m] = sum over k of a[m, k]"
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


def _difference(element: str, zero_point: SSAValue | None) -> str:
    return element if zero_point is None else f"({element} - zero_point)"


def _dequantized(
    op: qkernel.DequantMatmulOp | qkernel.DequantConvOp, product: str, sums: str
) -> str:
    if op.zero_point is None:
        return f"scale * sum of {product}"
    if op.hoisted is not None:
        return f"scale * (sum of {product} - zero_point * {sums})"
    factor, w = product.split(" * ")
    return f"scale * sum of {factor} * ({w} - zero_point)"
