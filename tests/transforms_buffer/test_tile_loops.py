"""qmm-tile-to-l1 on everything but matmuls: which operands move, along which dimension, and what stays on L2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith, math, memref, tensor
from xdsl.dialects.builtin import ModuleOp, f32, i32, i64
from xdsl.dialects.linalg import ops as linalg_ops
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import pulp, qkernel, qmm
from qfold.dialects.element_types import i4, i8
from qfold.ir.builder import ScalarBuilder, TensorBuilder
from qfold.ir.locations import name_location, node_names
from tests.transforms_buffer.cluster import (
    all_ops,
    check_staged,
    kernels,
    leafs,
    splits,
)
from tests.transforms_buffer.helpers import add, double, main, module, total

B = TensorBuilder
V = SSAValue
SMALL = "threads:l1=12288,cores=4,stack=1024"
"""7 KiB for tiles."""


def staged_names(result: ModuleOp) -> list[str]:
    return [name for name, kernel in kernels(result).items() if kernel == "staged"]


# Loop nests.


def test_whole_operands():
    result, counts = check_staged(module([(16, 32), (16, 32)], add), "threads")
    assert leafs(result) == {"node_node_l1_16x32": "c.loops"}
    assert counts.ops["pulp.dma_start"] == 3
    assert splits(result) == {"node_node_l1_16x32": (8, 1)}


def test_tiles_along_a_dimension():
    result, counts = check_staged(module([(37, 64), (37, 64)], add), SMALL)
    assert counts.bytes_in["f32"] == 2 * 4 * 37 * 64 and counts.bytes_out == 4 * 37 * 64
    sizes = {op.outputs[0].type.get_shape() for op in all_ops(result, linalg_ops.GenericOp)}
    assert len(sizes) == 2 and all(columns == 64 for _, columns in sizes)  # the tail is smaller
    assert len({node_names(op) for op in all_ops(result, pulp.DmaStartOp)}) == 1


def test_an_operand_that_the_tile_does_not_depend_on_comes_once():
    def build(b: B, x: V, bias: V) -> V:
        return b.elementwise([x, bias], f32, lambda s, e: s(arith.AddfOp, *e))

    _, counts = check_staged(module([(64, 64), (64,)], build), SMALL)
    assert counts.bytes_in["f32"] == 4 * (64 * 64 + 64)


def test_in_place_goes_both_ways():
    def build(b: B, x: V) -> V:
        kept = b.transpose(double(b, x), (1, 0))
        return double(b, b.reshape(kept, (64 * 48,)))

    check_staged(module([(48, 64)], build), SMALL)

    def in_place(b: B, x: V, y: V) -> list[V]:
        s = add(b, x, y)
        return [total(b, s, 1), total(b, double(b, s), 0)]

    result, _ = check_staged(module([(48, 64), (48, 64)], in_place), SMALL)
    nests = all_ops(result, linalg_ops.GenericOp)
    assert nests


def test_small_work_stays_on_l2():
    """One element: two transfers cost more than its loads from L2."""
    result, counts = check_staged(module([(1,)], double), "threads")
    assert leafs(result) == {"node_node": "c.loops"} and staged_names(result) == []
    assert counts.ops["pulp.dma_start"] == 0


def softmax(b: B, x: V) -> V:
    rows = tuple(x.type.get_shape())  # type: ignore[attr-defined]
    last = len(rows) - 1
    top = b.reduce(x, [last], float("-inf"), lambda s, e, acc: s(arith.MaximumfOp, acc, e))
    shifted = b.elementwise(
        [x, b.reshape(top, (*rows[:-1], 1))], f32, lambda s, e: s(math.ExpOp, s(arith.SubfOp, *e))
    )
    sums = b.reduce(shifted, [last], 0.0, lambda s, e, acc: s(arith.AddfOp, acc, e))
    return b.elementwise(
        [shifted, b.reshape(sums, (*rows[:-1], 1))], f32, lambda s, e: s(arith.DivfOp, *e)
    )


@pytest.mark.parametrize("target", ["threads", SMALL, "spike:cores=3,l1=16384"])
@pytest.mark.parametrize("shape", [(3, 17, 19), (40, 33), (1, 1, 50)])
def test_softmax(shape: tuple[int, ...], target: str):
    result, counts = check_staged(module([shape], softmax), target)
    (name,) = staged_names(result)
    size = 4 * int(np.prod(shape))
    # What one nest hands to the next is in L1 only, and has no place in L2.
    assert (counts.bytes_in["f32"], counts.bytes_out) == (size, size)
    assert not [op for op in main(result).body.block.ops if isinstance(op, memref.ViewOp)]
    for leaf, parts in splits(result).items():
        assert parts[-1] == 1, f"{leaf} divides a row"  # its nests share rows
    assert name.startswith("node_node")


def test_a_gather_reads_its_table_where_it_is():
    def build(b: B, table: V, indices: V) -> V:
        def body(s: ScalarBuilder, e: Any) -> V:
            row = s(arith.IndexCastOp, e[0], s.index(0).type)
            return s(tensor.ExtractOp, table, [row, s.index(1)], f32)

        shape = (24, 40)
        return b.elementwise([b.reshape(indices, (24, 1))], f32, body, shape=shape)

    made = module([(300, 40), (24,)], build, [f32, i64])
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal((300, 40)).astype(np.float32),
        rng.integers(0, 300, 24),
    ]
    result, counts = check_staged(made, "threads", inputs)
    assert staged_names(result) and counts.bytes_in["f32"] == 0
    assert counts.bytes_out == 4 * 24 * 40
    # The body counts columns: no tile may be cut along them.
    small, _ = check_staged(made, "threads:l1=2816,cores=1,stack=256", inputs)
    for op in all_ops(small, linalg_ops.GenericOp):
        assert op.outputs[0].type.get_shape()[1] == 40


def test_a_table_that_is_an_operand_too_is_not_cut():
    """Each row beside the row that its index says: what tiles would make of the one is wrong for the other."""

    def build(b: B, table: V, indices: V) -> V:
        def body(s: ScalarBuilder, e: Any) -> V:
            row = s(arith.IndexCastOp, e[1], s.index(1).type)
            other = s(tensor.ExtractOp, table, [row, s.index(1)], f32)
            return s(arith.AddfOp, e[0], other)

        return b.elementwise([table, b.reshape(indices, (60, 1))], f32, body)

    made = module([(60, 40), (60,)], build, [f32, i64])
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((60, 40)).astype(np.float32), rng.integers(0, 60, 60)]
    for target in ("threads", SMALL):
        check_staged(made, target, inputs)


def test_a_body_that_reads_its_index_is_not_cut():
    def build(b: B, x: V) -> V:
        def body(s: ScalarBuilder, e: Any) -> V:
            column = s(arith.IndexCastOp, s.index(0), i32)
            return s(arith.AddfOp, e[0], s(arith.SIToFPOp, column, f32))

        return b.elementwise([x], f32, body)

    result, _ = check_staged(module([(50, 60)], build), SMALL)
    assert staged_names(result)
    for op in all_ops(result, linalg_ops.GenericOp):
        assert op.outputs[0].type.get_shape()[0] == 50


def test_pooling_windows_are_there_for_their_shape_alone():
    """The operand that says how far the window goes is no tile; channels go by."""

    def build(b: B, x: V) -> V:
        window = b.empty((3, 3), f32)
        d = [AffineExpr.dimension(i) for i in range(6)]
        start = b.fill((1, 12, 9, 9), f32, float("-inf"))
        return b.generic(
            [
                (x, AffineMap(6, 0, (d[0], d[1], d[2] + d[4], d[3] + d[5]))),
                (window, AffineMap(6, 0, (d[4], d[5]))),
            ],
            start,
            AffineMap(6, 0, tuple(d[:4])),
            ["parallel"] * 4 + ["reduction"] * 2,
            lambda s, e, acc: s(arith.MaximumfOp, acc, e[0]),
        )

    result, counts = check_staged(module([(1, 12, 11, 11)], build), SMALL)
    assert counts.bytes_in["f32"] == 4 * 12 * 121
    (name,) = staged_names(result)
    for leaf in leafs(result):
        assert splits(result)[leaf][4:] == (1, 1)
    shapes = {op.outputs[0].type.get_shape()[1:] for op in all_ops(result, linalg_ops.GenericOp)}
    assert all(s[1:] == (9, 9) and s[0] < 12 for s in shapes), name


def test_four_bit_outputs_are_written_by_one_core():
    def build(b: B, x: V) -> V:
        return b.elementwise([x], i4, lambda s, e: s(arith.FPToSIOp, e[0], i4))

    result, _ = check_staged(module([(12, 10)], build), "threads")
    assert set(splits(result).values()) == {(1, 1)}


def test_copies_and_frames():
    def build(b: B, x: V) -> list[V]:
        padded = b.pad(double(b, x), (1, 2), (3, 4), 0.5)
        return [padded, x]

    for target in ("threads", SMALL):
        result, _ = check_staged(module([(20, 30)], build), target)
        assert all_ops(result, memref.CopyOp) and all_ops(result, linalg_ops.FillOp)
        for op in all_ops(result, linalg_ops.FillOp):
            assert node_names(op)


def test_equal_dispatches_are_one_function():
    """A tensor that is returned three times: as many copies, all the same."""
    result, counts = check_staged(module([(16, 16)], lambda b, x: [x, x, x]), "threads")
    assert staged_names(result) == ["copy_node"]
    assert counts.ops["memref.copy"] == 3


# Convolutions.


def conv(
    x: tuple[int, ...],
    channels: int,
    kernel: int = 3,
    groups: int = 1,
    stride: int = 1,
    hoisted: bool = False,
) -> ModuleOp:
    rng = np.random.default_rng(channels)
    w = qmm.WeightAttr.from_array(
        rng.integers(-8, 8, (channels, x[1] // groups, kernel, kernel)).astype(np.int8)
    )
    pad = kernel // 2
    window = {
        "strides": (stride,) * 2,
        "pads": (pad,) * 4,
        "dilations": (1, 1),
        "groups": groups,
    }

    def build(b: B, value: V) -> V:
        scales = 2.0 ** rng.integers(-2, 2, channels)
        quant = qmm.QuantAttr.get(i8, scales, rng.integers(0, 4, channels), axis=0)
        sums = None
        if hoisted:
            sums = b(qmm.WindowSumOp, value, kernel_shape=(kernel,) * 2, **window)
        return b(qmm.DequantConvOp, value, w, quant, hoisted=hoisted, window_sum=sums, **window)

    return module([x], build)


@pytest.mark.parametrize("hoisted", [False, True])
@pytest.mark.parametrize("target", ["threads", SMALL])
def test_convolutions(target: str, hoisted: bool):
    made = conv((1, 6, 9, 9), 20, hoisted=hoisted)
    result, counts = check_staged(made, target)
    assert counts.bytes_in["i8"] == 20 * 6 * 9 + 20
    ops = all_ops(result, qkernel.DequantConvOp)
    if target == SMALL:
        assert sum(op.w.type.get_shape()[0] for op in ops) < 20 or len(ops) > 1
    assert all(kernel in ("c.dequant_conv", "c.window_sum") for kernel in leafs(result).values())
    for leaf, parts in splits(result).items():
        if "dequant_conv" in leaf:
            assert np.prod(parts) == (8 if target == "threads" else 4)


@pytest.mark.parametrize("hoisted", [False, True])
def test_depthwise_convolutions_go_by_channels(hoisted: bool):
    result, counts = check_staged(conv((1, 24, 9, 9), 24, groups=24, hoisted=hoisted), SMALL)
    ops = all_ops(result, qkernel.DequantConvOp)
    for op in ops:
        groups = op.groups.value.data
        assert groups == op.x.type.get_shape()[1] == op.w.type.get_shape()[0] < 24
    sums = all_ops(result, qkernel.WindowSumOp)
    assert bool(sums) == hoisted
    times = 2 if hoisted else 1
    assert counts.bytes_in["f32"] == 4 * (times * 24 * 81 + 24 + (24 * 81 if hoisted else 0))


def test_grouped_convolutions_are_whole_or_on_l2():
    result, _ = check_staged(conv((1, 8, 5, 5), 12, groups=4), SMALL)
    (op,) = all_ops(result, qkernel.DequantConvOp)
    assert op.groups.value.data == 4 and op.w.type.get_shape()[0] == 12
    big, _ = check_staged(conv((1, 16, 13, 13), 16, groups=4), SMALL)
    assert staged_names(big) == []


def test_batches_of_images_go_by():
    result, _ = check_staged(conv((6, 8, 5, 5), 12, groups=4), SMALL)
    shapes = {op.x.type.get_shape()[0] for op in all_ops(result, qkernel.DequantConvOp)}
    assert max(shapes) < 6
    for op in all_ops(result, qkernel.DequantConvOp):
        assert op.groups.value.data == 4


def test_strided_operands_become_dense_in_l1():
    def build(b: B, x: V) -> V:
        return double(b, b.transpose(b.reshape(x, (8, 6, 20)), (1, 0, 2)))

    result, _ = check_staged(module([(8, 120)], build), "threads")
    for op in all_ops(result, linalg_ops.GenericOp):
        assert all("strided" not in str(v.type) for v in op.operands)


@pytest.mark.parametrize(
    ("x", "channels", "groups"),
    [((2, 20, 23, 11), 20, 1), ((2, 20, 23, 11), 20, 4), ((1, 3, 63, 43), 3, 3)],
)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("hoisted", [False, True])
def test_large_convolutions_go_by_channels_and_rows(
    x: tuple[int, ...], channels: int, groups: int, stride: int, hoisted: bool
):
    """The image does not fit: each tile of rows comes with those around it that the window reaches."""
    made = conv(x, channels, groups=groups, stride=stride, hoisted=hoisted)
    result, counts = check_staged(made, "threads:l1=15360,cores=4,stack=1024")
    found = all_ops(result, qkernel.DequantConvOp)
    assert max(op.x.type.get_shape()[2] for op in found) < x[2]
    assert len(staged_names(result)) == (2 if hoisted else 1)
    pads = {op.pads.get_values()[0::2] for op in found}
    # The first tile is padded above, those between not at all.
    assert {(1, 0), (0, 0)} <= pads
    for op in found:
        assert op.pads.get_values()[1::2] == (1, 1)
        depthwise = groups == channels
        assert op.groups.value.data == (op.x.type.get_shape()[1] if depthwise else groups)
    out = -(-x[2] // stride) * -(-x[3] // stride)
    assert counts.bytes_out >= 4 * x[0] * channels * out


def test_a_convolution_of_its_own_input_and_a_residual():
    """The input is an epilogue operand too: of another part of it."""

    def build(b: B, x: V) -> V:
        w = qmm.WeightAttr.from_array(np.ones((8, 8, 3, 3), np.int8))
        block = Block(arg_types=[f32, f32])
        s = ScalarBuilder(block, name_location("epilogue"))
        s.insert(qmm.YieldOp(s(arith.AddfOp, *block.args)))
        return b(
            qmm.DequantConvOp,
            x,
            w,
            qmm.QuantAttr.get(i8, 0.5),
            strides=(1, 1),
            pads=(1,) * 4,
            dilations=(1, 1),
            groups=1,
            epilogue_operands=[x],
            epilogue_maps=[AffineMap.identity(4)],
            epilogue=Region(block),
        )

    for target in ("threads", "threads:l1=9216,cores=2,stack=1024"):
        result, _ = check_staged(module([(1, 8, 17, 9)], build), target)
        assert len(staged_names(result)) == 1
