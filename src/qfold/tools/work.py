"""What each dispatch took on each core, beside what it computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qfold.runtime.counts import Counts
from qfold.tools.leafs import principal
from qfold.tools.manifest import KernelRecord


@dataclass(frozen=True)
class WorkRow:
    """One dispatch."""

    ordinal: int
    symbol: str
    nodes: tuple[str, ...]
    kernel: str
    """Of the leaf that does most of it."""
    per_core: tuple[int, ...]
    """What each core spent, without waiting."""
    macs: int

    @property
    def largest(self) -> int:
        """Of the core that spent most: the others wait for it."""
        return max(self.per_core)

    @property
    def total(self) -> int:
        return sum(self.per_core)

    @property
    def per_mac(self) -> float | None:
        """All cores together; None without multiply-accumulates."""
        return self.total / self.macs if self.macs else None


@dataclass(frozen=True)
class WorkTable:
    """All dispatches of one run."""

    unit: str
    """`instructions`, `cycles` or `ns`."""
    elapsed: int
    """Core 0 from the start to the end of the run, waiting included."""
    rows: tuple[WorkRow, ...]
    stack_bytes: tuple[int, ...]
    """Of each core; 0 where the machine does not tell."""
    stack_used: tuple[int, ...]
    """Bytes of it that were ever written."""

    @property
    def critical(self) -> int:
        """The sum over the dispatches of what the core that spent most took."""
        return sum(row.largest for row in self.rows)

    def share(self, row: WorkRow) -> float:
        """Of `critical`."""
        return row.largest / self.critical if self.critical else 0.0


def work_table(records: Sequence[KernelRecord], counts: Counts, unit: str) -> WorkTable:
    """The counts of the first run of a network with these dispatches. `ValueError` when there are more or fewer of them."""
    return WorkTable(
        unit,
        int(counts.elapsed[0]),
        tuple(
            WorkRow(
                record.ordinal,
                record.symbol,
                record.nodes,
                principal(record.leafs).kernel,
                tuple(int(n) for n in row),
                record.macs,
            )
            for record, row in zip(records, counts.work[0], strict=True)
        ),
        tuple(int(n) for n in counts.stack_bytes),
        tuple(int(n) for n in counts.stack_used),
    )
