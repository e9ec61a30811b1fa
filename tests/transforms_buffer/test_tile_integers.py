"""qmm-tile-to-l1 on products and convolutions of bytes: which leafs, what moves, and the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.linalg import ops as linalg
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from qfold.backend.run import build_module
from qfold.dialects import pulp, qkernel
from qfold.dialects.contraction import WORD_WINDOWS, ints, shape_of
from qfold.dialects.element_types import i4, i8, i32, ui4, ui8
from qfold.interpreters import run
from qfold.ir.layouts import Layout
from qfold.targets import TARGETS
from qfold.transforms.qmm_check_plan import QmmCheckPlanPass
from qfold.transforms.qmm_outline_kernels import functions, is_staged
from tests.transforms_buffer.cluster import Counts, all_ops, check_staged, leafs, splits
from tests.transforms_buffer.integers import conv, extreme, inputs_of, matmul

BIG = "threads"
SMALL = "threads:l1=20480,cores=8,stack=1024"
"""11 KiB for tiles."""
TINY = "threads:l1=6400,cores=3,stack=256"
"""4.5 KiB."""
LEAST = "threads:l1=3584,cores=5,stack=112"
"""2 KB."""
SIGNS = [(i8, i8), (ui8, i8), (i8, ui8), (ui8, ui8)]


def check(made: ModuleOp, target: str = BIG, *, seed: int = 0) -> tuple[ModuleOp, Counts]:
    """Staged and on tensors: the same bits. Every leaf works in L1."""
    result, counts = check_staged(made, target, inputs_of(made, seed))
    for function in functions(result):
        if function.sym_name.data == "main" or is_staged(function):
            continue
        for argument in function.args:
            assert argument.type.memory_space.value.data == 1, function  # type: ignore[attr-defined]
    return result, counts


def used(module: ModuleOp) -> set[str]:
    return set(leafs(module).values())


# Products.


@pytest.mark.parametrize("target", [BIG, SMALL, TINY])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (7, 5, 3), (1, 70, 33), (33, 40, 37), (5, 130, 30), (66, 17, 70)]
)
def test_two_activations(shape: tuple[int, int, int], target: str):
    m, k, n = shape
    types = SIGNS[(m + k + n) % 4]
    made = matmul((m, k), (k, n), types=types, transpose_b=bool(n % 2))
    result, counts = check(made, target)
    assert used(result) == {"c.pack_bytes", "c.packed_quant_matmul"}
    # Each byte of both comes once, and is packed once.
    assert sum(op.weight_shape[1] for op in all_ops(result, qkernel.PackBytesOp)) <= n
    inside = counts.bytes_in[str(types[0])] + counts.bytes_in[str(types[1])] * (
        types[0] != types[1]
    )
    assert inside >= m * k + k * n
    assert counts.bytes_out == 4 * m * n


@pytest.mark.parametrize("target", [BIG, SMALL, TINY])
@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 130, 66), (40, 33, 31), (65, 64, 64)])
def test_a_constant_comes_packed(shape: tuple[int, int, int], target: str):
    m, k, n = shape
    made = matmul((m, k), (k, n), constant=True, types=(ui8, i8), transpose_b=bool(m % 2))
    result, counts = check(made, target)
    assert used(result) == {"c.packed_quant_matmul"}
    panels, words = -(-n // 4), -(-k // 4)
    assert counts.bytes_in["i8"] % (panels * words * 16) == 0
    assert counts.bytes_in["ui8"] >= m * k
    # Tiles of columns are whole panels: their weights are one run of bytes.
    for op in all_ops(result, pulp.DmaStartOp):
        if str(op.source_type.element_type) == "i8":
            assert Layout.of(op.source_type).is_dense


def test_tiles_of_a_packed_constant_come_once():
    """300 rows go by two tiles of columns, or all columns by the resident rows: no panel comes twice."""
    made = matmul((300, 64), (64, 96), constant=True, result=i8, operands=[(i32, (1,))])
    result, counts = check(made, SMALL)
    assert counts.bytes_in["i8"] == 300 * 64 * len(_sizes(result, "p", 0)) + 64 * 96
    made = matmul((8, 64), (64, 512), constant=True, result=i8, operands=[(i32, (1,))])
    result, counts = check(made, SMALL)
    assert counts.bytes_in["i8"] == 8 * 64 + 64 * 512
    assert counts.bytes_in["i32"] == 4 * 512
    assert all(
        op.a.type.get_shape() == (8, 64) for op in all_ops(result, qkernel.PackedQuantMatmulOp)
    )


def _sizes(module: ModuleOp, operand: str, dimension: int) -> set[int]:
    """Starts of the tiles of that operand's dimension, by their sizes: how many different leafs there are."""
    found = [shape_of(getattr(op, operand)) for op in all_ops(module, qkernel.PackedQuantMatmulOp)]
    return {s[dimension] for s in found}


