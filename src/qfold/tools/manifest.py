"""Which kernels run for which ONNX node, on operands of which types: read off the kernel level, before any C exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from qfold.backend.c.program import Dispatch, NotLevel3, Program, WeightData
from qfold.backend.c.reader import read_program
from qfold.tools.errors import ToolError
from qfold.tools.leafs import (
    LeafRecord,
    Operand,
    Transfers,
    leafs_of,
    operands_of,
    principal,
    total_macs,
    transfers_of,
)
from qfold.transforms.qmm_tile_to_l1 import REASON

L1_BYTES = "qmm.l1_bytes"


@dataclass(frozen=True)
class KernelRecord:
    """One dispatch: what network.c calls."""

    ordinal: int
    symbol: str
    """The C function."""
    kernel: str
    """Its name in the target's kernel table, or `staged`."""
    op: str
    """The IR op that it is the body of, such as `qkernel.dequant_matmul`; the last one, where loop nests share a function. Of a
    staged dispatch that of the leaf which does most."""
    nodes: tuple[str, ...]
    """ONNX nodes."""
    operands: tuple[Operand, ...]
    macs: int
    """Multiply-accumulates of a contraction (padding counted), additions of a window sum, 0 for loops."""
    iterations: int
    """Size of the iteration space, of all loop nests together."""
    weight_bytes: int
    """Bytes of constants that it reads."""
    leafs: tuple[LeafRecord, ...]
    """The kernels that it calls; itself, unless it is staged."""
    staged: bool
    """Whether it brings tiles to a scratchpad, for its leafs to work on."""
    unstaged_reason: str | None
    """Why not, on a target with a scratchpad."""
    transfers: Transfers
    l1_bytes: int
    """What it takes of the scratchpad."""


def program_of(module: ModuleOp) -> Program:
    """The module as the printer sees it. `ToolError` when it is not at the kernel level."""
    try:
        return read_program(module)
    except NotLevel3 as error:
        raise ToolError(f"the module is not at the kernel level: {error}") from error


def manifest(program: Program) -> list[KernelRecord]:
    """A record per dispatch, in order."""
    return [_record(d) for d in program.dispatches]


def _record(dispatch: Dispatch) -> KernelRecord:
    kernel = dispatch.kernel
    roots = [place.root for place in dispatch.operands]
    weights = {r.symbol: r for r in roots if isinstance(r, WeightData)}
    constants = [r.symbol if isinstance(r, WeightData) else None for r in roots]
    leafs = leafs_of(kernel)
    attributes: Mapping[str, Attribute] = kernel.function.attributes
    reason, l1 = attributes.get(REASON), attributes.get(L1_BYTES)
    return KernelRecord(
        dispatch.ordinal,
        kernel.symbol,
        kernel.kernel,
        principal(leafs).op,
        dispatch.nodes,
        operands_of(kernel, constants),
        total_macs(leafs),
        sum(leaf.calls * leaf.iterations for leaf in leafs),
        sum(w.weight.nbytes for w in weights.values()),
        tuple(leafs),
        kernel.is_staged,
        reason.data if isinstance(reason, StringAttr) else None,
        transfers_of(kernel),
        l1.value.data if isinstance(l1, IntegerAttr) else 0,
    )
