"""Bad input: every kind gets a sentence, none a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qfold.frontend import FrontendError, UnsupportedNodes, import_model, load_model
from tests.frontend.helpers import build, import_checked, node

X = {"x": (np.float32, [2, 3])}


def add_of(tensor: TensorProto) -> onnx.ModelProto:
    """x + tensor"""
    return build([node("Add", ["x", tensor.name], ["y"])], X, ["y"], {tensor.name: tensor})


def matmul_model() -> onnx.ModelProto:
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    return build([node("MatMul", ["x", "w"], ["y"], name="mm")], X, ["y"], {"w": w})


def conv_model() -> onnx.ModelProto:
    """A quantised convolution with a folded shape computation."""
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0),
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Shape", ["c"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Concat", ["n", "rest"], ["target"], axis=0),
        node("Reshape", ["c", "target"], ["y"]),
    ]
    constants = {
        "q": np.arange(54, dtype=np.int8).reshape(3, 2, 3, 3),
        "s": np.float32([0.5, 0.25, 1]),
        "z": np.int8([1, 2, 3]),
        "zero": np.array([0]),
        "rest": np.array([-1]),
    }
    return build(nodes, {"x": (np.float32, [1, 2, 6, 5])}, ["y"], constants)


def test_file_bytes_and_proto_give_the_same_module(tmp_path: Path):
    model = matmul_model()
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    texts = {str(import_model(s)) for s in (model, model.SerializeToString(), path, str(path))}
    assert len(texts) == 1
    assert "qmm.matmul" in texts.pop()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n not a model", "not an ONNX model"),
        (b"module {\n}\n", "not an ONNX model"),
        (matmul_model().SerializeToString()[:-7], "not an ONNX model, or is truncated"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "holds no graph"),
    ],
    ids=["empty", "png", "mlir", "truncated", "no graph"],
)
def test_not_a_model(raw: bytes, message: str, tmp_path: Path):
    path = tmp_path / "net.onnx"
    path.write_bytes(raw)
    with pytest.raises(FrontendError, match=message) as error:
        import_model(path)
    assert "net.onnx" in str(error.value)


def test_names_that_are_not_text():
    raw = matmul_model().SerializeToString().replace(b"MatMul", b"Mat\xfful")
    with pytest.raises(FrontendError, match="is not UTF-8"):
        import_model(raw)


def test_damaged_files_get_a_sentence():
    """Bytes of real models changed, removed and added at random: an import, or a `FrontendError`."""
    raw = bytes(conv_model().SerializeToString())
    rng = np.random.default_rng(0)
    outcomes = {True: 0, False: 0}
    for _ in range(400):
        damaged = bytearray(raw)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(damaged)))
            kind = rng.random()
            if kind < 0.6:
                damaged[at] = rng.integers(256)
            elif kind < 0.8:
                del damaged[at : at + int(rng.integers(1, 8))]
            else:
                damaged[at:at] = rng.bytes(3)
        try:
            import_model(bytes(damaged)).verify()
            outcomes[True] += 1
        except FrontendError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 5, outcomes  # both happen


def test_missing_file(tmp_path: Path):
    with pytest.raises(FrontendError, match=r"none\.onnx cannot be read: No such file"):
        import_model(tmp_path / "none.onnx")
    with pytest.raises(FrontendError, match="cannot be read: Is a directory"):
        import_model(tmp_path)


def test_no_outputs():
    model = matmul_model()
    del model.graph.output[:]
    with pytest.raises(FrontendError, match="without outputs"):
        import_model(model)


@pytest.mark.parametrize("version", [0, onnx.defs.onnx_opset_version() + 1])
def test_opset_out_of_range(version: int):
    model = matmul_model()
    model.opset_import[0].version = version
    with pytest.raises(FrontendError, match=f"opset {version}; opsets 1 to"):
        import_model(model)


def test_operators_that_changed_before_opset_7():
    model = add_of(numpy_helper.from_array(np.ones((2, 3), np.float32), "c"))
    model.opset_import[0].version = 6
    with pytest.raises(
        UnsupportedNodes, match="the definition of opset 6; supported: that of opset 7"
    ):
        import_model(model)
    model = matmul_model()
    model.opset_import[0].version = 1
    import_checked(model)


def test_no_opset():
    model = matmul_model()
    del model.opset_import[:]
    with pytest.raises(FrontendError, match="imports no version"):
        import_model(model)


def test_an_opset_that_is_listed_twice_has_its_highest_version():
    model = matmul_model()
    model.opset_import.extend([helper.make_opsetid("", 12), helper.make_opsetid("ai.onnx", 19)])
    assert load_model(model).opsets == {"": 21}
    assert import_model(model).attributes["qmm.opset"].value.data == 21  # type: ignore[attr-defined]


def test_raw_data_of_another_length():
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[2, 3], raw_data=b"\0" * 20)
    with pytest.raises(FrontendError, match=r"'c' declares \[2, 3\] .* 24 bytes, but holds 20"):
        import_model(add_of(tensor))


def test_typed_data_of_another_length():
    tensor = helper.make_tensor("c", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    tensor.dims[0] = 1000
    with pytest.raises(FrontendError, match="holds 3 entries where 1000 are needed"):
        import_model(add_of(tensor))


def test_typed_data_that_does_not_fit():
    tensor = TensorProto(name="c", data_type=TensorProto.INT8, dims=[2], int32_data=[1, 300])
    with pytest.raises(FrontendError, match="'c' holds values that INT8 cannot"):
        import_model(build([node("Identity", ["c"], ["y"])], X, ["y"], {"c": tensor}))


def test_declared_size_is_not_allocated():
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[1 << 40, 1 << 20])
    with pytest.raises(FrontendError, match="elements; at most"):
        import_model(add_of(tensor))


def test_negative_dimension():
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[-1, 3], raw_data=b"")
    with pytest.raises(FrontendError, match="negative dimension"):
        import_model(add_of(tensor))


def test_input_too_large():
    model = build([node("Neg", ["x"], ["y"])], {"x": (np.float32, [1 << 20, 1 << 20])}, ["y"])
    with pytest.raises(FrontendError, match="at most 2147483647"):
        import_model(model)


@pytest.mark.parametrize(
    "kind", [TensorProto.FLOAT8E4M3FN, TensorProto.COMPLEX64, TensorProto.STRING]
)
def test_unsupported_constant_type_is_named(kind: int):
    tensor = TensorProto(name="c", data_type=kind, dims=[0])
    with pytest.raises(FrontendError, match=TensorProto.DataType.Name(kind)):  # type: ignore[arg-type]
        import_model(add_of(tensor))


def test_half_precision_is_refused_by_name():
    model = build([node("Neg", ["x"], ["y"])], {"x": (np.float16, [2])}, ["y"])
    with pytest.raises(FrontendError, match="'x' has element type f16"):
        import_model(model)


def test_half_precision_constants_may_be_cast():
    w = np.linspace(-2, 2, 12, dtype=np.float16).reshape(3, 4)
    nodes = [
        node("Cast", ["w"], ["w32"], to=TensorProto.FLOAT),
        node("MatMul", ["x", "w32"], ["y"]),
    ]
    module = import_checked(build(nodes, X, ["y"], {"w": w}))
    assert "f16" not in str(module)


def test_packed_four_bit_data_in_both_encodings():
    values = np.array([-8, 7, 3], np.int8)
    raw = helper.make_tensor("c", TensorProto.INT4, [3], bytes([0x78, 0x03]), raw=True)
    typed = helper.make_tensor("c", TensorProto.INT4, [3], values.tolist())
    from qfold.frontend.tensors import decode_tensor

    for tensor in (raw, typed):
        np.testing.assert_array_equal(decode_tensor(tensor, "c", None).array, values)


# External data


def external(**entries: str) -> TensorProto:
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[2, 3])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model directory with `w.bin`, beside a secret that is not its own."""
    home = tmp_path / "model"
    home.mkdir()
    (home / "w.bin").write_bytes(b"\0" * 8 + np.arange(6, dtype=np.float32).tobytes())
    (tmp_path / "secret.bin").write_bytes(b"\x01" * 64)
    return home


