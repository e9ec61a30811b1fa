"""Buffers: views write through, arenas are shared bytes, outputs are arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.utils.exceptions import InterpretationError

from qfold.interpreters import Bounded, run, run_function
from tests.interpreters.helpers import parse, random

DOMAINS = ["exact", "f64", "bounded"]


def numbers(value: Any) -> Any:
    return value.value if isinstance(value, Bounded) else value


NEGATE = """
  func.func private @negate(%x : memref<SHAPE>, %y : memref<SHAPE>) {
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
        iterator_types = ["parallel", "parallel"]} ins(%x : memref<SHAPE>) outs(%y : memref<SHAPE>) {
    ^bb0(%a : f32, %out : f32):
      %r = arith.negf %a : f32
      linalg.yield %r : f32
    }
    func.return
  }
"""


@pytest.mark.parametrize("domain", DOMAINS)
def test_views_write_through(domain: Any) -> None:
    text = """
      func.func @main(%y : memref<4x6xf32> {qmm.role = "output"}) {
        %one = arith.constant 1.0 : f32
        %two = arith.constant 2.0 : f32
        %three = arith.constant 3.0 : f32
        %four = arith.constant 4.0 : f32
        linalg.fill ins(%one : f32) outs(%y : memref<4x6xf32>)
        %s = memref.subview %y[1, 2] [2, 2] [2, 3] : memref<4x6xf32> to memref<2x2xf32, strided<[12, 3], offset: 8>>
        linalg.fill ins(%two : f32) outs(%s : memref<2x2xf32, strided<[12, 3], offset: 8>>)
        %c = memref.collapse_shape %y [[0, 1]] : memref<4x6xf32> into memref<24xf32>
        %i = arith.constant 5 : index
        memref.store %three, %c[%i] : memref<24xf32>
        %e = memref.expand_shape %c [[0, 1, 2]] output_shape [2, 2, 6] : memref<24xf32> into memref<2x2x6xf32>
        %p = memref.reinterpret_cast %e to offset: [6], sizes: [6, 2], strides: [1, 6]
            : memref<2x2x6xf32> to memref<6x2xf32, strided<[1, 6], offset: 6>>
        %zero = arith.constant 0 : index
        memref.store %four, %p[%i, %zero] : memref<6x2xf32, strided<[1, 6], offset: 6>>
        func.return
      }
    """
    (y,) = run(parse(text), [], domain=domain)
    want = np.ones((4, 6))
    want[1:4:2, 2:6:3] = 2
    want[0, 5] = 3
    want[1, 5] = 4
    np.testing.assert_array_equal(numbers(y), want)


@pytest.mark.parametrize("domain", DOMAINS)
def test_reinterpret_cast_of_a_part_counts_from_the_buffer(domain: Any) -> None:
    text = """
      func.func @main(%x : memref<2x3xf32> {qmm.role = "input"}, %y : memref<3x2xf32> {qmm.role = "output"}) {
        %b = memref.alloc() : memref<2x2x3xf32>
        %s = memref.subview %b[1, 0, 0] [1, 2, 3] [1, 1, 1] : memref<2x2x3xf32> to memref<2x3xf32, strided<[3, 1], offset: 6>>
        "memref.copy"(%x, %s) : (memref<2x3xf32>, memref<2x3xf32, strided<[3, 1], offset: 6>>) -> ()
        %t = memref.reinterpret_cast %s to offset: [6], sizes: [3, 2], strides: [1, 3]
            : memref<2x3xf32, strided<[3, 1], offset: 6>> to memref<3x2xf32, strided<[1, 3], offset: 6>>
        "memref.copy"(%t, %y) : (memref<3x2xf32, strided<[1, 3], offset: 6>>, memref<3x2xf32>) -> ()
        func.return
      }
    """
    x = random(0, 2, 3)
    (y,) = run(parse(text), [x], domain=domain)
    np.testing.assert_array_equal(numbers(y), x.T)


def test_views_stay_inside_their_buffer() -> None:
    text = """
      func.func @main(%y : memref<4xf32> {qmm.role = "output"}) {
        %p = memref.reinterpret_cast %y to offset: [1], sizes: [2], strides: [3]
            : memref<4xf32> to memref<2xf32, strided<[3], offset: 1>>
        func.return
      }
    """
    with pytest.raises(IndexError, match="of a buffer of 16"):
        run(parse(text), [])


ARENA = (
    NEGATE.replace("SHAPE", "2x3xf32, 2")
    + """
  func.func @main(%x : memref<2x3xf32, 2> {qmm.name = "x", qmm.role = "input"},
      %y : memref<2x3xf32, 2> {qmm.name = "y", qmm.role = "output"}, %arena : memref<64xi8, 2> {qmm.role = "arena"}) {
    %at = arith.constant OFFSET : index
    %zero = arith.constant 0 : index
    %a = memref.view %arena[%zero][] : memref<64xi8, 2> to memref<2x3xf32, 2>
    %b = memref.view %arena[%at][] : memref<64xi8, 2> to memref<2x3xf32, 2>
    func.call @negate(%x, %a) {qmm.dispatch = 0 : i64} : (memref<2x3xf32, 2>, memref<2x3xf32, 2>) -> ()
    func.call @negate(%a, %b) {qmm.dispatch = 1 : i64} : (memref<2x3xf32, 2>, memref<2x3xf32, 2>) -> ()
    %c = memref.collapse_shape %a [[0, 1]] : memref<2x3xf32, 2> into memref<6xf32, 2>
    %d = memref.expand_shape %c [[0, 1]] output_shape [2, 3] : memref<6xf32, 2> into memref<2x3xf32, 2>
    func.call @add(%d, %b, %y) {qmm.dispatch = 2 : i64} : (memref<2x3xf32, 2>, memref<2x3xf32, 2>, memref<2x3xf32, 2>) -> ()
    func.return
  }
  func.func private @add(%x : memref<2x3xf32, 2>, %z : memref<2x3xf32, 2>, %y : memref<2x3xf32, 2>) {
    linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]}
        ins(%x, %z : memref<2x3xf32, 2>, memref<2x3xf32, 2>) outs(%y : memref<2x3xf32, 2>) {
    ^bb0(%a : f32, %b : f32, %out : f32):
      %two = arith.constant 2.0 : f32
      %m = arith.mulf %a, %two : f32
      %r = arith.subf %m, %b : f32
      linalg.yield %r : f32
    }
    func.return
  }
