"""Random nodes: one function per family of operators, each of which adds a node that ONNX allows, or raises `Invalid`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.defs import onnx_opset_version

from tests.fuzz.graphs import Case, GraphBuilder, Invalid, Value, finish
from tests.fuzz.weights import quantised, stored

FLOAT = "float32"
INTEGERS = ("int8", "uint8", "int32", "int64", "uint32", "int16")
Step = Callable[[GraphBuilder], None]


def partner(g: GraphBuilder, x: Value) -> Value:
    """Something of x's type that broadcasts with it: another value, or a constant."""
    if g.chance(0.5):
        found = [v for v in g.pool if v.type == x.type and _broadcasts(v.shape, x.shape)]
        if found:
            return g.random.choice(found)
    shape = [n if g.chance(0.6) else 1 for n in x.shape]
    shape = shape[g.random.randint(0, len(shape)) :] if g.chance(0.5) else shape
    if g.chance(0.1):
        shape = [g.extent(), *([1] * x.rank)]
    return g.constant(literal(g, x.type, tuple(shape)))


def literal(g: GraphBuilder, type_: str, shape: tuple[int, ...]) -> Any:
    if type_ == "bool":
        return np.asarray(g.rng.random(shape) < 0.5)
    if type_.startswith("float"):
        values = g.floats(shape).astype(type_)
        if g.chance(0.2):
            values = np.asarray(np.rint(values), type_)
        return values
    low = 0 if type_.startswith("u") else -5
    return np.asarray(g.rng.integers(low, 6, shape), type_)


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


# Elementwise


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
    like = [v for v in g.pool if _broadcasts(v.shape, condition.shape)]
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
    if g.opset >= 18 or op == "ReduceSum":
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


# Layout


def any_value(g: GraphBuilder, least: int = 0) -> Value:
    return g.pick(FLOAT, FLOAT, "bool", *INTEGERS, least=least)


def reshape(g: GraphBuilder) -> None:
    x = any_value(g)
    total = x.array.size
    kind = g.random.choice(["flatten", "reshape", "reshape", "squeeze", "unsqueeze", "shape chain"])
    if kind == "flatten":
        g.one("Flatten", x, axis=g.random.randint(-x.rank, x.rank))
    elif kind == "squeeze":
        axes = [d for d, n in enumerate(x.shape) if n == 1]
        if not axes:
            raise Invalid("Squeeze")
        if g.chance(0.3):
            g.one("Squeeze", x)
        else:
            g.one("Squeeze", x, g.ints(*g.random.sample(axes, g.random.randint(1, len(axes)))))
    elif kind == "unsqueeze":
        if x.rank > 4:
            raise Invalid("rank")
        count = g.random.randint(1, 5 - x.rank)
        axes = g.random.sample(range(-(x.rank + count), 0), count)
        g.one("Unsqueeze", x, g.ints(*axes))
    elif kind == "shape chain" and x.rank >= 2:
        # As exporters write Flatten: Shape -> Gather -> Concat -> Reshape.
        shape = g.one("Shape", x, keep=False)
        first = g.one("Gather", shape, g.ints(0), keep=False)
        if x.shape[0] == 0:
            raise Invalid("Reshape")
        g.one("Reshape", x, g.one("Concat", first, g.ints(-1), axis=0, keep=False))
    else:
        if total == 0:
            g.one("Reshape", x, g.constant(np.array([*x.shape, 1])), allowzero=1)
            return
        parts: list[int] = []
        rest = total
        for _ in range(g.random.randint(0, 3)):
            d = g.random.choice([d for d in range(1, rest + 1) if rest % d == 0])
            parts.append(d)
            rest //= d
        parts.append(rest)
        g.random.shuffle(parts)
        if g.chance(0.4):
            parts[g.random.randrange(len(parts))] = -1
        g.one("Reshape", x, g.constant(np.array(parts, np.int64)))


def transpose(g: GraphBuilder) -> None:
    x = any_value(g, least=1)
    if g.chance(0.2):
        g.one("Transpose", x)
    else:
        g.one("Transpose", x, perm=g.random.sample(range(x.rank), x.rank))


def expand(g: GraphBuilder) -> None:
    x = any_value(g)
    shape = [g.extent() if n == 1 and g.chance(0.6) else n for n in x.shape]
    if g.chance(0.3) and x.rank < 5:
        shape = [g.extent(), *shape]
    if g.chance(0.2):
        g.one("Tile", x, g.constant(np.array([g.random.randint(1, 3) for _ in x.shape], np.int64)))
    else:
        g.one("Expand", x, g.constant(np.array(shape, np.int64)))


