"""What the tools raise, and how any error reaches the user: one sentence, and an exit code."""

from __future__ import annotations

import errno
import os

from xdsl.utils.exceptions import DiagnosticException, ParseError

from qfold.backend.build import BuildError
from qfold.backend.c.program import NotLevel3
from qfold.backend.c.scalar import UnsupportedOp
from qfold.backend.run import RunError
from qfold.backend.simulators import SimulatorError
from qfold.runtime.counts import CountsError

EXIT_GOOD, EXIT_CHECK_FAILED, EXIT_BAD_INPUT = 0, 1, 2

TRACEBACK_VARIABLE = "QFOLD_TRACEBACK"
"""An environment variable: when it is set and not empty, an internal error shows its traceback."""


class ToolError(Exception):
    """What was asked for cannot be done. The text is a complete sentence for the user; the exit code is 2."""


def os_error_sentence(error: OSError) -> str:
    """`error` in words: what could not be done to which file, and why."""
    name = error.filename2 or error.filename
    where = f"{os.fsdecode(name) if isinstance(name, bytes) else name}: " if name else ""
    if error.errno == errno.ENOSPC:
        return f"{where}the disk is full"
    return f"{where}{(error.strerror or str(error)).lower()}"


_EXPECTED = (
    ToolError,
    DiagnosticException,
    ParseError,
    BuildError,
    RunError,
    SimulatorError,
    CountsError,
    NotLevel3,
    UnsupportedOp,
)


def user_sentence(error: BaseException) -> str | None:
    """What to tell the user about an error that their input can cause; None for an internal error."""
    if isinstance(error, OSError):
        return os_error_sentence(error)
    if isinstance(error, _EXPECTED):
        notes = getattr(error, "__notes__", [])
        return "\n".join([str(error).strip(), *notes])
    if isinstance(error, MemoryError):
        return "there is not enough memory for this model"
    return None


def wants_traceback() -> bool:
    """Whether the environment asks for tracebacks."""
    return bool(os.environ.get(TRACEBACK_VARIABLE))


def internal_error_sentence(error: BaseException) -> str:
    """For an error that no input should be able to cause."""
    return (
        f"internal error: {type(error).__name__}: {error}\n"
        f"This is a mistake in qfold; please report it with the model. Set {TRACEBACK_VARIABLE}=1 to see where it happened."
    )
