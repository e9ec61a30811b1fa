"""Registers, listings and an upstream assembler for the tests of `riscv_pulp`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from xdsl.dialects import rv32
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.riscv.registers import IntRegisterType
from xdsl.ir import Operation, SSAValue

from qfold.dialects.riscv_pulp import PulpAssemblyPrinter

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


def assemble(lines: Iterable[str], directory: Path) -> list[int]:
    """The 32-bit words that LLVM's assembler makes of instructions. It knows nothing of XpulpV2."""
    from elftools.elf.elffile import ELFFile

    source, target = directory / "code.s", directory / "code.o"
    body = "\n".join(lines)
    source.write_text(
        f".text\n.option norvc\n.option norelax\n.p2align 2\n.globl code\ncode:\n{body}\n"
    )
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "riscv32-freestanding"]
    # -g0: zig asks for debug lines otherwise, which LLVM cannot make for a file of `.insn` alone.
    command += ["-g0", f"-mcpu={CPU}", "-c", str(source), "-o", str(target)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    text = ELFFile(BytesIO(target.read_bytes())).get_section_by_name(".text").data()
    return [int.from_bytes(text[i : i + 4], "little") for i in range(0, len(text), 4)]