def concat(g: GraphBuilder) -> None:
    x = any_value(g, least=1)
    axis = g.random.randrange(x.rank)
    same = [
        v
        for v in g.pool
        if v.type == x.type
        and v.rank == x.rank
        and all(d == axis or a == b for d, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)))
    ]
    parts = [g.random.choice(same) for _ in range(g.random.randint(1, 3))]
    if g.chance(0.4):
        shape = tuple(g.extent() if d == axis else n for d, n in enumerate(x.shape))
        parts.append(g.constant(literal(g, x.type, shape)))
    g.random.shuffle(parts)
    g.one("Concat", *parts, axis=axis - (x.rank if g.chance(0.3) else 0))


def split(g: GraphBuilder) -> None:
    x = any_value(g, least=1)
    axis = g.random.randrange(x.rank)
    extent = x.shape[axis]
    if extent < 1:
        raise Invalid("Split")
    count = g.random.randint(1, min(3, extent))
    if g.opset >= 18 and g.chance(0.4):
        if extent < count * -(-extent // count) - (-(-extent // count)) + 1:
            raise Invalid("Split")
        g.node("Split", x, outputs=count, axis=axis, num_outputs=count)
        return
    cuts = sorted(g.random.randint(0, extent) for _ in range(count - 1))
    sizes = np.diff([0, *cuts, extent])
    g.node("Split", x, g.constant(np.array(sizes, np.int64)), outputs=count, axis=axis)


def slice_(g: GraphBuilder) -> None:
    x = any_value(g, least=1)
    axes = g.random.sample(range(x.rank), g.random.randint(1, x.rank))
    starts, ends, steps = [], [], []
    for axis in axes:
        n = x.shape[axis]
        step = g.random.choice([1, 1, 1, 2, 3, -1, -2])
        start, end = g.random.randint(-n - 1, n + 1), g.random.randint(-n - 1, n + 1)
        if g.chance(0.4):
            start, end = (0, 2**31 - 1) if step > 0 else (-1, -(2**31))
        starts.append(start)
        ends.append(end)
        steps.append(step)
    arguments = [g.ints(*starts), g.ints(*ends), g.ints(*axes)]
    if g.chance(0.8):
        arguments.append(g.ints(*steps))
    g.one("Slice", x, *arguments)


def pad(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, "int32", "int64", "bool", least=1)
    mode = g.random.choice(["constant", "constant", "edge", "reflect"])
    if mode == "constant":
        pads = [g.random.choice([0, 0, 1, 2, -1]) for _ in range(2 * x.rank)]
    else:
        pads = [min(g.random.choice([0, 0, 1, 2]), max(0, n - 1)) for n in (*x.shape, *x.shape)]
    if mode == "constant":
        after = [n + a + b for n, a, b in zip(x.shape, pads[: x.rank], pads[x.rank :], strict=True)]
        if min(after) < 0 or 0 in x.shape:
            raise Invalid("Pad")
    if 0 in x.shape:
        raise Invalid("Pad")
    value = g.constant(literal(g, x.type, ())) if mode == "constant" and g.chance(0.6) else None
    if min(pads) < 0:
        raise Invalid("the reference does not crop")
    g.one("Pad", x, g.constant(np.array(pads, np.int64)), value, mode=mode)


def gather(g: GraphBuilder) -> None:
    table: Value
    kind = g.random.choice(["values", "table", "quantised", "nd", "elements"])
    if kind == "quantised":
        table = shared_weight(g, lambda s: len(s) >= 1 and s[0] > 0) or quantised(
            g, (max(1, g.extent()), *g.shape(g.random.randint(0, 2)))
        )
    elif kind == "table":
        table = g.constant(g.floats((max(1, g.extent()), g.extent())))
        g.weights.append(table)
    else:
        table = any_value(g, least=1)
    if kind == "nd":
        depth = g.random.randint(1, table.rank)
        if 0 in table.shape[:depth]:
            raise Invalid("GatherND")
        shape = g.shape(g.random.randint(0, 2))
        index = np.stack([g.rng.integers(0, n, shape) for n in table.shape[:depth]], axis=-1)
        where_ = g.constant(index) if g.chance(0.5) else g.input(index)
        g.one("GatherND", table, where_)
        return
    axis = 0 if kind in ("quantised", "table") and g.chance(0.7) else g.random.randrange(table.rank)
    extent = table.shape[axis]
    if extent == 0:
        raise Invalid("Gather")
    type_ = g.random.choice([np.int64, np.int32])
    shape = g.shape(g.random.randint(0, 2))
    if kind == "elements":
        shape = tuple(g.random.randint(0 if n == 0 else 1, n) for n in table.shape)
    index = np.asarray(g.rng.integers(-extent if g.chance(0.3) else 0, extent, shape), type_)
    runs = [
        v
        for v in g.pool
        if v.type == "int64" and v.array.size and v.array.min() >= 0 and v.array.max() < extent
    ]
    if runs and g.chance(0.3) and kind != "elements":
        where_ = g.random.choice(runs)
    else:
        where_ = g.constant(index) if g.chance(0.4) else g.input(index)
    g.one("GatherElements" if kind == "elements" else "Gather", table, where_, axis=axis)


def depth_space(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, rank=4)
    if 0 in x.shape:
        raise Invalid("empty")
    _, c, h, w = x.shape
    if c % 4 == 0 and g.chance(0.5):
        g.one("DepthToSpace", x, blocksize=2, mode=g.random.choice(["DCR", "CRD"]))
    elif h % 2 == 0 and w % 2 == 0:
        g.one("SpaceToDepth", x, blocksize=2)
    else:
        raise Invalid("shape")


# Normalisation and pooling


def softmax(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, least=1)
    axis = g.random.randint(-x.rank, x.rank - 1)
    g.one(g.random.choice(["Softmax", "LogSoftmax"]), x, axis=axis)


def vector(g: GraphBuilder, n: int, mean: float = 0.0) -> Value:
    return g.constant(np.asarray(mean + g.floats((n,), 0.2), np.float32))


def normalization(g: GraphBuilder) -> None:
    op = g.random.choice(
        ["LayerNormalization", "LayerNormalization", "BatchNormalization", "InstanceNormalization"]
    )
    if op == "LayerNormalization":
        x = g.pick(FLOAT, least=1)
        axis = g.random.randrange(x.rank)
        inner = x.shape[axis:]
        if 0 in x.shape:
            raise Invalid("empty")
        scale = g.constant(np.asarray(1 + g.floats(inner, 0.2), np.float32))
        bias = g.constant(g.floats(inner)) if g.chance(0.7) else None
        signed = axis - (x.rank if g.chance(0.4) else 0)
        g.one(op, x, scale, bias, axis=signed, epsilon=g.random.choice([1e-5, 1e-2]))
        return
    x = g.pick(FLOAT, least=3 if op[0] == "I" else 2)
    if 0 in x.shape or x.array.size > 800:
        raise Invalid("empty")
    c = x.shape[1]
    if op == "BatchNormalization":
        variance = g.constant(np.asarray(0.5 + g.rng.random(c), np.float32))
        g.one(op, x, vector(g, c, 1), vector(g, c), vector(g, c), variance, epsilon=1e-3)
    else:
        g.one(op, x, vector(g, c, 1), vector(g, c), epsilon=1e-2)


def spatial(g: GraphBuilder) -> Value:
    """A value with one or two spatial dimensions; made by a Reshape or an input if there is none."""
    found = [v for v in g.pool if v.is_float and v.rank in (3, 4)]
    if found and g.chance(0.7):
        return g.random.choice(found)
    shape = (g.random.choice([1, 1, 2]), *g.shape(g.random.choice([2, 3, 3])))
    if np.prod(shape) > LARGEST_IMAGE:
        raise Invalid("size")
    return g.input(g.floats(shape))


LARGEST_IMAGE = 600


def window(g: GraphBuilder, x: Value, dilate: bool = True) -> dict[str, Any]:
    sizes = x.shape[2:]
    kernel = [g.random.randint(1, max(1, min(3, n))) for n in sizes]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance(0.6):
        attributes["strides"] = [g.random.randint(1, 3) for _ in sizes]
    if dilate and g.chance(0.3):
        attributes["dilations"] = [
            2 if 2 * k - 1 <= n and g.chance(0.6) else 1 for k, n in zip(kernel, sizes, strict=True)
        ]
    kind = g.random.choice(["none", "pads", "pads", "auto"])
    if kind == "pads":
        attributes["pads"] = [g.random.randint(0, k - 1) for k in kernel * 2]
    elif kind == "auto" and "dilations" not in attributes:
        attributes["auto_pad"] = g.random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return attributes


def pooling(g: GraphBuilder) -> None:
    x = spatial(g)
    if 0 in x.shape:
        raise Invalid("empty")
    op = g.random.choice(
        [
            "MaxPool",
            "MaxPool",
            "AveragePool",
            "AveragePool",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "LpPool",
        ]
    )
    if op.startswith("Global"):
        g.one(op, x)
        return
    attributes = window(g, x, dilate=op == "MaxPool" or (g.opset >= 19 and op == "AveragePool"))
    strides = attributes.get("strides", [1] * len(attributes["kernel_shape"]))
    if max(strides) > min(attributes["kernel_shape"]):
        attributes.pop("auto_pad", None)  # of gaps between windows the reference pads a negative number
    if op == "AveragePool":
        attributes["count_include_pad"] = int(g.chance(0.5))
    # With unequal pads the reference takes the wrong windows.
    if g.chance(0.2) and op != "LpPool" and not {"auto_pad", "pads"} & set(attributes):
        attributes["ceil_mode"] = 1
    g.one(op, x, **attributes)


# Contractions


def shared_weight(g: GraphBuilder, fits: Callable[[tuple[int, ...]], bool]) -> Value | None:
    found = [w for w in g.weights if fits(w.shape)]
    return g.random.choice(found) if found and g.chance(0.6) else None


def weight(g: GraphBuilder, shape: tuple[int, ...]) -> Value:
    """A constant weight: one that others read too, or a new one; mostly quantised."""
    shared = shared_weight(g, lambda s: s == shape)
    if shared is not None:
        return shared
    turned = shared_weight(g, lambda s: s == shape[::-1]) if len(shape) == 2 else None
    if turned is not None:
        return g.one("Transpose", turned, keep=False, perm=[1, 0])
    if g.chance(0.75):
        return quantised(g, shape)
    value = g.constant(g.floats(shape, 0.5))
    g.weights.append(value)
    return value


def matmul(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, least=1)
    k = x.shape[-1]
    kind = g.random.choice(["weight", "weight", "weight", "left", "values", "batch", "vector"])
    if kind == "values":
        y = (
            g.one("Transpose", x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])
            if x.rank > 1
            else x
        )
        g.one("MatMul", x, y)
    elif kind == "batch":
        lead = [n if g.chance(0.5) else 1 for n in x.shape[:-2]]
        g.one("MatMul", x, weight(g, (*lead, k, g.extent())))
    elif kind == "vector":
        w = weight(g, (k,))
        g.one("MatMul", x, w)
    elif kind == "left":
        rows = x.shape[-2] if x.rank > 1 else k
        g.one("MatMul", weight(g, (g.extent(), rows)), x)
    else:
        shared = shared_weight(g, lambda s: len(s) == 2 and k in s)
        if shared is None:
            shared = weight(g, (k, g.extent()))
        elif shared.shape[0] != k or (shared.shape[1] == k and g.chance(0.5)):
            shared = g.one("Transpose", shared, keep=False, perm=[1, 0])
        y = g.one("MatMul", x, shared)
        epilogue(g, y)


