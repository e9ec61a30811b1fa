"""MatMulNBits: a matrix of 4 or 8 bits, quantised by blocks along K and stored one row for each column of the product."""

from __future__ import annotations

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32
from xdsl.ir import SSAValue

from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import ui4, ui8
from qfold.frontend.context import NodeContext
from qfold.frontend.ops.contraction import matmul, require_f32, with_vectors
from qfold.frontend.ops.quantization import check_scale
from qfold.frontend.registry import onnx_op
from qfold.frontend.values import Array, Const, Quantized, fits

_STORAGE: dict[int, IntegerType] = {4: ui4, 8: ui8}


def _unpacked(array: Array, bits: int) -> Array:
    """The last dimension's bytes as integers; of four bits, the low nibble comes first."""
    if bits == 8:
        return array
    return np.stack([array & 15, array >> 4], axis=-1).reshape(*array.shape[:-1], -1)


def _bytes(ctx: NodeContext, index: int, what: str, shape: tuple[int, ...]) -> Array:
    """The constant of ui8 in input `index`, whose elements are those of `shape`."""
    array = ctx.require_const(index, what)
    if ctx.type(index).element_type != ui8:
        ctx.refuse(f"{what} of {ctx.type(index).element_type}", f"{what} of ui8")
    if array.size != np.prod(shape):
        ctx.invalid(f"{what} has shape {list(array.shape)}; expected {list(shape)}")
    return array.reshape(shape)


def _zero_points(ctx: NodeContext, rows: int, blocks: int, bits: int) -> Array:
    """One for each block [N, blocks], or one for all: 2^(bits - 1) where none are given."""
    if not ctx.has_input(3):
        return np.asarray(1 << (bits - 1))
    if ctx.type(3).element_type != f32:
        packed = _bytes(ctx, 3, "zero points", (rows, -(-blocks * bits // 8)))
        points = _unpacked(packed, bits)[:, :blocks]
    else:
        real = ctx.require_const(3, "zero points")
        if real.size != rows * blocks:
            ctx.invalid(f"zero points have shape {list(real.shape)}; expected {[rows, blocks]}")
        if not np.isfinite(real).all() or not fits(real, _STORAGE[bits]):
            ctx.refuse("zero points that are fractions", f"integers of {_STORAGE[bits]}")
        points = real.reshape(rows, blocks)
    points = points.astype(np.int64)
    # All equal, as they mostly are, they need no array.
    same = points.size > 0 and (points == points.flat[0]).all()
    return np.asarray(points.flat[0]) if same else points


@onnx_op("MatMulNBits", domain="com.microsoft")
def import_matmul_nbits(ctx: NodeContext) -> SSAValue:
    """`A @ dequantise(B)^T + bias`: a `dequantize` by blocks of the integers, K of them in each of N rows."""
    require_f32(ctx, 0, 2, 5)
    for name in ("K", "N", "bits", "block_size"):
        if not ctx.has_attr(name):
            ctx.invalid(f"it lacks its attribute '{name}'")
    k, n, bits, block = (int(ctx.attr(a, 0)) for a in ("K", "N", "bits", "block_size"))
    if bits not in _STORAGE:
        ctx.refuse(f"weights of {bits} bits", "weights of 4 and 8 bits")
    if k < 1 or n < 1 or block < 2 or block & (block - 1):
        ctx.invalid(f"K = {k}, N = {n}, block_size = {block}; a block is a power of two")
    if ctx.has_input(4):
        ctx.refuse("g_idx, which permutes K", "blocks of consecutive elements")
    blocks = -(-k // block)
    packed = _bytes(ctx, 1, "a weight", (n, blocks * block * bits // 8))
    q = np.ascontiguousarray(_unpacked(packed, bits)[:, :k])
    scale = check_scale(ctx.require_const(2, "scale"), ctx, any_sign=True)
    if scale.size != n * blocks:
        ctx.invalid(f"scales have shape {list(scale.shape)}; expected {[n, blocks]}")
    zero_point = _zero_points(ctx, n, blocks, bits)
    const = Const(q, _STORAGE[bits], ctx.node.input[1])
    if blocks == 1 and (scale > 0).all():
        points = zero_point.reshape(-1) if zero_point.ndim else zero_point
        weight = Quantized(const, f32, ctx.name, scale=scale.reshape(n), zero_point=points, axis=0)
    else:
        weight = Quantized(
            const,
            f32,
            ctx.name,
            scale=scale.reshape(n, blocks),
            zero_point=zero_point,
            axis=1,
            block_size=block,
        )
    # The weight as the right operand [K, N], which is read where it is stored.
    right = weight.transposed((1, 0), None)
    result = with_vectors(ctx, ctx.lattice(0), right, lambda a, b: matmul(ctx, a, b))
    if not ctx.has_input(5):
        return result
    if ctx.type(5).get_shape() != (n,):
        ctx.invalid(f"the bias is {ctx.type(5)} for {n} columns")
    return ctx.b.elementwise(
        [result, ctx.value(5)],
        f32,
        lambda b, e: b(arith.AddfOp, e[0], e[1]),
        shape=shape_of(result),
    )
