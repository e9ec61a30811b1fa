"""Registers, listings and an upstream assembler for the tests of `riscv_pulp`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects import riscv, rv32
from xdsl.dialects.builtin import Builtin, IntegerAttr, ModuleOp
from xdsl.dialects.riscv.registers import IntRegisterType
from xdsl.dialects.riscv_func import RISCV_Func
from xdsl.dialects.riscv_scf import RISCV_Scf
from xdsl.interpreter import Interpreter
from xdsl.interpreters.riscv import RiscvFunctions
from xdsl.interpreters.riscv_func import RiscvFuncFunctions
from xdsl.interpreters.riscv_scf import RiscvScfFunctions
from xdsl.interpreters.utils.ptr import RawPtr
from xdsl.ir import Operation, SSAValue
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from qfold.dialects.riscv_pulp import RISCV_PULP, PulpAssemblyPrinter
from qfold.dialects.riscv_zfinx import RISCV_ZFINX
from qfold.interpreters.riscv_pulp import RiscvPulpFunctions, Rv32BaseFunctions
from qfold.interpreters.riscv_zfinx import RiscvZfinxFunctions

needs_assembler = pytest.mark.skipif(
    find_spec("ziglang") is None or find_spec("elftools") is None,
    reason="the encodings are not checked: the wheels `ziglang` (an assembler) and `pyelftools` are not both installed",
)

CPU = "generic_rv32+m+f+c"


def reg(name: str) -> IntRegisterType:
    return IntRegisterType.from_name(name)


def value(name: str) -> SSAValue:
    """A value that lives in a named register. Its op prints nothing."""
    return rv32.GetRegisterOp(reg(name)).res


def listing(ops: Iterable[Operation], *, insn: bool) -> list[str]:
    """The instructions that ops print, one a line, spaces normalised; directives and labels left out."""
    module = ModuleOp([])
    for op in ops:
        for operand in op.operands:
            owner = operand.owner
            if isinstance(owner, Operation) and owner.parent is None:
                module.body.block.add_op(owner)
        module.body.block.add_op(op)
    module.verify()
    output = StringIO()
    PulpAssemblyPrinter(output, insn=insn).print_module(module)
    lines = [re.sub(r"\s+", " ", line).strip() for line in output.getvalue().splitlines()]
    return [line for line in lines if line and not re.match(r"\.(option|p2align|text)|.*:$", line)]


def assemble(lines: Iterable[str], directory: Path, cpu: str = CPU) -> list[int]:
    """The 32-bit words that LLVM's assembler makes of instructions. It knows nothing of XpulpV2."""
    from elftools.elf.elffile import ELFFile

    source, target = directory / "code.s", directory / "code.o"
    body = "\n".join(lines)
    source.write_text(
        f".text\n.option norvc\n.option norelax\n.p2align 2\n.globl code\ncode:\n{body}\n"
    )
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "riscv32-freestanding"]
    # -g0: zig asks for debug lines otherwise, which LLVM cannot make for a file of `.insn` alone.
    command += ["-g0", f"-mcpu={cpu}", "-c", str(source), "-o", str(target)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    text = ELFFile(BytesIO(target.read_bytes())).get_section_by_name(".text").data()
    return [int.from_bytes(text[i : i + 4], "little") for i in range(0, len(text), 4)]


def printed(module: ModuleOp) -> list[str]:
    """The assembly of a module that has none of our instructions, or only `.insn`."""
    output = StringIO()
    PulpAssemblyPrinter(output, insn=True).print_module(module)
    return output.getvalue().splitlines()


def parse(text: str, *, verify: bool = True) -> ModuleOp:
    """A module, verified unless told otherwise."""
    context = Context()
    for dialect in (
        Builtin,
        riscv.RISCV,
        rv32.RV32,
        RISCV_Func,
        RISCV_Scf,
        RISCV_PULP,
        RISCV_ZFINX,
    ):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    if verify:
        module.verify()
    return module


def run_passes(module: ModuleOp, *passes: ModulePass) -> ModuleOp:
    """A copy of the module after some passes, verified after each."""
    module = module.clone()
    for one in passes:
        one.apply(Context(), module)
        module.verify()
    return module


def interpret(module: ModuleOp, *args: int | RawPtr, function: str = "f") -> tuple[Any, ...]:
    """The results of a function: integers as unsigned numbers, pointers as they are."""
    interpreter = Interpreter(module, index_bitwidth=32)
    for functions in (
        RiscvFunctions(),
        Rv32BaseFunctions(),
        RiscvScfFunctions(),
        RiscvFuncFunctions(),
        RiscvPulpFunctions(),
        RiscvZfinxFunctions(),
    ):
        interpreter.register_implementations(functions)
    registers = [IntegerAttr(a, 32, truncate_bits=True) if isinstance(a, int) else a for a in args]
    results = interpreter.call_op(function, tuple(registers))
    return tuple(r.value.data & 0xFFFFFFFF if isinstance(r, IntegerAttr) else r for r in results)
