"""What a program executed: calls of functions, loads and packed dot products by kind, from the counters of the simulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from qfold.backend.elf import LinkedProgram


class ProfileError(ValueError):
    """The text is no profile."""


@dataclass(frozen=True)
class FunctionProfile:
    """One function, on all harts. Nothing of it is counted that another one does which it calls."""

    calls: tuple[int, ...]
    """How often each hart jumped to its first instruction: calls, tail calls, and jumps back to the start."""
    loads: Mapping[str, int]
    """Executed loads by instruction, without `c.` and without how it addresses: `lb`, `lw`, `flw`, `p.lb`, `p.lw` ..."""
    dots: Mapping[str, int] = field(default_factory=dict[str, int])
    """Executed packed dot products by instruction: `pv.sdotsp.b` ..."""


@dataclass(frozen=True)
class Profile:
    """By symbol. Code without a symbol counts for the one before it."""

    functions: Mapping[str, FunctionProfile]
    has_loads: bool = True
    """Whether loads and dot products were counted too."""

    def __getitem__(self, symbol: str) -> FunctionProfile:
        """That of a function; one that was never called, and is not in the program even, has no calls, loads or dot products."""
        return self.functions.get(symbol, FunctionProfile((), {}))


def read_profile(text: str, program: LinkedProgram, cores: int) -> Profile:
    """The lines that the Spike extension (`ports/spike/xpulp.cc`) wrote for a run of `program`. `ProfileError` for others."""
    calls: dict[str, list[int]] = {}
    counted: dict[str, dict[str, Counter[str]]] = {"load": {}, "dot": {}}
    entries = {s.address: s.name for s in program.symbols if s.is_function}
    for line in text.splitlines():
        match line.split():
            case ["jump", hart, address, count]:
                symbol = entries.get(int(address, 16))
                if symbol is not None:
                    calls.setdefault(symbol, [0] * cores)[int(hart)] += int(count)
            case ["load" | "dot" as kind, _, address, name, count]:
                symbol = program.nearest(int(address, 16))
                if symbol is not None:  # not the simulator's boot code
                    counted[kind].setdefault(symbol.name, Counter())[name] += int(count)
            case _:
                raise ProfileError(f"not a line of a profile: {line!r}")
    loads, dots = counted["load"], counted["dot"]
    none = [0] * cores
    return Profile(
        {
            n: FunctionProfile(
                tuple(calls.get(n, none)), dict(loads.get(n, {})), dict(dots.get(n, {}))
            )
            for n in calls.keys() | loads.keys() | dots.keys()
        }
    )
