"""Running modules: one call at every level, in each numeric domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import DictionaryAttr, MemRefType, ModuleOp, StringAttr
from xdsl.dialects.builtin import TensorType as BuiltinTensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.interpreter import Interpreter, PythonValues, impl, register_impls
from xdsl.interpreters.func import FuncFunctions
from xdsl.ir import Attribute, BlockArgument, Operation
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects import pulp, qkernel
from qfold.dialects.element_types import i8, is_float, numpy_dtype
from qfold.interpreters.bounded import BoundedDomain
from qfold.interpreters.domains import Domain, PlainDomain, element_type
from qfold.interpreters.generic import LinalgFunctions
from qfold.interpreters.memref import MemRefFunctions
from qfold.interpreters.pulp import PulpFunctions, transfers_of
from qfold.interpreters.qkernel import QkernelFunctions
from qfold.interpreters.qmm import QmmFunctions, groups_of
from qfold.interpreters.scalar import ScalarFunctions
from qfold.interpreters.scf import ScfFunctions
from qfold.interpreters.structured import TensorFunctions
from qfold.interpreters.values import Array, Bounded, ByteBuffer, Value, map_parts
from qfold.ir.locations import describe_location

DomainName = Literal["exact", "f64", "bounded"]
Argument = npt.ArrayLike | Bounded


def domain_named(name: DomainName) -> Domain:
    """The domain of that name. `ValueError` for any other."""
    match name:
        case "exact":
            return PlainDomain(wide=False)
        case "f64":
            return PlainDomain(wide=True)
        case "bounded":
            return BoundedDomain()
        case _:
            raise ValueError(f"unknown domain {name!r}: exact, f64 or bounded")


@register_impls
class _Functions(FuncFunctions):
    """`func`. Callees are looked up in a table, where xDSL's own look-up walks the module; each finishes the copies it starts."""

    @impl(CallOp)
    def run_call(self, interpreter: Interpreter, op: CallOp, args: PythonValues) -> PythonValues:
        table: dict[str, FuncOp] = interpreter.get_data(
            _Functions, "table", lambda: _functions_of(interpreter.module)
        )
        callee = table.get(op.callee.root_reference.data)
        with transfers_of(interpreter).frame():
            return interpreter.call_op(op.callee if callee is None else callee, args)


def _functions_of(module: ModuleOp) -> dict[str, FuncOp]:
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)}


def register_implementations(interpreter: Interpreter, domain: Domain) -> None:
    """Register `func` and every op of builtin, arith, math, tensor, linalg, memref, scf.for, qmm, qkernel and pulp.

    For embedders that add implementations of their own ops; its values are those that `values.py` describes.
    """
    interpreter.register_implementations(_Functions())
    interpreter.register_implementations(ScfFunctions())
    for functions in (
        ScalarFunctions,
        TensorFunctions,
        LinalgFunctions,
        MemRefFunctions,
        QmmFunctions,
        QkernelFunctions,
        PulpFunctions,
    ):
        interpreter.register_implementations(functions(domain))


def create_interpreter(module: ModuleOp, domain: DomainName = "exact") -> Interpreter:
    """An xDSL interpreter of `module` with everything registered."""
    interpreter = Interpreter(module)
    register_implementations(interpreter, domain_named(domain))
    return interpreter


def run(
    module: ModuleOp,
    inputs: Sequence[Argument],
    *,
    domain: DomainName = "exact",
    entry: str = "main",
    listeners: Sequence[Interpreter.Listener] = (),
) -> tuple[Value, ...]:
    """Run `entry` on its inputs and return its outputs, whatever level the module is at.

    On tensors the outputs are the results. On memrefs they are the arguments with `qmm.role = "output"`, allocated here as is the
    arena. Outputs are arrays of the IR's own types (`exact`), of float64 for floats (`f64`), or `Bounded` (`bounded`).
    `listeners` see each op with the values that it takes and gives.

    Raises `ValueError` for a wrong number, shape or type of inputs, and `InterpretationError` for what cannot be run.
    """
    interpreter = create_interpreter(module, domain)
    numbers = domain_named(domain)
    interpreter.listeners = tuple(listeners)
    function = _function(interpreter, entry)
    names, roles = _signature(function)
    given = iter(inputs)
    expected = sum(role == "input" for role in roles)
    if len(inputs) != expected:
        raise ValueError(f"@{entry} takes {expected} inputs, got {len(inputs)}")
    arguments: list[Any] = []
    outputs: list[int] = []
    for index, (name, role, type_) in enumerate(
        zip(names, roles, function.function_type.inputs, strict=True)
    ):
        if role == "input":
            arguments.append(_argument(numbers, next(given), type_, name))
        elif role == "arena":
            arguments.append(numbers.byte_buffer(_shape(type_)[0]))
        else:
            outputs.append(index)
            arguments.append(numbers.allocate(_shape(type_), element_type(type_)))
    results = _call(interpreter, function, arguments)
    values = [*results, *(arguments[i] for i in outputs)]
    return tuple(_output(numbers, v) for v in values)


