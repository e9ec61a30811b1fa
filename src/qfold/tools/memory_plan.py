"""What a network takes of each memory level, from the plans that `qmm-plan-memory` and `qmm-plan-scratchpad` recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from qfold.targets import target_named
from qfold.tools.arrays import main_function
from qfold.tools.manifest import KernelRecord, program_of


@dataclass(frozen=True)
class PlannedBuffer:
    """One activation: where it is, and from which dispatch to which (both included) it is needed."""

    name: str | None
    offset: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class MemoryReport:
    """One memory level."""

    level: int
    name: str
    size: int | None
    """Bytes that there are; None where the target says nothing."""
    arena_bytes: int
    lower_bound: int
    weight_bytes: int
    stack_bytes: int
    """Of all cores together."""
    reserved_bytes: int
    """What the runtime keeps."""
    buffers: tuple[PlannedBuffer, ...]


def _number(entries: Mapping[str, Attribute], key: str) -> int:
    value = entries[key]
    assert isinstance(value, IntegerAttr)
    return value.value.data


_Arena = tuple[int, int, tuple[PlannedBuffer, ...]]
"""Bytes, lower bound, buffers."""


def _planned(main: func.FuncOp) -> _Arena:
    """What `qmm-plan-memory` recorded."""
    plan = main.attributes.get("qmm.plan")
    if not isinstance(plan, DictionaryAttr):
        return 0, 0, ()
    buffers: list[PlannedBuffer] = []
    for entry in cast("ArrayAttr[DictionaryAttr]", plan.data["buffers"]):
        name = entry.data.get("name")
        buffers.append(
            PlannedBuffer(
                name.data if isinstance(name, StringAttr) else None,
                *(_number(entry.data, key) for key in ("offset", "bytes", "first", "last")),
            )
        )
    return (
        _number(plan.data, "arena_bytes"),
        _number(plan.data, "lower_bound_bytes"),
        tuple(buffers),
    )


def _tiles(calls: Sequence[KernelRecord]) -> _Arena:
    """The scratchpad: each staged dispatch has what it needs for itself, and hands nothing on there."""
    buffers = tuple(
        PlannedBuffer(c.symbol, 0, c.l1_bytes, c.ordinal, c.ordinal) for c in calls if c.staged
    )
    most = max((b.size for b in buffers), default=0)
    return most, most, buffers


def memory_report(module: ModuleOp, calls: Sequence[KernelRecord]) -> list[MemoryReport]:
    """The memory that a planned kernel-level module takes, a report per level."""
    program = program_of(module)
    target = target_named(program.target)
    weights: dict[int, int] = {}
    for data in program.weights:
        weights[data.space] = weights.get(data.space, 0) + data.weight.nbytes
    arenas: dict[int, _Arena] = {target.default_space: _planned(main_function(module))}
    if target.scratchpad is not None:
        arenas[target.scratchpad] = _tiles(calls)
    reports: list[MemoryReport] = []
    for space in sorted(arenas.keys() | weights.keys()):
        level = target.level(space)
        is_scratchpad = space == target.scratchpad
        size, bound, buffers = arenas.get(space, (0, 0, ()))
        reports.append(
            MemoryReport(
                space,
                level.name,
                level.size,
                size,
                bound,
                weights.get(space, 0),
                target.cores * target.stack_bytes if is_scratchpad else 0,
                target.reserved_bytes if is_scratchpad else 0,
                buffers,
            )
        )
    return reports
