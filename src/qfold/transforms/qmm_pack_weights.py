"""`qmm-pack-weights`: constant operands of integer products become panels of bytes, as packed dot products read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    BytesAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    TensorType,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from qfold.dialects import qkernel
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import i8, ui8
from qfold.dialects.qmm import WeightAttr
from qfold.ir.globals import constant_global, global_weight
from qfold.ir.layouts import Layout
from qfold.ir.panels import in_panels
from qfold.targets import Target
from qfold.transforms.buffer_views import view_ops
from qfold.transforms.rows_of_batches import AsMatrix, View
from qfold.transforms.target_option import target_option

_VIEWS = (
    memref.CollapseShapeOp,
    memref.ExpandShapeOp,
    memref.SubviewOp,
    memref.ReinterpretCastOp,
    memref.CastOp,
)


@dataclass(frozen=True)
class QmmPackWeightsPass(ModulePass):
    """On a target with kernels for it, turn `qkernel.quant_matmul` by an 8-bit constant matrix into `packed_quant_matmul`.

    A constant is packed if such products, with the same `transpose_b`, are all that reads it. Rows of several batches become rows
    of one matrix, where views can say that. What has zero points stays: `qmm-expand-zero-points` takes them out. Four-bit
    constants stay too: as bytes they would take twice the memory and twice the transfers, so they are packed in the scratchpad.
    """

    name = "qmm-pack-weights"
    target: str = "threads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_option(self.target)
        if target.kernels_of(qkernel.PackedQuantMatmulOp.name):
            pack_weights(op, target)


def pack_weights(module: ModuleOp, target: Target) -> None:
    """The pass, for a target with kernels for packed bytes."""
    globals_ = {g.sym_name.data: g for g in module.ops if isinstance(g, memref.GlobalOp)}
    reads: dict[str, list[memref.GetGlobalOp]] = {}
    for op in module.walk():
        if isinstance(op, memref.GetGlobalOp):
            reads.setdefault(op.name_.string_value(), []).append(op)
    for name, gets in reads.items():
        source = globals_[name]
        products = _products(source, gets)
        if not products:
            continue
        packed, shape = _packed(source, products[0].op, globals_, target)
        for product in products:
            product.rewrite(packed, shape)
        for get in gets:
            _erase_unread(get)
    read = {op.name_.string_value() for op in module.walk() if isinstance(op, memref.GetGlobalOp)}
    for name in reads:
        if name not in read:
            Rewriter.erase_op(globals_[name])


@dataclass(frozen=True)
class _Product:
    """A product by a constant, and its operands as matrices."""

    op: qkernel.QuantMatmulOp
    a: View
    result: AsMatrix

    @staticmethod
    def of(op: Operation, value: SSAValue, size: int) -> _Product | None:
        """A product by `value`, which is a constant of `size` elements; None where `op` is none or has to stay as it is."""
        if not isinstance(op, qkernel.QuantMatmulOp) or list(op.operands).count(value) != 1:
            return None
        zero_points = op.a_zero_point, op.b_zero_point
        layout = _layout(value)
        matrix = layout.shape[-2:]
        whole = layout.is_dense and prod(layout.shape) == prod(matrix) == size
        if value is not op.b or zero_points != (None, None) or not whole:
            return None
        *rows, k = shape_of(op.a)
        if 0 in (size, *rows):
            return None
        a, result = View.of(op.a, (prod(rows), k)), AsMatrix.of(op, op.y)
        if a is None or result is None or (k > 1 and _layout(op.a).strides[-1] != 1):
            return None
        return _Product(op, a, result)

    def rewrite(self, packed: memref.GlobalOp, shape: Sequence[int]) -> None:
        """Multiply by the constant in panels, of that shape."""
        op, result = self.op, self.result
        get = memref.GetGlobalOp(packed.sym_name.data, packed.type)
        panels = view_ops(get.memref, Layout.dense(shape), _space(packed.type))
        values: list[SSAValue] = []
        inserted: list[Operation] = [get, *panels]
        for view in (self.a, result.y, *result.operands):
            value, steps = view.made()
            values.append(value)
            inserted += steps
        a, y, *operands = values
        new = qkernel.PackedQuantMatmulOp(
            a,
            panels[-1].results[0],
            y,
            epilogue_operands=operands,
            epilogue_maps=result.maps,
            epilogue=None if op.epilogue is None else op.detach_region(op.epilogue),
        )
        new.attributes.update(op.attributes)
        inserted.append(new)
        for made in inserted:
            made.location = op.location
        Rewriter.replace_op(op, inserted, [])


def _products(source: memref.GlobalOp, gets: Sequence[memref.GetGlobalOp]) -> list[_Product]:
    """The products that a constant may be packed for: all that reads it, in one way; none if anything else does."""
    if source.type.get_element_type() not in (i8, ui8) or global_weight(source).is_elided:
        return []
    size = prod(source.type.get_shape())
    found: list[_Product] = []
    for op, value in (use for get in gets for use in _uses(get.memref)):
        product = _Product.of(op, value, size)
        if product is None:
            return []
        found.append(product)
    forms = {(shape_of(p.op.b)[-2:], p.op.transpose_b) for p in found}
    return found if len(forms) == 1 else []


def _uses(value: SSAValue) -> Iterator[tuple[Operation, SSAValue]]:
    """What reads a buffer, itself or through views, and which value."""
    for use in value.uses:
        if isinstance(use.operation, _VIEWS):
            yield from _uses(use.operation.results[0])
        else:
            yield use.operation, value


def _packed(
    source: memref.GlobalOp,
    op: qkernel.QuantMatmulOp,
    globals_: dict[str, memref.GlobalOp],
    target: Target,
) -> tuple[memref.GlobalOp, tuple[int, ...]]:
    """The constant that has in panels what `op` reads of `source`, made where there is none yet, and the panels' shape."""
    weight, transpose_b = global_weight(source), op.transpose_b is not None
    rows, columns = shape_of(op.b)[-2:]
    matrix = np.frombuffer(weight.raw, np.uint8).reshape(rows, columns)
    panels = in_panels(matrix.T if transpose_b else matrix)
    type_ = TensorType(weight.element_type, panels.shape)
    packed = WeightAttr(type_, BytesAttr(panels.tobytes()))
    if packed.sha256 == weight.sha256:
        return source, panels.shape
    base = f"w_{packed.sha256[:12]}"
    name = next(
        n
        for n in (base, f"{base}_{weight.element_type}")
        if n not in globals_ or globals_[n].type.get_element_type() == weight.element_type
    )
    if name not in globals_:
        new = constant_global(name, packed, _space(source.type), target.alignment)
        new.location = source.location
        Rewriter.insert_op(new, InsertPoint.before(source))
        globals_[name] = new
    return globals_[name], panels.shape


def _erase_unread(op: Operation) -> None:
    """Erase a read of a constant, and the views of it; nothing else uses them any more."""
    for use in list(op.results[0].uses):
        _erase_unread(use.operation)
    Rewriter.erase_op(op)


def _layout(value: SSAValue) -> Layout:
    return Layout.of(cast("MemRefType[Attribute]", value.type))


def _space(type_: MemRefType[Attribute]) -> int:
    return cast("IntegerAttr[IntegerType]", type_.memory_space).value.data
