"""Normalisation, pooling, contractions with float and quantised weights, quantisation of activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.graphs import GraphBuilder, Invalid, Value
from tests.fuzz.operands import FLOAT, broadcasts, partner
from tests.fuzz.weights import quantised, shared_weight, stored, weight


def softmax(g: GraphBuilder) -> None:
    x = g.pick(FLOAT, least=1)
    axis = g.random.randint(-x.rank, x.rank - 1)
    if g.opset < 13:
        axis = x.rank - 1  # the reference takes one axis where older opsets take all from there on
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
        attributes.pop(
            "auto_pad", None
        )  # of gaps between windows the reference pads a negative number
    if op == "AveragePool":
        attributes["count_include_pad"] = int(g.chance(0.5))
    # With unequal pads the reference takes the wrong windows.
    if g.chance(0.2) and op != "LpPool" and not {"auto_pad", "pads"} & set(attributes):
        attributes["ceil_mode"] = 1
    g.one(op, x, **attributes)


# Contractions


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
    if np.isnan(x.array).any():
        raise Invalid("of NaN the reference makes what the machine makes")
    name = g.random.choice(["int8", "uint8"])
    axis = g.random.randrange(x.rank) if x.rank and g.chance(0.3) and g.opset >= 13 else None
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
    if broadcasts(w.shape, x.shape):
        g.one(g.random.choice(["Add", "Mul"]), x, w)
