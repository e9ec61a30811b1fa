"""What every generator asks of the leaf function that it is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from xdsl.dialects import arith, func
from xdsl.ir import Operation

from qfold.backend.c.share import Split
from qfold.backend.riscv.emit import AssemblyFunction
from qfold.backend.riscv.generated import CannotGenerate, LeafKernel
from qfold.targets import Isa

_Op = TypeVar("_Op", bound=Operation)


def isa_of(leaf: LeafKernel) -> Isa:
    """The instruction set to generate for. `ValueError` for a target without one."""
    isa = leaf.target.isa
    if isa is None:
        raise ValueError(f"target {leaf.target.name} names no instruction set to generate for")
    return isa


def only_op(leaf: LeafKernel, op_type: type[_Op]) -> _Op:
    """The op of a leaf function, which holds that one and constants. `CannotGenerate` for anything else."""
    ops = [
        o
        for o in leaf.function.body.block.ops
        if not isinstance(o, arith.ConstantOp | func.ReturnOp)
    ]
    if len(ops) != 1 or not isinstance(ops[0], op_type):
        found = ", ".join(o.name for o in ops) or "nothing"
        raise CannotGenerate(
            ops[0] if ops else leaf.function,
            f"the kernel @{leaf.symbol} is generated from one {op_type.name}, found {found}",
        )
    return ops[0]


def split_of(leaf: LeafKernel, loops: int) -> Split:
    """Into how many parts `qmm.split` divides each of so many loops; one part where it says nothing. `ValueError` for another
    number of entries."""
    split = Split.of(leaf.function) or Split((1,) * loops)
    if len(split.parts) != loops:
        raise ValueError(
            f"@{leaf.symbol}: qmm.split has {len(split.parts)} entries for {loops} loops"
        )
    return split


def function_facts(functions: Iterable[AssemblyFunction]) -> dict[str, object]:
    """What the report says about the assembly functions of a kernel: symbol -> registers, frame and code size."""
    return {
        f.symbol: {
            "registers": len(f.registers),
            "saved": len(f.saved),
            "frame_bytes": f.frame_bytes,
            "code_bytes": f.code_bytes,
        }
        for f in functions
    }


def share_sizes(extent: int, parts: int) -> list[int]:
    """The iterations of each part when `parts` share a loop evenly, as `qf_share` does: larger ones first, no empty ones."""
    parts = max(1, min(parts, extent))
    return [extent // parts + (i < extent % parts) for i in range(parts)]
