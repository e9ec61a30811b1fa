"""Leaf kernels as RISC-V assembly.

A *generator* turns a level-3 leaf function into a `GeneratedKernel`: assembly functions specialised for the shapes, and the C
statements (the *driver*) that compute a core's share of the work and call them.

* `builder.FunctionBuilder`: one function as IR, `fload`, `fmadd`, `loop` ..., the same calls for both kinds of register file;
  `emit` appends any op. Post-increment loads of integers: `b.emit(memory.LbPostOp(pointer, 1))`.
* `emit.finish`: desugars (targets without XpulpV2), allocates registers from the whole pool, saves what must be saved, prints.
* `registers`: the allocator.
* `generated`: what a generator is given (`LeafKernel`) and what it returns; `leaf`: what every generator asks of
  it; `qfold.backend.c.share` writes the loop over a core's parts.
* `packed_matmul`, ...: the generators; `cost`: how the register block is chosen; `inner_product`, `schedule`, `operands`: its
  loop; `panel_driver`: the C around it; `streams`, `epilogue` and `integer_epilogue`: what is done to accumulators.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import func
from xdsl.ir import SSAValue

from qfold.backend.c.layout import Buffer
from qfold.backend.riscv import (
    depthwise,
    dequant_matmul,
    pack,
    pack_bytes,
    pack_window,
    packed_matmul,
    quant_matmul,
    row_sum,
)
from qfold.backend.riscv.generated import (
    CannotGenerate,
    GeneratedKernel,
    Generator,
    LeafKernel,
)
from qfold.targets import Target

GENERATORS: Mapping[str, Generator] = {
    "riscv.pack": pack.generate,
    "riscv.packed_matmul": packed_matmul.generate,
    "riscv.pack_bytes": pack_bytes.generate,
    "riscv.pack_window": pack_window.generate,
    "riscv.packed_quant_matmul": quant_matmul.generate,
    "riscv.quant_conv": depthwise.generate,
    "riscv.dequant_matmul": dequant_matmul.generate,
    "riscv.dequant_matmul_inserti": dequant_matmul.generate_inserted,
    "riscv.row_sum": row_sum.generate,
}
"""Kernel name in the target's table -> its generator."""


def generate(
    function: func.FuncOp,
    symbol: str,
    target: Target,
    buffers: Mapping[SSAValue, Buffer],
) -> GeneratedKernel:
    """
    The kernel that `qmm.kernel` of a level-3 leaf function names, for `target`. `buffers` are the C parameters of the leaf's
    function, by argument.

    `CannotGenerate` for what the generator does not do, `KeyError` for a kernel that is not in `GENERATORS`.
    """
    name = function.attributes["qmm.kernel"]
    return GENERATORS[str(getattr(name, "data", name))](
        LeafKernel(function, symbol, target, buffers)
    )


__all__ = [
    "GENERATORS",
    "CannotGenerate",
    "GeneratedKernel",
    "Generator",
    "LeafKernel",
    "generate",
]
