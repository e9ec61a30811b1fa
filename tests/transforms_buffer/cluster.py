"""Taking modules to staged dispatches, running them, and counting what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter, PythonValues
from xdsl.ir import Operation

from qfold.dialects import pulp, qkernel
from qfold.dialects.contraction import ints, shape_of
from qfold.dialects.element_types import byte_size
from qfold.interpreters import run
from qfold.targets import target_named
from qfold.transforms.pipelines import kernel_pipeline
from qfold.transforms.qmm_outline_kernels import functions
from tests.transforms_buffer.helpers import small_inputs


@dataclass
class Counts(Interpreter.Listener):
    """What a run of staged dispatches did."""

    ops: Counter[str] = field(default_factory=Counter)
    """Op name -> how often it ran."""
    bytes_in: Counter[str] = field(default_factory=Counter)
    """Name of the source's element type -> bytes that came to L1."""
    bytes_out: int = 0
    packed_columns: int = 0
    """Columns of weights that were packed."""

    def will_interpret_op(self, op: Operation, args: PythonValues) -> None:
        self.ops[op.name] += 1
        if isinstance(op, pulp.DmaStartOp):
            type_ = op.source_type
            size = byte_size(type_.element_type, prod(type_.get_shape()))
            if type_.memory_space.value.data == 1:  # type: ignore[attr-defined]
                self.bytes_out += size
            else:
                self.bytes_in[str(type_.element_type)] += size
        if isinstance(op, qkernel.PackOp):
            self.packed_columns += op.weight_shape[1]


def staged(module: ModuleOp, target: str) -> ModuleOp:
    """A module on tensors as planned kernels for `target`, each pass verified; the checkers are among them."""
    result = module.clone()
    for step in kernel_pipeline(target):
        step.apply(Context(), result)
        result.verify()
    return result


def check_staged(
    module: ModuleOp,
    target: str = "threads",
    inputs: Sequence[np.ndarray[Any, Any]] | None = None,
    *,
    exact: bool = True,
) -> tuple[ModuleOp, Counts]:
    """Run a module on tensors and staged, and compare: bit for bit, or to f32's accuracy. Returns the staged module."""
    inputs = small_inputs(module) if inputs is None else inputs
    before = [x.copy() for x in inputs]
    expected = [np.array(v) for v in run(module, inputs)]
    result = staged(module, target)
    counts = Counts()
    found = run(result, inputs, listeners=[counts])
    for a, b in zip(found, expected, strict=True):
        if exact:
            np.testing.assert_array_equal(np.asarray(a), b)
        else:
            np.testing.assert_allclose(np.asarray(a), b, rtol=2e-5, atol=2e-5)
        assert np.asarray(a).dtype == b.dtype
    for a, b in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(a, b, err_msg="an input was overwritten")
    assert counts.ops["pulp.dma_start"] == counts.ops["pulp.dma_wait"]
    assert l1_bytes(result) <= target_named(target).scratchpad_bytes
    return result, counts


def kernels(module: ModuleOp) -> dict[str, str]:
    """Private function -> its kernel."""
    return {
        f.sym_name.data: f.attributes["qmm.kernel"].data  # type: ignore[attr-defined]
        for f in functions(module)
        if f.sym_name.data != "main"
    }


def leafs(module: ModuleOp) -> dict[str, str]:
    return {name: kernel for name, kernel in kernels(module).items() if kernel != "staged"}


def splits(module: ModuleOp) -> dict[str, tuple[int, ...]]:
    return {
        f.sym_name.data: ints(f.attributes["qmm.split"])  # type: ignore[arg-type]
        for f in functions(module)
        if "qmm.split" in f.attributes
    }


def l1_bytes(module: ModuleOp) -> int:
    """The most that a staged dispatch says it needs."""
    return max(
        (
            f.attributes["qmm.l1_bytes"].value.data  # type: ignore[attr-defined]
            for f in functions(module)
            if "qmm.l1_bytes" in f.attributes
        ),
        default=0,
    )


def all_ops(module: ModuleOp, kind: type[Operation]) -> list[Any]:
    return [op for op in module.walk() if isinstance(op, kind)]


def called(module: ModuleOp, function: str) -> list[str]:
    """The callees of a function, in order."""
    (found,) = (f for f in functions(module) if f.sym_name.data == function)
    return [op.callee.string_value() for op in found.walk() if isinstance(op, func.CallOp)]


def tile_shape(op: Operation, name: str) -> tuple[int, ...]:
    return shape_of(getattr(op, name))
