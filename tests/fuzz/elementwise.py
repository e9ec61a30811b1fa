"""Elementwise nodes and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzz.graphs import GraphBuilder, Invalid, Value
from tests.fuzz.operands import FLOAT, INTEGERS, broadcasts, partner


def unary(g: GraphBuilder) -> None:
    x = g.pick(FLOAT)
    op, attributes = g.random.choice(_UNARY)
    if op == "Gelu":
        attributes = {"approximate": g.random.choice(["none", "tanh"])}
        if g.opset < 20:
            raise Invalid("Gelu")
    if op == "HardSwish" and g.opset < 14:
        raise Invalid("HardSwish")
    if op in ("Log", "Sqrt", "Reciprocal") and g.chance(0.8):
        x = g.one("Abs", x)
        x = g.one("Add", x, g.constant(np.float32(0.5)))
    if op in ("Exp", "Softplus"):
        x = g.one("Clip", x, g.constant(np.float32(-9)), g.constant(np.float32(5)))
    g.one(op, x, **attributes)


_UNARY: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("LeakyRelu", {"alpha": 0.2}),
    ("LeakyRelu", {"alpha": -1.5}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("Erf", {}),
    ("Gelu", {}),
    ("HardSwish", {}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("Abs", {}),
    ("Neg", {}),
    ("Exp", {}),
    ("Log", {}),
    ("Sqrt", {}),
    ("Reciprocal", {}),
    ("Floor", {}),
    ("Ceil", {}),
    ("Round", {}),
    ("Sign", {}),
    ("Softplus", {}),
    ("Elu", {"alpha": 0.7}),
    ("Selu", {}),
    ("ThresholdedRelu", {"alpha": 0.3}),
    ("Identity", {}),
    ("IsNaN", {}),
    ("IsInf", {}),
]


def clip(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, "int32", "int64", "int8", "uint8")
    low = None if g.chance(0.3) else g.constant(np.asarray(-1 if x.type[0] != "u" else 1, x.type))
    high = None if g.chance(0.3) else g.constant(np.asarray(2, x.type))
    if g.chance(0.1) and x.is_float:
        low, high = g.constant(np.float32(2)), g.constant(np.float32(-1))
    g.one("Clip", x, low, high)


def binary(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, FLOAT, *INTEGERS, "float64")
    y = partner(g, x)
    if g.chance(0.3):
        x, y = y, x
    ops = ["Add", "Sub", "Mul", "Add", "Mul"]
    ops += ["Max", "Min", "Sum", "Mean"] if x.is_float else ["Max", "Min"]
    op = g.random.choice(ops)
    if op in ("Max", "Min", "Sum", "Mean") and g.chance(0.4):
        g.one(op, *[x, y, partner(g, x)][: g.random.choice([1, 3])])
        return
    g.one(op, x, y)


def divide(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, "int32", "int64")
    y = partner(g, x)
    op = g.random.choice(["Div", "Div", "Mod", "Pow", "PRelu"])
    if op == "PRelu" and x.is_float:
        try:
            fits = np.broadcast_shapes(x.shape, y.shape) == x.shape
        except ValueError:
            fits = False
        if fits:
            g.one("PRelu", x, y)
        return
    if op == "Pow":
        if x.is_float:
            exponent = g.random.choice([2.0, 3.0, 0.5, -1.0, 1.0, 0.0, 4.0])
            base = g.one("Add", g.one("Abs", x), g.constant(np.float32(0.1)))
            g.one("Pow", base if exponent in (0.5, -1.0) else x, g.constant(np.float32(exponent)))
        return
    if x.is_float:
        y = g.one("Add", g.one("Abs", y, keep=False), g.constant(np.float32(0.7)), keep=False)
        if op == "Mod" and not g.chance(0.03):
            raise Invalid("qfold has no remainder of floats")
        g.one(op, x, y, **({"fmod": 1} if op == "Mod" else {}))
    else:
        y = g.one("Max", y, g.constant(np.asarray(1, x.type)), keep=False)
        # Integer division of a negative number: the reference rounds down where C, and ORT, truncate.
        if op == "Div":
            x = g.one("Abs", x)
        g.one(op, x, y, **({"fmod": 1} if op == "Mod" and g.chance(0.4) else {}))


def compare(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, "int32", "int64", "uint8", "int8")
    ops = ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]
    g.one(g.random.choice(ops), x, partner(g, x))


def logic(g: GraphBuilder) -> None:
    x = g.pick("bool")
    op = g.random.choice(["And", "Or", "Xor", "Not", "Equal"])
    g.one(op, *([x] if op == "Not" else [x, partner(g, x)]))


def bits(g: GraphBuilder) -> None:
    x = g.pick("int32", "uint8", "int64", "int8", "uint32")
    op = g.random.choice(
        ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift", "Neg", "Abs", "Sign"]
    )
    if op.startswith("Bitwise") and g.opset < 18:
        raise Invalid("Bitwise")
    if op == "BitShift":
        if x.type[0] != "u":
            raise Invalid("BitShift")
        shift = g.constant(np.asarray(g.rng.integers(0, 7, x.shape), x.type))
        g.one(op, x, shift, direction=g.random.choice(["LEFT", "RIGHT"]))
    elif op in ("BitwiseNot", "Abs", "Sign", "Neg"):
        if op == "Neg" and x.type[0] == "u":
            raise Invalid("Neg")
        g.one(op, x)
    else:
        g.one(op, x, partner(g, x))


def where(g: GraphBuilder) -> None:
    condition = g.pick("bool")
    like = [v for v in g.pool if broadcasts(v.shape, condition.shape)]
    x = g.random.choice(like)
    y = partner(g, x)
    g.one("Where", condition, *([x, y] if g.chance(0.5) else [y, x]))


def cast(g: GraphBuilder) -> None:
    x = g.random.choice(g.pool)
    types = [
        TensorProto.FLOAT,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.BOOL,
        TensorProto.DOUBLE,
    ]
    types += [
        TensorProto.INT8,
        TensorProto.UINT8,
        TensorProto.FLOAT,
        TensorProto.INT16,
        TensorProto.UINT32,
    ]
    to = g.random.choice(types)
    if x.type.startswith("float") and to not in (
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.BOOL,
    ):
        # Out of the integer's range the result is not defined.
        if not np.isfinite(x.array).all() or np.abs(x.array).max(initial=0) >= 100:
            raise Invalid("Cast")
        if to in (TensorProto.UINT8, TensorProto.UINT32):
            x = g.one("Abs", x)
    g.one("Cast", x, to=to)


# Reductions

_REDUCTIONS = [
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
]  # fmt: skip


def reduce(g: GraphBuilder) -> None:
    op = g.random.choice(_REDUCTIONS)
    types = (
        (FLOAT, "int32", "int64")
        if op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
        else (FLOAT,)
    )
    x = g.pick(*types)
    if op == "ReduceLogSum":
        x = g.one("Add", g.one("Abs", x), g.constant(np.float32(0.5)))
    axes = some_axes(g, x)
    attributes: dict[str, Any] = {"keepdims": int(g.chance(0.5))} if g.chance(0.8) else {}
    inputs: list[Value | None] = [x]
    if g.opset >= 18 or (op == "ReduceSum" and g.opset >= 13):
        if axes or g.chance(0.5):
            inputs.append(g.ints(*axes) if axes else g.constant(np.zeros(0, np.int64)))
        if not axes and g.chance(0.5):
            attributes["noop_with_empty_axes"] = 1
    elif axes:
        attributes["axes"] = axes
    g.one(op, *inputs, **attributes)


def some_axes(g: GraphBuilder, x: Value) -> list[int]:
    axes = [d - (x.rank if g.chance(0.3) else 0) for d in range(x.rank) if g.chance(0.5)]
    g.random.shuffle(axes)
    return axes


def arg(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, "int32", "int64", least=1)
    axis = g.random.randrange(x.rank)
    if x.shape[axis] == 0:
        raise Invalid("ArgMax")
    op = g.random.choice(["ArgMax", "ArgMin", "CumSum"])
    if op == "CumSum":
        g.one(
            op,
            x,
            g.constant(np.asarray(axis, np.int64)),
            exclusive=int(g.chance(0.5)),
            reverse=int(g.chance(0.5)),
        )
    else:
        g.one(op, x, axis=axis, keepdims=int(g.chance(0.5)), select_last_index=int(g.chance(0.3)))
