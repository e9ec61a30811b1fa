"""Reductions and what is done with their results: one pass over memory, and the numbers of separate passes."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from xdsl.dialects import func, memref
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue

from qfold.backend.run import build_module
from qfold.interpreters import run
from qfold.ir.builder import TensorBuilder
from qfold.tools.driver import Compilation
from qfold.transforms.qmm_outline_kernels import functions
from tests.execution.test_networks import assert_ok, compiled
from tests.networks.builders import NetworkBuilder
from tests.transforms_buffer.helpers import bufferized, module, outlined, planned, small_inputs
from tests.transforms_buffer.test_random_graphs import Graph


def dispatches_of(compilation: Compilation) -> Counter[str]:
    """ONNX node -> the dispatches that work for it."""
    counts: Counter[str] = Counter()
    for dispatch in compilation.report["dispatches"]:
        counts.update(dispatch["nodes"])
    return counts


def network() -> NetworkBuilder:
    b = NetworkBuilder("joined")
    x = b.input("x", [2, 3, 5, 70])
    wide = b.input("wide", [2, 6000])
    last, middle, image = (b.constant(np.array(a, np.int64)) for a in ([3], [1], [2, 3]))

    def keep(value: str) -> None:
        # No shape: the reader infers it.
        b.outputs.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))

    for op in ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
        for axes in (last, middle, image):
            keep(b.node(op, b.node("Exp", x), axes, keepdims=0))
    for axis in (1, 2, 3):
        keep(b.node("Softmax", x, axis=axis))
        keep(b.node("LogSoftmax", x, axis=axis))
    keep(b.node("LayerNormalization", x, b.vector(70, 1.0), b.vector(70)))
    keep(b.node("GlobalAveragePool", x))
    keep(b.node("Relu", b.node("MaxPool", x, kernel_shape=[2, 2])))
    keep(b.node("Sqrt", b.node("Abs", b.node("AveragePool", x, kernel_shape=[2, 3]))))
    raw = b.node("ReduceSum", x, last)
    keep(raw)
    keep(b.node("Sigmoid", raw))
    keep(b.node("Softmax", wide))
    return b


def test_one_dispatch_per_reduction_and_what_follows() -> None:
    compilation, result = compiled(network().model())
    assert_ok(result)
    counts = dispatches_of(compilation)
    several = {name: n for name, n in counts.items() if n > 1}
    # 6000 numbers of a row do not stay near until they are read again: maximum, exp and sum, division stay apart there.
    assert set(several) == {next(n for n in counts if n.startswith("softmax") and counts[n] > 1)}
    # A sum that is an output itself is stored once and not read back.
    assert counts["sigmoid_" + next(n for n in counts if n.startswith("sigmoid")).split("_")[1]] == 1


def test_variables_take_no_place_in_the_plan() -> None:
    b = NetworkBuilder("norm")
    x = b.input("x", [4, 16])
    b.output(b.node("LayerNormalization", x, b.vector(16, 1.0), b.vector(16)), [4, 16])
    compilation, result = compiled(b.model())
    assert_ok(result)
    (function,) = (f for f in functions(compilation.kernels) if f.sym_name.data != "main")
    ops = [type(op) for op in function.body.block.ops]
    assert ops.count(memref.AllocOp) == 2  # mean, reciprocal deviation
    assert ops.count(linalg.FillOp) == 2 and ops.count(linalg.GenericOp) == 5
    (main,) = (f for f in functions(compilation.kernels) if f.sym_name.data == "main")
    plan: Any = main.attributes["qmm.plan"]
    assert not plan.data["buffers"].data


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_in_c(seed: int) -> None:
    """The interpreters run loop nests one after the other; only C runs them under common loops."""
    random = Random(seed)

    def build(b: TensorBuilder, *inputs: SSAValue) -> list[SSAValue]:
        results: list[SSAValue] = []
        for _ in range(30):
            graph = Graph(random, b, inputs)
            for _ in range(random.randint(3, 8)):
                if random.random() < 0.2:
                    graph.step()
                else:
                    kind = random.choice((Graph.unary, Graph.binary, Graph.reduction))
                    kind(graph, random.choice(graph.values[-2:]))
            results += [v for v in graph.values if not v.uses][-2:]
        return results

    shapes = [[random.randint(2, 4) for _ in range(3)] for _ in range(2)]
    graph = module(shapes, build)
    inputs = small_inputs(graph)
    level3 = planned(outlined(bufferized(graph)))
    joined = [
        f
        for f in functions(level3)
        if sum(isinstance(op, linalg.GenericOp) for op in f.body.block.ops) > 1
    ]
    print(len(joined))
    assert len(joined) >= 10
    assert len(joined) < len([op for op in level3.walk() if isinstance(op, func.CallOp)])
    expected = run(level3, inputs)
    executable = build_module(level3, native=False, extra_cflags=["-O1"])
    found = executable.run({f"x{i}": a for i, a in enumerate(inputs)})
    executable.close()
    for i, value in enumerate(expected):
        assert np.array_equal(found[f"y{i}"], np.asarray(value)), f"output {i}"
