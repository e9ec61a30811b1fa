"""`qmm-lower-quantization`: what becomes of quantise, dequantise, sums and look-ups; saturation, ties, NaN."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import TensorType, f32, i32, i64
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, i16, integer_range, ui4, ui8, ui16
from qfold.interpreters import run
from tests.transforms.graphs import (
    Node,
    apply,
    assert_same,
    check,
    inputs_for,
    integers,
    module,
    names,
    quantization,
    weight,
)

LOWER = "qmm-lower-quantization"
STORAGES = [i8, ui8, i4, ui4, i16, ui16]
GRANULARITIES = [("tensor", 0, 1), ("axis", 0, 1), ("axis", 2, 1), ("block", 2, 3), ("block", 1, 2)]


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("granularity,axis,block", GRANULARITIES)
def test_quantize_and_dequantize(storage, granularity, axis, block):
    shape = (2, 3, 5)
    quant = quantization(storage, shape, granularity, axis, block)

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        q = node("QuantizeLinear").insert(qmm.QuantizeOp(x, quant)).result
        return [q, node("DequantizeLinear").insert(qmm.DequantizeOp(q, quant)).result]

    made = module(build, shape)
    (x,) = inputs_for(made)
    check(made, LOWER, inputs=[x * 1000])
    assert not any(name.startswith("qmm.") for name in names(made) if name != "qmm.constant")


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_quantize_at_the_edges(storage):
    """Ties go to even, both ends saturate, NaN is the zero point: in f32 as ONNX computes, whatever the zero point."""
    low, high = integer_range(storage)
    zero = high - 1
    steps = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        np.inf,
        -np.inf,
        np.nan,
        1e30,
        -1e30,
        low - zero,
        high - zero,
    ]
    x = np.asarray(steps, np.float32) * np.float32(0.25)
    quant = qmm.QuantAttr.get(storage, 0.25, zero)
    made = module(
        lambda node, v: node("QuantizeLinear").insert(qmm.QuantizeOp(v, quant)).result, x.shape
    )
    apply(made, LOWER)
    (found,) = run(made, [x])
    far = 2 * (high - low)
    rounded = np.asarray([0, 2, 2, 0, -2, far, -far, 0, far, -far, low - zero, high - zero])
    assert np.asarray(found).tolist() == np.clip(rounded + zero, low, high).tolist()


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("with_zero", [False, True])
def test_parameters_known_at_run_time(per_row, with_zero):
    rows = (2, 3) if per_row else ()

    def build(node: Node, x: SSAValue, scale: SSAValue, zero: SSAValue) -> list[SSAValue]:
        parameters = {"runtime_scale": scale, "runtime_zero_point": zero if with_zero else None}
        q = node("Q").insert(qmm.QuantizeOp(x, None, storage=i8, **parameters)).result
        return [q, node("DQ").insert(qmm.DequantizeOp(q, None, **parameters)).result]

    made = module(build, (2, 3, 5), rows, rows, types=[f32, f32, i8])
    x, _, zero = inputs_for(made)
    scale = np.abs(np.random.default_rng(5).standard_normal(rows)).astype(np.float32) + 0.1
    check(made, LOWER, inputs=[x, scale, zero])


@pytest.mark.parametrize("block", [None, 1, 2, 3, 5, 7])
@pytest.mark.parametrize("k", [1, 5, 6])
def test_row_sum(block, k):
    made = module(lambda node, x: node("n").insert(qmm.RowSumOp(x, block)).result, (2, 3, k))
    check(made, LOWER)
    assert names(made)["qmm.row_sum"] == 0


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize(
    "granularity,axis,block",
    [("tensor", 0, 1), ("axis", 0, 1), ("axis", 1, 1), ("block", 0, 3), ("block", 1, 2)],
)
def test_gather(storage, granularity, axis, block):
    shape = (7, 5)
    quant = quantization(storage, shape, granularity, axis, block)
    table = qmm.WeightAttr.from_array(integers(storage, shape), storage)
    made = module(
        lambda node, i: node("Gather").insert(qmm.DequantGatherOp(i, table, quant)).result,
        (2, 2),
        types=[i64],
    )
    check(made, LOWER, inputs=[np.asarray([[0, 6], [-1, -7]])])


def test_a_constant_that_nothing_fused_stays_integers():
    """It is read as int8 by whatever adds it, and no f32 constant of its size exists."""
    quant = quantization(i8, (4, 8), "axis", 1)
    made = module(lambda node, x: weight(node, i8, (4, 8), quant), ())
    before = run(made, inputs_for(made), domain="f64")
    apply(made, "qmm-canonicalize", LOWER, "qmm-fold-constants", "qmm-fuse-elementwise")
    assert_same(before, run(made, inputs_for(made), domain="f64"))
    assert names(made)["linalg.generic"] == 1
    constants = [op.value.type for op in made.walk() if isinstance(op, qmm.ConstantOp)]
    assert constants == [TensorType(i8, [4, 8])]


def test_dequantize_of_sums():
    """i32 needs no widening; per axis neither."""
    for scale, axis in ((0.25, None), ([0.5, 0.25, 2.0], 1)):
        quant = qmm.QuantAttr.get(i32, np.asarray(scale, np.float32), axis=axis)

        def build(node: Node, q: SSAValue, quant: qmm.QuantAttr = quant) -> SSAValue:
            return node("DequantizeLinear").insert(qmm.DequantizeOp(q, quant)).result

        made = module(build, (2, 3), types=[i32])
        before = run(made, [np.array([[1, -2, 70000], [5, 6, -(2**31)]], np.int32)])
        apply(made, LOWER)
        made.verify()
        assert_same(run(made, [np.array([[1, -2, 70000], [5, 6, -(2**31)]], np.int32)]), before)
