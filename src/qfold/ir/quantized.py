"""Float values that are views of one dequantised constant: what fusion looks for, through any transposes and reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects import tensor
from xdsl.dialects.builtin import IntegerType
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Operation, SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of, type_of
from qfold.dialects.element_types import bit_width, is_unsigned
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.constants import constant_array, constant_weight


@dataclass(frozen=True)
class QuantizedConstant:
    """`view(dequantize(weight))`: dimension i of the value is dimension `order[i]` of the weight, or of extent 1 where None.

    Dimensions of the weight that `order` leaves out have extent 1.
    """

    weight: WeightAttr
    quant: QuantAttr
    order: tuple[int | None, ...]
    ops: tuple[Operation, ...]
    """The dequantise and the views, the reader's side first."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(1 if o is None else self.weight.shape[o] for o in self.order)

    def as_tensor(self) -> tuple[WeightAttr, QuantAttr] | str:
        """The value as the weight's own bytes in the value's shape, or what stands against it."""
        if not self._is_row_major(self.order):
            return f"a transposed view {list(self.order)} of the weight {self.weight.type}"
        quant = _along(self.quant, self.order, self.shape)
        return quant if isinstance(quant, str) else (self.weight.with_shape(self.shape), quant)

    def as_matrix(self) -> tuple[WeightAttr, QuantAttr, bool] | str:
        """The value as (matrix, quantisation, whether the matrix is the value transposed), or what stands against it."""
        if any(d != 1 for d in self.shape[:-2]):
            return f"a batch of weights {list(self.shape)}"
        order = self.order[-2:]
        transposed = not self._is_row_major(order)
        if transposed:
            order = order[::-1]
        shape = tuple(1 if o is None else self.weight.shape[o] for o in order)
        quant = _along(self.quant, order, shape)
        return (
            quant if isinstance(quant, str) else (self.weight.with_shape(shape), quant, transposed)
        )

    def _is_row_major(self, order: Sequence[int | None]) -> bool:
        real = [o for o in order if o is not None and self.weight.shape[o] != 1]
        return real == sorted(real)

    def transposed(self, permutation: Sequence[int], op: Operation) -> QuantizedConstant:
        """The view whose dimension i is this one's dimension `permutation[i]`."""
        order = tuple(self.order[p] for p in permutation)
        return replace(self, order=order, ops=(op, *self.ops))

    def reshaped(self, shape: tuple[int, ...], op: Operation) -> QuantizedConstant | str:
        """The view in another shape, or what stands against it."""
        ops = (op, *self.ops)
        real = [o for o in self.order if o is not None and self.weight.shape[o] != 1]
        if [self.weight.shape[o] for o in real] == [d for d in shape if d != 1]:
            dims = iter(real)
            return replace(
                self, order=tuple(None if d == 1 else next(dims) for d in shape), ops=ops
            )
        plain = self.as_tensor()
        if isinstance(plain, str):
            return f"a reshape of {plain}"
        weight, quant = plain
        order = tuple(range(len(shape)))
        if quant.axis is not None:
            axis = _same_axis(weight.shape, quant.axis, shape)
            if axis is None:
                return f"a reshape of {weight.type} to {list(shape)} across the quantised axis {quant.axis}"
            scales = quant.scales
            if quant.block_size is not None:
                blocked = [*shape]
                blocked[axis] = scales.shape[quant.axis]
                if prod(blocked) != scales.size:
                    return f"a reshape of {weight.type} to {list(shape)} across blocks"
                scales = scales.reshape(blocked)
            quant = QuantAttr.get(
                quant.storage,
                scales,
                quant.zero_points.reshape(scales.shape),
                axis=axis,
                block_size=quant.block_size,
            )
        return QuantizedConstant(weight.with_shape(shape), quant, order, ops)


def _same_axis(shape: Sequence[int], axis: int, target: Sequence[int]) -> int | None:
    """The dimension of `target` that is dimension `axis` of `shape` after a row-major reshape, or None."""
    if 0 in shape:
        return None
    before = prod(shape[:axis])
    for d, extent in enumerate(target):
        if prod(target[:d]) == before and extent == shape[axis]:
            return d
    return None


def _along(quant: QuantAttr, order: Sequence[int | None], shape: Sequence[int]) -> QuantAttr | str:
    """`quant` of a tensor as that of its view, whose dimension i is dimension `order[i]` of the tensor."""
    if quant.axis is None:
        return quant
    if quant.axis not in order:
        return f"a view without the quantised axis {quant.axis}"
    axis = order.index(quant.axis)
    scales, zeros = quant.scales, quant.zero_points
    if quant.block_size is not None:
        extents = [1 if o is None else scales.shape[o] for o in order]
        kept = [o for o in order if o is not None]
        left_out = [d for d in range(scales.ndim) if d not in kept]
        scales = scales.transpose([*kept, *left_out]).reshape(extents)
        zeros = zeros.transpose([*kept, *left_out]).reshape(extents)
    result = QuantAttr.get(quant.storage, scales, zeros, axis=axis, block_size=quant.block_size)
    return simplified(result, shape)


