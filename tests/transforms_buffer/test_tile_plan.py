"""qmm-plan-scratchpad and qmm-split-work, and that the checkers notice when staged dispatches are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import pulp, qmm
from qfold.dialects.element_types import i8
from qfold.ir.builder import TensorBuilder
from qfold.targets import TARGETS, MemoryLevel, target_named
from qfold.transforms.pipelines import kernel_pipeline
from qfold.transforms.qmm_check_plan import QmmCheckPlanPass
from qfold.transforms.qmm_outline_kernels import functions
from qfold.transforms.qmm_plan_memory import plan_memory
from qfold.transforms.qmm_plan_scratchpad import plan_scratchpads
from qfold.transforms.qmm_tile_to_l1 import QmmTileToL1Pass
from qfold.transforms.qmm_verify_buffers import QmmVerifyBuffersPass
from qfold.transforms.tiling_cost import balanced, best_grid, largest_share
from tests.transforms_buffer.cluster import all_ops, l1_bytes, splits, staged
from tests.transforms_buffer.helpers import add, double, main, module
from tests.transforms_buffer.test_tile_matmul import dequant_matmul

B = TensorBuilder
V = SSAValue
TARGET = "threads:l1=16384,cores=4,stack=1024"


def dispatch_of(result: ModuleOp) -> func.FuncOp:
    """The only staged dispatch."""
    (found,) = (f for f in functions(result) if "qmm.l1_bytes" in f.attributes)
    return found


def before_pass(name: str, made: ModuleOp, target: str = "threads") -> ModuleOp:
    """A module after all passes that come before one."""
    for step in kernel_pipeline(target):
        if step.name == name:
            return made
        step.apply(Context(), made)
    raise AssertionError(f"no pass {name}")


# Places in the scratchpad.


def test_views_are_aligned_and_the_arena_as_large_as_the_largest_dispatch():
    def build(b: B, x: V, y: V) -> list[V]:
        w = qmm.WeightAttr.from_array(np.ones((24, 12)), i8)
        z = b(qmm.DequantMatmulOp, x, w, qmm.QuantAttr.get(i8, 0.5))
        return [z, add(b, y, y)]

    result = staged(module([(9, 24), (40, 40)], build), TARGET)
    sizes = [
        f.attributes["qmm.l1_bytes"].value.data  # type: ignore[attr-defined]
        for f in functions(result)
        if "qmm.l1_bytes" in f.attributes
    ]
    assert len(sizes) == 2
    arguments = main(result).args
    assert arguments[1].name_hint == "l1"
    assert arguments[1].type.get_shape() == (-(-max(sizes) // 16) * 16,)  # type: ignore[attr-defined]
    for f in functions(result):
        if f.sym_name.data != "main":
            for op in f.walk():
                if isinstance(op, memref.ViewOp):
                    assert op.source is f.args[0]
                    assert op.byte_shift.owner.value.value.data % 16 == 0  # type: ignore[union-attr]
    assert not [op for op in all_ops(result, memref.AllocOp)]


def test_a_weight_gives_its_place_to_what_comes_after_packing():
    """Without that, the stored weight and the tiles would not fit beside each other."""
    result = staged(dequant_matmul((196, 128), 128), "spike")
    views = [op for op in dispatch_of(result).walk() if isinstance(op, memref.ViewOp)]
    total = sum(prod(v.result.type.get_shape()) * (1 if v.result.type.element_type == i8 else 4) for v in views)  # fmt: skip
    assert total > target_named("spike").scratchpad_bytes >= l1_bytes(result)


def test_what_does_not_fit_names_the_dispatch_and_the_level():
    made = before_pass("qmm-plan-scratchpad", module([(30, 30)], double))
    with pytest.raises(PassFailedException) as caught:
        plan_scratchpads(made, target_named(TARGET.replace("16384", "6144")))
    message = str(caught.value)
    assert "@node_node" in message and "'node'" in message
    assert "needs 4800 bytes of L1" in message and "has 1024: 6144 less 4 stacks of 1024" in message


def test_activations_that_do_not_fit_name_the_level():
    small = replace(
        TARGETS["threads"], memory=(MemoryLevel(1, "L1", 65536), MemoryLevel(2, "L2", 100))
    )

    def build(b: B, x: V) -> V:
        w = qmm.WeightAttr.from_array(np.ones((24, 24)), i8)
        quant = qmm.QuantAttr.get(i8, 0.5)
        return b(qmm.DequantMatmulOp, b(qmm.DequantMatmulOp, x, w, quant), w, quant)

    made = before_pass("qmm-plan-memory", module([(30, 24)], build))
    with pytest.raises(PassFailedException, match=r"take 2880 bytes .* but L2 of target threads"):
        plan_memory(main(made), small)


def test_a_target_without_a_scratchpad_is_refused():
    with pytest.raises(PassFailedException, match="target host has no scratchpad"):
        QmmTileToL1Pass(target="host").apply(Context(), module([(2, 2)], double))


def test_the_host_pipeline_is_as_it_was():
    names = [step.name for step in kernel_pipeline("host")]
    assert "qmm-tile-to-l1" not in names
    assert [n for n in (step.name for step in kernel_pipeline("spike")) if n not in names] == [
        "qmm-pack-weights",
        "qmm-tile-to-l1",
        "qmm-plan-scratchpad",
        "qmm-split-work",
    ]


# Shares.


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=0, max_size=3).map(tuple),
    st.integers(1, 16),
)
def test_no_division_is_better(counts: tuple[int, ...], cores: int):
    parts = balanced(counts, cores)
    assert prod(parts) <= cores
    best = min(
        largest_share(counts, p)
        for p in product(*(range(1, min(n, cores) + 1) for n in counts))
        if prod(p) <= cores
    )
    assert largest_share(counts, parts) == best


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 16))
def test_grids_of_blocks(rows: int, columns: int, cores: int):
    p, q = best_grid(rows, columns, cores)
    assert p * q <= cores
    share = largest_share((rows, columns), (p, q))
    for other in range(1, cores + 1):
        rest = cores // other
        assert share <= largest_share((rows, columns), (min(other, rows), min(rest, columns)))


@pytest.mark.parametrize("cores", [1, 3, 8, 16])
def test_every_leaf_has_a_share_for_each_core_that_has_work(cores: int):
    target = f"threads:cores={cores}"
    result = staged(dequant_matmul((64, 32), 64), target)
    for name, parts in splits(result).items():
        assert prod(parts) == cores if cores in (1, 8, 16) or "pack_" in name else prod(parts) > 0
    one = splits(staged(dequant_matmul((1, 32), 64), target))
    assert list(one.values()) == [(1, cores)]  # columns: each weight meets all rows


# What the checkers notice.


def checked(result: ModuleOp) -> None:
    QmmVerifyBuffersPass().apply(Context(), result)
    QmmCheckPlanPass().apply(Context(), result)


def two_steps(b: B, x: V) -> V:
    w = qmm.WeightAttr.from_array(np.ones((24, 12)), i8)
    return b(qmm.DequantMatmulOp, x, w, qmm.QuantAttr.get(i8, [1.0] * 12, axis=1))


def erase_first(kind: type[Operation]) -> Callable[[func.FuncOp], None]:
    def change(dispatch: func.FuncOp) -> None:
        op = next(op for op in dispatch.walk() if isinstance(op, kind))
        if isinstance(op, pulp.DmaStartOp):
            (wait,) = (use.operation for use in op.transfer.uses)
            Rewriter.erase_op(wait)
        Rewriter.erase_op(op)

    return change


def wait_late(dispatch: func.FuncOp) -> None:
    """The first wait moves to the end of its block."""
    op = next(op for op in dispatch.walk() if isinstance(op, pulp.DmaWaitOp))
    end = op.parent.last_op  # type: ignore[union-attr]
    op.detach()
    assert end is not None
    Rewriter.insert_op(op, InsertPoint.before(end))


def swap_buffers(dispatch: func.FuncOp) -> None:
    """The second leaf works on the place where the first transfer went."""
    starts = [op for op in dispatch.walk() if isinstance(op, pulp.DmaStartOp)]
    a = next(s for s in starts if s.destination.name_hint == "a_tile")
    y = next(s for s in starts if s.source.name_hint == "y_tile")
    view = y.source.owner
    assert isinstance(view, memref.ViewOp) and isinstance(a.destination.owner, memref.ViewOp)
    view.operands[1] = a.destination.owner.byte_shift


def overlap(dispatch: func.FuncOp) -> None:
    """The packed weight lies where the activation does."""
    views = {v.result.name_hint: v for v in dispatch.walk() if isinstance(v, memref.ViewOp)}
    views["packed"].operands[1] = views["a_tile"].byte_shift


def beyond(dispatch: func.FuncOp) -> None:
    views = [v for v in dispatch.walk() if isinstance(v, memref.ViewOp)]
    at = arith.ConstantOp.from_int_and_width(1 << 20, IndexType())
    Rewriter.insert_op(at, InsertPoint.before(views[0]))
    views[0].operands[1] = at.result


def unaligned(dispatch: func.FuncOp) -> None:
    for op in dispatch.walk():
        if isinstance(op, memref.ViewOp):
            constant = op.byte_shift.owner
            assert isinstance(constant, arith.ConstantOp)
            value = constant.value
            assert isinstance(value, IntegerAttr)
            constant.properties["value"] = IntegerAttr(value.value.data + 4, IndexType())


def resize_loop(dispatch: func.FuncOp, steps: int) -> None:
    """The first loop over tiles runs for so many steps more."""
    loop = next(op for op in dispatch.walk() if isinstance(op, scf.ForOp))
    ub, step = (v.owner.value.value.data for v in (loop.ub, loop.step))  # type: ignore[union-attr]
    bound = arith.ConstantOp.from_int_and_width(ub + steps * step, IndexType())
    first = dispatch.body.block.first_op
    assert first is not None
    Rewriter.insert_op(bound, InsertPoint.before(first))
    loop.operands[1] = bound.result


def test_what_is_right_passes():
    for target in (TARGET, "threads"):
        checked(staged(module([(9, 24)], two_steps), target))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (erase_first(pulp.DmaStartOp), "which nobody has written"),
        (erase_first(func.CallOp), "which nobody has written"),
        (wait_late, "nobody has written|transfer is still under way"),
        (overlap, "which it reads through another argument"),
        (swap_buffers, "has overwritten|reads through another argument|nobody has written"),
        (beyond, "leave the arena"),
        (unaligned, "not aligned|leave the arena"),
    ],
)
def test_what_is_wrong_is_noticed(change: Callable[[func.FuncOp], None], message: str):
    result = staged(module([(9, 24)], two_steps), "threads")
    change(dispatch_of(result))
    with pytest.raises(PassFailedException, match=message):
        checked(result)


def test_tiles_that_are_left_out_or_one_too_many_are_noticed():
    for steps, message in (
        (-1, r"bytes of output 'y0' are never written"),
        (9, r"elements \d+\.\.\d+ of dimension 0, which has 128"),
    ):
        result = staged(module([(128, 64), (128, 64)], add), "threads:l1=12288,cores=1,stack=1024")
        resize_loop(dispatch_of(result), steps)
        with pytest.raises(PassFailedException, match=message):
            checked(result)


def test_inputs_are_not_written_through_dispatches():
    made = staged(module([(8, 8)], double), "threads")
    (call,) = [op for op in main(made).body.block.ops if isinstance(op, func.CallOp)]
    arguments: list[Any] = list(call.operands)
    arguments[-1], arguments[-2] = arguments[-2], arguments[-1]
    call.operands = arguments
    with pytest.raises(PassFailedException, match="writes to an input"):
        QmmVerifyBuffersPass().apply(Context(), made)
