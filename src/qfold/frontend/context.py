"""What an importer sees of the node that it imports."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, cast

from onnx import AttributeProto, NodeProto
from xdsl.dialects.builtin import IntegerType, TensorType
from xdsl.ir import Attribute, SSAValue

from qfold.frontend import raising
from qfold.frontend.errors import FrontendError, NodeRef, Unsupported
from qfold.frontend.materialize import Materializer
from qfold.frontend.tensors import attribute_value
from qfold.frontend.values import Array, Carried, Const, Value
from qfold.ir.builder import TensorBuilder


@dataclass
class NodeContext:
    """What an importer sees of one node."""

    node: NodeProto
    opset: int
    """Version of the node's domain."""
    name: str
    b: TensorBuilder
    """Creates ops at the current point, located at this node."""
    inputs: Sequence[Value | None]
    ref: NodeRef
    directory: Path | None
    _materializer: Materializer
    _read: Container[str]
    _origins: Mapping[Value, NodeContext]
    _attributes: dict[str, AttributeProto] = field(init=False)

    def __post_init__(self) -> None:
        self._attributes = {a.name: a for a in self.node.attribute}

    def on(self, *inputs: Value | None, opset: int | None = None) -> NodeContext:
        """The same node on other inputs, for an operator that is another one between two conversions."""
        return replace(self, inputs=inputs, opset=self.opset if opset is None else opset)

    def attr(self, name: str, default: Any = None) -> Any:
        """The Python value of an attribute (int, float, str, a list of these, or a numpy array), or `default`.

        `FrontendError` for a value that is no number or no string where the default is one: of an operator that ONNX does not
        define, nothing else checks attributes.
        """
        attribute = self._attributes.get(name)
        if attribute is None:
            return default
        value: Any = attribute_value(attribute, str(self.ref))
        for kinds, expected in (
            ((int, float), "a number"),
            ((str,), "a string"),
            ((list,), "a list of numbers"),
        ):
            if isinstance(default, kinds) and not isinstance(value, kinds):
                self.invalid(f"attribute '{name}' is {value!r:.60}; expected {expected}")
        return cast(Any, value)

    def has_attr(self, name: str) -> bool:
        """Whether the node gives the attribute."""
        return name in self._attributes

    def num_inputs(self) -> int:
        """Number of inputs, absent optional ones in the middle included."""
        return len(self.inputs)

    def has_input(self, index: int) -> bool:
        """Whether optional input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def num_outputs(self) -> int:
        """Number of outputs that the node lists."""
        return len(self.node.output)

    def uses_output(self, index: int) -> bool:
        """Whether anything reads output `index`: a node that the graph's outputs need, or an output itself."""
        return index < len(self.node.output) and self.node.output[index] in self._read

    def lattice(self, index: int) -> Value:
        """Input `index` as the frontend holds it: constant, quantised constant, or SSA value."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise FrontendError(f"{self.ref} lacks its input {index}")
        return value

    def value(self, index: int) -> SSAValue:
        """Input `index` as a tensor; a constant is written to the IR on first use."""
        return self._materializer.value(self.lattice(index), self.ref)

    def origin(self, value: Value, *operators: str) -> NodeContext | None:
        """The node that computed a value, if its operator is one of these of ONNX's domain."""
        found = self._origins.get(value)
        if found is None or found.ref.domain or found.ref.op_type not in operators:
            return None
        return found

    def matrix(self, index: int) -> tuple[SSAValue, bool]:
        """Input `index`, and whether it is to be read with its last two dimensions swapped.

        So a constant that was transposed on the way here is read from where it is, not copied.
        """
        return self.matrix_of(self.lattice(index))

    def matrix_of(self, value: Value) -> tuple[SSAValue, bool]:
        """`matrix` of any value."""
        return self._materializer.matrix(value, self.ref)

    def materialize(self, value: Value) -> SSAValue:
        """A tensor for any value."""
        return self._materializer.value(value, self.ref)

    def narrowed(self, value: Value, target: IntegerType) -> Const | None:
        """The integers of a constant in `target`, None for other values; the node is invalid where they do not fit."""
        if not isinstance(value, Const):
            return None
        narrow = self._materializer.narrowed(value, target)
        if narrow is None:
            self.invalid(
                f"'{value.name}' is declared to hold integers of {target}, but holds "
                f"{value.array.min()}..{value.array.max()}, or fractions"
            )
        return narrow

    def const(self, index: int) -> Array | None:
        """The elements of input `index` if it is constant and not a quantised weight, else None (also when absent)."""
        if not self.has_input(index):
            return None
        known = raising.plain_const(self.lattice(index))
        return None if known is None else known.array

    def require_const(self, index: int, what: str) -> Array:
        """The elements of input `index`, which must be constant; `what` names it in the refusal."""
        array = self.const(index)
        if array is None:
            self.refuse(
                f"{what} (input {index}) that is computed at run time", f"a constant {what}"
            )
        return array

    def type(self, index: int) -> TensorType[Attribute]:
        """Type of input `index`, constants included."""
        return value_type(self.lattice(index))

    def refuse(self, found: str, supported: str) -> NoReturn:
        """Raises what says that this node is valid ONNX but not supported. The driver collects these."""
        raise Unsupported(self.ref, found, supported)

    def invalid(self, why: str) -> NoReturn:
        """Raises what says that this node is not valid ONNX."""
        raise FrontendError(f"{self.ref}: {why}")


def value_type(value: Value | Carried) -> TensorType[Attribute]:
    """The tensor type of any value."""
    if isinstance(value, SSAValue):
        return cast(TensorType[Attribute], value.type)
    return TensorType(value.type, value.shape)
