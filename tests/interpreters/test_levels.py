"""One network through every pass: each level computes the same, and each dispatch is within the bound of its own inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.interpreter import Interpreter, PythonValues
from xdsl.ir import Operation

from qfold.dialects.qkernel import CONTRACTIONS
from qfold.frontend import import_model
from qfold.interpreters import Bounded, run, run_function
from qfold.transforms.pipelines import compile_pipeline
from qfold.transforms.qmm_hoist_zero_point import QmmHoistZeroPointPass
from tests.networks.builders import convnet, mlp, transformer
from tests.networks.weight_only import Scheme, quantize_weights

NETWORKS: list[tuple[str, Callable[[], onnx.ModelProto], Scheme]] = [
    ("mlp, uint8 per axis", mlp, Scheme(storage="uint8", asymmetric=True)),
    ("mlp, int4 per block", mlp, Scheme(storage="int4", granularity="block", asymmetric=True)),
    ("convnet, uint8 per axis", convnet, Scheme(storage="uint8", asymmetric=True)),
    (
        "transformer, uint8 per tensor",
        transformer,
        Scheme(storage="uint8", granularity="tensor", asymmetric=True),
    ),
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


def is_output(op: Operation, index: int) -> bool:
    """Whether a structured op or a contraction writes to its operand number `index`."""
    if isinstance(op, LinalgStructuredOperation):
        return index >= len(op.inputs)
    return isinstance(op, CONTRACTIONS) and op.operands[index] is getattr(op, "y")  # noqa: B009


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
        rng.standard_normal(argument.type.get_shape()).astype(np.float32)
        for argument in main.body.block.args
        if isinstance(argument.type, TensorType)
    ]
    reference = run(module, inputs, domain="f64")
    context = Context()
    for step in compile_pipeline():
        if isinstance(step, QmmHoistZeroPointPass):
            step = QmmHoistZeroPointPass()  # everywhere, and not only where it pays
        step.apply(context, module)
        outputs = run(module, inputs, domain="f64")
        for y, want in zip(outputs, reference, strict=True):
            np.testing.assert_allclose(y, want, rtol=1e-9, atol=1e-9, err_msg=step.name)
    fused = [op for op in module.walk() if op.name.startswith("qkernel.dequant")]
    assert fused and all("hoisted" in op.properties for op in fused)

    # The last level again in f32, dispatch by dispatch.
    recorded = Dispatches()
    run(module, inputs, listeners=[recorded])
    assert recorded.calls
    functions = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)}
    for symbol, before, after in recorded.calls:
        expected = run_function(module, symbol, before, "bounded")
        checked = 0
        for argument, value, actual in zip(
            functions[symbol].body.block.args, expected, after, strict=True
        ):
            # What is only read may share memory with the output, when nothing but its shape matters.
            if not any(is_output(use.operation, use.index) for use in argument.uses):
                continue
            checked += 1
            assert isinstance(value, Bounded)
            assert value.contains(actual).all(), symbol
            assert np.isfinite(value.bound).all(), symbol
            # A kernel that is off by a thousandth of the result's size is caught.
            if actual.dtype == np.float32 and value.bound.any():
                assert value.bound.max() < 1e-3 * np.abs(value.value).max(), symbol
        assert checked
