"""What a generator is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.ir import Operation, SSAValue

from qfold.backend.c.layout import Buffer
from qfold.backend.riscv.emit import AssemblyFunction
from qfold.ir.locations import describe_location
from qfold.targets import Target


class CannotGenerate(ValueError):
    """A leaf function asks for what its generator does not do; the message says for which ONNX node, and what there is."""

    def __init__(self, op: Operation, detail: str):
        super().__init__(f"{describe_location(op)}: {detail}")


@dataclass(frozen=True)
class LeafKernel:
    """A leaf function to be generated."""

    function: func.FuncOp
    symbol: str
    """Of the C function; assembly functions have names that start with it."""
    target: Target
    buffers: Mapping[SSAValue, Buffer]
    """The C parameters: a pointer to element [0, ..., 0] of each argument."""


Facts = Mapping[str, object]
"""JSON: what the report says about a kernel."""


@dataclass(frozen=True)
class GeneratedKernel:
    """A leaf function as text."""

    symbol: str
    prototypes: tuple[str, ...]
    """C declarations of the assembly functions, without a semicolon."""
    driver: tuple[str, ...]
    """The body of the C function: C99 statements that use the leaf's parameters and `qfold_rt.h`."""
    functions: tuple[AssemblyFunction, ...]
    facts: Facts

    @property
    def assembly(self) -> str:
        """The assembly functions, for an upstream assembler."""
        return "\n".join(f.text for f in self.functions)


Generator = Callable[[LeafKernel], GeneratedKernel]
"""Generates the kernel that one row of a target's kernel table names."""
