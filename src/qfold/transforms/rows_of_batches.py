"""Products whose rows lie in several batches as products of matrices: views of operands, and maps over rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineExpr, AffineMap

from qfold.dialects.contraction import EpilogueOperation, shape_of
from qfold.transforms.buffer_views import collapse, collapses

_ROW, _COLUMN = AffineExpr.dimension(0), AffineExpr.dimension(1)


@dataclass(frozen=True)
class View:
    """An operand as it is, or with dimensions joined to a `shape`."""

    source: SSAValue
    shape: tuple[int, ...] | None = None

    @staticmethod
    def of(value: SSAValue, shape: Sequence[int]) -> View | None:
        """`value` with dimensions joined to `shape`; None where its strides do not allow that."""
        if shape_of(value) == tuple(shape):
            return View(value)
        return View(value, tuple(shape)) if collapses(value, shape) else None

    def made(self) -> tuple[SSAValue, list[Operation]]:
        """The value, and what has to be inserted for it."""
        if self.shape is None:
            return self.source, []
        step = collapse(self.source, self.shape)
        return step.result, [step]


@dataclass(frozen=True)
class AsMatrix:
    """`y` as [rows, columns], and the epilogue over that."""

    y: View
    operands: tuple[View, ...]
    maps: tuple[AffineMap, ...]

    @staticmethod
    def of(op: EpilogueOperation, y: SSAValue) -> AsMatrix | None:
        """Of a contraction that writes `y` [..., M, N]; None where a layout or a map of the epilogue does not allow it."""
        if len(shape_of(y)) == 2:
            return AsMatrix(View(y), tuple(View(v) for v in op.epilogue_operands), op.maps)
        *rows, columns = shape_of(y)
        whole = View.of(y, (prod(rows), columns))
        found = [
            _epilogue_operand(v, m, shape_of(y))
            for v, m in zip(op.epilogue_operands, op.maps, strict=True)
        ]
        known = [f for f in found if f is not None]
        if whole is None or len(known) != len(found):
            return None
        return AsMatrix(whole, tuple(v for v, _ in known), tuple(m for _, m in known))


def _epilogue_operand(
    value: SSAValue, map_: AffineMap, output: Sequence[int]
) -> tuple[View, AffineMap] | None:
    """An epilogue operand where rows are one dimension: it runs along all of them, in their order, or along none."""
    *rows, columns = output
    last = len(rows)
    dims: list[int] = []
    for expression in map_.results:
        if isinstance(expression, AffineDimExpr):
            dims.append(expression.position)
        elif not isinstance(expression, AffineConstantExpr):
            return None
    if dims in ([], [last]):
        results = tuple(_COLUMN if isinstance(e, AffineDimExpr) else e for e in map_.results)
        return View(value), AffineMap(2, 0, results)
    along = [d for d in dims if d != last and rows[d] != 1]
    every = [d for d, n in enumerate(rows) if n != 1]
    constants = [
        n
        for e, n in zip(map_.results, shape_of(value), strict=True)
        if isinstance(e, AffineConstantExpr)
    ]
    if along not in ([], every) or dims != sorted(set(dims)) or any(n != 1 for n in constants):
        return None
    shape = [prod(rows)] if along else []
    results = [_ROW] if along else []
    if last in dims:
        shape.append(columns)
        results.append(_COLUMN)
    if not shape:
        shape, results = [1], [AffineExpr.constant(0)]
    view = View.of(value, shape)
    return None if view is None else (view, AffineMap(2, 0, tuple(results)))
