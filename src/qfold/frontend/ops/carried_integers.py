"""Operators of ONNX on integers that the model holds as floats (`carrying.py`), between two RequantShift.

Conv, Gemm and MatMul take weights of i8 and biases of i32: the widths that PACTOps defines. Constants in FLOAT are narrowed to
these; one that does not fit is an error. Nothing is derived from the values of a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import bit_width, i8, i32, integer_range, is_float, is_unsigned
from qfold.frontend import registry
from qfold.frontend.carrying import on_integers
from qfold.frontend.context import NodeContext
from qfold.frontend.ops.contraction import (
    channel_bias,
    import_conv,
    import_gemm,
    import_matmul,
    reshaped,
    with_vectors,
)
from qfold.frontend.ops.integer_contraction import DATA, add_integers, quant_conv, quant_matmul
from qfold.frontend.ops.requant_shift import accumulator
from qfold.frontend.registry import Importer
from qfold.frontend.values import Carried, Const, Value, fits


def _integer_type(ctx: NodeContext) -> IntegerType | None:
    """The declared type of input 0."""
    kind = ctx.type(0).element_type
    return None if kind == f32 else cast(IntegerType, kind)


def _result(importer: Importer, ctx: NodeContext) -> list[SSAValue]:
    """What an importer makes of the integers."""
    produced = importer(ctx)
    if isinstance(produced, SSAValue):
        return [produced]
    return [p for p in produced if isinstance(p, SSAValue)]


def _second_operand(ctx: NodeContext, carried: Mapping[int, Carried], index: int) -> Value | None:
    """A weight narrowed to i8, or integers of 8 bits; else None."""
    if index in carried:
        return ctx.value(index) if ctx.type(index).element_type in DATA else None
    return _narrowed(ctx, carried, index, i8)


def _narrowed(
    ctx: NodeContext, carried: Mapping[int, Carried], index: int, defined: IntegerType
) -> Const | None:
    """A constant as the integers that the network's operators define, or those that it declares itself; else None."""
    value = ctx.lattice(index)
    if any(v.strict for v in carried.values()):
        return ctx.narrowed(value, defined)
    declared = value.declared if isinstance(value, Const) else None
    if declared is None or bit_width(declared) > bit_width(defined):
        return None
    return ctx.narrowed(value, i32 if defined == i32 else declared)


def _float_operands(ctx: NodeContext, carried: Mapping[int, Carried]) -> bool:
    """Whether the data has no declared width, and all else are integers: then floats compute with integers."""
    if 0 not in carried or ctx.type(0).element_type != f32:
        return False
    for index in range(1, ctx.num_inputs()):
        value = ctx.lattice(index) if ctx.has_input(index) else None
        if value is None or index in carried:
            continue
        if not isinstance(value, Const) or not fits(value.array, i32):
            return False
    return all(ctx.type(i).element_type == f32 for i in carried)


def _has_narrow_data(ctx: NodeContext, carried: Mapping[int, Carried]) -> bool:
    return 0 in carried and ctx.type(0).element_type in DATA


