"""`qfold-opt`, and stock `xdsl-opt` with qfold as its plugin."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from xdsl.parser import Parser
from xdsl.universe import Universe
from xdsl.xdsl_opt_main import xDSLOptMain

from qfold.dialects import qmm
from qfold.tools.driver import make_context
from qfold.tools.qfold_opt import main
from qfold.universe import QFOLD_UNIVERSE
from tests.tools.models import linear_model, save

FLAGS = ["--fuse-dequant", "--hoist-zero-point"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(linear_model(), tmp_path)


def ops(text: str, kind: type) -> list:
    module = Parser(make_context(), text).parse_module()
    module.verify()
    return [op for op in module.walk() if isinstance(op, kind)]


def test_import_only(model: Path, capsys):
    assert main([str(model)]) == 0
    text = capsys.readouterr().out
    assert len(ops(text, qmm.MatmulOp)) == 1 and len(ops(text, qmm.DequantizeOp)) == 2


def test_fuse_and_hoist(model: Path, capsys):
    assert main([str(model), *FLAGS]) == 0
    text = capsys.readouterr().out
    (matmul,) = ops(text, qmm.DequantMatmulOp)
    assert matmul.hoisted is not None and matmul.row_sum is not None
    assert len(ops(text, qmm.DequantGatherOp)) == len(ops(text, qmm.RowSumOp)) == 1
    assert not ops(text, qmm.DequantizeOp)
    assert main([str(model), "--fuse-dequant"]) == 0
    (matmul,) = ops(capsys.readouterr().out, qmm.DequantMatmulOp)
    assert matmul.hoisted is None


def test_flags_run_before_the_passes(model: Path, capsys):
    assert main([str(model), *FLAGS, "-p", "convert-qmm-to-linalg"]) == 0
    assert "qmm." not in capsys.readouterr().out.replace("qmm.name", "").replace("qmm.opset", "")


def test_to_c(model: Path, capsys):
    passes = (
        "qmm-linalg-cse,qmm-lower-quantization,qmm-fuse-epilogue,qmm-fuse-elementwise,qmm-bufferize,"
        "qmm-outline-kernels,qmm-select-kernels,qmm-plan-memory"
    )
    assert main([str(model), *FLAGS, "-p", passes, "-t", "qfold-c"]) == 0
    text = capsys.readouterr().out
    assert "// ---- kernels.c ----" in text and "int net_run(" in text
    assert main([str(model), *FLAGS, "-t", "qfold-c"]) == 2
    assert "run qmm-bufferize first" in capsys.readouterr().err


def test_dimensions(tmp_path: Path, capsys):
    path = save(linear_model(batch="N"), tmp_path)
    assert main([str(path), "--dim", "N=3"]) == 0
    assert "tensor<3x5xf32>" in capsys.readouterr().out
    assert main([str(path), "-f", "onnx{dim=N,7}"]) == 0
    assert "tensor<7x5xf32>" in capsys.readouterr().out
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    text = tmp_path / "a.mlir"
    text.write_text("")
    assert main([str(text), "--dim", "N=3"]) == 2
    assert "--dim takes an ONNX model" in capsys.readouterr().err


def test_any_extension_with_an_explicit_frontend(model: Path, tmp_path: Path, capsys):
    other = model.rename(tmp_path / "model.bin")
    assert main([str(other), "-f", "onnx"]) == 0
    assert len(ops(capsys.readouterr().out, qmm.MatmulOp)) == 1
    assert main([str(other)]) == 2
    assert "the extension is not one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-p", "no-such-pass"], "no-such-pass"),
        (["-p", "qmm-bufferize{nonsense=1}"], "nonsense"),
        (["-p", "qmm-bufferize{"], "--passes"),
        (["--weights-out", "/nowhere/w.bin"], "/nowhere/w.bin"),
        (["-o", "/nowhere/a.mlir"], "/nowhere"),
    ],
)
def test_errors_are_sentences(model: Path, capsys, argv, words):
    assert main([str(model), *argv]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and words in captured.err
    assert "internal error" not in captured.err and "Traceback" not in captured.err


def test_an_output_file_is_whole_or_as_it_was(model: Path, tmp_path: Path):
    out = tmp_path / "out.mlir"
    out.write_text("before")
    assert main([str(model), "-t", "qfold-c", "-o", str(out)]) == 2
    assert out.read_text() == "before"
    assert main([str(model), "-o", str(out)]) == 0
    assert "qmm.matmul" in out.read_text()
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx", "out.mlir"}


def test_split_input_and_diagnostics(tmp_path: Path, capsys):
    path = tmp_path / "a.mlir"
    path.write_text(
        """func.func @good() { func.return }
