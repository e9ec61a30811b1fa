"""Runs generated leaf kernels in a simulator: many cases in one program, each operand at the end of memory that may be read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, cast

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects import get_all_dialects as get_xdsl_dialects
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute
from xdsl.parser import Parser

from qfold.backend.c.layout import Buffer, c_type, span
from qfold.backend.riscv.generated import GeneratedKernel, Generator, LeafKernel
from qfold.dialects import get_all_dialects
from qfold.dialects.element_types import numpy_dtype
from qfold.targets import Target, target_named

Array = np.ndarray[Any, Any]
RUNTIME = Path(__file__).parents[2] / "src/qfold/runtime"
GUARD = 4096

needs_qemu = pytest.mark.skipif(
    which("qemu-riscv32") is None or find_spec("ziglang") is None,
    reason="generated kernels are not run: `qemu-riscv32` (Debian: qemu-user) or the wheel `ziglang` is missing",
)


ELEMENTS = {"float32": "f32", "int32": "i32", "int8": "i8", "uint8": "ui8"}
"""Names of dtypes -> element types."""

GAP = 77
"""What lies between the elements of a strided operand."""


@dataclass(frozen=True)
class Operand:
    """One argument."""

    array: Array
    strides: tuple[int, ...] | None = None
    """In elements; None: dense."""
    unknown_offset: bool = False

    @property
    def type(self) -> str:
        shape = "".join(f"{d}x" for d in self.array.shape)
        layout = ""
        if self.strides is not None:
            offset = ", offset: ?" if self.unknown_offset else ""
            layout = f", strided<{list(self.strides)}{offset}>"
        return f"memref<{shape}{ELEMENTS[self.array.dtype.name]}{layout}, 1 : i64>"

    @property
    def positions(self) -> Array:
        """Where the elements are in `stored`."""
        assert self.strides is not None
        grids = np.indices(self.array.shape)
        return cast(Array, sum(g * s for g, s in zip(grids, self.strides, strict=True)))

    def stored(self, type_: MemRefType[Attribute]) -> Array:
        """Memory from the first element to the last; between them, bytes that must neither count nor change."""
        if self.strides is None:
            return self.array
        flat = np.full(span(type_), GAP, self.array.dtype)
        flat[self.positions] = self.array
        return flat


@dataclass(frozen=True)
class Case:
    """A leaf function and what it is called with."""

    kernel: GeneratedKernel
    buffers: tuple[Buffer, ...]
    operands: Mapping[str, Array]
    """Argument -> contents. Outputs too: what they hold before, of which everything must be overwritten."""
    outputs: tuple[str, ...] = ("y",)
    alignments: Mapping[str, int] = field(default_factory=dict[str, int])
    """Argument -> the bytes that its first element is aligned to, where that is more than chance; then up to as many bytes, less
    one, lie between its end and what must not be touched."""

    def room(self, name: str) -> int:
        """Bytes from the first one of an operand to what must not be touched."""
        size = self.operands[name].nbytes
        return size + -size % self.alignments.get(name, 1)


def leaf_module(text: str) -> ModuleOp:
    context = Context()
    for name, factory in (get_xdsl_dialects() | get_all_dialects()).items():
        context.register_dialect(name, factory)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def generate_case(
    text: str,
    generator: Generator,
    target: Target,
    operands: Mapping[str, Array],
    name: str = "leaf",
) -> Case:
    """The kernel of the one function of a module, whose arguments are called as the operands."""
    (function,) = (op for op in leaf_module(text).walk() if isinstance(op, func.FuncOp))
    buffers: list[Buffer] = []
    for argument, operand in zip(function.body.block.args, operands, strict=True):
        type_ = argument.type
        assert isinstance(type_, MemRefType)
        assert type_.get_shape() == operands[operand].shape, operand
        assert numpy_dtype(type_.get_element_type()) == operands[operand].dtype, operand
        buffers.append(Buffer(operand, type_))
    named = dict(zip(function.body.block.args, buffers, strict=True))
    kernel = generator(LeafKernel(function, name, target, named))
    return Case(kernel, tuple(buffers), operands)


def _kernel_source(case: Case) -> str:
    """The C function, as `kernels.c` has it."""
    parameters = ", ".join(
        f"{'' if b.name in case.outputs else 'const '}{c_type(b.element)} *{b.name}"
        for b in case.buffers
    )
    lines = [*(f"{p};" for p in case.kernel.prototypes)]
    lines.append(f"static void {case.kernel.symbol}({parameters}) {{")
    lines += case.kernel.driver
    return "\n".join([*lines, "}"])


def _place(name: str, data: bytes, room: int) -> str:
    """An operand that ends where a page begins that must not be touched."""
    pages = -(-max(room, 1) // GUARD)
    values = ",".join(map(str, data))
    return f"""
