"""`c.pack_bytes`, `c.pack_window`, `c.packed_quant_matmul` on threads: against their definitions and the interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, StringAttr, f32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.backend.c.kernels import print_kernel
from qfold.backend.c.program import Kernel, NotLevel3
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel, qmm
from qfold.dialects.contraction import int_array
from qfold.dialects.element_types import i4, i8, i32, i64, integer_range, numpy_dtype, ui4, ui8
from qfold.dialects.qkernel import packed_bytes_shape, zero_point_type
from qfold.interpreters import run
from qfold.transforms.work_split import split_of
from tests.backend.level3 import SANITIZED, Arg, Array, Level3, gather

COLUMNS, ROWS = (AffineMap(2, 0, (AffineExpr.dimension(d),)) for d in (1, 0))


def integers(rng: np.random.Generator, element: IntegerType, *shape: int) -> Array:
    """Every value of the type, the extremes more often."""
    low, high = integer_range(element)
    values = rng.integers(low, high + 1, shape)
    extreme = rng.choice([low, high], shape)
    return np.where(rng.random(shape) < 0.2, extreme, values).astype(numpy_dtype(element))


def packed(w: Array, dtype: Any = None) -> Array:
    """[K, N] in panels, element by element."""
    k, n = w.shape
    panels = np.zeros(packed_bytes_shape(k, n), dtype or w.dtype)
    for row, column in product(range(k), range(n)):
        panels[column // 4, row // 4, column % 4, row % 4] = w[row, column]
    return panels


@dataclass(frozen=True)
class Window:
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    element: IntegerType = i8
    pad_value: int = 0
    x_strides: tuple[int, ...] | None = None

    def of(self, name: str) -> tuple[int, ...]:
        rank = len(self.kernel)
        return getattr(self, name) or ((0,) * 2 * rank if name == "pads" else (1,) * rank)

    def matrix(self, x: Array) -> Array:
        """The windows as columns, element by element."""
        rank = len(self.kernel)
        strides, pads, dilations = (self.of(n) for n in ("strides", "pads", "dilations"))
        out = [
            (n + pads[d] + pads[rank + d] - (t - 1) * dilations[d] - 1) // strides[d] + 1
            for d, (n, t) in enumerate(zip(x.shape[1:], self.kernel, strict=True))
        ]
        result = np.full((x.shape[0] * prod(self.kernel), prod(out)), self.pad_value, x.dtype)
        for k, (c, *taps) in enumerate(np.ndindex(x.shape[0], *self.kernel)):
            for n, position in enumerate(np.ndindex(*out)):
                at = [
                    o * s + t * d - p
                    for o, s, t, d, p in zip(position, strides, taps, dilations, pads, strict=False)
                ]
                if all(0 <= i < size for i, size in zip(at, x.shape[1:], strict=True)):
                    result[k, n] = x[(c, *at)]
        return result


WINDOWS = [
    Window((3, 5, 6), (3, 3), pads=(1, 1, 1, 1), pad_value=-3),
    Window((1, 7, 7), (3, 3), pads=(1, 0, 0, 1), element=ui8, pad_value=255),
    Window((4, 4, 4), (1, 1)),
    Window((2, 5, 5), (1, 1), strides=(2, 2)),
    Window((1, 6, 5), (2, 2)),
    Window((8, 6, 7), (3, 3), strides=(2, 2), pads=(0, 1, 1, 0), pad_value=127),
    Window((2, 9, 8), (3, 2), dilations=(2, 3), pads=(2, 2, 2, 2), element=ui8, pad_value=7),
    Window((3, 8, 9), (5, 3), strides=(2, 3), dilations=(1, 2), pads=(4, 1, 0, 3), pad_value=-128),
    Window((5, 11), (3,), pads=(1, 1), pad_value=9),
    Window((4, 10), (4,), strides=(3,), dilations=(2,), pads=(2, 3), element=ui8, pad_value=200),
    Window((1, 4), (1,)),
    Window((2, 1, 1), (3, 3), pads=(1, 1, 1, 1), pad_value=-7),
    Window((1, 1, 9), (1, 3), pads=(0, 2, 0, 2), pad_value=5),
    # Channels last, and every other element of a larger image.
    Window((3, 4, 5), (3, 3), pads=(1, 1, 1, 1), pad_value=-3, x_strides=(1, 15, 3)),
    Window((2, 4, 4), (2, 2), x_strides=(70, 16, 2)),
]  # fmt: skip


@dataclass
class Suite(Level3):
    """Kernels with what they have to compute."""

    expected: dict[str, Array] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(41))

    def case(
        self,
        name: str,
        kernel: str,
        args: Sequence[Arg],
        expected: Array,
        body: Callable[[Sequence[SSAValue]], Operation],
    ) -> None:
        self.expected[self.add(name, kernel, args, lambda v: [body(v)])] = expected

    def pack(
        self,
        k: int,
        n: int,
        storage: IntegerType,
        *,
        transposed: bool = False,
        strides: tuple[int, int] | None = None,
    ) -> None:
        w = integers(self.rng, storage, k, n)
        y = packed(w, numpy_dtype(zero_point_type(storage)))
        layout = "x".join(map(str, strides or ()))
        self.case(
            f"pack_{storage}_{'nk' if transposed else 'kn'}_{k}x{n}_{layout}",
            "c.pack_bytes",
            [Arg(storage, w.T.copy() if transposed else w, strides=strides), Arg(zero_point_type(storage), shape=y.shape)],
            y,
            lambda v: qkernel.PackBytesOp(v[0], v[1], transpose_b=transposed),
        )  # fmt: skip

    def window(self, index: int, window: Window) -> None:
        x = integers(self.rng, window.element, *window.x)
        y = packed(window.matrix(x))
        self.case(
            f"window_{index}",
            "c.pack_window",
            [Arg(window.element, x, strides=window.x_strides), Arg(window.element, shape=y.shape)],
            y,
            lambda v: qkernel.PackWindowOp(
                v[0],
                v[1],
                kernel_shape=window.kernel,
                strides=window.of("strides"),
                pads=window.of("pads"),
                dilations=window.of("dilations"),
                pad_value=window.pad_value,
            ),
        )

    def product(
        self,
        m: int,
        k: int,
        n: int,
        types: tuple[IntegerType, IntegerType] = (i8, i8),
        *,
        a_strides: tuple[int, int] | None = None,
        y_strides: tuple[int, int] | None = None,
        epilogue: Epilogue | None = None,
        extreme: bool = False,
    ) -> None:
        a, w = integers(self.rng, types[0], m, k), integers(self.rng, types[1], k, n)
        if extreme:
            a[...], w[...] = integer_range(types[0])[1], integer_range(types[1])[1]
        total = a.astype(np.int32) @ w.astype(np.int32)
        operands: list[tuple[Any, Array]] = []
        y_type, maps, region, what = i32, [], None, ""
        if epilogue is not None:
            operands, maps, region, y_type, total = epilogue(self.rng, total)
            what = epilogue.__name__
        name = "_".join(map(str, ("product", *types, m, k, n, what)))
        layout = "_strided" * bool(a_strides or y_strides) + "_extreme" * extreme
        self.case(
            f"{name}{layout}",
            "c.packed_quant_matmul",
            [
                Arg(types[0], a, strides=a_strides),
                Arg(types[1], packed(w)),
                *(Arg(t, x) for t, x in operands),
                Arg(y_type, shape=(m, n), strides=y_strides),
            ],
            total,
            lambda v: qkernel.PackedQuantMatmulOp(
                v[0],
                v[1],
                v[-1],
                epilogue_operands=v[2:-1],
                epilogue_maps=maps,
                epilogue=region,
            ),
        )


Finished = tuple[list[tuple[Any, Array]], list[AffineMap], Region, Any, Array]
Epilogue = Callable[[np.random.Generator, Array], Finished]


def requantized(rng: np.random.Generator, total: Array) -> Finished:
    """Bias, then `clamp((acc * mul + add) >> shift)` in i64, parameters per column."""
    n = total.shape[1]
    bias = rng.integers(-1000, 1000, n).astype(np.int32)
    mul = rng.integers(2**30, 2**31, n).astype(np.int32)
    shift = 31 + max(1, int(np.abs(total).max())).bit_length() - 7
    block = Block(arg_types=[i32, i32, i32])
    acc, b, factor = block.args
    low, high = (arith.ConstantOp.from_int_and_width(v, i64) for v in (-128, 127))
    add = arith.ConstantOp.from_int_and_width(1 << (shift - 1), i64)
    by = arith.ConstantOp.from_int_and_width(shift, i64)
    biased = arith.AddiOp(acc, b)
    wide, wide_factor = arith.ExtSIOp(biased, i64), arith.ExtSIOp(factor, i64)
    scaled = arith.AddiOp(arith.MuliOp(wide, wide_factor), add)
    scaled_by = scaled.operands[0].owner
    shifted = arith.ShRSIOp(scaled, by)
    lowest = arith.MaxSIOp(shifted, low)
    clamped = arith.MinSIOp(lowest, high)
    narrow = arith.TruncIOp(clamped, i8)
    assert isinstance(scaled_by, Operation)
    block.add_ops(
        [low, high, add, by, biased, wide, wide_factor, scaled_by, scaled, shifted, lowest, clamped,
         narrow, qmm.YieldOp(narrow.result)]
    )  # fmt: skip
    want = (total + bias).astype(np.int64) * mul + (1 << (shift - 1)) >> shift
    operands: list[tuple[Any, Array]] = [(i32, bias), (i32, mul)]
    return operands, [COLUMNS, COLUMNS], Region(block), i8, np.clip(want, -128, 127).astype(np.int8)


def dequantized(rng: np.random.Generator, total: Array) -> Finished:
    """`float(acc + bias[m]) * scale[n]`: exact products, as scales are powers of two."""
    m, n = total.shape
    bias = rng.integers(-(2**20), 2**20, m).astype(np.int32)
    scale = (2.0 ** rng.integers(-12, 3, n)).astype(np.float32)
    block = Block(arg_types=[i32, i32, f32])
    biased = arith.AddiOp(block.args[0], block.args[1])
    number = arith.SIToFPOp(biased, f32)
    scaled = arith.MulfOp(number, block.args[2])
    block.add_ops([biased, number, scaled, qmm.YieldOp(scaled.result)])
    want = (total + bias[:, None]).astype(np.float32) * scale
    return [(i32, bias), (f32, scale)], [ROWS, COLUMNS], Region(block), f32, want


def everything() -> Suite:
    suite = Suite()
    for k, n, transposed in product(range(1, 10), range(1, 10), (False, True)):
        suite.pack(k, n, ui8 if (k + n) % 2 else i8, transposed=transposed)
    for storage, (k, n), transposed in product(
        (i8, ui8, i4, ui4), [(7, 13), (8, 16), (1, 11), (16, 5), (5, 12)], (False, True)
    ):
        suite.pack(k, n, storage, transposed=transposed)
    for storage in (i8, ui8, i4, ui4):
        suite.pack(7, 6, storage, strides=(13, 1))
        suite.pack(7, 6, storage, strides=(2, 17))
        suite.pack(5, 9, storage, transposed=True, strides=(11, 2))
    for i, window in enumerate(WINDOWS):
        suite.window(i, window)
    types = list(product((i8, ui8), repeat=2))
    for i, (m, k, n) in enumerate(product(range(1, 10), repeat=3)):
        if (m + 2 * k + 4 * n) % 7 == 0:
            suite.product(m, k, n, types[i % 4])
    for pair in types:
        suite.product(6, 33, 10, pair)
        suite.product(5, 9, 7, pair, a_strides=(13, 1), y_strides=(1, 5))
        suite.product(4, 16, 8, pair, a_strides=(16, 1), y_strides=(20, 2))
        for epilogue in (requantized, dequantized):
            suite.product(7, 21, 9, pair, epilogue=epilogue)
    suite.product(9, 12, 6, y_strides=(9, 1), epilogue=requantized)
    suite.product(4, 0, 4)
    # Beyond 2^31, modulo 2^32.
    suite.product(1, 70003, 2, (ui8, i8), extreme=True)
    return suite


def check(found: dict[str, Array], suite: Suite) -> None:
    assert set(found) == set(suite.expected)
    for name, expected in suite.expected.items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


OPTIONS: dict[int, dict[str, Any]] = {
    3: SANITIZED,
    8: {"native": False, "extra_cflags": ["-O1", "-g0", "-fsanitize=thread"]},
}


@pytest.fixture(params=[3, 8], ids=["sanitized", "races"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(Level3, "target", f"threads:cores={request.param}")
    yield request.param


def test_every_case(cores: int) -> None:
    """Bit by bit, on some division of the work; accesses outside of an operand and races end the run."""
    suite = everything()
    if cores == 8:
        suite = sample(suite, set(list(suite.expected)[::5]))
    check(suite.run(**OPTIONS[cores]), suite)


def test_interpreted() -> None:
    """The interpreter computes the same from the same functions."""
    suite = everything()
    values = run(suite.module(), list(suite.values().values()))
    ports = dict(zip((n for n, _ in suite.outputs), values, strict=True))
    found: dict[str, Array] = {}
    for _, bound, _ in suite.steps:
        port, arg = bound[-1]
        value = ports[port]
        assert isinstance(value, np.ndarray)
        found[port] = gather(value, arg.layout)
    check(found, suite)


def c_text(name: str, add: Callable[[Suite], None], cores: int = 8) -> str:
    """The C function of a suite's only case."""
    suite = Suite()
    add(suite)
    (function,) = suite.functions
    op = next(o for o in function.body.block.ops if isinstance(o, qkernel.CONTRACTIONS))
    function.attributes["qmm.split"] = int_array(split_of([op], cores))
    out = Writer()
    print_kernel(out, Kernel(name, function), (), cluster=True)
    return out.text()


