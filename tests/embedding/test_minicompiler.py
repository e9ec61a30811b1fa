"""The embedded compiler works: its pattern, its kernel and qfold's passes, down to C that runs."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from xdsl.dialects import func
from xdsl.dialects.builtin import StringAttr

from qfold.backend.c.emit import emit
from qfold.backend.c.kernels import register_kernel
from qfold.backend.run import build_module
from qfold.dialects import qmm
from qfold.dialects.element_types import i8, ui4
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.interpreters import run
from tests.embedding.minicompiler import compile_text

RNG = np.random.default_rng(0)


def program(weight: WeightAttr, quant: QuantAttr) -> str:
    return f"""
    func.func @main(%x: tensor<3x8xf32> {{qmm.name = "x"}}) -> (tensor<3x5xf32> {{qmm.name = "y"}}) {{
      %y = mini.linear %x {{weight = {weight}, quant = {quant}, limit = 0.5 : f32}} : (tensor<3x8xf32>) -> tensor<3x5xf32>
      func.return %y : tensor<3x5xf32>
    }}"""


def kernels_of(module) -> dict[str, str]:
    found: dict[str, str] = {}
    for op in module.ops:
        if isinstance(op, func.FuncOp) and "qmm.kernel" in op.attributes:
            kernel = op.attributes["qmm.kernel"]
            assert isinstance(kernel, StringAttr)
            found[op.sym_name.data] = kernel.data
    return found


@pytest.mark.parametrize(
    ("storage", "quant", "kernel"),
    [
        (i8, QuantAttr.get(i8, 0.02), "mini.gemv_i8"),
        (
            i8,
            QuantAttr.get(i8, np.linspace(0.01, 0.05, 5), [1, -2, 3, 0, 7], axis=1),
            "mini.gemv_i8",
        ),
        (ui4, QuantAttr.get(ui4, 0.1, 7), "c.dequant_matmul"),
    ],
    ids=["tensor", "axis", "int4"],
)
def test_text_to_c(storage, quant: QuantAttr, kernel: str):
    low, high = (-128, 127) if storage == i8 else (0, 15)
    numbers = RNG.integers(low, high, (8, 5), endpoint=True)
    module = compile_text(program(WeightAttr.from_array(numbers, storage), quant))
    used = kernels_of(module)
    (matmul,) = (s for s in used if s.startswith("dequant_matmul_"))
    assert used[matmul] == kernel
    assert not any(isinstance(op, qmm.DequantizeOp) for op in module.walk())
    source = emit(module)["kernels.c"].decode()
    assert ("mini.gemv_i8" in source) == (kernel == "mini.gemv_i8")

    x = RNG.standard_normal((3, 8)).astype(np.float32)
    expected = np.minimum(x.astype(np.float64) @ quant.dequantize(numbers).astype(np.float64), 0.5)
    assert (expected == 0.5).any() and (expected < 0.5).any()
    (interpreted,) = run(module, [x])
    with closing(build_module(module)) as executable:
        compiled = executable.run({"x": x})["y"]
    assert np.allclose(interpreted, expected, atol=1e-5)
    assert np.allclose(compiled, expected, atol=1e-5)


def test_names_of_qfolds_own_kernels_are_not_for_others():
    with pytest.raises(ValueError, match="qfold's own"):
        register_kernel("c.matmul", lambda out, op, buffers: None)
