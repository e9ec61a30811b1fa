"""Loop nests straight from `linalg.generic`, `linalg.fill` and `memref.copy`.

Dimensions that every operand walks through contiguously become one loop. Reductions keep their accumulator in a variable; float
sums over contiguous elements keep `_LANES` of them, which the bounds of docs/numerics.md allow (they hold for every order) and
without which no compiler may vectorise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import frexp
from typing import cast

from xdsl.dialects import arith, math, memref
from xdsl.dialects.builtin import IntegerAttr, IntegerType, MemRefType
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr

from qfold.backend.c.layout import Buffer, Linear, access, value_type, variable
from qfold.backend.c.loop_nest import (
    Loop,
    Operand,
    accumulates_in_memory,
    collapse,
    open_all,
    ordered,
    renamed,
)
from qfold.backend.c.rounding import constant_float
from qfold.backend.c.scalar import ScalarPrinter, UnsupportedOp
from qfold.backend.c.share import BadSplit, Range, Split, byte_safe, shares
from qfold.backend.c.text import Writer, without_parentheses
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import bit_width, is_float, is_unsigned

_LANES = 32
"""Partial results of a float reduction: two AVX-512 registers, and more than GCC peels into scalar code."""
_SCALAR_LANES = 4
"""The same on the cores of a cluster, in registers: no sum waits for the one before, and rounding errors grow more slowly."""

_ASSOCIATIVE = (
    arith.AddfOp,
    arith.MulfOp,
    arith.MaximumfOp,
    arith.MinimumfOp,
    arith.MaxnumfOp,
    arith.MinnumfOp,
)
"""Reductions that may be done in lanes."""


def print_copy(
    out: Writer,
    op: memref.CopyOp,
    buffers: Mapping[SSAValue, Buffer],
    split: Split | None = None,
) -> None:
    """`memref.copy` between any two strided layouts; of a `split` one, this core's share."""
    source, target = buffers[op.source], buffers[op.destination]
    dims = [variable(f"i{d}") for d in range(len(target.shape))]
    if 0 in target.shape:
        return
    with ExitStack() as stack:
        loops = _over(out, stack, target, split)
        operands = [Operand(b, b.at(dims)) for b in (source, target)]
        loops, operands = collapse(loops, operands, frozenset())
        _open(out, stack, loops)
        read, written = operands
        out.line(target.store(written.position, source.load(read.position)))


def print_fill(
    out: Writer,
    op: linalg.FillOp,
    buffers: Mapping[SSAValue, Buffer],
    split: Split | None = None,
) -> None:
    """`linalg.fill` of any strided layout; of a `split` one, this core's share."""
    target = buffers[op.outputs[0]]
    dims = [variable(f"i{d}") for d in range(len(target.shape))]
    if 0 in target.shape:
        return
    value = fill_value(out, op)
    with ExitStack() as stack:
        loops = _over(out, stack, target, split)
        loops, operands = collapse(loops, [Operand(target, target.at(dims))], frozenset())
        _open(out, stack, loops)
        out.line(target.store(operands[0].position, value))


def fill_value(out: Writer, op: linalg.FillOp) -> str:
    """What is stored: of an unsigned type the number whose bits the signless constant has."""
    scalar = op.inputs[0].owner
    element = cast("MemRefType[Attribute]", op.outputs[0].type).get_element_type()
    if is_unsigned(element) and isinstance(scalar, arith.ConstantOp):
        number = cast("IntegerAttr[IntegerType]", scalar.value).value.data
        return f"{number % (1 << bit_width(element))}"
    return ScalarPrinter(out).text(op.inputs[0])


def _over(out: Writer, stack: ExitStack, target: Buffer, split: Split | None) -> list[Loop]:
    """The loops over all elements of `target`."""
    ranges = [Range.whole(n) for n in target.shape]
    if split is not None:
        ranges = stack.enter_context(shares(out, byte_safe(split, target), target.shape))
    return [
        Loop(f"i{d}", n, False, r)
        for d, (n, r) in enumerate(zip(target.shape, ranges, strict=True))
    ]


def _open(out: Writer, stack: ExitStack, loops: Sequence[Loop]) -> None:
    for x in loops:
        if x.extent != 1:
            stack.enter_context(out.loop(x.name, x.range.last, x.range.first))