def save(folder: Path, tensor: TensorProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(add_of(tensor).SerializeToString())
    return path


def test_external_data(folder: Path):
    path = save(folder, external(location="w.bin", offset="8", length="24"))
    assert "5.000000e+00" in str(import_model(path))
    # The same without a length, and from bytes with the directory given.
    path = save(folder, external(location="w.bin", offset="8"))
    assert str(import_model(path)) == str(import_model(path.read_bytes(), directory=folder))
    with pytest.raises(FrontendError, match="the model was not read from a file"):
        import_model(path.read_bytes())


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret.bin"}, "leads out of the model's directory"),
        ({"location": "sub/../../secret.bin"}, "leads out of the model's directory"),
        ({"location": "/etc/passwd"}, "not a path relative to the model"),
        ({"location": "C:\\secret.bin"}, "not a path relative to the model"),
        ({"location": ""}, "not a path relative to the model"),
        ({"location": "w.bin\0"}, "not a path relative to the model"),
        ({"location": "gone.bin"}, "'gone.bin' is missing"),
        ({"location": "."}, "not a regular file"),
        ({}, "has no location"),
        ({"location": "w.bin", "offset": "-8"}, "offset '-8', which is not a byte count"),
        ({"location": "w.bin", "offset": "nine"}, "not a byte count"),
        ({"location": "w.bin", "offset": "9"}, r"takes bytes 9\.\.33 of 'w.bin', which has 32"),
        ({"location": "w.bin", "length": "4"}, "takes 24 bytes, but its external data declares 4"),
    ],
)
def test_bad_external_data(folder: Path, entries: dict[str, str], message: str):
    with pytest.raises(FrontendError, match=message):
        import_model(save(folder, external(**entries)))


def test_external_data_behind_a_link(folder: Path):
    os.symlink(folder.parent / "secret.bin", folder / "link.bin")
    with pytest.raises(FrontendError, match="leads out of the model's directory"):
        import_model(save(folder, external(location="link.bin")))


def test_external_data_that_nothing_reads_is_not_opened(folder: Path):
    model = build(
        [node("MatMul", ["x", "w"], ["y"])],
        X,
        ["y"],
        {"w": np.ones((3, 2), np.float32), "c": external(location="../secret.bin")},
    )
    import_model(model)
