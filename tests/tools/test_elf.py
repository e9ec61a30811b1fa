"""Symbols, calls in order, and parameter types, read from object files that a compiler made."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from qfold.tools.elf import ObjectFile
from qfold.tools.errors import ToolError

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
