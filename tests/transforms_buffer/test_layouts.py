"""Layouts: what numpy says of strides."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from xdsl.dialects.builtin import MemRefType, StridedLayoutAttr, f32

from qfold.ir.layouts import Layout, row_major


def positions(layout: Layout) -> np.ndarray:
    flat = np.arange(4096)[layout.offset :]
    return as_strided(flat, layout.shape, [s * 8 for s in layout.strides])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A dense buffer, sliced and permuted."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    layout = Layout.dense(shape)
    offsets = [draw(st.integers(0, n - 1)) for n in shape]
    steps = [draw(st.sampled_from([1, 1, 2])) for _ in shape]
    sizes = [
        draw(st.integers(1, (n - o - 1) // s + 1))
        for n, o, s in zip(shape, offsets, steps, strict=True)
    ]
    return layout.sliced(offsets, sizes, steps).permuted(draw(st.permutations(range(len(shape)))))


@given(layouts(), st.data())
def test_a_reshape_is_a_view_exactly_when_numpy_makes_one(layout: Layout, data: st.DataObject):
    rest, shape = prod(layout.shape), []
    while rest > 1:
        shape.append(data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0])))
        rest //= shape[-1]
        if len(shape) == 3:
            break
    shape = (*shape, rest)
    result = layout.reshaped(shape)
    array = positions(layout)
    view = array.reshape(shape)
    assert (result is not None) == np.shares_memory(view, array)
    if result is not None:
        np.testing.assert_array_equal(positions(result), view)


@given(layouts())
def test_extent_and_density(layout: Layout):
    array = positions(layout)
    assert layout.extent == (array.min(), array.max())
    dense = np.array_equal(array.reshape(-1), layout.offset + np.arange(array.size))
    assert layout.is_dense == dense


@given(layouts())
def test_types_round_trip(layout: Layout):
    assert Layout.of(layout.memref_type(f32, 2)) == layout
    shared = Layout.of(layout.memref_type(f32, 2, dynamic_offset=True))
    assert (shared.shape, shared.strides, shared.offset) == (layout.shape, layout.strides, 0)


def test_dense_types_have_no_layout():
    assert str(Layout.dense((2, 3)).memref_type(f32, 1)) == "memref<2x3xf32, 1 : i64>"
    assert row_major((2, 3, 4)) == (12, 4, 1)


def test_dynamic_strides_are_refused():
    with pytest.raises(ValueError, match="has no static strides"):
        Layout.of(MemRefType(f32, [2, 2], StridedLayoutAttr([None, 1])))


def test_no_elements():
    assert Layout.dense((0, 3)).extent == (0, -1)
    assert Layout.dense((0, 3)).reshaped((3, 0)) == Layout.dense((3, 0))
