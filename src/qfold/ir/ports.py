"""What the attributes of `@main`'s arguments and results say about the network's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.ir import Attribute, BlockArgument, SSAValue

from qfold.dialects.qmm import QuantAttr

NAME = "qmm.name"
"""The ONNX value name."""
QUANT = "qmm.quant"
"""How the integers of an input or output stand for reals: per tensor."""
LAYOUT = "qmm.layout"
"""Which of its dimensions is which, where that is not what the model has: `NHWC`, `NLC`."""
NOTE = "qmm.note"
"""Why an input or output is a float where integers were asked for."""


@dataclass(frozen=True)
class PortFacts:
    """The attributes of one input or output."""

    name: str | None = None
    quant: QuantAttr | None = None
    layout: str | None = None
    note: str | None = None

    @staticmethod
    def of(attributes: Mapping[str, Attribute]) -> PortFacts:
        """Reads them; what is absent or of another kind is None."""
        quant = attributes.get(QUANT)
        texts = [
            a.data if isinstance(a := attributes.get(key), StringAttr) else None
            for key in (NAME, LAYOUT, NOTE)
        ]
        return PortFacts(
            texts[0], quant if isinstance(quant, QuantAttr) else None, texts[1], texts[2]
        )


class Signature:
    """The types and attributes of a function on tensors: read, changed, and set at once."""

    def __init__(self, function: func.FuncOp):
        self._function = function
        types = function.function_type
        self.inputs = list(types.inputs)
        self.outputs = list(types.outputs)
        self._arguments = _entries(function.arg_attrs, len(self.inputs))
        self._results = _entries(function.res_attrs, len(self.outputs))

    def input_name(self, index: int) -> str:
        """The name of an input; a number where it has none."""
        return PortFacts.of(self._arguments[index]).name or f"number {index}"

    def input_quant(self, value: SSAValue) -> QuantAttr | None:
        """What the integers of an input mean, where `value` is one of which that is known."""
        if not isinstance(value, BlockArgument):
            return None
        return PortFacts.of(self._arguments[value.index]).quant

    def set_input(self, index: int, type_: Attribute, **attributes: Attribute) -> None:
        """Change the type of an input, and attributes: `quant`, `layout` or `note`."""
        self.inputs[index] = type_
        self._arguments[index] |= {f"qmm.{key}": value for key, value in attributes.items()}

    def set_output(self, index: int, type_: Attribute, **attributes: Attribute) -> None:
        """The same of an output."""
        self.outputs[index] = type_
        self._results[index] |= {f"qmm.{key}": value for key, value in attributes.items()}

    def apply(self) -> None:
        """Write everything to the function."""
        properties = self._function.properties
        properties["function_type"] = FunctionType.from_lists(self.inputs, self.outputs)
        for key, entries in (("arg_attrs", self._arguments), ("res_attrs", self._results)):
            if any(entries):
                properties[key] = ArrayAttr([DictionaryAttr(e) for e in entries])


def _entries(given: ArrayAttr[DictionaryAttr] | None, count: int) -> list[dict[str, Attribute]]:
    return [{} for _ in range(count)] if given is None else [dict(d.data) for d in given]


def tensor_main(module: ModuleOp) -> func.FuncOp | None:
    """`@main`, where the module has one with a body of one block."""
    for op in module.body.block.ops:
        if isinstance(op, func.FuncOp) and op.sym_name.data == "main":
            return op if len(op.body.blocks) == 1 else None
    return None
