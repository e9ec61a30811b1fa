"""What convolutions and window sums do, as far as staging is concerned."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from qfold.dialects import qkernel
from qfold.dialects.contraction import WORD_WINDOWS, ints, shape_of, window_of
from qfold.dialects.integer_operands import DATA_TYPES
from qfold.dialects.qkernel.packed_integers import STEPS as WORD
from qfold.ir.operands import named_operands
from qfold.targets import Target
from qfold.transforms.loop_tiling import Argument, Dimension, Work
from qfold.transforms.qmm_select_kernels import finishes
from qfold.transforms.staging import memref_type
from qfold.transforms.tiling_cost import LOAD, STORE_INTEGER, WORD_ROW

Convolution = qkernel.ConvOp | qkernel.DequantConvOp | qkernel.WindowSumOp | qkernel.QuantConvOp
_BATCH, _CHANNEL = 0, 1
_PER_CHANNEL = ("w", "scale", "zero_point", "w_zero_point")


_HIGHEST = 4
"""Rows of a window for whose words registers suffice."""
_REACH = 2048
"""Bytes that a load reaches from a pointer."""


def reads_words(op: Convolution, target: Target) -> bool:
    """Whether `target` has a kernel for `op` that multiplies rows of windows as words: a depthwise convolution of bytes, whose
    windows are at most a word wide and apart, and epilogue operands have one element per output, per channel, or for all."""
    kernels = target.kernels_of(op.name)
    if not isinstance(op, qkernel.QuantConvOp) or not any(k.word_windows for k in kernels):
        return False
    groups, strides, _, dilations = window_of(op)
    width = shape_of(op.x)[-1]
    *high, wide = shape_of(op.w)[2:]
    reach = width * (1 + sum((n - 1) * d for n, d in zip(high, dilations[:-1], strict=True)))
    spatial = set(range(2, len(shape_of(op.y))))
    return (
        op.x_zero_point is None
        and op.w_zero_point is None
        and memref_type(op.w).element_type in DATA_TYPES
        and groups == shape_of(op.x)[1]
        and shape_of(op.w)[1] == 1
        and wide <= WORD
        and strides[-1] <= WORD
        and dilations[-1] == 1
        and all(n <= _HIGHEST for n in high)
        and reach + WORD < _REACH
        and all(map_.used_dims() & spatial in (set(), spatial) for map_ in op.maps)
        and finishes(op, op.name, target)
    )


def conv_work(op: Convolution, words: bool = False) -> Work:
    """Tiles are cut along the batch, or along output channels: of one group, or of a depthwise convolution. `words`: what
    `reads_words` says."""
    found: dict[SSAValue, Argument] = {}
    for name, value in named_operands(op):
        argument = found.setdefault(value, Argument(value, touched=True))
        argument.reads = argument.reads or name != "y"
        argument.writes = argument.writes or name == "y"
    block = op.parent
    assert block is not None
    taps = prod(
        ints(op.kernel_shape) if isinstance(op, qkernel.WindowSumOp) else shape_of(op.w)[2:]
    )
    channels = shape_of(op.x)[1] // window_of(op)[0]
    loads = (
        prod(shape_of(op.y)) * channels * taps * (1 if isinstance(op, qkernel.WindowSumOp) else 2)
    )
    counts = shape_of(op.y)
    if words:
        counts = (*counts[:-1], 1)
        loads = prod(shape_of(op.y)) * word_cycles(op) // LOAD

    def adapt(copy: Operation, size: int | None) -> None:
        assert isinstance(copy, Convolution)
        with_groups(copy)
        if words:
            copy.attributes[WORD_WINDOWS] = UnitAttr()

    arguments = [found[v] for v in block.args if v in found]
    return Work([op], arguments, list(_dimensions(op)), loads, counts, adapt)


def word_cycles(op: Convolution) -> int:
    """Of an output of a kernel that reads words."""
    rows = 1 if isinstance(op, qkernel.WindowSumOp) else prod(shape_of(op.w)[2:-1])
    return WORD_ROW * rows + STORE_INTEGER


def _dimensions(op: Convolution) -> Iterator[Dimension]:
    shape = shape_of(op.y)
    for dimension in (_BATCH, _CHANNEL):
        if shape[dimension] < 2:
            continue
        where = _where(op, dimension)
        if where is not None:
            yield Dimension(shape[dimension], where, dimension)


def _where(op: Convolution, dimension: int) -> dict[SSAValue, int | None] | None:
    """Which dimension of each operand goes along with one of the output; None when one does in no simple way."""
    groups = window_of(op)[0]
    depthwise = groups > 1
    if dimension == _CHANNEL and depthwise and not groups == shape_of(op.x)[1] == shape_of(op.y)[1]:
        return None
    where: dict[SSAValue, int | None] = {}
    for name, value in named_operands(op):
        at: int | None = None
        if name == "y":
            at = dimension
        elif name == "epilogue_operands":
            continue
        elif dimension == _BATCH:
            at = 0 if name in ("x", "window_sum") else None
        elif name in _PER_CHANNEL:
            at = 0 if shape_of(value) else None
        elif name in ("x", "window_sum"):
            at = 1 if depthwise else None
        if where.setdefault(value, at) != at:
            return None
    if not isinstance(op, qkernel.WindowSumOp):
        for value, map_ in zip(op.epilogue_operands, op.maps, strict=True):
            at = _position(map_, dimension)
            if at == _COMPUTED or where.setdefault(value, at) != at:
                return None
    return where


_COMPUTED = -1


def _position(map_: AffineMap, dimension: int) -> int | None:
    """Which result of a map is the dimension; None for none, `_COMPUTED` for an index that is computed with it."""
    at: int | None = None
    for d, expression in enumerate(map_.results):
        if dimension not in expression.used_dims():
            continue
        if not isinstance(expression, AffineDimExpr) or at is not None:
            return _COMPUTED
        at = d
    return at


def with_groups(op: Convolution) -> None:
    """Give a depthwise convolution of some of the channels as many groups."""
    groups = min(window_of(op)[0], shape_of(op.x)[1])
    op.properties["groups"] = IntegerAttr(groups, i64)
