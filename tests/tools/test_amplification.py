"""The hoisting factor: from the definition, at its limits, and in what `verify` allows."""

from __future__ import annotations

import numpy as np
import pytest

from qfold.dialects.element_types import i8, ui8
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.frontend import load_model
from qfold.tools.amplification import hoisting_factor
from qfold.tools.comparison import deviation_factor
from qfold.tools.driver import Options, compile_loaded
from tests.networks.builders import mlp
from tests.networks.weight_only import Scheme, quantize_weights


@pytest.mark.parametrize(
    ("values", "zero_point", "expected"),
    [
        ([1, -2, 3], 0, 1.0),
        ([10, 12], 11, (10 + 11 + 12 + 11) / 2),
        ([-100, 100], 100, (100 + 100 + 100 + 100) / 200),
        ([5, 5], 5, 1.0),
    ],
)
def test_factor_of_one_weight(values: list[int], zero_point: int, expected: float) -> None:
    weight = WeightAttr.from_array(np.array([values], np.int8).T)
    assert hoisting_factor(weight, QuantAttr.get(i8, 0.25, zero_point)) == pytest.approx(expected)


def test_channels_count_by_their_scale() -> None:
    weight = WeightAttr.from_array(np.array([[10, 1], [12, 1]], np.uint8), ui8)
    quant = QuantAttr.get(ui8, [1.0, 3.0], [11, 0], axis=1)
    assert hoisting_factor(weight, quant) == pytest.approx((44 + 6) / (2 + 6))


@pytest.mark.parametrize(("hoist", "least"), [(True, 2.0), (False, 1.0)])
def test_verify_allows_for_what_was_hoisted(hoist: bool, least: float) -> None:
    """Weights that keep to one side of a far zero point: int8 weights about 100, quantised with an outlier at -128."""
    model, _ = quantize_weights(mlp(features=(16, 8)), Scheme("tensor", "int8", asymmetric=True))
    weight = next(t for t in model.graph.initializer if t.name.endswith("_int"))
    zero = next(t for t in model.graph.initializer if t.name.endswith("_zero"))
    weight.ClearField("int32_data")
    weight.raw_data = (np.full(128, 100, np.int8) + np.arange(128, dtype=np.int8) % 3).tobytes()
    zero.ClearField("int32_data")
    zero.raw_data = np.array(99, np.int8).tobytes()
    facts = compile_loaded(load_model(model.SerializeToString()), Options(hoist=hoist)).facts
    assert (facts.hoisting_factor > 50) == hoist
    assert deviation_factor(facts.hoisting_factor) >= 4 * least
    assert deviation_factor(1.0) == 8.0
