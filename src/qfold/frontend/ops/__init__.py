"""Importers of ONNX operators, in groups; importing a module registers what it holds."""

from __future__ import annotations

from functools import cache
from importlib import import_module

_GROUPS = (
    "activation",
    "contraction",
    "elementwise",
    "layout",
    "normalization",
    "pooling",
    "quantization",
    "reduce",
)


@cache
def load_importers() -> None:
    """Registers every importer."""
    for group in _GROUPS:
        import_module(f"{__name__}.{group}")
