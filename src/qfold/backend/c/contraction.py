"""What the contraction printers share: the weight as floats, scale and zero point, and the epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer, Linear, access
from qfold.backend.c.scalar import ScalarPrinter
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel
from qfold.dialects.contraction import EpilogueOperation

Buffers = Mapping[SSAValue, Buffer]


@dataclass(frozen=True)
class Epilogue:
    """What happens to a finished accumulator: the op's region, then the store to y."""

    op: EpilogueOperation
    y: Buffer
    operands: tuple[Buffer, ...]

    @staticmethod
    def of(op: EpilogueOperation, y: SSAValue, buffers: Buffers) -> Epilogue:
        return Epilogue(op, buffers[y], tuple(buffers[v] for v in op.epilogue_operands))

    def positions(self, dims: Sequence[Linear]) -> list[Linear | str]:
        """Where y and each epilogue operand are at the output indices `dims`."""
        maps = self.op.maps
        return [
            self.y.at(dims),
            *(access(b, m, dims) for b, m in zip(self.operands, maps, strict=True)),
        ]

    def print(self, out: Writer, accumulator: str, positions: Sequence[Linear | str]) -> None:
        """Write `accumulator` (one token) to y; `positions` are as `positions()` gives them."""
        block = self.op.epilogue_block
        value = accumulator
        if block is not None:
            loads: list[str] = []
            for buffer, at, argument in zip(
                self.operands, positions[1:], block.args[1:], strict=True
            ):
                loads.append(buffer.load(at) if argument.uses else "0")
            value = ScalarPrinter(out, prefix="t").print(block, [accumulator, *loads])
        out.line(self.y.store(positions[0], value))


@dataclass(frozen=True)
class Numbers:
    """The C types of a contraction, and its product."""

    operand: str
    """An element, as it is multiplied."""
    sum: str
    zero: str
    accumulator: str
    """A sum that is finished."""

    def product(self, a: str, b: str) -> str:
        """Of two operands, as a term of a sum."""
        return f"{a} * {b}"

    def accumulation(self, total: str, a: str, b: str) -> str:
        """The statement that adds a product, in one rounding where the core does that."""
        return f"{total} = qf_madd({a}, {b}, {total});"


@dataclass(frozen=True)
class IntegerNumbers(Numbers):
    """Unsigned sums: C leaves the overflow of signed ones undefined."""

    def product(self, a: str, b: str) -> str:
        return f"(uint32_t)((int32_t){a} * {b})"

    def accumulation(self, total: str, a: str, b: str) -> str:
        return f"{total} += {self.product(a, b)};"


FLOATS = Numbers("float", "float", "0.0f", "float")
INTEGERS = IntegerNumbers("int16_t", "uint32_t", "0", "int32_t")


@dataclass(frozen=True)
class Weight:
    """The second operand of a contraction: floats as they are, or integers with scale and zero point."""

    w: Buffer
    scale: Buffer | None = None
    zero_point: Buffer | None = None
    sums: Buffer | None = None
    """Row or window sums: there exactly when the zero point is hoisted."""

    @staticmethod
    def of(
        op: qkernel.DequantMatmulOp | qkernel.DequantConvOp, sums: SSAValue | None, buffers: Buffers
    ) -> Weight:
        zero_point = None if op.zero_point is None else buffers[op.zero_point]
        return Weight(
            buffers[op.w],
            buffers[op.scale],
            zero_point,
            None if sums is None else buffers[sums],
        )

    @property
    def is_converted(self) -> bool:
        """Whether an element is another number than what is stored."""
        return self.scale is not None

    def element(self, position: Linear, parameters: Sequence[Linear]) -> str:
        """One weight as a float: the integer, less its zero point where that is not hoisted (exact: at most 17 bits)."""
        text = self.w.load(position)
        if self.scale is None:
            return text
        if self.zero_point is None or self.sums is not None:
            return f"(float){text}"
        return f"(float)({text} - {self.zero_point.load(self._at(parameters))})"

    def scaled(self, accumulator: str, parameters: Sequence[Linear], sums: Linear | None) -> str:
        """`scale * (accumulator - zero_point * sum)`, of which only what there is."""
        if self.scale is None:
            return accumulator
        at = self._at(parameters)
        if self.zero_point is None or self.sums is None:
            return f"{self.scale.load(at)} * {accumulator}"
        assert sums is not None
        correction = f"(float){self.zero_point.load(at)} * {self.sums.load(sums)}"
        return f"{self.scale.load(at)} * ({accumulator} - {correction})"

    def _at(self, parameters: Sequence[Linear]) -> Linear:
        """Where scale and zero point are: per tensor they have rank 0 and no index."""
        assert self.scale is not None
        return self.scale.at(parameters if self.scale.shape else ())
