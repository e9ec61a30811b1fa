"""Kernels in assembly: `kernels.S`, and what `kernels.c` needs to call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer
from qfold.backend.c.program import Kernel, Program
from qfold.backend.c.signature import parameters
from qfold.backend.c.text import Writer
from qfold.targets import target_named

if TYPE_CHECKING:
    from qfold.backend.riscv import GeneratedKernel

_PREFIX = "riscv."
"""What names of generated kernels start with in a target's table."""

Generated = Mapping[str, "GeneratedKernel"]
"""C symbol -> its kernel."""


def is_generated(kernel: Kernel) -> bool:
    """Whether a kernel is assembly, called by a driver in C."""
    return kernel.kernel.startswith(_PREFIX)


def generate_kernels(program: Program) -> dict[str, GeneratedKernel]:
    """Every kernel of the program that is assembly. `qfold.backend.riscv.CannotGenerate` for what its generator does not do."""
    wanted = [k for k in program.kernels if is_generated(k)]
    if not wanted:
        return {}
    # Most programs have none, and the generators bring a register allocator with them.
    from qfold.backend.riscv import generate

    target = target_named(program.target)
    found: dict[str, GeneratedKernel] = {}
    for kernel in wanted:
        arguments = kernel.function.body.block.args
        buffers: dict[SSAValue, Buffer] = {
            a: p.buffer for a, p in zip(arguments, parameters(kernel), strict=True)
        }
        found[kernel.symbol] = generate(kernel.function, kernel.symbol, target, buffers)
    return found


def print_assembly_kernels(generated: Generated) -> str:
    """`kernels.S`: one function per register block and shape, called by the drivers in kernels.c."""
    out = Writer()
    out.comment(
        "Kernels in assembly. Each is called by the function in kernels.c whose name its own starts with."
    )
    for kernel in generated.values():
        out.line()
        out.lines(kernel.assembly.rstrip("\n").split("\n"))
    return out.text()
