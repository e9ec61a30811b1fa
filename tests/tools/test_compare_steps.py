"""`scripts/compare_steps.py`: which differences from onnxruntime ties explain, and which they do not."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.networks.onnxruntime_quantizer import NETWORKS, Static

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_steps.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = spec_from_file_location("compare_steps", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["compare_steps"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def attention(script: Any) -> Any:
    """An attention block, with all of onnxruntime's tensors."""
    network = NETWORKS["attention"]
    model = Static("QDQ", "u8s8", True).apply(network)
    return script.Pieces(model, script.every_tensor(model, network.inputs))


def test_each_tensor_follows_from_those_before(attention: Any):
    nodes = attention.quantized()
    assert len(nodes) >= 8
    steps = [attention.compare(node) for node in nodes]
    assert all(step.explained for step in steps)
    assert sum(step.differ for step in steps) <= 2


def test_a_wrong_step_is_not_explained(attention: Any):
    """An integer of onnxruntime's is changed: no tie is near."""
    node = attention.quantized()[3]
    name = node.output[0]
    right = attention.values[name]
    wrong = right.copy()
    index = np.unravel_index(int(np.argmax((right > 60) & (right < 200))), right.shape)
    wrong[index] += 1
    attention.values[name] = wrong
    step = attention.compare(node)
    attention.values[name] = right
    assert step.differ == 1 and step.largest == 1
    assert step.ours_exact == 1 and step.theirs_exact == 0
    assert step.tie > 1e-3 > step.error and not step.explained
