"""How exact the functions of `qfold_math.h` are. The one place that states it; `tests/runtime` holds it true.

An error is measured in units in the last place (ulp) of the exact result: |computed - exact| / ulp(exact), ulp(v)
being the distance of neighbouring float32 values in the binade of v. It holds for every argument, subnormals
included, compiled with or without contraction to FMA.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

ULP_BOUNDS: dict[str, float] = {
    "math.absf": 0.0,
    "math.ceil": 0.0,
    "math.copysign": 0.0,
    "math.erf": 1.3,
    "math.exp": 1.1,
    "math.expm1": 1.7,
    "math.floor": 0.0,
    "math.log": 0.85,
    "math.log1p": 1.7,
    "math.powf": 1.4,
    "math.round": 0.0,
    "math.roundeven": 0.0,
    "math.rsqrt": 1.5,
    "math.sqrt": 0.5,
    "math.tanh": 2.4,
    "math.trunc": 0.0,
}
"""Upper bounds of the error, in ulp, keyed by the name of the op that the function implements."""


def ulp_float32(value: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The distance between neighbouring float32 values at `value` (float64, any shape), 2^-149 or more."""
    magnitude = np.maximum(np.abs(np.asarray(value, np.float64)), 2.0**-126)
    return np.ldexp(1.0, np.frexp(magnitude)[1] - 24)
