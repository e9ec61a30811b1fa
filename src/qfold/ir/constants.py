"""Constants of the tensor level: two forms, one pair of functions that knows both."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    BytesAttr,
    DenseIntOrFPElementsAttr,
    TensorType,
)
from xdsl.ir import Attribute, Operation, SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import (
    bit_width,
    element_type_of,
    is_unsigned,
    numpy_dtype,
    pack,
    signless,
)
from qfold.dialects.qmm import WeightAttr

_SMALL = 16
"""Constants of up to this many elements are `arith.constant dense<...>`, which people can read."""


def constant_op(array: npt.NDArray[Any], element_type: Attribute | None = None) -> Operation:
    """The op (of one result) that holds `array` as a tensor of `element_type` (default: the dtype's own)."""
    if element_type is None:
        element_type = element_type_of(array.dtype)
    dense = array.size <= _SMALL and array.size and signless(element_type) == element_type
    if not dense or bit_width(element_type) == 4:
        return qmm.ConstantOp(WeightAttr.from_array(array, element_type))
    tensor_type: TensorType[Any] = TensorType(element_type, array.shape)
    raw = pack(array, element_type)
    return arith.ConstantOp(DenseIntOrFPElementsAttr(tensor_type, BytesAttr(raw)))


def constant_weight(value: SSAValue) -> WeightAttr | None:
    """The packed bytes of a constant tensor value, or None when `value` is not a constant."""
    owner = value.owner
    if isinstance(owner, qmm.ConstantOp):
        return owner.value
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, DenseIntOrFPElementsAttr):
        array = _dense_array(owner.value)
        return WeightAttr.from_array(array, owner.value.get_element_type())
    return None


def constant_array(value: SSAValue) -> npt.NDArray[Any] | None:
    """The values of a constant tensor, or None when `value` is not a constant (or its bytes were elided)."""
    owner = value.owner
    if isinstance(owner, qmm.ConstantOp):
        return None if owner.value.is_elided else owner.value.array()
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, DenseIntOrFPElementsAttr):
        return _dense_array(owner.value)
    return None


def _dense_array(dense: DenseIntOrFPElementsAttr) -> npt.NDArray[Any]:
    element_type = dense.get_element_type()
    shape = tuple(dense.type.get_shape())
    values = np.frombuffer(dense.data.data, numpy_dtype(element_type).newbyteorder("<"))
    if bit_width(element_type) == 4:
        # xDSL and MLIR keep a byte for each, whose high half they do not look at.
        nibbles = values.view(np.uint8) & 0xF
        values = nibbles if is_unsigned(element_type) else (nibbles ^ 8).view(np.int8) - np.int8(8)
    return values.reshape(shape) if values.size == prod(shape) else np.broadcast_to(values, shape)
