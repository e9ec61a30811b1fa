"""The builder's shapes against numpy, and that no rewrite loses an ONNX node's name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, f32
from xdsl.ir import Block
from xdsl.pattern_rewriter import PatternRewriter

from qfold.dialects import qmm
from qfold.dialects.element_types import i64, ui8
from qfold.ir.builder import TensorBuilder, shape_of
from qfold.ir.constants import constant_array, constant_op, constant_weight
from qfold.ir.locations import fuse_locations, name_location, node_names, replace_op


@given(st.data())
def test_reshape_takes_at_most_two_ops(data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.sampled_from([1, 2, 3]), max_size=6))

    def grouped() -> list[int]:
        shape: list[int] = []
        for f in factors:
            if shape and data.draw(st.booleans()):
                shape[-1] *= f
            else:
                shape.append(f)
        return shape

    source, target = grouped(), grouped()
    block = Block(arg_types=[TensorType(f32, source)])
    result = TensorBuilder(block).reshape(block.args[0], target)
    assert shape_of(result) == tuple(target)
    names = [op.name for op in block.ops]
    assert len(names) <= 2 and set(names) <= {"tensor.collapse_shape", "tensor.expand_shape"}
    if source == target:
        assert not names
    for op in block.ops:
        op.verify()


def test_reshape_refuses_another_number_of_elements() -> None:
    block = Block(arg_types=[TensorType(f32, [2, 3])])
    with pytest.raises(ValueError, match=r"\[2, 3\] cannot be reshaped to \[4\]"):
        TensorBuilder(block).reshape(block.args[0], [4])


@pytest.mark.parametrize(
    ("array", "type_", "name"),
    [
        (np.arange(4, dtype=np.float32), f32, "arith.constant"),
        (np.array(7, np.int64), i64, "arith.constant"),
        (np.zeros(8, np.float32), f32, "arith.constant"),
        (np.array([200, 1], np.uint8), ui8, "qmm.constant"),
        (np.arange(17, dtype=np.float32), f32, "qmm.constant"),
        (np.zeros((0, 3), np.float32), f32, "qmm.constant"),
    ],
)
def test_constants_read_back(array: np.ndarray, type_: object, name: str) -> None:
    op = constant_op(array)
    assert op.name == name
    assert op.results[0].type == TensorType(type_, array.shape)  # type: ignore[arg-type]
    read = constant_array(op.results[0])
    assert read is not None
    np.testing.assert_array_equal(read, array)
    weight = constant_weight(op.results[0])
    assert weight is not None and weight.raw == array.tobytes()


def test_locations_survive_replacement() -> None:
    block = Block()
    first = TensorBuilder(block, name_location("first"))
    second = TensorBuilder(block, name_location("second"))
    a = first(tensor.EmptyOp, (), TensorType(f32, [2]))
    b = second.insert(arith.AddfOp(a, a))
    new = arith.MulfOp(a, a)
    ModuleOp([])
    replace_op(PatternRewriter(b), b, new, merged=[a.owner])  # type: ignore[list-item]
    assert node_names(new) == ("second", "first")
    assert fuse_locations([new.location, name_location("first")]) == new.location
    unnamed = qmm.YieldOp(a)
    assert node_names(unnamed) == ()
    assert StringAttr("first") not in unnamed.attributes.values()
