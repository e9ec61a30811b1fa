"""qmm-outline-kernels and qmm-select-kernels: one function per kernel, chosen by types alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import MemRefType, StringAttr, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qkernel, qmm
from qfold.dialects.element_types import i4, i8, i16, ui4, ui8, ui16
from qfold.ir.builder import TensorBuilder
from qfold.ir.locations import name_location, node_names
from qfold.targets import HOST, Kernel, Target, target_named
from qfold.transforms.kernel_symbols import identifier
from qfold.transforms.qmm_outline_kernels import QmmOutlineKernelsPass, functions
from qfold.transforms.qmm_select_kernels import QmmSelectKernelsPass, select_kernels
from tests.transforms_buffer.helpers import (
    add,
    apply,
    bufferized,
    check_levels,
    double,
    main,
    module,
    ops,
    outlined,
    total,
)

B = TensorBuilder
V = SSAValue


def weight(storage: Any = i8, shape: tuple[int, ...] = (4, 3)) -> qmm.WeightAttr:
    low = 0 if storage in (ui4, ui8, ui16) else -8
    return qmm.WeightAttr.from_array(np.arange(low, low + 12).reshape(shape), storage)


def dequant(b: B, x: V, storage: Any = i8, transpose_b: bool = False, **quant: Any) -> V:
    shape = (3, 4) if transpose_b else (4, 3)
    attribute = qmm.QuantAttr.get(storage, **({"scale": 0.5} | quant))
    return b(qmm.DequantMatmulOp, x, weight(storage, shape), attribute, transpose_b=transpose_b)


def table(module_: Any) -> dict[str, str]:
    """Function -> kernel."""
    return {
        f.sym_name.data: f.attributes["qmm.kernel"].data
        for f in functions(module_)
        if f.sym_visibility == StringAttr("private")
    }


@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4, i16, ui16])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_dequant_kernels_say_their_types(storage: Any, transpose_b: bool):
    axis = 0 if transpose_b else 1
    quants: dict[str, dict[str, Any]] = {
        "tensor": {},
        "axis": {"scale": [1, 2, 4], "axis": axis},
        "block": {
            "scale": np.ones((3, 2) if transpose_b else (2, 3)),
            "axis": 1 - axis,
            "block_size": 2,
        },
    }

    def build(b: B, x: V):
        return [dequant(b, x, storage, transpose_b, **q) for q in quants.values()]

    layout = "nk" if transpose_b else "kn"
    expected = {
        f"dequant_matmul_f32_{storage}_{layout}_{g}_2x4x3": "c.dequant_matmul" for g in quants
    }
    assert table(outlined(bufferized(module([(2, 4)], build)))) == expected


def test_equal_contractions_share_a_function_and_keep_their_nodes():
    def build(b: B, x: V):
        results = []
        for node in ("q", "k", "v"):
            b.location = name_location(node)
            results.append(dequant(b, x))
        return results

    result = outlined(bufferized(module([(2, 4)], build)))
    assert list(table(result)) == ["dequant_matmul_f32_i8_kn_tensor_2x4x3"]
    calls = ops(result, func.CallOp)
    assert [node_names(c) for c in calls] == [("q",), ("k",), ("v",)]
    (kernel,) = [op for op in result.walk() if isinstance(op, qkernel.DequantMatmulOp)]
    assert node_names(kernel) == ("q", "k", "v")


def test_contractions_that_differ_have_functions_of_their_own():
    def build(b: B, x: V):
        a = b(qmm.MatmulOp, x, x, transpose_b=True)
        other = b(qmm.MatmulOp, b.transpose(b.reshape(a, (2, 2)), (1, 0)), a)
        return [a, other, b(qmm.MatmulOp, a, a), dequant(b, x), dequant(b, x, zero_point=3)]

    names = list(table(outlined(bufferized(module([(2, 4)], build)))))
    assert names == [
        "matmul_f32_f32_mk_nk_2x4x2",
        "matmul_f32_f32_mk_kn_2x2x2",
        "matmul_f32_f32_mk_kn_2x2x2_2",
        "dequant_matmul_f32_i8_kn_tensor_2x4x3",
        "dequant_matmul_f32_i8_kn_tensor_2x4x3_2",
    ]


def test_convolutions():
    rng = np.random.default_rng(0)
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}

    def build(b: B, x: V):
        w = qmm.WeightAttr.from_array(rng.integers(-8, 8, (2, 3, 3, 3)).astype(np.int8))
        sums = b(qmm.WindowSumOp, x, kernel_shape=(3, 3), **window)
        quant = qmm.QuantAttr.get(i8, [1, 2], [3, 4], axis=0)
        return [
            b(qmm.DequantConvOp, x, w, quant, hoisted=True, window_sum=sums, **window),
            b(qmm.ConvOp, x, b.constant(np.ones((2, 3, 3, 3), np.float32)), **window),
        ]

    assert table(outlined(bufferized(module([(1, 3, 4, 4)], build)))) == {
        "window_sum_f32_1x3x4x4_1x1x4x4": "c.window_sum",
        "dequant_conv_f32_i8_axis_1x3x4x4_2x3x3x3": "c.dequant_conv",
        "conv_f32_f32_1x3x4x4_2x3x3x3": "c.conv",
    }


def test_loops_are_named_after_their_node():
    def build(b: B, x: V):
        b.location = name_location("/encoder/layer.0/Add")
        a = double(b, x)
        b.location = name_location("while")
        c = [total(b, x, 0), double(b, x)]
        b.location = name_location("überrest")
        return [a, *c, x, add(b, x, x)]

    result = outlined(bufferized(module([(2, 4)], build)))
    assert list(table(result)) == [
        "node_encoder_layer_0_Add",
        "node_while",
        "node_while_2",
        "node_berrest",
        "copy_berrest",
    ]
    assert set(table(result).values()) == {"c.loops"}


def test_identifiers():
    assert identifier("/a//b.c__d/") == "a_b_c_d"
    assert identifier("日本") == "unnamed"
    assert len(identifier("x" * 500)) == 64


def test_a_reduction_holds_its_fill():
    result = outlined(bufferized(module([(2, 4)], lambda b, x: total(b, x, 1))))
    (function,) = [f for f in functions(result) if f.sym_visibility is not None]
    names = [op.name for op in function.body.block.ops]
    assert names == ["arith.constant", "linalg.fill", "linalg.generic", "func.return"]
    assert [op.name for op in main(result).body.block.ops] == ["func.call", "func.return"]


def test_in_place_is_one_argument():
    def build(b: B, x: V):
        return total(b, double(b, double(b, x)), 0)

    result = outlined(bufferized(module([(2, 4)], build)), join=False)
    assert [len(c.arguments) for c in ops(result, func.CallOp)] == [2, 1, 2]


def test_calls_at_different_offsets_share_a_function():
    def build(b: B, x: V):
        halves = [b.slice(x, [r, 0], [1, 4], [1, 1]) for r in range(3)]
        return [dequant(b, h) for h in halves]

    result = outlined(bufferized(module([(3, 4)], build)))
    # Offset 0 is dense, the other two are "at some offset".
    assert len(table(result)) == 2
    assert len(ops(result, memref.CastOp)) == 2
    assert "strided<[4, 1], offset: ?>" in str(result)


def test_main_keeps_views_and_calls_only():
    def build(b: B, x: V):
        return dequant(b, b.reshape(double(b, x), (2, 4)), axis=1, scale=[1, 2, 3])

    kept = {op.name for op in main(outlined(bufferized(module([(8,)], build)))).body.block.ops}
    assert kept == {
        "memref.alloc",
        "memref.get_global",
        "memref.expand_shape",
        "func.call",
        "func.return",
    }


# Selection.


def with_table(*kernels: Kernel) -> Target:
    return replace(HOST, kernels=(*kernels, *(k for k in HOST.kernels if k.name == "c.loops")))


def unselected(build: Any, shape: tuple[int, ...] = (2, 4)) -> Any:
    return apply(bufferized(module([shape], build)), QmmOutlineKernelsPass())


F32 = frozenset({"f32"})
FLOAT_MATMUL = Kernel("float", "qkernel.matmul", {"a": F32, "b": F32, "y": F32})


def test_an_int8_weight_never_gets_the_float_kernel():
    """The table's row claims the dequantising matmul for a kernel that was written for two f32 operands."""
    planted = with_table(FLOAT_MATMUL, replace(FLOAT_MATMUL, op="qkernel.dequant_matmul"))
    with pytest.raises(PassFailedException) as caught:
        select_kernels(unselected(dequant), planted)
    message = str(caught.value)
    assert "no kernel for qkernel.dequant_matmul (from ONNX node 'node')" in message
    assert "a: f32, w: i8, scale: f32" in message
    assert "float: it has no operand w" in message or "float: it has no operand" in message


