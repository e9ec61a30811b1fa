"""What the object code really is, beside what the manifest says: calls, operand types, constants, and what must not be there.

Nothing here trusts the generated C: symbols, calls and types come from the object files and their debug information.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from xdsl.dialects.builtin import Float64Type, ModuleOp
from xdsl.ir import Attribute

from qfold.backend.build import Built
from qfold.backend.c.program import Kernel
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.targets import Kernel as TableRow
from qfold.targets import Target
from qfold.tools.elf import ObjectFile
from qfold.tools.leafs import Operand
from qfold.tools.manifest import KernelRecord, manifest, program_of
from qfold.tools.stored_weights import StoredWeights
from qfold.tools.tensor_facts import IntegerWeight, TensorFacts, float_copies
from qfold.transforms.qmm_select_kernels import memref_operands, refuses

ENTRY = "net_run"
CORE_ENTRY = "run_on_core"
"""The function of network.c that calls the kernels: on a cluster what each core runs."""

ALLOWED_UNDEFINED = frozenset({"memcpy", "memset", "memmove", "memcmp"})
"""What a compiler may call on its own, on every target."""

_RUNTIME = re.compile(r"qf_\w+|end_of_dispatch")
"""Functions of `qfold_rt.h`, and the one of network.c that calls some of them."""

_INTEGER_HELPER = re.compile(
    r"__((u?(div|mod|divmod|cmp)|mul|ashl|ashr|lshr|neg|abs)[sd]i[2-4]|float(un)?di[sd]f|fix(uns)?[sd]fdi)"
    r"|__(clz|ctz|popcount|bswap|ffs|parity)[sd]i2"
)
"""What a compiler for 32 bits calls for integers of 64 (GCC internals manual, "The GCC low-level runtime library")."""

SOFT_DOUBLE = re.compile(r"__[a-z]*df[a-z0-9]*")
"""What a compiler calls for doubles without a unit for them (the same, "Routines for floating point emulation")."""


_C_TYPES = {
    "i1": "bool",
    "i4": "qf_i4x2",
    "ui4": "qf_u4x2",
    **{f"i{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}_t" for bits in (8, 16, 32, 64)},
    "index": "int64_t",
    "f32": "float",
    "f64": "double",
}
"""What C calls the element types of the IR."""


@dataclass(frozen=True)
class AuditResult:
    """One thing that was looked at."""

    check: str
    problems: tuple[str, ...]
    detail: str

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class Objects:
    """The object files of a build, made with debug information."""

    network: Path
    kernels: Path
    weights: Path
    dispatches: Path | None = None
    """Staged dispatches."""
    assembly: Path | None = None
    """Kernels in assembly."""
    program: Path | None = None
    """The linked program, where types are to be read from its debug information: RISC-V objects have relocations there."""

    @staticmethod
    def of(built: Built, target: Target) -> Objects:
        """Those of a build, by the sources that they are named after."""
        by_source = {p.name: p for p in built.objects}
        return Objects(
            by_source["network.c.o"],
            by_source["kernels.c.o"],
            by_source["weights.S.o"],
            by_source.get("dispatches.c.o"),
            by_source.get("kernels.S.o"),
            built.binary if target.isa is not None else None,
        )


def audit(
    module: ModuleOp,
    facts: TensorFacts,
    objects: Objects,
    target: Target,
) -> list[AuditResult]:
    """All checks of one build of a kernel-level module for `target`; `facts` say which of its weights are quantised."""
    program = program_of(module)
    calls = manifest(program)
    constants = {w.symbol: w.weight for w in program.weights}
    with ExitStack() as stack:
        network, kernels, weights = (
            stack.enter_context(ObjectFile(p))
            for p in (objects.network, objects.kernels, objects.weights)
        )
        others = [
            stack.enter_context(ObjectFile(p))
            for p in (objects.dispatches, objects.assembly)
            if p is not None
        ]
        dispatches = others[0] if objects.dispatches is not None else None
        linked = None
        if objects.program is not None:
            linked = stack.enter_context(ObjectFile(objects.program))
        code = (network, kernels, *others)
        entry = CORE_ENTRY if program.is_cluster else ENTRY
        return [
            check_kernels(program.kernels, target),
            _check_calls(entry, calls, network, kernels, dispatches),
            *([] if dispatches is None else [_check_leaf_calls(calls, dispatches, kernels)]),
            _check_types(calls, linked or kernels, linked or dispatches),
            _check_weights(constants, weights),
            *([check_integers(facts, constants)] if facts.weights else []),
            _check_float_copies(constants, facts.quantized, weights, code),
            _check_libraries((*code, weights), set(constants), target, doubles=has_doubles(module)),
        ]


def check_kernels(kernels: Sequence[Kernel], target: Target) -> AuditResult:
    """`qmm.kernel` names a row of the table whose types are those of the op: what selection decides is decided again here."""
    rows: dict[str, list[TableRow]] = {}
    for row in target.kernels:
        rows.setdefault(row.name, []).append(row)
    problems: list[str] = []
    for kernel in kernels:
        candidates = rows.get(kernel.kernel, [])
        if not candidates:
            problems.append(f"{kernel.symbol}: the target has no kernel {kernel.kernel!r}")
            continue
        refusals = [refuses(row, kernel.op, memref_operands(kernel.op)) for row in candidates]
        if all(refusals):
            problems.append(
                f"{kernel.symbol} is assigned to kernel {kernel.kernel!r}, which was not written for it: {refusals[0]}"
            )
    return AuditResult(
        "kernels were written for their operand types",
        tuple(problems),
        f"{len(kernels)} kernel functions",
    )


def _calls_of(function: str, file: ObjectFile) -> list[str]:
    """The kernels and dispatches that a function calls, in the order of its code."""
    return [
        name
        for name in file.calls(function)
        if name not in ALLOWED_UNDEFINED and not _RUNTIME.fullmatch(name)
    ]


def _check_calls(
    entry: str,
    calls: Sequence[KernelRecord],
    network: ObjectFile,
    kernels: ObjectFile,
    dispatches: ObjectFile | None,
) -> AuditResult:
    expected = [c.symbol for c in calls]
    found = _calls_of(entry, network)
    problems = [
        f"call {i} in {entry} is {have or 'missing'}, the manifest says {want or 'nothing'}"
        for i, (want, have) in enumerate(zip_longest(expected, found))
        if want != have
    ][:5]
    for call in {c.symbol: c for c in calls}.values():
        home = dispatches if call.staged and dispatches is not None else kernels
        if not _is_function(home, call.symbol):
            problems.append(f"{home.path.name} does not define the function {call.symbol}")
    called = {leaf.symbol for c in calls for leaf in c.leafs}
    problems += _uncalled(kernels, called)
    if dispatches is not None:
        problems += _uncalled(dispatches, set(expected))
    return AuditResult(
        f"{entry} calls the manifest's kernels, in order", tuple(problems), f"{len(expected)} calls"
    )


def _is_function(file: ObjectFile, name: str) -> bool:
    symbol = file.defined.get(name)
    return symbol is not None and symbol.is_function


def _uncalled(file: ObjectFile, called: set[str]) -> list[str]:
    """A problem for each global function that nothing calls."""
    return [
        f"{file.path.name} holds {s.name}, which nothing calls"
        for s in file.defined.values()
        if s.is_function and s.is_global and s.name not in called
    ]


def _check_leaf_calls(
    calls: Sequence[KernelRecord], dispatches: ObjectFile, kernels: ObjectFile
) -> AuditResult:
    """Which kernels each staged dispatch calls. A compiler repeats and moves what is in loops: how often and in which order they
    are called is seen when they run (`proof`)."""
    problems: list[str] = []
    staged = {c.symbol: c for c in calls if c.staged}
    total = 0
    for symbol, call in staged.items():
        expected = [leaf.symbol for leaf in call.leafs]
        total += len(expected)
        problems += [
            f"{kernels.path.name} does not define the function {name}, which {symbol} calls"
            for name in expected
            if not _is_function(kernels, name)
        ]
        if not _is_function(dispatches, symbol):
            continue
        found = list(dict.fromkeys(_calls_of(symbol, dispatches)))
        if set(found) != set(expected):
            problems.append(
                f"{symbol} calls {', '.join(found) or 'nothing'}; the manifest says {', '.join(expected)}"
            )
    return AuditResult(
        "staged dispatches call the manifest's kernels",
        tuple(problems),
        f"{total} kernels in {len(staged)} dispatches",
    )


def _unqualified(c_type: str) -> str:
    """A C type without `const` and blanks, which promise something but say nothing of what the bytes are; `bool` is `_Bool`."""
    return re.sub(r"\bconst\b|\s", "", c_type.replace("_Bool", "bool"))


def _check_types(
    calls: Sequence[KernelRecord], kernels: ObjectFile, dispatches: ObjectFile | None
) -> AuditResult:
    problems: list[str] = []
    functions: dict[str, tuple[ObjectFile, Sequence[Operand]]] = {}
    for call in calls:
        if call.staged and dispatches is not None:
            functions[call.symbol] = dispatches, call.operands
        functions |= {leaf.symbol: (kernels, leaf.operands) for leaf in call.leafs}
    for symbol, (file, operands) in functions.items():
        found = [_unqualified(t) for t in file.parameters.get(symbol, ())]
        expected = [f"{_C_TYPES[o.element_type]}*" for o in operands]
        if found != expected:
            problems.append(
                f"{symbol} takes ({', '.join(found)}) in the object code, the manifest says ({', '.join(expected)})"
            )
    count = sum(len(operands) for _, operands in functions.values())
    return AuditResult(
        "compiled parameter types are the manifest's", tuple(problems), f"{count} operands"
    )


def _check_weights(constants: Mapping[str, WeightAttr], weights: ObjectFile) -> AuditResult:
    problems: list[str] = []
    total = 0
    for symbol, weight in constants.items():
        total += weight.nbytes
        defined = weights.defined.get(symbol)
        if defined is None:
            problems.append(f"{symbol} is not in {weights.path.name}")
            continue
        # An empty array takes a byte, for C has none.
        if defined.size != max(1, weight.nbytes):
            problems.append(f"{symbol} has {defined.size} bytes, its content {weight.nbytes}")
        elif (
            weight.nbytes and hashlib.sha256(weights.contents(symbol)).hexdigest() != weight.sha256
        ):
            problems.append(f"{symbol} does not hold the bytes of its sha256")
    return AuditResult(
        "constants hold the bytes of the model",
        tuple(problems),
        f"{len(constants)} constants, {total:,} bytes",
    )


def check_integers(facts: TensorFacts, constants: Mapping[str, WeightAttr]) -> AuditResult:
    """Each quantised weight of the model is a constant, in one of the forms that hold the same integers. What a constant's bytes
    are in the object file is `_check_weights`'."""
    forms: dict[str, list[str]] = {}
    left: dict[str, IntegerWeight] = {
        sha256: w for sha256, w in facts.weights.items() if w.weight.nbytes
    }
    while left:
        # Again for those that are left: a constant may hold several weights, each in another form.
        stored = StoredWeights(left)
        found = [f for c in constants.values() if (f := stored.find(c)) is not None]
        if not found:
            break
        for one in found:
            forms.setdefault(one.weight.weight.sha256, []).append(one.form)
        left = {sha256: w for sha256, w in left.items() if sha256 not in forms}
    problems = [
        f"no constant holds the integers of the weight {w.weight.type} with the sha256 {sha256[:12]}..."
        for sha256, w in left.items()
    ]
    counts = Counter(form for own in forms.values() for form in own)
    return AuditResult(
        "quantised weights are stored as integers, every one of them",
        tuple(problems),
        ", ".join(f"{count} {form}" for form, count in counts.items()),
    )


