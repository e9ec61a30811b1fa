"""The proof on the linked program: it holds for what was compiled, and each way to be wrong is caught."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from qfold.backend.simulators import FunctionProfile, Profile
from qfold.tools import audit, proof
from qfold.tools.audit import AuditResult
from qfold.tools.elf import ObjectFile
from qfold.tools.manifest import manifest, program_of
from qfold.tools.proof import prove
from qfold.tools.report import assembly_functions
from tests.tools.clusters import (
    ClusterBuild,
    built,
    compiled,
    lie,
    matmul_model,
    needs_qemu,
    needs_spike,
)

PACKED, RAW = 8, 4
"""Rows for which a weight is packed first, and for which it is read as it is."""

LINKED = "every kernel of the report is in the linked program"
EXECUTED = "every kernel of the report was executed"
DISASSEMBLED = "kernels load weights as what they are, by disassembly"
COUNTED = "kernels loaded every weight as what it is, by the simulator's counters"
FREESTANDING = "no libm, no floats in software"


def failed(results: Mapping[str, AuditResult]) -> dict[str, Sequence[str]]:
    return {check: r.problems for check, r in results.items() if not r.ok}


# What was compiled


@pytest.fixture(scope="module")
def good() -> Iterator[ClusterBuild]:
    needs_spike()
    with built(compiled(matmul_model(PACKED), "spike")) as made:
        yield made


def assert_holds(made: ClusterBuild, kernel_name: str, own: str, other: str) -> None:
    """All proofs, and which loads read the weight, by the counters: every byte as what it is."""
    results = made.proven()
    assert not failed(results)
    assert set(results) == {LINKED, EXECUTED, DISASSEMBLED, COUNTED, FREESTANDING}
    assert all(r.ok for r in made.audited())
    kernels = made.compilation.report["kernels"]
    (kernel,) = (k for k in kernels if k["kernel"] == kernel_name)
    counts: Counter[str] = Counter()
    assert made.profile is not None
    for function in kernel["generated"]["functions"]:
        for load, count in made.profile[function["symbol"]].loads.items():
            counts[load.removeprefix("p.")] += count
    assert counts[own] >= 16 * 12 and other not in counts


def test_spike_holds(good: ClusterBuild):
    assert_holds(good, "riscv.pack", "lb", "lbu")


@pytest.mark.parametrize(
    ("target", "rows", "unsigned"),
    [("spike:isa=f,cores=3", RAW, False), ("spike:isa=f", PACKED, True)],
)
def test_spike_holds_with_float_registers(target: str, rows: int, unsigned: bool):
    needs_spike()
    name = "riscv.pack" if rows == PACKED else "riscv.dequant_matmul"
    with built(compiled(matmul_model(rows, unsigned=unsigned), target)) as made:
        assert_holds(made, name, *(("lbu", "lb") if unsigned else ("lb", "lbu")))


def test_qemu_holds():
    needs_qemu()
    with built(compiled(matmul_model(RAW), "qemu")) as made:
        results = made.proven()
        assert not failed(results)
        # Calls are counted there, loads are not.
        assert set(results) == {LINKED, EXECUTED, DISASSEMBLED, FREESTANDING}
        assert made.profile is not None and not made.profile.has_loads
        assert all(r.ok for r in made.audited())


def test_kernels_without_rows_need_no_loads():
    needs_spike()
    with built(compiled(matmul_model(0), "spike")) as made:
        kernels = made.compilation.report["kernels"]
        (kernel,) = (k for k in kernels if k["kernel"] == "riscv.dequant_matmul")
        assert kernel["generated"] is not None and not kernel["generated"]["functions"]
        assert not failed(made.proven())
        assert all(r.ok for r in made.audited())


def test_a_network_with_doubles_may_compute_them_in_software():
    needs_spike()
    cast = [
        helper.make_node("Cast", ["x"], ["wide"], "widen", to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["wide", "wide"], ["square"], "square"),
        helper.make_node("Add", ["square", "wide"], ["sum"], "sum"),
        helper.make_node("Cast", ["sum"], ["y"], "narrow", to=TensorProto.FLOAT),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [5]) for n in "xy")
    graph = helper.make_graph(cast, "doubles", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with built(compiled(model, "spike")) as made:
        assert not failed(made.proven())
        assert all(r.ok for r in made.audited())
        assert "__adddf3" in ObjectFile(made.built.binary).defined


# What is wrong


def test_an_int8_kernel_that_loads_unsigned_bytes_is_caught(monkeypatch: pytest.MonkeyPatch):
    needs_spike()
    compilation = compiled(matmul_model(PACKED, zero_point=False), "spike")
    lie(monkeypatch, 1, "ui8")
    with built(compilation) as made:
        problems = failed(made.proven())
    assert set(problems) == {DISASSEMBLED, COUNTED}
    assert any("reads nothing of ui8" in p for p in problems[DISASSEMBLED])


def test_a_kernel_that_did_not_run_on_one_core_is_caught(good: ClusterBuild):
    profile = good.profile
    assert profile is not None
    symbol = next(
        s for s in profile.functions if s.startswith("packed_matmul") and s.endswith("bias")
    )
    calls = profile[symbol].calls
    lazy = FunctionProfile((*calls[:-1], calls[-1] - 1), profile[symbol].loads)
    changed = Profile({**profile.functions, symbol: lazy})
    problems = failed(good.proven(replace(good.evidence, profile=changed)))
    assert problems == {
        EXECUTED: (f"core 7 ran {symbol} {calls[-1] - 1} times, the report says {calls[-1]}",)
    }


def test_assembly_that_never_ran_is_caught(good: ClusterBuild):
    profile = good.profile
    assert profile is not None
    (block,) = (s for s in profile.functions if s.startswith("pack_") and s.endswith("_panel4"))
    idle = replace(profile[block], calls=(0,) * 8)
    changed = Profile({**profile.functions, block: idle})
    problems = failed(good.proven(replace(good.evidence, profile=changed)))
    assert problems == {
        EXECUTED: (f"{block}, the code of {block.removesuffix('_panel4')}, never ran",)
    }


def test_calls_in_another_order_are_caught(good: ClusterBuild):
    evidence = good.evidence
    (calls,) = evidence.traced
    problems = failed(good.proven(replace(evidence, traced=[calls[::-1]])))
    (problem,) = problems[EXECUTED]
    assert problem.startswith("call 0 of dispatch 0 ") and "the report says pack_" in problem


def test_a_function_that_is_not_there_is_caught(
    good: ClusterBuild, monkeypatch: pytest.MonkeyPatch
):
    blocks = assembly_functions(good.compilation.report)
    symbol = next(iter(blocks))
    blocks[symbol] = [*blocks[symbol], "absent"]
    kernels = good.compilation.kernels
    program = program_of(kernels)
    results = prove(kernels, program, manifest(program), blocks, good.evidence)
    problems = failed({r.check: r for r in results})
    assert problems[LINKED] == (
        "absent is no function of runner",
        f"{symbol} does not call absent",
    )
    assert "absent, the code of " in problems[EXECUTED][0]


def test_a_driver_that_leaves_its_assembly_out_is_caught():
    """The function has the right name and types, and computes in C what it likes."""
    needs_spike()

    def edit(files: dict[str, bytes]) -> None:
        text = files["kernels.c"].decode()
        start = text.index("\nvoid pack_")
        idle = (
            "\nstatic void idle(const int8_t *w, float *y, const int8_t *z, ptrdiff_t n) {"
            "\n(void)w, (void)y, (void)z, (void)n;\n}\n"
        )
        text = text[:start] + idle + text[start:]
        files["kernels.c"] = re.sub(r"\w+_panel4\((?=w )", "idle(", text).encode()

    with built(compiled(matmul_model(PACKED), "spike"), edit) as made:
        problems = failed(made.proven())
    assert any("does not call" in p for p in problems[LINKED]) or any(
        "is no function" in p for p in problems[LINKED]
    )
    assert any("never ran" in p for p in problems[EXECUTED])
    assert COUNTED in problems


def test_libraries_for_floats_are_caught(tmp_path: Path, good: ClusterBuild):
    source = tmp_path / "wide.c"
    source.write_text(
        "float expf(float x) { return x + 1; }\n"
        "double wide(double a, double b) { return a * b; }\n"
        "float _start(float x) { return (float)wide(expf(x), x); }\n"
    )
    binary = tmp_path / "wide"
    flags = ["-target", "riscv32-freestanding", "-mcpu=generic_rv32+m+c+zfinx", "-O0", "-static"]
    flags.append("-Wl,--gc-sections")
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *flags, str(source), "-o", str(binary)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with ObjectFile(binary) as linked:
        names = set(linked.defined)
    assert {"expf", "__muldf3"} <= names
    evidence = replace(good.evidence, binary=binary, profile=None)
    problems = good.proven(evidence)[FREESTANDING].problems
    assert "expf is a function of libm" in problems
    assert any("__muldf3 computes floats in software" in p for p in problems)


def test_names_of_helpers():
    soft = ("__adddf3", "__truncdfsf2", "__extendsfdf2", "__floatsidf", "__fixdfsi", "__ledf2")
    assert all(audit.SOFT_DOUBLE.fullmatch(name) for name in soft)
    assert all(proof._SOFT_FLOAT.fullmatch(n) for n in ("__addsf3", "__fixsfsi", "__gtsf2"))
    # 64-bit integers are nobody's float.
    for name in ("__udivdi3", "__floatdisf", "__fixunssfdi", "__ashldi3"):
        assert not audit.SOFT_DOUBLE.fullmatch(name) and not proof._SOFT_FLOAT.fullmatch(name)
