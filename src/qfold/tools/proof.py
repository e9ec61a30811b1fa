"""That the kernels of the report are what runs: linked, executed, with the loads that the types of their operands call for.

The report says which functions there are and what they read. Everything else comes from the program's own bytes: symbols,
machine code, and what was counted while it ran.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from qfold.backend.c.program import Program
from qfold.backend.simulators import Profile
from qfold.tools.audit import SOFT_DOUBLE, AuditResult, has_doubles
from qfold.tools.elf import ObjectFile
from qfold.tools.leafs import LeafRecord, every_leaf, leaf_sequence
from qfold.tools.manifest import KernelRecord
from qfold.tools.riscv_code import LOAD_OF, LOADS, STACK_POINTER, instructions

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
_SHOWN = 8


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


@dataclass(frozen=True)
class _Function:
    """A leaf kernel: the C function, and the assembly functions that it calls."""

    leaf: LeafRecord
    blocks: tuple[str, ...]

    @property
    def is_generated(self) -> bool:
        return bool(self.blocks)


def prove(
    module: ModuleOp,
    program: Program,
    calls: Sequence[KernelRecord],
    blocks: Mapping[str, Sequence[str]],
    evidence: Evidence,
) -> list[AuditResult]:
    """All proofs for one build. `blocks`: the assembly functions of each generated kernel, by its symbol."""
    leafs = [
        _Function(leaf, tuple(blocks.get(leaf.symbol, ())))
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
                results.append(_check_counted_loads(leafs, kernels, evidence.profile))
            results.append(_check_freestanding(module, linked))
    return results


def _result(check: str, problems: Sequence[str], detail: str) -> AuditResult:
    more = len(problems) - _SHOWN
    shown = [*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return AuditResult(check, tuple(shown), detail)


def _check_symbols(
    leafs: Sequence[_Function], linked: ObjectFile, kernels: ObjectFile
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
    return _result(
        "every kernel of the report is in the linked program", problems, f"{len(names)} functions"
    )


def _check_executed(
    program: Program, leafs: Sequence[_Function], evidence: Evidence
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
    return _result("every kernel of the report was executed", problems, detail)


def _uncounted(function: _Function, profile: Profile) -> Iterator[str]:
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


def _code(linked: ObjectFile, names: Iterable[str]) -> Iterator[tuple[str, int | None]]:
    """The loads in some functions: (instruction, register of the address)."""
    for name in names:
        if name in linked.defined:
            for instruction in instructions(linked.contents(name)):
                if instruction.mnemonic in LOADS:
                    yield instruction.mnemonic, instruction.base


def _with_callees(kernels: ObjectFile, symbol: str) -> list[str]:
    """A function of kernels.c, and those of the same file that it calls."""
    found, pending = [symbol], [symbol]
    while pending:
        home = kernels.defined.get(pending.pop())
        if home is None:
            continue
        for name in kernels.calls(home.name):
            callee = kernels.defined.get(name)
            if callee is not None and callee.is_function and name not in found:
                found.append(name)
                pending.append(name)
    return found


def _types(leaf: LeafRecord) -> set[str]:
    """The element types that a kernel reads."""
    return {o.element_type for o in leaf.operands if o.read}


def _check_loads(
    leafs: Sequence[_Function], linked: ObjectFile, kernels: ObjectFile
) -> AuditResult:
    """By disassembly: the loads that a weight calls for are there, and in assembly none that no operand calls for."""
    problems: list[str] = []
    looked = 0
    for f in leafs:
        leaf = f.leaf
        names = f.blocks or _with_callees(kernels, leaf.symbol)
        loads = list(_code(linked, names))
        looked += len(loads)
        found = {name for name, _ in loads}
        wanted = _OF_WEIGHT.get(leaf.weight_type or "", frozenset[str]())
        reads = leaf.weights or (leaf.weight_type == "f32" and leaf.iterations)
        if wanted and reads and not wanted & found:
            problems.append(
                f"{leaf.symbol} has a weight of {leaf.weight_type} but no {_or(wanted)}: it loads by {_or(found)}"
            )
        if f.is_generated:
            problems += _needless(leaf, loads)
    return _result(
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
            yield f"{leaf.symbol} loads by {_or(names & found)}, but reads nothing of {element}"
    if types <= _SMALL and LOAD_OF["f32"] & found:
        yield (
            f"{leaf.symbol} loads words by {_or(LOAD_OF['f32'] & found)}, but all it reads is {_or(types)}"
        )


def _or(names: Iterable[str]) -> str:
    return " or ".join(sorted(names)) or "nothing"


def _check_counted_loads(
    leafs: Sequence[_Function], kernels: ObjectFile, profile: Profile
) -> AuditResult:
    """By the simulator's counters: a kernel executed at least one load of its type for each integer of its weight."""
    problems: list[str] = []
    total = weights = 0
    for f in leafs:
        leaf = f.leaf
        if not leaf.weights or leaf.weight_type not in _OF_WEIGHT:
            continue
        names = f.blocks or _with_callees(kernels, leaf.symbol)
        counted: Counter[str] = Counter()
        for name in names:
            counted.update(profile[name].loads)
        wanted = _OF_WEIGHT[leaf.weight_type]
        executed = sum(counted[name] for name in wanted)
        # Two nibbles are a byte.
        needed = leaf.weights * leaf.calls // (2 if leaf.weight_type.endswith("i4") else 1)
        total += executed
        weights += leaf.weights * leaf.calls
        if executed < needed:
            problems.append(
                f"{leaf.symbol} executed {executed:,} {_or(wanted)} for {needed:,} weights of {leaf.weight_type}; "
                f"all its loads: {dict(counted)}"
            )
    return _result(
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
    return _result(
        "no libm, no floats in software", problems, f"{len(functions)} functions of the program"
    )
