"""`qmm-requantize-in-integers`: requantisation without double precision, where integers provably round alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.element_types import integer_range
from qfold.dialects.qmm.requantization import FLOOR
from qfold.ir.builder import TensorBuilder
from qfold.ir.generics import function_blocks, local_rewriter
from qfold.ir.locations import replace_op
from qfold.transforms.fixed_point_search import fixed_point
from qfold.transforms.integer_ranges import IntegerRanges
from qfold.transforms.qmm_fuse_dequant import REASON
from qfold.transforms.target_option import target_option


@dataclass(frozen=True)
class QmmRequantizeInIntegersPass(ModulePass):
    """Turn `qmm.requantize` into a `qmm.requantize_shift` that gives the same for every accumulator in its proved range.

    For targets without double precision in hardware; without a target always. Multipliers have up to 31 bits, or up to 46 where
    only products of 64 bits will do, and what is added is chosen such that each level begins at the same accumulator as in f64
    (`docs/numerics.md`, "Requantise in integers"). An op for which there are no such integers stays, with a reason
    in `qmm.reason`.
    """

    name = "qmm-requantize-in-integers"

    target: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.target is not None and target_option(self.target).has_f64:
            return
        for block in function_blocks(op):
            ranges = IntegerRanges()
            for inner in list(block.ops):
                if isinstance(inner, qmm.RequantizeOp):
                    in_integers(inner, ranges)


def _one_or_each(values: npt.NDArray[np.int64]) -> list[int]:
    """A parameter of all channels, as one number where they share it."""
    numbers = [int(v) for v in values]
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def in_integers(op: qmm.RequantizeOp, ranges: IntegerRanges) -> qmm.RequantizeShiftOp | None:
    """Replace `op` by one in integers; None, with a reason on `op`, when there is none that is equal to it.

    None without a reason for an axis of no elements, of which nothing is computed.
    """
    if not op.multipliers.size:
        return None
    low, high = op.clamp
    range_ = ranges.of(op.accumulator)
    found = fixed_point(op.multipliers, op.zero, low, high, range_)
    if found is None:
        op.attributes[REASON] = StringAttr(
            f"no integers round as its multipliers do for accumulators of {range_.low} to {range_.high}: it stays in f64"
        )
        return None
    least, largest = integer_range(op.storage)
    builder = TensorBuilder(InsertPoint.before(op), op.location)
    new_op = qmm.RequantizeShiftOp(
        op.accumulator,
        op.storage,
        *(_one_or_each(x) for x in (found.mul, found.add, found.shift)),
        rounding=found.rounding,
        ties=None if found.rounding == FLOOR else _one_or_each(found.ties),
        axis=op.axis_index,
        low=None if low == least else low,
        high=None if high == largest else high,
    )
    new_op.attributes.update(op.attributes)
    builder.insert(new_op)
    replace_op(local_rewriter(op), op, [], [new_op.result])
    return new_op
