"""`qmm-fuse-quantized`: contractions of dequantised integers become contractions of the integers, up to the next quantise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import EpilogueOperation, shape_of, window_of
from qfold.dialects.integer_operands import DATA_TYPES, WEIGHT_TYPES, zero_point_type
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.builder import TensorBuilder, element_type
from qfold.ir.generics import function_blocks, local_rewriter, on_tensors
from qfold.ir.locations import fuse_locations, replace_op
from qfold.ir.quantized import (
    QuantizedConstant,
    constant_quant,
    is_view,
    permutation_of,
    trace_quantized,
)
from qfold.transforms.accumulated_values import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Accumulated,
    AccumulatedValues,
    dequantized_accumulator,
    tensor_quant,
)
from qfold.transforms.integer_chains import IntegerChains, picks_elements
from qfold.transforms.integer_sums import summed
from qfold.transforms.qmm_check_accumulators import accumulator_of
from qfold.transforms.qmm_fuse_dequant import keep_attributes, refuse
from qfold.transforms.qmm_linalg_cse import erase_unused

Matmul = qmm.MatmulOp | qmm.DequantMatmulOp
Conv = qmm.ConvOp | qmm.DequantConvOp

_ISLAND = 100
"""Ops between a dequantise and a quantise that are looked at for a reason."""

_ACTIVATION = "an activation of i8 or ui8, quantised per tensor, or a matmul's per row"
_STAYS_INTEGER = "layout, Relu, Clip, maxima, averages, concatenation, positive factors, biases that are multiples of the scale"
_OPERANDS = "two dequantised operands: " + _ACTIVATION + "; weights per tensor or output channel"


@dataclass(frozen=True)
class Integers:
    """One operand of a contraction as `scale * (value - zero_point)`."""

    value: SSAValue
    scale: npt.NDArray[np.float64]
    """Rank 0, or one for each index of the operand's outer dimension (rows, columns, output channels)."""
    zero_point: npt.NDArray[np.int32]
    transposed: bool = False
    """The stored matrix is the operand with its last two dimensions exchanged."""
    ops: tuple[Operation, ...] = ()
    """What it was made of."""

    @staticmethod
    def of(
        value: SSAValue,
        quant: QuantAttr,
        *,
        transposed: bool = False,
        ops: tuple[Operation, ...] = (),
    ) -> Integers:
        """Parameters of `quant`, whose axis is the outer dimension if it has one."""
        scales = quant.scales.astype(np.float64)
        return Integers(value, scales, quant.zero_points, transposed, ops)

    def zero_point_operand(self, builder: TensorBuilder) -> SSAValue | None:
        """The zero points as a constant; None for 0."""
        if not self.zero_point.any():
            return None
        zeros = self.zero_point
        if zeros.size and (zeros == zeros.flat[0]).all():
            zeros = zeros.flat[:1].reshape(())
        return builder.constant(zeros, zero_point_type(cast(IntegerType, element_type(self.value))))


