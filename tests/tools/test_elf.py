"""Symbols, calls in order, and parameter types, read from object files that a compiler made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qfold.tools.elf import ObjectFile
from qfold.tools.errors import ToolError
from qfold.tools.riscv_code import LOADS, instructions

KERNELS = """
#include <stdint.h>
void k1(const float *restrict a, const int8_t *restrict w, float *restrict y) { y[0] = a[0] * w[0]; }
void k2(const uint8_t *a, float *y, int32_t n) { y[0] = a[0] + n; }
"""
CALLER = """
#include <stdint.h>
extern const int8_t w[4];
const int8_t table[4] = {1, 2, 3, -4};
void k1(const float *restrict a, const int8_t *restrict w, float *restrict y);
void k2(const uint8_t *a, float *y, int32_t n);
int other(float *a) { k2(0, a, 1); return 0; }
int net_run(float *a) { k1(a, w, a); k2((const uint8_t *)a, a, 3); k1(a, w, a + 1); return 0; }
"""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC") or next(
        (c for c in ("cc", "gcc", "clang") if shutil.which(c)), None
    )
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("elf")
    for name, text in (("kernels", KERNELS), ("caller", CALLER)):
        (folder / f"{name}.c").write_text(text)
        subprocess.run(
            [*compiler.split(), "-std=c99", "-O2", "-g", "-c", f"{name}.c"], cwd=folder, check=True
        )
    return folder


def test_parameter_types(objects: Path):
    with ObjectFile(objects / "kernels.o") as kernels:
        assert kernels.parameters["k1"] == ("const float *", "const int8_t *", "float *")
        assert kernels.parameters["k2"] == ("const uint8_t *", "float *", "int32_t")
        assert {"k1", "k2"} <= set(kernels.defined)


def test_calls_are_those_of_the_function_in_order(objects: Path):
    with ObjectFile(objects / "caller.o") as caller:
        assert caller.calls("net_run") == ["k1", "k2", "k1"]
        assert caller.calls("other") == ["k2"]
        assert {"w", "k1", "k2"} <= caller.undefined
        with pytest.raises(ToolError, match="does not define the function absent"):
            caller.calls("absent")


def test_contents_of_a_symbol(objects: Path):
    with ObjectFile(objects / "caller.o") as caller:
        assert caller.defined["table"].size == 4
        assert caller.contents("table") == bytes([1, 2, 3, 252])


def test_other_files_are_refused(tmp_path: Path):
    (tmp_path / "a.o").write_text("text")
    with pytest.raises(ToolError, match="not an ELF object"):
        ObjectFile(tmp_path / "a.o")


# RISC-V


@pytest.fixture(scope="module")
def riscv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects with relocations that the linker relaxes, and a linked program."""
    pytest.importorskip("ziglang", reason="no compiler for RISC-V: the wheel ziglang is missing")
    folder = tmp_path_factory.mktemp("riscv")
    cc = [sys.executable, "-m", "ziglang", "cc", "-target", "riscv32-freestanding"]
    cc += ["-mcpu=generic_rv32+m+c+zfinx", "-O2", "-g", "-ffunction-sections"]
    for name, text in (("kernels", KERNELS), ("caller", CALLER)):
        (folder / f"{name}.c").write_text(text)
        subprocess.run([*cc, "-c", f"{name}.c", "-o", f"{name}.o"], cwd=folder, check=True)
    (folder / "data.c").write_text("const signed char w[4] = {1, 2, 3, 4};\n")
    link = ["-nostdlib", "-static", "-Wl,-e,net_run", "-o", "program"]
    subprocess.run([*cc, "kernels.o", "caller.o", "data.c", *link], cwd=folder, check=True)
    return folder


def test_calls_and_tail_calls_of_risc_v_objects(riscv: Path):
    with ObjectFile(riscv / "caller.o") as caller:
        assert caller.machine == "EM_RISCV"
        assert caller.calls("net_run") == ["k1", "k2", "k1"]
        assert caller.calls("other") == ["k2"]
        assert {"w", "k1", "k2"} <= caller.undefined


def test_types_and_code_of_a_linked_risc_v_program(riscv: Path):
    with ObjectFile(riscv / "program") as program:
        assert not program.undefined
        assert program.parameters["k1"] == ("const float *", "const int8_t *", "float *")
        assert program.parameters["k2"] == ("const uint8_t *", "float *", "int32_t")
        loads = {
            name: {i.mnemonic for i in instructions(program.contents(name))} & LOADS
            for name in ("k1", "k2")
        }
        # Words may come from the stack besides.
        assert loads["k1"] == {"lw", "lb"} and loads["k2"] - {"lw"} == {"lbu"}
        assert program.contents("w") == bytes([1, 2, 3, 4])
