"""`qmm-check-accumulators`: ranges that hold, and that some input reaches; what does not fit is refused by name."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerType
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, integer_range, numpy_dtype, ui4, ui8
from qfold.dialects.integer_operands import zero_point_type
from qfold.transforms.qmm_check_accumulators import Accumulator, accumulator_of
from tests.transforms.graphs import Array, Node, apply, module

TYPES = list(product((i8, ui8), (i8, ui8, i4, ui4)))


def made(
    k: int,
    types: tuple[IntegerType, IntegerType],
    weight: Array | None = None,
    zeros: tuple[Any, Any] = (None, None),
    transpose_b: bool = False,
) -> Any:
    """A product of an input [1, K] with a constant or with an input [K, 2]; a zero point of "any" is an input."""
    shapes: list[tuple[int, ...]] = [(1, k)]
    elements = [types[0]]
    if weight is None:
        shapes.append((k, 2))
        elements.append(types[1])
    for given, type_ in zip(zeros, types, strict=True):
        if isinstance(given, str):
            shapes.append(())
            elements.append(zero_point_type(type_))

    def build(node: Node, a: Any, *rest: Any) -> Any:
        builder = node("product")
        inputs = iter(rest)
        b = next(inputs) if weight is None else builder.constant(weight, types[1])
        points: list[Any] = []
        for given, type_ in zip(zeros, types, strict=True):
            zero = zero_point_type(type_)
            if isinstance(given, str):
                points.append(next(inputs))
            elif given is None:
                points.append(None)
            else:
                points.append(builder.constant(np.asarray(given).astype(numpy_dtype(zero)), zero))
        op = qmm.QuantMatmulOp(
            a, b, a_zero_point=points[0], b_zero_point=points[1], transpose_b=transpose_b
        )
        return builder.insert(op).result

    return module(build, *shapes, types=elements)


def found(made_: Any) -> Accumulator:
    (op,) = [o for o in made_.walk() if isinstance(o, qmm.QuantMatmulOp)]
    return accumulator_of(op)


@pytest.mark.parametrize("types", TYPES, ids=lambda t: f"{t[0]}x{t[1]}")
@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_range_of_constant_weights_is_what_some_activation_reaches(
    types: tuple[IntegerType, IntegerType], transpose_b: bool
) -> None:
    rng = np.random.default_rng(1)
    (low, high), (w_low, w_high) = (integer_range(t) for t in types)
    z_low, z_high = integer_range(zero_point_type(types[1]))
    for _ in range(4):
        k = 5
        w = rng.integers(w_low, w_high + 1, (k, 2))
        a_zero = int(rng.integers(low, high + 1))
        w_zero = rng.integers(z_low, z_high + 1, 2)
        stored = (w.T if transpose_b else w).astype(numpy_dtype(types[1]))
        range_ = found(made(k, types, stored, (a_zero, w_zero), transpose_b)).sums
        a = np.array(list(product((low, high), repeat=k))) - a_zero
        sums = a @ (w - w_zero)
        assert (range_.low, range_.high) == (sums.min(), sums.max())


@pytest.mark.parametrize("types", TYPES, ids=lambda t: f"{t[0]}x{t[1]}")
@pytest.mark.parametrize("any_a,any_b", list(product((False, True), repeat=2)))
def test_any_integers_and_zero_points(
    types: tuple[IntegerType, IntegerType], any_a: bool, any_b: bool
) -> None:
    ends = [integer_range(t) for t in types]
    zero_ends = [
        integer_range(zero_point_type(t)) if z else (0, 0)
        for t, z in zip(types, (any_a, any_b), strict=True)
    ]
    corners = [(a - za) * (b - zb) for a, b in product(*ends) for za, zb in product(*zero_ends)]
    accumulator = found(made(7, types, zeros=("any" if any_a else None, "any" if any_b else None)))
    assert (accumulator.sums.low, accumulator.sums.high) == (7 * min(corners), 7 * max(corners))
    k = accumulator.largest_k
    assert k * min(corners) >= -(2**31) and k * max(corners) < 2**31
    assert (k + 1) * min(corners) < -(2**31) or (k + 1) * max(corners) >= 2**31


@pytest.mark.parametrize(
    "types,zeros,largest",
    [
        ((i8, i8), (None, None), 131071),
        ((ui8, i8), (None, None), 65793),
        ((ui8, ui8), ("any", "any"), 33025),
    ],
)
def test_the_largest_k(types: Any, zeros: Any, largest: int) -> None:
    apply(made(largest, types, zeros=zeros), "qmm-check-accumulators")
    message = f"product.*sums of K = {largest + 1} products of {types[0]} x {types[1]}.*holds any {largest} products"
    with pytest.raises(PassFailedException, match=message):
        apply(made(largest + 1, types, zeros=zeros), "qmm-check-accumulators")


def test_what_is_in_the_weights_counts() -> None:
    """K far beyond what the types allow, of weights that are small."""
    k = 300_000
    w = np.ones((k, 2), np.int8)
    checked = apply(made(k, (ui8, i8), w), "qmm-check-accumulators")
    (op,) = [o for o in checked.walk() if isinstance(o, qmm.QuantMatmulOp)]
    assert "high = 76500000" in str(op.attributes["qmm.accumulator"])
    w[:, 1] = 127
    with pytest.raises(PassFailedException, match="may reach 9715500000"):
        apply(made(k, (ui8, i8), w), "qmm-check-accumulators")
