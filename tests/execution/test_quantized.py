"""Integer arithmetic end to end: bit-exact with numpy in int64, interpreted in each domain, written out, and compiled."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import ModuleOp

from qfold.backend.run import build_module
from qfold.interpreters import run
from qfold.interpreters.values import Bounded
from qfold.transforms.convert_qmm_to_linalg import ConvertQmmToLinalgPass
from qfold.transforms.pipelines import compile_pipeline, run_passes, tensor_pipeline
from tests.backend.level3 import SANITIZED
from tests.execution.quantized_cases import Array, Suite
from tests.execution.quantized_contractions import contractions
from tests.execution.quantized_followers import dynamic, elementwise, epilogues, strided


def context() -> Context:
    """With the dialects that constant folding makes ops of."""
    made = Context()
    made.load_dialect(Arith)
    return made


SUITES = {
    "contractions": contractions,
    "epilogues": epilogues,
    "elementwise": elementwise,
    "dynamic": dynamic,
    "strided": strided,
}
suite_of = cache(lambda name: SUITES[name]())


@cache
def compiled(name: str, target: str) -> ModuleOp:
    module = suite_of(name).module()
    run_passes(context(), module, compile_pipeline(target), verify_each=True)
    return module


def compare(suite: Suite, found: dict[str, Array]) -> None:
    expected = suite.expected()
    assert set(found) == set(expected)
    wrong = [
        n
        for n, y in expected.items()
        if y.dtype != found[n].dtype or not np.array_equal(y, found[n])
    ]
    assert not wrong


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
@pytest.mark.parametrize("level", ["tensors", "kernels"])
def test_interpreted(name: str, domain: Any, level: str) -> None:
    suite = suite_of(name)
    module = suite.module() if level == "tensors" else compiled(name, "host")
    results = run(module, suite.arrays(), domain=domain)
    for (key, y), found in zip(suite.expected().items(), results, strict=True):
        if isinstance(found, Bounded):
            if y.dtype.kind != "f" and name != "dynamic":
                assert not found.bound.any(), key
            assert found.contains(y).all(), key
        elif y.dtype.kind == "f":
            np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)
        elif name != "dynamic" or domain == "exact":
            assert np.array_equal(found, y), key


@pytest.mark.parametrize("name", SUITES)
def test_written_out_as_generics(name: str) -> None:
    suite = suite_of(name)
    module = suite.module()
    run_passes(context(), module, [*tensor_pipeline(), ConvertQmmToLinalgPass()])
    assert not any(op.name.startswith("qmm.") for op in module.walk() if op.name != "qmm.yield")
    signless = [v.view(f"i{v.itemsize}") if v.dtype.kind == "u" else v for v in suite.arrays()]
    for (key, y), found in zip(suite.expected().items(), run(module, signless), strict=True):
        assert np.array_equal(np.asarray(found).view(y.dtype), y), key


@pytest.mark.parametrize("name", SUITES)
def test_compiled(name: str) -> None:
    suite = suite_of(name)
    executable = build_module(compiled(name, "host"))
    compare(suite, executable.run(suite.values()))
    executable.close()


@pytest.mark.parametrize("name", SUITES)
def test_compiled_with_sanitizers(name: str) -> None:
    suite = suite_of(name)
    executable = build_module(compiled(name, "host"), **SANITIZED)
    compare(suite, executable.run(suite.values()))
    executable.close()


@pytest.mark.parametrize("name", ["contractions", "dynamic", "strided"])
def test_on_threads(name: str) -> None:
    """Each core its share."""
    suite = suite_of(name)
    executable = build_module(
        compiled(name, "threads"), native=False, extra_cflags=["-O1", "-fsanitize=thread"]
    )
    compare(suite, executable.run(suite.values()))
    executable.close()


@pytest.mark.parametrize("name", ["contractions", "epilogues", "strided"])
def test_each_case_is_one_kernel(name: str) -> None:
    """Bias, requantisation and scale are in the contraction's epilogue: a call per case, by the name of what it computes."""
    module = compiled(name, "host")
    kernels = {
        op.sym_name.data: op.attributes["qmm.kernel"].data
        for op in module.body.block.ops
        if op.name == "func.func" and "qmm.kernel" in op.attributes
    }
    assert set(kernels.values()) <= {"c.quant_matmul", "c.quant_conv", "c.loops"}
    calls = [op for op in module.walk() if op.name == "func.call"]
    made = {str(c.location): c.callee.string_value() for c in calls}
    for case in suite_of(name).cases:
        of_case = [s for where, s in made.items() if f'"{case.name}"' in where]
        if 0 in case.expected[0].shape:
            continue
        assert len(of_case) == 1, (case.name, of_case)
        # A constant may have been turned round (qmm-turn-weights).
        expected = (case.symbols[0], case.symbols[0].replace("_kn_", "_nk_"))
        assert of_case[0].startswith(expected), (case.name, of_case)
