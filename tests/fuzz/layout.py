"""Nodes that move elements, and look-ups."""

from __future__ import annotations

import numpy as np

from tests.fuzz.graphs import GraphBuilder, Invalid, Value
from tests.fuzz.operands import FLOAT, INTEGERS, literal
from tests.fuzz.weights import quantised, shared_weight


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
            g.along("Squeeze", x, g.random.sample(axes, g.random.randint(1, len(axes))))
    elif kind == "unsqueeze":
        if x.rank > 4:
            raise Invalid("rank")
        count = g.random.randint(1, 5 - x.rank)
        axes = g.random.sample(range(-(x.rank + count), 0), count)
        g.along("Unsqueeze", x, axes)
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
    if g.opset < 13:
        g.node("Split", x, outputs=count, axis=axis, split=sizes.tolist())
        return
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
