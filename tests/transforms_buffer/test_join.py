"""Loop nests that join: which do, what they keep in variables, and who refuses those that must not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects.contraction import shape_of
from qfold.ir.builder import TensorBuilder
from qfold.ir.shared_loops import shared_loops
from qfold.targets import HOST
from qfold.transforms.qmm_check_plan import QmmCheckPlanPass
from qfold.transforms.qmm_outline_kernels import functions
from tests.transforms_buffer.helpers import (
    Build,
    add,
    apply,
    bufferized,
    check_levels,
    double,
    main,
    module,
    ops,
    outlined,
    planned,
    total,
)

B = TensorBuilder
V = SSAValue


def scaled(b: B, x: V, by: V, axis: int) -> V:
    """x * by, where `by` lacks one axis of x."""
    rank = len(shape_of(x))
    loops = [AffineExpr.dimension(d) for d in range(rank)]
    less = AffineMap(rank, 0, tuple(e for d, e in enumerate(loops) if d != axis))
    result = b.empty(shape_of(x), f32)
    return b.generic(
        [(x, AffineMap.identity(rank)), (by, less)],
        result,
        AffineMap.identity(rank),
        ["parallel"] * rank,
        lambda s, e, _: s(arith.MulfOp, *e),
    )


def nests(module_: ModuleOp) -> list[list[int]]:
    """Per function: the shared loops, then how many nests and how many variables it holds."""
    found: list[list[int]] = []
    for function in functions(module_):
        held = [op for op in function.body.block.ops if isinstance(op, linalg.GenericOp)]
        if function.sym_name.data != "main" and held:
            variables = [op for op in function.body.block.ops if isinstance(op, memref.AllocOp)]
            found.append([shared_loops(held).depth, len(held), len(variables)])
    return found


def last_axis(b: B, x: V) -> V:
    return scaled(b, x, double(b, total(b, x, 2)), 2)


def middle_axis(b: B, x: V) -> V:
    # The sums of a point of the one loop in common are a row: no variable holds them.
    return scaled(b, x, double(b, total(b, x, 1)), 1)


def first_axis(b: B, x: V) -> V:
    # A reduction's own outermost loop is not shared, nor is a loop along which everyone reads all of the sums.
    return scaled(b, x, double(b, total(b, x, 0)), 0)


def two_readers(b: B, x: V) -> list[V]:
    sums = total(b, x, 2)
    return [sums, double(b, sums), scaled(b, x, sums, 2)]


def transposed(b: B, x: V) -> V:
    # Row i of the result is column i of the sums: rows do not meet.
    sums = total(b, x, 2)
    return add(b, double(b, sums), b.transpose(sums, (1, 0)))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (last_axis, [[2, 3, 1]]),
        (middle_axis, [[1, 3, 0]]),
        (first_axis, [[0, 1, 0], [2, 1, 0], [3, 1, 0]]),
        (two_readers, [[2, 3, 0]]),
        (transposed, [[2, 2, 0], [2, 1, 0]]),
    ],
)
def test_what_joins(build: Build, expected: list[list[int]]) -> None:
    made = module([(3, 3, 5)], build)
    check_levels(made)
    assert nests(outlined(bufferized(made))) == expected


def test_rows_that_do_not_stay_near_stay_apart() -> None:
    def build(b: B, x: V) -> V:
        # The product and the two sums are handed over: 16 KiB.
        y = scaled(b, x, total(b, x, 1), 1)
        return scaled(b, y, total(b, y, 1), 1)

    counts = [
        [count for _, count, _ in nests(outlined(bufferized(module([(2, n)], build))))]
        for n in (4094, 4095)
    ]
    assert counts == [[4], [3, 1]]


def test_a_kernel_for_one_nest_gets_no_more() -> None:
    single = replace(HOST, kernels=tuple(replace(k, joins=False) for k in HOST.kernels))
    with pytest.raises(PassFailedException, match=r"c\.loops: it is for one loop nest, not 3"):
        outlined(bufferized(module([(3, 3, 5)], last_axis)), single)
    assert (
        len(ops(outlined(bufferized(module([(3, 3, 5)], last_axis)), single, False), func.CallOp))
        == 3
    )


def test_the_checker_finds_what_must_not_be_interleaved() -> None:
    made = planned(outlined(bufferized(module([(3, 3, 5)], two_readers))))
    (call,) = ops(made, func.CallOp)
    apply(made, QmmCheckPlanPass())
    outputs = [v for v in call.operands if v in main(made).args and v.type == call.operands[0].type]
    assert len(outputs) == 2
    call.operands[list(call.operands).index(outputs[0])] = outputs[1]
    with pytest.raises(PassFailedException, match="the same bytes twice"):
        apply(made, QmmCheckPlanPass())
