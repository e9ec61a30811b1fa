"""qmm-bufferize: every decision that could go wrong with an alias, and what it may not copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import arith, func, memref, tensor
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, TensorType, f32, i64
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import qkernel, qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i4, i8, ui4, ui8
from qfold.ir.builder import TensorBuilder
from qfold.ir.globals import global_weight
from qfold.ir.locations import name_location, node_names
from qfold.transforms.qmm_bufferize import QmmBufferizePass
from tests.transforms_buffer.helpers import (
    add,
    allocs,
    bufferized,
    check_levels,
    copies,
    dense_only,
    double,
    in_place,
    main,
    module,
    ops,
    outlined,
    planned,
    total,
)

B = TensorBuilder
V = SSAValue


def counts(level2: Any) -> tuple[int, int, int]:
    return allocs(level2), copies(level2), in_place(level2)


# In place, and when not.


def test_elementwise_chain_updates_one_buffer():
    def build(b: B, x: V):
        return double(b, double(b, double(b, x)))

    # The first reads an input, which nobody may write; the last writes the output argument.
    assert counts(check_levels(module([(3, 4)], build))) == (1, 0, 1)


def test_value_used_after_the_candidate_is_kept():
    def build(b: B, x: V):
        a = double(b, x)
        c = double(b, a)
        return double(b, add(b, a, c))

    level2 = check_levels(module([(3, 4)], build))
    assert counts(level2) == (2, 0, 1)


def test_value_used_by_a_later_view_is_kept():
    def build(b: B, x: V):
        a = double(b, x)
        c = double(b, a)
        d = total(b, c, 0)
        return [d, double(b, b.reshape(a, (12,)))]

    level2 = check_levels(module([(3, 4)], build))
    assert in_place(level2) == 0


def test_early_view_with_a_late_use_keeps_the_buffer():
    def build(b: B, x: V):
        a = double(b, x)
        part = b.slice(a, [1, 0], [2, 4], [1, 1])
        c = double(b, a)
        return [total(b, c, 0), total(b, part, 0)]

    assert in_place(check_levels(module([(3, 4)], build))) == 0


def test_an_operand_read_at_other_elements_is_not_overwritten():
    def build(b: B, x: V):
        a = double(b, x)
        return total(b, double(b, add(b, a, b.transpose(a, (1, 0)))), 0)

    level2 = check_levels(module([(4, 4)], build))
    assert counts(level2)[1:] == (0, 1), "only the last one, on the sum"


def test_a_broadcast_row_of_the_same_buffer_is_not_overwritten():
    def build(b: B, x: V):
        a = double(b, x)
        return total(b, double(b, add(b, a, b.slice(a, [1, 0], [1, 4], [1, 1]))), 0)

    assert in_place(check_levels(module([(3, 4)], build))) == 1


def test_a_captured_tensor_is_not_overwritten():
    def build(b: B, x: V):
        a = double(b, x)

        def body(s: Any, e: Any) -> V:
            zero = s.insert(arith.ConstantOp(IntegerAttr(0, i64))).result
            index = s(arith.IndexCastOp, zero, s.index(0).type)
            return s(arith.AddfOp, e[0], s(tensor.ExtractOp, a, [index, index], f32))

        return total(b, double(b, b.elementwise([a], f32, body)), 0)

    level2 = check_levels(module([(3, 4)], build))
    assert in_place(level2) == 1
    assert any(isinstance(op, memref.LoadOp) for op in main(level2).walk())


def test_the_same_operand_twice_is_updated_in_place():
    def build(b: B, x: V):
        a = double(b, x)
        return double(b, add(b, a, a))

    assert counts(check_levels(module([(3, 4)], build))) == (1, 0, 1)


def test_a_narrower_result_does_not_reuse_the_buffer():
    def build(b: B, x: V):
        a = double(b, x)
        one = b.elementwise([a], i8, lambda s, e: s(arith.FPToSIOp, e[0], i8))
        return b.elementwise([one], f32, lambda s, e: s(arith.SIToFPOp, e[0], f32))

    assert in_place(check_levels(module([(3, 4)], build))) == 0


def test_a_strided_part_can_be_updated_in_place():
    def build(b: B, x: V):
        a = double(b, x)
        return total(b, double(b, b.slice(a, [0, 1], [3, 2], [1, 1])), 0)

    level2 = check_levels(module([(3, 4)], build))
    assert counts(level2) == (1, 0, 1)


def test_a_reduction_accumulates_on_its_own_fill():
    def build(b: B, x: V):
        return [total(b, x, 0), total(b, x, 1)]

    level2 = check_levels(module([(3, 3)], build))
    assert counts(level2) == (0, 0, 0)
    assert len(ops(level2, linalg.FillOp)) == 2


def test_a_shared_fill_is_made_for_each_reduction():
    def build(b: B, x: V):
        start = b.fill([3], f32, 1.0)

        def sum_from(b: B, axis: int) -> V:
            maps = [AffineMap.identity(2), AffineMap(2, 0, (AffineExpr.dimension(1 - axis),))]
            kinds = ["reduction" if d == axis else "parallel" for d in range(2)]
            return b.generic(
                [(x, maps[0])], start, maps[1], kinds, lambda s, e, acc: s(arith.AddfOp, e[0], acc)
            )

        return add(b, sum_from(b, 0), sum_from(b, 1))

    level2 = check_levels(module([(3, 3)], build))
    assert copies(level2) == 0
    assert len(ops(level2, linalg.FillOp)) == 2


def accumulate(b: B, x: V, start: V) -> V:
    """start + the sum of x over dimension 0."""
    return b.generic(
        [(x, AffineMap.identity(2))],
        start,
        AffineMap(2, 0, (AffineExpr.dimension(1),)),
        ["reduction", "parallel"],
        lambda s, e, acc: s(arith.AddfOp, e[0], acc),
    )


def test_accumulating_on_a_dead_value_reuses_it():
    def build(b: B, x: V, y: V):
        return double(b, accumulate(b, x, double(b, y)))

    assert counts(check_levels(module([(3, 4), (4,)], build))) == (1, 0, 0)


@pytest.mark.parametrize("what", ["input", "constant", "live", "itself"])
def test_accumulating_on_something_needed_copies_it(what: str):
    def build(b: B, x: V, y: V):
        if what == "constant":
            start = b.constant(np.arange(4, dtype=np.float32))
        elif what == "itself":
            a = double(b, x)
            first = b.reshape(b.slice(a, [0, 0], [1, 4], [1, 1]), (4,))
            return double(b, accumulate(b, a, first))
        else:
            start = y if what == "input" else double(b, y)
        result = double(b, accumulate(b, x, start))
        return [result, double(b, start)] if what == "live" else result

    level2 = check_levels(module([(3, 4), (4,)], build))
    assert copies(level2) == 1


# Outputs.


def test_results_are_written_straight_to_outputs():
    def build(b: B, x: V):
        return [double(b, x), total(b, x, 0), b.reshape(double(b, x), (2, 6))]

    assert counts(check_levels(module([(3, 4)], build))) == (0, 0, 0)


def test_an_output_is_read_as_an_intermediate_and_not_overwritten():
    def build(b: B, x: V):
        a = double(b, x)
        return [a, double(b, double(b, a))]

    level2 = check_levels(module([(3, 4)], build))
    assert copies(level2) == 0
    assert allocs(level2) == 1


def test_the_same_value_returned_twice():
    def build(b: B, x: V):
        a = double(b, x)
        return [a, a, b.reshape(a, (12,))]

    assert copies(check_levels(module([(3, 4)], build))) == 2


def test_inputs_and_constants_returned_are_copied():
    def build(b: B, x: V):
        return [x, b.constant(np.arange(3, dtype=np.float32)), b.transpose(x, (1, 0))]

    assert counts(check_levels(module([(3, 4)], build))) == (0, 3, 0)


def test_a_part_of_a_value_returned_is_copied():
    def build(b: B, x: V):
        a = double(b, x)
        return [b.slice(a, [0, 1], [3, 2], [1, 1]), total(b, a, 1)]

    assert copies(check_levels(module([(3, 4)], build))) == 1


def test_nothing_to_do():
    level2 = check_levels(module([(3,)], lambda b, x: []))
    assert not ops(level2, memref.AllocOp)


# Concatenation and padding.


def test_concat_parts_are_produced_in_place():
    def build(b: B, x: V, y: V):
        both = b.concat([double(b, x), double(b, y)], 1)
        return total(b, both, 0)

    assert counts(check_levels(module([(3, 2), (3, 4)], build))) == (1, 0, 0)


def test_concat_of_inputs_constants_and_twice_the_same():
    def build(b: B, x: V):
        a = double(b, x)
        c = b.constant(np.ones((2, 3), np.float32))
        return b.concat([a, x, c, a], 0)

    # `a` is produced in the first place that asks for it, going backward.
    assert copies(check_levels(module([(2, 3)], build))) == 3


def test_concat_of_concats_has_one_buffer():
    def build(b: B, x: V):
        inner = b.concat([double(b, x), double(b, x)], 0)
        return double(b, b.concat([inner, double(b, x), b.reshape(double(b, x), (2, 3))], 0))

    assert counts(check_levels(module([(2, 3)], build))) == (1, 0, 0)


def test_a_part_of_a_concat_that_has_other_readers():
    def build(b: B, x: V):
        a = double(b, x)
        both = b.concat([a, double(b, a)], 0)
        return [double(b, both), double(b, a), total(b, both, 0)]

    assert copies(check_levels(module([(2, 3)], build))) == 0


def test_a_concat_updated_in_place_keeps_its_parts():
    def build(b: B, x: V):
        a = double(b, x)
        both = double(b, double(b, b.concat([a, x], 0)))
        return [total(b, both, 1), total(b, a, 1)]

    check_levels(module([(2, 3)], build))


def test_pad_writes_into_the_filled_buffer():
    def build(b: B, x: V):
        return double(b, b.pad(double(b, x), [1, 0], [0, 2], 7.0))

    level2 = check_levels(module([(2, 3)], build))
    assert copies(level2) == 0
    block = list(main(level2).body.block.ops)
    fill = next(i for i, op in enumerate(block) if isinstance(op, linalg.FillOp))
    write = next(i for i, op in enumerate(block) if isinstance(op, linalg.GenericOp))
    assert fill < write, "the padding would wipe out the data"


def test_pad_of_an_early_value_waits_for_the_fill():
    def build(b: B, x: V):
        a = double(b, x)
        c = total(b, a, 0)
        return [b.pad(a, [1, 1], [1, 1], 3.0), c, b.pad(a, [0, 1], [0, 0], 5.0)]

    check_levels(module([(2, 3)], build))


def test_pad_of_a_concat_waits_for_the_fill():
    def build(b: B, x: V, y: V):
        both = b.concat([x, double(b, y)], 0)
        return [b.pad(both, [0, 1], [0, 1], 3.0), b.pad(total(b, y, 0), [1], [1], 4.0)]

    # Only the input is copied.
    assert copies(check_levels(module([(1, 2), (1, 2)], build))) == 1


def test_insertions_that_overlap_keep_their_order():
    def build(b: B, x: V, y: V):
        # Made in the other order than inserted: written where they go, the first insertion would win.
        small, large = double(b, y), double(b, x)
        return b.insert_slice(small, b.insert_slice(large, b.empty((3, 3), f32), [0, 0]), [1, 1])

    check_levels(module([(3, 3), (2, 2)], build))


def test_a_concat_inserted_into_a_base_made_midway():
    def build(b: B, x: V, y: V):
        first = b.insert_slice(x, b.empty((2, 2), f32), [0, 0])
        base = double(b, y)
        both = b.insert_slice(double(b, x), first, [1, 0])
        return [b.insert_slice(both, base, [1, 0])]

    check_levels(module([(1, 2), (4, 3)], build))


def test_insertion_into_something_needed_copies_it():
    def build(b: B, x: V, y: V):
        base = double(b, x)
        changed = b.insert_slice(double(b, y), base, [1, 0])
        return [double(b, changed), double(b, base)]

    assert copies(check_levels(module([(3, 4), (2, 4)], build))) == 2


def test_insertion_into_an_input_leaves_the_input_alone():
    def build(b: B, x: V, y: V):
        return b.insert_slice(double(b, y), x, [0, 1], [1, 2])

    check_levels(module([(3, 4), (3, 2)], build))


def test_insertion_of_a_part_of_the_base():
    def build(b: B, x: V):
        base = double(b, x)
        return b.insert_slice(b.slice(base, [0, 0], [2, 2], [1, 1]), base, [1, 1])

    check_levels(module([(3, 3)], build))


# Views.


def test_reshape_slice_and_transpose_are_views():
    def build(b: B, x: V):
        a = b.reshape(double(b, x), (2, 2, 3))
        c = b.slice(b.transpose(a, (2, 0, 1)), [1, 0, 0], [2, 2, 1], [1, 1, 1])
        return double(b, b.reshape(c, (2, 2)))

    level2 = check_levels(module([(4, 3)], build))
    assert (allocs(level2), copies(level2)) == (1, 0)


def test_negative_strides_are_a_generic():
    def build(b: B, x: V):
        return b.slice(x, [2, 3], [3, 2], [-1, -2])

    assert copies(check_levels(module([(3, 4)], build))) == 0


def test_attention_heads_are_split_and_merged_without_copies():
    """[S, H*D] -> heads -> Q K^T -> P V -> [S, H*D]: every reshape and transpose is a layout."""

    def build(b: B, x: V):
        def heads(t: V) -> V:
            return b.transpose(b.reshape(t, (1, 4, 2, 3)), (0, 2, 1, 3))

        q, k, v = (heads(double(b, x)) for _ in range(3))
        scores = b(qmm.MatmulOp, q, b.transpose(k, (0, 1, 3, 2)))
        mixed = b(qmm.MatmulOp, scores, v)
        merged = b.reshape(b.transpose(mixed, (0, 2, 1, 3)), (4, 6))
        return double(b, merged)

    level2 = check_levels(module([(4, 6)], build))
    assert copies(level2) == 0


def test_a_transpose_that_a_dense_kernel_reads_is_written_in_that_order():
    def build(b: B, x: V):
        w = qmm.WeightAttr.from_array(np.arange(-4, 4, dtype=np.int8).reshape(4, 2))
        a = b.transpose(double(b, x), (1, 0))
        return b(qmm.DequantMatmulOp, a, w, qmm.QuantAttr.get(i8, 0.5))

    level2 = check_levels(module([(4, 3)], build), target=dense_only())
    assert copies(level2) == 0
    (kernel,) = ops(level2, qkernel.DequantMatmulOp)
    assert "strided" not in str(kernel.a.type)
    (kernel,) = ops(check_levels(module([(4, 3)], build)), qkernel.DequantMatmulOp)
    assert "strided<[1, 3]>" in str(kernel.a.type)


def test_a_transposed_input_that_a_dense_kernel_reads_is_copied():
    def build(b: B, x: V):
        w = qmm.WeightAttr.from_array(np.arange(-4, 4, dtype=np.int8).reshape(4, 2))
        return b(qmm.DequantMatmulOp, b.transpose(x, (1, 0)), w, qmm.QuantAttr.get(i8, 0.5))

    assert copies(check_levels(module([(4, 3)], build), target=dense_only())) == 1
    assert copies(check_levels(module([(4, 3)], build))) == 0


def test_a_dense_kernel_does_not_write_into_a_strided_part():
    def build(b: B, x: V):
        product = b(qmm.MatmulOp, x, x, transpose_b=True)
        return total(b, b.concat([product, x], 1), 0)

    assert copies(check_levels(module([(3, 3)], build), target=dense_only())) == 2
    assert copies(check_levels(module([(3, 3)], build))) == 1


def test_a_window_that_nobody_reads_takes_no_memory():
    """A pooling bounds its window by an operand of the window's shape."""

    def build(b: B, x: V):
        loops = [AffineExpr.dimension(d) for d in range(2)]
        window = b.empty((3,), f32)
        return double(
            b,
            b.generic(
                [
                    (x, AffineMap(2, 0, (loops[0] + loops[1],))),
                    (window, AffineMap(2, 0, (loops[1],))),
                ],
                b.fill((6,), f32, -100.0),
                AffineMap(2, 0, (loops[0],)),
                ["parallel", "reduction"],
                lambda s, e, acc: s(arith.MaximumfOp, e[0], acc),
            ),
        )

    level2 = check_levels(module([(8,)], build))
    assert allocs(level2) == 2
    level3 = planned(outlined(level2, join=False))
    plan = main(level3).attributes["qmm.plan"]
    assert isinstance(plan, DictionaryAttr)
    assert plan.data["arena_bytes"] == IntegerAttr(24, i64)


