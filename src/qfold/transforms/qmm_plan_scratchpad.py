"""Gives the L1 buffers of staged dispatches their places in the scratchpad: `docs/cluster.md`, "Level 3 on a cluster"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
    i8,
    i64,
)
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.ir.locations import describe_location
from qfold.targets import Target
from qfold.transforms.qmm_outline_kernels import functions, is_staged, main_function
from qfold.transforms.scratchpad_plan import ScratchpadPlan, plan_scratchpad
from qfold.transforms.staging import aligned
from qfold.transforms.target_option import target_option


@dataclass(frozen=True)
class QmmPlanScratchpadPass(ModulePass):
    """Replace each L1 `memref.alloc` of a staged dispatch by a `memref.view` of its new first argument, `%l1`.

    `@main` gets the argument `%l1 {qmm.role = "arena"}`, as large as the dispatch that needs most, and hands it on. What one
    dispatch needs is its `qmm.l1_bytes`. `PassFailedException`, naming the dispatch, when it is more than the scratchpad has.
    """

    name = "qmm-plan-scratchpad"
    target: str = "threads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_option(self.target, scratchpad=True)
        plan_scratchpads(op, target)


def plan_scratchpads(module: ModuleOp, target: Target) -> None:
    """Plan every staged dispatch of `module`."""
    space = target.scratchpad
    assert space is not None
    main = main_function(module)
    plans = {
        f.sym_name.data: (f, plan_scratchpad(f.body.block, space))
        for f in functions(module)
        if is_staged(f) and f is not main
    }
    if not plans:
        return
    for function, planned in plans.values():
        _check_size(function, planned, target)
    size = aligned(max(planned.plan.size for _, planned in plans.values()))
    type_ = MemRefType(i8, [size], memory_space=IntegerAttr(space, i64))
    for function, planned in plans.values():
        arena = _add_argument(function, type_)
        _place(function, arena, planned)
        function.attributes["qmm.l1_bytes"] = IntegerAttr(planned.plan.size, i64)
    arena = _add_argument(main, type_, role="arena")
    for op in list(main.body.block.ops):
        if isinstance(op, func.CallOp) and op.callee.string_value() in plans:
            call = func.CallOp(op.callee, [arena, *op.arguments], [])
            call.attributes.update(op.attributes)
            call.location = op.location
            Rewriter.replace_op(op, call)


def _check_size(function: func.FuncOp, planned: ScratchpadPlan, target: Target) -> None:
    space = target.scratchpad
    assert space is not None
    if planned.plan.size > target.scratchpad_bytes:
        level = target.level(space)
        raise PassFailedException(
            f"@{function.sym_name.data} ({describe_location(function)}) needs {planned.plan.size} bytes of "
            f"{level.name} for its tiles, but target {target.name} has {target.scratchpad_bytes}: {level.size} less "
            f"{target.cores} stacks of {target.stack_bytes} and {target.reserved_bytes} of the runtime"
        )


def _add_argument(
    function: func.FuncOp, type_: MemRefType[IntegerType], role: str | None = None
) -> SSAValue:
    """A new first argument, `%l1`."""
    value = function.body.block.insert_arg(type_, 0)
    value.name_hint = "l1"
    known = function.arg_attrs
    if role is not None or known is not None:
        count = len(function.body.block.args) - 1
        rest: Sequence[DictionaryAttr] = (
            [DictionaryAttr({})] * count if known is None else list(known)
        )
        own = DictionaryAttr({} if role is None else {"qmm.role": StringAttr(role)})
        function.properties["arg_attrs"] = ArrayAttr([own, *rest])
    function.update_function_type()
    return value


def _place(function: func.FuncOp, arena: SSAValue, planned: ScratchpadPlan) -> None:
    """Views in place of allocations, all at the start of the function."""
    first = function.body.block.first_op
    assert first is not None
    views: list[memref.ViewOp] = []
    for alloc, offset in zip(planned.buffers, planned.plan.offsets, strict=True):
        at = arith.ConstantOp.from_int_and_width(offset, IndexType())
        view = memref.ViewOp(arena, at, [], alloc.memref.type)
        view.result.name_hint = alloc.memref.name_hint
        steps: tuple[Operation, ...] = (at, view)
        for step in steps:
            step.location = alloc.location
        Rewriter.insert_op(steps, InsertPoint.before(first))
        views.append(view)
    for alloc, view in zip(planned.buffers, views, strict=True):
        Rewriter.replace_op(alloc, [], [view.result])
