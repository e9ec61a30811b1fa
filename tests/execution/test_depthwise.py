"""Depthwise convolutions of quantised networks, from ONNX to what clusters compute: equal to ONNX's own evaluator, to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from qfold.frontend import load_model
from qfold.tools.driver import Options, compile_loaded
from qfold.tools.proof_integers import DISASSEMBLED
from qfold.tools.verify import verify
from tests.frontend.helpers import build, node
from tests.tools.clusters import needs_qemu, needs_spike
from tests.tools.integer_models import Array

F32 = np.float32


@dataclass(frozen=True)
class Layer:
    """A convolution of an input of its own."""

    x: tuple[int, ...]
    kernel: tuple[int, ...] = (3, 3)
    pads: tuple[int, ...] = (1, 1, 1, 1)
    strides: tuple[int, ...] = (1, 1)
    types: tuple[type, type] = (np.uint8, np.int8)
    zero_point: int = 0
    multiplier: int = 1


# Zero points of x become what lies around it: rows of windows are words of stored bytes.
LAYERS = [
    *(
        Layer((1, channels, height, width), types=types, zero_point=zero)
        for channels, height, width, types, zero in (
            (5, 6, 1, (np.uint8, np.int8), 128),
            (9, 5, 2, (np.uint8, np.int8), 255),
            (5, 4, 3, (np.int8, np.int8), -128),
            (9, 3, 4, (np.int8, np.uint8), 127),
            (5, 2, 5, (np.uint8, np.uint8), 3),
            (9, 1, 6, (np.uint8, np.int8), 0),
            (5, 1, 7, (np.int8, np.int8), -1),
            (16, 6, 8, (np.uint8, np.int8), 0),
            (16, 6, 9, (np.uint8, np.int8), 131),
        )
    ),
    Layer((1, 5, 7, 33), zero_point=200),
    Layer((1, 6, 9, 24), pads=(0, 0, 0, 0), zero_point=200),
    Layer((1, 5, 6, 7), pads=(2, 0, 1, 3), zero_point=9),
    Layer((1, 5, 6, 7), kernel=(2, 4), pads=(0, 3, 1, 0), zero_point=9),
    Layer((2, 5, 9, 11), strides=(2, 1), zero_point=64),
    Layer((1, 3, 5, 6), multiplier=2, zero_point=64),
]


def _network(layers: list[Layer]) -> tuple[ModelProto, dict[str, Array]]:
    """Each layer from `x<i>` to `y<i>`, with all bits in what it reads; and inputs."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    inputs: dict[str, Array] = {}
    nodes = []
    for i, layer in enumerate(layers):
        data, weight = layer.types
        channels = layer.x[1] * layer.multiplier
        values = {
            "sx": np.array(0.05, F32),
            "zx": np.array(layer.zero_point, data),
            "w": _extremes(rng, weight, (channels, 1, *layer.kernel)),
            "sw": rng.uniform(0.004, 0.02, channels).astype(F32),
            # Of 128 the pass makes a signed weight.
            "zw": np.full(channels, 128 if layer.types == (np.int8, np.uint8) else 0, weight),
            "b": rng.integers(-3000, 3000, channels).astype(np.int32),
            "sy": np.array(0.3, F32),
            "zy": np.array(np.iinfo(data).min + 100, data),
        }
        arrays |= {f"{name}{i}": value for name, value in values.items()}
        inputs[f"x{i}"] = _extremes(rng, data, layer.x)
        names = [f"{n}{i}" for n in ("x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b")]
        options = {"pads": layer.pads, "strides": layer.strides, "group": layer.x[1]}
        nodes.append(node("QLinearConv", names, [f"y{i}"], f"conv{i}", **options))
    types = {name: (value.dtype, value.shape) for name, value in inputs.items()}
    outputs = tuple(f"y{i}" for i in range(len(layers)))
    return build(nodes, types, outputs, arrays, opset=21), inputs


def _extremes(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> Array:
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max + 1, shape)
    edge = rng.integers(0, 4, shape)
    values = np.where(edge == 0, info.min, np.where(edge == 1, info.max, values))
    return values.astype(dtype)


@pytest.mark.parametrize("target", ["spike", "spike:isa=f,cores=3", "threads", "qemu"])
def test_on_clusters(target: str) -> None:
    if target.startswith("spike"):
        needs_spike()
    if target == "qemu":
        needs_qemu()
    # Without dot products kernels are long.
    layers = LAYERS[1::4] if target == "qemu" else LAYERS
    model, inputs = _network(layers)
    expected = ReferenceEvaluator(model).run(None, inputs)
    golden = {f"y{i}": np.asarray(y) for i, y in enumerate(expected)}
    for layer, y in zip(layers, expected, strict=True):
        assert np.unique(np.asarray(y)).size > 8, layer
    source = load_model(model.SerializeToString())
    compilation = compile_loaded(source, Options(target=target))
    result = verify(compilation, source, inputs, golden)
    bad = [r for r in (*result.outputs, *result.dispatches, *result.audit) if not r.ok]
    assert not bad, "\n".join(map(str, bad))
    assert all(o.golden is not None and o.golden.differing == 0 for o in result.outputs)
    kernels = compilation.report["kernels"]
    kind = "c.quant_conv" if target == "threads" else "riscv.quant_conv"
    assert {k["kernel"] for k in kernels} == {kind}
    if target.startswith("spike"):
        facts = [k["generated"]["facts"]["dot_product"] for k in kernels]
        assert set(facts) == {"pv.sdotsp.b", "pv.sdotup.b", "pv.sdotusp.b"}
        assert DISASSEMBLED in {a.check for a in result.audit}
