"""Compares what compiled code computed with the interpreters: each dispatch against its bound, each output against float64.

docs/numerics.md states and derives what is compared here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute

from qfold.backend.c.program import SCRATCHPAD, Dispatch, Place, memory_space
from qfold.backend.run import DispatchTrace
from qfold.dialects.element_types import is_float, numpy_dtype
from qfold.interpreters import Bounded, Value, run, run_function
from qfold.tools.arrays import Array, TensorSpec
from qfold.tools.leafs import Operand
from qfold.tools.manifest import KernelRecord

ORDER_AND_LUCK = 4.0
"""The part of `c` (docs/numerics.md) that does not depend on the network."""

FLOOR_ULPS = 8.0
"""What it may be off in any case, in units of the last place of the largest magnitude of the output."""


@dataclass(frozen=True)
class DispatchResult:
    """The worst element that one dispatch wrote."""

    ordinal: int
    symbol: str
    nodes: tuple[str, ...]
    operand: str
    """Which operand the worst element is of."""
    error: float
    """Distance from float64 on the dispatch's own inputs."""
    bound: float
    """What that element may be off."""
    ratio: float
    """error / bound; 0 when both are 0, infinite for an error where none is allowed."""
    failures: int
    """Elements beyond their bound."""
    elements: int
    """Compared, of all operands that it wrote."""
    exact: int
    """Of them those that have to be equal, and are: integers of which no float was rounded."""

    @property
    def ok(self) -> bool:
        return self.failures == 0


@dataclass(frozen=True)
class GoldenResult:
    """One output beside the array that it is expected to be."""

    error: float
    bound: float
    differing: int
    """Elements that are not equal, as numbers."""

    @property
    def ok(self) -> bool:
        return self.error <= self.bound


@dataclass(frozen=True)
class OutputResult:
    """One output, end to end."""

    name: str
    error: float
    """Largest distance from the float64 run of the tensor-level module; infinite where one is a NaN and the other is not."""
    reference_error: float
    """The same of the float32 run of the module before any rewriting."""
    bound: float
    golden: GoldenResult | None
    element_type: str
    elements: int
    differing: int
    """Elements that are not those of the float64 run."""

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers: then every difference is a number of steps."""
        return not self.element_type.startswith(("f", "bf"))

    @property
    def ratio(self) -> float:
        return _ratio(self.error, self.bound)

    @property
    def ok(self) -> bool:
        return self.error <= self.bound and (self.golden is None or self.golden.ok)


def _ratio(error: float, bound: float) -> float:
    if error == 0:
        return 0.0
    return error / bound if bound else float("inf")


def _distance(a: Array, b: Array) -> float:
    """The largest |a - b|; equal infinities and NaN beside NaN are no distance, any other such pair an infinite one."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not x.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        gaps = np.where(same, 0.0, np.abs(x - y))
    return float(np.where(np.isnan(gaps), np.inf, gaps).max())


def _differing(a: Array, b: Array) -> int:
    """How many elements are not equal, as numbers; NaN equals NaN."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return int(np.count_nonzero((x != y) & ~(np.isnan(x) & np.isnan(y))))


def _finite_distance(a: Array, b: Array) -> float:
    """The largest |a - b| where both are finite."""
    finite = np.isfinite(a) & np.isfinite(b)
    return _distance(a[finite], b[finite])


def check_dispatch(
    module: ModuleOp, dispatch: Dispatch, record: KernelRecord, trace: DispatchTrace
) -> DispatchResult:
    """The dispatch's function run in `bounded` on what its arguments held before, compared with what they held after."""
    function = dispatch.kernel.function
    arguments = [
        _argument(place, operand, held)
        for place, operand, held in zip(
            dispatch.operands, record.operands, trace.before, strict=True
        )
    ]
    expected = run_function(module, function.sym_name.data, arguments, "bounded")
    worst: tuple[float, float, float, str] = (-1.0, 0.0, 0.0, "")
    failures = elements = exact = 0
    for operand, value, actual in zip(record.operands, expected, trace.after, strict=True):
        if actual is None or not actual.size:
            continue
        assert isinstance(value, Bounded)
        failures += int(np.count_nonzero(~value.contains(actual)))
        elements += actual.size
        if actual.dtype.kind != "f":
            exact += int(np.count_nonzero((value.bound == 0) & (value.value == actual)))
        ratio, error, bound = _worst(value, actual)
        if ratio > worst[0] or (ratio == worst[0] and bound > worst[2]):
            worst = (ratio, error, bound, operand.name)
    ratio, error, bound, name = worst
    return DispatchResult(
        dispatch.ordinal,
        dispatch.kernel.symbol,
        dispatch.nodes,
        name,
        error,
        bound,
        max(ratio, 0.0),
        failures,
        elements,
        exact,
    )


