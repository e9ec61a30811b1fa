"""Symbols of kernel functions: what is computed, on which types, layouts and shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Operation, SSAValue

from qfold.dialects import qkernel
from qfold.dialects.contraction import EpilogueOperation, ints, shape_of, type_of
from qfold.ir.locations import location_names

_NAME_LENGTH = 64
"""Longest part of a symbol that comes from an ONNX name."""


def symbol_base(op: Operation, location: LocationAttr) -> str:
    """The symbol for `op`, before numbering: types, layout and shape of a contraction, the ONNX node of anything else."""
    if isinstance(op, qkernel.CONTRACTIONS):
        return _CONTRACTION_NAMES[type(op)](op)
    prefix = {"linalg.generic": "node", "linalg.fill": "fill", "memref.copy": "copy"}[op.name]
    names = location_names(location)
    if not names:
        return f"{prefix}_unnamed"
    base = f"{prefix}_{identifier(names[0])}"
    return base if len(names) == 1 else f"{base}_fused"


def identifier(name: str) -> str:
    """`name` as the tail of a C identifier: letters, digits and single underscores."""
    text = re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_")
    return text[-_NAME_LENGTH:].strip("_") or "unnamed"


def _dims(shape: Sequence[int]) -> str:
    return "x".join(str(d) for d in shape) or "scalar"


def _element(value: SSAValue) -> str:
    return str(type_of(value).get_element_type())


def _epilogue_suffix(op: EpilogueOperation) -> str:
    block = op.epilogue_block
    if block is None:
        return ""
    names = [inner.name for inner in block.ops]
    if len(op.epilogue_operands) == 1 and names == ["arith.addf", "qmm.yield"]:
        return "_bias" if len(shape_of(op.epilogue_operands[0])) == 1 else "_add"
    return "_fused"


def _granularity(op: qkernel.DequantMatmulOp | qkernel.DequantConvOp) -> str:
    rank = len(shape_of(op.scale))
    return "tensor" if rank == 0 else "axis" if rank == 1 else "block"


def _matmul(op: qkernel.MatmulOp) -> str:
    *batch, m, n = shape_of(op.y)
    k = shape_of(op.a)[-2 if op.transpose_a is not None else -1]
    layout = f"{'km' if op.transpose_a is not None else 'mk'}_{'nk' if op.transpose_b is not None else 'kn'}"
    return (
        f"matmul_{_element(op.a)}_{_element(op.b)}_{layout}_{_dims((*batch, m, k, n))}"
        f"{_epilogue_suffix(op)}"
    )


def _dequant_matmul(op: qkernel.DequantMatmulOp) -> str:
    *batch, m, n = shape_of(op.y)
    k = shape_of(op.a)[-1]
    layout = "nk" if op.transpose_b is not None else "kn"
    return (
        f"dequant_matmul_{_element(op.a)}_{_element(op.w)}_{layout}_{_granularity(op)}_"
        f"{_dims((*batch, m, k, n))}{_epilogue_suffix(op)}"
    )


def _conv(op: qkernel.ConvOp) -> str:
    return (
        f"conv_{_element(op.x)}_{_element(op.w)}_{_dims(shape_of(op.x))}_{_dims(shape_of(op.w))}"
        f"{_epilogue_suffix(op)}"
    )


def _dequant_conv(op: qkernel.DequantConvOp) -> str:
    return (
        f"dequant_conv_{_element(op.x)}_{_element(op.w)}_{_granularity(op)}_{_dims(shape_of(op.x))}_"
        f"{_dims(shape_of(op.w))}{_epilogue_suffix(op)}"
    )


def _quant_matmul(op: qkernel.QuantMatmulOp) -> str:
    *batch, m, n = shape_of(op.y)
    k = shape_of(op.a)[-1]
    layout = "nk" if op.transpose_b is not None else "kn"
    return (
        f"quant_matmul_{_element(op.a)}_{_element(op.b)}_{layout}_{_dims((*batch, m, k, n))}"
        f"{_integer_suffix(op)}"
    )


def _quant_conv(op: qkernel.QuantConvOp) -> str:
    return (
        f"quant_conv_{_element(op.x)}_{_element(op.w)}_{_dims(shape_of(op.x))}_{_dims(shape_of(op.w))}"
        f"{_integer_suffix(op)}"
    )


def _integer_suffix(op: EpilogueOperation) -> str:
    """What an epilogue stores instead of the accumulator."""
    return "" if op.epilogue_block is None else f"_to_{op.output_type.get_element_type()}"


def _window_sum(op: qkernel.WindowSumOp) -> str:
    return f"window_sum_{_element(op.x)}_{_dims(shape_of(op.x))}_{_dims(shape_of(op.y))}"


def _pack(op: qkernel.PackOp) -> str:
    layout = "nk" if op.transpose_b is not None else "kn"
    zero = "" if op.zero_point is None else f"_{_element(op.zero_point)}"
    block = "" if op.scale is None else "_block"
    return f"pack_{_element(op.w)}{zero}_{layout}{block}_{_dims(op.weight_shape)}"


def _packed_matmul(op: qkernel.PackedMatmulOp) -> str:
    (m, k), n = shape_of(op.a), shape_of(op.y)[1]
    scale = "" if op.scale is None else "_axis" if shape_of(op.scale) else "_tensor"
    zero = "" if op.zero_point is None else f"_{_element(op.zero_point)}"
    return f"packed_matmul{scale}{zero}_{_dims((m, k, n))}{_epilogue_suffix(op)}"


def _row_sum(op: qkernel.RowSumOp) -> str:
    return f"row_sum_{_dims(shape_of(op.a))}"


def _pack_bytes(op: qkernel.PackBytesOp) -> str:
    layout = "nk" if op.transpose_b is not None else "kn"
    return f"pack_bytes_{_element(op.w)}_{layout}_{_dims(op.weight_shape)}"


def _pack_window(op: qkernel.PackWindowOp) -> str:
    return f"pack_window_{_element(op.x)}_{_dims(shape_of(op.x))}_{_dims(ints(op.kernel_shape))}"


def _packed_quant_matmul(op: qkernel.PackedQuantMatmulOp) -> str:
    (m, k), n = shape_of(op.a), shape_of(op.y)[1]
    return (
        f"packed_quant_matmul_{_element(op.a)}_{_element(op.p)}_{_dims((m, k, n))}"
        f"{_integer_suffix(op)}"
    )


_CONTRACTION_NAMES: dict[type[Operation], Callable[[Any], str]] = {
    qkernel.MatmulOp: _matmul,
    qkernel.DequantMatmulOp: _dequant_matmul,
    qkernel.ConvOp: _conv,
    qkernel.DequantConvOp: _dequant_conv,
    qkernel.QuantMatmulOp: _quant_matmul,
    qkernel.QuantConvOp: _quant_conv,
    qkernel.WindowSumOp: _window_sum,
    qkernel.PackOp: _pack,
    qkernel.PackedMatmulOp: _packed_matmul,
    qkernel.RowSumOp: _row_sum,
    qkernel.PackBytesOp: _pack_bytes,
    qkernel.PackWindowOp: _pack_window,
    qkernel.PackedQuantMatmulOp: _packed_quant_matmul,
}
