"""Compiles one model in a process of its own and prints what that took, as JSON: `python _measure.py MODEL [NAME=N ...]`."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def measure(path: Path, dims: dict[str, int] | None = None) -> dict[str, Any]:
    """User seconds, wall seconds and peak resident MiB of a fresh process that reads, compiles and writes the model."""
    words = [f"{name}={length}" for name, length in (dims or {}).items()]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(path), *words],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"compiling {path} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _peak_kib() -> int:
    """This process's own peak. `ru_maxrss` would count what the parent had when it forked."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _main() -> None:
    start = time.perf_counter()
    from qfold.backend.files import write_directory
    from qfold.frontend.onnx_frontend import parse_dims
    from qfold.tools.driver import Options, compile_model, project_files

    compilation = compile_model(Path(sys.argv[1]), Options(dims=parse_dims(sys.argv[2:])))
    with tempfile.TemporaryDirectory() as folder:
        write_directory(Path(folder) / "out", project_files(compilation))
    wall = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    totals = compilation.report["totals"]
    print(
        json.dumps(
            {
                "user_seconds": usage.ru_utime,
                "wall_seconds": wall,
                "peak_mib": _peak_kib() / 1024,
                "onnx_nodes": totals["onnx_nodes"],
                "kernel_calls": totals["dispatches"],
                "weight_bytes": totals["weight_bytes"],
                "fused": sum(totals["fused"].values()),
            }
        )
    )


if __name__ == "__main__":
    _main()
