"""`qfold verify`: builds the checked form of a network, runs it, and compares everything that can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from qfold.backend.build import BuildDirectory
from qfold.backend.c.emit import emit
from qfold.backend.files import write_directory
from qfold.backend.run import build
from qfold.frontend import LoadedModel
from qfold.interpreters import Value, run
from qfold.targets import target_named
from qfold.tools.approximation import Cost, costs
from qfold.tools.arrays import Array
from qfold.tools.audit import AuditResult, Objects, audit
from qfold.tools.comparison import (
    DispatchResult,
    OutputResult,
    check_dispatch,
    check_outputs,
    deviation_factor,
)
from qfold.tools.driver import Compilation, approximate, import_tensor_module
from qfold.tools.elf import require_library
from qfold.tools.manifest import manifest, program_of
from qfold.tools.proof import Evidence, prove
from qfold.tools.report import assembly_functions
from qfold.tools.simulation import can_profile, unit_of
from qfold.tools.terminal import Terminal
from qfold.tools.work import WorkTable, work_table


@dataclass(frozen=True)
class Verification:
    """All that was compared."""

    model: str
    factor: float
    """How many times the float32 reference's own deviation the outputs were allowed."""
    outputs: tuple[OutputResult, ...]
    dispatches: tuple[DispatchResult, ...]
    audit: tuple[AuditResult, ...]
    work: WorkTable | None
    """What each dispatch took, where the target counts that."""
    approximates: bool = False
    """Whether the network stands for another one, and outputs were allowed twice the distance of the two."""
    approximation: tuple[Cost, ...] | None = None
    """What an approximating build costs, where that was asked for."""

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
    *,
    compare_exact: bool = False,
) -> Verification:
    """Builds and runs `compilation` on `inputs`; compares dispatches, outputs (also with `expected`) and the object code.

    The outputs are those of the plain build (in a simulator of the one that counts), the dispatches those of the checked one;
    both come from the same sources. An approximating build is held to the network that it is, and compared with the one that it
    stands for if `compare_exact` asks for that. Raises `BuildError` and `RunError` when the network cannot be built or run.
    """
    require_library()
    terminal = terminal or Terminal(quiet=True)
    module = compilation.kernels
    target = target_named(compilation.options.target)
    program = program_of(module)
    records = manifest(program)
    source = BuildDirectory()
    with closing(source):
        write_directory(source.path, emit(module))
        with terminal.step("Building and running with checks"):
            # A transfer that somebody does not wait for shows there, wherever it happens to be early enough.
            flags = ["-DQFOLD_DEBUG_DMA"] if target.is_cluster else []
            with closing(build(source.path, module, trace=True, extra_cflags=flags)) as checked:
                traces = checked.run_traced(inputs)
        counts = target.isa is not None
        with terminal.step("Building"):
            flags = ["-g", *(["-DQFOLD_COUNT"] if counts else [])]
            plain = build(source.path, module, extra_cflags=flags)
    with closing(plain):
        with terminal.step("Running"):
            measured = plain.measure(inputs, profile=counts and can_profile(target))
        with terminal.step("Auditing the object code"):
            objects = Objects.of(plain.built, target)
            audited = audit(module, compilation.facts, objects, target)
            if target.is_cluster:
                evidence = Evidence(
                    plain.built.binary,
                    objects.kernels,
                    [t.leafs for t in traces],
                    measured.profile,
                    machine_code=target.isa is not None,
                )
                blocks = assembly_functions(compilation.report)
                audited += prove(module, program, records, blocks, evidence)
    with terminal.step("Checking kernel calls"):
        dispatches = [
            check_dispatch(module, dispatch, record, trace)
            for dispatch, record, trace in zip(program.dispatches, records, traces, strict=True)
        ]
    with terminal.step("Checking outputs"):
        reference = import_tensor_module(model, compilation.options)
        exact: Sequence[Value] | None = None
        if compilation.options.dynamic_activations or compare_exact:
            exact = run(reference, list(inputs.values()), domain="f64")
        if compilation.options.dynamic_activations:
            approximate(reference, compilation.options)
        factor = deviation_factor(compilation.facts.hoisting_factor)
        results = check_outputs(
            reference, compilation.outputs, inputs, measured.outputs, factor, expected, exact
        )
    approximation = None
    if compare_exact and exact is not None:
        approximation = costs(compilation.outputs, exact, measured.outputs)
    work = None
    if measured.counts is not None:
        work = work_table(records, measured.counts, unit_of(target))
    return Verification(
        compilation.model,
        factor,
        tuple(results),
        tuple(dispatches),
        tuple(audited),
        work,
        compilation.options.dynamic_activations,
        approximation,
    )
