"""Packed weights and quantisation attributes: bytes, text forms, equality, bad values."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, IntegerType, TensorType, f32
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from qfold.dialects.element_types import (
    STORAGE_TYPES,
    i4,
    i8,
    integer_range,
    numpy_dtype,
    pack,
    ui4,
    ui8,
    unpack,
)
from qfold.dialects.qmm import QMM, WEIGHT_FILES, QuantAttr, WeightAttr, WeightFiles


def reparse(text: str) -> object:
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(QMM)
    return Parser(context, text).parse_attribute()


@given(st.data(), st.sampled_from(STORAGE_TYPES), hnp.array_shapes(min_dims=0, min_side=0))
def test_pack_round_trips(data: st.DataObject, type_: IntegerType, shape: tuple[int, ...]) -> None:
    low, high = integer_range(type_)
    array = data.draw(
        hnp.arrays(numpy_dtype(type_), shape, elements=st.integers(low, high), fill=st.just(low))
    )
    raw = pack(array, type_)
    assert len(raw) == (array.size * type_.width.data + 7) // 8
    np.testing.assert_array_equal(unpack(raw, type_, shape), array)
    weight = WeightAttr.from_array(array, type_)
    assert reparse(str(weight)) == weight
    assert weight.sha256 == hashlib.sha256(raw).hexdigest()


def test_four_bits_are_low_nibble_first() -> None:
    """ONNX: the first element of a pair is the low nibble; an odd count leaves the last high nibble 0."""
    assert pack(np.array([1, -2, 7]), i4) == bytes([0xE1, 0x07])
    assert pack(np.array([15, 0, 9]), ui4) == bytes([0x0F, 0x09])
    with pytest.raises(ValueError, match=r"\[-9, 0\]"):
        pack(np.array([-9, 0]), i4)


def test_equal_bytes_are_one_weight() -> None:
    a = WeightAttr.from_array(np.arange(6, dtype=np.int8).reshape(2, 3))
    b = WeightAttr.from_array(np.arange(6, dtype=np.int8).reshape(2, 3).copy())
    assert a == b and hash(a) == hash(b)
    assert a.with_shape((3, 2)) != a
    assert a.with_shape((3, 2)).data is a.data
    assert WeightAttr.from_array(np.arange(6, dtype=np.uint8).reshape(2, 3)) != a


def test_length_is_verified() -> None:
    from xdsl.dialects.builtin import BytesAttr

    with pytest.raises(VerifyException, match="takes 16 bytes, got 3"):
        WeightAttr(TensorType(f32, [4]), BytesAttr(b"abc"))


@given(
    st.sampled_from(STORAGE_TYPES),
    st.sampled_from(["tensor", "axis", "block"]),
    st.integers(1, 40),
    st.data(),
)
def test_quant_round_trips(
    type_: IntegerType, granularity: str, n: int, data: st.DataObject
) -> None:
    low, high = integer_range(type_)
    shape = {"tensor": (), "axis": (n,), "block": (2, n)}[granularity]
    scale = data.draw(
        hnp.arrays(
            np.float32, shape, elements=st.floats(2.0**-126, 2.0**100, width=32), fill=st.just(0.1)
        )
    )
    zero = data.draw(hnp.arrays(np.int32, shape, elements=st.integers(low, high)))
    quant = QuantAttr.get(
        type_,
        scale,
        zero,
        axis=None if granularity == "tensor" else 0 if granularity == "block" else 1,
        block_size=8 if granularity == "block" else None,
    )
    assert reparse(str(quant)) == quant
    assert quant.granularity == ("tensor" if n == 1 and granularity == "axis" else granularity)
    assert quant.is_symmetric == (not zero.any())


def test_one_element_axis_is_per_tensor() -> None:
    forms = [np.float32(0.5), np.array([0.5]), np.array([[0.5]])]
    made = {QuantAttr.get(i8, s, 3, axis=1) for s in forms}
    assert len(made) == 1
    assert str(made.pop()) == "#qmm.quant<i8, scale = 5.0e-01, zero_point = 3>"


def test_blocks_follow_the_axis_and_may_end_early() -> None:
    q = np.arange(10, dtype=np.int8).reshape(5, 2)
    quant = QuantAttr.get(
        i8, [[1, 2], [3, 4], [5, 6]], [[0, 1], [0, 0], [2, 0]], axis=0, block_size=2
    )
    expected = [[0, 0], [2, 4], [12, 20], [18, 28], [30, 54]]
    np.testing.assert_array_equal(quant.dequantize(q), np.array(expected, np.float32))
    quant.verify_describes(TensorType(i8, [5, 2]))
    np.testing.assert_array_equal(
        quant.transposed([1, 0]).dequantize(q.T), np.array(expected, np.float32).T
    )
    with pytest.raises(VerifyException, match=r"takes scales of shape \[4, 2\], got \[3, 2\]"):
        quant.verify_describes(TensorType(i8, [7, 2]))


def test_extreme_zero_points_do_not_wrap() -> None:
    signed = QuantAttr.get(i8, 1.0, -128)
    np.testing.assert_array_equal(signed.dequantize(np.array([127, -128], np.int8)), [255, 0])
    unsigned = QuantAttr.get(ui8, 1.0, 255)
    np.testing.assert_array_equal(unsigned.dequantize(np.array([0, 255], np.uint8)), [-255, 0])


@pytest.mark.parametrize("scale", [0.0, -0.5, np.nan, np.inf])
def test_bad_scales_are_refused(scale: float) -> None:
    with pytest.raises(VerifyException, match="finite and positive"):
        QuantAttr.get(i8, [0.5, scale], axis=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#qmm.quant<i8, scale = 0.5, zero_point = 200>", "expected signed integers of -128..127"),
        ("#qmm.quant<ui8, scale = 0.5, zero_point = -1>", "expected unsigned integers of 0..255"),
        ("#qmm.quant<f32, scale = 0.5>", "expected the storage type"),
        ('#qmm.weight<"0x00" : tensor<2xi8>>', "takes 2 bytes, got 1"),
        ('#qmm.weight<"00" : tensor<1xi8>>', "weight bytes as"),
        ('#qmm.weight<file "../x" 0 sha256 "00" : tensor<1xi8>>', "cannot be read here"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises((ParseError, VerifyException), match=message):
        reparse(text)


def test_large_weights_are_elided_or_refer_to_a_file(tmp_path: Path) -> None:
    weight = WeightAttr.from_array(np.arange(1 << 10, dtype=np.int32).reshape(32, 32))
    token = WEIGHT_FILES.set(WeightFiles(tmp_path, inline_limit=16))
    try:
        elided = reparse(str(weight))
        assert (
            isinstance(elided, WeightAttr) and elided.is_elided and elided.sha256 == weight.sha256
        )
        with pytest.raises(ValueError, match="elided"):
            elided.array()
        files = WeightFiles(tmp_path, tmp_path / "w.bin", inline_limit=16)
        WEIGHT_FILES.set(files)
        text = str(weight)
        assert text.startswith('#qmm.weight<file "w.bin" 0 sha256 ')
        assert str(weight) == text, "equal bytes are written once"
        assert (tmp_path / "w.bin").stat().st_size == weight.nbytes
        assert reparse(text) == weight
        (tmp_path / "w.bin").write_bytes(bytes(weight.nbytes))
        with pytest.raises(ParseError, match="does not hold"):
            reparse(text)
        with pytest.raises(ParseError, match="outside"):
            reparse(text.replace("w.bin", "../w.bin"))
    finally:
        WEIGHT_FILES.reset(token)
