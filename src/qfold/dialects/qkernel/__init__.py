"""`qkernel`: the contractions of `qmm` on memrefs, in destination-passing style: what a kernel computes.

Weight, scale and zero point are operands here, so that a kernel's signature says every type that it reads. Each op is the whole
body of a kernel function; docs/dialects/qkernel.md has a page per op.
"""

from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation

from qfold.dialects.element_types import STORAGE_TYPES
from qfold.dialects.integer_operands import zero_point_type
from qfold.dialects.qkernel.conv import ConvOp, DequantConvOp, WindowSumOp
from qfold.dialects.qkernel.matmul import DequantMatmulOp, MatmulOp, RowSumOp
from qfold.dialects.qkernel.packed import PANEL, PackedMatmulOp, PackOp, packed_shape
from qfold.dialects.qkernel.packed_integers import (
    STEPS,
    PackBytesOp,
    PackedQuantMatmulOp,
    PackWindowOp,
    packed_bytes_shape,
)
from qfold.dialects.qkernel.quantized import QuantConvOp, QuantMatmulOp

TILED: tuple[type[IRDLOperation], ...] = (
    PackOp,
    PackedMatmulOp,
    RowSumOp,
    PackBytesOp,
    PackWindowOp,
    PackedQuantMatmulOp,
)
"""What only the passes for clusters make: targets without a scratchpad need no kernels for them."""

CONTRACTIONS: tuple[type[IRDLOperation], ...] = (
    MatmulOp,
    DequantMatmulOp,
    ConvOp,
    DequantConvOp,
    WindowSumOp,
    QuantMatmulOp,
    QuantConvOp,
    *TILED,
)
"""Every op of this dialect: what a kernel is selected for by its row in the target's table."""

QKERNEL = Dialect("qkernel", [*CONTRACTIONS], [])

__all__ = [
    "CONTRACTIONS",
    "PANEL",
    "QKERNEL",
    "STEPS",
    "STORAGE_TYPES",
    "TILED",
    "ConvOp",
    "DequantConvOp",
    "DequantMatmulOp",
    "MatmulOp",
    "PackBytesOp",
    "PackOp",
    "PackWindowOp",
    "PackedMatmulOp",
    "PackedQuantMatmulOp",
    "QuantConvOp",
    "QuantMatmulOp",
    "RowSumOp",
    "WindowSumOp",
    "packed_bytes_shape",
    "packed_shape",
    "zero_point_type",
]
