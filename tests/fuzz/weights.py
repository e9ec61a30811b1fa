"""Quantised constants in every form that exporters write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.graphs import Array, GraphBuilder, Invalid, Value

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}
_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
}


@dataclass(frozen=True)
class Quantised:
    """Integers with the grid that they stand on."""

    q: Array
    scale: Array
    zero: Array | None
    axis: int | None
    block: int | None


def stored(name: str, values: Array) -> Array:
    return values.astype(helper.tensor_dtype_to_np_dtype(_TYPES[name]))


def integers(g: GraphBuilder, name: str, shape: tuple[int, ...]) -> Array:
    """Random integers of a storage type, the extremes among them."""
    low, high = _RANGES[name]
    values = g.rng.integers(low, high, shape, endpoint=True)
    if g.chance(0.3):
        values = np.where(g.rng.random(shape) < 0.3, g.rng.choice([low, high], shape), values)
    return np.asarray(values)


def draw(g: GraphBuilder, shape: tuple[int, ...], form: str) -> tuple[str, Quantised]:
    """A storage type, and integers with scales and zero points per tensor, axis or block."""
    names = ["int8", "uint8", "int8", "uint8"]
    if g.opset >= 21 and form == "qdq":
        names += ["int4", "uint4"]
    name = g.random.choice(names)
    low, high = _RANGES[name]
    axis: int | None = None
    block: int | None = None
    grid: tuple[int, ...] = ()
    kind = g.random.choice(["tensor", "axis", "axis", "block"])
    if form == "deeploy" or (g.opset < 13 and form != "arith"):
        kind = "tensor"
    if shape and kind != "tensor":
        axis = g.random.randrange(len(shape))
        if kind == "block" and g.opset >= 21 and form == "qdq" and shape[axis] > 0:
            divisors = [d for d in range(1, shape[axis] + 1) if shape[axis] % d == 0]
            block = g.random.choice(divisors)
            grid = (*shape[:axis], shape[axis] // block, *shape[axis + 1 :])
        else:
            grid = (shape[axis],)
    elif g.chance(0.3) and form != "deeploy":
        grid = (1,)
        if g.opset < 13:
            grid = ()
    spread = 0.5 / np.sqrt(max(1, np.prod(shape, dtype=np.int64) ** 0.5)) / (high - low + 1) * 2
    scale = np.asarray((0.5 + g.rng.random(grid)) * spread, np.float32)
    zero: Array | None = None
    if g.chance(0.7):
        choice = g.random.choice(["any", "middle", "extreme", "zeros"])
        zero = {
            "any": g.rng.integers(low, high, grid, endpoint=True),
            "middle": np.full(grid, (low + high + 1) // 2),
            "extreme": g.rng.choice([low, high], grid),
            "zeros": np.zeros(grid, np.int64),
        }[choice]
        zero = np.asarray(zero)
    return name, Quantised(integers(g, name, shape), scale, zero, axis, block)


def quantised(g: GraphBuilder, shape: tuple[int, ...]) -> Value:
    """A float value of this shape that is a quantised constant, behind a random form of dequantisation."""
    form = g.random.choice(["qdq", "qdq", "qdq", "arith", "arith", "deeploy", "requantised"])
    layout = g.random.choice(["", "", "", "transpose", "reshape", "unsqueeze", "identity"])
    inner = shape
    perm: list[int] = []
    if layout == "transpose":
        perm = g.random.sample(range(len(shape)), len(shape))
        inner = tuple(shape[perm.index(d)] for d in range(len(shape)))
    elif layout == "reshape":
        inner = (int(np.prod(shape, dtype=np.int64)),)
        if len(shape) >= 2 and g.chance(0.5):
            inner = (shape[0], int(np.prod(shape[1:], dtype=np.int64)))
        if 0 in shape:
            layout, inner = "", shape
    elif layout == "unsqueeze":
        inner = (1, *shape)
    name, w = draw(g, inner, form)
    before = g.chance(0.3)  # the layout op on the integers, per tensor only
    if before and w.axis is None and layout and w.scale.ndim == 0:
        q = lay_out(g, g.constant(stored(name, w.q)), layout, shape, perm)
        value = dequantise(g, q, name, w, form)
    else:
        value = dequantise(g, g.constant(stored(name, w.q)), name, w, form)
        value = lay_out(g, value, layout, shape, perm)
    if value.shape != shape:
        raise Invalid("layout")
    value = Value(value.name, value.array, constant=True)
    g.weights.append(value)
    return value


def lay_out(
    g: GraphBuilder, value: Value, layout: str, shape: tuple[int, ...], perm: list[int]
) -> Value:
    if layout == "transpose":
        return g.one("Transpose", value, keep=False, perm=perm)
    if layout == "reshape":
        return g.one("Reshape", value, g.ints(*shape), keep=False)
    if layout == "unsqueeze":
        if g.chance(0.5):
            return g.along("Squeeze", value, [0], keep=False)
        return g.one("Reshape", value, g.ints(*shape), keep=False, allowzero=1 if 0 in shape else 0)
    if layout == "identity":
        return g.one("Identity", value, keep=False)
    return value


def dequantise(g: GraphBuilder, q: Value, name: str, w: Quantised, form: str) -> Value:
    rank = q.rank
    if form == "deeploy":
        return g.one(
            "Dequant",
            q,
            keep=False,
            scale=float(w.scale),
            zero_point=float(0 if w.zero is None else w.zero),
            bit_width=8,
            signed=int(name == "int8"),
        )
    if form == "arith":
        grid = (
            w.scale.shape
            if w.axis is None
            else tuple(-1 if d == w.axis else 1 for d in range(rank))
        )
        if w.axis is not None and g.chance(0.5):
            while grid and grid[0] == 1:
                grid = grid[1:]
        value = g.one("Cast", q, keep=False, to=TensorProto.FLOAT)
        if w.zero is not None:
            zero = w.zero.reshape(grid)
            if g.chance(0.5):
                point = g.constant(zero.astype(np.float32))
            else:
                point = g.one(
                    "Cast", g.constant(stored(name, zero)), keep=False, to=TensorProto.FLOAT
                )
            value = g.one("Sub", value, point, keep=False)
        factor = g.constant(w.scale.reshape(grid))
        pair = [value, factor] if g.chance(0.5) else [factor, value]
        value = g.one("Mul", *pair, keep=False)
        return value
    scale = g.constant(w.scale)
    zero_value = None if w.zero is None else g.constant(stored(name, w.zero))
    attributes: dict[str, int] = {}
    if w.axis is not None:
        attributes["axis"] = w.axis - (rank if g.chance(0.3) else 0)
    if w.block is not None:
        attributes["block_size"] = w.block
    value = g.one("DequantizeLinear", q, scale, zero_value, keep=False, **attributes)
    if form == "requantised":
        # Without a zero point the type of QuantizeLinear's result would be ui8.
        point = (
            zero_value
            if zero_value is not None
            else g.constant(stored(name, np.zeros(w.scale.shape, np.int64)))
        )
        again = g.one("QuantizeLinear", value, scale, point, keep=False, **attributes)
        value = g.one("DequantizeLinear", again, scale, point, keep=False, **attributes)
    return value


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
