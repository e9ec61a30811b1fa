"""The integer part of the kernel benchmark: generated kernels on bytes in L1, and what they must compute to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from _cluster_programs import BEGIN, Job, Memory
from _leaf_jobs import LeafSet

from qfold.backend.riscv import GeneratedKernel
from qfold.dialects.qkernel import PANEL
from qfold.dialects.qkernel.packed_integers import STEPS, packed_bytes_shape
from qfold.targets import Target

Integers = npt.NDArray[np.int64]
LEFT = 7
"""Bits that sums of 256 products leave free: what they are shifted by before the upper half of a product is taken."""
SHIFT = 14
ADD = (2 * -3 + 1) << SHIFT - 1
"""Half of a unit, and a zero point of -3."""


def in_panels(w: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """A [K, N] matrix as `qkernel.pack_bytes` stores it."""
    panels, words, *_ = packed_bytes_shape(*w.shape)
    padded = np.zeros((words * STEPS, panels * PANEL), np.int8)
    padded[: w.shape[0], : w.shape[1]] = w
    ordered = padded.reshape(words, STEPS, panels, PANEL).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(ordered)


@dataclass(frozen=True)
class IntegerProblem:
    """Rows of bytes times a weight of bytes, and numbers per column that requantise the sums."""

    m: int
    k: int
    n: int
    a: npt.NDArray[np.int8]
    w: npt.NDArray[np.int8]
    columns: Mapping[str, npt.NDArray[np.int32]]

    @staticmethod
    def random(m: int, k: int, n: int) -> IntegerProblem:
        source = np.random.default_rng([m, k, n])

        def column(low: int, high: int) -> npt.NDArray[np.int32]:
            return source.integers(low, high, n).astype(np.int32)

        return IntegerProblem(
            m,
            k,
            n,
            source.integers(-128, 128, (m, k)).astype(np.int8),
            source.integers(-128, 128, (k, n)).astype(np.int8),
            {
                "bias": column(-50000, 50000),
                "mul": column(1 << 30, (1 << 31) - 1),
                "add": column(1 << 13, 1 << 15),
                "shift": column(13, 16),
                "small": column(1 << 5, 1 << 8),
            },
        )

    @property
    def name(self) -> str:
        return f"{self.m}x{self.k}x{self.n}"

    @property
    def macs(self) -> int:
        return self.m * self.n * self.k

    @property
    def sums(self) -> Integers:
        return self.a.astype(np.int64) @ self.w.astype(np.int64)

    @property
    def packed(self) -> npt.NDArray[np.int8]:
        """The weight in panels."""
        return in_panels(self.w)


@dataclass(frozen=True)
class Finish:
    """An epilogue."""

    name: str
    output: str
    columns: tuple[str, ...]
    body: str
    compute: Callable[[IntegerProblem], Integers]


def _clamped(x: Integers) -> Integers:
    return np.clip(x, -128, 127)


def _high(p: IntegerProblem) -> Integers:
    c = {name: values.astype(np.int64) for name, values in p.columns.items()}
    return np.asarray(((p.sums + c["bias"]) << LEFT) * c["mul"] >> 32)


def _fixed_point(p: IntegerProblem) -> Integers:
    return _clamped((_high(p) + ADD) >> SHIFT)


def _by_column(p: IntegerProblem) -> Integers:
    return _clamped((_high(p) + p.columns["add"]) >> p.columns["shift"])


def _product(p: IntegerProblem) -> Integers:
    c = {name: values.astype(np.int64) for name, values in p.columns.items()}
    return _clamped(((p.sums + c["bias"]) * c["small"] + (ADD << 4)) >> SHIFT + 4)


_HIGH = f"""
  %biased = arith.addi %acc, %bias : i32
  %left = arith.constant {LEFT} : i32
  %wide = arith.shli %biased, %left : i32
  %unused, %h = arith.mulsi_extended %wide, %mul : i32"""
_CLAMP = """
  %low = arith.constant -128 : i32
  %high = arith.constant 127 : i32
  %raised = arith.maxsi %q, %low : i32
  %limited = arith.minsi %raised, %high : i32
  %r = arith.trunci %limited : i32 to i8
  qmm.yield %r : i8"""

FINISHES = (
    Finish("i32 out", "i32", (), "", lambda p: p.sums),
    Finish(
        "requantised, mulh",
        "i8",
        ("bias", "mul"),
        f"""{_HIGH}
  %add = arith.constant {ADD} : i32
  %t = arith.addi %h, %add : i32
  %shift = arith.constant {SHIFT} : i32
  %q = arith.shrsi %t, %shift : i32{_CLAMP}""",
        _fixed_point,
    ),
    Finish(
        "requantised, mulh, shifts by column",
        "i8",
        ("bias", "mul", "add", "shift"),
        f"""{_HIGH}
  %t = arith.addi %h, %add : i32
  %q = arith.shrsi %t, %shift : i32{_CLAMP}""",
        _by_column,
    ),
    Finish(
        "requantised, 32 bits",
        "i8",
        ("bias", "small"),
        f"""
  %biased = arith.addi %acc, %bias : i32
  %p = arith.muli %biased, %small : i32
  %add = arith.constant {ADD << 4} : i32
  %t = arith.addi %p, %add : i32
  %shift = arith.constant {SHIFT + 4} : i32
  %q = arith.shrsi %t, %shift : i32{_CLAMP}""",
        _product,
    ),
)


def _memref(*shape: int, element: str) -> str:
    return f"memref<{''.join(f'{d}x' for d in shape)}{element}, 1 : i64>"


def _matmul(leaves: LeafSet, symbol: str, p: IntegerProblem, finish: Finish) -> GeneratedKernel:
    operands = {
        "a": _memref(p.m, p.k, element="i8"),
        "p": _memref(*packed_bytes_shape(p.k, p.n), element="i8"),
        **{f"e_{name}": _memref(p.n, element="i32") for name in finish.columns},
        "y": _memref(p.m, p.n, element=finish.output),
    }
    arguments = [f"%the_{name}: {type_}" for name, type_ in operands.items()]
    clauses = region = ""
    if finish.columns:
        maps = ", ".join(["affine_map<(d0, d1) -> (d1)>"] * len(finish.columns))
        clauses = f" epilogue({', '.join(f'%the_e_{c}' for c in finish.columns)})"
        inner = ", ".join(["%acc: i32", *(f"%{c}: i32" for c in finish.columns)])
        region = f" {{\n^bb0({inner}):{finish.body}\n}}"
    after = f" maps [{maps}]" if finish.columns else ""
    op = (
        f"qkernel.packed_quant_matmul %the_a, %the_p{clauses} outs(%the_y){after}"
        f" : ({', '.join(operands.values())}) -> (){region}"
    )
    return leaves.add(symbol, "riscv.packed_quant_matmul", arguments, op)


@dataclass(frozen=True)
class IntegerContest:
    """Jobs on the same operands, one program."""

    problem: IntegerProblem
    memory: Memory
    jobs: tuple[Job, ...]
    expected: tuple[bytes, ...]
    """What each job leaves at the start of `y`."""
    leaves: LeafSet


def products(problem: IntegerProblem, target: Target) -> IntegerContest:
    """The product with each way to finish it."""
    leaves = LeafSet(target)
    jobs: list[Job] = []
    expected: list[bytes] = []
    for i, finish in enumerate(FINISHES):
        made = _matmul(leaves, f"product{i}", problem, finish)
        output = f"{'int8' if finish.output == 'i8' else 'int32'}_t"
        columns = [f"(const int32_t *)AT_{c}" for c in finish.columns]
        arguments = ["(const int8_t *)AT_a", "(const int8_t *)AT_p", *columns, f"({output} *)AT_y"]
        promised = made.facts["block_instructions_per_mac"]
        assert isinstance(promised, float)
        statements = (BEGIN, f"product{i}({', '.join(arguments)});")
        jobs.append(Job(f"int8 x int8, {finish.name}", statements, promised * problem.macs))
        dtype = np.int8 if finish.output == "i8" else np.int32
        expected.append(finish.compute(problem).astype(dtype).tobytes())
    memory = Memory(
        {
            "a": problem.a,
            "p": problem.packed,
            **problem.columns,
            "y": problem.m * problem.n * 4,
        }
    )
    return IntegerContest(problem, memory, tuple(jobs), tuple(expected), leaves)


@dataclass(frozen=True)
class Packing:
    """An op that packs bytes: a matrix, or windows of an image with a square kernel."""

    name: str
    x: tuple[int, ...]
    """The shape of what is packed."""
    kernel: int = 0
    pad: int = 0
    transposed: bool = False

    @property
    def op(self) -> str:
        return "pack_window" if self.kernel else "pack_bytes"

    @property
    def attributes(self) -> str:
        if not self.kernel:
            return "{transpose_b} " if self.transposed else ""

        def all_(value: int, count: int = 2) -> str:
            return f"array<i64: {', '.join([str(value)] * count)}>"

        return (
            f"{{kernel_shape = {all_(self.kernel)}, strides = {all_(1)}, pads = {all_(self.pad, 4)}, "
            f"dilations = {all_(1)}, pad_value = {PADDING} : i64}} "
        )

    def matrix(self, x: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
        """What is in the panels, as [K, N]."""
        if not self.kernel:
            return x.T if self.transposed else x
        around = ((0, 0), (self.pad, self.pad), (self.pad, self.pad))
        padded = np.pad(x, around, constant_values=PADDING)
        size = (self.kernel, self.kernel)
        windows = np.lib.stride_tricks.sliding_window_view(padded, size, axis=(1, 2))
        height, width = windows.shape[1:3]
        return windows.transpose(0, 3, 4, 1, 2).reshape(-1, height * width)


PADDING = -3


PACKINGS = (
    Packing("[K, N] of 256x64", (256, 64)),
    Packing("[N, K] of 64x256", (64, 256), transposed=True),
    Packing("windows of 1x1, 64x25x5", (64, 25, 5), 1),
    Packing("windows of 3x3, 3x32x32", (3, 32, 32), 3, 1),
    Packing("windows of 3x3, 16x16x16", (16, 16, 16), 3, 1),
    Packing("windows of 3x3, 64x8x8", (64, 8, 8), 3, 1),
)


@dataclass(frozen=True)
class PackingContest:
    """A packing as a program of one job."""

    packing: Packing
    size: tuple[int, int]
    """K and N."""
    memory: Memory
    job: Job
    expected: bytes
    leaves: LeafSet


def packings(target: Target) -> list[PackingContest]:
    """Each packing, of any bytes."""
    found: list[PackingContest] = []
    for i, packing in enumerate(PACKINGS):
        leaves = LeafSet(target)
        x = np.random.default_rng(i).integers(-128, 128, packing.x).astype(np.int8)
        matrix = packing.matrix(x)
        expected = in_panels(matrix)
        types = (_memref(*packing.x, element="i8"), _memref(*expected.shape, element="i8"))
        arguments = [f"%the_x: {types[0]}", f"%the_y: {types[1]}"]
        op = f"qkernel.{packing.op} %the_x outs(%the_y) {packing.attributes}: ({', '.join(types)}) -> ()"
        made = leaves.add(f"pack{i}", f"riscv.{packing.op}", arguments, op)
        instructions = made.facts["instructions"]
        assert isinstance(instructions, int)
        call = f"pack{i}((const int8_t *)AT_x, (int8_t *)AT_y);"
        job = Job(packing.name, (BEGIN, call), instructions)
        memory = Memory({"x": x, "y": expected.nbytes})
        size = (matrix.shape[0], matrix.shape[1])
        found.append(PackingContest(packing, size, memory, job, expected.tobytes(), leaves))
    return found
