"""That the kernels of the report are what runs: linked, executed, with the loads that the types of their operands call for.

The report says which functions there are and what they read. Everything else comes from the program's own bytes: symbols,
machine code, and what was counted while it ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from qfold.backend.c.program import Program
from qfold.backend.simulators import Profile
from qfold.targets import target_named
from qfold.tools.audit import SOFT_DOUBLE, AuditResult, has_doubles
from qfold.tools.elf import ObjectFile
from qfold.tools.kernel_code import KernelCode, either, proof_result
from qfold.tools.leafs import LeafRecord, every_leaf, leaf_sequence
from qfold.tools.manifest import KernelRecord
from qfold.tools.proof_integers import (
    check_counted_dot_products,
    check_dot_products,
    check_no_floats,
)
from qfold.tools.riscv_code import LOAD_OF, LOADS, STACK_POINTER

_LIBM = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax fmin "
    "fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter "
    "nexttoward pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan tanh tgamma trunc sincos"
).split()
LIBM = frozenset(f"{name}{suffix}" for name in _LIBM for suffix in ("", "f", "l"))
"""Functions of <math.h> (C99, 7.12) for all three types, and one that compilers merge calls into."""

_SOFT_FLOAT = re.compile(
    r"__(add|sub|mul|div|neg|eq|ne|lt|le|gt|ge|unord)sf[23]|__(fix(uns)?sfsi|float(un)?sisf)"
)
"""Helpers for floats (GCC internals manual, "Routines for floating point emulation"); what an FPU of singles does itself."""

_BYTE_LOADS = {t: LOAD_OF[t] for t in ("i8", "ui8", "i16", "ui16")}
# A nibble is part of a byte, which may be loaded either way.
_OF_WEIGHT = {
    **LOAD_OF,
    "i4": LOAD_OF["i8"] | LOAD_OF["ui8"],
    "ui4": LOAD_OF["i8"] | LOAD_OF["ui8"],
}
_SMALL = frozenset({"i1", "i4", "ui4", *_BYTE_LOADS})


@dataclass(frozen=True)
class Evidence:
    """What was built and what happened when it ran."""

    binary: Path
    kernels: Path
    """The object file of the kernels in C."""
    traced: Sequence[Sequence[str]]
    """For each dispatch, the kernels that core 0 called, in order (checked build)."""
    profile: Profile | None
    """Calls and loads of one run; None where nothing counts them."""
    machine_code: bool
    """Whether it is RISC-V, which can be read here."""


def prove(
    module: ModuleOp,
    program: Program,
    calls: Sequence[KernelRecord],
    blocks: Mapping[str, Sequence[str]],
    evidence: Evidence,
) -> list[AuditResult]:
    """All proofs for one build. `blocks`: the assembly functions of each generated kernel, by its symbol."""
    leafs = [
        KernelCode(leaf, tuple(blocks.get(leaf.symbol, ())))
        for leaf in every_leaf([c.leafs for c in calls]).values()
    ]
    with ObjectFile(evidence.binary) as linked, ObjectFile(evidence.kernels) as kernels:
        results = [
            _check_symbols(leafs, linked, kernels),
            _check_executed(program, leafs, evidence),
        ]
        if evidence.machine_code:
            results.append(_check_loads(leafs, linked, kernels))
            if evidence.profile is not None and evidence.profile.has_loads:
                results += _check_counted_loads(leafs, kernels, evidence.profile)
            isa = target_named(program.target).isa
            has_dots = isa is not None and isa.xpulpv2
            results += _integer_proofs(leafs, linked, kernels, evidence.profile, has_dots=has_dots)
            results.append(_check_freestanding(module, linked))
    return results


def _integer_proofs(
    leafs: Sequence[KernelCode],
    linked: ObjectFile,
    kernels: ObjectFile,
    profile: Profile | None,
    *,
    has_dots: bool,
) -> Iterator[AuditResult]:
    """What networks are held to that multiply integers; nothing for others. `has_dots`: the machine has packed dot products."""
    if not any(f.leaf.is_integer for f in leafs):
        return
    if has_dots and any(f.leaf.dots is not None and f.is_generated for f in leafs):
        yield check_dot_products(leafs, linked, kernels)
        if profile is not None and profile.has_loads:
            yield check_counted_dot_products(leafs, kernels, profile)
    yield check_no_floats(leafs, linked, kernels)


def _check_symbols(
    leafs: Sequence[KernelCode], linked: ObjectFile, kernels: ObjectFile
) -> AuditResult:
    problems: list[str] = []
    names = [name for f in leafs for name in (f.leaf.symbol, *f.blocks)]
    for name in names:
        symbol = linked.defined.get(name)
        if symbol is None or not symbol.is_function or not symbol.size:
            problems.append(f"{name} is no function of {linked.path.name}")
    for f in leafs:
        if f.is_generated and f.leaf.symbol in kernels.defined:
            uncalled = set(f.blocks) - set(kernels.calls(f.leaf.symbol))
            problems += [f"{f.leaf.symbol} does not call {name}" for name in sorted(uncalled)]
    return proof_result(
        "every kernel of the report is in the linked program", problems, f"{len(names)} functions"
    )


def _check_executed(
    program: Program, leafs: Sequence[KernelCode], evidence: Evidence
) -> AuditResult:
    problems: list[str] = []
    total = 0
    for dispatch, found in zip(program.dispatches, evidence.traced, strict=True):
        expected = list(leaf_sequence(dispatch.kernel))
        # The trace names a dispatch that is not staged itself.
        have = list(found) if dispatch.kernel.is_staged else [dispatch.kernel.symbol]
        total += len(expected)
        problems += [
            f"call {i} of dispatch {dispatch.ordinal} ({dispatch.kernel.symbol}) was "
            f"{b or 'missing'}, the report says {a or 'nothing'}"
            for i, (a, b) in enumerate(zip_longest(expected, have))
            if a != b
        ][:1]
    detail = f"{total} calls on core 0"
    if evidence.profile is not None:
        detail = f"{total} calls on each core, counted by the simulator"
        for f in leafs:
            problems += _uncounted(f, evidence.profile)
    return proof_result("every kernel of the report was executed", problems, detail)


def _uncounted(function: KernelCode, profile: Profile) -> Iterator[str]:
    """Problems with how often a kernel ran on each core."""
    leaf = function.leaf
    calls = profile[leaf.symbol].calls
    for core, count in enumerate(calls):
        if count < leaf.calls:
            yield f"core {core} ran {leaf.symbol} {count} times, the report says {leaf.calls}"
    if not calls:
        yield f"{leaf.symbol} never ran, the report says {leaf.calls} times"
    for block in function.blocks:
        if not sum(profile[block].calls):
            yield f"{block}, the code of {leaf.symbol}, never ran"


def _types(leaf: LeafRecord) -> set[str]:
    """The element types that a kernel reads."""
    return {o.element_type for o in leaf.operands if o.read}


def _check_loads(
    leafs: Sequence[KernelCode], linked: ObjectFile, kernels: ObjectFile
) -> AuditResult:
    """By disassembly: the loads that a weight calls for are there, and in assembly none that no operand calls for."""
    problems: list[str] = []
    looked = 0
    for f in leafs:
        leaf = f.leaf
        if leaf.dots is not None and f.is_generated:
            continue  # check_dot_products
        loads = [
            (i.mnemonic, i.base) for i in f.instructions(kernels, linked) if i.mnemonic in LOADS
        ]
        looked += len(loads)
        found = {name for name, _ in loads}
        wanted = _OF_WEIGHT.get(leaf.weight_type or "", frozenset[str]())
        reads = leaf.weights or (leaf.weight_type == "f32" and leaf.iterations)
        if wanted and reads and not wanted & found:
            problems.append(
                f"{leaf.symbol} has a weight of {leaf.weight_type} but no {either(wanted)}: it loads by {either(found)}"
            )
        if f.is_generated and not leaf.moves_bytes:
            problems += _needless(leaf, loads)
    return proof_result(
        "kernels load weights as what they are, by disassembly",
        problems,
        f"{looked} loads in {len(leafs)} kernels",
    )


def _needless(leaf: LeafRecord, loads: Sequence[tuple[str, int | None]]) -> Iterator[str]:
    """Loads in a kernel in assembly that none of its operands has the type for."""
    types = _types(leaf)
    found = {name for name, base in loads if base != STACK_POINTER}
    for element, names in _BYTE_LOADS.items():
        if element not in types and names & found:
            yield f"{leaf.symbol} loads by {either(names & found)}, but reads nothing of {element}"
    if types <= _SMALL and LOAD_OF["f32"] & found:
        yield (
            f"{leaf.symbol} loads words by {either(LOAD_OF['f32'] & found)}, but all it reads is {either(types)}"
        )


def _check_counted_loads(
    leafs: Sequence[KernelCode], kernels: ObjectFile, profile: Profile
) -> Iterator[AuditResult]:
    """By the simulator's counters: a kernel executed at least one load of its type for each integer of its weight. Nothing where
    packed bytes are all the weights that there are."""
    problems: list[str] = []
    total = weights = 0
    for f in leafs:
        leaf = f.leaf
        if not leaf.weights or leaf.weight_type not in _OF_WEIGHT:
            continue
        counted = f.loads(kernels, profile)
        wanted = _OF_WEIGHT[leaf.weight_type]
        executed = sum(counted[name] for name in wanted)
        # Two nibbles are a byte.
        needed = leaf.weights * leaf.calls // (2 if leaf.weight_type.endswith("i4") else 1)
        total += executed
        weights += leaf.weights * leaf.calls
        if executed < needed:
            problems.append(
                f"{leaf.symbol} executed {executed:,} {either(wanted)} for {needed:,} weights of {leaf.weight_type}; "
                f"all its loads: {dict(counted)}"
            )
    if not weights and any(f.leaf.dots is not None for f in leafs):
        return
    yield proof_result(
        "kernels loaded every weight as what it is, by the simulator's counters",
        problems,
        f"{total:,} loads for {weights:,} weights",
    )


def _check_freestanding(module: ModuleOp, linked: ObjectFile) -> AuditResult:
    """No libm, no floats in software (but doubles, where the network itself has some), nothing undefined."""
    functions = [s.name for s in linked.defined.values() if s.is_function]
    problems = [f"{name} is a function of libm" for name in functions if name in LIBM]
    wide = has_doubles(module)
    problems += [
        f"{name} computes floats in software"
        for name in functions
        if _SOFT_FLOAT.fullmatch(name) or (SOFT_DOUBLE.fullmatch(name) and not wide)
    ]
    problems += [f"{name} is undefined" for name in sorted(linked.undefined)]
    return proof_result(
        "no libm, no floats in software", problems, f"{len(functions)} functions of the program"
    )
