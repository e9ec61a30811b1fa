"""All files of a network, from a level-3 module."""

from __future__ import annotations

from importlib import resources

from xdsl.dialects.builtin import ModuleOp

from qfold.backend.c.header import print_buffers_header, print_network_header
from qfold.backend.c.kernels import print_header, print_source
from qfold.backend.c.network import print_network, print_trace_header
from qfold.backend.c.program import Program
from qfold.backend.c.project import print_main, print_makefile
from qfold.backend.c.weights import Blob, print_assembly
from qfold.targets import target_named

RUNTIME = ("qfold_int.h", "qfold_math.h")
"""Files of `qfold.runtime` that generated code includes."""


def emit_texts(module: ModuleOp) -> dict[str, str]:
    """What the printer writes itself, as text, in an order for reading. Errors as `emit`."""
    program = Program.of(module)
    blob = Blob.of(program)
    return {
        "network.h": print_network_header(program, blob),
        "network.c": print_network(program),
        "network_buffers.h": print_buffers_header(program, blob),
        "network_trace.h": print_trace_header(program),
        "kernels.h": print_header(program),
        "kernels.c": print_source(program),
        "weights.S": print_assembly(program, blob),
        "main.c": print_main(program),
        "Makefile": print_makefile(target_named(program.target).toolchain.flags),
    }


def emit(module: ModuleOp) -> dict[str, bytes]:
    """Every file of the C project for a level-3 module: name -> contents, the same bytes for the same module.

    `NotLevel3` when the module is not at level 3, `UnsupportedOp` for an op in a body that has no C form, `TypeError` for an
    element type that has none, `ValueError` for an unknown target.
    """
    files = {name: text.encode() for name, text in emit_texts(module).items()}
    files["weights.bin"] = Blob.of(Program.of(module)).data
    runtime = resources.files("qfold.runtime")
    for name in RUNTIME:
        files[name] = (runtime / name).read_bytes()
    return files
