"""Products of integers on a cluster: blocks of sums in registers, nothing copied, each core its share."""

from __future__ import annotations

from typing import ClassVar

from qfold.backend.c.contraction import Buffers
from qfold.backend.c.integer_elements import IntegerOperands, difference
from qfold.backend.c.layout import Linear
from qfold.backend.c.matmul_problem import MatmulProblem, quant_matmul_problem
from qfold.backend.c.plain import sums
from qfold.backend.c.plain_matmul import BlockPrinter
from qfold.backend.c.share import BadSplit, Split, byte_safe
from qfold.backend.c.text import Writer
from qfold.dialects import qkernel


class _Matmul(BlockPrinter):
    SUM: ClassVar[str] = "uint32_t"
    ACCUMULATOR: ClassVar[str] = "int32_t"

    def __init__(self, out: Writer, p: MatmulProblem, operands: IntegerOperands):
        super().__init__(out, p)
        self.operands = operands

    def accumulate(self, height: int, width: int, first: str, last: str) -> None:
        out, p, o = self.out, self.p, self.operands
        names = sums(height, width)
        with out.loop("k", last, first):
            for r in range(height):
                zero = Linear() if p.sums is None else self.at(p.sums, m=r)
                value = difference(o.data, self.at(p.a, m=r), o.data_zero, zero)
                out.line(f"const int32_t a{r} = {value};")
            for c in range(width):
                value = difference(
                    o.weight, self.at(p.w, n=c), o.weight_zero, self.at(p.parameters[0], n=c)
                )
                out.line(f"const int32_t w{c} = {value};")
            for r in range(height):
                for c in range(width):
                    out.line(f"{names[r][c]} += (uint32_t)(a{r} * w{c});")

    def scaled(self, raw: str, block: str, place: object) -> str:
        return f"(int32_t){raw}"


def print_plain_quant_matmul(
    out: Writer, op: qkernel.QuantMatmulOp, buffers: Buffers, split: Split
) -> None:
    """This core's share of `qkernel.quant_matmul`; `split` is over the dimensions of y, `BadSplit` where it is not."""
    y = buffers[op.y]
    split = byte_safe(split, y)
    if len(split.parts) != len(y.shape):
        raise BadSplit(f"{len(y.shape)} dimensions of y are split as {list(split.parts)}")
    if 0 not in y.shape:
        problem = quant_matmul_problem(op, buffers, split)
        _Matmul(out, problem, IntegerOperands.of_matmul(op, buffers)).print()
