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

C_FUNCTIONS: dict[str, str] = {
    "arith.maximumf": "qf_maximumf",
    "arith.maxnumf": "qf_maxnumf",
    "arith.minimumf": "qf_minimumf",
    "arith.minnumf": "qf_minnumf",
    "math.absf": "qf_absf",
    "math.ceil": "qf_ceilf",
    "math.copysign": "qf_copysignf",
    "math.erf": "qf_erff",
    "math.exp": "qf_expf",
    "math.expm1": "qf_expm1f",
    "math.floor": "qf_floorf",
    "math.log": "qf_logf",
    "math.log1p": "qf_log1pf",
    "math.powf": "qf_powf",
    "math.round": "qf_roundf",
    "math.roundeven": "qf_roundevenf",
    "math.rsqrt": "qf_rsqrtf",
    "math.sqrt": "qf_sqrtf",
    "math.tanh": "qf_tanhf",
    "math.trunc": "qf_truncf",
}
"""The float function of `qfold_math.h` behind each op; all take and return `float`."""


def ulp_float32(value: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The distance between neighbouring float32 values at `value` (float64, any shape), 2^-149 or more."""
    magnitude = np.maximum(np.abs(np.asarray(value, np.float64)), 2.0**-126)
    return np.ldexp(1.0, np.frexp(magnitude)[1] - 24)
