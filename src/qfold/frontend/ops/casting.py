"""Cast and CastLike of values that are computed at run time."""

from __future__ import annotations

from xdsl.ir import Attribute, SSAValue

from qfold.frontend.context import NodeContext
from qfold.frontend.ops import scalars
from qfold.frontend.ops.generics import unary
from qfold.frontend.ops.scalars import MOVABLE, element_of
from qfold.frontend.registry import onnx_op
from qfold.frontend.tensors import element_type_of_onnx


def cast(ctx: NodeContext, target: Attribute) -> SSAValue:
    """Input 0 as `target`."""
    source = element_of(ctx, 0, MOVABLE)
    if target not in MOVABLE:
        ctx.refuse(f"a cast to {target}", f"casts to {', '.join(map(str, MOVABLE))}")
    if source == target:
        return ctx.value(0)
    return unary(ctx, target, lambda b, x: scalars.convert(b, source, target, x))


@onnx_op("Cast")
def import_cast(ctx: NodeContext) -> SSAValue:
    return cast(ctx, element_type_of_onnx(ctx.attr("to"), str(ctx.ref)))


@onnx_op("CastLike")
def import_cast_like(ctx: NodeContext) -> SSAValue:
    return cast(ctx, ctx.type(1).element_type)
