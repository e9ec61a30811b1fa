"""The verbs of `qfold` for clusters: targets and their options, reports, running and verifying on simulators."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qfold.frontend import load_model
from qfold.tools.driver import Options, compile_loaded
from qfold.tools.qfold import main
from qfold.tools.report_schema import problems_of
from qfold.tools.terminal import Terminal
from qfold.tools.verify import Verification, verify
from qfold.tools.verify_view import print_verification, verification_json
from tests.tools.clusters import compiled, matmul_model, needs_qemu, needs_spike

ROWS, K, N = 6, 16, 12


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(matmul_model(ROWS, K, N), path)
    return path


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).standard_normal((ROWS, K)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    return tmp_path / "in.npz"


# --target


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("spke", "unknown target 'spke'; known: host, threads, spike, gvsoc, qemu"),
        ("spike:harts=4", "target spike has no option 'harts'; known: isa, "),
        ("spike:isa=e", "isa=e: target spike has zfinx and f"),
        ("qemu:cores=2", "target qemu has no option 'cores'; known: l1, stack"),
        ("host:cores=2", "target host has no option 'cores'; known: none"),
        ("spike:cores=17", "cores is a number from 1 to 16, got '17'"),
        ("spike:l1=4096", "8 stacks of 2,048 bytes and 1,024 bytes of the runtime leave nothing"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(
    model: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as exit_:
        main(["verify", str(model), "--target", target])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_help_lists_targets_and_options(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_:
        main(["compile", "--help"])
    assert exit_.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "threads (cores, l1, stack), spike (isa, " in text


@pytest.mark.parametrize(
    ("target", "variable", "message"),
    [
        ("qemu", "PATH", "qemu-riscv32 is not on PATH; on Debian or Ubuntu: apt-get install"),
        ("gvsoc", "QFOLD_GVSOC", "QFOLD_GVSOC, '/nowhere', is not an executable"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "verify"])
def test_a_missing_simulator_is_an_error_that_says_how_to_get_it(
    model: Path,
    verb: str,
    target: str,
    variable: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv(variable, "/nowhere")
    assert main([verb, str(model), "--target", target]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: target {target}: ") and message in error


# Reports


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return compiled(matmul_model(ROWS, K, N), "spike:cores=4").report


def test_report_of_a_cluster(report: dict[str, Any]):
    assert problems_of(report) == []
    assert report["target"] == "spike:cores=4"
    assert report["machine"] == {
        "cores": 4,
        "isa": {
            "name": "zfinx",
            "march": "rv32imc_zfinx",
            "float_registers": "x",
            "xpulpv2": True,
        },
    }
    (dispatch,) = report["dispatches"]
    assert dispatch["staged"] and dispatch["unstaged_reason"] is None
    assert dispatch["macs"] == report["totals"]["macs"] == ROWS * K * N
    kernels = {k["kernel"]: k for k in report["kernels"]}
    assert set(kernels) == {"riscv.pack", "riscv.packed_matmul"}
    packed = kernels["riscv.packed_matmul"]
    assert np.prod(packed["split"]) <= 4
    facts = packed["generated"]["facts"]
    rows, columns = map(int, facts["block"].split("x"))
    assert 1 <= rows <= 4 and columns == 4
    assert facts["instructions_per_mac"] >= facts["block_instructions_per_mac"] > 1
    for kernel in kernels.values():
        for function in kernel["generated"]["functions"]:
            assert function["symbol"].startswith(kernel["symbol"]) and function["code_bytes"] > 0
    l1, l2 = report["memory"]
    assert (l1["name"], l1["size"], l1["stack_bytes"]) == ("L1", 65536, 4 * 2048)
    assert l1["arena_bytes"] == dispatch["l1_bytes"] > 0
    assert l2["name"] == "L2" and l2["weight_bytes"] == K * N + N * (4 + 4 + 1)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda r: r.update(version=1), "report.version is 1, not 3"),
        (lambda r: r["kernels"].pop(), "calls an unknown"),
        (lambda r: r["kernels"][0].update(calls=9), "has 9 calls, the dispatches make 1"),
        (lambda r: r["dispatches"][0].update(macs=1), "macs is not the sum over its calls"),
        (lambda r: r["machine"]["isa"].update(float_registers="z"), "'z', not one of x, f"),
        (lambda r: r["kernels"][0]["generated"].update(facts=[]), "facts is not an object"),
    ],
)
def test_the_schema_catches_what_does_not_agree(report: dict[str, Any], edit: Any, problem: str):
    changed = copy.deepcopy(report)
    edit(changed)
    assert any(problem in found for found in problems_of(changed)), problems_of(changed)


def test_report_view_names_tiles_kernels_and_memories(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = str(tmp_path / "out")
    assert main(["compile", str(model), "-o", out, "--target", "spike"]) == 0
    assert f"qfold run {out} --inputs NPZ" in " ".join(capsys.readouterr().out.split())
    assert main(["report", out]) == 0
    text = capsys.readouterr().out
    assert "1 x pack_i8_i8_kn_16x12" in text and "riscv.packed_matmul" in text
    assert "instructions per MAC" in text and "8 cores of rv32imc_zfinx with XpulpV2" in text
    assert "memory level 1 of 64.0 KiB: tiles" in text


def test_a_function_that_works_in_l2_says_why():
    # A row of the activation alone is larger than this scratchpad.
    target = "threads:cores=1,l1=3088,stack=16"
    (matmul,) = compiled(matmul_model(6, 1024, 4), target).report["dispatches"]
    assert not matmul["staged"] and matmul["kernel"].startswith("c.")
    assert matmul["unstaged_reason"] == "no tiles that fit save more than bringing them costs"


# run


@pytest.mark.parametrize("target", ["threads", "spike:isa=f", "qemu"])
def test_a_compiled_project_runs_as_the_model_does_on_the_host(
    target: str, model: Path, npz: Path, tmp_path: Path
):
    if target.startswith("spike"):
        needs_spike()
    if target == "qemu":
        needs_qemu()
    out = tmp_path / "out"
    assert main(["compile", str(model), "-o", str(out), "--target", target, "-q"]) == 0
    for source, name in ((out, "cluster"), (model, "host")):
        argv = ["run", str(source), "--inputs", str(npz), "-o", str(tmp_path / name), "-q"]
        assert main(argv) == 0
    with np.load(tmp_path / "cluster") as a, np.load(tmp_path / "host") as b:
        assert list(a) == list(b) == ["y"]
        np.testing.assert_allclose(a["y"], b["y"], rtol=2e-5, atol=2e-5)


# verify


def test_verify_on_threads(model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["verify", str(model), "--target", "threads", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["ok"] and all(a["ok"] for a in result["audit"])
    assert result["work"] is None  # time is nothing to compare there
    checks = [a["check"] for a in result["audit"]]
    assert "staged dispatches call the manifest's kernels" in checks
    assert "every kernel of the report was executed" in checks


@pytest.fixture(scope="module")
def on_spike() -> Verification:
    needs_spike()
    source = load_model(matmul_model(ROWS, K, N).SerializeToString())
    compilation = compile_loaded(source, Options(target="spike:cores=2"))
    x = np.random.default_rng(0).standard_normal((ROWS, K)).astype(np.float32)
    return verify(compilation, source, {"x": x})


def test_verify_on_spike_counts_instructions(on_spike: Verification):
    result = verification_json(on_spike)
    assert result["ok"]
    work = result["work"]
    assert work["unit"] == "instructions"
    (row,) = work["dispatches"]
    assert row["macs"] == ROWS * K * N and len(row["per_core"]) == 2
    assert row["total"] == sum(row["per_core"]) and row["largest"] == max(row["per_core"])
    assert row["per_mac"] == row["total"] / row["macs"] and row["share"] == 1
    # At least a multiply-add each; waiting for the DMA, and the copies that Spike's port makes, are not counted.
    assert row["macs"] < row["total"] < 12 * row["macs"]
    assert work["elapsed"] >= row["largest"]
    assert work["stack_bytes"] == [2048, 2048]
    assert all(0 < used < 2048 for used in work["stack_used"])


def test_the_table_of_instructions(on_spike: Verification, capsys: pytest.CaptureFixture[str]):
    print_verification(on_spike, Terminal())
    text = " ".join(capsys.readouterr().out.split())
    assert "Instructions by kernel call: all 1" in text and "riscv.packed_matmul" in text
    assert f"for each of {ROWS * K * N:,} multiply-accumulates" in text
    assert "stacks of 2,048 bytes, used by each core: " in text and "verified" in text