// -----
func.func @bad(%a: tensor<2x3xf32>, %b: tensor<3x2xi8>) {
  %c = qmm.matmul %a, %b : (tensor<2x3xf32>, tensor<3x2xi8>) -> tensor<2x2xf32>
  func.return
}
"""
    )
    assert main([str(path), "--split-input-file", "--verify-diagnostics"]) == 0
    text = capsys.readouterr().out
    assert "@good" in text and "qmm.matmul reads f32, got tensor<3x2xi8>" in text
    assert main([str(path), "--split-input-file"]) == 2
    assert "qmm.matmul reads f32" in capsys.readouterr().err


def test_large_weights_in_text_are_read_back(tmp_path: Path, capsys):
    path = tmp_path / "a.mlir"
    path.write_text(
        f'"builtin.module"() ({{ "test.op"() {{w = #qmm.weight<"0x{"01" * ((1 << 20) + 1)}" : '
        f"tensor<{(1 << 20) + 1}xi8>>}} : () -> () }}) : () -> ()"
    )
    argv = [str(path), "--allow-unregistered-dialect"]
    assert main(argv) == 0
    assert "elided sha256" in capsys.readouterr().out
    out = tmp_path / "b.mlir"
    assert main([*argv, "-o", str(out), "--weights-out", str(tmp_path / "w.bin")]) == 0
    assert 'file "w.bin" 0 sha256' in out.read_text()
    assert (tmp_path / "w.bin").stat().st_size == (1 << 20) + 1
    again = tmp_path / "c.mlir"
    assert main([str(out), "--allow-unregistered-dialect", "-o", str(again)]) == 0
    assert again.read_text() == out.read_text()
    (tmp_path / "w.bin").write_bytes(bytes((1 << 20) + 1))
    assert main([str(out), "--allow-unregistered-dialect"]) == 2
    assert "does not hold" in capsys.readouterr().err


# Stock xdsl-opt


def test_the_plugin_in_stock_xdsl_opt(model: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    """The entry points of pyproject.toml, whether or not this environment has qfold installed."""
    real = metadata.entry_points

    def entry_points(**wanted: str) -> EntryPoints:
        found = [e for e in real(**wanted) if e.name != "qfold"]
        if wanted.get("group") == "xdsl.universe":
            found.append(EntryPoint("qfold", "qfold.universe:QFOLD_UNIVERSE", "xdsl.universe"))
        return EntryPoints(found)

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    passes = "qmm-fuse-dequant,qmm-hoist-zero-point"
    xDSLOptMain(args=[str(model), "-p", passes]).run()
    (matmul,) = ops(capsys.readouterr().out, qmm.DequantMatmulOp)
    assert matmul.hoisted is not None
    dynamic = save(linear_model(batch="N"), model.parent, "dynamic.onnx")
    xDSLOptMain(args=[str(dynamic), "-f", 'onnx{dim="N=7"}']).run()
    assert "tensor<7x5xf32>" in capsys.readouterr().out


def test_no_name_clashes_with_xdsl():
    names = Universe.get_multiverse()
    own = "qfold" in {e.name for e in metadata.entry_points(group="xdsl.universe")}
    for ours, theirs in (
        (QFOLD_UNIVERSE.all_dialects, names.all_dialects),
        (QFOLD_UNIVERSE.all_passes, names.all_passes),
        (QFOLD_UNIVERSE.all_targets, names.all_targets),
        (QFOLD_UNIVERSE.all_frontends, names.all_frontends),
    ):
        assert own or not set(ours) & set(theirs)
    for factories in (
        QFOLD_UNIVERSE.all_passes,
        QFOLD_UNIVERSE.all_targets,
        QFOLD_UNIVERSE.all_frontends,
    ):
        for name, factory in factories.items():
            assert factory().name == name
    for name, factory in QFOLD_UNIVERSE.all_dialects.items():
        assert factory().name == name


def test_importing_the_universe_is_cheap():
    code = (
        "import sys, qfold.universe\n"
        "heavy = [m for m in ('onnx', 'qfold.frontend', 'qfold.backend', 'qfold.interpreters') if m in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_installed_command(model: Path):
    command = shutil.which("xdsl-opt", path=str(Path(sys.executable).parent))
    installed = any(e.name == "qfold" for e in metadata.entry_points(group="xdsl.universe"))
    if command is None or not installed:
        pytest.skip("qfold is not installed beside xdsl-opt")
    done = subprocess.run(
        [command, str(model), "-p", "qmm-fuse-dequant"], capture_output=True, text=True, check=True
    )
    assert len(ops(done.stdout, qmm.DequantMatmulOp)) == 1
