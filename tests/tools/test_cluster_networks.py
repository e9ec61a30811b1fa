"""Whole networks on eight cores of Spike: verified, and computed by the kernels that they should be, on all cores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from qfold.frontend import load_model
from qfold.tools.arrays import random_inputs
from qfold.tools.driver import Options, compile_loaded, import_tensor_module
from qfold.tools.verify import Verification, verify
from tests.networks.builders import convnet
from tests.networks.weight_only import Scheme, quantize_weights
from tests.tools.clusters import needs_spike


def verified(network: onnx.ModelProto, scheme: Scheme, target: str) -> Counter[str]:
    """How many calls each row of the kernel table serves, once all that can be checked has been."""
    model, readers = quantize_weights(network, scheme)
    assert readers
    source = load_model(model.SerializeToString())
    compilation = compile_loaded(source, Options(target=target))
    inputs = random_inputs(import_tensor_module(source, compilation.options), 0)
    result = verify(compilation, source, inputs)
    assert_verified(result)
    report = compilation.report
    assert report["totals"]["run_time_dequantizations"] == 0
    calls: Counter[str] = Counter()
    for kernel in report["kernels"]:
        calls[kernel["kernel"]] += kernel["calls"]
        if math.prod(kernel["split"]) == 1:
            # Nothing is left to one core but the reduction of one row.
            assert kernel["kernel"] in ("riscv.row_sum", "c.loops") and kernel["macs"] == 0
            assert kernel["iterations"] <= 4096
    return calls


def assert_verified(result: Verification) -> None:
    bad = [r for r in (*result.outputs, *result.dispatches, *result.audit) if not r.ok]
    assert not bad, "\n".join(map(str, bad))
    assert result.work is not None
    checks = [a.check for a in result.audit]
    assert "kernels loaded every weight as what it is, by the simulator's counters" in checks
    for row in result.work.rows:
        assert len(row.per_core) == 8 and all(row.per_core)
    used = zip(result.work.stack_used, result.work.stack_bytes, strict=True)
    assert all(0 < bytes_ < size for bytes_, size in used)


def test_convolutions():
    needs_spike()
    calls = verified(convnet(), Scheme("axis", asymmetric=True), "spike")
    assert calls["c.dequant_conv"] >= 3 and calls["riscv.dequant_matmul"]


@pytest.mark.parametrize(
    ("name", "scheme", "target"),
    [
        ("CCT_1_16_16_8", Scheme("axis", asymmetric=True), "spike"),
        ("TinyViT_Demo", Scheme("tensor"), "spike:isa=f"),
    ],
    ids=["CCT_1_16_16_8", "TinyViT_Demo"],
)
def test_golden_networks(
    golden_model: Callable[[str], Path], name: str, scheme: Scheme, target: str
):
    needs_spike()
    calls = verified(onnx.load(golden_model(name) / "network.onnx"), scheme, target)
    for kernel in ("riscv.pack", "riscv.packed_matmul", "riscv.dequant_matmul", "c.dequant_conv"):
        assert calls[kernel], calls
    # A matmul runs as C only where it works in L2: products of many small matrices.
    assert "c.dequant_matmul" not in calls
