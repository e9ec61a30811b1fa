"""What the report takes from the tensor level: what ONNX nodes became, which weights are integers, what is summed up in i32.

Three moments count: before fusion, where each quantised weight still has its scale; after it, where ops say what nodes became;
and the end of the level, where epilogues and the ranges of accumulators are known.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import (
    DictionaryAttr,
    Float64Type,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation

from qfold.dialects import qmm
from qfold.dialects.contraction import (
    ACCUMULATOR_RANGE,
    DYNAMIC_ACTIVATIONS,
    shape_of,
    type_of,
)
from qfold.dialects.element_types import (
    STORAGE_TYPES,
    bit_width,
    i4,
    i8,
    i32,
    i64,
    is_float,
    is_integer,
    numpy_dtype,
    pack,
    ui4,
    ui8,
)
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.builder import element_type
from qfold.ir.constants import constant_array, constant_weight
from qfold.ir.fusion import readers
from qfold.ir.locations import node_names
from qfold.ir.quantized import is_view, trace_quantized
from qfold.tools.amplification import largest_hoisting_factor
from qfold.tools.arrays import main_function

REASON = "qmm.reason"

DEQUANTIZING = (qmm.DequantMatmulOp, qmm.DequantConvOp, qmm.DequantGatherOp)
"""Ops on floats that read an integer weight."""
INTEGER_PRODUCTS = (qmm.QuantMatmulOp, qmm.QuantConvOp)
"""Ops on integers alone."""
_FLOAT_PRODUCTS = (qmm.MatmulOp, qmm.ConvOp, qmm.WindowSumOp)

_SILENT = ("tensor.empty", "arith.constant", "qmm.constant", "func.return", "linalg.fill")
"""Ops that compute nothing a node would be known by."""

_KINDS: Mapping[str, type[Operation]] = {
    "matmul": qmm.DequantMatmulOp,
    "conv": qmm.DequantConvOp,
    "gather": qmm.DequantGatherOp,
}
_INTEGER_KINDS: Mapping[str, type[Operation]] = {
    "matmul": qmm.QuantMatmulOp,
    "conv": qmm.QuantConvOp,
}

_DEQUANTIZES = (arith.ConstantOp, arith.SIToFPOp, arith.UIToFPOp, arith.MulfOp, arith.SubiOp)
"""What the body of a loop nest consists of that only scales integers."""

_MOVES = (arith.ConstantOp, linalg.YieldOp, tensor.ExtractOp, linalg.IndexOp, arith.SelectOp)


@dataclass
class NodeFacts:
    """What the tensor level says about one ONNX node."""

    ops: Counter[str] = field(default_factory=Counter[str])
    fused: bool = False
    """It is (part of) an op that reads stored integers and multiplies."""
    hoisted: bool = False
    reasons: list[str] = field(default_factory=list[str])
    """Why a weight or a product of integers stays unfused."""
    notes: list[str] = field(default_factory=list[str])
    """Why a value between two quantised ones is a float; nothing that would have been fused."""
    computes_floats: bool = False
    """Whether an op of it computes with floats, other than to quantise or dequantise."""


@dataclass(frozen=True)
class IntegerWeight:
    """A constant of integers that an op multiplies by."""

    weight: WeightAttr
    granularity: str
    """Of its scale and zero point: `tensor`, `axis` or `block`."""
    zero_point: tuple[int, int]
    """The least and the largest."""


@dataclass(frozen=True)
class Product:
    """A contraction of integers, as the end of the tensor level has it."""

    nodes: tuple[str, ...]
    op: str
    left: str
    """Element type of the first operand, the activation."""
    right: str
    """Of the second operand, mostly the weight."""
    result: str
    """Element type of what is stored."""
    k: int
    """Products in a sum."""
    low: int
    high: int
    """Between which each sum lies, whatever the activations are."""
    largest_k: int
    """The most products of these types and zero points that i32 holds, whatever the integers are."""
    requantize: str | None
    """What makes the stored element of a sum: `i32`, `mulhi`, `i64` (integers), `f64`, `f32`; None where the sum is stored."""

    @property
    def bits(self) -> int:
        """Of two's complement that any sum takes; i32 has 32."""
        return 1 + max(self.high, -self.low - 1, 0).bit_length()