def test_values_without_elements():
    def build(b: B, x: V, y: V):
        none = double(b, x)
        return [none, b.concat([none, y], 0), b(qmm.MatmulOp, b.transpose(y, (1, 0)), y)]

    check_levels(module([(0, 3), (2, 3)], build))


def test_matmul_with_no_k():
    def build(b: B, x: V, y: V):
        return b(qmm.MatmulOp, x, y)

    check_levels(module([(2, 0), (0, 3)], build))


def test_scalars():
    def build(b: B, x: V, y: V):
        c = b.constant(np.float32(3.0))
        return [add(b, x, c), b.reshape(double(b, y), (1, 1)), double(b, b.reshape(y, (1,)))]

    check_levels(module([(2,), ()], build))


# Constants.


def test_equal_constants_are_one_global():
    def build(b: B, x: V):
        array = np.arange(24, dtype=np.float32)
        a = b.constant(array.reshape(4, 6))
        c = b.constant(array.reshape(6, 4))
        return [add(b, x, a), double(b, c)]

    level2 = check_levels(module([(4, 6)], build))
    (one,) = [op for op in level2.body.block.ops if isinstance(op, memref.GlobalOp)]
    weight = global_weight(one)
    assert one.sym_name.data == f"w_{weight.sha256[:12]}"
    assert one.attributes["qmm.sha256"] == StringAttr(weight.sha256)
    assert one.constant is not None
    assert one.alignment is not None and one.alignment.value.data == 64
    assert len(ops(level2, memref.GetGlobalOp)) == 1


