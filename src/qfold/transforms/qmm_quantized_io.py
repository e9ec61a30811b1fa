"""`qmm-quantized-io`: inputs that are quantised first thing are integers, and so are outputs that are dequantised last thing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import (
    IntegerType,
    ModuleOp,
    StringAttr,
    TensorType,
    UnrealizedConversionCastOp,
    f32,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import bit_width, is_float, is_unsigned
from qfold.dialects.qmm import QuantAttr
from qfold.ir.builder import TensorBuilder, element_type
from qfold.ir.generics import erase_dead, indexing_maps, is_identity, local_rewriter
from qfold.ir.locations import fuse_locations, node_names, replace_op
from qfold.ir.ports import Signature, tensor_main
from qfold.ir.quantized import constant_quant, is_view
from qfold.transforms.accumulated_values import replayed

_WIDTHS = (8, 16)
"""Bits of integers that are handed over: whole elements of C arrays."""


@dataclass(frozen=True)
class QmmQuantizedIoPass(ModulePass):
    """Inputs and outputs of `@main` become the integers that the graph makes of them, and that it makes them of.

    An input: all that reads it, itself or behind transposes and reshapes, is a `qmm.quantize` with the same constants per tensor.
    An output: a `qmm.dequantize` of that kind made it, or a mere conversion of integers, and transposes and reshapes after that.
    The op goes (a dequantise only as far as nothing else reads it); the argument or result has `qmm.quant`. So does an input or
    output that is an integer already and that the graph dequantises, or quantises, in that way. A float input or output for which
    this does not hold stays as it is, and `qmm.note` says why.
    """

    name = "qmm-quantized-io"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        function = tensor_main(op)
        if function is None:
            return
        block = function.body.block
        signature = Signature(function)
        order = {inner: index for index, inner in enumerate(block.ops)}
        for argument in tuple(block.args):
            _input(argument, signature, order)
        terminator = block.last_op
        assert isinstance(terminator, func.ReturnOp)
        for index in range(len(terminator.arguments)):
            _output(terminator, index, signature)
        signature.apply()


# Inputs


@dataclass(frozen=True)
class _Reader:
    """One op that reads `views` of an argument."""

    op: Operation
    views: tuple[Operation, ...]


def _readers(value: SSAValue, views: tuple[Operation, ...] = ()) -> Iterator[_Reader]:
    """Who reads a value, itself or behind views of it."""
    for use in value.uses:
        op = use.operation
        if is_view(op) and use.index == 0:
            yield from _readers(op.results[0], (*views, op))
        else:
            yield _Reader(op, views)


def _views(value: SSAValue) -> Iterator[Operation]:
    """The views of a value, and those of them."""
    for use in value.uses:
        if is_view(use.operation) and use.index == 0:
            yield use.operation
            yield from _views(use.operation.results[0])


def _at_top(op: Operation, block: Block) -> Operation:
    """The op of `block` that `op` is, or is inside of."""
    found = block.find_ancestor_op_in_block(op)
    assert found is not None
    return found


def _input(argument: BlockArgument, signature: Signature, order: Mapping[Operation, int]) -> None:
    """One input: integers, if that can be, or the reason why not."""
    index = argument.index
    readers = sorted(_readers(argument), key=lambda r: order[_at_top(r.op, argument.owner)])
    if not is_float(element_type(argument)):
        if all(isinstance(r.op, qmm.DequantizeOp) for r in readers):
            quant = _agreed(readers)
            if isinstance(quant, QuantAttr):
                signature.set_input(index, argument.type, quant=quant)
        return
    quant = _input_quant(argument, readers)
    if isinstance(quant, str):
        signature.set_input(index, argument.type, note=StringAttr(quant))
        return
    type_ = TensorType(quant.storage, shape_of(argument))
    block = argument.owner
    integers = block.insert_arg(type_, index)
    integers.location = argument.location
    integers.name_hint = argument.name_hint
    for reader in readers:
        value: SSAValue = integers
        builder = TensorBuilder(InsertPoint.before(reader.op))
        for view in reader.views:
            builder.location = view.location
            value = replayed(view, value, builder)
        replace_op(local_rewriter(reader.op), reader.op, [], [value])
    erase_dead(tuple(_views(argument)))
    block.erase_arg(argument)
    signature.set_input(index, type_, quant=quant)


def _input_quant(argument: BlockArgument, readers: list[_Reader]) -> QuantAttr | str:
    """What all readers of a float input quantise it by, or why there is no such thing."""
    if not readers:
        return "nothing reads it"
    if element_type(argument) != f32:
        return f"it is {element_type(argument)}: an f32 can be quantised"
    for reader in readers:
        op = reader.op
        if not isinstance(op, qmm.QuantizeOp):
            what = "returned" if isinstance(op, func.ReturnOp) else f"read by {_node(op)}"
            others = [r.op for r in readers if isinstance(r.op, qmm.QuantizeOp)]
            return f"it is {what} as a float" + (
                f", besides being quantised by {_node(others[0])}" if others else ""
            )
    return _agreed(readers)


def _agreed(readers: list[_Reader]) -> QuantAttr | str:
    """The parameters of quantises (or dequantises), which have to be the same, or what stands against them."""
    found: QuantAttr | None = None
    first: Operation | None = None
    for reader in readers:
        quant = _parameters(reader.op)
        if isinstance(quant, str):
            return quant
        if found is not None and first is not None and quant != found:
            return f"{_node(first)} and {_node(reader.op)} quantise it differently"
        found, first = quant, reader.op
    return "nothing quantises it" if found is None else found


def _parameters(op: Operation) -> QuantAttr | str:
    """The constant parameters, per tensor, of a quantise or dequantise, or what they are instead."""
    assert isinstance(op, qmm.QuantizeOp | qmm.DequantizeOp)
    quant = constant_quant(op, op.result if isinstance(op, qmm.QuantizeOp) else op.q)
    if quant is None:
        return f"the parameters of {_node(op)} are known at run time only"
    if quant.granularity != "tensor":
        return f"{_node(op)} has parameters per {quant.granularity}; one scale can be handed over"
    if quant.scale.is_elided or quant.zero_point.is_elided:
        return f"the numbers of {_node(op)} are elided"
    if bit_width(quant.storage) not in _WIDTHS:
        return f"the integers of {_node(op)} are {quant.storage}; those of 8 and 16 bits can be handed over"
    return quant


# Outputs


def _output(terminator: func.ReturnOp, index: int, signature: Signature) -> None:
    """One output: integers, if that can be, or the reason why not."""
    value = terminator.arguments[index]
    views: list[Operation] = []
    source = value
    while isinstance(source.owner, Operation) and is_view(source.owner):
        views.append(source.owner)
        source = source.owner.operands[0]
    op = source.owner
    if not is_float(element_type(value)):
        quant = _parameters(op) if isinstance(op, qmm.QuantizeOp) else signature.input_quant(source)
        if isinstance(quant, QuantAttr):
            signature.set_output(index, value.type, quant=quant)
        return
    quant = _output_quant(source)
    if isinstance(quant, str):
        signature.set_output(index, value.type, note=StringAttr(quant))
        return
    assert isinstance(op, Operation)
    builder = TensorBuilder(InsertPoint.before(terminator))
    integers = op.operands[0]
    for view in reversed(views):
        builder.location = fuse_locations((op.location, view.location))
        integers = replayed(view, integers, builder)
    terminator.operands[index] = integers
    erase_dead(o for o in (value.owner,) if isinstance(o, Operation))
    signature.set_output(index, integers.type, quant=quant)


def _output_quant(source: SSAValue) -> QuantAttr | str:
    """The parameters of the dequantise that made an output of its first operand, or what made it instead."""
    op = source.owner
    if not isinstance(op, Operation):
        return "it is an input"
    if isinstance(op, qmm.DequantizeOp):
        return _parameters(op)
    if _is_conversion(op):
        storage = cast(IntegerType, element_type(op.operands[0]))
        if bit_width(storage) not in _WIDTHS:
            return f"it is {storage} before; integers of 8 and 16 bits can be handed over"
        return QuantAttr.get(storage, 1.0)
    return f"it is computed as a float, by {_node(op)}"


def _is_conversion(op: Operation) -> bool:
    """Whether each element of the result is the float of one integer: what networks that hold integers in floats end with."""
    if not isinstance(op, linalg.GenericOp) or len(op.inputs) != 1:
        return False
    if not all(is_identity(m) for m in indexing_maps(op)) or is_float(element_type(op.inputs[0])):
        return False
    *body, end = op.body.block.ops
    value = end.operands[0]
    # Read with the other signedness, an element is not the integer that its type says.
    kind = arith.UIToFPOp if is_unsigned(element_type(op.inputs[0])) else arith.SIToFPOp
    if not isinstance(value.owner, kind) or value.type != f32:
        return False
    integer = value.owner.input
    if isinstance(integer.owner, UnrealizedConversionCastOp):
        integer = integer.owner.operands[0]
    return integer is op.body.block.args[0] and len(body) <= 2


def _node(op: Operation) -> str:
    """The ONNX nodes of an op, for a sentence; what it is called where it comes from none."""
    return ", ".join(repr(n) for n in node_names(op)) or op.name
