"""Activations: Relu and its kin, Clip, Sigmoid, Gelu, Softplus, HardSwish ..."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import signless
from qfold.frontend.context import NodeContext
from qfold.frontend.ops import scalars
from qfold.frontend.ops.generics import pointwise, unary
from qfold.frontend.ops.scalars import FLOATS, NUMBERS, SIGNED, element_of
from qfold.frontend.registry import onnx_op
from qfold.ir.builder import ScalarBuilder

Body = Callable[[ScalarBuilder, SSAValue], SSAValue]


def _on_f32(ctx: NodeContext, body: Body) -> SSAValue:
    return unary(ctx, element_of(ctx, 0, (f32,)), body)


def _scaled(b: ScalarBuilder, x: SSAValue, factor: float) -> SSAValue:
    return b(arith.MulfOp, x, b.constant(factor, x.type))


def _shifted(b: ScalarBuilder, x: SSAValue, offset: float) -> SSAValue:
    return b(arith.AddfOp, x, b.constant(offset, x.type))


def _negative(b: ScalarBuilder, type_: Attribute, x: SSAValue) -> SSAValue:
    return scalars.compare(b, "lt", type_, x, b.constant(0, signless(type_)))


def clamp(
    b: ScalarBuilder, type_: Attribute, x: SSAValue, low: float | int, high: float | int
) -> SSAValue:
    """`min(max(x, low), high)`."""
    raised = scalars.maximum(b, type_, x, b.constant(low, signless(type_)))
    return scalars.minimum(b, type_, raised, b.constant(high, signless(type_)))


@onnx_op("Relu")
def import_relu(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, (*FLOATS, *SIGNED))
    return unary(
        ctx, type_, lambda b, x: scalars.maximum(b, type_, x, b.constant(0, signless(type_)))
    )


@onnx_op("LeakyRelu")
def import_leaky_relu(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, FLOATS)
    alpha = float(ctx.attr("alpha", 0.01))
    return unary(
        ctx,
        type_,
        lambda b, x: b(arith.SelectOp, _negative(b, type_, x), _scaled(b, x, alpha), x),
    )


@onnx_op("PRelu")
def import_prelu(ctx: NodeContext) -> SSAValue:
    """`slope * x` below zero; the slope broadcasts to x."""
    type_ = scalars.common_element(ctx, NUMBERS, 0, 1)

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        scaled = scalars.multiply(b, type_, e[0], e[1])
        return b(arith.SelectOp, _negative(b, type_, e[0]), scaled, e[0])

    result = pointwise(ctx, [0, 1], type_, body)
    if shape_of(result) != tuple(ctx.type(0).get_shape()):
        ctx.invalid(f"the slope of {ctx.type(1)} does not broadcast to {ctx.type(0)}")
    return result


def _clip_to_inputs(ctx: NodeContext) -> SSAValue:
    """The upper bound wins where the bounds cross."""
    given = [i for i in (1, 2) if ctx.has_input(i)]
    type_ = scalars.common_element(ctx, NUMBERS, 0, *given)
    for index in given:
        if ctx.type(index).get_shape() not in ((), (1,)):
            ctx.invalid(f"the bound in input {index} is a tensor, not a scalar")
    if not given:
        return ctx.value(0)

    def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
        result = e[0]
        for index, bound in zip(given, e[1:], strict=True):
            combine = scalars.maximum if index == 1 else scalars.minimum
            result = combine(b, type_, result, bound)
        return result

    result = pointwise(ctx, [0, *given], type_, body)
    return ctx.b.reshape(result, ctx.type(0).get_shape())


@onnx_op("Clip", since=11)
def import_clip(ctx: NodeContext) -> SSAValue:
    return _clip_to_inputs(ctx)


@onnx_op("Clip")
def import_clip_attributes(ctx: NodeContext) -> SSAValue:
    """Until opset 10 the bounds are attributes (newer models that were not converted have inputs)."""
    if ctx.num_inputs() > 1:
        return _clip_to_inputs(ctx)
    type_ = element_of(ctx, 0, FLOATS)

    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        for name, combine in (("min", scalars.maximum), ("max", scalars.minimum)):
            if ctx.has_attr(name):
                x = combine(b, type_, x, b.constant(float(ctx.attr(name)), type_))
        return x

    return unary(ctx, type_, body) if ctx.has_attr("min") or ctx.has_attr("max") else ctx.value(0)


@onnx_op("Sigmoid")
def import_sigmoid(ctx: NodeContext) -> SSAValue:
    """`1 / (1 + exp(-x))`; where exp overflows the quotient is 0, as it should be."""

    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        denominator = _shifted(b, b(math.ExpOp, b(arith.NegfOp, x)), 1.0)
        return b(arith.DivfOp, b.constant(1.0, f32), denominator)

    return _on_f32(ctx, body)


@onnx_op("HardSigmoid")
def import_hard_sigmoid(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, FLOATS)
    alpha, beta = float(ctx.attr("alpha", 0.2)), float(ctx.attr("beta", 0.5))
    return unary(
        ctx,
        type_,
        lambda b, x: clamp(b, type_, _shifted(b, _scaled(b, x, alpha), beta), 0.0, 1.0),
    )


@onnx_op("HardSwish")
def import_hard_swish(ctx: NodeContext) -> SSAValue:
    """`x * min(max(x / 6 + 1/2, 0), 1)`."""
    type_ = element_of(ctx, 0, FLOATS)

    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        gate = clamp(b, type_, _shifted(b, _scaled(b, x, 1 / 6), 0.5), 0.0, 1.0)
        return b(arith.MulfOp, x, gate)

    return unary(ctx, type_, body)


def _gelu_erf(b: ScalarBuilder, x: SSAValue) -> SSAValue:
    """`x/2 (1 + erf(x / sqrt 2))`."""
    gate = _shifted(b, b(math.ErfOp, _scaled(b, x, 1 / sqrt(2))), 1.0)
    return b(arith.MulfOp, _scaled(b, x, 0.5), gate)


def _gelu_tanh(b: ScalarBuilder, x: SSAValue) -> SSAValue:
    """`x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`."""
    cube = b(arith.MulfOp, b(arith.MulfOp, x, x), x)
    inner = _scaled(b, b(arith.AddfOp, x, _scaled(b, cube, 0.044715)), sqrt(2 / pi))
    gate = _shifted(b, b(math.TanhOp, inner), 1.0)
    return b(arith.MulfOp, _scaled(b, x, 0.5), gate)


@onnx_op("Gelu")
@onnx_op("Gelu", domain="com.microsoft")
def import_gelu(ctx: NodeContext) -> SSAValue:
    """By erf unless `approximate` says tanh (of opset 20; exporters write it without attribute in older ones)."""
    approximate = ctx.attr("approximate", "none")
    bodies: dict[Any, Body] = {"none": _gelu_erf, "tanh": _gelu_tanh}
    if approximate not in bodies:
        ctx.invalid(f"approximate is {approximate!r}; expected 'none' or 'tanh'")
    return _on_f32(ctx, bodies[approximate])


@onnx_op("Softplus")
def import_softplus(ctx: NodeContext) -> SSAValue:
    """`log(1 + exp(x))` as `max(x, 0) + log1p(exp(-|x|))`, which neither overflows nor cancels."""

    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        small = b(math.ExpOp, b(arith.NegfOp, b(math.AbsFOp, x)))
        large = b(arith.MaximumfOp, x, b.constant(0.0, f32))
        return b(arith.AddfOp, large, b(math.Log1pOp, small))

    return _on_f32(ctx, body)


def _exponential_below_zero(scale_negative: float, scale_positive: float) -> Body:
    """`scale_positive * x` above zero, `scale_negative * (exp(x) - 1)` below."""

    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        below = _scaled(b, b(math.ExpM1Op, x), scale_negative)
        above = x if scale_positive == 1.0 else _scaled(b, x, scale_positive)
        return b(arith.SelectOp, _negative(b, f32, x), below, above)

    return body


@onnx_op("Elu")
def import_elu(ctx: NodeContext) -> SSAValue:
    return _on_f32(ctx, _exponential_below_zero(float(ctx.attr("alpha", 1.0)), 1.0))


_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
"""ONNX's defaults."""


@onnx_op("Selu")
def import_selu(ctx: NodeContext) -> SSAValue:
    gamma = float(ctx.attr("gamma", _SELU_GAMMA))
    return _on_f32(
        ctx, _exponential_below_zero(gamma * float(ctx.attr("alpha", _SELU_ALPHA)), gamma)
    )


@onnx_op("ThresholdedRelu")
def import_thresholded_relu(ctx: NodeContext) -> SSAValue:
    type_ = element_of(ctx, 0, FLOATS)
    alpha = float(ctx.attr("alpha", 1.0))

    def body(b: ScalarBuilder, x: SSAValue) -> SSAValue:
        above = scalars.compare(b, "gt", type_, x, b.constant(alpha, type_))
        return b(arith.SelectOp, above, x, b.constant(0.0, type_))

    return unary(ctx, type_, body)