def epilogue(g: GraphBuilder, y: Value) -> None:
    if g.chance(0.5):
        y = g.one("Add", y, partner(g, y))
    if g.chance(0.3):
        y = g.one(g.random.choice(["Relu", "Tanh", "Sigmoid", "Erf"]), y)
    if g.chance(0.2):
        g.one("Mul", y, partner(g, y))


def gemm(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, rank=2)
    trans_a, trans_b = int(g.chance(0.3)), int(g.chance(0.5))
    m, k = x.shape[::-1] if trans_a else x.shape
    shared = shared_weight(g, lambda s: len(s) == 2 and s[1 if trans_b else 0] == k)
    n = g.extent() if shared is None else shared.shape[0 if trans_b else 1]
    w = shared if shared is not None else weight(g, (n, k) if trans_b else (k, n))
    c: Value | None = None
    shape = g.random.choice([None, None, (), (1,), (n,), (n,), (m, 1), (m, n), (1, n)])
    if shape is not None:
        c = quantised(g, shape) if g.chance(0.2) and shape else g.constant(g.floats(shape))
    attributes: dict[str, Any] = {"transA": trans_a, "transB": trans_b}
    if g.chance(0.3):
        attributes["alpha"] = g.random.choice([0.5, -2.0, 1.25, 0.0])
    if g.chance(0.3):
        attributes["beta"] = g.random.choice([0.5, -1.0, 0.0])
    epilogue(g, g.one("Gemm", x, w, c, **attributes))


