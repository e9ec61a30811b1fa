"""qmm-plan-memory, and the checker that must notice when it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qmm
from qfold.ir.builder import TensorBuilder
from qfold.targets import HOST, MemoryLevel
from qfold.transforms.memory_plan import Lifetime, lower_bound, plan
from qfold.transforms.qmm_check_plan import QmmCheckPlanPass
from qfold.transforms.qmm_plan_memory import plan_memory
from tests.transforms_buffer.helpers import (
    add,
    bufferized,
    double,
    main,
    module,
    ops,
    outlined,
    planned,
    total,
)

lifetimes = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(0, 100),
    st.integers(0, 12),
    st.integers(0, 6),
)


@settings(max_examples=200)
@given(st.lists(lifetimes, max_size=15), st.sampled_from([1, 8, 64]))
def test_no_plan_overlaps_and_none_beats_the_bound(buffers: list[Lifetime], alignment: int):
    result = plan(buffers, alignment)
    for i, (a, x) in enumerate(zip(buffers, result.offsets, strict=True)):
        assert x % alignment == 0
        assert x + a.size <= result.size
        for b, y in list(zip(buffers, result.offsets, strict=True))[i + 1 :]:
            if a.overlaps(b) and a.size and b.size:
                assert x + a.size <= y or y + b.size <= x
    alive = [sum(b.size for b in buffers if b.first <= t <= b.last) for t in range(20)]
    assert result.lower_bound == max(alive) == lower_bound(buffers)
    assert result.size >= result.lower_bound


def test_plans_reach_the_bound_where_orders_differ():
    """A chain, a long-lived buffer, and growing sizes: at least one order is perfect for each."""
    chain = [Lifetime(10, t, t + 1) for t in range(9)]
    kept = [Lifetime(7, 0, 20), *(Lifetime(5 + t, t, t + 1) for t in range(9))]
    for buffers in (chain, kept, list(reversed(kept))):
        result = plan(buffers, 1)
        assert result.size == result.lower_bound


def test_order_of_buffers_does_not_change_the_size_much():
    buffers = [Lifetime(30, 0, 2), Lifetime(20, 1, 4), Lifetime(10, 3, 5), Lifetime(40, 5, 6)]
    sizes = {plan(p, 1).size for p in permutations(buffers)}
    assert sizes == {50}


def network(b: TensorBuilder, x: SSAValue) -> SSAValue:
    """Enough buffers that live and die for a wrong plan to matter."""
    a = b(qmm.MatmulOp, x, x, transpose_b=True)
    c = b(qmm.MatmulOp, a, a)
    d = total(b, c, 0, keepdims=True)
    e = add(b, a, c)
    return b(qmm.MatmulOp, add(b, e, d), b.transpose(e, (1, 0)))


def level3() -> ModuleOp:
    return planned(outlined(bufferized(module([(6, 5)], network))))


def record(module_: ModuleOp) -> DictionaryAttr:
    attribute = main(module_).attributes["qmm.plan"]
    assert isinstance(attribute, DictionaryAttr)
    return attribute


def number(dictionary: DictionaryAttr, key: str) -> int:
    value = dictionary.data[key]
    assert isinstance(value, IntegerAttr)
    return value.value.data


def test_the_record_describes_the_arena():
    result = planned(outlined(bufferized(module([(6, 5)], network)), join=False))
    function, plan_ = main(result), record(result)
    attributes = function.arg_attrs
    assert attributes is not None
    assert attributes.data[0].data["qmm.role"] == StringAttr("arena")
    assert str(function.args[0].type) == f"memref<{number(plan_, 'arena_bytes')}xi8, 2 : i64>"
    assert not ops(result, memref.AllocOp)
    buffers = plan_.data["buffers"]
    assert isinstance(buffers, ArrayAttr)
    assert len(buffers) == len(ops(result, memref.ViewOp)) > 3
    assert number(plan_, "lower_bound_bytes") <= number(plan_, "arena_bytes")
    assert number(plan_, "arena_bytes") < sum(number(b, "bytes") for b in buffers.data)
    assert [c.attributes["qmm.dispatch"].value.data for c in ops(result, func.CallOp)] == list(
        range(len(ops(result, func.CallOp)))
    )


def check(module_: ModuleOp) -> None:
    QmmCheckPlanPass().apply(Context(), module_)


def move(module_: ModuleOp, buffer: int, offset: int) -> None:
    """Put one buffer elsewhere, in the code and in the record: a planner's mistake, not a slip of the pen."""
    view = ops(module_, memref.ViewOp)[buffer]
    constant = view.byte_shift.owner
    assert isinstance(constant, arith.ConstantOp)
    constant.properties["value"] = IntegerAttr.from_index_int_value(offset)
    edit(module_, buffer, "offset", offset)


