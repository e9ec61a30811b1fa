"""What `runner.c` writes in a build with `-DQFOLD_COUNT`: what each core did in each dispatch of each run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_MAGIC = int.from_bytes(b"QFCOUNT1", "little")


class CountsError(ValueError):
    """The bytes are no counts, or not all of them."""


@dataclass(frozen=True)
class Counts:
    """Numbers are cycles, instructions, or nanoseconds of processor time: what the port's `qf_cycles` counts."""

    elapsed: npt.NDArray[np.uint64]
    """[runs]: what core 0 counted from the start of `net_run` to its end, waiting included."""
    work: npt.NDArray[np.uint64]
    """[runs, dispatches, cores]: without waiting in barriers, for the DMA and between forks."""
    stack_bytes: npt.NDArray[np.uint64]
    """[cores]: the size of each stack; 0 where the port does not paint stacks."""
    stack_used: npt.NDArray[np.uint64]
    """[cores]: how many bytes of each stack were ever written."""

    @property
    def per_core(self) -> npt.NDArray[np.uint64]:
        """[runs, cores]: the work of all dispatches."""
        return self.work.sum(axis=1, dtype=np.uint64)


def read_counts(raw: bytes) -> Counts:
    """The counts in a file that the runner wrote. `CountsError` for any other bytes."""
    if len(raw) % 8 or len(raw) < 32:
        raise CountsError(f"a counts file is at least 32 bytes and a multiple of 8, got {len(raw)}")
    words = np.frombuffer(raw, dtype="<u8").astype(np.uint64)
    magic, dispatches, cores, runs = (int(word) for word in words[:4])
    if magic != _MAGIC:
        raise CountsError("the file does not begin with QFCOUNT1")
    expected = 4 + runs * (1 + dispatches * cores) + 2 * cores
    if len(words) != expected:
        raise CountsError(
            f"{runs} runs of {dispatches} dispatches on {cores} cores are {expected * 8} bytes, got {len(raw)}"
        )
    stacks = words[expected - 2 * cores :].reshape(cores, 2)
    per_run = words[4 : expected - 2 * cores].reshape(runs, 1 + dispatches * cores)
    return Counts(
        per_run[:, 0], per_run[:, 1:].reshape(runs, dispatches, cores), stacks[:, 0], stacks[:, 1]
    )
