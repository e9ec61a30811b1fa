"""docs/conformance.md says what the tests expect, and the fused networks of onnxruntime's quantiser agree."""

from __future__ import annotations

import pytest

from tests.conformance.page import PAGE, page
from tests.conformance.quantizer import compared
from tests.frontend.quantized import onnxruntime
from tests.networks.onnxruntime_quantizer import METHODS, NETWORKS, Method, NBits, applicable


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "stale: python -m tests.conformance.page"


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_what_the_quantiser_makes_agrees(method: Method) -> None:
    if isinstance(method, NBits):
        pytest.importorskip("onnx_ir", reason="onnxruntime's MatMulNBitsQuantizer needs onnx_ir")
    for name, network in NETWORKS.items():
        if applicable(name, method):
            model = method.apply(network)
            found = compared(model, network.inputs, onnxruntime(model, network.inputs))
            assert all(a.agrees for a in found), (name, found)
