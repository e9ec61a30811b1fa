"""`linalg` structured ops, vectorised: the body runs once on whole arrays over the iteration space.

Three ways to reduce, tried in order:

1. the body is `acc + x * y`, and neither factor spans the whole space: a matrix product (no M x N x K temporary);
2. the body is `combine(acc, term)` with a combiner that folds in any order: the term on the whole space, then a ufunc reduction;
3. anything else: a loop over the reduction indices, vectorised over the parallel ones.

Spaces of more than `CHUNK` points are walked in slabs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.interpreter import (
    Interpreter,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects.element_types import is_unsigned, numpy_dtype, signless
from qfold.interpreters.domains import Domain, element_type
from qfold.interpreters.reductions import Combiner, contract, match_combiner
from qfold.interpreters.scalar import DomainFunctions
from qfold.interpreters.spaces import Box, is_permutation, loop_extents, over_box
from qfold.interpreters.values import Value, map_parts

CHUNK = 1 << 26
"""Points of an iteration space that are evaluated at once."""


def slabs(box: Box, preferred: Sequence[int], limit: int) -> Iterator[Box]:
    """`box` in parts of at most `limit` points or so, cut along `preferred` loops first."""
    if box.size <= limit:
        yield box
        return
    axes = [a for a in preferred if box.shape[a] > 1] or list(range(len(box.shape)))
    axis = max(axes, key=lambda a: box.shape[a])
    extent = box.shape[axis]
    step = max(1, extent * limit // box.size)
    for start in range(0, extent, step):
        part = box.slab(axis, start, min(start + step, extent))
        if step == 1 and extent > 1:
            yield from slabs(part, preferred, limit)
        else:
            yield part


def as_rank(value: Value | int, rank: int) -> Value:
    """A body value with one dimension per loop: scalars get dimensions of size 1."""
    if isinstance(value, int):
        return np.asarray(value).reshape((1,) * rank)
    if value.ndim == rank:
        return value
    return map_parts(lambda part: np.asarray(part).reshape((1,) * rank), value)


def spread(value: Value, shape: Sequence[int]) -> Value:
    """A view broadcast to `shape`."""
    return map_parts(lambda part: np.broadcast_to(part, tuple(shape)), value)


class StructuredRun:
    """One structured op on its arguments."""

    def __init__(
        self,
        functions: LinalgFunctions,
        interpreter: Interpreter,
        op: LinalgStructuredOperation,
        args: PythonValues,
    ):
        self.functions, self.interpreter, self.op = functions, interpreter, op
        self.domain = functions.domain
        self.block = op.body.block
        self.maps = [m.data for m in op.get_indexing_maps()]
        count = len(op.inputs)
        self.inputs: list[Value] = [_as_value(a) for a in args[:count]]
        self.inits: list[Value] = [_as_value(a) for a in args[count:]]
        self.input_maps, self.output_maps = self.maps[:count], self.maps[count:]
        self.accumulators = self.block.args[count:]
        extents = loop_extents(self.maps, [v.shape for v in (*self.inputs, *self.inits)])
        self.box = Box.of(extents)
        kinds = [t.data for t in op.get_iterator_types()]
        self.reductions = [j for j, k in enumerate(kinds) if k != IteratorType.PARALLEL]
        self.parallel = [j for j, k in enumerate(kinds) if k == IteratorType.PARALLEL]
        self.on_tensors = bool(op.results)

    def run(self) -> PythonValues:
        for map_ in self.output_maps:
            self._check_output_map(map_)
        if self.box.size == 0:
            return tuple(self.inits) if self.on_tensors else ()
        if not self.reductions and self.on_tensors and self.box.size <= CHUNK:
            if all(len(m.results) == len(self.box.shape) for m in self.output_maps):
                return self._map_tensors()
        outputs = list(self.inits)
        if self.on_tensors:
            types = [element_type(o.type) for o in self.op.outputs]
            outputs = [
                self.domain.writable(map_parts(np.copy, v), t)
                for v, t in zip(self.inits, types, strict=True)
            ]
        combiners = [match_combiner(self.block, i, a) for i, a in enumerate(self.accumulators)]
        known = [c for c in combiners if c is not None]
        if self.reductions and len(known) == len(combiners):
            for box in slabs(self.box, self.parallel, CHUNK):
                self._fold(box, outputs, known)
        else:
            for box in self._steps():
                self._assign(box, outputs)
        return tuple(outputs) if self.on_tensors else ()

    def _check_output_map(self, map_: AffineMap) -> None:
        seen = {e.position for e in map_.results if isinstance(e, AffineDimExpr)}
        if not is_permutation(map_) or seen & set(self.reductions):
            raise InterpretationError(
                f"output map {map_} is not a permutation of parallel loops, as this interpreter takes it"
            )
        if missing := set(self.parallel) - seen:
            if any(self.box.shape[j] > 1 for j in missing):
                raise InterpretationError(
                    f"parallel loops {sorted(missing)} write the same elements through {map_}"
                )

    def _view(self, value: Value, map_: AffineMap, box: Box) -> Value:
        return map_parts(lambda part: over_box(part, map_, box), value)

    def _elements(self, box: Box) -> list[Value]:
        return [self._view(v, m, box) for v, m in zip(self.inputs, self.input_maps, strict=True)]

    def _accumulated(self, box: Box, outputs: Sequence[Value]) -> list[Value]:
        return [self._view(v, m, box) for v, m in zip(outputs, self.output_maps, strict=True)]

    def _body(
        self, box: Box, arguments: Sequence[Any], wanted: Sequence[SSAValue], skip: set[Operation]
    ) -> list[Value]:
        """Run the body but for `skip`, and return the values of `wanted`, with one dimension per loop."""
        with self.functions.inside(box):
            values = run_block(self.interpreter, self.block, arguments, wanted, skip)
        return [as_rank(v, len(box.shape)) for v in values]

    def _yielded(self) -> Sequence[SSAValue]:
        assert self.block.last_op is not None
        return self.block.last_op.operands

    def _map_tensors(self) -> PythonValues:
        """A parallel op on tensors, in one go: the results are what the body yields, permuted."""
        arguments = [*self._elements(self.box), *self._accumulated(self.box, self.inits)]
        results: list[Value] = []
        for value, map_ in zip(
            self._body(self.box, arguments, self._yielded(), set()), self.output_maps, strict=True
        ):
            order = [cast(AffineDimExpr, e).position for e in map_.results]
            whole = spread(value, self.box.shape)
            results.append(map_parts(partial(np.transpose, axes=order), whole))
        return tuple(results)

    def _steps(self) -> Iterator[Box]:
        """Parts of the space in which each output element is written once, in the order of the reduction loops."""
        counts = [range(self.box.shape[j]) for j in self.reductions]
        for indices in product(*counts):
            box = self.box
            for axis, index in zip(self.reductions, indices, strict=True):
                box = box.slab(axis, index, index + 1)
            yield from slabs(box, self.parallel, CHUNK)

    def _assign(self, box: Box, outputs: Sequence[Value]) -> None:
        targets = self._accumulated(box, outputs)
        values = self._body(box, [*self._elements(box), *targets], self._yielded(), set())
        for target, value in zip(targets, values, strict=True):
            self.domain.store(target, value)

    def _fold(self, box: Box, outputs: Sequence[Value], combiners: Sequence[Combiner]) -> None:
        skip: set[Operation] = set()
        wanted: list[SSAValue] = []
        for c in combiners:
            skip |= c.deferred
            if c.factors is not None:
                skip.add(c.factors)
                wanted += c.factors.operands
            else:
                wanted.append(c.term)
        targets = self._accumulated(box, outputs)
        # Accumulators are not set: nothing but the deferred ops reads them.
        values = iter(self._body(box, self._elements(box), wanted, skip))
        for combiner, target, init in zip(combiners, targets, self.op.outputs, strict=True):
            of_type, stored = combiner.element_type, element_type(init.type)
            start = target
            if stored != of_type and signless(stored) == of_type:
                start = self.domain.reinterpret(stored, of_type, target)
            total = None
            if combiner.factors is not None:
                x, y = next(values), next(values)
                total = contract(self.domain, of_type, x, y, start, box, self.reductions)
                term = None if total is not None else self._product(combiner, x, y)
            else:
                term = next(values)
            if term is not None:
                full = [
                    box.shape[j] if j in self.reductions else n for j, n in enumerate(term.shape)
                ]
                total = self.domain.reduce(
                    combiner.operation.name,
                    of_type,
                    spread(term, full),
                    tuple(self.reductions),
                    start,
                )
            assert total is not None
            if stored != of_type and signless(stored) == of_type:
                total = self.domain.reinterpret(of_type, stored, total)
            self.domain.store(target, total)

    def _product(self, combiner: Combiner, x: Value, y: Value) -> Value:
        assert combiner.factors is not None
        if combiner.factors.name == "arith.mulf":
            return self.domain.float_op("arith.mulf", combiner.element_type, x, y)
        return self.domain.integer_op("arith.muli", combiner.element_type, x, y)


def run_block(
    interpreter: Interpreter,
    block: Block,
    arguments: Sequence[Any],
    wanted: Sequence[SSAValue],
    skip: set[Operation],
) -> list[Any]:
    """Run a block's ops but for the terminator and `skip`; the values of `wanted`."""
    interpreter.push_scope("body")
    try:
        interpreter.set_values(zip(block.args, arguments, strict=False))
        for op in block.ops:
            if op in skip or op is block.last_op:
                continue
            results = interpreter.run_op(op, interpreter.get_values(op.operands))
            interpreter.set_values(zip(op.results, results, strict=True))
        return list(interpreter.get_values(wanted))
    finally:
        interpreter.pop_scope()


