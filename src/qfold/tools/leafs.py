"""What a dispatch on a cluster consists of: calls of leaf kernels, how often each, and what the DMA moves between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar, cast

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import DenseArrayBase, MemRefType
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, SSAValue

from qfold.backend.c.loops import loop_extents
from qfold.backend.c.program import Kernel, memory_space, memref_type
from qfold.backend.c.share import SPLIT
from qfold.backend.c.signature import compute_ops, parameters
from qfold.backend.c.staged import constant
from qfold.dialects import pulp, qkernel
from qfold.dialects.contraction import GroupedOperation, ints, shape_of, window_of
from qfold.dialects.element_types import byte_size, is_float
from qfold.ir.layouts import Layout
from qfold.ir.operands import named_operands
from qfold.tools.errors import ToolError

_Op = TypeVar("_Op", bound=Operation)

_INTEGER_PRODUCTS = (qkernel.QuantMatmulOp, qkernel.QuantConvOp, qkernel.PackedQuantMatmulOp)

INTEGER_PRODUCTS: frozenset[str] = frozenset(op.name for op in _INTEGER_PRODUCTS)
"""The IR ops that multiply stored integers and sum up in i32."""

_MOVES = frozenset((qkernel.PackBytesOp.name, qkernel.PackWindowOp.name))


@dataclass(frozen=True)
class Operand:
    """One operand of a dispatch or of a leaf kernel."""

    name: str
    """The parameter of the C function."""
    ir_type: str
    """The memref type, such as `memref<8x3xi8, 2 : i64>`."""
    c_type: str
    """The parameter's type, such as `const int8_t *`."""
    read: bool
    written: bool
    element_type: str
    constant: str | None = None
    """Symbol of the constant that it reads, or None."""


@dataclass(frozen=True)
class DotProducts:
    """Products of four bytes at a time, in a kernel that has instructions for them."""

    left: str
    """Element type of the rows of a matrix, or of an image."""
    right: str
    """Of what is packed, or of the weights of an image's windows."""
    least: int
    """Dot products that one call cannot do without."""
    most: int
    """What it may take: more where windows reach into the padding."""
    packed_words: int = 0
    """Of a packed operand, for columns that there are: each is loaded."""
    whole_words: bool = False
    """Whether every row starts at a multiple of four bytes and ends at one."""
    loads_weights: bool = False
    """Whether weights are loaded one by one, as what they are."""


@dataclass(frozen=True)
class LeafRecord:
    """A kernel function, and how often a dispatch calls it."""

    symbol: str
    """The C function."""
    kernel: str
    """Its name in the target's kernel table."""
    op: str
    """The IR op that it is the body of; the last one, where loop nests share a function."""
    calls: int
    """In one run of the dispatch, by each core."""
    macs: int
    """Multiply-accumulates (padding counted) of one call, all cores together; additions of a window sum; 0 for loops."""
    iterations: int
    """Size of the iteration space of one call."""
    split: tuple[int, ...]
    """Into how many parts each loop over its output is divided; empty where one core does it all."""
    operands: tuple[Operand, ...]
    weights: int
    """Integers of the weight that one call cannot do without; 0 without a weight, or with one of floats."""
    weight_type: str | None
    """Its element type, `f32` for one of floats."""
    has_floats: bool
    """Whether any value in the function is a float, an element of an operand included."""
    dots: DotProducts | None
    """What it multiplies four bytes at a time, if it is in assembly; None for kernels that never do."""

    @property
    def is_integer(self) -> bool:
        """Whether it multiplies stored integers."""
        return self.op in INTEGER_PRODUCTS

    @property
    def moves_bytes(self) -> bool:
        """Whether it rearranges bytes, for which it does not matter what they are."""
        return self.op in _MOVES


@dataclass(frozen=True)
class Transfers:
    """What the DMA does in one run of a dispatch."""

    count: int = 0
    bytes_in: int = 0
    """To the scratchpad."""
    bytes_out: int = 0


def operands_of(
    kernel: Kernel, constants: Sequence[str | None] | None = None
) -> tuple[Operand, ...]:
    """The parameters of a kernel function; `constants` are the symbols that a call passes."""
    found = parameters(kernel)
    return tuple(
        Operand(
            p.buffer.name,
            str(p.buffer.type),
            p.c_type,
            p.read,
            p.written,
            str(p.buffer.element),
            symbol,
        )
        for p, symbol in zip(found, constants or [None] * len(found), strict=True)
    )


def leafs_of(kernel: Kernel) -> list[LeafRecord]:
    """The kernels that a dispatch of `kernel` calls, in order of their first call: itself, unless it is staged."""
    if not kernel.is_staged:
        return [leaf_record(kernel, 1)]
    calls: dict[str, int] = {}
    for call, times in _repeated(kernel.function.body.block, func.CallOp):
        name = call.callee.string_value()
        calls[name] = calls.get(name, 0) + times
    return [leaf_record(kernel.leaf(name), times) for name, times in calls.items()]


