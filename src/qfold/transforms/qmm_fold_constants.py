"""`qmm-fold-constants`: small ops on tensors whose operands are all constants are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import tensor
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.linalg import ops as linalg
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import STORAGE_TYPES, is_float
from qfold.interpreters import create_interpreter
from qfold.ir.builder import element_type
from qfold.ir.constants import constant_array, constant_op
from qfold.ir.fusion import readers
from qfold.ir.generics import (
    erase_dead,
    extents_of,
    function_blocks,
    local_rewriter,
    on_tensors,
)
from qfold.ir.locations import replace_op

_EVALUATED = (
    linalg.GenericOp,
    linalg.TransposeOp,
    tensor.CollapseShapeOp,
    tensor.ExpandShapeOp,
    tensor.ExtractSliceOp,
    tensor.InsertSliceOp,
)


def _is_tensor(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType)


def _known(value: SSAValue) -> bool:
    """Whether the value is a constant, or a destination: one whose contents are a fill or do not matter."""
    return (
        isinstance(value.owner, tensor.EmptyOp | linalg.FillOp) or constant_array(value) is not None
    )


def _widens_weight(op: Operation) -> bool:
    """Whether integers that may be a quantised weight would become floats, which takes four times the memory."""
    if not is_float(element_type(op.results[0])):
        return False
    return any(
        element_type(v) in STORAGE_TYPES
        for inner in op.walk()
        for v in inner.operands
        if _is_tensor(v)
    )


def _is_parameter(value: SSAValue) -> bool:
    """Whether loops that repeat it are all that reads a vector: a bias, which would be dequantised for each element again."""
    if sum(extent != 1 for extent in shape_of(value)) > 1:
        return False
    found = list(readers(value))
    return bool(found) and all(
        isinstance(op, linalg.GenericOp) and prod(extents_of(op)) > prod(shape_of(value))
        for op, _ in found
    )


def may_fold(op: Operation, limit: int) -> bool:
    """Whether the op is one that this pass evaluates."""
    if not isinstance(op, _EVALUATED) or not on_tensors(op):
        return False
    tensors = [v for v in op.operands if _is_tensor(v)]
    if prod(shape_of(op.results[0])) > limit or not all(_known(v) for v in tensors):
        return False
    if isinstance(op, linalg.GenericOp | linalg.TransposeOp):
        # Of nothing but destinations: that is an iota, or no constant at all.
        if any(isinstance(v.owner, tensor.EmptyOp) for v in op.inputs):
            return False
        body = op.body.block
        outside = [
            v
            for inner in body.ops
            for v in inner.operands
            if (v.owner.parent if isinstance(v.owner, Operation) else v.owner) is not body
        ]
        if not all(_known(v) for v in outside if _is_tensor(v)):
            return False
        # Reductions of big constants cost time, not memory.
        if sum(prod(shape_of(v)) for v in op.inputs) > 16 * limit:
            return False
    elif any(isinstance(v.owner, tensor.EmptyOp) for v in tensors):
        return False
    return not _widens_weight(op) or _is_parameter(op.results[0])


class _Folder:
    """Evaluates ops of one block, and constants that they read."""

    def __init__(self, module: ModuleOp):
        self.interpreter: Interpreter = create_interpreter(module)

    def evaluate(self, value: SSAValue) -> object:
        """The value of a constant, a destination, or a scalar constant."""
        array = constant_array(value) if _is_tensor(value) else None
        if array is not None:
            return array
        op = value.owner
        assert isinstance(op, Operation)
        arguments = [self.evaluate(v) for v in op.operands]
        return self.interpreter.run_op(op, tuple(arguments))[0]

    def fold(self, op: Operation) -> Operation | None:
        """A constant for the op's result, or None when the interpreter does not run it."""
        captured = {
            v
            for inner in op.walk()
            if inner is not op
            for v in inner.operands
            if isinstance(v.owner, Operation) and not op.is_ancestor(v.owner)
        }
        try:
            self.interpreter.push_scope("constants")
            try:
                self.interpreter.set_values((v, self.evaluate(v)) for v in captured)
                (result,) = self.interpreter.run_op(op, tuple(map(self.evaluate, op.operands)))
            finally:
                self.interpreter.pop_scope()
        except (InterpretationError, NotImplementedError, IndexError):
            # What the interpreters do not run, or an index that is out of range, is left to the run.
            return None
        type_: Attribute = element_type(op.results[0])
        return constant_op(result, type_)


def fold_block(block: Block, module: ModuleOp, limit: int) -> None:
    """Evaluate what can be, first ops first, so that their readers can follow."""
    folder: _Folder | None = None
    for op in list(block.ops):
        if op.parent is None or isinstance(op, qmm.DequantizeOp) or not may_fold(op, limit):
            continue
        folder = folder or _Folder(module)
        constant = folder.fold(op)
        if constant is None:
            continue
        sources = [v.owner for v in op.operands if isinstance(v.owner, Operation)]
        replace_op(local_rewriter(op), op, constant)
        erase_dead(sources)


@dataclass(frozen=True)
class QmmFoldConstantsPass(ModulePass):
    """Evaluate linalg and tensor ops of at most `max_elements` results on constants, by the interpreters, in the IR's own types.

    Never evaluated: `qmm.dequantize`, and whatever would turn integers of a storage type into floats, but for vectors that loops
    repeat, as biases.
    """

    name = "qmm-fold-constants"

    max_elements: int = 4096

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            fold_block(block, op, self.max_elements)
