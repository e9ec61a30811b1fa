"""Which buffer each tensor value lives in: views, updates in place, and results written straight to where they are needed.

Tensor values are immutable, buffers are not; what has to hold is that a value's bytes stay as its producer wrote them until the
value's last use. Two walks decide, and nothing is changed by them:

1. Backward, *placement*: a value that is wanted somewhere (as an output, as a part of a concatenation, in the order that a later
   reshape needs) is produced there, if its producer can write and all of its readers can read that layout.
2. Forward, *assignment*: views share their source's buffer where the layout allows; an op updates an operand's buffer when that
   value is not needed afterwards; all other results get buffers of their own. What remains are copies.

`copies` and `buffers` are all that `qmm-bufferize` needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, cast

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import DenseArrayBase, IntegerType
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.qmm import WeightAttr
from qfold.ir.builder import element_type
from qfold.ir.constants import constant_weight
from qfold.ir.generics import indexing_maps, is_parallel
from qfold.ir.layouts import Layout
from qfold.ir.operands import named_operands
from qfold.targets import Target

CONTRACTIONS = (
    qmm.MatmulOp,
    qmm.DequantMatmulOp,
    qmm.ConvOp,
    qmm.DequantConvOp,
    qmm.QuantMatmulOp,
    qmm.QuantConvOp,
    qmm.WindowSumOp,
)
VIEWS = (
    tensor.CollapseShapeOp,
    tensor.ExpandShapeOp,
    tensor.ExtractSliceOp,
    linalg.TransposeOp,
)
COMPUTE = (linalg.GenericOp, linalg.FillOp, *CONTRACTIONS)


@dataclass(eq=False)
class Root:
    """A whole buffer, dense and row-major."""

    kind: Literal["input", "output", "constant", "alloc"]
    shape: tuple[int, ...]
    element_type: Attribute
    index: int = 0
    """Which input or output."""
    weight: WeightAttr | None = None
    """The contents of a constant."""


@dataclass(frozen=True)
class Buffer:
    """A value's storage: the elements of a root that a layout names."""

    root: Root
    layout: Layout

    @staticmethod
    def whole(root: Root) -> Buffer:
        return Buffer(root, Layout.dense(root.shape))


@dataclass(frozen=True)
class Placement:
    """A decision to produce a value in `buffer`, by ops after position `after` only: until then others write there."""

    buffer: Buffer
    after: int = -1


def static_list(attribute: DenseArrayBase[IntegerType]) -> tuple[int, ...]:
    return tuple(int(v) for v in attribute.get_values())


