"""Where the parts of a bare-metal program lie: the link script of a target, and whether each part fits its memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qfold.backend.elf import LinkedProgram
from qfold.targets import MemoryLevel, Target

# Memories are linked longer than they are, up to the next one, so that what does not fit is measured here and not only refused.
_REACH = 1 << 28

_PARTS = {
    ".text": "code",
    ".weights": "weights",
    ".rodata": "read-only data",
    ".data": "data",
    ".arena": "arena",
    ".bss": "inputs, outputs, runtime",
    ".l1": "runtime",
}
"""Output section -> what the table calls it."""


class LinkError(Exception):
    """The program does not fit; the message is a table of what takes up how much."""


def linker_script(target: Target) -> str:
    """The link script (GNU ld, lld) of a target whose memories have origins and sizes.

    Everything is in the default memory, but for section `.l1`, the runtime's part of the scratchpad, and the stacks.
    Symbols for the runtime: `__qf_l1`, where tiles may begin; `__qf_stacks`, the lowest address of the cores' stacks, at the
    end of the scratchpad.
    """
    main, l1 = _main_memory(target), _scratchpad(target)
    lines = ["ENTRY(_start)", "MEMORY", "{"]
    for level in (main, l1):
        lines.append(
            f"  {level.name} (rwx) : ORIGIN = {_origin(level):#x}, LENGTH = {_reach(target, level):#x}"
        )
    in_main = f"> {main.name}"
    runtime_at = _origin(l1) + target.scratchpad_bytes
    lines += [
        "}",
        "SECTIONS",
        "{",
        f"  .text : {{ KEEP(*(.text.start)) *(.text .text.*) }} {in_main}",
        # Before .rodata: an input section goes to the first pattern that it matches.
        f"  .weights : ALIGN(64) {{ *weights.S.o(.rodata .rodata.*) }} {in_main}",
        f"  .rodata : ALIGN(64) {{ *(.rodata .rodata.* .srodata .srodata.*) }} {in_main}",
        f"  .data : ALIGN(64) {{ *(.data .data.* .sdata .sdata.*) KEEP(*(.htif)) }} {in_main}",
        f"  .arena (NOLOAD) : ALIGN(64) {{ *(.bss.level_*) }} {in_main}",
        f"  .bss (NOLOAD) : ALIGN(64) {{ *(.bss .bss.* .sbss .sbss.* COMMON) }} {in_main}",
        f"  __qf_l1 = {_origin(l1):#x};",
        f"  __qf_stacks = {_origin(l1) + _size(l1) - target.cores * target.stack_bytes:#x};",
        f"  .l1 {runtime_at:#x} (NOLOAD) : {{ *(.l1 .l1.*) }} > {l1.name}",
        "  /DISCARD/ : { *(.eh_frame*) *(.comment) *(.note*) *(.riscv.attributes) }",
        "}",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Part:
    """Something that takes up memory."""

    memory: str
    name: str
    bytes: int


@dataclass(frozen=True)
class MemoryUse:
    """What a linked program takes up of each memory of its target."""

    parts: tuple[Part, ...]
    sizes: dict[str, int]
    """Memory -> its bytes."""

    def used(self, memory: str) -> int:
        return sum(p.bytes for p in self.parts if p.memory == memory)

    @property
    def over(self) -> dict[str, int]:
        """Memory -> by how many bytes the program is larger, where it is."""
        excess = {m: self.used(m) - size for m, size in self.sizes.items()}
        return {m: e for m, e in excess.items() if e > 0}

    def table(self) -> str:
        """A line for each part, and for each memory."""
        rows: list[tuple[str, str, str]] = []
        for memory, size in self.sizes.items():
            rows += [(memory, p.name, f"{p.bytes:,}") for p in self.parts if p.memory == memory]
            excess = self.over.get(memory, 0)
            verdict = f"  {excess:,} too many" if excess else ""
            rows.append((memory, "total", f"{self.used(memory):,} of {size:,}{verdict}"))
        first = max(len(r[0]) for r in rows)
        second = max(len(r[1]) for r in rows)
        numbers = max(len(r[2].split(" ")[0]) for r in rows)
        return "\n".join(
            f"{memory:{first}}  {name:{second}}  {' ' * (numbers - len(text.split(' ')[0]))}{text}"
            for memory, name, text in rows
        )


def memory_use(program: LinkedProgram, target: Target) -> MemoryUse:
    """The parts of a program that was linked by `linker_script(target)`: its sections, and in the scratchpad tiles and stacks."""
    main, l1 = _main_memory(target), _scratchpad(target)
    parts = list(_sections(program, (main, l1)))
    parts.append(Part(l1.name, "tiles", target.scratchpad_bytes))
    parts.append(Part(l1.name, "stacks", target.cores * target.stack_bytes))
    # What the target reserves is taken, whether the runtime fills it or not.
    spare = target.reserved_bytes - sum(p.bytes for p in parts if p.name == _PARTS[".l1"])
    if spare > 0:
        parts.append(Part(l1.name, "reserved", spare))
    return MemoryUse(tuple(parts), {m.name: _size(m) for m in (main, l1)})


def check_memory(program: LinkedProgram, target: Target) -> MemoryUse:
    """`memory_use`, or `LinkError` with its table when a memory is too small."""
    use = memory_use(program, target)
    if use.over:
        what = " and ".join(f"{m} by {n:,} bytes" for m, n in use.over.items())
        raise LinkError(
            f"the program does not fit target {target.name}: it exceeds {what}\n{use.table()}"
        )
    return use


def _sections(program: LinkedProgram, levels: Iterable[MemoryLevel]) -> Iterable[Part]:
    levels = sorted(levels, key=_origin)
    ends: dict[str, int] = {}
    for section in sorted(program.sections, key=lambda s: s.address):
        level = [m for m in levels if _origin(m) <= section.address][-1]
        # With the gap before it, so that the sum is where the last one ends.
        start = ends.get(level.name, section.address)
        ends[level.name] = section.address + section.size
        yield Part(level.name, _PARTS.get(section.name, section.name), ends[level.name] - start)


def _main_memory(target: Target) -> MemoryLevel:
    return target.level(target.default_space)


def _scratchpad(target: Target) -> MemoryLevel:
    if target.scratchpad is None:
        raise ValueError(f"target {target.name} has no scratchpad")
    return target.level(target.scratchpad)


def _origin(level: MemoryLevel) -> int:
    if level.origin is None:
        raise ValueError(f"memory {level.name} has no address: nothing can be linked into it")
    return level.origin


def _size(level: MemoryLevel) -> int:
    if level.size is None:
        raise ValueError(f"memory {level.name} has no size")
    return level.size


def _reach(target: Target, level: MemoryLevel) -> int:
    origin = _origin(level)
    above = [m.origin - origin for m in target.memory if m.origin is not None and m.origin > origin]
    return min([_REACH, *above])


def write_linker_script(target: Target, directory: Path) -> Path:
    """`link.ld` in that directory."""
    path = directory / "link.ld"
    path.write_text(linker_script(target), encoding="utf-8")
    return path
