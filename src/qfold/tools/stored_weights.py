"""In which form a build stores the integers of a model's weight: worked out from the model's bytes, not from what a pass says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from math import prod

import numpy as np
import numpy.typing as npt

from qfold.dialects.element_types import bit_width, i4, i8, is_integer, ui4, ui8
from qfold.dialects.qmm import WeightAttr
from qfold.tools.tensor_facts import IntegerWeight, sign_flipped

_COLUMNS, _STEPS = 4, 4
"""Of a panel, and of a word of it (docs/quantized.md, "Packed bytes")."""

_MOST_DIMENSIONS = 4
"""Of a weight that is looked for in other orders of its dimensions: those of a convolution."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class StoredWeight:
    """A constant of the build that holds a weight of the model."""

    weight: IntegerWeight
    packed: bool
    """In panels of four columns, four steps of K in a word, padded with zeros."""
    shifted: bool
    """The highest bit of each integer is the other: unsigned as signed, half of the range less, or the reverse."""
    widened: bool
    """A byte for each integer of four bits."""
    turned: bool = False
    """Its dimensions in another order: rows as columns."""

    @property
    def form(self) -> str:
        """In words, for people; `as it is` for the model's own bytes."""
        words = [
            text
            for flag, text in (
                (self.packed, "packed"),
                (self.shifted, "sign bit flipped"),
                (self.widened, "a byte each"),
                (self.turned, "transposed"),
            )
            if flag
        ]
        return ", ".join(words) or "as it is"


@dataclass
class StoredWeights:
    """Finds weights of a model among the constants of a build."""

    weights: Mapping[str, IntegerWeight]
    """By sha256."""
    _forms: dict[str, dict[str, StoredWeight]] = field(
        default_factory=dict[str, dict[str, StoredWeight]]
    )

    def find(self, constant: WeightAttr) -> StoredWeight | None:
        """The weight whose integers `constant` holds; None for anything else."""
        same = self.weights.get(constant.sha256)
        if same is not None and same.weight.element_type == constant.element_type:
            return StoredWeight(same, False, False, False)
        if constant.element_type not in (i4, ui4, i8, ui8):
            return None
        for sha256, weight in self.weights.items():
            if constant.nbytes not in _sizes(weight.weight):
                continue
            if sha256 not in self._forms:
                forms = self._forms[sha256] = dict[str, StoredWeight]()
                for digest, form in _forms(weight):
                    forms.setdefault(digest, form)  # the simplest one, where two are the same
            found = self._forms[sha256].get(constant.sha256)
            if found is not None:
                return found
        return None


def _matrix(weight: WeightAttr) -> tuple[int, int] | None:
    """Rows and columns of a weight that a matmul may read."""
    shape = [n for n in weight.shape[:-2] if n != 1] + [*weight.shape[-2:]]
    return (shape[0], shape[1]) if len(shape) == 2 else None


def _packed_bytes(k: int, n: int) -> int:
    return -(-k // _STEPS) * _STEPS * -(-n // _COLUMNS) * _COLUMNS


def _sizes(weight: WeightAttr) -> set[int]:
    """The bytes of every form but the model's own."""
    sizes = {weight.nbytes, prod(weight.shape)}
    matrix = _matrix(weight)
    if matrix is not None:
        k, n = matrix
        sizes |= {_packed_bytes(k, n), _packed_bytes(n, k)}
    return sizes


def _forms(weight: IntegerWeight) -> Iterator[tuple[str, StoredWeight]]:
    """Every form of a weight of bytes or half bytes, by the sha256 of its bytes."""
    stored = weight.weight
    if (
        stored.is_elided
        or not is_integer(stored.element_type)
        or bit_width(stored.element_type) > 8
    ):
        return
    widened = bit_width(stored.element_type) == 4
    values = stored.array().view(np.uint8)
    flipped = sign_flipped(stored)
    if widened and flipped is not None:
        yield hashlib.sha256(flipped).hexdigest(), StoredWeight(weight, False, True, False)
    for shifted in (False, True):
        plain = values
        if shifted:
            # Of four bits widened, the sign goes through the upper half of the byte.
            plain = _widened_flip(stored) if widened else values ^ np.uint8(0x80)
        if shifted or widened:
            yield _digest(plain), StoredWeight(weight, False, shifted, widened)
        for order in _orders(len(stored.shape)):
            turned = StoredWeight(weight, False, shifted, widened, True)
            yield _digest(plain.transpose(order)), turned
        matrix = _matrix(stored)
        if matrix is not None:
            for columns in (plain.reshape(matrix), plain.reshape(matrix).T):
                yield _digest(_panels(columns)), StoredWeight(weight, True, shifted, widened)


def _orders(rank: int) -> Iterator[tuple[int, ...]]:
    """The other orders of a weight's dimensions, of which there may be four."""
    if rank <= _MOST_DIMENSIONS:
        yield from list(permutations(range(rank)))[1:]


def _widened_flip(weight: WeightAttr) -> Bytes:
    """Integers of four bits, those of the other signedness, a byte each."""
    nibbles = weight.array().astype(np.int16)
    moved = nibbles - 8 if weight.element_type == ui4 else nibbles + 8
    return moved.astype(np.int8).view(np.uint8)


def _panels(w: Bytes) -> Bytes:
    """`y[p, s, c, j] = w[4 s + j, 4 p + c]`, 0 beyond, of a [K, N] matrix."""
    k, n = w.shape
    words, panels = -(-k // _STEPS), -(-n // _COLUMNS)
    y = np.zeros((panels, words, _COLUMNS, _STEPS), np.uint8)
    for p in range(panels):
        for c in range(min(_COLUMNS, n - _COLUMNS * p)):
            column = np.zeros(words * _STEPS, np.uint8)
            column[:k] = w[:, _COLUMNS * p + c]
            y[p, :, c, :] = column.reshape(words, _STEPS)
    return y


def _digest(values: Bytes) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