@dataclass
class _Function:
    """The pass at work on one block, from its first op to its last."""

    block: Block
    accumulated: AccumulatedValues
    chains: IntegerChains
    dequantizes: dict[SSAValue, SSAValue] = field(default_factory=dict["SSAValue", "SSAValue"])
    """Float values -> the same, dequantised from integers that were moved and compared before."""

    def run(self) -> None:
        for op in list(self.block.ops):
            match op:
                case qmm.MatmulOp() | qmm.DequantMatmulOp():
                    self.fuse_matmul(op)
                case qmm.ConvOp() | qmm.DequantConvOp():
                    self.fuse_conv(op)
                case qmm.QuantizeOp():
                    self.quantize(op)
                case linalg.GenericOp() if on_tensors(op) and not picks_elements(op):
                    self.read_integers(op)
                    total = summed(op, self.chains)
                    self.accumulated.known[op.results[0]] = total or self.accumulated.of(
                        op.results[0]
                    )
                case _:
                    # In order, so that nothing is asked of a long chain at once.
                    for result in op.results:
                        self.accumulated.of(result)
        erase_unused(self.block)

    # Operands

    def activation(
        self, value: SSAValue, rows: int | None, before: Operation
    ) -> Integers | str | None:
        """The integers of an operand that is known at run time: None if it is float, a phrase if its integers are of no use.

        `rows`: the dimension that parameters may run along.
        """
        dequantize = self.chains.dequantize_of(value)
        if dequantize is None:
            return None
        quant = constant_quant(dequantize, dequantize.q)
        if quant is None:
            return "a scale of an operand that is known at run time only"
        if quant.storage not in DATA_TYPES:
            return f"an operand of {quant.storage}"
        if quant.scale.is_elided:
            return "a scale whose bytes were elided"
        if quant.granularity != "tensor":
            if quant.axis != rows or value is not dequantize.result or quant.granularity != "axis":
                return f"an operand quantised per {quant.granularity} on axis {quant.axis}"
            if len(shape_of(value)) != 2:
                return f"rows of a batch {list(shape_of(value))} quantised each"
            return Integers.of(dequantize.q, quant, ops=(dequantize,))
        integers = self.chains.dequantized(value, quant, before)
        if integers is None:
            return f"values that are not all {quant.storage} times the scale {quant.scales}"
        return Integers.of(integers, quant, ops=(dequantize,))

    def matrix(
        self, value: SSAValue, flip: bool, columns: bool, before: Operation
    ) -> Integers | str | None:
        """An operand of a matmul, read transposed with `flip`. `columns`: the right one, whose outer dimension is its last."""
        traced = trace_quantized(value)
        if isinstance(traced, QuantizedConstant):
            found = traced.as_matrix()
            if not isinstance(found, str):
                weight, quant, transposed = found
                return self.stored(
                    weight,
                    quant,
                    transposed != flip,
                    columns=columns,
                    ops=traced.ops,
                    before=before,
                )
        rank = len(shape_of(value))
        operand = self.activation(value, rank - 1 if columns != flip else rank - 2, before)
        if not isinstance(operand, Integers):
            return operand
        operand = replace(operand, transposed=flip)
        transpose = operand.value.owner
        if isinstance(transpose, linalg.TransposeOp) and not operand.scale.ndim:
            swapped = (*range(rank - 2), rank - 1, rank - 2)
            if permutation_of(transpose) == swapped:
                return replace(operand, value=transpose.inputs[0], transposed=not flip)
        return operand

    def stored(
        self,
        weight: WeightAttr,
        quant: QuantAttr,
        transposed: bool,
        *,
        columns: bool,
        ops: tuple[Operation, ...],
        before: Operation,
    ) -> Integers | str:
        """A constant matrix, or what stands against it."""
        allowed = WEIGHT_TYPES if columns else DATA_TYPES
        if quant.storage not in allowed:
            return f"a weight of {quant.storage}" + ("" if columns else " on the left")
        outer = 1 if columns != transposed else 0
        if quant.granularity == "block":
            return "a weight quantised in blocks"
        if quant.axis not in (None, outer):
            return f"scales along K, axis {quant.axis} of the weight"
        if quant.scale.is_elided:
            return "a scale whose bytes were elided"
        builder = TensorBuilder(
            InsertPoint.before(before), fuse_locations(o.location for o in ops or (before,))
        )
        constant = builder.insert(qmm.ConstantOp(weight)).result
        return Integers.of(constant, quant, transposed=transposed, ops=ops)

    def filter(self, op: Conv) -> Integers | str | None:
        """The weight of a convolution."""
        if isinstance(op, qmm.DequantConvOp):
            plain: tuple[WeightAttr, QuantAttr] | str = op.weight, op.quant
            ops: tuple[Operation, ...] = ()
        else:
            traced = trace_quantized(op.w)
            if traced is None:
                return self.activation(op.w, None, op)
            if isinstance(traced, str):
                return traced
            plain, ops = traced.as_tensor(), traced.ops
        if isinstance(plain, str):
            return plain
        weight, quant = plain
        if quant.storage not in WEIGHT_TYPES:
            return f"a weight of {quant.storage}"
        if quant.granularity == "block" or quant.axis not in (None, 0):
            return f"a weight quantised per {quant.granularity} on axis {quant.axis}"
        if quant.scale.is_elided:
            return "a scale whose bytes were elided"
        builder = TensorBuilder(
            InsertPoint.before(op), fuse_locations(o.location for o in ops or (op,))
        )
        return Integers.of(builder.insert(qmm.ConstantOp(weight)).result, quant, ops=ops)

    # Contractions

    def accepted(
        self, op: Matmul | Conv, left: Integers | str | None, right: Integers | str | None
    ) -> tuple[Integers, Integers] | None:
        """Both operands as integers; None, with a reason where one was to be expected, if `op` stays in floats."""
        if isinstance(left, Integers) and isinstance(right, Integers):
            scales = np.multiply.outer(left.scale, right.scale)
            if op.epilogue_block is not None:
                refuse(op, "an epilogue", _OPERANDS)
            elif not ((scales > SMALLEST_SCALE) & (scales < LARGEST_SCALE)).all():
                refuse(op, f"a product of scales of {scales.flat[0]}", _OPERANDS)
            else:
                return left, right
            return None
        operands = (left, right)
        # Weights alone are for `qmm-fuse-dequant`.
        if any(o and _at_run_time(v) for o, v in zip(operands, op.operands[:2], strict=False)):
            beside = "an operand of f32 beside one of integers"
            refuse(op, next((o for o in operands if isinstance(o, str)), beside), _OPERANDS)
        return None

    def finish(
        self,
        op: Matmul | Conv,
        integers: qmm.QuantMatmulOp | qmm.QuantConvOp,
        scale: npt.NDArray[np.float64],
        builder: TensorBuilder,
    ) -> None:
        """Replace `op` by `integers` times `scale`, which is laid out along its result, if its sums fit 32 bits."""
        builder.insert(integers)
        found = accumulator_of(integers)
        if not found.sums.fits:
            worst = max(-found.sums.low, found.sums.high)
            refuse(
                op,
                f"sums of K = {found.k} products that may reach {worst}",
                f"sums that 32 bits hold, any {found.largest_k} products of these types",
            )
            return
        keep_attributes(integers, op)
        accumulator = builder.reshape(integers.result, shape_of(op.result))
        value = Accumulated(accumulator, scale, found.sums)
        real = dequantized_accumulator(value, builder)
        self.accumulated.known[real] = value
        replace_op(local_rewriter(op), op, [], [real])

    def fuse_matmul(self, op: Matmul) -> None:
        """`matmul view(dequantize(a)), view(dequantize(b))` -> `scale * quant_matmul a, b`."""
        if 0 in (*shape_of(op.a), *shape_of(op.result)):
            return
        flip_b = op.transpose_b is not None
        if isinstance(op, qmm.MatmulOp):
            a = self.matrix(op.a, op.transpose_a is not None, False, op)
            b = self.matrix(op.b, flip_b, True, op)
        else:
            a = self.matrix(op.a, False, False, op)
            b = self.stored(op.weight, op.quant, flip_b, columns=True, ops=(), before=op)
        operands = self.accepted(op, a, b)
        if operands is None:
            return
        a, b = operands
        made_of = (op, *a.ops, *b.ops)
        builder = TensorBuilder(InsertPoint.before(op), fuse_locations(o.location for o in made_of))
        rank = len(shape_of(op.result))
        left = a.value
        if a.transposed:
            last = len(shape_of(left)) - 1
            left = builder.transpose(left, [*range(last - 1), last, last - 1])
        if len(shape_of(b.value)) == 2:
            left = builder.reshape(left, (*[1] * (rank - len(shape_of(left))), *shape_of(left)))
        if a.zero_point.ndim:
            zeros = np.broadcast_to(a.zero_point, shape_of(left)[:-1])
            a = replace(a, zero_point=zeros)
        integers = qmm.QuantMatmulOp(
            left,
            b.value,
            a_zero_point=a.zero_point_operand(builder),
            b_zero_point=b.zero_point_operand(builder),
            transpose_b=b.transposed,
        )
        scale = a.scale.reshape(-1, 1) * b.scale.reshape(1, -1)
        self.finish(op, integers, scale.reshape([1] * (rank - 2) + [*scale.shape]), builder)

    def fuse_conv(self, op: Conv) -> None:
        """`conv view(dequantize(x)), view(dequantize(w))` -> `scale * quant_conv x, w`."""
        if 0 in (*shape_of(op.x), *shape_of(op.result)):
            return
        operands = self.accepted(op, self.activation(op.x, None, op), self.filter(op))
        if operands is None:
            return
        x, w = operands
        made_of = (op, *x.ops, *w.ops)
        builder = TensorBuilder(InsertPoint.before(op), fuse_locations(o.location for o in made_of))
        groups, strides, pads, dilations = window_of(op)
        integers = qmm.QuantConvOp(
            x.value,
            w.value,
            x_zero_point=x.zero_point_operand(builder),
            w_zero_point=w.zero_point_operand(builder),
            strides=strides,
            pads=pads,
            dilations=dilations,
            groups=groups,
        )
        scale = x.scale * w.scale
        spatial = [1] * (len(shape_of(op.result)) - 2)
        self.finish(op, integers, scale.reshape([1, -1, *spatial]), builder)

    # Everything else

    def read_integers(self, op: linalg.GenericOp) -> None:
        """What `op` reads of floats that were dequantised, then moved and compared, is dequantised after that instead."""
        for index, value in enumerate(op.inputs):
            owner = value.owner
            if isinstance(owner, qmm.DequantizeOp) or not isinstance(owner, Operation):
                continue
            if not self.is_dequantized(value, op):
                continue
            op.operands[index] = self.dequantizes[value]

    def is_dequantized(self, value: SSAValue, before: Operation) -> bool:
        """Whether `value` is a dequantise of integers that can be written, which then is in `dequantizes`."""
        if value not in self.dequantizes:
            dequantize = self.chains.dequantize_of(value)
            quant = None if dequantize is None else tensor_quant(dequantize)
            if dequantize is None or quant is None:
                return False
            integers = self.chains.dequantized(value, quant, before)
            if integers is None:
                return False
            builder = TensorBuilder(InsertPoint.before(before), dequantize.location)
            self.dequantizes[value] = builder.insert(qmm.DequantizeOp(integers, quant)).result
        return True

    def quantize(self, op: qmm.QuantizeOp) -> None:
        """Work on integers instead of `op`, or the reason why there is a float before it."""
        quant = constant_quant(op, op.result)
        if quant is None or quant.granularity != "tensor" or quant.storage not in DATA_TYPES:
            return
        if quant.scale.is_elided or not SMALLEST_SCALE < quant.scales < LARGEST_SCALE:
            return
        result = self.chains.quantized(op, quant)
        if result is not None:
            replace_op(local_rewriter(op), op, [], [result])
            return
        island = op.x.owner
        while isinstance(island, Operation) and is_view(island):
            island = island.operands[0].owner
        if isinstance(island, linalg.GenericOp) and self.is_between(island):
            refuse(island, "an operation on f32 before a quantise", _STAYS_INTEGER)

    def is_between(self, island: linalg.GenericOp) -> bool:
        """Whether `island` works on dequantised values alone: a contraction would take it into its epilogue."""
        found = False
        seen: set[Operation] = set()
        stack: list[Operation] = [island]
        while stack and len(seen) < _ISLAND:
            op = stack.pop()
            if op in seen:
                continue
            seen.add(op)
            if isinstance(op, EpilogueOperation):
                return False
            if isinstance(op, qmm.DequantizeOp):
                found |= _at_run_time(op.result)
            elif on_tensors(op):
                stack += [v.owner for v in op.operands if isinstance(v.owner, Operation)]
        return found


def _at_run_time(value: SSAValue) -> bool:
    """Whether the value is no view of a dequantised constant."""
    return trace_quantized(value) is None


@dataclass(frozen=True)
class QmmFuseQuantizedPass(ModulePass):
    """Contractions whose operands are both dequantised integers work on the integers, and so does what follows up to a quantise.

    A bias joins the i32 accumulator where it is a multiple of its scale, a positive factor the multiplier. Averages are sums of
    integers. Relu, Clip, layout, maxima and concatenation between a contraction or a dequantise and a quantise become bounds of
    one `qmm.requantize`, or work on integers. Whatever else reads a contraction reads `scale * accumulator`, and what else
    reads moved or compared floats dequantises moved and compared integers. A float value stays as long as somebody needs it.
    Contractions that would be of integers but for one thing, and operations on f32 before a quantise, have the reason as
    `qmm.reason`.
    """

    name = "qmm-fuse-quantized"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            accumulated = AccumulatedValues()
            _Function(block, accumulated, IntegerChains(accumulated)).run()
