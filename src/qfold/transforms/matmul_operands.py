"""A matmul as the tiling pass sees it: operands by role, leading dimensions in one, what is left as loops over matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineMap

from qfold.dialects import qkernel
from qfold.dialects.contraction import shape_of
from qfold.dialects.qkernel import PANEL
from qfold.dialects.qkernel.packed_integers import STEPS
from qfold.ir.layouts import Layout
from qfold.transforms.staging import Operand, Stage

Matmul = (
    qkernel.MatmulOp | qkernel.DequantMatmulOp | qkernel.QuantMatmulOp | qkernel.PackedQuantMatmulOp
)


@dataclass(frozen=True)
class Batch:
    """A loop over matrices."""

    role: str
    extent: int
    weight: bool
    """Whether each iteration has a weight of its own."""


@dataclass(frozen=True)
class Problem:
    """`y[batch, m, n] = sum over k of a[batch, m, k] * w[batch, k, n]`, and what follows."""

    op: Matmul
    m: int
    k: int
    n: int
    batches: tuple[Batch, ...]
    """Those with weights of their own first."""
    a: Operand
    w: Operand
    y: Operand
    scale: Operand | None
    zero_point: Operand | None
    """Of the weight."""
    per_row: tuple[tuple[str, Operand], ...]
    """Named operands of the op with an element per row of `a`."""
    epilogue: tuple[Operand, ...]

    @property
    def transposed(self) -> bool:
        return not self.panels and _transposed(self.op)

    @property
    def panels(self) -> bool:
        """Whether the weight is packed in L2 already. `w` then has columns, as many as panels have, for rows."""
        return isinstance(self.op, qkernel.PackedQuantMatmulOp)

    @property
    def block(self) -> int | None:
        return self.op.block if isinstance(self.op, qkernel.DequantMatmulOp) else None

    def matrices(self, weight: bool) -> tuple[Batch, ...]:
        return tuple(b for b in self.batches if b.weight == weight)

    def map(self, operand: Operand) -> AffineMap:
        """(m, n) -> the indices of an epilogue operand's tile."""
        where = {"m": 0, "n": 1}
        kept = [AffineDimExpr(where[r]) for r in operand.kept if r in where]
        return AffineMap(2, 0, tuple(kept))


def problem_of(op: Matmul, stage: Stage) -> Problem | None:
    """How `op` looks when its operands are parameters of `stage`'s function; None when it is not one to tile.

    Views that bring leading dimensions together are written to `stage`.
    """
    if isinstance(op, qkernel.MatmulOp) and op.transpose_a is not None:
        return None
    *batch, m, n = shape_of(op.y)
    if 0 in (*batch, m, n) or 0 in shape_of(op.a) or list(op.operands).count(op.y) > 1:
        return None
    k = shape_of(op.a)[-1]
    dims: list[str | int] = [0 if size == 1 else f"b{d}" for d, size in enumerate(batch)]

    def operand(value: SSAValue, *last: str | int) -> Operand:
        lead = shape_of(value)[: len(shape_of(value)) - len(last)]
        own = dims[len(dims) - len(lead) :]
        roles = [0 if size == 1 else role for size, role in zip(lead, own, strict=True)]
        return Operand(stage.argument(value), (*roles, *last))

    a, y = operand(op.a, "m", "k"), operand(op.y, "m", "n")
    if not isinstance(op, FLOATS):
        a = replace(a, row_alignment=STEPS)
    if isinstance(op, qkernel.PackedQuantMatmulOp):
        w = panels_by_column(op.p, stage)
    else:
        matrix = op.w if isinstance(op, qkernel.DequantMatmulOp) else op.b
        w = operand(matrix, *(("n", "k") if _transposed(op) else ("k", "n")))
    names = [*dims, "m", "n"]
    extents = [*batch, m, n]
    epilogue: list[Operand] = []
    for value, map_ in zip(op.epilogue_operands, op.maps, strict=True):
        roles = _roles(map_, names)
        if roles is None:
            return None
        epilogue.append(Operand(stage.argument(value), roles))
    scale = zero_point = None
    per_row: list[tuple[str, Operand]] = []
    if isinstance(op, qkernel.QuantMatmulOp):
        if op.a_zero_point is not None:
            last = ("m",) if shape_of(op.a_zero_point) else ()
            per_row.append(("a_zero_point", operand(op.a_zero_point, *last)))
        if op.b_zero_point is not None:
            last = ("n",) if shape_of(op.b_zero_point) else ()
            zero_point = Operand(stage.argument(op.b_zero_point), last)
    if isinstance(op, qkernel.DequantMatmulOp):
        last = () if not shape_of(op.scale) else ("n",)
        if op.block is not None:
            last = ("n", "block") if op.transpose_b is not None else ("block", "n")
        scale = Operand(stage.argument(op.scale), last)
        if op.zero_point is not None:
            zero_point = Operand(stage.argument(op.zero_point), last)
        if op.row_sum is not None:
            last = ("m",) if op.block is None else ("m", "block")
            per_row.append(("row_sum", operand(op.row_sum, *last)))
    loops = [
        Batch(role, extent, role in w.roles)
        for role, extent in zip(names[:-2], extents[:-2], strict=True)
        if isinstance(role, str)
    ]
    loops.sort(key=lambda b: not b.weight)
    made = Problem(
        op, m, k, n, tuple(loops), a, w, y, scale, zero_point, tuple(per_row), tuple(epilogue)
    )
    return _collapsed(made, stage)


