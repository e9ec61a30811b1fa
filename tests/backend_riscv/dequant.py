"""Leaf functions of one `qkernel.dequant_matmul`, with operands, and what they must compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qfold.backend.riscv import dequant_matmul
from qfold.backend.riscv.generated import GeneratedKernel, LeafKernel
from qfold.targets.cluster import INSERTED
from tests.backend_riscv.harness import Array, Operand
from tests.backend_riscv.packed import EPILOGUES, Problem

EXTREMES = {"i8": (-128, 127), "ui8": (0, 255)}


@dataclass(frozen=True)
class DequantProblem(Problem):
    """
    An 8-bit weight as it is stored. The epilogue's zero point says nothing here: `zero_point` does.
    """

    stored: str = "i8"
    transposed: bool = False
    zero_point: str = ""
    """"", "subtracted" or "hoisted"; shaped as the scale."""
    w_stride: int | None = None
    """Elements from row to row of the weight as it is stored."""
    k_block: int | None = None
    """Elements of K that share a scale."""

    def __post_init__(self) -> None:
        source = np.random.default_rng([self.m, self.n, self.k, self.transposed])
        m, n, k, e = self.m, self.n, self.k, EPILOGUES[self.epilogue]
        low, high = EXTREMES[self.stored]
        dtype = np.int8 if self.stored == "i8" else np.uint8

        def integers(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
            found = source.integers(low, high + 1, shape).astype(dtype)
            # The ends of the range, so that a difference of weight and zero point reaches -255 and 255.
            found.flat[0], found.flat[-1] = low, high
            return found

        def rows(stride: int | None) -> tuple[int, int] | None:
            return None if stride is None else (stride, 1)

        a = source.standard_normal((m, k)).astype(np.float32)
        w = integers(n, k) if self.transposed else integers(k, n)
        found = {"a": Operand(a, rows(self.a_stride)), "weight": Operand(w, rows(self.w_stride))}
        shape: tuple[int, ...] = (n,) if e.scale != "tensor" else ()
        step = self.k_block or k
        if self.k_block is not None:
            blocks = -(-k // step)
            shape = (n, blocks) if self.transposed else (blocks, n)
        scale = (source.random(shape) + 0.5).astype(np.float32)
        found["scale"] = Operand(np.asarray(scale, np.float32))
        if self.zero_point:
            found["zero"] = Operand(integers(*shape)[::-1].copy() if shape else integers())
        if self.zero_point == "hoisted":
            sums = np.add.reduceat(a, range(0, k, step), axis=1)
            found["sums"] = Operand(sums if self.k_block is not None else sums[:, 0].copy())
        sizes = {"d0": m, "d1": n}
        for i, map_ in enumerate(e.maps):
            extents = [sizes[d] for d in map_.split(", ")] if map_ else []
            values = source.standard_normal(extents)
            found[f"e{i}"] = Operand(np.asarray(values, np.float32))
        found["y"] = Operand(np.full((m, n), np.nan, np.float32), rows(self.y_stride))
        self.operands.update(found)

    @property
    def text(self) -> str:
        e = EPILOGUES[self.epilogue]
        arguments = ", ".join(f"%{n}: {o.type}" for n, o in self.operands.items())
        types = ", ".join(o.type for o in self.operands.values())
        clauses = " zero_point(%zero)" if self.zero_point else ""
        if self.zero_point == "hoisted":
            clauses += " row_sum(%sums)"
        region = after = ""
        if e.body:
            names = [f"%e{i}" for i in range(len(e.maps))]
            maps = ", ".join(f"affine_map<(d0, d1) -> ({m})>" for m in e.maps)
            clauses += f" epilogue({', '.join(names)})"
            after = f"maps [{maps}] "
            inner = ", ".join(f"%{n} : f32" for n in ("acc", *(f"x{i}" for i in range(len(names)))))
            region = f"{{\n^bb0({inner}):\n" + "\n".join(e.body) + "\nqmm.yield %r : f32\n}"
        flags = ["hoisted"] if self.zero_point == "hoisted" else []
        flags += ["transpose_b"] if self.transposed else []
        flags += [] if self.k_block is None else [f"block_size = {self.k_block} : i64"]
        split = f"qmm.split = array<i64: {self.split[0]}, {self.split[1]}>" if self.split else ""
        clauses += f" outs(%y) {after}{{{', '.join(flags)}}}"
        return f"""
            func.func private @leaf({arguments}) attributes {{{split}}} {{
              qkernel.dequant_matmul %a, %weight, %scale{clauses} : ({types}) -> () {region}
              func.return
            }}
        """

    def generate(self, leaf: LeafKernel) -> GeneratedKernel:
        return dequant_matmul.generate(leaf)

    def __str__(self) -> str:
        layout = "nk" if self.transposed else "kn"
        return (
            f"{super().__str__()}, {self.stored} {layout}, zero point {self.zero_point or 'none'}"
        )


@dataclass(frozen=True)
class InsertedProblem(DequantProblem):
    """The same for the kernel that inserts weights to floats: its bound is the one of weights that are `weight_bias` larger
    (docs/numerics.md)."""

    stored: str = "ui8"

    @property
    def may_pair(self) -> bool:
        """Whether each core has whole pairs of columns that lie side by side."""
        parts = self.split[1] if self.split else 1
        size, larger = divmod(self.n, parts)
        even = size % 2 == 0 and larger == 0
        return self.m == 1 and not self.transposed and even

    def generate(self, leaf: LeafKernel) -> GeneratedKernel:
        return dequant_matmul.generate_inserted(leaf)

    def check(self, stored: Array) -> None:
        value = self.expected().value
        error = np.abs(stored - value)
        bound = self.wide_bound()
        assert (error <= bound).all(), (str(self), float((error / bound).max()))

    def wide_bound(self) -> Array:
        """With every weight and zero point `weight_bias` larger; without an epilogue."""
        assert not EPILOGUES[self.epilogue].body
        operands = {n: o.array.astype(np.float64) for n, o in self.operands.items()}
        a, scale = np.abs(operands["a"]), operands["scale"]
        w = operands["weight"].T if self.transposed else operands["weight"]
        zero = operands.get("zero", np.float64(0)) + INSERTED.weight_bias
        n = (self.k + 4) * 2.0**-24
        largest = a @ (w + INSERTED.weight_bias) + np.outer(
            a.sum(axis=1), np.broadcast_to(zero, w.shape[1])
        )
        return n / (1 - n) * scale * largest
