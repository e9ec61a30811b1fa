"""The pattern: `mini.linear` in terms of `qmm` and `linalg`, which qfold then fuses, hoists and lowers."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f32
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from qfold.dialects import qmm
from qfold.ir.builder import TensorBuilder
from qfold.ir.locations import replace_op
from tests.embedding.minicompiler.dialect import LinearOp


class LowerLinear(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: LinearOp, rewriter: PatternRewriter) -> None:
        block = Block()
        b = TensorBuilder(block, op.location)
        weight = b.insert(qmm.ConstantOp(op.weight)).results[0]
        real = b.insert(qmm.DequantizeOp(weight, op.quant)).results[0]
        product = b.insert(qmm.MatmulOp(op.x, real)).results[0]
        limit = op.limit.value.data
        clamped = b.elementwise(
            [product],
            f32,
            lambda s, e: s(arith.MinimumfOp, e[0], s(arith.ConstantOp, FloatAttr(limit, f32))),
        )
        ops = list(block.ops)
        for inner in ops:
            inner.detach()
        replace_op(rewriter, op, ops, [clamped])


@dataclass(frozen=True)
class LowerMiniPass(ModulePass):
    name = "lower-mini"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(LowerLinear()).rewrite_module(op)
