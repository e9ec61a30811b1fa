"""Whole networks, verified: golden ones, weight-only versions of them, and those that tests/networks builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from qfold.frontend import load_model
from qfold.tools.arrays import load_npz, match_arrays, random_inputs
from qfold.tools.driver import Compilation, Options, compile_loaded, import_tensor_module
from qfold.tools.verify import Verification, verify
from tests.networks.builders import convnet, mlp, transformer
from tests.networks.weight_only import Scheme, quantize_weights

GOLDEN = [
    "kernel_FP32_MatMul",
    "kernel_FP32_GEMM_TransB",
    "kernel_FP32_Conv_Regular_2D_Bias",
    "kernel_FP32_LayerNorm",
    "kernel_Mixed_Dequant",
    "kernel_Mixed_Quant",
    "Transformer_DeepQuant",
    "CCT_1_16_16_8",
    "CCT_2_32_32_128",
    "TinyViT_Demo",
]

SCHEMES = [
    Scheme("tensor", "int8"),
    Scheme("tensor", "uint8", asymmetric=True, form="deeploy"),
    Scheme("axis", "int8", asymmetric=True),
    Scheme("axis", "uint8", asymmetric=True, form="arith"),
    Scheme("block", "int8", asymmetric=True, block_size=16),
    Scheme("axis", "uint4", asymmetric=True),
    Scheme("block", "int4", block_size=32),
]


def explain(result: Verification) -> str:
    failed = [*result.outputs, *result.dispatches, *result.audit]
    return "\n".join(str(r) for r in failed if not r.ok)


def all_fused(compilation: Compilation, readers: int) -> None:
    """Every weight that was quantised is read as integers, and nowhere as floats."""
    totals = compilation.report["totals"]
    assert sum(totals["fused"].values()) == readers
    assert totals["not_fused"] == 0
    assert totals["float_copies_of_quantized_weights"] == totals["run_time_dequantizations"] == 0
    fused = [d for d in compilation.report["dispatches"] if d["op"].startswith("qkernel.dequant_")]
    assert len(fused) == readers
    assert all(d["kernel"] == d["op"].replace("qkernel.", "c.") for d in fused)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_networks(golden_model: Callable[[str], Path], name: str):
    folder = golden_model(name)
    model = load_model(folder / "network.onnx")
    compilation = compile_loaded(model, Options())
    inputs = match_arrays(
        load_npz(folder / "inputs.npz"),
        compilation.inputs,
        "inputs.npz",
        defaults=compilation.defaults,
    )
    expected = match_arrays(
        load_npz(folder / "outputs.npz"), compilation.outputs, "outputs.npz", by_position=True
    )
    result = verify(compilation, model, inputs, expected)
    assert result.ok, explain(result)
    assert all(o.golden is not None for o in result.outputs)


def check_weight_only(source: onnx.ModelProto, scheme: Scheme) -> None:
    quantised, readers = quantize_weights(source, scheme)
    assert readers > 0
    model = load_model(quantised.SerializeToString())
    compilation = compile_loaded(model, Options())
    all_fused(compilation, readers)
    inputs = random_inputs(import_tensor_module(model, Options()), seed=3)
    result = verify(compilation, model, inputs)
    assert result.ok, explain(result)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_weight_only_golden_networks(golden_model: Callable[[str], Path], scheme: Scheme):
    check_weight_only(onnx.load(golden_model("CCT_1_16_16_8") / "network.onnx"), scheme)


@pytest.mark.parametrize("name", ["CCT_2_32_32_128", "TinyViT_Demo"])
@pytest.mark.parametrize("scheme", [SCHEMES[2], SCHEMES[6]], ids=str)
def test_weight_only_larger_networks(
    golden_model: Callable[[str], Path], name: str, scheme: Scheme
):
    check_weight_only(onnx.load(golden_model(name) / "network.onnx"), scheme)


@pytest.mark.parametrize("network", [mlp, convnet])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_weight_only_built_networks(network: Callable[[], onnx.ModelProto], scheme: Scheme):
    check_weight_only(network(), scheme)


@pytest.mark.parametrize("scheme", [SCHEMES[3], SCHEMES[4]], ids=str)
def test_weight_only_transformer(scheme: Scheme):
    check_weight_only(transformer(), scheme)
