"""Quantised operators with inputs and attributes exchanged at random: imported, or refused in a sentence, nothing else.

ONNX defines no schema for most of them, so the importers are all that checks them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from qfold.frontend import FrontendError, import_model
from tests.frontend.helpers import Array, build, node
from tests.frontend.quantized import I8, U8

QONNX = "qonnx.custom_op.general"
OPERATORS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("", "QLinearMatMul"): ("m s u n s i s u", {}),
    ("", "QLinearConv"): ("x s u w s i s u b", {"pads": [1, 1, 1, 1]}),
    ("", "MatMulInteger"): ("m n u i", {}),
    ("", "ConvInteger"): ("x w u i", {"kernel_shape": [2, 2]}),
    ("", "DynamicQuantizeLinear"): ("f", {}),
    ("com.microsoft", "QGemm"): ("m s u n s i b s u", {"transA": 0, "transB": 0, "alpha": 1.0}),
    ("com.microsoft", "QLinearAdd"): ("m s u m s u s u", {}),
    ("com.microsoft", "QLinearMul"): ("m s u m s u s u", {}),
    ("com.microsoft", "QLinearSigmoid"): ("m s u s u", {}),
    ("com.microsoft", "QLinearLeakyRelu"): ("m s u s u", {"alpha": 0.1}),
    ("com.microsoft", "QLinearSoftmax"): ("m s u s u", {"axis": -1, "opset": 13}),
    ("com.microsoft", "QLinearAveragePool"): (
        "x s u s u",
        {"kernel_shape": [2, 2], "channels_last": 0},
    ),
    ("com.microsoft", "QLinearGlobalAveragePool"): ("x s u s u", {"channels_last": 1}),
    ("com.microsoft", "QLinearConcat"): ("s u m s u m s u", {"axis": 1}),
    ("com.microsoft", "MatMulIntegerToFloat"): ("m n s s u i v", {}),
    ("com.microsoft", "DynamicQuantizeMatMul"): ("f n s i v", {}),
    ("com.microsoft", "MatMulNBits"): (
        "f p v",
        {"K": 4, "N": 4, "bits": 4, "block_size": 4},
    ),
    ("com.microsoft", "QuantizeLinear"): ("f s u", {"axis": 0}),
    ("com.microsoft", "DequantizeLinear"): ("m s u", {"axis": 0}),
    (QONNX, "Quant"): ("f s s e", {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"}),
    ("PACTOps", "RequantShift"): ("f s s", {"div": "d", "n_levels": "d", "signed": 1}),
}
"""Operator -> (kinds of its inputs, attributes) of a node that is about right."""

VALUES: dict[str, Array] = {
    "m": np.arange(16, dtype=U8).reshape(4, 4),
    "n": np.arange(-8, 8, dtype=I8).reshape(4, 4),
    "x": np.arange(32, dtype=U8).reshape(1, 2, 4, 4),
    "w": np.arange(16, dtype=I8).reshape(2, 2, 2, 2),
    "s": np.asarray(1.0, np.float32),
    "u": np.asarray(3, U8),
    "i": np.asarray(3, I8),
    "b": np.arange(4, dtype=np.int32),
    "v": np.arange(1, 5, dtype=np.float32),
    "f": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4),
    "p": np.arange(8, dtype=U8).reshape(4, 1, 2),
    "e": np.asarray(8.0, np.float32),
    "z": np.zeros((0,), np.float32),
    "l": np.asarray([2**62, -1]),
    "nan": np.asarray(np.nan, np.float32),
    "inf": np.asarray([np.inf, -np.inf, 0, 1], np.float32),
    "bool": np.asarray([True, False]),
    "d": np.asarray(256.0, np.float32),
}
GARBAGE: list[Any] = [-1, 0, 2**40, 1.5, float("inf"), float("nan"), "text", [1], [0.5, -1.0], "d"]


@pytest.mark.parametrize(("domain", "operator"), list(OPERATORS))
def test_no_other_error_than_a_sentence(domain: str, operator: str):
    rng = np.random.default_rng([ord(c) for c in operator])
    kinds, given = OPERATORS[domain, operator]
    accepted = refused = 0
    for attempt in range(120):
        inputs, attributes = kinds.split(), dict(given)
        for _ in range(0 if attempt < 2 else int(rng.integers(1, 4))):
            choice = rng.integers(4)
            if choice == 0:
                inputs[int(rng.integers(len(inputs)))] = str(rng.choice([*VALUES, ""]))
            elif choice == 1 and len(inputs) > 1:
                inputs.pop()
            elif choice == 2 and attributes:
                name = str(rng.choice(list(attributes)))
                attributes[name] = GARBAGE[int(rng.integers(len(GARBAGE)))]
            elif choice == 3 and attributes:
                attributes.pop(str(rng.choice(list(attributes))))
        run_time = {i for i in range(len(inputs)) if rng.random() < (0.3 if attempt > 1 else 0)}
        if attempt != 1:
            run_time.add(0)
        names = [f"{kind}{i}" if kind else "" for i, kind in enumerate(inputs)]
        values = {n: VALUES[k] for n, k in zip(names, inputs, strict=True) if n}
        made = {
            k: numpy_helper.from_array(VALUES["d"]) if isinstance(v, str) and v == "d" else v
            for k, v in attributes.items()
        }
        model = build(
            [node(operator, names, ["y"], "hostile", domain=domain, **made)],
            {
                n: (v.dtype, v.shape)
                for i, n in enumerate(names)
                if i in run_time and n
                for v in [values[n]]
            },
            ["y"],
            {n: v for i, n in enumerate(names) if i not in run_time and n for v in [values[n]]},
        )
        if domain:
            model.opset_import.append(helper.make_opsetid(domain, 1))
        try:
            import_model(model).verify()
            accepted += 1
        except FrontendError as error:
            refused += 1
            assert "hostile" in str(error) or "input" in str(error), error
    assert accepted and refused
