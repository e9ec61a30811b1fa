"""The xDSL target `qfold-c`: the C files of a level-3 module, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from qfold.backend.c.emit import emit_texts


@dataclass(frozen=True)
class QfoldCTarget(Target):
    """Prints the generated sources, each under a `// ---- <name> ----` line. Weights are symbols only: `qfold compile`
    writes them.
    """

    name = "qfold-c"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        for name, text in emit_texts(module).items():
            output.write(f"// ---- {name} ----\n{text}")
