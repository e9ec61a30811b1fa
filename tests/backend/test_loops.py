"""`c.loops`: scalar ops, index maps, reductions, in-place updates; integers bit by bit, floats against float64 and ULP bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith, math, memref
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    UnrealizedConversionCastOp,
    f32,
    f64,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.backend.c.scalar import UnsupportedOp
from qfold.dialects.element_types import (
    i1,
    i4,
    i8,
    i16,
    i32,
    i64,
    integer_range,
    is_unsigned,
    numpy_dtype,
    signless,
    ui4,
    ui8,
    ui16,
    ui32,
    ui64,
)  # fmt: skip
from qfold.ir.locations import name_location
from tests.backend.level3 import SANITIZED, Arg, Array, Level3, gamma

Body = Callable[[Block, Sequence[SSAValue]], SSAValue]
FAST = {"native": False, "extra_cflags": ["-O1"]}


def d(i: int) -> AffineExpr:
    return AffineExpr.dimension(i)


def generic(
    inputs: Sequence[SSAValue], output: SSAValue, maps: Sequence[AffineMap], kinds: str, body: Body
) -> linalg.GenericOp:
    """A generic; `kinds` has p or r per dimension, `body` gets signless elements."""
    types = [v.type.get_element_type() for v in (*inputs, output)]  # type: ignore[attr-defined]
    block = Block(arg_types=types)
    values: list[SSAValue] = []
    for argument in block.args:
        value: SSAValue = argument
        if is_unsigned(argument.type) and argument.index < len(inputs):
            cast = UnrealizedConversionCastOp.get([argument], [signless(argument.type)])
            block.add_op(cast)
            value = cast.results[0]
        values.append(value)
    result = body(block, values)
    if result.type != types[-1]:
        cast = UnrealizedConversionCastOp.get([result], [types[-1]])
        block.add_op(cast)
        result = cast.results[0]
    block.add_op(linalg.YieldOp(result))
    iterators = [
        IteratorTypeAttr(IteratorType.REDUCTION if k == "r" else IteratorType.PARALLEL)
        for k in kinds
    ]
    return linalg.GenericOp(
        inputs,
        [output],
        Region(block),
        ArrayAttr([AffineMapAttr(m) for m in maps]),
        ArrayAttr(iterators),
    )


def op(block: Block, made: Any) -> SSAValue:
    block.add_op(made)
    return made.results[0]


def constant(block: Block, value: float, type_: Attribute) -> SSAValue:
    attribute = FloatAttr(value, type_) if type_ in (f32, f64) else IntegerAttr(int(value), type_)  # type: ignore[arg-type]
    return op(block, arith.ConstantOp(attribute))


def elementwise(
    suite: Level3,
    name: str,
    inputs: Sequence[tuple[Array, Attribute]],
    result: Attribute,
    body: Body,
) -> str:
    shape = np.broadcast_shapes(*(a.shape for a, _ in inputs))
    rank = len(shape)

    def ops(v: Sequence[SSAValue]) -> list[Any]:
        maps = [
            AffineMap(
                rank,
                0,
                tuple(AffineExpr.constant(0) if n == 1 else d(i) for i, n in enumerate(a.shape)),
            )
            for a, _ in inputs
        ]
        return [generic(v[:-1], v[-1], [*maps, AffineMap.identity(rank)], "p" * rank, body)]

    return suite.add(
        name, "c.loops", [*(Arg(t, a) for a, t in inputs), Arg(result, shape=shape)], ops
    )


def interesting(type_: Attribute, rng: np.random.Generator, count: int = 40) -> Array:
    low, high = integer_range(type_)
    edges = [low, low + 1, 0, 1, high - 1, high]
    values = rng.integers(
        low, high, count, dtype=np.int64 if high < 2**63 else np.uint64, endpoint=True
    )
    values[: len(edges)] = edges
    return values.astype(numpy_dtype(type_))


BINARY: dict[str, tuple[Any, Callable[[int, int], int], bool]] = {
    # name: (op, the same on unbounded integers, whether operands are unsigned)
    "addi": (arith.AddiOp, lambda a, b: a + b, False),
    "subi": (arith.SubiOp, lambda a, b: a - b, False),
    "muli": (arith.MuliOp, lambda a, b: a * b, False),
    "divsi": (arith.DivSIOp, lambda a, b: _trunc(a, b), False),
    "floordivsi": (arith.FloorDivSIOp, lambda a, b: a // b, False),
    "ceildivsi": (arith.CeilDivSIOp, lambda a, b: -(-a // b), False),
    "remsi": (arith.RemSIOp, lambda a, b: a - _trunc(a, b) * b, False),
    "divui": (arith.DivUIOp, lambda a, b: a // b, True),
    "remui": (arith.RemUIOp, lambda a, b: a % b, True),
    "minsi": (arith.MinSIOp, min, False),
    "maxui": (arith.MaxUIOp, max, True),
    "andi": (arith.AndIOp, lambda a, b: a & b, False),
    "xori": (arith.XOrIOp, lambda a, b: a ^ b, False),
}


def _trunc(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _wrapped(value: int, type_: Attribute) -> int:
    low, high = integer_range(type_)
    return (value - low) % (high - low + 1) + low


def _compared_with_itself(block: Block, x: SSAValue, predicate: int) -> SSAValue:
    computed = op(block, arith.MuliOp(x, x))
    return op(block, arith.CmpiOp(computed, computed, predicate))


@pytest.fixture(scope="module")
def integers() -> tuple[dict[str, Array], dict[str, Array]]:
    """Every integer op on every width, in one build with the undefined-behaviour sanitizer."""
    suite, rng = Level3(), np.random.default_rng(0)
    expected: dict[str, Array] = {}
    for name, (kind, reference, unsigned) in BINARY.items():
        for type_ in (ui8, ui16, ui32, ui64) if unsigned else (i8, i16, i32, i64):
            a, b = interesting(type_, rng), interesting(type_, rng)[::-1].copy()
            out = elementwise(
                suite,
                f"{name}_{type_}",
                [(a, type_), (b, type_)],
                type_,
                lambda k, v, c=kind: op(k, c(v[0], v[1])),
            )
            zero_divisor = "div" in name or "rem" in name
            values = [
                0 if zero_divisor and y == 0 else _wrapped(int(reference(x, y)), type_)
                for x, y in zip(a.astype(object), b.astype(object), strict=True)
            ]
            expected[out] = np.array(values, numpy_dtype(type_))
    # numpy shifts all bits out at the width or more
    a, b = interesting(i32, rng), np.arange(40, dtype=np.int32)
    for name, kind, found in (
        ("shl", arith.ShLIOp, a << b),
        ("shrs", arith.ShRSIOp, a >> b),
        ("shru", arith.ShRUIOp, (a.view(np.uint32) >> b.view(np.uint32)).view(np.int32)),
    ):
        out = elementwise(
            suite, name, [(a, i32), (b, i32)], i32, lambda k, v, c=kind: op(k, c(v[0], v[1]))
        )
        expected[out] = found
    a, b = interesting(i16, rng), interesting(i16, rng)[::-1].copy()
    u, w = a.view(np.uint16), b.view(np.uint16)
    tests = [a == b, a != b, a < b, a <= b, a > b, a >= b, u < w, u <= w, u > w, u >= w]
    for predicate, found in enumerate(tests):
        out = elementwise(
            suite,
            f"cmpi{predicate}",
            [(a, i16), (b, i16)],
            i1,
            lambda k, v, p=predicate: op(k, arith.CmpiOp(v[0], v[1], p)),
        )
        expected[out] = found
        # Written out, `a != a` would be a warning of compilers, and a value that only it reads another one.
        out = elementwise(
            suite,
            f"cmpi{predicate}_itself",
            [(a, i16)],
            i1,
            lambda k, v, p=predicate: _compared_with_itself(k, v[0], p),
        )
        expected[out] = np.full(a.shape, predicate in (0, 3, 5, 7, 9))
    for source, target, kind in (
        (i8, i32, arith.ExtSIOp), (ui8, i32, arith.ExtUIOp), (i32, i8, arith.TruncIOp), (i64, i16, arith.TruncIOp),
        (i8, f32, arith.SIToFPOp), (ui8, f32, arith.UIToFPOp), (ui64, f32, arith.UIToFPOp), (i64, f64, arith.SIToFPOp),
        (i4, i8, arith.ExtSIOp), (ui4, i8, arith.ExtUIOp), (i1, i32, arith.ExtUIOp), (i1, i32, arith.ExtSIOp),
        (i1, f32, arith.UIToFPOp), (i8, i1, arith.TruncIOp),
    ):  # fmt: skip
        x = np.arange(40) % 2 == 0 if source == i1 else interesting(source, rng)
        name = f"{kind.name.split('.')[1]}_{source}_{target}"
        out = elementwise(
            suite, name, [(x, source)], target, lambda k, v, c=kind, t=target: op(k, c(v[0], t))
        )
        wide = x.astype(object)
        if target in (f32, f64):
            expected[out] = x.astype(numpy_dtype(target))
        elif target == i1:
            expected[out] = x % 2 != 0
        elif source == i1:
            expected[out] = x.astype(np.int32) * (1 if kind is arith.ExtUIOp else -1)
        else:
            expected[out] = np.array([_wrapped(int(e), target) for e in wide], numpy_dtype(target))
    # four bits, stored with one sign and read with the other
    for source, target, kind in (
        (i4, f32, arith.UIToFPOp), (i4, i8, arith.ExtUIOp), (ui4, f32, arith.SIToFPOp), (ui4, i8, arith.ExtSIOp),
        (i8, i4, arith.TruncIOp),
    ):  # fmt: skip
        x = interesting(source, rng)
        name = f"{kind.name.split('.')[1]}_other_{source}_{target}"
        out = elementwise(
            suite, name, [(x, source)], target, lambda k, v, c=kind, t=target: op(k, c(v[0], t))
        )
        signed = i4 if source != i4 else ui4
        found = [_wrapped(int(v), signed) for v in x]
        expected[out] = np.array(found, numpy_dtype(target))
    nibbles = interesting(i4, rng, 41)
    out = elementwise(suite, "store_i4", [(nibbles, i4)], i4, lambda k, v: v[0])
    expected[out] = nibbles
    for name, kind, found in (
        ("bool_and", arith.AndIOp, np.logical_and),
        ("bool_or", arith.OrIOp, np.logical_or),
        ("bool_xor", arith.XOrIOp, np.logical_xor),
    ):
        p, q = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
        out = elementwise(
            suite, name, [(p, i1), (q, i1)], i1, lambda k, v, c=kind: op(k, c(v[0], v[1]))
        )
        expected[out] = found(p, q)
    both = elementwise(
        suite, "bool_xor_itself", [(q, i1)], i1, lambda k, v: op(k, arith.XOrIOp(v[0], v[0]))
    )
    expected[both] = np.zeros(4, bool)
    # index arithmetic, and a table read at an index from data: out of range reads the nearest row
    table = rng.standard_normal((5, 3)).astype(np.float32)
    rows = np.array([0, 4, 2, -7, 99], np.int64)
    identity = AffineMap.identity(2)

    def lookup(v: Sequence[SSAValue]) -> list[Any]:
        def body(block: Block, x: Sequence[SSAValue]) -> SSAValue:
            row = op(block, arith.IndexCastOp(x[0], IndexType()))
            column = op(block, linalg.IndexOp(1))
            return op(block, memref.LoadOp.get(v[1], [row, column]))

        return [generic([v[0]], v[2], [AffineMap(2, 0, (d(0),)), identity], "pp", body)]

    out = suite.add(
        "lookup", "c.loops", [Arg(i64, rows), Arg(f32, table), Arg(f32, shape=(5, 3))], lookup
    )
    expected[out] = table[np.clip(rows, 0, 4)]

    def positions(v: Sequence[SSAValue]) -> list[Any]:
        def body(block: Block, x: Sequence[SSAValue]) -> SSAValue:
            row, column = op(block, linalg.IndexOp(0)), op(block, linalg.IndexOp(1))
            ten = op(block, arith.ConstantOp(IntegerAttr(10, IndexType())))
            return op(
                block,
                arith.IndexCastOp(
                    op(block, arith.AddiOp(op(block, arith.MuliOp(row, ten)), column)), i32
                ),
            )

        return [generic([], v[0], [identity], "pp", body)]

    out = suite.add("positions", "c.loops", [Arg(i32, shape=(4, 3))], positions)
    expected[out] = np.arange(4)[:, None] * 10 + np.arange(3)
    return suite.run(**SANITIZED), expected


def test_integers_are_exact(integers: tuple[dict[str, Array], dict[str, Array]]) -> None:
    found, expected = integers
    wrong = {n: (found[n], e) for n, e in expected.items() if not np.array_equal(found[n], e)}
    assert not wrong
    assert all(found[n].dtype == e.dtype or n in ("positions.0",) for n, e in expected.items())


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.5, 2.5, -2.5, 0.3, np.inf, -np.inf, np.nan, 3e9, -3e9, 1e-3, 300.7],
    np.float32,
)


def test_floats() -> None:
    suite = Level3()
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    exact: dict[str, Array] = {}

    def add(
        name: str, kind: Any, values: Array, result: Attribute = f32, binary: bool = True
    ) -> None:
        inputs = [(a, f32), (b, f32)] if binary else [(a, f32)]
        out = elementwise(suite, name, inputs, result, lambda k, v: op(k, kind(*v[: len(inputs)])))
        exact[out] = values

    with np.errstate(all="ignore"):
        add("add", arith.AddfOp, a + b)
        add("sub", arith.SubfOp, a - b)
        add("mul", arith.MulfOp, a * b)
        add("div", arith.DivfOp, a / b)
        add("maximum", arith.MaximumfOp, np.maximum(a, b))
        add("minimum", arith.MinimumfOp, np.minimum(a, b))
        add("maxnum", arith.MaxnumfOp, np.fmax(a, b))
        add("minnum", arith.MinnumfOp, np.fmin(a, b))
        add("neg", arith.NegfOp, -a, binary=False)
        add("abs", math.AbsFOp, np.abs(a), binary=False)
        add("floor", math.FloorOp, np.floor(a), binary=False)
        add("ceil", math.CeilOp, np.ceil(a), binary=False)
        add("roundeven", math.RoundEvenOp, np.round(a), binary=False)
        add("trunc", math.TruncOp, np.trunc(a), binary=False)
        add("extf", lambda x: arith.ExtFOp(x, f64), a.astype(np.float64), f64, False)
        either = np.isnan(a) | np.isnan(b)
        ordered = [a == b, a > b, a >= b, a < b, a <= b, (a != b) & ~either, ~either]
        unordered = [e | either for e in ordered[:-1]] + [either]
        for predicate, values in enumerate(
            [np.zeros_like(either), *ordered, *unordered, np.ones_like(either)]
        ):
            add(f"cmpf{predicate}", lambda x, y, p=predicate: arith.CmpfOp(x, y, p), values, i1)
        for width, type_ in ((8, i8), (16, i16), (32, i32), (64, i64)):
            low, high = integer_range(type_)
            wide = np.where(np.isnan(a), 0, np.clip(a.astype(np.float64), low, high))
            values = np.where(
                wide >= high,
                high,
                np.trunc(np.minimum(wide, float(high) * (1 - 2**-53))).astype(np.int64),
            )
            add(
                f"fptosi{width}",
                lambda x, t=type_: arith.FPToSIOp(x, t),
                values.astype(numpy_dtype(type_)),
                type_,
                False,
            )
        add(
            "fptoui8",
            lambda x: arith.FPToUIOp(x, i8),
            np.where(np.isnan(a), 0, np.clip(np.trunc(a), 0, 255)).astype(np.uint8),
            ui8,
            False,
        )

    def chosen(k: Block, v: Sequence[SSAValue]) -> SSAValue:
        less = op(k, arith.CmpfOp(v[0], v[1], 4))
        return op(k, arith.SelectOp(less, v[0], constant(k, 7.0, f32)))

    exact[elementwise(suite, "select", [(a, f32), (b, f32)], f32, chosen)] = np.where(
        a < b, a, np.float32(7)
    )
    found = suite.run(**FAST)
    wrong = [
        n
        for n, e in exact.items()
        if not np.array_equal(found[n], e, equal_nan=e.dtype.kind == "f")
    ]
    assert not wrong, wrong


def test_math_functions_are_the_runtime_ones() -> None:
    """Within a few ULP of float64: the tight bounds are the runtime's own tests, here each op calls the right function."""
    suite, rng = Level3(), np.random.default_rng(1)
    x = np.concatenate([rng.uniform(0.01, 8, 300), [0.5, 1, 2]]).astype(np.float32)
    wide = x.astype(np.float64)
    from math import erf

    cases = {
        "exp": (math.ExpOp, np.exp(wide)),
        "expm1": (math.ExpM1Op, np.expm1(wide)),
        "log": (math.LogOp, np.log(wide)),
        "log1p": (math.Log1pOp, np.log1p(wide)),
        "tanh": (math.TanhOp, np.tanh(wide)),
        "erf": (math.ErfOp, np.array([erf(v) for v in wide])),
        "sqrt": (math.SqrtOp, np.sqrt(wide)),
        "rsqrt": (math.RsqrtOp, 1 / np.sqrt(wide)),
        "powf": (lambda v: math.PowFOp(v, v), wide**wide),
    }
    names = {
        k: elementwise(suite, k, [(x, f32)], f32, lambda b, v, c=c: op(b, c(v[0])))
        for k, (c, _) in cases.items()
    }
    found = suite.run()
    for key, (_, expected) in cases.items():
        error = np.abs(found[names[key]] - expected)
        assert (error <= 4 * np.spacing(np.abs(expected).astype(np.float32))).all(), key


