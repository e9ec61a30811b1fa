"""The machine code of one kernel of the report: which functions it is, and what proofs read of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from qfold.backend.simulators import Profile
from qfold.tools.audit import AuditResult
from qfold.tools.elf import ObjectFile
from qfold.tools.leafs import LeafRecord
from qfold.tools.riscv_code import Instruction, instructions

_SHOWN = 8
"""Problems of one check that are spelled out."""


@dataclass(frozen=True)
class KernelCode:
    """A leaf kernel: the C function, and the assembly functions that it calls."""

    leaf: LeafRecord
    blocks: tuple[str, ...]

    @property
    def is_generated(self) -> bool:
        """Whether it computes in assembly."""
        return bool(self.blocks)

    def functions(self, kernels: ObjectFile) -> tuple[str, ...]:
        """The functions that compute: in assembly, else the C function and those of the same file that it calls."""
        return self.blocks or tuple(_with_callees(kernels, self.leaf.symbol))

    def instructions(self, kernels: ObjectFile, linked: ObjectFile) -> Iterator[Instruction]:
        """All instructions of these functions, as they were linked."""
        for name in self.functions(kernels):
            if name in linked.defined:
                yield from instructions(linked.contents(name))

    def loads(self, kernels: ObjectFile, profile: Profile) -> Counter[str]:
        """The loads that these functions executed, by instruction."""
        counted: Counter[str] = Counter()
        for name in self.functions(kernels):
            counted.update(profile[name].loads)
        return counted

    def dots(self, profile: Profile) -> Counter[str]:
        """The packed dot products that the assembly functions executed, by instruction."""
        counted: Counter[str] = Counter()
        for name in self.blocks:
            counted.update(profile[name].dots)
        return counted


def _with_callees(kernels: ObjectFile, symbol: str) -> list[str]:
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


def proof_result(check: str, problems: Sequence[str], detail: str) -> AuditResult:
    """The result of a check, of which not every problem is worth a line."""
    more = len(problems) - _SHOWN
    shown = [*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return AuditResult(check, tuple(shown), detail)


def either(names: Iterable[str]) -> str:
    """`lb or p.lb`; `nothing` for none."""
    return " or ".join(sorted(names)) or "nothing"