def test_equal_bytes_of_two_types_are_two_globals():
    def build(b: B, x: V):
        zeros = np.zeros(32, np.uint8)
        a, c = b.constant(zeros), b.constant(zeros.view(np.int8))
        return [
            b.elementwise([a], f32, lambda s, e: s(arith.UIToFPOp, e[0], f32)),
            b.elementwise([c], f32, lambda s, e: s(arith.SIToFPOp, e[0], f32)),
        ]

    level2 = check_levels(module([(1,)], build))
    names = [g.sym_name.data for g in level2.body.block.ops if isinstance(g, memref.GlobalOp)]
    assert len(names) == len(set(names)) == 2
    assert names[1] == f"{names[0]}_i8"


@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4])
@pytest.mark.parametrize("granularity", ["tensor", "axis", "block"])
def test_dequant_parameters_become_globals(storage: Any, granularity: str):
    rng = np.random.default_rng(1)
    low = 0 if storage in (ui8, ui4) else -8
    weight = qmm.WeightAttr.from_array(rng.integers(low, low + 16, (6, 4)), storage)
    if granularity == "tensor":
        quant = qmm.QuantAttr.get(storage, 0.5, 3)
    elif granularity == "axis":
        quant = qmm.QuantAttr.get(storage, [0.5, 1, 2, 4], [1, 2, 3, 0], axis=1)
    else:
        quant = qmm.QuantAttr.get(storage, np.full((3, 4), 0.25), 2, axis=0, block_size=2)

    def build(b: B, x: V):
        return b(qmm.DequantMatmulOp, x, weight, quant)

    level2 = check_levels(module([(3, 6)], build))
    (kernel,) = ops(level2, qkernel.DequantMatmulOp)
    assert kernel.zero_point is not None
    assert kernel.zero_point.type.element_type == (ui8 if low == 0 else i8)
    assert kernel.scale.type.get_shape() == quant.scale.shape
    assert kernel.w.type.element_type == storage