def run_function(
    module: ModuleOp,
    symbol: str,
    arguments: Sequence[Argument | None],
    domain: DomainName = "exact",
) -> tuple[Value, ...]:
    """Run one function on one argument per parameter: results, or (without any) all arguments as they are afterwards.

    In `exact`, a memref argument that is an array of the right dtype is written in place. A read-only array is taken to be never
    written, and to be exact. None stands for the scratchpad (or arena) that a function carves its buffers from by `memref.view`:
    it gets one, filled with garbage.
    """
    interpreter = create_interpreter(module, domain)
    numbers = domain_named(domain)
    function = _function(interpreter, symbol)
    names, _ = _signature(function)
    types = function.function_type.inputs.data
    if len(arguments) != len(types):
        raise ValueError(f"@{symbol} takes {len(types)} arguments, got {len(arguments)}")
    written = map(_is_written, function.body.block.args)
    values = [
        _scratchpad(numbers, t, n) if a is None else _argument(numbers, a, t, n, w)
        for a, t, n, w in zip(arguments, types, names, written, strict=True)
    ]
    results = _call(interpreter, function, values)
    return tuple(
        _output(numbers, v) for v in (results if function.function_type.outputs else values)
    )


class _CurrentOp(Interpreter.Listener):
    """Remembers which op runs."""

    op: Operation | None = None

    def will_interpret_op(self, op: Operation, args: PythonValues) -> None:
        self.op = op


def _call(interpreter: Interpreter, function: FuncOp, arguments: Sequence[Any]) -> PythonValues:
    """Call a function; an error says which op, from which ONNX node, raised it."""
    current = _CurrentOp()
    interpreter.listeners = (*interpreter.listeners, current)
    try:
        with np.errstate(all="ignore"), transfers_of(interpreter).frame():
            return interpreter.call_op(function, tuple(arguments))
    except Exception as error:
        # xDSL's note is the text of the whole module.
        getattr(error, "__notes__", []).clear()
        if current.op is not None:
            error.add_note(f"in {describe_location(current.op)}")
        raise


def _function(interpreter: Interpreter, symbol: str) -> FuncOp:
    function = _functions_of(interpreter.module).get(symbol)
    if function is None:
        raise InterpretationError(f"the module has no function @{symbol}")
    return function


def _signature(function: FuncOp) -> tuple[list[str], list[str]]:
    """The name (`qmm.name`, or a number) and the role (`qmm.role`, or input) of each parameter."""
    names: list[str] = []
    roles: list[str] = []
    attributes = function.arg_attrs
    for index in range(len(function.function_type.inputs)):
        entries = DictionaryAttr({}).data if attributes is None else attributes.data[index].data
        name, role = entries.get("qmm.name"), entries.get("qmm.role")
        names.append(repr(name.data) if isinstance(name, StringAttr) else f"number {index}")
        roles.append(role.data if isinstance(role, StringAttr) else "input")
    return names, roles


def _shape(type_: Attribute) -> tuple[int, ...]:
    assert isinstance(type_, BuiltinTensorType | MemRefType)
    return cast("MemRefType[Attribute]", type_).get_shape()


def _is_written(argument: BlockArgument) -> bool:
    """Whether a memref argument may be written: not when contractions and structured ops only read it."""
    for use in argument.uses:
        op = use.operation
        if isinstance(op, LinalgStructuredOperation) and use.index < len(op.inputs):
            continue
        if isinstance(op, pulp.DmaStartOp) and op.destination is not argument:
            continue
        if isinstance(op, qkernel.CONTRACTIONS) and "y" in groups_of(op, op.operands):
            if groups_of(op, op.operands)["y"][0] is not argument:
                continue
        return True
    return False


def _argument(
    domain: Domain, value: Argument, type_: Attribute, name: str, written: bool = True
) -> Any:
    """`value` as this domain holds a value of `type_`; `ValueError` when it is none."""
    if not isinstance(type_, BuiltinTensorType | MemRefType):
        return value
    shape, of_type = _shape(cast(Attribute, type_)), element_type(cast(Attribute, type_))
    array = value if isinstance(value, Bounded) else np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"argument {name} has shape {list(shape)}, got {list(array.shape)}")
    right = numpy_dtype(of_type)
    if array.dtype != right and not (is_float(of_type) and array.dtype.kind == "f"):
        raise ValueError(f"argument {name} is {of_type} ({right}), got {array.dtype}")
    if isinstance(type_, MemRefType) and written and not _is_read_only(array):
        return domain.writable(array, of_type)
    if isinstance(array, Bounded):
        return array
    return domain.constant(array, of_type)


def _scratchpad(domain: Domain, type_: Attribute, name: str) -> ByteBuffer:
    """Bytes to carve buffers from; `ValueError` when `type_` is another one."""
    if isinstance(type_, MemRefType):
        memref = cast("MemRefType[Attribute]", type_)
        if memref.element_type == i8 and memref.get_num_dims() == 1:
            return domain.byte_buffer(memref.get_shape()[0])
    raise ValueError(f"argument {name} is {type_}, not the bytes of a scratchpad: it needs a value")


def _is_read_only(array: Array | Bounded) -> bool:
    return not isinstance(array, Bounded) and not array.flags.writeable


def _output(domain: Domain, value: Any) -> Any:
    """Results to hand out: in `bounded` always with a bound."""
    if domain.name == "bounded" and isinstance(value, np.ndarray | np.generic):
        array = np.asarray(cast(Array, value))
        return Bounded(array, np.broadcast_to(0.0, array.shape))
    if isinstance(value, ByteBuffer | int):
        return value
    return map_parts(np.asarray, value)
