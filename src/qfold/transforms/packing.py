"""When a stored weight is packed before it is multiplied, and when it is read as it is."""

from __future__ import annotations

from xdsl.ir import Attribute

from qfold.dialects.element_types import i8, ui8
from qfold.targets import Target


def is_packed(target: Target, rows: int, storage: Attribute, block_size: int | None) -> bool:
    """Whether a matmul of `rows` rows on `target` turns its weight of `storage` into floats first, for all rows at once.

    Few rows convert a byte in a register where they need it. Weights of other widths, and those whose scale varies along K,
    have no such kernel.
    """
    if target.unpacked_rows is None:
        return False
    return rows > target.unpacked_rows or block_size is not None or storage not in (i8, ui8)
