"""One network through every pass: each level computes the same, and each dispatch is within the bound of its own inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from xdsl.context import Context
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.interpreter import Interpreter, PythonValues
from xdsl.ir import Operation

from qfold.frontend import import_model
from qfold.interpreters import Bounded, create_interpreter, run, run_function
from qfold.transforms.pipelines import compile_pipeline
from tests.networks.builders import convnet, mlp, transformer
from tests.networks.weight_only import Scheme, quantize_weights

NETWORKS: list[tuple[str, Callable[[], onnx.ModelProto], Scheme]] = [
    ("mlp, uint8 per axis", mlp, Scheme(storage="uint8")),
    ("mlp, int4 per block", mlp, Scheme(storage="int4", granularity="block")),
    ("convnet, uint8 per axis", convnet, Scheme(storage="uint8")),
    ("transformer, uint8 per tensor", transformer, Scheme(storage="uint8", granularity="tensor")),
]


@dataclass
class Dispatches(Interpreter.Listener):
    """Records what each called function had in its arguments before and after."""

    calls: list[tuple[str, list[Any], list[Any]]] = field(default_factory=list)

    def will_interpret_op(self, op: Operation, args: PythonValues) -> None:
        if isinstance(op, CallOp):
            self.args, self.before = args, [np.array(a) for a in args]

    def did_interpret_op(self, op: Operation, results: PythonValues) -> None:
        if isinstance(op, CallOp):
            after = [np.array(a) for a in self.args]
            self.calls.append((op.callee.string_value(), self.before, after))


@pytest.mark.parametrize(
    ("build", "scheme"), [n[1:] for n in NETWORKS], ids=[n[0] for n in NETWORKS]
)
def test_every_level_computes_the_same(
    build: Callable[[], onnx.ModelProto], scheme: Scheme
) -> None:
    model, quantised = quantize_weights(build(), scheme)
    assert quantised > 0
    module = import_model(model)
    main = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(t.get_shape()).astype(np.float32)  # pyright: ignore
        for t in main.function_type.inputs
    ]
    reference = run(module, inputs, domain="f64")
    context = Context()
    for step in compile_pipeline():
        step.apply(context, module)
        outputs = run(module, inputs, domain="f64")
        for y, want in zip(outputs, reference, strict=True):
            np.testing.assert_allclose(y, want, rtol=1e-9, atol=1e-9, err_msg=step.name)
    assert any(op.name == "qkernel.dequant_matmul" or op.name == "qkernel.dequant_conv" for op in module.walk())

    # The last level again in f32, dispatch by dispatch.
    recorded = Dispatches()
    interpreter = create_interpreter(module)
    interpreter.listeners = (recorded,)
    main = next(
        op for op in module.body.block.ops if isinstance(op, FuncOp) and op.sym_name.data == "main"
    )
    arguments = [np.array(x) for x in inputs]
    for t in main.function_type.inputs.data[len(inputs) :]:
        assert t.element_type is not None  # pyright: ignore
        width = 1 if str(t.element_type) == "i8" else 4  # pyright: ignore
        dtype = np.int8 if width == 1 else np.float32
        arguments.append(np.zeros(t.get_shape(), dtype))  # pyright: ignore
    with np.errstate(all="ignore"):
        interpreter.call_op(main, tuple(arguments))
    assert recorded.calls
    for symbol, before, after in recorded.calls:
        expected = run_function(module, symbol, before, "bounded")
        for value, actual in zip(expected, after, strict=True):
            assert isinstance(value, Bounded)
            assert value.contains(actual).all(), symbol
            assert np.isfinite(value.bound).all(), symbol
            # A kernel that is off by a thousandth of the result's size is caught.
            if actual.dtype == np.float32 and value.bound.any():
                assert value.bound.max() < 1e-3 * np.abs(value.value).max(), symbol
