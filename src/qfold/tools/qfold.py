"""`qfold`: import, compile, run, verify and report. Exit codes: 0 good, 1 a check failed, 2 the input cannot be handled."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from qfold import __version__
from qfold.tools import commands
from qfold.tools.errors import (
    EXIT_BAD_INPUT,
    internal_error_sentence,
    user_sentence,
    wants_traceback,
)
from qfold.tools.target_spec import target_help, target_spec
from qfold.tools.terminal import Terminal


def _add_common(parser: argparse.ArgumentParser) -> None:
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing but errors and results"
    )
    noise.add_argument("-v", "--verbose", action="store_true", help="print more, and tracebacks")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=N",
        help="fix a dynamic dimension; may be given several times",
    )
    parser.add_argument(
        "--freeze-initializers",
        action="store_true",
        help="treat initializers that are also graph inputs as constants",
    )
    parser.add_argument(
        "--input-type",
        action="append",
        default=[],
        metavar="NAME=i8|ui8",
        help="declare which bytes an input of floats or wide integers holds, and take those; may be given several times",
    )
    parser.add_argument(
        "--io",
        choices=("float", "quantized"),
        default="float",
        help="quantized: hand over the integers of inputs that the model quantises and of outputs that it dequantises "
        "(default: float)",
    )
    parser.add_argument(
        "--input-layout",
        action="append",
        default=[],
        metavar="[NAME=]nhwc|nchw",
        help="take inputs, or the one named, with channels last (NHWC, of three dimensions NLC); may be given several times",
    )


def _add_compile_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        default="host",
        type=target_spec,
        metavar="NAME[:OPTION=VALUE,...]",
        help=f"what to compile for (default: host), e.g. spike:isa=f,cores=4; {target_help()}",
    )
    parser.add_argument(
        "--no-fuse",
        action="store_true",
        help="dequantise weights at run time, in a pass of their own",
    )
    parser.add_argument(
        "--no-hoist", action="store_true", help="subtract zero points inside of the loops"
    )
    parser.add_argument(
        "--dynamic-activations",
        action="store_true",
        help="quantise what quantised weights multiply at run time, each row by its own range, and multiply integers: "
        "an approximation (`verify --compare-exact` measures it)",
    )


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "qfold",
        description="Compiles weight-quantised ONNX networks to C without widening the weights.",
        epilog="Exit codes: 0 good, 1 a check failed, 2 the input cannot be handled.",
    )
    parser.add_argument("--version", action="version", version=f"qfold {__version__}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    verb = verbs.add_parser("import", help="print a model as MLIR, at the tensor level")
    verb.add_argument("model", type=Path)
    verb.add_argument(
        "-o", "--output", type=Path, help="the file to write (default: standard output)"
    )
    verb.add_argument(
        "--weights-out",
        type=Path,
        metavar="FILE",
        help="a file for the bytes of large weights, which the text refers to",
    )
    _add_model_options(verb)
    _add_common(verb)
    verb.set_defaults(run=commands.import_model)

    verb = verbs.add_parser("compile", help="write C, weights, a Makefile and report.json")
    verb.add_argument("model", type=Path)
    verb.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    _add_model_options(verb)
    _add_compile_options(verb)
    _add_common(verb)
    verb.set_defaults(run=commands.compile_model)

    verb = verbs.add_parser("run", help="build a model, or what `compile` wrote, and run it")
    verb.add_argument("model", type=Path, metavar="MODEL|DIR")
    verb.add_argument("--inputs", type=Path, metavar="NPZ", help="default: seeded random inputs")
    verb.add_argument("-o", "--output", type=Path, metavar="NPZ", help="where the outputs go")
    verb.add_argument("--seed", type=int, default=0, help="of random inputs (default: 0)")
    _add_model_options(verb)
    _add_compile_options(verb)
    _add_common(verb)
    verb.set_defaults(run=commands.run_model)

    verb = verbs.add_parser(
        "verify", help="build, run, and compare every kernel and every output with its error bound"
    )
    verb.add_argument("model", type=Path)
    verb.add_argument("--inputs", type=Path, metavar="NPZ", help="default: seeded random inputs")
    verb.add_argument("--expect", type=Path, metavar="NPZ", help="outputs to compare with as well")
    verb.add_argument("--seed", type=int, default=0, help="of random inputs (default: 0)")
    verb.add_argument("--json", action="store_true", help="print the result as JSON")
    verb.add_argument(
        "--compare-exact",
        action="store_true",
        help="with --dynamic-activations: also measure on these inputs what the approximation costs",
    )
    _add_model_options(verb)
    _add_compile_options(verb)
    _add_common(verb)
    verb.set_defaults(run=commands.verify_model)

    verb = verbs.add_parser("report", help="show the report of a compiled network")
    verb.add_argument("directory", type=Path, metavar="DIR")
    verb.add_argument("--json", action="store_true", help="print report.json as it is")
    _add_common(verb)
    verb.set_defaults(run=commands.show_report)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code. Never raises for what a user can do wrong, apart from argparse's own exit."""
    args = make_parser().parse_args(argv)
    terminal = Terminal(quiet=args.quiet, verbose=args.verbose)
    try:
        code: int = args.run(args, terminal)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        terminal.abandon_output()
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + 2
    except Exception as error:
        sentence = user_sentence(error)
        if wants_traceback() or (args.verbose and sentence is None):
            traceback.print_exc()
        print(f"error: {sentence or internal_error_sentence(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
