"""Integer contractions and what follows them, as cases of one module: built on tensors, expected from numpy in int64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
)
from xdsl.ir import Attribute, Block, Region, SSAValue

from qfold.dialects.element_types import i32, integer_range, numpy_dtype, ui8
from qfold.ir.builder import TensorBuilder
from qfold.ir.locations import name_location

Array = npt.NDArray[Any]
Build = Callable[..., SSAValue | Sequence[SSAValue]]


@dataclass
class Case:
    name: str
    inputs: list[tuple[Attribute, Array]]
    build: Build
    """(builder, *inputs) -> results."""
    expected: list[Array]
    symbols: tuple[str, ...] = ()
    """What the names of the kernels of this case must be."""


@dataclass
class Suite:
    cases: list[Case] = field(default_factory=list)

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.cases.append(Case(*args, **kwargs))

    def module(self) -> ModuleOp:
        inputs = [(f"{c.name}.{i}", t, v) for c in self.cases for i, (t, v) in enumerate(c.inputs)]
        block = Block(arg_types=[TensorType(t, v.shape) for _, t, v in inputs])
        arguments = iter(block.args)
        results: list[SSAValue] = []
        names: list[str] = []
        for case in self.cases:
            builder = TensorBuilder(block, name_location(case.name))
            made = case.build(builder, *(next(arguments) for _ in case.inputs))
            values = [made] if isinstance(made, SSAValue) else list(made)
            assert len(values) == len(case.expected)
            results += values
            names += [f"{case.name}.y{i}" for i in range(len(values))]
        block.add_op(func.ReturnOp(*results))

        def attributes(names: Sequence[str]) -> ArrayAttr[DictionaryAttr]:
            return ArrayAttr([DictionaryAttr({"qmm.name": StringAttr(n)}) for n in names])

        main = func.FuncOp(
            "main",
            (block.arg_types, [r.type for r in results]),
            Region(block),
            arg_attrs=attributes([n for n, _, _ in inputs]),
            res_attrs=attributes(names),
        )
        module = ModuleOp([main])
        module.verify()
        return module

    def values(self) -> dict[str, Array]:
        return {f"{c.name}.{i}": v for c in self.cases for i, (_, v) in enumerate(c.inputs)}

    def arrays(self) -> list[Array]:
        return [v for c in self.cases for _, v in c.inputs]

    def expected(self) -> dict[str, Array]:
        return {f"{c.name}.y{i}": v for c in self.cases for i, v in enumerate(c.expected)}


def integers(rng: np.random.Generator, type_: IntegerType, *shape: int) -> Array:
    """All values of the type, its extremes often."""
    low, high = integer_range(type_)
    values = rng.integers(low, high + 1, shape)
    extreme = rng.random(shape) < 0.2
    values = np.where(extreme, np.where(rng.random(shape) < 0.5, low, high), values)
    return values.astype(numpy_dtype(type_))


def wrapped(sums: Array) -> Array:
    """Sums of int64 as an i32 accumulator holds them, which no case may need."""
    assert not sums.size or np.abs(sums).max() < 2**31
    return sums.astype(np.int32)


def matmul(
    a: Array, b: Array, a_zero: Any = 0, b_zero: Any = 0, transpose_b: bool = False
) -> Array:
    """The oracle of `quant_matmul`."""
    a_zero, b_zero = np.asarray(a_zero, np.int64), np.asarray(b_zero, np.int64)
    right = b.astype(np.int64)
    right = np.swapaxes(right, -1, -2) if transpose_b else right
    left = a.astype(np.int64) - (a_zero[..., None] if a_zero.ndim else a_zero)
    return wrapped(left @ (right - b_zero))


def conv(x: Array, w: Array, window: dict[str, Any], x_zero: Any = 0, w_zero: Any = 0) -> Array:
    """The oracle of `quant_conv`, output by output."""
    strides, pads, dilations = window["strides"], window["pads"], window["dilations"]
    groups, rank = window["groups"], x.ndim - 2
    zero = np.asarray(w_zero, np.int64)
    left = x.astype(np.int64) - int(x_zero)
    right = w.astype(np.int64) - (zero.reshape(-1, *(1,) * (w.ndim - 1)) if zero.ndim else zero)
    left = np.pad(left, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    extents = [
        (left.shape[2 + d] - dilations[d] * (w.shape[2 + d] - 1) - 1) // strides[d] + 1
        for d in range(rank)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *extents), np.int64)
    per_group = w.shape[0] // groups
    for position in np.ndindex(*extents):
        where = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d)
            for p, s, d, k in zip(position, strides, dilations, w.shape[2:], strict=True)
        )
        patch = left[(slice(None), slice(None), *where)]
        for o in range(w.shape[0]):
            first = o // per_group * w.shape[1]
            part = patch[:, first : first + w.shape[1]]
            y[(slice(None), o, *position)] = (part * right[o]).reshape(len(x), -1).sum(axis=1)
    return wrapped(y)


def requantized(
    acc: Array,
    storage: IntegerType,
    multiplier: Any,
    zero: int = 0,
    low: int | None = None,
    high: int | None = None,
) -> Array:
    """The oracle of `requantize`; `multiplier` broadcasts."""
    smallest, largest = integer_range(storage)
    steps = np.rint(acc.astype(np.float64) * np.asarray(multiplier, np.float64)) + zero
    bounds = (smallest if low is None else low, largest if high is None else high)
    return np.clip(steps, *bounds).astype(numpy_dtype(storage))


def shifted(
    acc: Array, storage: IntegerType, mul: Any, add: Any, shift: Any, rounding: str
) -> Array:
    """The oracle of `requantize_shift`, in Python's integers."""

    def one(a: int, m: int, c: int, s: int) -> int:
        total = int(a) * int(m) + int(c)
        quotient, rest = divmod(total, 1 << int(s))
        if rounding == "half_even":
            quotient += int(2 * rest + (quotient & 1) > 1 << int(s))
        return quotient

    wide = np.vectorize(one, otypes=[object])(acc, *np.broadcast_arrays(mul, add, shift))
    return np.clip(wide, *integer_range(storage)).astype(numpy_dtype(storage))


