"""Networks that take and give integers, and channels last: the same numbers as with floats, the header, the commands."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from qfold.backend.run import build_module
from qfold.dialects.element_types import ui8
from qfold.tools.arrays import TensorSpec
from qfold.tools.driver import Compilation, Options, compile_model, project_files
from qfold.tools.qfold import main
from qfold.tools.report_schema import problems_of
from tests.frontend.helpers import Array, build, node
from tests.networks.onnxruntime_quantizer import NETWORKS, Static
from tests.runtime.compiling import INCLUDE, STRICT, compiler
from tests.tools.models import save

F32 = np.float32
FAST = ("-O1",)


def weights(*shape: int) -> Array:
    return np.random.default_rng(3).integers(-128, 128, shape).astype(np.int8)


def run(compilation: Compilation, inputs: dict[str, Array]) -> dict[str, Array]:
    with closing(build_module(compilation.kernels, extra_cflags=FAST)) as executable:
        return executable.run(inputs)


def compiled(model: ModelProto, **options: Any) -> Compilation:
    return compile_model(model.SerializeToString(), Options(**options))


def integers(spec: TensorSpec, reals: Array) -> Array:
    """By the contract, in numpy: divided and rounded in f32, halves to even, zero point and clamp as integers."""
    assert spec.quant is not None
    info = np.iinfo(spec.dtype)
    with np.errstate(all="ignore"):
        steps = np.rint(np.asarray(reals, F32) / F32(spec.quant.scales)).astype(np.float64)
    steps = np.where(np.isnan(steps), 0, steps) + int(spec.quant.zero_points)
    return np.clip(steps, info.min, info.max).astype(spec.dtype)


def reals(spec: TensorSpec, quantized: Array) -> Array:
    assert spec.quant is not None
    steps = quantized.astype(np.int32) - int(spec.quant.zero_points)
    return F32(spec.quant.scales) * steps.astype(F32)


def check_against_float_build(
    model: ModelProto, inputs: dict[str, Array], **options: Any
) -> tuple[Compilation, Compilation]:
    """Builds with floats and with integers at the borders give the same integers, bit for bit."""
    around, bare = compiled(model), compiled(model, quantized_io=True, **options)
    want = run(around, inputs)
    given = {
        s.name: integers(s, inputs[s.name]) if s.quant else inputs[s.name] for s in bare.inputs
    }
    given = {
        s.name: np.ascontiguousarray(np.moveaxis(given[s.name], 1, -1))
        if s.layout
        else given[s.name]
        for s in bare.inputs
    }
    got = run(bare, given)
    for spec in bare.outputs:
        result = got[spec.name]
        assert result.dtype == spec.dtype
        if spec.quant is None:
            np.testing.assert_array_equal(result, want[spec.name])
        else:
            assert result.dtype.kind in "iu"
            np.testing.assert_array_equal(reals(spec, result), want[spec.name], err_msg=spec.name)
            np.testing.assert_array_equal(result, integers(spec, want[spec.name]))
    return around, bare


def special(*shape: int, scale: float) -> Array:
    """Reals with ties in both directions, both saturations, infinities and a NaN among them."""
    x = np.random.default_rng(5).uniform(-300 * scale, 300 * scale, shape).astype(F32)
    hard = [0.5, 1.5, -0.5, -1.5, 2.5, 127.5, 128.5, -128.5, 1e9, -1e9, np.inf, -np.inf, np.nan]
    flat = x.reshape(-1)
    count = min(len(hard), flat.size)
    flat[:count] = np.array(hard[:count], F32) * F32(scale)
    return x


def qdq(x: str, to: str, parameters: str) -> list[Any]:
    """Quantize and dequantize: `<to>_q`, `<to>`."""
    return [
        node("QuantizeLinear", [x, f"{parameters}s", f"{parameters}z"], [f"{to}_q"], f"q_{to}"),
        node("DequantizeLinear", [f"{to}_q", f"{parameters}s", f"{parameters}z"], [to], f"d_{to}"),
    ]


def branching(dtype: Any, zeros: tuple[int, int, int]) -> ModelProto:
    """Two inputs, one behind a transpose and straight to an output; a matmul whose result is an output and is read inside."""
    constants: dict[str, Any] = {"w": weights(5, 4)}
    constants |= {"ws": F32(0.02), "v": weights(4, 3)}
    for name, scale, zero in zip("abc", (0.0625, 0.5, 0.3), zeros, strict=True):
        constants |= {f"{name}s": F32(scale), f"{name}z": np.asarray(zero, dtype)}
    nodes = [
        *qdq("x", "xr", "a"),
        node("Transpose", ["t"], ["u"], "turn", perm=[1, 0]),
        *qdq("u", "ur", "b"),
        node("DequantizeLinear", ["w", "ws"], ["wr"], "dw"),
        node("DequantizeLinear", ["v", "ws"], ["vr"], "dv"),
        node("MatMul", ["xr", "wr"], ["m"], "first"),
        node("Add", ["m", "ur"], ["sum"], "residual"),
        *qdq("sum", "y", "c"),
        node("MatMul", ["y", "vr"], ["z"], "second"),
        node("Softmax", ["z"], ["p"], "softmax"),
        node("Flatten", ["ur"], ["same"], "flat", axis=0),
    ]
    return build(nodes, {"x": (F32, (3, 5)), "t": (F32, (4, 3))}, ["y", "p", "same"], constants)


@pytest.mark.parametrize(
    ("dtype", "zeros"),
    [
        (np.int8, (-128, 127, 0)),
        (np.int8, (127, 3, -128)),
        (np.uint8, (0, 255, 128)),
        (np.uint8, (255, 128, 0)),
    ],
)
def test_inputs_and_outputs_of_every_kind(dtype: Any, zeros: tuple[int, int, int]) -> None:
    model = branching(dtype, zeros)
    inputs = {"x": special(3, 5, scale=0.0625), "t": special(4, 3, scale=0.5)}
    around, bare = check_against_float_build(model, inputs)
    assert [s.dtype for s in (*bare.inputs, *bare.outputs)] == [dtype, dtype, dtype, F32, dtype]
    assert bare.outputs[1].note == "it is computed as a float, by 'softmax'"
    assert [s.quant for s in around.inputs] == [None, None]
    found = [s.quant for s in (*bare.inputs, bare.outputs[0], bare.outputs[2])]
    expected = [(0.0625, zeros[0]), (0.5, zeros[1]), (F32(0.3), zeros[2]), (0.5, zeros[1])]
    assert [(float(q.scales), int(q.zero_points)) for q in found if q] == expected
    # Nothing is left of the two quantises and of what made floats of the integers that go out.
    before, after = around.report["totals"], bare.report["totals"]
    assert after["dispatches"] < before["dispatches"]
    operands = [o["type"] for d in bare.report["dispatches"] for o in d["operands"]]
    assert not any("3x5xf32" in t for t in operands)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("convnet", Static("QDQ", "s8s8", True)),
        ("convnet", Static("QOperator", "u8s8", False)),
        ("mlp", Static("QOperator", "s8s8", False)),
        ("attention", Static("QDQ", "u8s8", True)),
    ],
    ids=str,
)
def test_networks_of_onnxruntimes_quantizer(name: str, method: Static) -> None:
    network = NETWORKS[name]
    (x,) = network.inputs.values()
    x = x.copy()
    x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
    _, bare = check_against_float_build(method.apply(network), {"x": x})
    dtype = np.int8 if method.types == "s8s8" else np.uint8
    assert (bare.inputs[0].dtype, bare.outputs[0].dtype) == (dtype, dtype)
    assert not any("QuantizeLinear" in d["symbol"] for d in bare.report["dispatches"])


def fake_quantized(zero: int) -> ModelProto:
    constants: dict[str, Any] = {"s": F32(0.25), "low": F32(0), "high": F32(255)}
    constants |= {"z": F32(zero), "w": F32(weights(4, 2))}
    nodes = [
        node("Div", ["x", "s"], ["d"], "div"),
        node("Add", ["d", "z"], ["a"], "add"),
        node("Round", ["a"], ["r"], "round"),
        node("Clip", ["r", "low", "high"], ["c"], "clip"),
        node("Sub", ["c", "z"], ["e"], "sub"),
        node("Mul", ["e", "s"], ["f"], "mul"),
        node("MatMul", ["f", "w"], ["y"], "matmul"),
    ]
    return build(nodes, {"x": (F32, (3, 4))}, ["y"], constants)


def qonnx() -> ModelProto:
    constants: dict[str, Any] = {"s": F32(0.5), "z": F32(0), "b": F32(8)}
    nodes = [
        node(
            "Quant",
            ["x", "s", "z", "b"],
            ["q"],
            "quant",
            domain="qonnx.custom_op.general",
            signed=1,
        ),
        node("Relu", ["q"], ["y"], "relu"),
    ]
    model = build(nodes, {"x": (F32, (3, 4))}, ["y"], constants)
    model.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    return model


@pytest.mark.parametrize(
    ("model", "dtype", "scale"),
    [
        (fake_quantized(128), np.uint8, 0.25),
        (fake_quantized(0), np.uint8, 0.25),
        (qonnx(), np.int8, 0.5),
    ],
    ids=["decomposed", "decomposed, zero point 0", "qonnx"],
)
def test_other_forms_of_a_quantised_input(model: ModelProto, dtype: Any, scale: float) -> None:
    x = special(3, 4, scale=scale)
    x[~np.isfinite(x)] = 1
    _, bare = check_against_float_build(model, {"x": x})
    assert bare.inputs[0].dtype == dtype
    assert bare.inputs[0].quant is not None and float(bare.inputs[0].quant.scales) == scale


def convolution(shape: tuple[int, ...], *, first: str = "Conv") -> ModelProto:
    """x, quantised; a convolution (or something elementwise before it); quantised again."""
    spatial = [3] * (len(shape) - 2)
    channels = shape[1]
    constants: dict[str, Any] = {"w": weights(4, channels, *spatial)}
    constants |= {"ws": F32(0.01), "bs": F32(0.5), "bz": np.int8(-7)}
    constants |= {"as": F32(0.1), "az": np.int8(5)}
    nodes = [
        *qdq("x", "xr", "a"),
        node("DequantizeLinear", ["w", "ws"], ["wr"], "dw"),
        node(
            first,
            ["xr", "wr"] if first == "Conv" else ["xr"],
            ["c"],
            "op",
            **({"pads": [1, 0] * len(spatial)} if first == "Conv" else {}),
        ),
        *qdq("c", "y", "b"),
    ]
    return build(nodes, {"x": (F32, shape)}, ["y"], constants)


@pytest.mark.parametrize("shape", [(1, 3, 7, 5), (2, 1, 4, 9), (2, 3, 6)], ids=str)
def test_channels_last_into_a_convolution_is_no_pass_of_its_own(shape: tuple[int, ...]) -> None:
    model = convolution(shape)
    _, bare = check_against_float_build(
        model, {"x": special(*shape, scale=0.1)}, input_layouts={"": "nhwc"}
    )
    (spec,) = bare.inputs
    assert spec.shape == (shape[0], *shape[2:], shape[1])
    assert spec.layout == ("NLC" if len(shape) == 3 else "NHWC")
    # One dispatch: the convolution itself, which reads the input through strides.
    (dispatch,) = bare.report["dispatches"]
    assert dispatch["op"] == "qkernel.quant_conv"


def test_channels_last_into_something_elementwise_is_an_access_map() -> None:
    shape = (2, 3, 4, 5)
    model = convolution(shape, first="Sigmoid")
    x = special(*shape, scale=0.1)
    _, bare = check_against_float_build(model, {"x": x}, input_layouts={"x": "nhwc"})
    (dispatch,) = bare.report["dispatches"]
    assert dispatch["op"] == "linalg.generic"
    # With floats outside, the quantise itself reads the other order.
    floats = compiled(convolution(shape), input_layouts={"x": "nhwc"})
    assert floats.report["dispatches"][0]["op"] == "linalg.generic"
    assert not any(d["symbol"].startswith("copy") for d in floats.report["dispatches"])


def test_channels_last_of_floats() -> None:
    shape = (2, 3, 4, 5)
    model = convolution(shape)
    x = special(*shape, scale=0.1)
    want = run(compiled(model), {"x": x})
    last = compiled(model, input_layouts={"x": "nhwc"})
    got = run(last, {"x": np.ascontiguousarray(np.moveaxis(x, 1, -1))})
    np.testing.assert_array_equal(got["y"], want["y"])
    assert not any(d["symbol"].startswith("copy") for d in last.report["dispatches"])


def test_on_a_cluster() -> None:
    """Tiled and copied by DMA, from integers with channels last."""
    model = convolution((2, 3, 9, 7))
    x = special(2, 3, 9, 7, scale=0.1)
    want = run(compiled(model), {"x": x})["y"]
    bare = compiled(model, quantized_io=True, input_layouts={"x": "nhwc"}, target="threads")
    given = np.ascontiguousarray(np.moveaxis(integers(bare.inputs[0], x), 1, -1))
    got = run(bare, {"x": given})["y"]
    np.testing.assert_array_equal(reals(bare.outputs[0], got), want)


# The header

_PROGRAM = r"""
#include "network.h"
#include <stdio.h>
int main(void) {
    static const float reals[] = {REALS};
    unsigned i;
    printf("%.9g %d %.9g %d\n", (double)NET_INPUT_x_SCALE, NET_INPUT_x_ZERO_POINT, (double)NET_IN_1_SCALE, NET_IN_1_ZERO_POINT);
    printf("%.9g %d %s %s\n", (double)NET_OUTPUT_y_SCALE, NET_OUT_0_ZERO_POINT, NET_IN_0_LAYOUT, NET_OUT_0_LAYOUT);
    for (i = 0; i < sizeof reals / sizeof reals[0]; ++i) {
        const NET_IN_0_TYPE q = net_quantize_x(reals[i]);
        const NET_OUT_0_TYPE r = (NET_OUT_0_TYPE)q;
        printf("%d %.9g\n", (int)q, (double)net_dequantize_y(r));
    }
    return 0;
}
"""


@pytest.mark.parametrize(
    ("language", "zeros"), [("c", (-128, 3, 127)), ("c", (127, 0, -128)), ("c++", (-1, 0, 5))]
)
def test_macros_and_conversions_of_the_header(
    language: str, zeros: tuple[int, int, int], tmp_path: Path
) -> None:
    command = [*compiler(), *STRICT]
    if language == "c++":
        cxx = shutil.which("c++") or shutil.which("g++")
        if cxx is None:
            pytest.skip("no C++ compiler")
        command = [cxx, "-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-x", "c++"]
    compilation = compiled(branching(np.int8, zeros), quantized_io=True)
    (tmp_path / "network.h").write_bytes(project_files(compilation)["network.h"])
    values = special(400, scale=0.0625)
    values = np.concatenate([values, (np.arange(-600, 600) * F32(0.03125)).astype(F32)])
    written = [
        "(0.0f / 0.0f)"
        if np.isnan(v)
        else "1e39f"
        if v == np.inf
        else "-1e39f"
        if v == -np.inf
        else f"{v:.9e}f"
        for v in values
    ]
    written = [w.replace("1e39f", "(float)(1e300 * 1e300)") for w in written]
    (tmp_path / "use.c").write_text(_PROGRAM.replace("REALS", ", ".join(written)))
    command += [INCLUDE, "use.c", "-o", "use"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    done = subprocess.run([tmp_path / "use"], check=True, capture_output=True, text=True)
    first, second, *rows = done.stdout.splitlines()
    scale_y = F32(0.3)
    assert first == f"0.0625 {zeros[0]} 0.5 {zeros[1]}"
    assert second.split(maxsplit=2)[1:] == [str(zeros[2]), "row-major row-major"]
    assert F32(second.split()[0]) == scale_y
    x, y = compilation.inputs[0], compilation.outputs[0]
    expected = integers(x, values)
    assert [int(r.split()[0]) for r in rows] == expected.tolist()
    got = np.array([F32(r.split()[1]) for r in rows])
    np.testing.assert_array_equal(got, reals(y, expected))


def test_a_header_says_layouts_and_what_integers_mean() -> None:
    bare = compiled(convolution((1, 3, 4, 4)), quantized_io=True, input_layouts={"": "nhwc"})
    header = project_files(bare)["network.h"].decode()
    assert "const int8_t *x; /* [1, 4, 4, 3] NHWC, 0.1f * (x - 5) */" in header
    assert "int8_t *y;" in header and "0.5f * (y - (-7))" in header
    assert '#define NET_IN_0_LAYOUT "row-major, NHWC"' in header
    plain = project_files(compiled(convolution((1, 3, 4, 4))))["network.h"].decode()
    assert "SCALE" not in plain and "net_quantize" not in plain


# What stays a float


def mixed() -> ModelProto:
    """x read as a float too, y quantised in two ways, and a plain float output."""
    constants: dict[str, Any] = {
        "as": F32(0.5),
        "az": np.int8(0),
        "bs": F32(0.25),
        "bz": np.int8(0),
    }
    nodes = [
        *qdq("x", "xr", "a"),
        node("Exp", ["x"], ["e"], "exp"),
        *qdq("y", "yr", "a"),
        *qdq("y", "yr2", "b"),
        node("Sum", ["xr", "e", "yr", "yr2"], ["z"], "sum"),
    ]
    return build(nodes, {"x": (F32, (2, 3)), "y": (F32, (2, 3))}, ["z"], constants)


def test_what_cannot_be_integers_stays_and_says_why(tmp_path: Path, capsys: Any) -> None:
    path = save(mixed(), tmp_path)
    assert main(["compile", str(path), "-o", str(tmp_path / "out"), "--io", "quantized"]) == 0
    remarks = " ".join(capsys.readouterr().err.split())
    notes = [
        "it is read by 'exp' as a float, besides being quantised by 'q_xr'",
        "'q_yr' and 'q_yr2' quantise it differently",
        "it is computed as a float, by 'sum'",
    ]
    for what, note in zip(("input 'x'", "input 'y'", "output 'z'"), notes, strict=True):
        assert f"note: {what} stays f32: {note}" in remarks
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert problems_of(report) == []
    assert [e["note"] for e in (*report["inputs"], *report["outputs"])] == notes
    assert {e["element_type"] for e in (*report["inputs"], *report["outputs"])} == {"f32"}
    assert report["options"]["quantized_io"] is True
    assert main(["report", str(tmp_path / "out")]) == 0
    assert f"output z: f32 [2, 3]; {notes[2]}" in capsys.readouterr().out
    # Nobody asked: nothing to say.
    assert main(["compile", str(path), "-o", str(tmp_path / "out"), "-q"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {e["note"] for e in (*report["inputs"], *report["outputs"])} == {None}
    assert capsys.readouterr().err == ""


# The commands


def test_run_and_verify_take_reals_and_integers(tmp_path: Path, capsys: Any) -> None:
    model = convolution((1, 3, 5, 4))
    path = save(model, tmp_path)
    x = special(1, 3, 5, 4, scale=0.1)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    options = ["--io", "quantized", "--input-layout", "x=nhwc"]
    bare = compiled(model, quantized_io=True, input_layouts={"x": "nhwc"})
    np.savez(tmp_path / "reals.npz", x=last)
    np.savez(tmp_path / "integers.npz", x=integers(bare.inputs[0], last))
    want = run(compiled(model), {"x": x})["y"]
    out = tmp_path / "out"
    assert main(["compile", str(path), "-o", str(out), "-q", *options]) == 0
    for source in (path, out):
        for kind in ("reals", "integers"):
            given = [str(source), "--inputs", str(tmp_path / f"{kind}.npz"), "-q"]
            given += options if source == path else []
            assert main(["run", *given, "-o", str(tmp_path / "got.npz")]) == 0
            got = np.load(tmp_path / "got.npz")["y"]
            assert got.dtype == np.int8
            np.testing.assert_array_equal(reals(bare.outputs[0], got), want)
    # Goldens: what the float build gives, as reals, and as integers.
    np.savez(tmp_path / "golden.npz", y=want)
    np.savez(tmp_path / "golden8.npz", y=integers(bare.outputs[0], want))
    given = ["verify", str(path), "--inputs", str(tmp_path / "reals.npz"), *options]
    for golden in ("golden", "golden8"):
        assert main([*given, "--expect", str(tmp_path / f"{golden}.npz")]) == 0, golden
    wrong = want.copy()
    wrong.flat[int(np.abs(want).argmin())] += F32(40 * 0.5)
    np.savez(tmp_path / "wrong.npz", y=wrong)
    assert main([*given, "--expect", str(tmp_path / "wrong.npz")]) == 1
    capsys.readouterr()
    assert main(["report", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "input x: i8 [1, 5, 4, 3] NHWC, scale 0.100000001, zero point 5" in shown
    # A compiled network is what it was compiled as.
    assert main(["run", str(out), "--inputs", str(tmp_path / "reals.npz"), *options]) == 2
    assert "--io, --input-layout cannot change" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("nwhc", "given as nhwc, nchw or NAME=nhwc"),
        ("z=nhwc", "'z', which is no input; inputs are x"),
        ("=nhwc", "given as nhwc"),
    ],
)
def test_layouts_that_make_no_sense(layout: str, message: str, tmp_path: Path, capsys: Any) -> None:
    path = save(convolution((1, 3, 5, 4)), tmp_path)
    assert main(["import", str(path), "--input-layout", layout]) == 2
    assert message in capsys.readouterr().err


def test_a_layout_needs_enough_dimensions(tmp_path: Path, capsys: Any) -> None:
    path = save(mixed(), tmp_path)
    assert main(["import", str(path), "--input-layout", "nhwc"]) == 2
    assert "no input can be NHWC or NLC" in capsys.readouterr().err
    assert main(["import", str(path), "--input-layout", "x=nhwc"]) == 2
    assert "input 'x' has 2 dimensions" in capsys.readouterr().err
    assert main(["import", str(path), "--input-layout", "nchw", "-q"]) == 0


def test_all_inputs_but_one() -> None:
    nodes = [node("Concat", ["x", "y"], ["z"], "concat", axis=1)]
    shapes = {"x": (F32, (1, 2, 3, 4)), "y": (F32, (1, 1, 3, 4))}
    model = build(nodes, shapes, ["z"])
    last = compiled(model, input_layouts={"": "nhwc", "y": "nchw"})
    assert [s.shape for s in last.inputs] == [(1, 3, 4, 2), (1, 1, 3, 4)]
    x, y = (F32(weights(*s)) for _, s in shapes.values())
    got = run(last, {"x": np.ascontiguousarray(np.moveaxis(x, 1, -1)), "y": y})["z"]
    np.testing.assert_array_equal(got, np.concatenate([x, y], 1))


def test_default_values_of_inputs_are_quantised_too() -> None:
    """An initializer that is also an input is what it was, in the integers and the layout of the input."""
    model = convolution((1, 2, 3, 3))
    x = special(1, 2, 3, 3, scale=0.1)
    model.graph.initializer.append(numpy_helper.from_array(x, "x"))
    bare = compiled(model, quantized_io=True, input_layouts={"": "nhwc"})
    (spec,) = [s for s in bare.inputs if s.name == "x"]
    np.testing.assert_array_equal(bare.defaults["x"], np.moveaxis(integers(spec, x), 1, -1))


def test_keyword_spotting_from_bytes_to_bytes(golden_model: Callable[[str], Path]) -> None:
    """A network that holds integers in floats: its inputs by declaration, its outputs by what they were before."""
    folder = golden_model("MLPerf_KeywordSpotting")
    bare = compile_model(
        folder / "network.onnx",
        Options(quantized_io=True, input_types={"input": ui8}, input_layouts={"": "nhwc"}),
    )
    (x,), (y,) = (list(np.load(folder / f"{n}.npz").values()) for n in ("inputs", "outputs"))
    got = run(bare, {"input": np.ascontiguousarray(np.moveaxis(x, 1, -1).astype(np.uint8))})
    assert got["output"].dtype == np.int8
    np.testing.assert_array_equal(got["output"], y)
    assert not any("xf32" in o["type"] for d in bare.report["dispatches"] for o in d["operands"])
