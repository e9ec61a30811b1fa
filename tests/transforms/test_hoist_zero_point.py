"""`qmm-hoist-zero-point`: centring, sharing of sums, and when it must leave things alone."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i4, i8, i16, ui4, ui8, ui16
from qfold.dialects.qmm import WeightAttr
from qfold.ir.locations import node_names
from tests.transforms.graphs import (
    Node,
    apply,
    check,
    integers,
    module,
    names,
    only,
    ops,
    quantization,
)

HOIST = "qmm-hoist-zero-point"


def dequant_matmul(
    node: Node, x: SSAValue, storage: IntegerType, shape: tuple[int, int], *how, seed=0, **kwargs
) -> SSAValue:
    quant = quantization(storage, shape, *how, **kwargs)
    weight = WeightAttr.from_array(integers(storage, shape, seed), storage)
    return node(f"MatMul{seed}").insert(qmm.DequantMatmulOp(x, weight, quant)).result


def test_query_key_and_value_share_one_sum():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        return [dequant_matmul(node, x, i8, (6, 4), "axis", 1, seed=s) for s in range(3)]

    made = check(module(build, (2, 3, 6)), HOIST)
    assert names(made) == {"qmm.row_sum": 1, "qmm.dequant_matmul": 3, "func.return": 1}
    assert node_names(only(made, qmm.RowSumOp)) == ("MatMul0", "MatMul1", "MatMul2")
    assert all(op.hoisted is not None for op in ops(made) if isinstance(op, qmm.DequantMatmulOp))


def test_sums_of_different_blocks_are_not_shared():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        return [
            dequant_matmul(node, x, i8, (7, 4), "block", 0, 3, seed=0),
            dequant_matmul(node, x, i8, (7, 4), "block", 0, 2, seed=1),
            dequant_matmul(node, x, i8, (7, 4), "block", 0, 3, seed=2),
            dequant_matmul(node, x, i8, (7, 4), "tensor", zero="low", seed=3),
        ]

    made = check(module(build, (2, 7)), HOIST)
    shapes = sorted(shape_of(op.result) for op in ops(made) if isinstance(op, qmm.RowSumOp))
    assert shapes == [(2,), (2, 3), (2, 4)]


def test_symmetric_weights_need_no_sum():
    made = module(
        lambda node, x: dequant_matmul(node, x, i8, (6, 4), "axis", 1, zero="none"), (2, 6)
    )
    check(made, HOIST)
    assert names(made) == {"qmm.dequant_matmul": 1, "func.return": 1}
    assert only(made, qmm.DequantMatmulOp).hoisted is not None


@pytest.mark.parametrize("unsigned,signed", [(ui8, i8), (ui4, i4), (ui16, i16)], ids=str)
@pytest.mark.parametrize("shape", [(6, 4), (5, 3)])
@pytest.mark.parametrize("granularity,axis", [("tensor", 0), ("axis", 1), ("block", 0)])
def test_middle_of_an_unsigned_type_is_centred(unsigned, signed, shape, granularity, axis):
    made = module(
        lambda node, x: dequant_matmul(
            node, x, unsigned, shape, granularity, axis, 2, zero="middle"
        ),
        (2, shape[0]),
    )
    before = only(made, qmm.DequantMatmulOp)
    middle = 1 << (unsigned.width.data - 1)
    expected = before.weight.array().astype(np.int64) - middle
    check(made, HOIST)
    after = only(made, qmm.DequantMatmulOp)
    assert names(made)["qmm.row_sum"] == 0
    assert after.quant.storage == signed and after.quant.is_symmetric
    assert np.array_equal(after.weight.array(), expected)
    # Odd counts of four-bit integers keep their padding at zero: equal contents hash alike.
    assert after.weight.raw == WeightAttr.from_array(expected, signed).raw


@pytest.mark.parametrize(("zero", "signed"), [("low", False), ("high", True), ("mixed", None)])
def test_unsigned_weights_are_read_in_the_form_with_the_smaller_zero_points(zero, signed):
    """255 is 127 away from the middle of ui8; 0 is better left where it is."""
    made = module(
        lambda node, x: dequant_matmul(node, x, ui8, (6, 4), "axis", 1, zero=zero), (2, 6)
    )
    zeros = only(made, qmm.DequantMatmulOp).quant.zero_points
    check(made, HOIST)
    op = only(made, qmm.DequantMatmulOp)
    if signed is None:
        signed = np.abs(zeros - 128).sum() < zeros.sum()
    assert op.quant.storage == (i8 if signed else ui8)
    assert np.array_equal(op.quant.zero_points, zeros - 128 if signed else zeros)
    assert names(made)["qmm.row_sum"] == (0 if zero == "low" else 1)


def test_bytes_that_another_reader_wants_as_they_are_stay():
    """Centring for one reader alone would store the weight twice."""

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        a = dequant_matmul(node, x, ui8, (6, 4), "tensor", zero="middle")
        b = dequant_matmul(node, x, ui8, (6, 4), "tensor", zero="low")
        return [a, b]

    made = check(module(build, (2, 6)), HOIST)
    weights = {op.weight.sha256 for op in ops(made) if isinstance(op, qmm.DequantMatmulOp)}
    assert len(weights) == 1 and names(made)["qmm.row_sum"] == 1
    assert {op.quant.storage for op in ops(made) if isinstance(op, qmm.DequantMatmulOp)} == {ui8}


def test_a_dequantise_that_stays_is_centred_along():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        quant = quantization(ui8, (6, 6), "tensor", zero="middle")
        weight = WeightAttr.from_array(integers(ui8, (6, 6)), ui8)
        q = node("w").insert(qmm.ConstantOp(weight)).result
        whole = node("DequantizeLinear").insert(qmm.DequantizeOp(q, quant)).result
        y = node("MatMul").insert(qmm.DequantMatmulOp(x, weight, quant)).result
        return [y, whole]

    made = check(module(build, (2, 6)), HOIST)
    assert only(made, qmm.ConstantOp).value.sha256 == only(made, qmm.DequantMatmulOp).weight.sha256


def test_twice_is_once():
    made = module(lambda node, x: dequant_matmul(node, x, ui8, (6, 4), "axis", 1), (2, 6))
    once = str(apply(made, HOIST))
    assert str(apply(made, HOIST)) == once


def test_epilogue_survives():
    def build(node: Node, x: SSAValue) -> SSAValue:
        y = dequant_matmul(node, x, i8, (6, 4), "axis", 1)
        bias = node("bias").constant(np.arange(4, dtype=np.float32))
        return node("Add").elementwise([y, bias], f32, lambda b, e: b(arith.AddfOp, *e))

    made = check(module(build, (2, 6)), "qmm-fuse-epilogue", HOIST)
    assert names(made)["linalg.generic"] == 0
    op = only(made, qmm.DequantMatmulOp)
    assert op.epilogue is not None and len(op.epilogue_operands) == 1


def test_borders_sum_what_lies_inside():
    """A constant folded into the bias would be wrong where the window hangs over the edge."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        shape = (4, 2, 3, 3)
        weight = WeightAttr.from_array(integers(i8, shape), i8)
        quant = quantization(i8, shape, "axis", 0, zero="high")
        op = qmm.DequantConvOp(
            x, weight, quant, strides=(1, 1), pads=(2, 2, 2, 2), dilations=(1, 1), groups=1
        )
        return node("Conv").insert(op).result

    made = check(module(build, (1, 2, 4, 4)), HOIST)
    sums = only(made, qmm.WindowSumOp)
    assert shape_of(sums.result) == (1, 1, 6, 6)