@pytest.mark.parametrize("k", [1, 3, 4, 6, 13, 32])
def test_rows_start_at_words(k: int):
    """Rows in L1 are a multiple of four bytes apart, whatever K is."""
    result, _ = check(matmul((9, k), (k, 6)), TINY)
    (op,) = all_ops(result, qkernel.PackedQuantMatmulOp)
    assert Layout.of(op.a.type).strides == (-(-k // 4) * 4, 1)
    assert shape_of(op.a) == (9, k)


def test_the_checker_sees_single_columns():
    """What lies between rows is never read, and all columns are: one that the transfer leaves out is noticed."""
    made = matmul((9, 13), (13, 6), types=(ui8, i8))
    result, _ = check(made)
    (bring,) = [op for op in all_ops(result, pulp.DmaStartOp) if shape_of(op.source) == (9, 13)]
    for index, value in enumerate(list(bring.operands)):
        type_ = bring.operands[index].type
        part = memref.SubviewOp.get(
            value,
            [0, 0],
            [9, 12],
            [1, 1],
            Layout((9, 12), Layout.of(type_).strides).memref_type(ui8, 2 - index),
        )
        Rewriter.insert_op(part, InsertPoint.before(bring))
        bring.operands[index] = part.result
    with pytest.raises(
        PassFailedException, match=r"reads byte \d+ of the scratchpad, which nobody has written"
    ):
        QmmCheckPlanPass().apply(Context(), result)


@pytest.mark.parametrize("storage", [i4, ui4])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_four_bits_are_unpacked_in_l1(storage: Any, transpose_b: bool, constant: bool):
    made = matmul(
        (11, 24), (24, 30), types=(i8, storage), transpose_b=transpose_b, constant=constant
    )
    result, counts = check(made, SMALL)
    assert used(result) == {"c.pack_bytes", "c.packed_quant_matmul"}
    assert counts.bytes_in[str(storage)] == 24 * 30 // 2
    (pack, *_) = all_ops(result, qkernel.PackBytesOp)
    assert str(pack.y.type.element_type) == ("i8" if storage == i4 else "ui8")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3, 9, 13), (2, 3, 13, 7)),
        ((2, 3, 9, 13), (1, 3, 13, 7)),
        ((2, 1, 9, 13), (3, 13, 7)),
        ((4, 9, 13), (13, 7)),
    ],
)
def test_batches(a: tuple[int, ...], b: tuple[int, ...]):
    for target in (BIG, LEAST):
        made = matmul(a, b, result=f32, operands=[(f32, (len(a) - 1,)), (i32, (0,))])
        result, counts = check(made, target)
        assert used(result) == {"c.pack_bytes", "c.packed_quant_matmul"}
        # Each matrix on the right is packed once per tile of columns.
        assert counts.ops["qkernel.pack_bytes"] % prod(b[:-2]) == 0


