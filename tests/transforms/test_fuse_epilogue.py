"""`qmm-fuse-epilogue`: what ends up in a contraction's epilogue, and what cannot."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import TensorType, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import i8, ui8
from qfold.dialects.qmm import WeightAttr
from qfold.ir.locations import node_names
from tests.transforms.graphs import Node, check, integers, module, names, only, quantization
from tests.transforms.test_fuse_elementwise import add, exp, multiply, total

FUSE = "qmm-fuse-epilogue"


def matmul(node: Node, x: SSAValue, shape: tuple[int, int]) -> SSAValue:
    weight = WeightAttr.from_array(integers(i8, shape), i8)
    op = qmm.DequantMatmulOp(x, weight, quantization(i8, shape, "axis", 1))
    return node("MatMul").insert(op).result


def test_bias_activation_residual_and_quantisation():
    quant = quantization(ui8, (2, 3, 4), "tensor", zero="middle")

    def build(node: Node, x: SSAValue, bias: SSAValue, residual: SSAValue) -> SSAValue:
        y = add(node, "Add", matmul(node, x, (6, 4)), bias)
        y = node("Relu").elementwise(
            [y, node("zero").fill((), f32, 0.0)], f32, lambda b, e: b(arith.MaximumfOp, *e)
        )
        y = add(node, "Residual", residual, y)
        return node("QuantizeLinear").insert(qmm.QuantizeOp(y, quant)).result

    made = check(module(build, (2, 3, 6), (4,), (2, 3, 4)), "qmm-lower-quantization", FUSE)
    assert names(made) == {"qmm.dequant_matmul": 1, "func.return": 1}
    op = only(made, qmm.DequantMatmulOp)
    assert op.result.type == TensorType(ui8, (2, 3, 4))
    assert [str(m) for m in op.maps] == ["(d0, d1, d2) -> (d2)", "(d0, d1, d2) -> (d0, d1, d2)"]
    assert set(node_names(op)) >= {"MatMul", "Add", "Relu", "Residual", "QuantizeLinear"}


def test_operands_defined_after_the_contraction():
    """The contraction moves down to its reader."""

    def build(node: Node, x: SSAValue, y: SSAValue) -> SSAValue:
        product = matmul(node, x, (6, 4))
        late = total(node, "Sum", exp(node, "Exp", y), 1)
        return add(node, "Add", product, late)

    made = check(module(build, (3, 6), (3, 4)), FUSE)
    assert len(only(made, qmm.DequantMatmulOp).epilogue_operands) == 1


def test_through_unit_reshapes():
    def build(node: Node, x: SSAValue, residual: SSAValue) -> SSAValue:
        y = node("Reshape").reshape(matmul(node, x, (6, 4)), (1, 3, 1, 4))
        return add(node, "Add", y, residual)

    made = check(module(build, (3, 6), (1, 3, 1, 4)), FUSE)
    assert names(made)["linalg.generic"] == 0
    assert [str(m) for m in only(made, qmm.DequantMatmulOp).maps] == ["(d0, d1) -> (0, d0, 0, d1)"]


def test_work_on_single_elements_passes_any_view():
    """Splitting heads and transposing first makes no difference to a scale by a constant."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        y = node("Reshape").reshape(matmul(node, x, (6, 4)), (3, 2, 2))
        y = node("Transpose").transpose(y, (1, 2, 0))
        return exp(node, "Exp", multiply(node, "Mul", y, node("s").constant(np.float32(0.125))))

    made = check(module(build, (3, 6)), FUSE)
    assert names(made)["linalg.generic"] == 0
    assert names(made)["linalg.transpose"] == names(made)["tensor.expand_shape"] == 1


def test_a_transposed_residual_is_not_mistaken():
    def build(node: Node, x: SSAValue, residual: SSAValue) -> SSAValue:
        y = node("Transpose").transpose(matmul(node, x, (6, 3)), (1, 0))
        return add(node, "Add", y, residual)

    made = check(module(build, (3, 6), (3, 3)), FUSE, "qmm-fuse-elementwise", FUSE)
    assert only(made, qmm.DequantMatmulOp).epilogue is None


