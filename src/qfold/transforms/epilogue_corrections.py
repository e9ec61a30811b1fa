"""What an epilogue of an integer contraction adds to the accumulator first: constants as one, values, products of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, IntegerAttr, IntegerType
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i32
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.constants import constant_array
from qfold.ir.generics import cloned_epilogue, rebuilt
from qfold.transforms.accumulated_values import along_loops, compressed
from qfold.transforms.qmm_check_accumulators import Contraction, Integers
from qfold.transforms.quantization_scalars import widened


@dataclass(frozen=True)
class Read:
    """A tensor of i32 that is read at the output's indices through a map."""

    value: SSAValue
    map: AffineMap


Factor = Read | int
Term = Read | Integers
"""Integers are laid out along the output, with extent 1 where they do not vary."""


def wrapped(values: Integers) -> Integers:
    """Integers modulo 2^32, as i32 holds them."""
    return values.astype(np.int32).astype(np.int64)


def read_of(array: Integers, builder: TensorBuilder) -> Factor:
    """A constant that is laid out along the output as what an epilogue reads: a number, or an operand of i32."""
    array = compressed(array)
    if array.size == 1:
        return int(array.reshape(()))
    along = [d for d, n in enumerate(array.shape) if n != 1]
    value = builder.constant(array.reshape([array.shape[d] for d in along]).astype(np.int32), i32)
    dims = tuple(AffineExpr.dimension(d) for d in along)
    return Read(value, AffineMap(array.ndim, 0, dims))


