"""Random quantised graphs: chains, branches and residuals of layers whose activations and weights are stored integers.

Every form that ONNX's own operators allow: QDQ, QLinear and Integer operators, dynamic and decomposed quantisation. What a
quantisation stands on (scale, zero point) is drawn from the data, so that most values lie within its range and some saturate;
scales are powers of two now and then, which makes ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzz.contractions import window
from tests.fuzz.graphs import Array, Case, GraphBuilder, Invalid, Value, finish

BYTES = ("int8", "uint8")
_RANGE = {"int8": (-128, 127), "uint8": (0, 255)}


@dataclass(frozen=True)
class Stored:
    """Integers of the graph, and what they stand for: constants of rank 0, or of rank 1 along `axis`."""

    q: Value
    scale: Value
    zero: Value | None
    axis: int | None = None

    @property
    def real(self) -> Array:
        """The numbers that they stand for."""
        grid = [-1 if d == self.axis else 1 for d in range(self.q.rank)]
        scale = self.scale.array.reshape(grid) if self.axis is not None else self.scale.array
        zero = np.zeros((), np.int64) if self.zero is None else self.zero.array.astype(np.int64)
        zero = zero.reshape(grid) if self.axis is not None and zero.ndim else zero
        return np.asarray(scale.astype(np.float64) * (self.q.array.astype(np.int64) - zero))

    @property
    def parameters(self) -> list[Value]:
        """Scale and zero point as operators take them that have no default."""
        assert self.zero is not None
        return [self.scale, self.zero]


@dataclass
class Layers:
    """A graph and those of its values that are stored integers."""

    g: GraphBuilder
    stored: list[Stored] = field(default_factory=list)
    weights: list[Stored] = field(default_factory=list)

    def pick(self, *, rank: int | None = None, least: int = 0) -> Stored:
        """Stored activations, more often late ones. `Invalid` where there are none."""
        found = [
            s
            for s in self.stored
            if s.q.rank >= least
            and (rank is None or s.q.rank == rank)
            and s.q.array.size
            and s.axis is None
        ]
        if not found:
            raise Invalid("no stored activation")
        return self.g.random.choice(found[-3:] if self.g.chance(0.7) else found)

    def keep(self, stored: Stored) -> Stored:
        self.stored.append(stored)
        return stored


Step = Callable[[Layers], None]


def parameters(g: GraphBuilder, data: Array, dtype: str) -> tuple[Array, Array]:
    """(scale, zero point) under which most of `data` fits."""
    low, high = _RANGE[dtype]
    finite = np.asarray(data, np.float64)
    if not np.isfinite(finite).all():
        raise Invalid("not finite")
    bottom, top = min(0.0, float(finite.min(initial=0))), max(0.0, float(finite.max(initial=0)))
    span = max(top - bottom, 1e-3) * g.random.choice([1.0, 1.0, 1.1, 0.6, 3.0])
    scale = span / (high - low)
    if g.chance(0.2):
        scale = 2.0 ** round(np.log2(scale))
    zero = low - round(bottom / scale)
    kind = g.random.choice(["data", "data", "data", "none", "low", "high", "any"])
    zero = {
        "data": zero,
        "none": 0,
        "low": low,
        "high": high,
        "any": g.random.randint(low, high),
    }[kind]
    return np.float32(scale), np.asarray(min(max(zero, low), high), dtype)


def quantize(t: Layers, x: Value, dtype: str | None = None, like: Stored | None = None) -> Stored:
    """QuantizeLinear of a float value, or the decomposed form of it with the integers left out."""
    g = t.g
    if like is not None:
        scale, zero = like.scale, like.zero
    else:
        dtype = dtype or g.random.choice(BYTES)
        s, z = parameters(g, x.array, dtype)
        scale, zero = g.constant(s), g.constant(z)
        if dtype == "uint8" and not z and g.chance(0.3):
            zero = None
    return t.keep(Stored(g.one("QuantizeLinear", x, scale, zero), scale, zero))


def dequantize(t: Layers, s: Stored) -> Value:
    attributes = {} if s.axis is None else {"axis": s.axis}
    return t.g.one("DequantizeLinear", s.q, s.scale, s.zero, keep=False, **attributes)


def start(t: Layers) -> None:
    """A float input that is quantised, or an input of integers."""
    g = t.g
    shape = g.shape(g.random.choice([2, 2, 3, 4, 4, 4]))
    if 0 in shape or np.prod(shape) > 600:
        raise Invalid("size")
    if g.chance(0.6):
        quantize(t, g.input(g.floats(shape)))
        return
    dtype = g.random.choice(BYTES)
    low, high = _RANGE[dtype]
    q = g.input(g.rng.integers(low, high, shape, endpoint=True).astype(dtype))
    scale = g.constant(np.float32(g.random.choice([0.01, 0.0371, 2.0**-6])))
    zero = g.constant(np.asarray(g.random.choice([0, low, high, (low + high) // 2, 3]), dtype))
    t.keep(Stored(q, scale, zero))


def weight(t: Layers, shape: tuple[int, ...], channel: int | None) -> Stored:
    """A constant weight: one that others read too, or a new one; scales per tensor or along `channel`."""
    g = t.g
    found = [w for w in t.weights if w.q.shape == shape and w.axis in (None, channel)]
    if found and g.chance(0.6):
        return g.random.choice(found)
    dtype = g.random.choice(["int8", "int8", "uint8"])
    low, high = _RANGE[dtype]
    values = g.rng.integers(low, high, shape, endpoint=True)
    if g.chance(0.2):
        values = g.rng.choice([low, high], shape)
    axis = channel if channel is not None and g.opset >= 13 and g.chance(0.5) else None
    grid = () if axis is None else (shape[axis],)
    fan_in = max(1, int(np.prod(shape, dtype=np.int64)) // max(1, shape[channel or 0]))
    scale = (0.5 + g.rng.random(grid)) * (2.0 / (high - low) / np.sqrt(fan_in))
    if g.chance(0.2):
        scale = 2.0 ** np.round(np.log2(scale))
    zero: Array | None = None
    kind = g.random.choice(["none", "zeros", "middle", "any", "extreme"])
    if kind != "none":
        zero = np.asarray(
            {
                "zeros": np.zeros(grid, np.int64),
                "middle": np.full(grid, (low + high + 1) // 2),
                "any": g.rng.integers(low, high, grid, endpoint=True),
                "extreme": g.rng.choice([low, high], grid),
            }[kind],
            dtype,
        )
    stored = Stored(
        g.constant(values.astype(dtype), node=False),
        g.constant(np.asarray(scale, np.float32)),
        None if zero is None else g.constant(zero),
        axis,
    )
    t.weights.append(stored)
    return stored


def bias(t: Layers, x: Stored, w: Stored, n: int) -> Value | None:
    """None, floats, or i32 whose scale is the product of the others."""
    g = t.g
    kind = g.random.choice(["none", "float", "i32", "i32"])
    if kind == "none":
        return None
    if kind == "float":
        return g.constant(g.floats((n,), 0.5))
    scale = np.asarray(x.scale.array * w.scale.array, np.float32)
    q = g.constant(g.rng.integers(-3000, 3000, (n,)).astype(np.int32))
    axis = {"axis": 0} if scale.ndim else {}
    if scale.ndim and g.opset < 13:
        raise Invalid("scales per channel need opset 13")
    return g.one("DequantizeLinear", q, g.constant(scale), None, keep=False, **axis)


def bounded(g: GraphBuilder, y: Value) -> Value:
    """What follows a contraction."""
    kind = g.random.choice(["", "", "Relu", "Clip", "Clip6"])
    if kind == "Relu":
        return g.one("Relu", y, keep=False)
    if kind:
        low, high = (0.0, 6.0) if kind == "Clip6" else sorted(g.random.uniform(-2, 2) for _ in "ab")
        if g.opset < 11:
            return g.one("Clip", y, keep=False, min=low, max=high)
        limits = [g.constant(np.float32(b)) for b in (low, high)]
        return g.one("Clip", y, *limits, keep=False)
    return y


# region layers as QDQ


def qdq_matmul(t: Layers) -> None:
    g, x = t.g, t.pick(least=2)
    n = g.extent()
    gemm = x.q.rank == 2 and g.chance(0.5)
    turned = gemm and g.chance(0.5)
    k = x.q.shape[-1]
    shape, channel = ((n, k), 0) if turned else ((k, n), 1)
    w = weight(t, shape, channel)
    b = bias(t, x, w, n)
    a, c = dequantize(t, x), dequantize(t, w)
    if gemm:
        y = g.one("Gemm", a, c, b, keep=False, transB=int(turned))
    else:
        y = g.one("MatMul", a, c, keep=False)
        if b is not None:
            y = g.one("Add", *([y, b] if g.chance(0.7) else [b, y]), keep=False)
    quantize(t, bounded(g, y))


def qdq_conv(t: Layers) -> None:
    g, x = t.g, t.pick(least=3)
    if x.q.rank > 4:
        raise Invalid("rank")
    attributes, shape, group = _window(t, x)
    w = weight(t, shape, 0)
    b = bias(t, x, w, shape[0])
    y = g.one("Conv", dequantize(t, x), dequantize(t, w), b, keep=False, group=group, **attributes)
    quantize(t, bounded(g, y))


def _window(t: Layers, x: Stored) -> tuple[dict[str, Any], tuple[int, ...], int]:
    """Attributes, the weight's shape, and groups: one, some, or depthwise."""
    g, c = t.g, x.q.shape[1]
    group = g.random.choice([1, 1, c, *(d for d in range(1, c + 1) if c % d == 0)])
    attributes = window(g, x.q)
    out = group * g.random.randint(1, 3)
    return attributes, (out, c // group, *attributes["kernel_shape"]), group


def qdq_products_of_activations(t: Layers) -> None:
    """Both factors are activations: attention."""
    g, x = t.g, t.pick(least=2)
    y = dequantize(t, x)
    perm = [*range(x.q.rank - 2), x.q.rank - 1, x.q.rank - 2]
    other = g.one("Transpose", dequantize(t, x) if g.chance(0.5) else y, keep=False, perm=perm)
    y = g.one("MatMul", y, other, keep=False)
    if g.chance(0.4):
        y = g.one("Mul", y, g.constant(np.float32(0.25)), keep=False)
    if g.chance(0.3):
        y = g.one("Softmax", y, keep=False, axis=x.q.rank - 1)
    quantize(t, y)


def qdq_residual(t: Layers) -> None:
    g, x = t.g, t.pick()
    found = [s for s in t.stored if s.q.shape == x.q.shape and s.axis is None]
    y = g.random.choice(found)
    total = g.one(
        g.random.choice(["Add", "Add", "Mul"]), dequantize(t, x), dequantize(t, y), keep=False
    )
    quantize(t, bounded(g, total))


def qdq_island(t: Layers) -> None:
    """Something that stays in floats."""
    g, x = t.g, t.pick(least=1)
    y = dequantize(t, x)
    op = g.random.choice(["Sigmoid", "Tanh", "Softmax", "LeakyRelu", "HardSigmoid", "Erf"])
    attributes = {"axis": x.q.rank - 1} if op == "Softmax" else {}
    quantize(t, g.one(op, y, keep=False, **attributes))


def qdq_pool(t: Layers) -> None:
    g, x = t.g, t.pick(least=3)
    if x.q.rank > 4:
        raise Invalid("rank")
    op = g.random.choice(["MaxPool", "AveragePool", "GlobalAveragePool"])
    attributes = {} if op.startswith("Global") else window(g, x.q, dilate=False)
    attributes.pop("auto_pad", None)
    if op == "AveragePool":
        attributes["count_include_pad"] = 1
    y = g.one(op, dequantize(t, x), keep=False, **attributes)
    quantize(t, y, like=x if op == "MaxPool" and g.chance(0.7) else None)


def qdq_layout(t: Layers) -> None:
    g, x = t.g, t.pick(least=1)
    y = dequantize(t, x)
    kind = g.random.choice(["Transpose", "Reshape", "Concat", "Slice"])
    if kind == "Transpose":
        y = g.one(kind, y, keep=False, perm=g.random.sample(range(x.q.rank), x.q.rank))
    elif kind == "Reshape":
        y = g.one(kind, y, g.ints(x.q.shape[0], -1), keep=False)
    elif kind == "Concat":
        found = [s for s in t.stored if s.q.shape[1:] == x.q.shape[1:] and s.q.rank == x.q.rank]
        y = g.one(kind, y, dequantize(t, g.random.choice(found)), keep=False, axis=0)
    else:
        axis = g.random.randrange(x.q.rank)
        size = x.q.shape[axis]
        y = g.one(kind, y, g.ints(g.random.randrange(size)), g.ints(size), g.ints(axis), keep=False)
    quantize(t, y, like=x if g.chance(0.7) else None)


# endregion
# region operators on integers


def _result(t: Layers, real: Array) -> tuple[Value, Value]:
    """Scale and zero point of a result."""
    scale, zero = parameters(t.g, real, t.g.random.choice(BYTES))
    return t.g.constant(scale), t.g.constant(zero)


def _expect_no_near_tie(accumulator: Array, multiplier: Array, zero: Array) -> None:
    """
    `Invalid` where the real quotient is so close to a tie that the reference, which multiplies in float32, may round to the other
    side. Ties under powers of two are exact there too, but it rounds after adding the zero point, QuantizeLinear before: of an
    odd one another neighbour is even.
    """
    quotient = accumulator.astype(np.float64) * multiplier
    distance = np.abs(quotient - np.floor(quotient) - 0.5)
    exact = np.broadcast_to((np.frexp(multiplier)[0] == 0.5) & (zero % 2 == 0), distance.shape)
    if ((distance < 1e-6 * (1 + np.abs(quotient))) & ~exact).any():
        raise Invalid("close to a tie")


def _without_zero(s: Stored) -> Array:
    """The integers less their zero point (of rank 0), in 64 bits."""
    zero = 0 if s.zero is None else s.zero.array.astype(np.int64)
    return np.asarray(s.q.array.astype(np.int64) - zero)


def _with_zero(t: Layers, s: Stored) -> Stored:
    if s.zero is not None:
        return s
    zero = t.g.constant(np.zeros(s.scale.shape, s.q.array.dtype))
    return Stored(s.q, s.scale, zero, s.axis)


def qlinear_matmul(t: Layers) -> None:
    g, x = t.g, _with_zero(t, t.pick(least=2))
    w = _with_zero(t, weight(t, (x.q.shape[-1], g.extent()), 1))
    if w.axis is not None:
        raise Invalid("the reference takes scales per column for batches of matrices")
    scale, zero = _result(t, x.real @ w.real)
    if zero.type != x.q.type:
        raise Invalid("the reference wants one type")
    multiplier = x.scale.array.astype(np.float64) * w.scale.array / scale.array
    _expect_no_near_tie(_without_zero(x) @ _without_zero(w), multiplier, zero.array)
    q = g.one("QLinearMatMul", x.q, *x.parameters, w.q, *w.parameters, scale, zero)
    t.keep(Stored(q, scale, zero))


def qlinear_conv(t: Layers) -> None:
    g, x = t.g, _with_zero(t, t.pick(rank=4))
    attributes, shape, group = _window(t, x)
    attributes.pop("auto_pad", None)
    w = _with_zero(t, weight(t, shape, 0))
    if w.q.type != "int8" or (w.zero is not None and w.zero.array.any()):
        raise Invalid("the reference adds up in the wrong type")
    magnitude = np.abs(x.real).max() * np.abs(w.real).sum() / shape[0] / 3
    scale, zero = _result(t, np.array([-magnitude, magnitude]))
    b = None
    if g.chance(0.5):
        b = g.constant(g.rng.integers(-3000, 3000, shape[0]).astype(np.int32))
    kernel = {k: v for k, v in attributes.items() if k != "kernel_shape"}
    acc = g.one("ConvInteger", x.q, w.q, x.zero, None, keep=False, group=group, **kernel).array
    if b is not None:
        acc = acc + b.array.reshape(-1, 1, 1)
    channels = (-1, 1, 1) if w.axis is not None else ()
    factor = x.scale.array.astype(np.float64) * w.scale.array / scale.array
    _expect_no_near_tie(acc, factor.reshape(channels), zero.array)
    q = g.one(
        "QLinearConv", x.q, *x.parameters, w.q, *w.parameters, scale, zero, b, group=group, **attributes
    )  # fmt: skip
    t.keep(Stored(q, scale, zero))


def integer_matmul(t: Layers) -> None:
    """MatMulInteger, Cast, Mul by both scales, and sometimes a bias."""
    g, x = t.g, t.pick(least=2)
    w = weight(t, (x.q.shape[-1], g.extent()), 1)
    if w.axis is not None and w.zero is not None:
        w = Stored(w.q, w.scale, None, w.axis)
    zeros = [x.zero, w.zero]
    acc = g.one("MatMulInteger", x.q, w.q, *zeros, keep=g.chance(0.1))
    _scaled(t, acc, g.constant(np.asarray(x.scale.array * w.scale.array, np.float32)))


def _scaled(t: Layers, acc: Value, scale: Value) -> None:
    g = t.g
    y = g.one("Cast", acc, keep=False, to=TensorProto.FLOAT)
    y = g.one("Mul", *([y, scale] if g.chance(0.7) else [scale, y]), keep=g.chance(0.2))
    if g.chance(0.5):
        y = g.one("Add", y, g.constant(g.floats((acc.shape[-1],), 0.5)), keep=g.chance(0.2))
    if g.chance(0.8):
        quantize(t, bounded(g, y))
    else:
        g.pool.append(bounded(g, y))


def dynamic_matmul(t: Layers) -> None:
    """DynamicQuantizeLinear in front of MatMulInteger."""
    g = t.g
    s = t.pick(least=2)
    x = dequantize(t, s)
    q, scale, zero = g.node("DynamicQuantizeLinear", x, outputs=3, keep=False)
    w = weight(t, (s.q.shape[-1], g.extent()), 1)
    if w.axis is not None:
        w = Stored(w.q, w.scale, None, w.axis)
    acc = g.one("MatMulInteger", q, w.q, zero, w.zero, keep=False)
    _scaled(t, acc, g.one("Mul", scale, w.scale, keep=False))


def decomposed(t: Layers) -> None:
    """A product of fake-quantised values: Div, Add, Round, Clip, Sub, Mul."""
    g, s = t.g, t.pick(least=2)
    x = dequantize(t, s)
    scale, zero = parameters(g, x.array, "int8")
    factor, point = g.constant(scale), g.constant(np.float32(zero))
    low, high = (g.constant(np.float32(v)) for v in _RANGE["int8"])
    y = g.one("Div", x, factor, keep=False)
    y = g.one("Add", y, point, keep=False)
    y = g.one("Clip", g.one("Round", y, keep=False), low, high, keep=False)
    y = g.one("Mul", g.one("Sub", y, point, keep=False), factor, keep=False)
    w = weight(t, (s.q.shape[-1], g.extent()), 1)
    quantize(t, bounded(g, g.one("MatMul", y, dequantize(t, w), keep=False)))


def to_float(t: Layers) -> None:
    t.g.pool.append(dequantize(t, t.pick()))


# endregion

STEPS: list[tuple[Step, int]] = [
    (start, 1),
    (qdq_matmul, 10),
    (qdq_conv, 10),
    (qdq_products_of_activations, 3),
    (qdq_residual, 4),
    (qdq_island, 2),
    (qdq_pool, 4),
    (qdq_layout, 5),
    (qlinear_matmul, 4),
    (qlinear_conv, 4),
    (integer_matmul, 4),
    (dynamic_matmul, 6),
    (decomposed, 2),
    (to_float, 3),
]


def grow(random: Random, opset: int, prefix: str = "") -> GraphBuilder:
    """A graph of 2 to 10 layers."""
    g = GraphBuilder(random, opset, prefix)
    g.extents = [e for e in g.extents if e] or [3]
    t = Layers(g)
    while not t.stored:
        try:
            start(t)
        except Invalid:
            continue
    steps, weights = zip(*STEPS, strict=True)
    target, tries = random.randint(2, 10), 0
    while len(t.stored) < target and tries < 12 * target:
        tries += 1
        step = random.choices(steps, weights)[0]
        try:
            step(t)
        except Invalid:
            continue
    return g


def make_case(seed: int, graphs: int = 1) -> Case:
    """The case of a seed: the same model and inputs each time."""
    random = Random(f"quantized {seed}")
    opset = random.choice([11, 13, 13, 17, 19, 21, 21])
    built = [grow(random, opset, f"g{i}_" if graphs > 1 else "") for i in range(graphs)]
    return finish(built, f"quantised seed {seed}" + (f", {graphs} graphs" if graphs > 1 else ""))
