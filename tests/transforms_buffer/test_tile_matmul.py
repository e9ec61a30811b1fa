"""qmm-tile-to-l1 on matmuls: which form each takes, what moves, and that the result is the same to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import pulp, qkernel, qmm
from qfold.dialects.element_types import byte_size, i4, i8, i16, ui4, ui8, ui16
from qfold.ir.builder import ScalarBuilder, TensorBuilder
from qfold.ir.locations import name_location, node_names
from qfold.transforms.qmm_lower_quantization import QmmLowerQuantizationPass
from tests.transforms_buffer.cluster import (
    all_ops,
    called,
    check_staged,
    kernels,
    leafs,
    staged,
    tile_shape,
)
from tests.transforms_buffer.helpers import module, small_inputs

B = TensorBuilder
V = SSAValue
SMALL = "threads:l1=20480,cores=8,stack=1024"
"""11 KiB for tiles: most of the matmuls here take several."""
TINY = "threads:l1=6400,cores=3,stack=256"


def weight(k: int, n: int, storage: Any = i8, transpose_b: bool = False) -> qmm.WeightAttr:
    low, high = (0, 16) if storage in (ui4, ui8, ui16) else (-8, 8)
    values = np.random.default_rng(k * n).integers(low, high, (n, k) if transpose_b else (k, n))
    return qmm.WeightAttr.from_array(values, storage)


def quantisation(
    k: int, n: int, storage: Any, granularity: str, transpose_b: bool, asymmetric: bool
) -> qmm.QuantAttr:
    rng = np.random.default_rng(k + n)
    if granularity == "tensor":
        return qmm.QuantAttr.get(storage, 0.5, 3 if asymmetric else 0)
    block = 8
    shape: tuple[int, ...] = (n,)
    options: dict[str, Any] = {"axis": 0 if transpose_b else 1}
    if granularity == "block":
        blocks = -(-k // block)
        shape = (n, blocks) if transpose_b else (blocks, n)
        options = {"axis": 1 if transpose_b else 0, "block_size": block}
    scales = 2.0 ** rng.integers(-2, 2, shape)
    zeros = rng.integers(0, 4, shape) if asymmetric else 0
    return qmm.QuantAttr.get(storage, scales, zeros, **options)


def dequant_matmul(
    a: tuple[int, ...],
    n: int,
    storage: Any = i8,
    granularity: str = "axis",
    transpose_b: bool = False,
    asymmetric: bool = True,
) -> ModuleOp:
    k = a[-1]

    def build(b: B, x: V) -> V:
        quant = quantisation(k, n, storage, granularity, transpose_b, asymmetric)
        w = weight(k, n, storage, transpose_b)
        return b(qmm.DequantMatmulOp, x, w, quant, transpose_b=transpose_b)

    return module([a], build)


@pytest.mark.parametrize("target", ["threads", SMALL, TINY, "spike:cores=5,l1=24576"])
@pytest.mark.parametrize(
    "shape", [(7, 5, 3), (32, 64, 64), (33, 40, 37), (5, 130, 30), (66, 17, 70), (100, 24, 4)]
)
def test_packed_for_many_rows(shape: tuple[int, int, int], target: str):
    m, k, n = shape
    result, counts = check_staged(dequant_matmul((m, k), n), target)
    # Each weight comes to L1 and is packed exactly once; zero points are subtracted there.
    assert counts.packed_columns == n
    assert counts.bytes_in["i8"] == k * n + n
    assert counts.bytes_out == 4 * m * n
    for op in all_ops(result, qkernel.PackedMatmulOp):
        assert op.zero_point is None and op.scale is not None
    family = "c" if target.startswith("threads") else "riscv"
    assert set(leafs(result).values()) == {f"{family}.pack", f"{family}.packed_matmul"}
    assert not all_ops(result, qkernel.DequantMatmulOp)


@pytest.mark.parametrize("target", ["threads", SMALL, TINY])
@pytest.mark.parametrize("shape", [(1, 128, 128), (1, 7, 5), (4, 50, 33), (3, 16, 130)])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_direct_for_few_rows(shape: tuple[int, int, int], transpose_b: bool, target: str):
    m, k, n = shape
    result, counts = check_staged(dequant_matmul((m, k), n, transpose_b=transpose_b), target)
    assert set(leafs(result).values()) == {"c.dequant_matmul"}
    assert counts.bytes_in["i8"] == k * n + n
    assert counts.packed_columns == 0
    # The activation comes once, scales with their columns.
    assert counts.bytes_in["f32"] == 4 * (m * k + n)


@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4, i16, ui16])
@pytest.mark.parametrize("granularity", ["tensor", "axis", "block"])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("rows", [1, 11])
def test_weights(storage: Any, granularity: str, transpose_b: bool, rows: int):
    k, n = 40, 30
    made = dequant_matmul((rows, k), n, storage, granularity, transpose_b)
    result, counts = check_staged(made, TINY)
    direct = rows == 1 and storage in (i8, ui8) and granularity != "block"
    expected = {"c.dequant_matmul"} if direct else {"c.pack", "c.packed_matmul"}
    assert set(leafs(result).values()) == expected
    # ui8 weights stay what they are here: the passes on tensors did not run.
    assert counts.bytes_in[str(storage)] >= byte_size(storage, k * n)
    for op in all_ops(result, qkernel.PackOp):
        assert (op.scale is not None) == (granularity == "block")
    for op in all_ops(result, qkernel.PackedMatmulOp):
        assert (op.scale is None) == (granularity == "block")


@pytest.mark.parametrize("columns", [30, 31])
def test_four_bit_tiles_start_at_whole_bytes(columns: int):
    """Of an odd number of columns every second row starts inside of a byte: only all of them can be moved."""
    result, _ = check_staged(dequant_matmul((9, 24), columns, i4), TINY)
    packed = all_ops(result, qkernel.PackOp)
    assert packed
    if columns % 2:
        assert {tile_shape(op, "w") for op in packed} == {(24, columns)}
    else:
        assert {tile_shape(op, "w")[1] % 2 for op in packed} == {0}
        assert len({tile_shape(op, "w") for op in packed} | {(24, columns)}) > 1


def test_hoisted_zero_points_need_no_correction_when_packed():
    def build(b: B, x: V) -> V:
        sums = b(qmm.RowSumOp, x, None)
        quant = qmm.QuantAttr.get(i8, [1.0] * 8, range(8), axis=1)
        return b(qmm.DequantMatmulOp, x, weight(16, 8), quant, hoisted=True, row_sum=sums)

    for rows, leaf in ((9, "c.packed_matmul"), (2, "c.dequant_matmul")):
        made = module([(rows, 16)], build)
        QmmLowerQuantizationPass().apply(Context(), made)
        result, counts = check_staged(made, SMALL)
        assert leaf in leafs(result).values()
        assert counts.ops["qkernel.row_sum"] == 1
        for op in all_ops(result, qkernel.DequantMatmulOp):
            assert op.row_sum is not None and op.hoisted is not None


def test_large_k_stays_on_l2():
    """Not even four columns of it fit: a leaf function on L2, split over the cores."""
    made = dequant_matmul((8, 3000), 4)
    result, counts = check_staged(made, TINY)
    assert kernels(result) == {"dequant_matmul_f32_i8_kn_axis_8x3000x4": "c.dequant_matmul"}
    assert counts.ops["pulp.dma_start"] == 0


# Tiles and transfers.


def test_everything_fits_in_one_tile():
    result, counts = check_staged(dequant_matmul((7, 5), 3), "threads")
    (dispatch,) = (name for name, kernel in kernels(result).items() if kernel == "staged")
    assert called(result, dispatch) == ["pack_i8_i8_kn_5x3", "packed_matmul_axis_7x5x3"]
    assert counts.ops["pulp.dma_start"] == 5  # activation, weight, zero points, scales; the result
    assert counts.ops["scf.for"] == 0


def test_rows_go_by_while_the_weight_stays():
    """196x128x128: no more than half of the packed weight fits; for each half, rows in tiles of two blocks, two in flight."""
    result, counts = check_staged(dequant_matmul((196, 128), 128), "spike")
    assert {tile_shape(op, "w") for op in all_ops(result, qkernel.PackOp)} == {(128, 64)}
    assert {tile_shape(op, "a")[0] for op in all_ops(result, qkernel.PackedMatmulOp)} == {8, 4}
    assert counts.ops["qkernel.pack"] == 2
    assert counts.ops["qkernel.packed_matmul"] == 2 * (24 + 1)
    assert counts.bytes_in["f32"] == 4 * (2 * 196 * 128 + 128)


def test_transfers_go_on_during_the_work():
    """In the sequence of tiles the next operands are under way when a leaf is called."""
    result = staged(dequant_matmul((196, 128), 128), "spike")
    loops = [op for op in result.walk() if op.name == "scf.for" and op.results]
    assert loops
    for loop in loops:
        under_way = len(loop.operands) - 3
        seen: list[int] = []
        for op in loop.regions[0].block.ops:
            if isinstance(op, pulp.DmaStartOp):
                under_way += 1
            elif isinstance(op, pulp.DmaWaitOp):
                under_way -= 1
            elif op.name == "func.call":
                seen.append(under_way)
        # The operand of the next tile, and the result of the last.
        assert seen == [2, 2]


def test_columns_go_by_while_the_activation_stays():
    result, counts = check_staged(dequant_matmul((8, 512), 128), "spike")
    assert counts.bytes_in["f32"] == 4 * (8 * 512 + 128)
    assert {tile_shape(op, "a") for op in all_ops(result, qkernel.PackedMatmulOp)} == {(8, 512)}


def test_equal_tiles_share_leaf_functions():
    def build(b: B, x: V) -> list[V]:
        results: list[V] = []
        for node, rows in (("q", 8), ("k", 8)):
            b.location = name_location(node)
            quant = qmm.QuantAttr.get(i8, 0.5)
            tokens = b.slice(x, [0, 0], [rows, 16], [1, 1])
            results.append(b(qmm.DequantMatmulOp, tokens, weight(16, 12), quant))
            results.append(b(qmm.DequantMatmulOp, results[-1], weight(12, 12), quant))
        return results

    result, _ = check_staged(module([(8, 16)], build), "threads")
    names = [n for n, k in leafs(result).items() if k == "c.packed_matmul"]
    assert names == ["packed_matmul_tensor_8x16x12", "packed_matmul_tensor_8x12x12"]
    assert {node_names(op) for op in all_ops(result, qkernel.PackedMatmulOp)} == {("q", "k")}
    assert {node_names(op) for op in all_ops(result, pulp.DmaStartOp)} == {("q", "k")}


# Batches and products of activations.


def test_leading_dimensions_become_rows():
    result, counts = check_staged(dequant_matmul((2, 3, 6, 16), 12), "threads")
    shapes = [tile_shape(op, "a") for op in all_ops(result, qkernel.PackedMatmulOp)]
    assert sum(rows for rows, _ in shapes) == 36
    assert counts.ops["scf.for"] == 0 and counts.packed_columns == 12


def test_batches_that_cannot_be_rows_share_the_packed_weight():
    """The output is transposed, so that batch and rows are not one dimension."""

    def build(b: B, x: V) -> V:
        quant = qmm.QuantAttr.get(i8, 0.5)
        y = b(qmm.DequantMatmulOp, x, weight(16, 12), quant)
        return b.transpose(y, (1, 0, 2))

    result, counts = check_staged(module([(5, 6, 16)], build), "threads")
    assert [tile_shape(op, "a") for op in all_ops(result, qkernel.PackedMatmulOp)] == [(6, 16)]
    assert counts.ops["qkernel.packed_matmul"] == 5
    assert counts.packed_columns == 12


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(
    ("a", "w"),
    [
        ((9, 20), (20, 14)),
        ((2, 3, 9, 20), (2, 3, 20, 14)),
        ((2, 3, 9, 20), (1, 3, 20, 14)),
        ((2, 1, 9, 20), (3, 20, 14)),
        ((3, 9, 20), (20, 14)),
        ((3, 40), (4, 40, 30)),
    ],
)
def test_products_of_activations(a: tuple[int, ...], w: tuple[int, ...], transpose_b: bool):
    shape = (*w[:-2], w[-1], w[-2]) if transpose_b else w

    def build(b: B, x: V, y: V) -> V:
        return b(qmm.MatmulOp, x, y, transpose_b=transpose_b)

    for target in ("threads", TINY):
        result, counts = check_staged(module([a, shape], build), target)
        assert set(leafs(result).values()) == {"c.pack", "c.packed_matmul"}
        # Each matrix of weights once.
        batches = int(np.prod(w[:-2], dtype=int))
        assert counts.packed_columns == w[-1] * batches


def test_many_tiny_products_stay_on_l2():
    """64 products of one number each: 64 times two transfers and barriers would cost more than loads from L2."""
    made = module([(64, 1, 1), (64, 1, 1)], lambda b, x, y: b(qmm.MatmulOp, x, y))
    result, _ = check_staged(made, "threads")
    assert set(kernels(result).values()) == {"c.matmul"}


def test_heads_are_read_where_they_lie():
    """Attention scores: heads are strided views, which the transfers make dense."""

    def build(b: B, q: V, k: V) -> V:
        def heads(x: V) -> V:
            return b.transpose(b.reshape(x, (10, 3, 8)), (1, 0, 2))

        return b(qmm.MatmulOp, heads(q), heads(k), transpose_b=True)

    result, counts = check_staged(module([(10, 24), (10, 24)], build), "threads")
    assert set(leafs(result).values()) == {"c.pack", "c.packed_matmul"}
    assert counts.bytes_in["f32"] == 4 * 2 * 240
    strided = [op for op in all_ops(result, pulp.DmaStartOp) if "strided<[24, 1]" in str(op)]
    assert strided


def test_a_transposed_activation_stays_on_l2():
    result, _ = check_staged(
        module([(6, 9), (6, 8)], lambda b, x, y: b(qmm.MatmulOp, x, y, transpose_a=True)), SMALL
    )
    assert set(leafs(result).values()) == {"c.matmul"}


# Epilogues.

ROWS, COLUMNS = AffineExpr.dimension(0), AffineExpr.dimension(1)


def with_epilogue(rich: bool, shape: tuple[int, int, int], result: Any = f32) -> ModuleOp:
    """Bias, residual, and a Relu or (rich) an exponential."""
    m, k, n = shape

    def region() -> Region:
        block = Block(arg_types=[f32, f32, f32])
        s = ScalarBuilder(block, name_location("epilogue"))
        y = s(arith.AddfOp, s(arith.AddfOp, block.args[0], block.args[1]), block.args[2])
        if rich:
            y = s(math.AbsFOp, y)
        else:
            y = s(arith.MaximumfOp, y, s.constant(0.0, f32))
        if result != f32:
            y = s(arith.FPToSIOp, y, result)
        s.insert(qmm.YieldOp(y))
        return Region(block)

    def build(b: B, x: V, bias: V, residual: V) -> V:
        quant = quantisation(k, n, i8, "axis", False, True)
        return b(
            qmm.DequantMatmulOp,
            x,
            weight(k, n),
            quant,
            epilogue_operands=[bias, residual],
            epilogue_maps=[AffineMap(2, 0, (COLUMNS,)), AffineMap(2, 0, (ROWS, COLUMNS))],
            epilogue=region(),
            result_element_type=result,
        )

    return module([(m, k), (n,), (m, n)], build)


@pytest.mark.parametrize("shape", [(40, 24, 36), (3, 24, 36)])
@pytest.mark.parametrize("target", ["threads", "spike", "spike:l1=24576,stack=2048"])
@pytest.mark.parametrize("rich", [False, True])
def test_epilogues(shape: tuple[int, int, int], target: str, rich: bool):
    m, k, n = shape
    result, counts = check_staged(with_epilogue(rich, shape), target)
    assert counts.bytes_in["f32"] >= 4 * (m * k + 2 * n + m * n)
    separate = rich and target.startswith("spike")
    nests = all_ops(result, linalg.GenericOp)
    assert bool(nests) == separate
    products = all_ops(result, qkernel.PackedMatmulOp) + all_ops(result, qkernel.DequantMatmulOp)
    for op in products:
        assert (op.epilogue_block is None) == separate
    for nest in nests:
        # Accumulators are finished where they lie.
        assert nest.outputs[0] is nest.inputs[0]
        assert node_names(nest)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_bias_that_is_the_scale_comes_once(rows: int):
    """Equal constants are one parameter: two transfers to one place would be under way at a time."""
    ones = np.full(30, 2.0, np.float32)

    def build(b: B, x: V) -> V:
        block = Block(arg_types=[f32, f32])
        s = ScalarBuilder(block, name_location("bias"))
        s.insert(qmm.YieldOp(s(arith.AddfOp, *block.args)))
        return b(
            qmm.DequantMatmulOp,
            x,
            weight(24, 30),
            qmm.QuantAttr.get(i8, ones, axis=1),
            epilogue_operands=[b.constant(ones)],
            epilogue_maps=[AffineMap(2, 0, (COLUMNS,))],
            epilogue=Region(block),
        )

    for target in ("threads", TINY):
        _, counts = check_staged(module([(rows, 24)], build), target)
        assert counts.bytes_in["f32"] % (4 * 24) == 4 * 30 % (4 * 24)


def test_an_epilogue_of_another_type_has_accumulators_of_its_own():
    result, counts = check_staged(with_epilogue(False, (40, 24, 36), i8), "spike")
    (nest, *_) = all_ops(result, linalg.GenericOp)
    assert nest.outputs[0] is not nest.inputs[0]
    assert counts.bytes_out == 40 * 36
    whole, _ = check_staged(with_epilogue(False, (40, 24, 36), i8), "threads")
    assert not all_ops(whole, linalg.GenericOp)


def test_inputs_that_are_exact_make_exact_results():
    """The comparisons above are bit for bit: f32 sums of small whole numbers."""
    made = dequant_matmul((9, 20), 14)
    assert all(np.array_equal(x, np.round(x)) for x in small_inputs(made))
