"""Packed constants: the same results bit by bit, the same bytes in another order, and nothing stored twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from xdsl.context import Context
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.backend.run import build_module
from qfold.dialects import qkernel, qmm
from qfold.dialects.element_types import i4, i8, i32, integer_range, numpy_dtype, ui8
from qfold.dialects.qmm import WeightAttr
from qfold.interpreters import run
from qfold.ir.builder import TensorBuilder
from qfold.ir.globals import global_weight
from qfold.targets import target_named
from qfold.transforms.qmm_pack_weights import QmmPackWeightsPass
from qfold.transforms.qmm_verify_buffers import QmmVerifyBuffersPass
from tests.backend.level3 import SANITIZED
from tests.transforms_buffer.cluster import staged
from tests.transforms_buffer.helpers import apply, bufferized, module, ops

Array = npt.NDArray[Any]
THREADS = target_named("threads")


def integers(rng: np.random.Generator, element: IntegerType, *shape: int) -> Array:
    low, high = integer_range(element)
    return rng.integers(low, high + 1, shape).astype(numpy_dtype(element))


def constant(builder: TensorBuilder, values: Array, element: IntegerType) -> SSAValue:
    return builder.insert(qmm.ConstantOp(WeightAttr.from_array(values, element))).result


def added(operands: int) -> Region:
    """An epilogue that adds every operand to the accumulator."""
    block = Block(arg_types=[i32] * (operands + 1))
    total: SSAValue = block.args[0]
    for operand in block.args[1:]:
        op = arith.AddiOp(total, operand)
        block.add_op(op)
        total = op.result
    block.add_op(qmm.YieldOp(total))
    return Region(block)


def multiplied(
    builder: TensorBuilder,
    a: SSAValue,
    b: SSAValue,
    *,
    transpose_b: bool = False,
    operands: tuple[tuple[SSAValue, AffineMap], ...] = (),
) -> SSAValue:
    op = qmm.QuantMatmulOp(
        a,
        b,
        transpose_b=transpose_b,
        epilogue_operands=[v for v, _ in operands],
        epilogue_maps=[m for _, m in operands],
        epilogue=added(len(operands)) if operands else None,
    )
    return builder.insert(op).result


def packed(level2: ModuleOp) -> ModuleOp:
    return apply(level2.clone(), QmmPackWeightsPass("threads"), QmmVerifyBuffersPass())


def constants(module_: ModuleOp) -> dict[str, bytes]:
    """Element type and bytes of each constant."""
    found = [g for g in module_.ops if isinstance(g, memref.GlobalOp)]
    return {str(g.type): global_weight(g).raw for g in found}


def unpacked(raw: bytes, k: int, n: int) -> Array:
    """[K, N] of bytes in panels, element by element."""
    panels, words = -(-n // 4), -(-k // 4)
    values = np.frombuffer(raw, np.uint8).reshape(panels, words, 4, 4)
    matrix = np.zeros((k, n), np.uint8)
    for row, column in np.ndindex(k, n):
        matrix[row, column] = values[column // 4, row // 4, column % 4, row % 4]
    assert int(values.astype(np.int64).sum()) == int(matrix.astype(np.int64).sum())
    return matrix


def check(module_: ModuleOp, inputs: list[Array], products: int) -> ModuleOp:
    """So many products are packed, and nothing changes. Returns level 2 after the pass."""
    expected = [np.array(v) for v in run(module_, inputs)]
    before = bufferized(module_.clone(), THREADS)
    after = packed(before)
    assert len(ops(after, qkernel.PackedQuantMatmulOp)) == products
    for level in (before, after):
        for found, y in zip(run(level, inputs), expected, strict=True):
            assert np.array_equal(np.asarray(found), y)
    return after


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("lead", [(5,), (1, 5), (2, 3), (3, 1), (2, 1, 4), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize(
    "types",
    [(i8, i8), (ui8, i8), (i8, ui8), (ui8, ui8)],
    ids=lambda pair: "x".join(str(t) for t in pair),
)
def test_rows_of_any_batch(types: Any, lead: tuple[int, ...], transpose_b: bool) -> None:
    """With epilogue operands along columns, along all rows, and along both."""
    rng = np.random.default_rng(len(lead))
    k, n = 9, 6
    b = integers(rng, types[1], *((n, k) if transpose_b else (k, n)))
    a = integers(rng, types[0], *lead, k)
    others = [
        rng.integers(-1000, 1000, shape).astype(np.int32) for shape in ((n,), lead, (*lead, n))
    ]
    d = [AffineExpr.dimension(i) for i in range(len(lead) + 1)]
    rank = len(d)
    maps = [AffineMap(rank, 0, m) for m in ((d[-1],), tuple(d[:-1]), tuple(d))]

    def build(builder: TensorBuilder, *args: SSAValue) -> SSAValue:
        right = constant(builder, b, types[1])
        operands = tuple(zip(args[1:], maps, strict=True))
        return multiplied(builder, args[0], right, transpose_b=transpose_b, operands=operands)

    values = [a, *others]
    made = module([v.shape for v in values], build, [types[0], i32, i32, i32])
    after = check(made, values, products=1)
    (raw,) = constants(after).values()
    stored = b.view(np.uint8)
    assert np.array_equal(unpacked(raw, k, n), stored.T if transpose_b else stored)
    (op,) = ops(after, qkernel.PackedQuantMatmulOp)
    assert all(m.num_dims == 2 for m in op.maps)


def test_operands_that_broadcast_over_rows() -> None:
    """[1, N] and [1, 1, 1] are per column and per tensor; one value per batch has no place in a matrix."""
    rng = np.random.default_rng(3)
    a, b = integers(rng, i8, 2, 3, 8), integers(rng, i8, 8, 4)
    zero, d = AffineExpr.constant(0), [AffineExpr.dimension(i) for i in range(3)]

    def made(shape: tuple[int, ...], *results: AffineExpr) -> tuple[ModuleOp, list[Array]]:
        other = rng.integers(-9, 9, shape).astype(np.int32)

        def build(builder: TensorBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
            operands = ((y, AffineMap(3, 0, results)),)
            return multiplied(builder, x, constant(builder, b, i8), operands=operands)

        return module([a.shape, shape], build, [i8, i32]), [a, other]

    check(*made((1, 1, 4), zero, zero, d[2]), products=1)
    check(*made((1, 1, 1), zero, zero, zero), products=1)
    check(*made((), *[]), products=1)
    check(*made((2, 3, 1), d[0], d[1], zero), products=1)
    check(*made((2, 1, 1), d[0], zero, zero), products=0)
    check(*made((3,), d[1]), products=0)


@pytest.mark.parametrize("lead", [(4,), (1, 4), (3, 4)])
@pytest.mark.parametrize("batches", [(1,), (1, 1)])
def test_a_matrix_with_dimensions_of_one_element(
    lead: tuple[int, ...], batches: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(11)
    a, b = integers(rng, i8, *lead, 9), integers(rng, ui8, *batches, 9, 6)
    made = module([a.shape], lambda m, x: multiplied(m, x, constant(m, b, ui8)), [i8])
    after = check(made, [a], products=1)
    (raw,) = constants(after).values()
    assert np.array_equal(unpacked(raw, 9, 6), b.reshape(9, 6))


def test_a_batch_of_matrices_stays() -> None:
    rng = np.random.default_rng(12)
    a, b = integers(rng, i8, 2, 3, 8), integers(rng, i8, 2, 8, 4)
    made = module([a.shape], lambda m, x: multiplied(m, x, constant(m, b, i8)), [i8])
    check(made, [a], products=0)


def test_a_constant_is_packed_once_for_all_its_products() -> None:
    rng = np.random.default_rng(4)
    a, c, b = integers(rng, i8, 3, 8), integers(rng, i8, 2, 5, 8), integers(rng, i8, 8, 7)

    def build(builder: TensorBuilder, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        return [multiplied(builder, v, constant(builder, b, i8)) for v in (x, y)]

    after = check(module([a.shape, c.shape], build, [i8, i8]), [a, c], products=2)
    assert [len(raw) for raw in constants(after).values()] == [64]


def test_a_tied_weight_stays_one_constant() -> None:
    """Multiplied by as it is and transposed: packing would store it twice."""
    rng = np.random.default_rng(5)
    a, c, b = integers(rng, i8, 3, 8), integers(rng, i8, 3, 6), integers(rng, i8, 8, 6)

    def build(builder: TensorBuilder, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        weight = constant(builder, b, i8)
        return [
            multiplied(builder, x, weight),
            multiplied(builder, y, weight, transpose_b=True),
        ]

    after = check(module([a.shape, c.shape], build, [i8, i8]), [a, c], products=0)
    assert list(constants(after).values()) == [b.tobytes()]


def test_a_constant_whose_panels_are_another_one() -> None:
    """A matrix of four rows read transposed lies in panels already; what packs to the same bytes shares its place."""
    rng = np.random.default_rng(6)
    a, b = integers(rng, i8, 3, 4), integers(rng, i8, 4, 4)

    def build(builder: TensorBuilder, x: SSAValue) -> list[SSAValue]:
        whole = constant(builder, b, i8)
        turned = constant(builder, b.T.copy(), i8)
        return [
            multiplied(builder, x, whole, transpose_b=True),
            multiplied(builder, x, turned),
        ]

    after = check(module([a.shape], build, [i8]), [a], products=2)
    assert list(constants(after).values()) == [b.tobytes()]


def test_a_swap_of_two_constants() -> None:
    """Each packs to the bytes that the other one has."""
    rng = np.random.default_rng(7)
    a, b = integers(rng, i8, 3, 4), integers(rng, i8, 4, 4)

    def build(builder: TensorBuilder, x: SSAValue) -> list[SSAValue]:
        pair = [constant(builder, v, i8) for v in (b, b.T.copy())]
        return [multiplied(builder, x, v) for v in pair]

    after = check(module([a.shape], build, [i8]), [a], products=2)
    found = [global_weight(g).raw for g in after.ops if isinstance(g, memref.GlobalOp)]
    assert sorted(found) == sorted([b.tobytes(), b.T.tobytes()])


def test_half_bytes_stay_half_bytes() -> None:
    """They are packed, and widened, in the scratchpad."""
    rng = np.random.default_rng(8)
    a, b = integers(rng, ui8, 5, 12), integers(rng, i4, 12, 8)

    def build(builder: TensorBuilder, x: SSAValue) -> SSAValue:
        return multiplied(builder, x, constant(builder, b, i4))

    made = module([a.shape], build, [ui8])
    after = check(made, [a], products=0)
    assert [len(raw) for raw in constants(after).values()] == [48]
    level3 = staged(made, "threads")
    assert np.array_equal(run(level3, [a])[0], a.astype(np.int32) @ b.astype(np.int32))


def test_a_target_without_such_kernels_keeps_its_constants() -> None:
    rng = np.random.default_rng(9)
    b = integers(rng, i8, 8, 4)
    made = module([(3, 8)], lambda m, x: multiplied(m, x, constant(m, b, i8)), [i8])
    level2 = bufferized(made)
    before = str(level2)
    QmmPackWeightsPass("host").apply(Context(), level2)
    assert str(level2) == before


@pytest.mark.parametrize("target", ["threads", "threads:cores=3"])
def test_compiled(target: str) -> None:
    """Two layers on three axes, to the C that runs on each core."""
    rng = np.random.default_rng(10)
    a, b, c = integers(rng, i8, 2, 5, 33), integers(rng, i8, 33, 22), integers(rng, ui8, 9, 33)
    bias = rng.integers(-1000, 1000, 22).astype(np.int32)
    columns = AffineMap(3, 0, (AffineExpr.dimension(2),))

    def build(builder: TensorBuilder, x: SSAValue, e: SSAValue) -> list[SSAValue]:
        first = multiplied(builder, x, constant(builder, b, i8), operands=((e, columns),))
        return [first, multiplied(builder, x, constant(builder, c, ui8), transpose_b=True)]

    level3 = staged(module([a.shape, (22,)], build, [i8, i32]), target)
    names = {op.name for op in level3.walk()}
    assert "qkernel.packed_quant_matmul" in names
    assert not {"qkernel.pack_bytes", "qkernel.quant_matmul"} & names
    executable = build_module(level3, **SANITIZED)
    found = executable.run({"x0": a, "x1": bias})
    executable.close()
    wide = a.astype(np.int32)
    assert np.array_equal(found["y0"], wide @ b.astype(np.int32) + bias)
    assert np.array_equal(found["y1"], wide @ c.T.astype(np.int32))
