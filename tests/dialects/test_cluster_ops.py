"""Ops of the cluster, built in Python: `qkernel`'s packed products, `pulp`'s copies and what carries them."""

from __future__ import annotations

import pytest
from xdsl.dialects import scf, test
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, f32, i64
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from qfold.dialects import pulp, qkernel
from qfold.dialects.element_types import i8
from qfold.dialects.qkernel import packed_shape


def buffer(*shape: int, element: Attribute = f32, space: int = 1) -> SSAValue:
    type_ = MemRefType(element, shape, memory_space=IntegerAttr(space, i64))
    return test.TestOp(result_types=[type_]).results[0]


@pytest.mark.parametrize(
    ("k", "n", "expected"), [(8, 6, (2, 8, 4)), (1, 4, (1, 1, 4)), (3, 1, (1, 3, 4)), (0, 5, (2, 0, 4))]
)  # fmt: skip
def test_panels_are_of_four_columns(k: int, n: int, expected: tuple[int, ...]) -> None:
    assert packed_shape(k, n) == expected


def test_operands_are_where_their_names_say() -> None:
    w, scale, zero, y = (
        buffer(6, 8, element=i8),
        buffer(6, 2),
        buffer(6, 2, element=i8),
        buffer(2, 8, 4),
    )
    pack = qkernel.PackOp(w, y, scale=scale, zero_point=zero, transpose_b=True, block_size=4)
    pack.verify()
    assert (pack.w, pack.scale, pack.zero_point, pack.y) == (w, scale, zero, y)
    assert (pack.block, pack.weight_shape) == (4, (8, 6))
    plain = qkernel.PackOp(buffer(8, 6), y)
    plain.verify()
    assert (plain.scale, plain.zero_point, plain.block) == (None, None, None)
    a, s, z, r, out = (
        buffer(3, 8),
        buffer(6),
        buffer(6, element=i8),
        buffer(3),
        buffer(3, 6),
    )
    product = qkernel.PackedMatmulOp(a, y, out, scale=s, zero_point=z, row_sum=r, hoisted=True)
    product.verify()
    assert (product.a, product.p, product.scale) == (a, y, s)
    assert (product.zero_point, product.row_sum, product.y) == (z, r, out)
    sums = qkernel.RowSumOp(a, r)
    sums.verify()
    assert (sums.a, sums.y) == (a, r)


def test_tiled_ops_are_kernels_of_clusters_alone() -> None:
    assert set(qkernel.TILED) < set(qkernel.CONTRACTIONS)
    assert {op.name for op in qkernel.TILED} == {
        "qkernel.pack",
        "qkernel.packed_matmul",
        "qkernel.row_sum",
        "qkernel.pack_bytes",
        "qkernel.pack_window",
        "qkernel.packed_quant_matmul",
    }


def test_a_transfer_is_followed_through_nested_loops() -> None:
    """Carried by two loops, it is five values; what any of them misses is said where it starts."""
    bound = test.TestOp(result_types=[IndexType()]).results[0]
    outer_body = Block(arg_types=[bound.type, pulp.TransferType()])
    inner_body = Block(arg_types=[bound.type, pulp.TransferType()])
    start = pulp.DmaStartOp(buffer(4, space=2), buffer(4))
    outer = scf.ForOp(bound, bound, bound, [start.transfer], Region(outer_body))
    inner = scf.ForOp(bound, bound, bound, [outer_body.args[1]], Region(inner_body))
    inner_body.add_op(scf.YieldOp(inner_body.args[1]))
    wait = pulp.DmaWaitOp(outer.results[0])
    outer_body.add_ops([inner, scf.YieldOp(inner.results[0])])
    block = Block([start, outer, wait])
    start.verify()
    wait.verify()
    found = set(pulp.carriers(start.transfer))
    assert found == {
        start.transfer,
        outer_body.args[1],
        inner_body.args[1],
        inner.results[0],
        outer.results[0],
    }
    block.erase_op(wait)
    with pytest.raises(VerifyException, match="carried by a loop, is taken by one"):
        start.verify()