@dataclass(frozen=True)
class TensorFacts:
    """What the report takes from the tensor level."""

    nodes: Mapping[str, NodeFacts]
    ir_ops: int
    fused: Mapping[str, int]
    """Ops on floats that read an integer weight, by kind."""
    multiplied: Mapping[str, int]
    """Ops that multiply integers, by kind."""
    quantized: Sequence[tuple[WeightAttr, QuantAttr]]
    """Each quantised constant, as often as it is read."""
    weights: Mapping[str, IntegerWeight]
    """The distinct ones that are multiplied by, by sha256."""
    run_time_dequantizations: int
    """Dequantises of constants that are left: each makes a float copy in memory."""
    hoisting_factor: float
    """The largest of the hoisted contractions: see `amplification`."""
    run_time_quantized: int = 0
    """Matmuls and convolutions of weight-only models whose activations are quantised at run time, by option."""
    products: Sequence[Product] = ()

    @property
    def is_integer(self) -> bool:
        """Whether anything multiplies integers."""
        return any(self.multiplied.values())


def quantized_weights(module: ModuleOp) -> Iterator[tuple[WeightAttr, QuantAttr]]:
    """Each quantised weight of a tensor-level module, as often as it is dequantised."""
    for op in module.walk():
        if isinstance(op, DEQUANTIZING):
            yield op.weight, op.quant
        elif isinstance(op, qmm.DequantizeOp) and not _is_parameter(op):
            traced = trace_quantized(op.result)
            if traced is not None and not isinstance(traced, str):
                yield traced.weight, traced.quant


def _is_parameter(op: qmm.DequantizeOp) -> bool:
    """Whether a dequantised vector goes to loop nests only: a bias, of which a float copy costs nothing to speak of."""
    if sum(extent != 1 for extent in shape_of(op.q)) > 1:
        return False
    return all(isinstance(reader, linalg.GenericOp) for reader, _ in readers(op.result))


def float_copies(
    quantized: Sequence[tuple[WeightAttr, QuantAttr]], constants: Sequence[WeightAttr]
) -> list[str]:
    """The sha256 of each float constant that holds the numbers of a dequantised weight, in any order or shape."""
    by_count: dict[int, list[tuple[WeightAttr, QuantAttr]]] = {}
    for weight, quant in quantized:
        count = int(np.prod(weight.shape))
        if count > 1:
            by_count.setdefault(count, []).append((weight, quant))
    copies: list[str] = []
    digests: dict[int, set[bytes]] = {}
    for constant in constants:
        count = int(np.prod(constant.shape))
        if constant.element_type in STORAGE_TYPES or count not in by_count or constant.is_elided:
            continue
        if numpy_dtype(constant.element_type).kind != "f":
            continue
        if count not in digests:
            reals = (q.dequantize(w.array()) for w, q in by_count[count])
            # One number, over and over, may be anything.
            digests[count] = {_digest(r) for r in reals if r.min() != r.max()}
        if _digest(constant.array().astype(np.float32)) in digests[count]:
            copies.append(constant.sha256)
    return copies


def _digest(values: np.ndarray) -> bytes:
    return hashlib.sha256(np.sort(values, axis=None).tobytes()).digest()


def tensor_facts(
    module: ModuleOp, before_fusion: Iterable[tuple[WeightAttr, QuantAttr]] = ()
) -> TensorFacts:
    """Reads a tensor-level module after fusion; nothing of it is kept but the attributes of its weights.

    `before_fusion`: its `quantized_weights` then, of which those are of interest here that are multiplied by as integers.
    """
    nodes: dict[str, NodeFacts] = {}
    ops = list(main_function(module).body.block.ops)
    for op in ops:
        if op.name in _SILENT:
            continue
        for name in node_names(op):
            _read(op, nodes.setdefault(name, NodeFacts()))
    known = _Known.of(before_fusion)
    quantized = [*quantized_weights(module)]
    weights: dict[str, IntegerWeight] = {}
    for weight, quant in quantized:
        weight, quant = (known.find(weight) or [(weight, quant)])[0]
        weights[weight.sha256] = IntegerWeight(
            weight, quant.granularity, _extremes(quant.zero_points)
        )
    for op in ops:
        for weight, zero in _integer_operands(op):
            pairs = known.find(weight)
            if pairs:
                weight, zero = pairs[0][0], pairs[0][1].zero_points
            else:
                # An operator on integers says nothing of scales but what follows from its result.
                pairs = _unscaled(weight, zero)
            granularity = pairs[0][1].granularity
            if granularity == "tensor" and (zero.ndim or _requantized_per_axis(op)):
                granularity = "axis"
            quantized += pairs
            weights[weight.sha256] = IntegerWeight(weight, granularity, _extremes(zero))
    return TensorFacts(
        nodes=nodes,
        ir_ops=len(ops),
        fused=_by_kind(ops, _KINDS),
        multiplied=_by_kind(ops, _INTEGER_KINDS),
        quantized=quantized,
        weights=weights,
        run_time_dequantizations=sum(
            isinstance(op, qmm.DequantizeOp)
            and not _is_parameter(op)
            and trace_quantized(op.result) is not None
            for op in module.walk()
        ),
        hoisting_factor=largest_hoisting_factor(module),
        run_time_quantized=sum(
            isinstance(op, INTEGER_PRODUCTS) and DYNAMIC_ACTIVATIONS in op.attributes for op in ops
        ),
    )


