"""C sources that are linked beside generated code, and what they promise."""

from __future__ import annotations

from importlib import resources

MATH_HEADER = "qfold_math.h"
"""Elementary functions, rounding, float-to-integer conversion: all `static inline`, nothing to link."""

INT_HEADER = "qfold_int.h"
"""Integer arithmetic as MLIR's `arith` defines it, four-bit elements, float64 conversion and comparison."""


def read_source(name: str) -> str:
    """The text of a C file of this package, by its name. `FileNotFoundError` when there is none."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
