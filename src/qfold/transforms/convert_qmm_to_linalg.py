"""`convert-qmm-to-linalg`: the way out to upstream MLIR: `linalg`, `tensor`, `arith`, `math` on signless types only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import (
    ArrayAttr,
    BytesAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    FunctionType,
    ModuleOp,
    TensorType,
    UnrealizedConversionCastOp,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.element_types import bit_width, i1, i8, signless
from qfold.ir.builder import TensorBuilder
from qfold.ir.fusion import tidy_body
from qfold.ir.generics import function_blocks, local_rewriter
from qfold.ir.locations import replace_op
from qfold.transforms.contraction_generics import (
    expand_conv,
    expand_epilogue,
    expand_matmul,
    expand_window_sum,
)
from qfold.transforms.integer_generics import expand_quant_conv, expand_quant_matmul
from qfold.transforms.qmm_linalg_cse import erase_unused
from qfold.transforms.qmm_lower_quantization import lower

_PREFIX = "qmm."


def expand(op: Operation) -> None:
    """Replace a contraction by generics."""
    builder = TensorBuilder(InsertPoint.before(op), op.location)
    match op:
        case qmm.MatmulOp() | qmm.DequantMatmulOp():
            result = expand_epilogue(op, expand_matmul(op, builder), builder)
        case qmm.ConvOp() | qmm.DequantConvOp():
            result = expand_epilogue(op, expand_conv(op, builder), builder)
        case qmm.QuantMatmulOp():
            result = expand_epilogue(op, expand_quant_matmul(op, builder), builder)
        case qmm.QuantConvOp():
            result = expand_epilogue(op, expand_quant_conv(op, builder), builder)
        case qmm.WindowSumOp():
            result = expand_window_sum(op, builder)
        case _:
            return
    replace_op(local_rewriter(op), op, [], [result])


def portable_constant(op: qmm.ConstantOp) -> None:
    """Replace a constant by `arith.constant dense<...>`, four-bit integers one to a byte, as MLIR stores them."""
    type_ = op.value.type
    element = signless(type_.element_type)
    array = op.value.array()
    builder = TensorBuilder(InsertPoint.before(op), op.location)
    if element == i1:
        # MLIR packs booleans in the hexadecimal form, xDSL prints one to a byte: go by i8.
        bytes_ = builder.insert(_dense(TensorType(i8, type_.get_shape()), array.astype(np.int8)))
        result = builder.elementwise([bytes_.result], i1, lambda b, e: b(arith.TruncIOp, e[0], i1))
    else:
        if bit_width(element) == 4:
            array = ((array.astype(np.uint8) & 0xF) ^ 8).astype(np.int8) - np.int8(8)
        result = builder.insert(_dense(TensorType(element, type_.get_shape()), array)).result
    op.result.replace_all_uses_with(result)
    op.detach()
    op.erase()


def _dense(type_: TensorType[Attribute], array: np.ndarray[Any, np.dtype[Any]]) -> arith.ConstantOp:
    raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    dense = DenseIntOrFPElementsAttr(cast(TensorType[Any], type_), BytesAttr(raw))
    return arith.ConstantOp(dense)


def _signless_type(type_: Attribute) -> Attribute:
    if isinstance(type_, TensorType):
        type_ = cast(TensorType[Attribute], type_)
        return TensorType(signless(type_.element_type), type_.get_shape())
    return signless(type_)


def _retype(value: SSAValue) -> None:
    type_ = _signless_type(value.type)
    if type_ != value.type:
        value._type = type_  # pyright: ignore[reportPrivateUsage]


def drop_signs(block: Block) -> None:
    """Give every value in the block its signless type; casts between the two vanish."""
    for argument in block.args:
        _retype(argument)
    for op in list(block.ops):
        for result in op.results:
            _retype(result)
        for region in op.regions:
            for inner in region.blocks:
                drop_signs(inner)
        if isinstance(op, UnrealizedConversionCastOp):
            if len(op.operands) == 1 and op.operands[0].type == op.results[0].type:
                op.results[0].replace_all_uses_with(op.operands[0])
                op.detach()
                op.erase()


def _without_own(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    return {k: v for k, v in attributes.items() if not k.startswith(_PREFIX)}


def drop_attributes(module: ModuleOp) -> None:
    """Drop discardable attributes of a dialect that upstream does not know."""
    for op in module.walk():
        op.attributes = _without_own(op.attributes)
        if isinstance(op, func.FuncOp):
            for name in ("arg_attrs", "res_attrs"):
                given = op.properties.get(name)
                if given is None:
                    continue
                entries = cast(ArrayAttr[DictionaryAttr], given)
                kept = [DictionaryAttr(_without_own(dict(e.data))) for e in entries]
                if any(e.data for e in kept):
                    op.properties[name] = ArrayAttr(kept)
                else:
                    del op.properties[name]


@dataclass(frozen=True)
class ConvertQmmToLinalgPass(ModulePass):
    """Write out every `qmm` op in dialects that upstream `mlir-opt` knows.

    Contractions become generics: the sum of products on the integers as they are stored, then the correction and the scale when
    hoisted, then the epilogue. Unsigned types become signless ones, in function signatures too: which extension and which
    conversion to float is used says how the bits are meant. Constants become `dense` attributes.
    """

    name = "convert-qmm-to-linalg"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            for inner in list(block.ops):
                lower(inner)
            for inner in list(block.ops):
                expand(inner)
            erase_unused(block)
            for inner in list(block.ops):
                if isinstance(inner, qmm.ConstantOp):
                    portable_constant(inner)
            drop_signs(block)
            for inner in block.ops:
                if inner.regions and inner.regions[0].blocks:
                    tidy_body(inner.regions[0].block)
        for inner in op.body.block.ops:
            if isinstance(inner, func.FuncOp):
                inputs = [_signless_type(t) for t in inner.function_type.inputs]
                outputs = [_signless_type(t) for t in inner.function_type.outputs]
                inner.properties["function_type"] = FunctionType.from_lists(inputs, outputs)
        drop_attributes(op)