@on_integers("Conv")
def _conv(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    if _float_operands(ctx, carried):
        return _result(import_conv, ctx)
    if not _has_narrow_data(ctx, carried):
        return None
    weight = _second_operand(ctx, carried, 1)
    if weight is None:
        return None
    result = quant_conv(ctx, ctx.value(0), weight)
    if not ctx.has_input(2):
        return [result]
    bias = _narrowed(ctx, carried, 2, i32)
    if bias is None:
        return None
    if not bias.array.any():
        return [result]
    narrow = ctx.on(None, None, bias)
    shape = shape_of(result)
    return [add_integers(ctx, result, channel_bias(narrow, 2, shape[1], len(shape) - 2))]


@on_integers("MatMul")
def _matmul(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    if _float_operands(ctx, carried):
        return _result(import_matmul, ctx)
    if 0 not in carried or ctx.type(0).element_type not in DATA:
        return None
    right = _second_operand(ctx, carried, 1)
    if right is None:
        return None
    return [with_vectors(ctx, ctx.value(0), right, lambda a, b: quant_matmul(ctx, a, b))]


@on_integers("Gemm")
def _gemm(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    if _float_operands(ctx, carried):
        return _result(import_gemm, ctx)
    if not _has_narrow_data(ctx, carried):
        return None
    alpha, beta = float(ctx.attr("alpha", 1.0)), float(ctx.attr("beta", 1.0))
    if alpha != 1.0 or (beta != 1.0 and ctx.has_input(2)):
        if not any(v.strict for v in carried.values()):
            return None
        ctx.refuse(f"alpha = {alpha:g}, beta = {beta:g} on integers", "1 and 1")
    right = _second_operand(ctx, carried, 1)
    if right is None:
        return None
    result = quant_matmul(
        ctx,
        ctx.value(0),
        right,
        transpose_a=bool(ctx.attr("transA", 0)),
        transpose_b=bool(ctx.attr("transB", 0)),
    )
    if not ctx.has_input(2):
        return [result]
    bias = _narrowed(ctx, carried, 2, i32)
    if bias is None:
        return None
    if not bias.array.any():
        return [result]
    shape = shape_of(result)
    if np.broadcast_shapes(shape, bias.shape) != tuple(shape):
        ctx.invalid(f"C of shape {list(bias.shape)} does not broadcast to {list(shape)}")
    return [add_integers(ctx, result, ctx.materialize(reshaped(ctx, bias, bias.shape)))]


# Elementwise


@on_integers("Add")
def _add(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    """Of two integer tensors, or of an accumulator and a bias of i32: a sum in i32."""
    types = [ctx.type(i).element_type for i in sorted(carried)]
    if any(is_float(t) for t in types):
        others = [ctx.lattice(i) for i in (0, 1) if i not in carried]
        if all(isinstance(v, Const) and fits(v.array, i32) for v in others) and set(types) == {f32}:
            return _result(_importer(ctx), ctx)
        return None
    if types == [i32, i32] and not any(v.strict for v in carried.values()):
        return None  # floats hold sums that i32 does not
    operands: list[SSAValue] = []
    for index in (0, 1):
        if index in carried:
            operands.append(accumulator(ctx, ctx.value(index)))
            continue
        bias = _narrowed(ctx, carried, index, i32) if types == [i32] else None
        if bias is None:
            return None
        operands.append(ctx.materialize(bias))
    return [ctx.b.elementwise(operands, i32, lambda b, e: b(arith.AddiOp, e[0], e[1]))]


@on_integers("Relu")
def _relu(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    if is_unsigned(ctx.type(0).element_type):
        return [ctx.value(0)]
    return _result(_importer(ctx), ctx)


@on_integers("Clip")
def _clip(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    """To constant whole bounds, of which the part within the integers' own range counts."""
    kind = _integer_type(ctx)
    if set(carried) != {0} or kind is None:
        return None
    smallest, largest = integer_range(kind)
    inputs: list[Value | None] = [ctx.value(0)]
    for index, name, default in ((1, "min", smallest), (2, "max", largest)):
        bound = np.asarray(ctx.attr(name, float(default)), np.float64)
        if ctx.has_input(index):
            known = ctx.const(index)
            if known is None or known.size != 1:
                return None
            bound = known.reshape(()).astype(np.float64)
        # A bound beyond the range on the far side would leave the type.
        if not float(bound).is_integer() or (bound > largest if index == 1 else bound < smallest):
            return None
        clamped = np.asarray(np.clip(bound, smallest, largest))
        narrow = ctx.narrowed(Const(clamped, f32, ctx.name), kind)
        inputs.append(narrow)
    importer = registry.lookup("", "Clip", 13)
    assert importer is not None
    return _result(importer, ctx.on(*inputs, opset=13))


# Data that is moved


def _importer(ctx: NodeContext) -> Importer:
    importer = registry.lookup("", ctx.node.op_type, ctx.opset)
    assert importer is not None
    return importer


@on_integers("Identity")
def _identity(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    return [ctx.value(0)]


@on_integers(
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
)
def _moved(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    return _result(_importer(ctx), ctx) if set(carried) == {0} else None


@on_integers("MaxPool")
def _max_pool(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    if ctx.type(0).element_type not in (*DATA, f32):
        return None
    return _result(_importer(ctx), ctx)


@on_integers("Concat")
def _concat(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    """Of parts that are all integers of one type."""
    count = ctx.num_inputs()
    if len(carried) != count or len({ctx.type(i).element_type for i in range(count)}) > 1:
        return None
    return _result(_importer(ctx), ctx)


@on_integers("Pad")
def _pad(ctx: NodeContext, carried: Mapping[int, Carried]) -> Sequence[SSAValue] | None:
    """With 0, or a constant that is an integer of the type."""
    kind = _integer_type(ctx)
    if set(carried) != {0} or kind is None:
        return None
    inputs = list(ctx.inputs)
    if ctx.has_input(2):
        known = ctx.const(2)
        if known is None or not fits(known, kind):
            return None
        inputs[2] = ctx.narrowed(ctx.lattice(2), kind)
    elif float(ctx.attr("value", 0.0)) != 0.0:
        return None
    return _result(_importer(ctx), ctx.on(*inputs))
