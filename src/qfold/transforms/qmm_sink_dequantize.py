"""`qmm-sink-dequantize`: what makes floats of stored integers moves into the loops that read the floats."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from qfold.ir.fusion import readers, tidy_body
from qfold.ir.generics import function_blocks, on_tensors
from qfold.transforms.qmm_fuse_elementwise import (
    DEQUANTIZE,
    MAX_READERS,
    cost,
    cost_limit,
    fuse_producers,
    fuses_generics,
    is_widening,
    repeats_work,
)


def _read_by_loops(value: SSAValue) -> bool:
    """Whether nothing but the inputs of generics reads the value, through views or not."""
    found = list(readers(value))
    return bool(found) and all(fuses_generics(op, i) for op, i in found)


def may_sink(op: linalg.GenericOp, producer: linalg.GenericOp) -> bool:
    """Whether `op`, and whatever else reads `producer`, had better read the integers that it reads."""
    result = producer.results[0]
    if not is_widening(producer) or not _read_by_loops(result):
        return False
    reading = {id(reader) for reader, _ in readers(result)}
    if len(reading) == 1 and not repeats_work(op, producer):
        return True
    work = cost(producer)
    return work <= DEQUANTIZE or (len(reading) <= MAX_READERS and work <= cost_limit(producer))


def run_on_block(block: Block) -> None:
    """Loops take in what they read, from the first op on: what comes between counts as well."""
    for op in list(block.ops):
        if op.parent is None or not isinstance(op, linalg.GenericOp) or not on_tensors(op):
            continue
        if fuse_producers(op, may_sink):
            tidy_body(op.body.block)


@dataclass(frozen=True)
class QmmSinkDequantizePass(ModulePass):
    """Compute floats that are made of 8- or 16-bit integers where they are read, in each loop nest that does.

    So the integers are what is stored between a requantisation and a residual sum, a softmax or a normalisation. Where something
    other than a loop nest reads the floats (an output of the network, a contraction) they are stored, once. Layout and padding
    are of integers by then: `qmm-fuse-quantized` did that. This runs before `qmm-fuse-epilogue`, which would have contractions
    store the floats.
    """

    name = "qmm-sink-dequantize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in function_blocks(op):
            run_on_block(block)
