"""From i32 accumulators, or floats, to stored integers: `qmm.requantize`, `qmm.requantize_shift`, `qmm.dynamic_quantize`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
    f64,
    i64,
)
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import (
    expect_f32,
    expect_shape,
    flag,
    int_array,
    ints,
    shape_of,
    type_of,
)
from qfold.dialects.element_types import i8, i32, integer_range, ui8

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FLOOR = "floor"
HALF_EVEN = "half_even"
HALF_ODD = "half_odd"
ROUNDINGS = (FLOOR, HALF_EVEN, HALF_ODD)


class _RequantizeOp(IRDLOperation):
    """Shared: an i32 tensor in, a stored integer clamped to [low, high] out, parameters for all or one per index of `axis`."""

    accumulator = operand_def(TensorType)
    axis = opt_prop_def(IntegerAttr)
    low = opt_prop_def(IntegerAttr)
    """Smallest result; absent: that of the storage type."""
    high = opt_prop_def(IntegerAttr)
    result = result_def(TensorType)
    assembly_format = "$accumulator attr-dict `:` functional-type(operands, results)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    PER_AXIS: ClassVar[tuple[str, ...]]
    """Array properties with one element, or one per index of `axis`."""

    @property
    def storage(self) -> IntegerType:
        """The element type of the result."""
        return cast(IntegerType, type_of(self.result).get_element_type())

    @property
    def clamp(self) -> tuple[int, int]:
        """(low, high)."""
        low, high = integer_range(self.storage)
        return (
            low if self.low is None else cast(IntegerAttr[IntegerType], self.low).value.data,
            high if self.high is None else cast(IntegerAttr[IntegerType], self.high).value.data,
        )

    @property
    def axis_index(self) -> int | None:
        """The dimension that parameters run along, or None."""
        return None if self.axis is None else cast(IntegerAttr[IntegerType], self.axis).value.data

    def verify_(self) -> None:
        if type_of(self.accumulator).get_element_type() != i32:
            raise VerifyException(f"an accumulator is i32, got {self.accumulator.type}")
        if self.storage not in (i8, ui8):
            raise VerifyException(f"the result is i8 or ui8, got {self.result.type}")
        shape = shape_of(self.accumulator)
        expect_shape("the result", self.result, shape)
        low, high = self.clamp
        smallest, largest = integer_range(self.storage)
        if not smallest <= low <= high <= largest:
            raise VerifyException(f"[{low}, {high}] is no part of {self.storage}'s range")
        axis = self.axis_index
        if axis is not None and not 0 <= axis < len(shape):
            raise VerifyException(f"axis {axis} of {self.accumulator.type}")
        for name in (n for n in self.PER_AXIS if n in self.properties):
            size = len(cast(DenseArrayBase[Any], self.properties[name]))
            if size != 1 and (axis is None or size != shape[axis]):
                expected = "1" if axis is None else f"1 or {shape[axis]}"
                raise VerifyException(f"{name} has {size} elements, expected {expected}")


def _bounds(low: int | None, high: int | None) -> dict[str, IntegerAttr[Any] | None]:
    return {
        "low": None if low is None else IntegerAttr(low, i64),
        "high": None if high is None else IntegerAttr(high, i64),
    }


@irdl_op_definition
class RequantizeOp(_RequantizeOp):
    """`y = clamp(roundeven(acc * multiplier) + zero_point)`, one rounding: the quotient `sA * sB[n] / sY` of real scales.

    ```mlir
    %q = qmm.requantize %acc {multiplier = array<f64: 0.015, 0.02>, zero_point = 3 : i64, axis = 1 : i64}
        : (tensor<4x2xi32>) -> tensor<4x2xui8>
    ```

    The product is computed in f64, whose own rounding (2^-53) is the only difference from the real product; halves go to
    even, the zero point is added as an integer, the sum is clamped.
    """

    name = "qmm.requantize"
    multiplier = prop_def(DenseArrayBase.constr(f64))
    zero_point = prop_def(IntegerAttr)
    PER_AXIS: ClassVar = ("multiplier",)

    def __init__(
        self,
        accumulator: SSAValue,
        storage: IntegerType,
        multiplier: Floats,
        zero_point: int,
        *,
        axis: int | None = None,
        low: int | None = None,
        high: int | None = None,
    ):
        super().__init__(
            operands=[accumulator],
            properties={
                "multiplier": DenseArrayBase.from_list(
                    f64, [float(m) for m in multiplier.reshape(-1)]
                ),
                "zero_point": IntegerAttr(zero_point, i64),
                "axis": None if axis is None else IntegerAttr(axis, i64),
                **_bounds(low, high),
            },
            result_types=[TensorType(storage, shape_of(accumulator))],
        )

    @property
    def multipliers(self) -> Floats:
        """One, or one per index of the axis."""
        return np.array(self.multiplier.get_values(), np.float64)

    @property
    def zero(self) -> int:
        """The zero point of the result."""
        return cast(IntegerAttr[IntegerType], self.zero_point).value.data

    def verify_(self) -> None:
        super().verify_()
        if not (np.isfinite(self.multipliers).all() and (self.multipliers > 0).all()):
            raise VerifyException("multipliers are finite and positive")
        low, high = integer_range(self.storage)
        if not low <= self.zero <= high:
            raise VerifyException(f"the zero point {self.zero} is no {self.storage}")


@irdl_op_definition
class RequantizeShiftOp(_RequantizeOp):
    """`y = clamp((acc * mul + add) >> shift)`, the shift rounding down (`floor`) or to nearest, halves to even or odd.

    ```mlir
    %q = qmm.requantize_shift %acc {mul = array<i64: 37>, add = array<i64: 512>, shift = 10 : i64, rounding = "floor"}
        : (tensor<4x2xi32>) -> tensor<4x2xi8>
    ```

    Integers only: product and sum are of 64 bits, which they fit for any accumulator where `mul` has at most 31 (of longer ones,
    its range has to be known), and the shift rounds once. `RequantShift` of PULP's deployment tools is `floor` with half of the
    divisor in `add`. So is, with a multiplier of 31 bits, what `qmm-requantize-in-integers` makes of `qmm.requantize`, for cores
    without double precision. A zero point is in `add`, shifted: halves that go to even before an odd one is added are `half_odd`.
    With these two, `ties` (at most half of a unit; absent: 1) says how many rests from half of a unit on count as half of one:
    products of a rounded multiplier may not be halves exactly.
    """

    name = "qmm.requantize_shift"
    mul = prop_def(DenseArrayBase.constr(i64))
    add = prop_def(DenseArrayBase.constr(i64))
    shift = prop_def(DenseArrayBase.constr(i64))
    rounding = prop_def(StringAttr)
    ties = opt_prop_def(DenseArrayBase.constr(i64))
    PER_AXIS: ClassVar = ("mul", "add", "shift", "ties")

    def __init__(
        self,
        accumulator: SSAValue,
        storage: IntegerType,
        mul: Sequence[int],
        add: Sequence[int],
        shift: Sequence[int],
        *,
        rounding: str = FLOOR,
        ties: Sequence[int] | None = None,
        axis: int | None = None,
        low: int | None = None,
        high: int | None = None,
    ):
        super().__init__(
            operands=[accumulator],
            properties={
                "mul": int_array(mul),
                "add": int_array(add),
                "shift": int_array(shift),
                "rounding": StringAttr(rounding),
                "ties": None if ties is None else int_array(ties),
                "axis": None if axis is None else IntegerAttr(axis, i64),
                **_bounds(low, high),
            },
            result_types=[TensorType(storage, shape_of(accumulator))],
        )

    @property
    def parameters(self) -> tuple[Integers, Integers, Integers]:
        """(mul, add, shift): each one number, or one per index of the axis."""
        mul, add, shift = (np.array(ints(p), np.int64) for p in (self.mul, self.add, self.shift))
        return mul, add, shift

    @property
    def tie_widths(self) -> Integers:
        """`ties`: how many rests count as half of a unit, one number or one per index of the axis; 0 where nothing is cut off."""
        ties = np.array([1] if self.ties is None else ints(self.ties), np.int64)
        return np.minimum(ties, (np.int64(1) << self.parameters[2]) >> 1)

    def verify_(self) -> None:
        super().verify_()
        mul, add, shift = self.parameters
        if self.rounding.data not in ROUNDINGS:
            raise VerifyException(
                f"rounding is one of {', '.join(ROUNDINGS)}, got {self.rounding.data}"
            )
        if (np.abs(mul) >= 2**46).any() or (np.abs(add) >= 2**62).any():
            raise VerifyException("mul is within 46 bits and a sign, add within 62")
        if (shift < 0).any() or (shift > 62).any():
            raise VerifyException(f"a shift is 0 to 62, got {[int(s) for s in shift]}")
        if self.ties is not None and (self.rounding.data == FLOOR or min(ints(self.ties)) < 0):
            raise VerifyException(f"ties are 0 or more, of halves, got {self.ties} with {FLOOR}")


@irdl_op_definition
class DynamicQuantizeOp(IRDLOperation):
    """Quantises by the range of the data itself, which is stretched to hold 0: ONNX DynamicQuantizeLinear, or the same `per_row`.

    ```mlir
    %q, %scale, %zero_point = qmm.dynamic_quantize %x : (tensor<4x8xf32>) -> (tensor<4x8xui8>, tensor<f32>, tensor<ui8>)
    ```

    ui8: `scale = (max(0, max x) - min(0, min x)) / 255`, `zero_point = saturate(roundeven(-min / scale))`.
    i8 (symmetric): `scale = max |x| / 127`, the zero point 0. Of zeros only, the scale is 1. Scale and zero point have rank 0,
    or one element per row (all dimensions but the last).
    """

    name = "qmm.dynamic_quantize"
    x = operand_def(TensorType)
    per_row = opt_prop_def(UnitAttr)
    result = result_def(TensorType)
    scale = result_def(TensorType)
    zero_point = result_def(TensorType)
    assembly_format = "$x attr-dict `:` functional-type(operands, results)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, storage: IntegerType = ui8, *, per_row: bool = False):
        shape = shape_of(x)
        rows = shape[:-1] if per_row else ()
        super().__init__(
            operands=[x],
            properties={"per_row": flag(per_row)},
            result_types=[
                TensorType(storage, shape),
                TensorType(f32, rows),
                TensorType(storage, rows),
            ],
        )

    def verify_(self) -> None:
        expect_f32(self, self.x, self.scale)
        shape = shape_of(self.x)
        if self.per_row is not None and not shape:
            raise VerifyException("per_row takes data of rank 1 or more")
        storage = type_of(self.result).get_element_type()
        if storage not in (i8, ui8):
            raise VerifyException(f"the result is i8 or ui8, got {self.result.type}")
        expect_shape("the result", self.result, shape)
        rows = shape[:-1] if self.per_row is not None else ()
        expect_shape("the scale", self.scale, rows)
        expect_shape("the zero point", self.zero_point, rows)
        if type_of(self.zero_point).get_element_type() != storage:
            raise VerifyException(f"the zero point is {storage}, got {self.zero_point.type}")
