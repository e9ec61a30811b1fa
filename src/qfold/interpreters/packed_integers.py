"""What the ops on packed bytes mean."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerType, i32

from qfold.dialects.element_types import i8, is_unsigned, ui8
from qfold.interpreters.contractions import Window
from qfold.interpreters.domains import Domain
from qfold.interpreters.integers import Integers, narrowed, padded, widened
from qfold.interpreters.values import Value, map_parts
from qfold.ir.panels import out_of_panels


def as_bytes(domain: Domain, storage: IntegerType, w: Value) -> Value:
    """Integers of at most eight bits, as bytes of the same signedness."""
    if storage.width.data == 8:
        return w
    return narrowed(
        domain, i8, widened(domain, storage, w, i8), ui8 if is_unsigned(storage) else i8
    )


def window_matrix(domain: Domain, x: Integers, window: Window, padding: int) -> Value:
    """The windows of an image x [C, spatial...] as columns: [C * kernel elements, output positions]."""
    image = map_parts(lambda part: part[None], x.values)
    image, window = padded(domain, x.storage, image, window, padding)
    return map_parts(lambda part: part[0, 0], window.patches(image))


def packed_quant_matmul(domain: Domain, a: Integers, p: Integers, n: int) -> Value:
    """`a [M, K] @ P` of stored integers, P [K, n] in panels."""
    k = a.values.shape[1]
    matrix = map_parts(lambda part: out_of_panels(part, k, n), p.values)
    right = widened(domain, p.storage, matrix, i32)
    return domain.contract(i32, widened(domain, a.storage, a.values, i32), right)
