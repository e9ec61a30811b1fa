"""`riscv.pack_bytes` and `riscv.pack_window`: matrices and windows of all shapes, on Spike and qemu, in bounds, to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute

from qfold.backend.c.layout import Buffer
from qfold.backend.riscv import pack_bytes, pack_window
from qfold.backend.riscv.generated import Generator, LeafKernel
from qfold.targets import Target, target_named
from tests.backend_riscv.harness import Array, Case, Operand, leaf_module, needs_qemu, run_on_qemu
from tests.backend_riscv.on_spike import needs_spike, run_on_spike
from tests.backend_riscv.quantised import extremes, packed_bytes


def _case(
    text: str,
    generate: Generator,
    target: Target,
    name: str,
    operands: dict[str, Operand],
    aligned: int,
) -> Case:
    (function,) = (o for o in leaf_module(text).walk() if isinstance(o, func.FuncOp))
    buffers: list[Buffer] = []
    memory: dict[str, Array] = {}
    for argument, (operand, value) in zip(function.body.block.args, operands.items(), strict=True):
        type_ = cast("MemRefType[Attribute]", argument.type)
        buffers.append(Buffer(operand, type_))
        memory[operand] = value.stored(type_)
    named = dict(zip(function.body.block.args, buffers, strict=True))
    kernel = generate(LeafKernel(function, name, target, named))
    first = next(iter(operands))
    return Case(kernel, tuple(buffers), memory, alignments={first: aligned})


@dataclass(frozen=True)
class Matrix:
    """A matrix to pack."""

    k: int
    n: int
    transposed: bool = False
    stride: int | None = None
    """Bytes from row to row as it is stored."""
    split: tuple[int, int] = (1, 1)
    type: str = "i8"
    unknown_offset: bool = False

    def case(self, target: Target, name: str) -> tuple[Case, Array]:
        source = np.random.default_rng([self.k, self.n])
        w = extremes(source, self.type, (self.k, self.n))
        stored = np.ascontiguousarray(w.T) if self.transposed else w
        stride = self.stride or stored.shape[1]
        strided = self.stride is not None or self.unknown_offset
        operand = Operand(stored, (stride, 1) if strided else None, self.unknown_offset)
        expected = packed_bytes(w)
        y = Operand((expected.view(np.uint8) ^ 0x55).view(expected.dtype))
        attribute = " {transpose_b}" if self.transposed else ""
        text = f"""
            func.func private @leaf(%w: {operand.type}, %y: {y.type})
                attributes {{qmm.split = array<i64: {self.split[0]}, {self.split[1]}>}} {{
              qkernel.pack_bytes %w outs(%y){attribute} : ({operand.type}, {y.type}) -> ()
              func.return
            }}"""
        distance = (stride if self.transposed else 1) if self.n > 1 else 0
        aligned = 1 if self.unknown_offset else next(b for b in (4, 2, 1) if distance % b == 0)
        operands = {"w": operand, "y": y}
        return _case(text, pack_bytes.generate, target, name, operands, aligned), expected


@dataclass(frozen=True)
class Windows:
    """Windows to pack."""

    channels: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    split: tuple[int, int] = (1, 1)
    x_strides: tuple[int, ...] | None = None
    type: str = "i8"
    pad_value: int = -3

    def case(self, target: Target, name: str) -> tuple[Case, Array]:
        source = np.random.default_rng([self.channels, *self.spatial])
        x = extremes(source, self.type, (self.channels, *self.spatial))
        rank = len(self.spatial)
        filled = np.pad(
            x,
            [(0, 0), *((self.pads[d], self.pads[rank + d]) for d in range(rank))],
            constant_values=self.pad_value,
        )
        outputs = [
            (filled.shape[1 + d] - (self.kernel[d] - 1) * self.dilations[d] - 1) // self.strides[d]
            + 1
            for d in range(rank)
        ]
        rows: list[Array] = []
        for channel in filled:
            for tap in product(*(range(k) for k in self.kernel)):
                places = tuple(
                    slice(t * d, t * d + (o - 1) * s + 1, s)
                    for t, d, o, s in zip(tap, self.dilations, outputs, self.strides, strict=True)
                )
                rows.append(channel[places].ravel())
        expected = packed_bytes(np.stack(rows))
        y = Operand((expected.view(np.uint8) ^ 0x55).view(expected.dtype))
        operand = Operand(x, self.x_strides)

        def numbers(values: Sequence[int]) -> str:
            return f"array<i64: {', '.join(map(str, values))}>"

        text = f"""
            func.func private @leaf(%x: {operand.type}, %y: {y.type})
                attributes {{qmm.split = {numbers(self.split)}}} {{
              qkernel.pack_window %x outs(%y) {{kernel_shape = {numbers(self.kernel)}, strides = {numbers(self.strides)},
                pads = {numbers(self.pads)}, dilations = {numbers(self.dilations)}, pad_value = {self.pad_value} : i64}}
                : ({operand.type}, {y.type}) -> ()
              func.return
            }}"""
        assert prod(outputs)
        operands = {"x": operand, "y": y}
        return _case(text, pack_window.generate, target, name, operands, 1), expected


MATRICES = [
    Matrix(k, n, transposed, split=((1, 1), (2, 2), (8, 1), (1, 4))[(k + n) % 4], type=("i8", "ui8")[k % 2])
    for transposed in (False, True)
    for k, n in product((1, 2, 3, 4, 5, 7, 8, 9, 18), (1, 2, 3, 4, 5, 9))
] + [
    Matrix(9, 9, stride=12),
    Matrix(9, 9, stride=700),
    Matrix(10, 9, stride=1000),
    Matrix(9, 6, stride=5000),
    Matrix(9, 6, transposed=True, stride=12),
    Matrix(9, 6, transposed=True, stride=10),
    Matrix(11, 6, transposed=True, stride=700),
    Matrix(11, 6, transposed=True, stride=1200),
    Matrix(11, 6, transposed=True, stride=1201, split=(2, 2)),
    Matrix(9, 6, transposed=True, stride=12, unknown_offset=True),
]  # fmt: skip
FEW_CHANNELS = [
    Windows(8, (5, 5), (1, 1)),
    Windows(6, (4, 8), (1, 1), split=(2, 2)),
    Windows(3, (4, 8), (1, 1), x_strides=(60, 12, 1)),
    Windows(5, (9, 9), (1, 1), strides=(2, 2)),
    Windows(5, (9, 9), (1, 1), pads=(1, 0, 0, 1)),
    Windows(4, (6, 12), (3, 3), pads=(1, 1, 1, 1), split=(8, 1)),
    Windows(7, (6, 12), (3, 3), pads=(1, 1, 1, 1), split=(2, 4), type="ui8", pad_value=250),
    Windows(16, (12, 12), (3, 3)),
    Windows(1, (7, 7), (3, 3), pads=(1, 1, 1, 1)),
    Windows(3, (13, 11), (3, 3), strides=(2, 2), pads=(0, 1, 1, 0), split=(1, 8)),
    Windows(9, (10, 40), (3, 3), strides=(1, 2), pads=(1, 1, 1, 1), x_strides=(700, 50, 1)),
    Windows(
        1,
        (49, 13),
        (10, 4),
        strides=(2, 2),
        pads=(4, 1, 5, 1),
        type="ui8",
        pad_value=0,
        split=(4, 2),
    ),
    Windows(3, (20, 9), (9, 9), pads=(4, 4, 4, 4), dilations=(1, 1)),
    Windows(2, (20, 9), (10, 4), strides=(2, 2), pads=(4, 1, 5, 1)),
    Windows(5, (9, 9), (2, 2), dilations=(3, 2), pads=(2, 0, 0, 1)),
    Windows(6, (30,), (5,), strides=(1,), pads=(2, 2), dilations=(1,)),
    Windows(6, (30,), (4,), strides=(3,), pads=(0, 0), dilations=(2,), split=(3, 1)),
    Windows(4, (3, 3), (3, 3), pads=(2, 2, 2, 2)),
    # None inside of the image, as in a tile of the border.
    Windows(1, (5, 10), (10, 4), strides=(2, 2), pads=(4, 1, 1, 1), split=(2, 2)),
    Windows(4, (2, 600), (1, 3), x_strides=(3000, 1200, 2)),
]


WINDOWS = [
    *FEW_CHANNELS,
    # With more channels each tap is a call, by one pointer or by four.
    *(replace(w, channels=w.channels + 7) for w in FEW_CHANNELS),
]


@needs_spike
@pytest.mark.parametrize("problems", [MATRICES, WINDOWS], ids=["matrices", "windows"])
def test_on_spike(problems: list[Matrix | Windows], tmp_path: Path) -> None:
    """Every byte is written, the last word's and the last panel's zeros too; no load is misaligned or out of bounds."""
    machine = target_named("spike")
    made = [p.case(machine, f"k{i}") for i, p in enumerate(problems)]
    runs, profile = run_on_spike([case for case, _ in made], machine, tmp_path)
    for problem, (case, expected), run in zip(problems, made, runs, strict=True):
        np.testing.assert_array_equal(run.outputs["y"], expected, err_msg=str(problem))
        predicted = cast(int, case.kernel.facts["instructions"])
        assert predicted <= sum(run.work), problem
        loads: dict[str, int] = {}
        for f in case.kernel.functions:
            assert profile[f.symbol].calls, f"{f.symbol} never runs: {problem}"
            for name, count in profile[f.symbol].loads.items():
                loads[name] = loads.get(name, 0) + count
        if case.kernel.facts["moves"] == "words" and case.kernel.facts["alignment"] == 4:
            assert isinstance(problem, Matrix)
            assert loads.get("lw", 0) + loads.get("p.lw", 0) == problem.n * (problem.k // 4)


@needs_qemu
@pytest.mark.parametrize("problems", [MATRICES[::3], WINDOWS[::2]], ids=["matrices", "windows"])
def test_on_qemu(problems: list[Matrix | Windows], tmp_path: Path) -> None:
    """The same without XpulpV2, with a page that must not be touched after each operand."""
    machine = target_named("qemu")
    made = [p.case(machine, f"k{i}") for i, p in enumerate(problems)]
    outputs = run_on_qemu([case for case, _ in made], tmp_path)
    for problem, (_, expected), output in zip(problems, made, outputs, strict=True):
        np.testing.assert_array_equal(output["y"], expected, err_msg=str(problem))