def test_a_row_for_float_weights_is_refused_for_int8():
    row = Kernel(
        "float", "qkernel.dequant_matmul", {n: F32 for n in ("a", "w", "scale", "zero_point", "y")}
    )
    with pytest.raises(PassFailedException, match="float: w is one of f32, not i8"):
        select_kernels(unselected(dequant), with_table(row))


def test_a_row_without_types_is_refused_for_a_contraction():
    row = Kernel("anything", "qkernel.dequant_matmul")
    with pytest.raises(PassFailedException, match="it says nothing about operand types"):
        select_kernels(unselected(dequant), with_table(row))


def test_no_row_at_all():
    with pytest.raises(PassFailedException, match="no row for this op"):
        select_kernels(unselected(dequant), with_table(FLOAT_MATMUL))


def test_a_dense_row_is_refused_for_a_strided_operand():
    def build(b: B, x: V):
        return b(qmm.MatmulOp, b.transpose(x, (1, 0)), x)

    with pytest.raises(PassFailedException, match=r"a: f32 \(strided\).*float: a must be dense"):
        select_kernels(unselected(build), with_table(FLOAT_MATMUL))


def test_the_first_row_that_fits_is_taken():
    storages = {s: frozenset({s}) for s in ("i8", "ui8")}
    rows = [
        Kernel(f"only_{s}", "qkernel.dequant_matmul", {"a": F32, "w": t, "scale": F32, "y": F32})
        for s, t in storages.items()
    ]
    for storage, name in ((i8, "only_i8"), (ui8, "only_ui8")):
        result = unselected(lambda b, x, s=storage: dequant(b, x, s))
        select_kernels(result, with_table(*rows))
        assert set(table(result).values()) == {name}


