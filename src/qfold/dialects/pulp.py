"""`pulp`: what a cluster does besides computing: copies between its memories by a DMA engine.

docs/dialects/pulp.md has a page per op.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType, NoneAttr
from xdsl.ir import (
    Attribute,
    BlockArgument,
    Dialect,
    Operation,
    ParametrizedAttribute,
    SSAValue,
    TypeAttribute,
)
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException


@irdl_attr_definition
class TransferType(ParametrizedAttribute, TypeAttribute):
    """`!pulp.transfer`: a copy under way, as `pulp.dma_start` gives it and one `pulp.dma_wait` takes it."""

    name = "pulp.transfer"


@irdl_op_definition
class DmaStartOp(IRDLOperation):
    """Start to copy `source` onto `destination`: the same shape and element type, in another memory space.

    ```mlir
    %t = pulp.dma_start %w, %tile
        : (memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, memref<16x32xi8, 1 : i64>) -> !pulp.transfer
    ```

    Strides are static, offsets may be dynamic. Until the wait the destination is undefined and the source must not change.
    Each transfer is waited for exactly once, in the block that starts it, or it is carried by an `scf.for` (`iter_args`), whose
    body and results then each do the same.
    """

    name = "pulp.dma_start"
    source = operand_def(MemRefType)
    destination = operand_def(MemRefType)
    transfer = result_def(TransferType())
    assembly_format = (
        "$source `,` $destination attr-dict `:` `(` type($source) `,` type($destination) `)` `->` "
        "type($transfer)"
    )
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, source: SSAValue, destination: SSAValue):
        super().__init__(operands=[source, destination], result_types=[TransferType()])

    @property
    def source_type(self) -> MemRefType[Attribute]:
        return cast(MemRefType[Attribute], self.source.type)

    @property
    def destination_type(self) -> MemRefType[Attribute]:
        return cast(MemRefType[Attribute], self.destination.type)

    def verify_(self) -> None:
        source, destination = self.source_type, self.destination_type
        if source.get_shape() != destination.get_shape():
            raise VerifyException(f"copies between equal shapes, got {source} and {destination}")
        if source.element_type != destination.element_type:
            raise VerifyException(
                f"copies between equal element types, got {source} and {destination}"
            )
        for type_ in (source, destination):
            strides = type_.get_strides()
            if not type_.has_static_shape() or strides is None or None in strides:
                raise VerifyException(f"copies static shapes and strides, got {type_}")
            if isinstance(type_.memory_space, NoneAttr):
                raise VerifyException(f"copies between memory spaces, got {type_}, which has none")
        if source.memory_space == destination.memory_space:
            raise VerifyException(
                f"copies between two memory spaces, got {source} and {destination}, which are in one"
            )
        for value in carriers(self.transfer):
            _verify_taken_once(value)


@irdl_op_definition
class DmaWaitOp(IRDLOperation):
    """The copy is done: its destination holds what its source held; both may be used again.

    ```mlir
    pulp.dma_wait %t
    ```
    """

    name = "pulp.dma_wait"
    transfer = operand_def(TransferType())
    assembly_format = "$transfer attr-dict"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, transfer: SSAValue):
        super().__init__(operands=[transfer])

    def verify_(self) -> None:
        if _block_of(self.transfer) is not self.parent:
            raise VerifyException(
                "waits in the block that starts the transfer; a loop carries it in by iter_args"
            )


def carriers(transfer: SSAValue) -> Iterator[SSAValue]:
    """Every value that may be the transfer: itself, then what the `scf.for`s that carry it call it (argument and result)."""
    seen: list[SSAValue] = []
    waiting = [transfer]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.append(value)
        yield value
        for use in value.uses:
            loop, index = _carried(use.operation, use.index)
            if loop is not None and index < len(loop.results):
                waiting += [loop.body.block.args[1 + index], loop.results[index]]


def _carried(op: Operation, index: int) -> tuple[scf.ForOp | None, int]:
    """The loop that hands operand `index` of `op` on, and by which of its iter_args; no loop where the op takes it."""
    if isinstance(op, scf.ForOp):
        return op, index - 3
    if isinstance(op, scf.YieldOp) and isinstance(loop := op.parent_op(), scf.ForOp):
        return loop, index
    return None, 0


def _block_of(value: SSAValue) -> object:
    """The block in which a value is defined."""
    if isinstance(value, BlockArgument):
        return value.block
    return cast(Operation, value.owner).parent


def _verify_taken_once(value: SSAValue) -> None:
    uses = list(value.uses)
    if len(uses) != 1:
        found = "never" if not uses else f"{len(uses)} times"
        where = "" if isinstance(value.owner, DmaStartOp) else ", carried by a loop,"
        raise VerifyException(
            f"the transfer{where} is taken by one pulp.dma_wait or loop, here {found}"
        )
    user = uses[0].operation
    loop, _ = _carried(user, uses[0].index)
    if not isinstance(user, DmaWaitOp) and loop is None:
        raise VerifyException(f"a transfer is waited for or carried by scf.for, not {user.name}")
    if user.parent is not _block_of(value):
        raise VerifyException(
            "the transfer is waited for in another block; a loop carries it in by iter_args"
        )


PULP = Dialect("pulp", [DmaStartOp, DmaWaitOp], [TransferType])