def test_a_block_is_four_rows_of_a_panel() -> None:
    """16 sums, two columns at a time; nothing beyond K is read; sums are unsigned, so that they may wrap."""
    text = c_text("f", lambda s: s.product(32, 33, 64, (ui8, i8)))
    added = re.findall(r"(s\d\d) \+= \(uint32_t\)\(a\d \* w\d\);", text)
    assert sorted(added) == sorted(f"s{r}{c}" for r in range(4) for c in range(4))
    assert text.count("for (ptrdiff_t k = 0; k < 33; k++)") == 2
    assert "a[m * 33 + k + 99]" in text


def test_whole_panels_have_no_conditions() -> None:
    for add in (lambda s: s.pack(16, 8, i8), lambda s: s.pack(16, 8, ui4, transposed=True)):
        assert "?" not in c_text("f", add)
        assert "if (" not in c_text("f", add)
    assert "?" in c_text("f", lambda s: s.pack(15, 8, i8))
    # Inside of the image every tap reads.
    assert "?" not in c_text("f", lambda s: s.window(0, Window((4, 6, 6), (3, 3))))
    padded = c_text("f", lambda s: s.window(0, Window((4, 6, 6), (3, 3), pads=(1, 1, 0, 0))))
    assert "i0 + k0 >= 0 && i0 + k0 < 6 && i1 + k1 >= 0 && i1 + k1 < 6" in padded


