"""`qmm-nhwc-inputs`: inputs whose channels come last, as sensors give them, for a network that has them second."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.ir import BlockArgument
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects.contraction import shape_of
from qfold.ir.builder import TensorBuilder, element_type
from qfold.ir.ports import Signature, tensor_main

LAYOUTS = {3: "NLC", 4: "NHWC"}
"""What an input of so many dimensions is then. The model's order is N, C and what is left."""


@dataclass(frozen=True)
class QmmNhwcInputsPass(ModulePass):
    """Inputs of `@main` become NHWC (of three dimensions: NLC), with a transpose to the model's NCHW in front.

    `inputs` names them by `qmm.name`; without names it is all of three and four dimensions. The transpose is no pass over memory
    where what reads it takes strides (a convolution on the host) or has indexing maps (a quantise, an elementwise op).
    """

    name = "qmm-nhwc-inputs"

    inputs: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        function = tensor_main(op)
        if function is None:
            raise PassFailedException("qmm-nhwc-inputs: the module has no function @main")
        block = function.body.block
        signature = Signature(function)
        names = [signature.input_name(a.index) for a in block.args]
        ranks = {n: len(shape_of(a)) for n, a in zip(names, block.args, strict=True)}
        listed = ", ".join(f"'{n}' of {r} dimensions" for n, r in ranks.items()) or "none"
        wanted = self.inputs or tuple(n for n, r in ranks.items() if r in LAYOUTS)
        if not wanted:
            raise PassFailedException(
                f"no input can be NHWC or NLC: that takes 4 or 3 dimensions; inputs are {listed}"
            )
        for name in wanted:
            if name not in ranks:
                raise PassFailedException(
                    f"there is no input '{name}' to be NHWC; inputs are {listed}"
                )
            if ranks[name] not in LAYOUTS:
                raise PassFailedException(
                    f"input '{name}' has {ranks[name]} dimensions; NHWC has 4, NLC has 3"
                )
        for name, argument in zip(names, tuple(block.args), strict=True):
            if name in wanted:
                _channels_last(argument, signature)
        signature.apply()


def _channels_last(argument: BlockArgument, signature: Signature) -> None:
    """One input, and the transpose that makes of it what it was."""
    shape, index, block = shape_of(argument), argument.index, argument.owner
    rank = len(shape)
    type_ = TensorType(element_type(argument), (shape[0], *shape[2:], shape[1]))
    given = block.insert_arg(type_, index)
    given.location = argument.location
    given.name_hint = argument.name_hint
    first = block.first_op
    assert first is not None
    builder = TensorBuilder(InsertPoint.before(first), argument.location)
    argument.replace_all_uses_with(builder.transpose(given, [0, rank - 1, *range(1, rank - 1)]))
    block.erase_arg(argument)
    signature.set_input(index, type_, layout=StringAttr(LAYOUTS[rank]))
