"""What work on the cluster costs, in cycles: enough to choose tiles and shares by. Figures are measured ones, rounded."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import prod

DMA_BYTES_PER_CYCLE = 8
TRANSFER = 60
"""To set a transfer up and to notice its end."""
DMA_ROW = 4
"""For each further row of a transfer that is not one run of bytes."""
L1_ROW = 20
"""For each row of one that has gaps between its rows in L1: a command of its own."""
CALL = 100
"""Of a leaf function: the call, finding the share, and the barrier."""
PANEL_STEP = 16
"""To pack one row of a panel: four weights, load, subtract, convert and store each."""
PANEL_CALL = 35
"""Of the function that packs a panel."""
LOAD = 2
"""At least what a core does per element that a loop nest loads or stores."""
L2_ACCESS = 14
"""What a load from L2 takes more than one from L1."""
CORE_CYCLES_PER_MAC = 2
"""Two cores share a float unit."""
BYTE_CYCLES_PER_MAC = Fraction(3, 8)
"""Of packed bytes: four products an instruction, and the loads of a block of 4 by 4."""
PLAIN_CYCLES_PER_MAC = 5
"""Of bytes that C multiplies one by one."""
STORE_INTEGER = 8
"""To requantise and store an element."""
WORD_ROW = 3
"""To shift a row of a window out of words, and multiply it."""
WINDOW_BYTE = 3
"""To find and copy a byte of a packed window."""
BLOCK = 4
"""Rows and columns of accumulators that a core keeps in registers: shares of a product are whole blocks."""


def blocks(extent: int) -> int:
    return -(-extent // BLOCK)


def largest_share(counts: tuple[int, ...], parts: tuple[int, ...]) -> int:
    """Units of the core that gets most, when each dimension of `counts` units is divided into `parts`."""
    return prod(-(-n // p) for n, p in zip(counts, parts, strict=True))


def best_grid(rows: int, columns: int, cores: int) -> tuple[int, int]:
    """Into how many parts to divide each of two dimensions: the least work for the core that has most, then fewest columns."""
    best: tuple[tuple[int, int, int], tuple[int, int]] | None = None
    for p in range(1, min(rows, cores) + 1):
        q = max(1, min(columns, cores // p))
        share = -(-columns // q)
        q = -(-columns // share) if share else 1
        key = (largest_share((rows, columns), (p, q)), q, p)
        if best is None or key < best[0]:
            best = key, (p, q)
    return (1, 1) if best is None else best[1]


@lru_cache(maxsize=4096)
def balanced(counts: tuple[int, ...], cores: int) -> tuple[int, ...]:
    """Parts of dimensions of `counts` units: the least for the core that has most, then of few dimensions, outer ones first."""
    extents = tuple(max(1, n) for n in counts)
    best: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def visit(d: int, left: int, parts: tuple[int, ...]) -> None:
        nonlocal best
        if d == len(extents):
            divided = sum(p > 1 for p in parts)
            key = (largest_share(extents, parts), divided, prod(parts), *(-p for p in parts))
            if best is None or key < best[0]:
                best = key, parts
            return
        for p in range(1, min(left, extents[d]) + 1):
            visit(d + 1, left // p, (*parts, p))

    visit(0, cores, ())
    assert best is not None
    return best[1]


def transfer_cycles(size: int, runs: int = 1) -> int:
    """Of a transfer of `size` bytes in `runs` rows."""
    return TRANSFER + size // DMA_BYTES_PER_CYCLE + DMA_ROW * (runs - 1)
