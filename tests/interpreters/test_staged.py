"""Staged modules: tiles brought to a scratchpad by copies that are checked, leaf kernels on them, in every domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.utils.exceptions import InterpretationError, VerifyException

from qfold.interpreters import Bounded, run, run_function
from tests.interpreters.helpers import parse, random

DOMAINS = ["exact", "f64", "bounded"]

M, K, N, TILE = 6, 8, 20, 8
"""Two whole tiles of columns in a loop, whose copies overlap with the work, and a smaller one after it."""

COLUMNS = "memref<8xi8, strided<[1], offset: ?>, 2 : i64>"
W_TILE = "memref<8x8xi8, strided<[20, 1], offset: ?>, 2 : i64>"
Y_TILE = "memref<6x8xf32, strided<[20, 1], offset: ?>, 2 : i64>"
W_LAST = "memref<8x4xi8, strided<[20, 1], offset: 16>, 2 : i64>"
Y_LAST = "memref<6x4xf32, strided<[20, 1], offset: 16>, 2 : i64>"
LAST = "memref<4xi8, strided<[1], offset: ?>, 2 : i64>"

LEAVES = f"""
  func.func private @pack(%w : memref<8x8xi8, 1 : i64>, %z : {COLUMNS}, %p : memref<2x8x4xf32, 1 : i64>) {{
    qkernel.pack %w zero_point(%z) outs(%p) : (memref<8x8xi8, 1 : i64>, {COLUMNS}, memref<2x8x4xf32, 1 : i64>) -> ()
    func.return
  }}
  func.func private @pack_last(%w : memref<8x4xi8, 1 : i64>, %z : {LAST}, %p : memref<1x8x4xf32, 1 : i64>) {{
    qkernel.pack %w zero_point(%z) outs(%p) : (memref<8x4xi8, 1 : i64>, {LAST}, memref<1x8x4xf32, 1 : i64>) -> ()
    func.return
  }}
  func.func private @matmul(%a : memref<6x8xf32, 1 : i64>, %p : memref<2x8x4xf32, 1 : i64>, %s : memref<f32, 2 : i64>,
      %y : memref<6x8xf32, 1 : i64>) {{
    qkernel.packed_matmul %a, %p scale(%s) outs(%y)
        : (memref<6x8xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>, memref<f32, 2 : i64>, memref<6x8xf32, 1 : i64>) -> ()
    func.return
  }}
  func.func private @matmul_last(%a : memref<6x8xf32, 1 : i64>, %p : memref<1x8x4xf32, 1 : i64>, %s : memref<f32, 2 : i64>,
      %y : memref<6x4xf32, 1 : i64>) {{
    qkernel.packed_matmul %a, %p scale(%s) outs(%y)
        : (memref<6x8xf32, 1 : i64>, memref<1x8x4xf32, 1 : i64>, memref<f32, 2 : i64>, memref<6x4xf32, 1 : i64>) -> ()
    func.return
  }}
"""


def buffer(name: str, type_: str, offset: int, scratchpad: bool) -> str:
    """An L1 buffer: allocated, or at a planned place in the scratchpad."""
    if not scratchpad:
        return f"%{name} = memref.alloc() : {type_}"
    return f"""%{name}_at = arith.constant {offset} : index
    %{name} = "memref.view"(%l1, %{name}_at) : (memref<1024xi8, 1 : i64>, index) -> {type_}"""


def staged(scratchpad: bool) -> str:
    """`y = s * (a @ (w - z))` by tiles of columns; the copy of the next weight tile runs while this one is used."""
    l1 = "%l1 : memref<1024xi8, 1 : i64>" if scratchpad else ""
    l1_type = "memref<1024xi8, 1 : i64>," if scratchpad else ""
    role = '{qmm.role = "arena"}' if scratchpad else ""
    buffers = [
        ("a1", "memref<6x8xf32, 1 : i64>", 0),
        ("w0", "memref<8x8xi8, 1 : i64>", 192),
        ("w1", "memref<8x8xi8, 1 : i64>", 256),
        ("w2", "memref<8x4xi8, 1 : i64>", 256),
        ("p", "memref<2x8x4xf32, 1 : i64>", 320),
        ("p2", "memref<1x8x4xf32, 1 : i64>", 320),
        ("y1", "memref<6x8xf32, 1 : i64>", 576),
        ("y2", "memref<6x4xf32, 1 : i64>", 768),
    ]
    made = "\n    ".join(buffer(*b, scratchpad) for b in buffers)
    w_tile, y_tile = W_TILE, Y_TILE
    return f"""