@pytest.mark.parametrize(("rows", "hoisted"), [(1, True), (3, True), (4, False), (9, False)])
def test_a_target_hoists_where_it_is_cheaper(rows, hoisted):
    """The host widens [6, 4] weights once: 24 subtractions against 6 additions a row."""
    made = module(lambda node, x: dequant_matmul(node, x, i8, (6, 4), "axis", 1), (rows, 6))
    check(made, HOIST + "{target=host}")
    assert (only(made, qmm.DequantMatmulOp).hoisted is not None) == hoisted
    assert names(made)["qmm.row_sum"] == hoisted


def test_readers_of_one_sum_pay_for_it_together():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        return [dequant_matmul(node, x, i8, (6, 4), "axis", 1) for _ in range(3)]

    made = check(module(build, (9, 6)), HOIST + "{target=host}")
    assert names(made)["qmm.row_sum"] == 1 and names(made)["qmm.dequant_matmul"] == 3
    assert all(o.hoisted is not None for o in ops(made) if isinstance(o, qmm.DequantMatmulOp))


def test_symmetric_weights_are_hoisted_for_every_target():
    made = module(
        lambda node, x: dequant_matmul(node, x, i8, (6, 4), "axis", 1, zero="none"), (50, 6)
    )
    check(made, HOIST + "{target=host}")
    assert only(made, qmm.DequantMatmulOp).hoisted is not None


def test_an_unknown_target_is_refused_before_anything_changes():
    made = module(
        lambda node, x: dequant_matmul(node, x, ui8, (6, 4), "tensor", zero="high"), (2, 6)
    )
    before = str(made)
    with pytest.raises(PassFailedException, match="unknown target 'toaster'; known: host"):
        apply(made, HOIST + "{target=toaster}")
    assert str(made) == before
