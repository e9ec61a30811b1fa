"""Kernels on a cluster, each core its share: every division of the work gives what one core gives, and does it once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineMap

from qfold.backend.c.emit import emit_texts
from qfold.backend.c.program import NotLevel3
from qfold.dialects import qkernel, qmm
from qfold.dialects.contraction import int_array
from qfold.dialects.element_types import i8, ui4
from qfold.transforms.work_split import split_of
from tests.backend import test_conv, test_loops, test_matmul
from tests.backend.level3 import SANITIZED, Arg, Array, Level3, assert_within, gamma

OPTIONS: dict[str, Any] = {
    "sanitized": SANITIZED,
    "races": {"native": False, "extra_cflags": ["-O1", "-g0", "-fsanitize=thread"]},
    "O1": {"native": False, "extra_cflags": ["-O1"]},
}
"""`races`: a core that reads or writes what another one writes ends the run."""


@pytest.fixture(params=[1, 3, 8, 16], ids=lambda cores: f"{cores}-cores")
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(Level3, "target", f"threads:cores={request.param}")
    yield request.param


def options(cores: int) -> dict[str, Any]:
    """How a build for so many cores is checked: each way once."""
    return OPTIONS[{1: "O1", 3: "sanitized", 8: "races", 16: "O1"}[cores]]


def test_convolutions(cores: int) -> None:
    if cores == 3:
        suite, cases = test_conv.all_cases()
    else:
        suite, rng = Level3(), np.random.default_rng(cores)
        sample = test_conv.CONVS[cores % 5 :: 5]
        cases = [test_conv.add_float(suite, c, rng) for c in sample]
        cases += [test_conv.add_window_sum(suite, c, rng) for c in sample]
        for hoisted in (False, True):
            cases += [test_conv.add_dequant(suite, c, i8, True, True, hoisted, rng) for c in sample]
    found = suite.run(**options(cores))
    for name, expected, bound in cases:
        assert_within(found[name], expected, bound, name)


def test_matmuls(cores: int) -> None:
    if cores == 3:
        suite, cases = test_matmul.all_cases()
    else:
        suite, rng = Level3(), np.random.default_rng(cores)
        cases = [test_matmul.add_case(suite, c, rng) for c in test_matmul.CASES[cores % 9 :: 9]]
        cases += test_matmul.float_cases(suite, rng)
    test_matmul.check(suite.run(**options(cores)), cases)


@pytest.mark.parametrize(
    "cases",
    [
        lambda: test_loops.test_reductions({"native": False, "extra_cflags": ["-O1"]}),
        test_loops.test_copies_of_every_layout,
        test_loops.test_non_linear_index_maps,
        test_loops.test_nan_in_any_lane_of_a_maximum,
    ],
    ids=["reductions", "copies", "index maps", "nan"],
)
def test_loop_nests(monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None]) -> None:
    monkeypatch.setattr(Level3, "target", "threads:cores=3")
    cases()


def accumulating(rank: int) -> dict[str, Any]:
    """An epilogue that adds to what y holds: done twice, it gives something else."""
    block = Block(arg_types=[f32, f32])
    total = arith.AddfOp(*block.args)
    block.add_ops([total, qmm.YieldOp(total.result)])
    return {"epilogue_maps": [AffineMap.identity(rank)], "epilogue": Region(block)}


def untouched(shape: tuple[int, ...]) -> Array:
    """What an output holds before the first run."""
    return np.full(shape, 0xA5A5A5A5, np.uint32).view(np.float32)


def test_each_output_is_made_once(cores: int) -> None:
    """Each kernel in three ways: the splits differ with the names."""
    suite, rng = Level3(), np.random.default_rng(cores)
    expected: list[tuple[str, Array, Array]] = []

    def add(
        name: str, kernel: str, a: Array, b: Array, wide: Array, magnitude: Array, op: Any
    ) -> None:
        out = suite.add(
            name, kernel, [Arg(f32, a), Arg(f32, b), Arg(f32, shape=wide.shape)],
            lambda v: [op(v[0], v[1], v[2], epilogue_operands=[v[2]], **accumulating(wide.ndim))],
        )  # fmt: skip
        before = untouched(wide.shape).astype(np.float64)
        expected.append((out, wide + before, magnitude))

    loops: list[tuple[str, Array]] = []
    for seed in range(3):
        for m, k, n in ((1, 9, 21), (5, 7, 16), (13, 4, 3)):
            a = rng.standard_normal((m, k)).astype(np.float32)
            b = rng.standard_normal((k, n)).astype(np.float32)
            bound = gamma(k + 2) * (np.abs(a).astype(np.float64) @ np.abs(b))
            wide = a.astype(np.float64) @ b
            add(f"matmul_{m}_{seed}", "c.matmul", a, b, wide, bound, qkernel.MatmulOp)
        for i in (1, 4, 5, 7):
            conv = test_conv.CONVS[i]
            x = rng.standard_normal(conv.x).astype(np.float32)
            w = rng.standard_normal(conv.weight).astype(np.float32)
            taps = int(np.prod(conv.weight[1:]))
            bound = gamma(taps + 2) * test_conv.reference(conv, np.abs(x), np.abs(w))
            wide = test_conv.reference(conv, x, w)
            add(
                f"{conv.name}_{seed}", "c.conv", x, w, wide, bound,
                lambda *v, c=conv, **e: qkernel.ConvOp(*v, **c.window, **e),
            )  # fmt: skip
        q = rng.integers(-99, 99, (4, 5, 6)).astype(np.int32)
        args = [Arg(i32, q), Arg(i32, shape=q.shape)]
        before = np.full(q.shape, 0xA5A5A5A5, np.uint32).view(np.int32)
        loops.append((suite.add(f"loops_{seed}", "c.loops", args, add_to), before + q))
    found = suite.run(native=False, extra_cflags=["-O1"])
    for name, wide, bound in expected:
        assert_within(found[name], wide, bound, name)
    for name, sums in loops:
        assert np.array_equal(found[name], sums)


def add_to(v: Any) -> list[Any]:
    """Adds to what y holds."""
    maps = [AffineMap.identity(3), AffineMap.identity(3)]
    body = lambda k, e: test_loops.op(k, arith.AddiOp(e[0], e[1]))  # noqa: E731
    return [test_loops.generic([v[0]], v[1], maps, "ppp", body)]


def matmul_text(split: tuple[int, ...], m: int = 8, n: int = 24) -> str:
    suite = Level3()
    args = [
        Arg(f32, np.zeros((m, 5), np.float32)),
        Arg(i8, np.zeros((5, n), np.int8)),
        Arg(f32, np.zeros(n, np.float32)),
        Arg(f32, shape=(m, n)),
    ]
    suite.add("mm_x", "c.dequant_matmul", args, lambda v: [qkernel.DequantMatmulOp(*v)])
    module = suite.module()
    function = next(iter(module.ops))
    function.attributes["qmm.split"] = int_array(split)
    return emit_texts(module)["kernels.c"]


def test_how_a_share_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Level3, "target", "threads")
    text = matmul_text((2, 4))
    assert "for (uint32_t part = qf_core_id(); part < 8; part += qf_num_cores()) {" in text
    # Blocks of four rows and two columns stay together.
    assert "qf_share(2, part / 4, 2, &first0, &last0);" in text
    assert "qf_share(12, part % 4, 4, &first1, &last1);" in text
    assert "for (ptrdiff_t n = first1 * 2; n < last1 * 2; n += 2) {" in text
    assert "(float)w[k * 24 + n + 1]" in text
    # Nothing that a small stack could not hold: sums only.
    assert "panel" not in text
    assert "if (qf_core_id() == 0) {" in matmul_text((1, 1))


def test_a_row_uses_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Level3, "target", "threads")
    text = matmul_text((1, 8), m=1, n=10)
    # No blocks of four columns, with which six cores would have nothing to do.
    assert "qf_share(10, part, 8, &first1, &last1);" in text


@pytest.mark.parametrize(
    ("split", "said"),
    [((8,), "2 dimensions of y are split as \\[8\\]"), ((0, 8), "qmm.split is .*numbers from 1")],
)
def test_a_split_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, split: tuple[int, ...], said: str
) -> None:
    monkeypatch.setattr(Level3, "target", "threads")
    with pytest.raises(NotLevel3, match=f"qkernel.dequant_matmul.*: {said}"):
        matmul_text(split)


def test_a_reduction_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Level3, "target", "threads")
    suite = Level3()

    def total(v: Any) -> list[Any]:
        maps = [AffineMap.identity(2), AffineMap(2, 0, (test_loops.d(0),))]
        body = lambda k, e: test_loops.op(k, arith.AddfOp(e[0], e[1]))  # noqa: E731
        return [*test_loops.fill(0.0, v[1]), test_loops.generic([v[0]], v[1], maps, "pr", body)]

    x = np.zeros((4, 6), np.float32)
    suite.add("sum_x", "c.loops", [Arg(f32, x), Arg(f32, shape=(4,))], total)
    module = suite.module()
    next(iter(module.ops)).attributes["qmm.split"] = int_array((1, 3))
    with pytest.raises(NotLevel3, match="loop 1 cannot be divided between cores"):
        emit_texts(module)
    del next(iter(module.ops)).attributes["qmm.split"]
    with pytest.raises(NotLevel3, match=r"@sum_x has no qmm\.split: run qmm-split-work first"):
        emit_texts(module)


def test_halves_of_a_byte_stay_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Level3, "target", "threads")
    suite = Level3()
    x = np.arange(9, dtype=np.uint8) % 16

    def copied(v: Any) -> list[Any]:
        maps = [AffineMap.identity(1)] * 2
        return [test_loops.generic([v[0]], v[1], maps, "p", lambda k, e: _same(e))]

    out = suite.add("nibbles_x", "c.loops", [Arg(ui4, x), Arg(ui4, shape=(9,))], copied)
    module = suite.module()
    next(iter(module.ops)).attributes["qmm.split"] = int_array((8,))
    assert "if (qf_core_id() == 0) {" in emit_texts(module)["kernels.c"]
    assert np.array_equal(suite.run(native=False, extra_cflags=["-O1"])[out], x)


def _same(values: Any) -> SSAValue:
    return values[0]


@pytest.mark.parametrize(
    ("target", "channels", "pixels"), [("spike", 2, 5), ("spike:isa=f", 2, 7), ("threads", 2, 7)]
)
def test_blocks_of_a_convolution_fit_the_registers(
    monkeypatch: pytest.MonkeyPatch, target: str, channels: int, pixels: int
) -> None:
    """Fewer sums where they share 32 registers with addresses; x is loaded once for all channels of a block."""
    monkeypatch.setattr(Level3, "target", target)
    suite, rng = Level3(), np.random.default_rng(0)
    conv = test_conv.Conv("blocks", (1, 4, 22, 22), 32, (3, 3), pads=(1, 1, 1, 1))
    test_conv.add_dequant(suite, conv, i8, True, True, False, rng)
    module = suite.module()
    next(iter(module.ops)).attributes["qmm.split"] = int_array((1, 8, 1, 1))
    text = emit_texts(module)["kernels.c"]
    declared = max(text.splitlines(), key=lambda line: line.count(" = 0.0f"))
    assert declared.count(" = 0.0f") == pixels
    loop = text[text.index(declared) :]
    loop = loop[: loop.index("const float sum[")]
    assert loop.count("qf_madd(") == channels * pixels
    assert loop.count("= x[") == pixels
    assert loop.count("(float)(w[") == channels


def test_rows_are_divided_only_where_cores_would_idle() -> None:
    """A core that has whole rows knows which windows are inside of x; dividing 6 x 9 x 9 as 2 x 2 x 2 would be balanced best."""
    suite, rng = Level3(), np.random.default_rng(0)
    square = test_conv.Conv("square", (1, 3, 9, 9), 6, (3, 3), pads=(1, 1, 1, 1))
    row = test_conv.Conv("row", (1, 1, 64), 1, (3,), pads=(1, 1))
    splits: list[tuple[int, ...]] = []
    for conv in (square, row):
        test_conv.add_float(suite, conv, rng)
        op = next(o for o in suite.functions[-1].body.block.ops if isinstance(o, qkernel.ConvOp))
        splits.append(split_of([op], 8))
    assert splits == [(1, 6, 1, 1), (1, 1, 8)]


@pytest.mark.parametrize("target", ["qemu", "threads"])
def test_dividing_a_row_by_one_value_gives_the_bits_of_a_division(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """By a reciprocal and FMA where there is one, over all exponents and with infinities, NaN, zeros and subnormals."""
    if target == "qemu" and shutil.which("qemu-riscv32") is None:
        pytest.skip("qemu-riscv32 is not installed")
    monkeypatch.setattr(Level3, "target", target)
    suite, rng = Level3(), np.random.default_rng(6)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e-39, 3e38], np.float32)
    near = rng.uniform(0.5, 2, (64, 4000)).astype(np.float32)
    bits = rng.integers(0, 1 << 32, (64, 1000), dtype=np.uint32).view(np.float32)
    x = np.concatenate([near, bits, np.tile(special, (64, 1))], axis=1)
    d = rng.uniform(1, 60, 64).astype(np.float32)
    d[:16] = rng.integers(0, 1 << 32, 16, dtype=np.uint32).view(np.float32)
    d[16:24] = special
    d[24:28] = np.float32(2) - np.float32(2**-23)

    def divide(v: Any) -> list[Any]:
        maps = [AffineMap.identity(2), AffineMap(2, 0, (test_loops.d(0),)), AffineMap.identity(2)]
        body = lambda k, e: test_loops.op(k, arith.DivfOp(e[0], e[1]))  # noqa: E731
        return [test_loops.generic(v[:2], v[2], maps, "pp", body)]

    out = suite.add(
        "rows_x", "c.loops", [Arg(f32, x), Arg(f32, d), Arg(f32, shape=x.shape)], divide
    )
    assert "qf_div_by(x0[" in emit_texts(suite.module())["kernels.c"]
    with np.errstate(all="ignore"):
        expected = x / d[:, None]
    found = suite.run(**({} if target == "qemu" else {"extra_cflags": ["-O1"]}))[out]
    same = (found.view(np.uint32) == expected.view(np.uint32)) | (
        np.isnan(found) & np.isnan(expected)
    )
    assert same.all(), (x[~same][:5], found[~same][:5], expected[~same][:5])
