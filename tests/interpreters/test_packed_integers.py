"""`qkernel.pack_bytes`, `pack_window`, `packed_quant_matmul` in every domain: by their definitions, and error bounds kept."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qfold.dialects.element_types import i4, i8, integer_range, numpy_dtype, ui4, ui8
from qfold.dialects.qkernel import packed_bytes_shape, zero_point_type
from qfold.interpreters import Bounded, run
from qfold.ir.panels import in_panels, out_of_panels
from tests.interpreters.helpers import parse

DOMAINS = ["exact", "f64", "bounded"]
K, N, M = 11, 6, 5


def integers(rng: np.random.Generator, element: Any, *shape: int) -> npt.NDArray[Any]:
    low, high = integer_range(element)
    return rng.integers(low, high + 1, shape).astype(numpy_dtype(element))


def packed(w: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[K, N] in panels, by the definition."""
    panels = np.zeros(packed_bytes_shape(*w.shape), w.dtype)
    for k, n in np.ndindex(*w.shape):
        panels[n // 4, k // 4, n % 4, k % 4] = w[k, n]
    return panels


def memref(shape: tuple[int, ...], element: object) -> str:
    return f"memref<{''.join(f'{d}x' for d in shape)}{element}>"


def run_op(text: str, operands: dict[str, tuple[Any, object]], out: str, domain: Any) -> Any:
    """The output, of type `out`, of the op that `text` is; `%y` stands for it there."""
    arguments = "".join(
        f'%{name} : {memref(np.shape(v), t)} {{qmm.role = "input"}}, '
        for name, (v, t) in operands.items()
    )
    types = ", ".join([*(memref(np.shape(v), t) for v, t in operands.values()), out])
    op, _, region = text.partition(" region ")
    module = parse(
        f"""
        func.func @main({arguments}%y : {out} {{qmm.role = "output"}}) {{
          {op} : ({types}) -> () {region}
          func.return
        }}
        """
    )
    return run(module, [v for v, _ in operands.values()], domain=domain)[0]


def exact(result: Any) -> npt.NDArray[Any]:
    """Integers of exact ones: without an error bound."""
    if isinstance(result, Bounded):
        assert not result.bound.any()
        return result.value
    return result


@pytest.mark.parametrize(("k", "n"), list(product((1, 3, 4, 5, 8, 9), repeat=2)))
def test_panels_and_back(k: int, n: int) -> None:
    w = np.arange(1, k * n + 1, dtype=np.int8).reshape(k, n)
    assert np.array_equal(in_panels(w), packed(w))
    assert np.array_equal(out_of_panels(packed(w), k, n), w)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4])
def test_pack_bytes(storage: Any, transposed: bool, domain: Any) -> None:
    w = integers(np.random.default_rng(5), storage, K, N)
    low, high = integer_range(storage)
    w[0, 0], w[-1, -1] = low, high
    element = zero_point_type(storage)
    y = run_op(
        f"qkernel.pack_bytes %w outs(%y) {{{'transpose_b' if transposed else ''}}}",
        {"w": (w.T.copy() if transposed else w, storage)},
        memref(packed_bytes_shape(K, N), element),
        domain,
    )
    want = packed(w.astype(numpy_dtype(element)))
    assert exact(y).dtype == want.dtype
    assert np.array_equal(exact(y), want)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(("element", "padding"), [(i8, -128), (ui8, 255), (i8, 0)])
