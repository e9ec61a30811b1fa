"""The verbs of `qfold`, in one process: results, files, messages and exit codes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.parser import Parser

from qfold.dialects import qmm
from qfold.tools import commands, driver
from qfold.tools.driver import Options, compile_model, make_context
from qfold.tools.qfold import main
from qfold.tools.report_schema import problems_of
from qfold.tools.weight_text import reading_weights
from tests.tools.models import inputs, linear_model, reference, save, unsupported_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(linear_model(), tmp_path)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    np.savez(tmp_path / "in.npz", **inputs())
    return tmp_path / "in.npz"


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def fails(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Runs a command that cannot be done; returns its sentence."""
    assert main([str(a) for a in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and "Traceback" not in captured.err
    assert "internal error" not in captured.err
    return captured.err


# compile


def test_compile_writes_a_project_that_builds_and_a_report(model: Path, tmp_path: Path, capsys):
    out = tmp_path / "out"
    assert main(["compile", str(model), "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "1 matmul, 0 convolutions, 1 gather" in text and str(out) in text
    report = json.loads((out / "report.json").read_text())
    assert problems_of(report) == []
    assert {p.name for p in out.iterdir()} >= {
        "network.h",
        "network.c",
        "kernels.c",
        "weights.S",
        "Makefile",
    }
    subprocess.run(["make", "-s", "-C", str(out), "network"], check=True, capture_output=True)
    shown = subprocess.run([out / "network"], check=True, capture_output=True, text=True).stdout
    assert "y (4x5):" in shown and "g (2x3):" in shown


def test_compile_is_reproducible(model: Path, tmp_path: Path):
    for name in ("a", "b"):
        assert main(["compile", str(model), "-o", str(tmp_path / name), "-q"]) == 0
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_quiet_says_nothing(model: Path, tmp_path: Path, capsys):
    assert main(["compile", str(model), "-o", str(tmp_path / "out"), "-q"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_failed_compilation_leaves_an_earlier_output_as_it_was(
    model: Path, tmp_path: Path, capsys
):
    out = tmp_path / "out"
    assert main(["compile", str(model), "-o", str(out), "-q"]) == 0
    before = snapshot(out)
    broken = save(unsupported_model(), tmp_path, "broken.onnx")
    fails(capsys, "compile", broken, "-o", out)
    assert snapshot(out) == before


def test_a_full_disk_leaves_an_earlier_output_as_it_was(
    model: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    assert main(["compile", str(model), "-o", str(out), "-q"]) == 0
    before = snapshot(tmp_path)
    real = Path.open

    class Stream:
        def __init__(self, path: Path):
            self.path = path

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    monkeypatch.setattr(
        Path,
        "open",
        lambda self, mode="r", *a, **k: (
            Stream(self)
            if "w" in mode and self.name == "report.json"
            else real(self, mode, *a, **k)
        ),
    )
    assert "the disk is full" in fails(capsys, "compile", model, "-o", out)
    monkeypatch.undo()
    assert snapshot(tmp_path) == before


def test_somebody_elses_directory_is_not_touched(model: Path, tmp_path: Path, capsys):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.tex").write_text("years of work")
    assert "thesis" in fails(capsys, "compile", model, "-o", out)
    assert snapshot(out) == {"chapter1.tex": b"years of work"}


def test_an_output_that_cannot_be_written(model: Path, tmp_path: Path, capsys):
    (tmp_path / "file").write_text("")
    text = fails(capsys, "compile", model, "-o", tmp_path / "file" / "out")
    assert "file" in text


# import


def test_import_prints_what_parses_again(model: Path, tmp_path: Path, capsys):
    assert main(["import", str(model)]) == 0
    printed = capsys.readouterr().out
    module = Parser(make_context(), printed).parse_module()
    module.verify()
    assert sum(isinstance(op, qmm.MatmulOp) for op in module.walk()) == 1
    assert main(["import", str(model), "-o", str(tmp_path / "m.mlir")]) == 0
    assert (tmp_path / "m.mlir").read_text() == printed


def test_large_weights_go_to_the_model_or_to_a_sidecar(tmp_path: Path, capsys):
    weight = np.arange(1100 * 1000, dtype=np.int64).astype(np.int8).reshape(1100, 1000)
    model = linear_model()
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(numpy_helper.from_array(weight, "w"))
        elif tensor.name in ("s", "z", "b"):
            tensor.CopyFrom(
                numpy_helper.from_array(np.resize(numpy_helper.to_array(tensor), 1000), tensor.name)
            )
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1100
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1000
    path = save(model, tmp_path)
    (tmp_path / "sub").mkdir()
    inside, below = tmp_path / "m.mlir", tmp_path / "sub" / "m.mlir"
    assert main(["import", str(path), "-o", str(inside)]) == 0
    assert 'file "model.onnx"' in inside.read_text()
    argv = ["import", str(path), "-o", str(below)]
    assert main([*argv, "--weights-out", str(tmp_path / "sub" / "w.bin")]) == 0
    assert 'file "w.bin" 0 ' in below.read_text()
    for source in (inside, below):
        with reading_weights(source):
            module = Parser(make_context(), source.read_text()).parse_module()
        (array,) = (
            op.value.array()
            for op in module.walk()
            if isinstance(op, qmm.ConstantOp) and op.value.shape == weight.shape
        )
        assert np.array_equal(array, weight)
    assert capsys.readouterr().err == ""
    assert main(argv) == 0
    assert "elided" in below.read_text()
    assert "--weights-out FILE keeps them" in capsys.readouterr().err
    assert "is outside of" in fails(capsys, *argv, "--weights-out", tmp_path / "w.bin")


# run


def test_run_a_model_and_what_was_compiled(model: Path, npz: Path, tmp_path: Path, capsys):
    expected = reference(linear_model(), **inputs())
    out = tmp_path / "out"
    assert main(["compile", str(model), "-o", str(out), "-q"]) == 0
    for source in (model, out):
        result = tmp_path / "result.npz"
        assert main(["run", str(source), "--inputs", str(npz), "-o", str(result)]) == 0
        with np.load(result) as arrays:
            assert set(arrays.files) == {"y", "g"}
            for name in arrays.files:
                assert arrays[name].dtype == np.float32
                assert np.allclose(arrays[name], expected[name], atol=1e-5)
    assert capsys.readouterr().out == ""
    assert main(["run", str(model), "--inputs", str(npz)]) == 0
    assert "y: float32 [4, 5]" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--dim", "batch=2"], ["--no-fuse"], ["--no-hoist"]])
def test_run_does_not_recompile_what_was_compiled(
    model: Path, npz: Path, tmp_path: Path, capsys, option: list[str]
):
    out = tmp_path / "out"
    assert main(["compile", str(model), "-o", str(out), "--quiet"]) == 0
    assert option[0] in fails(capsys, "run", out, "--inputs", npz, *option)


def test_run_without_inputs_takes_sensible_random_ones(model: Path, tmp_path: Path):
    for seed in ("0", "0", "1"):
        result = tmp_path / f"{seed}.npz"
        assert main(["run", str(model), "--seed", seed, "-o", str(result)]) == 0
    with np.load(tmp_path / "0.npz") as a, np.load(tmp_path / "1.npz") as b:
        assert not np.array_equal(a["y"], b["y"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": None}, "'x' is missing"),
        ({"mask": np.ones(3)}, "there is no 'mask'"),
        ({"x": np.ones((8, 4), np.float32)}, "'x' has shape [8, 4]"),
        ({"ids": np.array([0.5, 1])}, "'ids' holds float64 that int64 cannot"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "verify"])
def test_wrong_inputs(model: Path, tmp_path: Path, capsys, change, words, verb):
    arrays = {k: v for k, v in (inputs() | change).items() if v is not None}
    np.savez(tmp_path / "wrong.npz", **arrays)
    text = fails(capsys, verb, model, "--inputs", tmp_path / "wrong.npz")
    assert words in text and "x: float32 [4, 8]" in text and "ids: int64 [2]" in text


def test_a_directory_that_is_no_project(tmp_path: Path, capsys):
    assert "holds no report.json" in fails(capsys, "run", tmp_path)
    (tmp_path / "report.json").write_text("{")
    assert "is not JSON" in fails(capsys, "report", tmp_path)
    (tmp_path / "report.json").write_text('{"schema": "other"}')
    assert "is not a report" in fails(capsys, "report", tmp_path)


# verify


def test_verify(model: Path, npz: Path, tmp_path: Path, capsys):
    expected = {k: v.astype(np.float32) for k, v in reference(linear_model(), **inputs()).items()}
    np.savez(tmp_path / "expect.npz", **expected)
    argv = ["verify", str(model), "--inputs", str(npz), "--expect", str(tmp_path / "expect.npz")]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "verified" in text and "NOT" not in text and "FAILED" not in text
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] and {o["name"] for o in result["outputs"]} == {"y", "g"}
    assert all(o["error"] <= o["bound"] and o["golden"] for o in result["outputs"])
    assert any(d["symbol"].startswith("dequant_matmul_f32_i8") for d in result["dispatches"])
    assert len(result["audit"]) == 7 and all(a["ok"] for a in result["audit"])


@pytest.mark.parametrize("flags", [["--no-fuse"], ["--no-hoist"]])
def test_verify_the_other_forms(model: Path, npz: Path, flags: list[str]):
    assert main(["verify", str(model), "--inputs", str(npz), *flags]) == 0


def test_verify_integer_outputs(tmp_path: Path, capsys):
    """Rounded from floats: within 1; a copy of an input: exact."""
    model = linear_model()
    del model.graph.node[5], model.graph.node[4], model.graph.output[1]
    model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["y", "ts", "tz"], ["q"], "quantize"),
            helper.make_node("Identity", ["ids"], ["same"], "same"),
        ]
    )
    model.graph.output.extend(
        [
            helper.make_tensor_value_info("q", TensorProto.UINT8, [4, 5]),
            helper.make_tensor_value_info("same", TensorProto.INT64, [2]),
        ]
    )
    assert main(["verify", str(save(model, tmp_path)), "--json"]) == 0
    bounds = {o["name"]: o["bound"] for o in json.loads(capsys.readouterr().out)["outputs"]}
    assert bounds["same"] == 0 and bounds["q"] <= 1


def test_verify_fails_on_a_wrong_golden(model: Path, npz: Path, tmp_path: Path, capsys):
    expected = {k: v.astype(np.float32) for k, v in reference(linear_model(), **inputs()).items()}
    expected["y"][0, 0] += 0.01
    np.savez(tmp_path / "expect.npz", **expected)
    argv = ["verify", str(model), "--inputs", str(npz), "--expect", str(tmp_path / "expect.npz")]
    assert main(argv) == 1
    assert "NOT verified" in capsys.readouterr().out


def test_verify_catches_a_kernel_that_computes_wrongly(
    model: Path, npz: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    """A mistake in the generated C only: the dispatch that has it is the one that fails."""
    real = driver.emit
    import qfold.tools.verify as verify

    def wrong(module):
        files = dict(real(module))
        source = files["kernels.c"].decode()
        head, body = source.split("void dequant_matmul_f32_i8", 1)
        assert "scale[" in body
        files["kernels.c"] = (
            head + "void dequant_matmul_f32_i8" + body.replace("scale[", "1.001f * scale[")
        ).encode()
        return files

    monkeypatch.setattr(verify, "emit", wrong)
    assert main(["verify", str(model), "--inputs", str(npz), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    wrong_calls = [d for d in result["dispatches"] if not d["ok"]]
    assert [d["symbol"].startswith("dequant_matmul_f32_i8") for d in wrong_calls] == [True]
    assert wrong_calls[0]["nodes"][0] == "matmul" and wrong_calls[0]["operand"] == "y"
    assert [o["name"] for o in result["outputs"] if not o["ok"]] == ["y"]


def test_without_the_verify_extra_only_verify_is_missing(
    model: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("qfold.tools.elf.find_spec", lambda name: None)
    assert main(["compile", str(model), "-o", str(tmp_path / "out"), "-q"]) == 0
    assert "pip install 'qfold[verify]'" in fails(capsys, "verify", model)


# report


def test_report(model: Path, tmp_path: Path, capsys):
    out = tmp_path / "out"
    assert main(["compile", str(model), "-o", str(out), "-q"]) == 0
    assert main(["report", str(out)]) == 0
    text = capsys.readouterr().out
    for words in ("qmm.dequant_matmul", "fused, hoisted", "qmm.dequant_gather", "c.dequant_matmul"):
        assert words in text
    assert main(["report", str(out), "--json"]) == 0
    assert capsys.readouterr().out == (out / "report.json").read_text()


def test_what_the_report_says(model: Path):
    report = compile_model(model).report
    nodes = {n["name"]: n for n in report["nodes"]}
    assert nodes["matmul"]["op_type"] == "MatMul" and nodes["matmul"]["status"] == "fused"
    assert nodes["matmul"]["hoisted"] and nodes["matmul"]["macs"] == 4 * 8 * 5
    (call,) = (d for d in report["dispatches"] if d["op"] == "qkernel.dequant_matmul")
    assert {"weight", "matmul", "bias", "relu"} <= set(call["nodes"])
    operands = {o["name"]: o for o in call["operands"]}
    assert operands["w"]["c_type"] == "const int8_t *" and operands["y"]["written"]
    constants = {c["symbol"]: c for c in report["constants"]}
    weight = constants[operands["w"]["constant"]]
    assert weight["bytes"] == 40 and weight["quantized"] and "matmul" in weight["users"]
    assert report["totals"]["fused"] == {"matmul": 1, "conv": 0, "gather": 1}
    assert report["totals"]["float_copies_of_quantized_weights"] == 0
    assert report["totals"]["run_time_dequantizations"] == 0
    unfused = compile_model(model, Options(fuse=False)).report
    assert unfused["totals"]["fused"] == {"matmul": 0, "conv": 0, "gather": 0}
    assert unfused["totals"]["run_time_dequantizations"] == 2


def test_the_report_is_checked(model: Path):
    report = compile_model(model).report
    for change in (
        {"version": "1"},
        {"extra": 1},
        {"totals": {**report["totals"], "macs": 1}},
        {"dispatches": report["dispatches"][1:]},
        {"nodes": [{**report["nodes"][0], "status": "maybe"}]},
    ):
        assert problems_of(report | change), change
    assert problems_of({k: v for k, v in report.items() if k != "memory"})


# Output files


def test_an_output_that_is_no_regular_file_is_written_to_and_not_replaced(
    model: Path, npz: Path, tmp_path: Path
):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for argv in (["import", model], ["run", model, "--inputs", npz]):
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        assert main([*map(str, argv), "-o", str(pipe)]) == 0
        assert reader.communicate()[0]
        assert pipe.is_fifo()
    if Path("/dev/full").is_char_device():
        assert main(["import", str(model), "-o", "/dev/full"]) == 2
        assert Path("/dev/full").is_char_device()


def test_an_output_file_is_whole_or_as_it_was(model: Path, tmp_path: Path, monkeypatch):
    out, link = tmp_path / "out.mlir", tmp_path / "link.mlir"
    out.write_text("before")
    link.symlink_to(out)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert main(["import", str(model), "-o", str(link)]) == 2
    assert out.read_text() == "before" and link.is_symlink()
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx", "out.mlir", "link.mlir"}
    assert main(["import", str(model), "-o", str(link)]) == 0
    assert "qmm.matmul" in out.read_text() and link.is_symlink()


# Bad input


def test_bad_models(tmp_path: Path, capsys):
    whole = linear_model().SerializeToString()
    cases = {
        "not_onnx": (b"hello, world", "not an ONNX model"),
        "empty": (b"", "empty"),
        "truncated": (whole[: len(whole) // 2], ""),
    }
    for name, (content, words) in cases.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        for verb in (["import"], ["compile", "-o", str(tmp_path / "out")], ["run"], ["verify"]):
            assert words in fails(capsys, verb[0], path, *verb[1:])
    assert "does not exist" in fails(capsys, "import", tmp_path / "absent.onnx")
    assert not (tmp_path / "out").exists()


def test_every_unsupported_node_is_named(tmp_path: Path, capsys):
    text = fails(capsys, "import", save(unsupported_model(), tmp_path))
    assert "'first' (Frobnicate" in text and "'second' (Twiddle, domain 'com.example'" in text


def test_dimensions(tmp_path: Path, capsys):
    path = save(linear_model(batch="N"), tmp_path)
    assert "--dim N=N" in fails(capsys, "import", path)
    assert "they are N" in fails(capsys, "import", path, "--dim", "N=4", "--dim", "M=4")
    assert "NAME=LENGTH" in fails(capsys, "import", path, "--dim", "N")
    assert "positive" in fails(capsys, "import", path, "--dim", "N=0")
    assert main(["import", str(path), "--dim", "N=4"]) == 0


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_that_are_none(tmp_path: Path, capsys, scale: float):
    model = linear_model()
    for tensor in model.graph.initializer:
        if tensor.name == "ts":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(scale), "ts"))
    text = fails(capsys, "import", save(model, tmp_path))
    assert "scale" in text and "table" in text


def test_external_data_stays_inside(tmp_path: Path, capsys):
    for location, words in (("missing.bin", "missing.bin"), ("../../secret", "secret")):
        model = linear_model()
        tensor = next(t for t in model.graph.initializer if t.name == "w")
        tensor.ClearField("raw_data")
        tensor.data_location = 1
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", location
        assert words in fails(capsys, "import", save(model, tmp_path))


def test_an_internal_error_is_reported_as_one(model: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(commands.driver, "import_tensor_module", broken)
    assert main(["import", str(model)]) == 2
    err = capsys.readouterr().err
    assert "internal error: KeyError" in err and "report it" in err and "Traceback" not in err
    monkeypatch.setenv("QFOLD_TRACEBACK", "1")
    assert main(["import", str(model)]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_overridable_initializers_are_inputs_with_a_default(tmp_path: Path):
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "c"], ["y"], "add")],
        "g",
        [helper.make_tensor_value_info(n, 1, [2]) for n in ("x", "c")],
        [helper.make_tensor_value_info("y", 1, [2])],
        [numpy_helper.from_array(np.array([1, 2], np.float32), "c")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    path = save(model, tmp_path)
    np.savez(tmp_path / "in.npz", x=np.array([10, 20], np.float32))
    argv = ["run", str(path), "--inputs", str(tmp_path / "in.npz"), "-o", str(tmp_path / "y.npz")]
    for flags in ([], ["--freeze-initializers"]):
        assert main([*argv, *flags]) == 0
        with np.load(tmp_path / "y.npz") as arrays:
            assert list(arrays["y"]) == [11, 22]
