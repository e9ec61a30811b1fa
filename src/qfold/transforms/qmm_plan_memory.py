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
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects.element_types import byte_size
from qfold.targets import Target
from qfold.transforms.memory_plan import Lifetime, Plan, plan
from qfold.transforms.qmm_outline_kernels import VIEWS, is_staged, main_function
from qfold.transforms.target_option import target_option


@dataclass(frozen=True)
class QmmPlanMemoryPass(ModulePass):
    """Replace each `memref.alloc` of `@main` by a `memref.view` of one arena argument, at offsets planned by liveness.

    `qmm.plan` on `@main` records it: `arena_bytes`, `lower_bound_bytes` (the most bytes alive at one dispatch), `alignment`,
    and per buffer its `name` (the function that writes it first), `offset`, `bytes`, and its `first` and `last` dispatch.
    """

    name = "qmm-plan-memory"
    target: str = "host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_option(self.target)
        plan_memory(main_function(op), target)


def plan_memory(main: func.FuncOp, target: Target) -> None:
    """Plan the allocations of one function that calls kernels. `PassFailedException` when they do not fit the target's memory."""
    block = main.body.block
    calls = [op for op in block.ops if isinstance(op, func.CallOp)]
    position = {call: i for i, call in enumerate(calls)}
    touched = _touched_parameters(main)
    allocs: list[memref.AllocOp] = []
    lifetimes: list[Lifetime] = []
    shapes: list[memref.AllocOp] = []
    for op in list(block.ops):
        if not isinstance(op, memref.AllocOp):
            continue
        users = [
            position[call]
            for call, index in _users(op.memref, position)
            if index in touched[call.callee.string_value()]
        ]
        if users:
            allocs.append(op)
            lifetimes.append(Lifetime(_size(op), min(users), max(users)))
        elif op.memref.uses:
            shapes.append(op)
        else:
            Rewriter.erase_op(op)
    planned = plan(lifetimes, target.alignment)
    size = max([planned.size, *map(_size, shapes)])
    level = target.level(target.default_space)
    if level.size is not None and size > level.size:
        raise PassFailedException(
            f"the activations take {size} bytes (at least {planned.lower_bound}), but {level.name} of target "
            f"{target.name} has {level.size}"
        )
    places = [*zip(allocs, planned.offsets, strict=True), *((op, 0) for op in shapes)]
    _rewrite(main, places, size, target.default_space)
    main.attributes["qmm.plan"] = _plan_attribute(calls, lifetimes, planned, size, target.alignment)


def _size(op: memref.AllocOp) -> int:
    """Bytes of a buffer."""
    type_ = op.memref.type
    return byte_size(type_.element_type, prod(type_.get_shape()))


def _touched_parameters(main: func.FuncOp) -> dict[str, set[int]]:
    """Per function that `main` calls: the parameters that it, or a leaf function that it calls, reads or writes.

    An input of a generic whose elements its body does not use is not read: it only says how far a loop runs.
    """
    parent = main.parent_block()
    assert parent is not None
    bodies = {
        f.sym_name.data: f
        for f in parent.ops
        if isinstance(f, func.FuncOp) and f is not main and not f.is_declaration
    }
    # Leaf functions first.
    order = sorted(bodies.values(), key=is_staged)
    touched: dict[str, set[int]] = {}
    for function in order:
        touched[function.sym_name.data] = {
            parameter.index
            for parameter in function.args
            if any(_touches(use.operation, use.index, touched) for use in parameter.uses)
        }
    return touched


def _touches(user: Operation, index: int, touched: dict[str, set[int]]) -> bool:
    """Whether `user` reads or writes its operand `index`."""
    if isinstance(user, func.CallOp):
        return index in touched[user.callee.string_value()]
    if isinstance(user, linalg.GenericOp) and index < len(user.inputs):
        return bool(user.body.block.args[index].uses)
    if isinstance(user, VIEWS):
        return any(_touches(u.operation, u.index, touched) for u in user.results[0].uses)
    return True


def _users(value: SSAValue, calls: dict[func.CallOp, int]) -> list[tuple[func.CallOp, int]]:
    """The calls that get `value` or a view of it, and as which argument."""
    found: list[tuple[func.CallOp, int]] = []
    for use in value.uses:
        user = use.operation
        if isinstance(user, func.CallOp) and user in calls:
            found.append((user, use.index))
        elif isinstance(user, VIEWS):
            found += _users(user.results[0], calls)
        else:
            raise PassFailedException(
                f"{user.name} uses a buffer outside of a kernel; run qmm-outline-kernels first"
            )
    return found


def _rewrite(
    main: func.FuncOp, places: Sequence[tuple[memref.AllocOp, int]], size: int, space: int
) -> None:
    block: Block = main.body.block
    type_ = MemRefType(i8, [size], memory_space=IntegerAttr(space, i64))
    arena = block.insert_arg(type_, 0)
    arena.name_hint = "arena"
    known = () if main.arg_attrs is None else main.arg_attrs.data
    known = known or (DictionaryAttr({}),) * (len(block.args) - 1)
    main.properties["arg_attrs"] = ArrayAttr(
        [DictionaryAttr({"qmm.role": StringAttr("arena")}), *known]
    )
    main.update_function_type()
    for alloc, offset in places:
        at = arith.ConstantOp.from_int_and_width(offset, IndexType())
        view = memref.ViewOp(arena, at, [], alloc.memref.type)
        steps: tuple[Operation, ...] = (at, view)
        for step in steps:
            step.location = alloc.location
        Rewriter.insert_op(steps, InsertPoint.before(alloc))
        Rewriter.replace_op(alloc, [], [view.result])


def _plan_attribute(
    calls: Sequence[func.CallOp],
    lifetimes: Sequence[Lifetime],
    planned: Plan,
    size: int,
    alignment: int,
) -> DictionaryAttr:
    def number(value: int) -> IntegerAttr:
        return IntegerAttr(value, i64)

    return DictionaryAttr(
        {
            "arena_bytes": number(size),
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