def test_pack_window(element: Any, padding: int, domain: Any) -> None:
    """Windows of 3 x 2 taps at distances of 1 and 2, at every second row."""
    x = integers(np.random.default_rng(6), element, 3, 6, 5)
    whole = np.pad(x, [(0, 0), (1, 2), (0, 1)], constant_values=padding)
    rows, columns = [0, 2, 4, 6], range(4)
    columns_of = [
        [whole[c, r + i, q + 2 * j] for c in range(3) for i in range(3) for j in range(2)]
        for r in rows
        for q in columns
    ]
    matrix = np.array(columns_of, x.dtype).T
    y = run_op(
        "qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3, 2>, strides = array<i64: 2, 1>,"
        f" pads = array<i64: 1, 0, 2, 1>, dilations = array<i64: 1, 2>, pad_value = {padding} : i64}}",
        {"x": (x, element)},
        memref(packed_bytes_shape(18, 16), element),
        domain,
    )
    assert np.array_equal(exact(y), packed(matrix))


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("types", list(product((i8, ui8), repeat=2)))
def test_products_of_stored_integers(types: Any, domain: Any) -> None:
    rng = np.random.default_rng(7)
    a, w = integers(rng, types[0], M, K), integers(rng, types[1], K, N)
    # Bytes from K and from N on are 0 in a packed operand; columns from N on are not stored anyway.
    y = run_op(
        "qkernel.packed_quant_matmul %a, %p outs(%y)",
        {"a": (a, types[0]), "p": (packed(w), types[1])},
        memref((M, N), "i32"),
        domain,
    )
    assert exact(y).dtype == np.int32
    assert np.array_equal(exact(y), a.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.parametrize("domain", DOMAINS)
def test_sums_are_modulo_2_to_the_32(domain: Any) -> None:
    k = 70_000
    a, w = np.full((1, k), 255, np.uint8), np.full((k, 1), 127, np.int8)
    total = 255 * 127 * k
    assert total >= 2**31
    y = run_op(
        "qkernel.packed_quant_matmul %a, %p outs(%y)",
        {"a": (a, "ui8"), "p": (packed(w), "i8")},
        memref((1, 1), "i32"),
        domain,
    )
    assert exact(y).tolist() == [[total - 2**32]]


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_epilogue_finishes_the_sums(domain: Any) -> None:
    rng = np.random.default_rng(8)
    a, w = integers(rng, ui8, M, K), integers(rng, i8, K, N)
    bias = rng.integers(-1000, 1000, M).astype(np.int32)
    region = """{
    ^bb0(%acc : i32, %e : i32):
      %sum = arith.addi %acc, %e : i32
      %shift = arith.constant 9 : i32
      %q = arith.shrsi %sum, %shift : i32
      %high = arith.constant 127 : i32
      %low = arith.constant -128 : i32
      %c = arith.minsi %q, %high : i32
      %d = arith.maxsi %c, %low : i32
      %r = arith.trunci %d : i32 to i8
      qmm.yield %r : i8
    }"""
    y = run_op(
        "qkernel.packed_quant_matmul %a, %p epilogue(%b) outs(%y) maps [affine_map<(d0, d1) -> (d0)>]"
        f" region {region}",
        {"a": (a, "ui8"), "p": (packed(w), "i8"), "b": (bias, "i32")},
        memref((M, N), "i8"),
        domain,
    )
    total = a.astype(np.int32) @ w.astype(np.int32) + bias[:, None]
    want = np.clip(total >> 9, -128, 127)
    assert np.array_equal(exact(y), want)
    assert {-128, 127} & set(want.reshape(-1).tolist())


def test_bounds_of_quantised_activations_are_those_of_quant_matmul() -> None:
    """An activation that a rounding may have moved by one is moved along, into panels and windows, and summed up."""
    rng = np.random.default_rng(9)
    a = rng.integers(-100, 100, (M, K)).astype(np.int8)
    w = integers(rng, i8, K, N)
    bound = rng.integers(0, 2, (M, K)).astype(np.float64)
    moved = Bounded(a, bound)
    sums = memref((M, N), "i32")
    found = run_op(
        "qkernel.packed_quant_matmul %a, %p outs(%y)",
        {"a": (moved, "i8"), "p": (packed(w), "i8")},
        sums,
        "bounded",
    )
    same = run_op(
        "qkernel.quant_matmul %a, %b outs(%y)",
        {"a": (moved, "i8"), "b": (w, "i8")},
        sums,
        "bounded",
    )
    assert np.array_equal(found.value, same.value)
    assert np.array_equal(found.bound, same.bound)
    assert found.bound.any()
    # As the other operand.
    panels = run_op(
        "qkernel.pack_bytes %w outs(%y) {transpose_b}",
        {"w": (moved, "i8")},
        memref(packed_bytes_shape(K, M), "i8"),
        "bounded",
    )
    assert np.array_equal(panels.bound, packed(bound.T))
    image = Bounded(a.reshape(1, M, K), bound.reshape(1, M, K))
    windows = run_op(
        "qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 2, 1>, strides = array<i64: 1, 1>,"
        " pads = array<i64: 1, 0, 0, 0>, dilations = array<i64: 1, 1>, pad_value = 3 : i64}",
        {"x": (image, "i8")},
        memref(packed_bytes_shape(2, M * K), "i8"),
        "bounded",
    )
    # The padding is exact.
    above = np.concatenate([np.zeros((1, K)), bound[:-1]])
    want = np.stack([above.reshape(-1), bound.reshape(-1)])
    assert np.array_equal(windows.bound, packed(want))
    assert np.array_equal(windows.value.reshape(-1)[: 2 * 4][[0, 4]], [3, 3])


def test_shapes_of_panels() -> None:
    assert packed_bytes_shape(9, 6) == (2, 3, 4, 4)
    assert prod(packed_bytes_shape(0, 6)) == prod(packed_bytes_shape(9, 0)) == 0
