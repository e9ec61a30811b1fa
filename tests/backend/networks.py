"""A small planned network at level 3, as text: what the tests of the generated files share."""

from __future__ import annotations

import numpy as np
from xdsl.context import Context
from xdsl.dialects import get_all_dialects as get_xdsl_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from qfold.dialects import get_all_dialects

# Bytes that read as f32 are plausible numbers: 1.0, -0.5, 2.0, 0.75, ...
POISON = np.array([1.0, -0.5, 2.0, 0.75, -1.25, 0.5], np.float32).tobytes()
WEIGHT = np.frombuffer(POISON, np.int8).reshape(8, 3)
SCALE = np.array([0.5, 0.25, 0.125], np.float32)
ZERO_POINT = np.array([3, -7, 0], np.int8)

_GLOBAL = (
    '  "memref.global"() <{{sym_name = "{name}", sym_visibility = "private", type = memref<{count}x{type}, 2 : i64>, '
    "initial_value, constant, alignment = 64 : i64}}> "
    '{{qmm.weight = #qmm.weight<"0x{data}" : tensor<{count}x{type}>>}} : () -> ()\n'
)

_TEXT = """
builtin.module attributes {{qmm.target = "host"}} {{
{globals}
  func.func private @row_sum(%x: memref<4x8xf32, 2 : i64>, %y: memref<4xf32, 2 : i64>) attributes {{qmm.kernel = "c.loops"}} {{
    %zero = arith.constant 0.0 : f32
    linalg.fill ins(%zero : f32) outs(%y : memref<4xf32, 2 : i64>)
    linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
        iterator_types = ["parallel", "reduction"]}} ins(%x : memref<4x8xf32, 2 : i64>) outs(%y : memref<4xf32, 2 : i64>) {{
    ^bb0(%e: f32, %acc: f32):
      %s = arith.addf %acc, %e : f32
      linalg.yield %s : f32
    }}
    func.return
  }}
  func.func private @matmul_relu(%a: memref<4x8xf32, 2 : i64>, %w: memref<8x3xi8, 2 : i64>, %s: memref<3xf32, 2 : i64>,
      %z: memref<3xi8, 2 : i64>, %r: memref<4xf32, 2 : i64>, %y: memref<4x3xf32, 2 : i64>)
      attributes {{qmm.kernel = "{kernel}"}} {{
    qkernel.dequant_matmul %a, %w, %s zero_point(%z) row_sum(%r) outs(%y) {{hoisted}}
        : (memref<4x8xf32, 2 : i64>, memref<8x3xi8, 2 : i64>, memref<3xf32, 2 : i64>, memref<3xi8, 2 : i64>,
           memref<4xf32, 2 : i64>, memref<4x3xf32, 2 : i64>) -> () {{
    ^bb0(%acc: f32):
      %zero = arith.constant 0.0 : f32
      %top = arith.maximumf %acc, %zero : f32
      qmm.yield %top : f32
    }}
    func.return
  }}
  func.func private @double_in_place(%y: memref<4x3xf32, 2 : i64>) attributes {{qmm.kernel = "c.loops"}} {{
    linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
        iterator_types = ["parallel", "parallel"]}} ins(%y : memref<4x3xf32, 2 : i64>) outs(%y : memref<4x3xf32, 2 : i64>) {{
    ^bb0(%e: f32, %o: f32):
      %s = arith.addf %e, %e : f32
      linalg.yield %s : f32
    }}
    func.return
  }}
  func.func private @copy_out(%x: memref<4x3xf32, 2 : i64>, %y: memref<4x3xf32, 2 : i64>) attributes {{qmm.kernel = "c.loops"}} {{
    "memref.copy"(%x, %y) : (memref<4x3xf32, 2 : i64>, memref<4x3xf32, 2 : i64>) -> ()
    func.return
  }}
  func.func @main(%arena: memref<192xi8, 2 : i64> {{qmm.role = "arena"}},
      %x: memref<4x8xf32, 2 : i64> {{qmm.name = "x/in:0", qmm.role = "input"}},
      %out: memref<4x3xf32, 2 : i64> {{qmm.name = "int", qmm.role = "output"}}) {{
    %w0 = memref.get_global @w_0 : memref<24xi8, 2 : i64>
    %w = memref.expand_shape %w0 [[0, 1]] output_shape [8, 3] : memref<24xi8, 2 : i64> into memref<8x3xi8, 2 : i64>
    %s = memref.get_global @w_1 : memref<3xf32, 2 : i64>
    %z = memref.get_global @w_2 : memref<3xi8, 2 : i64>
    %c0 = arith.constant 0 : index
    %c64 = arith.constant 64 : index
    %r = "memref.view"(%arena, %c0) : (memref<192xi8, 2 : i64>, index) -> memref<4xf32, 2 : i64>
    %y = "memref.view"(%arena, %c64) : (memref<192xi8, 2 : i64>, index) -> memref<4x3xf32, 2 : i64>
    func.call @row_sum(%x, %r) {{qmm.dispatch = 0 : i64}} : (memref<4x8xf32, 2 : i64>, memref<4xf32, 2 : i64>) -> ()
    func.call @matmul_relu(%x, %w, %s, %z, %r, %y) {{qmm.dispatch = 1 : i64}}
        : (memref<4x8xf32, 2 : i64>, memref<8x3xi8, 2 : i64>, memref<3xf32, 2 : i64>, memref<3xi8, 2 : i64>,
           memref<4xf32, 2 : i64>, memref<4x3xf32, 2 : i64>) -> () loc("layer/MatMul */ evil")
    func.call @double_in_place(%y) {{qmm.dispatch = 2 : i64}} : (memref<4x3xf32, 2 : i64>) -> () loc("layer/Double")
    func.call @copy_out(%y, %out) {{qmm.dispatch = 3 : i64}} : (memref<4x3xf32, 2 : i64>, memref<4x3xf32, 2 : i64>) -> ()
    func.return
  }}
}}
"""


def context() -> Context:
    ctx = Context()
    for name, factory in (get_xdsl_dialects() | get_all_dialects()).items():
        ctx.register_dialect(name, factory)
    return ctx


def small_network(kernel: str = "c.dequant_matmul", weight: bytes = POISON) -> ModuleOp:
    """`2 * relu(x @ dequantize(W))`; `kernel` is what was selected for the matmul."""
    constants = (
        ("w_0", "i8", weight),
        ("w_1", "f32", SCALE.tobytes()),
        ("w_2", "i8", ZERO_POINT.tobytes()),
    )
    texts = [
        _GLOBAL.format(name=n, type=t, count=len(d) // (4 if t == "f32" else 1), data=d.hex())
        for n, t, d in constants
    ]
    module = Parser(context(), _TEXT.format(globals="".join(texts), kernel=kernel)).parse_module()
    module.verify()
    return module


def small_reference(x: np.ndarray) -> np.ndarray:
    """In float64."""
    weight = SCALE.astype(np.float64) * (WEIGHT.astype(np.float64) - ZERO_POINT)
    return 2 * np.maximum(x.astype(np.float64) @ weight, 0)
