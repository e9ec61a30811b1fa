"""What the object code really is, beside what the manifest says: calls, operand types, constants, and what must not be there.

Nothing here trusts the generated C: symbols, calls and types come from the object files and their debug information.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from qfold.backend.c.program import Kernel
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.targets import Kernel as TableRow
from qfold.targets import Target
from qfold.tools.elf import ObjectFile
from qfold.tools.manifest import KernelRecord, manifest, program_of
from qfold.tools.report import float_copies
from qfold.transforms.qmm_select_kernels import memref_operands, refuses

ENTRY = "net_run"

ALLOWED_UNDEFINED = frozenset({"memcpy", "memset", "memmove", "memcmp"})
"""What a compiler may call on its own, on every target."""


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


def audit(
    module: ModuleOp,
    quantized: Sequence[tuple[WeightAttr, QuantAttr]],
    objects: Objects,
    target: Target,
) -> list[AuditResult]:
    """All checks of one build of a kernel-level module for `target`, whose quantised weights are `quantized`."""
    program = program_of(module)
    calls = manifest(program)
    constants = {w.symbol: w.weight for w in program.weights}
    with (
        ObjectFile(objects.network) as network,
        ObjectFile(objects.kernels) as kernels,
        ObjectFile(objects.weights) as weights,
    ):
        return [
            check_kernels(program.kernels, target),
            _check_calls(calls, network, kernels),
            _check_types(calls, kernels),
            _check_weights(constants, weights),
            _check_float_copies(constants, quantized, weights, (network, kernels)),
            _check_libraries((network, kernels, weights), set(constants)),
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


def _check_calls(
    calls: Sequence[KernelRecord], network: ObjectFile, kernels: ObjectFile
) -> AuditResult:
    expected = [c.symbol for c in calls]
    found = [name for name in network.calls(ENTRY) if name not in ALLOWED_UNDEFINED]
    problems = [
        f"call {i} in {ENTRY} is {have or 'missing'}, the manifest says {want or 'nothing'}"
        for i, (want, have) in enumerate(zip_longest(expected, found))
        if want != have
    ][:5]
    for symbol in dict.fromkeys(expected):
        defined = kernels.defined.get(symbol)
        if defined is None or not defined.is_function:
            problems.append(f"{kernels.path.name} does not define the function {symbol}")
    extra = [
        s.name
        for s in kernels.defined.values()
        if s.is_function and s.is_global and s.name not in expected
    ]
    problems += [f"{kernels.path.name} holds {name}, which nothing calls" for name in extra]
    return AuditResult(
        f"{ENTRY} calls the manifest's kernels, in order", tuple(problems), f"{len(expected)} calls"
    )


def _unqualified(c_type: str) -> str:
    """A C type without `const` and blanks, which promise something but say nothing of what the bytes are; `bool` is `_Bool`."""
    return re.sub(r"\bconst\b|\s", "", c_type.replace("_Bool", "bool"))


def _check_types(calls: Sequence[KernelRecord], kernels: ObjectFile) -> AuditResult:
    problems: list[str] = []
    functions = {c.symbol: c for c in calls}
    for symbol, call in functions.items():
        found = [_unqualified(t) for t in kernels.parameters.get(symbol, ())]
        expected = [_unqualified(o.c_type) for o in call.operands]
        if found != expected:
            problems.append(
                f"{symbol} takes ({', '.join(found)}) in the object code, the manifest says ({', '.join(expected)})"
            )
    operands = sum(len(c.operands) for c in functions.values())
    return AuditResult(
        "compiled parameter types are the manifest's", tuple(problems), f"{operands} operands"
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


def _check_libraries(objects: Sequence[ObjectFile], constants: set[str]) -> AuditResult:
    defined = {name for o in objects for name in o.defined}
    missing = {name for o in objects for name in o.undefined} - defined - constants
    missing -= ALLOWED_UNDEFINED | {"_GLOBAL_OFFSET_TABLE_"}
    problems = [f"{name} has to come from a library" for name in sorted(missing)]
    return AuditResult("no library function is needed", tuple(problems), f"{len(objects)} objects")
