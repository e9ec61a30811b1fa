"""Products and convolutions of integers built by hand, and data that breaks what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, f32
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.dialects import qmm
from qfold.dialects.contraction import conv_shape
from qfold.dialects.element_types import i8, i32, integer_range, ui8
from qfold.ir.builder import ScalarBuilder, TensorBuilder
from qfold.ir.locations import name_location
from tests.transforms_buffer.helpers import main, module

B = TensorBuilder
V = SSAValue


def extreme(shape: Sequence[int], element: IntegerType, seed: int = 0) -> np.ndarray[Any, Any]:
    """All values of a type, its ends more often."""
    rng = np.random.default_rng(seed)
    low, high = integer_range(element)
    values = rng.integers(low, high + 1, shape)
    ends = rng.choice([low, high], shape)
    dtype = {8: np.int8, 4: np.int8}[element.width.data]
    dtype = np.uint8 if low == 0 else dtype
    return np.where(rng.random(shape) < 0.3, ends, values).astype(dtype)


def weight(shape: Sequence[int], element: IntegerType, seed: int = 1) -> qmm.WeightAttr:
    return qmm.WeightAttr.from_array(extreme(shape, element, seed), element)


def requantise(result: Any, operands: Sequence[Any] = (), shift: int = 7) -> Region:
    """`clamp((acc * mul + add + ...) >> shift)` as one of `result`: operands are i32, or f32 and added at the end.

    With a result of f32: the accumulator as a float, operands added.
    """
    block = Block(arg_types=[i32, *operands])
    s = ScalarBuilder(block, name_location("epilogue"))
    acc, *rest = block.args
    if result == f32:
        y = s(arith.SIToFPOp, acc, f32)
        for value in rest:
            y = s(arith.AddfOp, y, value if value.type == f32 else s(arith.SIToFPOp, value, f32))
        s.insert(qmm.YieldOp(y))
        return Region(block)
    for value in rest:
        acc = s(arith.AddiOp, acc, value if value.type == i32 else s(arith.ExtSIOp, value, i32))
    if result == i32:
        s.insert(qmm.YieldOp(s(arith.MuliOp, acc, s.constant(3, i32))))
        return Region(block)
    y = s(
        arith.ShRSIOp,
        s(arith.AddiOp, acc, s.constant(1 << (shift - 1), i32)),
        s.constant(shift, i32),
    )
    low, high = integer_range(result)
    y = s(arith.MinSIOp, s(arith.MaxSIOp, y, s.constant(low, i32)), s.constant(high, i32))
    y = s(arith.TruncIOp, y, IntegerType(8))
    s.insert(qmm.YieldOp(s.to_storage(y, result)))
    return Region(block)


def dims(rank: int, *which: int) -> AffineMap:
    return AffineMap(rank, 0, tuple(AffineExpr.dimension(d) for d in which))


def matmul(
    a: Sequence[int],
    b: Sequence[int],
    *,
    types: tuple[Any, Any] = (i8, i8),
    constant: bool = False,
    transpose_b: bool = False,
    result: Any = i32,
    operands: Sequence[tuple[Any, Sequence[int]]] = (),
    **zero_points: Any,
) -> ModuleOp:
    """A product of an input with another one, or a constant. `b` is [..., K, N]; `operands` of the epilogue: (type, which
    dimensions of the output they have)."""
    stored = (*b[:-2], b[-1], b[-2]) if transpose_b else tuple(b)
    batch = np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
    out = (*batch, a[-2], b[-1])

    def build(builder: B, *inputs: V) -> V:
        x, *rest = inputs
        w = (
            builder.insert(qmm.ConstantOp(weight(stored, types[1]))).result
            if constant
            else rest.pop(0)
        )
        return builder(
            qmm.QuantMatmulOp,
            x,
            w,
            transpose_b=transpose_b,
            epilogue_operands=rest,
            epilogue_maps=[dims(len(out), *which) for _, which in operands],
            epilogue=None
            if result == i32 and not operands
            else requantise(result, [t for t, _ in operands]),
            result_element_type=result,
            **{k: builder.constant(v) for k, v in zero_points.items()},
        )

    shapes = [
        a,
        *([] if constant else [stored]),
        *([out[d] for d in which] for _, which in operands),
    ]
    kinds = [types[0], *([] if constant else [types[1]]), *(t for t, _ in operands)]
    return module(shapes, build, kinds)


@dataclass(frozen=True)
class Conv:
    """A convolution of an input with a constant."""

    x: Sequence[int]
    w: Sequence[int]
    types: tuple[Any, Any] = (i8, i8)
    strides: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    groups: int = 1
    result: Any = i8
    operands: Sequence[tuple[Any, Sequence[int]]] = ((i32, (1,)),)
    pad_value: int | None = None
    zero_points: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def window(self) -> dict[str, Any]:
        rank = len(self.w) - 2
        return {
            "strides": self.strides or [1] * rank,
            "pads": self.pads or [0] * (2 * rank),
            "dilations": self.dilations or [1] * rank,
            "groups": self.groups,
        }

    @property
    def output(self) -> tuple[int, ...]:
        w = self.window
        return conv_shape(self.x, self.w, self.groups, w["strides"], w["pads"], w["dilations"])

    @property
    def inputs(self) -> list[tuple[Any, Sequence[int]]]:
        """(element type, shape) of each."""
        added = [(t, [self.output[d] for d in which]) for t, which in self.operands]
        return [(self.types[0], self.x), *added]

    def build(self, builder: B, image: V, *rest: V) -> V:
        plain = self.result == i32 and not self.operands
        return builder(
            qmm.QuantConvOp,
            image,
            builder.insert(qmm.ConstantOp(weight(self.w, self.types[1]))).result,
            **self.window,
            pad_value=self.pad_value,
            epilogue_operands=rest,
            epilogue_maps=[dims(len(self.output), *which) for _, which in self.operands],
            epilogue=None if plain else requantise(self.result, [t for t, _ in self.operands]),
            result_element_type=self.result,
            **{k: builder.constant(v) for k, v in self.zero_points.items()},
        )


def convs(made: Sequence[Conv]) -> ModuleOp:
    """Several of them in one module."""

    def build(builder: B, *values: V) -> list[V]:
        rest = iter(values)
        results: list[V] = []
        for index, c in enumerate(made):
            builder.location = name_location(f"conv{index}")
            results.append(c.build(builder, *islice(rest, len(c.inputs))))
        return results

    inputs = [pair for c in made for pair in c.inputs]
    return module([shape for _, shape in inputs], build, [t for t, _ in inputs])


def conv(x: Sequence[int], w: Sequence[int], **options: Any) -> ModuleOp:
    """A module of one; zero points by name."""
    names = ("x_zero_point", "w_zero_point")
    zeros = {k: options.pop(k) for k in names if k in options}
    return convs([Conv(x, w, **options, zero_points=zeros)])


def inputs_of(made: ModuleOp, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Extreme bytes, larger numbers for what is added."""
    rng = np.random.default_rng(seed)
    found: list[np.ndarray[Any, Any]] = []
    for index, type_ in enumerate(main(made).function_type.inputs):
        element: Any = type_.element_type  # type: ignore[attr-defined]
        shape = type_.get_shape()  # type: ignore[attr-defined]
        if element in (i8, ui8) or (
            getattr(element, "width", None) is not None and element.width.data == 4
        ):
            found.append(extreme(shape, element, seed + index))
        elif element == i32:
            found.append(rng.integers(-20000, 20000, shape).astype(np.int32))
        else:
            found.append(rng.integers(-2000, 2000, shape).astype(np.float32))
    return found
