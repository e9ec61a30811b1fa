"""`qmm-fuse-elementwise`: what merges, what must not, and that a chain ends as the passes over memory that it needs."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import UnrealizedConversionCastOp, f32, i64
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.element_types import i8, ui8
from qfold.ir import fusion
from qfold.ir.fusion import BODY_LIMIT
from qfold.ir.locations import node_names
from tests.transforms.graphs import (
    Node,
    apply,
    check,
    module,
    names,
    only,
    ops,
    quantization,
    weight,
)

FUSE = "qmm-fuse-elementwise"


def add(node: Node, name: str, x: SSAValue, y: SSAValue) -> SSAValue:
    return node(name).elementwise([x, y], f32, lambda b, e: b(arith.AddfOp, *e))


def multiply(node: Node, name: str, x: SSAValue, y: SSAValue) -> SSAValue:
    return node(name).elementwise([x, y], f32, lambda b, e: b(arith.MulfOp, *e))


def exp(node: Node, name: str, x: SSAValue) -> SSAValue:
    return node(name).elementwise([x], f32, lambda b, e: b(math.ExpOp, *e))


def total(node: Node, name: str, x: SSAValue, axis: int) -> SSAValue:
    return node(name).reduce(
        x, [axis], 0.0, lambda b, e, acc: b(arith.AddfOp, acc, e), keepdims=True
    )


def count(made, kind) -> int:
    return sum(isinstance(op, kind) for op in made.walk())


def test_a_chain_is_one_generic():
    def build(node: Node, x: SSAValue, y: SSAValue) -> SSAValue:
        a = add(node, "Add", x, y)
        b = exp(node, "Exp", a)
        return multiply(node, "Mul", b, y)

    made = check(module(build, (3, 4), (4,)), FUSE)
    assert names(made)["linalg.generic"] == 1
    op = only(made, linalg.GenericOp)
    assert set(node_names(op)) == {"Add", "Exp", "Mul"}
    assert len(op.inputs) == 2  # y once


def test_gelu_is_one_generic_with_one_erf():
    def build(node: Node, x: SSAValue) -> SSAValue:
        half = node("half").constant(np.float32(0.5))
        one = node("one").fill((3, 4), f32, 1.0)
        inner = multiply(node, "Mul", x, half)
        erf = node("Erf").elementwise([inner], f32, lambda b, e: b(math.ErfOp, *e))
        return multiply(node, "Mul2", inner, add(node, "Add", erf, one))

    made = check(module(build, (3, 4)), FUSE)
    assert names(made) == {"tensor.empty": 1, "linalg.generic": 1, "func.return": 1}
    assert count(made, math.ErfOp) == 1 and len(only(made, linalg.GenericOp).inputs) == 1


def test_an_expensive_producer_of_two_readers_is_not_computed_twice():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        e = exp(node, "Exp", x)
        return [add(node, "Add", e, x), total(node, "Sum", e, 1)]

    made = check(module(build, (3, 4)), FUSE)
    assert count(made, math.ExpOp) == 1 and names(made)["linalg.generic"] == 3


def test_division_counts_as_expensive():
    def build(node: Node, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        q = node("Div").elementwise([x, y], f32, lambda b, e: b(arith.DivfOp, *e))
        return [exp(node, "Exp", q), total(node, "Sum", q, 1)]

    made = check(module(build, (3, 4), (4,)), FUSE)
    assert count(made, arith.DivfOp) == 1


def test_a_broadcast_is_not_computed_for_each_reader_element():
    """The row's factor is computed once per row, not once per element."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        rows = exp(node, "Exp", total(node, "Sum", x, 1))
        return multiply(node, "Mul", x, rows)

    made = check(module(build, (3, 4)), FUSE)
    assert names(made)["linalg.generic"] == 3


def test_a_broadcast_copy_vanishes():
    def build(node: Node, x: SSAValue, row: SSAValue) -> SSAValue:
        return multiply(node, "Mul", x, node("Expand").broadcast_to(row, (3, 4)))

    made = check(module(build, (3, 4), (1, 4)), FUSE)
    assert names(made)["linalg.generic"] == 1


