"""Writes docs/levels_of_a_kernel.md: one dense layer at every level, from ONNX to assembly.

python scripts/levels_of_a_kernel.py            # writes the page
python scripts/levels_of_a_kernel.py --check    # exit code 1 when the page is not what would be written
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.riscv_func import FuncOp as AssemblyFuncOp

from qfold.backend.c.emit import emit_texts
from qfold.backend.riscv.emit import Stage, observing
from qfold.backend.riscv.schedule import Schedule
from qfold.frontend import load_model
from qfold.tools.driver import Options, import_tensor_module, make_context
from qfold.transforms.pipelines import kernel_pipeline, run_passes, tensor_pipeline

PAGE = Path(__file__).resolve().parent.parent / "docs" / "levels_of_a_kernel.md"
TARGET = "spike"
M, K, N = 12, 16, 10
STEPS = Schedule.steps
"""Of K in the body of an inner loop."""
WIDTH = 130
"""Of a line of code on the page."""


def model() -> onnx.ModelProto:
    """Relu(x @ dequantise(w) + b): w int8, one scale and zero point per column."""
    column = np.arange(N)
    constants = {
        "w": ((37 * np.arange(K * N)) % 256 - 128).astype(np.int8).reshape(K, N),
        "scale": ((1 + column % 4) / 128).astype(np.float32),
        "zero": (column - 4).astype(np.int8),
        "b": ((column - 4) / 4).astype(np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["wf"], "dequantize", axis=1),
        helper.make_node("MatMul", ["x", "wf"], ["product"], "matmul"),
        helper.make_node("Add", ["product", "b"], ["sum"], "bias"),
        helper.make_node("Relu", ["sum"], ["y"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [M, K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [M, N])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


# region text


def code(language: str, lines: Iterable[str]) -> str:
    """A block of code, long lines broken."""
    return "\n".join([f"```{language}", *(part for line in lines for part in broken(line)), "```"])


def broken(line: str) -> list[str]:
    """A line as several of at most `WIDTH` characters: broken where fewest brackets are open, in its second half."""
    more = " " * (len(line) - len(line.lstrip()) + 4)
    parts: list[str] = []
    while len(line) > WIDTH:
        depth = 0
        places: list[tuple[int, int]] = []
        for i in range(WIDTH - 1):
            # An arrow closes nothing.
            opens, closes = line[i] in "<([{", line[i] in ">)]}" and line[i - 1] != "-"
            depth += opens - closes
            # What these stand before, and what an equals sign stands behind, stays with them.
            together = line[: i + 1].endswith(("=", ":", "->")) or line[i + 1 :].startswith(" =")
            if line[i + 1] == " " and i > WIDTH // 2 and not together:
                places.append((2 * depth + (line[i] != ","), -i))
        if not places:
            break
        cut = 1 - min(places)[1]
        parts.append(line[:cut].rstrip())
        line = more + line[cut:].lstrip()
    return [*parts, line]


def shortened(text: str) -> list[str]:
    """IR without the bytes of weights, and with memory spaces as MLIR prints them."""
    text = re.sub(r'"0x([0-9A-F]{8})[0-9A-F]{8,}"', r'"0x\1..."', text)
    return re.sub(r", (\d+) : i64>", r", \1>", text).splitlines()


def without_signatures(lines: Iterable[str]) -> list[str]:
    """IR whose ops do not repeat the types of their operands."""
    return [re.sub(r" : \([^{]*\) -> [^{]*?( \{)?$", r"\1", line) for line in lines]


def function(module: ModuleOp, symbol: str) -> list[str]:
    """One function of a module on memrefs, as text."""
    for op in module.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == symbol:
            return without_signatures(shortened(str(op)))
    raise ValueError(f"no function @{symbol}")


def c_function(text: str, symbol: str) -> list[str]:
    """The definition of a C function, with what stands right before it: its comment, prototypes of what it calls."""
    found = re.search(rf"^(?:.+\n)*void {symbol}\([^;{{]*\) \{{\n(?:.*\n)*?\}}$", text, re.M)
    if found is None:
        raise ValueError(f"no definition of {symbol}")
    return found.group().splitlines()


def instructions(text: str, symbol: str) -> list[str]:
    """Those of an assembly function, from its label to its return."""
    lines = text.splitlines()
    start = lines.index(f"{symbol}:")
    return [line.strip() for line in lines[start + 1 : lines.index("    ret", start) + 1]]


def beside(ops: Iterable[str], assembly: Iterable[str]) -> list[str]:
    """The lines of ops, registers by their names only, and beside each op, as a comment, the instruction that it prints."""
    left = iter(assembly)
    no_instruction = re.compile(r" *(}|riscv_func\.func |riscv_pulp\.yield )")
    short = (line.replace("!riscv.reg<", "<") for line in ops)
    pairs = [(line, "" if no_instruction.match(line) else next(left)) for line in short]
    if list(left):
        raise ValueError("more instructions than ops")
    width = max(len(line) for line, instruction in pairs if instruction)
    return [f"{a:{width}}  // {b}" if b else a for a, b in pairs]


def first_step(lines: list[str], loop: str) -> list[str]:
    """The first of the equal steps in the body of the loop in whose line `loop` is."""
    head = next(i for i, line in enumerate(lines) if loop in line)
    brace = " " * (len(lines[head]) - len(lines[head].lstrip())) + "}"
    # The body ends by its yield.
    body = lines[head + 1 : lines.index(brace, head) - 1]
    return body[: len(body) // STEPS]


# endregion
# region the page


def onnx_lines(proto: onnx.ModelProto) -> list[str]:
    types = {
        t.name: f"{np.dtype(numpy_helper.to_array(t).dtype).name}{list(t.dims)}"
        for t in proto.graph.initializer
    }
    lines = [f"{name}: {type_}" for name, type_ in {"x": f"float32[{M}, {K}]", **types}.items()]
    for node in proto.graph.node:
        attributes = "".join(f", {a.name}={helper.get_attribute_value(a)}" for a in node.attribute)
        lines.append(f"{node.output[0]} = {node.op_type}({', '.join(node.input)}{attributes})")
    return ["  ".join(lines[: 1 + len(types)]), *lines[1 + len(types) :]]


class Levels:
    """The layer at each level."""

    def __init__(self) -> None:
        self.proto = model()
        options = Options(target=TARGET)
        module = import_tensor_module(load_model(self.proto.SerializeToString()), options)
        context = make_context()
        self.imported = shortened(str(module))
        run_passes(context, module, tensor_pipeline(TARGET))
        self.fused = shortened(str(module))
        passes = kernel_pipeline(TARGET)
        names = [p.name for p in passes]
        outlined = names.index("qmm-outline-kernels")
        run_passes(context, module, passes[:outlined])
        self.buffers = function(module, "main")
        run_passes(context, module, passes[outlined:])
        functions = [op for op in module.ops if isinstance(op, FuncOp)]
        kernels = {op.sym_name.data: str(op.attributes.get("qmm.kernel")) for op in functions}
        (self.staged,) = (s for s, kernel in kernels.items() if kernel == '"staged"')
        (self.pack,) = (s for s, kernel in kernels.items() if kernel == '"riscv.pack"')
        (self.product,) = (s for s, k in kernels.items() if k == '"riscv.packed_matmul"')
        self.level3 = {symbol: function(module, symbol) for symbol in kernels}
        self.stages: dict[tuple[Stage, str], list[str]] = {}

        def observe(stage: Stage, op: AssemblyFuncOp) -> None:
            self.stages[stage, op.sym_name.data] = str(op).splitlines()

        with observing(observe):
            self.texts = emit_texts(module)
        self.assembly_symbols = re.findall(r"^\.globl (\w+)$", self.texts["kernels.S"], re.M)


def page() -> str:
    """The text of the page."""
    levels = Levels()
    panel, block = f"{levels.pack}_panel4", f"{levels.product}_4x4"
    of = {s: instructions(levels.texts["kernels.S"], s) for s in levels.assembly_symbols}
    others = [f"`{s}` ({len(t)} instructions)" for s, t in of.items() if s not in (panel, block)]
    step = first_step(levels.stages["allocated", block], "riscv_pulp.lp_setup 0")
    # The inner one of two hardware loops.
    start = 1 + next(i for i, s in enumerate(of[block]) if s.startswith(".insn i 0x7b, 4, x0,"))
    return f"""<!-- Written by scripts/levels_of_a_kernel.py: change that. -->