def leaf_sequence(kernel: Kernel) -> Iterator[str]:
    """The C symbols of the kernels that a dispatch calls, one after the other, loops run through."""
    if kernel.is_staged:
        yield from _sequence(kernel, kernel.function.body.block)
    else:
        yield kernel.symbol


def transfers_of(kernel: Kernel) -> Transfers:
    """What the DMA moves in one run of a dispatch."""
    count = moved_in = moved_out = 0
    if kernel.is_staged:
        for op, times in _repeated(kernel.function.body.block, pulp.DmaStartOp):
            source, destination = memref_type(op.source), memref_type(op.destination)
            moved = byte_size(destination.element_type, prod(destination.get_shape())) * times
            count += times
            if memory_space(destination) < memory_space(source):
                moved_in += moved
            else:
                moved_out += moved
    return Transfers(count, moved_in, moved_out)


def leaf_record(kernel: Kernel, calls: int) -> LeafRecord:
    """The record of a kernel function that is not staged."""
    function = kernel.function
    ops = compute_ops(function)
    nests = [o for o in ops if not isinstance(o, linalg.FillOp)] or ops
    iterations = sum(iteration_count(nest) for nest in nests)
    multiplies = isinstance(kernel.op, qkernel.CONTRACTIONS) and not isinstance(
        kernel.op,
        qkernel.PackOp | qkernel.RowSumOp | qkernel.PackBytesOp | qkernel.PackWindowOp,
    )
    split = function.attributes.get(SPLIT)
    weight = _weight(kernel.op)
    element = None if weight is None else str(memref_type(weight).get_element_type())
    return LeafRecord(
        kernel.symbol,
        kernel.kernel,
        kernel.op.name,
        calls,
        iterations if multiplies else 0,
        iterations,
        ints(cast("DenseArrayBase[Any]", split)) if isinstance(split, DenseArrayBase) else (),
        operands_of(kernel),
        _weights_read(kernel.op, weight) if weight is not None and element != "f32" else 0,
        element,
        _has_floats(function),
        _dot_products(kernel.op),
    )