def edit(module_: ModuleOp, buffer: int, key: str, value: int) -> None:
    plan_ = dict(record(module_).data)
    buffers = list(plan_["buffers"].data)
    buffers[buffer] = DictionaryAttr({**buffers[buffer].data, key: IntegerAttr(value, i64)})
    plan_["buffers"] = ArrayAttr(buffers)
    main(module_).attributes["qmm.plan"] = DictionaryAttr(plan_)


def test_every_overlap_of_live_buffers_is_found():
    result = level3()
    entries: Any = record(result).data["buffers"]
    found = 0
    for i, a in enumerate(entries.data):
        for j, b in enumerate(entries.data):
            if (
                i == j
                or number(b, "last") < number(a, "first")
                or number(a, "last") < number(b, "first")
            ):
                continue
            broken = level3()
            move(broken, i, number(b, "offset"))
            with pytest.raises(
                PassFailedException, match=r"the memory plan is wrong|leave the arena"
            ):
                check(broken)
            found += 1
    assert found >= 6


def test_moving_a_buffer_to_free_space_is_fine():
    result = level3()
    function = main(result)
    size = number(record(result), "arena_bytes")
    bigger = memref.MemRefType(
        function.args[0].type.element_type, [size + 1024], memory_space=IntegerAttr(2, i64)
    )
    function.replace_argument_type(0, bigger, Rewriter())
    move(result, 0, -(-size // 64) * 64)
    plan_ = {**record(result).data, "arena_bytes": IntegerAttr(size + 1024, i64)}
    function.attributes["qmm.plan"] = DictionaryAttr(plan_)
    check(result)


def outside(module_: ModuleOp) -> None:
    move(module_, 0, number(record(module_), "arena_bytes"))


def calls_swapped(module_: ModuleOp) -> None:
    first, second = ops(module_, func.CallOp)[1:3]
    block = first.parent
    first.detach()
    block.insert_op_after(first, second)


def call_lost(module_: ModuleOp) -> None:
    Rewriter.erase_op(ops(module_, func.CallOp)[1])


def last_call_lost(module_: ModuleOp) -> None:
    Rewriter.erase_op(ops(module_, func.CallOp)[-1])


def writes_an_input(module_: ModuleOp) -> None:
    call, function = ops(module_, func.CallOp)[0], main(module_)
    call.operands[len(call.operands) - 1] = function.args[1]


def reads_what_it_writes(module_: ModuleOp) -> None:
    call = ops(module_, func.CallOp)[1]
    call.operands[len(call.operands) - 1] = call.operands[0]


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (outside, "leave the arena"),
        (calls_swapped, "nobody has written"),
        (call_lost, "nobody has written|overwritten"),
        (last_call_lost, "bytes of output 'y0' are never written"),
        (writes_an_input, "writes to an input or a constant"),
        (reads_what_it_writes, "reads through another argument"),
        (lambda m: edit(m, 0, "bytes", 4), r"qmm.plan says \(offset, bytes, first, last\)"),
        (lambda m: edit(m, 1, "last", 99), r"qmm.plan says \(offset, bytes, first, last\)"),
    ],
)
def test_corruptions_are_named(corrupt: Callable[[ModuleOp], None], message: str):
    broken = level3()
    check(broken)
    corrupt(broken)
    with pytest.raises(PassFailedException, match=message):
        check(broken)


def test_activations_larger_than_the_memory_are_refused():
    small = replace(HOST, memory=(MemoryLevel(2, "L2", 100),))
    with pytest.raises(
        PassFailedException, match=r"take \d+ bytes .* but L2 of target host has 100"
    ):
        plan_memory(main(outlined(bufferized(module([(6, 5)], network)))), small)


def test_no_buffers_make_an_empty_arena():
    result = planned(outlined(bufferized(module([(2,)], lambda b, x: double(b, x)))))
    assert number(record(result), "arena_bytes") == 0
    assert str(main(result).args[0].type) == "memref<0xi8, 2 : i64>"


def test_plans_are_the_same_from_run_to_run():
    assert str(level3()) == str(level3())
    np.testing.assert_equal(number(record(level3()), "alignment"), 64)
