"""What numbers a run computes with.

`exact`: the IR's own types. `f64`: every float type is float64 (the reference); integers stay themselves. `bounded`, in
`bounded.py`: float64 values beside a bound on what the IR's types could compute instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import MemRefType, TensorType, f64
from xdsl.ir import Attribute

from qfold.dialects.element_types import bit_width, is_float, is_unsigned, numpy_dtype
from qfold.interpreters import elementwise
from qfold.interpreters.values import Array, ByteBuffer, Value

REDUCERS: dict[str, np.ufunc] = {
    "arith.addf": np.add,
    "arith.addi": np.add,
    "arith.mulf": np.multiply,
    "arith.muli": np.multiply,
    "arith.maximumf": np.maximum,
    "arith.maxnumf": np.fmax,
    "arith.minimumf": np.minimum,
    "arith.minnumf": np.fmin,
    "arith.maxsi": np.maximum,
    "arith.maxui": np.maximum,
    "arith.minsi": np.minimum,
    "arith.minui": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}
"""Associative, commutative ops that a reduction may fold in any order."""


def element_type(type_attr: Attribute) -> Attribute:
    """The element type of a tensor or memref type, any other type itself."""
    if isinstance(type_attr, TensorType | MemRefType):
        return cast(TensorType[Attribute], type_attr).element_type
    return type_attr


class Domain(ABC):
    """One kind of numbers: how they are held, and every scalar op on them, vectorised.

    `name` arguments are op names (`arith.addf`). Arrays broadcast against each other. Types are element types.
    """

    name: str

    @abstractmethod
    def dtype(self, element_type: Attribute) -> np.dtype[Any]:
        """The dtype that the values of this type have here."""

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], element_type: Attribute) -> Value:
        """A writable array of garbage (NaN where it can be)."""

    @abstractmethod
    def byte_buffer(self, size: int) -> ByteBuffer:
        """A buffer of `size` bytes of the IR, for `memref.view`."""

    @abstractmethod
    def writable(self, array: Value, element_type: Attribute) -> Value:
        """A memref's storage that holds `array`: `array` itself where this domain can write to it, else a copy."""

    @abstractmethod
    def store(self, target: Value, source: Value | int) -> None:
        """Assign `source`, broadcast, to all of `target`."""

    @abstractmethod
    def float_op(self, name: str, element_type: Attribute, *args: Value) -> Value:
        """A float op of `arith` or `math`, each argument and the result of `element_type`."""

    @abstractmethod
    def integer_op(self, name: str, element_type: Attribute, *args: Value) -> Value:
        """An integer op of `arith` or `math` on signless values."""

    @abstractmethod
    def compare(self, name: str, predicate: int, a: Value, b: Value) -> Value:
        """`arith.cmpi` or `arith.cmpf`."""

    @abstractmethod
    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Elementwise choice."""

    @abstractmethod
    def convert(self, name: str, source: Attribute, target: Attribute, x: Value) -> Value:
        """A conversion op of `arith`: int/float, extension, truncation, bitcast."""

    @abstractmethod
    def reduce(
        self, name: str, element_type: Attribute, terms: Value, axes: tuple[int, ...], init: Value
    ) -> Value:
        """`init` combined with all `terms` along `axes` (kept with size 1), in an order that nobody promises."""

    @abstractmethod
    def contract(
        self,
        element_type: Attribute,
        x: Value,
        y: Value,
        init: Value | None = None,
        roundings: int = 0,
    ) -> Value:
        """`init + x @ y`, batch dimensions broadcast: `[..., M, K] @ [..., K, N]`.

        `roundings` more roundings may touch each product (a scale inside, a block sum): it widens bounds, never values.
        """

    def constant(self, array: Array, element_type: Attribute) -> Value:
        """An array of the type's own dtype, as this domain's exact numbers."""
        return array.astype(self.dtype(element_type), copy=False)

    def reinterpret(self, source: Attribute, target: Attribute, x: Value) -> Value:
        """The same bits as another type of equal width: `ui8` and `i8` ..."""
        if bit_width(source) != bit_width(target) or is_float(source) or is_float(target):
            raise TypeError(
                f"cannot cast {source} to {target}: only integers of equal width are the same bits"
            )

        def view(values: Array) -> Array:
            return elementwise.wrap(
                elementwise.unsigned(values) if is_unsigned(target) else elementwise.signed(values),
                target,
            )

        return self._map_value(view, x)

    def exact(self, x: Value) -> Array:
        """The numbers, which must be known exactly (weights, scales)."""
        return np.asarray(x)

    def index(self, x: Value) -> tuple[Array, Array | None]:
        """Numbers to index with, and where a correct program may have others (None: nowhere)."""
        return np.asarray(x), None

    def unknown(self, x: Value, where: Array) -> Value:
        """`x`, of which a correct program may have anything `where` this holds."""
        return x

    def _map_value(self, function: Callable[[Array], Array], x: Value) -> Value:
        return function(np.asarray(x))


class PlainDomain(Domain):
    """`exact` and `f64`: plain numpy arrays; they differ in what a float is."""

    def __init__(self, wide: bool):
        self.wide = wide
        self.name = "f64" if wide else "exact"

    def dtype(self, element_type: Attribute) -> np.dtype[Any]:
        if self.wide and is_float(element_type):
            return np.dtype(np.float64)
        return numpy_dtype(element_type)

    def allocate(self, shape: tuple[int, ...], element_type: Attribute) -> Array:
        return garbage(shape, self.dtype(element_type))

    def byte_buffer(self, size: int) -> ByteBuffer:
        return ByteBuffer(size, 8 if self.wide else 2, bounded=False)

    def writable(self, array: Value, element_type: Attribute) -> Value:
        return np.asarray(array).astype(self.dtype(element_type), copy=False)

    def store(self, target: Value, source: Value | int) -> None:
        assert isinstance(target, np.ndarray)
        target[...] = source

    def float_op(self, name: str, element_type: Attribute, *args: Value) -> Value:
        dtype = self.dtype(element_type)
        if name == "math.fma":
            a, b, c = (np.asarray(x, np.float64) for x in args)
            return (a * b + c).astype(dtype)
        if name in elementwise.FLOAT_ARITHMETIC:
            return elementwise.FLOAT_ARITHMETIC[name](*args)
        wide = (np.asarray(x, np.float64) for x in args)
        return np.asarray(elementwise.ELEMENTARY[name](*wide)).astype(dtype, copy=False)

    def integer_op(self, name: str, element_type: Attribute, *args: Value) -> Value:
        return elementwise.integer_op(name, element_type, *map(np.asarray, args))

    def compare(self, name: str, predicate: int, a: Value, b: Value) -> Value:
        compare = (
            elementwise.compare_integers if name == "arith.cmpi" else elementwise.compare_floats
        )
        return compare(predicate, np.asarray(a), np.asarray(b))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return np.where(np.asarray(condition), np.asarray(a), np.asarray(b))

    def convert(self, name: str, source: Attribute, target: Attribute, x: Value) -> Value:
        return convert_exactly(name, source, target, np.asarray(x), self.dtype(target), self.wide)

    def reduce(
        self, name: str, element_type: Attribute, terms: Value, axes: tuple[int, ...], init: Value
    ) -> Value:
        dtype = self.dtype(element_type)
        values, start = np.asarray(terms), np.asarray(init)
        as_unsigned = name in ("arith.maxui", "arith.minui")
        if as_unsigned:
            values, start = elementwise.unsigned(values), elementwise.unsigned(start)
        ufunc = REDUCERS[name]
        total = ufunc(ufunc.reduce(values, axis=axes, keepdims=True, dtype=values.dtype), start)
        return elementwise.signed(total) if as_unsigned else total.astype(dtype, copy=False)

    def contract(
        self,
        element_type: Attribute,
        x: Value,
        y: Value,
        init: Value | None = None,
        roundings: int = 0,
    ) -> Value:
        product = matmul(np.asarray(x), np.asarray(y), self.dtype(element_type))
        return product if init is None else np.add(product, np.asarray(init), dtype=product.dtype)


def garbage(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What memory holds before it is written."""
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype)
    pattern = b"\x01" if dtype.kind == "b" else b"\xa5" * dtype.itemsize
    return np.full(shape, np.frombuffer(pattern, dtype)[0])


