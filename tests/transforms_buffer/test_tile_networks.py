"""Whole networks as staged dispatches, in the interpreter: the same values as on tensors, and what became of each op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from qfold.dialects import pulp
from qfold.frontend.module import import_model
from qfold.interpreters import run
from qfold.ir.locations import node_names
from qfold.transforms.pipelines import compile_pipeline, run_passes
from tests.networks.builders import convnet, mlp, transformer
from tests.networks.weight_only import Scheme, quantize_weights
from tests.transforms_buffer.cluster import Counts, all_ops, kernels

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": mlp,
    "mlp-one-row": lambda: mlp(batch=1, gemm=False),
    "convnet": lambda: convnet(size=15, channels=12),
    "transformer": transformer,
}
SCHEMES = {
    "tensor": Scheme("tensor"),
    "axis": Scheme("axis", asymmetric=True),
    "block4": Scheme("block", "int4", asymmetric=True),
}


def compiled(model: onnx.ModelProto, target: str) -> tuple[ModuleOp, ModuleOp]:
    """(on tensors, as planned kernels)."""
    tensors = import_model(model.SerializeToString(), {})
    planned = tensors.clone()
    run_passes(Context(), planned, compile_pipeline(target))
    return tensors, planned


SMALL = "threads:l1=20480,cores=5"


@pytest.mark.parametrize(
    ("network", "scheme", "target"),
    [
        ("mlp", "axis", "spike"),
        ("mlp", "block4", SMALL),
        ("mlp-one-row", "axis", SMALL),
        ("mlp-one-row", "block4", "spike"),
        ("convnet", "tensor", SMALL),
        ("convnet", "axis", "spike"),
        ("transformer", "tensor", "spike"),
        ("transformer", "axis", SMALL),
        ("transformer", "block4", "spike"),
    ],
)
def test_networks(network: str, scheme: str, target: str):
    model, _ = quantize_weights(NETWORKS[network](), SCHEMES[scheme])
    tensors, planned = compiled(model, target)
    rng = np.random.default_rng(0)
    shapes = [t.get_shape() for t in _main(tensors).function_type.inputs]  # type: ignore[attr-defined]
    inputs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    expected = run(tensors, inputs)
    counts = Counts()
    found = run(planned, inputs, listeners=[counts])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=3e-4, atol=3e-5)
    assert counts.ops["pulp.dma_start"] == counts.ops["pulp.dma_wait"] > 0
    for op in (*all_ops(planned, pulp.DmaStartOp), *all_ops(planned, func.CallOp)):
        assert node_names(op), f"{op} comes from no ONNX node"
    used = Counter(kernels(planned).values())
    assert used["c.matmul"] == 0
    family = "riscv" if target == "spike" else "c"
    if network == "transformer":
        # Attention and every layer; int4 weights are unpacked by C.
        assert used[f"{family}.packed_matmul"] >= 5
        assert used["c.pack" if scheme == "block4" else f"{family}.pack"] >= 3
    if network == "mlp-one-row" and scheme != "block4":
        assert used[f"{family}.dequant_matmul"] == 3 and used["c.pack"] == used["riscv.pack"] == 0
    if network == "convnet":
        assert used["c.dequant_conv"] >= 3


def _main(module: ModuleOp) -> func.FuncOp:
    (found,) = (f for f in module.ops if isinstance(f, func.FuncOp) and f.sym_name.data == "main")
    return found


def test_zero_points_are_hoisted_where_weights_are_not_packed():
    for network, hoisted in (("mlp-one-row", True), ("transformer", False)):
        model, _ = quantize_weights(NETWORKS[network](), Scheme(asymmetric=True))
        _, planned = compiled(model, "spike")
        sums = [k for k in kernels(planned).values() if k == "riscv.row_sum"]
        if hoisted:
            assert len(sums) == 3
        else:
            assert len(sums) == 1  # of the classifier's one row
        packed, _ = quantize_weights(NETWORKS[network](), Scheme("block", "int4", asymmetric=True))
        _, planned = compiled(packed, "spike")
        assert "riscv.row_sum" not in kernels(planned).values()
