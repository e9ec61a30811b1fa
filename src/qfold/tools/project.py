"""What `report.json` says about a compiled network, for running it without its model."""

from __future__ import annotations

from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import (
    ArrayAttr,
    Builtin,
    DictionaryAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
)
from xdsl.ir import Attribute, Block, Region
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from qfold.dialects.element_types import numpy_dtype
from qfold.dialects.qmm import QuantAttr
from qfold.tools.arrays import TensorSpec
from qfold.tools.errors import ToolError
from qfold.tools.report import Report


def _element_type(text: str) -> Attribute:
    context = Context()
    context.load_dialect(Builtin)
    try:
        element_type = Parser(context, text).parse_type()
        numpy_dtype(element_type)
        return element_type
    except (ParseError, TypeError) as error:
        raise ToolError(f"the report names an element type that is none: {text!r}") from error


def _quant(entry: dict[str, Any]) -> QuantAttr | None:
    if entry["scale"] is None:
        return None
    storage = _element_type(entry["element_type"])
    try:
        if not isinstance(storage, IntegerType):
            raise VerifyException(f"{storage} is no integer")
        return QuantAttr.get(cast(IntegerType, storage), entry["scale"], entry["zero_point"])
    except VerifyException as error:
        raise ToolError(f"the report's scale of '{entry['name']}' is none: {error}") from error


def report_specs(report: Report, direction: str) -> list[TensorSpec]:
    """The `inputs` or `outputs` of a report."""
    entries: list[dict[str, Any]] = report[direction]
    return [
        TensorSpec(
            e["name"],
            _element_type(e["element_type"]),
            tuple(e["shape"]),
            _quant(e),
            e["layout"],
            e["note"],
        )
        for e in entries
    ]


def interface_module(report: Report) -> ModuleOp:
    """A kernel-level module with the inputs and outputs of a compiled network, and nothing in it: what a runner has to know."""
    types: list[Attribute] = []
    attributes: list[DictionaryAttr] = []
    for direction, role in (("inputs", "input"), ("outputs", "output")):
        for spec in report_specs(report, direction):
            types.append(MemRefType(spec.element_type, spec.shape))
            attributes.append(
                DictionaryAttr({"qmm.name": StringAttr(spec.name), "qmm.role": StringAttr(role)})
            )
    block = Block([func.ReturnOp()], arg_types=types)
    main = func.FuncOp("main", (types, []), Region(block), arg_attrs=ArrayAttr(attributes))
    return ModuleOp([main], {"qmm.target": StringAttr(report["target"])})