def _check_float_copies(
    constants: Mapping[str, WeightAttr],
    quantized: Sequence[tuple[WeightAttr, QuantAttr]],
    weights: ObjectFile,
    others: Sequence[ObjectFile],
) -> AuditResult:
    copies = set(float_copies(quantized, [*constants.values()]))
    problems = [
        f"{symbol} is a float copy of a quantised weight"
        for symbol, w in constants.items()
        if w.sha256 in copies
    ]
    data = [s for s in weights.defined.values() if s.is_object and s.name not in constants]
    problems += [
        f"{weights.path.name} holds {s.name}, which is no constant of the model" for s in data
    ]
    smallest = min((4 * w.nbytes for w, _ in quantized), default=0)
    for other in others:
        problems += [
            f"{other.path.name} holds {s.size} bytes of data in {s.name}"
            for s in other.defined.values()
            if s.is_object and s.size >= max(smallest, 4096)
        ]
    distinct = {w.sha256: w.nbytes for w, _ in quantized}
    return AuditResult(
        "no float copy of a quantised weight",
        tuple(problems),
        f"{len(distinct)} quantised weights, {sum(distinct.values()):,} bytes",
    )


def has_doubles(module: ModuleOp) -> bool:
    """Whether the network computes in double precision."""
    types: Iterator[Attribute] = (r.type for op in module.walk() for r in op.results)
    return any(isinstance(getattr(t, "element_type", t), Float64Type) for t in types)


def _check_libraries(
    objects: Sequence[ObjectFile], constants: set[str], target: Target, *, doubles: bool
) -> AuditResult:
    defined = {name for o in objects for name in o.defined}
    missing = {name for o in objects for name in o.undefined} - defined - constants
    missing -= ALLOWED_UNDEFINED | {"_GLOBAL_OFFSET_TABLE_"}
    if target.is_cluster:
        missing = {name for name in missing if not _RUNTIME.fullmatch(name)}
    if target.isa is not None:
        missing = {name for name in missing if not _INTEGER_HELPER.fullmatch(name)}
        if doubles:
            missing = {name for name in missing if not SOFT_DOUBLE.fullmatch(name)}
    problems = [f"{name} has to come from a library" for name in sorted(missing)]
    return AuditResult("no library function is needed", tuple(problems), f"{len(objects)} objects")
