"""Random graphs of random nodes: how often which, and the case of a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
from onnx.defs import onnx_opset_version

from tests.fuzz.contractions import (
    conv,
    dangling_weight,
    dequantize,
    gemm,
    matmul,
    normalization,
    pooling,
    quantize,
    softmax,
)
from tests.fuzz.elementwise import (
    arg,
    binary,
    bits,
    cast,
    clip,
    compare,
    divide,
    logic,
    reduce,
    unary,
    where,
)
from tests.fuzz.graphs import Case, GraphBuilder, Invalid, finish
from tests.fuzz.layout import (
    concat,
    depth_space,
    expand,
    gather,
    pad,
    reshape,
    slice_,
    split,
    transpose,
)
from tests.fuzz.operands import INTEGERS

Step = Callable[[GraphBuilder], None]
"""Adds a node that ONNX allows, or raises `Invalid`."""

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
    opset = random.choice([11, 12, 13, 17, 18, 20, 21, 21, 21, 22, 23, onnx_opset_version()])
    built = [grow(random, opset, f"g{i}_" if graphs > 1 else "") for i in range(graphs)]
    return finish(built, f"seed {seed}" + (f", {graphs} graphs" if graphs > 1 else ""))