class Corrections:
    """A copy of an op's epilogue, and what is to be added to the accumulator before all else in it.

    Constants that the epilogue added first, a bias for instance, are in `constant`, and no more in the copy.
    """

    def __init__(self, op: Contraction):
        self.op = op
        self.builder = TensorBuilder(InsertPoint.before(op), op.location)
        rank = len(shape_of(op.results[0]))
        self.constant: Integers = np.zeros([1] * rank, np.int64)
        """Laid out along the output."""
        self._products: list[tuple[Read, Factor]] = []
        self._operands = list(op.epilogue_operands)
        self._maps = list(op.maps)
        region = cloned_epilogue(op)
        if region is None:
            region = Region(Block(arg_types=[i32]))
            block = region.block
            ScalarBuilder(block, op.location).insert(qmm.YieldOp(block.args[0]))
        self._region, self._block = region, region.block
        self._taken = 0
        while self._take_constant():
            self._taken += 1

    @property
    def merges(self) -> bool:
        """Whether constants that were apart are now one."""
        return self._taken > 1

    def _take_constant(self) -> bool:
        """Move an addition of a constant to the accumulator, the only reader of that, from the epilogue to `constant`."""
        accumulator = self._block.args[0]
        uses = list(accumulator.uses)
        if len(uses) != 1 or not isinstance(uses[0].operation, arith.AddiOp):
            return False
        op = uses[0].operation
        found = self._constant(op.operands[1 - uses[0].index])
        if found is None:
            return False
        total = self.constant + found
        if total.size > max(self.constant.size, found.size):
            return False
        self.constant = total
        op.result.replace_all_uses_with(accumulator)
        op.detach()
        op.erase()
        return True

    def _constant(self, value: SSAValue) -> Integers | None:
        """A value in the epilogue, laid out along the output, if it is constant."""
        if isinstance(value, BlockArgument):
            if value.index == 0:
                return None
            array = constant_array(self._operands[value.index - 1])
            laid = None if array is None else along_loops(array, self._maps[value.index - 1])
            return None if laid is None else compressed(laid.astype(np.int64))
        owner = value.owner
        if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
            number = cast("IntegerAttr[Any]", owner.value).value.data
            return np.full(self.constant.shape, number, np.int64)
        return None

    def add(self, read: Read, factor: Factor = 1) -> None:
        """Add a value, or its product with another."""
        if factor != 0:
            self._products.append((read, factor))

    def subtract_product(self, left: Term, right: Term) -> None:
        """Subtract the product of two, which is a constant where both are, unless that has both their extents."""
        if isinstance(left, Read):
            left, right = right, left
        if isinstance(left, Read):
            assert isinstance(right, Read)
            raise TypeError("one of the factors has to be negated, hence be constant")
        left = compressed(-left)
        if isinstance(right, Read):
            self.add(right, read_of(left, self.builder))
            return
        right = compressed(right)
        product = left * right
        if product.size > max(left.size, right.size):
            factors = [read_of(x, self.builder) for x in (left, right)]
            assert isinstance(factors[0], Read)
            self.add(factors[0], factors[1])
            return
        total = self.constant + product
        if total.size <= max(self.constant.size, product.size):
            self.constant = total
        else:
            term = read_of(product, self.builder)
            assert isinstance(term, Read)
            self.add(term)

    def subtract_scaled(self, vector: Read, scalar: SSAValue) -> None:
        """Subtract `scalar * vector`, the scalar a stored integer of rank 0 that is known at run time; `constant` is added to the
        same tensor where that does not make it larger."""
        shape = shape_of(vector.value)
        extents, places = [1] * self.constant.ndim, [-1] * len(shape)
        for i, (expression, size) in enumerate(zip(vector.map.results, shape, strict=True)):
            if size != 1:
                (places[i],) = expression.used_dims()
                extents[places[i]] = size
        constant = compressed(wrapped(self.constant))
        inputs = [vector.value, scalar]
        if constant.any() and np.broadcast_shapes(constant.shape, extents) == tuple(extents):
            laid = constant.reshape([1 if p < 0 else constant.shape[p] for p in places])
            inputs.append(self.builder.constant(laid.astype(np.int32), i32))
            self.constant = np.zeros_like(constant)
        storage = cast(IntegerType, element_type(scalar))

        def body(b: ScalarBuilder, e: Sequence[SSAValue]) -> SSAValue:
            product = b(arith.MuliOp, e[0], widened(b, e[1], storage))
            return b(arith.SubiOp, e[2] if len(e) > 2 else b.constant(0, i32), product)

        self.add(Read(self.builder.elementwise(inputs, i32, body, shape=shape), vector.map))

    def applied(
        self,
        groups: Mapping[str, Sequence[SSAValue]] | None = None,
        properties: Mapping[str, Attribute | None] | None = None,
    ) -> Contraction:
        """The op with the corrections in its epilogue, and other operand groups and properties, as `rebuilt` takes them."""
        block, op = self._block, self.op
        first = block.first_op
        assert first is not None
        accumulator = block.args[0]
        b = ScalarBuilder(InsertPoint.before(first), op.location)
        original = list(accumulator.uses)
        value: SSAValue = accumulator
        for read, factor in self._products:
            term = self._element(read)
            if isinstance(factor, Read):
                term = b(arith.MuliOp, term, self._element(factor))
            elif factor != 1:
                term = b(arith.MuliOp, term, b.constant(factor, i32))
            value = b(arith.AddiOp, value, term)
        constant = read_of(wrapped(self.constant), self.builder)
        if constant != 0:
            term = (
                self._element(constant) if isinstance(constant, Read) else b.constant(constant, i32)
            )
            value = b(arith.AddiOp, value, term)
        if value is not accumulator:
            for use in original:
                use.operation.operands[use.index] = value
        self._drop_unread()
        maps = ArrayAttr([AffineMapAttr(m) for m in self._maps]) if self._maps else None
        trivial = op.epilogue is None and value is accumulator
        return rebuilt(
            op,
            {**(groups or {}), "epilogue_operands": self._operands},
            {**(properties or {}), "epilogue_maps": maps},
            epilogue=None if trivial else self._region,
        )

    def _element(self, read: Read) -> SSAValue:
        """The argument of the block for an operand."""
        for i, key in enumerate(zip(self._operands, self._maps, strict=True)):
            if key == (read.value, read.map):
                return self._block.args[i + 1]
        self._operands.append(read.value)
        self._maps.append(read.map)
        return self._block.insert_arg(element_type(read.value), len(self._block.args))

    def _drop_unread(self) -> None:
        """Operands that the epilogue does not read go, and constants in it that nothing reads."""
        for op in reversed(list(self._block.ops)):
            if isinstance(op, arith.ConstantOp) and op.result.first_use is None:
                op.detach()
                op.erase()
        for i in reversed(range(len(self._operands))):
            argument = self._block.args[i + 1]
            if argument.first_use is None:
                self._block.erase_arg(argument)
                del self._operands[i], self._maps[i]
