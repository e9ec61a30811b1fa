"""What the tools print: results on standard output, progress and remarks on standard error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


class Terminal:
    """Two rich consoles and the say of `--quiet` and `--verbose`."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False):
        self.quiet = quiet
        self.verbose = verbose
        self.out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        self.err = Console(stderr=True, highlight=False)
        if not self.out.is_terminal:
            # In a file or a pipe nothing is cut off to fit a screen.
            self.out.width = 200

    @contextmanager
    def step(self, what: str) -> Generator[None]:
        """A part of the work that takes a while: a spinner in a terminal; its time afterwards if verbose."""
        start = time.perf_counter()
        if self.quiet or not self.err.is_terminal:
            yield
        else:
            with self.err.status(what):
                yield
        if self.verbose:
            self.err.print(Text(f"{what}: {time.perf_counter() - start:.2f} s", style="dim"))

    def remark(self, text: str) -> None:
        """Something worth knowing that is not a result."""
        if not self.quiet:
            self.err.print(Text(text))

    def line(self, text: str, style: str = "") -> None:
        """One line of a result."""
        self.out.print(Text(text, style=style))

    @staticmethod
    def abandon_output() -> None:
        """Who read standard output is gone: nothing may be written to it any more, not even at exit."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
