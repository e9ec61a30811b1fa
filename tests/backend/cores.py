"""Kernels of a cluster, core by core: compiled once, each core's share run on its own, so that tests see who writes what."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import func
from xdsl.dialects.builtin import DenseArrayBase, FunctionType, StringAttr, i64
from xdsl.ir import Block, Operation, Region, SSAValue

import qfold.runtime
from qfold.backend.c.kernels import print_kernel
from qfold.backend.c.program import Kernel
from qfold.backend.c.text import Writer
from qfold.targets.host import FLAGS
from tests.backend.level3 import Arg, memref_type

Array = npt.NDArray[Any]

_RUNTIME = """
#include "qfold_int.h"
#include "qfold_math.h"
#include "qfold_rt.h"

static uint32_t core, cores;
void set_core(uint32_t id, uint32_t count) { core = id; cores = count; }
uint32_t qf_core_id(void) { return core; }
uint32_t qf_num_cores(void) { return cores; }
"""
_SANITIZE = ("-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all")


@dataclass
class Cores:
    """Collects kernel functions, then compiles them."""

    folder: Path
    kernels: dict[str, tuple[Kernel, list[Arg]]] = field(default_factory=dict)

    def add(
        self,
        name: str,
        kernel: str,
        split: Sequence[int],
        args: list[Arg],
        body: Callable[[Sequence[SSAValue]], Sequence[Operation]],
    ) -> None:
        """A kernel function of `args`, the last of which is the output, with the ops that `body` makes."""
        types = [memref_type((), a.element, a.layout) for a in args]
        block = Block(arg_types=types)
        block.add_ops([*body(block.args), func.ReturnOp()])
        function = func.FuncOp(name, FunctionType.from_lists(types, []), Region(block), "private")
        function.attributes["qmm.kernel"] = StringAttr(kernel)
        function.attributes["qmm.split"] = DenseArrayBase.from_list(i64, split)
        function.verify()
        self.kernels[name] = (Kernel(name, function), args)

    def text(self, name: str) -> str:
        """The C function."""
        out = Writer()
        print_kernel(out, self.kernels[name][0], (), cluster=True)
        return out.text()

    def build(self) -> ctypes.CDLL:
        """Everything in one library, compiled as strictly as generated code is, with checks for undefined behaviour."""
        source, library = self.folder / "kernels.c", self.folder / "kernels.so"
        source.write_text(_RUNTIME + "\n".join(self.text(name) for name in self.kernels))
        headers = Path(qfold.runtime.__file__).parent
        flags = [f for f in FLAGS if f != "-O3"]
        command = ["cc", *flags, *_SANITIZE, "-fPIC", "-shared", f"-I{headers}", "-o"]
        done = subprocess.run(
            [*command, str(library), str(source), "-lm"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library))

    def run(self, library: ctypes.CDLL, name: str, cores: int) -> tuple[Array, list[int]]:
        """The output after all cores have done their shares, and how many elements each wrote.

        Asserts that no two cores write the same element, and that all together write every one. Outputs are f32 and dense.
        """
        _, args = self.kernels[name]
        shape = args[-1].layout.shape
        result = np.full(shape, np.nan, np.float32)
        written = np.zeros(shape, np.int64)
        counts: list[int] = []
        inputs = [np.asarray(a.values).copy() for a in args[:-1]]
        function = getattr(library, name)
        for core in range(cores):
            library.set_core(core, cores)
            part = np.full(shape, np.nan, np.float32)
            function(*(ctypes.c_void_p(x.ctypes.data) for x in (*inputs, part)))
            mine = ~np.isnan(part)
            written += mine
            result[mine] = part[mine]
            counts.append(int(mine.sum()))
        assert (written == 1).all(), f"{name}: elements written by {np.unique(written)} cores"
        return result, counts
