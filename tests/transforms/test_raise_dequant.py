"""`qmm-raise-dequant`: the arith forms of a dequantise, and look-alikes that are not one."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.element_types import i8, i32, ui8
from qfold.ir.builder import ScalarBuilder
from tests.transforms.graphs import Node, check, integers, module, names, only

RAISE = "qmm-raise-dequant"
SHAPE = (6, 3)


def raised(build, *, fuses: bool = True):
    """The module after raising and fusing, the weight read by a matmul."""

    def whole(node: Node, x: SSAValue) -> SSAValue:
        return node("MatMul").insert(qmm.MatmulOp(x, build(node))).result

    made = module(whole, (4, 6))
    check(made, RAISE, "qmm-fuse-dequant")
    assert names(made)["qmm.dequant_matmul"] == int(fuses)
    if fuses:
        assert names(made)["qmm.matmul"] == 0
    return made


def sitofp(b: ScalarBuilder, value: SSAValue) -> SSAValue:
    return b(arith.SIToFPOp, value, f32)


def test_one_generic_with_captured_numbers():
    def build(node: Node) -> SSAValue:
        def body(b, e):
            wide = b(arith.ExtSIOp, e[0], i32)
            return b(
                arith.MulfOp,
                b.constant(0.25, f32),
                sitofp(b, b(arith.SubiOp, wide, b.constant(7, i32))),
            )

        return node("DQ").elementwise([node("w").constant(integers(i8, SHAPE))], f32, body)

    op = only(raised(build), qmm.DequantMatmulOp)
    assert op.quant == qmm.QuantAttr.get(i8, 0.25, 7)


@pytest.mark.parametrize("axis", [0, 1])
def test_several_generics_with_broadcast_constants(axis):
    parameters = SHAPE[axis]
    zeros = np.full(parameters, 3, np.float32)
    scales = np.linspace(0.5, 1, parameters, dtype=np.float32)
    view = (-1, 1) if axis == 0 else (-1,)

    def build(node: Node) -> SSAValue:
        w = node("w").constant(integers(ui8, SHAPE), ui8)
        x = node("Cast").elementwise([w], f32, lambda b, e: b(arith.UIToFPOp, e[0], f32))
        z = node("z").constant(zeros.reshape(view))
        x = node("Sub").elementwise([x, z], f32, lambda b, e: b(arith.SubfOp, *e))
        s = node("s").constant(scales.reshape(view))
        return node("Mul").elementwise([s, x], f32, lambda b, e: b(arith.MulfOp, *e))

    op = only(raised(build), qmm.DequantMatmulOp)
    assert op.quant.storage == ui8
    # Along K the scale belongs to the activation.
    assert op.quant.granularity == ("tensor" if axis == 0 else "axis")


def test_signless_bits_that_are_zero_extended_are_unsigned():
    bits = integers(i8, SHAPE)

    def build(node: Node) -> SSAValue:
        zero = node("z").constant(np.asarray([200, 100, 5], np.uint8).view(np.int8))

        def body(b, e):
            q, z = b(arith.ExtUIOp, e[0], i32), b(arith.ExtUIOp, e[1], i32)
            return b(arith.MulfOp, sitofp(b, b(arith.SubiOp, q, z)), b.constant(0.5, f32))

        return node("DQ").elementwise([node("w").constant(bits), zero], f32, body)

    op = only(raised(build), qmm.DequantMatmulOp)
    assert op.quant.storage == ui8 and op.weight.raw == bits.tobytes()
    assert op.quant.zero_points.tolist() == [200, 100, 5]


def test_a_transposed_read_is_a_flag():
    def build(node: Node) -> SSAValue:
        w = node("w").constant(integers(i8, SHAPE[::-1]))
        i, j = AffineExpr.dimension(0), AffineExpr.dimension(1)
        scales = node("s").constant(np.asarray([[0.5, 1, 2]], np.float32))
        return node("DQ").generic(
            [(w, AffineMap(2, 0, (j, i))), (scales, AffineMap(2, 0, (AffineExpr.constant(0), j)))],
            node("DQ").empty(SHAPE, f32),
            AffineMap.identity(2),
            ["parallel"] * 2,
            lambda b, e, _: b(arith.MulfOp, sitofp(b, e[0]), e[1]),
        )

    op = only(raised(build), qmm.DequantMatmulOp)
    assert op.transpose_b is not None and op.quant.axis == 0


def test_added_negative_zero_point():
    def build(node: Node) -> SSAValue:
        return node("DQ").elementwise(
            [node("w").constant(integers(i8, SHAPE))],
            f32,
            lambda b, e: b(arith.AddfOp, b.constant(-5.0, f32), sitofp(b, e[0])),
        )

    assert only(raised(build), qmm.DequantMatmulOp).quant == qmm.QuantAttr.get(i8, 1.0, 5)


def difference_read_as_unsigned(b, e):
    wide = b(arith.SubiOp, b(arith.ExtSIOp, e[0], i32), b.constant(3, i32))
    return b(arith.MulfOp, b(arith.UIToFPOp, wide, f32), b.constant(0.5, f32))


def difference_that_wraps(b, e):
    return b(
        arith.MulfOp, sitofp(b, b(arith.SubiOp, e[0], b.constant(100, i8))), b.constant(0.5, f32)
    )


def fractional_zero_point(b, e):
    return b(
        arith.MulfOp, b(arith.SubfOp, sitofp(b, e[0]), b.constant(0.5, f32)), b.constant(0.5, f32)
    )


def negative_scale(b, e):
    return b(arith.MulfOp, sitofp(b, e[0]), b.constant(-0.5, f32))


def zero_point_outside_of_the_type(b, e):
    return b(arith.SubfOp, sitofp(b, e[0]), b.constant(300.0, f32))


def square(b, e):
    x = sitofp(b, e[0])
    return b(arith.MulfOp, x, x)


@pytest.mark.parametrize(
    "body",
    [
        difference_read_as_unsigned,
        difference_that_wraps,
        fractional_zero_point,
        negative_scale,
        zero_point_outside_of_the_type,
        square,
    ],
    ids=lambda f: f.__name__,
)
def test_look_alikes_are_left(body):
    raised(
        lambda node: node("n").elementwise([node("w").constant(integers(i8, SHAPE))], f32, body),
        fuses=False,
    )


def test_two_readers_of_the_cast():
    """The cast with a scale, and the cast alone: both are dequantises."""

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = node("w").constant(integers(i8, SHAPE))
        cast = node("Cast").elementwise([w], f32, lambda b, e: sitofp(b, e[0]))
        half = node("half").constant(np.float32(0.5))
        scaled = node("Mul").elementwise([cast, half], f32, lambda b, e: b(arith.MulfOp, *e))
        return [
            node(f"M{i}").insert(qmm.MatmulOp(x, v)).result for i, v in enumerate((cast, scaled))
        ]

    made = check(module(build, (4, 6)), RAISE, "qmm-fuse-dequant")
    assert names(made) == {"qmm.dequant_matmul": 2, "func.return": 1}