def _argument(place: Place, operand: Operand, held: Array | None) -> Array | None:
    """What to run a dispatch's function on: what an operand held, or anything where it held nothing that is read; None for the
    scratchpad of a staged dispatch, which the interpreter makes itself.
    """
    if memory_space(place.type) == SCRATCHPAD:
        return None
    if held is None:
        return _unwritten(place.type)
    # The interpreter writes to what can be written, and takes the rest to be exact.
    return np.array(held) if operand.written else held


def _unwritten(type_: MemRefType[Attribute]) -> Array:
    """What an argument that is only written holds before: anything."""
    return np.zeros(type_.get_shape(), numpy_dtype(type_.get_element_type()))


def _worst(value: Bounded, actual: Array) -> tuple[float, float, float]:
    """(ratio, error, bound) of the element that uses most of its bound."""
    x, y = np.asarray(actual, np.float64), np.asarray(value.value, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | np.isinf(value.bound)
        gaps = np.where(same, 0.0, np.abs(x - y))
        gaps = np.where(np.isnan(gaps), np.inf, gaps)
        ratios = np.where(gaps == 0, 0.0, gaps / value.bound)
    # Among the elements without error, the widest bound says most about what was checked.
    index = int(np.argmax(ratios)) if ratios.max() > 0 else int(np.argmax(value.bound))
    return float(ratios.flat[index]), float(gaps.flat[index]), float(value.bound.flat[index])


def deviation_factor(hoisting: float) -> float:
    """How many times the float32 reference's own deviation from float64 an output may be off: `c` of docs/numerics.md.

    `hoisting` is the largest hoisting factor of the network's contractions, 1 when no zero point is hoisted.
    """
    return ORDER_AND_LUCK * max(2.0, hoisting)


def end_to_end_bound(reference_error: float, values: Array, factor: float) -> float:
    """`factor` times the reference's own deviation plus the floor."""
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    return factor * reference_error + FLOOR_ULPS * float(np.spacing(np.float32(largest)))


def _integer_distance(
    actual: Array,
    target: Array,
    bounded: Bounded,
    reference_error: float,
    factor: float,
    slack: float,
) -> tuple[float, float]:
    """(error, bound) of an integer output.

    Elements that are exact whatever the order of float operations have to be equal. Others were rounded from a float: they may be
    off by 1, where a rounding falls to the other side, or by as much as the float32 reference; and by `slack`.
    """
    rounded = max(1.0, factor * reference_error) + slack
    allowed = np.where(bounded.bound == 0, 0.0, rounded)
    gaps = np.abs(actual.astype(np.float64) - target.astype(np.float64))
    beyond = gaps > allowed
    if beyond.any():
        return float(gaps[beyond].max()), float(allowed[beyond].min())
    return float(gaps.max(initial=0.0)), float(allowed.max(initial=0.0))


def check_outputs(
    reference: ModuleOp,
    specs: Sequence[TensorSpec],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    factor: float,
    expected: Mapping[str, Array] | None = None,
    stands_for: Sequence[Value] | None = None,
) -> list[OutputResult]:
    """Each output against the float64 run of `reference`, the tensor-level module as it was imported.

    `factor` is the `deviation_factor` of the compiled network.

    A golden value that is itself the result of float arithmetic is as far from float64 as an output may be, so that the two may
    be twice as far from each other.

    `stands_for`: the float64 outputs of the network that `reference` approximates. Where a number lies at a tie of a quantisation
    the two results are as far from the exact one, in opposite directions: an output may be twice as far from `reference` too.
    """
    arguments = list(inputs.values())
    exact = run(reference, arguments, domain="exact")
    wide = run(reference, arguments, domain="f64")
    bounded: Sequence[Value] = ()
    if not all(is_float(s.element_type) for s in specs):
        bounded = run(reference, arguments, domain="bounded")
    results: list[OutputResult] = []
    for index, spec in enumerate(specs):
        target, own, actual = np.asarray(wide[index]), np.asarray(exact[index]), outputs[spec.name]
        reference_error = _distance(own, target)
        slack = 0.0
        if stands_for is not None:
            slack = 2 * _finite_distance(target, np.asarray(stands_for[index]))
        if is_float(spec.element_type):
            error = _distance(actual, target)
            bound = end_to_end_bound(reference_error, target, factor) + slack
        else:
            limits = bounded[index]
            assert isinstance(limits, Bounded)
            error, bound = _integer_distance(actual, target, limits, reference_error, factor, slack)
        golden = None
        if expected is not None:
            want = expected[spec.name]
            golden = GoldenResult(_distance(actual, want), 2 * bound, _differing(actual, want))
        results.append(
            OutputResult(
                spec.name,
                error,
                reference_error,
                bound,
                golden,
                str(spec.element_type),
                actual.size,
                _differing(actual, target),
            )
        )
    return results
