"""Implementations of `arith`, `math` and casts: each op once, on whole arrays, in whatever domain a run is in."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from xdsl.dialects import arith, builtin, math
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
)
from xdsl.interpreter import Interpreter, InterpreterFunctions, PythonValues, impl, register_impls
from xdsl.ir import Operation
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects.element_types import numpy_dtype
from qfold.interpreters import elementwise
from qfold.interpreters.domains import Domain, element_type
from qfold.ir.constants import constant_array

_FLOAT_NAMES = frozenset(elementwise.FLOAT_ARITHMETIC) | frozenset(elementwise.ELEMENTARY)
_CONVERSIONS: tuple[type[Operation], ...] = (
    arith.SIToFPOp,
    arith.UIToFPOp,
    arith.FPToSIOp,
    arith.FPToUIOp,
    arith.ExtFOp,
    arith.TruncFOp,
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
    arith.IndexCastOp,
    arith.BitcastOp,
)


class DomainFunctions(InterpreterFunctions):
    """Implementations that compute in a `Domain`."""

    def __init__(self, domain: Domain):
        super().__init__()
        self.domain = domain


class ScalarFunctions(DomainFunctions):
    """`arith`, `math`, `builtin.unrealized_conversion_cast`."""

    @impl(arith.ConstantOp)
    def run_constant(
        self, interpreter: Interpreter, op: arith.ConstantOp, args: PythonValues
    ) -> PythonValues:
        value = op.value
        if isinstance(value, IntegerAttr):
            if isinstance(op.result.type, IndexType):
                return (value.value.data,)
            number = np.asarray(value.value.data)
            return (elementwise.wrap(number, op.result.type),)
        if isinstance(value, FloatAttr):
            # What the type holds, not what was written.
            number = np.asarray(value.value.data, numpy_dtype(op.result.type))
            return (self.domain.constant(number, op.result.type),)
        if isinstance(value, DenseIntOrFPElementsAttr):
            array = constant_array(op.result)
            if array is not None:
                return (self.domain.constant(array, element_type(op.result.type)),)
        raise InterpretationError(f"arith.constant with {value.name} is not supported")

    @impl(arith.SelectOp)
    def run_select(
        self, interpreter: Interpreter, op: arith.SelectOp, args: PythonValues
    ) -> PythonValues:
        return (self.domain.select(*args),)

    @impl(arith.CmpiOp)
    def run_cmpi(
        self, interpreter: Interpreter, op: arith.CmpiOp, args: PythonValues
    ) -> PythonValues:
        return (self.domain.compare(op.name, op.predicate.value.data, *args),)

    @impl(arith.CmpfOp)
    def run_cmpf(
        self, interpreter: Interpreter, op: arith.CmpfOp, args: PythonValues
    ) -> PythonValues:
        return (self.domain.compare(op.name, op.predicate.value.data, *args),)

    @impl(arith.MulSIExtendedOp)
    def run_mulsi_extended(
        self, interpreter: Interpreter, op: arith.MulSIExtendedOp, args: PythonValues
    ) -> PythonValues:
        of_type = cast(IntegerType, op.low.type)
        width = of_type.width.data
        if width > 32:
            raise InterpretationError(f"{op.name} of {of_type}: no more than 32 bits are supported")
        wide = IntegerType(2 * width)
        a, b = (self.domain.convert("arith.extsi", of_type, wide, x) for x in args)
        product = self.domain.integer_op("arith.muli", wide, a, b)
        shift = np.asarray(width, numpy_dtype(wide))
        upper = self.domain.integer_op("arith.shrsi", wide, product, shift)
        return tuple(
            self.domain.convert("arith.trunci", wide, of_type, x) for x in (product, upper)
        )

    @impl(math.FPowIOp)
    def run_fpowi(
        self, interpreter: Interpreter, op: math.FPowIOp, args: PythonValues
    ) -> PythonValues:
        base, exponent = args
        of_type = op.result.type
        power = self.domain.convert("arith.sitofp", op.operands[1].type, of_type, exponent)
        return (self.domain.float_op("math.powf", of_type, base, power),)

    @impl(builtin.UnrealizedConversionCastOp)
    def run_cast(
        self,
        interpreter: Interpreter,
        op: builtin.UnrealizedConversionCastOp,
        args: PythonValues,
    ) -> PythonValues:
        if len(args) != 1 or len(op.results) != 1:
            raise InterpretationError("a cast of several values has no meaning here")
        source, target = element_type(op.operands[0].type), element_type(op.results[0].type)
        return (self.domain.reinterpret(source, target, args[0]),)


def _run_float(
    self: ScalarFunctions, interpreter: Interpreter, op: Operation, args: PythonValues
) -> PythonValues:
    return (self.domain.float_op(op.name, element_type(op.results[0].type), *args),)


def _run_integer(
    self: ScalarFunctions, interpreter: Interpreter, op: Operation, args: PythonValues
) -> PythonValues:
    return (self.domain.integer_op(op.name, element_type(op.results[0].type), *args),)


def _run_conversion(
    self: ScalarFunctions, interpreter: Interpreter, op: Operation, args: PythonValues
) -> PythonValues:
    source, target = element_type(op.operands[0].type), element_type(op.results[0].type)
    return (self.domain.convert(op.name, source, target, args[0]),)


def _register() -> None:
    """Give `ScalarFunctions` one method per op of the tables."""
    operations: list[type[Operation]] = [*arith.Arith.operations, *math.Math.operations]
    for operation in operations:
        function: Any = None
        if operation is math.FPowIOp:
            continue
        if operation.name in _FLOAT_NAMES or operation is math.FmaOp:
            function = _run_float
        elif operation.name in elementwise.INTEGER_OPS:
            function = _run_integer
        elif operation in _CONVERSIONS:
            function = _run_conversion
        if function is not None:
            setattr(ScalarFunctions, f"run_{operation.name}", impl(operation)(function))
    register_impls(ScalarFunctions)


_register()
