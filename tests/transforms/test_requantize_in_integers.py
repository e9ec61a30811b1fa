"""`qmm-requantize-in-integers`: the same as in f64 at every threshold and around it, in the form that the range allows.

Accumulators are inputs of i32 that the graph itself clamps to a range, so that the passes know it and any of them can be tried.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp

from qfold.dialects import qmm
from qfold.dialects.element_types import i8, i32, integer_range, numpy_dtype, ui8
from qfold.interpreters import run
from qfold.transforms.fixed_point import FixedPoint, high_half
from qfold.transforms.fixed_point_search import fixed_point, thresholds
from qfold.transforms.qmm_check_accumulators import Range
from tests.transforms.graphs import Array, Node, apply, module, only

PASS = "qmm-requantize-in-integers"


def made(
    multipliers: Array,
    size: int,
    range_: Range,
    storage: IntegerType = i8,
    zero: int = 0,
    bounds: tuple[int | None, int | None] = (None, None),
) -> ModuleOp:
    """[channels, size] accumulators, one multiplier each or one for all, requantised."""
    channels = max(2, multipliers.size)

    def build(node: Node, x: Any) -> Any:
        builder = node("requantize")
        inside = builder.elementwise(
            [x],
            i32,
            lambda b, e: b(
                arith.MinSIOp,
                b(arith.MaxSIOp, e[0], b.constant(range_.low, i32)),
                b.constant(range_.high, i32),
            ),
        )
        op = qmm.RequantizeOp(
            inside,
            storage,
            multipliers,
            zero,
            axis=0 if multipliers.size > 1 else None,
            low=bounds[0],
            high=bounds[1],
        )
        return builder.insert(op).result

    return module(build, (channels, size), types=[i32])


def oracle(
    acc: Array, multipliers: Array, storage: IntegerType, zero: int, bounds: tuple[Any, Any]
) -> Array:
    """The contract, in numpy."""
    smallest, largest = integer_range(storage)
    low, high = (d if b is None else b for b, d in zip(bounds, (smallest, largest), strict=True))
    steps = np.rint(acc.astype(np.float64) * multipliers.reshape(-1, 1)) + zero
    return np.clip(steps, low, high).astype(numpy_dtype(storage))


def accumulators(multipliers: Array, zero: int, range_: Range, rng: np.random.Generator) -> Array:
    """For each channel: around the real quotient of every half, the ends of the range, and anything."""
    halves = (np.arange(-258, 259) + 0.5 - (zero % 2)) / multipliers.reshape(-1, 1)
    near = np.clip(np.rint(halves), range_.low, range_.high).astype(np.int64)
    around = (near[:, :, None] + np.arange(-2, 3)).reshape(len(near), -1)
    ends = [range_.low, range_.low + 1, range_.high - 1, range_.high, 0, 1, -1]
    fixed = np.broadcast_to(np.array(ends), (len(near), len(ends)))
    free = rng.integers(range_.low, range_.high + 1, (len(near), 500))
    found = np.concatenate([around, fixed, free], axis=1)
    found = np.clip(found, range_.low, range_.high).astype(np.int32)
    return np.concatenate([found, found]) if len(found) == 1 else found


def assert_equal(
    multipliers: Any,
    range_: Range,
    storage: IntegerType = i8,
    zero: int = 0,
    bounds: tuple[int | None, int | None] = (None, None),
    seed: int = 0,
) -> ModuleOp:
    """The pass, and then the lowering, leave every result as it is; the lowered module."""
    multipliers = np.asarray(multipliers, np.float64).reshape(-1)
    acc = accumulators(multipliers, zero, range_, np.random.default_rng(seed))
    one = made(multipliers, acc.shape[1], range_, storage, zero, bounds)
    expected = oracle(acc, multipliers, storage, zero, bounds)
    apply(one, PASS)
    assert not [op for op in one.walk() if isinstance(op, qmm.RequantizeOp)]
    assert np.array_equal(run(one, [acc])[0], expected)
    apply(one, "qmm-lower-quantization")
    assert np.array_equal(run(one, [acc])[0], expected)
    assert "f64" not in str(one)
    return one


def form(one: ModuleOp) -> str:
    """The arithmetic that a lowered requantisation uses."""
    names = {op.name for op in one.walk()}
    if "arith.extsi" in names:
        return "i64"
    return "high" if "arith.mulsi_extended" in names else "narrow"


def up_to(largest: int) -> Range:
    return Range(-largest, largest)


MULTIPLIERS = {
    "ordinary": 0.0123456789,
    "near_one": 1 - 2.0**-30,
    "above_one": 1.0000001,
    "tiny": 2.0**-20 * 1.37,
    "smallest_normal": 2.0**-31,
    "large": 37.25,
    "power_of_two": 2.0**-7,
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three_halves": 1.5,
    "three_quarters": 0.75,
    "sixth": 0.5 / 3,
    "hundredth": 0.01,
    "below_a_tie": np.nextafter(2.0**-7, 0),
    "above_a_tie": np.nextafter(2.0**-7, 1),
    "a_third": 1 / 3,
    "seven": 7 / 64,
}


@pytest.mark.parametrize("name", MULTIPLIERS)
@pytest.mark.parametrize("largest", [127 * 127, 4096 * 255 * 127])
def test_one_multiplier(name: str, largest: int) -> None:
    """K = 1 and K = 4096, zero points of both parities at both ends, saturation on both sides."""
    for seed, (storage, zero) in enumerate([(i8, 0), (i8, -127), (ui8, 255), (ui8, 128)]):
        assert_equal(MULTIPLIERS[name], up_to(largest), storage, zero, seed=seed)


@pytest.mark.parametrize("bits", [15, 18, 21, 24, 26])
def test_a_multiplier_per_channel(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for zero in (-128, 3):
        multipliers = 2.0 ** (7 - bits + rng.uniform(0, 3, 33))
        assert_equal(multipliers, Range(-(2**bits) // 3, 2**bits), zero=zero, seed=zero + 128)


def test_ties_in_some_channels_only() -> None:
    multipliers = [2.0**-7, 0.0123, 0.02, 3 * 2.0**-9, 0.0077123, 0.5 / 3]
    for zero in (0, 5):
        one = assert_equal(multipliers, up_to(2**19), zero=zero)
        assert form(one) == "high"


@pytest.mark.parametrize("bounds", [(0, None), (None, 6), (-3, 100), (17, 17), (-128, -127)])
def test_bounds(bounds: tuple[int | None, int | None]) -> None:
    for multiplier in (0.003, 2.0**-6, 0.6):
        assert_equal(multiplier, Range(-70000, 50000), zero=11, bounds=bounds)


@pytest.mark.parametrize("range_", [Range(0, 0), Range(5, 5), Range(0, 1), Range(100, 90000)])
def test_few_accumulators(range_: Range) -> None:
    """Nothing is reached, or all of it always is."""
    for multiplier in (1e-9, 0.25, 3000.0):
        assert_equal(multiplier, range_, zero=-5)


def test_all_of_i32() -> None:
    """Where results saturate early, whatever an accumulator may be does not matter."""
    for multiplier in (0.001234, 2.0**-9, 0.3):
        assert_equal(multiplier, Range(-(2**31), 2**31 - 1))


@pytest.mark.parametrize(
    ("multiplier", "largest", "expected", "rounding"),
    [
        (2.0, 2**20, "narrow", "floor"),
        (2.0**-7, 2**20, "narrow", "half_even"),
        (0.0123, 2**20, "high", "floor"),
        (0.01, 2**20, "high", "half_even"),
        # No tie is met at an odd level.
        (2.0**-7, 64, "narrow", "floor"),
        (1.0, 2**31 - 1, "i64", "floor"),
    ],
)
def test_which_form(multiplier: float, largest: int, expected: str, rounding: str) -> None:
    one = made(np.array([multiplier]), 3, up_to(largest))
    apply(one, PASS)
    assert only(one, qmm.RequantizeShiftOp).rounding.data == rounding
    apply(one, "qmm-lower-quantization")
    assert form(one) == expected
    names = [op.name for op in one.walk()]
    assert names.count("arith.mulsi_extended") == (expected == "high")
    assert names.count("arith.extsi") == (expected == "i64")


def test_halves_go_to_odd_before_an_odd_zero_point() -> None:
    for zero, rounding in ((2, "half_even"), (-3, "half_odd")):
        one = made(np.array([2.0**-7]), 3, up_to(2**18), zero=zero)
        apply(one, PASS)
        assert only(one, qmm.RequantizeShiftOp).rounding.data == rounding


def test_what_does_not_saturate_is_not_clamped() -> None:
    one = assert_equal(0.0123, Range(-5000, 1000))
    names = [op.name for op in one.walk()]
    # One of each is the range of the accumulator.
    assert names.count("arith.maxsi") == names.count("arith.minsi") == 1


def test_bounds_stay_where_64_bits_do_not_hold_the_product() -> None:
    """Of accumulators of which nothing is known, `2^31 * 2^40` is no proof that results are small."""

    def build(node: Node, x: Any) -> Any:
        op = qmm.RequantizeShiftOp(x, i8, [2**40], [0], [40])
        return node("requantize").insert(op).result

    one = module(build, (6,), types=[i32])
    x = np.array([-200, -128, -1, 0, 127, 200], np.int32)
    apply(one, "qmm-lower-quantization")
    np.testing.assert_array_equal(run(one, [x])[0], np.clip(x, -128, 127))


def test_no_channels() -> None:
    def build(node: Node, x: Any) -> Any:
        op = qmm.RequantizeOp(x, i8, np.zeros(0), 0, axis=1)
        return node("requantize").insert(op).result

    one = module(build, (4, 0), types=[i32])
    apply(one, PASS, "qmm-lower-quantization")
    assert np.asarray(run(one, [np.zeros((4, 0), np.int32)])[0]).shape == (4, 0)


def test_one_shift_and_one_addition_for_all_channels() -> None:
    """Operands of a kernel: the multipliers alone."""
    multipliers = np.random.default_rng(3).uniform(0.002, 0.004, 16)
    one = made(multipliers, 3, up_to(2**18))
    apply(one, PASS)
    op = only(one, qmm.RequantizeShiftOp)
    assert [len(p) for p in (op.mul, op.add, op.shift)] == [16, 1, 1]


def test_refused_with_a_reason() -> None:
    """256 levels over all accumulators of 32 bits: more than a product of 64 bits can tell apart."""
    multipliers = np.random.default_rng(0).uniform(0.9, 1.0, 64) * 2.0**-24
    whole = Range(-(2**31), 2**31 - 1)
    one = made(multipliers, 3, whole)
    apply(one, PASS)
    op = only(one, qmm.RequantizeOp)
    assert "accumulators of -2147483648 to 2147483647" in op.attributes["qmm.reason"].data


@pytest.mark.parametrize(
    ("target", "changed"), [("host", False), ("threads", False), ("spike", True)]
)
def test_only_without_double_precision(target: str, changed: bool) -> None:
    one = made(np.array([0.01]), 3, up_to(1000))
    apply(one, f"{PASS}{{target={target}}}")
    assert changed == (not [op for op in one.walk() if isinstance(op, qmm.RequantizeOp)])


def test_a_wrong_constant_is_found() -> None:
    """The proof is no formality: one more in the offset, where the interval has ended, does not agree."""
    multipliers = np.array([0.0123])
    range_ = up_to(2**18)
    t = thresholds(multipliers, 0, -128, 127, range_)
    found = fixed_point(multipliers, 0, -128, 127, range_)
    assert found is not None
    assert t.agree(found)
    _, high = t.offsets(found.mul[:, None], found.shift, found.ties, found.rounding)
    for beyond, agrees in ((0, True), (1, False)):
        offset = high[:, 0] + beyond
        moved = FixedPoint(found.mul, offset, found.shift, found.ties, found.rounding)
        assert t.agree(moved) == agrees


def test_an_addition_before_the_product() -> None:
    """For long sums the units of an upper half are coarse; what `before` adds makes up for it."""
    multipliers = np.random.default_rng(7).uniform(0.5, 1.0, 16) * 2.0**-17
    range_ = up_to(2**25)
    found = fixed_point(multipliers, 7, -128, 127, range_)
    assert found is not None
    half = high_half(found, range_)
    assert half is not None
    assert half.before.any()
    one = assert_equal(multipliers, range_, zero=7)
    assert form(one) == "high"
