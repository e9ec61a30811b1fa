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
from qfold.dialects.qmm.quant import QuantAttr
from qfold.dialects.qmm.quantization import (
    ConstantOp,
    DequantGatherOp,
    DequantizeOp,
    QuantizeOp,
    YieldOp,
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
        MatmulOp,
        QuantizeOp,
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
    "MatmulOp",
    "QuantAttr",
    "QuantizeOp",
    "RowSumOp",
    "WeightAttr",
    "WeightFiles",
    "WindowSumOp",
    "YieldOp",
    "row_sum_shape",
]
