"""Gives every activation its place in one arena: the last part of level 3 of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    i8,
    i64,
)
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects.element_types import byte_size
from qfold.targets import Target, target_named
from qfold.transforms.memory_plan import Lifetime, Plan, plan
from qfold.transforms.qmm_outline_kernels import main_function

VIEWS = (
    memref.CollapseShapeOp,
    memref.ExpandShapeOp,
    memref.SubviewOp,
    memref.ReinterpretCastOp,
    memref.CastOp,
)


@dataclass(frozen=True)
class QmmPlanMemoryPass(ModulePass):
    """Replace each `memref.alloc` of `@main` by a `memref.view` of one arena argument, at offsets planned by liveness.

    `qmm.plan` on `@main` records the plan: `arena_bytes`, `lower_bound_bytes` (the most bytes alive at one dispatch), `alignment`,
    and per buffer its `name` (the function that writes it first), `offset`, `bytes`, and its `first` and `last` dispatch.
    """

    name = "qmm-plan-memory"
    target: str = "host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        try:
            target = target_named(self.target)
        except ValueError as e:
            raise PassFailedException(str(e)) from None
        plan_memory(main_function(op), target)


def plan_memory(main: func.FuncOp, target: Target) -> None:
    """Plan the allocations of one function that calls kernels. `PassFailedException` when they do not fit the target's memory."""
    block = main.body.block
    calls = [op for op in block.ops if isinstance(op, func.CallOp)]
    position = {call: i for i, call in enumerate(calls)}
    allocs: list[memref.AllocOp] = []
    lifetimes: list[Lifetime] = []
    for op in list(block.ops):
        if not isinstance(op, memref.AllocOp):
            continue
        users = [position[u] for u in _users(op.memref, position)]
        if not users:
            Rewriter.erase_op(op)
            continue
        type_ = op.memref.type
        size = byte_size(type_.element_type, prod(type_.get_shape()))
        allocs.append(op)
        lifetimes.append(Lifetime(size, min(users), max(users)))
    planned = plan(lifetimes, target.alignment)
    level = target.level(target.default_space)
    if level.size is not None and planned.size > level.size:
        raise PassFailedException(
            f"the activations take {planned.size} bytes (at least {planned.lower_bound}), but {level.name} of target "
            f"{target.name} has {level.size}"
        )
    _rewrite(main, allocs, planned, target.default_space)
    main.attributes["qmm.plan"] = _plan_attribute(calls, lifetimes, planned, target.alignment)


def _users(value: SSAValue, calls: dict[func.CallOp, int]) -> list[func.CallOp]:
    """The calls that get `value` or a view of it."""
    found: list[func.CallOp] = []
    for use in value.uses:
        user = use.operation
        if isinstance(user, func.CallOp) and user in calls:
            found.append(user)
        elif isinstance(user, VIEWS):
            found += _users(user.results[0], calls)
        else:
            raise PassFailedException(
                f"{user.name} uses a buffer outside of a kernel; run qmm-outline-kernels first"
            )
    return found


def _rewrite(
    main: func.FuncOp, allocs: Sequence[memref.AllocOp], planned: Plan, space: int
) -> None:
    block: Block = main.body.block
    type_ = MemRefType(i8, [planned.size], memory_space=IntegerAttr(space, i64))
    arena = block.insert_arg(type_, 0)
    arena.name_hint = "arena"
    known = () if main.arg_attrs is None else main.arg_attrs.data
    known = known or (DictionaryAttr({}),) * (len(block.args) - 1)
    main.properties["arg_attrs"] = ArrayAttr(
        [DictionaryAttr({"qmm.role": StringAttr("arena")}), *known]
    )
    main.update_function_type()
    for alloc, offset in zip(allocs, planned.offsets, strict=True):
        at = arith.ConstantOp.from_int_and_width(offset, IndexType())
        view = memref.ViewOp(arena, at, [], alloc.memref.type)
        steps: tuple[Operation, ...] = (at, view)
        for step in steps:
            step.location = alloc.location
        Rewriter.insert_op(steps, InsertPoint.before(alloc))
        Rewriter.replace_op(alloc, [], [view.result])


def _plan_attribute(
    calls: Sequence[func.CallOp], lifetimes: Sequence[Lifetime], planned: Plan, alignment: int
) -> DictionaryAttr:
    def number(value: int) -> IntegerAttr:
        return IntegerAttr(value, i64)

    return DictionaryAttr(
        {
            "arena_bytes": number(planned.size),
            "lower_bound_bytes": number(planned.lower_bound),
            "alignment": number(alignment),
            "buffers": ArrayAttr(
                [
                    DictionaryAttr(
                        {
                            "name": StringAttr(calls[b.first].callee.string_value()),
                            "offset": number(offset),
                            "bytes": number(b.size),
                            "first": number(b.first),
                            "last": number(b.last),
                        }
                    )
                    for b, offset in zip(lifetimes, planned.offsets, strict=True)
                ]
            ),
        }
    )
