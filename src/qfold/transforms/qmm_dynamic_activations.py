"""`qmm-dynamic-activations`: activations of quantised weights are quantised at run time; products are of integers (opt-in)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, StringAttr, f32
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from qfold.dialects import qmm
from qfold.dialects.contraction import DYNAMIC_ACTIVATIONS, shape_of, window_of
from qfold.dialects.element_types import i8
from qfold.dialects.integer_operands import WEIGHT_TYPES
from qfold.ir.builder import ScalarBuilder, TensorBuilder, element_type
from qfold.ir.generics import add_location, function_blocks, local_rewriter
from qfold.ir.locations import replace_op
from qfold.transforms.qmm_check_accumulators import accumulator_of
from qfold.transforms.qmm_fuse_dequant import keep_attributes
from qfold.transforms.qmm_fuse_quantized import Integers
from qfold.transforms.qmm_hoist_zero_point import centre_unsigned_weights
from qfold.transforms.qmm_linalg_cse import erase_unused

Weighted = qmm.DequantMatmulOp | qmm.DequantConvOp

PER_ROW = "per row"
PER_SAMPLE = "per sample"
"""Values of the attribute `DYNAMIC_ACTIVATIONS`: what has a scale of its own."""

LEAST_PRODUCTS = 16
"""Products of an element of an activation, below which multiplying integers does not pay for making it one. On a cluster's cores
that takes about 21 instructions, and saves 1.2 for each product."""

_SUPPORTED = (
    "weights of 8 or 4 bits with a scale per tensor, column or output channel, convolutions of one "
    "group, K within the proof of the accumulator, {} products or more of each element"
)


@dataclass(frozen=True)
class _Activation:
    """Integers of an activation, and their scales: one per row, or one per sample."""

    integers: SSAValue
    scale: SSAValue
    op: qmm.DynamicQuantizeOp


@dataclass
class _Function:
    """The pass at work on one block; what several contractions read is quantised once."""

    least_products: int
    rows: dict[SSAValue, _Activation] = field(default_factory=dict[SSAValue, _Activation])
    samples: dict[SSAValue, _Activation] = field(default_factory=dict[SSAValue, _Activation])

    def run(self, block: Block) -> None:
        possible: list[tuple[Weighted, tuple[type[Weighted], SSAValue]]] = []
        products: dict[tuple[type[Weighted], SSAValue], float] = {}
        for op in list(block.ops):
            if not isinstance(op, Weighted) or op.hoisted is not None:
                continue
            if 0 in (*shape_of(op.operands[0]), *shape_of(op.result)):
                continue
            found = _objection(op)
            if found is not None:
                self._keep(op, found)
                continue
            # As it is now: replacing one op may change what the next one reads.
            key = (type(op), op.operands[0])
            possible.append((op, key))
            products[key] = products.get(key, 0) + _products(op) / prod(shape_of(op.operands[0]))
        for op, key in possible:
            if products[key] < self.least_products:
                self._keep(op, f"an activation with {products[key]:.3g} products of each element")
            elif isinstance(op, qmm.DequantMatmulOp):
                self.matmul(op)
            else:
                self.conv(op)
        erase_unused(block)

    def _keep(self, op: Weighted, found: str) -> None:
        """Leave `op` in floats, and say why on it."""
        text = f"none: found {found}; supported: {_SUPPORTED.format(self.least_products)}"
        op.attributes[DYNAMIC_ACTIVATIONS] = StringAttr(text)

    def _quantized(
        self, op: Weighted, x: SSAValue, known: dict[SSAValue, _Activation], builder: TensorBuilder
    ) -> _Activation:
        """`x` quantised per index of its first dimensions, all but the last of a matmul's, one of a convolution's."""
        if x in known:
            add_location(known[x].op, op)
            return known[x]
        rows = x
        if isinstance(op, qmm.DequantConvOp):
            batch, *rest = shape_of(x)
            rows = builder.reshape(x, (batch, prod(rest)))
        quantize = builder.insert(qmm.DynamicQuantizeOp(rows, i8, per_row=True))
        integers = builder.reshape(quantize.result, shape_of(x))
        known[x] = _Activation(integers, quantize.scale, quantize)
        return known[x]

    def matmul(self, op: qmm.DequantMatmulOp) -> None:
        """`sA[m] * sB[n] * (qa @ (qw - zw))`."""
        builder = TensorBuilder(InsertPoint.before(op), op.location)
        a = self._quantized(op, op.a, self.rows, builder)
        weight = _weight(op, builder)
        integers = qmm.QuantMatmulOp(
            a.integers,
            weight.value,
            b_zero_point=weight.zero_point_operand(builder),
            transpose_b=op.transpose_b is not None,
        )
        rank = len(shape_of(op.result))
        self._finish(op, integers, a, list(range(rank - 1)), rank - 1, PER_ROW, builder)

    def conv(self, op: qmm.DequantConvOp) -> None:
        """The same with a scale per sample, which all windows of it share; padding is the integer 0."""
        builder = TensorBuilder(InsertPoint.before(op), op.location)
        x = self._quantized(op, op.x, self.samples, builder)
        weight = _weight(op, builder)
        groups, strides, pads, dilations = window_of(op)
        integers = qmm.QuantConvOp(
            x.integers,
            weight.value,
            w_zero_point=weight.zero_point_operand(builder),
            strides=strides,
            pads=pads,
            dilations=dilations,
            groups=groups,
        )
        self._finish(op, integers, x, [0], 1, PER_SAMPLE, builder)

    def _finish(
        self,
        op: Weighted,
        integers: qmm.QuantMatmulOp | qmm.QuantConvOp,
        a: _Activation,
        rows: list[int],
        column: int,
        per: str,
        builder: TensorBuilder,
    ) -> None:
        """Replace `op` by `integers` scaled, followed by `op`'s own epilogue."""
        builder.insert(integers)
        found = accumulator_of(integers)
        if not found.sums.fits:
            self._keep(op, f"sums of K = {found.k} products that 32 bits may not hold")
            return
        keep_attributes(integers, op)
        integers.attributes[DYNAMIC_ACTIVATIONS] = StringAttr(per)
        shape = shape_of(op.result)
        rank = len(shape)
        identity = AffineMap.identity(rank)

        def along(*dims: int) -> AffineMap:
            return AffineMap(rank, 0, tuple(AffineExpr.dimension(d) for d in dims))

        inputs = [(integers.result, identity), (a.scale, along(*rows))]
        one = None
        if op.quant.axis is None:
            one = float(op.quant.scales)
        else:
            inputs.append((builder.constant(op.quant.scales, f32), along(column)))

        def scaled(b: ScalarBuilder, e: list[SSAValue]) -> SSAValue:
            weight_scale = b.constant(one, f32) if one is not None else e[2]
            factor = b(arith.MulfOp, e[1], weight_scale)
            return b(arith.MulfOp, b(arith.SIToFPOp, e[0], f32), factor)

        result = builder.generic(
            inputs,
            builder.empty(shape, f32),
            identity,
            ["parallel"] * rank,
            lambda b, e, _: scaled(b, list(e)),
        )
        if op.epilogue is not None:
            result = _epilogue(op, op.epilogue, result, builder)
        replace_op(local_rewriter(op), op, [], [result])


