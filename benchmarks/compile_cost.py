"""What compiling costs: user seconds and peak memory against the number of nodes and the bytes of weights.

Each model is compiled in a fresh process, from reading the ONNX file to the written C. Two sweeps over synthetic networks fit a
line each: more nodes at small weights, more bytes at few nodes. Then the real networks that are found on this machine.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _measure import measure
from _networks import golden, minilm, output_directory, residual_network
from rich.console import Console
from rich.table import Table

LAYERS = (4, 16, 64, 128)
WIDTHS = (64, 512, 1024, 2048)
_REPEATS = 2


def best(path: Path, dims: dict[str, int] | None = None) -> dict[str, Any]:
    """The least of a few runs: what disturbs a measurement only ever adds to it."""
    return min((measure(path, dims) for _ in range(_REPEATS)), key=lambda r: r["user_seconds"])


def fit(rows: list[dict[str, Any]], x: str, y: str) -> dict[str, float]:
    """Least squares line of `y` over `x`, and how much of the variance it explains."""
    xs, ys = np.array([r[x] for r in rows], float), np.array([r[y] for r in rows], float)
    slope, offset = np.polyfit(xs, ys, 1)
    rest = ys - (slope * xs + offset)
    return {
        "slope": float(slope),
        "offset": float(offset),
        "r_squared": float(1 - (rest @ rest) / ((ys - ys.mean()) @ (ys - ys.mean()))),
    }


def main() -> None:
    console = Console(width=110)
    rows: dict[str, list[dict[str, Any]]] = {"nodes": [], "bytes": [], "real": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for kind, shapes in (
            ("nodes", [(n, 32) for n in LAYERS]),
            ("bytes", [(4, w) for w in WIDTHS]),
        ):
            for layers, width in shapes:
                path.write_bytes(residual_network(layers, width).SerializeToString())
                rows[kind].append({"model": f"{layers} layers of {width}", **best(path)})
    for name in ("CCT_1_16_16_8", "CCT_2_32_32_128", "TinyViT_Demo"):
        source = golden(name)
        if source is not None:
            rows["real"].append({"model": name, **best(source)})
    source = minilm()
    if source is not None:
        rows["real"].append({"model": "MiniLM int8", **best(source, {"batch": 1, "sequence": 16})})

    table = Table(title="Cost of compiling", title_justify="left")
    for column in (
        "model",
        "nodes",
        "kernel calls",
        "fused",
        "weights MiB",
        "user s",
        "wall s",
        "peak MiB",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    for entries in rows.values():
        for r in entries:
            table.add_row(
                r["model"],
                str(r["onnx_nodes"]),
                str(r["kernel_calls"]),
                str(r["fused"]),
                f"{r['weight_bytes'] / 2**20:.2f}",
                f"{r['user_seconds']:.2f}",
                f"{r['wall_seconds']:.2f}",
                f"{r['peak_mib']:.0f}",
                end_section=r is entries[-1],
            )
    console.print(table)
    fits = {
        "seconds over nodes": fit(rows["nodes"], "onnx_nodes", "user_seconds"),
        "seconds over bytes": fit(rows["bytes"], "weight_bytes", "user_seconds"),
        "MiB over nodes": fit(rows["nodes"], "onnx_nodes", "peak_mib"),
        "MiB over bytes": fit(rows["bytes"], "weight_bytes", "peak_mib"),
    }
    s, b = fits["seconds over nodes"], fits["seconds over bytes"]
    m = fits["MiB over bytes"]
    console.print(
        f"user s = {s['offset']:.2f} + {1000 * s['slope']:.2f} ms x nodes (R2 {s['r_squared']:.3f}); "
        f"+ {2**20 * 1000 * b['slope']:.1f} ms a MiB of weights (R2 {b['r_squared']:.3f})"
    )
    console.print(
        f"peak MiB = {m['offset']:.0f} + {2**20 * m['slope']:.1f} x MiB of weights (R2 {m['r_squared']:.3f})"
    )
    out = output_directory() / "compile_cost.json"
    out.write_text(json.dumps({"rows": rows, "fits": fits}, indent=1) + "\n")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    main()
