"""`c.matmul` and `c.dequant_matmul` against float64, within a bound from K and the operands' magnitudes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qkernel, qmm
from qfold.dialects.element_types import integer_range, numpy_dtype
from qfold.dialects.qkernel import zero_point_type
from tests.backend.level3 import SANITIZED, Arg, Array, Level3, assert_within, gamma

I8, UI8, I4, UI4, I16, UI16 = qkernel.STORAGE_TYPES
d0, d1 = AffineExpr.dimension(0), AffineExpr.dimension(1)


@dataclass(frozen=True)
class Case:
    m: int
    k: int
    n: int
    storage: IntegerType = I8
    transposed: bool = False
    granularity: str = "axis"
    zero_point: bool = True
    hoisted: bool = True
    block: int = 0
    batch: tuple[int, ...] = ()
    bias: bool = False

    @property
    def name(self) -> str:
        layout = "nk" if self.transposed else "kn"
        flags = f"{'z' if self.zero_point else ''}{'h' if self.hoisted else ''}{'b' if self.bias else ''}"
        batch = "".join(f"{b}x" for b in self.batch)
        return f"{self.storage}_{layout}_{self.granularity}{self.block or ''}_{batch}{self.m}x{self.k}x{self.n}_{flags}"


SHAPES = [
    (1, 40, 70),
    (3, 33, 5),
    (4, 8, 32),
    (6, 70, 40),
    (70, 9, 33),
    (5, 130, 17),
    (67, 200, 3),
    (2, 3, 1),
]
CASES = [
    *(Case(m, k, n, transposed=t, hoisted=h) for (m, k, n), t, h in product(SHAPES, (False, True), (False, True))),
    *(
        Case(5, 37, 19, s, t, g, z, h)
        for s, t, g, z, h in product(
            qkernel.STORAGE_TYPES, (False, True), ("tensor", "axis"), (False, True), (False, True)
        )
        if z or h
    ),
    *(
        Case(m, k, n, s, t, "block", True, h, block)
        for (m, k, n, block), s, t, h in product(
            [(5, 64, 19, 16), (1, 50, 33, 32), (3, 10, 2, 3), (2, 300, 4, 150)], (I8, UI4), (False, True), (False, True)
        )
    ),
    Case(5, 1, 7),
    Case(3, 0, 5, bias=True),
    Case(0, 4, 5),
    Case(3, 4, 0),
    Case(3, 600, 40, transposed=True),
    Case(3, 600, 40),
    Case(2, 16, 8, batch=(2, 3), bias=True),
    Case(1, 16, 8, batch=(6,)),
    Case(4, 24, 8, UI8, True, batch=(3,), bias=True),
    Case(9, 24, 40, UI8, bias=True),
]  # fmt: skip


def add_bias(storage: Any = f32) -> Region:
    block = Block(arg_types=[f32, f32])
    total = arith.AddfOp(block.args[0], block.args[1])
    block.add_ops([total, qmm.YieldOp(total.result)])
    return Region(block)


def add_case(suite: Level3, case: Case, rng: np.random.Generator) -> tuple[str, Array, Array]:
    """Add a dequant_matmul; returns (output name, float64 reference, bound)."""
    low, high = integer_range(case.storage)
    dtype = numpy_dtype(case.storage)
    a = rng.standard_normal((*case.batch, case.m, case.k)).astype(np.float32)
    q = rng.integers(low, high + 1, (case.k, case.n)).astype(dtype)
    blocks = -(-case.k // case.block) if case.block else 0
    shape = {"tensor": (), "axis": (case.n,), "block": (blocks, case.n)}[case.granularity]
    scale = rng.uniform(0.001, 0.1, shape).astype(np.float32)
    zero = rng.integers(low, high + 1, shape) if case.zero_point else np.zeros(shape, np.int64)

    def spread(x: Array) -> Array:
        x = np.asarray(x, np.float64)
        return (
            np.repeat(x, case.block, axis=0)[: case.k]
            if case.block
            else np.broadcast_to(x, (case.k, case.n))
        )

    s, z = spread(scale), spread(zero)
    a64 = a.astype(np.float64)
    expected = a64 @ (s * (q - z))
    # Hoisting adds the rounding of the row sum and of zp * sum, each relative to |zp| sum |a|.
    magnitude = np.abs(a64) @ (
        s * (np.abs(q - z) if not case.hoisted else np.abs(q.astype(np.float64)) + np.abs(z))
    )
    args = [
        Arg(f32, a),
        Arg(case.storage, np.ascontiguousarray(q.T) if case.transposed else q),
        Arg(f32, np.ascontiguousarray(scale.T) if case.transposed and case.block else scale),
    ]
    keywords: dict[str, int] = {}
    if case.zero_point:
        zp_type = zero_point_type(case.storage)
        stored = np.asarray(zero).astype(numpy_dtype(zp_type))
        keywords["zero_point"] = len(args)
        args.append(
            Arg(
                zp_type,
                np.ascontiguousarray(stored.T) if case.transposed and case.block else stored,
            )
        )
        if case.hoisted:
            if case.block:
                padded = np.zeros((*a.shape[:-1], blocks * case.block), np.float32)
                padded[..., : case.k] = a
                sums = padded.reshape(*a.shape[:-1], blocks, case.block).sum(-1, dtype=np.float32)
            else:
                sums = a.sum(-1, dtype=np.float32)
            keywords["row_sum"] = len(args)
            args.append(Arg(f32, sums))
    if case.bias:
        bias = rng.standard_normal(case.n).astype(np.float32)
        expected = expected + bias
        magnitude = magnitude + np.abs(expected) + np.abs(bias)
        keywords["bias"] = len(args)
        args.append(Arg(f32, bias))
    args.append(Arg(f32, shape=expected.shape))
    rank = len(expected.shape)

    def body(v: Any) -> list[Any]:
        named: dict[str, SSAValue] = {k: v[i] for k, i in keywords.items() if k != "bias"}
        epilogue: dict[str, Any] = {}
        if case.bias:
            epilogue = {
                "epilogue_operands": [v[keywords["bias"]]],
                "epilogue_maps": [AffineMap(rank, 0, (AffineExpr.dimension(rank - 1),))],
                "epilogue": add_bias(),
            }
        return [
            qkernel.DequantMatmulOp(
                v[0], v[1], v[2], v[-1], transpose_b=case.transposed, block_size=case.block or None,
                hoisted=case.hoisted, **named, **epilogue,
            )
        ]  # fmt: skip

    out = suite.add(case.name, "c.dequant_matmul", args, body)
    return out, expected, gamma(case.k + 2 * max(blocks, 1) + 6) * magnitude


def strided_matmul(
    suite: Level3, name: str, rng: np.random.Generator, *, m: int, k: int, n: int,
    a_order: str = "mk", b_order: str = "kn", transpose_a: bool = False, transpose_b: bool = False,
    batch: tuple[int, ...] = (), batch_b: tuple[int, ...] | None = None, gap: int = 0,
) -> tuple[str, Array, Array]:  # fmt: skip
    """Add a matmul whose operands lie in memory in `order`, with `gap` elements between rows."""
    batch_b = batch if batch_b is None else batch_b
    a = rng.standard_normal((*batch, m, k)).astype(np.float32)
    b = rng.standard_normal((*batch_b, k, n)).astype(np.float32)

    def arg(x: Array, natural: bool, swapped: bool) -> Arg:
        """x as the op sees it (last two dimensions swapped if it transposes), laid out row by row or column by column."""
        seen = x.swapaxes(-1, -2) if swapped else x
        natural = natural != swapped
        rows, columns = seen.shape[-2:]
        inner = (columns if natural else rows) + gap
        strides = [inner, 1] if natural else [1, inner]
        step = inner * (rows if natural else columns)
        for extent in reversed(seen.shape[:-2]):
            strides.insert(0, step)
            step *= extent
        return Arg(f32, np.ascontiguousarray(seen), strides=tuple(strides), offset=gap)

    expected = a.astype(np.float64) @ b.astype(np.float64)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    inner = n + gap
    strides = [inner, 1]
    step = inner * m
    for extent in reversed(expected.shape[:-2]):
        strides.insert(0, step)
        step *= extent
    out = suite.add(
        name,
        "c.matmul",
        [
            arg(a, a_order == "mk", transpose_a),
            arg(b, b_order == "kn", transpose_b),
            Arg(f32, shape=expected.shape, strides=tuple(strides)),
        ],
        lambda v: [
            qkernel.MatmulOp(v[0], v[1], v[2], transpose_a=transpose_a, transpose_b=transpose_b)
        ],
    )
    return out, expected, gamma(k + 2) * magnitude


def float_cases(suite: Level3, rng: np.random.Generator) -> list[tuple[str, Array, Array]]:
    cases = []
    for a_order, b_order, ta, tb in product(
        ("mk", "km"), ("kn", "nk"), (False, True), (False, True)
    ):
        for m, k, n, gap in ((5, 37, 41, 0), (1, 64, 9, 3)):
            name = f"f32_{a_order}_{b_order}_{ta:d}{tb:d}_{m}x{k}x{n}_{gap}"
            cases.append(
                strided_matmul(suite, name, rng, m=m, k=k, n=n, a_order=a_order, b_order=b_order,
                               transpose_a=ta, transpose_b=tb, gap=gap)
            )  # fmt: skip
    cases.append(strided_matmul(suite, "batched", rng, m=3, k=20, n=10, batch=(2, 3), gap=1))
    cases.append(
        strided_matmul(suite, "batched_nk", rng, m=3, k=20, n=10, batch=(2, 3), b_order="nk")
    )
    cases.append(strided_matmul(suite, "shared_b", rng, m=3, k=20, n=10, batch=(2, 3), batch_b=()))
    cases.append(
        strided_matmul(suite, "rows_of_batches", rng, m=1, k=20, n=40, batch=(6,), batch_b=())
    )
    cases.append(
        strided_matmul(suite, "broadcast_b", rng, m=3, k=20, n=10, batch=(2, 3), batch_b=(1, 3))
    )
    cases.append(strided_matmul(suite, "many_rows", rng, m=70, k=12, n=3, gap=1))
    cases.append(strided_matmul(suite, "no_k", rng, m=3, k=0, n=4))
    cases.append(strided_matmul(suite, "no_rows", rng, m=0, k=3, n=4))
    return cases


def all_cases() -> tuple[Level3, list[tuple[str, Array, Array]]]:
    suite, rng = Level3(), np.random.default_rng(7)
    cases = [add_case(suite, c, rng) for c in CASES]
    return suite, cases + float_cases(suite, rng)


def check(results: dict[str, Array], cases: list[tuple[str, Array, Array]]) -> None:
    for name, expected, bound in cases:
        assert results[name].shape == expected.shape
        assert_within(results[name], expected, bound, name)


def test_all_layouts_types_granularities() -> None:
    suite, cases = all_cases()
    assert len({name for name, _, _ in cases}) == len(cases)
    check(suite.run(**SANITIZED), cases)


def test_at_full_optimisation() -> None:
    """A sample of the cases as users compile them: the vectoriser sees every form."""
    suite, rng = Level3(), np.random.default_rng(8)
    sample = [
        Case(9, 70, 70),
        Case(9, 70, 70, transposed=True),
        Case(1, 70, 40, UI4),
        Case(70, 40, 20, UI8, True, "block", block=16),
    ]
    cases = [add_case(suite, c, rng) for c in sample]
    cases.append(strided_matmul(suite, "f32", rng, m=9, k=70, n=70))
    check(suite.run(), cases)


def test_the_bound_is_tight_enough_to_find_a_wrong_zero_point() -> None:
    suite, rng = Level3(), np.random.default_rng(9)
    name, expected, bound = add_case(suite, Case(4, 40, 6), rng)
    results = suite.run(native=False, extra_cflags=["-O1"])
    wrong = expected + 0.01 * np.abs(expected).max()
    check(results, [(name, expected, bound)])
    with pytest.raises(AssertionError, match="beyond the bound"):
        check(results, [(name, wrong, bound)])
