"""linalg.generic against independent numpy code, against xDSL's own interpreter, and its reduction paths against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects import func
from xdsl.interpreter import Interpreter
from xdsl.interpreters import register_implementations as register_stock
from xdsl.interpreters.shaped_array import ShapedArray
from xdsl.interpreters.utils.ptr import TypedPtr

from qfold.interpreters import generic, run
from tests.interpreters.helpers import parse, random


def one_generic(
    maps: list[str],
    iterators: str,
    inputs: list[str],
    init: str,
    body: str,
    elements: tuple[str, ...] = (),
) -> str:
    """A function of one generic; `iterators` is a string of p and r. The block's arguments are %a0, %a1, ..., %acc."""
    types = [*inputs, init]
    element = [t.removesuffix(">").rsplit("x", 1)[-1].removeprefix("tensor<") for t in types]
    kinds = ", ".join('"parallel"' if c == "p" else '"reduction"' for c in iterators)
    names = ", ".join(f"%x{i}" for i in range(len(inputs)))
    args = ", ".join(f"%x{i} : {t}" for i, t in enumerate(inputs))
    ins = f"ins({names} : {', '.join(inputs)}) " if inputs else ""
    block = ", ".join(
        [*(f"%a{i} : {e}" for i, e in enumerate(element[:-1])), f"%acc : {element[-1]}"]
    )
    all_maps = ", ".join(f"affine_map<{m}>" for m in maps)
    return f"""
      func.func @main({args}{", " if args else ""}%init : {init}) -> {init} {{
        %y = linalg.generic {{indexing_maps = [{all_maps}], iterator_types = [{kinds}]}}
            {ins}outs(%init : {init}) {{
        ^bb0({block}):
          {body}
          linalg.yield %r : {element[-1]}
        }} -> {init}
        func.return %y : {init}
      }}
    """


def stock(text: str, args: list[Any]) -> Any:
    """The result by xDSL's own interpreter, one element at a time."""
    module = parse(text)
    interpreter = Interpreter(module)
    register_stock(interpreter, None)  # pyright: ignore[reportArgumentType]
    main = interpreter.get_op_for_symbol("main")
    assert isinstance(main, func.FuncOp)
    boxed = [
        ShapedArray(
            TypedPtr.new_float64(a.reshape(-1).tolist())
            if a.dtype.kind == "f"
            else TypedPtr.new_int64(a.reshape(-1).tolist()),
            list(a.shape),
        )
        for a in args
    ]
    (result,) = interpreter.call_op(main, tuple(boxed))
    return np.array(list(result.data_ptr.get_list(int(np.prod(result.shape))))).reshape(
        result.shape
    )


ADD = "%r = arith.addf %acc, %a0 : f32"
MULTIPLY_ADD = "%p = arith.mulf %a0, %a1 : f32\n%r = arith.addf %acc, %p : f32"
# The same sum in a form that no pattern knows: acc + x is acc - (-x).
OPAQUE = """%p = arith.mulf %a0, %a1 : f32
            %n = arith.negf %p : f32
            %r = arith.subf %acc, %n : f32"""


def test_transpose_and_broadcast() -> None:
    text = one_generic(
        ["(d0, d1, d2) -> (d2, d0)", "(d0, d1, d2) -> (d1)", "(d0, d1, d2) -> (d0, d1, d2)"],
        "ppp",
        ["tensor<4x2xf32>", "tensor<3xf32>"],
        "tensor<2x3x4xf32>",
        "%r = arith.addf %a0, %a1 : f32",
    )
    x, b = random(0, 4, 2), random(1, 3)
    (y,) = run(parse(text), [x, b, random(2, 2, 3, 4)])
    np.testing.assert_array_equal(y, x.T[:, None, :] + b[None, :, None])


