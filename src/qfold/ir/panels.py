"""How packed bytes lie (`qkernel.pack_bytes`), for what packs constants and for what interprets the op."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qfold.dialects.qkernel import PANEL, STEPS, packed_bytes_shape

Array = npt.NDArray[Any]


def in_panels(w: Array) -> Array:
    """[K, N] as `packed_bytes_shape(K, N)`: element [4 s + j, 4 p + c] at [p, s, c, j], 0 from K and from N on."""
    k, n = w.shape
    panels, words, _, _ = packed_bytes_shape(k, n)
    whole = np.pad(w, [(0, words * STEPS - k), (0, panels * PANEL - n)])
    return whole.reshape(words, STEPS, panels, PANEL).transpose(2, 0, 3, 1)


def out_of_panels(p: Array, k: int, n: int) -> Array:
    """The inverse of `in_panels`: [K, N]."""
    panels, words, _, _ = p.shape
    return p.transpose(1, 3, 0, 2).reshape(words * STEPS, panels * PANEL)[:k, :n]