def test_a_symmetric_weight_has_no_zero_point():
    weight = qmm.WeightAttr.from_array(np.arange(6, dtype=np.int8).reshape(3, 2))

    def build(b: B, x: V):
        return b(qmm.DequantMatmulOp, x, weight, qmm.QuantAttr.get(i8, 0.5))

    (kernel,) = ops(check_levels(module([(2, 3)], build)), qkernel.DequantMatmulOp)
    assert kernel.zero_point is None


# The rest.


def test_locations_survive():
    def build(b: B, x: V):
        b.location = name_location("first")
        a = double(b, x)
        b.location = name_location("second")
        return total(b, a, 0)

    level2 = bufferized(module([(2, 3)], build))
    named = [node_names(op) for op in main(level2).body.block.ops if "linalg" in op.name]
    assert named == [("first",), ("second",), ("second",)]


def test_dead_ops_vanish():
    def build(b: B, x: V):
        total(b, double(b, x), 0)
        return double(b, x)

    assert len(ops(check_levels(module([(2, 3)], build)), linalg.GenericOp)) == 1


def test_arguments_keep_names_and_get_roles():
    level2 = bufferized(module([(2,)], lambda b, x: double(b, x)))
    attributes = main(level2).arg_attrs
    assert attributes is not None
    found = [(d.data["qmm.name"], d.data["qmm.role"]) for d in attributes]
    assert found == [
        (StringAttr("x0"), StringAttr("input")),
        (StringAttr("y0"), StringAttr("output")),
    ]


