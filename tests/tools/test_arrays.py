"""Matching `.npz` files with a network's inputs, and random inputs that make sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects import arith, func, linalg, tensor
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IndexType,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
    i64,
)
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineMap

from qfold.dialects import qmm
from qfold.dialects.element_types import i1, i4, i8, i32, ui8
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.builder import TensorBuilder
from qfold.ir.locations import name_location
from qfold.tools.arrays import (
    TensorSpec,
    input_specs,
    load_npz,
    match_arrays,
    output_specs,
    random_inputs,
    save_npz,
)
from qfold.tools.errors import ToolError

SPECS = [TensorSpec("x", f32, (2, 3)), TensorSpec("ids", i64, (2,))]
GOOD = {"x": np.ones((2, 3), np.float32), "ids": np.array([3, 4])}


def test_by_name_in_the_order_of_the_specs():
    matched = match_arrays(dict(reversed(GOOD.items())), SPECS, "in.npz")
    assert list(matched) == ["x", "ids"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": GOOD["x"]}, "'ids' is missing"),
        ({**GOOD, "mask": GOOD["ids"]}, "there is no 'mask'"),
        ({"a": GOOD["x"], "b": GOOD["ids"]}, "there is no 'a'"),
        ({**GOOD, "x": np.ones((3, 2), np.float32)}, "'x' has shape [3, 2]"),
        ({**GOOD, "ids": np.array([0.5, 1.0])}, "'ids' holds float64 that int64 cannot"),
        ({**GOOD, "x": np.full((2, 3), 0.1)}, "'x' holds float64 that float32 cannot"),
        ({**GOOD, "x": np.full((2, 3), "a")}, "'x' holds <U1 that float32 cannot"),
        ({}, "'x' is missing; 'ids' is missing"),
    ],
)
def test_what_is_wrong_is_said_beside_what_is_expected(arrays, words):
    with pytest.raises(ToolError) as error:
        match_arrays(arrays, SPECS, "in.npz")
    text = str(error.value)
    assert text.startswith("in.npz: ") and words in text
    assert "x: float32 [2, 3]" in text and "ids: int64 [2]" in text


def test_numbered_keys_are_positions():
    arrays = {"arr_1": GOOD["ids"], "arr_0": GOOD["x"], "arr_2": np.ones(7)}
    matched = match_arrays(arrays, SPECS, "in.npz")
    assert np.array_equal(matched["ids"], GOOD["ids"]) and list(matched) == ["x", "ids"]
    with pytest.raises(ToolError, match="there is no 'arr_0'"):
        match_arrays({"arr_0": GOOD["x"]}, SPECS, "in.npz")


def test_other_keys_are_positions_only_where_that_is_allowed():
    arrays = {"a": GOOD["x"], "b": GOOD["ids"]}
    assert list(match_arrays(arrays, SPECS, "out.npz", by_position=True)) == ["x", "ids"]


def test_the_same_numbers_in_another_dtype_are_taken():
    matched = match_arrays(
        {"x": np.ones((2, 3), np.int64), "ids": np.array([3, 4], np.int8)}, SPECS, "in.npz"
    )
    assert matched["x"].dtype == np.float32 and matched["ids"].dtype == np.int64


def test_four_bit_integers_are_checked_for_their_range():
    spec = [TensorSpec("q", i4, (2,))]
    assert match_arrays({"q": np.array([-8, 7])}, spec, "in.npz")["q"].dtype == np.int8
    with pytest.raises(ToolError, match="'q' holds"):
        match_arrays({"q": np.array([-8, 8])}, spec, "in.npz")


def test_defaults_fill_in():
    matched = match_arrays({"x": GOOD["x"]}, SPECS, "in.npz", defaults={"ids": GOOD["ids"]})
    assert np.array_equal(matched["ids"], GOOD["ids"])


def test_npz_files(tmp_path: Path):
    save_npz(tmp_path / "a.npz", GOOD)
    assert set(load_npz(tmp_path / "a.npz")) == {"x", "ids"}
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    raw = (tmp_path / "a.npz").read_bytes()
    for name, content in (("cut", raw[: len(raw) // 2]), ("text", b"hello"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ToolError, match="does not read as"):
            load_npz(tmp_path / name)
    np.savez(tmp_path / "pickle.npz", x=np.array([{}], object))
    with pytest.raises(ToolError, match="does not read as"):
        load_npz(tmp_path / "pickle.npz")
    with pytest.raises(ToolError, match="is not a file"):
        load_npz(tmp_path / "absent.npz")


def _module() -> ModuleOp:
    """ids -> a table of 5 rows (through a reshape); rows -> tensor.extract from 7; mask -> float; bytes, flags, x unused."""
    types = [
        TensorType(i64, [2, 4]),
        TensorType(i32, [6]),
        TensorType(i64, [2, 8]),
        TensorType(ui8, [400]),
        TensorType(i1, [9]),
        TensorType(f32, [50]),
    ]
    block = Block(arg_types=types)
    b = TensorBuilder(block, name_location("n"))
    table = WeightAttr.from_array(np.zeros((5, 3), np.int8))
    gathered = b.insert(
        qmm.DequantGatherOp(b.reshape(block.args[0], (8,)), table, QuantAttr.get(i8, 1.0))
    ).results[0]
    source = b.empty((7,), f32)

    def extract(scalars, elements: list[SSAValue], _: SSAValue) -> SSAValue:
        index = scalars.insert(arith.IndexCastOp(elements[0], IndexType())).results[0]
        return scalars.insert(tensor.ExtractOp(source, [index], f32)).results[0]

    picked = b.generic(
        [(block.args[1], AffineMap.identity(1))],
        b.empty((6,), f32),
        AffineMap.identity(1),
        ["parallel"],
        extract,
    )
    masked = b.elementwise(
        [block.args[2]],
        f32,
        lambda s, e: s.insert(arith.SIToFPOp(e[0], f32)).results[0],
    )
    assert isinstance(masked.owner, linalg.GenericOp)
    results = [gathered, picked, masked]
    block.add_op(func.ReturnOp(*results))
    main = func.FuncOp(
        "main",
        (types, [r.type for r in results]),
        Region(block),
        arg_attrs=ArrayAttr(
            [
                DictionaryAttr({"qmm.name": StringAttr(n)})
                for n in ("ids", "rows", "mask", "bytes", "flags", "x")
            ]
        ),
    )
    return ModuleOp([main])


def test_random_inputs_respect_what_they_are_used_for():
    module = _module()
    arrays = random_inputs(module, seed=1)
    assert [s.name for s in input_specs(module)] == list(arrays)
    assert [s.name for s in output_specs(module)] == ["output_0", "output_1", "output_2"]
    for spec in input_specs(module):
        assert arrays[spec.name].dtype == spec.dtype and arrays[spec.name].shape == spec.shape
    assert set(arrays["ids"].flat) <= set(range(5))
    assert set(arrays["rows"]) <= set(range(7))
    assert set(arrays["mask"].flat) == {0, 1} and np.all(arrays["mask"][:, 0] == 1)
    assert arrays["bytes"].min() < 10 and arrays["bytes"].max() > 245
    assert arrays["x"].std() > 0.5
    again = random_inputs(module, seed=1)
    assert all(np.array_equal(arrays[k], again[k]) for k in arrays)
    assert not np.array_equal(arrays["x"], random_inputs(module, seed=2)["x"])