@pytest.mark.parametrize("which", [(), (0,), (1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("element", [i8, i32])
def test_epilogue_operands(which: tuple[int, ...], element: Any):
    made = matmul((21, 40), (40, 26), result=ui8, operands=[(element, which), (i32, (1,))])
    for target in (BIG, TINY):
        result, counts = check(made, target)
        assert counts.bytes_out == 21 * 26
        assert used(result) == {"c.pack_bytes", "c.packed_quant_matmul"}
        assert all(op.epilogue_block for op in all_ops(result, qkernel.PackedQuantMatmulOp))


@pytest.mark.parametrize("side", ["a", "b", "rows", "columns", "both"])
def test_zero_points_that_remain(side: str):
    """Nothing is packed then: a kernel in C subtracts them, on tiles."""
    zeros: dict[str, Any] = {}
    if side in ("a", "both"):
        zeros["a_zero_point"] = np.uint8(255)
    if side == "rows":
        zeros["a_zero_point"] = np.arange(70, dtype=np.uint8)
    if side in ("b", "both"):
        zeros["b_zero_point"] = np.int8(-128)
    if side == "columns":
        zeros["b_zero_point"] = np.arange(-17, 16, dtype=np.int8)
    made = matmul((70, 50), (50, 33), types=(ui8, i8), result=i8, operands=[(i32, (1,))], **zeros)
    for target in (BIG, TINY):
        result, _ = check(made, target)
        assert used(result) == {"c.quant_matmul"}


# Convolutions.

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one pixel": ((1, 64, 10, 5), (64, 64, 1, 1), {}),
    "3x3": ((1, 8, 12, 11), (20, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    "border value": ((1, 5, 9, 8), (6, 5, 3, 3), {"pads": [1, 2, 2, 1], "pad_value": -128}),
    "strides": ((2, 5, 17, 8), (16, 5, 3, 3), {"strides": [2, 3], "pads": [1, 1, 0, 1]}),
    "dilations": ((1, 3, 16, 15), (5, 3, 3, 2), {"dilations": [2, 3], "pads": [2, 0, 2, 3]}),
    "speech": ((1, 1, 49, 13), (64, 1, 10, 4), {"strides": [2, 2], "pads": [0, 0, 0, 0]}),
    "line": ((2, 5, 41), (6, 5, 5), {"pads": [2, 2], "strides": [2]}),
    "whole image": ((1, 4, 6, 5), (9, 4, 6, 5), {}),
    "one channel": ((1, 1, 7, 7), (1, 1, 3, 3), {"pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("target", [BIG, TINY, LEAST])
def test_convolutions(name: str, target: str):
    x, w, options = CONVOLUTIONS[name]
    types = SIGNS[len(name) % 4] if "pad_value" not in options else (i8, i8)
    result, counts = check(conv(x, w, types=types, **options), target)
    assert used(result) == {"c.pack_window", "c.packed_quant_matmul"}
    for op in all_ops(result, qkernel.PackWindowOp):
        assert op.padding == (options.get("pad_value") or 0)
        assert shape_of(op.x)[0] == x[1]
    for op in all_ops(result, qkernel.PackedQuantMatmulOp):
        k = prod(w[1:])
        assert shape_of(op.a)[1] == k
        assert shape_of(op.a)[0] == 1 or Layout.of(op.a.type).strides[0] % 4 == 0
        assert str(op.a.type.element_type) == str(types[1])
    if target == BIG:
        # An image in one tile: the weights come once, and so does each image.
        assert counts.bytes_in["i32"] == 4 * w[0]
        assert counts.ops["qkernel.pack_window"] == x[0]


def test_windows_are_packed_once_for_all_channels():
    """Weights that do not fit beside the windows go by in tiles; windows are packed once per tile of the image."""
    made = conv((1, 64, 9, 6), (96, 64, 3, 3), pads=[1, 1, 1, 1], types=(ui8, i8))
    result, counts = check(made, "threads:l1=24576,cores=8,stack=1024")
    positions = counts.ops["qkernel.pack_window"]
    assert counts.ops["qkernel.packed_quant_matmul"] % positions == 0
    assert counts.ops["qkernel.packed_quant_matmul"] > positions
    # Output channels of a tile are whole blocks of rows.
    assert {shape_of(op.a)[0] % 4 for op in all_ops(result, qkernel.PackedQuantMatmulOp)} == {0}
    # Rows with padding above, between and below are leafs of their own.
    assert len({ints(op.pads) for op in all_ops(result, qkernel.PackWindowOp)}) == 3


def test_weights_stay_while_rows_go_by():
    made = conv((1, 8, 60, 24), (16, 8, 3, 3), pads=[1, 1, 1, 1], types=(ui8, i8))
    result, counts = check(made, SMALL)
    assert counts.bytes_in["i8"] == 16 * 8 * 9
    assert counts.bytes_in["i32"] == 4 * 16
    # Equal rows are a loop, and transfers go on during its work.
    (loop,) = [op for op in result.walk() if op.name == "scf.for"]
    assert loop.results
    under_way = len(loop.operands) - 3
    for op in loop.regions[0].block.ops:
        if isinstance(op, pulp.DmaStartOp):
            under_way += 1
        elif isinstance(op, pulp.DmaWaitOp):
            under_way -= 1
        elif isinstance(op, func.CallOp):
            assert under_way == 2  # the rows of the next tile, the results of the last


def test_parts_of_a_row():
    """Not even the windows of one row fit."""
    made = conv((1, 24, 12, 33), (12, 24, 3, 3), pads=[1, 1, 1, 1], types=(ui8, i8))
    result, _ = check(made, "threads:l1=8192,cores=4,stack=256")
    assert used(result) == {"c.pack_window", "c.packed_quant_matmul"}
    widths = {shape_of(op.x)[2] for op in all_ops(result, qkernel.PackWindowOp)}
    assert max(widths) < 33
    assert any(op.name == "scf.for" for op in result.walk())


@pytest.mark.parametrize("which", [(), (1,), (0,), (0, 1), (2, 3), (0, 1, 2, 3), (1, 2, 3, 0)])
def test_epilogue_operands_of_convolutions(which: tuple[int, ...]):
    made = conv(
        (2, 6, 12, 9), (10, 6, 3, 3), pads=[1, 1, 1, 1], operands=[(i8, which), (i32, (1,))]
    )
    for target in (BIG, TINY):
        result, _ = check(made, target)
        assert used(result) == {"c.pack_window", "c.packed_quant_matmul"}


@pytest.mark.parametrize("which", [(2,), (3,), (3, 2)])
def test_operands_that_no_matrix_has(which: tuple[int, ...]):
    """One element per row or column of the image: the convolution itself works in L1."""
    made = conv((1, 6, 12, 9), (10, 6, 3, 3), operands=[(i32, which)])
    result, _ = check(made, BIG)
    assert used(result) == {"c.quant_conv"}


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 8},
        {"groups": 8, "pad_value": 77},
        {"groups": 2},
        {"x_zero_point": np.int8(-5)},
        {"w_zero_point": np.arange(16, dtype=np.int8)},
        {"x_zero_point": np.int8(127), "w_zero_point": np.int8(3), "groups": 4},
        {"types": (i8, i4)},
    ],
)
def test_what_stays_a_loop_is_staged_too(options: dict[str, Any]):
    groups = options.get("groups", 1)
    made = conv((1, 8, 20, 11), (16, 8 // groups, 3, 3), pads=[1, 1, 1, 1], **options)
    for target in (BIG, "threads:l1=7168,cores=3,stack=256"):
        result, _ = check(made, target)
        assert used(result) == {"c.quant_conv"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, True),
        ({"pad_value": 77, "types": (ui8, i8)}, True),
        ({"operands": [(i32, (1,)), (i8, (0, 1, 2, 3)), (i32, ())]}, True),
        ({"strides": [2, 1], "dilations": [2, 1]}, True),
        ({"strides": [2, 2]}, True),
        ({"strides": [1, 5]}, False),
        ({"dilations": [1, 2]}, False),
        ({"operands": [(i32, (2,))]}, False),
        ({"w_zero_point": np.int8(3)}, False),
        ({"types": (i8, i4)}, False),
    ],
)
def test_rows_of_depthwise_windows_are_words(options: dict[str, Any], words: bool):
    """The generated kernel takes what it can, and C the rest."""
    made = conv((1, 8, 20, 11), (8, 1, 3, 3), pads=[1, 1, 1, 1], groups=8, **options)
    for target in ("spike", "spike:l1=20480,stack=2048"):
        result, _ = check(made, target)
        assert used(result) == {"riscv.quant_conv" if words else "c.quant_conv"}
        for op in all_ops(result, qkernel.QuantConvOp):
            assert (WORD_WINDOWS in op.attributes) == words
        if words:
            assert {s[-1] for s in splits(result).values()} == {1}
    result, _ = check(made, BIG)
    assert used(result) == {"c.quant_conv"}


# Epilogues that a kernel does not have.


@pytest.fixture(params=["accumulators in place", "accumulators apart"])
def plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A target whose kernel stores accumulators and nothing else."""
    kernels = tuple(
        replace(k, epilogue_ops=frozenset()) if k.op == "qkernel.packed_quant_matmul" else k
        for k in TARGETS["threads"].kernels
    )
    monkeypatch.setitem(
        TARGETS, "plain", replace(TARGETS["threads"], name="plain", kernels=kernels)
    )
    yield request.param


def test_a_loop_nest_finishes(plain: str):
    in_place = plain == "accumulators in place"
    made = [
        matmul(
            (33, 40), (40, 37), result=i32 if in_place else i8, operands=[(i32, (1,)), (i32, (0,))]
        ),
        conv((2, 6, 9, 8), (10, 6, 3, 3), pads=[1, 1, 1, 1], result=i32 if in_place else ui8),
    ]
    for module in made:
        for options in ("", ":l1=6400,cores=3,stack=256"):
            result, _ = check(module, f"plain{options}")
            assert used(result) >= {"c.packed_quant_matmul", "c.loops"}
            assert not any(op.epilogue_block for op in all_ops(result, qkernel.PackedQuantMatmulOp))
            for nest in all_ops(result, linalg.GenericOp):
                assert (nest.outputs[0] is nest.inputs[0]) == in_place


# Compiled.

COMPILED: dict[str, tuple[ModuleOp, str]] = {
    "rows and columns": (
        matmul((70, 37), (37, 50), result=i8, types=(ui8, i8), operands=[(i32, (1,)), (i32, (0,))]),
        TINY,
    ),
    "packed constant": (
        matmul((30, 50), (50, 70), result=ui8, constant=True, operands=[(i32, (1,)), (i8, (0, 1))]),
        LEAST,
    ),
    "batches": (matmul((3, 9, 30), (3, 30, 7), result=f32, operands=[(f32, (2,))]), LEAST),
    "zero points": (
        matmul((9, 30), (30, 7), a_zero_point=np.int8(-3), b_zero_point=np.int8(5)),
        BIG,
    ),
    "borders in a loop": (
        conv((2, 5, 41, 13), (7, 5, 3, 3), strides=[2, 1], pads=[1, 1, 1, 1], pad_value=-9),
        "threads:l1=6144,cores=4,stack=256",
    ),
    "channels": (
        conv(
            (1, 12, 9, 6),
            (48, 12, 3, 3),
            pads=[1, 1, 1, 1],
            operands=[(i32, (1,)), (i8, (0, 1, 2, 3))],
        ),
        "threads:l1=8192,cores=4,stack=256",
    ),
    "line": (conv((1, 4, 90), (9, 4, 7), pads=[3, 3], dilations=[2]), LEAST),
    "depthwise": (conv((1, 8, 9, 8), (8, 1, 3, 3), pads=[1, 1, 1, 1], groups=8), TINY),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str):
    """What the cores compute, each its share, is what the interpreter says."""
    made, target = COMPILED[name]
    inputs = inputs_of(made, 3)
    result, _ = check(made, target, seed=3)
    (expected,) = run(made, inputs)
    executable = build_module(
        result, native=False, extra_cflags=["-O1", "-g0", "-fsanitize=undefined"]
    )
    found = executable.run({f"x{i}": x for i, x in enumerate(inputs)})
    executable.close()
    np.testing.assert_array_equal(found["y0"], np.asarray(expected))
    assert len(np.unique(found["y0"])) > 20


def test_inputs_have_extremes():
    data = extreme((40, 40), i8)
    assert data.min() == -128 and data.max() == 127
