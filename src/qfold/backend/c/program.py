"""A level-3 module as the C printer sees it: inputs, outputs, arenas, weights, and the calls in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from xdsl.dialects import arith, func
from xdsl.dialects.builtin import (
    IntegerAttr,
    MemRefType,
    StringAttr,
)
from xdsl.ir import Attribute, Operation, SSAValue

from qfold.dialects.element_types import bit_width
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.targets import target_named

ROLE = "qmm.role"
KERNEL = "qmm.kernel"
DISPATCH = "qmm.dispatch"
STAGED = "staged"
"""What `qmm.kernel` says of a function that is no kernel but brings tiles to a scratchpad, where kernels work on them."""


SCRATCHPAD = 1
"""The memory space that tiles are brought to."""


class NotLevel3(ValueError):
    """The module is not what the C printer takes; the message says which op and which pass makes it so."""


def memref_type(value: SSAValue) -> MemRefType[Attribute]:
    """The type of a value that is a memref."""
    return cast(MemRefType[Attribute], value.type)


def memory_space(type_: MemRefType[Any]) -> int:
    """1, 2 or 3 for L1, L2, L3 (2 when a type says nothing)."""
    space = type_.memory_space
    return cast(IntegerAttr[Any], space).value.data if isinstance(space, IntegerAttr) else 2


@dataclass(frozen=True)
class Port:
    """A graph input or output."""

    name: str
    """The ONNX value name."""
    member: str
    """The member of net_in_t / net_out_t."""
    type: MemRefType[Attribute]
    quant: QuantAttr | None = None
    """What its integers stand for: per tensor."""
    layout: str | None = None
    """`NHWC` or `NLC`, where that is not what the model has."""


@dataclass(frozen=True)
class Arena:
    """Scratch memory of one memory level, handed in by the caller."""

    space: int
    size: int
    """Bytes."""

    @property
    def level(self) -> str:
        return f"l{self.space}"


@dataclass(frozen=True)
class WeightData:
    """A constant that is stored once."""

    symbol: str
    weight: WeightAttr
    space: int
    alignment: int


@dataclass(frozen=True)
class Place:
    """Where a memref value lies: its root and the position of its element [0, ..., 0] in it."""

    root: Port | Arena | WeightData
    is_output: bool
    byte_offset: int
    """Of the view into an arena; 0 otherwise."""
    offset: int
    """In elements, on top of it."""
    type: MemRefType[Attribute]

    @property
    def bytes(self) -> int:
        """The offset from the root in bytes. `NotLevel3` when it is half a byte."""
        bits = self.offset * bit_width(self.type.get_element_type())
        if bits % 8:
            raise NotLevel3(f"a view of {self.type} starts in the middle of a byte")
        return self.byte_offset + bits // 8


@dataclass(frozen=True)
class Kernel:
    """A private function: one C function."""

    symbol: str
    """In C."""
    function: func.FuncOp
    overlaps: bool = False
    """Whether a call passes two pointers into memory that overlaps (of which one may be written)."""
    leafs: tuple[tuple[str, Kernel], ...] = ()
    """Of a staged dispatch: the functions that it calls, by the names that its calls have."""

    @property
    def is_staged(self) -> bool:
        """Whether it only moves tiles and calls other functions (docs/cluster.md)."""
        return self.kernel == STAGED

    def leaf(self, callee: str) -> Kernel:
        """What a staged dispatch calls. `NotLevel3` for what does not exist."""
        for name, kernel in self.leafs:
            if name == callee:
                return kernel
        raise NotLevel3(f"@{self.function.sym_name.data} calls @{callee}, which does not exist")

    @property
    def kernel(self) -> str:
        """The name in the target's kernel table."""
        name = self.function.attributes.get(KERNEL)
        if not isinstance(name, StringAttr):
            raise NotLevel3(
                f"@{self.function.sym_name.data} has no {KERNEL}: run qmm-select-kernels first"
            )
        return name.data

    @property
    def op(self) -> Operation:
        """The op that it consists of: the last one that is neither a constant nor the return."""
        ops = [
            o
            for o in self.function.body.block.ops
            if not isinstance(o, arith.ConstantOp | func.ReturnOp)
        ]
        if not ops:
            raise NotLevel3(f"@{self.function.sym_name.data} computes nothing")
        return ops[-1]


@dataclass(frozen=True)
class Dispatch:
    """One call in main."""

    ordinal: int
    kernel: Kernel
    operands: tuple[Place, ...]
    nodes: tuple[str, ...]
    """ONNX nodes that it computes."""


@dataclass(frozen=True)
class Program:
    """All of a level-3 module."""

    target: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arenas: tuple[Arena, ...]
    weights: tuple[WeightData, ...]
    """Those that a dispatch reads, in order of first use."""
    kernels: tuple[Kernel, ...]
    """Those that main or a staged dispatch calls, in order of first call."""
    staged: tuple[Kernel, ...]
    """The staged dispatches, in order of first call."""
    dispatches: tuple[Dispatch, ...]

    @property
    def is_cluster(self) -> bool:
        """Whether kernels run on all cores at once, each its share."""
        return target_named(self.target).is_cluster

    @cached_property
    def nodes_of(self) -> dict[str, tuple[str, ...]]:
        """C symbol -> the ONNX nodes of all its calls."""
        nodes: dict[str, dict[str, None]] = {}
        for d in self.dispatches:
            for kernel in (d.kernel, *(leaf for _, leaf in d.kernel.leafs)):
                nodes.setdefault(kernel.symbol, {}).update(dict.fromkeys(d.nodes))
        return {symbol: tuple(names) for symbol, names in nodes.items()}
