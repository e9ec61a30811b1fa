"""The order of the passes, and what runs them."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from qfold.dialects import qkernel, qmm
from qfold.dialects.element_types import i8
from qfold.interpreters import run
from qfold.ir.builder import TensorBuilder
from qfold.transforms import get_all_passes
from qfold.transforms.pipelines import (
    compile_pipeline,
    kernel_pipeline,
    run_passes,
    tensor_pipeline,
)
from tests.transforms_buffer.helpers import main, module, ops, small_inputs, total


def network(b: TensorBuilder, x: SSAValue) -> SSAValue:
    weight = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    quant = qmm.QuantAttr.get(i8, [1.0, 0.5, 2.0], [1, 2, 3], axis=1)
    w = b(qmm.DequantizeOp, b.constant(weight), quant)
    y = b(qmm.MatmulOp, x, w)
    return total(b, y, 0)


def kinds(module_: ModuleOp) -> set[str]:
    return {op.name for op in module_.walk()}


def test_names_follow_files():
    for name, load in get_all_passes().items():
        found = load()
        assert found.name == name
        assert found.__module__ == f"qfold.transforms.{name.replace('-', '_')}"


def names(passes: tuple[ModulePass, ...]) -> list[str]:
    return [p.name for p in passes]


def test_order():
    assert names(compile_pipeline()) == names((*tensor_pipeline(), *kernel_pipeline()))
    assert names(kernel_pipeline()) == [
        "qmm-bufferize",
        "qmm-verify-buffers",
        "qmm-outline-kernels",
        "qmm-select-kernels",
        "qmm-plan-memory",
        "qmm-check-plan",
    ]
    assert "qmm-check-plan" not in names(kernel_pipeline(check=False))
    assert "qmm-hoist-zero-point" not in names(tensor_pipeline(hoist=False))
    assert "qmm-fuse-dequant" not in names(tensor_pipeline(fuse=False))
    assert "qmm-hoist-zero-point" not in names(tensor_pipeline(fuse=False))


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("hoist", [True, False])
def test_every_choice_computes_the_same(fuse: bool, hoist: bool):
    made = module([(2, 4)], network)  # fewer rows than columns: hoisting pays
    inputs = small_inputs(made)
    expected = np.array(run(made, inputs)[0])
    seen: list[str] = []
    passes = compile_pipeline(fuse=fuse, hoist=hoist)
    run_passes(Context(), made, passes, verify_each=True, on_pass=lambda n, s: seen.append(n))
    assert seen == names(passes)
    np.testing.assert_array_equal(run(made, inputs)[0], expected)
    kernels = [op for op in made.walk() if isinstance(op, qkernel.CONTRACTIONS)]
    assert [op.name for op in kernels] == ["qkernel.dequant_matmul" if fuse else "qkernel.matmul"]
    if fuse:
        assert (kernels[0].properties.get("hoisted") is not None) == hoist
    assert "qmm.plan" in main(made).attributes
    assert all("qmm.dispatch" in c.attributes for c in ops(made, func.CallOp))
    assert not {n for n in kinds(made) if n.startswith("qmm.")} - {"qmm.yield"}


class _Break(ModulePass):
    name = "break"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        ops(op, func.ReturnOp)[0].operands[0] = main(op).args[0]


def test_verify_each_finds_the_pass_that_broke_the_module():
    with pytest.raises(Exception, match="return"):
        run_passes(Context(), module([(5, 4)], network), [_Break()], verify_each=True)
    run_passes(Context(), module([(5, 4)], network), [_Break()])
