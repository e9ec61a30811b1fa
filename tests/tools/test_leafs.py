"""What the report says that a dispatch calls and moves, against what it does when it runs."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qfold.backend.run import build_module
from qfold.tools.driver import Compilation
from qfold.tools.leafs import leaf_sequence
from qfold.tools.manifest import manifest, program_of
from tests.tools.clusters import compiled, matmul_model

ROWS, K, N = 40, 32, 48
SMALL = "threads:cores=2,l1=12288,stack=1024"
"""A scratchpad that the matrices do not fit as a whole."""


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return compiled(matmul_model(ROWS, K, N), SMALL)


def test_a_dispatch_is_the_sum_of_its_calls(compilation: Compilation):
    (record,) = manifest(program_of(compilation.kernels))
    assert record.staged and record.kernel == "staged"
    by_op: dict[str, int] = Counter()
    for leaf in record.leafs:
        by_op[leaf.op] += leaf.calls
        assert leaf.split and np.prod(leaf.split) <= 2
    assert set(by_op) == {"qkernel.pack", "qkernel.packed_matmul"} and sum(by_op.values()) > 3
    assert record.op == "qkernel.packed_matmul"
    assert record.macs == ROWS * K * N
    packs = [leaf for leaf in record.leafs if leaf.op == "qkernel.pack"]
    assert sum(leaf.calls * leaf.weights for leaf in packs) == K * N
    assert all(leaf.weight_type == "i8" and leaf.macs == 0 for leaf in packs)


def test_transfers_bring_each_operand_and_take_the_result_back_once(compilation: Compilation):
    (record,) = manifest(program_of(compilation.kernels))
    moved = record.transfers
    assert moved.bytes_out == ROWS * N * 4
    # The activation may come once for each tile of columns; the weight, its scales, zero points and the bias come once.
    once = K * N + N * (4 + 1 + 4)
    assert (moved.bytes_in - once) % (ROWS * K * 4) == 0 and moved.bytes_in > once
    assert 0 < record.l1_bytes <= 12288 - 2 * 1024 - 1024
    assert moved.count > sum(leaf.calls for leaf in record.leafs if leaf.op == "qkernel.pack")


def test_the_calls_are_those_that_a_run_makes(compilation: Compilation):
    program = program_of(compilation.kernels)
    (dispatch,) = program.dispatches
    x = np.ones((ROWS, K), np.float32)
    with closing(build_module(compilation.kernels, trace=True)) as executable:
        (trace,) = executable.run_traced({"x": x})
    assert list(trace.leafs) == list(leaf_sequence(dispatch.kernel))
    counted = Counter(trace.leafs)
    (record,) = manifest(program)
    assert counted == {leaf.symbol: leaf.calls for leaf in record.leafs}


def test_on_the_host_a_dispatch_is_its_own_kernel():
    (record,) = (
        r
        for r in manifest(program_of(compiled(matmul_model(ROWS, K, N), "host").kernels))
        if r.macs
    )
    (leaf,) = record.leafs
    assert (leaf.symbol, leaf.calls, leaf.split) == (record.symbol, 1, ())
    assert not record.staged and record.transfers.count == 0 and record.l1_bytes == 0


@pytest.mark.parametrize(
    ("size", "pads", "strides", "read"),
    [(5, 1, 1, 9), (1, 1, 1, 1), (2, 1, 2, 4), (2, 2, 4, 1)],
)
def test_weights_that_only_meet_padding_are_not_needed(
    size: int, pads: int, strides: int, read: int
):
    """x [1, 2, size, size], weight [3, 2, 3, 3]: of its nine taps `read` are ever over the image."""
    w = np.arange(54, dtype=np.int8).reshape(3, 2, 3, 3)
    attributes = {"pads": [pads] * 4, "strides": [strides] * 2}
    out = (size + 2 * pads - 3) // strides + 1
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["f"], "dq"),
            helper.make_node("Conv", ["x", "f"], ["y"], "conv", **attributes),
        ],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, out, out])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.float32(0.1), "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    records = manifest(program_of(compiled(model, "host").kernels))
    (leaf,) = (leaf for r in records for leaf in r.leafs if leaf.weights)
    assert leaf.op == "qkernel.dequant_conv" and leaf.weights == 6 * read
