"""`qmm-canonicalize`: the `qmm` ops' own canonicalisations, and those of the layout ops of `linalg` and `tensor` around them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import tensor
from xdsl.dialects.builtin import LocationAttr, ModuleOp, UnknownLoc
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriterListener,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint
from xdsl.transforms.canonicalize import CanonicalizationRewritePattern

from qfold.dialects.contraction import shape_of
from qfold.ir.builder import TensorBuilder, reassociation
from qfold.ir.fusion import is_producer
from qfold.ir.generics import function_blocks, indexing_maps, is_identity, on_tensors
from qfold.ir.locations import fuse_locations, replace_op
from qfold.ir.quantized import permutation_of
from qfold.transforms.qmm_linalg_cse import erase_unused

Reshape = tensor.CollapseShapeOp | tensor.ExpandShapeOp


def _builder(op: Operation, *merged: Operation) -> TensorBuilder:
    location = fuse_locations((op.location, *(m.location for m in merged)))
    return TensorBuilder(InsertPoint.before(op), location)


class SimplifyTranspose(RewritePattern):
    """A transpose of a transpose is one; one that keeps the row-major order is none, or a reshape."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: linalg.TransposeOp, rewriter: PatternRewriter, /) -> None:
        if not on_tensors(op):
            return
        source = op.inputs[0]
        permutation = permutation_of(op)
        shape = shape_of(source)
        moved = [p for p in permutation if shape[p] != 1]
        if moved == sorted(moved):
            # Dimensions of extent 1 may go anywhere without an element moving.
            result = _builder(op).reshape(source, shape_of(op.results[0]))
            replace_op(rewriter, op, [], [result])
            return
        before = source.owner
        if isinstance(before, linalg.TransposeOp):
            inner = permutation_of(before)
            composed = [inner[p] for p in permutation]
            result = _builder(op, before).transpose(before.inputs[0], composed)
            replace_op(rewriter, op, [], [result])


class SimplifyReshape(RewritePattern):
    """A chain of reshapes is as few as lead from its first shape to its last."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if not isinstance(op, Reshape):
            return
        chain: list[Operation] = []
        source: SSAValue = op.result
        while isinstance(source.owner, Reshape):
            chain.append(source.owner)
            source = source.owner.src
        shape = shape_of(op.result)
        if shape_of(source) != shape:
            needed = 2
            if len(chain) == 1:
                return
            pairs = ((shape_of(source), shape), (shape, shape_of(source)))
            if any(reassociation(wide, narrow) is not None for wide, narrow in pairs):
                needed = 1
            if needed >= len(chain):
                return
        result = _builder(op, *chain[1:]).reshape(source, shape)
        replace_op(rewriter, op, [], [result])


class DropCopy(RewritePattern):
    """A generic that copies element by element, and a slice of everything, are what they read."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if isinstance(op, linalg.GenericOp):
            last = op.body.block.last_op
            if (
                len(op.inputs) == 1
                and is_producer(op)
                and last is not None
                and last.operands[0] is op.body.block.args[0]
                and op.inputs[0].type == op.results[0].type
                and all(is_identity(m) for m in indexing_maps(op))
            ):
                replace_op(rewriter, op, [], [op.inputs[0]])
        elif isinstance(op, tensor.ExtractSliceOp):
            if op.source.type == op.result.type and not (op.offsets or op.sizes or op.strides):
                # Of the full shape: the offsets are 0 and the strides 1, or it would leave the source.
                replace_op(rewriter, op, [], [op.source])


class KeepLocations(RewritePattern):
    """Applies patterns that may know nothing of locations: ops that they insert get the location of the op matched."""

    def __init__(self, patterns: RewritePattern):
        self._patterns = patterns
        self._location: LocationAttr = UnknownLoc()

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        self._location = op.location
        self._patterns.match_and_rewrite(op, rewriter)

    def on_insertion(self, op: Operation) -> None:
        if isinstance(op.location, UnknownLoc):
            op.location = self._location

    def walker(self) -> PatternRewriteWalker:
        """A walker that applies this pattern until nothing changes."""
        listener = PatternRewriterListener(operation_insertion_handler=[self.on_insertion])
        return PatternRewriteWalker(self, listener=listener)


@dataclass(frozen=True)
class QmmCanonicalizePass(ModulePass):
    """Canonicalise ops on tensors and drop those that are never read.

    Beyond what `canonicalize` does: transposes and reshapes of one another combine, copies vanish, linalg ops without readers
    go.
    """

    name = "qmm-canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            erase_unused(block)
        patterns: list[RewritePattern] = [
            SimplifyTranspose(),
            SimplifyReshape(),
            DropCopy(),
            CanonicalizationRewritePattern(),
        ]
        applier = GreedyRewritePatternApplier(patterns, ctx=ctx, folding_enabled=True)
        KeepLocations(applier).walker().rewrite_module(op)
        for block in function_blocks(op):
            erase_unused(block)