def test_output_map_permutes() -> None:
    text = one_generic(
        ["(d0, d1) -> (d0, d1)", "(d0, d1) -> (d1, d0)"],
        "pp",
        ["tensor<2x3xf32>"],
        "tensor<3x2xf32>",
        "%r = arith.addf %a0, %acc : f32",
    )
    x, init = random(0, 2, 3), random(1, 3, 2)
    (y,) = run(parse(text), [x, init])
    np.testing.assert_array_equal(y, x.T + init)


@pytest.mark.parametrize(
    ("map_", "shape", "out", "expected"),
    [
        ("(d0) -> (-d0 + 6)", (7,), (7,), lambda x: x[::-1]),
        ("(d0) -> (d0 * 2 + 1)", (9,), (4,), lambda x: x[1:9:2]),
        ("(d0, d1) -> (d0, 0)", (3, 4), (3, 5), lambda x: np.repeat(x[:, :1], 5, axis=1)),
        (
            "(d0, d1) -> (d0 + d1)",
            (6,),
            (3, 4),
            lambda x: np.stack([x[i : i + 4] for i in range(3)]),
        ),
        ("(d0) -> (d0, d0)", (4, 4), (4,), np.diag),
        ("(d0) -> (d0 floordiv 3)", (3,), (7,), lambda x: x[np.arange(7) // 3]),
        ("(d0) -> (d0 mod 3)", (3,), (7,), lambda x: x[np.arange(7) % 3]),
        ("(d0, d1) -> (d1 * -1 + 3, d0)", (4, 2), (2, 4), lambda x: x[::-1].T),
    ],
)
def test_affine_maps(
    map_: str, shape: tuple[int, ...], out: tuple[int, ...], expected: Any
) -> None:
    dims = ", ".join(f"d{i}" for i in range(len(out)))
    shaped = "x".join(map(str, shape))
    result = f"tensor<{'x'.join(map(str, out))}xf32>"
    text = one_generic(
        [map_, f"({dims}) -> ({dims})"],
        "p" * len(out),
        [f"tensor<{shaped}xf32>"],
        result,
        "%r = arith.negf %a0 : f32",
    )
    x = random(0, *shape)
    (y,) = run(parse(text), [x, np.zeros(out, np.float32)])
    np.testing.assert_array_equal(y, -expected(x))


def test_map_that_leaves_the_operand_is_refused() -> None:
    text = one_generic(
        ["(d0) -> (d0 + 1)", "(d0) -> (d0)"],
        "p",
        ["tensor<4xf32>"],
        "tensor<4xf32>",
        "%r = arith.negf %a0 : f32",
    )
    with pytest.raises(IndexError, match="reaches index 4 of dimension 0, which has 4"):
        run(parse(text, verify=False), [random(0, 4), random(1, 4)])


def test_parallel_loop_that_output_does_not_index_is_refused() -> None:
    text = one_generic(
        ["(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0)"],
        "pp",
        ["tensor<2x3xf32>"],
        "tensor<2xf32>",
        "%r = arith.negf %a0 : f32",
    )
    with pytest.raises(Exception, match="write the same elements"):
        run(parse(text), [random(0, 2, 3), random(1, 2)])


@pytest.mark.parametrize("domain", ["exact", "f64"])
@pytest.mark.parametrize("body", [MULTIPLY_ADD, OPAQUE], ids=["contraction", "sequential"])
def test_matmul_bodies(body: str, domain: Any) -> None:
    text = one_generic(
        ["(d0, d1, d2) -> (d0, d2)", "(d0, d1, d2) -> (d2, d1)", "(d0, d1, d2) -> (d0, d1)"],
        "ppr",
        ["tensor<3x5xf32>", "tensor<5x4xf32>"],
        "tensor<3x4xf32>",
        body,
    )
    a, b, c = random(0, 3, 5), random(1, 5, 4), random(2, 3, 4)
    (y,) = run(parse(text), [a, b, c], domain=domain)
    np.testing.assert_allclose(y, a.astype(np.float64) @ b + c, rtol=1e-5, atol=1e-6)


LETTERS = "abcd"


@settings(max_examples=60)
@given(st.data())
def test_contractions_agree_with_einsum(data: st.DataObject) -> None:
    """Random contractions: any loops in either factor, reduced or not, in any order of dimensions."""
    sizes = {c: data.draw(st.integers(1, 4)) for c in LETTERS}
    x = "".join(data.draw(st.permutations(LETTERS))[: data.draw(st.integers(1, 4))])
    y = "".join(data.draw(st.permutations(LETTERS))[: data.draw(st.integers(1, 4))])
    present = sorted(set(x + y))
    reduced = {c for c in present if data.draw(st.booleans())}
    out = "".join(data.draw(st.permutations([c for c in present if c not in reduced])))
    loops = list(data.draw(st.permutations(present)))
    dims = "(" + ", ".join(f"d{i}" for i in range(len(loops))) + ")"

    def map_of(letters: str) -> str:
        return f"{dims} -> (" + ", ".join(f"d{loops.index(c)}" for c in letters) + ")"

    def type_of(letters: str) -> str:
        return "tensor<" + "".join(f"{sizes[c]}x" for c in letters) + "f32>"

    arguments = [random(i, *(sizes[c] for c in s)) for i, s in enumerate((x, y, out))]
    want = arguments[2] + np.einsum(
        f"{x},{y}->{out}", *(a.astype(np.float64) for a in arguments[:2])
    )
    iterators = "".join("r" if c in reduced else "p" for c in loops)
    for body in (MULTIPLY_ADD, OPAQUE):
        text = one_generic(
            [map_of(s) for s in (x, y, out)],
            iterators,
            [type_of(x), type_of(y)],
            type_of(out),
            body,
        )
        module = parse(text)
        (exact,) = run(module, arguments)
        np.testing.assert_allclose(exact, want, rtol=1e-4, atol=1e-5)
        (wide,) = run(module, arguments, domain="f64")
        np.testing.assert_allclose(wide, want, rtol=1e-12, atol=1e-12)
        (bounded,) = run(module, arguments, domain="bounded")
        assert bounded.contains(exact).all()


@pytest.mark.parametrize(
    ("body", "element", "fold"),
    [
        ("%r = arith.addf %acc, %a0 : f32", "f32", np.add),
        ("%r = arith.mulf %a0, %acc : f32", "f32", np.multiply),
        ("%r = arith.maximumf %acc, %a0 : f32", "f32", np.maximum),
        ("%r = arith.minnumf %acc, %a0 : f32", "f32", np.fmin),
        ("%r = arith.addi %acc, %a0 : i8", "i8", np.add),
        ("%r = arith.muli %acc, %a0 : i32", "i32", np.multiply),
        ("%r = arith.maxsi %acc, %a0 : i8", "i8", np.maximum),
        ("%r = arith.minsi %acc, %a0 : i64", "i64", np.minimum),
        ("%r = arith.xori %acc, %a0 : i8", "i8", np.bitwise_xor),
        ("%r = arith.andi %acc, %a0 : i1", "i1", np.logical_and),
        ("%r = arith.ori %acc, %a0 : i1", "i1", np.logical_or),
    ],
)
def test_reductions(body: str, element: str, fold: Any) -> None:
    text = one_generic(
        ["(d0, d1, d2) -> (d1, d0, d2)", "(d0, d1, d2) -> (d1)"],
        "rpr",
        [f"tensor<3x4x5x{element}>"],
        f"tensor<3x{element}>",
        body,
    )
    rng = np.random.default_rng(0)
    dtypes = {"f32": np.float32, "i1": np.bool_, "i8": np.int8, "i32": np.int32, "i64": np.int64}
    dtype = dtypes[element]
    x = (
        rng.standard_normal((3, 4, 5)) * 3
        if element == "f32"
        else rng.integers(-100, 100, (3, 4, 5))
    )
    x = (x > 0) if element == "i1" else x.astype(dtype)
    init = np.ones(3, dtype)
    (y,) = run(parse(text), [x, init])
    assert y.dtype == np.dtype(dtype)
    with np.errstate(over="ignore"):
        want = fold(fold.reduce(x, axis=(1, 2), dtype=dtype), init)
    np.testing.assert_allclose(y, want, rtol=1e-5)
    (bounded,) = run(parse(text), [x, init], domain="bounded")
    assert bounded.contains(y).all()


def test_unsigned_maximum_through_casts() -> None:
    body = """%e = builtin.unrealized_conversion_cast %a0 : ui8 to i8
              %c = builtin.unrealized_conversion_cast %acc : ui8 to i8
              %m = arith.maxui %c, %e : i8
              %r = builtin.unrealized_conversion_cast %m : i8 to ui8"""
    text = one_generic(["(d0) -> (d0)", "(d0) -> ()"], "r", ["tensor<4xui8>"], "tensor<ui8>", body)
    (y,) = run(parse(text), [np.array([3, 200, 100, 0], np.uint8), np.array(1, np.uint8)])
    assert y.dtype == np.uint8 and y == 200


def test_integer_contraction_wraps_and_is_exact() -> None:
    body = """%x = arith.extsi %a0 : i8 to i32
              %w = arith.extsi %a1 : i8 to i32
              %p = arith.muli %x, %w : i32
              %r = arith.addi %acc, %p : i32"""
    text = one_generic(
        ["(d0, d1, d2) -> (d0, d2)", "(d0, d1, d2) -> (d2, d1)", "(d0, d1, d2) -> (d0, d1)"],
        "ppr",
        ["tensor<2x1000xi8>", "tensor<1000x2xi8>"],
        "tensor<2x2xi32>",
        body,
    )
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (2, 1000), np.int8), rng.integers(-128, 128, (1000, 2), np.int8)
    init = np.full((2, 2), 2**31 - 1, np.int32)
    (y,) = run(parse(text), [a, b, init])
    want = (a.astype(np.int64) @ b + init + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(y, want)


def test_max_pool_windows() -> None:
    text = """
      func.func @main(%x : tensor<1x2x7xf32>) -> tensor<1x2x3xf32> {
        %low = arith.constant 0xFF800000 : f32
        %w = tensor.empty() : tensor<3xf32>
        %e = tensor.empty() : tensor<1x2x3xf32>
        %i = linalg.fill ins(%low : f32) outs(%e : tensor<1x2x3xf32>) -> tensor<1x2x3xf32>
        %y = linalg.generic {indexing_maps = [affine_map<(n, c, o, k) -> (n, c, o * 2 + k)>,
            affine_map<(n, c, o, k) -> (k)>, affine_map<(n, c, o, k) -> (n, c, o)>],
            iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
            ins(%x, %w : tensor<1x2x7xf32>, tensor<3xf32>) outs(%i : tensor<1x2x3xf32>) {
        ^bb0(%a : f32, %k : f32, %acc : f32):
          %r = arith.maximumf %acc, %a : f32
          linalg.yield %r : f32
        } -> tensor<1x2x3xf32>
        func.return %y : tensor<1x2x3xf32>
      }
    """
    x = random(0, 1, 2, 7)
    (y,) = run(parse(text), [x])
    np.testing.assert_array_equal(y, np.stack([x[..., o : o + 3].max(-1) for o in (0, 2, 4)], -1))


def test_index_and_gather_in_the_body() -> None:
    text = """
      func.func @main(%t : tensor<5x3xf32>, %i : tensor<4xi64>) -> tensor<4x3xf32> {
        %e = tensor.empty() : tensor<4x3xf32>
        %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
            iterator_types = ["parallel", "parallel"]} ins(%i : tensor<4xi64>) outs(%e : tensor<4x3xf32>) {
        ^bb0(%n : i64, %out : f32):
          %row = arith.index_cast %n : i64 to index
          %c = linalg.index 1 : index
          %two = arith.constant 2 : index
          %column = arith.subi %two, %c : index
          %r = tensor.extract %t[%row, %column] : tensor<5x3xf32>
          linalg.yield %r : f32
        } -> tensor<4x3xf32>
        func.return %y : tensor<4x3xf32>
      }
    """
    t, i = random(0, 5, 3), np.array([4, 0, 0, 2])
    (y,) = run(parse(text), [t, i])
    np.testing.assert_array_equal(y, t[i][:, ::-1])
    with pytest.raises(IndexError, match="of a dimension of 5") as error:
        run(parse(text), [t, i + 1])
    assert error.value.__notes__ == ["in tensor.extract"]


def test_body_that_no_pattern_knows_runs_in_loop_order() -> None:
    """acc = acc / 2 + x, a recurrence: order matters."""
    body = """%h = arith.constant 0.5 : f32
              %m = arith.mulf %acc, %h : f32
              %r = arith.addf %m, %a0 : f32"""
    text = one_generic(
        ["(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0)"],
        "pr",
        ["tensor<2x6xf32>"],
        "tensor<2xf32>",
        body,
    )
    x = random(0, 2, 6)
    want = np.zeros(2, np.float32)
    for k in range(6):
        want = want * np.float32(0.5) + x[:, k]
    (y,) = run(parse(text), [x, np.zeros(2, np.float32)])
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_slabs_do_not_change_the_result(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = one_generic(
        ["(d0, d1, d2) -> (d0, d2)", "(d0, d1, d2) -> (d2, d1)", "(d0, d1, d2) -> (d0, d1)"],
        "ppr",
        ["tensor<5x6xf32>", "tensor<6x3xf32>"],
        "tensor<5x3xf32>",
        """%i = linalg.index 0 : index
           %n = arith.index_cast %i : index to i32
           %f = arith.sitofp %n : i32 to f32
           %s = arith.addf %a0, %f : f32
           %p = arith.mulf %s, %a1 : f32
           %r = arith.addf %acc, %p : f32""",
    )
    arguments = [random(0, 5, 6), random(1, 6, 3), random(2, 5, 3)]
    (whole,) = run(parse(text), arguments, domain="f64")
    monkeypatch.setattr(generic, "CHUNK", limit)
    (parts,) = run(parse(text), arguments, domain="f64")
    np.testing.assert_allclose(parts, whole, rtol=1e-13)
    a, b, c = arguments
    want = (a.astype(np.float64) + np.arange(5)[:, None]) @ b + c
    np.testing.assert_allclose(whole, want, rtol=1e-12)


def test_no_reduction_steps_leave_the_init() -> None:
    text = one_generic(
        ["(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0)"],
        "pr",
        ["tensor<2x0xf32>"],
        "tensor<2xf32>",
        ADD,
    )
    init = random(0, 2)
    (y,) = run(parse(text), [np.zeros((2, 0), np.float32), init])
    np.testing.assert_array_equal(y, init)


@pytest.mark.parametrize(
    ("maps", "iterators", "inputs", "init", "body"),
    [
        (
            ["(d0, d1, d2) -> (d0 + d2, d1)", "(d0, d1, d2) -> (d2)", "(d0, d1, d2) -> (d1, d0)"],
            "ppr",
            ["tensor<5x2xf64>", "tensor<3xf64>"],
            "tensor<2x3xf64>",
            "%p = arith.mulf %a0, %a1 : f64\n%r = arith.addf %acc, %p : f64",
        ),
        (
            ["(d0, d1) -> (d1, -d0 + 2)", "(d0, d1) -> (d0)"],
            "pr",
            ["tensor<4x3xf64>"],
            "tensor<3xf64>",
            "%r = arith.maximumf %acc, %a0 : f64",
        ),
    ],
)
def test_against_the_stock_interpreter(
    maps: list[str], iterators: str, inputs: list[str], init: str, body: str
) -> None:
    text = one_generic(maps, iterators, inputs, init, body)
    shapes = [tuple(map(int, t[7:-1].split("x")[:-1])) for t in (*inputs, init)]
    arguments = [random(i, *s).astype(np.float64) for i, s in enumerate(shapes)]
    (y,) = run(parse(text), arguments)
    np.testing.assert_allclose(y, stock(text, arguments), rtol=1e-14)


@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
def test_named_ops(domain: Any) -> None:
    text = """
      func.func @main(%x : tensor<2x3xf32>, %w : tensor<3x4xf32>) -> (tensor<2x4xf32>, tensor<4x2xf32>, tensor<2x3x5xf32>) {
        %zero = arith.constant 0.0 : f32
        %e = tensor.empty() : tensor<2x4xf32>
        %i = linalg.fill ins(%zero : f32) outs(%e : tensor<2x4xf32>) -> tensor<2x4xf32>
        %m = linalg.matmul ins(%x, %w : tensor<2x3xf32>, tensor<3x4xf32>) outs(%i : tensor<2x4xf32>) -> tensor<2x4xf32>
        %d = tensor.empty() : tensor<4x2xf32>
        %t = linalg.transpose ins(%m : tensor<2x4xf32>) outs(%d : tensor<4x2xf32>) permutation = [1, 0]
        %f = tensor.empty() : tensor<2x3x5xf32>
        %b = linalg.broadcast ins(%x : tensor<2x3xf32>) outs(%f : tensor<2x3x5xf32>) dimensions = [2]
        func.return %m, %t, %b : tensor<2x4xf32>, tensor<4x2xf32>, tensor<2x3x5xf32>
      }
    """
    x, w = random(0, 2, 3), random(1, 3, 4)
    m, t, b = run(parse(text), [x, w], domain=domain)
    if domain == "bounded":
        assert m.contains(x @ w).all() and not b.bound.any()
        m, t, b = m.value, t.value, b.value
    np.testing.assert_allclose(m, x @ w, rtol=1e-5)
    np.testing.assert_array_equal(t, m.T)
    np.testing.assert_array_equal(b, np.repeat(x[..., None], 5, -1))


@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
def test_named_convolution(domain: Any) -> None:
    """Named ops of linalg run through the same engine as generics."""
    text = """
      func.func @main(%x : tensor<1x2x6x6xf32>, %w : tensor<3x2x3x3xf32>) -> tensor<1x3x4x4xf32> {
        %zero = arith.constant 0.0 : f32
        %e = tensor.empty() : tensor<1x3x4x4xf32>
        %i = linalg.fill ins(%zero : f32) outs(%e : tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32>
        %c = linalg.conv_2d_nchw_fchw {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
            ins(%x, %w : tensor<1x2x6x6xf32>, tensor<3x2x3x3xf32>) outs(%i : tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32>
        func.return %c : tensor<1x3x4x4xf32>
      }
    """
    x, w = random(0, 1, 2, 6, 6), random(1, 3, 2, 3, 3)
    (c,) = run(parse(text), [x, w], domain=domain)
    patches = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), axis=(2, 3))
    want = np.einsum("nchwij,fcij->nfhw", patches, w)
    if domain == "bounded":
        assert c.contains(want).all()
        c = c.value
    np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
def test_slices_of_rank_0(domain: Any) -> None:
    module = parse("""
        func.func @main(%x : tensor<f32>, %y : tensor<f32>) -> (tensor<f32>, tensor<f32>) {
          %a = tensor.insert_slice %x into %y[] [] [] : tensor<f32> into tensor<f32>
          %b = tensor.extract_slice %a[] [] [] : tensor<f32> to tensor<f32>
          func.return %a, %b : tensor<f32>, tensor<f32>
        }""")
    found = run(module, [np.float32(2), np.float32(3)], domain=domain)
    assert [float(v.value if domain == "bounded" else v) for v in found] == [2.0, 2.0]
    assert all(v.shape == () for v in found)
