"""Run time and bytes on this machine of the same networks in f32, with int8 weights, and in int8 x int8; onnxruntime beside them.

All have the same weights: those that onnxruntime's quantiser makes of a float network. The builds run in turns, round after
round, so that what else the machine does hits all of them alike; onnxruntime has one thread, as the generated C does.

    python benchmarks/quantized.py [NETWORK ...]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from _networks import output_directory, with_float_weights
from _quantized_networks import attention, cct, convnet, inputs_of, mlp, quantized, weights_only
from onnx import ModelProto
from rich.console import Console
from rich.table import Table

from qfold.backend.run import Executable, build_module
from qfold.tools.driver import Options, compile_model
from qfold.tools.elf import ObjectFile

ROUNDS = 7
RUNS = 5
"""Runs of one build in a round; the first one of each round is not counted."""

TOLERANCE = 0.25
"""Root mean square of the distance to the f32 build, relative to its values, beyond which a build is broken and not quantised."""

NETWORKS: dict[str, Callable[[], ModelProto]] = {
    "MLP 256-1024-1024-256, 1 row": lambda: mlp(1, (256, 1024, 1024, 256)),
    "MLP 256-1024-1024-256, 16 rows": lambda: mlp(16, (256, 1024, 1024, 256)),
    "convnet 48 x 48": lambda: convnet(48, 32),
    "attention, 64 tokens of 192": lambda: attention(64, 192, 3),
    "CCT-2, 32 x 32": cct,
}


@dataclass
class Build:
    """One way to run a network."""

    run: Callable[[int], list[float]]
    """Seconds of each of so many runs."""
    output: np.ndarray
    """As floats."""
    weight_bytes: int | None = None
    arena_bytes: int | None = None
    code_bytes: int | None = None


def compiled(model: ModelProto, options: Options, feed: np.ndarray, stack: ExitStack) -> Build:
    """A build of qfold."""
    compilation = compile_model(model.SerializeToString(), options)
    executable = stack.enter_context(closing(build_module(compilation.kernels)))
    (spec,), (result,) = compilation.inputs, compilation.outputs
    array = feed if spec.quant is None else spec.quant.quantize(feed)
    output = executable.run({"x": array})[result.name]
    totals = compilation.report["totals"]
    return Build(
        lambda runs: executable.timings({"x": array}, runs),
        output if result.quant is None else result.quant.dequantize(output),
        totals["weight_bytes"],
        totals["arena_bytes"],
        code_bytes(executable),
    )


def code_bytes(executable: Executable) -> int:
    """Machine code of what was generated: all functions in its objects."""
    total = 0
    for path in executable.built.objects:
        with ObjectFile(path) as file:
            total += sum(s.size for s in file.defined.values() if s.is_function)
    return total


def reference(model: ModelProto, feed: np.ndarray) -> Build:
    """onnxruntime with all its optimisations, and one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def run(runs: int) -> list[float]:
        seconds: list[float] = []
        for _ in range(runs):
            start = time.perf_counter()
            session.run(None, {"x": feed})
            seconds.append(time.perf_counter() - start)
        return seconds

    outputs: Any = session.run(None, {"x": feed})
    return Build(run, np.asarray(outputs[0]))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of a - b over that of b."""
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


def measure(name: str, network: ModelProto) -> dict[str, Any]:
    """Builds, checks and times one network in every way."""
    integers = quantized(network)
    weights = weights_only(integers)
    floats = with_float_weights(weights)
    feed = inputs_of(network)[0]["x"]
    with ExitStack() as stack:
        builds = {
            "f32": compiled(floats, Options(), feed, stack),
            "f32 x int8": compiled(weights, Options(), feed, stack),
            "int8 x int8": compiled(integers, Options(), feed, stack),
            "int8 x int8, int8 i/o": compiled(integers, Options(quantized_io=True), feed, stack),
            "f32 x int8, dynamic": compiled(
                weights, Options(dynamic_activations=True), feed, stack
            ),
            "onnxruntime f32": reference(floats, feed),
            "onnxruntime int8 x int8": reference(integers, feed),
        }
        times: dict[str, list[float]] = {kind: [] for kind in builds}
        for _ in range(ROUNDS):
            for kind, build in builds.items():
                times[kind] += build.run(RUNS)[1:]
    exact = builds["f32"].output
    rows: dict[str, Any] = {}
    for kind, build in builds.items():
        error = distance(build.output, exact)
        if not error < TOLERANCE:
            raise SystemExit(f"{name}: the {kind} build is {error:.2g} off, relative to the values")
        low, median, high = statistics.quantiles(times[kind], n=4)
        rows[kind] = {
            "median_ms": 1000 * median,
            "quartiles_ms": [1000 * low, 1000 * high],
            "min_ms": 1000 * min(times[kind]),
            "weight_bytes": build.weight_bytes,
            "arena_bytes": build.arena_bytes,
            "code_bytes": build.code_bytes,
            "distance_to_f32": error,
        }
    return {"network": name, "builds": rows}


def main() -> None:
    console = Console(width=150)
    wanted = sys.argv[1:]
    names = [n for n in NETWORKS if not wanted or any(w.lower() in n.lower() for w in wanted)]
    table = Table(title="int8 x int8 on the host, one thread", title_justify="left")
    columns = (
        "network",
        "build",
        "median ms",
        "quartiles",
        "min ms",
        "x f32",
        "weights KiB",
        "arena KiB",
        "code KiB",
        "off f32",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("network", "build") else "right")
    results: list[dict[str, Any]] = []
    for name in names:
        result = measure(name, NETWORKS[name]())
        results.append(result)
        rows = result["builds"]
        for index, (kind, row) in enumerate(rows.items()):
            sizes = [row[f"{what}_bytes"] for what in ("weight", "arena", "code")]
            table.add_row(
                "" if index else name,
                kind,
                f"{row['median_ms']:.3f}",
                "{:.3f}-{:.3f}".format(*row["quartiles_ms"]),
                f"{row['min_ms']:.3f}",
                f"{row['median_ms'] / rows['f32']['median_ms']:.2f}",
                *("" if s is None else f"{s / 1024:.1f}" for s in sizes),
                f"{row['distance_to_f32']:.1%}",
                end_section=index + 1 == len(rows),
            )
    console.print(table)
    console.print(
        "x f32: median over that of the f32 build, below 1 is faster; off f32: root mean square, relative"
    )
    out = output_directory() / "quantized.json"
    out.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    main()
