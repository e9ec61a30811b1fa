"""From an ONNX model to a module with one function `@main`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from onnx import ValueInfoProto
from xdsl.dialects import func
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue

from qfold.dialects.element_types import i8, i32, ui8
from qfold.frontend.errors import FrontendError, NodeRef, UnsupportedNodes
from qfold.frontend.importer import GraphImporter, Poison, Scope, Slot, as_declared, check_declared
from qfold.frontend.reader import LoadedModel, ModelSource, load_model
from qfold.frontend.tensors import (
    CONSTANT_ONLY,
    MAX_ELEMENTS,
    declared_shape,
    decode_tensor,
    element_type_of_onnx,
)
from qfold.frontend.values import Array, Carried
from qfold.ir.locations import name_location


def import_model(
    source: ModelSource,
    dims: Mapping[str, int] | None = None,
    *,
    directory: Path | None = None,
    name: str | None = None,
    freeze_initializers: bool = False,
    input_types: Mapping[str, IntegerType] | None = None,
) -> ModuleOp:
    """A tensor-level module for an ONNX model.

    `source`: a path, the bytes of a file, or a `ModelProto`. `dims` gives lengths to dynamic dimensions, by the name that
    the model gives them, or `<input>:<index>` for one without a name. `directory` holds external data (default: that of the
    file). `name` is what messages call the model. An initializer that is also a graph input is a default that callers may
    override, so it becomes an argument; `freeze_initializers` makes it a constant. `input_types` declares that an input of floats
    or of wider integers holds integers of i8 or ui8, and makes it an argument of that type. `FrontendError` says why a model
    cannot be handled.
    """
    return import_loaded(
        load_model(source, directory=directory, name=name),
        dims,
        freeze_initializers=freeze_initializers,
        input_types=input_types,
    )


def import_loaded(
    model: LoadedModel,
    dims: Mapping[str, int] | None = None,
    *,
    freeze_initializers: bool = False,
    input_types: Mapping[str, IntegerType] | None = None,
) -> ModuleOp:
    """`import_model` for a model that was loaded before."""
    graph = model.proto.graph
    defaults = {t.name for t in graph.initializer}
    arguments = list(graph.input)
    if freeze_initializers or model.proto.ir_version < 4:
        # Before IR version 4 every initializer had to be listed as an input; none was meant to be overridden.
        arguments = [i for i in graph.input if i.name not in defaults]
    types = resolve_inputs(arguments, dims or {})
    declared = list(types)
    _apply_input_types([a.name for a in arguments], types, input_types or {})
    block = Block(arg_types=types)
    for argument, value in zip(block.args, arguments, strict=True):
        argument.location = name_location(value.name)
    importer = GraphImporter(model, block)
    # A network of RequantShift holds integers in its floats from its inputs on.
    integers = any(node.op_type == "RequantShift" for node in graph.node)
    values: dict[str, Slot] = {}
    for value, argument, type_, given in zip(arguments, block.args, declared, types, strict=True):
        carried = type_ != given or (integers and type_.element_type == f32)
        values[value.name] = (
            Carried(argument, type_.element_type, strict=integers) if carried else argument
        )
    scope = Scope(values, dict(model.opsets))
    slots = importer.run_graph(graph, scope)
    if importer.reasons:
        raise UnsupportedNodes(importer.reasons)
    outputs: list[str] = [o.name for o in graph.output]
    if len(set(outputs)) != len(outputs):
        twice = next(n for n in outputs if outputs.count(n) > 1)
        raise FrontendError(f"graph output '{twice}' is listed twice")
    results: list[SSAValue] = []
    for value, slot in zip(graph.output, slots, strict=True):
        reader = NodeRef(value.name, "graph output", "", model.opsets.get("", 1))
        slot = as_declared(slot, value)
        assert not isinstance(slot, Poison)
        check_declared(value, slot, reader)
        if isinstance(slot, Carried):
            results.append(importer.materializer.carried(slot, reader))
        else:
            results.append(importer.materializer.value(slot, reader))
    block.add_op(func.ReturnOp(*results))
    _erase_unused(block)
    function = func.FuncOp(
        "main",
        FunctionType.from_lists(types, [r.type for r in results]),
        Region(block),
        arg_attrs=_names([v.name for v in arguments]),
        res_attrs=_names(outputs),
    )
    function.location = name_location(graph.name or "main")
    module = ModuleOp([function])
    module.attributes["qmm.opset"] = IntegerAttr(model.opsets.get("", 1), i64)
    return module


def _erase_unused(block: Block) -> None:
    """Erases ops whose results nothing reads: what was recognised, afterwards, as part of something else."""
    for op in reversed(tuple(block.ops)):
        if op.results and not any(r.uses for r in op.results):
            op.detach()
            op.erase()


def _apply_input_types(
    names: Sequence[str],
    types: list[TensorType[Attribute]],
    wanted: Mapping[str, IntegerType],
) -> None:
    """Changes the element types of float inputs, and of wider integers, to those that the caller declares."""
    for name, element in wanted.items():
        if name not in names:
            raise FrontendError(f"no input is called '{name}': they are {', '.join(names)}")
        position = names.index(name)
        if types[position].element_type not in (f32, i32, i64):
            raise FrontendError(
                f"graph input '{name}' is {types[position]}; a type is declared for f32, i32 and i64 only"
            )
        if element not in (i8, ui8):
            raise FrontendError(f"input '{name}' is declared to hold {element}; i8 or ui8 it may")
        types[position] = TensorType(element, types[position].get_shape())


def default_inputs(model: LoadedModel) -> dict[str, Array]:
    """The defaults of graph inputs that are also initializers: input name -> values."""
    inputs = {i.name for i in model.proto.graph.input}
    return {
        t.name: decode_tensor(t, t.name, model.directory).array
        for t in model.proto.graph.initializer
        if t.name in inputs
    }


def _names(names: Sequence[str]) -> ArrayAttr[DictionaryAttr]:
    return ArrayAttr([DictionaryAttr({"qmm.name": StringAttr(n)}) for n in names])


def resolve_inputs(
    inputs: Sequence[ValueInfoProto], dims: Mapping[str, int]
) -> list[TensorType[Attribute]]:
    """The types of the graph inputs, their named dimensions replaced by `dims`.

    One `FrontendError` lists every dimension that has no length yet; others say which name no input has, or which length
    is wrong.
    """
    known: list[str] = []
    missing: list[str] = []
    types: list[TensorType[Attribute]] = []
    for value in inputs:
        what = f"graph input '{value.name}'"
        if not value.type.HasField("tensor_type"):
            raise FrontendError(f"{what} is not a tensor, which is all that is supported")
        shape = declared_shape(value.type)
        element = element_type_of_onnx(value.type.tensor_type.elem_type, what)
        if element in CONSTANT_ONLY:
            raise FrontendError(f"{what} has element type {element}, which only constants may have")
        if shape is None:
            raise FrontendError(f"{what} has no shape: export the model with one")
        resolved: list[int] = []
        for index, dimension in enumerate(shape):
            if isinstance(dimension, int):
                if dimension < 0:
                    raise FrontendError(f"{what} has the negative dimension {dimension}")
                resolved.append(dimension)
                continue
            name = f"{value.name}:{index}" if dimension is None else dimension
            known.append(name)
            if name in dims:
                resolved.append(dims[name])
            else:
                missing.append(name)
        if prod(resolved) > MAX_ELEMENTS:
            raise FrontendError(
                f"{what} has {prod(resolved)} elements; at most {MAX_ELEMENTS} are supported"
            )
        types.append(TensorType(element, resolved))
    for name, length in dims.items():
        if name not in known:
            names = ", ".join(dict.fromkeys(known))
            have = f"they are {names}" if names else "no input has a dynamic dimension"
            raise FrontendError(f"no input has a dimension called '{name}': {have}")
        if length < 1:
            raise FrontendError(
                f"dimension '{name}' is given the length {length}; it has to be positive"
            )
    if missing:
        names = list(dict.fromkeys(missing))
        options = " ".join(f"--dim {n}=N" for n in names)
        raise FrontendError(
            f"the length of {len(names)} dynamic dimension{'s' if len(names) > 1 else ''} is not "
            f"known: give it by {options}"
        )
    return types