"""
)


@pytest.mark.parametrize("domain", DOMAINS)
def test_arena(domain: Any) -> None:
    x = random(0, 2, 3)
    (y,) = run(parse(ARENA.replace("OFFSET", "24")), [x], domain=domain)
    np.testing.assert_array_equal(numbers(y), -3 * x.astype(numbers(y).dtype))


@pytest.mark.parametrize("domain", DOMAINS)
def test_overlapping_buffers_show(domain: Any) -> None:
    """A plan that puts a live buffer's last row under another one changes the numbers, in every domain."""
    x = random(0, 2, 3)
    (y,) = run(parse(ARENA.replace("OFFSET", "12")), [x], domain=domain)
    right = np.asarray(-3 * x.astype(numbers(y).dtype))
    assert (numbers(y)[1] != right[1]).all()


def test_view_outside_of_the_arena_is_refused() -> None:
    with pytest.raises(ValueError, match="24 bytes at 48 is outside of a buffer of 64 bytes"):
        run(parse(ARENA.replace("OFFSET", "48")), [random(0, 2, 3)])


@pytest.mark.parametrize(
    ("initial", "attributes"),
    [
        ("initial_value = dense<[1, -2, 3, -128]> : tensor<4xi8>", ""),
        ("initial_value", '{qmm.weight = #qmm.weight<"0x01FE0380" : tensor<4xi8>>}'),
    ],
)
def test_globals(initial: str, attributes: str) -> None:
    text = """
      "memref.global"() <{sym_name = "w", sym_visibility = "private", type = memref<4xi8>, constant, INITIAL}> ATTRS : () -> ()
      func.func @main(%y : memref<2x2xi32> {qmm.role = "output"}) {
        %g = memref.get_global @w : memref<4xi8>
        %e = memref.expand_shape %g [[0, 1]] output_shape [2, 2] : memref<4xi8> into memref<2x2xi8>
        linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
            iterator_types = ["parallel", "parallel"]} ins(%e : memref<2x2xi8>) outs(%y : memref<2x2xi32>) {
        ^bb0(%a : i8, %out : i32):
          %r = arith.extsi %a : i8 to i32
          linalg.yield %r : i32
        }
        func.return
      }
    """.replace("INITIAL", initial).replace("ATTRS", attributes)
    (y,) = run(parse(text), [])
    assert y.tolist() == [[1, -2], [3, -128]]


def test_run_function_writes_in_place() -> None:
    module = parse(NEGATE.replace("SHAPE", "2x3xf32"))
    x, y = random(0, 2, 3), np.zeros((2, 3), np.float32)
    after = run_function(module, "negate", [x, y])
    assert after[1] is y
    np.testing.assert_array_equal(y, -x)
    run_function(module, "negate", [x, x])
    np.testing.assert_array_equal(y, x)


def test_run_function_in_bounded_takes_and_returns_bounds() -> None:
    module = parse(NEGATE.replace("SHAPE", "2x3xf32"))
    x = random(0, 2, 3)
    wide = Bounded(x.astype(np.float64), np.full((2, 3), 0.25))
    _, y = run_function(module, "negate", [wide, np.zeros((2, 3), np.float32)], "bounded")
    assert isinstance(y, Bounded)
    np.testing.assert_array_equal(y.value, -x.astype(np.float64))
    assert (y.bound == 0.25).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "takes 1 inputs, got 0"),
        ([np.zeros((3, 2), np.float32)], r"argument 'x' has shape \[2, 3\], got \[3, 2\]"),
        ([np.zeros((2, 3), np.int32)], "argument 'x' is f32"),
    ],
)
def test_wrong_inputs(inputs: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(parse(ARENA.replace("OFFSET", "24")), inputs)


def test_read_only_memory_is_not_written() -> None:
    module = parse(NEGATE.replace("SHAPE", "2x3xf32"))
    y = np.zeros((2, 3), np.float32)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        run_function(module, "negate", [random(0, 2, 3), y])


def test_missing_function() -> None:
    with pytest.raises(InterpretationError, match="nowhere"):
        run(parse(ARENA.replace("OFFSET", "24")), [], entry="nowhere")
