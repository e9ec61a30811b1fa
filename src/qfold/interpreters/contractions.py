"""What the contraction ops mean, on values of any domain: shared by `qmm` (tensors) and `qkernel` (memrefs).

Weights come as integer arrays; scales (f32) and zero points as arrays that broadcast against them. A weight is widened here, in
the oracle, and nowhere in compiled code. Error bounds: `docs/numerics.md`, "Contractions: the local bound".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.dialects.builtin import f32
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute

from qfold.dialects.contraction import EpilogueOperation, window_shape
from qfold.interpreters.domains import Domain
from qfold.interpreters.generic import run_block
from qfold.interpreters.spaces import Box, over_box
from qfold.interpreters.values import Array, Value, map_parts

_FACTORED = 3
"""Roundings that a kernel may add to each product by writing `scale * (acc - zp * sum)` in another way."""


def add(domain: Domain, a: Value, b: Value) -> Value:
    return domain.float_op("arith.addf", f32, a, b)


def subtract(domain: Domain, a: Value, b: Value) -> Value:
    return domain.float_op("arith.subf", f32, a, b)


def multiply(domain: Domain, a: Value, b: Value) -> Value:
    return domain.float_op("arith.mulf", f32, a, b)


def swap_last(value: Value) -> Value:
    return map_parts(lambda part: np.swapaxes(part, -1, -2), value)


@dataclass(frozen=True)
class Dequant:
    """A quantised weight: `real = scale * (w - zero_point)`."""

    weight: Array
    scale: Array
    """f32; broadcasts against the weight, except per block, where it has one element per block of the first axis."""
    zero_point: Array | None
    """Integers, shaped as the scale; None: 0."""
    block: int | None = None
    """Elements of the weight's first axis that share a scale."""

    @property
    def blocks(self) -> int:
        return 1 if self.block is None else -(-self.weight.shape[0] // self.block)

    def spread(self, parameters: Array) -> Array:
        """Parameters that broadcast against the weight."""
        if self.block is None:
            return parameters
        return np.repeat(parameters, self.block, axis=0)[: self.weight.shape[0]]

    def real(self, domain: Domain) -> Array:
        """The weight as the domain's floats: f32 in `exact`; elsewhere float64, in which the product is exact."""
        dtype = domain.dtype(f32)
        return self.centred(domain) * self.spread(self.scale).astype(dtype)

    def centred(self, domain: Domain) -> Array:
        """The integers minus their zero points, as the domain's floats: exact in any, for at most 16 bits."""
        difference = self.weight.astype(np.int32)
        if self.zero_point is not None:
            difference = difference - self.spread(self.zero_point).astype(np.int32)
        return difference.astype(domain.dtype(f32))

    def biased(self, bias: int) -> Dequant:
        """The same weight with its integers and zero points `bias` larger."""
        zero = np.zeros(self.scale.shape, np.int32) if self.zero_point is None else self.zero_point
        larger = self.weight.astype(np.int32) + bias
        return replace(self, weight=larger, zero_point=zero.astype(np.int32) + bias)

    def integers(self, domain: Domain) -> Array:
        """The stored integers as the domain's floats."""
        return self.weight.astype(domain.dtype(f32))


def dequant_matmul(
    domain: Domain,
    a: Value,
    w: Dequant,
    hoisted: bool,
    sums: Value | None,
    *,
    bias: int = 0,
) -> Value:
    """`a [..., M, K] @ dequantize(W [K, N])`; hoisted, `scale * (a @ W - zp * row_sum)`, per block the sum of that.

    `sums`, the `row_sum`: [..., M], or [..., M, blocks]. With a `bias` (`WEIGHT_BIAS`) every weight and zero point is so much
    larger, and the product hoisted, whether there are `sums` or not.
    """
    if bias:
        sums = row_sum(domain, a, w.block) if sums is None else sums
        return dequant_matmul(domain, a, w.biased(bias), True, sums)
    if not hoisted:
        return domain.contract(f32, a, w.real(domain), roundings=w.blocks + 1)
    integers = w.integers(domain)
    scale = w.scale.astype(domain.dtype(f32))
    zero_point = None if w.zero_point is None else w.zero_point.astype(domain.dtype(f32))
    if w.block is None:
        return scaled_matmul(domain, a, integers, scale, zero_point, sums)
    terms: list[Value] = []
    for b in range(w.blocks):
        part = slice(b * w.block, (b + 1) * w.block)
        term = domain.contract(
            f32, map_parts(lambda p, s=part: p[..., s], a), integers[part], roundings=_FACTORED
        )
        if sums is not None and zero_point is not None:
            part_sums = map_parts(lambda p, i=b: p[..., i, None], sums)
            term = subtract(domain, term, multiply(domain, zero_point[b], part_sums))
        terms.append(multiply(domain, term, scale[b]))
    return sum_of(domain, terms)


def scaled_matmul(
    domain: Domain,
    a: Value,
    w: Value,
    scale: Array | None,
    zero_point: Array | None,
    row_sum: Value | None,
) -> Value:
    """`scale * (a @ w - zero_point * row_sum)` of floats, or without a scale the product itself; `row_sum`: [..., M]."""
    if scale is None:
        return domain.contract(f32, a, w)
    total = domain.contract(f32, a, w, roundings=_FACTORED)
    if row_sum is not None and zero_point is not None:
        sums = map_parts(lambda part: part[..., None], row_sum)
        total = subtract(domain, total, multiply(domain, zero_point, sums))
    return multiply(domain, total, scale)


def pack(w: Value, panel: int) -> Value:
    """`w` [K, N] as panels of `panel` columns, [panels, K, panel]; 0 in columns from N on."""
    k, n = w.shape
    panels = -(-n // panel)

    def packed(part: Array) -> Array:
        whole = np.pad(part, [(0, 0), (0, panels * panel - n)])
        return whole.reshape(k, panels, panel).swapaxes(0, 1)

    return map_parts(packed, w)


def unpack(p: Value, n: int) -> Value:
    """The inverse of `pack`, for a weight of `n` columns."""

    def matrix(part: Array) -> Array:
        panels, k, panel = part.shape
        return part.swapaxes(0, 1).reshape(k, panels * panel)[:, :n]

    return map_parts(matrix, p)


def sum_of(domain: Domain, terms: Sequence[Value]) -> Value:
    """The f32 sum of equally shaped values, in any order."""
    shape = terms[0].shape
    stacked = domain.allocate((len(terms), *shape), f32)
    for i, term in enumerate(terms):
        domain.store(map_parts(lambda p, i=i: p[i], stacked), term)
    total = domain.reduce("arith.addf", f32, stacked, (0,), np.zeros((), domain.dtype(f32)))
    return map_parts(lambda p: p.reshape(shape), total)


def row_sum(domain: Domain, a: Value, block: int | None) -> Value:
    """The sum over the last dimension, or over each block of it."""
    depth = a.shape[-1]
    size = depth if block is None else block
    blocks = 1 if block is None else -(-depth // block)
    lead = a.shape[:-1]

    def padded(part: Array) -> Array:
        whole = np.pad(part, [(0, 0)] * len(lead) + [(0, blocks * size - depth)])
        return whole.reshape(*lead, blocks, size)

    zero = np.zeros((), domain.dtype(f32))
    total = domain.reduce("arith.addf", f32, map_parts(padded, a), (len(lead) + 1,), zero)
    shape = lead if block is None else (*lead, blocks)
    return map_parts(lambda part: part.reshape(shape), total)


@dataclass(frozen=True)
class Window:
    """The sliding window of a convolution; `pads` are all begins, then all ends."""

    kernel: tuple[int, ...]
    groups: int
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    def out(self, x: Value) -> tuple[int, ...]:
        """Spatial extents of the output."""
        return window_shape(x.shape[2:], self.kernel, self.strides, self.pads, self.dilations)

    def patches(self, x: Value) -> Value:
        """[N, C, spatial...] -> [N, groups, C / groups * kernel elements, output positions], zeros outside of x."""
        return map_parts(partial(self._patches, out=self.out(x)), x)

    def _patches(self, x: Array, out: tuple[int, ...]) -> Array:
        rank = len(self.kernel)
        margins = [(0, 0), (0, 0), *zip(self.pads[:rank], self.pads[rank:], strict=True)]
        padded = np.pad(x, margins)
        batch, channels = x.shape[:2]
        group = channels // self.groups
        steps = padded.strides
        shape = (batch, self.groups, group, *self.kernel, *out)
        strides = (
            steps[0],
            steps[1] * group,
            steps[1],
            *(s * d for s, d in zip(steps[2:], self.dilations, strict=True)),
            *(s * d for s, d in zip(steps[2:], self.strides, strict=True)),
        )
        view = as_strided(padded, shape, strides, writeable=False)
        return view.reshape(batch, self.groups, group * prod(self.kernel), prod(out))


def conv(
    domain: Domain,
    x: Value,
    w: Value,
    window: Window,
    roundings: int = 0,
    element_type: Attribute = f32,
) -> Value:
    """x [N, C, spatial...], w [M, C / groups, kernel...] -> [N, groups, M / groups, output positions]."""
    filters = map_parts(
        lambda part: part.reshape(window.groups, part.shape[0] // window.groups, -1), w
    )
    return domain.contract(element_type, filters, window.patches(x), roundings=roundings)


def as_image(value: Value, x: Value, window: Window) -> Value:
    """[N, groups, M / groups, positions] -> [N, M, spatial...]."""
    shape = (value.shape[0], value.shape[1] * value.shape[2], *window.out(x))
    return map_parts(lambda part: part.reshape(shape), value)


def dequant_conv(
    domain: Domain, x: Value, w: Dequant, window: Window, hoisted: bool, sums: Value | None
) -> Value:
    """`conv(x, dequantize(W))`; hoisted, `scale * (conv(x, W) - zp * sums)` with `sums` [N, groups, out...]."""
    if not hoisted:
        return as_image(conv(domain, x, w.real(domain), window, w.blocks + 1), x, window)
    total = conv(domain, x, w.integers(domain), window, _FACTORED)

    def per_filter(parameters: Array) -> Array:
        filters = np.broadcast_to(parameters.reshape(-1), (w.weight.shape[0],))
        return filters.reshape(window.groups, -1, 1).astype(domain.dtype(f32))

    if sums is not None and w.zero_point is not None:
        flat = map_parts(lambda p: p.reshape(p.shape[0], window.groups, 1, -1), sums)
        total = subtract(domain, total, multiply(domain, per_filter(w.zero_point), flat))
    return as_image(multiply(domain, total, per_filter(w.scale)), x, window)


def window_sum(domain: Domain, x: Value, window: Window) -> Value:
    """The sum of x over each window and group: [N, groups, out...]."""
    zero = np.zeros((), domain.dtype(f32))
    total = domain.reduce("arith.addf", f32, window.patches(x), (2,), zero)
    shape = (x.shape[0], window.groups, *window.out(x))
    return map_parts(lambda part: part.reshape(shape), total)


def epilogue(
    interpreter: Interpreter, op: EpilogueOperation, accumulator: Value, operands: Sequence[Value]
) -> Value:
    """The stored elements: the accumulator itself, or what the op's region makes of it."""
    block = op.epilogue_block
    if block is None:
        return accumulator
    box = Box.of(accumulator.shape)
    arguments = [
        map_parts(partial(over_box, map_=map_, box=box), operand)
        for map_, operand in zip(op.maps, operands, strict=True)
    ]
    assert block.last_op is not None
    (result,) = run_block(
        interpreter, block, [accumulator, *arguments], block.last_op.operands, set()
    )
    return map_parts(lambda part: np.broadcast_to(part, accumulator.shape), result)
