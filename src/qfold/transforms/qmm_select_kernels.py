"""Names the kernel of each outlined function, by the types of its arguments and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import MemRefType, ModuleOp, StringAttr
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qmm
from qfold.dialects.contraction import WORD_WINDOWS, EpilogueOperation, weight_bias
from qfold.ir.layouts import Layout
from qfold.ir.locations import describe_location
from qfold.ir.operands import named_operands
from qfold.targets import Kernel, Target
from qfold.transforms.qmm_outline_kernels import COMPUTE, functions, is_staged
from qfold.transforms.target_option import target_option

STAGED = "staged"
"""What `qmm.kernel` says of a dispatch that calls leaf functions, which have the kernels."""

Operand = tuple[str, str, bool]
"""(operand name, element type, whether it is dense)."""


@dataclass(frozen=True)
class QmmSelectKernelsPass(ModulePass):
    """Set `qmm.kernel` on each private function to the first row of the target's table that was written for its types.

    No row is an error: a kernel never runs on types that it was not written for.
    """

    name = "qmm-select-kernels"
    target: str = "host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_option(self.target)
        select_kernels(op, target)


def select_kernels(module: ModuleOp, target: Target) -> None:
    """Select for every private function of `module`. `PassFailedException` names the op, its types, and what the table has."""
    for function in functions(module):
        if function.sym_visibility is not None and function.sym_visibility.data == "private":
            name = STAGED if is_staged(function) else select(function, target).name
            function.attributes["qmm.kernel"] = StringAttr(name)


def select(function: func.FuncOp, target: Target) -> Kernel:
    """The kernel for one outlined function."""
    op = computed(function)
    operands = memref_operands(op)
    rows = target.kernels_of(op.name)
    nests = [o for o in function.body.block.ops if isinstance(o, linalg.GenericOp)]
    refusals: list[str] = []
    for row in rows:
        refusal = refuses(row, op, operands)
        if len(nests) > 1 and not row.joins:
            refusal = f"it is for one loop nest, not {len(nests)}"
        elif refusal is None and len(nests) > 1:
            found = (refuses(row, nest, memref_operands(nest)) for nest in nests)
            refusal = next((r for r in found if r is not None), None)
        if refusal is None:
            return row
        refusals.append(f"{row.name}: {refusal}")
    found = ", ".join(
        f"{name}: {type_}{'' if dense else ' (strided)'}" for name, type_, dense in operands
    )
    table = "; ".join(refusals) or "no row for this op"
    raise PassFailedException(
        f"target {target.name} has no kernel for {describe_location(op)} on ({found}). Its table: {table}"
    )


def computed(function: func.FuncOp) -> Operation:
    """The op that an outlined function is there for: its last compute op (what comes before it prepares)."""
    ops = [op for op in function.body.block.ops if isinstance(op, COMPUTE)]
    if not ops:
        raise PassFailedException(f"@{function.sym_name.data} holds nothing to select a kernel for")
    return ops[-1]


def memref_operands(op: Operation) -> list[Operand]:
    """What selection looks at: each buffer that the op names."""
    operands: list[Operand] = []
    for name, value in named_operands(op):
        if isinstance(value.type, MemRefType):
            type_ = cast(MemRefType[Attribute], value.type)  # pyright: ignore[reportUnknownMemberType]
            operands.append((name, str(type_.element_type), Layout.of(type_).is_dense))
    return operands


def refuses(row: Kernel, op: Operation, operands: Sequence[Operand]) -> str | None:
    """Why a kernel cannot run this op, or None when it can."""
    if row.op != op.name:
        return f"it implements {row.op}"
    if row.weight_bias and weight_bias(op) != row.weight_bias:
        return f"it adds {row.weight_bias} to each weight, which this op does not allow"
    if row.word_windows and WORD_WINDOWS not in op.attributes:
        return "it multiplies rows of windows as words, which this op does not allow"
    for name, type_, dense in operands:
        if row.operands is not None:
            allowed = row.operands.get(name)
            if allowed is None:
                return f"it has no operand {name}"
            if type_ not in allowed and "*" not in allowed:
                return f"{name} is one of {', '.join(sorted(allowed))}, not {type_}"
        elif not isinstance(op, linalg.GenericOp | linalg.FillOp) and op.name != "memref.copy":
            return "it says nothing about operand types"
        if not dense and name not in row.strided:
            return f"{name} must be dense"
    return refuses_epilogue(row, op)


def refuses_epilogue(row: Kernel, op: Operation) -> str | None:
    """Why a kernel cannot run the epilogue that `op` has, or None."""
    block = op.epilogue_block if isinstance(op, EpilogueOperation) else None
    if block is None:
        return None
    for inner in block.ops:
        if row.epilogue_ops is not None and not isinstance(inner, arith.ConstantOp | qmm.YieldOp):
            if inner.name not in row.epilogue_ops:
                known = ", ".join(sorted(row.epilogue_ops))
                return f"its epilogue is made of {known}, not of {inner.name}"
        for result in inner.results:
            if row.epilogue_types is not None and str(result.type) not in row.epilogue_types:
                known = ", ".join(sorted(row.epilogue_types))
                return f"its epilogue computes {known}, and {inner.name} of {result.type}"
    return None


def finishes(op: EpilogueOperation, name: str, target: Target) -> bool:
    """Whether the target's kernel of choice for ops called `name` takes the epilogue of the contraction `op`, and its types."""
    row = next(iter(target.kernels_of(name)), None)
    if row is None or refuses_epilogue(row, op) is not None:
        return False
    for operand, type_, _ in memref_operands(op):
        if operand in ("y", "epilogue_operands"):
            allowed = (row.operands or {}).get(operand, frozenset())
            if type_ not in allowed and "*" not in allowed:
                return False
    return True
