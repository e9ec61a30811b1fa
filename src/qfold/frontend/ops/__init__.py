"""Importers of ONNX operators, in groups; importing a module registers what it holds."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules


@cache
def load_importers() -> None:
    """Registers every importer: imports all modules of this package."""
    for group in iter_modules(__path__):
        import_module(f"{__name__}.{group.name}")
