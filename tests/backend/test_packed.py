"""`c.pack`, `c.packed_matmul`, `c.row_sum` core by core: against float64, and each element by exactly one core."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from qfold.backend.c.program import NotLevel3
from qfold.dialects import qkernel
from qfold.dialects.element_types import bit_width, integer_range, numpy_dtype
from qfold.dialects.qkernel import packed_shape, zero_point_type
from tests.backend.cores import Cores
from tests.backend.level3 import Arg, Array, assert_within, gamma
from tests.backend.test_matmul import add_bias

I8, UI8, I4, UI4, I16, UI16 = qkernel.STORAGE_TYPES
CORES = (1, 3, 8)


def packed(w: Array) -> Array:
    """[K, N] as panels of four columns, by the definition."""
    k, n = w.shape
    panels = np.zeros(packed_shape(k, n), w.dtype)
    for row, column in product(range(k), range(n)):
        panels[column // 4, row, column % 4] = w[row, column]
    return panels


def nibbles(values: Array, element: Any) -> Array:
    """As it lies in memory: four-bit integers two to a byte, the low half first."""
    if not isinstance(element, IntegerType) or bit_width(element) != 4:
        return values
    flat = values.reshape(-1).astype(np.uint8) & 15
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8)).reshape(-1, 2)
    return flat[:, 0] | flat[:, 1] << 4


@dataclass(frozen=True)
class Pack:
    k: int
    n: int
    split: tuple[int, int] = (1, 1)
    storage: Any = I8
    transposed: bool = False
    zero_point: str = ""
    block: int = 0

    @property
    def name(self) -> str:
        split = "x".join(map(str, self.split))
        layout = "nk" if self.transposed else "kn"
        return f"pack_{self.storage}_{layout}_{self.k}x{self.n}_{self.zero_point}{self.block or ''}_{split}"


PACKS = [
    *(
        Pack(k, n, split, I8, transposed, "axis")
        for (k, n), split, transposed in product(
            [(5, 3), (1, 4), (9, 32), (7, 18), (8, 1), (40, 64)], [(1, 1), (8, 1), (2, 4), (1, 8)], (False, True)
        )
    ),
    *(
        Pack(6, 10, (2, 2), storage, transposed, zero)
        for storage, transposed, zero in product((*qkernel.STORAGE_TYPES, f32), (False, True), ("", "tensor", "axis"))
        if storage != f32 or not zero
    ),
    *(
        Pack(k, n, (2, 3), storage, transposed, zero, block)
        for (k, n, block), storage, transposed, zero in product(
            [(64, 12, 16), (10, 7, 4), (1, 5, 2)], (I8, UI4), (False, True), ("", "block")
        )
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Product:
    m: int
    k: int
    n: int
    split: tuple[int, int] = (1, 1)
    scale: str = "axis"
    zero_point: IntegerType | None = None
    bias: bool = False

    @property
    def name(self) -> str:
        split = "x".join(map(str, self.split))
        zero = self.zero_point or ""
        return f"product_{self.m}x{self.k}x{self.n}_{self.scale}{zero}{'_bias' * self.bias}_{split}"


SHAPES = [(32, 64, 64), (7, 5, 3), (1, 9, 17), (5, 1, 4), (13, 12, 22), (8, 0, 6)]
PRODUCTS = [
    *(Product(m, k, n, s) for (m, k, n), s in product(SHAPES, [(1, 1), (8, 1), (1, 8), (2, 4)])),
    *(
        Product(9, 11, 14, (3, 2), scale, zero, bias)
        for scale, zero, bias in product(("", "tensor", "axis"), (None, I8, UI8, I16, UI16), (False, True))
        if scale or zero is None
    ),
]  # fmt: skip
SUMS = [(m, k, parts) for (m, k), parts in product([(32, 64), (7, 5), (1, 9), (4, 1), (5, 0)], (1, 3, 8))]  # fmt: skip


class Suite:
    """Every kernel in one library, with what it has to compute and within which bound."""

    def __init__(self, folder: Path) -> None:
        self.cores = Cores(folder)
        self.expected: dict[str, tuple[Array, Array]] = {}
        self.rng = np.random.default_rng(11)

    def integers(self, storage: IntegerType, *shape: int) -> Array:
        low, high = integer_range(storage)
        return self.rng.integers(low, high + 1, shape).astype(numpy_dtype(storage))

    def pack(self, case: Pack) -> None:
        rng, storage = self.rng, case.storage
        k, n, blocks = case.k, case.n, -(-case.k // case.block) if case.block else 0
        w = (
            rng.standard_normal((k, n)).astype(np.float32)
            if storage == f32
            else self.integers(storage, k, n)
        )
        shape = {"tensor": (), "axis": (n,), "block": (blocks, n), "": (blocks, n)}[case.zero_point]
        wide = w.astype(np.float64)
        operands = {"w": Arg(storage, w)}

        def spread(x: Array) -> Array:
            return np.repeat(x, case.block, axis=0)[:k] if case.block else x

        if case.zero_point:
            type_ = zero_point_type(storage)
            zero = (
                self.integers(type_, *shape)
                if bit_width(storage) != 4
                else self.integers(storage, *shape)
            )
            wide = wide - spread(zero.astype(np.float64))
            operands["zero_point"] = Arg(type_, zero)
        bound: Array = np.zeros(())
        if case.block:
            scale = rng.uniform(0.001, 0.1, (blocks, n)).astype(np.float32)
            wide = wide * spread(scale)
            bound = packed(np.abs(wide)) * 2.0**-24
            operands["scale"] = Arg(f32, scale)
        for name in operands if case.transposed else ():
            values = operands[name].values
            assert values is not None
            operands[name] = Arg(operands[name].element, values.T.copy())
        self.add(case.name, "c.pack", case.split, operands, packed(wide), bound, lambda v: [
            qkernel.PackOp(
                v["w"], v["y"], scale=v.get("scale"), zero_point=v.get("zero_point"), transpose_b=case.transposed,
                block_size=case.block or None,
            )
        ])  # fmt: skip

    def product(self, case: Product) -> None:
        rng = self.rng
        a = rng.standard_normal((case.m, case.k)).astype(np.float32)
        w = rng.integers(-128, 128, (case.k, case.n)).astype(np.float32)
        total, size = a.astype(np.float64) @ w, np.abs(a).astype(np.float64) @ np.abs(w)
        # Columns from N on hold what nobody may use.
        panels = packed(w)
        if case.n % 4:
            panels[-1, :, case.n % 4 :] = np.nan
        operands = {"a": Arg(f32, a), "p": Arg(f32, panels)}
        if case.scale:
            shape = (case.n,) if case.scale == "axis" else ()
            scale = rng.uniform(0.001, 0.1, shape).astype(np.float32)
            operands["scale"] = Arg(f32, scale)
            if case.zero_point is not None:
                zero = self.integers(case.zero_point, *shape)
                sums = a.sum(-1, dtype=np.float32)
                total = total - zero.astype(np.float64) * a.astype(np.float64).sum(-1)[:, None]
                size = size + np.abs(zero.astype(np.float64)) * np.abs(a).sum(-1)[:, None]
                operands["zero_point"] = Arg(case.zero_point, zero)
                operands["row_sum"] = Arg(f32, sums)
            total, size = total * scale, size * scale
        if case.bias:
            bias = rng.standard_normal(case.n).astype(np.float32)
            total, size = total + bias, size + np.abs(bias)
            operands["bias"] = Arg(f32, bias)

        def body(v: dict[str, SSAValue]) -> Any:
            epilogue: dict[str, Any] = {}
            if case.bias:
                columns = AffineMap(2, 0, (AffineExpr.dimension(1),))
                epilogue = {
                    "epilogue_operands": [v["bias"]],
                    "epilogue_maps": [columns],
                    "epilogue": add_bias(),
                }
            return [
                qkernel.PackedMatmulOp(
                    v["a"], v["p"], v["y"], scale=v.get("scale"), zero_point=v.get("zero_point"),
                    row_sum=v.get("row_sum"), hoisted=case.zero_point is not None, **epilogue,
                )
            ]  # fmt: skip

        bound = gamma(case.k + 5) * size
        self.add(case.name, "c.packed_matmul", case.split, operands, total, bound, body)

    def row_sum(self, m: int, k: int, parts: int) -> None:
        a = self.rng.standard_normal((m, k)).astype(np.float32)
        total, size = a.astype(np.float64).sum(-1), np.abs(a).astype(np.float64).sum(-1)
        self.add(f"row_sum_{m}x{k}_{parts}", "c.row_sum", (parts,), {"a": Arg(f32, a)}, total, gamma(k) * size,
                 lambda v: [qkernel.RowSumOp(v["a"], v["y"])])  # fmt: skip

    def add(
        self, name: str, kernel: str, split: tuple[int, ...], operands: dict[str, Arg], expected: Array, bound: Array,
        body: Any,
    ) -> None:  # fmt: skip
        names = [*operands, "y"]
        args = [*operands.values(), Arg(f32, shape=expected.shape)]
        self.cores.add(name, kernel, split, args, lambda v: body(dict(zip(names, v, strict=True))))
        self.expected[name] = (expected, bound)
        for a in args:
            if a.values is not None:
                a.values = nibbles(a.values, a.element)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Suite, ctypes.CDLL]]:
    suite = Suite(tmp_path_factory.mktemp("packed"))
    for case in PACKS:
        suite.pack(case)
    for case in PRODUCTS:
        suite.product(case)
    for case in SUMS:
        suite.row_sum(*case)
    yield suite, suite.cores.build()


def test_every_share_of_every_kernel(built: tuple[Suite, ctypes.CDLL]) -> None:
    suite, library = built
    assert len(suite.expected) == len(PACKS) + len(PRODUCTS) + len(SUMS)
    for name, (expected, bound) in suite.expected.items():
        for cores in CORES:
            y, _ = suite.cores.run(library, name, cores)
            assert_within(y, expected, bound, f"{name} on {cores} cores")


def test_work_is_divided(built: tuple[Suite, ctypes.CDLL]) -> None:
    """Of 32 x 64 outputs 256 each, of 16 panels two each, and none for a ninth core."""
    suite, library = built
    for name in (
        Product(32, 64, 64, (8, 1)).name,
        Product(32, 64, 64, (1, 8)).name,
        Product(32, 64, 64, (2, 4)).name,
    ):
        assert suite.cores.run(library, name, 9)[1] == [256] * 8 + [0]
    assert suite.cores.run(library, Pack(40, 64, (8, 1), zero_point="axis").name, 8)[1] == [320] * 8
    assert suite.cores.run(library, Pack(40, 64, (1, 8), zero_point="axis").name, 8)[1] == [320] * 8


def test_weights_are_converted_in_the_pack_and_nowhere_else(
    built: tuple[Suite, ctypes.CDLL],
) -> None:
    cores = built[0].cores
    pack = cores.text(Pack(40, 64, (8, 1), zero_point="axis").name)
    assert "const int8_t *restrict w" in pack
    assert "(float)(w[" in pack
    product_ = cores.text(Product(32, 64, 64, (8, 1)).name)
    assert "const float *restrict p" in product_
    assert "int" not in product_.replace("uint32_t", "").replace("ptrdiff_t", "")


@pytest.mark.parametrize(
    ("kernel", "split"), [("c.pack", (2,)), ("c.packed_matmul", (2,)), ("c.row_sum", (2, 2))]
)
def test_a_split_for_other_loops_is_refused(
    tmp_path: Path, kernel: str, split: tuple[int, ...]
) -> None:
    cores = Cores(tmp_path)
    a, y = Arg(f32, np.zeros((4, 8), np.float32)), Arg(f32, shape=(4, 4))
    p = Arg(f32, np.zeros((1, 8, 4), np.float32))
    ops: dict[str, tuple[list[Arg], Any]] = {
        "c.pack": ([a, Arg(f32, shape=(2, 4, 4))], lambda v: [qkernel.PackOp(v[0], v[1])]),
        "c.packed_matmul": ([a, p, y], lambda v: [qkernel.PackedMatmulOp(v[0], v[1], v[2])]),
        "c.row_sum": ([a, Arg(f32, shape=(4,))], lambda v: [qkernel.RowSumOp(v[0], v[1])]),
    }
    cores.add("f", kernel, split, *ops[kernel])
    with pytest.raises(NotLevel3, match="split"):
        cores.text("f")