def test_layer_normalization_reads_its_input_three_times_and_writes_once():
    def build(node: Node, x: SSAValue, gamma: SSAValue) -> SSAValue:
        size = node("n").constant(np.float32(1 / 8))
        mean = multiply(node, "Mean", total(node, "ReduceMean", x, 1), size)
        centred = node("Sub").elementwise([x, mean], f32, lambda b, e: b(arith.SubfOp, *e))
        square = multiply(node, "Pow", centred, centred)
        variance = multiply(node, "Var", total(node, "ReduceMean2", square, 1), size)
        scale = node("Rsqrt").elementwise([variance], f32, lambda b, e: b(math.RsqrtOp, *e))
        return multiply(node, "Gamma", multiply(node, "Scale", centred, scale), gamma)

    made = check(module(build, (4, 8), (8,)), FUSE, "qmm-canonicalize")
    wide = [
        op
        for op in ops(made)
        if isinstance(op, linalg.GenericOp)
        and op.iterator_types.data[1:]
        and any(v.type == made.body.block.first_op.function_type.inputs.data[0] for v in op.inputs)
    ]
    # Sum, sum of squares, normalise; the others are of one element per row.
    assert len(wide) == 3
    assert sum(op.results[0].type == op.inputs[0].type for op in wide) == 1


def test_softmax_keeps_one_exp():
    def build(node: Node, x: SSAValue) -> SSAValue:
        top = node("Max").reduce(
            x, [1], -np.inf, lambda b, e, acc: b(arith.MaximumfOp, acc, e), keepdims=True
        )
        shifted = node("Sub").elementwise([x, top], f32, lambda b, e: b(arith.SubfOp, *e))
        e = exp(node, "Exp", shifted)
        return node("Div").elementwise(
            [e, total(node, "Sum", e, 1)], f32, lambda b, v: b(arith.DivfOp, *v)
        )

    made = check(module(build, (4, 8)), FUSE)
    assert names(made)["linalg.generic"] == 4 and count(made, math.ExpOp) == 1


