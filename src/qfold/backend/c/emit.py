"""All files of a network, from a level-3 module."""

from __future__ import annotations

from importlib import resources

from xdsl.dialects.builtin import ModuleOp

from qfold.backend.c.cluster_project import LINKER_SCRIPT, print_cluster_makefile, runtime_files
from qfold.backend.c.dispatches import print_dispatches, print_dispatches_header
from qfold.backend.c.generated import generate_kernels, print_assembly_kernels
from qfold.backend.c.header import print_buffers_header, print_network_header
from qfold.backend.c.kernels import print_header, print_source
from qfold.backend.c.network import print_network, print_trace_header
from qfold.backend.c.program import Program
from qfold.backend.c.project import print_main, print_makefile
from qfold.backend.c.reader import read_program
from qfold.backend.c.weights import Blob, print_assembly
from qfold.backend.linking import linker_script
from qfold.runtime import INT_HEADER, MATH_HEADER
from qfold.targets import target_named

RUNTIME = (INT_HEADER, MATH_HEADER)
"""Files of `qfold.runtime` that generated code includes."""


def emit_texts(module: ModuleOp) -> dict[str, str]:
    """What the printer writes itself, as text, in an order for reading. Errors as `emit`."""
    return _texts(read_program(module))


def _texts(program: Program) -> dict[str, str]:
    blob = Blob.of(program)
    target = target_named(program.target)
    texts = {
        "network.h": print_network_header(program, blob),
        "network.c": print_network(program),
        "network_buffers.h": print_buffers_header(program, blob),
        "network_trace.h": print_trace_header(program),
    }
    if program.staged:
        texts["dispatches.h"] = print_dispatches_header(program)
        texts["dispatches.c"] = print_dispatches(program)
    generated = generate_kernels(program)
    texts["kernels.h"] = print_header(program)
    texts["kernels.c"] = print_source(program, generated)
    if generated:
        texts["kernels.S"] = print_assembly_kernels(generated)
    texts["weights.S"] = print_assembly(program, blob)
    if not target.is_cluster:
        texts["main.c"] = print_main(program)
        texts["Makefile"] = print_makefile(target.toolchain.flags)
        return texts
    if target.isa is not None and target.level(target.default_space).origin is not None:
        texts[LINKER_SCRIPT] = linker_script(target)
    texts["Makefile"] = print_cluster_makefile(target, list(texts))
    return texts


def emit(module: ModuleOp) -> dict[str, bytes]:
    """Every file of the C project for a level-3 module: name -> contents, the same bytes for the same module.

    `NotLevel3` when the module is not at level 3, `UnsupportedOp` for an op in a body that has no C form, `TypeError` for an
    element type that has none, `ValueError` for an unknown target.
    """
    program = read_program(module)
    files = {name: text.encode() for name, text in _texts(program).items()}
    files["weights.bin"] = Blob.of(program).data
    target = target_named(program.target)
    names = (*RUNTIME, *runtime_files(target.port)) if target.is_cluster else RUNTIME
    runtime = resources.files("qfold.runtime")
    for name in names:
        files[name] = (runtime / name).read_bytes()
    return files
