"""Weights that are inserted to floats: chosen by the target's option only, and the bounds say what it costs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from qfold.frontend.module import import_model
from qfold.interpreters import run
from qfold.interpreters.values import Bounded
from qfold.targets import target_named
from qfold.tools.amplification import largest_hoisting_factor
from qfold.transforms.pipelines import compile_pipeline, run_passes, tensor_pipeline
from tests.networks.builders import mlp
from tests.networks.weight_only import Scheme, quantize_weights
from tests.transforms_buffer.cluster import kernels

SCHEMES = [Scheme("tensor"), Scheme("axis", "uint8", asymmetric=True), Scheme("axis")]


def compiled(scheme: Scheme, rows: int, target: str) -> tuple[ModuleOp, ModuleOp]:
    """(on tensors, as planned kernels)."""
    model, _ = quantize_weights(mlp(rows, (20, 33, 17)), scheme)
    tensors = import_model(model.SerializeToString(), {})
    planned = tensors.clone()
    run_passes(Context(), planned, compile_pipeline(target))
    return tensors, planned


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_inserted_and_exact_networks_agree(scheme: Scheme) -> None:
    """The same values in float64; for one row, every bound is wider and the kernel is another one."""
    x = np.random.default_rng(1).standard_normal((1, 20)).astype(np.float32)
    bounds: list[Bounded] = []
    for target, kernel in (
        ("spike", "riscv.dequant_matmul"),
        ("spike:inserti=1", "riscv.dequant_matmul_inserti"),
    ):
        tensors, planned = compiled(scheme, 1, target)
        used = Counter(kernels(planned).values())
        assert used[kernel] == 2
        assert sum(n for k, n in used.items() if k.startswith("riscv.dequant")) == 2
        (expected,) = run(tensors, [x], domain="f64")
        (found,) = run(planned, [x], domain="bounded")
        assert isinstance(found, Bounded)
        np.testing.assert_allclose(found.value, np.asarray(expected), rtol=1e-12, atol=1e-12)
        bounds.append(found)
    assert (bounds[1].bound > 1.5 * bounds[0].bound).all()


def test_several_rows_stay_exact() -> None:
    _, planned = compiled(SCHEMES[0], 3, "spike:inserti=1")
    used = Counter(kernels(planned).values())
    assert used["riscv.dequant_matmul"] == 2
    assert used["riscv.dequant_matmul_inserti"] == 0


def test_weights_are_stored_once_and_as_bytes() -> None:
    _, planned = compiled(SCHEMES[2], 1, "spike:inserti=1")
    weights = [str(op.properties["type"]) for op in planned.walk() if op.name == "memref.global"]
    assert sum("ui8" in w and ("660x" in w or "561x" in w) for w in weights) == 2
    assert not any("xi8" in w and ("660x" in w or "561x" in w) for w in weights)


def test_amplification_counts_the_bias() -> None:
    factors: list[float] = []
    for target in ("spike", "spike:inserti=1"):
        model, _ = quantize_weights(mlp(1, (20, 33, 17)), SCHEMES[0])
        module = import_model(model.SerializeToString(), {})
        run_passes(Context(), module, tensor_pipeline(target))
        assert any(isinstance(op, func.FuncOp) for op in module.ops)
        factors.append(largest_hoisting_factor(module))
    assert factors[0] == 1
    assert factors[1] > 5


def test_option() -> None:
    assert (
        target_named("spike:inserti=1").kernels_of("qkernel.dequant_matmul")[0].weight_bias == 260
    )
    assert not target_named("spike:inserti=0").inserts_weights
    with pytest.raises(ValueError, match="inserti=1 needs floats in integer registers: isa=zfinx"):
        target_named("spike:isa=f,inserti=1")
    with pytest.raises(ValueError, match="inserti is 0 or 1, got '2'"):
        target_named("spike:inserti=2")
    with pytest.raises(ValueError, match="no option 'inserti'"):
        target_named("threads:inserti=1")
