"""Real networks: what they import to, and that it computes what their golden outputs say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerType

from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, numpy_dtype, ui8
from qfold.frontend import default_inputs, load_model
from qfold.interpreters.run import run
from tests.frontend.helpers import float_constants, import_checked, main_of, names_of, ops_of

GOLDEN = (
    "CCT_1_16_16_8",
    "CCT_2_32_32_128",
    "TinyViT_Demo",
    "Transformer_DeepQuant",
    "kernel_FP32_Conv_Regular_2D_Bias",
    "kernel_FP32_GEMM_TransB",
    "kernel_FP32_LayerNorm",
    "kernel_FP32_MatMul",
    "kernel_Mixed_Dequant",
    "kernel_Mixed_Quant",
)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_outputs(name: str, golden_model: Callable[[str], Path]):
    folder = golden_model(name)
    model = load_model(folder / "network.onnx")
    module = import_checked(model.proto)
    kinds = [n.op_type for n in model.proto.graph.node]
    products = [*ops_of(module, qmm.MatmulOp), *ops_of(module, qmm.QuantMatmulOp)]
    assert len(products) == kinds.count("MatMul") + kinds.count("Gemm")
    assert len(ops_of(module, qmm.ConvOp)) == kinds.count("Conv")
    given = list(np.load(folder / "inputs.npz").values())
    defaults = default_inputs(model)
    names = names_of(main_of(module).arg_attrs)
    arguments = [defaults[n] if n in defaults else given.pop(0).astype(np.float32) for n in names]
    got = run(module, arguments)
    for have, want in zip(got, np.load(folder / "outputs.npz").values(), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6 * float(np.abs(want).max()))


def test_fake_quantised_products_are_of_integers(golden_model: Callable[[str], Path]):
    """Weights clipped to [-8, 7] and data clipped to [-128, 127], written as floats."""
    path = golden_model("Transformer_DeepQuant") / "network.onnx"
    module = import_checked(load_model(path).proto, freeze_initializers=True)
    (op,) = ops_of(module, qmm.QuantMatmulOp)
    assert (op.a.type.element_type, op.b.type.element_type) == (i8, i4)
    assert not float_constants(module, 2)


INTEGER: dict[str, IntegerType | None] = {
    "MLPerf_AnomalyDetection": ui8,
    "MLPerf_ImageClassification": ui8,
    "MLPerf_KeywordSpotting": ui8,
    "kernel_Integer_Conv_DW_2D_RQ": ui8,
    "kernel_Integer_Conv_Regular_2D_RQ": i8,
    "kernel_Integer_GEMM_Regular_RQPerColumn": i8,
    "kernel_Integer_MatMul_Regular": None,
    "kernel_Integer_MatMul_Regular_RQ": None,
}
"""Networks of integers, and what their float input may be declared to hold."""


@pytest.mark.parametrize(
    ("name", "declared"),
    [(n, d) for n, storage in INTEGER.items() for d in (False, True) if storage or not d],
)
def test_integer_networks_are_bit_exact(
    name: str, declared: bool, golden_model: Callable[[str], Path]
):
    """With the input declared, all contractions are integer ones; without, the first reads the floats that the model declares."""
    storage = INTEGER[name]
    folder = golden_model(name)
    model = load_model(folder / "network.onnx")
    first = model.proto.graph.input[0].name
    options = {"input_types": {first: storage}} if declared else {}
    module = import_checked(model.proto, **options)
    kinds = [n.op_type for n in model.proto.graph.node]
    contractions = sum(kinds.count(k) for k in ("Conv", "Gemm", "MatMul"))
    integer = len(ops_of(module, qmm.QuantMatmulOp)) + len(ops_of(module, qmm.QuantConvOp))
    assert integer == (contractions - (not declared) if storage is not None else 0)
    given = list(np.load(folder / "inputs.npz").values())
    defaults = default_inputs(model)
    function = main_of(module)
    arguments = [
        np.asarray(defaults[n] if n in defaults else given.pop(0)).astype(
            numpy_dtype(t.element_type)
        )
        for n, t in zip(names_of(function.arg_attrs), function.function_type.inputs, strict=True)
    ]
    got = run(module, arguments)
    for have, want in zip(got, np.load(folder / "outputs.npz").values(), strict=True):
        np.testing.assert_array_equal(have, want)


def test_minilm(minilm_path: Path):
    """36 weights and 3 tables: two of them integers behind Cast and Mul, read as they are."""
    module = import_checked(load_model(minilm_path).proto, {"batch": 1, "sequence": 16})
    found = ops_of(module, qmm.DequantizeOp)
    assert len(found) == 38
    readers = [use.operation.name for op in found for use in op.result.uses]
    assert readers.count("qmm.matmul") == 36
    assert {op.quant.axis for op in found} == {0, 1}
    # token_type_embeddings is float in the file; nothing else of matrix size is.
    assert [shape for shape in float_constants(module, 384 * 2) if len(shape) > 1] == [(2, 384)]
