"""The contestants of the kernel benchmark: generated leaf kernels on operands in L1, and the same matmul in C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from _cluster_programs import BEGIN, Array, Job, Memory
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, StringAttr
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from qfold.backend.c.layout import Buffer, c_type
from qfold.backend.riscv import GeneratedKernel, generate
from qfold.dialects.contraction import int_array
from qfold.dialects.qkernel import PANEL
from qfold.targets import Target
from qfold.tools.driver import make_context
from qfold.transforms.qmm_split_work import split_of

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
PANELS_AT_ONCE = 4
"""Panels of a weight that is packed piece by piece."""


@dataclass(frozen=True)
class Problem:
    """y = scale * (a @ (w - zero)) + bias, f32 by int8; the same a and bias with an f32 weight of its own."""

    m: int
    k: int
    n: int
    a: Floats
    w: npt.NDArray[np.int8]
    zero: npt.NDArray[np.int8]
    scale: Floats
    bias: Floats
    floats: Floats

    @staticmethod
    def random(m: int, k: int, n: int) -> Problem:
        source = np.random.default_rng([m, k, n])
        return Problem(
            m,
            k,
            n,
            source.standard_normal((m, k)).astype(np.float32),
            source.integers(-128, 128, (k, n)).astype(np.int8),
            source.integers(-8, 9, n).astype(np.int8),
            source.uniform(0.005, 0.02, n).astype(np.float32),
            source.standard_normal(n).astype(np.float32),
            source.standard_normal((k, n)).astype(np.float32),
        )

    @property
    def name(self) -> str:
        return f"{self.m}x{self.k}x{self.n}"

    @property
    def macs(self) -> int:
        return self.m * self.n * self.k

    def expected(self, *, int8: bool, bias: bool = True, zero: bool = True) -> Doubles:
        a = self.a.astype(np.float64)
        added = self.bias * bias
        if not int8:
            return np.asarray(a @ self.floats.astype(np.float64) + added, np.float64)
        w = self.w.astype(np.float64) - self.zero * zero
        return np.asarray(self.scale * (a @ w) + added, np.float64)

    def tolerance(self, *, int8: bool, added: int = 0) -> Doubles:
        """What K additions in f32 may be off by, and as much again for the correction where something is added to each weight, a
        zero point that is hoisted too."""
        weights = np.abs(self.floats.astype(np.float64))
        if int8:
            weights = np.abs(self.w.astype(np.float64)) + np.abs(self.zero) + added
        sums = np.abs(self.a.astype(np.float64)) @ weights
        if int8:
            sums = sums * self.scale
        return np.asarray((2 * self.k + 4) * 2.0**-24 * (sums + np.abs(self.bias)), np.float64)


@dataclass
class LeafSet:
    """Generated leaf kernels of one program."""

    target: Target
    definitions: list[str] = field(default_factory=list[str])
    assembly: list[str] = field(default_factory=list[str])
    kernels: dict[str, GeneratedKernel] = field(default_factory=dict[str, GeneratedKernel])

    def add(self, symbol: str, kernel: str, arguments: Sequence[str], op: str) -> GeneratedKernel:
        """
        A leaf function that holds one op. `arguments`: `%name: type` each, outputs last; the C function takes them in this order.
        """
        text = f"func.func @{symbol}({', '.join(arguments)}) {{\n{op}\nfunc.return\n}}"
        module = Parser(make_context(), text).parse_module()
        module.verify()
        (function,) = (o for o in module.walk() if isinstance(o, func.FuncOp))
        function.attributes["qmm.kernel"] = StringAttr(kernel)
        ops = [o for o in function.body.block.ops if not isinstance(o, func.ReturnOp)]
        function.attributes["qmm.split"] = int_array(split_of(ops, self.target.cores))
        buffers: list[Buffer] = []
        for argument in function.body.block.args:
            assert isinstance(argument.type, MemRefType) and argument.name_hint is not None
            # Drivers have variables of their own.
            buffers.append(Buffer(f"the_{argument.name_hint}", argument.type))
        named: dict[SSAValue, Buffer] = dict(zip(function.body.block.args, buffers, strict=True))
        made = generate(function, symbol, self.target, named)
        *inputs, written = buffers
        parameters = [f"const {c_type(b.element)} *{b.name}" for b in inputs]
        parameters.append(f"{c_type(written.element)} *{written.name}")
        self.definitions += [f"{p};" for p in made.prototypes]
        self.definitions.append(f"static void {symbol}({', '.join(parameters)}) {{")
        self.definitions += [*made.driver, "}"]
        self.assembly.append(made.assembly)
        self.kernels[symbol] = made
        return made


_BIAS = """ {
^bb0(%acc: f32, %e: f32):
  %sum = arith.addf %acc, %e : f32
  qmm.yield %sum : f32
}"""
_MAP = "maps [affine_map<(d0, d1) -> (d1)>]"


def _memref(*shape: int, element: str = "f32", layout: str = "") -> str:
    dims = "".join(f"{d}x" for d in shape)
    return f"memref<{dims}{element}, {f'{layout}, ' if layout else ''}1 : i64>"


def _pack(leaves: LeafSet, symbol: str, k: int, n: int, *, int8: bool) -> GeneratedKernel:
    w = _memref(k, n, element="i8" if int8 else "f32")
    z = _memref(n, element="i8")
    p = _memref(-(-n // PANEL), k, PANEL)
    if int8:
        op = f"qkernel.pack %w zero_point(%z) outs(%p) : ({w}, {z}, {p}) -> ()"
        return leaves.add(symbol, "riscv.pack", [f"%w: {w}", f"%z: {z}", f"%p: {p}"], op)
    op = f"qkernel.pack %w outs(%p) : ({w}, {p}) -> ()"
    return leaves.add(symbol, "riscv.pack", [f"%w: {w}", f"%p: {p}"], op)


def _packed_matmul(
    leaves: LeafSet,
    symbol: str,
    m: int,
    n: int,
    k: int,
    *,
    int8: bool,
    row: int = 0,
    bias: bool = True,
) -> GeneratedKernel:
    """`row`: from one row of y to the next, where that is not n."""
    a, p, s = _memref(m, k), _memref(-(-n // PANEL), k, PANEL), _memref(n)
    y = _memref(m, n, layout=f"strided<[{row}, 1]>" if row else "")
    named = {"a": a, "p": p, **({"s": s} if int8 else {}), **({"b": s} if bias else {}), "y": y}
    arguments = [f"%{name}: {type_}" for name, type_ in named.items()]
    scale = "scale(%s) " if int8 else ""
    added = "epilogue(%b) " if bias else ""
    maps = f"{_MAP} " if bias else ""
    types = f"({', '.join(named.values())}) -> ()"
    op = f"qkernel.packed_matmul %a, %p {scale}{added}outs(%y) {maps}: {types}"
    return leaves.add(symbol, "riscv.packed_matmul", arguments, f"{op}{_BIAS if bias else ''}")


@dataclass(frozen=True)
class Contest:
    """Jobs that compute the same, one program."""

    problem: Problem
    memory: Memory
    jobs: tuple[Job, ...]
    int8: bool
    """Which weight they read."""
    leaves: LeafSet
    output: str = "y"

    @property
    def definitions(self) -> str:
        return "\n".join(self.leaves.definitions)

    @property
    def assembly(self) -> str:
        return "\n".join(self.leaves.assembly)


_POINTERS = {
    "a": "(const float *)AT_a",
    "w": "(const int8_t *)AT_w",
    "f": "(const float *)AT_w",
    "z": "(const int8_t *)AT_z",
    "uw": "(const uint8_t *)AT_uw",
    "uz": "(const uint8_t *)AT_uz",
    "s": "(const float *)AT_s",
    "b": "(const float *)AT_b",
    "r": "(float *)AT_r",
    "p": "(float *)AT_p",
    "y": "(float *)AT_y",
}


def call(symbol: str, *names: str, sizes: tuple[int, ...] = ()) -> str:
    """A call with numbers and operands in L1; ` + offset`, in elements, may follow a name."""
    arguments = [str(size) for size in sizes]
    for name in names:
        base, plus, rest = name.partition(" ")
        arguments.append(f"{_POINTERS[base]}{plus}{rest}")
    return f"{symbol}({', '.join(arguments)});"


def _facts(kernel: GeneratedKernel, name: str) -> float:
    value = kernel.facts[name]
    assert isinstance(value, int | float)
    return float(value)


_SCHEMES = {"peer": "peer 1x7, C", "plain": "plain C"}


def in_c(problem: Problem, *, int8: bool) -> list[Job]:
    """The peer's scheme, and plain C, on operands in L1."""
    kind = "int8" if int8 else "f32"
    weight = ["w", "s", "z"] if int8 else ["f"]
    sizes = (problem.m, problem.n, problem.k)
    return [
        Job(
            f"{label}, {kind}",
            (BEGIN, call(f"{scheme}_{kind}", "a", *weight, "b", "y", sizes=sizes)),
        )
        for scheme, label in _SCHEMES.items()
    ]


