"""Models for clusters, and what a test of one needs."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from qfold.frontend import load_model
from qfold.tools.driver import Compilation, Options, compile_loaded
from tests.simulators.support import needs_spike

__all__ = ["compiled", "matmul_model", "needs_qemu", "needs_spike", "plausible_bytes"]


def needs_qemu() -> None:
    """Skips where qemu-riscv32, or the compiler for it, is missing."""
    if shutil.which("qemu-riscv32") is None and shutil.which("qemu-riscv32-static") is None:
        pytest.skip("target qemu is not tested: qemu-riscv32 is not on PATH")
    pytest.importorskip("ziglang", reason="target qemu is not tested: the wheel ziglang is missing")


def plausible_bytes(k: int, n: int) -> np.ndarray:
    """int8 [k, n] whose bytes are floats around 1: read as what they are not, they crash nothing."""
    floats = np.random.default_rng(0).standard_normal(k * n // 4).astype("<f4")
    return floats.view(np.int8).reshape(k, n)


def matmul_model(
    rows: int, k: int = 16, n: int = 12, *, zero_point: bool = True, unsigned: bool = False
) -> ModelProto:
    """x [rows, k] @ dequantize(8 bits [k, n], per column) + bias."""
    rng = np.random.default_rng(1)
    dtype = np.uint8 if unsigned else np.int8
    values: dict[str, np.ndarray] = {
        "w": plausible_bytes(k, n).view(dtype),
        "s": np.linspace(0.01, 0.02, n, dtype=np.float32),
        "b": rng.standard_normal(n).astype(np.float32),
    }
    if zero_point:
        values["z"] = rng.integers(0, 5, n).astype(dtype)
    graph = helper.make_graph(
        [
            helper.make_node(
                "DequantizeLinear", ["w", "s", *(["z"] if zero_point else [])], ["f"], "dq", axis=1
            ),
            helper.make_node("MatMul", ["x", "f"], ["m"], "matmul"),
            helper.make_node("Add", ["m", "b"], ["y"], "bias"),
        ],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, n])],
        [numpy_helper.from_array(a, name) for name, a in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def compiled(model: ModelProto, target: str) -> Compilation:
    return compile_loaded(load_model(model.SerializeToString()), Options(target=target))
