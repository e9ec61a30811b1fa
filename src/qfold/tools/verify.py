"""`qfold verify`: builds the checked form of a network, runs it, and compares everything that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from qfold.backend.run import build_module
from qfold.frontend import LoadedModel
from qfold.targets import target_named
from qfold.tools.arrays import Array
from qfold.tools.audit import AuditResult, Objects, audit
from qfold.tools.comparison import (
    DispatchResult,
    OutputResult,
    check_dispatch,
    check_outputs,
    deviation_factor,
)
from qfold.tools.driver import Compilation, import_tensor_module
from qfold.tools.elf import require_library
from qfold.tools.manifest import manifest, program_of
from qfold.tools.terminal import Terminal


@dataclass(frozen=True)
class Verification:
    """All that was compared."""

    model: str
    factor: float
    """How many times the float32 reference's own deviation the outputs were allowed."""
    outputs: tuple[OutputResult, ...]
    dispatches: tuple[DispatchResult, ...]
    audit: tuple[AuditResult, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(r.ok for r in (*self.outputs, *self.dispatches, *self.audit))


def verify(
    compilation: Compilation,
    model: LoadedModel,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array] | None = None,
    terminal: Terminal | None = None,
) -> Verification:
    """Builds and runs `compilation` on `inputs`; compares dispatches, outputs (also with `expected`) and the object code.

    The outputs are those of the plain build, the dispatches those of the checked one; both come from the same sources. Raises
    `BuildError` and `RunError` when the network cannot be built or run.
    """
    require_library()
    terminal = terminal or Terminal(quiet=True)
    module = compilation.kernels
    with terminal.step("Building"):
        plain = build_module(module, extra_cflags=["-g"])
    with closing(plain):
        with terminal.step("Running"):
            outputs = plain.run(inputs)
        with terminal.step("Auditing the object code"):
            audited = audit(
                module,
                compilation.facts.quantized,
                Objects(*plain.built.objects),
                target_named(compilation.options.target),
            )
    with terminal.step("Building and running with checks"):
        checked = build_module(module, trace=True)
        with closing(checked):
            traces = checked.run_traced(inputs)
    program = program_of(module)
    with terminal.step("Checking kernel calls"):
        dispatches = [
            check_dispatch(module, dispatch, record, trace)
            for dispatch, record, trace in zip(
                program.dispatches, manifest(program), traces, strict=True
            )
        ]
    with terminal.step("Checking outputs"):
        reference = import_tensor_module(model, compilation.options)
        factor = deviation_factor(compilation.facts.hoisting_factor)
        results = check_outputs(reference, compilation.outputs, inputs, outputs, factor, expected)
    return Verification(
        compilation.model, factor, tuple(results), tuple(dispatches), tuple(audited)
    )
