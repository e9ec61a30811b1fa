"""A fixed part of the fuzzing of quantised graphs; `python -m tests.fuzz.run --of quantized` goes on from here."""

from __future__ import annotations

from collections import Counter

import pytest

from qfold.dialects import qmm
from qfold.frontend import import_model
from qfold.tools.driver import make_context
from qfold.transforms.pipelines import run_passes, tensor_pipeline
from tests.frontend.helpers import ops_of
from tests.fuzz.check import (
    Refused,
    check_compiled,
    check_damaged,
    check_levels,
    check_sanitized,
)
from tests.fuzz.quantized import make_case
from tests.fuzz.run import options
from tests.fuzz.test_fuzz import sanitizers

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LEVELS = 50
NAMED = (
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearMatMul QLinearConv MatMulInteger MatMul Gemm Conv "
    "Relu Clip Add Mul Softmax AveragePool GlobalAveragePool Transpose Reshape Concat Round"
).split()


def test_every_level_computes_the_same() -> None:
    made: Counter[str] = Counter()
    for seed in range(LEVELS):
        case = make_case(seed)
        made.update(case.operators)
        try:
            check_levels(case, **options(seed), verify_each=seed % 10 == 0)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert not [op for op in NAMED if not made[op]]


def test_graphs_become_integer_arithmetic() -> None:
    """Passes that left everything in floats would agree as well."""
    found: Counter[str] = Counter()
    for seed in range(12):
        module = import_model(make_case(seed).model.SerializeToString())
        run_passes(make_context(), module, tensor_pipeline())
        for kind in (qmm.QuantMatmulOp, qmm.QuantConvOp, qmm.DequantMatmulOp, qmm.MatmulOp):
            found[kind.name] += len(ops_of(module, kind))
    integer = found["qmm.quant_matmul"] + found["qmm.quant_conv"]
    assert integer > 2 * (found["qmm.dequant_matmul"] + found["qmm.matmul"]), found


@pytest.mark.parametrize("target", ["host", "threads"])
def test_compiled_graphs_verify(target: str) -> None:
    check_compiled(make_case(1, graphs=4), target=target)


@pytest.mark.skipif(not sanitizers(), reason="the C compiler has no sanitizers")
def test_compiled_graphs_touch_only_what_is_theirs() -> None:
    check_sanitized(make_case(2, graphs=4))


def test_damaged_models_are_compiled_or_refused_in_a_sentence() -> None:
    refused = 0
    for seed in range(8):
        try:
            check_damaged(make_case(seed), seed)
        except Refused:
            refused += 1
    assert refused > 4
