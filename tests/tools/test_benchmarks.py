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


def test_networks_of_integers_have_the_weights_of_the_float_ones(benchmarks: None):
    from _networks import with_float_weights
    from _quantized_networks import attention, convnet, inputs_of, quantized, weights_only

    for network in (convnet(16, 8), attention(6, 16, 2)):
        integers = quantized(network)
        weights = weights_only(integers)
        floats = with_float_weights(weights)
        kinds = [[n.op_type for n in m.graph.node] for m in (integers, weights, floats)]
        assert "QuantizeLinear" in kinds[0] and "QuantizeLinear" not in kinds[1]
        assert "DequantizeLinear" in kinds[1] and "DequantizeLinear" not in kinds[2]
        constants = {t.name: t.raw_data for t in integers.graph.initializer}
        assert all(constants[t.name] == t.raw_data for t in weights.graph.initializer)
        (feed,) = inputs_of(network)
        outputs = [
            np.asarray(
                run(
                    import_tensor_module(load_model(m.SerializeToString()), Options()),
                    [*feed.values()],
                )[0]
            )
            for m in (network, integers, weights, floats)
        ]
        spread = float(np.std(outputs[0]))
        assert all(float(np.abs(o - outputs[0]).mean()) < 0.1 * spread for o in outputs[1:])
        np.testing.assert_allclose(outputs[2], outputs[3], atol=1e-4 * spread)


def test_a_network_in_every_way(benchmarks: None, monkeypatch: pytest.MonkeyPatch):
    import quantized
    from _quantized_networks import mlp

    monkeypatch.setattr(quantized, "ROUNDS", 1)
    rows = quantized.measure("small", mlp(2, (16, 24, 8)))["builds"]
    assert list(rows) == [
        "f32",
        "f32 x int8",
        "int8 x int8",
        "int8 x int8, int8 i/o",
        "f32 x int8, dynamic",
        "onnxruntime f32",
        "onnxruntime int8 x int8",
    ]
    assert all(0 < r["min_ms"] <= r["median_ms"] for r in rows.values())
    assert rows["f32"]["distance_to_f32"] == 0 < rows["int8 x int8"]["distance_to_f32"]
    assert (
        rows["int8 x int8, int8 i/o"]["distance_to_f32"] == rows["int8 x int8"]["distance_to_f32"]
    )
    ours = [r for kind, r in rows.items() if "onnxruntime" not in kind]
    assert all(r["weight_bytes"] and r["arena_bytes"] and r["code_bytes"] for r in ours)
    assert rows["int8 x int8"]["weight_bytes"] < rows["f32"]["weight_bytes"]
