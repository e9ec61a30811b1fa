"""Models for clusters, builds of them with what a run counted, and what a test of one needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from qfold.backend.build import BuildDirectory, compile_directory
from qfold.backend.c.emit import emit
from qfold.backend.files import write_directory
from qfold.backend.riscv.readers import Element
from qfold.backend.run import Executable
from qfold.backend.simulators import Profile
from qfold.frontend import load_model
from qfold.targets import target_named
from qfold.tools.audit import AuditResult, Objects, audit
from qfold.tools.driver import Compilation, Options, compile_loaded
from qfold.tools.leafs import leaf_sequence
from qfold.tools.manifest import manifest, program_of
from qfold.tools.proof import Evidence, prove
from qfold.tools.report import assembly_functions
from tests.simulators.support import needs_spike as needs_spike


def needs_qemu() -> None:
    """Skips where qemu-riscv32, or the compiler for it, is missing."""
    if shutil.which("qemu-riscv32") is None and shutil.which("qemu-riscv32-static") is None:
        pytest.skip("target qemu is not tested: qemu-riscv32 is not on PATH")
    pytest.importorskip("ziglang", reason="target qemu is not tested: the wheel ziglang is missing")


def plausible_bytes(k: int, n: int) -> np.ndarray:
    """int8 [k, n] whose bytes are floats around 1: read as what they are not, they crash nothing."""
    floats = np.random.default_rng(0).standard_normal(k * n // 4).astype("<f4")
    return floats.view(np.int8).reshape(k, n)


def matmul_model(
    rows: int, k: int = 16, n: int = 12, *, zero_point: bool = True, unsigned: bool = False
) -> ModelProto:
    """x [rows, k] @ dequantize(8 bits [k, n], per column) + bias."""
    rng = np.random.default_rng(1)
    dtype = np.uint8 if unsigned else np.int8
    values: dict[str, np.ndarray] = {
        "w": plausible_bytes(k, n).view(dtype),
        "s": np.linspace(0.01, 0.02, n, dtype=np.float32),
        "b": rng.standard_normal(n).astype(np.float32),
    }
    if zero_point:
        values["z"] = rng.integers(0, 5, n).astype(dtype)
    graph = helper.make_graph(
        [
            helper.make_node(
                "DequantizeLinear", ["w", "s", *(["z"] if zero_point else [])], ["f"], "dq", axis=1
            ),
            helper.make_node("MatMul", ["x", "f"], ["m"], "matmul"),
            helper.make_node("Add", ["m", "b"], ["y"], "bias"),
        ],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, n])],
        [numpy_helper.from_array(a, name) for name, a in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def integer_model(
    rows: int, k: int = 16, n: int = 12, *, left: str = "uint8", right: str = "int8"
) -> ModelProto:
    """QLinearMatMul: x [rows, k] of `left` by [k, n] of `right`, zero points 0, quantised to uint8."""
    weight = plausible_bytes(k, n).view(right)
    values: dict[str, np.ndarray] = {
        "w": weight,
        "sx": np.float32(0.02),
        "zx": np.zeros((), left),
        "sw": np.linspace(0.01, 0.02, n, dtype=np.float32),
        "zw": np.zeros(n, right),
        "sy": np.float32(0.05),
        "zy": np.uint8(7),
    }
    order = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"]
    types = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
    graph = helper.make_graph(
        [helper.make_node("QLinearMatMul", order, ["y"], "matmul")],
        "integers",
        [helper.make_tensor_value_info("x", types[left], [rows, k])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [rows, n])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def compiled(model: ModelProto, target: str) -> Compilation:
    return compile_loaded(load_model(model.SerializeToString()), Options(target=target))


Edit = Callable[[dict[str, bytes]], None]


class ClusterBuild:
    """A build of a compiled network, run once."""

    def __init__(self, compilation: Compilation, edit: Edit | None = None, *, run: bool = True):
        self.compilation = compilation
        self.target = target_named(compilation.options.target)
        files = emit(compilation.kernels)
        if edit is not None:
            before = dict(files)
            edit(files)
            assert files != before
        scratch = BuildDirectory()
        source = scratch.path / "source"
        write_directory(source, files)
        self.built = compile_directory(
            source, self.target, output=scratch.path, extra_cflags=["-g"]
        )
        self.executable = Executable(compilation.kernels, self.built, scratch)
        self.profile: Profile | None = None
        if run:
            (spec,) = compilation.inputs
            self.profile = self.executable.measure(
                {"x": np.ones(spec.shape, spec.dtype)}, profile=True
            ).profile

    @property
    def evidence(self) -> Evidence:
        program = program_of(self.compilation.kernels)
        objects = Objects.of(self.built, self.target)
        return Evidence(
            self.built.binary,
            objects.kernels,
            [tuple(leaf_sequence(d.kernel)) for d in program.dispatches],
            self.profile,
            machine_code=True,
        )

    def proven(self, evidence: Evidence | None = None) -> dict[str, AuditResult]:
        kernels = self.compilation.kernels
        program = program_of(kernels)
        blocks = assembly_functions(self.compilation.report)
        results = prove(kernels, program, manifest(program), blocks, evidence or self.evidence)
        return {r.check: r for r in results}

    def audited(self) -> list[AuditResult]:
        objects = Objects.of(self.built, self.target)
        facts = self.compilation.facts
        return audit(self.compilation.kernels, facts, objects, self.target)


@contextmanager
def built(
    compilation: Compilation, edit: Edit | None = None, *, run: bool = True
) -> Iterator[ClusterBuild]:
    made = ClusterBuild(compilation, edit, run=run)
    yield made
    made.executable.close()


def lie(monkeypatch: pytest.MonkeyPatch, size: int, kind: str) -> None:
    """Have the generators take every element to be of that type."""
    monkeypatch.setattr(Element, "of", staticmethod(lambda _: Element(size, kind)))
