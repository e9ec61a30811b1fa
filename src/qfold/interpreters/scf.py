"""Implementations of `scf`: counted loops over `index` values that are Python ints, as everywhere here."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.utils.exceptions import InterpretationError

from qfold.interpreters.values import scalar_int


@register_impls
class ScfFunctions(InterpreterFunctions):
    """`scf.for` and its yield."""

    @impl(scf.ForOp)
    def run_for(self, interpreter: Interpreter, op: scf.ForOp, args: PythonValues) -> PythonValues:
        low, high, step = (scalar_int(bound) for bound in args[:3])
        if step < 1:
            raise InterpretationError(f"scf.for counts up: its step is {step}")
        carried = args[3:]
        for index in range(low, high, step):
            carried = interpreter.run_ssacfg_region(op.body, (index, *carried), "for")
        return carried

    @impl_terminator(scf.YieldOp)
    def run_yield(
        self, interpreter: Interpreter, op: scf.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()
