"""Canonicalisations of `qmm` ops, `qmm-canonicalize`, `qmm-linalg-cse` and `qmm-fold-constants`."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import TensorType, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.transforms.canonicalize import CanonicalizePass

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i8, i64, ui8
from qfold.dialects.qmm import WeightAttr
from qfold.interpreters import run
from qfold.ir.constants import constant_array
from qfold.ir.locations import node_names
from tests.transforms.graphs import (
    Node,
    apply,
    check,
    inputs_for,
    integers,
    module,
    names,
    only,
    ops,
    quantization,
    weight,
)
from tests.transforms.test_fuse_elementwise import add, exp, multiply

CANONICALIZE = "qmm-canonicalize"


@pytest.mark.parametrize("canonicalize", [CANONICALIZE, "canonicalize"])
def test_transposed_operands_of_a_matmul(canonicalize):
    """Stock `canonicalize` does it too: the pattern is the op's own."""

    def build(node: Node, x: SSAValue, y: SSAValue) -> SSAValue:
        left = node("T1").transpose(x, (0, 2, 1))
        right = node("T2").transpose(y, (1, 0))
        return node("MatMul").insert(qmm.MatmulOp(left, right)).result

    made = module(build, (2, 5, 3), (4, 5))
    if canonicalize == CANONICALIZE:
        check(made, CANONICALIZE)
    else:
        CanonicalizePass().apply(Context(), made)
    op = only(made, qmm.MatmulOp)
    assert op.transpose_a is not None and op.transpose_b is not None
    assert node_names(op) == ("MatMul", "T1", "T2")


def test_two_transposed_flags_cancel():
    made = module(
        lambda node, x, y: (
            node("MatMul")
            .insert(qmm.MatmulOp(x, node("T").transpose(y, (1, 0)), transpose_b=True))
            .result
        ),
        (3, 5),
        (5, 4),
    )
    assert only(check(made, CANONICALIZE), qmm.MatmulOp).transpose_b is None


def test_the_key_of_an_attention_keeps_its_rows():
    """[batch, time, head, depth] -> [batch, head, depth, time]: what is left swaps time and head, and depth stays inside."""

    def build(node: Node, q: SSAValue, k: SSAValue) -> SSAValue:
        key = node("T").transpose(k, (0, 2, 3, 1))
        return node("MatMul").insert(qmm.MatmulOp(q, key)).result

    made = check(module(build, (2, 3, 4, 5), (2, 6, 3, 5)), CANONICALIZE)
    assert only(made, qmm.MatmulOp).transpose_b is not None
    assert [int(p) for p in only(made, linalg.TransposeOp).permutation.get_values()] == [0, 2, 1, 3]


def test_transposes_combine():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        there = node("T1").transpose(x, (1, 2, 0))
        return [
            node("T2").transpose(there, (2, 0, 1)),
            node("T3").transpose(there, (1, 2, 0)),
            node("T4").transpose(node("T5").reshape(x, (2, 1, 3, 4)), (1, 0, 2, 3)),
        ]

    made = check(module(build, (2, 3, 4)), CANONICALIZE)
    assert names(made)["linalg.transpose"] == 1
    assert node_names(only(made, linalg.TransposeOp)) == ("T3", "T1")


def test_reshapes_combine():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        flat = node("R1").reshape(x, (24,))
        return [
            node("R2").reshape(flat, (4, 6)),
            node("R3").reshape(node("R4").reshape(flat, (8, 3)), (24,)),
        ]

    made = check(module(build, (4, 6)), CANONICALIZE)
    assert names(made) == {"tensor.collapse_shape": 1, "func.return": 1}


def test_layout_of_constants():
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        a = node("T").transpose(node("a").constant(array), (2, 0, 1))
        b = node("R").reshape(node("b").constant(array), (12, 5))
        c = node("R2").reshape(node("c").constant(array.astype(np.int8), i8), (60,))
        return [a, b, c]

    made = check(module(build, ()), CANONICALIZE)
    assert names(made) == {"qmm.constant": 3, "func.return": 1}


def test_a_weight_is_never_permuted():
    made = module(
        lambda node, x: node("T").transpose(node("w").constant(integers(i8, (6, 5))), (1, 0)), ()
    )
    check(made, CANONICALIZE)
    assert names(made)["linalg.transpose"] == 1