static uint8_t {name}_memory[{(pages + 1) * GUARD}] __attribute__((aligned({GUARD})));
static const uint8_t {name}_data[] = {{{values}}};
#define {name}_start ({name}_memory + {pages * GUARD - room})
#define {name}_guard ({name}_memory + {pages * GUARD})
"""


def _program(cases: Sequence[Case]) -> str:
    parts = ['#include "qfold_rt.h"', '#include "port.h"']
    body: list[str] = []
    for index, case in enumerate(cases):
        parts.append(_kernel_source(case))
        arguments: list[str] = []
        for buffer in case.buffers:
            name = f"o{index}_{buffer.name}"
            data = case.operands[buffer.name].tobytes()
            parts.append(_place(name, data, case.room(buffer.name)))
            body.append(f"    copy({name}_start, {name}_data, sizeof {name}_data);")
            body.append(f"    guard({name}_guard);")
            arguments.append(f"(void *){name}_start")
        parts.append(
            f"static void run{index}(void *unused) {{ (void)unused; {case.kernel.symbol}({', '.join(arguments)}); }}"
        )
        body.append(f"    qf_fork(run{index}, NULL);")
        for output in case.outputs:
            size = case.operands[output].nbytes
            body.append(f"    save(file, o{index}_{output}_start, {size});")
    newline = "\n"
    return f"""{newline.join(parts)}
static void copy(uint8_t *to, const uint8_t *from, size_t n) {{
    for (size_t i = 0; i < n; i++) {{
        to[i] = from[i];
    }}
}}
static void save(int file, const uint8_t *data, size_t n) {{
    while (n > 0) {{
        ptrdiff_t done = qf_file_write(file, data, n);
        if (done <= 0) {{
            qf_exit(3);
        }}
        data += done;
        n -= (size_t)done;
    }}
}}
/* mprotect(page, {GUARD}, PROT_NONE) */
static void guard(uint8_t *page) {{
    register intptr_t a0 __asm__("a0") = (intptr_t)page;
    register intptr_t a1 __asm__("a1") = {GUARD};
    register intptr_t a2 __asm__("a2") = 0;
    register intptr_t a7 __asm__("a7") = 226;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
    if (a0 != 0) {{
        qf_exit(4);
    }}
}}
int qf_main(int argc, char **argv) {{
    int file = qf_file_open(argv[argc - 1], 1);
{newline.join(body)}
    return qf_file_close(file);
}}
"""


def run_on_qemu(cases: Sequence[Case], directory: Path) -> list[dict[str, Array]]:
    """The outputs of each case, computed by desugared code under user-mode qemu."""
    target = target_named("qemu")
    assert target.isa is not None
    (directory / "cases.c").write_text(_program(cases))
    (directory / "kernels.S").write_text("\n".join(c.kernel.assembly for c in cases))
    ports = RUNTIME / "ports"
    sources = [directory / "cases.c", directory / "kernels.S", RUNTIME / "console.c"]
    sources += [ports / "freestanding.c", *sorted((ports / "qemu").glob("*.[cS]"))]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "riscv32-freestanding"]
    command += [
        f"-mcpu={target.isa.zig_cpu}",
        *target.toolchain.flags,
        "-g0",
        "-nostdlib",
        "-static",
    ]
    command += [
        "-DQF_CORES=1",
        "-DQF_L1_BYTES=65536",
        f"-I{RUNTIME}",
        "-o",
        str(directory / "cases"),
    ]
    built = subprocess.run(
        [*command, *map(str, sources)], capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(
        ["qemu-riscv32", str(directory / "cases"), str(directory / "out")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, (ran.returncode, ran.stdout, ran.stderr)
    return _outputs(cases, (directory / "out").read_bytes())


def _outputs(cases: Sequence[Case], data: bytes) -> list[dict[str, Array]]:
    results: list[dict[str, Array]] = []
    for case in cases:
        found: dict[str, Array] = {}
        for output in case.outputs:
            before = case.operands[output]
            found[output] = np.frombuffer(data[: before.nbytes], before.dtype).reshape(before.shape)
            data = data[before.nbytes :]
        results.append(found)
    assert not data
    return results


def memref(array: Array, element: str | None = None) -> str:
    """The type of an operand."""
    shape = "".join(f"{d}x" for d in array.shape)
    return f"memref<{shape}{element or ELEMENTS[array.dtype.name]}, 1 : i64>"


def unwritten(*shape: int) -> Array:
    """An output before it is written: every element a NaN."""
    return np.full(shape, np.nan, np.float32)
