"""C sources that are linked beside generated code, and what they promise."""

from __future__ import annotations

from importlib import resources

MATH_HEADER = "qfold_math.h"
"""Elementary functions, rounding, float-to-integer conversion: all `static inline`, nothing to link."""

INT_HEADER = "qfold_int.h"
"""Integer arithmetic as MLIR's `arith` defines it, four-bit elements, float64 conversion and comparison."""

RT_HEADER = "qfold_rt.h"
"""Cores, barriers, forks, scratchpad and DMA: what generated code for a cluster includes."""

_COMMON = ("runner.c", "console.c")
_PORTS = {
    "host": ("ports/hosted.c",),
    "threads": ("ports/hosted.c", "ports/threads/threads.c"),
    "spike": (
        "ports/spike/start.S",
        "ports/spike/spike.c",
        "ports/bare_metal.c",
        "ports/freestanding.c",
    ),
    "gvsoc": (
        "ports/gvsoc/start.S",
        "ports/gvsoc/gvsoc.c",
        "ports/bare_metal.c",
        "ports/freestanding.c",
    ),
    "qemu": ("ports/qemu/start.S", "ports/qemu/linux.c", "ports/freestanding.c"),
}


def read_source(name: str) -> str:
    """The text of a C file of this package, by its name. `FileNotFoundError` when there is none."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def port_sources(port: str, *, debug_dma: bool = False) -> tuple[str, ...]:
    """What a program is linked from besides generated code: files of this package, to be compiled with its directory as an
    include directory. `debug_dma`: what a build with `-DQFOLD_DEBUG_DMA` needs too. `ValueError` for an unknown port.
    """
    try:
        sources = _PORTS[port]
    except KeyError:
        raise ValueError(f"unknown port {port!r}; known: {', '.join(_PORTS)}") from None
    return (*_COMMON, *sources, *(("debug_dma.c",) if debug_dma else ()))
