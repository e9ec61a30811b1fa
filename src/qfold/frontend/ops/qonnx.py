"""QONNX's `Quant` (Brevitas, FINN): quantise and dequantise in one node, `scale * (clip(round(x / scale + zeropt)) - zeropt)`.

Constants become quantised weights of the narrowest storage type for their `bitwidth`; data of run time becomes a
`quantize`/`dequantize` pair of 8 or 16 bits, with a clamp between them where fewer bits are declared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import (
    i4,
    i8,
    i16,
    integer_range,
    numpy_dtype,
    ui4,
    ui8,
    ui16,
)
from qfold.dialects.qmm import QuantAttr
from qfold.frontend.context import NodeContext
from qfold.frontend.ops.activation import clamp
from qfold.frontend.ops.constant_arithmetic import split_rank
from qfold.frontend.ops.contraction import require_f32
from qfold.frontend.ops.quantization import check_scale
from qfold.frontend.raising import rule
from qfold.frontend.registry import onnx_op
from qfold.frontend.values import Array, Const, Quantized, Value, fits

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
"""Where exporters have put the operator."""

_Floats = npt.NDArray[np.float32]


def _away(round_magnitude: Callable[[_Floats], _Floats]) -> Callable[[_Floats], _Floats]:
    return lambda x: np.sign(x) * round_magnitude(np.abs(x))


_ROUNDINGS: dict[str, Callable[[_Floats], _Floats]] = {
    "ROUND": np.rint,
    "HALF_EVEN": np.rint,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "ROUND_TO_ZERO": np.trunc,
    "DOWN": np.trunc,
    "UP": _away(np.ceil),
    "HALF_UP": _away(lambda x: np.floor(x + np.float32(0.5))),
    "HALF_DOWN": _away(lambda x: np.ceil(x - np.float32(0.5))),
}
"""QONNX's names; UP and DOWN are away from and toward zero."""

_TO_NEAREST = ("ROUND", "HALF_EVEN")
"""What `qmm.quantize` does."""


@dataclass(frozen=True)
class _Quant:
    """The parameters of a node, checked."""

    scale: Array
    """Rank 0, or 1 along `axis`."""
    zero_point: Array
    axis: int | None
    bits: int
    low: int
    high: int
    signed: bool
    rounding: str

    def storage(self, *widths: int) -> IntegerType | None:
        """The narrowest type of these widths that holds the integers."""
        types = {4: (ui4, i4), 8: (ui8, i8), 16: (ui16, i16)}
        return next((types[w][self.signed] for w in widths if self.bits <= w), None)


def _parameters(ctx: NodeContext) -> _Quant:
    shape = ctx.type(0).get_shape()
    scale = check_scale(ctx.require_const(1, "scale"), ctx)
    zero_point = ctx.require_const(2, "zeropt")
    width = ctx.require_const(3, "bitwidth")
    if width.size != 1:
        ctx.refuse(f"{width.size} bit widths", "one bit width")
    bits = float(width.reshape(()))
    if not bits.is_integer() or not 1 <= bits <= 32:
        ctx.refuse(f"a bitwidth of {bits:g}", "whole bit widths of 1 to 32")
    forms = (split_rank(scale, shape), split_rank(zero_point, shape))
    axes = {form[1] for form in forms if form is not None} - {None}
    if None in forms or len(axes) > 1:
        found = f"scale and zeropt of shapes {list(scale.shape)} and {list(zero_point.shape)}"
        ctx.refuse(f"{found} for data of {list(shape)}", "one of each, or one along a dimension")
    if not np.isfinite(zero_point).all() or not np.array_equal(zero_point, np.rint(zero_point)):
        ctx.refuse("a zeropt that is a fraction", "whole zero points")
    signed, narrow = bool(ctx.attr("signed", 1)), bool(ctx.attr("narrow", 0))
    rounding = str(ctx.attr("rounding_mode", "ROUND")).upper()
    if rounding not in _ROUNDINGS:
        ctx.refuse(f"rounding_mode {rounding!r}", ", ".join(_ROUNDINGS))
    half = 1 << (int(bits) - 1)
    low, high = (narrow - half, half - 1) if signed else (0, 2 * half - 1 - narrow)
    axis = next(iter(axes), None)
    size = () if axis is None else (shape[axis],)
    return _Quant(
        np.broadcast_to(scale.reshape(-1) if scale.size > 1 else scale.reshape(()), size),
        np.broadcast_to(
            zero_point.reshape(-1) if zero_point.size > 1 else zero_point.reshape(()), size
        ).astype(np.int64),
        axis,
        int(bits),
        low,
        high,
        signed,
        rounding,
    )