@pytest.mark.parametrize(
    ("add", "parts"),
    [
        # Whole panels, however few; then words. Blocks of four rows by panels.
        (lambda s: s.pack(64, 64, i8), (8, 1)),
        (lambda s: s.pack(64, 8, i8), (2, 4)),
        (lambda s: s.pack(5, 3, i8), (1, 2)),
        (lambda s: s.window(0, Window((8, 4, 4), (3, 3), pads=(1, 1, 1, 1))), (4, 2)),
        (lambda s: s.product(64, 9, 8), (8, 1)),
        (lambda s: s.product(3, 9, 64), (1, 8)),
        (lambda s: s.product(16, 9, 10), (4, 2)),
        (lambda s: s.product(2, 9, 3), (1, 1)),
    ],
)
def test_work_is_divided_by_panels_and_words(
    add: Callable[[Suite], None], parts: tuple[int, int]
) -> None:
    suite = Suite()
    add(suite)
    ops = [o for o in suite.functions[0].body.block.ops if isinstance(o, qkernel.CONTRACTIONS)]
    assert split_of(ops, 8) == parts


@pytest.mark.parametrize(
    ("kernel", "add"),
    [
        ("c.pack_bytes", lambda s: s.pack(5, 3, i8)),
        ("c.pack_window", lambda s: s.window(0, WINDOWS[0])),
        ("c.packed_quant_matmul", lambda s: s.product(4, 8, 4)),
    ],
)
def test_a_split_for_other_loops_is_refused(kernel: str, add: Callable[[Suite], None]) -> None:
    suite = Suite()
    add(suite)
    (function,) = suite.functions
    assert function.attributes["qmm.kernel"] == StringAttr(kernel)
    function.attributes["qmm.split"] = int_array((2, 1, 1))
    with pytest.raises(NotLevel3, match=r"qmm\.split has 3 entries|are split as \[2, 1, 1\]"):
        print_kernel(Writer(), Kernel("f", function), (), cluster=True)


def sample(suite: Suite, keep: set[str]) -> Suite:
    """Of the cases only those whose outputs are in `keep`."""
    names = {name.rsplit(".", 1)[0] for name in keep}
    return Suite(
        [i for i in suite.inputs if i[0].rsplit(".", 1)[0] in names],
        [o for o in suite.outputs if o[0] in keep],
        [f for f in suite.functions if f.sym_name.data in names],
        [s for s in suite.steps if s[0] in names],
        {name: suite.expected[name] for name in keep},
    )
