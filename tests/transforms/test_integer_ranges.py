"""Ranges of integer tensors: what contractions, constants and bodies say, and no more than that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith, func
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import i8, i32, ui8
from qfold.ir.builder import TensorBuilder
from qfold.transforms.integer_ranges import IntegerRanges
from qfold.transforms.qmm_check_accumulators import Range
from qfold.transforms.quantization_scalars import widened
from tests.transforms.graphs import Node, apply, module, only

WHOLE = Range(-(2**31), 2**31 - 1)
WEIGHT = np.array([[100, -1], [28, 2]], np.int8)


def found(build: Any, *inputs: tuple[Any, Sequence[int]]) -> Range:
    """The range of what a function returns."""
    made = module(build, *(s for _, s in inputs), types=[t for t, _ in inputs])
    function = made.body.block.first_op
    assert isinstance(function, func.FuncOp)
    last = function.body.block.last_op
    assert last is not None
    return IntegerRanges().of(last.operands[0])


def product(b: TensorBuilder, x: SSAValue) -> SSAValue:
    """Sums between -128 * 128 and 127 * 128."""
    return b.insert(qmm.QuantMatmulOp(x, b.constant(WEIGHT, i8))).result


def added(b: TensorBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.elementwise([x, y], i32, lambda s, e: s(arith.AddiOp, e[0], e[1]))


def test_of_sums_and_a_bias() -> None:
    def build(node: Node, x: Any) -> Any:
        b = node("n")
        return added(b, product(b, x), b.constant(np.array([-7, 1000], np.int32), i32))

    assert found(build, (i8, (4, 2))) == Range(-128 * 128 - 7, 127 * 128 + 1000)


def test_of_an_epilogue() -> None:
    def build(node: Node, x: Any) -> Any:
        b = node("n")
        return added(b, product(b, x), b.constant(np.array([-7, 1000], np.int32), i32))

    made = module(build, (4, 2), types=[i8])
    apply(made, "qmm-fuse-epilogue")
    result = only(made, qmm.QuantMatmulOp).result
    assert IntegerRanges().of(result) == Range(-128 * 128 - 7, 127 * 128 + 1000)


def test_through_views_and_concatenation() -> None:
    def build(node: Node, x: Any) -> Any:
        b = node("n")
        left = b.transpose(product(b, x), [1, 0])
        right = b.constant(np.array([[5, 5, 5, 20000]], np.int32), i32)
        return b.reshape(b.concat([left, right], 0), [12])

    assert found(build, (i8, (4, 2))) == Range(-128 * 128, 20000)


def test_padding_with_a_value() -> None:
    def build(node: Node, x: Any) -> Any:
        b = node("n")
        return b.pad(product(b, x), [1, 0], [0, 0], 100000)

    assert found(build, (i8, (4, 2))) == Range(-128 * 128, 100000)


@pytest.mark.parametrize(("storage", "low", "high"), [(i8, -128, 127), (ui8, 0, 255)])
def test_bytes_that_are_extended(storage: Any, low: int, high: int) -> None:
    def build(node: Node, x: Any) -> Any:
        def body(s: Any, e: Any) -> Any:
            wide = widened(s, e[0], storage)
            return s(arith.SubiOp, s(arith.MuliOp, wide, s.constant(-3, i32)), s.constant(1, i32))

        return node("n").elementwise([x], i32, body)

    assert found(build, (storage, (5,))) == Range(-3 * high - 1, -3 * low - 1)


def test_sums_over_an_axis() -> None:
    """From 7 on, 6 differences of a byte from 128."""

    def build(node: Node, x: Any) -> Any:
        return node("n").reduce(
            x,
            [1],
            7,
            lambda s, e, acc: s(arith.AddiOp, acc, e),
            result_type=i32,
            element=lambda s, e: s(arith.SubiOp, widened(s, e, ui8), s.constant(128, i32)),
        )

    assert found(build, (ui8, (4, 6))) == Range(7 - 6 * 128, 7 + 6 * 127)


def test_what_may_wrap_is_not_known() -> None:
    def build(node: Node, x: Any) -> Any:
        b = node("n")
        return added(b, product(b, x), b.constant(np.array([2**31 - 1], np.int32), i32))

    assert found(build, (i8, (4, 2))) == WHOLE


def test_an_input_is_not_known() -> None:
    def build(node: Node, x: Any) -> Any:
        b = node("n")
        return added(b, x, b.constant(np.array([1], np.int32), i32))

    assert found(build, (i32, (4, 2))) == WHOLE


def test_sums_that_are_too_long() -> None:
    def build(node: Node, x: Any, y: Any) -> Any:
        return node("n").insert(qmm.QuantMatmulOp(x, y)).result

    assert found(build, (i8, (1, 200000)), (i8, (200000, 1))) == WHOLE