def _as_value(argument: Any) -> Value:
    return np.asarray(argument) if isinstance(argument, int | np.generic) else argument


class _Inside:
    """Makes `linalg.index` see a box while a body runs on it."""

    def __init__(self, boxes: list[Box], box: Box):
        self._boxes, self._box = boxes, box

    def __enter__(self) -> None:
        self._boxes.append(self._box)

    def __exit__(self, *_: object) -> None:
        self._boxes.pop()


class LinalgFunctions(DomainFunctions):
    """Every structured op of `linalg`, and what their bodies hold."""

    def __init__(self, domain: Domain):
        super().__init__(domain)
        self._boxes: list[Box] = []

    def inside(self, box: Box) -> _Inside:
        return _Inside(self._boxes, box)

    @impl_terminator(linalg.YieldOp)
    def run_yield(
        self, interpreter: Interpreter, op: linalg.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()

    @impl(linalg.IndexOp)
    def run_index(
        self, interpreter: Interpreter, op: linalg.IndexOp, args: PythonValues
    ) -> PythonValues:
        return (self._boxes[-1].indices(op.dim.value.data),)

    @impl(linalg.FillOp)
    def run_fill(
        self, interpreter: Interpreter, op: linalg.FillOp, args: PythonValues
    ) -> PythonValues:
        value, target = _as_value(args[0]), args[1]
        element = element_type(op.outputs[0].type)
        if is_unsigned(element):
            # The scalar is the signless integer of the same bits.
            value = map_parts(lambda part: part.astype(numpy_dtype(element)), value)
        if op.results:
            return (spread(value, target.shape),)
        self.domain.store(target, value)
        return ()

    @impl(linalg.TransposeOp)
    def run_transpose(
        self, interpreter: Interpreter, op: linalg.TransposeOp, args: PythonValues
    ) -> PythonValues:
        permutation = [int(p) for p in op.permutation.get_values()]
        value = map_parts(partial(np.transpose, axes=permutation), args[0])
        return self._deliver(op, value, args[1])

    @impl(linalg.BroadcastOp)
    def run_broadcast(
        self, interpreter: Interpreter, op: linalg.BroadcastOp, args: PythonValues
    ) -> PythonValues:
        added = tuple(int(d) for d in op.dimensions.get_values())
        wide = map_parts(lambda part: np.expand_dims(part, added), args[0])
        return self._deliver(op, spread(wide, args[1].shape), args[1])

    def _deliver(self, op: Operation, value: Value, target: Value) -> PythonValues:
        if op.results:
            return (value,)
        self.domain.store(target, map_parts(np.copy, value))
        return ()


def _run_structured(
    self: LinalgFunctions,
    interpreter: Interpreter,
    op: LinalgStructuredOperation,
    args: PythonValues,
) -> PythonValues:
    return StructuredRun(self, interpreter, op, args).run()


def _register() -> None:
    """Give `LinalgFunctions` the same method for every structured op that has none of its own."""
    own = (linalg.FillOp, linalg.TransposeOp)
    # Left out: in xDSL 0.75 its body takes the maximum with the window operand, not with the accumulator.
    wrong = (linalg.PoolingNchwMaxOp,)
    operations: list[type[Operation]] = list(Linalg.operations)
    for operation in operations:
        if issubclass(operation, LinalgStructuredOperation) and operation not in own + wrong:
            setattr(LinalgFunctions, f"run_{operation.name}", impl(operation)(_run_structured))
    register_impls(LinalgFunctions)


_register()
