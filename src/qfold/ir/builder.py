"""Building tensor-level IR: `linalg.generic`s by numpy-like calls, every op with the builder's location."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith, builtin, tensor
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    TensorType,
    UnknownLoc,
    i64,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.rewriter import InsertPoint, Rewriter

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import is_float, signless
from qfold.ir.constants import constant_op

OpT = TypeVar("OpT", bound=Operation)
Tensor = TensorType[Attribute]
Body = Callable[["ScalarBuilder", Sequence[SSAValue]], SSAValue]
"""Writes a generic's body: (builder, element of each input ...) -> element of the result."""
Reducer = Callable[["ScalarBuilder", SSAValue, SSAValue], SSAValue]
"""(builder, element, accumulator) -> accumulator."""


def element_type(value: SSAValue) -> Attribute:
    """The element type of a tensor value."""
    return cast(Tensor, value.type).element_type


class _Inserter:
    """Inserts ops at a place, with a location."""

    def __init__(self, at: InsertPoint | Block, location: LocationAttr | None = None):
        self.at = InsertPoint.at_end(at) if isinstance(at, Block) else at
        self.location: LocationAttr = UnknownLoc() if location is None else location

    def insert(self, op: OpT) -> OpT:
        """Put `op` here and give it the current location, unless it has one."""
        for inner in op.walk():
            if isinstance(inner.location, UnknownLoc):
                inner.location = self.location
        Rewriter.insert_op(op, self.at)
        return op

    def __call__(self, op_type: Callable[..., Operation], *args: Any, **kwargs: Any) -> SSAValue:
        """`b(arith.AddfOp, x, y)`: build, insert, return the only result."""
        return self.insert(op_type(*args, **kwargs)).results[0]