builtin.module {{
  {LEAVES}
  func.func private @dispatch({l1 + "," if l1 else ""} %a : memref<6x8xf32, 2 : i64>, %w : memref<8x20xi8, 2 : i64>,
      %z : memref<20xi8, 2 : i64>, %s : memref<f32, 2 : i64>, %y : memref<6x20xf32, 2 : i64>) {{
    {made}
    %zero = arith.constant 0 : index
    %two = arith.constant 2 : index
    %one = arith.constant 1 : index
    %step = arith.constant 8 : index
    %ta = pulp.dma_start %a, %a1 : (memref<6x8xf32, 2 : i64>, memref<6x8xf32, 1 : i64>) -> !pulp.transfer
    %first = memref.subview %w[0, 0] [8, 8] [1, 1] : memref<8x20xi8, 2 : i64> to memref<8x8xi8, strided<[20, 1]>, 2 : i64>
    %t0 = pulp.dma_start %first, %w0 : (memref<8x8xi8, strided<[20, 1]>, 2 : i64>, memref<8x8xi8, 1 : i64>) -> !pulp.transfer
    pulp.dma_wait %ta
    %last, %now, %next = scf.for %i = %zero to %one step %one iter_args(%t = %t0, %this = %w0, %that = %w1)
        -> (!pulp.transfer, memref<8x8xi8, 1 : i64>, memref<8x8xi8, 1 : i64>) {{
      pulp.dma_wait %t
      %after = arith.addi %i, %one : index
      %j = arith.muli %after, %step : index
      %wj = memref.subview %w[0, %j] [8, 8] [1, 1] : memref<8x20xi8, 2 : i64> to {w_tile}
      %u = pulp.dma_start %wj, %that : ({w_tile}, memref<8x8xi8, 1 : i64>) -> !pulp.transfer
      %c = arith.muli %i, %step : index
      %zc = memref.subview %z[%c] [8] [1] : memref<20xi8, 2 : i64> to {COLUMNS}
      func.call @pack(%this, %zc, %p) : (memref<8x8xi8, 1 : i64>, {COLUMNS}, memref<2x8x4xf32, 1 : i64>) -> ()
      func.call @matmul(%a1, %p, %s, %y1)
          : (memref<6x8xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>, memref<f32, 2 : i64>, memref<6x8xf32, 1 : i64>) -> ()
      %yc = memref.subview %y[0, %c] [6, 8] [1, 1] : memref<6x20xf32, 2 : i64> to {y_tile}
      %ty = pulp.dma_start %y1, %yc : (memref<6x8xf32, 1 : i64>, {y_tile}) -> !pulp.transfer
      pulp.dma_wait %ty
      scf.yield %u, %that, %this : !pulp.transfer, memref<8x8xi8, 1 : i64>, memref<8x8xi8, 1 : i64>
    }}
    pulp.dma_wait %last
    %c1 = arith.constant 8 : index
    %z1 = memref.subview %z[%c1] [8] [1] : memref<20xi8, 2 : i64> to {COLUMNS}
    func.call @pack(%now, %z1, %p) : (memref<8x8xi8, 1 : i64>, {COLUMNS}, memref<2x8x4xf32, 1 : i64>) -> ()
    func.call @matmul(%a1, %p, %s, %y1)
        : (memref<6x8xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>, memref<f32, 2 : i64>, memref<6x8xf32, 1 : i64>) -> ()
    %y1c = memref.subview %y[0, %c1] [6, 8] [1, 1] : memref<6x20xf32, 2 : i64> to {y_tile}
    %ty1 = pulp.dma_start %y1, %y1c : (memref<6x8xf32, 1 : i64>, {y_tile}) -> !pulp.transfer
    %wl = memref.subview %w[0, 16] [8, 4] [1, 1] : memref<8x20xi8, 2 : i64> to {W_LAST}
    %tl = pulp.dma_start %wl, %w2 : ({W_LAST}, memref<8x4xi8, 1 : i64>) -> !pulp.transfer
    pulp.dma_wait %tl
    %c2 = arith.constant 16 : index
    %z2 = memref.subview %z[%c2] [4] [1] : memref<20xi8, 2 : i64> to {LAST}
    func.call @pack_last(%w2, %z2, %p2) : (memref<8x4xi8, 1 : i64>, {LAST}, memref<1x8x4xf32, 1 : i64>) -> ()
    func.call @matmul_last(%a1, %p2, %s, %y2)
        : (memref<6x8xf32, 1 : i64>, memref<1x8x4xf32, 1 : i64>, memref<f32, 2 : i64>, memref<6x4xf32, 1 : i64>) -> ()
    %y2c = memref.subview %y[0, 16] [6, 4] [1, 1] : memref<6x20xf32, 2 : i64> to {Y_LAST}
    %ty2 = pulp.dma_start %y2, %y2c : (memref<6x4xf32, 1 : i64>, {Y_LAST}) -> !pulp.transfer
    pulp.dma_wait %ty1
    pulp.dma_wait %ty2
    func.return
  }}
  func.func @main({l1 + role + "," if l1 else ""} %a : memref<6x8xf32, 2 : i64> {{qmm.role = "input"}},
      %w : memref<8x20xi8, 2 : i64> {{qmm.role = "input"}}, %z : memref<20xi8, 2 : i64> {{qmm.role = "input"}},
      %s : memref<f32, 2 : i64> {{qmm.role = "input"}}, %y : memref<6x20xf32, 2 : i64> {{qmm.role = "output"}}) {{
    func.call @dispatch({"%l1, " if l1 else ""}%a, %w, %z, %s, %y) : ({l1_type} memref<6x8xf32, 2 : i64>,
        memref<8x20xi8, 2 : i64>, memref<20xi8, 2 : i64>, memref<f32, 2 : i64>, memref<6x20xf32, 2 : i64>) -> ()
    func.return
  }}
}}
"""


def operands() -> list[Any]:
    rng = np.random.default_rng(3)
    w = rng.integers(-128, 128, (K, N), np.int8)
    z = rng.integers(-20, 20, N, np.int8)
    return [random(1, M, K), w, z, np.asarray(0.03, np.float32)]


def reference(a: Any, w: Any, z: Any, s: Any) -> Any:
    return np.float64(s) * (a.astype(np.float64) @ (w.astype(np.float64) - z))


def check(y: Any, want: Any, domain: str) -> None:
    if isinstance(y, Bounded):
        np.testing.assert_allclose(y.value, want, rtol=1e-12)
        assert (y.bound > 0).all()
        assert y.bound.max() < 1e-3
    else:
        np.testing.assert_allclose(y, want, rtol=1e-12 if domain == "f64" else 1e-4, atol=1e-4)


@pytest.mark.parametrize("scratchpad", [False, True], ids=["allocated", "planned"])
@pytest.mark.parametrize("domain", DOMAINS)
def test_a_staged_module_computes_what_the_formula_says(domain: Any, scratchpad: bool) -> None:
    values = operands()
    (y,) = run(parse(staged(scratchpad)), values, domain=domain)
    check(y, reference(*values), domain)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_staged_function_on_its_own_gets_a_scratchpad(domain: Any) -> None:
    values = operands()
    y = np.zeros((M, N), np.float32)
    *_, y = run_function(parse(staged(True)), "dispatch", [None, *values, y], domain)
    check(y, reference(*values), domain)


@pytest.mark.parametrize("domain", DOMAINS)
def test_four_bit_tiles_take_half_a_byte_of_the_scratchpad(domain: Any) -> None:
    """16 bytes of weights, and floats right behind them."""
    text = """
    func.func @main(%l1 : memref<144xi8, 1 : i64>, %w : memref<8x4xi4, 2 : i64>, %p : memref<1x8x4xf32, 2 : i64>) {
      %at = arith.constant 0 : index
      %behind = arith.constant 16 : index
      %t = "memref.view"(%l1, %at) : (memref<144xi8, 1 : i64>, index) -> memref<8x4xi4, 1 : i64>
      %o = "memref.view"(%l1, %behind) : (memref<144xi8, 1 : i64>, index) -> memref<1x8x4xf32, 1 : i64>
      %zero = arith.constant 0.0 : f32
      linalg.fill ins(%zero : f32) outs(%o : memref<1x8x4xf32, 1 : i64>)
      %x = pulp.dma_start %w, %t : (memref<8x4xi4, 2 : i64>, memref<8x4xi4, 1 : i64>) -> !pulp.transfer
      pulp.dma_wait %x
      qkernel.pack %t outs(%p) : (memref<8x4xi4, 1 : i64>, memref<1x8x4xf32, 2 : i64>) -> ()
      %y = pulp.dma_start %p, %o : (memref<1x8x4xf32, 2 : i64>, memref<1x8x4xf32, 1 : i64>) -> !pulp.transfer
      pulp.dma_wait %y
      qkernel.pack %t outs(%o) : (memref<8x4xi4, 1 : i64>, memref<1x8x4xf32, 1 : i64>) -> ()
      "memref.copy"(%o, %p) : (memref<1x8x4xf32, 1 : i64>, memref<1x8x4xf32, 2 : i64>) -> ()
      func.return
    }
    """
    w = (np.arange(32, dtype=np.int8) % 16 - 8).reshape(8, 4)
    *_, p = run_function(parse(text), "main", [None, w, np.zeros((1, 8, 4), np.float32)], domain)
    np.testing.assert_array_equal(p.value if isinstance(p, Bounded) else p, w[None])


def test_only_bytes_can_be_left_out() -> None:
    with pytest.raises(ValueError, match=r"argument number 1 is memref<6x8xf32, 2 : i64>, not the"):
        run_function(parse(staged(True)), "dispatch", [None] * 6, "exact")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pulp.dma_wait %ta\n", "", "taken by one pulp.dma_wait or loop, here never"),
        ("pulp.dma_wait %last\n", "", "carried by a loop, is taken by one"),
    ],
)
def test_a_missing_wait_does_not_verify(old: str, new: str, message: str) -> None:
    assert old in staged(False)
    with pytest.raises(VerifyException, match=message):
        parse(staged(False).replace(old, new))


def moved(text: str, line: str, after: str) -> str:
    """`text` with one line moved behind another."""
    assert text.count(line) == 1 and text.count(after) == 1
    return text.replace(line, "").replace(after, after + line)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_late_wait_computes_nonsense(domain: Any) -> None:
    """Of an activation tile: the kernel reads what the copy has not brought yet."""
    late = moved(staged(True), "    pulp.dma_wait %ta\n", "    pulp.dma_wait %last\n")
    (y,) = run(parse(late), operands(), domain=domain)
    first = (y.value if isinstance(y, Bounded) else y)[:, :TILE]
    assert np.isnan(first).all()


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_tile_that_is_overwritten_while_it_is_copied_out(domain: Any) -> None:
    """The result of one tile leaves by a copy that is waited for after the next tile's kernel has written the same buffer."""
    text = staged(True).replace(
        "func.call @matmul_last(%a1, %p2, %s, %y2)", "func.call @matmul_last(%a1, %p2, %s, %over)"
    )
    text = text.replace("    %tl =", """    %over_at = arith.constant 576 : index
    %over = "memref.view"(%l1, %over_at) : (memref<1024xi8, 1 : i64>, index) -> memref<6x4xf32, 1 : i64>
    %tl =""")  # fmt: skip
    with pytest.raises(InterpretationError, match=r"source of .*dma_start.* changed before the"):
        run(parse(text), operands(), domain=domain)