# The levels of a kernel

One dense layer, `Relu(x @ dequantise(w) + b)`, on its way from ONNX to the instructions of a PULP cluster: what each level
looks like, and what happens between two of them. [architecture.md](architecture.md) and [cluster.md](cluster.md) define the
levels. The target is `{TARGET}`: 8 cores, floats in the integer registers. Left out: the bytes of weights and, from the
buffers on, the types of operands behind an op on memrefs.

## ONNX

An int8 weight with one scale and one zero point per column. As it is written, it asks for a float copy of the weight.

{code("", onnx_lines(levels.proto))}

## Tensors, as imported

Each node is an op, one for one. The weight is what it was in the file: `#qmm.weight` holds its bytes, `#qmm.quant` says how to
read them.

{code("mlir", levels.imported)}

## Tensors, fused

The dequantisation went into the product, which now reads the integer weight itself: there is no float copy. Bias and Relu
became its epilogue, which works on each element while that is in a register. The zero point stays with the weight: for more
than 4 rows the weight will be packed, and the zero point is subtracted on the way.

{code("mlir", levels.fused)}

## Buffers

Tensors became memrefs in L2 (memory space 2), results became arguments, weights globals named by the hash of their bytes.
`qkernel` ops write into a buffer that they are given.

{code("mlir", levels.buffers)}

