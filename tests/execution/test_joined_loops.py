"""Reductions and what is done with their results: one pass over memory, and the numbers of separate passes."""

from __future__ import annotations

from collections import Counter
from math import prod
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.backend.c.emit import emit
from qfold.backend.run import build_module
from qfold.dialects.element_types import ui8
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


def network() -> onnx.ModelProto:
    """Each branch has an input of its own, lest they share what they have in common."""
    b = NetworkBuilder("joined")
    last, middle, image = (b.constant(np.array(a, np.int64)) for a in ([3], [1], [2, 3]))

    def x(*shape: int) -> str:
        return b.input(f"x{len(b.inputs)}", shape or (2, 3, 5, 70))

    kept: list[str] = []
    for op in ("ReduceMean", "ReduceL2", "ReduceLogSumExp"):
        kept += [b.node(op, x(), axes, keepdims=0) for axes in (last, middle, image)]
    for axis in (1, 2, 3):
        kept += [b.node("Softmax", x(), axis=axis), b.node("LogSoftmax", x(), axis=axis)]
    kept += [
        b.node("LayerNormalization", x(), b.vector(70, 1.0), b.vector(70)),
        b.node("GlobalAveragePool", x()),
        b.node("Relu", b.node("MaxPool", x(), kernel_shape=[2, 2])),
        b.node("Sqrt", b.node("Abs", b.node("AveragePool", x(), kernel_shape=[2, 3]))),
        raw := b.node("ReduceSum", x(), last),
        b.node("Sigmoid", raw),
        b.node("Softmax", x(2, 6000)),
    ]
    outputs = [helper.make_tensor_value_info(v, TensorProto.FLOAT, None) for v in kept]
    graph = helper.make_graph(b.nodes, b.name, b.inputs, outputs, b.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=10)


def test_one_dispatch_per_reduction_and_what_follows() -> None:
    compilation, result = compiled(network())
    assert_ok(result)
    counts = dispatches_of(compilation)
    *_, wide = (name for name in counts if name.startswith("softmax"))
    # 6000 exponentials do not stay near until the sum reads them.
    assert {name: n for name, n in counts.items() if n > 1} == {wide: 2}


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


def test_a_normalisation_that_was_exported_in_parts() -> None:
    """Means with kept dimensions are read through reshapes, which must not keep the loops apart."""
    b = NetworkBuilder("parts")
    x = b.input("x", [4, 8, 16])
    axis = b.constant(np.array([-1], np.int64))
    centred = b.node("Sub", x, b.node("ReduceMean", x, axis, keepdims=1))
    square = b.node("Pow", centred, b.constant(np.array(2, np.float32)))
    variance = b.node("ReduceMean", square, axis, keepdims=1)
    shifted = b.node("Add", variance, b.constant(np.array(1e-5, np.float32)))
    b.output(b.node("Div", centred, b.node("Sqrt", shifted)), [4, 8, 16])
    _, result = compiled(b.model())
    assert_ok(result)
    assert len(result.dispatches) == 1


@pytest.mark.parametrize("local_bytes", [0, 64])
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_in_c(seed: int, local_bytes: int) -> None:
    """The interpreters run loop nests one after the other; only C runs them under common loops, and holds a row at a time."""
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
    level3 = planned(outlined(bufferized(graph), local_bytes=local_bytes))
    rows = [
        op
        for f in functions(level3)
        if f.sym_name.data != "main"
        for op in f.walk()
        if isinstance(op, memref.AllocOp) and prod(op.memref.type.get_shape()) > 1
    ]
    assert rows or not local_bytes
    joined = [
        f
        for f in functions(level3)
        if sum(isinstance(op, linalg.GenericOp) for op in f.body.block.ops) > 1
    ]
    assert len(joined) >= 10
    assert len(joined) < len([op for op in level3.walk() if isinstance(op, func.CallOp)])
    expected = run(level3, inputs)
    executable = build_module(level3, native=False, extra_cflags=["-O1"])
    found = executable.run({f"x{i}": a for i, a in enumerate(inputs)})
    executable.close()
    for i, value in enumerate(expected):
        assert np.array_equal(found[f"y{i}"], np.asarray(value)), f"output {i}"


def test_an_accumulator_that_starts_from_memory_is_loaded() -> None:
    """A sum that starts from a constant of several values; the square of it follows in the same function."""

    def build(b: TensorBuilder, x: SSAValue) -> SSAValue:
        d = [AffineExpr.dimension(i) for i in range(2)]
        start = b.constant(np.array([1.0, 20.0, 300.0], np.float32))
        total = b.generic(
            [(x, AffineMap.identity(2))],
            start,
            AffineMap(2, 0, (d[0],)),
            ["parallel", "reduction"],
            lambda s, e, acc: s(arith.AddfOp, acc, e[0]),
        )
        return b.elementwise([total], f32, lambda s, e: s(arith.MulfOp, e[0], e[0]))

    graph = module([[3, 4]], build)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    level3 = planned(outlined(bufferized(graph)))
    executable = build_module(level3)
    (found,) = executable.run({"x0": x}).values()
    executable.close()
    assert np.array_equal(found, (x.sum(axis=1) + [1, 20, 300]) ** 2)
    assert "float p0 = y1[i0];" in emit(level3)["kernels.c"].decode()


def test_an_accumulator_of_unsigned_integers_starts_from_a_number() -> None:
    """The scalar of a fill is signless: 200 is -56 in the IR, and 200 in C."""
    b = NetworkBuilder("unsigned_mean")
    x = b.input("x", [3, 4], TensorProto.UINT8)
    y = b.node("ReduceMean", x, b.constant(np.array([1], np.int64)), keepdims=0)
    b.output(y, [3], TensorProto.UINT8)
    graph = helper.make_graph(b.nodes, b.name, b.inputs, b.outputs, b.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    data = np.array([[1, 2, 3, 4], [60, 60, 60, 60], [0, 0, 0, 9]], np.uint8)
    compilation, result = compiled(model, {"x": data})
    assert_ok(result)
    assert result.outputs[0].error == 0
    assert "p0 = 0;" in emit(compilation.kernels)["kernels.c"].decode()

    def build(b: TensorBuilder, x: SSAValue) -> list[SSAValue]:
        padded = b.pad(x, [1, 1], [0, 2], 200)
        largest = b.reduce(padded, [1], 130, lambda s, e, acc: s(arith.MaxUIOp, acc, e))
        return [padded, largest]

    graph = module([[2, 3]], build, [ui8])
    x = np.array([[1, 255, 0], [199, 131, 2]], np.uint8)
    wide = np.pad(x, [(1, 0), (1, 2)], constant_values=200)
    expected = [wide, np.maximum(wide.max(axis=1), 130)]
    level3 = planned(outlined(bufferized(graph)))
    executable = build_module(level3, extra_cflags=["-Werror"])
    for found in (run(graph, [x]), run(level3, [x]), executable.run({"x0": x}).values()):
        assert all(np.array_equal(y, z) for y, z in zip(found, expected, strict=True))
    executable.close()


def test_a_row_is_an_array_of_the_function() -> None:
    """What the nests of a softmax hand over takes no place in the plan, up to a limit."""
    b = NetworkBuilder("rows")
    for width in (33, 5000):
        x = b.input(f"x{width}", [3, width])
        b.output(b.node("Softmax", x, axis=-1), [3, width])
    compilation, result = compiled(b.model())
    assert_ok(result)
    text = emit(compilation.kernels)["kernels.c"].decode()
    assert "float p0[33];" in text and "[5000]" not in text
    assert compilation.report["totals"]["arena_bytes"] < 3 * 5000 * 4 + 4096
