"""What each verb of `qfold` does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text
from xdsl.printer import Printer

from qfold.backend.files import write_directory
from qfold.backend.run import build, build_module
from qfold.frontend import LoadedModel, load_model
from qfold.frontend.onnx_frontend import parse_dims, parse_input_types
from qfold.targets import target_named
from qfold.tools import driver
from qfold.tools.arrays import Array, load_npz, match_arrays, random_inputs, save_npz
from qfold.tools.driver import Options
from qfold.tools.errors import EXIT_CHECK_FAILED, EXIT_GOOD, ToolError
from qfold.tools.interface import interface_notes, module_notes, parse_layouts
from qfold.tools.project import interface_module, report_specs
from qfold.tools.report import Report
from qfold.tools.report_schema import problems_of
from qfold.tools.report_summary import summary_lines
from qfold.tools.report_view import print_report
from qfold.tools.simulation import require_simulator
from qfold.tools.terminal import Terminal
from qfold.tools.verify import verify
from qfold.tools.verify_view import print_verification, verification_json
from qfold.tools.weight_text import writing_weights
from qfold.tools.whole_file import write_whole


def options_of(args: argparse.Namespace) -> Options:
    """The options that a command line asks for."""
    if getattr(args, "no_fuse", False) and getattr(args, "dynamic_activations", False):
        raise ToolError("--dynamic-activations works on fused weights: not with --no-fuse")
    return Options(
        dims=parse_dims(args.dim),
        fuse=not getattr(args, "no_fuse", False),
        hoist=not getattr(args, "no_hoist", False),
        dynamic_activations=getattr(args, "dynamic_activations", False),
        target=getattr(args, "target", "host"),
        freeze_initializers=args.freeze_initializers,
        input_types=parse_input_types(args.input_type),
        quantized_io=args.io == "quantized",
        input_layouts=parse_layouts(args.input_layout),
    )


def _load(path: Path, terminal: Terminal) -> LoadedModel:
    if path.is_dir():
        raise ToolError(f"{path} is a directory; expected an ONNX model")
    if not path.exists():
        raise ToolError(f"{path} does not exist")
    with terminal.step(f"Reading {path.name}"):
        return load_model(path)


def _compile(model: LoadedModel, options: Options, terminal: Terminal) -> driver.Compilation:
    def on_pass(name: str, seconds: float) -> None:
        if terminal.verbose:
            terminal.remark(f"  {name}: {seconds:.3f} s")

    with terminal.step("Compiling"):
        compilation = driver.compile_loaded(model, options, on_pass)
    _remark(interface_notes(compilation.inputs, compilation.outputs), terminal)
    return compilation


def _remark(notes: Iterable[str], terminal: Terminal) -> None:
    for note in notes:
        terminal.remark(f"note: {note}")


def import_model(args: argparse.Namespace, terminal: Terminal) -> int:
    """`qfold import`."""
    model = _load(args.model, terminal)
    with terminal.step("Importing"):
        module = driver.import_tensor_module(model, options_of(args))
    _remark(module_notes(module), terminal)
    text = StringIO()
    with writing_weights(args.output, args.weights_out, args.model) as files:
        printer = Printer(stream=text)
        printer.print_op(module)
        text.write("\n")
    if args.output is None:
        sys.stdout.write(text.getvalue())
    else:
        write_whole(args.output, text.getvalue())
    if files.elided:
        terminal.remark(
            f"note: the bytes of {len(files.elided)} large weight(s) are not in the text, which cannot be compiled: "
            "--weights-out FILE keeps them, as does writing it beside the model"
        )
    return EXIT_GOOD


def compile_model(args: argparse.Namespace, terminal: Terminal) -> int:
    """`qfold compile`."""
    model = _load(args.model, terminal)
    compilation = _compile(model, options_of(args), terminal)
    with terminal.step("Writing C"):
        write_directory(args.output, driver.project_files(compilation))
    if not terminal.quiet:
        for line in summary_lines(compilation.report):
            terminal.line(line)
        how = f"make -C {args.output} run"
        if target_named(compilation.options.target).is_cluster:
            how = f"qfold run {args.output} --inputs NPZ"
        terminal.line(f"wrote {args.output}: {how}")
    return EXIT_GOOD


def _read_report(directory: Path) -> Report:
    path = directory / driver.REPORT_FILE
    if not directory.is_dir():
        raise ToolError(f"{directory} is not a directory")
    if not path.is_file():
        raise ToolError(f"{directory} holds no {path.name}: it is not an output of `qfold compile`")
    try:
        report: Report = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ToolError(f"{path} is not JSON: {error}") from error
    problems = problems_of(report)
    if problems:
        raise ToolError(f"{path} is not a report of this version of qfold: {problems[0]}")
    try:
        target_named(report["target"])
    except ValueError as error:
        raise ToolError(f"{path} names a target that there is not: {error}") from None
    return report


def show_report(args: argparse.Namespace, terminal: Terminal) -> int:
    """`qfold report`."""
    report = _read_report(args.directory)
    if args.json:
        sys.stdout.write(driver.report_text(report))
    else:
        print_report(report, terminal.out)
    return EXIT_GOOD


def run_model(args: argparse.Namespace, terminal: Terminal) -> int:
    """`qfold run`."""
    if args.model.is_dir():
        report = _read_report(args.model)
        require_simulator(target_named(report["target"]))
        _refuse_compile_options(args)
        interface = interface_module(report)
        if args.inputs is None:
            raise ToolError(
                f"--inputs is needed to run {args.model}: only the model tells which inputs make sense"
            )
        arrays = match_arrays(
            load_npz(args.inputs), report_specs(report, "inputs"), str(args.inputs)
        )
        with terminal.step("Building"):
            executable = build(args.model, interface)
    else:
        require_simulator(target_named(args.target))
        model = _load(args.model, terminal)
        options = options_of(args)
        compilation = _compile(model, options, terminal)
        arrays = inputs_for(args, compilation, model, options)
        with terminal.step("Building"):
            executable = build_module(compilation.kernels)
    with closing(executable), terminal.step("Running"):
        results = executable.run(arrays)
    if args.output is not None:
        save_npz(args.output, results)
    if args.output is None or terminal.verbose:
        _print_arrays(results, terminal)
    return EXIT_GOOD


def _refuse_compile_options(args: argparse.Namespace) -> None:
    """A compiled network is what it was compiled as."""
    given = {
        "--dim": bool(args.dim),
        "--freeze-initializers": args.freeze_initializers,
        "--input-type": bool(args.input_type),
        "--io": args.io != "float",
        "--input-layout": bool(args.input_layout),
        "--no-fuse": args.no_fuse,
        "--no-hoist": args.no_hoist,
        "--dynamic-activations": args.dynamic_activations,
    }
    names = [name for name, is_given in given.items() if is_given]
    if names:
        raise ToolError(
            f"{', '.join(names)} cannot change {args.model}, which is compiled already: "
            "give it to `qfold compile`"
        )


def inputs_for(
    args: argparse.Namespace,
    compilation: driver.Compilation,
    model: LoadedModel,
    options: Options,
) -> dict[str, Array]:
    """The inputs that the command line names, or random ones."""
    if args.inputs is not None:
        return match_arrays(
            load_npz(args.inputs),
            compilation.inputs,
            str(args.inputs),
            defaults=compilation.defaults,
        )
    return random_inputs(driver.import_tensor_module(model, options), args.seed) | dict(
        compilation.defaults
    )


def _print_arrays(arrays: dict[str, Array], terminal: Terminal) -> None:
    for name, array in arrays.items():
        shown: Any = np.array2string(
            array, threshold=24, edgeitems=3, precision=6, suppress_small=False
        )
        terminal.out.print(Text(f"{name}: {array.dtype} {list(array.shape)}\n{shown}"))


def verify_model(args: argparse.Namespace, terminal: Terminal) -> int:
    """`qfold verify`."""
    require_simulator(target_named(args.target))
    model = _load(args.model, terminal)
    options = options_of(args)
    if args.compare_exact and not options.dynamic_activations:
        raise ToolError("--compare-exact measures what --dynamic-activations costs: give both")
    compilation = _compile(model, options, terminal)
    arrays = inputs_for(args, compilation, model, options)
    expected = None
    if args.expect is not None:
        expected = match_arrays(
            load_npz(args.expect), compilation.outputs, str(args.expect), by_position=True
        )
    result = verify(
        compilation, model, arrays, expected, terminal, compare_exact=args.compare_exact
    )
    if args.json:
        sys.stdout.write(json.dumps(verification_json(result), indent=1) + "\n")
    else:
        print_verification(result, terminal)
    return EXIT_GOOD if result.ok else EXIT_CHECK_FAILED