def fill(value: float, target: SSAValue, type_: Attribute = f32) -> list[Any]:
    scalar = arith.ConstantOp(
        FloatAttr(value, type_) if type_ in (f32, f64) else IntegerAttr(int(value), type_)
    )  # type: ignore[arg-type]
    return [scalar, linalg.FillOp((scalar.result,), (target,), ())]


@pytest.mark.parametrize("options", [FAST, {}], ids=["O1", "O3"])
def test_reductions(options: dict[str, Any]) -> None:
    suite, rng = Level3(), np.random.default_rng(2)
    x = rng.standard_normal((3, 5, 203)).astype(np.float32)
    wide = x.astype(np.float64)
    checks: list[tuple[str, Array, Array | float]] = []

    def add(
        name: str, axes: set[int], kind: Any, start: float, expected: Array, bound: Array | float
    ) -> None:
        kept = tuple(d(i) for i in range(3) if i not in axes)
        kinds = "".join("r" if i in axes else "p" for i in range(3))

        def ops(v: Sequence[SSAValue]) -> list[Any]:
            maps = [AffineMap.identity(3), AffineMap(3, 0, kept)]
            return [
                *fill(start, v[1]),
                generic([v[0]], v[1], maps, kinds, lambda k, e: op(k, kind(e[0], e[1]))),
            ]

        out = suite.add(name, "c.loops", [Arg(f32, x), Arg(f32, shape=expected.shape)], ops)
        checks.append((out, expected, bound))

    for axes in ({2}, {0}, {1}, {0, 2}, {1, 2}, {0, 1, 2}):
        axis = tuple(sorted(axes))
        tag = "".join(map(str, axis))
        count = int(np.prod([x.shape[i] for i in axis]))
        add(
            f"sum{tag}",
            axes,
            arith.AddfOp,
            0.0,
            wide.sum(axis),
            gamma(count) * np.abs(wide).sum(axis),
        )
        add(f"max{tag}", axes, arith.MaximumfOp, float("-inf"), x.max(axis), 0.0)
        add(f"min{tag}", axes, arith.MinnumfOp, float("inf"), x.min(axis), 0.0)

    # sum of squares of a transposed view, with nothing to vectorise along
    def squares(v: Sequence[SSAValue]) -> list[Any]:
        maps = [AffineMap.identity(2), AffineMap(2, 0, (d(0),))]
        body: Body = lambda k, e: op(k, arith.AddfOp(e[1], op(k, arith.MulfOp(e[0], e[0]))))  # noqa: E731
        return [*fill(0.0, v[1]), generic([v[0]], v[1], maps, "pr", body)]

    y = rng.standard_normal((7, 90)).astype(np.float32)
    for name, strides in (("dense", None), ("strided", (1, 7)), ("gaps", (100, 1))):
        out = suite.add(
            f"squares_{name}",
            "c.loops",
            [Arg(f32, y, strides=strides, offset=3 if strides else 0), Arg(f32, shape=(7,))],
            squares,
        )
        total = (y.astype(np.float64) ** 2).sum(1)
        checks.append((out, total, gamma(91) * total))

    # windowed maximum: an index map that is a sum
    def pool(v: Sequence[SSAValue]) -> list[Any]:
        maps = [
            AffineMap(3, 0, (d(0), d(1) * 2 + d(2))),
            AffineMap(3, 0, (d(2),)),
            AffineMap(3, 0, (d(0), d(1))),
        ]
        return [
            *fill(float("-inf"), v[2]),
            generic(
                [v[0], v[1]], v[2], maps, "ppr", lambda k, e: op(k, arith.MaximumfOp(e[0], e[2]))
            ),
        ]

    z = rng.standard_normal((2, 9)).astype(np.float32)
    out = suite.add(
        "pool",
        "c.loops",
        [Arg(f32, z), Arg(f32, np.zeros(3, np.float32)), Arg(f32, shape=(2, 4))],
        pool,
    )
    checks.append((out, np.stack([z[:, 2 * i : 2 * i + 3].max(1) for i in range(4)], 1), 0.0))

    # integers, and a boolean any
    q = rng.integers(-(2**31), 2**31, (4, 70), dtype=np.int64).astype(np.int32)

    def total(v: Sequence[SSAValue]) -> list[Any]:
        maps = [AffineMap.identity(2), AffineMap(2, 0, (d(0),))]
        return [
            *fill(0, v[1], i32),
            generic([v[0]], v[1], maps, "pr", lambda k, e: op(k, arith.AddiOp(e[0], e[1]))),
        ]

    out = suite.add("wrapping_sum", "c.loops", [Arg(i32, q), Arg(i32, shape=(4,))], total)
    checks.append((out, q.sum(1, dtype=np.int32), 0.0))
    empty = np.zeros((3, 0), np.float32)

    def nothing(v: Sequence[SSAValue]) -> list[Any]:
        maps = [AffineMap.identity(2), AffineMap(2, 0, (d(0),))]
        return [
            *fill(5.0, v[1]),
            generic([v[0]], v[1], maps, "pr", lambda k, e: op(k, arith.AddfOp(e[0], e[1]))),
        ]

    out = suite.add("no_elements", "c.loops", [Arg(f32, empty), Arg(f32, shape=(3,))], nothing)
    checks.append((out, np.full(3, 5.0), 0.0))
    found = suite.run(**options)
    for out, expected, bound in checks:
        assert found[out].shape == expected.shape
        error = np.abs(found[out].astype(np.float64) - expected)
        assert (error <= bound).all(), (out, error.max())