def simplified(quant: QuantAttr, shape: Sequence[int]) -> QuantAttr:
    """The coarsest granularity that says the same of a tensor of `shape`.

    Blocks as long as their axis, or one element long, are often a scale per axis; one scale is always per tensor.
    """
    if quant.axis is None or quant.scale.is_elided:
        return quant
    scales, zeros = quant.scales, quant.zero_points
    if not (scales > 0).all():
        return quant  # only scales of blocks may be
    if scales.size == 1:
        return QuantAttr.get(quant.storage, scales.reshape(()), zeros.reshape(()))
    if quant.block_size is None:
        return quant
    long = [d for d, n in enumerate(scales.shape) if n != 1]
    if len(long) == 1 and scales.size == shape[long[0]]:
        return QuantAttr.get(quant.storage, scales.reshape(-1), zeros.reshape(-1), axis=long[0])
    return quant


def constant_quant(op: qmm.DequantizeOp | qmm.QuantizeOp, data: SSAValue) -> QuantAttr | None:
    """The op's parameters as an attribute, given as one or as constant operands; None when known at run time only."""
    shape = shape_of(data)
    if op.quant is not None:
        return simplified(op.quant, shape)
    assert op.runtime_scale is not None
    scales = constant_array(op.runtime_scale)
    zeros = None if op.runtime_zero_point is None else constant_array(op.runtime_zero_point)
    quantized = op.q if isinstance(op, qmm.DequantizeOp) else op.result
    storage = cast(IntegerType, type_of(quantized).get_element_type())
    if scales is None or (op.runtime_zero_point is not None and zeros is None):
        return None
    if scales.ndim == 0:
        return QuantAttr.get(storage, scales, zeros)
    # One per row is one per block of a whole last dimension.
    rows = (*scales.shape, 1)
    quant = QuantAttr.get(
        storage,
        scales.reshape(rows),
        None if zeros is None else zeros.reshape(rows),
        axis=len(shape) - 1,
        block_size=max(shape[-1], 1),
    )
    return simplified(quant, shape)


def is_view(op: Operation) -> bool:
    """Whether the op only renames the indices of a whole tensor."""
    return isinstance(op, linalg.TransposeOp | tensor.CollapseShapeOp | tensor.ExpandShapeOp)


def permutation_of(op: linalg.TransposeOp) -> tuple[int, ...]:
    """Dimension i of the result is dimension `permutation[i]` of the input."""
    return tuple(int(p) for p in op.permutation.get_values())


def trace_quantized(value: SSAValue) -> QuantizedConstant | str | None:
    """What `value` is a view of: a dequantised constant, one that cannot be followed (a phrase says why), or neither (None)."""
    views: list[Operation] = []
    owner = value.owner
    while isinstance(owner, Operation) and is_view(owner):
        views.append(owner)
        owner = owner.operands[0].owner
    if not isinstance(owner, qmm.DequantizeOp):
        return None
    dequantize = owner
    integer_views: list[Operation] = []
    source = dequantize.q
    while isinstance(source.owner, Operation) and is_view(source.owner):
        integer_views.append(source.owner)
        source = source.owner.operands[0]
    weight = constant_weight(source)
    if weight is None:
        return None
    order: tuple[int | None, ...] = tuple(range(len(weight.shape)))
    neutral = QuantAttr.get(dequantize_storage(dequantize), 1.0)
    traced: QuantizedConstant | str = QuantizedConstant(weight, neutral, order, ())
    for view in reversed(integer_views):
        traced = _through(traced, view)
    if isinstance(traced, str):
        return traced
    quant = constant_quant(dequantize, dequantize.q)
    if quant is None:
        return "a scale that is known at run time only"
    traced = replace(traced, ops=(dequantize, *traced.ops))
    stored = _stored(quant, traced)
    if isinstance(stored, str):
        return stored
    traced = replace(traced, quant=stored)
    for view in reversed(views):
        traced = _through(traced, view)
        if isinstance(traced, str):
            return traced
    return traced


def dequantize_storage(op: qmm.DequantizeOp) -> IntegerType:
    """The integer type that the op reads."""
    return cast(IntegerType, type_of(op.q).get_element_type())


def _through(traced: QuantizedConstant | str, view: Operation) -> QuantizedConstant | str:
    if isinstance(traced, str):
        return traced
    if isinstance(view, linalg.TransposeOp):
        return traced.transposed(permutation_of(view), view)
    return traced.reshaped(shape_of(view.results[0]), view)


def _stored(quant: QuantAttr, traced: QuantizedConstant) -> QuantAttr | str:
    """`quant` of the view `traced`, said of the stored weight."""
    inverse: list[int | None] = [
        traced.order.index(d) if d in traced.order else None
        for d in range(len(traced.weight.shape))
    ]
    if quant.block_size is None and quant.axis is not None and quant.axis not in inverse:
        return f"a scale along the axis {quant.axis}, which has one element"
    return _along(quant, inverse, traced.weight.shape)


def middle(storage: IntegerType) -> int:
    """The middle of an unsigned range: what the signed type of the same width calls 0."""
    return 1 << (bit_width(storage) - 1)


def reads_better_as_signed(quant: QuantAttr) -> bool:
    """Whether unsigned integers have zero points that lie nearer to the middle of their range than to 0.

    The correction `zero point * row_sum` loses to rounding what it is larger than the sum that it corrects (docs/numerics.md).
    """
    if not is_unsigned(quant.storage):
        return False
    zeros = quant.zero_points
    return int(np.abs(zeros - middle(quant.storage)).sum()) < int(zeros.sum())


def uniform(values: npt.NDArray[Any]) -> bool:
    """Whether all elements are equal."""
    return values.size == 0 or bool(np.all(values == values.flat[0]))
