"""Memref ops that see a whole buffer in another layout, in the plainest words that say it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    MemRefType,
    NoneAttr,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue

from qfold.ir.builder import reassociation, reassociation_attr
from qfold.ir.layouts import Layout, row_major


def view_ops(whole: SSAValue, layout: Layout, space: int) -> list[Operation]:
    """Ops, of which the last has the value: a reshape or a subview where that is what the layout is, else a `reinterpret_cast`.

    `whole` is dense and starts at its buffer's start.
    """
    source = cast(MemRefType[Attribute], whole.type)
    type_ = layout.memref_type(source.element_type, space)
    shape = source.get_shape()
    covers = layout.is_dense and not layout.offset and prod(shape) == prod(layout.shape)
    if covers and shape and layout.shape:
        return _reshape(whole, shape, type_)
    if len(shape) == len(layout.shape) and 0 not in shape:
        strides = row_major(shape)
        offsets: list[int] = []
        rest = layout.offset
        for stride in strides:
            offsets.append(rest // stride)
            rest %= stride
        steps = [a // b for a, b in zip(layout.strides, strides, strict=True)]
        fits = all(s > 0 for s in steps) and all(
            o + (n - 1) * s < d
            for o, n, s, d in zip(offsets, layout.shape, steps, shape, strict=True)
        )
        if fits:
            op = memref.SubviewOp.from_static_parameters(
                whole, source, offsets, layout.shape, steps
            )
            if Layout.of(op.result.type).normalized() == layout:
                return [memref.SubviewOp.get(whole, offsets, layout.shape, steps, type_)]
    return [
        memref.ReinterpretCastOp.from_dynamic(
            whole, [layout.offset], list(layout.shape), list(layout.strides), type_
        )
    ]


def collapses(value: SSAValue, shape: Sequence[int]) -> bool:
    """Whether a memref can be seen with consecutive dimensions joined, as `shape` has it: its groups and its strides allow it."""
    type_ = cast(MemRefType[Attribute], value.type)
    grouped = bool(reassociation(type_.get_shape(), shape))
    return grouped and Layout.of(type_).reshaped(shape) is not None


def collapse(value: SSAValue, shape: Sequence[int]) -> memref.CollapseShapeOp:
    """The view of which `collapses` tells."""
    type_ = cast(MemRefType[Attribute], value.type)
    groups, layout = reassociation(type_.get_shape(), shape), Layout.of(type_).reshaped(shape)
    assert groups is not None
    assert layout is not None
    space = cast("IntegerAttr[IntegerType]", type_.memory_space).value.data
    return _collapse(value, groups, layout.memref_type(type_.element_type, space))


def _reshape(
    whole: SSAValue, shape: tuple[int, ...], type_: MemRefType[Attribute]
) -> list[Operation]:
    target = type_.get_shape()
    if groups := reassociation(shape, target):
        return [_collapse(whole, groups, type_)]
    if groups := reassociation(target, shape):
        return [_expand(whole, groups, type_)]
    flat = _collapse(
        whole,
        [list(range(len(shape)))],
        MemRefType(type_.element_type, [prod(shape)], NoneAttr(), type_.memory_space),
    )
    return [flat, _expand(flat.results[0], [list(range(len(target)))], type_)]


def _collapse(
    source: SSAValue, groups: Sequence[Sequence[int]], type_: MemRefType[Attribute]
) -> memref.CollapseShapeOp:
    return memref.CollapseShapeOp(
        operands=[source],
        result_types=[type_],
        properties={"reassociation": reassociation_attr(groups)},
    )


def _expand(
    source: SSAValue, groups: Sequence[Sequence[int]], type_: MemRefType[Attribute]
) -> Operation:
    return memref.ExpandShapeOp(
        operands=[source, []],
        result_types=[type_],
        properties={
            "reassociation": reassociation_attr(groups),
            "static_output_shape": DenseArrayBase.from_list(i64, type_.get_shape()),
        },
    )
