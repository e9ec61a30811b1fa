"""Integer products on packed bytes: panels of `PANEL` columns, four steps of K together, as packed dot products take them.

A word of a packed operand holds four consecutive k of one column. A dot product of such a word with a word of a row of the other
operand is four multiply-accumulates.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    MemRefType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from qfold.dialects.contraction import (
    GroupedOperation,
    conv_shape,
    epilogue_maps_attr,
    expect_shape,
    flag,
    int_array,
    ints,
    operands_in_order,
    region_or_none,
    shape_of,
    type_of,
)
from qfold.dialects.element_types import i32, integer_range
from qfold.dialects.integer_operands import (
    DATA_TYPES,
    WEIGHT_TYPES,
    expect_integers,
    zero_point_type,
)
from qfold.dialects.qkernel.base import KernelOp
from qfold.dialects.qkernel.packed import PANEL

STEPS = 4
"""Consecutive k in a word: bytes of a 32-bit register."""


def packed_bytes_shape(k: int, n: int) -> tuple[int, int, int, int]:
    """The shape of a packed [K, N] operand of bytes: [panels, words, columns of a panel, k of a word]."""
    return (-(-n // PANEL), -(-k // STEPS), PANEL, STEPS)


def _expect_bytes(what: str, value: SSAValue, data: SSAValue) -> None:
    """`VerifyException` unless `value` holds bytes of the signedness of `data`."""
    expected = zero_point_type(cast(IntegerType, type_of(data).get_element_type()))
    if type_of(value).get_element_type() != expected:
        raise VerifyException(f"{what} of {data.type} is {expected}, got {value.type}")


@irdl_op_definition
class PackBytesOp(GroupedOperation):
    """`y[p, s, c, j] = w[4 s + j, 4 p + c]`; 0 from K and from N on.

    ```mlir
    qkernel.pack_bytes %w outs(%y) {transpose_b} : (memref<6x9xi8>, memref<2x3x4x4xi8>) -> ()
    ```

    `w` is [K, N], or [N, K] with `transpose_b`, of i8, ui8, i4 or ui4, with any strides; `y` holds bytes of the same signedness.
    """

    name = "qkernel.pack_bytes"
    GROUPS: ClassVar = (("w", None), ("y", "outs"))
    w = operand_def(MemRefType)
    y = operand_def(MemRefType)
    """`packed_bytes_shape(K, N)`. Written, never read."""
    transpose_b = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, w: SSAValue, y: SSAValue, *, transpose_b: bool = False):
        super().__init__(
            operands=operands_in_order(type(self), w=w, y=y),
            properties={"transpose_b": flag(transpose_b)},
        )

    @property
    def weight_shape(self) -> tuple[int, int]:
        """(K, N), however `w` is laid out."""
        rows, columns = shape_of(self.w)
        return (rows, columns) if self.transpose_b is None else (columns, rows)

    def verify_(self) -> None:
        if len(shape_of(self.w)) != 2:
            raise VerifyException(f"what is packed is a matrix, got {self.w.type}")
        expect_integers("what is packed", self.w, WEIGHT_TYPES)
        _expect_bytes("the packed operand", self.y, self.w)
        expect_shape("the packed operand", self.y, packed_bytes_shape(*self.weight_shape))


@irdl_op_definition
class PackWindowOp(GroupedOperation):
    """The windows of a convolution as a packed [K, N] operand: K = (channel, kernel position), N = output positions, row-major.

    ```mlir
    qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>,
        dilations = array<i64: 1, 1>, pad_value = -3 : i64} : (memref<8x5x5xi8>, memref<7x18x4x4xi8>) -> ()
    ```

    `x` is one image [C, spatial...] of i8 or ui8 with any strides; positions of the padding have `pad_value`, the zero point
    of `x`. Bytes from K and from N on are 0.
    """

    name = "qkernel.pack_window"
    GROUPS: ClassVar = (("x", None), ("y", "outs"))
    x = operand_def(MemRefType)
    y = operand_def(MemRefType)
    """Written, never read."""
    kernel_shape = prop_def(DenseArrayBase.constr(i64))
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    pad_value = prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        x: SSAValue,
        y: SSAValue,
        *,
        kernel_shape: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        pad_value: int = 0,
    ):
        super().__init__(
            operands=operands_in_order(type(self), x=x, y=y),
            properties={
                "kernel_shape": int_array(kernel_shape),
                "strides": int_array(strides),
                "pads": int_array(pads),
                "dilations": int_array(dilations),
                "pad_value": IntegerAttr(pad_value, i64),
            },
        )

    @property
    def padding(self) -> int:
        """The value of positions in the padding."""
        return cast("IntegerAttr[IntegerType]", self.pad_value).value.data

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The spatial shape of the convolution's output. `VerifyException` for windows that do not fit."""
        channels, *spatial = shape_of(self.x)
        kernel = ints(self.kernel_shape)
        return conv_shape(
            (1, channels, *spatial),
            (1, channels, *kernel),
            1,
            ints(self.strides),
            ints(self.pads),
            ints(self.dilations),
        )[2:]

    def verify_(self) -> None:
        expect_integers("x", self.x, DATA_TYPES)
        if len(shape_of(self.x)) < 2:
            raise VerifyException(f"x is an image with channels first, got {self.x.type}")
        low, high = integer_range(cast(IntegerType, type_of(self.x).get_element_type()))
        if not low <= self.padding <= high:
            raise VerifyException(f"pad_value {self.padding} is no element of {self.x.type}")
        _expect_bytes("the packed operand", self.y, self.x)
        k = shape_of(self.x)[0] * prod(ints(self.kernel_shape))
        expect_shape("the packed operand", self.y, packed_bytes_shape(k, prod(self.output_shape)))