def _epilogue(op: Weighted, region: Region, value: SSAValue, builder: TensorBuilder) -> SSAValue:
    """The region of `op` on `value` instead of its accumulator."""
    block = region.block
    rank = len(shape_of(op.result))
    result_type: Attribute = element_type(op.result)

    def body(b: ScalarBuilder, elements: list[SSAValue]) -> SSAValue:
        values: dict[SSAValue, SSAValue] = dict(zip(block.args, elements, strict=True))
        last = block.last_op
        assert last is not None
        for inner in block.ops:
            if inner is not last:
                b.insert(inner.clone(values))
        return values.get(last.operands[0], last.operands[0])

    identity = AffineMap.identity(rank)
    return builder.generic(
        [(value, identity), *zip(op.epilogue_operands, op.maps, strict=True)],
        builder.empty(shape_of(op.result), result_type),
        identity,
        ["parallel"] * rank,
        lambda b, e, _: body(b, list(e)),
    )


def _weight(op: Weighted, builder: TensorBuilder) -> Integers:
    """The weight of `op` as a constant of integers."""
    constant = builder.insert(qmm.ConstantOp(op.weight)).result
    return Integers.of(constant, op.quant)


def _products(op: Weighted) -> int:
    """Multiplications, by zeros of padding included."""
    if isinstance(op, qmm.DequantMatmulOp):
        return prod(shape_of(op.result)) * shape_of(op.a)[-1]
    return prod(shape_of(op.result)) * prod(op.weight.shape[1:])


def _objection(op: Weighted) -> str | None:
    """Why `op` stays in floats; None when it need not."""
    if op.quant.storage not in WEIGHT_TYPES:
        return f"a weight of {op.quant.storage}"
    if op.quant.scale.is_elided:
        return "a scale whose bytes were elided"
    if op.quant.granularity == "block":
        return f"a weight with a scale for each block of {op.quant.block_size} along K"
    if isinstance(op, qmm.DequantConvOp) and window_of(op)[0] != 1:
        return f"a convolution of {window_of(op)[0]} groups"
    return None


@dataclass(frozen=True)
class QmmDynamicActivationsPass(ModulePass):
    """`dequant_matmul` and `dequant_conv` become `dynamic_quantize` and a contraction of integers: an approximation.

    Activations are quantised to i8, symmetrically: each row of a matmul's, each sample of a convolution's by its own largest
    magnitude. `f32(acc) * (sA * sB)` follows, then what followed before. An activation that several contractions read is
    quantised once. Unsigned weights are read as signed ones first, when all readers of the bytes agree.

    Those stay in floats, among others, that read an activation whose elements are in fewer than `least_products` products each.

    Each contraction has the string attribute `qmm.dynamic_activations`: `per row`, `per sample`, or why it stays in floats.
    A row that holds an infinity or a NaN becomes NaN.
    """

    name = "qmm-dynamic-activations"

    least_products: int = LEAST_PRODUCTS

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        blocks = list(function_blocks(op))
        centre_unsigned_weights(blocks)
        for block in blocks:
            _Function(self.least_products).run(block)