def test_a_dequantised_constant_stays_integers():
    quant = quantization(i8, (6, 5), "axis", 1)

    def build(node: Node, x: SSAValue) -> SSAValue:
        return node("R").reshape(weight(node, i8, (6, 5), quant), (2, 3, 5))

    made = check(module(build, ()), CANONICALIZE, "qmm-fold-constants")
    assert names(made) == {"qmm.constant": 1, "qmm.dequantize": 1, "func.return": 1}
    op = only(made, qmm.DequantizeOp)
    assert op.quant.axis == 2 and op.q.type == TensorType(i8, (2, 3, 5))


def test_requantised_constants_are_integers():
    """DQ -> Q: with the same parameters they cancel, at run time too; with others the constant is computed."""
    first = quantization(i8, (6, 5), "axis", 1)
    second = quantization(ui8, (6, 5), "tensor", zero="middle")

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = weight(node, i8, (6, 5), first)
        runtime = node("DQ").insert(qmm.DequantizeOp(x, first)).result
        return [
            node("Q1").insert(qmm.QuantizeOp(w, first)).result,
            node("Q2").insert(qmm.QuantizeOp(w, second)).result,
            node("Q3").insert(qmm.QuantizeOp(runtime, first)).result,
            node("Q4").insert(qmm.QuantizeOp(runtime, second)).result,
        ]

    made = module(build, (6, 5), types=[i8])
    x = integers(i8, (6, 5), seed=3)
    before = run(made, [x])
    check(made, CANONICALIZE, inputs=[x])
    for a, b in zip(before, run(made, [x]), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))
    assert names(made)["qmm.quantize"] == 1 and names(made)["qmm.dequantize"] == 1


def test_a_scale_that_overflows_does_not_cancel():
    quant = qmm.QuantAttr.get(i8, 3e38)

    def build(node: Node, x: SSAValue) -> SSAValue:
        real = node("DQ").insert(qmm.DequantizeOp(x, quant)).result
        return node("Q").insert(qmm.QuantizeOp(real, quant)).result

    made = module(build, (4,), types=[i8])
    x = np.asarray([1, 2, -3, 0], np.int8)
    (before,) = run(made, [x])
    apply(made, CANONICALIZE)
    assert np.array_equal(np.asarray(before), np.asarray(run(made, [x])[0]))
    assert names(made)["qmm.quantize"] == 1


def test_quantised_float_constant():
    values = np.asarray([[0.5, -1, 2], [np.nan, np.inf, -0.25]], np.float32)
    quant = qmm.QuantAttr.get(i8, 0.5, 3)
    made = module(
        lambda node, x: node("Q").insert(qmm.QuantizeOp(node("c").constant(values), quant)).result,
        (),
    )
    before = run(made, inputs_for(made))
    check(made, CANONICALIZE)
    assert np.array_equal(np.asarray(before[0]), constant_array(ops(made)[-1].operands[0]))


def test_zero_point_of_zero_drops_the_sum():
    def build(node: Node, x: SSAValue) -> SSAValue:
        shape = (6, 4)
        quant = quantization(i8, shape, "axis", 1)
        op = qmm.DequantMatmulOp(
            x,
            WeightAttr.from_array(integers(i8, shape), i8),
            quant,
            hoisted=True,
            row_sum=node("Sum").insert(qmm.RowSumOp(x)).result,
        )
        return node("MatMul").insert(op).result

    made = module(build, (3, 6))
    op = only(made, qmm.DequantMatmulOp)
    op.properties["quant"] = quantization(i8, (6, 4), "axis", 1, zero="none")
    CanonicalizePass().apply(Context(), made)
    made.verify()
    assert names(made) == {"qmm.dequant_matmul": 1, "func.return": 1}


# CSE