def _dot_products(op: Operation) -> DotProducts | None:
    if isinstance(op, qkernel.QuantConvOp):
        return _dot_products_of_rows(op)
    if not isinstance(op, qkernel.PackedQuantMatmulOp):
        return None
    (m, k), n = shape_of(op.a), shape_of(op.y)[1]
    rows = memref_type(op.a)
    starts = [rows.get_offset(), *([Layout.of(rows).strides[0]] if m > 1 else []), k]
    words = -(-k // qkernel.STEPS)
    return DotProducts(
        _element_name(op.a),
        _element_name(op.p),
        words * m * n,
        words * m * n,
        words * n if m else 0,
        whole_words=all(at is not None and at % qkernel.STEPS == 0 for at in starts),
    )


def _dot_products_of_rows(op: qkernel.QuantConvOp) -> DotProducts | None:
    """One for each row of a window, which is at most a word; only windows of one channel have their weights side by side."""
    *_, width = shape_of(op.w)
    if shape_of(op.w)[1] != 1 or width > qkernel.STEPS:
        return None
    touched = most = prod(shape_of(op.y)[:2])
    taps = _taps_inside(op)
    for axis, (extent, kernel) in enumerate(
        zip(shape_of(op.y)[2:], shape_of(op.w)[2:], strict=True)
    ):
        is_last = axis == len(taps) - 1
        most *= extent * (1 if is_last else kernel)
        touched *= sum(min(n, 1) if is_last else n for n in taps[axis])
    return DotProducts(_element_name(op.x), _element_name(op.w), touched, most, loads_weights=True)


def _element_name(value: SSAValue) -> str:
    return str(memref_type(value).get_element_type())


def _has_floats(function: func.FuncOp) -> bool:
    values = [
        *function.args,
        *(v for op in function.walk() for v in op.results),
        *(a for op in function.walk() for r in op.regions for b in r.blocks for a in b.args),
    ]
    types: list[Attribute] = [v.type for v in values]
    return any(is_float(_element(t)) for t in types)


def _element(type_: Attribute) -> Attribute:
    if isinstance(type_, MemRefType):
        return cast("MemRefType[Attribute]", type_).get_element_type()
    return type_


def _weight(op: Operation) -> SSAValue | None:
    """The operand that an op has for its stored weight; of a product of two matrices of integers the second one."""
    if isinstance(op, qkernel.PackBytesOp):
        return None  # moves bytes, whatever they are
    if isinstance(op, qkernel.QuantMatmulOp):
        return op.b
    if isinstance(op, GroupedOperation) and any(name == "w" for name, _ in op.GROUPS):
        return cast("SSAValue", getattr(op, "w"))  # noqa: B009
    return None


def _weights_read(op: Operation, weight: SSAValue) -> int:
    """The elements of a weight, but for those that a window has only ever over the padding; none for an empty output."""
    shape = shape_of(weight)
    if 0 in shape_of(dict(named_operands(op))["y"]):
        return 0
    if not isinstance(op, qkernel.ConvOp | qkernel.DequantConvOp | qkernel.QuantConvOp):
        return prod(shape)
    # A tap counts if it meets x for some output.
    read = prod(shape[:2])
    for axis, size in enumerate(shape[2:]):
        read *= sum(
            any(_meets(op, axis, at, tap) for at in _outputs(op, axis)) for tap in range(size)
        )
    return read


_Conv = qkernel.ConvOp | qkernel.DequantConvOp | qkernel.QuantConvOp


def _outputs(op: _Conv, axis: int) -> range:
    return range(shape_of(op.y)[2 + axis])


def _meets(op: _Conv, axis: int, at: int, tap: int) -> bool:
    """Whether output `at` reads x, and not the padding, at a tap of the kernel along one spatial dimension."""
    _, strides, pads, dilations = window_of(op)
    place = at * strides[axis] - pads[axis] + tap * dilations[axis]
    return 0 <= place < shape_of(op.x)[2 + axis]


def _taps_inside(op: _Conv) -> list[list[int]]:
    """Along each spatial dimension, for each output, how many taps of the kernel meet x."""
    return [
        [sum(_meets(op, axis, at, tap) for tap in range(size)) for at in _outputs(op, axis)]
        for axis, size in enumerate(shape_of(op.w)[2:])
    ]


def _repeated(block: Block, kind: type[_Op], times: int = 1) -> Iterator[tuple[_Op, int]]:
    """The ops of one kind, with how often each runs."""
    for op in block.ops:
        if isinstance(op, scf.ForOp):
            yield from _repeated(op.body.block, kind, times * len(_trips(op)))
        elif isinstance(op, kind):
            yield op, times


def _sequence(kernel: Kernel, block: Block) -> Iterator[str]:
    for op in block.ops:
        if isinstance(op, scf.ForOp):
            body = list(_sequence(kernel, op.body.block))
            for _ in _trips(op):
                yield from body
        elif isinstance(op, func.CallOp):
            yield kernel.leaf(op.callee.string_value()).symbol


def _trips(op: scf.ForOp) -> range:
    bounds = [constant(v) for v in (op.lb, op.ub, op.step)]
    if None in bounds:
        raise ToolError("a loop of a staged dispatch has bounds that are no constants")
    first, last, step = cast("list[int]", bounds)
    return range(first, last, step)


def iteration_count(op: Operation) -> int:
    """Points of an op's iteration space; for contractions the multiply-accumulates (padding counted)."""
    match op:
        case qkernel.MatmulOp():
            k = shape_of(op.a)[-2 if op.transpose_a is not None else -1]
            return prod(shape_of(op.y)) * k
        case (
            qkernel.DequantMatmulOp()
            | qkernel.PackedMatmulOp()
            | qkernel.QuantMatmulOp()
            | qkernel.PackedQuantMatmulOp()
        ):
            return prod(shape_of(op.y)) * shape_of(op.a)[-1]
        case qkernel.ConvOp() | qkernel.DequantConvOp() | qkernel.QuantConvOp():
            return prod(shape_of(op.y)) * prod(shape_of(op.w)[1:])
        case qkernel.RowSumOp():
            return prod(shape_of(op.a))
        case qkernel.WindowSumOp():
            channels = shape_of(op.x)[1] // window_of(op)[0]
            return prod(shape_of(op.y)) * channels * prod(ints(op.kernel_shape))
        case linalg.GenericOp():
            return prod(loop_extents(op))
        case _:
            type_: Attribute = op.operands[-1].type
            if not isinstance(type_, MemRefType):
                return 0
            return prod(cast("MemRefType[Attribute]", type_).get_shape())


def total_macs(leafs: Sequence[LeafRecord]) -> int:
    """Multiply-accumulates of a dispatch."""
    return sum(leaf.calls * leaf.macs for leaf in leafs)


def principal(leafs: Sequence[LeafRecord]) -> LeafRecord:
    """The leaf that does most of a dispatch: the most multiply-accumulates, else the largest iteration space."""
    return max(leafs, key=lambda leaf: (leaf.calls * leaf.macs, leaf.calls * leaf.iterations))


def every_leaf(calls: Sequence[Sequence[LeafRecord]]) -> Mapping[str, LeafRecord]:
    """Each kernel function once, with its calls in all dispatches."""
    found: dict[str, LeafRecord] = {}
    for leafs in calls:
        for leaf in leafs:
            known = found.get(leaf.symbol)
            total = leaf.calls + (known.calls if known is not None else 0)
            found[leaf.symbol] = replace(leaf, calls=total)
    return found