def conv(g: GraphBuilder) -> None:
    x = spatial(g)
    if 0 in x.shape:
        raise Invalid("empty")
    c = x.shape[1]
    groups = g.random.choice([d for d in range(1, c + 1) if c % d == 0]) if g.chance(0.5) else 1
    out = groups * g.random.randint(1, 3)
    attributes = window(g, x)
    w = weight(g, (out, c // groups, *attributes["kernel_shape"]))
    if g.chance(0.3):
        del attributes["kernel_shape"]
    bias = g.constant(g.floats((out,))) if g.chance(0.5) else None
    epilogue(g, g.one("Conv", x, w, bias, group=groups, **attributes))


# Quantisation


def quantize(g: GraphBuilder) -> None:
    x = g.pick(FLOAT)
    name = g.random.choice(["int8", "uint8"])
    axis = g.random.randrange(x.rank) if x.rank and g.chance(0.3) else None
    grid = (x.shape[axis],) if axis is not None else ()
    scale = g.constant(np.asarray(0.02 + 0.05 * g.rng.random(grid), np.float32))
    low, high = (-20, 20) if name == "int8" else (100, 150)
    zero: Value | None = g.constant(stored(name, np.asarray(g.rng.integers(low, high, grid))))
    if name == "uint8" and g.chance(0.2):
        zero = None
    attributes = {} if axis is None else {"axis": axis}
    q = g.one("QuantizeLinear", x, scale, zero, **attributes)
    if g.chance(0.8):
        g.one("DequantizeLinear", q, scale, zero, **attributes)


def dequantize(g: GraphBuilder) -> None:
    q = g.pick("int8", "uint8", "int32")
    scale = g.constant(np.asarray(0.01 + 0.05 * g.rng.random(()), np.float32))
    zero = None if q.type == "int32" or g.chance(0.3) else g.constant(np.asarray(3, q.type))
    g.one("DequantizeLinear", q, scale, zero)


def dangling_weight(g: GraphBuilder) -> None:
    """A dequantised weight in an elementwise op or in plain sight."""
    w = quantised(g, g.shape(g.random.randint(0, 3)))
    x = g.pick(FLOAT)
    if _broadcasts(w.shape, x.shape):
        g.one(g.random.choice(["Add", "Mul"]), x, w)


STEPS: list[tuple[Step, int]] = [
    (unary, 8),
    (clip, 2),
    (binary, 8),
    (divide, 3),
    (compare, 2),
    (logic, 2),
    (bits, 2),
    (where, 3),
    (cast, 4),
    (reduce, 5),
    (arg, 2),
    (reshape, 6),
    (transpose, 4),
    (expand, 3),
    (concat, 4),
    (split, 3),
    (slice_, 4),
    (pad, 3),
    (gather, 7),
    (depth_space, 1),
    (softmax, 3),
    (normalization, 3),
    (pooling, 4),
    (matmul, 12),
    (gemm, 8),
    (conv, 8),
    (quantize, 4),
    (dequantize, 1),
    (dangling_weight, 2),
]


def grow(random: Random, opset: int, prefix: str = "") -> GraphBuilder:
    """A graph of 5 to 25 random nodes (besides constants and the forms of weights)."""
    g = GraphBuilder(random, opset, prefix)
    for _ in range(random.randint(1, 3)):
        g.input(g.floats(g.shape()))
    if g.chance(0.3):
        g.input(
            np.asarray(g.rng.integers(-4, 5, g.shape(2)), random.choice(INTEGERS[:4]))
            if g.chance(0.7)
            else np.asarray(g.rng.random(g.shape(1)) < 0.5)
        )
    steps, weights = zip(*STEPS, strict=True)
    target = random.randint(5, 25)
    tries = 0
    while len(g.pool) - len(g.inputs) < target and tries < 12 * target:
        tries += 1
        step = random.choices(steps, weights)[0]
        try:
            step(g)
        except Invalid:
            continue
    return g


def make_case(seed: int, graphs: int = 1) -> Case:
    """The case of a seed: the same model and inputs each time."""
    random = Random(seed)
    opset = random.choice([13, 17, 18, 20, 21, 21, 21, 22, 23, onnx_opset_version()])
    built = [grow(random, opset, f"g{i}_" if graphs > 1 else "") for i in range(graphs)]
    return finish(built, f"seed {seed}" + (f", {graphs} graphs" if graphs > 1 else ""))
