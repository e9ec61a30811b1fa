"""`qmm-sink-dequantize` and what it is for: between integers no float is stored, through residual sums and islands of floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from xdsl.context import Context
from xdsl.dialects import arith, func, math, memref
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Operation, SSAValue

from qfold.backend.run import build_module
from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i8, i16, ui8
from qfold.dialects.qmm import QuantAttr
from qfold.frontend import import_model
from qfold.interpreters import run
from qfold.ir.builder import element_type
from qfold.transforms.pipelines import kernel_pipeline, run_passes, tensor_pipeline
from tests.networks.onnxruntime_quantizer import Form, Network, Static
from tests.transforms.graphs import Array, Node, apply, integers, module, ops

SINK = ("qmm-fuse-quantized", "qmm-lower-quantization", "qmm-sink-dequantize")
RNG = np.random.default_rng(31)
node = helper.make_node
X = QuantAttr.get(ui8, 0.043, 113)
Y = QuantAttr.get(i8, 0.61, -7)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[-1]))


def dequantized(node: Node, q: SSAValue, quant: QuantAttr) -> SSAValue:
    return node("DequantizeLinear").insert(qmm.DequantizeOp(q, quant)).result


def summed(node: Node, a: SSAValue, b: SSAValue) -> SSAValue:
    return node("Add").elementwise([a, b], f32, lambda s, e: s(arith.AddfOp, *e))


def exp(node: Node, x: SSAValue) -> SSAValue:
    return node("Exp").elementwise([x], f32, lambda s, e: s(math.ExpOp, e[0]))


def check(made: ModuleOp, given: Sequence[Array]) -> list[linalg.GenericOp]:
    """The loop nests after the pass, which changes no bit of any result."""
    before = run(made, given)
    after = run(apply(made, *SINK), given)
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    return [op for op in ops(made) if isinstance(op, linalg.GenericOp)]


def read_types(op: linalg.GenericOp) -> list[Any]:
    return [element_type(v) for v in op.inputs]


@pytest.mark.parametrize("view", ["none", "transpose", "collapse", "expand", "slice", "flip"])
def test_a_sum_reads_integers_through_any_view(view: str):
    def seen(node: Node, x: SSAValue) -> SSAValue:
        b = node("View")
        match view:
            case "transpose":
                return b.transpose(x, [1, 0])
            case "collapse":
                return b.reshape(x, [24])
            case "expand":
                return b.reshape(x, [2, 2, 6])
            case "slice":
                return b.slice(x, [1, 2], [2, 2], [1, 2])
            case "flip":
                return b.slice(x, [3, 0], [4, 6], [-1, 1])
            case _:
                return x

    def build(node: Node, x: SSAValue, r: SSAValue) -> SSAValue:
        return summed(
            node, seen(node, dequantized(node, x, X)), seen(node, dequantized(node, r, Y))
        )

    made = module(build, (4, 6), (4, 6), types=[ui8, i8])
    *_, total = check(made, [integers(ui8, (4, 6)), integers(i8, (4, 6))])
    assert read_types(total) == [ui8, i8]


@pytest.mark.parametrize("storage", [i8, i16], ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
def test_several_loops_dequantise_each(storage: Any, per_channel: bool):
    """What comes between counts as well; the sum with a batch reads each element for each matrix."""
    quant = QuantAttr.get(storage, 0.02, 3)
    if per_channel:
        quant = QuantAttr.get(storage, [0.02, 0.5, 1.0, 2.0], [3, -1, 0, 7], axis=1)

    def build(node: Node, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        real = dequantized(node, x, quant)
        half = node("Mul").elementwise(
            [real], f32, lambda s, e: s(arith.MulfOp, e[0], s.constant(0.25, f32))
        )
        largest = node("Max").reduce(half, [1], -1e9, lambda s, e, acc: s(arith.MaximumfOp, acc, e))
        return [largest, exp(node, half), summed(node, half, y)]

    made = module(build, (5, 4), (3, 5, 4), types=[storage])
    loops = check(made, [integers(storage, (5, 4)), np.ones((3, 5, 4), np.float32)])
    assert len(loops) == 3 and all(read_types(op)[0] == storage for op in loops)


def test_an_output_in_floats_is_stored_once():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        real = dequantized(node, x, X)
        return [real, exp(node, real)]

    loops = check(module(build, (4, 6), types=[ui8]), [integers(ui8, (4, 6))])
    assert [read_types(op) for op in loops] == [[ui8], [f32]]


def test_any_number_of_loops_dequantises():
    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        real = dequantized(node, x, X)
        constant = node("c").constant(np.arange(24, dtype=np.float32).reshape(4, 6))
        return [exp(node, real), *(summed(node, constant, real) for _ in range(8))]

    loops = check(module(build, (4, 6), types=[ui8]), [integers(ui8, (4, 6))])
    assert len(loops) == 9 and all(ui8 in read_types(op) for op in loops)


def test_work_that_costs_is_not_repeated():
    """An exponential with two readers stays where it is, and reads integers."""

    def build(node: Node, x: SSAValue) -> list[SSAValue]:
        y = exp(node, dequantized(node, x, X))
        total = node("Sum").reduce(y, [1], 0.0, lambda s, e, acc: s(arith.AddfOp, acc, e))
        return [total, summed(node, y, y)]

    loops = check(module(build, (4, 6), types=[ui8]), [integers(ui8, (4, 6))])
    assert [read_types(op) for op in loops] == [[ui8], [f32], [f32]]


# Whole networks, as onnxruntime's quantiser writes them


def residual() -> Network:
    """Two blocks: a plain shortcut, and one with a convolution of its own."""
    c = {"w0": floats(8, 3, 3, 3), "b0": floats(8), "w1": floats(8, 8, 3, 3), "b1": floats(8)}
    c |= {"w2": floats(8, 8, 3, 3), "w3": floats(6, 8, 3, 3), "w4": floats(6, 8, 1, 1)}
    c |= {"w5": floats(4, 6)}
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], "stem", pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"], "relu0"),
        node("Conv", ["r0", "w1", "b1"], ["c1"], "a1", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("Conv", ["r1", "w2"], ["c2"], "b1", pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r0"], ["s0"], "add0"),
        node("Relu", ["s0"], ["r2"], "relu2"),
        node("Conv", ["r2", "w3"], ["c3"], "b2", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Conv", ["r2", "w4"], ["c4"], "shortcut", strides=[2, 2]),
        node("Add", ["c3", "c4"], ["s1"], "add1"),
        node("AveragePool", ["s1"], ["p"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["p"], ["g"], "gap"),
        node("Flatten", ["g"], ["f"], "flatten"),
        node("Gemm", ["f", "w5"], ["y"], "gemm", transB=1),
    ]
    return _typed(nodes, (1, 3, 8, 8), (1, 4), c)


def transformer() -> Network:
    """Normalisation, one head, a residual sum, a Gelu, another sum."""
    n, d = 6, 16
    c: dict[str, Any] = {f"w{i}": floats(d, d) for i in range(4)} | {"b0": floats(d)}
    c |= {"up": floats(d, 24), "bu": floats(24), "down": floats(24, d), "s": np.float32(0.25)}
    c |= {"g0": np.ones(d, np.float32), "h0": floats(d), "two": np.float32(2.0**0.5)}
    c |= {"one": np.float32(1), "half": np.float32(0.5)}
    nodes = [
        node("LayerNormalization", ["x", "g0", "h0"], ["l0"], "norm"),
        node("MatMul", ["l0", "w0"], ["q0"], "q"),
        node("Add", ["q0", "b0"], ["q"], "q_bias"),
        node("MatMul", ["l0", "w1"], ["k"], "k"),
        node("MatMul", ["l0", "w2"], ["v"], "v"),
        node("Transpose", ["k"], ["t"], "t", perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["qk"], "scores"),
        node("Mul", ["qk", "s"], ["scaled"], "scale"),
        node("Softmax", ["scaled"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "v"], ["h"], "heads"),
        node("MatMul", ["h", "w3"], ["o"], "out"),
        node("Add", ["o", "x"], ["r"], "residual0"),
        node("MatMul", ["r", "up"], ["u0"], "up"),
        node("Add", ["u0", "bu"], ["u"], "up_bias"),
        node("Div", ["u", "two"], ["e0"], "gelu0"),
        node("Erf", ["e0"], ["e1"], "gelu1"),
        node("Add", ["e1", "one"], ["e2"], "gelu2"),
        node("Mul", ["u", "e2"], ["e3"], "gelu3"),
        node("Mul", ["e3", "half"], ["e4"], "gelu4"),
        node("MatMul", ["e4", "down"], ["m"], "down"),
        node("Add", ["m", "r"], ["y"], "residual1"),
    ]
    return _typed(nodes, (2, n, d), (2, n, d), c)


def _typed(
    nodes: list[Any], shape: tuple[int, ...], result: tuple[int, ...], constants: dict[str, Any]
) -> Network:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, result)],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Network(model, {"x": floats(*shape) * np.float32(4)})


NETWORKS = {"residual": residual(), "transformer": transformer()}


def quantised(name: str, form: Form) -> ModelProto:
    return Static(form, "s8s8" if form == "QDQ" else "u8s8", True).apply(NETWORKS[name])


def context() -> Context:
    made = Context()
    made.load_dialect(Arith)
    return made


def compiled(model: ModelProto, *left_out: str) -> tuple[ModuleOp, list[Any], int]:
    """(the planned kernels, types of the buffers that cross dispatches, dispatches)."""
    made = import_model(model.SerializeToString())
    steps = [*tensor_pipeline(), *kernel_pipeline()]
    names = [step.name for step in steps]
    assert set(left_out) <= set(names)
    cut = names.index("qmm-outline-kernels") + 1
    run_passes(context(), made, [s for s in steps[:cut] if s.name not in left_out])
    functions = {f.sym_name.data: f for f in made.ops if isinstance(f, func.FuncOp)}
    main = functions["main"].body.block
    calls = [op for op in main.ops if isinstance(op, func.CallOp)]
    # The shape of a window is a buffer that nobody touches.
    used: set[SSAValue] = set()
    for call in calls:
        arguments = functions[call.callee.root_reference.data].body.block.args
        for value, argument in zip(call.operands, arguments, strict=True):
            if any(_touches(use.operation, use.index) for use in argument.uses):
                used.add(value)
    buffers = [op.memref for op in main.ops if isinstance(op, memref.AllocOp)]
    found = [v.type for v in buffers if v in used or not v.has_one_use()]
    run_passes(context(), made, steps[cut:])
    return made, found, len(calls)


def _touches(op: Operation, index: int) -> bool:
    return not isinstance(op, linalg.GenericOp) or op.body.block.args[index].first_use is not None


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_no_floats_between_dispatches(name: str, form: Form):
    """And the same bits as where dequantised values are stored."""
    model = quantised(name, form)
    made, buffers, calls = compiled(model)
    stored, more, more_calls = compiled(model, "qmm-sink-dequantize")
    # The quantiser leaves a normalisation in floats where operators are to be integer themselves: its mean and its deviation.
    expected = [(2, 6), (2, 6)] if (name, form) == ("transformer", "QOperator") else []
    assert [t.get_shape() for t in buffers if t.get_element_type() == f32] == expected
    assert sum(t.get_element_type() == f32 for t in more) > len(expected)
    assert calls <= more_calls
    results: list[Array] = []
    for module_ in (made, stored):
        executable = build_module(module_)
        results += executable.run(NETWORKS[name].inputs).values()
        executable.close()
    np.testing.assert_array_equal(*results)


def test_rows_of_a_softmax_are_on_the_stack():
    """Of the exponentials one row at a time exists; on a cluster, whose cores share the rows, they are a buffer."""
    model = quantised("transformer", "QDQ")
    made, _, _ = compiled(model)
    rows = [
        op
        for f in made.ops
        if isinstance(f, func.FuncOp) and "softmax" in f.sym_name.data
        for op in f.walk()
        if isinstance(op, memref.AllocOp) and shape_of(op.memref) == (2, 6, 6)
    ]
    assert len(rows) == 1