def loop_extents(op: linalg.GenericOp) -> list[int]:
    """The extent of each iteration dimension, from the operands that it indexes alone."""
    maps = [m.data for m in op.indexing_maps]
    extents: list[int | None] = [None] * maps[0].num_dims
    for operand, map_ in zip(op.operands, maps, strict=True):
        shape = shape_of(operand)
        for expression, extent in zip(map_.results, shape, strict=True):
            if isinstance(expression, AffineDimExpr):
                extents[expression.position] = extent
    if None in extents:
        raise UnsupportedOp(op, f"no operand gives the extent of dimension {extents.index(None)}")
    return cast(list[int], extents)


def _indexed(block: Block) -> frozenset[int]:
    """Iteration dimensions that the body reads by `linalg.index`."""
    return frozenset(o.dim.value.data for o in block.ops if isinstance(o, linalg.IndexOp))


@dataclass(frozen=True)
class Variable(Buffer):
    """A buffer of which the loops around have one element at a time: it is a variable, wherever that element would be."""

    def load(self, position: Linear | str) -> str:
        return self.name

    def store(self, position: Linear | str, value: str) -> str:
        return f"{self.name} = {without_parentheses(value)};"


class GenericPrinter:
    """Prints one generic; `fill` is the fill of its output that comes right before it, if any.

    The loops around it run through its first dimensions already, as many as `shared` says. `ranges`: what this core does of each
    dimension; None where one core does everything.
    """

    def __init__(
        self,
        out: Writer,
        op: linalg.GenericOp,
        buffers: Mapping[SSAValue, Buffer],
        fill: linalg.FillOp | None,
        shared: int = 0,
        ranges: Sequence[Range] | None = None,
    ):
        if len(op.outputs) != 1:
            raise UnsupportedOp(op, "one output per generic")
        self._out = out
        self._op = op
        self._fill = fill
        self._buffers = buffers
        self._block = op.body.block
        self._on_cluster = ranges is not None
        self._lanes_held = _SCALAR_LANES if self._on_cluster else _LANES
        extents = loop_extents(op)
        kinds = [i.data for i in op.iterator_types]
        indexed = _indexed(self._block)
        self._names = [
            "0" if n == 1 and (d not in indexed or d < shared) else f"i{d}"
            for d, n in enumerate(extents)
        ]
        dims = [Linear() if name == "0" else variable(name) for name in self._names]
        whole = [Range.whole(n) for n in extents]
        found = list(zip(self._names, extents, kinds, ranges or whole, strict=True))
        loops = [
            Loop(name, n, kind is IteratorType.REDUCTION, range_)
            for name, n, kind, range_ in found[shared:]
            if name != "0"
        ]
        maps = [m.data for m in op.indexing_maps]
        operands: list[Operand] = []
        for value, argument, map_ in zip(op.operands, self._block.args, maps, strict=True):
            buffer = buffers[value]
            read = argument.uses or value is op.outputs[0]
            read = read and not isinstance(buffer, Variable)
            operands.append(Operand(buffer, access(buffer, map_, dims) if read else Linear()))
        self._in_memory = accumulates_in_memory(loops, operands[-1])
        loops = ordered(loops, self._in_memory)
        fixed = frozenset(f"i{d}" for d in indexed)
        if any(isinstance(o.position, str) for o in operands):
            fixed = frozenset(x.name for x in loops)
        self._loops, self._operands = collapse(loops, operands, fixed)

    def print(self) -> None:
        if any(x.extent == 0 and not x.reduction for x in self._loops):
            return
        reductions = [x for x in self._loops if x.reduction]
        if reductions and not self._in_memory:
            self._reduce(reductions)
            return
        output = self._operands[-1]
        if self._fill is not None and self._block.args[-1].uses:
            start = fill_value(self._out, self._fill)
            parallel = [x for x in self._loops if not x.reduction]
            loops, targets = collapse(parallel, [output], frozenset())
            with ExitStack() as stack:
                open_all(self._out, stack, loops)
                self._out.line(output.buffer.store(targets[0].position, start))
        with ExitStack() as stack:
            open_all(self._out, stack, self._loops)
            value = self._body(output.buffer.load(output.position))
            self._out.line(output.buffer.store(output.position, value))

    def _body(
        self,
        accumulator: str,
        replaced: Mapping[str, str] | None = None,
        magnitudes: Sequence[SSAValue] = (),
    ) -> str:
        """Print the body; returns what it yields. `replaced` renames loop variables, `magnitudes` have no sign."""
        names = replaced or {}
        indices = [names.get(x, x) for x in self._names]
        captured = {v: b for v, b in self._buffers.items()}
        printer = ScalarPrinter(
            self._out,
            indices=indices,
            captured=captured,
            divisors=self._divisors(),
            magnitudes=magnitudes,
        )
        arguments: list[str] = []
        assert self._block.last_op is not None
        needed = printer.needed(self._block, self._block.last_op.operands[0])
        for argument, operand in zip(self._block.args[:-1], self._operands[:-1], strict=True):
            if argument not in needed:
                arguments.append("0")
                continue
            text = operand.buffer.load(renamed(operand.position, names))
            if not argument.has_one_use():
                name = f"v{argument.index}"
                self._out.line(f"const {value_type(operand.buffer.element)} {name} = {text};")
                text = name
            arguments.append(text)
        return printer.print(self._block, [*arguments, accumulator])

    def _divisors(self) -> list[SSAValue]:
        """What the innermost loop does not change, elements and constants, where dividing by it is worth a reciprocal: cores of
        a cluster share a divider, and a division keeps it for many cycles. Compilers know what to do about a power of two."""
        if not self._on_cluster or not self._loops or self._loops[-1].extent < _SCALAR_LANES:
            return []
        name = self._loops[-1].name
        operands = zip(self._block.args[:-1], self._operands[:-1], strict=True)
        divisors: list[SSAValue] = [
            a for a, x in operands if isinstance(x.buffer, Variable) or x.coefficient(name) == 0
        ]
        for op in self._block.ops:
            number = constant_float(op.rhs) if isinstance(op, arith.DivfOp) else None
            if number is not None and abs(frexp(number)[0]) != 0.5:
                divisors.append(op.operands[1])
        return divisors

    def _reduce(self, reductions: Sequence[Loop]) -> None:
        """Reduction loops innermost, the accumulator in a variable (or in lanes)."""
        out, output = self._out, self._operands[-1]
        type_ = value_type(output.buffer.element)
        if self._fill is not None:
            start = fill_value(out, self._fill)
        else:
            start = output.buffer.load(output.position)
        combine = self._lane_op(reductions[-1])
        with ExitStack() as stack:
            open_all(out, stack, [x for x in self._loops if not x.reduction])
            accumulator = "acc"
            if isinstance(output.buffer, Variable):
                accumulator = output.buffer.name
                if start != accumulator:
                    out.line(f"{accumulator} = {start};")
            else:
                out.line(f"{type_} acc = {start};")
            with ExitStack() as inner:
                open_all(out, inner, reductions[: -1 if combine else None])
                if combine is None:
                    out.line(f"{accumulator} = {without_parentheses(self._body(accumulator))};")
                else:
                    self._lanes(reductions[-1], combine, accumulator)
            if accumulator == "acc":
                out.line(output.buffer.store(output.position, "acc"))

    def _lane_op(self, loop: Loop) -> Operation | None:
        """The op that combines element and accumulator, when the innermost reduction may be done in lanes."""
        indexed = {f"i{d}" for d in _indexed(self._block)}
        if loop.extent < 2 * self._lanes_held or loop.name in indexed:
            return None
        accumulator = self._block.args[-1]
        last = self._block.last_op
        assert last is not None
        op = last.operands[0].owner
        if not isinstance(op, _ASSOCIATIVE) or not is_float(op.result.type):
            return None
        if not accumulator.has_one_use() or accumulator not in op.operands:
            return None
        if any(o.coefficient(loop.name) not in (0, 1) for o in self._operands):
            return None
        if any(isinstance(o, memref.LoadOp) for o in self._block.ops):
            return None
        return op

    def _lanes(self, loop: Loop, combine: Operation, accumulator: str) -> None:
        """Full rows of lanes, the rest one by one, then the lanes together."""
        out = self._out
        type_ = value_type(self._operands[-1].buffer.element)
        lanes = self._lanes_held
        whole = loop.extent - loop.extent % lanes
        out.line(f"{type_} lane[{lanes}];")
        with out.loop("l", lanes):
            # Each lane starts from an element of its own: no neutral element is needed.
            element = self._element(combine, {loop.name: "l"})
            out.line(f"lane[l] = {without_parentheses(element)};")
        # A largest magnitude is one, whichever elements it is of.
        signless = combine.operands if _is_largest_magnitude(combine) else ()
        with out.loop(loop.name, whole, lanes, lanes), out.loop("l", lanes):
            value = self._body("lane[l]", {loop.name: f"({loop.name} + l)"}, signless)
            out.line(f"lane[l] = {without_parentheses(value)};")
        if loop.extent != whole:
            with out.loop(loop.name, loop.extent, whole):
                out.line(f"{accumulator} = {without_parentheses(self._body(accumulator))};")
        half = lanes // 2
        while half >= 4:
            with out.loop("l", half):
                other = self._combined(combine, "lane[l]", f"lane[l + {half}]", signless)
                out.line(f"lane[l] = {other};")
            half //= 2
        rest = [f"lane[{i}]" for i in range(4)]
        total = self._combined(
            combine,
            f"({self._combined(combine, rest[0], rest[1], signless)})",
            f"({self._combined(combine, rest[2], rest[3], signless)})",
            signless,
        )
        out.line(f"{accumulator} = {self._combined(combine, accumulator, f'({total})')};")

    def _element(self, combine: Operation, names: Mapping[str, str]) -> str:
        """Print the body without its last step; returns what would be combined with the accumulator."""
        element = next(v for v in combine.operands if v is not self._block.args[-1])
        indices = [names.get(x, x) for x in self._names]
        printer = ScalarPrinter(self._out, indices=indices)
        for argument, operand in zip(self._block.args[:-1], self._operands[:-1], strict=True):
            if argument.uses:
                printer.bind(argument, operand.buffer.load(renamed(operand.position, names)))
        return printer.print_value(self._block, element)

    @staticmethod
    def _combined(op: Operation, a: str, b: str, magnitudes: Collection[SSAValue] = ()) -> str:
        printer = ScalarPrinter(Writer(), magnitudes=magnitudes)
        return printer.combine(op, a, b)