@irdl_op_definition
class PackedQuantMatmulOp(KernelOp):
    """`y = epilogue(a @ P)` in i32, where P [K, N] is the matrix that `p` holds in panels of bytes.

    ```mlir
    qkernel.packed_quant_matmul %a, %p epilogue(%c) outs(%y) maps [affine_map<(m, n) -> (n)>]
        : (memref<4x9xui8>, memref<2x3x4x4xi8>, memref<6xi32>, memref<4x6xi8>) -> () {...}
    ```

    Sums are modulo 2^32, of the stored integers: what zero points contribute is in the epilogue. `a` is [M, K] with contiguous
    rows, any number of bytes apart; bytes of `p` from K and from N on are 0; `y` is [M, N] with any strides.
    """

    name = "qkernel.packed_quant_matmul"
    ACCUMULATOR: ClassVar[Attribute] = i32
    GROUPS: ClassVar = (
        ("a", None),
        ("p", None),
        ("epilogue_operands", "epilogue"),
        ("y", "outs"),
    )
    a = operand_def(MemRefType)
    p = operand_def(MemRefType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        a: SSAValue,
        p: SSAValue,
        y: SSAValue,
        *,
        epilogue_operands: Sequence[SSAValue] = (),
        epilogue_maps: Sequence[AffineMap] = (),
        epilogue: Region | None = None,
    ):
        super().__init__(
            operands=operands_in_order(
                type(self), a=a, p=p, y=y, epilogue_operands=epilogue_operands
            ),
            properties={"epilogue_maps": epilogue_maps_attr(epilogue_maps)},
            regions=[region_or_none(epilogue)],
        )

    def verify_(self) -> None:
        expect_integers("a", self.a, DATA_TYPES)
        expect_integers("p", self.p, DATA_TYPES)
        if len(shape_of(self.a)) != 2 or len(shape_of(self.y)) != 2:
            raise VerifyException(
                f"the activation and the output are matrices, got {self.a.type} and {self.y.type}"
            )
        (m, k), n = shape_of(self.a), shape_of(self.y)[1]
        strides = cast("MemRefType[Attribute]", self.a.type).get_strides()
        if k > 1 and strides is not None and strides[1] != 1:
            raise VerifyException(f"rows of the activation are runs of bytes, got {self.a.type}")
        expect_shape("the packed operand", self.p, packed_bytes_shape(k, n))
        self.verify_output((m, n))
