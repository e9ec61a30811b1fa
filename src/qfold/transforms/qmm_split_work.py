"""Divides each leaf function's work over the cores: `docs/cluster.md`, "Level 3 on a cluster"."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from qfold.dialects.contraction import int_array
from qfold.targets import Target
from qfold.transforms.qmm_outline_kernels import COMPUTE, functions, is_staged
from qfold.transforms.target_option import target_option
from qfold.transforms.work_split import split_of


@dataclass(frozen=True)
class QmmSplitWorkPass(ModulePass):
    """Set `qmm.split` on each leaf function: into how many parts each loop over its output is divided.

    The product is at most the number of cores; the largest part is as small as that allows.
    """

    name = "qmm-split-work"
    target: str = "threads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_option(self.target, scratchpad=True)
        split_work(op, target)


def split_work(module: ModuleOp, target: Target) -> None:
    """Split every leaf function of `module`."""
    for function in functions(module):
        if function.sym_visibility == StringAttr("private") and not is_staged(function):
            ops = [op for op in function.body.block.ops if isinstance(op, COMPUTE)]
            parts = split_of(ops, target.cores)
            function.attributes["qmm.split"] = int_array(parts)
