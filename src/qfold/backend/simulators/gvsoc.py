"""GVSoC, when it is installed: the target `pulp-open`, counted in cycles."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from qfold.backend.simulators.base import (
    DEFAULT_TIMEOUT,
    SimulationResult,
    Simulator,
    SimulatorError,
    SimulatorMissing,
    run_command,
    with_symbols,
)
from qfold.targets import Target

VARIABLE = "QFOLD_GVSOC"
"""The environment variable that may name the simulator."""
CONFLICTS_VARIABLE = "QFOLD_GVSOC_CONFLICTS"
"""The same for one whose L1 has bank conflicts; otherwise `gvsoc-conflicts`."""

_CORES = 8
_L1_BYTES = 64 * 1024
_TRAP = 71
"""QF_EXIT_TRAP of the ports."""
_EXIT = re.compile(r"^Input error: Platform returned an error \(exitcode: (\d+)\)$", re.MULTILINE)
_OUTSIDE = (
    (
        re.compile(r"/pe(\d+)/lsu\b.*Invalid access \(pc: (0x[0-9a-f]+), offset: (0x[0-9a-f]+)"),
        "trap: core {}: access outside of every memory, pc {}, address {}",
    ),
    (
        re.compile(r"/pe(\d+)/prefetcher\b.*Invalid fetch request \(addr: (0x[0-9a-f]+)"),
        "trap: core {}: instruction outside of every memory, pc {}",
    ),
)
"""What the simulator says where there is no memory, instead of a trap; and what a trap would say."""


class Gvsoc(Simulator):
    """The `gvsoc` that $QFOLD_GVSOC names, or that is on PATH; `conflicts`: one whose L1 banks serve one access per cycle each.

    GVSoC's own model of `pulp-open` has banks without conflicts. A build that models them is found by $QFOLD_GVSOC_CONFLICTS, or
    as `gvsoc-conflicts` on PATH.
    """

    name = "gvsoc"

    def __init__(self, *, conflicts: bool = False):
        self._conflicts = conflicts

    def find(self) -> str:
        variable, default = (
            (CONFLICTS_VARIABLE, "gvsoc-conflicts") if self._conflicts else (VARIABLE, "gvsoc")
        )
        named = os.environ.get(variable)
        path = shutil.which(named or default)
        if path is None and named:
            raise SimulatorMissing(f"${variable}, {named!r}, is not an executable")
        if path is None:
            raise SimulatorMissing(
                f"{default} is not on PATH and ${variable} does not name it: GVSoC is built from source, with its target "
                "pulp-open, as its own README tells"
            )
        return path

    def run(
        self,
        binary: Path,
        arguments: Sequence[str],
        target: Target,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        profile: bool = False,
    ) -> SimulationResult:
        """As `Simulator.run`. Files that `arguments` name are absolute paths: the simulator runs in a directory of its own."""
        if profile:
            raise SimulatorError("gvsoc counts no calls and no loads; spike does")
        _check(target)
        with tempfile.TemporaryDirectory(prefix="qfold-gvsoc-") as scratch:
            work = Path(scratch)
            words = [binary.name, *arguments]
            (work / "arguments").write_bytes(b"".join(os.fsencode(w) + b"\0" for w in words))
            command = [
                self.find(),
                "--target=pulp-open",
                f"--binary={binary.absolute()}",
                f"--work-dir={work}",
                "run",
            ]
            # Some wrong programs never end, nor does the simulator by itself.
            result = run_command(
                command, timeout, name=self.name, directory=work, processor_seconds=timeout
            )
            stdout, stderr = (_read(work / name) for name in ("stdout", "stderr"))
        return _result(result, stdout, stderr, binary)


def _check(target: Target) -> None:
    """What a wrong program would not say itself: behind its L1 the simulator hangs."""
    if target.scratchpad is not None:
        size = target.level(target.scratchpad).size or 0
        if size > _L1_BYTES:
            raise SimulatorError(
                f"pulp-open has {_L1_BYTES:,} bytes of L1, target {target.name} {size:,}"
            )
    if target.cores > _CORES:
        raise SimulatorError(f"pulp-open has {_CORES} cores, target {target.name} {target.cores}")


def _result(result: SimulationResult, stdout: str, stderr: str, binary: Path) -> SimulationResult:
    """What the program did and said; of the simulator's own messages those that a run of ours should not have."""
    code = result.exit_code
    ended = _EXIT.search(result.stderr)
    if ended is not None:
        code = int(ended[1])
    messages = _EXIT.sub("", result.stderr).strip()
    said = result.stdout.strip()
    for pattern, trap in _OUTSIDE:
        found = pattern.search(result.stdout)
        if found is not None:
            code, said = _TRAP, trap.format(*found.groups())
    text = "".join(f"{part.rstrip()}\n" for part in (stderr, said, messages) if part.strip())
    return SimulationResult(code, stdout, with_symbols(text, binary))


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""