def packed(problem: Problem, target: Target, *, int8: bool) -> Contest:
    """The whole weight packed at once."""
    m, k, n = problem.m, problem.k, problem.n
    kind = "int8" if int8 else "f32"
    leaves = LeafSet(target)
    pack = _pack(leaves, f"pack_{kind}", k, n, int8=int8)
    ours: list[Job] = []
    for bias in (True, False):
        symbol = f"matmul_{kind}{'_bias' if bias else ''}"
        product = _packed_matmul(leaves, symbol, m, n, k, int8=int8, bias=bias)
        names = ["a", "p", *(["s"] if int8 else []), *(["b"] if bias else []), "y"]
        statements = (
            BEGIN,
            call(f"pack_{kind}", *(["w", "z"] if int8 else ["f"]), "p"),
            "qf_barrier();",
            BEGIN,
            call(symbol, *names),
        )
        predicted = _predicted(problem, pack, product)
        label = f"ours, {kind}{' exact' if int8 else ''}"
        ours.append(_ours(label, statements, predicted, bias=bias))
    panels = -(-n // PANEL)
    memory = _memory(problem, problem.w if int8 else problem.floats, panels)
    return Contest(problem, memory, (*in_c(problem, int8=int8), *ours), int8, leaves)


def _predicted(problem: Problem, pack: GeneratedKernel, product: GeneratedKernel) -> float:
    """Instructions of the inner loops."""
    weights = _facts(pack, "instructions_per_weight") * problem.k * problem.n
    return weights + _facts(product, "instructions_per_mac") * problem.macs


def _ours(
    label: str,
    statements: tuple[str, ...],
    predicted: float,
    *,
    bias: bool,
    zero: bool = True,
    added: int = 0,
) -> Job:
    left_out = [name for name, there in (("zero point", zero), ("bias", bias)) if not there]
    name = f"{label}, no {' and no '.join(left_out)}" if left_out else label
    return Job(name, statements, predicted, True, added, bias, zero)


def only_c(problem: Problem, target: Target) -> Contest:
    """C only, int8."""
    jobs = tuple(in_c(problem, int8=True))
    return Contest(problem, _memory(problem, problem.w, 0), jobs, True, LeafSet(target))


def by_panels(problem: Problem, target: Target) -> Contest:
    """Ours on a weight that comes in pieces of `PANELS_AT_ONCE` panels, as DMA would bring them: each is packed and used up."""
    m, k, n = problem.m, problem.k, problem.n
    columns = PANELS_AT_ONCE * PANEL
    if n % columns:
        raise ValueError(f"{n} columns are no multiple of {columns}")
    leaves = LeafSet(target)
    pack = _pack(leaves, "pack_piece", k, columns, int8=True)
    ours: list[Job] = []
    for bias in (True, False):
        symbol = f"matmul_piece{'_bias' if bias else ''}"
        product = _packed_matmul(leaves, symbol, m, columns, k, int8=True, row=n, bias=bias)
        names = ["a", "p", "s + n", *(["b + n"] if bias else []), "y + n"]
        statements = (
            f"for (ptrdiff_t n = 0; n < {n}; n += {columns}) {{",
            BEGIN,
            call("pack_piece", f"w + n * {k}", "z + n", "p"),
            "qf_barrier();",
            BEGIN,
            call(symbol, *names),
            "qf_barrier();",
            "}",
        )
        predicted = _predicted(problem, pack, product)
        ours.append(_ours("ours, int8 exact", statements, predicted, bias=bias))
    pieces = problem.w.reshape(k, -1, columns).transpose(1, 0, 2)
    memory = _memory(problem, np.ascontiguousarray(pieces), PANELS_AT_ONCE)
    return Contest(problem, memory, tuple(ours), True, leaves)


def few_rows(problem: Problem, target: Target) -> Contest:
    """
    Each weight converted in registers: for up to four rows. Exact, with the zero point taken from each weight and hoisted, and by
    `p.inserti`, which takes unsigned weights.
    """
    m, k, n = problem.m, problem.k, problem.n
    leaves = LeafSet(target)
    a, s, y, r = _memref(m, k), _memref(n), _memref(m, n), _memref(m)
    op = f"qkernel.row_sum %a outs(%r) : ({a}, {r}) -> ()"
    leaves.add("row_sum", "riscv.row_sum", [f"%a: {a}", f"%r: {r}"], op)
    jobs: list[Job] = []
    for way in _FEW_ROWS:
        w, z = (_memref(*shape, element=way.element) for shape in ((k, n), (n,)))
        operands = {"a": a, "w": w, "s": s, **({"z": z} if way.zero else {})}
        operands |= {"r": r} if way.hoisted else {}
        operands |= {"b": s} if way.bias else {}
        operands |= {"y": y}
        arguments = [f"%{name}: {type_}" for name, type_ in operands.items()]
        zero = " zero_point(%z)" if way.zero else ""
        sums = " row_sum(%r)" if way.hoisted else ""
        added = " epilogue(%b)" if way.bias else ""
        maps = f" {_MAP}" if way.bias else ""
        attribute = " {hoisted}" if way.hoisted else ""
        op = (
            f"qkernel.dequant_matmul %a, %w, %s{zero}{sums}{added} outs(%y){maps}{attribute}"
            f" : ({', '.join(operands.values())}) -> (){_BIAS if way.bias else ''}"
        )
        made = leaves.add(way.symbol, way.kernel, arguments, op)
        first = (BEGIN, call("row_sum", "a", "r"), "qf_barrier();") if way.hoisted else ()
        unsigned = {"w": "uw", "z": "uz"} if way.element == "ui8" else {}
        statements = (*first, BEGIN, call(way.symbol, *(unsigned.get(o, o) for o in operands)))
        predicted = _facts(made, "instructions_per_mac") * problem.macs
        jobs.append(
            _ours(
                way.label,
                statements,
                predicted,
                bias=way.bias,
                zero=way.zero,
                added=way.added,
            )
        )
    memory = _memory(problem, problem.w, 0)
    memory = Memory({**memory.l1, "uw": _unsigned(problem.w), "uz": _unsigned(problem.zero)})
    return Contest(problem, memory, (*in_c(problem, int8=True), *jobs), True, leaves)


def _unsigned(values: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """128 more."""
    return (values.astype(np.int16) + 128).astype(np.uint8)


@dataclass(frozen=True)
class _Way:
    """A kernel for few rows."""

    label: str
    symbol: str
    kernel: str
    element: str
    hoisted: bool = False
    zero: bool = True
    bias: bool = True
    added: int = 0


_EXACT, _INSERTI = "riscv.dequant_matmul", "riscv.dequant_matmul_inserti"
_FEW_ROWS = (
    _Way("ours, int8 exact", "dequant_bias", _EXACT, "i8"),
    _Way("ours, int8 exact", "dequant", _EXACT, "i8", bias=False),
    _Way("ours, int8 exact", "symmetric", _EXACT, "i8", zero=False, bias=False),
    _Way("ours, int8 hoisted", "hoisted_bias", _EXACT, "i8", hoisted=True),
    _Way("ours, p.inserti", "inserti_bias", _INSERTI, "ui8", added=384),
    _Way("ours, p.inserti", "inserti", _INSERTI, "ui8", bias=False, added=384),
)


def _memory(problem: Problem, w: Array, panels: int) -> Memory:
    """`panels`: of the buffer for the packed weight."""
    return Memory(
        {
            "a": problem.a,
            "w": w,
            "z": problem.zero,
            "s": problem.scale,
            "b": problem.bias,
            "r": problem.m * 4,
            "p": panels * problem.k * PANEL * 4,
            "y": problem.m * problem.n * 4,
        }
    )


def staged_in_c(problem: Problem, target: Target, rows: int, columns: int) -> Contest:
    """C on operands in L2, by DMA: tiles of `columns` columns of the weight, and for each of them tiles of `rows` rows."""
    m, k, n = problem.m, problem.k, problem.n
    if m % rows or n % columns:
        raise ValueError(f"{m} x {n} is not divided by tiles of {rows} x {columns}")
    jobs: list[Job] = []
    for scheme, label in _SCHEMES.items():
        statements = (
            f"for (ptrdiff_t n = 0; n < {n}; n += {columns}) {{",
            "if (qf_core_id() == 0) {",
            f"qf_dma_wait(qf_dma_start_2d(AT_w, AT_all_w + n, {columns}, {k}, {columns}, {n}));",
            f"qf_dma_wait(qf_dma_start(AT_s, AT_all_s + n * 4, {columns} * 4));",
            f"qf_dma_wait(qf_dma_start(AT_z, AT_all_z + n, {columns}));",
            f"qf_dma_wait(qf_dma_start(AT_b, AT_all_b + n * 4, {columns} * 4));",
            "}",
            f"for (ptrdiff_t m = 0; m < {m}; m += {rows}) {{",
            "if (qf_core_id() == 0) {",
            f"qf_dma_wait(qf_dma_start(AT_a, AT_all_a + m * {k} * 4, {rows * k * 4}));",
            "}",
            "qf_barrier();",
            BEGIN,
            call(f"{scheme}_int8", "a", "w", "s", "z", "b", "y", sizes=(rows, columns, k)),
            "qf_barrier();",
            "if (qf_core_id() == 0) {",
            f"qf_dma_wait(qf_dma_start_2d(AT_all_y + (m * {n} + n) * 4, AT_y, {columns * 4}, {rows}, {n * 4}, {columns * 4}));",
            "}",
            "}",
            "}",
        )
        jobs.append(Job(f"{label}, int8", statements))
    memory = Memory(
        {
            "a": rows * k * 4,
            "w": k * columns,
            "s": columns * 4,
            "z": columns,
            "b": columns * 4,
            "y": rows * columns * 4,
        },
        {
            "all_a": problem.a,
            "all_w": problem.w,
            "all_s": problem.scale,
            "all_z": problem.zero,
            "all_b": problem.bias,
            "all_y": m * n * 4,
        },
    )
    return Contest(problem, memory, tuple(jobs), True, LeafSet(target), "all_y")
