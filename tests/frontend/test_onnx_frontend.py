"""The frontend as a plugin of xDSL's driver."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from xdsl.context import Context
from xdsl.universe import Universe
from xdsl.utils.arg_spec import parse_spec
from xdsl.xdsl_opt_main import xDSLOptMain

from qfold.frontend import FrontendError
from qfold.frontend.onnx_frontend import OnnxFrontend, parse_dims, parse_input_types
from qfold.universe import QFOLD_UNIVERSE
from tests.frontend.helpers import build, node


def dynamic_model() -> onnx.ModelProto:
    inputs = {"x": (np.float32, ["batch", "sequence", 8])}
    return build(
        [node("MatMul", ["x", "w"], ["y"])], inputs, ["y"], {"w": np.ones((8, 2), np.float32)}
    )


@pytest.mark.parametrize(
    "spec",
    [
        'onnx{dim="batch=1,sequence=16"}',
        'onnx{dim="batch=1","sequence=16"}',
        "onnx{dim=batch,1,sequence,16}",
        "onnx{dim=batch,1,sequence,16 freeze-initializers=true}",
    ],
)
def test_dimensions_in_options(spec: str):
    frontend = OnnxFrontend.from_spec(parse_spec(spec))
    assert isinstance(frontend.dim, tuple)
    assert parse_dims(frontend.dim) == {"batch": 1, "sequence": 16}
    assert OnnxFrontend.from_spec(parse_spec(str(frontend.spec()))) == frontend
    module = frontend.parse(Context(), BytesIO(dynamic_model().SerializeToString()), "m.onnx")
    assert "tensor<1x16x8xf32>" in str(module)


@pytest.mark.parametrize(
    "entries", [["batch"], ["batch="], ["=3"], ["batch=x"], ["batch=1.5"], ["a=1", "a=2"]]
)
def test_dimensions_that_do_not_parse(entries: list[str]):
    with pytest.raises(FrontendError, match="dimension"):
        parse_dims(entries)


def test_dimension_names_may_hold_what_shells_and_exporters_put_there():
    assert parse_dims(["x:0=4", "past + 1=3", "a=b=5"]) == {"x:0": 4, "past + 1": 3, "a=b": 5}


def test_external_data_beside_the_file(tmp_path: Path):
    model = dynamic_model()
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert path.stat().st_size < 300
    with path.open("rb") as source:
        module = OnnxFrontend(dim=("batch=2,sequence=3",)).parse(Context(), source, str(path))
    assert "1.000000e+00" in str(module)


def test_stock_xdsl_opt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "m.onnx"
    path.write_bytes(dynamic_model().SerializeToString())
    # As installed: the entry point puts the universe beside xDSL's own.
    stock = Universe.get_multiverse()
    monkeypatch.setattr(
        Universe,
        "get_multiverse",
        classmethod(
            lambda cls: (
                stock
                if "onnx" in stock.all_frontends
                else Universe(
                    all_dialects={**stock.all_dialects, **QFOLD_UNIVERSE.all_dialects},
                    all_passes={**stock.all_passes, **QFOLD_UNIVERSE.all_passes},
                    all_frontends={**stock.all_frontends, **QFOLD_UNIVERSE.all_frontends},
                    all_targets={**stock.all_targets, **QFOLD_UNIVERSE.all_targets},
                )
            )
        ),
    )
    xDSLOptMain(args=[str(path), "-f", "onnx{dim=batch,1,sequence,16}"]).run()
    text = capsys.readouterr().out
    assert "qmm.matmul" in text and "tensor<1x16x2xf32>" in text


def test_input_types_in_options():
    spec = 'onnx{dim="batch=1,sequence=16" input-type="x=ui8"}'
    frontend = OnnxFrontend.from_spec(parse_spec(spec))
    module = frontend.parse(Context(), BytesIO(dynamic_model().SerializeToString()), "m.onnx")
    assert "%0: tensor<1x16x8xui8>" in str(module)


@pytest.mark.parametrize("entries", [["x"], ["x=i4"], ["=i8"], ["x=i8", "x=ui8"]])
def test_input_types_that_do_not_parse(entries: list[str]):
    with pytest.raises(FrontendError, match="type"):
        parse_input_types(entries)
