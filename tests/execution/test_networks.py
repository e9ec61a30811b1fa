"""Whole networks, ONNX to executed C.

Each is verified as `qfold verify` does: every kernel call against float64 on the inputs that it had, outputs end to end, the
object code against the manifest. On top of that these tests say *which* kernels must have been emitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qfold.frontend import load_model
from qfold.tools.driver import Compilation, Options, compile_loaded
from qfold.tools.verify import Verification, verify
from tests.networks.builders import convnet, mlp, transformer
from tests.networks.weight_only import Scheme, quantize_weights

Array = npt.NDArray[Any]

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp-gemm": mlp,
    "mlp-matmul-one-row": lambda: mlp(batch=1, gemm=False),
    "convnet": convnet,
    "transformer": transformer,
}


def compiled(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array] | None = None,
    expected: Mapping[str, Array] | None = None,
    **options: Any,
) -> tuple[Compilation, Verification]:
    """Compile and verify on `inputs` (default: seeded normal ones)."""
    loaded = load_model(model.SerializeToString())
    compilation = compile_loaded(loaded, Options(**options))
    if inputs is None:
        rng = np.random.default_rng(0)
        inputs = {
            s.name: rng.standard_normal(s.shape).astype(np.float32) for s in compilation.inputs
        }
    return compilation, verify(compilation, loaded, inputs, expected)


def assert_ok(result: Verification) -> None:
    assert result.dispatches and result.outputs and result.audit
    bad = [r for r in (*result.outputs, *result.dispatches, *result.audit) if not r.ok]
    assert not bad, "\n".join(str(r) for r in bad)


def kernel_ops(compilation: Compilation) -> Counter[str]:
    """How many kernel calls compute which qkernel op."""
    bodies: dict[str, str] = {}
    for op in compilation.kernels.walk():
        if op.name.startswith("qkernel."):
            function = op.parent_op()
            assert function is not None
            bodies[function.sym_name.data] = op.name  # type: ignore[attr-defined]
    calls = [op for op in compilation.kernels.walk() if op.name == "func.call"]
    return Counter(
        bodies[c.callee.string_value()]  # type: ignore[attr-defined]
        for c in calls
        if c.callee.string_value() in bodies  # type: ignore[attr-defined]
    )


def fused_totals(compilation: Compilation) -> tuple[int, int]:
    """(dequantising matmuls, dequantising convolutions) among the kernel calls."""
    counts = kernel_ops(compilation)
    return counts["qkernel.dequant_matmul"], counts["qkernel.dequant_conv"]


@pytest.mark.parametrize("name", list(NETWORKS))
def test_float_networks(name: str) -> None:
    model = NETWORKS[name]()
    compilation, result = compiled(model)
    assert_ok(result)
    assert fused_totals(compilation) == (0, 0)


def test_outputs_agree_with_onnx_reference() -> None:
    """The float64 reference of `verify` is ours; this compares with one that is not."""
    model, _ = quantize_weights(
        transformer(), Scheme("axis", "int8", asymmetric=True, form="arith")
    )
    rng = np.random.default_rng(3)
    feeds = {"image": rng.standard_normal((1, 3, 16, 16)).astype(np.float32)}
    expected = ReferenceEvaluator(model).run(None, feeds)
    names = [o.name for o in model.graph.output]
    _, result = compiled(model, feeds, dict(zip(names, expected, strict=True)))
    assert_ok(result)
    assert all(o.golden is not None for o in result.outputs)


def test_unfused_keeps_a_float_copy_at_run_time_and_says_so() -> None:
    model, readers = quantize_weights(mlp(), Scheme("axis", "int8", asymmetric=True))
    compilation, result = compiled(model, fuse=False)
    assert_ok(result)
    assert fused_totals(compilation) == (0, 0)
    assert compilation.report["totals"]["run_time_dequantizations"] == readers


@pytest.mark.parametrize("hoist", [True, False])
def test_hoisting_moves_the_zero_point_out_of_the_loop(hoist: bool) -> None:
    model, readers = quantize_weights(mlp(), Scheme("tensor", "uint8", asymmetric=True))
    compilation, result = compiled(model, hoist=hoist)
    assert_ok(result)
    ops = [op for op in compilation.kernels.walk() if op.name == "qkernel.dequant_matmul"]
    assert ops and all((op.hoisted is not None) == hoist for op in ops)  # type: ignore[attr-defined]
    assert all((op.row_sum is not None) == hoist for op in ops)  # type: ignore[attr-defined]
    assert sum(fused_totals(compilation)) == readers


def test_minilm(minilm_path: Path) -> None:
    """The real int8 sentence encoder: 36 matmuls and both embeddings fused, no float copy of a weight."""
    loaded = load_model(minilm_path)
    compilation = compile_loaded(loaded, Options(dims={"batch": 1, "sequence": 16}))
    rng = np.random.default_rng(0)
    inputs = {
        "input_ids": rng.integers(0, 30522, (1, 16)),
        "attention_mask": np.array([[1] * 11 + [0] * 5]),
        "token_type_ids": np.array([[0] * 8 + [1] * 8]),
    }
    result = verify(compilation, loaded, inputs)
    assert_ok(result)
    totals = compilation.report["totals"]
    assert fused_totals(compilation) == (36, 0)
    assert totals["fused"] == {"matmul": 36, "conv": 0, "gather": 2}
    assert totals["float_copies_of_quantized_weights"] == totals["run_time_dequantizations"] == 0
