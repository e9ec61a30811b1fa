"""A matmul as its printers see it: loops, positions in every operand, scales, and the epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qfold.backend.c.contraction import Buffers, Epilogue, Weight
from qfold.backend.c.layout import Linear, variable
from qfold.backend.c.share import Split
from qfold.dialects import qkernel


@dataclass(frozen=True)
class Dim:
    """A loop over a batch dimension."""

    name: str
    extent: int


@dataclass(frozen=True)
class MatmulProblem:
    """One matmul over C variables: outer loops, then m, n, k (k within `k0` chunks and quantisation blocks)."""

    batch: tuple[Dim, ...]
    m: int
    n: int
    k: int
    block: int
    """Elements of K that share a scale: K itself but for blockwise scales."""
    a: Linear
    w: Linear
    sums: Linear | None
    parameters: tuple[Linear, ...]
    """Indices of scale and zero point, over n and the block number `kb`."""
    weight: Weight
    a_name: str
    epilogue: Epilogue
    targets: tuple[Linear | str, ...]
    """Where y and the epilogue's operands are; text where a map is not linear, then `dims` are used instead."""
    dims: tuple[Linear, ...]
    """The output indices."""
    parts: tuple[int, ...]
    """Into how many parts each of the loops (batch, m, n) is divided between cores."""

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block) if self.k else 0


def matmul_problem(
    op: qkernel.MatmulOp, buffers: Buffers, split: Split | None = None
) -> MatmulProblem:
    """Of `qkernel.matmul`; `split` is over the dimensions of y."""
    a, b = buffers[op.a], buffers[op.b]
    outer = [
        Linear() if n == 1 else variable(f"b{d}") for d, n in enumerate(buffers[op.y].shape[:-2])
    ]
    m, n, k = variable("m"), variable("n"), variable("k")
    a_last = (k, m) if op.transpose_a is not None else (m, k)
    b_last = (n, k) if op.transpose_b is not None else (k, n)
    return _problem(
        op,
        a=a.at([*_batch(outer, len(a.shape)), *a_last]),
        w=b.at([*_batch(outer, len(b.shape)), *b_last]),
        k=a.shape[-2 if op.transpose_a is not None else -1],
        block=None,
        sums=None,
        parameters=(),
        weight=Weight(b),
        dims=[*outer, m, n],
        buffers=buffers,
        split=split,
    )


def dequant_matmul_problem(
    op: qkernel.DequantMatmulOp, buffers: Buffers, split: Split | None = None
) -> MatmulProblem:
    """Of `qkernel.dequant_matmul`; `split` is over the dimensions of y."""
    a, w = buffers[op.a], buffers[op.w]
    outer = [
        Linear() if n == 1 else variable(f"b{d}") for d, n in enumerate(buffers[op.y].shape[:-2])
    ]
    m, n, k, kb = variable("m"), variable("n"), variable("k"), variable("kb")
    transposed = op.transpose_b is not None
    sums = None
    if op.row_sum is not None:
        sums = buffers[op.row_sum].at([*outer, m, *([] if op.block is None else [kb])])
    if op.block is None:
        parameters: tuple[Linear, ...] = (n,)
    else:
        parameters = (n, kb) if transposed else (kb, n)
    return _problem(
        op,
        a=a.at([*outer, m, k]),
        w=w.at([n, k] if transposed else [k, n]),
        k=a.shape[-1],
        block=op.block,
        sums=sums,
        parameters=parameters,
        weight=Weight.of(op, op.row_sum, buffers),
        dims=[*outer, m, n],
        buffers=buffers,
        split=split,
    )


def quant_matmul_problem(
    op: qkernel.QuantMatmulOp, buffers: Buffers, split: Split | None = None
) -> MatmulProblem:
    """Of `qkernel.quant_matmul`. `sums` is where the zero point of a row is, when each has its own; `parameters`, of a column."""
    a, b = buffers[op.a], buffers[op.b]
    outer = [
        Linear() if n == 1 else variable(f"b{d}") for d, n in enumerate(buffers[op.y].shape[:-2])
    ]
    m, n, k = variable("m"), variable("n"), variable("k")
    b_last = (n, k) if op.transpose_b is not None else (k, n)
    zero = None if op.a_zero_point is None else buffers[op.a_zero_point]
    rows = [*_batch(outer, len(a.shape)), m]
    return _problem(
        op,
        a=a.at([*rows, k]),
        w=b.at([*_batch(outer, len(b.shape)), *b_last]),
        k=a.shape[-1],
        block=None,
        sums=zero.at(rows) if zero is not None and zero.shape else None,
        parameters=(n,),
        weight=Weight(b),
        dims=[*outer, m, n],
        buffers=buffers,
        split=split,
    )


def _batch(outer: Sequence[Linear], rank: int) -> Sequence[Linear]:
    """The batch indices of an operand of `rank`: the last ones of the output's."""
    return outer[len(outer) - (rank - 2) :]


def _problem(
    op: qkernel.MatmulOp | qkernel.DequantMatmulOp | qkernel.QuantMatmulOp,
    *,
    a: Linear,
    w: Linear,
    k: int,
    block: int | None,
    sums: Linear | None,
    parameters: tuple[Linear, ...],
    weight: Weight,
    dims: Sequence[Linear],
    buffers: Buffers,
    split: Split | None,
) -> MatmulProblem:
    shape = buffers[op.y].shape
    epilogue = Epilogue.of(op, op.y, buffers)
    targets = epilogue.positions(dims)
    loops = [Dim(f"b{d}", x) for d, x in enumerate(shape[:-2]) if x != 1]
    m = shape[-2]
    *outer_parts, m_parts, n_parts = (1,) * len(shape) if split is None else split.parts
    parts = [p for p, x in zip(outer_parts, shape[:-2], strict=True) if x != 1]
    used: list[Linear | str] = [a, w, *([] if sums is None else [sums]), *targets]
    linear: list[Linear] = [x for x in used if not isinstance(x, str)]
    # Rows of all batches are rows of one matmul where the weight is the same and every step is.
    while loops and len(linear) == len(used):
        inner = loops[-1]
        steps = [(x.coefficient(inner.name), x.coefficient("m")) for x in linear]
        if linear[1].coefficient(inner.name) or any(x != y * m for x, y in steps if m != 1):
            break
        loops.pop()
        m_parts *= parts.pop()
        rename: dict[str, str | None] = {inner.name: "m" if m == 1 else None}
        linear = [x.renamed(rename) for x in linear]
        m *= inner.extent
    if len(linear) == len(used):
        a, w, *rest = linear
        sums, targets = (None, rest) if sums is None else (rest[0], rest[1:])
    return MatmulProblem(
        tuple(loops), m, shape[-1], k, block or k or 1, a, w, sums, parameters, weight,
        buffers[op.a].name, epilogue, tuple(targets), tuple(dims),
        (*parts, m_parts, n_parts),
    )  # fmt: skip
