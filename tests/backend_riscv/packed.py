"""Leaf functions of one `qkernel.packed_matmul`, with operands, and what they must compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute

from qfold.backend.c.layout import Buffer
from qfold.backend.riscv import packed_matmul
from qfold.backend.riscv.generated import GeneratedKernel, LeafKernel
from qfold.dialects.qkernel import PANEL
from qfold.interpreters import run_function
from qfold.interpreters.values import Bounded
from qfold.targets import Target
from tests.backend_riscv.harness import GAP, Array, Case, Operand, leaf_module

IN_PLACE = "y"
"""In `Epilogue.maps`: the operand is the output's own element."""


@dataclass(frozen=True)
class Epilogue:
    """What follows the product."""

    scale: str = ""
    """"", "tensor" or "column"."""
    zero_point: str = ""
    """"", "i8" or "ui8"."""
    maps: tuple[str, ...] = ()
    """The results of each epilogue operand's map, over d0 (rows) and d1 (columns)."""
    body: Sequence[str] = ()
    """The region: `%acc`, `%x0`, ...; defines `%r`."""


ADD = "%t = arith.addf %acc, %x0 : f32"
EPILOGUES: Mapping[str, Epilogue] = {
    "none": Epilogue(),
    "tensor": Epilogue("tensor"),
    "column": Epilogue("column"),
    "hoisted": Epilogue("column", "i8"),
    "hoisted tensor": Epilogue("tensor", "ui8"),
    "bias": Epilogue("column", maps=("d1",), body=["%r = arith.addf %acc, %x0 : f32"]),
    "bias relu": Epilogue(
        "column",
        maps=("d1",),
        body=[ADD, "%z = arith.constant 0.0 : f32", "%r = arith.maximumf %z, %t : f32"],
    ),
    "hoisted bias": Epilogue(
        "column", "ui8", maps=("d1",), body=["%r = arith.addf %x0, %acc : f32"]
    ),
    "residual": Epilogue(
        maps=("d1", "d0, d1"), body=[ADD, "%r = arith.addf %t, %x1 : f32"]
    ),
    "hoisted, bias, residual": Epilogue(
        "column", "i8", maps=("d1", "d0, d1"), body=[ADD, "%r = arith.addf %t, %x1 : f32"]
    ),
    "transposed residual": Epilogue(
        "tensor", maps=("d1, d0",), body=["%r = arith.addf %acc, %x0 : f32"]
    ),
    "row and scalar": Epilogue(
        maps=("d0", ""),
        body=["%t = arith.mulf %acc, %x0 : f32", "%r = arith.maxnumf %t, %x1 : f32"],
    ),
    "clip": Epilogue(
        "column",
        maps=("d1",),
        body=[
            "%low = arith.constant -0.5 : f32",
            "%high = arith.constant 0.75 : f32",
            "%t = arith.maximumf %acc, %low : f32",
            "%u = arith.minimumf %t, %high : f32",
            "%v = arith.minnumf %u, %x0 : f32",
            "%r = arith.addf %v, %acc : f32",
        ],
    ),
    "many": Epilogue(
        "column",
        "i8",
        maps=("d1", "d1", "d1", "d0, d1", "d0, d1", "d0"),
        body=[
            ADD,
            "%u = arith.mulf %t, %x1 : f32",
            "%v = arith.addf %u, %x2 : f32",
            "%w = arith.mulf %v, %x3 : f32",
            "%o = arith.addf %w, %x4 : f32",
            "%q = arith.maximumf %o, %x5 : f32",
            "%r = arith.addf %q, %t : f32",
        ],
    ),
}  # fmt: skip


ALL_EPILOGUES: Mapping[str, Epilogue] = {
    **EPILOGUES,
    "in place": Epilogue(
        "column", maps=("d1", IN_PLACE), body=[ADD, "%r = arith.addf %t, %x1 : f32"]
    ),
}


