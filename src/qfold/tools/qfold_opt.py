"""`qfold-opt`: xDSL's optimiser driver with qfold's dialects, passes, frontend and target, and flags for its main uses."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import IO, ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.arg_spec import parse_spec
from xdsl.utils.exceptions import ArgSpecParseError
from xdsl.utils.frontend import Frontend
from xdsl.xdsl_opt_main import xDSLOptMain

from qfold import __version__
from qfold.dialects.qmm import WeightFiles
from qfold.tools.errors import (
    EXIT_BAD_INPUT,
    EXIT_GOOD,
    ToolError,
    internal_error_sentence,
    user_sentence,
    wants_traceback,
)
from qfold.tools.weight_text import reading_weights, writing_weights
from qfold.tools.whole_file import write_whole
from qfold.universe import QFOLD_UNIVERSE

FUSE_PASSES = "qmm-raise-dequant,qmm-canonicalize,qmm-fuse-dequant,qmm-canonicalize"
"""What `--fuse-dequant` stands for."""

IO_PASSES = "qmm-quantized-io"
"""What `--quantized-io` stands for."""

LAYOUT_PASSES = "qmm-nhwc-inputs"
"""What `--nhwc-inputs` stands for."""

DYNAMIC_PASSES = "qmm-dynamic-activations,qmm-canonicalize"
"""What `--dynamic-activations` stands for."""

HOIST_PASSES = "qmm-hoist-zero-point,qmm-canonicalize"
"""What `--hoist-zero-point` stands for."""


class QfoldOptMain(xDSLOptMain):
    """`xdsl-opt` with qfold built in, whether or not it is installed as a plugin."""

    version_format: ClassVar[str] = f"qfold-opt {__version__}, xdsl {{xdsl_version}}"

    _read: WeightFiles | None = None
    """What parsing found in files beside the input."""
    _text: _KeptText | None = None
    """Receives the output until all of it is there."""

    # Registration: the plugins that are installed, and qfold where it is not among them.

    def register_all_dialects(self) -> None:
        super().register_all_dialects()
        known = set(self.ctx.registered_dialect_names)
        for name, factory in QFOLD_UNIVERSE.all_dialects.items():
            if name not in known:
                self.ctx.register_dialect(name, factory)

    def register_all_frontends(self) -> None:
        super().register_all_frontends()
        for name, factory in QFOLD_UNIVERSE.all_frontends.items():
            self.available_frontends.setdefault(name, factory)

    def register_all_passes(self) -> None:
        super().register_all_passes()
        for name, factory in QFOLD_UNIVERSE.all_passes.items():
            self.available_passes.setdefault(name, factory)

    def register_all_targets(self) -> None:
        super().register_all_targets()
        for name, factory in QFOLD_UNIVERSE.all_targets.items():
            self.available_targets.setdefault(name, factory)

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        super().register_all_arguments(arg_parser)
        group = arg_parser.add_argument_group("qfold")
        group.add_argument(
            "--quantized-io",
            action="store_true",
            help=f"first make inputs and outputs the integers that the model makes of them, and them of ({IO_PASSES})",
        )
        group.add_argument(
            "--nhwc-inputs",
            action="store_true",
            help=f"then take inputs of four (three) dimensions with channels last ({LAYOUT_PASSES})",
        )
        group.add_argument(
            "--fuse-dequant",
            action="store_true",
            help=f"then fuse dequantised weights into what reads them ({FUSE_PASSES})",
        )
        group.add_argument(
            "--dynamic-activations",
            action="store_true",
            help=f"then quantise the activations of what was fused at run time, an approximation ({DYNAMIC_PASSES})",
        )
        group.add_argument(
            "--hoist-zero-point",
            action="store_true",
            help=f"then move zero points out of the loops ({HOIST_PASSES}); all of these run before the passes of -p",
        )
        group.add_argument(
            "--dim",
            action="append",
            default=[],
            metavar="NAME=N",
            help="fix a dynamic dimension of an ONNX model; may be given several times",
        )
        group.add_argument(
            "--weights-out",
            metavar="FILE",
            help="write the bytes of large weights to FILE, to which the printed module refers (default: left out, "
            "unless the ONNX file beside the output holds them)",
        )

    def setup_pipeline(self) -> None:
        flags = [
            passes
            for given, passes in (
                (self.args.quantized_io, IO_PASSES),
                (self.args.nhwc_inputs, LAYOUT_PASSES),
                (self.args.fuse_dequant, FUSE_PASSES),
                (self.args.dynamic_activations, DYNAMIC_PASSES),
                (self.args.hoist_zero_point, HOIST_PASSES),
            )
            if given
        ]
        self.args.passes = ",".join([*flags, *([self.args.passes] if self.args.passes else [])])
        try:
            super().setup_pipeline()
        except (ValueError, TypeError, ArgSpecParseError) as error:
            raise ToolError(f"argument -p/--passes: {error}") from error

    # Input

    def frontend_name(self) -> str:
        """The frontend that reads the input: the one asked for, or the one of the file's extension."""
        if self.args.frontend:
            return parse_spec(self.args.frontend).name
        return Path(self.args.input_file or "stdin.mlir").suffix[1:]

    def get_input_stream(self) -> tuple[IO[bytes], str]:
        stream, extension = super().get_input_stream()
        # An explicit frontend reads files of any name.
        return stream, self.frontend_name() if self.args.frontend else extension

    def prepare_input(self) -> tuple[list[tuple[IO[bytes], int]], str]:
        if self.args.input_file and not Path(self.args.input_file).is_file():
            raise ToolError(f"{self.args.input_file} is not a file")
        if self.frontend_name() not in self.available_frontends:
            known = ", ".join(f".{name}" for name in self.available_frontends)
            raise ToolError(f"{self.args.input_file}: the extension is not one of {known} (see -f)")
        if self.frontend_name() != "mlir" and self.args.split_input_file:
            raise ToolError("--split-input-file takes MLIR text")
        if self.frontend_name() != "onnx" and self.args.dim:
            raise ToolError("--dim takes an ONNX model")
        return super().prepare_input()

    def parse_chunk(
        self, chunk: IO[bytes], file_extension: str, start_offset: int = 0
    ) -> ModuleOp | None:
        source = Path(self.args.input_file) if self.args.input_file else None
        if self.frontend_name() == "onnx" and self.args.dim:
            self.args.frontend = self._frontend_with_dims()
        with reading_weights(source) as files:
            module = super().parse_chunk(chunk, file_extension, start_offset)
        self._read = files
        return module

    def _frontend_with_dims(self) -> str:
        """The frontend's specification with what `--dim` adds to it."""
        spec = parse_spec(self.args.frontend or "onnx")
        factory = cast("Callable[[], type[Frontend]]", self.available_frontends[spec.name])
        frontend = factory().from_spec(spec)
        dims = (*getattr(frontend, "dim"), *self.args.dim)  # noqa: B009 - onnx's own option
        return str(dataclasses.replace(frontend, **{"dim": dims}).spec())

    # Output

    def prepare_output(self) -> IO[str]:
        if self.args.output_file is None:
            return sys.stdout
        self._text = _KeptText()
        return self._text

    def output_resulting_program(self, prog: ModuleOp) -> str:
        output, sidecar = self.args.output_file, self.args.weights_out
        model = self.args.input_file if self.frontend_name() == "onnx" else None
        with writing_weights(
            Path(output) if output else None,
            Path(sidecar) if sidecar else None,
            Path(model) if model else None,
            self._read,
        ):
            return super().output_resulting_program(prog)

    def run(self) -> None:
        """Runs everything; the output file is written whole or left as it was."""
        super().run()
        if self._text is not None:
            write_whole(Path(self.args.output_file), self._text.kept)


class _KeptText(StringIO):
    """Text that is still there after the stream was closed."""

    kept = ""

    def close(self) -> None:
        self.kept = self.getvalue()
        super().close()


def main(args: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0 good, 2 the input cannot be handled."""
    try:
        QfoldOptMain("qfold's modular optimizer driver", args).run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads our output has seen enough; nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        sentence = user_sentence(error)
        if wants_traceback():
            raise
        print(f"error: {sentence or internal_error_sentence(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return EXIT_GOOD


if __name__ == "__main__":
    sys.exit(main())
