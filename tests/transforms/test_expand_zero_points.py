"""`qmm-expand-zero-points`: bit by bit what the zero points gave, by corrections that are as few as can be."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.dialects.linalg import ops as linalg

from qfold.dialects import qmm
from qfold.dialects.contraction import ACCUMULATOR_RANGE
from qfold.dialects.element_types import i4, i8, i32, integer_range, numpy_dtype, ui4, ui8
from qfold.dialects.integer_operands import zero_point_type
from qfold.interpreters import run
from tests.transforms.graphs import Array, Node, apply, integers, module, names, only, ops

PASS = "qmm-expand-zero-points"
TYPES = list(product((i8, ui8), (i8, ui8, i4, ui4)))
ZERO_POINTS = ("a_zero_point", "b_zero_point", "x_zero_point", "w_zero_point")


class Inputs:
    """What a graph reads: constants in it, or inputs of it with their values."""

    def __init__(self) -> None:
        self.types: list[IntegerType] = []
        self.values: list[Array] = []
        self._given: list[Any] = []

    def add(self, type_: IntegerType, value: Array) -> None:
        self.types.append(type_)
        self.values.append(value)

    def bind(self, arguments: Any) -> None:
        self._given = list(arguments)

    def next(self) -> Any:
        return self._given.pop(0)


def zeros_of(type_: IntegerType, kind: str, count: int, seed: int) -> Array:
    low, high = integer_range(type_)
    if kind == "each":
        return integers(type_, (count,), seed)
    value = {"low": low, "high": high, "one": 1, "middle": 128 if low == 0 else -1}[kind]
    return np.array(value, numpy_dtype(type_))


def matmul(
    types: tuple[IntegerType, IntegerType] = (ui8, i8),
    zeros: tuple[str | None, str | None] = ("high", "each"),
    *,
    shape: tuple[int, int, int] = (3, 9, 5),
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    transpose_b: bool = False,
    run_time: bool = False,
    constant_b: bool = True,
    bias: Array | None = None,
    per_row: bool = False,
) -> tuple[ModuleOp, list[Array]]:
    """A product, and a bias added to it; `run_time`: zero points are inputs; `per_row`: one of `a` for each row."""
    (m, k, n), (data, weight) = shape, types
    inputs = Inputs()
    inputs.add(data, integers(data, (*batch[0], m, k), 1))
    b_values = integers(weight, (*batch[1], *((n, k) if transpose_b else (k, n))), 2)
    if not constant_b:
        inputs.add(weight, b_values)
    points: list[tuple[IntegerType, Array] | None] = []
    for kind, type_, count in zip(zeros, types, (m, n), strict=True):
        zero_type = zero_point_type(type_)
        value = None if kind is None else zeros_of(zero_type, kind, count, 3)
        if value is not None and per_row and count == m:
            value = integers(zero_type, (*batch[0], m), 4)
        points.append(None if value is None else (zero_type, value))
        if value is not None and run_time:
            inputs.add(zero_type, value)

    def build(node: Node, *arguments: Any) -> Any:
        inputs.bind(arguments)
        builder = node("product")
        a = inputs.next()
        b = builder.constant(b_values, weight) if constant_b else inputs.next()
        given: list[Any] = []
        for point in points:
            if point is None:
                given.append(None)
            else:
                given.append(inputs.next() if run_time else builder.constant(point[1], point[0]))
        op = qmm.QuantMatmulOp(
            a, b, a_zero_point=given[0], b_zero_point=given[1], transpose_b=transpose_b
        )
        result = builder.insert(op).result
        if bias is None:
            return result
        added = node("bias")
        return added.elementwise(
            [result, added.constant(bias, i32)], i32, lambda s, e: s(arith.AddiOp, e[0], e[1])
        )

    made = module(build, *(v.shape for v in inputs.values), types=inputs.types)
    apply(made, "qmm-canonicalize", "qmm-fuse-epilogue", "qmm-check-accumulators")
    return made, inputs.values


def expanded(made: ModuleOp, values: list[Array]) -> ModuleOp:
    """After the pass: the same results, no zero points, and epilogues that read i32 only."""
    before = run(made, values)
    ranges = [op.attributes[ACCUMULATOR_RANGE] for op in contractions(made)]
    apply(made, PASS, "qmm-linalg-cse")
    for x, y in zip(before, run(made, values), strict=True):
        assert np.array_equal(x, y)
    for op, range_ in zip(contractions(made), ranges, strict=True):
        assert not [n for n in ZERO_POINTS if getattr(op, n, None) is not None]
        assert all(v.type.element_type == i32 for v in op.epilogue_operands)
        assert op.attributes[ACCUMULATOR_RANGE] == range_
    return made


def contractions(made: ModuleOp) -> list[Any]:
    return [op for op in ops(made) if isinstance(op, qmm.QuantMatmulOp | qmm.QuantConvOp)]


def epilogue(made: ModuleOp) -> list[str]:
    block = contractions(made)[0].epilogue_block
    return [] if block is None else [op.name for op in block.ops if op.name != "arith.constant"]


@pytest.mark.parametrize(("data", "weight"), TYPES)
@pytest.mark.parametrize(
    "zeros", [("low", "high"), ("high", "low"), ("one", "each"), (None, "one")]
)
def test_constants(data: IntegerType, weight: IntegerType, zeros: Any) -> None:
    for transpose_b in (False, True):
        made, values = matmul((data, weight), zeros, transpose_b=transpose_b)
        expanded(made, values)


@pytest.mark.parametrize(("data", "weight"), TYPES)
def test_known_at_run_time(data: IntegerType, weight: IntegerType) -> None:
    for zeros, per_row in (
        (("one", "high"), False),
        (("low", "each"), False),
        (("one", "each"), True),
    ):
        for constant_b in (True, False):
            made, values = matmul(
                (data, weight), zeros, run_time=True, constant_b=constant_b, per_row=per_row
            )
            expanded(made, values)


@pytest.mark.parametrize("batch", [((2, 3), (2, 3)), ((4,), ()), ((1,), (3,)), ((2, 1), (3,))])
@pytest.mark.parametrize("run_time", [False, True])
def test_batches(batch: Any, run_time: bool) -> None:
    for constant_b, transpose_b, per_row in product((False, True), repeat=3):
        made, values = matmul(
            batch=batch,
            run_time=run_time,
            constant_b=constant_b,
            transpose_b=transpose_b,
            per_row=per_row,
        )
        expanded(made, values)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 300, 4), (7, 1, 1), (2, 0, 3), (5, 4, 5)])
def test_shapes(shape: Any) -> None:
    for run_time in (False, True):
        made, values = matmul(
            shape=shape, run_time=run_time, bias=np.arange(shape[2], dtype=np.int32)
        )
        expanded(made, values)


def test_constants_are_one_addition_with_the_bias() -> None:
    made, values = matmul((ui8, i8), ("high", None), bias=np.arange(5, dtype=np.int32) * 1000)
    expanded(made, values)
    assert epilogue(made) == ["arith.addi", "qmm.yield"]
    assert names(made)["linalg.generic"] == 0
    assert len(only(made, qmm.QuantMatmulOp).epilogue_operands) == 1


def test_a_run_time_number_is_one_addition_with_the_bias() -> None:
    """`bias - za * sums` of N elements, outside of the product."""
    made, values = matmul(
        (ui8, i8), ("one", None), run_time=True, bias=np.arange(5, dtype=np.int32)
    )
    expanded(made, values)
    assert epilogue(made) == ["arith.addi", "qmm.yield"]
    assert names(made)["linalg.generic"] == 1


def test_a_zero_point_of_a_row_times_the_sum_of_a_column() -> None:
    made, values = matmul((i8, i8), ("one", None), run_time=True, per_row=True)
    expanded(made, values)
    assert epilogue(made) == ["arith.muli", "arith.addi", "qmm.yield"]


def test_row_sums_are_shared() -> None:
    """Two products of one activation with weights whose zero points differ."""

    def build(node: Node, a: Any) -> Any:
        results: list[Any] = []
        for i in (0, 1):
            builder = node(f"product{i}")
            b = builder.constant(integers(i8, (9, 5), i), i8)
            zero = builder.constant(integers(i8, (5,), 10 + i), i8)
            op = qmm.QuantMatmulOp(a, b, b_zero_point=zero)
            results.append(builder.insert(op).result)
        return results

    made = module(build, (3, 9), types=[ui8])
    apply(made, "qmm-check-accumulators")
    expanded(made, [integers(ui8, (3, 9))])
    (sums,) = [op for op in ops(made) if isinstance(op, linalg.GenericOp)]
    assert all(sums.results[0] in op.epilogue_operands for op in contractions(made))


@pytest.mark.parametrize(
    ("weight", "zero", "stored"),
    [(ui8, 128, i8), (ui8, 65, i8), (ui8, 63, ui8), (ui8, 255, i8), (ui4, 8, i4), (ui4, 3, ui4)],
)
def test_unsigned_weights_become_signed(
    weight: IntegerType, zero: int, stored: IntegerType
) -> None:
    made, values = _tied(weight, (zero, zero))
    expanded(made, values)
    assert {op.b.type.element_type for op in contractions(made)} == {stored}
    assert names(made)["qmm.constant"] == 1
    # Nothing of a is summed up where the zero point is the middle.
    assert names(made)["linalg.generic"] == (0 if zero in (128, 8) else 2)


def test_all_that_reads_a_weight_or_none() -> None:
    made, values = _tied(ui8, (128, 0))
    expanded(made, values)
    assert {op.b.type.element_type for op in contractions(made)} == {ui8}
    assert names(made)["qmm.constant"] == 1


def _tied(weight: IntegerType, zeros: tuple[int, int]) -> tuple[ModuleOp, list[Array]]:
    """Products of two activations with the same constant."""

    def build(node: Node, *a: Any) -> Any:
        shared = node("weight").constant(integers(weight, (9, 5)), weight)
        results: list[Any] = []
        for i, zero in enumerate(zeros):
            builder = node(f"product{i}")
            zero_type = zero_point_type(weight)
            given = builder.constant(np.array(zero, numpy_dtype(zero_type)), zero_type)
            op = qmm.QuantMatmulOp(a[i], shared, b_zero_point=given if zero else None)
            results.append(builder.insert(op).result)
        return results

    made = module(build, (3, 9), (2, 9), types=[ui8, ui8])
    apply(made, "qmm-check-accumulators")
    return made, [integers(ui8, (3, 9)), integers(ui8, (2, 9))]


# Convolutions.


def conv(
    types: tuple[IntegerType, IntegerType] = (ui8, i8),
    x_zero: int | None = 7,
    w_zero: Any = None,
    *,
    shape: tuple[tuple[int, ...], tuple[int, ...]] = ((2, 3, 7, 6), (4, 3, 3, 2)),
    run_time: bool = False,
    **window: Any,
) -> tuple[ModuleOp, list[Array]]:
    (x_shape, w_shape), (data, weight) = shape, types
    rank = len(x_shape) - 2
    window = {
        "strides": [1] * rank,
        "pads": [1] * 2 * rank,
        "dilations": [1] * rank,
        "groups": 1,
    } | window
    values = [integers(data, x_shape, 1)]
    if run_time:
        values.append(np.array(x_zero, values[0].dtype))

    def build(node: Node, x: Any, *rest: Any) -> Any:
        builder = node("conv")
        zero: Any = rest[0] if run_time else None
        if zero is None and x_zero is not None:
            zero = builder.constant(np.array(x_zero, values[0].dtype), data)
        zero_type = zero_point_type(weight)
        w_zeros = None
        if w_zero is not None:
            array = np.asarray(w_zero).astype(numpy_dtype(zero_type))
            w_zeros = builder.constant(array, zero_type)
        op = qmm.QuantConvOp(
            x,
            builder.constant(integers(weight, w_shape, 2), weight),
            x_zero_point=zero,
            w_zero_point=w_zeros,
            **window,
        )
        result = builder.insert(op).result
        bias = np.arange(w_shape[0], dtype=np.int32).reshape(-1, *(1,) * rank)
        return builder.elementwise(
            [result, builder.constant(bias, i32)], i32, lambda s, e: s(arith.AddiOp, e[0], e[1])
        )

    made = module(build, *(v.shape for v in values), types=[data] * len(values))
    apply(made, "qmm-canonicalize", "qmm-fuse-epilogue", "qmm-check-accumulators")
    return made, values


@pytest.mark.parametrize(("data", "weight"), TYPES)
def test_convolutions(data: IntegerType, weight: IntegerType) -> None:
    for x_zero in (*integer_range(data), 1):
        made, values = conv((data, weight), x_zero)
        expanded(made, values)
        assert only(made, qmm.QuantConvOp).padding == (x_zero or None)
        assert epilogue(made) == ["arith.addi", "qmm.yield"]


@pytest.mark.parametrize(
    "window",
    [
        {"pads": [2, 0, 1, 3]},
        {"strides": [2, 3], "pads": [1, 1, 0, 2]},
        {"dilations": [2, 1], "pads": [3, 3, 3, 3]},
        {"shape": ((1, 4, 11), (3, 4, 3)), "pads": [1, 2], "strides": [2]},
        {"shape": ((1, 4, 1, 1), (3, 4, 3, 3)), "pads": [1, 1, 1, 1]},
    ],
)
def test_windows(window: dict[str, Any]) -> None:
    made, values = conv((i8, ui8), -100, 128, **window)
    expanded(made, values)
    op = only(made, qmm.QuantConvOp)
    assert op.padding == -100
    assert op.w.type.element_type == i8


def test_no_padding_needs_no_value() -> None:
    for run_time in (False, True):
        made, values = conv(pads=[0, 0, 0, 0], run_time=run_time)
        expanded(made, values)
        assert only(made, qmm.QuantConvOp).padding is None
        assert epilogue(made) == ["arith.addi", "qmm.yield"]


@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [2, 0, 1, 3]])
def test_padding_that_is_known_at_run_time(pads: list[int]) -> None:
    """x is copied between margins of it."""
    made, values = conv(x_zero=200, pads=pads, run_time=True)
    expanded(made, values)
    op = only(made, qmm.QuantConvOp)
    assert op.padding is None
    assert op.x.type.get_shape() == (2, 3, 7 + pads[0] + pads[2], 6 + pads[1] + pads[3])
    assert epilogue(made) == ["arith.addi", "qmm.yield"]


def test_refused_with_a_reason() -> None:
    made, values = conv(w_zero=[0, 1, 2, 3])
    before = run(made, values)
    apply(made, PASS)
    op = only(made, qmm.QuantConvOp)
    assert op.x_zero_point is not None
    assert "the weight has a zero point" in op.attributes["qmm.reason"].data
    assert np.array_equal(before[0], run(made, values)[0])


@pytest.mark.parametrize("x_zero", [0, 7, 255])
@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise(x_zero: int, multiplier: int) -> None:
    """One correction per output channel, and the padding is the zero point."""
    shape = ((2, 4, 7, 6), (4 * multiplier, 1, 3, 3))
    made, values = conv(x_zero=x_zero, shape=shape, groups=4, pads=[1, 0, 2, 1])
    before = run(made, values)
    apply(made, PASS)
    op = only(made, qmm.QuantConvOp)
    assert op.x_zero_point is None
    assert (op.padding or 0) == x_zero
    assert np.array_equal(before[0], run(made, values)[0])


def test_depthwise_with_a_zero_point_in_the_middle() -> None:
    made, values = conv((i8, ui8), -128, 128, shape=((1, 4, 7, 6), (4, 1, 3, 3)), groups=4)
    before = run(made, values)
    apply(made, PASS)
    op = only(made, qmm.QuantConvOp)
    assert op.x_zero_point is None and op.w_zero_point is None
    assert op.w.type.element_type == i8
    assert np.array_equal(before[0], run(made, values)[0])


@pytest.mark.parametrize(
    ("weight", "options"),
    [((4, 2, 3, 3), {"groups": 2}), ((4, 1, 3, 3), {"groups": 4, "run_time": True})],
    ids=["groups of channels", "known at run time"],
)
def test_groups_stay(weight: tuple[int, ...], options: dict[str, Any]) -> None:
    made, values = conv(shape=((1, 4, 7, 6), weight), **options)
    before = run(made, values)
    apply(made, PASS)
    op = only(made, qmm.QuantConvOp)
    assert op.x_zero_point is not None
    assert op.padding is None
    assert "qmm.reason" not in op.attributes
    assert np.array_equal(before[0], run(made, values)[0])


@pytest.mark.parametrize(
    ("target", "changed"), [("host", False), ("threads", True), ("spike", True)]
)
def test_only_for_kernels_of_packed_bytes(target: str, changed: bool) -> None:
    made, _ = matmul()
    apply(made, f"{PASS}{{target={target}}}")
    assert changed == (contractions(made)[0].a_zero_point is None)
