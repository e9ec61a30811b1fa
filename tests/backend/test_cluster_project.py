"""The C project of a network for a cluster: complete, built by its own Makefile, for every machine; and the checked build."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from qfold.backend.c.emit import emit
from qfold.backend.c.reader import read_program
from qfold.backend.c.signature import parameters
from qfold.backend.cross import CrossCompiler
from qfold.backend.elf import LinkedProgram
from qfold.backend.files import write_directory
from qfold.backend.run import build_module, pack_ports, unpack_ports
from qfold.targets import target_named
from qfold.tools.driver import Compilation, Options, compile_model
from tests.backend.level3 import Array
from tests.networks.builders import convnet
from tests.networks.weight_only import Scheme, quantize_weights

ZIG = f"{sys.executable} -m ziglang cc"


@cache
def network() -> bytes:
    """Convolutions of all kinds, pooling, a matmul of one row, a softmax; int8 weights with zero points."""
    model, _ = quantize_weights(convnet(), Scheme("axis", "int8", asymmetric=True))
    assert isinstance(model, onnx.ModelProto)
    return model.SerializeToString()


@cache
def compiled(target: str) -> Compilation:
    return compile_model(network(), Options(target=target))


@cache
def expected() -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs, and what the host computes from them."""
    executable = build_module(compiled("host").kernels)
    rng = np.random.default_rng(4)
    inputs = {
        name: rng.standard_normal(type_.get_shape()).astype(np.float32)
        for name, type_ in executable.inputs.items()
    }
    outputs = executable.run(inputs)
    executable.close()
    return inputs, outputs


def made(folder: Path, target: str, *variables: str) -> Path:
    """The project in `folder`, built by its Makefile."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    write_directory(folder, emit(compiled(target).kernels))
    done = subprocess.run(
        [make, *variables], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr
    return folder / "runner"


def test_the_makefile_builds_for_threads(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    runner = made(folder, "threads")
    inputs, outputs = expected()
    program = read_program(compiled("threads").kernels)
    (folder / "in.bin").write_bytes(pack_ports(program.inputs, inputs))
    subprocess.run([str(runner), "in.bin", "out.bin", "2"], cwd=folder, check=True, timeout=60)
    found = unpack_ports(program.outputs, (folder / "out.bin").read_bytes())
    for name, value in outputs.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["spike", "spike:isa=f", "qemu"])
def test_the_makefile_builds_for_bare_metal(tmp_path: Path, target: str) -> None:
    """By the compiler that a wheel brings; with every warning an error."""
    isa = target_named(target).isa
    assert isa is not None
    machine = " ".join(CrossCompiler(("zig",), "zig").machine_flags(isa))
    link = "LDFLAGS=-static -Wl,--gc-sections"
    if target != "qemu":
        link += " -T link.ld"
    runner = made(tmp_path / "project", target, f"CC={ZIG}", f"MACHINE={machine}", link)
    symbols = {s.name for s in LinkedProgram(runner).symbols}
    assert {"net_run", "run_on_core", "_start"} <= symbols or {"net_run", "_start"} <= symbols
    assert not {"expf", "sqrtf", "fmaf", "printf", "malloc"} & symbols


def test_which_files_there_are() -> None:
    files = emit(compiled("spike").kernels)
    assert {
        "network.h", "network.c", "network_buffers.h", "network_trace.h", "dispatches.h", "dispatches.c",
        "kernels.h", "kernels.c", "kernels.S", "weights.S", "weights.bin", "link.ld", "Makefile",
        "qfold_rt.h", "qfold_int.h", "qfold_math.h", "port.h", "runner.c", "ports/spike/start.S",
    } <= set(files)  # fmt: skip
    assert files == emit(compiled("spike").kernels)
    threads = emit(compiled("threads").kernels)
    assert "kernels.S" not in threads and "link.ld" not in threads
    assert "qfold_rt.h" not in emit(compiled("host").kernels)


def test_generated_kernels_have_a_driver_in_c() -> None:
    """One row times an int8 weight: converted in registers, by all cores."""
    files = emit(compiled("spike").kernels)
    program = read_program(compiled("spike").kernels)
    generated = {k.symbol: k.kernel for k in program.kernels if k.kernel.startswith("riscv.")}
    assert "riscv.dequant_matmul" in generated.values()
    assembly, drivers = files["kernels.S"].decode(), files["kernels.c"].decode()
    for symbol in generated:
        assert f"{symbol}_" in assembly
        assert f"{symbol}_" in drivers


def test_calls_are_traced_at_the_boundary_of_a_dispatch() -> None:
    """Core 0 reports what is in L2 before and after each dispatch: one writes what the next one reads."""
    compilation = compiled("threads:cores=3")
    executable = build_module(
        compilation.kernels, trace=True, native=False, extra_cflags=["-O1", "-fsanitize=thread"]
    )
    inputs, outputs = expected()
    traces = executable.run_traced(inputs)
    executable.close()
    program = read_program(compilation.kernels)
    assert [t.symbol for t in traces] == [d.kernel.symbol for d in program.dispatches]
    assert np.array_equal(traces[0].before[1], next(iter(inputs.values())))  # type: ignore[arg-type]
    (value,) = outputs.values()
    np.testing.assert_allclose(traces[-1].after[-1], value, rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]
    for dispatch, trace in zip(program.dispatches, traces, strict=True):
        found = parameters(dispatch.kernel)
        assert [p.read for p in found] == [b is not None for b in trace.before]
        assert [p.written for p in found] == [a is not None for a in trace.after]
        # The scratchpad is nobody's business.
        assert dispatch.kernel.is_staged == any(p.scratch for p in found)


def test_each_core_counts_its_work() -> None:
    compilation = compiled("threads:cores=3")
    executable = build_module(
        compilation.kernels, native=False, extra_cflags=["-O1", "-DQFOLD_COUNT"]
    )
    inputs, outputs = expected()
    found, counts = executable.run_counted(inputs)[:2]
    executable.close()
    for name, value in outputs.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    dispatches = len(read_program(compilation.kernels).dispatches)
    assert counts.work.shape[1:] == (dispatches, 3)
