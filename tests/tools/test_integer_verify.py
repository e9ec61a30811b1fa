"""`qfold verify` of networks of integers: equal is said to be equal, and what is not is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from qfold.dialects.element_types import ui8
from qfold.frontend import load_model
from qfold.tools.arrays import load_npz, match_arrays
from qfold.tools.driver import Options, compile_loaded
from qfold.tools.proof_integers import COUNTED
from qfold.tools.terminal import Terminal
from qfold.tools.verify import Verification, verify
from qfold.tools.verify_view import print_verification, verification_json
from tests.tools.clusters import needs_spike
from tests.tools.integer_models import Array, Network, qdq, qlinear


def verified(
    network: Network, inputs: dict[str, Array], expected: dict[str, Array] | None = None
) -> Verification:
    source = load_model(network.model.SerializeToString())
    return verify(compile_loaded(source, Options()), source, inputs, expected)


def shown(result: Verification, capsys: pytest.CaptureFixture[str]) -> str:
    print_verification(result, Terminal())
    return " ".join(capsys.readouterr().out.split())


X = np.random.default_rng(0).integers(0, 256, (1, 2, 5, 5)).astype(np.uint8)


@pytest.fixture(scope="module")
def golden() -> Array:
    """What ONNX's own evaluator computes."""
    (y,) = ReferenceEvaluator(qlinear().model).run(None, {"x": X})
    return np.asarray(y)


def test_integers_are_bit_exact(golden: Array, capsys: pytest.CaptureFixture[str]):
    result = verified(qlinear(), {"x": X}, {"y": golden})
    assert result.ok
    (output,) = result.outputs
    assert output.is_integer and output.element_type == "ui8" and output.elements == 12
    assert output.differing == 0 == output.bound and output.golden is not None
    assert output.golden.differing == 0 and output.golden.ok
    assert all(d.exact == d.elements > 0 for d in result.dispatches)
    text = shown(result, capsys)
    assert "12 ui8" in text and text.count("bit-exact") >= 3
    total = sum(d.elements for d in result.dispatches)
    assert f"bit-exact: {total} of {total} numbers" in text
    # Nothing here is rounded, and nothing is said of bounds.
    assert "float results themselves" not in text and "a few ulp" not in text


def test_a_golden_value_that_is_another_integer_fails(
    golden: Array, capsys: pytest.CaptureFixture[str]
):
    other = golden.copy()
    other.reshape(-1)[[0, 5]] += np.array([3, 1], np.uint8)
    result = verified(qlinear(), {"x": X}, {"y": other})
    assert not result.ok
    (output,) = result.outputs
    assert output.differing == 0 and output.golden is not None
    assert (output.golden.differing, output.golden.error) == (2, 3)
    text = shown(result, capsys)
    assert "2 differ, by up to 3" in text and "NOT verified" in text


def test_integers_between_floats(capsys: pytest.CaptureFixture[str]):
    """A dequantised output is a float, all but the softmax before it is exact."""
    x = np.random.default_rng(1).standard_normal((4, 9)).astype(np.float32)
    result = verified(qdq(), {"x": x})
    assert result.ok
    (output,) = result.outputs
    assert not output.is_integer and output.element_type == "f32"
    elements = sum(d.elements for d in result.dispatches)
    exact = sum(d.exact for d in result.dispatches)
    assert 4 * 6 <= exact < elements
    text = shown(result, capsys)
    assert f"bit-exact: {exact} of {elements} numbers" in text and "a few ulp" in text


def test_as_data(golden: Array):
    data = verification_json(verified(qlinear(), {"x": X}, {"y": golden}))
    assert data["version"] == 2
    (output,) = data["outputs"]
    assert (output["elements"], output["differing"]) == (12, 0)
    assert output["golden"]["differing"] == 0 and output["element_type"] == "ui8"
    assert all(d["exact"] == d["elements"] for d in data["dispatches"])


@pytest.mark.parametrize(
    ("network", "shape", "target", "kernels"),
    [
        (qdq, (4, 9), "spike", {"riscv.packed_quant_matmul"}),
        (qlinear, (1, 2, 5, 5), "spike:isa=f,cores=3", {"riscv.packed_quant_matmul"}),
        (qlinear, (1, 2, 5, 5), "threads", {"c.packed_quant_matmul", "c.pack_window"}),
    ],
    ids=["qdq-spike", "qlinear-spike", "qlinear-threads"],
)
def test_on_clusters(network, shape: tuple[int, ...], target: str, kernels: set[str]):
    """The same numbers, by packed products, of weights that the audit has found in the model."""
    if target.startswith("spike"):
        needs_spike()
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape).astype(np.float32)
    if network is qlinear:
        x = rng.integers(0, 256, shape).astype(np.uint8)
    source = load_model(network().model.SerializeToString())
    compilation = compile_loaded(source, Options(target=target))
    result = verify(compilation, source, {"x": x})
    bad = [r for r in (*result.outputs, *result.dispatches, *result.audit) if not r.ok]
    assert not bad, "\n".join(map(str, bad))
    assert kernels <= {k["kernel"] for k in compilation.report["kernels"]}
    checks = {a.check: a.detail for a in result.audit}
    assert "quantised weights are stored as integers, every one of them" in checks
    assert (COUNTED in checks) == target.startswith("spike")
    if target.startswith("spike"):
        macs = sum(k["macs"] * k["calls"] for k in compilation.report["kernels"] if k["generated"])
        assert checks[COUNTED].endswith(f"for {macs:,} products")


def test_keyword_spotting_on_eight_cores(golden_model: Callable[[str], Path]):
    """A whole network of integers: bit-exact with its golden output, by packed dot products, nothing between in floats."""
    needs_spike()
    folder = golden_model("MLPerf_KeywordSpotting")
    source = load_model(folder / "network.onnx")
    options = Options(target="spike", input_types={"input": ui8})
    compilation = compile_loaded(source, options)
    inputs, expected = (
        match_arrays(load_npz(folder / f"{name}.npz"), specs, name, by_position=True)
        for name, specs in (("inputs", compilation.inputs), ("outputs", compilation.outputs))
    )
    result = verify(compilation, source, inputs, expected)
    bad = [r for r in (*result.outputs, *result.dispatches, *result.audit) if not r.ok]
    assert not bad, "\n".join(map(str, bad))
    (output,) = result.outputs
    assert output.golden is not None and output.golden.differing == 0
    report = compilation.report
    assert report["islands"] == []
    # The model says that its output is a float.
    assert [t["name"] for t in report["tensors"] if t["element_type"] == "f32"] == [output.name]
    assert report["totals"]["integer_macs"] == report["totals"]["macs"] == 2_125_568
    (counted,) = (a for a in result.audit if a.check == COUNTED)
    generated = [k for k in report["kernels"] if k["generated"] and k["macs"]]
    assert counted.detail.endswith(
        f"for {sum(k['macs'] * k['calls'] for k in generated):,} products"
    )
    assert {k["kernel"] for k in generated} >= {"riscv.packed_quant_matmul"}
    forms = {p["requantize"] for p in report["products"] if p["result"] != "f32"}
    assert forms and forms <= {"i32", "mulhi", "i64"}
    assert result.work is not None and all(all(row.per_core) for row in result.work.rows)
