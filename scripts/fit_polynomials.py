"""Finds the polynomial coefficients of `src/qfold/runtime/qfold_math.h`.

Each is a minimax fit (Lawson's iteratively reweighted least squares on a dense grid, in float64). The
coefficients are then rounded to float32 one after the other, the lowest order first, and the rest is fitted
again around what is already rounded, so that the rounding of one is made good by the next.

    python scripts/fit_polynomials.py

prints them as C and with each the error left, as a fraction of the function's value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def lawson(basis: Array, target: Array, weight: Array, rounds: int = 400) -> Array:
    """Coefficients c that minimise max |weight * (target - basis @ c)|."""
    scaled, goal = basis * weight[:, None], target * weight
    mass = np.full(len(target), 1.0 / len(target))
    best, best_error = np.zeros(basis.shape[1]), math.inf
    for _ in range(rounds):
        root = np.sqrt(mass)
        coefficients = np.linalg.lstsq(scaled * root[:, None], goal * root, rcond=None)[0]
        residual = np.abs(goal - scaled @ coefficients)
        error = float(residual.max())
        if error < best_error:
            best, best_error = coefficients, error
        mass = mass * residual
        mass /= mass.sum()
    return best


def fit(x: Array, target: Array, weight: Array, powers: list[int]) -> list[np.float32]:
    """float32 coefficients of sum(c_i * x**powers[i]) for `target` with error weight `weight`."""
    basis = np.stack([x**p for p in powers], axis=1)
    rounded: list[np.float32] = []
    rest = target
    for i in range(len(powers)):
        coefficient = np.float32(lawson(basis[:, i:], rest, weight)[0])
        rounded.append(coefficient)
        rest = rest - basis[:, i] * float(coefficient)
    return rounded


def show(name: str, c: list[np.float32], x: Array, target: Array, weight: Array) -> None:
    error = np.abs(
        weight * (np.polynomial.polynomial.polyval(x, [float(v) for v in c]) - target)
    ).max()
    print(f"{name}: error 2^{math.log2(error):.1f}")
    print("   ", ", ".join(f"{float(v):.9g}f" for v in c))


def run(name: str, x: Array, target: Array, weight: Array, degree: int) -> None:
    c = fit(x, target, weight, list(range(degree + 1)))
    show(name, c, x, target, weight)


def grid(low: float, high: float, count: int = 4001) -> Array:
    """Chebyshev nodes of [low, high]: dense at the ends, and never 0."""
    nodes = np.cos((np.arange(count) + 0.5) * math.pi / count)
    x = (low + high) / 2 + (high - low) / 2 * nodes
    return x[np.abs(x) > 1e-3 * (high - low)]


def vec(f: Callable[[float], float], x: Array) -> Array:
    return np.array([f(float(v)) for v in x])


def main() -> None:
    # exp(r) = 1 + r + r^2 q(r); r is half of ln 2 at most, and a little for the rounding of the quotient
    r = grid(-0.3470, 0.3470)
    run("exp q(r)", r, (np.expm1(r) - r) / r**2, r**2 / np.exp(r), 4)

    # log(1 + f) = f - f^2/2 + f^3 p(f), 1 + f in [2/3, 4/3]
    f = grid(-1 / 3 - 1e-6, 1 / 3 + 1e-6)
    log = np.log1p(f)
    run("log p(f)", f, (log - f + f**2 / 2) / f**3, f**3 / log, 8)

    # erf(x) = x + x p(x^2) for |x| < 7/8
    x = grid(1e-3, 0.875)
    erf = vec(math.erf, x)
    run("erf p(x^2)", x**2, erf / x - 1, x / erf, 6)

    # erf(x) = 1 - exp(-(x p(x))) for 7/8 <= x <= 4: an error e in the exponent moves erf by e * erfc
    x = grid(0.875, 4.0)
    erfc = vec(math.erfc, x)
    run("erf p(x), large", x, -np.log(erfc) / x, x * erfc / (1 - erfc), 5)

    # log(m) = 2s (1 + s^2/3 + s^4 p(s^2)), s = (m - 1)/(m + 1), m in [2/3, 4/3]
    s = grid(1e-2, 0.2000001)
    run("pow p(s^2)", s**2, (np.arctanh(s) / s - 1 - s**2 / 3) / s**4, s**4, 2)


if __name__ == "__main__":
    main()
