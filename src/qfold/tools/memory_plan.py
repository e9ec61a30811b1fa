"""The plan that `qmm-plan-memory` recorded on `@main`, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
)
from xdsl.ir import Attribute

from qfold.backend.c.program import memory_space
from qfold.tools.arrays import main_function
from qfold.tools.manifest import program_of


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
    arena_bytes: int
    lower_bound: int
    weight_bytes: int
    buffers: tuple[PlannedBuffer, ...]


def _number(entries: Mapping[str, Attribute], key: str) -> int:
    value = entries[key]
    assert isinstance(value, IntegerAttr)
    return value.value.data


def memory_report(module: ModuleOp) -> list[MemoryReport]:
    """The memory that a planned kernel-level module takes, a report per level."""
    weights: dict[int, int] = {}
    for data in program_of(module).weights:
        weights[data.space] = weights.get(data.space, 0) + data.weight.nbytes
    main = main_function(module)
    plan = main.attributes.get("qmm.plan")
    arenas: dict[int, tuple[int, int, tuple[PlannedBuffer, ...]]] = {}
    if isinstance(plan, DictionaryAttr):
        buffers: list[PlannedBuffer] = []
        for entry in cast("ArrayAttr[DictionaryAttr]", plan.data["buffers"]):
            name = entry.data.get("name")
            buffers.append(
                PlannedBuffer(
                    name.data if isinstance(name, StringAttr) else None,
                    *(_number(entry.data, key) for key in ("offset", "bytes", "first", "last")),
                )
            )
        arena = main.body.block.args[0].type
        assert isinstance(arena, MemRefType)
        arenas[memory_space(cast("MemRefType[Attribute]", arena))] = (
            _number(plan.data, "arena_bytes"),
            _number(plan.data, "lower_bound_bytes"),
            tuple(buffers),
        )
    nothing: tuple[int, int, tuple[PlannedBuffer, ...]] = (0, 0, ())
    reports: list[MemoryReport] = []
    for level in sorted(arenas.keys() | weights.keys()):
        size, bound, buffers_here = arenas.get(level, nothing)
        reports.append(MemoryReport(level, size, bound, weights.get(level, 0), buffers_here))
    return reports
