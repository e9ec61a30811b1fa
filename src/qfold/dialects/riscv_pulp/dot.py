"""Packed dot products: four bytes or two half-words of rs1 times those of rs2, summed in 32 bits.

`sp`: both operands signed; `up`: both unsigned; `usp`: rs1 unsigned, rs2 signed. A leading `s` adds to the destination.
`.sc`: the lowest element of rs2 stands for all of them.
"""

from __future__ import annotations

from abc import ABC
from typing import Final, NamedTuple

from xdsl.ir import Dialect, Operation
from xdsl.irdl import irdl_op_definition

from qfold.dialects.riscv_pulp.alu import AccumulateOperation, BinaryOperation


class DotProduct(NamedTuple):
    """What a packed dot product computes, as its name tells."""

    accumulates: bool
    lhs_signed: bool
    rhs_signed: bool
    broadcast: bool
    """Whether the lowest element of rs2 is used for all."""

    bits: int
    """Bits per element: 8 or 16."""

    @classmethod
    def of(cls, op_name: str) -> DotProduct:
        kind, *rest = Dialect.split_name(op_name)[1].split(".")
        return cls(
            accumulates=kind.startswith("s"),
            lhs_signed=kind.endswith("dotsp"),
            rhs_signed=kind.endswith("sp"),
            broadcast=rest[0] == "sc",
            bits={"b": 8, "h": 16}[rest[-1]],
        )


class DotOperation(BinaryOperation, ABC):
    """A packed dot product."""


class DotAccumulateOperation(AccumulateOperation, ABC):
    """A packed dot product that is added to its destination."""


@irdl_op_definition
class DotupBOp(DotOperation):
    name = "riscv_pulp.dotup.b"


@irdl_op_definition
class DotupHOp(DotOperation):
    name = "riscv_pulp.dotup.h"


@irdl_op_definition
class DotupScBOp(DotOperation):
    name = "riscv_pulp.dotup.sc.b"


@irdl_op_definition
class DotupScHOp(DotOperation):
    name = "riscv_pulp.dotup.sc.h"


@irdl_op_definition
class DotuspBOp(DotOperation):
    name = "riscv_pulp.dotusp.b"


@irdl_op_definition
class DotuspHOp(DotOperation):
    name = "riscv_pulp.dotusp.h"


@irdl_op_definition
class DotuspScBOp(DotOperation):
    name = "riscv_pulp.dotusp.sc.b"


@irdl_op_definition
class DotuspScHOp(DotOperation):
    name = "riscv_pulp.dotusp.sc.h"


@irdl_op_definition
class DotspBOp(DotOperation):
    name = "riscv_pulp.dotsp.b"


@irdl_op_definition
class DotspHOp(DotOperation):
    name = "riscv_pulp.dotsp.h"


@irdl_op_definition
class DotspScBOp(DotOperation):
    name = "riscv_pulp.dotsp.sc.b"


@irdl_op_definition
class DotspScHOp(DotOperation):
    name = "riscv_pulp.dotsp.sc.h"


@irdl_op_definition
class SdotupBOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotup.b"


@irdl_op_definition
class SdotupHOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotup.h"


@irdl_op_definition
class SdotupScBOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotup.sc.b"


@irdl_op_definition
class SdotupScHOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotup.sc.h"


@irdl_op_definition
class SdotuspBOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotusp.b"


@irdl_op_definition
class SdotuspHOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotusp.h"


@irdl_op_definition
class SdotuspScBOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotusp.sc.b"


@irdl_op_definition
class SdotuspScHOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotusp.sc.h"


@irdl_op_definition
class SdotspBOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotsp.b"


@irdl_op_definition
class SdotspHOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotsp.h"


@irdl_op_definition
class SdotspScBOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotsp.sc.b"


@irdl_op_definition
class SdotspScHOp(DotAccumulateOperation):
    name = "riscv_pulp.sdotsp.sc.h"


OPS: Final[tuple[type[Operation], ...]] = (
    DotupBOp,
    DotupHOp,
    DotupScBOp,
    DotupScHOp,
    DotuspBOp,
    DotuspHOp,
    DotuspScBOp,
    DotuspScHOp,
    DotspBOp,
    DotspHOp,
    DotspScBOp,
    DotspScHOp,
    SdotupBOp,
    SdotupHOp,
    SdotupScBOp,
    SdotupScHOp,
    SdotuspBOp,
    SdotuspHOp,
    SdotuspScBOp,
    SdotuspScHOp,
    SdotspBOp,
    SdotspHOp,
    SdotspScBOp,
    SdotspScHOp,
)
