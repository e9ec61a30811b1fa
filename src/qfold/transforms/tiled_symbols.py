"""Symbols of leaf functions."""

from __future__ import annotations

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Operation

from qfold.dialects import qkernel
from qfold.dialects.contraction import shape_of
from qfold.transforms.kernel_symbols import symbol_base


def tiled_symbol(op: Operation, location: LocationAttr) -> str:
    """As `symbol_base`, with what tells a leaf from the dispatch that it is a part of: the shape of the tile that it writes."""
    base = symbol_base(op, location)
    if isinstance(op, qkernel.TILED):
        return base
    if isinstance(op, qkernel.CONTRACTIONS):
        return f"{base}_l1"
    return f"{base}_l1_{'x'.join(str(d) for d in shape_of(op.operands[-1])) or 'scalar'}"
