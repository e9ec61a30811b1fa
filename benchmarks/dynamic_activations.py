"""What quantising activations at run time brings and costs: weight-only networks with and without `--dynamic-activations`.

Times on this machine (medians, builds in turns, round after round), cycles or instructions of core 0 on a cluster where a
simulator is installed, and the error against the exact network in float64 on random inputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import onnx
from _networks import (
    convolution_network,
    matmul_network,
    minilm,
    output_directory,
    residual_network,
)
from onnx import ModelProto
from rich.console import Console
from rich.table import Table

from qfold.backend.run import build_module
from qfold.frontend import load_model
from qfold.interpreters import run
from qfold.tools.approximation import Cost, costs
from qfold.tools.arrays import random_inputs
from qfold.tools.driver import Options, compile_loaded, import_tensor_module

ROUNDS, RUNS = 7, 7
"""Of one build in a round, the first run is not counted. A simulator takes three runs once: it repeats itself."""


def compare(name: str, model: ModelProto, dims: dict[str, int], target: str) -> dict[str, Any]:
    """Times of both builds of one network, and the costs of the approximating one."""
    simulated = target != "host"
    loaded = load_model(model.SerializeToString())
    builds = {
        "exact": Options(dims=dims, target=target),
        "dynamic": Options(dims=dims, target=target, dynamic_activations=True),
    }
    module = import_tensor_module(loaded, builds["exact"])
    inputs = random_inputs(module)
    times: dict[str, list[float]] = {kind: [] for kind in builds}
    found: tuple[Cost, ...] = ()
    with ExitStack() as stack:
        executables: dict[str, Any] = {}
        for kind, options in builds.items():
            compilation = compile_loaded(loaded, options)
            executables[kind] = stack.enter_context(closing(build_module(compilation.kernels)))
            if options.dynamic_activations:
                exact = run(module, list(inputs.values()), domain="f64")
                found = costs(compilation.outputs, exact, executables[kind].run(inputs))
        for _ in range(1 if simulated else ROUNDS):
            for kind, executable in executables.items():
                times[kind] += executable.timings(inputs, 3 if simulated else RUNS)[1:]
    worst = min(found, key=lambda c: c.snr)
    return {
        "network": name,
        "target": target,
        **{f"{kind}_median": statistics.median(values) for kind, values in times.items()},
        "error_of_range": worst.relative,
        "snr": worst.snr if np.isfinite(worst.snr) else None,
    }


def dense(rows: int, k: int, n: int) -> ModelProto:
    """One matmul with a weight of int8, with a zero point for each column, and a bias."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-128, 128, (k, n), np.int8)
    scale = rng.uniform(0.001, 0.002, n).astype(np.float32)
    zero = rng.integers(-9, 10, n).astype(np.int8)
    return matmul_network(rows, weight, scale, zero, rng.standard_normal(n).astype(np.float32))


def networks(target: str) -> list[tuple[str, ModelProto, dict[str, int]]]:
    """Those that make sense on a target."""
    if target != "host":
        shapes = ((1, 512, 128), (16, 256, 64), (64, 128, 128))
        return [(f"matmul {m} x {k} x {n}", dense(m, k, n), {}) for m, k, n in shapes]
    made: list[tuple[str, ModelProto, dict[str, int]]] = [
        (f"residual 4 x {width}, {rows} rows", residual_network(4, width, rows), {})
        for width, rows in ((256, 16), (1024, 1), (1024, 16))
    ]
    made += [
        (f"convolutions 2 x {channels}, {size}^2", convolution_network(2, channels, size), {})
        for channels, size in ((32, 32), (128, 8))
    ]
    source = minilm()
    if source is not None:
        dims = {"batch": 1, "sequence": 16}
        made.append(("MiniLM int8, sequence 16", onnx.load(source), dims))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=["host"], help="e.g. host spike gvsoc")
    targets: list[str] = parser.parse_args().targets
    console = Console(width=110)
    results: list[dict[str, Any]] = []
    for target in targets:
        unit = "ms" if target == "host" else "counts"
        table = Table(title=f"Activations quantised at run time, {target}", title_justify="left")
        for column in (
            "network",
            f"exact, {unit}",
            f"dynamic, {unit}",
            "faster",
            "error",
            "SNR, dB",
        ):
            table.add_column(column, justify="left" if column == "network" else "right")
        for name, model, dims in networks(target):
            row = compare(name, model, dims, target)
            results.append(row)
            shown = [
                f"{row[kind] * 1000:.3f}" if target == "host" else f"{row[kind]:,.0f}"
                for kind in ("exact_median", "dynamic_median")
            ]
            table.add_row(
                name,
                *shown,
                f"{row['exact_median'] / row['dynamic_median']:.2f} x",
                f"{row['error_of_range']:.2%}",
                f"{row['snr']:.1f}",
            )
        console.print(table)
    console.print("error: the largest, by the range of the exact output")
    out = output_directory() / "dynamic_activations.json"
    out.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    main()
