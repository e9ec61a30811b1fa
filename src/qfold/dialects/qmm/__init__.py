"""`qmm`: quantised matrix multiplication on tensors. docs/dialects/qmm.md has a page per op."""

from xdsl.ir import Dialect

from qfold.dialects.qmm.contractions import (
    ConvOp,
    DequantConvOp,
    DequantMatmulOp,
    MatmulOp,
    RowSumOp,
    WindowSumOp,
    row_sum_shape,
)
from qfold.dialects.qmm.integer import QuantConvOp, QuantMatmulOp
from qfold.dialects.qmm.quant import QuantAttr
from qfold.dialects.qmm.quantization import (
    ConstantOp,
    DequantGatherOp,
    DequantizeOp,
    QuantizeOp,
    YieldOp,
)
from qfold.dialects.qmm.requantization import (
    DynamicQuantizeOp,
    RequantizeOp,
    RequantizeShiftOp,
)
from qfold.dialects.qmm.weight import WEIGHT_FILES, WeightAttr, WeightFiles

QMM = Dialect(
    "qmm",
    [
        ConstantOp,
        ConvOp,
        DequantConvOp,
        DequantGatherOp,
        DequantizeOp,
        DequantMatmulOp,
        DynamicQuantizeOp,
        MatmulOp,
        QuantConvOp,
        QuantMatmulOp,
        QuantizeOp,
        RequantizeOp,
        RequantizeShiftOp,
        RowSumOp,
        WindowSumOp,
        YieldOp,
    ],
    [QuantAttr, WeightAttr],
)

__all__ = [
    "QMM",
    "WEIGHT_FILES",
    "ConstantOp",
    "ConvOp",
    "DequantConvOp",
    "DequantGatherOp",
    "DequantMatmulOp",
    "DequantizeOp",
    "DynamicQuantizeOp",
    "MatmulOp",
    "QuantAttr",
    "QuantConvOp",
    "QuantMatmulOp",
    "QuantizeOp",
    "RequantizeOp",
    "RequantizeShiftOp",
    "RowSumOp",
    "WeightAttr",
    "WeightFiles",
    "WindowSumOp",
    "YieldOp",
    "row_sum_shape",
]