def test_nan_in_any_lane_of_a_maximum() -> None:
    suite = Level3()
    x = np.zeros((70, 70), np.float32)
    x[np.arange(70), np.arange(70)] = np.nan

    def ops(v: Sequence[SSAValue]) -> list[Any]:
        maps = [AffineMap.identity(2), AffineMap(2, 0, (d(0),))]
        return [
            *fill(float("-inf"), v[1]),
            generic([v[0]], v[1], maps, "pr", lambda k, e: op(k, arith.MaximumfOp(e[0], e[1]))),
        ]

    out = suite.add("maximum", "c.loops", [Arg(f32, x), Arg(f32, shape=(70,))], ops)
    assert np.isnan(suite.run()[out]).all()


def test_copies_of_every_layout() -> None:
    suite, rng = Level3(), np.random.default_rng(5)
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    bytes_ = rng.integers(0, 256, (3, 4, 5)).astype(np.uint8)
    cases: list[tuple[str, Array]] = []
    for name, strides in (("dense", (20, 5, 1)), ("permuted", (1, 15, 3)), ("gaps", (40, 6, 1))):
        for values, type_ in ((x, f32), (bytes_, ui8)):
            for direction in ("from", "to"):
                view = {"strides": strides, "offset": 2}
                source = Arg(type_, values, **(view if direction == "from" else {}))
                target = Arg(type_, shape=values.shape, **(view if direction == "to" else {}))
                out = suite.add(
                    f"{name}_{type_}_{direction}",
                    "c.loops",
                    [source, target],
                    lambda v: [memref.CopyOp(v[0], v[1])],
                )
                cases.append((out, values))
    scalar = np.array(3.5, np.float32)
    cases.append(
        (
            suite.add(
                "scalar",
                "c.loops",
                [Arg(f32, scalar), Arg(f32, shape=())],
                lambda v: [memref.CopyOp(v[0], v[1])],
            ),
            scalar,
        )
    )
    cases.append(
        (
            suite.add(
                "filled",
                "c.loops",
                [Arg(i64, shape=(2, 3), strides=(5, 1))],
                lambda v: fill(-7, v[0], i64),
            ),
            np.full((2, 3), -7),
        )
    )
    found = suite.run(**SANITIZED)
    for out, expected in cases:
        assert np.array_equal(found[out], expected), out