def matmul(x: Array, y: Array, dtype: np.dtype[Any]) -> Array:
    """`x @ y` computed in `dtype`; integers wrap. Integers go through float64 (BLAS) where that is exact."""
    if dtype.kind == "f":
        return np.matmul(x.astype(dtype, copy=False), y.astype(dtype, copy=False))
    depth = x.shape[-1]
    if x.size and y.size:
        largest = float(np.abs(x.astype(np.float64)).max()) * float(
            np.abs(y.astype(np.float64)).max()
        )
        if largest * depth < 2.0**53:
            wide = np.matmul(x.astype(np.float64), y.astype(np.float64))
            return wide.astype(np.int64).astype(dtype)
    return np.matmul(x.astype(dtype, copy=False), y.astype(dtype, copy=False))


_FROM_INTEGER = ("arith.sitofp", "arith.uitofp")


def convert_exactly(
    name: str, source: Attribute, target: Attribute, x: Array, dtype: npt.DTypeLike, wide: bool
) -> Array:
    """The conversion ops of `arith` on plain numbers; `dtype` is the target's. `wide`: floats are float64 for any type."""
    if name in ("arith.fptosi", "arith.fptoui"):
        return elementwise.float_to_integer(x, target, name == "arith.fptoui")
    if name in _FROM_INTEGER:
        return elementwise.integer_to_float(x, source, np.dtype(dtype), name == "arith.uitofp")
    if name in ("arith.extf", "arith.truncf"):
        return x.astype(dtype, copy=False)
    if name in ("arith.extsi", "arith.extui"):
        return elementwise.extend(x, source, target, name == "arith.extui")
    if name in ("arith.trunci", "arith.index_cast"):
        if elementwise.width_of(source) == 1:
            return elementwise.extend(x, source, target, False)
        return elementwise.wrap(x, target)
    if name == "arith.bitcast":
        if wide and is_float(source) and source != f64:
            x = x.astype(numpy_dtype(source))
        return np.asarray(x).view(numpy_dtype(target)).astype(dtype, copy=False)
    raise NotImplementedError(f"conversion {name}")