def _is_largest_magnitude(op: Operation) -> bool:
    """Whether `op` takes the larger of an accumulator and a magnitude."""
    return isinstance(op, arith.MaximumfOp) and any(
        isinstance(v.owner, math.AbsFOp) for v in op.operands
    )


def print_generic(
    out: Writer,
    op: linalg.GenericOp,
    buffers: Mapping[SSAValue, Buffer],
    fill: linalg.FillOp | None = None,
    split: Split | None = None,
) -> None:
    """The loop nest of a generic on memrefs; `fill` (of its output, right before it) becomes the accumulator's start.

    Of a `split` one, this core's share; `BadSplit` where the split divides a reduction.
    """
    if split is None:
        GenericPrinter(out, op, buffers, fill).print()
        return
    extents = loop_extents(op)
    check_split(op, split, len(extents))
    parallel = (n for n, kind in zip(extents, op.iterator_types, strict=True) if not _reduces(kind))
    if 0 in parallel:
        return
    with shares(out, byte_safe(split, buffers[op.outputs[0]]), extents) as ranges:
        GenericPrinter(out, op, buffers, fill, 0, ranges).print()


def check_split(op: linalg.GenericOp, split: Split, depth: int) -> None:
    """`BadSplit` unless `split` divides only parallel loops of `op` among its first `depth`."""
    kinds = list(op.iterator_types)
    if len(split.parts) != len(kinds):
        raise BadSplit(f"its {len(kinds)} loops are split as {list(split.parts)}")
    for d, (parts, kind) in enumerate(zip(split.parts, kinds, strict=True)):
        if parts > 1 and (d >= depth or _reduces(kind)):
            raise BadSplit(f"loop {d} cannot be divided between cores")


def _reduces(kind: IteratorTypeAttr) -> bool:
    return kind.data is IteratorType.REDUCTION