def test_non_linear_index_maps() -> None:
    suite = Level3()
    x = np.arange(6, dtype=np.float32)
    maps = [AffineMap(1, 0, (d(0) // 2,)), AffineMap(1, 0, (d(0) % 3,)), AffineMap.identity(1)]

    def ops(v: Sequence[SSAValue]) -> list[Any]:
        return [generic(v[:2], v[2], maps, "p", lambda k, e: op(k, arith.AddfOp(e[0], e[1])))]

    out = suite.add(
        "folded", "c.loops", [Arg(f32, x), Arg(f32, x * 10), Arg(f32, shape=(12,))], ops
    )
    i = np.arange(12)
    assert np.array_equal(suite.run(**FAST)[out], x[i // 2] + 10 * x[i % 3])


@pytest.mark.parametrize(
    ("kind", "type_"),
    [(math.SinOp, f32), (math.CbrtOp, f32), (math.ExpOp, f64), (math.FloorOp, f64)],
)
def test_an_op_without_a_c_form_is_refused_by_name_and_place(kind: Any, type_: Attribute) -> None:
    suite = Level3()

    def body(block: Block, values: Sequence[SSAValue]) -> SSAValue:
        made = kind(values[0])
        made.location = name_location("encoder/node_7")
        return op(block, made)

    x = np.ones(3, numpy_dtype(type_))
    elementwise(suite, "refused", [(x, type_)], type_, body)
    said = rf"{kind.name} \(from ONNX node 'encoder/node_7'\) on {type_}, {type_} has no C form"
    with pytest.raises(UnsupportedOp, match=said):
        suite.run()


def test_arithmetic_modulo_16_is_refused() -> None:
    suite = Level3()
    x = np.ones(3, np.int8)
    elementwise(suite, "add", [(x, i4)], i4, lambda k, v: op(k, arith.AddiOp(v[0], v[0])))
    with pytest.raises(UnsupportedOp, match=r"arith\.addi on i4.*has no C form"):
        suite.run()