def test_the_verifier_catches_an_int8_weight_in_a_float_kernel():
    """Planted in the IR: the f32 kernel's op on the bytes of an int8 weight."""
    broken = unselected(dequant)
    function = functions(broken)[0]
    a, w, _, y = function.args
    old = function.body.block.first_op
    assert old is not None
    forced = qkernel.MatmulOp(a, w, y)
    function.body.block.insert_op_before(forced, old)
    Rewriter.erase_op(old)
    with pytest.raises(Exception, match=r"qkernel\.matmul reads f32, got memref<4x3xi8"):
        broken.verify()
    with pytest.raises(PassFailedException, match="b is one of f32, not i8"):
        QmmSelectKernelsPass().apply(Context(), broken)


def test_the_verifier_catches_a_call_with_other_types():
    result = unselected(dequant)
    (call,) = ops(result, func.CallOp)
    wrong = memref.AllocOp(
        (), (), MemRefType(f32, (4, 3), memory_space=call.arguments[0].type.memory_space)
    )
    call.parent.insert_op_before(wrong, call)
    call.operands[1] = wrong.memref
    with pytest.raises(Exception, match="operand type mismatch"):
        result.verify()


def test_targets():
    assert target_named("host") is HOST
    with pytest.raises(ValueError, match="unknown target 'x'; known: host"):
        target_named("x")
    with pytest.raises(ValueError, match=r"no memory space 1; it has 2 \(L2\)"):
        HOST.level(1)
    assert {k.op for k in HOST.kernels} == {
        *(op.name for op in qkernel.CONTRACTIONS if op not in qkernel.TILED),
        linalg.GenericOp.name,
        linalg.FillOp.name,
        memref.CopyOp.name,
    }


def epilogue(*types: Any) -> Region:
    """The sum of the accumulator and one element of each operand."""
    block = Block(arg_types=[f32, *types])
    value: V = block.args[0]
    for argument in block.args[1:]:
        sum_ = arith.AddfOp(value, argument)
        block.add_op(sum_)
        value = sum_.result
    block.add_op(qmm.YieldOp(value))
    return Region(block)


def test_epilogues_move_along_with_their_operands():
    """A bias and a residual that is a transposed view; the residual lives on, so nothing may write to it."""
    rows, columns = AffineExpr.dimension(0), AffineExpr.dimension(1)

    def build(b: B, x: V, bias: V):
        residual = b.transpose(double(b, b.reshape(x, (4, 2))), (1, 0))
        w = qmm.WeightAttr.from_array(np.arange(-8, 8, dtype=np.int8).reshape(4, 4))
        quant = qmm.QuantAttr.get(i8, [1, 2, 0.5, 4], [1, 2, 3, 4], axis=1)
        y = b(
            qmm.DequantMatmulOp,
            x,
            w,
            quant,
            hoisted=True,
            row_sum=total(b, x, 1),
            epilogue_operands=[bias, residual],
            epilogue_maps=[AffineMap(2, 0, (columns,)), AffineMap(2, 0, (rows, columns))],
            epilogue=epilogue(f32, f32),
        )
        z = b(
            qmm.MatmulOp,
            y,
            y,
            transpose_b=True,
            epilogue_operands=[b.constant(np.ones(2, np.float32))],
            epilogue_maps=[AffineMap(2, 0, (columns,))],
            epilogue=epilogue(f32),
        )
        return [z, double(b, residual)]

    made = module([(2, 4), (4,)], build)
    level2 = check_levels(made)
    assert not ops(level2, memref.CopyOp)
    kernels = table(outlined(level2))
    assert kernels["dequant_matmul_f32_i8_kn_axis_2x4x4_fused"] == "c.dequant_matmul"
    assert kernels["matmul_f32_f32_mk_nk_2x4x2_bias"] == "c.matmul"
    (kernel,) = [op for op in level2.walk() if isinstance(op, qkernel.DequantMatmulOp)]
    assert kernel.hoisted is not None and kernel.row_sum is not None
    assert len(kernel.epilogue_operands) == 2
    assert "strided<[1, 2]>" in str(kernel.epilogue_operands[1].type)
