"""`riscv.quant_conv`: depthwise convolutions of all shapes, on Spike and qemu, in bounds, to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import MemRefType, UnitAttr, f32
from xdsl.ir import Attribute

from qfold.backend.c.layout import Buffer
from qfold.backend.riscv import depthwise
from qfold.backend.riscv.generated import CannotGenerate, LeafKernel
from qfold.dialects import qkernel
from qfold.dialects.contraction import WORD_WINDOWS, int_array
from qfold.dialects.element_types import i8, i32, ui8
from qfold.interpreters import run
from qfold.targets import Target, target_named
from qfold.transforms.qmm_outline_kernels import QmmOutlineKernelsPass, functions
from tests.backend_riscv.harness import Array, Case, needs_qemu, run_on_qemu
from tests.backend_riscv.on_spike import needs_spike, run_on_spike
from tests.transforms_buffer.helpers import bufferized
from tests.transforms_buffer.integers import Conv, convs, extreme, inputs_of

SAME = [1, 1, 1, 1]
BIAS = (i32, (1,))


@dataclass(frozen=True)
class Depthwise:
    """A convolution as a leaf function, divided in some way."""

    conv: Conv
    split: tuple[int, ...] = ()

    @staticmethod
    def of(
        x: tuple[int, ...],
        kernel: tuple[int, ...],
        split: tuple[int, ...] = (),
        *,
        multiplier: int = 1,
        **options: Any,
    ) -> Depthwise:
        w = (x[1] * multiplier, 1, *kernel)
        options.setdefault("pads", SAME if len(kernel) == 2 else [1, 1])
        return Depthwise(Conv(x, w, groups=x[1], **options), split)

    def leaf(self, target: Target, name: str) -> LeafKernel:
        module = bufferized(convs([self.conv]), target)
        QmmOutlineKernelsPass().apply(Context(), module)
        (function,) = (f for f in functions(module) if f.sym_name.data != "main")
        (op,) = (o for o in function.walk() if isinstance(o, qkernel.QuantConvOp))
        op.attributes[WORD_WINDOWS] = UnitAttr()
        if self.split:
            function.attributes["qmm.split"] = int_array(self.split)
        zeros = list(self.conv.zero_points)
        added = [f"added{i}" for i in range(len(self.conv.operands))]
        names = ["x", "w", *zeros, *added, "y"]
        buffers = {
            argument: Buffer(n, cast("MemRefType[Attribute]", argument.type))
            for n, argument in zip(names, function.body.block.args, strict=True)
        }
        return LeafKernel(function, name, target, buffers)

    def case(self, target: Target, name: str) -> tuple[Case, Array]:
        leaf = self.leaf(target, name)
        made = convs([self.conv])
        inputs = inputs_of(made, len(name))
        (expected,) = (np.asarray(v) for v in run(made, inputs))
        kernel = depthwise.generate(leaf)
        x, *added = inputs
        y = (np.ascontiguousarray(expected).view(np.uint8) ^ 0x55).view(expected.dtype)
        values = [x, extreme(self.conv.w, self.conv.types[1], 1), *added, y]
        operands = {b.name: v for b, v in zip(leaf.buffers.values(), values, strict=True)}
        # Buffers start at words; rows of x need not.
        alignments = {"x": 4}
        return Case(kernel, tuple(leaf.buffers.values()), operands, alignments=alignments), expected


CASES = {
    "keywords": Depthwise.of((1, 64, 20, 5), (3, 3), (1, 8, 1, 1), types=(ui8, i8)),
    **{
        f"width {w}": Depthwise.of((1, 3, 4, w), (3, 3), types=(ui8, i8) if w % 2 else (i8, i8))
        for w in (1, 2, 3, 4, 6, 7, 9, 16, 19, 40)
    },
    **{
        f"kernel {h}x{w}": Depthwise.of(
            (1, 2, 7, 21), (h, w), pads=[h // 2, w // 2, (h - 1) // 2, (w - 1) // 2]
        )
        for h, w in ((1, 1), (2, 2), (4, 4), (3, 4), (4, 1), (1, 3))
    },
    "no padding": Depthwise.of((1, 3, 9, 18), (3, 3), pads=[0, 0, 0, 0]),
    "much padding": Depthwise.of((1, 2, 3, 5), (3, 3), pads=[4, 6, 3, 5], types=(i8, ui8)),
    "a value around": Depthwise.of((1, 3, 5, 7), (3, 3), pad_value=-128),
    "another around": Depthwise.of(
        (2, 3, 6, 22),
        (3, 4),
        pads=[2, 3, 2, 5],
        pad_value=255,
        types=(ui8, ui8),
        operands=(),
        result=i32,
    ),
    "around in a loop": Depthwise.of((1, 2, 3, 32), (2, 3), pads=[1, 2, 0, 1], pad_value=3),
    "strides of rows": Depthwise.of((1, 3, 11, 13), (3, 3), strides=[2, 1]),
    "strides": Depthwise.of((1, 3, 11, 13), (3, 3), strides=[2, 2]),
    "strides in a loop": Depthwise.of((1, 2, 9, 71), (3, 3), strides=[2, 2], types=(ui8, i8)),
    "strides of three": Depthwise.of(
        (1, 2, 9, 64), (2, 4), strides=[1, 3], pads=[0, 2, 1, 0], pad_value=-77
    ),
    "strides of four": Depthwise.of((1, 2, 3, 84), (3, 2), strides=[1, 4]),
    "dilations of rows": Depthwise.of((1, 3, 11, 13), (3, 3), pads=[2, 1, 2, 1], dilations=[2, 1]),
    "multiplier": Depthwise.of((1, 3, 5, 9), (3, 3), (1, 5, 1, 1), multiplier=2),
    "rows divided": Depthwise.of((2, 2, 13, 10), (3, 3), (1, 2, 4, 1)),
    "images divided": Depthwise.of((3, 2, 4, 10), (3, 3), (3, 1, 2, 1)),
    "line": Depthwise.of((2, 3, 37), (3,), (2, 3, 1), types=(ui8, i8)),
    "sums": Depthwise.of((1, 3, 5, 9), (3, 3), operands=(), result=i32),
    "floats": Depthwise.of(
        (1, 3, 5, 9), (3, 3), operands=[(f32, (1,)), (f32, (0, 1, 2, 3))], result=f32
    ),
    "many operands": Depthwise.of(
        (2, 3, 5, 27),
        (4, 4),
        pads=[2, 2, 1, 1],
        operands=[(i8, (0, 1, 2, 3)), BIAS, (i32, (0, 1, 2, 3)), (i32, ()), (i32, (0,))],
        result=ui8,
        types=(ui8, i8),
    ),
    "many and a value": Depthwise.of(
        (1, 3, 6, 30),
        (4, 3),
        pads=[2, 2, 1, 1],
        operands=[(i8, (0, 1, 2, 3)), (i8, (1,)), (i32, (0, 1, 2, 3)), (i32, ())],
        pad_value=-9,
    ),
}


def _compare(found: Array, expected: Array, name: str) -> None:
    np.testing.assert_array_equal(found.reshape(expected.shape), expected, err_msg=name)


@needs_spike
@pytest.mark.parametrize("isa", ["zfinx", "f"])
def test_on_spike(isa: str, tmp_path: Path) -> None:
    target = target_named(f"spike:isa={isa}")
    made = {n: c.case(target, f"leaf{i}") for i, (n, c) in enumerate(CASES.items())}
    runs, _ = run_on_spike([case for case, _ in made.values()], target, tmp_path)
    for (name, (case, expected)), ran in zip(made.items(), runs, strict=True):
        _compare(ran.outputs["y"], expected, name)
        assert np.unique(expected).size > 1, name
        text = case.kernel.assembly
        assert ".insn" in text, name
        facts = case.kernel.facts
        assert isinstance(facts["instructions"], int)
        # What is predicted is in assembly; the driver's share comes on top.
        assert sum(ran.work) >= facts["instructions"], name
    facts = made["keywords"][0].kernel.facts
    assert cast(float, facts["instructions_per_mac"]) < 1.9


WITHOUT_DOT_PRODUCTS = (
    *("keywords", "width 2", "width 7", "width 40", "kernel 4x1", "much padding", "multiplier"),
    *("a value around", "around in a loop", "rows divided", "line", "floats", "sums"),
)


@needs_qemu
def test_on_qemu(tmp_path: Path) -> None:
    target = target_named("qemu")
    chosen = {name: CASES[name] for name in WITHOUT_DOT_PRODUCTS}
    made = {n: c.case(target, f"leaf{i}") for i, (n, c) in enumerate(chosen.items())}
    runs = run_on_qemu([case for case, _ in made.values()], tmp_path)
    for (name, (_, expected)), outputs in zip(made.items(), runs, strict=True):
        _compare(outputs["y"], expected, name)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Depthwise.of((1, 2, 5, 9), (3, 5)), "at most a word"),
        (Depthwise.of((1, 2, 5, 9), (3, 3), strides=[1, 5]), "at most a word apart"),
        (Depthwise.of((1, 2, 5, 9), (3, 2), dilations=[1, 2]), "at most a word apart, and dense"),
        (Depthwise.of((1, 2, 5, 9), (3, 3), (1, 1, 1, 2)), "columns are not divided"),
        (Depthwise.of((1, 2, 5, 900), (3, 3)), "offsets reach"),
        (
            Depthwise(Conv((1, 4, 5, 9), (4, 2, 3, 3), groups=2)),
            "each input channel is a group",
        ),
        (
            Depthwise.of((1, 2, 5, 9), (3, 3), zero_points={"x_zero_point": np.int8(3)}),
            "no zero points",
        ),
        (Depthwise.of((1, 2, 5, 9), (3, 3), operands=[(i32, (2,))]), "one element per row"),
    ],
)
def test_what_is_refused(case: Depthwise, message: str) -> None:
    case = replace(case, split=case.split or (1, 1, 1, 1))
    with pytest.raises(CannotGenerate, match=message):
        depthwise.generate(case.leaf(target_named("spike"), "leaf"))
