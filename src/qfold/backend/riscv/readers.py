"""Reading several rows or columns side by side: pointers, offsets and post-increments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from xdsl.ir import SSAValue

from qfold.backend.riscv.builder import FunctionBuilder, fits_12_bits
from qfold.dialects.riscv_pulp import memory

LOWEST_OFFSET: Final = -2048
HIGHEST_OFFSET: Final = 2047


_LOADS: Final = {
    "i8": (memory.LbOp, memory.LbPostOp, memory.LbPostRegOp),
    "ui8": (memory.LbuOp, memory.LbuPostOp, memory.LbuPostRegOp),
    "ui16": (memory.LhuOp, memory.LhuPostOp, memory.LhuPostRegOp),
}
"""Integers: at an offset, and with a post-increment by a number or a register."""


@dataclass(frozen=True)
class Element:
    """What is read from memory: a float, or an integer of one or two bytes, extended to a register."""

    size: int
    """In bytes."""
    kind: str
    """`f32`, `i8`, `ui8` or `ui16`."""

    @staticmethod
    def of(kind: str) -> Element:
        """`kind`: the element type as it prints."""
        return Element({"f32": 4, "ui16": 2}.get(kind, 1), kind)

    def load(self, b: FunctionBuilder, pointer: SSAValue, offset: int) -> SSAValue:
        """The element at `pointer + offset`."""
        if self.kind == "f32":
            return b.fload(pointer, offset)
        return b.emit(_LOADS[self.kind][0](pointer, offset)).rd

    def load_post(
        self, b: FunctionBuilder, pointer: SSAValue, step: int | SSAValue
    ) -> tuple[SSAValue, SSAValue]:
        """The element at `pointer`, and `pointer + step`. A constant step has 12 bits."""
        if self.kind == "f32":
            return b.fload_post(pointer, step)
        _, by_number, by_register = _LOADS[self.kind]
        if isinstance(step, SSAValue):
            reg = b.emit(by_register(pointer, step))
            return reg.rd, reg.rs1_out
        imm = b.emit(by_number(pointer, step))
        return imm.rd, imm.rs1_out


@dataclass(frozen=True)
class _Group:
    """Sequences that one pointer reaches: those from `first` to `last` (exclusive); it points at `base`."""

    first: int
    last: int
    base: int


@dataclass(frozen=True)
class SideBySide:
    """
    `count` sequences of elements that advance together: element k of sequence i is at `start + i * stride + k * step`, in bytes.

    One pointer serves as many as its 12-bit offsets reach. The sequence that it points at is read last, by a load with
    post-increment, so that advancing costs nothing. Nothing else is read: never past an operand.
    """

    element: Element
    count: int
    stride: int
    step: int

    def groups(self) -> list[_Group]:
        """The pointers and what each of them reaches."""
        below = above = self.count
        if self.stride:
            below = -LOWEST_OFFSET // self.stride
            above = HIGHEST_OFFSET // self.stride
        result: list[_Group] = []
        first = 0
        while first < self.count:
            left = self.count - first
            # Sequences before the base are of use only when those after it do not reach the end.
            before = min(below, max(left - 1 - above, 0))
            last = min(first + before + above + 1, self.count)
            result.append(_Group(first, last, first + before))
            first = last
        return result

    @property
    def pointers(self) -> int:
        """How many registers point into the sequences."""
        return len(self.groups())

    @property
    def needs_step_register(self) -> bool:
        """Whether the step is too large for an instruction."""
        return not fits_12_bits(self.step)

    @property
    def registers(self) -> int:
        """Integer registers that reading takes through a loop, besides what is read."""
        return self.pointers + self.needs_step_register

    def open(self, b: FunctionBuilder, start: SSAValue) -> Reader:
        """Pointers to the first elements. `start` is not read afterwards: copy it if somebody must."""
        step = b.li(self.step) if self.needs_step_register else self.step
        # A loop overwrites its pointers, the first of which may be `start` itself: it comes last.
        pointers = [b.addi(start, g.base * self.stride) for g in reversed(self.groups())]
        return Reader(self, step, pointers[::-1])


@dataclass
class Reader:
    """The state of sequences while code is built."""

    sequences: SideBySide
    step: int | SSAValue
    pointers: list[SSAValue]
    """Current values; a loop carries them: set them to the loop's arguments in it, to its results behind it."""

    def order(self) -> list[int]:
        """The sequences in the order in which they must be read at each k."""
        order: list[int] = []
        for group in self.sequences.groups():
            order += [i for i in range(group.first, group.last) if i != group.base]
            order.append(group.base)
        return order

    def read(self, b: FunctionBuilder, sequence: int) -> SSAValue:
        """The current element of a sequence, all read in `order()`."""
        element = self.sequences.element
        for index, group in enumerate(self.sequences.groups()):
            if not group.first <= sequence < group.last:
                continue
            pointer = self.pointers[index]
            if sequence != group.base:
                offset = (sequence - group.base) * self.sequences.stride
                return element.load(b, pointer, offset)
            value, self.pointers[index] = element.load_post(b, pointer, self.step)
            return value
        raise AssertionError(f"no sequence {sequence}")

    def read_all(self, b: FunctionBuilder) -> dict[int, SSAValue]:
        """Sequence -> its current element, in the order of reading. Used in that order, none of them is waited for."""
        return {i: self.read(b, i) for i in self.order()}


def carried(*readers: Reader) -> list[SSAValue]:
    """The pointers that a loop carries."""
    return [p for reader in readers for p in reader.pointers]


def set_carried(values: Sequence[SSAValue], *readers: Reader) -> None:
    """Hand a loop's arguments or results back to readers, in the order of `carried`."""
    rest = list(values)
    for reader in readers:
        count = len(reader.pointers)
        reader.pointers, rest = rest[:count], rest[count:]
    assert not rest
