"""Sections and symbols of a linked 32-bit program. Format: System V ABI, chapters 4 and 5; little endian only."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SECTION = struct.Struct("<10I")
_SYMBOL = struct.Struct("<IIIBBH")
_MAGIC = b"\x7fELF\x01\x01"
_SYMBOL_TABLE = 2
_ALLOCATED, _EXECUTABLE = 2, 4
_FUNCTION = 2
_UNDEFINED = 0


class ElfError(ValueError):
    """The file is not a 32-bit little-endian ELF file, or is cut off."""


@dataclass(frozen=True)
class Section:
    """One that takes up memory, bytes or none in the file."""

    name: str
    address: int
    size: int
    is_code: bool


@dataclass(frozen=True)
class Symbol:
    """A name for an address. `size` is 0 where the program did not say (assembly without `.size`)."""

    name: str
    address: int
    size: int
    is_function: bool


class LinkedProgram:
    """A linked program. `ElfError` for another kind of file, `OSError` when it cannot be read."""

    def __init__(self, path: Path):
        self.path = path
        raw = path.read_bytes()
        if not raw.startswith(_MAGIC):
            raise ElfError(f"{path} is not a 32-bit little-endian ELF file")
        try:
            self.sections, self.symbols = _read(raw)
        except (struct.error, IndexError, UnicodeDecodeError):
            raise ElfError(f"{path} is cut off or damaged") from None

    @cached_property
    def _labels(self) -> list[Symbol]:
        """What can name a code address, in order; of several at one address the function is the last."""
        code = [(s.address, s.address + s.size) for s in self.sections if s.is_code]
        labels = (s for s in self.symbols if any(low <= s.address < high for low, high in code))
        return sorted(labels, key=lambda s: (s.address, s.is_function))

    @cached_property
    def functions(self) -> dict[str, Symbol]:
        """By name."""
        return {s.name: s for s in self.symbols if s.is_function}

    def nearest(self, address: int) -> Symbol | None:
        """The symbol at or before an address in code. None outside of code, and before the first symbol of its section."""
        inside = [
            s for s in self.sections if s.is_code and s.address <= address < s.address + s.size
        ]
        at = bisect_right(self._labels, address, key=lambda s: s.address) - 1
        if not inside or at < 0 or self._labels[at].address < inside[0].address:
            return None
        return self._labels[at]

    def locate(self, address: int) -> str:
        """`symbol+0x12` of a code address, or `no function`."""
        symbol = self.nearest(address)
        return "no function" if symbol is None else f"{symbol.name}+{address - symbol.address:#x}"


def _read(raw: bytes) -> tuple[tuple[Section, ...], tuple[Symbol, ...]]:
    header: tuple[Any, ...] = _HEADER.unpack_from(raw)
    table_at, entry_size, count, names_index = (int(header[i]) for i in (6, 11, 12, 13))
    rows: list[tuple[int, ...]] = [
        _SECTION.unpack_from(raw, table_at + i * entry_size) for i in range(count)
    ]
    names_at = rows[names_index][4]
    sections: list[Section] = []
    symbols: list[Symbol] = []
    for name, type_, flags, address, offset, size, link, _, _, step in rows:
        if flags & _ALLOCATED and size:
            text = _text(raw, names_at + name)
            sections.append(Section(text, address, size, bool(flags & _EXECUTABLE)))
        if type_ == _SYMBOL_TABLE:
            entries = range(offset, offset + size, step)
            symbols.extend(_symbols(raw, entries, rows[link][4]))
    return tuple(sections), tuple(symbols)


def _symbols(raw: bytes, entries: Iterable[int], strings_at: int) -> Iterable[Symbol]:
    for at in entries:
        name, value, size, info, _, index = _SYMBOL.unpack_from(raw, at)
        text = _text(raw, strings_at + name)
        # "$x" and "$d" are mapping symbols, ".L" labels of the compiler.
        if text and index != _UNDEFINED and not text.startswith(("$", ".L")):
            yield Symbol(text, value, size, info & 15 == _FUNCTION)


def _text(raw: bytes, at: int) -> str:
    return raw[at : raw.index(b"\0", at)].decode()
