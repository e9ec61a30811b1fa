"""What a kernel reads and writes beside its inner product: operands of the epilogue and the output, panel by panel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue

from qfold.backend.c.layout import Buffer, Linear, access, c_type
from qfold.backend.riscv.builder import FunctionBuilder, fits_12_bits
from qfold.backend.riscv.generated import CannotGenerate
from qfold.dialects.contraction import EpilogueOperation
from qfold.dialects.element_types import byte_size, i32, is_unsigned
from qfold.dialects.qkernel import PANEL
from qfold.dialects.riscv_pulp import memory


@dataclass(frozen=True)
class Stream:
    """A matrix (or less) over the rows `m` and columns `n` of the output."""

    name: str
    """Of the assembly function's parameter."""
    buffer: Buffer
    position: Linear
    """Where element (m, n) is, in elements, over the C variables `m` and `n`."""
    written: bool = False

    @property
    def element(self) -> Attribute:
        return self.buffer.element

    def _bytes(self, elements: int) -> int:
        return byte_size(self.element, abs(elements)) * (1 if elements >= 0 else -1)

    @property
    def row_bytes(self) -> int:
        """From a row to the next; 0: the same for all."""
        return self._bytes(self.position.coefficient("m"))

    @property
    def column_bytes(self) -> int:
        return self._bytes(self.position.coefficient("n"))

    @property
    def panel_bytes(self) -> int:
        """From a panel to the next."""
        return PANEL * self.column_bytes

    @property
    def declaration(self) -> str:
        """The C parameter."""
        return f"{'' if self.written else 'const '}{c_type(self.element)} *{self.name}"


def epilogue_operands(
    op: EpilogueOperation, buffers: Mapping[SSAValue, Buffer], place: Sequence[Linear]
) -> Iterator[tuple[str, Buffer, Linear]]:
    """
    (name, buffer, position) of each operand of the epilogue, where the output's element is at `place`. `CannotGenerate` for one
    whose position is not linear in it.
    """
    for i, (value, map_) in enumerate(zip(op.epilogue_operands, op.maps, strict=True)):
        position = access(buffers[value], map_, place)
        if not isinstance(position, Linear):
            raise CannotGenerate(op, f"epilogue operand {i} is read at {map_}, which is not linear")
        yield f"e{i}", buffers[value], position


class StreamPointers:
    """
    The pointers of the streams while panels go by: in registers, or in the frame where the inner loop needs every register.
    `held`: how many are in registers, those first that move with the panels.
    """

    def __init__(self, b: FunctionBuilder, streams: Sequence[Stream], *, held: int):
        self._b = b
        self._streams = sorted(streams, key=lambda s: not s.panel_bytes)
        self._held = {s.name for s in self._streams[:held]}
        self._values: dict[str, SSAValue] = {}
        self._slots: dict[str, int] = {}
        self._rows: dict[tuple[str, int], SSAValue] = {}
        for stream in streams:
            value = b.arguments[stream.name]
            if stream.name in self._held:
                self._values[stream.name] = value
            else:
                self._slots[stream.name] = b.slot()
                b.spill(value, self._slots[stream.name])

    @property
    def carried(self) -> tuple[SSAValue, ...]:
        """What a loop over panels carries; the loop's arguments and results are given back to `take`."""
        return tuple(self._values[s.name] for s in self._carried)

    @property
    def _moving(self) -> list[Stream]:
        return [s for s in self._streams if s.panel_bytes]

    @property
    def _carried(self) -> list[Stream]:
        return [s for s in self._moving if s.name in self._held]

    def take(self, values: Sequence[SSAValue]) -> None:
        self._values |= dict(zip((s.name for s in self._carried), values, strict=True))

    def _pointer(self, stream: Stream) -> SSAValue:
        if stream.name not in self._values:
            self._values[stream.name] = self._b.reload(self._slots[stream.name])
        return self._values[stream.name]

    def address(self, stream: Stream, row: int, column: int) -> tuple[SSAValue, int]:
        """A pointer and an offset for element (row, column) of the block at the current panel."""
        pointer = self._pointer(stream)
        offset = row * stream.row_bytes
        reach = (PANEL - 1) * stream.column_bytes
        if not (fits_12_bits(offset) and fits_12_bits(offset + reach)):
            key = (stream.name, row)
            if key not in self._rows:
                self._rows[key] = self._b.addi(pointer, offset)
            pointer, offset = self._rows[key], 0
        offset += column * stream.column_bytes
        if fits_12_bits(offset):
            return pointer, offset
        return self._b.addi(pointer, offset), 0

    def load(self, stream: Stream, row: int, column: int) -> SSAValue:
        """An element as a float: integers of 8 bits are converted."""
        value = self.element(stream, row, column)
        return value if stream.element == f32 else self._b.int_to_float(value)

    def element(self, stream: Stream, row: int, column: int) -> SSAValue:
        """An element as it is: a float, an integer of 32 bits, or one of 8 bits, extended by its signedness."""
        b = self._b
        pointer, offset = self.address(stream, row, column)
        if stream.element == f32:
            return b.fload(pointer, offset)
        if stream.element == i32:
            return b.lw(pointer, offset)
        narrow = memory.LbuOp if is_unsigned(stream.element) else memory.LbOp
        return b.emit(narrow(pointer, offset)).rd

    def forget(self) -> None:
        """Values that are in the frame need not stay in registers."""
        self._rows.clear()
        self._values = {name: v for name, v in self._values.items() if name in self._held}

    def advance(self) -> None:
        """To the next panel."""
        self.move(lambda stream: stream.panel_bytes)

    def move(self, distance: Callable[[Stream], int]) -> None:
        """Those that move with the panels, by so many bytes."""
        b = self._b
        for stream in self._moving:
            moved = b.addi(self._pointer(stream), distance(stream))
            if stream.name in self._held:
                self._values[stream.name] = moved
            else:
                b.spill(moved, self._slots[stream.name])
        self.forget()
