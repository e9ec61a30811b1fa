"""Outlined functions become staged dispatches, which work on tiles in L1: `docs/cluster.md`, "Level 3 on a cluster"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from qfold.dialects import qkernel
from qfold.ir.locations import fuse_locations
from qfold.targets import Target
from qfold.transforms.conv_rows import ConvRowStaging
from qfold.transforms.conv_tiling import Convolution, conv_work, reads_words
from qfold.transforms.loop_tiling import LoopStaging, loop_work
from qfold.transforms.matmul_operands import Matmul
from qfold.transforms.matmul_tiling import MatmulStaging
from qfold.transforms.packed_conv_tiling import PackedConvStaging, multiplies_windows
from qfold.transforms.qmm_outline_kernels import functions, main_function
from qfold.transforms.row_sum_tiling import row_sum_staging
from qfold.transforms.scratchpad_plan import plan_scratchpad
from qfold.transforms.staging import Leafs, Stage
from qfold.transforms.target_option import target_option

REASON = "qmm.reason"
"""The attribute of a function that was not staged: why, for the report."""


class Staging(Protocol):
    """Ways to stage the work of one function."""

    def choices(self, stage: Stage) -> Sequence[Any]:
        """Those that fit and pay, best first. `stage` is used up."""
        ...

    def write(self, stage: Stage, choice: Any, /) -> None:
        """Write the body of the function in one of these ways."""
        ...


@dataclass(frozen=True)
class QmmTileToL1Pass(ModulePass):
    """Have each outlined function bring tiles of its operands to L1, call leaf functions on them, and take results back.

    A function whose operands do not fit by tiles stays a leaf function on L2, as does one for which the transfers would cost more
    than they save. `PassFailedException` for a target without a scratchpad.
    """

    name = "qmm-tile-to-l1"
    target: str = "threads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_option(self.target, scratchpad=True)
        tile_to_l1(op, target)


def tile_to_l1(module: ModuleOp, target: Target) -> None:
    """Stage every private function of `module` that gains by it."""
    private = [
        f
        for f in functions(module)
        if not f.is_declaration and f.sym_visibility == StringAttr("private")
    ]
    calls: dict[str, list[func.CallOp]] = {}
    for op in main_function(module).body.block.ops:
        if isinstance(op, func.CallOp):
            calls.setdefault(op.callee.string_value(), []).append(op)
    leafs = Leafs({f.sym_name.data for f in functions(module)})
    for function in private:
        callers = calls.get(function.sym_name.data, [])
        scratch = list(_scratch(function, callers))
        _stage(function, scratch, target, leafs)
        _drop_unused(function, scratch, callers)
    leafs.fuse_locations()
    _share_equal(private, calls)


def _share_equal(
    dispatches: Sequence[func.FuncOp], calls: Mapping[str, Sequence[func.CallOp]]
) -> None:
    """Have staged dispatches that call the same leaf functions in the same way be one function."""
    known: dict[tuple[str, ...], list[func.FuncOp]] = {}
    for function in dispatches:
        callees = tuple(
            op.callee.string_value() for op in function.walk() if isinstance(op, func.CallOp)
        )
        if not callees:
            continue
        name = function.sym_name
        for other in known.setdefault(callees, []):
            function.properties["sym_name"] = other.sym_name
            block = other.parent
            assert block is not None
            if function.is_structurally_equivalent(other, {block: block}):
                other.location = fuse_locations([other.location, function.location])
                for call in calls.get(name.data, []):
                    call.properties["callee"] = SymbolRefAttr(other.sym_name)
                Rewriter.erase_op(function)
                break
            function.properties["sym_name"] = name
        else:
            known[callees].append(function)


def _scratch(function: func.FuncOp, callers: Sequence[func.CallOp]) -> Iterator[int]:
    """Which parameters are buffers that only the call they are passed to uses."""
    for index in range(len(function.args)):
        values = [call.arguments[index] for call in callers]
        if values and all(isinstance(v.owner, memref.AllocOp) and v.has_one_use() for v in values):
            yield index


def _drop_unused(
    function: func.FuncOp, scratch: Sequence[int], callers: Sequence[func.CallOp]
) -> None:
    """Take those of the parameters `scratch` away that have moved to L1."""
    for index in reversed(scratch):
        parameter = function.args[index]
        if not parameter.uses:
            parameter.block.erase_arg(parameter)
            function.update_function_type()
            for call in callers:
                call.operands = [v for i, v in enumerate(call.operands) if i != index]


def _stage(function: func.FuncOp, scratch: Sequence[int], target: Target, leafs: Leafs) -> None:
    """Replace the body of one function, if there is a way to. `scratch`: parameters of no use outside of it."""
    stagings = _stagings(function, {function.args[i] for i in scratch}, target)
    space = target.scratchpad
    assert space is not None
    location = function.location
    tried = ((s, c) for s in stagings for c in s.choices(Stage(function, space, location)))
    reason = (
        "no tiles that fit save more than bringing them costs" if stagings else "no tiling known"
    )
    for staging, choice in tried:
        stage = Stage(function, space, location)
        staging.write(stage, choice)
        body = stage.finish()
        if plan_scratchpad(body, space).plan.size > target.scratchpad_bytes:
            reason = "its tiles would fit but for the gaps between them"
            continue
        for call, leaf in stage.calls:
            known = leafs.add(leaf)
            call.properties["callee"] = SymbolRefAttr(known.sym_name)
            if known is leaf:
                Rewriter.insert_op(leaf, InsertPoint.before(function))
        region = Region(body)
        old = function.detach_region(function.body)
        function.add_region(region)
        old.drop_all_references()
        return
    function.attributes[REASON] = StringAttr(reason)


def _stagings(function: func.FuncOp, scratch: Set[SSAValue], target: Target) -> Sequence[Staging]:
    """How to stage a function: the next one where there is no way to by the one before."""
    ops = [op for op in function.body.block.ops if not isinstance(op, func.ReturnOp)]
    if len(ops) == 1 and isinstance(ops[0], Matmul):
        return [MatmulStaging(ops[0], target)]
    if len(ops) == 1 and isinstance(ops[0], Convolution):
        work = conv_work(ops[0], reads_words(ops[0], target))
        loops = [LoopStaging(work, target), ConvRowStaging(ops[0], target)]
        if isinstance(ops[0], qkernel.QuantConvOp) and multiplies_windows(ops[0], target):
            return [PackedConvStaging(ops[0], target), *loops]
        return loops
    if any(isinstance(op, qkernel.CONTRACTIONS) for op in ops):
        return []
    row_sums = row_sum_staging(ops, target)
    return [LoopStaging(loop_work(ops, scratch), target)] if row_sums is None else [row_sums]