@dataclass(frozen=True)
class _Known:
    """Quantised weights as the model has them."""

    pairs: Mapping[str, list[tuple[WeightAttr, QuantAttr]]]
    """By sha256."""
    flipped: Mapping[str | None, str]
    """The sha256 of a weight whose signedness is the other -> that of the model's."""

    @staticmethod
    def of(weights: Iterable[tuple[WeightAttr, QuantAttr]]) -> _Known:
        pairs: dict[str, list[tuple[WeightAttr, QuantAttr]]] = {}
        for weight, quant in weights:
            pairs.setdefault(weight.sha256, []).append((weight, quant))
        return _Known(pairs, {_flipped(own[0][0]): sha for sha, own in pairs.items()})

    def find(self, weight: WeightAttr) -> list[tuple[WeightAttr, QuantAttr]]:
        """What a weight was in the model, of which zero points may have moved since."""
        own = self.pairs.get(weight.sha256)
        return own or self.pairs.get(self.flipped.get(weight.sha256, ""), [])


def _by_kind(ops: Sequence[Operation], kinds: Mapping[str, type[Operation]]) -> dict[str, int]:
    return {kind: sum(isinstance(op, t) for op in ops) for kind, t in kinds.items()}


def sign_flipped(weight: WeightAttr) -> bytes | None:
    """The bytes of a weight with the highest bit of each integer flipped: unsigned as signed, half of the range less, or the
    reverse. None where that is not done: 16 bits, or bytes that are not here."""
    if weight.is_elided or weight.element_type not in (i4, ui4, i8, ui8):
        return None
    storage = cast(IntegerType, weight.element_type)
    high = 1 << (bit_width(storage) - 1)
    values = weight.array().astype(np.int16) ^ high
    return pack((values & (2 * high - 1)).astype(np.uint8), ui4 if high == 8 else ui8)


def _flipped(weight: WeightAttr) -> str | None:
    flipped = sign_flipped(weight)
    return None if flipped is None else hashlib.sha256(flipped).hexdigest()


def _unscaled(weight: WeightAttr, zero: np.ndarray) -> list[tuple[WeightAttr, QuantAttr]]:
    """A weight as its integers, and as what is left of them without one zero point for all."""
    storage = cast(IntegerType, weight.element_type)
    pairs = [(weight, QuantAttr.get(storage, 1.0))]
    if zero.ndim == 0 and zero:
        pairs.append((weight, QuantAttr.get(storage, 1.0, zero)))
    return pairs


def _read(op: Operation, node: NodeFacts) -> None:
    """What one op says of a node that it comes from."""
    node.ops[op.name] += 1
    node.fused |= isinstance(op, (*DEQUANTIZING, *INTEGER_PRODUCTS))
    node.computes_floats |= _computes_floats(op)
    if isinstance(op, qmm.DequantMatmulOp | qmm.DequantConvOp):
        node.hoisted |= op.hoisted is not None
    reason = op.attributes.get(REASON)
    if isinstance(reason, StringAttr):
        reads_table = isinstance(op, linalg.GenericOp) and any(
            isinstance(inner, tensor.ExtractOp) for inner in op.body.block.ops
        )
        refused = reads_table or not isinstance(op, linalg.GenericOp)
        texts = node.reasons if refused else node.notes
        if reason.data not in texts:
            texts.append(reason.data)
    kept = op.attributes.get(DYNAMIC_ACTIVATIONS)
    if isinstance(kept, StringAttr) and isinstance(op, DEQUANTIZING):
        node.notes.append(kept.data)


