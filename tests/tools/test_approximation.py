"""`--dynamic-activations` on the command line, what it costs by `--compare-exact`, and its own bounds in `verify`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from xdsl.parser import Parser

from qfold.backend.c.emit import emit
from qfold.dialects import qmm
from qfold.frontend import load_model
from qfold.tools.approximation import Agreement, cost_of
from qfold.tools.arrays import random_inputs
from qfold.tools.driver import Options, compile_loaded, import_tensor_module, make_context
from qfold.tools.qfold import main
from qfold.tools.qfold_opt import main as opt_main
from qfold.tools.report_schema import problems_of
from qfold.tools.report_summary import summary_lines
from qfold.tools.verify import verify
from tests.networks.builders import convnet, transformer
from tests.networks.weight_only import Scheme, quantize_weights
from tests.tools.clusters import needs_spike
from tests.tools.models import save

COLUMNS = 20


def dense(rows: int = 4) -> ModelProto:
    """y = x [rows, 8] @ dequantize(int8 [8, 20], per column) + bias, and z = Relu(x)."""
    rng = np.random.default_rng(0)
    values = {
        "w": rng.integers(-128, 128, (8, COLUMNS), np.int8),
        "s": np.linspace(0.01, 0.02, COLUMNS, dtype=np.float32),
        "zp": rng.integers(-9, 9, COLUMNS).astype(np.int8),
        "b": rng.standard_normal(COLUMNS).astype(np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "zp"], ["f"], "dq", axis=1),
        helper.make_node("MatMul", ["x", "f"], ["m"], "matmul"),
        helper.make_node("Add", ["m", "b"], ["y"], "bias"),
        helper.make_node("Relu", ["x"], ["z"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, COLUMNS]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [rows, 8]),
        ],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def inputs(rows: int = 4) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((rows, 8)).astype(np.float32)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(dense(), tmp_path)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    np.savez(tmp_path / "in.npz", **inputs())
    return tmp_path / "in.npz"


# The numbers


def test_cost_of_an_output() -> None:
    exact = np.array([[1.0, 5.0, 3.0], [-1.0, 0.0, 2.0]])
    cost = cost_of("y", exact, exact + np.array([[0.0, -3.0, 0.0], [0.0, 0.0, 4.0]]))
    assert (cost.name, cost.elements, cost.lost) == ("y", 6, 0)
    assert cost.error == 4.0 and cost.relative == 4.0 / 6.0
    assert cost.rms == pytest.approx(math.sqrt(25 / 6))
    assert cost.snr == pytest.approx(10 * math.log10(40 / 25))
    assert cost.agreement == Agreement(1, 2)


def test_cost_of_equal_and_of_strange_outputs() -> None:
    x = np.array([1.0, np.nan, np.inf, 2.0], np.float32)
    same = cost_of("y", x, x)
    assert (same.error, same.relative, same.rms, same.snr, same.lost) == (0, 0, 0, math.inf, 0)
    lost = cost_of("y", x, np.array([1.0, np.nan, 3.0, np.nan], np.float32))
    assert lost.lost == 2 and lost.error == 0
    assert cost_of("y", np.ones(4), np.full(4, 2.0)).relative == math.inf
    assert cost_of("y", np.zeros(4), np.ones(4)).snr == -math.inf
    nothing = cost_of("y", np.zeros((0, 3)), np.zeros((0, 3)))
    assert nothing.error == 0 and nothing.agreement is None
    assert cost_of("y", np.zeros((2, 2, 2)), np.zeros((2, 2, 2))).agreement is None
    assert cost_of("y", np.float32(1), np.float32(2)).error == 1


# Commands


def test_verify_compare_exact(model: Path, npz: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["verify", str(model), "--inputs", str(npz), "--dynamic-activations", "--compare-exact"]
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    costs = {c["name"]: c for c in result["approximation"]}
    # The matmul's output; the other one is exact.
    assert 0 < costs["y"]["relative"] < 0.02 and 30 < costs["y"]["snr"] < 60
    assert costs["y"]["agreement"] == {"agree": 4, "vectors": 4}
    assert costs["z"]["error"] == 0 and costs["z"]["snr"] is None
    assert result["approximates"]
    # Against its own definition it is as exact as any network.
    outputs = {o["name"]: o for o in result["outputs"]}
    assert outputs["y"]["error"] < 1e-5 < costs["y"]["error"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "Cost of the approximation" in text and "4 of 4" in text and "An approximating" in text


def test_not_measured_unless_asked_for(
    model: Path, npz: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(model), "--inputs", str(npz), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["approximation"] is None and not result["approximates"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["verify", "--compare-exact"], ["--dynamic-activations", "give both"]),
        (["verify", "--dynamic-activations", "--no-fuse"], ["not with --no-fuse"]),
    ],
)
def test_what_does_not_go_together(
    model: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: list[str]
) -> None:
    assert main([flags[0], str(model), *flags[1:]]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and all(w in message for w in words)


def test_compile_says_so(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["compile", str(model), "-o", str(out), "--dynamic-activations"]) == 0
    report = json.loads((out / "report.json").read_text())
    assert problems_of(report) == []
    assert report["options"]["dynamic_activations"] is True
    assert report["totals"]["run_time_quantized"] == 1
    assert [k for k in (d["kernel"] for d in report["dispatches"]) if "matmul" in k] == [
        "c.quant_matmul"
    ]
    (line,) = [x for x in summary_lines(report) if "run time" in x and "activation" in x]
    assert line in capsys.readouterr().out.splitlines()
    assert main(["run", str(out), "--dynamic-activations"]) == 2
    assert "--dynamic-activations cannot change" in capsys.readouterr().err


def test_off_by_default(model: Path) -> None:
    compilation = compile_loaded(load_model(model))
    assert compilation.report["options"]["dynamic_activations"] is False
    assert compilation.report["totals"]["run_time_quantized"] == 0
    kernels = {d["kernel"] for d in compilation.report["dispatches"]}
    assert "c.dequant_matmul" in kernels and "c.quant_matmul" not in kernels


def test_blocks_stay_and_the_report_says_why(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {
        "w": rng.integers(-128, 128, (8, COLUMNS), np.int8),
        "s": rng.uniform(0.01, 0.02, (2, COLUMNS)).astype(np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], "dq", axis=0, block_size=4),
        helper.make_node("MatMul", ["x", "f"], ["y"], "product"),
    ]
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, COLUMNS])],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = Options(dynamic_activations=True)
    report = compile_loaded(load_model(save(made, tmp_path)), options).report
    assert report["totals"]["run_time_quantized"] == 0
    (node,) = [n for n in report["nodes"] if n["name"] == "product"]
    assert node["status"] == "fused"
    assert any("a scale for each block of 4 along K" in text for text in node["notes"])


def test_qfold_opt(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt_main([str(model), "--fuse-dequant", "--dynamic-activations"]) == 0
    text = capsys.readouterr().out
    module = Parser(make_context(), text).parse_module()
    module.verify()
    kinds = [type(op) for op in module.walk()]
    assert kinds.count(qmm.DynamicQuantizeOp) == kinds.count(qmm.QuantMatmulOp) == 1
    assert qmm.DequantMatmulOp not in kinds and qmm.DequantizeOp not in kinds


# Networks


NETWORKS = [
    (transformer, Scheme("axis", "int8")),
    (transformer, Scheme("axis", "uint8", asymmetric=True)),
    (convnet, Scheme("axis", "int8", asymmetric=True)),
    (convnet, Scheme("tensor", "int4", asymmetric=True)),
]


@pytest.mark.parametrize(
    ("build", "scheme"), NETWORKS, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_networks_are_within_their_bounds(build, scheme: Scheme) -> None:
    """Each kernel on its own inputs, quantisations at ties included, and outputs against the approximation in float64."""
    quantized, readers = quantize_weights(build(), scheme)
    loaded = load_model(quantized.SerializeToString())
    options = Options(dynamic_activations=True)
    compilation = compile_loaded(loaded, options)
    kernels = [d["kernel"] for d in compilation.report["dispatches"]]
    assert kernels.count("c.quant_matmul") + kernels.count("c.quant_conv") > 0
    assert compilation.report["totals"]["run_time_quantized"] <= readers
    values = random_inputs(import_tensor_module(loaded, options), 3)
    result = verify(compilation, loaded, values, compare_exact=True)
    assert result.ok, [d for d in result.dispatches if not d.ok] + list(result.outputs)
    assert result.approximation is not None
    assert all(c.snr > 15 and not c.lost for c in result.approximation)


def test_ties_are_within_bounds(tmp_path: Path) -> None:
    """Every element lies half-way between two steps."""
    x = (np.random.default_rng(1).integers(-126, 126, (4, 8)) + 0.5).astype(np.float32) / 8
    x[:, 0] = 127 / 8
    loaded = load_model(save(dense(), tmp_path))
    compilation = compile_loaded(loaded, Options(dynamic_activations=True))
    assert compilation.report["totals"]["run_time_quantized"] == 1
    assert verify(compilation, loaded, {"x": x}).ok


@pytest.mark.parametrize("isa", ["zfinx", "f"])
def test_on_a_cluster(tmp_path: Path, isa: str) -> None:
    """Rows are quantised in L1 by one call, and multiplied by the dot product unit; nothing is emulated."""
    needs_spike()
    loaded = load_model(save(dense(9), tmp_path))
    options = Options(dynamic_activations=True, target=f"spike:isa={isa}")
    compilation = compile_loaded(loaded, options)
    report = compilation.report
    calls = [d for d in report["dispatches"] if "matmul" in d["nodes"]]
    kinds = {k["symbol"]: k["kernel"] for k in report["kernels"]}
    made_of = [{kinds[leaf["kernel"]] for leaf in d["calls"]} for d in calls]
    assert made_of == [{"c.loops"}, {"riscv.packed_quant_matmul"}]
    assert all(d["staged"] for d in calls)
    assert "qf_round_quotient(" in emit(compilation.kernels)["kernels.c"].decode()
    values = inputs(9)
    values["x"][3], values["x"][4, 0], values["x"][5, 1] = 0, np.nan, np.inf
    result = verify(compilation, loaded, values, compare_exact=True)
    assert result.ok, [a for a in result.audit if not a.ok] + list(result.dispatches)
