"""What an object file says about itself: symbols, calls in order, and the parameter types that its debug information records.

Reads ELF and DWARF through pyelftools, which the extra `qfold[verify]` brings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qfold.tools.errors import ToolError

_CALLS = {
    "EM_X86_64": {4},  # PLT32; PC32 may be data
    "EM_386": {4},  # PLT32
    "EM_AARCH64": {282, 283},  # JUMP26, CALL26
    "EM_ARM": {10, 28, 29, 30},  # THM_CALL, CALL, JUMP24, THM_JUMP24
    "EM_RISCV": {18, 19},  # CALL, CALL_PLT
}
"""Relocation types of calls and tail calls, by machine."""

_QUALIFIERS = {"DW_TAG_restrict_type", "DW_TAG_volatile_type"}


@dataclass(frozen=True)
class Symbol:
    """One entry of a symbol table."""

    name: str
    section: int | None
    """Index of the section that defines it; None for a symbol without one."""
    offset: int
    """In the section."""
    size: int
    is_function: bool
    is_object: bool
    """Data."""
    is_global: bool
    is_undefined: bool
    """Another object must define it."""


def require_library() -> None:
    """`ToolError` when pyelftools is not installed: a plain installation compiles without it."""
    if find_spec("elftools") is None:
        raise ToolError(
            "the audit of object files needs pyelftools, which is not installed: pip install 'qfold[verify]'"
        )


class ObjectFile:
    """One relocatable object, or a linked program, which has no relocations of calls any more. `ToolError` when the file is
    neither, or of a machine whose calls are not known here.
    """

    def __init__(self, path: Path):
        require_library()
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile

        self.path = path
        try:
            self._stream = path.open("rb")
            self._elf: Any = ELFFile(self._stream)
        except ELFError as error:
            raise ToolError(f"{path} is not an ELF object file: {error}") from error
        self.machine: str = self._elf["e_machine"]
        if self.machine not in _CALLS:
            known = ", ".join(_CALLS)
            raise ToolError(f"{path} is for {self.machine}; the audit knows the calls of {known}")
        self._is_linked: bool = self._elf["e_type"] in ("ET_EXEC", "ET_DYN")

    def close(self) -> None:
        """Closes the file; nothing can be asked afterwards that was not asked before."""
        self._stream.close()

    def __enter__(self) -> ObjectFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _table(self) -> list[Symbol]:
        from elftools.elf.sections import SymbolTableSection

        sections: Any = self._elf.iter_sections()
        tables: list[Any] = [s for s in sections if isinstance(s, SymbolTableSection)]
        symbols: list[Symbol] = []
        addresses: dict[int, int] = {}
        if self._is_linked:
            addresses = {i: s["sh_addr"] for i, s in enumerate(self._elf.iter_sections())}
        # An object without a symbol has no table.
        for entry in (e for table in tables for e in table.iter_symbols()):
            section = entry["st_shndx"]
            at: int = entry["st_value"] & ~1 if self.machine == "EM_ARM" else entry["st_value"]
            at -= addresses.get(section, 0)
            symbols.append(
                Symbol(
                    entry.name,
                    section if isinstance(section, int) else None,
                    at,
                    entry["st_size"],
                    entry["st_info"]["type"] == "STT_FUNC",
                    entry["st_info"]["type"] == "STT_OBJECT",
                    entry["st_info"]["bind"] == "STB_GLOBAL",
                    section == "SHN_UNDEF",
                )
            )
        return symbols

    @cached_property
    def defined(self) -> dict[str, Symbol]:
        """The named symbols that this object defines."""
        return {s.name: s for s in self._table if s.name and s.section is not None}

    @cached_property
    def undefined(self) -> frozenset[str]:
        """The names that other objects must define."""
        return frozenset(s.name for s in self._table if s.name and s.is_undefined)

    def calls(self, function: str) -> list[str]:
        """What `function` calls in other translation units, in the order of the code."""
        from elftools.elf.relocation import RelocationSection

        home = self.defined.get(function)
        if home is None or not home.is_function:
            raise ToolError(f"{self.path} does not define the function {function}")
        kinds = _CALLS[self.machine]
        found: list[tuple[int, str]] = []
        sections: Any = self._elf.iter_sections()
        for section in sections:
            if not isinstance(section, RelocationSection) or section["sh_info"] != home.section:
                continue
            relocations: Any = section.iter_relocations()
            for relocation in relocations:
                at: int = relocation["r_offset"]
                if relocation["r_info_type"] not in kinds:
                    continue
                if home.offset <= at < home.offset + home.size:
                    symbol = self._table[int(relocation["r_info_sym"])]
                    if symbol.name:
                        found.append((at, symbol.name))
        return [name for _, name in sorted(found)]

    def contents(self, name: str) -> bytes:
        """The bytes of a symbol: data, or the code of a function."""
        symbol = self.defined[name]
        data: bytes = self._elf.get_section(symbol.section).data()
        return data[symbol.offset : symbol.offset + symbol.size]

    @cached_property
    def parameters(self) -> dict[str, tuple[str, ...]]:
        """C types of the parameters of every function that the debug information describes, as `const int8_t *`."""
        if not self._elf.has_dwarf_info():
            raise ToolError(f"{self.path} has no debug information: it was built without -g")
        found: dict[str, tuple[str, ...]] = {}
        for unit in self._elf.get_dwarf_info().iter_CUs():
            for die in unit.get_top_DIE().iter_children():
                if die.tag == "DW_TAG_subprogram":
                    named = _origin(die)
                    if "DW_AT_name" not in named.attributes:
                        continue
                    name = named.attributes["DW_AT_name"].value.decode()
                    types = tuple(
                        _type_name(_origin(child))
                        for child in named.iter_children()
                        if child.tag == "DW_TAG_formal_parameter"
                    )
                    if types or name not in found:
                        found[name] = types
        return found


def _origin(die: Any) -> Any:
    """The entry that holds the name and type of an inlined or separately declared one."""
    for link in ("DW_AT_abstract_origin", "DW_AT_specification"):
        if link in die.attributes:
            return _origin(die.get_DIE_from_attribute(link))
    return die


def _type_name(die: Any) -> str:
    """The C spelling of the type of `die`; a typedef keeps its name, `restrict` is left out."""
    if "DW_AT_type" not in die.attributes:
        return "void"
    inner = die.get_DIE_from_attribute("DW_AT_type")
    if inner.tag == "DW_TAG_pointer_type":
        return f"{_type_name(inner)} *".replace("* *", "**")
    if inner.tag == "DW_TAG_const_type":
        name = _type_name(inner)
        return f"{name} const" if name.endswith("*") else f"const {name}"
    if inner.tag in _QUALIFIERS:
        return _type_name(inner)
    if "DW_AT_name" not in inner.attributes:
        # Functions, and structures without a tag.
        return inner.tag.removeprefix("DW_TAG_").removesuffix("_type")
    name = inner.attributes["DW_AT_name"].value.decode()
    return f"struct {name}" if inner.tag == "DW_TAG_structure_type" else name
