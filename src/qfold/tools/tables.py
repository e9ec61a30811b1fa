"""Tables that a narrow terminal shows with fewer columns, rather than with names cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

_UNLIMITED = 10_000
"""Columns of a terminal that every table fits."""


class FittedTable(Table):
    """A table with a title. In a terminal that is too narrow for it, the columns `optional` (headers) are left out, the first one
    first, until the others fit; what still does not fit is folded. Files and pipes get all columns.
    """

    def __init__(self, title: str, optional: Sequence[str] = ()):
        super().__init__(title=title, title_justify="left", title_style="bold", pad_edge=False)
        self.caption_justify = "left"
        self._optional = tuple(optional)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        out: list[str] = []
        shown: Table = self
        left = [h for h in self._optional if any(c.header == h for c in self.columns)]
        while console.is_terminal and left and _width(shown, console) > options.max_width:
            out.append(left.pop(0))
            shown = self._without(out)
        if shown is self:
            yield from super().__rich_console__(console, options)
        else:
            yield shown

    def _without(self, out: Sequence[str]) -> Table:
        left_out = f"not shown, for want of room: {', '.join(out)}"
        table = FittedTable(str(self.title))
        table.caption = f"{self.caption}; {left_out}" if self.caption else left_out
        kept = [c for c in self.columns if c.header not in out]
        for c in kept:
            table.add_column(c.header, justify=c.justify, overflow=c.overflow, no_wrap=c.no_wrap)
        for cells in zip(*(c.cells for c in kept), strict=True):
            table.add_row(*cells)
        return table


def _width(table: Table, console: Console) -> int:
    """How wide a table would like to be."""
    return console.measure(table, options=console.options.update(width=_UNLIMITED)).maximum
