"""Zero points taken out and requantisation in integers, compiled: bit-exact with numpy in int64, as without these passes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp

from qfold.backend.run import build_module
from qfold.dialects import qkernel, qmm
from qfold.interpreters import run
from qfold.transforms.pipelines import kernel_pipeline, run_passes, tensor_pipeline
from qfold.transforms.qmm_expand_zero_points import QmmExpandZeroPointsPass
from qfold.transforms.qmm_requantize_in_integers import QmmRequantizeInIntegersPass
from tests.backend.level3 import SANITIZED
from tests.execution.quantized_cases import Suite
from tests.execution.test_quantized import context, suite_of

SUITES = ("contractions", "epilogues", "strided", "elementwise")


@cache
def tensors(name: str) -> ModuleOp:
    """A suite at the end of the tensor level, in integers where there is a way."""
    module = suite_of(name).module()
    passes = [QmmRequantizeInIntegersPass(), *tensor_pipeline(), QmmExpandZeroPointsPass()]
    run_passes(context(), module, passes, verify_each=True)
    return module


def kernels(name: str, target: str) -> ModuleOp:
    module = tensors(name).clone()
    run_passes(context(), module, kernel_pipeline(target), verify_each=True)
    return module


def compare(suite: Suite, found: dict[str, Any]) -> None:
    for key, y in suite.expected().items():
        if y.dtype.kind != "f":
            assert y.dtype == found[key].dtype
            assert (y == found[key]).all(), key


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("domain", ["exact", "bounded"])
def test_interpreted(name: str, domain: Any) -> None:
    suite = suite_of(name)
    results = run(tensors(name), suite.arrays(), domain=domain)
    found = [getattr(r, "value", r) for r in results]
    compare(suite, dict(zip(suite.expected(), found, strict=True)))


@pytest.mark.parametrize("name", SUITES)
def test_no_double_precision_is_left(name: str) -> None:
    module = tensors(name)
    assert "f64" not in str(module)
    upper = [op for op in module.walk() if isinstance(op, arith.MulSIExtendedOp)]
    assert bool(upper) == (name != "elementwise")


@pytest.mark.parametrize("name", SUITES)
def test_compiled_with_sanitizers(name: str) -> None:
    suite = suite_of(name)
    executable = build_module(kernels(name, "host"), **SANITIZED)
    compare(suite, executable.run(suite.values()))
    executable.close()


@pytest.mark.parametrize("name", ["epilogues", "strided"])
def test_on_threads(name: str) -> None:
    """Requantised by kernels of packed bytes, each core its share."""
    suite = suite_of(name)
    module = kernels(name, "threads")
    assert [op for op in module.walk() if isinstance(op, qkernel.PackedQuantMatmulOp)]
    executable = build_module(module, native=False, extra_cflags=["-O1", "-fsanitize=undefined"])
    compare(suite, executable.run(suite.values()))
    executable.close()


def test_zero_points_are_gone() -> None:
    """But for those of a convolution's weight."""
    left = {
        str(op.location)
        for op in tensors("contractions").walk()
        if isinstance(op, qmm.QuantMatmulOp | qmm.QuantConvOp)
        if [n for n, keyword in op.GROUPS if str(keyword).endswith("zero_point") and getattr(op, n)]
        if 0 not in op.output_type.get_shape()
    }
    names = ("conv1x1", "conv_strided", "depthwise_strided")
    assert left == {f'loc("{n}")' for n in names}