def test_quantised_ops_are_refused_by_name():
    def build(b: B, x: V):
        b.location = name_location("my_node")
        return b(qmm.QuantizeOp, x, qmm.QuantAttr.get(i8, 0.5))

    with pytest.raises(PassFailedException, match=r"qmm.quantize \(from ONNX node 'my_node'\)"):
        bufferized(module([(2,)], build))


def test_a_dynamic_shape_is_refused():
    dynamic = module([(2,)], lambda b, x: double(b, x))
    for op in main(dynamic).body.block.ops:
        if isinstance(op, tensor.EmptyOp):
            object.__setattr__(op.results[0], "_type", TensorType(f32, [-1]))
            break
    with pytest.raises(PassFailedException, match="dynamic shape"):
        QmmBufferizePass().apply(Context(), dynamic)


def test_an_unknown_target_is_refused():
    with pytest.raises(PassFailedException, match="unknown target 'toaster'; known: host"):
        QmmBufferizePass("toaster").apply(Context(), module([(2,)], lambda b, x: double(b, x)))


@pytest.mark.parametrize(
    ("low", "high", "parts"),
    [
        ((1, 1), (1, 1), [(1, 5), (1, 5), (2, 1), (2, 1)]),
        ((0, 2), (0, 0), [(2, 2)]),
        ((0, 0), (0, 0), []),
    ],
)
def test_only_the_frame_of_a_padded_value_is_filled(
    low: tuple[int, ...], high: tuple[int, ...], parts: list[tuple[int, ...]]
):
    def build(b: B, x: V):
        shape = [a + n + c for a, n, c in zip(low, (2, 3), high, strict=True)]
        return double(b, b.insert_slice(double(b, x), b.fill(shape, f32, 7.0), low))

    level2 = check_levels(module([(2, 3)], build))
    fills = ops(level2, linalg.FillOp)
    assert [shape_of(op.outputs[0]) for op in fills] == parts
    calls = [c.callee.string_value() for c in ops(outlined(level2), func.CallOp)]
    assert [name.startswith("fill_") for name in calls].count(True) == bool(parts)


def test_a_filled_value_that_others_read_is_filled_whole():
    def build(b: B, x: V):
        filled = b.fill((4, 5), f32, 7.0)
        return [b.insert_slice(double(b, x), filled, (1, 1)), double(b, filled)]

    level2 = check_levels(module([(2, 3)], build))
    fills = ops(level2, linalg.FillOp)
    assert (4, 5) in [shape_of(op.outputs[0]) for op in fills]