@pytest.mark.parametrize("domain", DOMAINS)
def test_one_buffer_for_two_tiles_that_are_under_way(domain: Any) -> None:
    swapped = staged(False).replace("scf.yield %u, %that, %this", "scf.yield %u, %this, %that")
    (y,) = run(parse(swapped), operands(), domain=domain)
    values = operands()
    got = y.value if isinstance(y, Bounded) else y
    assert not np.allclose(got[:, TILE : 2 * TILE], reference(*values)[:, TILE : 2 * TILE])


COPIES = """
builtin.module {{
  func.func @main(%x : memref<4xf32, 2 : i64> {{qmm.role = "input"}}, %q : memref<4xi8, 2 : i64> {{qmm.role = "input"}},
      %y : memref<4xf32, 2 : i64> {{qmm.role = "output"}}) {{
    %one = arith.constant 1.0 : f32
    %a = memref.alloc() : memref<4xf32, 1 : i64>
    %b = memref.alloc() : memref<4xf32, 1 : i64>
    %i = memref.alloc() : memref<4xi8, 1 : i64>
    {body}
    func.return
  }}
  func.func private @start(%x : memref<4xf32, 2 : i64>, %a : memref<4xf32, 1 : i64>) {{
    %t = pulp.dma_start %x, %a : (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer
    pulp.dma_wait %t
    func.return
  }}
}}
"""
TO_L1 = "(memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer"
TO_L2 = "(memref<4xf32, 1 : i64>, memref<4xf32, 2 : i64>) -> !pulp.transfer"


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            f"""%t = pulp.dma_start %x, %a : {TO_L1}
            linalg.fill ins(%one : f32) outs(%a : memref<4xf32, 1 : i64>)
            pulp.dma_wait %t""",
            "destination of .*dma_start.* was written before the wait",
        ),
        (
            f"""%t = pulp.dma_start %x, %a : {TO_L1}
            %u = pulp.dma_start %x, %a : {TO_L1}
            pulp.dma_wait %t
            pulp.dma_wait %u""",
            "dma_start.* writes what .*dma_start.*, which is under way, writes",
        ),
        (
            f"""%t = pulp.dma_start %x, %a : {TO_L1}
            %u = pulp.dma_start %a, %y : {TO_L2}
            pulp.dma_wait %t
            pulp.dma_wait %u""",
            "reads what .* writes",
        ),
        (
            f"""%t = pulp.dma_start %a, %y : {TO_L2}
            func.call @start(%x, %a) : (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> ()
            pulp.dma_wait %t""",
            "writes what .* reads",
        ),
        (
            # Not one that verifies: what is caught at run time if it comes all the same.
            f"%t = pulp.dma_start %x, %a : {TO_L1}",
            "returns before it waits for .*dma_start",
        ),
        (
            f"""%t = pulp.dma_start %x, %a : {TO_L1}
            pulp.dma_wait %t
            pulp.dma_wait %t""",
            "is waited for a second time",
        ),
    ],
)  # fmt: skip
def test_races_are_errors(domain: Any, body: str, message: str) -> None:
    module = parse(COPIES.format(body=body), verify=False)
    with pytest.raises(InterpretationError, match=message):
        run(module, [random(0, 4), np.arange(4, dtype=np.int8)], domain=domain)


@pytest.mark.parametrize("domain", DOMAINS)
def test_integers_under_way_are_garbage(domain: Any) -> None:
    body = """%t = pulp.dma_start %q, %i : (memref<4xi8, 2 : i64>, memref<4xi8, 1 : i64>) -> !pulp.transfer
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
        ins(%i : memref<4xi8, 1 : i64>) outs(%y : memref<4xf32, 2 : i64>) {
    ^bb0(%n : i8, %out : f32):
      %r = arith.sitofp %n : i8 to f32
      linalg.yield %r : f32
    }
    pulp.dma_wait %t"""
    (y,) = run(
        parse(COPIES.format(body=body)), [random(0, 4), np.arange(4, dtype=np.int8)], domain=domain
    )
    assert not np.isin(y.value if isinstance(y, Bounded) else y, np.arange(4)).any()