def _computes_floats(op: Operation) -> bool:
    """Whether an op computes with floats, other than to scale integers, to move or to choose elements."""
    if isinstance(op, (*DEQUANTIZING, *_FLOAT_PRODUCTS)):
        return not isinstance(op, qmm.DequantGatherOp)
    if not isinstance(op, linalg.GenericOp):
        return False
    inner = [o for o in op.body.block.ops if not isinstance(o, linalg.YieldOp)]
    if not shape_of(op.results[0]):
        return False  # arithmetic with scales
    floats = [
        o for o in inner if not isinstance(o, _MOVES) and any(is_float(v.type) for v in o.operands)
    ]
    integers = [v for v in op.inputs if is_integer(element_type(v))]
    return bool(floats) and not (integers and all(isinstance(o, _DEQUANTIZES) for o in inner))


def _integer_operands(op: Operation) -> Iterator[tuple[WeightAttr, np.ndarray]]:
    """The constant operands of a product of integers, with their zero points as they are constant, else 0."""
    if isinstance(op, qmm.QuantMatmulOp):
        operands = ((op.a, op.a_zero_point), (op.b, op.b_zero_point))
    elif isinstance(op, qmm.QuantConvOp):
        operands = ((op.x, op.x_zero_point), (op.w, op.w_zero_point))
    else:
        return
    for data, zero_point in operands:
        source = data
        while isinstance(source.owner, Operation) and is_view(source.owner):
            source = source.owner.operands[0]
        weight = constant_weight(source)
        if weight is not None and weight.element_type in STORAGE_TYPES:
            zeros = None if zero_point is None else constant_array(zero_point)
            yield weight, np.asarray(0) if zeros is None else np.asarray(zeros)


def _requantized_per_axis(op: Operation) -> bool:
    """Whether a reader of the sums scales them by more than one number."""
    for use in op.results[0].uses:
        reader = use.operation
        if isinstance(reader, qmm.RequantizeOp | qmm.RequantizeShiftOp):
            if reader.axis is not None:
                return True
        elif _keeps_sums(reader) and _requantized_per_axis(reader):
            return True
    return False


def _keeps_sums(op: Operation) -> bool:
    """Whether an op moves sums, or adds to them."""
    return is_view(op) or (isinstance(op, linalg.GenericOp) and element_type(op.results[0]) == i32)


def _extremes(values: np.ndarray) -> tuple[int, int]:
    return (int(values.min()), int(values.max())) if values.size else (0, 0)


def integer_products(module: ModuleOp) -> list[Product]:
    """The contractions of integers of a tensor-level module that `qmm-check-accumulators` has looked at, in order."""
    found: list[Product] = []
    for op in main_function(module).body.block.ops:
        ranges = op.attributes.get(ACCUMULATOR_RANGE)
        if not isinstance(op, INTEGER_PRODUCTS) or not isinstance(ranges, DictionaryAttr):
            continue
        numbers = {
            name: cast("IntegerAttr[Any]", value).value.data for name, value in ranges.data.items()
        }
        left, right = (op.a, op.b) if isinstance(op, qmm.QuantMatmulOp) else (op.x, op.w)
        found.append(
            Product(
                node_names(op),
                op.name,
                str(element_type(left)),
                str(element_type(right)),
                str(type_of(op.result).get_element_type()),
                numbers["k"],
                numbers["low"],
                numbers["high"],
                numbers["largest_k"],
                _arithmetic(op.epilogue_block),
            )
        )
    return found


def _arithmetic(block: Block | None) -> str | None:
    """The widest arithmetic of an epilogue: f64, f32, i64, `mulhi` (upper halves of 64-bit products), i32."""
    if block is None:
        return None
    types: set[Attribute] = {v.type for op in block.ops for v in (*op.operands, *op.results)}
    if any(isinstance(t, Float64Type) for t in types):
        return "f64"
    if any(is_float(t) for t in types):
        return "f32"
    if i64 in types:
        return "i64"
    if any(isinstance(op, arith.MulSIExtendedOp) for op in block.ops):
        return "mulhi"
    return "i32"