## Kernels, staged

`qmm-outline-kernels` made a function of the product, and `qmm-tile-to-l1` rewrote its body: operands come to L1 (memory space 1)
by DMA, leaf functions work on them there, the result goes back. This layer fits L1 whole; a larger one has loops over tiles
here. Twelve rows use each weight, so it is turned into a float once, in L1, in panels of four columns: `packed`.
`qmm-plan-scratchpad` gave every tile its place in `%l1`; tiles that are not needed at the same time share bytes.

{code("mlir", levels.level3[levels.staged])}

## Kernels, the leaf functions

One op each. `qmm.split` (`qmm-split-work`) says in how many parts the cores share it: panels and K of the pack, rows and
columns of the product. `qmm.kernel` (`qmm-select-kernels`) is the row of the target's kernel table.

{code("mlir", [*levels.level3[levels.pack], *levels.level3[levels.product]])}

## C, the staged dispatch

In `dispatches.c`. All cores run this function. Core 0 works the DMA; each wait and each kernel ends with a barrier,
the last one in `net_run`.

{code("c", c_function(levels.texts["dispatches.c"], levels.staged))}

## C, the driver of the product

In `kernels.c`. It finds out which blocks of four rows and which panels are this core's, and hands them to assembly, panels
side by side in one call. The last panel has two columns only and a function of its own: no load or store passes an operand.

{code("c", c_function(levels.texts["kernels.c"], levels.product))}

## Assembly, before registers are allocated

The functions of `kernels.S` are built as IR, for the shapes of their leaf. This is the one that packs a panel of four columns,
from any step of K on. It loads weights as the bytes that they are, subtracts the zero points in integers, and converts, which
is exact. `lp_setup` is a hardware loop; `lb_post` and `sw_post` also move their pointer on, and return it as a new value.

{code("mlir", levels.stages["built", panel])}

## Assembly, after it

The same ops, now with registers in their types (`<t0>` for `!riscv.reg<t0>`), and beside each the instruction in `kernels.S` that
it becomes. What a `_post` op overwrites, and what a loop carries, shares one register. Any RISC-V assembler takes this: the
instructions of XpulpV2 are `.insn`, `0x7b` a hardware loop, `0xb` and `0x2b` loads and stores with post-increment.

{code("mlir", beside(levels.stages["allocated", panel], of[panel]))}

The function of the product has {len(of[block])} instructions, too many for this page. It keeps 16 sums in registers. This is
one of the {STEPS} steps of K in its inner loop: 16 multiply-adds, each of which overwrites a sum, and 8 loads for the next
step. Two multiply-adds, one load, without exception: so two cores that share a float unit keep it busy in turns.

{code("mlir", beside((line[4:] for line in step), of[block][start : start + len(step)]))}

Two more functions are for the last two columns: {others[0]}
and {others[1]}. Those that use callee-saved registers begin by saving them.
[generated_kernels.md](generated_kernels.md) says how blocks and schedules are chosen, and what was measured.

`qfold compile MODEL --target {TARGET} -o DIR` writes the C and the assembly of any network, `qfold import` prints its tensor
level, and `qfold-opt` runs single passes on it.
"""


# endregion


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is right")
    check = parser.parse_args().check
    text = page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE} is stale: python scripts/{Path(__file__).name}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
