"""The dispatches of a kernel-level module: which function is called in which order, with operands of which types, from where."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue

from qfold.backend.c.kernels import parameters
from qfold.backend.c.program import Arena, NotLevel3, Place, Port, Program
from qfold.backend.c.program import Dispatch as ProgramDispatch
from qfold.dialects import qkernel
from qfold.dialects.contraction import shape_of, window_of
from qfold.ir.operands import named_operands
from qfold.tools.errors import ToolError


@dataclass(frozen=True)
class Operand:
    """One argument of a dispatch."""

    role: str
    """What the kernel takes it for: `a`, `w`, `scale` ..., or its position."""
    type: MemRefType[Attribute]
    source: str
    """`input`, `output`, `weight` or `activation`."""
    name: str | None
    """The ONNX name of an input or output, the symbol of a weight."""
    c_type: str
    """The C type of the parameter."""


@dataclass(frozen=True)
class Dispatch:
    """One call of a kernel function."""

    ordinal: int
    function: str
    """The symbol in the IR."""
    symbol: str
    """The symbol in C."""
    kernel: str
    """The row of the target's kernel table."""
    op: Operation
    """What the function computes."""
    nodes: tuple[str, ...]
    """The ONNX nodes that it stands for."""
    operands: tuple[Operand, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a contraction, 0 for anything else."""
        return multiply_accumulates(self.op)


def multiply_accumulates(op: Operation) -> int:
    """Products that a `qkernel` op adds up: M * N * K per batch, or outputs * kernel taps * channels of a group."""
    match op:
        case qkernel.MatmulOp():
            k = shape_of(op.a)[-2 if op.transpose_a is not None else -1]
            return prod(shape_of(op.y)) * k
        case qkernel.DequantMatmulOp():
            return prod(shape_of(op.y)) * shape_of(op.a)[-1]
        case qkernel.ConvOp() | qkernel.DequantConvOp():
            groups = window_of(op)[0]
            assert shape_of(op.x)[1] // groups == shape_of(op.w)[1]
            return prod(shape_of(op.y)) * prod(shape_of(op.w)[1:])
        case _:
            return 0


def _source(place: Place) -> tuple[str, str | None]:
    match place.root:
        case Port():
            return ("output" if place.is_output else "input"), place.root.name
        case Arena():
            return "activation", None
        case _:
            return "weight", place.root.symbol


def _dispatch(call: ProgramDispatch) -> Dispatch:
    function = call.kernel.function
    roles: dict[SSAValue, str] = {}
    for name, value in named_operands(call.kernel.op):
        roles.setdefault(value, name)
    operands = tuple(
        Operand(
            roles.get(argument, str(argument.index)),
            cast("MemRefType[Attribute]", argument.type),
            *_source(place),
            parameter.c_type,
        )
        for argument, place, parameter in zip(
            function.body.block.args, call.operands, parameters(call.kernel), strict=True
        )
    )
    return Dispatch(
        call.ordinal,
        function.sym_name.data,
        call.kernel.symbol,
        call.kernel.kernel,
        call.kernel.op,
        call.nodes,
        operands,
    )


def dispatches(module: ModuleOp) -> list[Dispatch]:
    """Every call of `@main` of a kernel-level module, in order. `ToolError` for a module that is not at that level."""
    try:
        return [_dispatch(call) for call in Program.of(module).dispatches]
    except NotLevel3 as error:
        raise ToolError(f"the module is not at the kernel level: {error}") from error


def globals_of(module: ModuleOp) -> dict[str, memref.GlobalOp]:
    """The constants of a module by symbol, in order."""
    return {op.sym_name.data: op for op in module.ops if isinstance(op, memref.GlobalOp)}