@pytest.mark.parametrize("permutation", [(0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_transposes_become_maps(permutation):
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        before = exp(node, "Exp", node("T1").transpose(x, permutation))
        after = node("T2").transpose(exp(node, "Exp2", x), permutation)
        return [before, after, total(node, "Sum", node("T3").transpose(x, permutation), 2)]

    made = check(module(build, (2, 3, 4)), FUSE)
    assert names(made)["linalg.transpose"] == 0 and names(made)["linalg.generic"] == 3


def test_a_transpose_that_something_else_needs_stays():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        t = node("Transpose").transpose(x, (1, 0))
        return [exp(node, "Exp", t), t]

    made = check(module(build, (3, 4)), FUSE)
    assert names(made)["linalg.transpose"] == 1


def test_through_unit_reshapes_expansions_and_slices():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        a = node("Unsqueeze").reshape(exp(node, "Exp", x), (4, 1, 6))
        b = node("Reshape").reshape(exp(node, "Exp2", x), (4, 2, 3))
        c = node("Slice").slice(exp(node, "Exp3", x), (1, 0), (3, 2), (1, 3))
        return [add(node, f"Add{i}", v, v) for i, v in enumerate((a, b, c))]

    made = check(module(build, (4, 6)), FUSE)
    assert names(made)["linalg.generic"] == 3
    assert names(made)["tensor.expand_shape"] == names(made)["tensor.extract_slice"] == 0


def test_reversal_and_index_are_followed():
    """A producer that looks at its loop index, read backwards."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        def body(b, e, _):
            as_int = b(arith.IndexCastOp, b.index(1), i64)
            return b(arith.AddfOp, e[0], b(arith.SIToFPOp, as_int, f32))

        identity = AffineMap.identity(2)
        ramp = node("Ramp").generic(
            [(x, identity)], node("Ramp").empty((3, 4), f32), identity, ["parallel"] * 2, body
        )
        return exp(node, "Exp", node("Slice").slice(ramp, (0, 3), (3, 4), (1, -1)))

    made = check(module(build, (3, 4)), FUSE)
    assert names(made)["linalg.generic"] == 1


def test_loop_bounds_are_kept():
    """A sum over a dimension that only a fill has: the operand that bounds the loop must not vanish."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        ones = node("ones").fill((5,), f32, 2.0)
        i, k = AffineExpr.dimension(0), AffineExpr.dimension(1)
        return node("Sum").generic(
            [(x, AffineMap(2, 0, (i,))), (ones, AffineMap(2, 0, (k,)))],
            node("Sum").fill((3,), f32, 0.0),
            AffineMap(2, 0, (i,)),
            ["parallel", "reduction"],
            lambda b, e, acc: b(arith.AddfOp, acc, b(arith.MulfOp, e[0], e[1])),
        )

    check(module(build, (3,)), FUSE)


def test_unsigned_casts_cancel():
    quant = quantization(ui8, (3, 4), "tensor", zero="high")

    def build(node: Node, x: SSAValue) -> SSAValue:
        q = node("Q").insert(qmm.QuantizeOp(x, quant)).result
        return node("DQ").insert(qmm.DequantizeOp(q, quant)).result

    made = check(module(build, (3, 4)), "qmm-lower-quantization", FUSE)
    assert names(made)["linalg.generic"] == 1
    assert count(made, UnrealizedConversionCastOp) == 0


def test_a_dequantised_constant_is_read_as_integers_by_each_reader():
    quant = quantization(i8, (3, 4), "tensor", zero="high")

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        table = weight(node, i8, (3, 4), quant)
        return [add(node, "Add", x, table), multiply(node, "Mul", x, table)]

    made = check(module(build, (3, 4)), "qmm-lower-quantization", FUSE)
    assert names(made)["linalg.generic"] == 2


def test_what_is_for_an_epilogue_is_left_to_it():
    """The scaled product has two readers; scaling it in each would keep it out of the contraction."""

    def build(node: Node, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        product = node("MatMul").insert(qmm.MatmulOp(x, y)).result
        scaled = multiply(node, "Mul", product, node("s").constant(np.float32(0.125)))
        return [exp(node, "Exp", scaled), total(node, "Sum", scaled, 1)]

    made = check(module(build, (3, 5), (5, 4)), FUSE, "qmm-fuse-epilogue")
    assert only(made, qmm.MatmulOp).epilogue is not None
    assert names(made)["linalg.generic"] == 2


def test_a_window_does_not_repeat_its_producer():
    """Overlapping windows read elements several times: the exp stays outside."""

    def build(node: Node, x: SSAValue) -> SSAValue:
        e = exp(node, "Exp", x)
        i, k = AffineExpr.dimension(0), AffineExpr.dimension(1)
        extent = node("Pool").empty((3,), f32)
        return node("Pool").generic(
            [(e, AffineMap(2, 0, (i + k,))), (extent, AffineMap(2, 0, (k,)))],
            node("Pool").fill((6,), f32, 0.0),
            AffineMap(2, 0, (i,)),
            ["parallel", "reduction"],
            lambda b, v, acc: b(arith.AddfOp, acc, v[0]),
        )

    made = check(module(build, (8,)), FUSE)
    assert names(made)["linalg.generic"] == 2


def chain(length: int, node: Node, x: SSAValue, start: SSAValue) -> SSAValue:
    for i in range(length):
        if i % 2:
            start = node(f"Tanh{i}").elementwise([start], f32, lambda b, e: b(math.TanhOp, *e))
        else:
            start = multiply(node, f"Mul{i}", start, x)
    return start


def test_the_work_for_a_chain_is_linear_in_its_length(monkeypatch):
    """Every op that changes bodies is counted; four times the nodes take about four times the moves."""
    moved = 0
    move_body = fusion.move_body

    def counted(source, *args):
        nonlocal moved
        moved += len(source.ops)
        return move_body(source, *args)

    monkeypatch.setattr(fusion, "move_body", counted)
    moves: list[int] = []
    for length in (400, 1600):
        moved = 0
        made = apply(module(lambda node, x, n=length: chain(n, node, x, x), (2, 2)), FUSE)
        bodies = [len(op.body.block.ops) - 1 for op in ops(made) if op.name == "linalg.generic"]
        assert sum(bodies) == length and max(bodies) == BODY_LIMIT
        assert len(bodies) == -(-length // BODY_LIMIT)
        moves.append(moved)
    assert 0 < 3 * moves[0] < moves[1] < 5 * moves[0]


def test_an_epilogue_is_as_long_as_a_body():
    def build(node: Node, x: SSAValue, y: SSAValue) -> SSAValue:
        return chain(BODY_LIMIT + 6, node, x, node("MatMul").insert(qmm.MatmulOp(x, y)).result)

    made = module(build, (2, 2), (2, 2))
    check(
        made,
        "qmm-fuse-epilogue",
        FUSE,
        "qmm-fuse-epilogue",
        inputs=[np.eye(2, dtype=np.float32)] * 2,
    )
    epilogue = only(made, qmm.MatmulOp).epilogue
    assert epilogue is not None and len(epilogue.block.ops) - 1 == BODY_LIMIT
    assert len(only(made, linalg.GenericOp).body.block.ops) - 1 == 6


def test_a_tensor_with_many_readers_is_left_alone():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        y = add(node, "Add", x, x)
        return [exp(node, f"Exp{i}", y) for i in range(5)]

    made = check(module(build, (2, 2)), FUSE)
    assert count(made, arith.AddfOp) == 1 and names(made)["linalg.generic"] == 6
