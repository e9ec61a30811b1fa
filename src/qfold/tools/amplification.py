"""What hoisting zero points costs in accuracy, from the weights alone: the factor `h` of docs/numerics.md."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from qfold.dialects import qmm
from qfold.dialects.contraction import weight_bias
from qfold.dialects.qmm import QuantAttr, WeightAttr


def hoisting_factor(weight: WeightAttr, quant: QuantAttr, bias: int = 0) -> float:
    """`sum s (|w| + |zp|) / sum s |w - zp|` over the weight: how far a hoisted sum's rounding errors exceed a plain one's.

    That is for activations of one magnitude. At least 1 by the triangle inequality; 1 for a weight of nothing but zero points.
    `bias`: what the kernel adds to weights and zero points.
    """
    scale, zero = quant.broadcast(weight.shape)
    q = weight.array().astype(np.float64) + bias
    zero = zero.astype(np.float64) + bias
    plain = float((np.abs(scale) * np.abs(q - zero)).sum())
    hoisted = float((np.abs(scale) * (np.abs(q) + np.abs(zero))).sum())
    return hoisted / plain if plain else 1.0


def largest_hoisting_factor(module: ModuleOp) -> float:
    """The largest factor among the hoisted contractions of a tensor-level module, and among those whose kernels may add a bias to
    weights, which hoist as well; 1 when none has a zero point."""
    return max(
        (
            hoisting_factor(op.weight, op.quant, weight_bias(op))
            for op in module.walk()
            if isinstance(op, qmm.DequantMatmulOp | qmm.DequantConvOp)
            and (weight_bias(op) or (op.hoisted is not None and not op.quant.is_symmetric))
        ),
        default=1.0,
    )