def test_equal_generics_are_one_and_name_both_nodes():
    def build(node: Node, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        return [
            add(node, "A", x, y),
            add(node, "B", x, y),
            add(node, "C", y, x),
            multiply(node, "D", x, y),
        ]

    made = check(module(build, (3, 4), (3, 4)), "qmm-linalg-cse")
    assert names(made)["linalg.generic"] == 3 and names(made)["tensor.empty"] == 1
    assert any(set(node_names(op)) == {"A", "B"} for op in ops(made))


def test_bodies_and_maps_tell_generics_apart():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        results = []
        for value in (1.0, 2.0):
            results.append(
                node("n").elementwise(
                    [x], f32, lambda b, e, v=value: b(arith.AddfOp, e[0], b.constant(v, f32))
                )
            )
        results.append(node("n").transpose(x, (1, 0)))
        return results

    made = check(module(build, (3, 3)), "qmm-linalg-cse")
    assert names(made)["linalg.generic"] == 2


def test_dead_ops_go():
    def build(node: Node, x: SSAValue) -> SSAValue:
        node("dead").insert(qmm.MatmulOp(exp(node, "dead", x), x))
        node("dead").fill((3, 3), f32, 1.0)
        return x

    made = check(module(build, (3, 3)), "qmm-linalg-cse")
    assert names(made) == {"func.return": 1}


# Constant folding


def test_arithmetic_on_constants_is_evaluated():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        a = node("a").constant(np.arange(24, dtype=np.float32).reshape(4, 6))
        b = exp(node, "Exp", a)
        c = node("Sum").reduce(b, [1], 0.0, lambda s, e, acc: s(arith.AddfOp, acc, e))
        i = node("i").constant(np.arange(6, dtype=np.int64))
        j = node("j").elementwise([i, i], i64, lambda s, e: s(arith.MuliOp, *e))
        return [add(node, "Add", x, node("T").transpose(b, (1, 0))), c, j]

    made = module(build, (6, 4))
    before = run(made, inputs_for(made))
    assert names(made)["linalg.generic"] == 4
    apply(made, "qmm-fold-constants")
    for x, y in zip(before, run(made, inputs_for(made)), strict=True):
        assert np.array_equal(np.asarray(x), np.asarray(y))
    assert names(made)["linalg.generic"] == 1  # what reads the input


def test_limit_and_narrow_integers():
    quant = quantization(i8, (8, 8), "tensor")

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        big = exp(node, "Exp", node("big").constant(np.ones((100, 100), np.float32)))
        widened = node("Cast").elementwise(
            [node("w").constant(integers(i8, (8, 8)))],
            f32,
            lambda b, e: b(arith.SIToFPOp, e[0], f32),
        )
        return [big, widened, weight(node, i8, (8, 8), quant)]

    made = check(module(build, ()), "qmm-lower-quantization", "qmm-fold-constants")
    assert names(made)["linalg.generic"] == 3


def test_copies_vanish():
    def build(node: Node, x: SSAValue) -> SSAValue:
        identity = AffineMap.identity(2)
        copy = node("Identity").generic(
            [(x, identity)],
            node("n").empty((3, 4), f32),
            identity,
            ["parallel"] * 2,
            lambda b, e, _: e[0],
        )
        return exp(node, "Exp", copy)

    made = check(module(build, (3, 4)), CANONICALIZE)
    assert names(made)["linalg.generic"] == 1
    assert isinstance(ops(made)[-1], func.ReturnOp)


@pytest.mark.parametrize("zeros,left", [([0, 0, 0], None), ([5, 5, 5], ()), ([5, 6, 5], (3,))])
def test_zero_points_of_integer_products(zeros: list[int], left: tuple[int, ...] | None) -> None:
    """A zero point of 0 goes, equal ones become one, and a transposed second operand is read as it lies."""

    def build(node: Node, a: SSAValue, b: SSAValue) -> SSAValue:
        builder = node("product")
        zero = builder.constant(np.array(zeros, np.int8))
        turned = builder.transpose(b, [1, 0])
        return builder.insert(qmm.QuantMatmulOp(a, turned, b_zero_point=zero)).result

    made = module(build, (2, 4), (3, 4), types=[i8, i8])
    check(
        made,
        "qmm-canonicalize",
        inputs=[np.full((2, 4), -7, np.int8), np.arange(12, dtype=np.int8).reshape(3, 4)],
    )
    (op,) = [o for o in made.walk() if isinstance(o, qmm.QuantMatmulOp)]
    assert op.transpose_b is not None and not isinstance(op.b.owner, linalg.TransposeOp)
    found = None if op.b_zero_point is None else shape_of(op.b_zero_point)
    assert found == left