def slice_of(
    op: tensor.ExtractSliceOp | tensor.InsertSliceOp,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(offsets, sizes, strides)."""
    return (
        static_list(op.static_offsets),
        static_list(op.static_sizes),
        static_list(op.static_strides),
    )


def disjoint(a: tensor.InsertSliceOp, b: tensor.InsertSliceOp) -> bool:
    """Whether the boxes around what two `insert_slice`s write have no element in common."""
    for (o, n, s), (p, m, t) in zip(
        zip(*slice_of(a), strict=True), zip(*slice_of(b), strict=True), strict=True
    ):
        if o + (n - 1) * s < p or p + (m - 1) * t < o:
            return True
    return False


def captures(op: Operation) -> Iterator[SSAValue]:
    """Tensor values from outside that the regions of `op` use."""
    for region in op.regions:
        for inner in region.walk():
            if isinstance(inner, tensor.ExtractOp):
                yield inner.tensor


def read_init(op: Operation) -> SSAValue | None:
    """The value that `op` starts from (a reduction's init, what a slice is inserted into); None when nobody reads it."""
    if isinstance(op, tensor.InsertSliceOp):
        init = op.dest
    elif isinstance(op, linalg.GenericOp):
        if not op.body.block.args[-1].uses:
            return None
        init = op.outputs[0]
    else:
        return None
    return None if isinstance(init.owner, tensor.EmptyOp) else init


def result_of(op: Operation) -> SSAValue:
    return op.results[0]


class BufferAssignment:
    """The decisions for one block of tensor-level ops that ends in `func.return`."""

    buffers: dict[SSAValue, Buffer]
    """Where each tensor value lives."""
    copies: dict[Operation, list[tuple[Buffer, Buffer]]]
    """(from, to) in order, to be made before an op, or instead of one that does nothing else."""

    def __init__(self, block: Block, target: Target):
        self._ops = list(block.ops)
        self._position = {op: i for i, op in enumerate(self._ops)}
        self._target = target
        self._constants: dict[tuple[Attribute, str], Root] = {}
        self._placements: dict[SSAValue, Placement] = {}
        self._last_use: dict[SSAValue, int] = {}
        self._members: dict[Root, list[SSAValue]] = {}
        self.buffers = {}
        self.copies = {}
        terminator = block.last_op
        assert isinstance(terminator, func.ReturnOp)
        self._return = terminator
        self._outputs = [
            Root("output", shape_of(v), element_type(v), k)
            for k, v in enumerate(terminator.arguments)
        ]
        for index, argument in enumerate(block.args):
            root = Root("input", shape_of(argument), element_type(argument), index)
            self._assign(argument, Buffer.whole(root))
        self._place_backward()
        for value, placement in self._placements.items():
            self._members.setdefault(placement.buffer.root, []).append(value)
        for op in self._ops:
            self._assign_op(op)

    def constant(self, weight: WeightAttr) -> Buffer:
        """The buffer of a constant, one root per element type and bytes."""
        key = (weight.element_type, weight.sha256)
        root = self._constants.get(key)
        if root is None:
            flat = weight.with_shape([prod(weight.shape)])
            root = Root("constant", flat.shape, weight.element_type, weight=flat)
            self._constants[key] = root
        return Buffer(root, Layout.dense(weight.shape))

    # Backward: placement.

    def _place_backward(self) -> None:
        for root, value in zip(self._outputs, self._return.arguments, strict=True):
            self._place(value, Placement(Buffer.whole(root)))
        linked: set[Operation] = set()
        for op in reversed(self._ops):
            if isinstance(op, tensor.InsertSliceOp):
                if op not in linked:
                    linked.update(self._place_chain(op))
            elif isinstance(op, linalg.TransposeOp):
                self._place_transposed(op)
            elif isinstance(op, linalg.GenericOp):
                placement = self._placements.get(result_of(op))
                init = read_init(op)
                if placement is not None and init is not None and init.has_one_use():
                    self._place(init, placement)

    def _place(self, value: SSAValue, placement: Placement) -> bool:
        """Have `value` produced in `placement`, if that is possible. Looks through views to who really writes."""
        op = value.owner
        if value in self._placements or not isinstance(op, Operation):
            return False
        buffer = placement.buffer
        if isinstance(op, tensor.CollapseShapeOp | tensor.ExpandShapeOp):
            layout = buffer.layout.reshaped(shape_of(op.src))
            return layout is not None and self._place(
                op.src, Placement(Buffer(buffer.root, layout), placement.after)
            )
        if isinstance(op, linalg.TransposeOp):
            layout = buffer.layout.permuted(_inverse(static_list(op.permutation)))
            return self._place(
                op.inputs[0], Placement(Buffer(buffer.root, layout), placement.after)
            )
        if not isinstance(op, COMPUTE) and not isinstance(op, tensor.InsertSliceOp):
            return False
        first = self._chain(op)[0] if isinstance(op, tensor.InsertSliceOp) else op
        if self._position[first] <= placement.after:
            return False
        if isinstance(op, CONTRACTIONS) and not self._takes(op, "y", buffer.layout):
            return False
        if not self._readable(value, buffer.layout):
            return False
        self._placements[value] = placement
        return True

    def _chain(self, last: tensor.InsertSliceOp) -> list[tensor.InsertSliceOp]:
        """The `insert_slice`s that build one value, each into the result of the one before, which nobody else reads."""
        links = [last]
        while True:
            dest = links[-1].dest
            if not isinstance(dest.owner, tensor.InsertSliceOp) or not dest.has_one_use():
                return links[::-1]
            links.append(dest.owner)

    def _place_chain(self, last: tensor.InsertSliceOp) -> Sequence[Operation]:
        """Give a run of `insert_slice`s one buffer, and have their sources produced in parts of it."""
        result = result_of(last)
        placement = self._placements.get(result)
        if placement is None:
            root = Root("alloc", shape_of(result), element_type(result))
            placement = Placement(Buffer.whole(root))
        links = self._chain(last)
        for link in links:
            self._placements[result_of(link)] = placement
        base, after = links[0].dest, placement.after
        if not isinstance(base.owner, tensor.EmptyOp):
            if base.has_one_use() and self._place(base, placement):
                assert isinstance(base.owner, Operation)
                after = max(after, self._position[base.owner])
            else:
                # The first link copies the base, which would wipe out what was written before.
                after = max(after, self._position[links[0]])
        for link in links:
            if all(link is other or disjoint(link, other) for other in links):
                part = self._part(link, placement.buffer)
                self._place(link.source, Placement(part, after))
        return links

    def _place_transposed(self, op: linalg.TransposeOp) -> None:
        """When the readers of a transpose cannot read a permuted view, have the source written in the order that they want."""
        source, permutation = op.inputs[0], static_list(op.permutation)
        placed = self._placements.get(source)
        layout = Layout.dense(shape_of(source)) if placed is None else placed.buffer.layout
        result = result_of(op)
        if self._readable(result, layout.permuted(permutation)):
            return
        root = Root("alloc", shape_of(result), element_type(result))
        self._place(result, Placement(Buffer.whole(root)))

    def _part(self, op: tensor.InsertSliceOp, buffer: Buffer) -> Buffer:
        layout = buffer.layout.sliced(*slice_of(op)).reshaped(shape_of(op.source))
        assert layout is not None, "dropping dimensions of one element needs no copy"
        return Buffer(buffer.root, layout)

    # What layouts ops take.

    def _takes(self, op: Operation, operand: str, layout: Layout) -> bool:
        kernel_op = op.name.replace("qmm.", "qkernel.", 1)
        return layout.is_dense or self._target.takes_strided(kernel_op, operand)

    def _readable(self, value: SSAValue, layout: Layout) -> bool:
        """Whether every user of `value` reads it in that layout without a copy."""
        for use in value.uses:
            op = use.operation
            if isinstance(op, CONTRACTIONS):
                name, _ = named_operands(op)[use.index]
                if not self._takes(op, name, layout):
                    return False
            elif isinstance(op, VIEWS):
                if isinstance(op, linalg.TransposeOp) and use.index:
                    continue
                seen = view_layout(op, layout)
                if seen is None or not self._readable(result_of(op), seen):
                    return False
        return True

    # Forward: assignment.

    def _assign(self, value: SSAValue, buffer: Buffer) -> None:
        self.buffers[value] = buffer
        if value not in self._placements:
            self._members.setdefault(buffer.root, []).append(value)

    def _fresh(self, value: SSAValue) -> Buffer:
        return Buffer.whole(Root("alloc", shape_of(value), element_type(value)))

    def _copy(self, op: Operation, source: Buffer, target: Buffer) -> None:
        if source != target:
            self.copies.setdefault(op, []).append((source, target))

    def _assign_op(self, op: Operation) -> None:
        if isinstance(op, func.ReturnOp):
            for root, value in zip(self._outputs, op.arguments, strict=True):
                self._copy(op, self.buffers[value], Buffer.whole(root))
        elif isinstance(op, VIEWS):
            self._assign_view(op)
        elif isinstance(op, tensor.InsertSliceOp):
            buffer = self._placements[result_of(op)].buffer
            if (base := read_init(op)) is not None:
                self._copy(op, self.buffers[base], buffer)
            self._copy(op, self.buffers[op.source], self._part(op, buffer))
            self._assign(result_of(op), buffer)
        elif isinstance(op, COMPUTE):
            self._assign_compute(op)
        elif isinstance(op, tensor.EmptyOp):
            # Read as a value only where it has no elements.
            self._assign(result_of(op), self._fresh(result_of(op)))
        elif op.results:
            weight = constant_weight(result_of(op))
            if weight is not None:
                self._assign(result_of(op), self.constant(weight))

    def _assign_view(self, op: Operation) -> None:
        source, result = op.operands[0], result_of(op)
        buffer = self.buffers[source]
        layout = view_layout(op, buffer.layout)
        if layout is not None and self._readable(result, layout):
            self._assign(result, Buffer(buffer.root, layout))
            return
        copy = self._fresh(result)
        if layout is not None:
            self._copy(op, Buffer(buffer.root, layout), copy)
        else:
            self._copy(op, buffer, Buffer(copy.root, Layout.dense(shape_of(source))))
        self._assign(result, copy)

    def _assign_compute(self, op: Operation) -> None:
        result = result_of(op)
        placement = self._placements.get(result)
        init = read_init(op)
        if placement is not None:
            buffer = placement.buffer
            if init is not None:
                self._copy(op, self.buffers[init], buffer)
        elif init is not None:
            buffer = self.buffers[init]
            last = len(op.operands) - 1
            if not self._may_overwrite(op, buffer, lambda index, _: index == last):
                buffer = self._fresh(result)
                self._copy(op, self.buffers[init], buffer)
        else:
            buffer = self._in_place(op) or self._fresh(result)
        self._assign(result, buffer)

    def _in_place(self, op: Operation) -> Buffer | None:
        """The buffer of an operand that an elementwise op may update, or None."""
        if not isinstance(op, linalg.GenericOp):
            return None
        if not is_parallel(op):
            return None
        result, maps = result_of(op), indexing_maps(op)
        if len(maps[-1].results) != maps[-1].num_dims:
            return None
        for index, value in enumerate(op.inputs):
            buffer = self.buffers[value]
            if maps[index] != maps[-1] or shape_of(value) != shape_of(result):
                continue
            if element_type(value) != element_type(result):
                continue

            def same_element(other: int, at: Buffer, buffer: Buffer = buffer) -> bool:
                # Read at the very element that is written, before it is written.
                return at == buffer and maps[other] == maps[-1]

            if self._may_overwrite(op, buffer, same_element):
                return buffer
        return None

    def _may_overwrite(
        self, op: Operation, buffer: Buffer, harmless: Callable[[int, Buffer], bool]
    ) -> bool:
        """Whether `op` may write its result to `buffer`: nothing else that lives in that root is read by this op or later.

        `harmless(operand index, its buffer)` says which of the op's own reads of the root may stay.
        """
        root, position = buffer.root, self._position[op]
        if root.kind != "alloc":
            return False
        if any(self._last_use_of(member) > position for member in self._members[root]):
            return False
        for index, operand in enumerate(op.operands):
            at = self.buffers.get(operand)
            if at is not None and at.root is root and not harmless(index, at):
                return False
        if any(self.buffers[value].root is root for value in captures(op)):
            return False
        return self._readable(result_of(op), buffer.layout)

    def _last_use_of(self, value: SSAValue) -> int:
        """The position of the last op that reads `value`, itself or inside of its regions; of its own op when there is none."""
        known = self._last_use.get(value)
        if known is not None:
            return known
        last = self._position.get(cast(Operation, value.owner), -1)
        for use in value.uses:
            last = max(last, self._position_of(use.operation))
        self._last_use[value] = last
        return last

    def _position_of(self, op: Operation) -> int:
        while op not in self._position:
            parent = op.parent_op()
            assert parent is not None
            op = parent
        return self._position[op]


def _inverse(permutation: Sequence[int]) -> list[int]:
    inverse = [0] * len(permutation)
    for i, p in enumerate(permutation):
        inverse[p] = i
    return inverse


def view_layout(op: Operation, source: Layout) -> Layout | None:
    """The layout of a view op's result when its source has layout `source`; None: it cannot be a view."""
    result = shape_of(result_of(op))
    if isinstance(op, linalg.TransposeOp):
        return source.permuted(static_list(op.permutation))
    if isinstance(op, tensor.ExtractSliceOp):
        return source.sliced(*slice_of(op)).reshaped(result)
    return source.reshaped(result)
