"""Which kernel runs for which ONNX node, on operands of which types: read off the kernel level, before any C exists."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Operation

from qfold.backend.c.kernels import compute_ops, parameters
from qfold.backend.c.loops import loop_extents
from qfold.backend.c.program import Dispatch, NotLevel3, Program, WeightData
from qfold.dialects import qkernel
from qfold.dialects.contraction import ints, shape_of, window_of
from qfold.tools.errors import ToolError


@dataclass(frozen=True)
class Operand:
    """One operand of a dispatch."""

    name: str
    """The parameter of the C function."""
    ir_type: str
    """The memref type, such as `memref<8x3xi8, 2 : i64>`."""
    c_type: str
    """The parameter's type, such as `const int8_t *`."""
    written: bool
    constant: str | None
    """Symbol of the constant that it reads, or None."""


@dataclass(frozen=True)
class KernelRecord:
    """One dispatch: what network.c calls."""

    ordinal: int
    symbol: str
    """The C function."""
    kernel: str
    """Its name in the target's kernel table."""
    op: str
    """The IR op that it is the body of, such as `qkernel.dequant_matmul`; the last one, where loop nests share a function."""
    nodes: tuple[str, ...]
    """ONNX nodes."""
    operands: tuple[Operand, ...]
    macs: int
    """Multiply-accumulates of a contraction (padding counted), additions of a window sum, 0 for loops."""
    iterations: int
    """Size of the iteration space, of all loop nests together."""
    weight_bytes: int
    """Bytes of constants that it reads."""


def program_of(module: ModuleOp) -> Program:
    """The module as the printer sees it. `ToolError` when it is not at the kernel level."""
    try:
        return Program.of(module)
    except NotLevel3 as error:
        raise ToolError(f"the module is not at the kernel level: {error}") from error


def manifest(program: Program) -> list[KernelRecord]:
    """A record per dispatch, in order."""
    return [_record(d) for d in program.dispatches]


def _record(dispatch: Dispatch) -> KernelRecord:
    kernel = dispatch.kernel
    op = kernel.op
    operands: list[Operand] = []
    for parameter, place in zip(parameters(kernel), dispatch.operands, strict=True):
        root = place.root
        operands.append(
            Operand(
                parameter.buffer.name,
                str(parameter.buffer.type),
                parameter.c_type,
                parameter.written,
                root.symbol if isinstance(root, WeightData) else None,
            )
        )
    weights = {p.root.symbol: p.root for p in dispatch.operands if isinstance(p.root, WeightData)}
    ops = compute_ops(kernel.function)
    nests = [o for o in ops if not isinstance(o, linalg.FillOp)] or ops
    iterations = sum(iteration_count(nest) for nest in nests)
    contraction = isinstance(op, qkernel.CONTRACTIONS)
    return KernelRecord(
        dispatch.ordinal,
        kernel.symbol,
        kernel.kernel,
        op.name,
        dispatch.nodes,
        tuple(operands),
        iterations if contraction else 0,
        iterations,
        sum(w.weight.nbytes for w in weights.values()),
    )


def iteration_count(op: Operation) -> int:
    """Points of an op's iteration space; for contractions the multiply-accumulates (padding counted)."""
    match op:
        case qkernel.MatmulOp():
            k = shape_of(op.a)[-2 if op.transpose_a is not None else -1]
            return prod(shape_of(op.y)) * k
        case qkernel.DequantMatmulOp():
            return prod(shape_of(op.y)) * shape_of(op.a)[-1]
        case qkernel.ConvOp() | qkernel.DequantConvOp():
            return prod(shape_of(op.y)) * prod(shape_of(op.w)[1:])
        case qkernel.WindowSumOp():
            channels = shape_of(op.x)[1] // window_of(op)[0]
            return prod(shape_of(op.y)) * channels * prod(ints(op.kernel_shape))
        case linalg.GenericOp():
            return prod(loop_extents(op))
        case _:
            type_: Any = op.operands[-1].type
            return prod(type_.get_shape()) if isinstance(type_, MemRefType) else 0