def test_a_square_result_read_twice_in_two_ways():
    def build(node: Node, x: SSAValue) -> SSAValue:
        y = matmul(node, x, (6, 3))
        return add(node, "Add", y, node("Transpose").transpose(y, (1, 0)))

    check(module(build, (3, 6)), FUSE, "qmm-fuse-elementwise", FUSE)


def test_a_result_with_another_reader_is_left():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        y = matmul(node, x, (6, 4))
        return [exp(node, "Exp", y), y]

    made = check(module(build, (3, 6)), FUSE)
    assert only(made, qmm.DequantMatmulOp).epilogue is None


def test_a_broadcast_result_is_left():
    """Each element of the product is read three times: work on it would be repeated."""

    def build(node: Node, x: SSAValue, y: SSAValue) -> SSAValue:
        return add(node, "Add", matmul(node, x, (6, 4)), y)

    made = check(module(build, (1, 6), (3, 4)), FUSE)
    assert only(made, qmm.DequantMatmulOp).epilogue is None


def test_reductions_are_left():
    made = check(module(lambda n, x: total(n, "Sum", matmul(n, x, (6, 4)), 1), (3, 6)), FUSE)
    assert only(made, qmm.DequantMatmulOp).epilogue is None


def test_one_operand_of_two_uses_is_passed_once():
    def build(node: Node, x: SSAValue, y: SSAValue) -> SSAValue:
        return multiply(node, "Mul", add(node, "Add", matmul(node, x, (6, 4)), y), y)

    made = check(module(build, (3, 6), (3, 4)), FUSE)
    assert len(only(made, qmm.DequantMatmulOp).epilogue_operands) == 1


def test_gelu_after_elementwise_fusion():
    def build(node: Node, x: SSAValue, bias: SSAValue) -> SSAValue:
        y = add(node, "Add", matmul(node, x, (6, 4)), bias)
        erf = node("Erf").elementwise([y], f32, lambda b, e: b(math.ErfOp, *e))
        return multiply(node, "Mul", y, erf)

    made = check(module(build, (3, 6), (4,)), FUSE, "qmm-fuse-elementwise", FUSE)
    assert names(made)["linalg.generic"] == 0


@pytest.mark.parametrize("groups", [1, 2])
def test_conv(groups):
    def build(node: Node, x: SSAValue, bias: SSAValue) -> SSAValue:
        shape = (4, 2 // groups, 3, 3)
        w = node("w").constant(integers(i8, shape).astype(np.float32))
        op = qmm.ConvOp(x, w, strides=(2, 1), pads=(1, 1, 0, 1), dilations=(1, 1), groups=groups)
        return exp(node, "Exp", add(node, "Add", node("Conv").insert(op).result, bias))

    made = check(module(build, (2, 2, 5, 5), (4, 1, 1)), FUSE, "convert-qmm-to-linalg")
    assert count_names(made) == 0


def count_names(made) -> int:
    return sum(op.name.startswith("qmm.") for op in made.walk())


def test_epilogue_on_rows_of_another_rank():
    """A bias per row, and one number for all."""

    def build(node: Node, x: SSAValue, rows: SSAValue, one: SSAValue) -> SSAValue:
        y = add(node, "Add", matmul(node, x, (6, 4)), rows)
        return multiply(node, "Mul", y, one)

    made = check(module(build, (3, 6), (3, 1), ()), FUSE)
    maps = [str(m) for m in only(made, qmm.DequantMatmulOp).maps]
    assert maps == ["(d0, d1) -> (d0, 0)", "(d0, d1) -> ()"]
    assert not [op for op in made.walk() if isinstance(op, linalg.GenericOp)]


def test_a_quantised_scalar_ends():
    """The reshape to a scalar casts between signed and unsigned, and is no work for an epilogue to take for ever."""
    quant = quantization(ui8, (1, 1), "tensor", zero="middle")

    def build(node: Node, x: SSAValue) -> SSAValue:
        y = node("QuantizeLinear").insert(qmm.QuantizeOp(matmul(node, x, (6, 1)), quant)).result
        return node("Squeeze").reshape(y, ())

    made = check(module(build, (1, 6)), "qmm-lower-quantization", FUSE)
    (op,) = (op for op in made.walk() if isinstance(op, qmm.DequantMatmulOp))
    assert op.epilogue is not None