FLOATS = qkernel.MatmulOp | qkernel.DequantMatmulOp


def _transposed(op: Matmul) -> bool:
    return not isinstance(op, qkernel.PackedQuantMatmulOp) and op.transpose_b is not None


def panels_by_column(p: SSAValue, stage: Stage) -> Operand:
    """Panels [P, words, 4, 4] in L2 as a matrix with a row per column: a tile of columns is a tile of its rows."""
    panels, words, _, _ = shape_of(p)
    matrix = stage.reshape(stage.argument(p), [panels * PANEL, words * STEPS])
    matrix.name_hint = "p"
    return Operand(matrix, ("n", "k"), unit=PANEL)


def _roles(map_: AffineMap, names: Sequence[str | int]) -> tuple[str | int, ...] | None:
    """The roles of an epilogue operand's dimensions; None for indices that are computed, or used twice."""
    roles: list[str | int] = []
    for expression in map_.results:
        if isinstance(expression, AffineConstantExpr):
            roles.append(expression.value)
        elif isinstance(expression, AffineDimExpr):
            roles.append(names[expression.position])
        else:
            return None
    used = [r for r in roles if isinstance(r, str)]
    return tuple(roles) if len(used) == len(set(used)) else None


def _collapsed(problem: Problem, stage: Stage) -> Problem:
    """With the loops over matrices that share the weight as more rows of one, when all operands allow it."""
    own = [b.role for b in problem.matrices(weight=False)]
    if not own:
        return problem
    merged = (*own, "m")
    operands = [problem.a, problem.y, *problem.epilogue, *(o for _, o in problem.per_row)]
    steps: list[Callable[[], Operand]] = []
    for operand in operands:
        step = _merge(operand, merged, stage)
        if step is None:
            return problem
        steps.append(step)
    new = [step() for step in steps]
    a, y, *rest = new
    epilogue = tuple(rest[: len(problem.epilogue)])
    per_row = rest[len(problem.epilogue) :]
    m = problem.m
    for b in problem.matrices(weight=False):
        m *= b.extent
    return replace(
        problem,
        m=m,
        batches=problem.matrices(weight=True),
        a=a,
        y=y,
        epilogue=epilogue,
        per_row=tuple((name, o) for (name, _), o in zip(problem.per_row, per_row, strict=True)),
    )


def _merge(operand: Operand, merged: Sequence[str], stage: Stage) -> Callable[[], Operand] | None:
    """How to see the dimensions of the roles `merged` as one dimension of the last role; None when that needs a copy."""
    roles = operand.roles
    if not any(r in merged for r in roles):
        return lambda: operand
    at = [d for d, r in enumerate(roles) if r in merged]
    first, last = at[0], at[-1]
    between = roles[first : last + 1]
    if [r for r in between if isinstance(r, str)] != list(merged):
        return None
    shape = operand.type.get_shape()
    if any(isinstance(r, int) and shape[first + d] != 1 for d, r in enumerate(between)):
        return None
    groups = [
        *([d] for d in range(first)),
        list(range(first, last + 1)),
        *([d] for d in range(last + 1, len(roles))),
    ]
    sizes = [shape[g[0]] if len(g) == 1 else prod(shape[d] for d in g) for g in groups]
    if Layout.of(operand.type).reshaped(sizes) is None:
        return None
    new_roles = (*roles[:first], merged[-1], *roles[last + 1 :])
    return lambda: replace(operand, value=stage.collapse(operand.value, groups), roles=new_roles)
