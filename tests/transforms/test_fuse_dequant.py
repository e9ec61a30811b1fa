"""`qmm-fuse-dequant`: what fuses, into what, and what is refused with which reason; values before and after."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import IndexType, IntegerAttr, StringAttr, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i4, i8, i16, i32, i64, ui4, ui8, ui16
from qfold.ir.builder import TensorBuilder
from qfold.ir.locations import node_names
from tests.transforms.graphs import (
    Node,
    check,
    integers,
    module,
    names,
    only,
    ops,
    quantization,
    weight,
)

FUSE = "qmm-fuse-dequant"


def reason(op: qmm.MatmulOp | qmm.ConvOp | linalg.GenericOp) -> str:
    found = op.attributes["qmm.reason"]
    assert isinstance(found, StringAttr)
    return found.data


@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4, i16, ui16], ids=str)
@pytest.mark.parametrize(
    "granularity,axis,block",
    [("tensor", 0, 1), ("axis", 1, 1), ("block", 0, 3), ("block", 0, 2), ("block", 0, 7)],
)
@pytest.mark.parametrize("m", [1, 4])
def test_matmul(storage, granularity, axis, block, m):
    shape = (7, 5)
    quant = quantization(storage, shape, granularity, axis, block)
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, storage, shape, quant))).result
        ),
        (m, 7),
    )
    check(made, FUSE, "qmm-hoist-zero-point", "qmm-lower-quantization", "convert-qmm-to-linalg")


def test_matmul_produces_the_fused_op_alone():
    quant = quantization(i8, (7, 5), "axis", 1)
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, i8, (7, 5), quant))).result
        ),
        (3, 7),
    )
    check(made, FUSE)
    assert names(made) == {"qmm.dequant_matmul": 1, "func.return": 1}
    op = only(made, qmm.DequantMatmulOp)
    assert op.quant == quant
    assert node_names(op) == ("MatMul", "DequantizeLinear")


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("zero", ["high", "mixed"])
def test_square_weights_obey_the_axis(transpose_b, axis, zero):
    """K = N: nothing but the axis tells a scale per output feature from one along K."""
    shape = (6, 6)
    quant = quantization(i8, shape, "axis", axis, zero=zero)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i8, shape, quant)
        return node("MatMul").insert(qmm.MatmulOp(x, w, transpose_b=transpose_b)).result

    made = check(module(build, (2, 6)), FUSE)
    op = only(made, qmm.DequantMatmulOp)
    k_axis = 1 if transpose_b else 0
    if axis == k_axis:
        # A factor of the activation, which is one elementwise generic more, and a sum over K if the zero points differ.
        assert op.quant.granularity == "tensor" and float(op.quant.scales) == 1.0
        assert names(made)["linalg.generic"] == (2 if zero == "mixed" else 1)
    else:
        assert op.quant == quant
        assert names(made)["linalg.generic"] == 0


@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4, i16, ui16], ids=str)
@pytest.mark.parametrize("x_shape", [(1, 6), (3, 6), (2, 1, 4, 6)], ids=str)
@pytest.mark.parametrize("hoist", [False, True])
def test_scales_and_zero_points_along_k_belong_to_the_activation(storage, x_shape, hoist):
    quant = quantization(storage, (6, 4), "axis", 0, zero="mixed")
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, storage, (6, 4), quant))).result
        ),
        x_shape,
    )
    check(made, FUSE, *["qmm-hoist-zero-point"] * hoist)
    op = only(made, qmm.DequantMatmulOp)
    assert op.quant.granularity == "tensor" and float(op.quant.scales) == 1.0
    # The scaled activation and its sum with the zero points; no row_sum beside that sum unless a zero point is left.
    assert names(made)["linalg.generic"] == 2 and names(made)["qmm.matmul"] == 0
    assert names(made)["qmm.row_sum"] == (hoist and not op.quant.is_symmetric)
    assert [shape_of(v) for v in op.epilogue_operands] == [x_shape[:-1]]
    check(made, "qmm-lower-quantization", "qmm-fuse-elementwise", "qmm-fuse-epilogue")
    check(made, "convert-qmm-to-linalg")


def test_zero_points_along_k_under_one_scale():
    """The scale stays where it is, and multiplies the sum of the zero points too."""
    quant = qmm.QuantAttr.get(ui8, [0.375] * 6, [0, 255, 3, 128, 7, 9], axis=0)
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, ui8, (6, 4), quant))).result
        ),
        (2, 6),
    )
    check(made, FUSE, "qmm-hoist-zero-point")
    assert float(only(made, qmm.DequantMatmulOp).quant.scales) == 0.375
    assert names(made)["linalg.generic"] == 1


def test_zero_points_along_k_come_before_the_epilogue():
    """A Relu that is in the epilogue already works on the corrected sum."""
    quant = quantization(i8, (6, 4), "axis", 0, zero="mixed")

    def build(node: Node, x: SSAValue, bias: SSAValue) -> SSAValue:
        y = node("MatMul").insert(qmm.MatmulOp(x, weight(node, i8, (6, 4), quant))).result
        y = node("Add").elementwise([y, bias], f32, lambda b, e: b(arith.AddfOp, *e))
        return node("Relu").elementwise(
            [y], f32, lambda b, e: b(arith.MaximumfOp, e[0], b.constant(0.0, f32))
        )

    made = check(module(build, (3, 6), (4,)), "qmm-fuse-epilogue", FUSE, "qmm-hoist-zero-point")
    op = only(made, qmm.DequantMatmulOp)
    first, *_, last = (o for o in op.epilogue.block.ops if not isinstance(o, arith.ConstantOp))
    assert isinstance(first, arith.SubfOp) and last.name == "qmm.yield"


def test_zero_points_along_no_k():
    quant = quantization(i8, (0, 4), "axis", 0, zero="mixed")
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, i8, (0, 4), quant))).result
        ),
        (3, 0),
    )
    check(made, FUSE, "qmm-hoist-zero-point", "qmm-lower-quantization", "convert-qmm-to-linalg")


def test_zero_points_along_k_beyond_f32_are_refused():
    quant = qmm.QuantAttr.get(i32, [0.5, 0.25], [2**24 + 1, 0], axis=0)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = node("w").constant(np.zeros((2, 3), np.int32))
        w = node("DequantizeLinear").insert(qmm.DequantizeOp(w, quant)).result
        return node("MatMul").insert(qmm.MatmulOp(x, w)).result

    made = check(module(build, (2, 2)), FUSE)
    assert "zero points along K, axis 0 of the weight, too large" in reason(
        only(made, qmm.MatmulOp)
    )


def test_equal_scales_along_k_are_per_tensor():
    quant = qmm.QuantAttr.get(i8, [0.5] * 6, [3] * 6, axis=0)
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, i8, (6, 4), quant))).result
        ),
        (2, 6),
    )
    check(made, FUSE)
    assert only(made, qmm.DequantMatmulOp).quant == qmm.QuantAttr.get(i8, 0.5, 3)
    assert names(made)["linalg.generic"] == 0


def test_blocks_along_n_are_refused():
    quant = quantization(i8, (6, 8), "block", 1, 4)
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, i8, (6, 8), quant))).result
        ),
        (2, 6),
    )
    check(made, FUSE)
    assert "blocks along axis 1" in reason(only(made, qmm.MatmulOp))


def test_one_block_of_all_of_k_is_per_axis():
    quant = quantization(ui8, (6, 8), "block", 0, 32)
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, ui8, (6, 8), quant))).result
        ),
        (2, 6),
    )
    check(made, FUSE)
    op = only(made, qmm.DequantMatmulOp)
    assert op.quant.granularity == "axis" and op.quant.axis == 1


@pytest.mark.parametrize(
    "granularity,axis", [("tensor", 0), ("axis", 0), ("axis", 1), ("block", 1)]
)
def test_looks_through_transposes_and_reshapes(granularity, axis):
    """W [N, K], stored as [N, 1, K], transposed: the bytes stay as they are."""
    quant = quantization(ui8, (5, 6), granularity, axis, 4, zero="high")

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, ui8, (5, 6), quant)
        w = node("Unsqueeze").reshape(w, (1, 5, 1, 6))
        w = node("Transpose").transpose(w, (2, 0, 3, 1))
        w = node("Squeeze").reshape(w, (1, 6, 5))
        return node("MatMul").insert(qmm.MatmulOp(x, w)).result

    made = module(build, (2, 3, 6))
    before = only(made, qmm.ConstantOp).value
    check(made, FUSE)
    op = only(made, qmm.DequantMatmulOp)
    assert op.transpose_b is not None
    assert op.weight.raw == before.raw and op.weight.shape == (5, 6)
    assert set(node_names(op)) == {
        "MatMul",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
        "DequantizeLinear",
    }
    assert names(made)["linalg.transpose"] == names(made)["tensor.collapse_shape"] == 0


@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4], ids=str)
@pytest.mark.parametrize("zero", ["high", "mixed"])
def test_shared_weight_read_forward_and_backward(storage, zero):
    """One dequantise, read plain and transposed: both fuse, of one string of bytes, and the dequantise goes."""
    quant = quantization(storage, (6, 6), "axis", 1, zero=zero)

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = weight(node, storage, (6, 6), quant)
        forward = node("forward").insert(qmm.MatmulOp(x, w)).result
        back = node("Transpose").transpose(w, (1, 0))
        backward = node("backward").insert(qmm.MatmulOp(forward, back)).result
        return [forward, backward]

    made = check(module(build, (2, 6)), FUSE, "qmm-hoist-zero-point")
    assert names(made)["qmm.dequantize"] == 0
    assert names(made)["qmm.dequant_matmul"] == 2
    weights = {op.weight.sha256 for op in made.walk() if isinstance(op, qmm.DequantMatmulOp)}
    assert len(weights) == 1


@pytest.mark.parametrize("middling", [False, True])
def test_both_readers_agree_on_reading_as_signed(middling):
    """Zero points about 128 make ui8 bytes i8 for both readers, others for neither."""
    zeros = [120, 128, 130, 140, 129, 117] if middling else [0, 3, 1, 9, 20, 2]
    quant = qmm.QuantAttr.get(ui8, [0.5, 0.25, 1, 2, 0.125, 3], zeros, axis=0)

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = weight(node, ui8, (6, 4), quant)
        forward = node("forward").insert(qmm.MatmulOp(x, w, transpose_b=True)).result
        return [forward, node("backward").insert(qmm.MatmulOp(forward, w)).result]

    made = check(module(build, (3, 4)), FUSE, "qmm-hoist-zero-point")
    found = [op for op in ops(made) if isinstance(op, qmm.DequantMatmulOp)]
    assert len(found) == 2 and len({op.weight.sha256 for op in found}) == 1
    assert {op.quant.storage for op in found} == {i8 if middling else ui8}
    # Only the forward reader has zero points left.
    assert names(made)["qmm.row_sum"] == 1


def test_dequantised_output_stays():
    quant = quantization(i8, (6, 4), "tensor")

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        w = weight(node, i8, (6, 4), quant)
        return [node("MatMul").insert(qmm.MatmulOp(x, w)).result, w]

    made = check(module(build, (2, 6)), FUSE)
    assert names(made)["qmm.dequant_matmul"] == names(made)["qmm.dequantize"] == 1


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(
    "granularity,axis", [("tensor", 0), ("axis", 0), ("axis", 1), ("block", 1)]
)
@pytest.mark.parametrize("zero", ["low", "mixed"])
@pytest.mark.parametrize("epilogue_first", [False, True])
def test_weight_on_the_left(transpose_a, transpose_b, granularity, axis, zero, epilogue_first):
    shape = (7, 4) if transpose_a else (4, 7)
    quant = quantization(i8, shape, granularity, axis, 3, zero=zero)

    def build(node: Node, x: SSAValue, bias: SSAValue) -> SSAValue:
        w = weight(node, i8, shape, quant)
        op = qmm.MatmulOp(w, x, transpose_a=transpose_a, transpose_b=transpose_b)
        y = node("MatMul").insert(op).result
        return node("Add").elementwise([y, bias], f32, lambda b, e: b(arith.AddfOp, *e))

    x_shape = (2, 3, 7) if transpose_b else (2, 7, 3)
    made = module(build, x_shape, (4, 1))
    first = ["qmm-fuse-epilogue"] * epilogue_first
    check(made, *first, FUSE, "qmm-hoist-zero-point", "qmm-canonicalize")
    if granularity == "block" and transpose_a:
        assert "blocks along axis 1 of the weight" in reason(only(made, qmm.MatmulOp))
        return
    op = only(made, qmm.DequantMatmulOp)
    assert (op.epilogue is not None) or not epilogue_first
    # The weight's bytes are those of the graph: only activations are transposed.
    assert op.weight.raw == integers(i8, shape).tobytes()


def test_transposed_activation():
    quant = quantization(i8, (6, 4), "tensor")
    made = module(
        lambda node, x: (
            node("MatMul")
            .insert(qmm.MatmulOp(x, weight(node, i8, (6, 4), quant), transpose_a=True))
            .result
        ),
        (2, 6, 3),
    )
    check(made, FUSE)
    assert names(made)["qmm.dequant_matmul"] == names(made)["linalg.transpose"] == 1


def test_batched_weight_is_refused():
    quant = quantization(i8, (2, 6, 4), "tensor")
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, i8, (2, 6, 4), quant))).result
        ),
        (2, 3, 6),
    )
    check(made, FUSE)
    assert "a batch of weights [2, 6, 4]" in reason(only(made, qmm.MatmulOp))


def test_unit_leading_dimensions_of_the_weight():
    """[3, 6] @ [1, 1, 6, 4]: the result has the rank of the weight."""
    quant = quantization(i8, (1, 1, 6, 4), "axis", 3)
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, i8, (1, 1, 6, 4), quant))).result
        ),
        (3, 6),
    )
    check(made, FUSE, "qmm-hoist-zero-point")
    op = only(made, qmm.DequantMatmulOp)
    assert shape_of(op.result) == (1, 1, 3, 4) and op.weight.shape == (6, 4)


def test_empty_k():
    quant = quantization(i8, (0, 4), "tensor")
    made = module(
        lambda node, x: (
            node("MatMul").insert(qmm.MatmulOp(x, weight(node, i8, (0, 4), quant))).result
        ),
        (3, 0),
    )
    check(made, FUSE, "qmm-hoist-zero-point", "qmm-lower-quantization", "convert-qmm-to-linalg")


def test_scale_known_at_run_time_is_refused():
    def build(node: Node, x: SSAValue, scale: SSAValue) -> SSAValue:
        w = node("w").constant(np.arange(24, dtype=np.int8).reshape(6, 4))
        w = node("DequantizeLinear").insert(qmm.DequantizeOp(w, None, runtime_scale=scale)).result
        return node("MatMul").insert(qmm.MatmulOp(x, w)).result

    made = check(module(build, (2, 6), ()), FUSE)
    assert "known at run time" in reason(only(made, qmm.MatmulOp))


def test_constant_operands_are_as_good_as_the_attribute():
    def build(node: Node, x: SSAValue) -> SSAValue:
        w = node("w").constant(np.arange(24, dtype=np.int8).reshape(4, 6))
        scale = node("s").constant(np.asarray([0.5, 0.25, 2, 1], np.float32))
        zero = node("z").constant(np.asarray([1, -128, 127, 0], np.int8))
        op = qmm.DequantizeOp(w, None, runtime_scale=scale, runtime_zero_point=zero)
        w = node("DequantizeLinear").insert(op).result
        return node("MatMul").insert(qmm.MatmulOp(x, w, transpose_b=True)).result

    made = check(module(build, (2, 6)), FUSE)
    assert only(made, qmm.DequantMatmulOp).quant.axis == 0


@pytest.mark.parametrize("storage", [i8, ui8, i4], ids=str)
@pytest.mark.parametrize("granularity", ["tensor", "axis"])
@pytest.mark.parametrize(
    "x_shape,w_shape,groups,strides,pads,dilations",
    [
        ((2, 3, 7, 6), (4, 3, 3, 2), 1, (1, 1), (1, 1, 1, 1), (1, 1)),
        ((1, 4, 9, 8), (4, 1, 3, 3), 4, (2, 1), (0, 2, 1, 0), (1, 2)),
        ((1, 4, 5, 5), (6, 2, 2, 2), 2, (1, 2), (1, 0, 0, 1), (1, 1)),
        ((2, 3, 11), (5, 3, 4), 1, (3,), (2, 1), (2,)),
        ((1, 2, 4, 4), (3, 2, 1, 1), 1, (1, 1), (0, 0, 0, 0), (1, 1)),
    ],
    ids=["padded", "depthwise", "grouped", "1d", "pointwise"],
)
def test_conv(storage, granularity, x_shape, w_shape, groups, strides, pads, dilations):
    quant = quantization(storage, w_shape, granularity, 0)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, storage, w_shape, quant)
        op = qmm.ConvOp(x, w, strides=strides, pads=pads, dilations=dilations, groups=groups)
        y = node("Conv").insert(op).result
        return node("Relu").elementwise(
            [y], f32, lambda b, e: b(arith.MaximumfOp, e[0], b.constant(0.0, f32))
        )

    made = check(module(build, x_shape), FUSE, "qmm-hoist-zero-point", "qmm-fuse-epilogue")
    assert names(made)["qmm.dequant_conv"] == names(made)["qmm.window_sum"] == 1
    assert names(made)["linalg.generic"] == 0
    check(made, "convert-qmm-to-linalg")


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_conv_scale_on_another_axis_is_refused(axis):
    quant = quantization(i8, (4, 3, 3, 2), "axis", axis)

    def build(node: Node, x: SSAValue) -> SSAValue:
        w = weight(node, i8, (4, 3, 3, 2), quant)
        op = qmm.ConvOp(x, w, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), groups=1)
        return node("Conv").insert(op).result

    made = check(module(build, (1, 3, 5, 5)), FUSE)
    assert f"axis {axis}" in reason(only(made, qmm.ConvOp))


def gather(builder: TensorBuilder, table: SSAValue, indices: SSAValue) -> SSAValue:
    """An axis-0 Gather as the frontend writes it, but for the wrap of negative indices."""
    rank = len(shape_of(indices))
    shape = (*shape_of(indices), *shape_of(table)[1:])

    def body(b, elements, _):
        index = b(arith.IndexCastOp, elements[0], IndexType())
        zero = b(arith.ConstantOp, IntegerAttr(0, IndexType()))
        rows = b(arith.ConstantOp, IntegerAttr(shape_of(table)[0], IndexType()))
        index = b(
            arith.SelectOp,
            b(arith.CmpiOp, index, zero, "slt"),
            b(arith.AddiOp, index, rows),
            index,
        )
        place = [index, *(b.index(d) for d in range(rank, len(shape)))]
        return b(tensor.ExtractOp, table, place, f32)

    map_ = AffineMap(len(shape), 0, tuple(AffineExpr.dimension(d) for d in range(rank)))
    result = builder.generic(
        [(indices, map_)],
        builder.empty(shape, f32),
        AffineMap.identity(len(shape)),
        ["parallel"] * len(shape),
        body,
    )
    result.owner.attributes["qmm.gather"] = StringAttr("")
    return result


@pytest.mark.parametrize("storage", [i8, ui8, ui4], ids=str)
@pytest.mark.parametrize(
    "granularity,axis,block", [("tensor", 0, 1), ("axis", 0, 1), ("axis", 1, 1), ("block", 1, 3)]
)
def test_gather(storage, granularity, axis, block):
    quant = quantization(storage, (9, 5), granularity, axis, block)

    def build(node: Node, indices: SSAValue) -> SSAValue:
        return gather(node("Gather"), weight(node, storage, (9, 5), quant), indices)

    made = check(module(build, (2, 3), types=[i64]), FUSE)
    assert names(made) == {"qmm.dequant_gather": 1, "func.return": 1}
    check(made, "qmm-lower-quantization", "qmm-fuse-elementwise", "convert-qmm-to-linalg")


def test_gather_of_a_transposed_table_is_refused():
    quant = quantization(i8, (5, 9), "tensor")

    def build(node: Node, indices: SSAValue) -> SSAValue:
        table = node("Transpose").transpose(weight(node, i8, (5, 9), quant), (1, 0))
        return gather(node("Gather"), table, indices)

    made = check(module(build, (4,), types=[i64]), FUSE)
    (op,) = [o for o in made.walk() if isinstance(o, linalg.GenericOp)]
    assert "transposed" in reason(op)


def test_table_tied_to_a_classifier():
    """An embedding and the output layer share a table: two readers, one string of bytes, centred together."""
    quant = quantization(ui8, (9, 6), "axis", 0, zero="middle")

    def build(node: Node, indices: SSAValue) -> SSAValue:
        table = weight(node, ui8, (9, 6), quant)
        hidden = gather(node("Gather"), table, indices)
        return node("MatMul").insert(qmm.MatmulOp(hidden, table, transpose_b=True)).result

    made = check(module(build, (4,), types=[i64]), FUSE, "qmm-hoist-zero-point")
    rows, product = only(made, qmm.DequantGatherOp), only(made, qmm.DequantMatmulOp)
    assert rows.weight.sha256 == product.weight.sha256
    assert rows.quant.storage == i8 and product.quant.is_symmetric
    assert names(made)["qmm.row_sum"] == 0
