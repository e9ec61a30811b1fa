"""What an approximating build costs: its outputs beside those of the network that it stands for (`--compare-exact`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qfold.interpreters import Value
from qfold.tools.arrays import Array, TensorSpec

_SCORES_RANK = 2
"""Up to this rank, an output whose last dimension is no single number is taken for vectors of scores."""


@dataclass(frozen=True)
class Agreement:
    """How many vectors of scores have their largest score at the same place."""

    agree: int
    vectors: int


@dataclass(frozen=True)
class Cost:
    """One output of an approximating build against the exact network, over the elements that are finite in both."""

    name: str
    elements: int
    error: float
    """The largest distance."""
    relative: float
    """`error` by the range of the exact output, largest less smallest; infinite where that is one number and `error` is not 0."""
    rms: float
    """Root of the mean square of the distances."""
    snr: float
    """Signal to noise in dB: squares of the exact output by squares of the distances; infinite where there is no distance."""
    agreement: Agreement | None
    """Of an output that may be vectors of scores, [N] or [M, N]; None for others."""
    lost: int
    """Elements that are finite in one of the two only."""


def cost_of(name: str, exact: Array, approximate: Array) -> Cost:
    """Compares one output; integers are compared as the numbers that they are."""
    x, y = np.asarray(exact, np.float64), np.asarray(approximate, np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    lost = int(np.count_nonzero(np.isfinite(x) != np.isfinite(y)))
    signal, gaps = x[finite], y[finite] - x[finite]
    error = float(np.abs(gaps).max(initial=0.0))
    span = float(np.ptp(signal)) if signal.size else 0.0
    noise = float(np.square(gaps).sum())
    return Cost(
        name,
        x.size,
        error,
        _quotient(error, span),
        math.sqrt(noise / gaps.size) if gaps.size else 0.0,
        _decibels(float(np.square(signal).sum()), noise),
        _agreement(x, y),
        lost,
    )


def _quotient(a: float, b: float) -> float:
    if b:
        return a / b
    return math.inf if a else 0.0


def _decibels(signal: float, noise: float) -> float:
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _agreement(exact: Array, approximate: Array) -> Agreement | None:
    if not 1 <= exact.ndim <= _SCORES_RANK or exact.shape[-1] < 2 or not exact.size:
        return None
    same = exact.argmax(axis=-1) == approximate.argmax(axis=-1)
    return Agreement(int(np.count_nonzero(same)), int(np.size(same)))


def costs(
    specs: Sequence[TensorSpec], exact: Sequence[Value], outputs: Mapping[str, Array]
) -> tuple[Cost, ...]:
    """`exact`: the float64 run of the network as it was imported; `outputs`: what the approximating build computed, by name."""
    return tuple(
        cost_of(spec.name, np.asarray(value), outputs[spec.name])
        for spec, value in zip(specs, exact, strict=True)
    )
