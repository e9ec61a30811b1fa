"""Leaf functions of one `qkernel.packed_quant_matmul`, with operands, and what they must compute to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute

from qfold.backend.c.layout import Buffer
from qfold.backend.riscv import quant_matmul
from qfold.backend.riscv.generated import GeneratedKernel, LeafKernel
from qfold.dialects.qkernel import PANEL
from qfold.targets import Target
from tests.backend_riscv.harness import ELEMENTS, GAP, Array, Case, Operand, leaf_module

STEPS = 4
DTYPES = {name: np.dtype(dtype) for dtype, name in ELEMENTS.items()}


Numbers = Mapping[str, Array]


@dataclass(frozen=True)
class Epilogue:
    """What follows the product."""

    output: str
    compute: Callable[[Array, Numbers], Array]
    """Sums [M, N] and operands, each [M, N], as i64 or f32 -> the output, still as i64 or f32."""
    operands: Mapping[str, tuple[str, str, tuple[int, int]]] = field(
        default_factory=dict[str, tuple[str, str, tuple[int, int]]]
    )
    """Name -> element type, the results of its map over d0 (rows) and d1 (columns), the range of its integers."""
    body: Sequence[str] = ()
    """The region: `%acc`, and the operands by name; defines `%r`."""


def _wrap(x: Array) -> Array:
    """32 bits of an i64."""
    return (x & 0xFFFFFFFF).astype(np.uint32).view(np.int32).astype(np.int64)


def _mulhi(x: Array, y: Array) -> Array:
    return (x * y) >> 32


def _clip(x: Array, low: int, high: int) -> Array:
    return np.minimum(np.maximum(x, low), high)


def clamp(source: str, low: int, high: int, to: str) -> list[str]:
    """The end of a requantisation."""
    lines = [
        f"%low = arith.constant {low} : i32",
        f"%high = arith.constant {high} : i32",
        f"%raised = arith.maxsi {source}, %low : i32",
        "%limited = arith.minsi %raised, %high : i32",
    ]
    if to == "i8":
        return [*lines, "%r = arith.trunci %limited : i32 to i8"]
    return [
        *lines,
        "%byte = arith.trunci %limited : i32 to i8",
        "%r = builtin.unrealized_conversion_cast %byte : i8 to ui8",
    ]


FORM_1 = [
    "%p = arith.muli %acc, %mul : i32",
    "%t = arith.addi %p, %add : i32",
    "%q = arith.shrsi %t, %shift : i32",
]
FORM_2 = [
    "%biased = arith.addi %acc, %bias : i32",
    "%left = arith.constant 7 : i32",
    "%wide = arith.shli %biased, %left : i32",
    "%lowest, %h = arith.mulsi_extended %wide, %mul : i32",
    "%t = arith.addi %h, %add : i32",
    "%q = arith.shrsi %t, %shift : i32",
]
_FORM_1 = {
    "mul": ("i32", "d1", (1, 2000)),
    "add": ("i32", "d1", (-(1 << 20), 1 << 20)),
    "shift": ("i32", "d1", (8, 14)),
}
_FORM_2 = {
    "bias": ("i32", "d1", (-9000, 9000)),
    "mul": ("i32", "d1", (1 << 30, (1 << 31) - 1)),
    "add": ("i32", "d1", (0, 4096)),
    "shift": ("i32", "d1", (0, 12)),
}


def _form_1(x: Array, o: Numbers) -> Array:
    return _wrap(_wrap(x * o["mul"]) + o["add"]) >> o["shift"]


def _form_2(x: Array, o: Numbers) -> Array:
    high = _mulhi(_wrap((x + o["bias"]) << 7), o["mul"])
    return (high + o["add"]) >> o["shift"]


def _per(
    line: str, of: Mapping[str, tuple[str, str, tuple[int, int]]]
) -> dict[str, tuple[str, str, tuple[int, int]]]:
    return {name: (type_, line, ends) for name, (type_, _, ends) in of.items()}


def _floats(x: Array) -> Array:
    return x.astype(np.float32)


EPILOGUES: Mapping[str, Epilogue] = {
    "none": Epilogue("i32", lambda x, _: x),
    "bias": Epilogue(
        "i32", lambda x, o: x + o["bias"], {"bias": ("i32", "d1", (-(1 << 31), (1 << 31) - 1))},
        ["%r = arith.addi %acc, %bias : i32"],
    ),
    "form 1": Epilogue(
        "i8", lambda x, o: _clip(_form_1(x, o), -128, 127), _FORM_1,
        [*FORM_1, *clamp("%q", -128, 127, "i8")],
    ),
    "form 1, rows": Epilogue(
        "ui8", lambda x, o: _clip(_form_1(x, o), 0, 255), _per("d0", _FORM_1),
        [*FORM_1, *clamp("%q", 0, 255, "ui8")],
    ),
    "form 1, scalar": Epilogue(
        "i8", lambda x, o: _clip(_form_1(x, o), -100, 90), _per("", _FORM_1),
        [*FORM_1, *clamp("%q", -100, 90, "i8")],
    ),
    "form 2": Epilogue(
        "i8", lambda x, o: _clip(_form_2(x, o), -128, 127), _FORM_2,
        [*FORM_2, *clamp("%q", -128, 127, "i8")],
    ),
    "form 2, rows": Epilogue(
        "ui8", lambda x, o: _clip(_form_2(x, o), 3, 255), _per("d0", _FORM_2),
        [*FORM_2, *clamp("%q", 3, 255, "ui8")],
    ),
    "form 2, constants": Epilogue(
        "ui8",
        lambda x, o: _clip((_mulhi(_wrap((x + o["bias"]) << 3), np.asarray(1518500250)) + 5) >> 2, 0, 127),
        {"bias": ("i32", "d1", (-900, 900))},
        [
            "%biased = arith.addi %acc, %bias : i32",
            "%left = arith.constant 3 : i32",
            "%wide = arith.shli %biased, %left : i32",
            "%mul = arith.constant 1518500250 : i32",
            "%lowest, %h = arith.mulsi_extended %wide, %mul : i32",
            "%five = arith.constant 5 : i32",
            "%t = arith.addi %h, %five : i32",
            "%two = arith.constant 2 : i32",
            "%q = arith.shrsi %t, %two : i32",
            *clamp("%q", 0, 127, "ui8"),
        ],
    ),
    "corrections": Epilogue(
        "i32",
        lambda x, o: x - o["za"] * o["sums"] + o["column"] - o["row"] * o["zb"] - 40000,
        {
            "za": ("ui8", "", (0, 255)),
            "sums": ("i32", "d1", (-9000, 9000)),
            "column": ("i32", "d1", (-9000, 9000)),
            "row": ("i32", "d0", (-9000, 9000)),
            "zb": ("i8", "d1", (-128, 127)),
        },
        [
            "%zc = builtin.unrealized_conversion_cast %za : ui8 to i8",
            "%zx = arith.extui %zc : i8 to i32",
            "%zs = arith.muli %zx, %sums : i32",
            "%a = arith.subi %acc, %zs : i32",
            "%b = arith.addi %a, %column : i32",
            "%by = arith.extsi %zb : i8 to i32",
            "%rz = arith.muli %row, %by : i32",
            "%c = arith.subi %b, %rz : i32",
            "%k = arith.constant 40000 : i32",
            "%r = arith.subi %c, %k : i32",
        ],
    ),
    "residual": Epilogue(
        "i8",
        lambda x, o: _clip(_wrap(x * 3 + o["skip"].astype(np.int8).astype(np.int64) * 77) >> 9, -128, 127),
        {"skip": ("ui8", "d0, d1", (0, 255))},
        [
            # A byte that is read with the other signedness.
            "%s = builtin.unrealized_conversion_cast %skip : ui8 to i8",
            "%w = arith.extsi %s : i8 to i32",
            "%c77 = arith.constant 77 : i32",
            "%ws = arith.muli %w, %c77 : i32",
            "%c3 = arith.constant 3 : i32",
            "%as = arith.muli %c3, %acc : i32",
            "%t = arith.addi %as, %ws : i32",
            "%c9 = arith.constant 9 : i32",
            "%q = arith.shrsi %t, %c9 : i32",
            *clamp("%q", -128, 127, "i8"),
        ],
    ),
    "bias, shifted": Epilogue(
        "i8", lambda x, o: _clip(_wrap(x + o["bias"]) >> 6, -128, 127), {"bias": ("i32", "d1", (-9000, 9000))},
        [
            "%biased = arith.addi %acc, %bias : i32",
            "%six = arith.constant 6 : i32",
            "%q = arith.shrsi %biased, %six : i32",
            *clamp("%q", -128, 127, "i8"),
        ],
    ),
    "accumulated element": Epilogue(
        "i32",
        lambda x, o: _wrap(o["skip"] + x * 5) ^ 0,
        {"skip": ("i32", "d0, d1", (-(1 << 31), (1 << 31) - 1))},
        [
            "%c5 = arith.constant 5 : i32",
            "%p = arith.muli %acc, %c5 : i32",
            "%r = arith.addi %p, %skip : i32",
        ],
    ),
    "accumulator twice": Epilogue(
        "i32",
        lambda x, o: _wrap(x + x * o["scale"]) + _mulhi(_wrap(x << 16), o["scale"]) + _wrap((x << 16) * o["scale"]),
        {"scale": ("i8", "d1", (-128, 127))},
        [
            "%s = arith.extsi %scale : i8 to i32",
            "%p = arith.muli %acc, %s : i32",
            "%t = arith.addi %acc, %p : i32",
            "%c16 = arith.constant 16 : i32",
            "%w = arith.shli %acc, %c16 : i32",
            "%l, %h = arith.mulsi_extended %w, %s : i32",
            "%u = arith.addi %t, %h : i32",
            "%r = arith.addi %u, %l : i32",
        ],
    ),
    "narrowed": Epilogue(
        "i32",
        lambda x, _: (x.astype(np.int8).astype(np.int64)) * 256 + (x & 255),
        {},
        [
            "%b = arith.trunci %acc : i32 to i8",
            "%s = arith.extsi %b : i8 to i32",
            "%u = arith.extui %b : i8 to i32",
            "%c8 = arith.constant 8 : i32",
            "%h = arith.shli %s, %c8 : i32",
            "%r = arith.addi %h, %u : i32",
        ],
    ),
    "other bounds": Epilogue(
        "i32",
        lambda x, o: np.maximum(np.minimum(x, o["high"]), -o["high"]) + np.minimum(np.maximum(x, -7), 9),
        {"high": ("i32", "d0", (0, 5000))},
        [
            "%zero = arith.constant 0 : i32",
            "%minus = arith.subi %zero, %high : i32",
            "%a = arith.minsi %acc, %high : i32",
            "%b = arith.maxsi %a, %minus : i32",
            "%c7 = arith.constant -7 : i32",
            "%c9 = arith.constant 9 : i32",
            "%c = arith.maxsi %acc, %c7 : i32",
            "%d = arith.minsi %c9, %c : i32",
            "%r = arith.addi %b, %d : i32",
        ],
    ),
    "dequantised": Epilogue(
        "f32",
        lambda x, o: _floats(x) * o["scale"] + o["bias"],
        {"scale": ("f32", "d1", (0, 0)), "bias": ("f32", "d1", (0, 0))},
        [
            "%f = arith.sitofp %acc : i32 to f32",
            "%t = arith.mulf %f, %scale : f32",
            "%r = arith.addf %t, %bias : f32",
        ],
    ),
    "requantised and dequantised": Epilogue(
        "f32",
        lambda x, o: _floats(_clip(x >> 4, -128, 127)) * o["scale"] + _floats(_clip(x, 0, 200)) + _floats(x.astype(np.int8)),
        {"scale": ("f32", "", (0, 0))},
        [
            "%c4 = arith.constant 4 : i32",
            "%s = arith.shrsi %acc, %c4 : i32",
            *clamp("%s", -128, 127, "i8")[:-1],
            "%b = arith.trunci %limited : i32 to i8",
            "%f = arith.sitofp %b : i8 to f32",
            "%t = arith.mulf %f, %scale : f32",
            "%zero = arith.constant 0 : i32",
            "%c200 = arith.constant 200 : i32",
            "%u0 = arith.maxsi %acc, %zero : i32",
            "%u1 = arith.minsi %u0, %c200 : i32",
            "%u2 = arith.trunci %u1 : i32 to i8",
            "%u = arith.uitofp %u2 : i8 to f32",
            # Of a number that is no byte, the lower bits count.
            "%w = arith.trunci %acc : i32 to i8",
            "%x = arith.sitofp %w : i8 to f32",
            "%v = arith.addf %t, %u : f32",
            "%r = arith.addf %v, %x : f32",
        ],
    ),
    "dequantised, rows, relu": Epilogue(
        "f32",
        lambda x, o: np.clip(
            _floats(x - o["sums"] * o["zero"]) * o["scale"] + o["skip"], np.float32(0), np.float32(300)
        ),
        {
            "sums": ("i32", "d0", (-3000, 3000)),
            "zero": ("i32", "d1", (-128, 127)),
            "scale": ("f32", "d0", (0, 0)),
            "skip": ("f32", "d0, d1", (0, 0)),
        },
        [
            "%c = arith.muli %sums, %zero : i32",
            "%a = arith.subi %acc, %c : i32",
            "%f = arith.sitofp %a : i32 to f32",
            "%t = arith.mulf %f, %scale : f32",
            "%u = arith.addf %t, %skip : f32",
            "%z = arith.constant 0.0 : f32",
            "%v = arith.maximumf %u, %z : f32",
            "%high = arith.constant 300.0 : f32",
            "%r = arith.minnumf %v, %high : f32",
        ],
    ),
}  # fmt: skip


def extremes(source: np.random.Generator, type_: str, shape: Sequence[int]) -> Array:
    """Integers of all bits, and more of the largest and the smallest than chance would bring."""
    info = np.iinfo(DTYPES[type_])
    values = source.integers(info.min, int(info.max) + 1, shape)
    edge = source.integers(0, 4, shape)
    values = np.where(edge == 0, info.min, np.where(edge == 1, info.max, values))
    return values.astype(DTYPES[type_])


def packed_bytes(w: Array) -> Array:
    """Panels of a [K, N] operand."""
    k, n = w.shape
    panels, words = -(-n // PANEL), -(-k // STEPS)
    padded = np.zeros((words * STEPS, panels * PANEL), w.dtype)
    padded[:k, :n] = w
    return np.ascontiguousarray(padded.reshape(words, STEPS, panels, PANEL).transpose(2, 0, 3, 1))


def generate_text(
    text: str, target: Target, name: str = "leaf"
) -> tuple[GeneratedKernel, tuple[Buffer, ...]]:
    """The kernel of the one function of a module, and its parameters, called as its arguments are."""
    (function,) = (o for o in leaf_module(text).walk() if isinstance(o, func.FuncOp))
    buffers = {
        a: Buffer(a.name_hint or "", cast("MemRefType[Attribute]", a.type))
        for a in function.body.block.args
    }
    kernel = quant_matmul.generate(LeafKernel(function, name, target, buffers))
    return kernel, tuple(buffers.values())


@dataclass(frozen=True)
class Problem:
    """A leaf function and its operands."""

    m: int
    n: int
    k: int
    epilogue: str = "none"
    types: tuple[str, str] = ("i8", "i8")
    """Of the rows and of the panels."""
    a_stride: int | None = None
    """Bytes from row to row."""
    y_strides: tuple[int, int] | None = None
    unknown_offset: bool = False
    """Whether `a` may begin anywhere."""
    split: tuple[int, int] | None = None
    block: tuple[int, int] | None = None
    operands: dict[str, Operand] = field(default_factory=dict[str, Operand])
    expected: list[Array] = field(default_factory=list[Array])

    def __post_init__(self) -> None:
        source = np.random.default_rng([self.m, self.n, self.k])
        m, n, k, e = self.m, self.n, self.k, EPILOGUES[self.epilogue]
        a = extremes(source, self.types[0], (m, k))
        w = extremes(source, self.types[1], (k, n))
        stride = self.a_stride or k
        strided = self.a_stride is not None or self.unknown_offset
        self.operands["a"] = Operand(a, (stride, 1) if strided else None, self.unknown_offset)
        self.operands["p"] = Operand(packed_bytes(w))
        sizes = {"d0": m, "d1": n}
        numbers: dict[str, Array] = {}
        for name, (type_, map_, (low, high)) in e.operands.items():
            dims = map_.split(", ") if map_ else []
            shape = [sizes[d] for d in dims]
            if type_ == "f32":
                values = source.standard_normal(shape).astype(np.float32)
            else:
                values = source.integers(low, high + 1, shape).astype(DTYPES[type_])
            self.operands[name] = Operand(np.asarray(values))
            full = np.asarray(values if type_ == "f32" else values.astype(np.int64))
            full = full.reshape(m if "d0" in dims else 1, n if "d1" in dims else 1)
            numbers[name] = np.broadcast_to(full, (m, n))
        found = e.compute(a.astype(np.int64) @ w.astype(np.int64), numbers)
        dtype = DTYPES[e.output]
        exact = found.astype(dtype) if dtype.kind == "f" else _wrap(found).astype(dtype)
        self.expected.append(exact)
        # Nothing is there already that should be written.
        before = (exact.view(np.uint8) ^ 0x55).view(dtype)
        self.operands["y"] = Operand(before, self.y_strides)

    @property
    def text(self) -> str:
        e = EPILOGUES[self.epilogue]
        arguments = ", ".join(f"%the_{n}: {o.type}" for n, o in self.operands.items())
        types = ", ".join(o.type for o in self.operands.values())
        region = clause = maps = ""
        if e.body:
            named = ", ".join(f"%the_{n}" for n in e.operands)
            clause = f" epilogue({named})" if e.operands else ""
            results = ", ".join(f"affine_map<(d0, d1) -> ({m})>" for _, m, _ in e.operands.values())
            maps = f"maps [{results}] "
            inner = ["%acc : i32", *(f"%{n} : {t}" for n, (t, _, _) in e.operands.items())]
            region = f"{{\n^bb0({', '.join(inner)}):\n" + "\n".join(e.body)
            region += f"\nqmm.yield %r : {e.output}\n}}"
        attributes: list[str] = []
        if self.split:
            attributes.append(f"qmm.split = array<i64: {self.split[0]}, {self.split[1]}>")
        if self.block:
            attributes.append(f"qmm.block = array<i64: {self.block[0]}, {self.block[1]}>")
        return f"""
            func.func private @leaf({arguments}) attributes {{{", ".join(attributes)}}} {{
              qkernel.packed_quant_matmul %the_a, %the_p{clause} outs(%the_y) {maps}: ({types}) -> () {region}
              func.return
            }}
        """

    def case(self, target: Target, name: str = "leaf") -> Case:
        """The generated kernel, and memory as it finds it."""
        kernel, named = generate_text(self.text, target, name)
        memory = {
            buffer.name: self.operands[buffer.name.removeprefix("the_")].stored(buffer.type)
            for buffer in named
        }
        stride = (self.a_stride or self.k) if self.m > 1 else 0
        aligned = 1 if self.unknown_offset else next(b for b in (4, 2, 1) if stride % b == 0)
        return Case(kernel, named, memory, ("the_y",), {"the_a": aligned})

    def check(self, stored: Array) -> None:
        """`stored` is the output's memory afterwards: every element is right, and nothing else was written."""
        y = self.operands["y"]
        (expected,) = self.expected
        found = stored
        if y.strides is not None:
            found = stored[y.positions]
            between = np.delete(stored, y.positions.ravel())
            assert (between == GAP).all(), f"{self}: written elsewhere"
        wrong = found.view(np.uint8) != expected.view(np.uint8)
        assert not wrong.any(), f"{self}:\n{found}\nexpected\n{expected}"

    def __str__(self) -> str:
        return (
            f"{self.m}x{self.n}x{self.k} {' x '.join(self.types)}, {self.epilogue}, "
            f"strides {self.a_stride} {self.y_strides}, split {self.split}, block {self.block}"
        )
