"""The benchmarks' own parts: their networks are what they say, and a measurement measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import checker

from qfold.frontend import load_model
from qfold.interpreters import run
from qfold.tools.driver import Options, compile_loaded, import_tensor_module

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_synthetic_networks_and_their_float_twins(benchmarks: None):
    from _networks import residual_network, with_float_weights

    model = residual_network(2, 32, rows=3)
    twin = with_float_weights(model)
    for m in (model, twin):
        checker.check_model(m, full_check=True)
    assert len(model.graph.node) == 20 and len(twin.graph.node) == 18
    assert not any(n.op_type == "DequantizeLinear" for n in twin.graph.node)
    fused = compile_loaded(load_model(model.SerializeToString()), Options()).report["totals"]
    floats = compile_loaded(load_model(twin.SerializeToString()), Options()).report["totals"]
    assert fused["fused"]["matmul"] == 2 and floats["fused"]["matmul"] == 0
    # Per layer: four bytes for one, but no scale (4 bytes) and zero point (1) per column.
    assert floats["weight_bytes"] - fused["weight_bytes"] == 2 * (3 * 32 * 32 - 5 * 32)
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    (a,), (b,) = (
        run(import_tensor_module(load_model(m.SerializeToString()), Options()), [x], domain="f64")
        for m in (model, twin)
    )
    assert np.allclose(np.asarray(a), np.asarray(b), atol=1e-5)


def test_measuring(benchmarks: None, tmp_path: Path):
    from _measure import measure
    from _networks import residual_network

    path = tmp_path / "model.onnx"
    path.write_bytes(residual_network(1, 16).SerializeToString())
    result = measure(path)
    assert result["onnx_nodes"] == 10 and result["fused"] == 1
    assert 0 < result["user_seconds"] < 60 and 20 < result["peak_mib"] < 2000
    path.write_bytes(b"")
    with pytest.raises(SystemExit, match="failed"):
        measure(path)


def test_fitting_a_line(benchmarks: None):
    from compile_cost import fit

    line = fit([{"x": x, "y": 3 * x + 2} for x in (1, 2, 5)], "x", "y")
    assert line == pytest.approx({"slope": 3, "offset": 2, "r_squared": 1})
