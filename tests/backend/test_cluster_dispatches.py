"""Staged dispatches as C: transfers, loops over tiles, what loops carry, and what has no place there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import get_all_dialects as get_xdsl_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from qfold.backend.build import BuildError
from qfold.backend.c.emit import emit_texts
from qfold.backend.c.program import NotLevel3
from qfold.backend.c.reader import read_program
from qfold.backend.c.signature import parameters
from qfold.backend.run import build_module
from qfold.dialects import get_all_dialects
from tests.backend.level3 import Array

DEBUG = {"native": False, "extra_cflags": ["-O1", "-DQFOLD_DEBUG_DMA"]}
"""Transfers happen when they are waited for, and whoever touches their ends before is found out."""
RACES = {"native": False, "extra_cflags": ["-O1", "-g0", "-fsanitize=thread"]}

# Doubles x by tiles of two rows; the next tile is under way while one is worked on. Both buffers are carried by the loop.
DOUBLE_BUFFERED = """
builtin.module attributes {qmm.target = "@TARGET@"} {
  func.func private @double_tile(%x: memref<2x6xf32, 1 : i64>, %y: memref<2x6xf32, 1 : i64>)
      attributes {qmm.kernel = "c.loops", qmm.split = array<i64: 2, 4>} {
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
        iterator_types = ["parallel", "parallel"]} ins(%x : memref<2x6xf32, 1 : i64>) outs(%y : memref<2x6xf32, 1 : i64>) {
    ^bb0(%e: f32, %o: f32):
      %s = arith.addf %e, %e : f32
      linalg.yield %s : f32
    }
    func.return
  }
  func.func private @double_all(%l1: memref<144xi8, 1 : i64>, %x: memref<8x6xf32, 2 : i64>, %y: memref<8x9xf32, 2 : i64>)
      attributes {qmm.kernel = "staged"} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c6 = arith.constant 6 : index
    %c48 = arith.constant 48 : index
    %c96 = arith.constant 96 : index
    %one = "memref.view"(%l1, %c0) : (memref<144xi8, 1 : i64>, index) -> memref<2x6xf32, 1 : i64>
    %other = "memref.view"(%l1, %c48) : (memref<144xi8, 1 : i64>, index) -> memref<2x6xf32, 1 : i64>
    %out = "memref.view"(%l1, %c96) : (memref<144xi8, 1 : i64>, index) -> memref<2x6xf32, 1 : i64>
    %first = memref.subview %x[0, 0] [2, 6] [1, 1] : memref<8x6xf32, 2 : i64> to memref<2x6xf32, 2 : i64>
    %t = pulp.dma_start %first, %one : (memref<2x6xf32, 2 : i64>, memref<2x6xf32, 1 : i64>) -> !pulp.transfer
    %now, %later, %last = scf.for %i = %c0 to %c6 step %c2 iter_args(%a = %one, %b = %other, %s = %t)
        -> (memref<2x6xf32, 1 : i64>, memref<2x6xf32, 1 : i64>, !pulp.transfer) {
      pulp.dma_wait %s
      %n = arith.addi %i, %c2 : index
      %next = memref.subview %x[%n, 0] [2, 6] [1, 1]
          : memref<8x6xf32, 2 : i64> to memref<2x6xf32, strided<[6, 1], offset: ?>, 2 : i64>
      %u = pulp.dma_start %next, %b
          : (memref<2x6xf32, strided<[6, 1], offset: ?>, 2 : i64>, memref<2x6xf32, 1 : i64>) -> !pulp.transfer
      func.call @double_tile(%a, %out) : (memref<2x6xf32, 1 : i64>, memref<2x6xf32, 1 : i64>) -> ()
      %to = memref.subview %y[%i, 1] [2, 6] [1, 1]
          : memref<8x9xf32, 2 : i64> to memref<2x6xf32, strided<[9, 1], offset: ?>, 2 : i64>
      %v = pulp.dma_start %out, %to
          : (memref<2x6xf32, 1 : i64>, memref<2x6xf32, strided<[9, 1], offset: ?>, 2 : i64>) -> !pulp.transfer
      pulp.dma_wait %v
      scf.yield %b, %a, %u : memref<2x6xf32, 1 : i64>, memref<2x6xf32, 1 : i64>, !pulp.transfer
    }
    pulp.dma_wait %last
    func.call @double_tile(%now, %out) : (memref<2x6xf32, 1 : i64>, memref<2x6xf32, 1 : i64>) -> ()
    %end = memref.subview %y[6, 1] [2, 6] [1, 1]
        : memref<8x9xf32, 2 : i64> to memref<2x6xf32, strided<[9, 1], offset: 55>, 2 : i64>
    %w = pulp.dma_start %out, %end
        : (memref<2x6xf32, 1 : i64>, memref<2x6xf32, strided<[9, 1], offset: 55>, 2 : i64>) -> !pulp.transfer
    pulp.dma_wait %w
    func.return
  }
  func.func @main(%l1: memref<144xi8, 1 : i64> {qmm.role = "arena"},
      %x: memref<8x6xf32, 2 : i64> {qmm.name = "x", qmm.role = "input"},
      %y: memref<8x9xf32, 2 : i64> {qmm.name = "y", qmm.role = "output"}) {
    func.call @double_all(%l1, %x, %y) {qmm.dispatch = 0 : i64}
        : (memref<144xi8, 1 : i64>, memref<8x6xf32, 2 : i64>, memref<8x9xf32, 2 : i64>) -> () loc("block/Double")
    func.return
  }
}
"""

# Copies a part of x to L1 and back: @PART@ is a subview of x, @TYPE@ its type, @TILE@ that of the tile, dense.
MOVED = """
builtin.module attributes {qmm.target = "threads"} {
  func.func private @move_part(%l1: memref<4096xi8, 1 : i64>, %x: memref<@X@, 2 : i64>, %y: memref<@Y@, 2 : i64>)
      attributes {qmm.kernel = "staged"} {
    %c0 = arith.constant 0 : index
    %tile = "memref.view"(%l1, %c0) : (memref<4096xi8, 1 : i64>, index) -> memref<@Y@, 1 : i64>
    %part = memref.subview %x@PART@ : memref<@X@, 2 : i64> to memref<@Y_IN_X@, 2 : i64>
    %t = pulp.dma_start %part, %tile : (memref<@Y_IN_X@, 2 : i64>, memref<@Y@, 1 : i64>) -> !pulp.transfer
    pulp.dma_wait %t
    %u = pulp.dma_start %tile, %y : (memref<@Y@, 1 : i64>, memref<@Y@, 2 : i64>) -> !pulp.transfer
    pulp.dma_wait %u
    func.return
  }
  func.func @main(%l1: memref<4096xi8, 1 : i64> {qmm.role = "arena"},
      %x: memref<@X@, 2 : i64> {qmm.name = "x", qmm.role = "input"},
      %y: memref<@Y@, 2 : i64> {qmm.name = "y", qmm.role = "output"}) {
    func.call @move_part(%l1, %x, %y) {qmm.dispatch = 0 : i64}
        : (memref<4096xi8, 1 : i64>, memref<@X@, 2 : i64>, memref<@Y@, 2 : i64>) -> ()
    func.return
  }
}
"""


def parsed(text: str, **values: str) -> ModuleOp:
    for name, value in values.items():
        text = text.replace(f"@{name.upper()}@", value)
    context = Context()
    for name, factory in (get_xdsl_dialects() | get_all_dialects()).items():
        context.register_dialect(name, factory)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def ran(module: ModuleOp, inputs: dict[str, Array], **options: Any) -> dict[str, Array]:
    executable = build_module(module, **options)
    found = executable.run(inputs)
    executable.close()
    return found


@pytest.mark.parametrize(
    ("cores", "options"), [(1, DEBUG), (3, RACES), (8, DEBUG), (16, RACES)], ids=str
)
def test_double_buffers(cores: int, options: dict[str, Any]) -> None:
    module = parsed(DOUBLE_BUFFERED, target=f"threads:cores={cores}")
    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    y = ran(module, {"x": x}, **options)["y"]
    assert np.array_equal(y[:, 1:7], 2 * x)
    untouched = y[:, [0, 7, 8]].view(np.uint32)
    assert (untouched == 0xA5A5A5A5).all()


def test_how_a_staged_dispatch_is_printed() -> None:
    texts = emit_texts(parsed(DOUBLE_BUFFERED, target="threads"))
    text = texts["dispatches.c"]
    assert (
        "/* ONNX: block/Double */\nvoid double_all(int8_t *l1, const float *x, float *y) {" in text
    )
    assert "float *other = net_view_f32(l1 + 48);" in text
    assert "for (ptrdiff_t i = 0; i < 6; i += 2) {" in text
    assert "const float *next = x + i * 6 + 12;" in text
    assert "u = qf_dma_start(b, next, 48);" in text
    # The output's rows are nine elements apart, and written from the second one on.
    assert "float *to = y + i * 9 + 1;" in text
    assert "v = qf_dma_start_2d(to, x_out, 24, 2, 36, 24);\n            qf_dma_wait(v);" in text
    # Nothing is cast where tiles are handled, and every view is.
    assert "(float *)" not in text
    assert "static inline float *net_view_f32(int8_t *p) {" in texts["network_buffers.h"]
    assert texts["network.c"].count("qf_fork(run_on_core, &run);") == 1
    assert (
        "double_all(net_l1_0_i8(net), in->x, out->y);\n    end_of_dispatch(0);"
        in texts["network.c"]
    )


def test_a_kernel_that_may_get_overlapping_tiles_is_not_told_otherwise() -> None:
    program = read_program(parsed(DOUBLE_BUFFERED, target="threads"))
    (leaf,) = program.kernels
    # The carried buffers are somewhere in L1, and so is the third one.
    assert leaf.overlaps
    assert not any(p.alone for p in parameters(leaf))
    apart = DOUBLE_BUFFERED.replace(
        "func.call @double_tile(%a, %out)", "func.call @double_tile(%one, %out)"
    )
    apart = apart.replace(
        "func.call @double_tile(%now, %out)", "func.call @double_tile(%other, %out)"
    )
    assert not read_program(parsed(apart, target="threads")).kernels[0].overlaps


PARTS = [
    ("5x8xf32", "2x8xf32", "[1, 0] [2, 8] [1, 1]", "2x8xf32, strided<[8, 1], offset: 8>", "tile, part, 64)"),
    ("5x8xi8", "3x4xi8", "[1, 2] [3, 4] [1, 1]", "3x4xi8, strided<[8, 1], offset: 10>", "tile, part, 4, 3, 4, 8)"),
    ("5x8xf32", "5x2xf32", "[0, 1] [5, 2] [1, 3]", "5x2xf32, strided<[8, 3], offset: 1>", "4, 2, 4, 12)"),
    (
        "3x4x5x6xi16", "2x4x2x3xi16", "[1, 0, 2, 1] [2, 4, 2, 3] [1, 1, 1, 1]",
        "2x4x2x3xi16, strided<[120, 30, 6, 1], offset: 133>", "part0 * 6, part + part0 * 30, 6, 2, 6, 12)",
    ),
    (
        "3x4x5x6xf64", "2x2x2x3xf64", "[1, 1, 2, 1] [2, 2, 2, 3] [1, 1, 1, 1]",
        "2x2x2x3xf64, strided<[120, 30, 6, 1], offset: 163>", "if (part0 + part1 > 0)",
    ),
    ("4x8xi4", "2x4xi4", "[1, 2] [2, 4] [1, 1]", "2x4xi4, strided<[8, 1], offset: 10>", "tile, part, 2, 2, 2, 4)"),
    ("6xi1", "4xi1", "[1] [4] [1]", "4xi1, strided<[1], offset: 1>", "tile, part, 4)"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "y", "part", "y_in_x", "said"), PARTS, ids=[p[0] for p in PARTS])
def test_parts_of_every_rank_and_type(x: str, y: str, part: str, y_in_x: str, said: str) -> None:
    module = parsed(MOVED, x=x, y=y, part=part, y_in_x=y_in_x)
    assert said in emit_texts(module)["dispatches.c"]
    executable = build_module(module, **DEBUG)
    type_ = executable.inputs["x"]
    shape = type_.get_shape()
    dtype = {"f32": np.float32, "f64": np.float64, "i1": np.bool_, "i16": np.int16}
    kind = dtype.get(str(type_.get_element_type()), np.int8)
    values = (np.arange(int(np.prod(shape))) % (2 if kind is np.bool_ else 8)).astype(kind)
    values = values.reshape(shape)
    found = executable.run({"x": values})["y"]
    executable.close()
    offsets, sizes, steps = (
        [int(v) for v in group.strip("[]").split(",")]
        for group in part.replace("] [", "]|[").split("|")
    )
    cut = tuple(slice(o, o + n * s, s) for o, n, s in zip(offsets, sizes, steps, strict=True))
    assert np.array_equal(found, values[cut])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[1, 2] [2, 4] [1, 1]", "[1, 2] [2, 3] [1, 1]"), "would copy parts of bytes"),
        (("%part = memref.subview", "%m = memref.alloc() : memref<4xf32, 1 : i64>\n%part = memref.subview"),
         "memref.alloc in @move_part: a staged dispatch has views of its arguments only"),
        (("func.return\n  }\n  func.func @main", "%s = arith.constant 1.0 : f32\n%q = arith.addf %s, %s : f32\n"
          "func.return\n  }\n  func.func @main"),
         "arith.addf in @move_part: a staged dispatch has transfers, loops over tiles"),
        (("%tile = \"memref.view\"(%l1, %c0)", "%n = arith.muli %c0, %c0 : index\n%tile = \"memref.view\"(%l1, %n)"),
         "memref.view at an offset that is no constant"),
    ],
)  # fmt: skip
def test_what_has_no_place_there_is_refused(change: tuple[str, str], said: str) -> None:
    text = MOVED
    for name, value in zip(("x", "y", "part", "y_in_x"), PARTS[5][:4], strict=True):
        text = text.replace(f"@{name.upper()}@", value)
    text = text.replace(*change)
    if "2, 3] [1" in change[1]:
        text = text.replace("2x4xi4", "2x3xi4")
    with pytest.raises(NotLevel3, match=said):
        emit_texts(parsed(text))


def test_what_main_only_reads_is_not_written() -> None:
    text = DOUBLE_BUFFERED.replace(
        "%t = pulp.dma_start %first, %one", "%t = pulp.dma_start %one, %first"
    )
    text = text.replace(
        "(memref<2x6xf32, 2 : i64>, memref<2x6xf32, 1 : i64>) -> !pulp.transfer\n    %now",
        "(memref<2x6xf32, 1 : i64>, memref<2x6xf32, 2 : i64>) -> !pulp.transfer\n    %now",
    )
    with pytest.raises(BuildError, match=r"discards.*const"):
        build_module(parsed(text, target="threads"))