def quantized_dynamically(
    x: Array, storage: IntegerType, per_row: bool
) -> tuple[Array, Array, Array]:
    """The oracle of `dynamic_quantize`, in f32 as ONNX computes."""
    axes = -1 if per_row else None
    if storage == ui8:
        high, low = np.maximum(x.max(axis=axes), 0), np.minimum(x.min(axis=axes), 0)
        scale = np.where(high == low, np.float32(1), (high - low) / np.float32(255))
        zero = np.clip(np.rint(-low / scale), 0, 255)
    else:
        high = np.abs(x).max(axis=axes)
        scale = np.where(high == 0, np.float32(1), high / np.float32(127))
        zero = np.zeros_like(scale)
    steps = np.rint(x / (scale[..., None] if per_row else scale)) + (
        zero[..., None] if per_row else zero
    )
    dtype = numpy_dtype(storage)
    q = np.clip(steps, *integer_range(storage)).astype(dtype)
    return q, np.asarray(scale, np.float32), np.asarray(zero).astype(dtype)


def add_bias(b: TensorBuilder, acc: SSAValue, bias: Array) -> SSAValue:
    """The sum with a constant that broadcasts, in i32."""
    constant = b.constant(bias.astype(np.int32), i32)
    return b.elementwise([acc, constant], i32, lambda s, e: s(arith.AddiOp, e[0], e[1]))


def scaled(b: TensorBuilder, acc: SSAValue, scale: Array) -> SSAValue:
    """`scale * float(acc)`."""
    constant = b.constant(scale.astype(np.float32), f32)
    return b.elementwise(
        [acc, constant], f32, lambda s, e: s(arith.MulfOp, s(arith.SIToFPOp, e[0], f32), e[1])
    )


def constant(b: TensorBuilder, value: Any, type_: IntegerType) -> SSAValue:
    return b.constant(np.asarray(value).astype(numpy_dtype(type_)), type_)
