"""Run time on this machine: weights fused (int8 in the kernels), unfused (dequantised into memory at each run), and f32 ahead.

The three builds of each network run in turns, round after round, so that what else the machine does hits all of them alike.
Ratios are of the medians, and of the fastest runs.
"""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import onnx
from _networks import (
    convolution_network,
    minilm,
    output_directory,
    residual_network,
    with_float_weights,
)
from onnx import ModelProto
from rich.console import Console
from rich.table import Table

from qfold.backend.run import build_module
from qfold.frontend import load_model
from qfold.tools.arrays import random_inputs
from qfold.tools.driver import Options, compile_loaded, import_tensor_module

ROUNDS = 7
RUNS = 5
"""Runs of one build in a round; the first one of each round is not counted."""


def compare(name: str, model: ModelProto, dims: dict[str, int]) -> dict[str, Any]:
    """Times the three builds of one network. Their outputs have to agree."""
    floats = with_float_weights(model)
    builds = {
        "fused": (model, Options(dims=dims)),
        "unfused": (model, Options(dims=dims, fuse=False)),
        "f32 weights": (floats, Options(dims=dims)),
    }
    with ExitStack() as stack:
        executables: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        inputs = None
        for kind, (source, options) in builds.items():
            loaded = load_model(source.SerializeToString())
            if inputs is None:
                inputs = random_inputs(import_tensor_module(loaded, options))
            compilation = compile_loaded(loaded, options)
            totals = compilation.report["totals"]
            sizes[kind] = totals["weight_bytes"] + totals["arena_bytes"]
            executables[kind] = stack.enter_context(closing(build_module(compilation.kernels)))
        assert inputs is not None
        results = {kind: e.run(inputs) for kind, e in executables.items()}
        for key, expected in results["f32 weights"].items():
            for kind in ("fused", "unfused"):
                if not np.allclose(results[kind][key], expected, rtol=1e-3, atol=1e-3):
                    raise SystemExit(f"{name}: output {key} of the {kind} build differs")
        times: dict[str, list[float]] = {kind: [] for kind in executables}
        for _ in range(ROUNDS):
            for kind, executable in executables.items():
                times[kind] += executable.timings(inputs, RUNS)[1:]
    return {
        "model": name,
        "builds": {
            kind: {
                "median_ms": 1000 * statistics.median(seconds),
                "min_ms": 1000 * min(seconds),
                "bytes": sizes[kind],
            }
            for kind, seconds in times.items()
        },
    }


def main() -> None:
    console = Console(width=110)
    networks: list[tuple[str, ModelProto, dict[str, int]]] = [
        (f"residual 4 x {width}, {rows} rows", residual_network(4, width, rows), {})
        for width, rows in ((256, 16), (1024, 1), (1024, 16))
    ]
    networks += [
        (
            f"convolutions 2 x {channels}, {size} x {size}",
            convolution_network(2, channels, size),
            {},
        )
        for channels, size in ((32, 32), (128, 8))
    ]
    source = minilm()
    if source is not None:
        for length in (1, 16):
            networks.append(
                (
                    f"MiniLM int8, sequence {length}",
                    onnx.load(source),
                    {"batch": 1, "sequence": length},
                )
            )
    table = Table(title="Run time on the host, one thread", title_justify="left")
    for column in ("network", "build", "median ms", "min ms", "memory MiB", "x f32", "x f32 (min)"):
        table.add_column(column, justify="left" if column in ("network", "build") else "right")
    results: list[dict[str, Any]] = []
    for name, model, dims in networks:
        result = compare(name, model, dims)
        results.append(result)
        base = result["builds"]["f32 weights"]
        for kind, row in result["builds"].items():
            table.add_row(
                name if kind == "fused" else "",
                kind,
                f"{row['median_ms']:.3f}",
                f"{row['min_ms']:.3f}",
                f"{row['bytes'] / 2**20:.2f}",
                f"{row['median_ms'] / base['median_ms']:.2f}",
                f"{row['min_ms'] / base['min_ms']:.2f}",
                end_section=kind == "f32 weights",
            )
    console.print(table)
    console.print(
        "memory: weights and arena; below 1 in the last columns: faster than with f32 weights"
    )
    out = output_directory() / "host_runtime.json"
    out.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    main()