@dataclass(frozen=True)
class Problem:
    """A leaf function and its operands."""

    m: int
    n: int
    k: int
    epilogue: str = "column"
    a_stride: int | None = None
    """Elements from row to row."""
    y_stride: int | None = None
    split: tuple[int, int] | None = None
    block: tuple[int, int] | None = None
    operands: dict[str, Operand] = field(default_factory=dict[str, Operand])

    def __post_init__(self) -> None:
        source = np.random.default_rng([self.m, self.n, self.k])
        m, n, k, e = self.m, self.n, self.k, ALL_EPILOGUES[self.epilogue]

        def normal(*shape: int) -> Array:
            return source.standard_normal(shape).astype(np.float32)

        def rows(stride: int | None) -> tuple[int, int] | None:
            return None if stride is None else (stride, 1)

        # What fills the last panel must not matter, so it is the worst.
        p = np.full((-(-n // PANEL), k, PANEL), np.nan, np.float32)
        w = normal(k, n)
        for column in range(n):
            p[column // PANEL, :, column % PANEL] = w[:, column]
        found = {"a": Operand(normal(m, k), rows(self.a_stride)), "p": Operand(p)}
        shape = () if e.scale == "tensor" else (n,)
        if e.scale:
            found["scale"] = Operand(np.abs(normal(*shape)) + np.float32(0.5))
        if e.zero_point:
            dtype, low = (np.int8, -128) if e.zero_point == "i8" else (np.uint8, 0)
            found["z"] = Operand(source.integers(low, low + 256, shape).astype(dtype))
            found["sums"] = Operand(found["a"].array.sum(axis=1))
        sizes = {"d0": m, "d1": n}
        for i, map_ in enumerate(e.maps):
            if map_ == IN_PLACE:
                continue
            extents = [sizes[d] for d in map_.split(", ")] if map_ else []
            found[f"e{i}"] = Operand(normal(*extents))
        before = normal(m, n) if IN_PLACE in e.maps else np.full((m, n), np.nan, np.float32)
        found["y"] = Operand(before, rows(self.y_stride))
        self.operands.update(found)

    @property
    def text(self) -> str:
        e = ALL_EPILOGUES[self.epilogue]
        arguments = ", ".join(f"%{n}: {o.type}" for n, o in self.operands.items())
        written = self.operands["y"].type
        types = ", ".join(
            [o.type for n, o in self.operands.items() if n != "y"]
            + [written] * (e.maps.count(IN_PLACE) + 1)
        )
        clauses = " scale(%scale)" if e.scale else ""
        if e.zero_point:
            clauses += " zero_point(%z) row_sum(%sums)"
        region = after = ""
        if e.body:
            names = ["%y" if m == IN_PLACE else f"%e{i}" for i, m in enumerate(e.maps)]
            results = ["d0, d1" if m == IN_PLACE else m for m in e.maps]
            maps = ", ".join(f"affine_map<(d0, d1) -> ({m})>" for m in results)
            clauses += f" epilogue({', '.join(names)})"
            after = f"maps [{maps}] "
            arguments_of_body = ("%acc", *(f"%x{i}" for i in range(len(names))))
            inner = ", ".join(f"{n} : f32" for n in arguments_of_body)
            region = f"{{\n^bb0({inner}):\n" + "\n".join(e.body) + "\nqmm.yield %r : f32\n}"
        hoisted = "{hoisted}" if e.zero_point else ""
        attributes: list[str] = []
        if self.split:
            attributes.append(f"qmm.split = array<i64: {self.split[0]}, {self.split[1]}>")
        if self.block:
            attributes.append(f"qmm.block = array<i64: {self.block[0]}, {self.block[1]}>")
        return f"""
            func.func private @leaf({arguments}) attributes {{{", ".join(attributes)}}} {{
              qkernel.packed_matmul %a, %p{clauses} outs(%y) {after}{hoisted} : ({types}) -> () {region}
              func.return
            }}
        """

    def generate(self, leaf: LeafKernel) -> GeneratedKernel:
        return packed_matmul.generate(leaf)

    def case(self, target: Target, name: str = "leaf") -> Case:
        """The generated kernel, and memory as it finds it."""
        (function,) = (o for o in leaf_module(self.text).walk() if isinstance(o, func.FuncOp))
        buffers: list[Buffer] = []
        memory: dict[str, Array] = {}
        for argument, (operand, value) in zip(
            function.body.block.args, self.operands.items(), strict=True
        ):
            type_ = cast("MemRefType[Attribute]", argument.type)
            buffers.append(Buffer(operand, type_))
            memory[operand] = value.stored(type_)
        named = dict(zip(function.body.block.args, buffers, strict=True))
        kernel = self.generate(LeafKernel(function, name, target, named))
        return Case(kernel, tuple(buffers), memory)

    def expected(self) -> Bounded:
        """The output and how far a float32 computation may be from it."""
        arrays = [o.array for o in self.operands.values()]
        result = run_function(leaf_module(self.text), "leaf", arrays, "bounded")[-1]
        assert isinstance(result, Bounded)
        return result

    def exact(self) -> Array:
        """The output in the IR's own types, NaNs included."""
        arrays = [o.array.copy() for o in self.operands.values()]
        result = run_function(leaf_module(self.text), "leaf", arrays)[-1]
        assert isinstance(result, np.ndarray)
        return result

    def check(self, stored: Array) -> None:
        """`stored` is the output's memory afterwards: every element is right, and nothing else was written."""
        y = self.operands["y"]
        found = stored
        if y.strides is not None:
            found = stored[y.positions]
            between = np.delete(stored, y.positions.ravel())
            assert (between == GAP).all(), f"{self}: written between the rows"
        expected = self.expected()
        error = np.abs(found - expected.value)
        wrong = ~(error <= expected.bound)
        assert not wrong.any(), (
            f"{self}: {wrong.sum()} of {wrong.size} wrong, e.g. {found[wrong][0]} for {expected.value[wrong][0]}"
        )

    def __str__(self) -> str:
        return (
            f"{self.m}x{self.n}x{self.k} {self.epilogue}, strides {self.a_stride} {self.y_stride}, "
            f"split {self.split}, block {self.block}"
        )
