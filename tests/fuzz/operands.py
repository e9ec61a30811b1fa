"""Second operands that fit a first one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.graphs import GraphBuilder, Value

FLOAT = "float32"
INTEGERS = ("int8", "uint8", "int32", "int64", "uint32", "int16")


def partner(g: GraphBuilder, x: Value) -> Value:
    """Something of x's type that broadcasts with it: another value, or a constant."""
    if g.chance(0.5):
        found = [v for v in g.pool if v.type == x.type and broadcasts(v.shape, x.shape)]
        if found:
            return g.random.choice(found)
    shape = [n if g.chance(0.6) else 1 for n in x.shape]
    shape = shape[g.random.randint(0, len(shape)) :] if g.chance(0.5) else shape
    if g.chance(0.1):
        shape = [g.extent(), *([1] * x.rank)]
    value = g.constant(literal(g, x.type, tuple(shape)))
    g.free.add(value.name)
    return value


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


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True