class ScalarBuilder(_Inserter):
    """Scalar ops inside a generic's body. All integers here are signless: `from_storage`/`to_storage` convert."""

    def constant(self, value: float | int, type_: Attribute) -> SSAValue:
        """A scalar constant of a float or signless integer type (integers wrap to the width)."""
        if is_float(type_):
            return self(arith.ConstantOp, FloatAttr(float(value), cast(Any, type_)))
        width = cast(IntegerType, type_)
        return self(arith.ConstantOp, IntegerAttr(int(value), width, truncate_bits=True))

    def index(self, dimension: int) -> SSAValue:
        """`linalg.index`."""
        return self(linalg.IndexOp, dimension)

    def from_storage(self, value: SSAValue) -> SSAValue:
        """An unsigned element as the signless integer of the same bits; others as they are."""
        target = signless(value.type)
        return value if target == value.type else self._cast(value, target)

    def to_storage(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """A signless integer as an element of the unsigned `type_`; others as they are."""
        return value if value.type == type_ else self._cast(value, type_)

    def _cast(self, value: SSAValue, type_: Attribute) -> SSAValue:
        op = builtin.UnrealizedConversionCastOp.get([value], [type_])
        return self.insert(op).results[0]


class TensorBuilder(_Inserter):
    """Tensor-level ops. Shapes are static everywhere; methods raise `ValueError` on shapes that do not fit."""

    def constant(
        self, array: npt.NDArray[Any] | np.generic, type_: Attribute | None = None
    ) -> SSAValue:
        """A constant tensor; `type_` is the element type (default: the dtype's own)."""
        return self.insert(constant_op(np.asarray(array), type_)).results[0]

    def empty(self, shape: Sequence[int], type_: Attribute) -> SSAValue:
        """A destination, contents undefined."""
        return self(tensor.EmptyOp, (), TensorType(type_, shape))

    def fill(self, shape: Sequence[int], type_: Attribute, value: float | int) -> SSAValue:
        """A tensor of one value. The scalar is signless: of an unsigned type it is the integer of the same bits."""
        scalars = ScalarBuilder(self.at, self.location)
        scalar = scalars.constant(value, signless(type_))
        destination = self.empty(shape, type_)
        op = linalg.FillOp((scalar,), (destination,), (destination.type,))
        return self.insert(op).results[0]

    def generic(
        self,
        inputs: Sequence[tuple[SSAValue, AffineMap]],
        init: SSAValue,
        init_map: AffineMap,
        iterators: Sequence[str],
        body: Callable[[ScalarBuilder, Sequence[SSAValue], SSAValue], SSAValue],
    ) -> SSAValue:
        """One `linalg.generic`. `body` gets signless elements of the inputs and of `init`, and returns a signless element.

        `iterators`: "parallel" or "reduction" per dimension of the maps.
        """
        values = [v for v, _ in inputs]
        types = [element_type(v) for v in (*values, init)]
        block = Block(arg_types=types)
        scalars = ScalarBuilder(block, self.location)
        arguments = [scalars.from_storage(a) for a in block.args[:-1]]
        accumulator: SSAValue = block.args[-1]
        if "reduction" in iterators:
            accumulator = scalars.from_storage(accumulator)
        result = scalars.to_storage(body(scalars, arguments, accumulator), types[-1])
        scalars.insert(linalg.YieldOp(result))
        maps = ArrayAttr([AffineMapAttr(m) for m in (*(m for _, m in inputs), init_map)])
        kinds = ArrayAttr([IteratorTypeAttr(IteratorType(i)) for i in iterators])
        op = linalg.GenericOp(values, [init], Region(block), maps, kinds, [init.type])
        return self.insert(op).results[0]

    def elementwise(
        self,
        inputs: Sequence[SSAValue],
        result_type: Attribute,
        body: Body,
        *,
        shape: Sequence[int] | None = None,
    ) -> SSAValue:
        """`body` on each element, inputs broadcast as numpy does (also to `shape`); `result_type` is an element type."""
        shapes = [shape_of(v) for v in inputs]
        out = tuple(np.broadcast_shapes(*shapes, *([] if shape is None else [tuple(shape)])))
        rank = len(out)
        maps = [_broadcast_map(s, out) for s in shapes]
        return self.generic(
            list(zip(inputs, maps, strict=True)),
            self.empty(out, result_type),
            AffineMap.identity(rank),
            ["parallel"] * rank,
            lambda b, elements, _: body(b, elements),
        )

    def reduce(
        self,
        x: SSAValue,
        axes: Sequence[int],
        init: float | int,
        body: Reducer,
        *,
        keepdims: bool = False,
        result_type: Attribute | None = None,
        element: Callable[[ScalarBuilder, SSAValue], SSAValue] | None = None,
    ) -> SSAValue:
        """Reduce over `axes` (not negative) from `init`; `element` maps each element first. Result type: x's by default."""
        shape = shape_of(x)
        kept = [d for d in range(len(shape)) if d not in axes]
        type_ = element_type(x) if result_type is None else result_type
        start = self.fill([shape[d] for d in kept], type_, init)
        result = self.generic(
            [(x, AffineMap.identity(len(shape)))],
            start,
            AffineMap(len(shape), 0, tuple(AffineExpr.dimension(d) for d in kept)),
            ["reduction" if d in axes else "parallel" for d in range(len(shape))],
            lambda b, e, acc: body(b, e[0] if element is None else element(b, e[0]), acc),
        )
        if keepdims:
            return self.reshape(result, [1 if d in axes else n for d, n in enumerate(shape)])
        return result

    def transpose(self, x: SSAValue, permutation: Sequence[int]) -> SSAValue:
        """Dimension i of the result is dimension `permutation[i]` of x."""
        if list(permutation) == list(range(len(permutation))):
            return x
        shape = shape_of(x)
        destination = self.empty([shape[p] for p in permutation], element_type(x))
        op = linalg.TransposeOp(x, destination, DenseArrayBase.from_list(i64, permutation))
        return self.insert(op).results[0]

    def reshape(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """The same elements in row-major order: `tensor.collapse_shape` and `expand_shape`, at most one of each."""
        source, target = shape_of(x), tuple(shape)
        if source == target:
            return x
        if prod(source) != prod(target):
            raise ValueError(f"{list(source)} cannot be reshaped to {list(target)}")
        if 0 in source:
            return self.empty(target, element_type(x))
        if not source:
            # xDSL's verifier knows no expand_shape of a scalar.
            return self.broadcast_to(x, target)
        if not target:
            # Nor a collapse_shape to one.
            first = AffineMap(0, 0, tuple(AffineExpr.constant(0) for _ in source))
            empty = self.empty((), element_type(x))
            return self.generic(
                [(x, first)], empty, AffineMap.identity(0), [], lambda b, e, _: e[0]
            )
        for wide, narrow, expand in ((source, target, False), (target, source, True)):
            groups = reassociation(wide, narrow)
            if groups is not None:
                return self._expand(x, groups, target) if expand else self._collapse(x, groups)
        flat = self._collapse(x, [list(range(len(source)))])
        return self._expand(flat, [list(range(len(target)))], target)

    def _collapse(self, x: SSAValue, groups: Sequence[Sequence[int]]) -> SSAValue:
        source = shape_of(x)
        result = TensorType(element_type(x), [prod(source[d] for d in g) for g in groups])
        op = tensor.CollapseShapeOp(
            operands=[x],
            result_types=[result],
            properties={"reassociation": reassociation_attr(groups)},
        )
        return self.insert(op).results[0]

    def _expand(
        self, x: SSAValue, groups: Sequence[Sequence[int]], target: Sequence[int]
    ) -> SSAValue:
        result = TensorType(element_type(x), target)
        op = tensor.ExpandShapeOp(x, (), reassociation_attr(groups), list(target), result)
        return self.insert(op).results[0]

    def slice(
        self, x: SSAValue, offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
    ) -> SSAValue:
        """`x[offset : offset + size * stride : stride]` per dimension, for strides of either sign (not 0)."""
        shape = shape_of(x)
        if list(sizes) == list(shape) and all(s > 0 for s in strides):
            return x
        if all(s > 0 for s in strides):
            result = TensorType(element_type(x), sizes)
            return self(tensor.ExtractSliceOp, x, offsets, sizes, strides, result)
        # The same elements forwards: what is left has the extents of the loops, so that no map leaves a dimension open.
        starts = [
            o if s > 0 else o + (n - 1) * s for o, n, s in zip(offsets, sizes, strides, strict=True)
        ]
        x = self.slice(x, starts, sizes, [abs(s) for s in strides])
        rank = len(shape)
        expressions = tuple(
            AffineExpr.dimension(d) if stride > 0 else AffineExpr.dimension(d) * -1 + (size - 1)
            for d, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        )
        return self.generic(
            [(x, AffineMap(rank, 0, expressions))],
            self.empty(sizes, element_type(x)),
            AffineMap.identity(rank),
            ["parallel"] * rank,
            lambda b, elements, _: elements[0],
        )

    def insert_slice(
        self,
        x: SSAValue,
        into: SSAValue,
        offsets: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> SSAValue:
        """`into` with `x` written at `offsets`."""
        return self.insert(
            tensor.InsertSliceOp.from_static_parameters(
                x, into, offsets, shape_of(x), strides or [1] * len(offsets)
            )
        ).results[0]

    def concat(self, xs: Sequence[SSAValue], axis: int) -> SSAValue:
        """Concatenation along `axis` (not negative): an empty tensor and one `insert_slice` per input that is not empty."""
        if len(xs) == 1:
            return xs[0]
        shapes = [shape_of(x) for x in xs]
        out = list(shapes[0])
        out[axis] = sum(s[axis] for s in shapes)
        result = self.empty(out, element_type(xs[0]))
        offset = 0
        for x, shape in zip(xs, shapes, strict=True):
            if 0 not in shape:
                result = self.insert_slice(
                    x, result, [offset if d == axis else 0 for d in range(len(out))]
                )
            offset += shape[axis]
        return result

    def pad(
        self, x: SSAValue, low: Sequence[int], high: Sequence[int], value: float | int
    ) -> SSAValue:
        """x between `low` and `high` elements of `value` per dimension (none negative)."""
        if not any(low) and not any(high):
            return x
        shape = shape_of(x)
        out = [a + n + b for a, n, b in zip(low, shape, high, strict=True)]
        filled = self.fill(out, element_type(x), value)
        return filled if 0 in shape else self.insert_slice(x, filled, low)

    def broadcast_to(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """x copied to `shape`, as numpy broadcasts."""
        if shape_of(x) == tuple(shape):
            return x
        return self.elementwise([x], element_type(x), lambda b, e: e[0], shape=shape)


def _broadcast_map(shape: Sequence[int], out: Sequence[int]) -> AffineMap:
    """Output indices -> indices of an operand of `shape` that numpy broadcasts to `out`."""
    skip = len(out) - len(shape)
    expressions = tuple(
        AffineExpr.constant(0) if n == 1 and out[skip + d] != 1 else AffineExpr.dimension(skip + d)
        for d, n in enumerate(shape)
    )
    return AffineMap(len(out), 0, expressions)


def reassociation(wide: Sequence[int], narrow: Sequence[int]) -> list[list[int]] | None:
    """Consecutive groups of `wide`'s dimensions whose products are `narrow`'s, or None when there are none."""
    if not narrow:
        return [] if all(d == 1 for d in wide) else None
    groups: list[list[int]] = []
    d = 0
    for size in narrow:
        if d == len(wide):
            return None
        group = [d]
        product = wide[d]
        d += 1
        while product < size and d < len(wide):
            product *= wide[d]
            group.append(d)
            d += 1
        if product != size:
            return None
        groups.append(group)
    if any(wide[i] != 1 for i in range(d, len(wide))):
        return None
    groups[-1].extend(range(d, len(wide)))
    return groups


def reassociation_attr(groups: Sequence[Sequence[int]]) -> ArrayAttr[ArrayAttr[IntegerAttr]]:
    return ArrayAttr([ArrayAttr([IntegerAttr(d, i64) for d in g]) for g in groups])
