"""The node cases that the importer passes, once more as compiled C, and as what upstream MLIR takes.

Cases of one opset go into one network, side by side: so each network is also a test of the memory plan and of names. The
function bodies of operators that have an importer are left out: they make the same kernels.
"""

from __future__ import annotations

import onnx
import pytest
from xdsl.context import Context

from qfold.frontend.module import import_model
from qfold.transforms import get_all_passes
from tests.conformance.batches import batches, compiled_failures, side_by_side
from tests.conformance.regenerate import load
from tests.transforms.test_convert_qmm_to_linalg import accept, mlir_opt

__all__ = ["mlir_opt"]  # a fixture


def test_most_cases_are_compiled() -> None:
    """Of those that pass, all but the expanded ones and those whose version of onnx is another."""
    count = sum(len(cases) for cases in batches().values())
    passed = [name for e in load()[1].values() for name in e["passed"] if "_expanded" not in name]
    if onnx.__version__ != load()[0]:
        pytest.skip(f"expected.json is for onnx {load()[0]}")
    assert count >= len(passed) > 700


@pytest.mark.parametrize("batch", batches())
def test_compiled_outputs(batch: str) -> None:
    assert dict(compiled_failures(batches()[batch])) == {}


@pytest.mark.parametrize("batch", batches())
def test_upstream_takes_what_leaves_by_the_portable_exit(batch: str, mlir_opt: str) -> None:
    module = import_model(side_by_side(batches()[batch]), name="cases")
    for name in ("qmm-canonicalize", "convert-qmm-to-linalg"):
        get_all_passes()[name]()().apply(Context(), module)
    accept(mlir_opt, module, "-o", "/dev/null")
