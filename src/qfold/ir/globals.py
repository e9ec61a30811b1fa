"""`memref.global`s that hold constants: xDSL takes no custom attribute as an initial value, so the bytes sit beside it."""

from __future__ import annotations

from math import prod

from xdsl.dialects import memref
from xdsl.dialects.builtin import IntegerAttr, MemRefType, StringAttr, UnitAttr, i64
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.qmm import WeightAttr

WEIGHT = "qmm.weight"
"""Attribute of a global: its contents, a `#qmm.weight` of the global's shape."""
SHA256 = "qmm.sha256"
"""Attribute of a global: hex digest of its contents."""


def constant_global(
    name: str, weight: WeightAttr, memory_space: int, alignment: int
) -> memref.GlobalOp:
    """A constant of rank 1 that holds the elements of `weight` in row-major order; `alignment` in bytes.

    `initial_value` is unit: another object file defines the symbol.
    """
    flat = weight.with_shape([prod(weight.shape)])
    op = memref.GlobalOp.get(
        StringAttr(name),
        MemRefType(flat.element_type, flat.shape, memory_space=IntegerAttr(memory_space, i64)),
        UnitAttr(),
        constant=UnitAttr(),
        alignment=alignment,
    )
    op.attributes[WEIGHT] = flat
    op.attributes[SHA256] = StringAttr(weight.sha256)
    return op


def global_weight(op: memref.GlobalOp) -> WeightAttr:
    """The contents of a global. `VerifyException` when it has none, or not of its type."""
    weight = op.attributes.get(WEIGHT)
    if not isinstance(weight, WeightAttr):
        raise VerifyException(f"global @{op.sym_name.data} has no {WEIGHT}")
    type_ = op.type
    if weight.element_type != type_.element_type or weight.shape != type_.get_shape():
        raise VerifyException(
            f"global @{op.sym_name.data} is {type_}, but its contents are {weight.type}"
        )
    return weight
