"""qmm and qkernel against independent numpy code, and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.builder import Builder
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.rewriter import InsertPoint

from qfold.dialects import qkernel, qmm
from qfold.dialects.element_types import i4, i8, i16, integer_range, numpy_dtype, ui4, ui8, ui16
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.interpreters import run
from tests.interpreters.helpers import parse, random

STORAGE: tuple[IntegerType, ...] = (i8, ui8, i4, ui4, i16, ui16)


def function(arguments: list[Attribute], build: Any) -> ModuleOp:
    """A @main on tensors, or on memrefs when `build` returns nothing (the last argument is then the output)."""
    block = Block(arg_types=arguments)
    result = build(Builder(InsertPoint.at_end(block)), block.args)
    results = () if result is None else (result,)
    block.add_op(func.ReturnOp(*results))
    op = func.FuncOp("main", (arguments, [r.type for r in results]), Region(block))
    if result is None:
        roles = ["input"] * (len(arguments) - 1) + ["output"]
        op.properties["arg_attrs"] = ArrayAttr(
            [DictionaryAttr({"qmm.role": StringAttr(r)}) for r in roles]
        )
    module = ModuleOp([op])
    module.verify()
    return module


def quantised(
    rng: np.random.Generator, storage: IntegerType, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    low, high = integer_range(storage)
    return rng.integers(low, high + 1, shape).astype(numpy_dtype(storage))


def parameters(
    rng: np.random.Generator, storage: IntegerType, shape: tuple[int, ...], symmetric: bool
) -> tuple[Any, Any]:
    scale = np.exp(rng.uniform(-3, 0, shape)).astype(np.float32)
    zero = (
        np.zeros(shape, np.int64) if symmetric else quantised(rng, storage, shape).astype(np.int64)
    )
    return scale, zero


def bias_relu() -> Region:
    """acc, bias -> max(acc + bias, 0)."""
    block = Block(arg_types=[f32, f32])
    total = arith.AddfOp(block.args[0], block.args[1])
    low = arith.ConstantOp(FloatAttr(0.0, f32))
    clipped = arith.MaximumfOp(total, low)
    block.add_ops([total, low, clipped, qmm.YieldOp(clipped)])
    return Region(block)


def last_dim_map(rank: int) -> AffineMap:
    return AffineMap(rank, 0, (AffineExpr.dimension(rank - 1),))


def expand_blocks(values: npt.NDArray[Any], block: int, depth: int) -> npt.NDArray[Any]:
    return np.repeat(values, block, axis=0)[:depth]


@settings(max_examples=60)
@given(
    storage=st.sampled_from(STORAGE),
    granularity=st.sampled_from(["tensor", "axis", "block"]),
    transposed=st.booleans(),
    hoisted=st.booleans(),
    symmetric=st.booleans(),
    with_bias=st.booleans(),
    batch=st.sampled_from([(), (2,), (3, 1)]),
    m=st.integers(1, 4),
    k=st.integers(1, 9),
    n=st.integers(1, 5),
    block=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_dequant_matmul(
    storage: IntegerType,
    granularity: str,
    transposed: bool,
    hoisted: bool,
    symmetric: bool,
    with_bias: bool,
    batch: tuple[int, ...],
    m: int,
    k: int,
    n: int,
    block: int,
    seed: int,
) -> None:
    """Every granularity, storage type and form gives a @ (scale * (w - zp)); at both levels, in all domains."""
    rng = np.random.default_rng(seed)
    w = quantised(rng, storage, (k, n))  # [K, N] here
    blocks = -(-k // block)
    shape = {"tensor": (), "axis": (n,), "block": (blocks, n)}[granularity]
    scale, zero = parameters(rng, storage, shape, symmetric)
    wide_scale, wide_zero = scale.astype(np.float64), zero
    if granularity == "block":
        wide_scale, wide_zero = expand_blocks(wide_scale, block, k), expand_blocks(zero, block, k)
    a = rng.standard_normal((*batch, m, k)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    want = a.astype(np.float64) @ (wide_scale * (w.astype(np.int64) - wide_zero))
    if with_bias:
        want = np.maximum(want + bias, 0)

    stored = w.T if transposed else w
    stored_scale, stored_zero = (
        (scale.T, zero.T) if transposed and granularity == "block" else (scale, zero)
    )
    k_axis = 1 if transposed else 0
    quant = QuantAttr.get(
        storage,
        stored_scale,
        stored_zero,
        axis={"tensor": None, "axis": 1 - k_axis, "block": k_axis}[granularity],
        block_size=block if granularity == "block" else None,
    )
    weight = WeightAttr.from_array(np.ascontiguousarray(stored), storage)
    needs_sum = hoisted and not quant.is_symmetric

    def on_tensors(b: Builder, args: Any) -> SSAValue:
        sums = b.insert(qmm.RowSumOp(args[0], quant.block_size)).result if needs_sum else None
        extra = epilogue_of(args[1], len(want.shape)) if with_bias else {}
        op = qmm.DequantMatmulOp(
            args[0], weight, quant, transpose_b=transposed, hoisted=hoisted, row_sum=sums, **extra
        )
        return b.insert(op).result

    def epilogue_of(operand: SSAValue, rank: int) -> dict[str, Any]:
        return {
            "epilogue_operands": [operand],
            "epilogue_maps": [last_dim_map(rank)],
            "epilogue": bias_relu(),
        }

    module = function([TensorType(f32, a.shape), TensorType(f32, (n,))], on_tensors)
    check(module, [a, bias], want)

    # The same on memrefs, with everything an argument.
    kernel_scale = quant.scales
    kernel_zero = quant.zero_points.astype(numpy_dtype(qkernel.zero_point_type(storage)))
    arrays = [a, np.ascontiguousarray(stored), kernel_scale, kernel_zero, bias]
    types: list[Attribute] = [f32, storage, f32, qkernel.zero_point_type(storage), f32]
    if needs_sum:
        sums = a.astype(np.float64)
        if quant.block_size is None:
            arrays.append(sums.sum(-1).astype(np.float32))
        else:
            padded = np.pad(sums, [(0, 0)] * (a.ndim - 1) + [(0, blocks * block - k)])
            arrays.append(padded.reshape(*a.shape[:-1], blocks, block).sum(-1).astype(np.float32))
        types.append(f32)

    def on_memrefs(b: Builder, args: Any) -> None:
        extra = epilogue_of(args[4], len(want.shape)) if with_bias else {}
        b.insert(
            qkernel.DequantMatmulOp(
                args[0],
                args[1],
                args[2],
                args[-1],
                zero_point=None if quant.is_symmetric else args[3],
                row_sum=args[5] if needs_sum else None,
                transpose_b=transposed,
                block_size=quant.block_size,
                hoisted=hoisted,
                **extra,
            )
        )

    shapes = [MemRefType(t, x.shape) for t, x in zip(types, arrays, strict=True)]
    module = function([*shapes, MemRefType(f32, want.shape)], on_memrefs)
    check(module, arrays, want)


def check(module: ModuleOp, arguments: list[Any], want: npt.NDArray[Any]) -> None:
    """f64 is right to the last digits, exact is within the bound around it, and the bound is of a sensible size."""
    (wide,) = run(module, arguments, domain="f64")
    size = max(1.0, float(np.abs(want).max(initial=0)))
    (exact,) = run(module, arguments)
    assert exact.dtype == np.float32
    (bounded,) = run(module, arguments, domain="bounded")
    assert bounded.contains(exact).all()
    assert np.isfinite(bounded.bound).all()
    np.testing.assert_array_equal(bounded.value, wide)
    # A row sum that is an argument was rounded to f32 by the test: the reference differs by that.
    np.testing.assert_allclose(wide, want, rtol=1e-4, atol=1e-4 * size)


@settings(max_examples=60)
@given(
    storage=st.sampled_from(STORAGE),
    per_channel=st.booleans(),
    hoisted=st.booleans(),
    symmetric=st.booleans(),
    rank=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 3]),
    data=st.data(),
)
def test_dequant_conv(
    storage: IntegerType,
    per_channel: bool,
    hoisted: bool,
    symmetric: bool,
    rank: int,
    groups: int,
    data: st.DataObject,
) -> None:
    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(rank))

    kernel, strides, dilations = draw(1, 3), draw(1, 2), draw(1, 2)
    pads = draw(0, 2) + draw(0, 2)
    spatial = tuple(
        d * (k - 1) + 1 + data.draw(st.integers(0, 3))
        for k, d in zip(kernel, dilations, strict=True)
    )
    group, filters = data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 2))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    x = rng.standard_normal((2, groups * group, *spatial)).astype(np.float32)
    w = quantised(rng, storage, (filters, group, *kernel))
    scale, zero = parameters(rng, storage, (filters,) if per_channel else (), symmetric)
    quant = QuantAttr.get(storage, scale, zero, axis=0 if per_channel else None)
    weight = WeightAttr.from_array(w, storage)

    shaped = (-1,) + (1,) * (rank + 1) if per_channel else ()
    real = scale.astype(np.float64).reshape(shaped) * (w.astype(np.int64) - zero.reshape(shaped))
    want = naive_conv(x, real, groups, strides, pads, dilations)
    window: dict[str, Any] = {
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "groups": groups,
    }
    needs_sum = hoisted and not quant.is_symmetric

    def on_tensors(b: Builder, args: Any) -> SSAValue:
        sums = None
        if needs_sum:
            sums = b.insert(qmm.WindowSumOp(args[0], kernel_shape=kernel, **window)).result
        op = qmm.DequantConvOp(args[0], weight, quant, hoisted=hoisted, window_sum=sums, **window)
        return b.insert(op).result

    check(function([TensorType(f32, x.shape)], on_tensors), [x], want)

    zero_type = qkernel.zero_point_type(storage)
    arrays = [x, w, quant.scales, quant.zero_points.astype(numpy_dtype(zero_type))]
    types: list[Attribute] = [f32, storage, f32, zero_type]
    sums_shape = (2, groups, *want.shape[2:])

    def on_memrefs(b: Builder, args: Any) -> None:
        sums = None
        if needs_sum:
            sums = b.insert(memref.AllocOp.get(f32, shape=sums_shape)).memref
            b.insert(qkernel.WindowSumOp(args[0], sums, kernel_shape=kernel, **window))
        b.insert(
            qkernel.DequantConvOp(
                args[0],
                args[1],
                args[2],
                args[-1],
                zero_point=None if quant.is_symmetric else args[3],
                window_sum=sums,
                hoisted=hoisted,
                **window,
            )
        )

    shapes = [MemRefType(t, v.shape) for t, v in zip(types, arrays, strict=True)]
    check(function([*shapes, MemRefType(f32, want.shape)], on_memrefs), arrays, want)


def naive_conv(
    x: npt.NDArray[Any],
    w: npt.NDArray[Any],
    groups: int,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
) -> npt.NDArray[Any]:
    """Convolution by its definition, an output element at a time, in float64."""
    rank = len(strides)
    kernel = w.shape[2:]
    padded = np.pad(
        x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    )
    out = tuple(
        (padded.shape[2 + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    )
    y = np.zeros((x.shape[0], w.shape[0], *out))
    group, per = w.shape[1], w.shape[0] // groups
    for f in range(w.shape[0]):
        first = f // per * group
        for position in np.ndindex(*out):
            where = tuple(
                slice(p * s, p * s + d * (k - 1) + 1, d)
                for p, s, d, k in zip(position, strides, dilations, kernel, strict=True)
            )
            patch = padded[(slice(None), slice(first, first + group), *where)]
            y[(slice(None), f, *position)] = (patch * w[f]).reshape(x.shape[0], -1).sum(-1)
    return y


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_matmul(ta: bool, tb: bool) -> None:
    a, b = random(0, 2, 1, 4, 5), random(1, 3, 5, 6)
    want = a.astype(np.float64) @ b
    stored = [
        np.ascontiguousarray(np.swapaxes(x, -1, -2)) if t else x for x, t in ((a, ta), (b, tb))
    ]

    def on_tensors(builder: Builder, args: Any) -> SSAValue:
        return builder.insert(qmm.MatmulOp(args[0], args[1], transpose_a=ta, transpose_b=tb)).result

    def on_memrefs(builder: Builder, args: Any) -> None:
        builder.insert(qkernel.MatmulOp(*args, transpose_a=ta, transpose_b=tb))

    check(function([TensorType(f32, x.shape) for x in stored], on_tensors), stored, want)
    types = [MemRefType(f32, s) for s in (*(x.shape for x in stored), want.shape)]
    check(function(list(types), on_memrefs), stored, want)


def test_conv() -> None:
    x, w = random(0, 1, 4, 6, 5), random(1, 6, 2, 3, 2)
    window: dict[str, Any] = {
        "strides": (2, 1),
        "pads": (1, 0, 2, 1),
        "dilations": (1, 2),
        "groups": 2,
    }
    want = naive_conv(x, w.astype(np.float64), 2, (2, 1), (1, 0, 2, 1), (1, 2))

    def on_tensors(b: Builder, args: Any) -> SSAValue:
        return b.insert(qmm.ConvOp(args[0], args[1], **window)).result

    def on_memrefs(b: Builder, args: Any) -> None:
        b.insert(qkernel.ConvOp(*args, **window))

    check(function([TensorType(f32, x.shape), TensorType(f32, w.shape)], on_tensors), [x, w], want)
    types = [MemRefType(f32, s) for s in (x.shape, w.shape, want.shape)]
    check(function(list(types), on_memrefs), [x, w], want)


@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4, i16])
@pytest.mark.parametrize("granularity", ["tensor", "rows", "columns", "block"])
def test_dequant_gather(storage: IntegerType, granularity: str) -> None:
    rng = np.random.default_rng(3)
    table = quantised(rng, storage, (6, 5))
    shape = {"tensor": (), "rows": (6,), "columns": (5,), "block": (6, 2)}[granularity]
    scale, zero = parameters(rng, storage, shape, False)
    axis, block = {
        "tensor": (None, None),
        "rows": (0, None),
        "columns": (1, None),
        "block": (1, 3),
    }[granularity]
    quant = QuantAttr.get(storage, scale, zero, axis=axis, block_size=block)
    wide_scale, wide_zero = scale.astype(np.float64), zero
    if granularity == "rows":
        wide_scale, wide_zero = wide_scale[:, None], zero[:, None]
    if granularity == "block":
        wide_scale, wide_zero = (np.repeat(v, 3, axis=1)[:, :5] for v in (wide_scale, zero))
    want = wide_scale * (table.astype(np.int64) - wide_zero)
    indices = np.array([[0, 5, -1], [2, -6, 2]])

    def build(b: Builder, args: Any) -> SSAValue:
        op = qmm.DequantGatherOp(args[0], WeightAttr.from_array(table, storage), quant)
        return b.insert(op).result

    module = function([TensorType(i64, (2, 3))], build)
    check(module, [indices], want[indices])
    with pytest.raises(IndexError, match="of a table of 6 rows"):
        run(module, [np.full((2, 3), 6)])


QUANTIZE = """
  func.func @main(%x : tensor<8xf32>) -> tensor<8xTYPE> {
    %q = qmm.quantize %x {quant = #qmm.quant<TYPE, scale = 0.5, zero_point = ZP>} : (tensor<8xf32>) -> tensor<8xTYPE>
    func.return %q : tensor<8xTYPE>
  }
"""


@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
@pytest.mark.parametrize(
    ("kind", "zero", "expected"),
    [
        # halves go to even: 0.25 / 0.5 = 0.5 -> 0, 0.75 -> 1.5 -> 2
        ("i8", 0, [0, 2, 0, -2, 127, -128, 0, 127]),
        ("ui8", 128, [128, 130, 128, 126, 255, 0, 128, 255]),
        ("i16", -5, [-5, -3, -5, -7, 32767, -32768, -5, 32767]),
        ("i4", 3, [3, 5, 3, 1, 7, -8, 3, 7]),
    ],
)
def test_quantize(kind: str, zero: int, expected: list[int], domain: Any) -> None:
    x = np.float32([0.25, 0.75, -0.25, -0.75, 1e30, -1e30, np.nan, np.inf])
    (q,) = run(parse(QUANTIZE.replace("TYPE", kind).replace("ZP", str(zero))), [x], domain=domain)
    q = q.value if domain == "bounded" else q
    assert q.tolist() == expected


def test_quantize_near_a_step_is_bounded_by_a_step() -> None:
    """x / scale lands within rounding of a tie: either neighbour is right, so the bound is one step there and none elsewhere."""
    x = np.float32([0.25, 0.3, 0.2500001, 1.9, 0, 0, 0, 0])
    text = (
        QUANTIZE.replace("TYPE", "ui8").replace("ZP", "128").replace("scale = 0.5", "scale = 0.1")
    )
    (q,) = run(parse(text.replace("0.1", "1.000000e-01")), [x], domain="bounded")
    assert q.bound.tolist()[:2] == [1.0, 0.0]
    assert q.bound[3:].max() == 0


def test_runtime_parameters_per_row() -> None:
    text = """
      func.func @main(%x : tensor<2x3xf32>, %s : tensor<2xf32>, %z : tensor<2xui8>) -> (tensor<2x3xui8>, tensor<2x3xf32>) {
        %q = qmm.quantize %x scale(%s) zero_point(%z) : (tensor<2x3xf32>, tensor<2xf32>, tensor<2xui8>) -> tensor<2x3xui8>
        %y = qmm.dequantize %q scale(%s) zero_point(%z) : (tensor<2x3xui8>, tensor<2xf32>, tensor<2xui8>) -> tensor<2x3xf32>
        func.return %q, %y : tensor<2x3xui8>, tensor<2x3xf32>
      }
    """
    x, s, z = np.float32([[1, 2, 3], [1, 2, 300]]), np.float32([0.5, 2]), np.uint8([10, 200])
    q, y = run(parse(text), [x, s, z])
    assert q.tolist() == [[12, 14, 16], [200, 201, 255]]
    assert y.tolist() == [[1, 2, 3], [0, 2, 110]]


@pytest.mark.parametrize("storage", [i8, ui8, i4, ui4, i16, ui16, IntegerType(32)])
def test_dequantize(storage: IntegerType) -> None:
    rng = np.random.default_rng(0)
    q = quantised(rng, storage, (3, 4))
    zero = 0 if storage == IntegerType(32) else integer_range(storage)[1]
    quant = QuantAttr.get(storage, np.float32([0.1, 0.2, 0.3, 0.4]), np.full(4, zero), axis=1)

    def build(b: Builder, args: Any) -> SSAValue:
        return b.insert(qmm.DequantizeOp(args[0], quant)).result

    module = function([TensorType(storage, q.shape)], build)
    want = (q.astype(np.int64) - zero) * quant.scales.astype(np.float64)
    check(module, [q], want)
    (exact,) = run(module, [q])
    np.testing.assert_array_equal(
        exact, (q.astype(np.int64) - zero).astype(np.float32) * quant.scales
    )