def _expanded(parameter: Array, axis: int | None, rank: int) -> Array:
    return (
        parameter
        if axis is None
        else parameter.reshape([-1 if d == axis else 1 for d in range(rank)])
    )


def _integers(quant: _Quant, real: Array) -> Array:
    """The integers of a constant, as the operator defines them, in f32."""
    scale = _expanded(quant.scale, quant.axis, real.ndim).astype(np.float32)
    zero_point = _expanded(quant.zero_point, quant.axis, real.ndim).astype(np.float32)
    shifted = np.clip(real / scale + zero_point, np.float32(quant.low), np.float32(quant.high))
    return np.asarray(_ROUNDINGS[quant.rounding](shifted.astype(np.float32)))


def _raise_quant(ctx: NodeContext) -> Sequence[Value] | None:
    value = ctx.lattice(0)
    if isinstance(value, SSAValue) or value.type != f32:
        return None
    real = value.array if isinstance(value, Const) else value.evaluate()
    if np.isnan(real).any():
        ctx.invalid(f"'{value.name}' holds a NaN")
    quant = _parameters(ctx)
    integers = _integers(quant, real)
    storage = quant.storage(4, 8, 16)
    if storage is None:
        # More than 16 bits are a bias: no narrower in memory than its floats.
        difference = integers.astype(np.float64) - _expanded(
            quant.zero_point, quant.axis, real.ndim
        )
        scale = _expanded(quant.scale, quant.axis, real.ndim)
        return [Const((difference.astype(np.float32) * scale).astype(np.float32), f32, ctx.name)]
    _check_zero_point(ctx, quant, storage)
    q = Const(integers.astype(numpy_dtype(storage)), storage, ctx.name)
    return [
        Quantized(
            q,
            f32,
            ctx.name,
            scale=quant.scale.astype(np.float32),
            zero_point=quant.zero_point,
            axis=quant.axis,
        )
    ]


def _check_zero_point(ctx: NodeContext, quant: _Quant, storage: IntegerType) -> None:
    if not fits(quant.zero_point, storage):
        ctx.refuse("a zeropt outside of the integers' range", f"zero points of {storage}")


def import_quant(ctx: NodeContext) -> SSAValue:
    """Data of run time. Halves go to even before an even zero point is added, which is the same as after."""
    require_f32(ctx, 0)
    quant = _parameters(ctx)
    if quant.rounding not in _TO_NEAREST:
        ctx.refuse(f"rounding_mode {quant.rounding!r} of data computed at run time", "ROUND")
    if (quant.zero_point % 2).any():
        ctx.refuse("an odd zeropt of data computed at run time", "even zero points")
    storage = quant.storage(8, 16)
    if storage is None:
        ctx.refuse(f"{quant.bits} bits of data computed at run time", "up to 16 bits")
    _check_zero_point(ctx, quant, storage)
    attr = QuantAttr.get(storage, quant.scale, quant.zero_point, axis=quant.axis)
    q = ctx.b.insert(qmm.QuantizeOp(ctx.value(0), attr)).result
    if (quant.low, quant.high) != integer_range(storage):
        q = ctx.b.elementwise(
            [q], storage, lambda b, e: clamp(b, storage, e[0], quant.low, quant.high)
        )
    return ctx.b.insert(qmm.DequantizeOp(q, attr)).result


for _domain in DOMAINS:
    rule("Quant", "IntQuant", domain=_domain)(_raise_quant)
    onnx_op("Quant", "IntQuant", domain=_domain)(import_quant)
