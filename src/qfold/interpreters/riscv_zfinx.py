"""Interpreters of `riscv_zfinx`, bit for bit as the hardware computes: rounded to nearest even, one rounding per instruction.

A float in an integer register is its bit pattern, an `IntegerAttr` as `lw` gives it. In a float register it is what xDSL's
interpreters put there, a `FloatAttr` of f64 (whose value is always a float32). A NaN result is the canonical one, 0x7fc00000.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, f64
from xdsl.dialects.riscv.registers import FloatRegisterType
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.interpreters.riscv import RiscvFunctions
from xdsl.ir import Attribute, Operation
from xdsl.utils.comparisons import to_signed, to_unsigned
from xdsl.utils.exceptions import InterpretationError

from qfold.dialects import riscv_zfinx as zfinx

_BITS = 32
_SIGN: Final = 0x80000000
_CANONICAL_NAN: Final = 0x7FC00000

# region bit patterns


def float_of_bits(bits: int) -> float:
    """The float32 with that bit pattern."""
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]


def bits_of_float(value: float) -> int:
    """The bit pattern of `value` rounded to float32: to nearest even, infinity beyond the range, the canonical NaN."""
    if math.isnan(value):
        return _CANONICAL_NAN
    with np.errstate(over="ignore", under="ignore"):
        return int(np.float32(value).view(np.uint32))


def _fused(a: float, b: float, c: float) -> float:
    """a * b + c of three float32 such that rounding it to float32 once gives what the hardware gives."""
    # 24 bits times 24 bits fit in the 53 of a double, so the product is exact.
    product = a * b
    total = product + c
    if not math.isfinite(total):
        return total
    # Rounded to odd instead of to nearest, a sum of 53 bits can be rounded again to 24 or fewer without harm
    # (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums"). The error of the sum is exact (2Sum).
    shifted = total - product
    error = (product - (total - shifted)) + (c - shifted)
    if error == 0.0 or struct.unpack("<Q", struct.pack("<d", total))[0] & 1:
        return total
    return math.nextafter(total, math.copysign(math.inf, error))


def fused_multiply_add(a: int, b: int, c: int) -> int:
    """The bit pattern of a * b + c, rounded once to float32."""
    return bits_of_float(_fused(float_of_bits(a), float_of_bits(b), float_of_bits(c)))


def _divide(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(a) / np.float32(b))


def _square_root(a: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.float32(a)))


def _minimum(a: int, b: int) -> int:
    """The smaller by value, the one with the sign for zeros; NaNs give way to numbers."""
    x, y = float_of_bits(a), float_of_bits(b)
    if math.isnan(x) or math.isnan(y):
        return _number(a, b)
    if x == y:
        return a | b
    return a if x < y else b


def _maximum(a: int, b: int) -> int:
    x, y = float_of_bits(a), float_of_bits(b)
    if math.isnan(x) or math.isnan(y):
        return _number(a, b)
    if x == y:
        return a & b
    return a if x > y else b


def _number(a: int, b: int) -> int:
    """The one that is no NaN, if there is one."""
    for bits in (a, b):
        if not math.isnan(float_of_bits(bits)):
            return bits
    return _CANONICAL_NAN


# endregion
# region operations

# The sum, difference and product of two float32 in double precision, rounded again to float32, are as if rounded once: 53 bits
# are more than 2 * 24 + 1 (Figueroa 1995, "When is double rounding innocuous?"). Quotient and root are numpy's own.
_ARITHMETIC: dict[type[Operation], Callable[..., float]] = {
    zfinx.FAddSOp: operator.add,
    zfinx.FSubSOp: operator.sub,
    zfinx.FMulSOp: operator.mul,
    zfinx.FDivSOp: _divide,
    zfinx.FSqrtSOp: _square_root,
}

_BITWISE: dict[type[Operation], Callable[[int, int], int]] = {
    zfinx.FMinSOp: _minimum,
    zfinx.FMaxSOp: _maximum,
    zfinx.FSgnjSOp: lambda a, b: (a & ~_SIGN) | (b & _SIGN),
    zfinx.FSgnjnSOp: lambda a, b: (a & ~_SIGN) | (~b & _SIGN),
    zfinx.FSgnjxSOp: lambda a, b: a ^ (b & _SIGN),
}

_SIGNS: dict[type[Operation], tuple[int, int]] = {
    zfinx.FMAddSOp: (0, 0),
    zfinx.FMSubSOp: (0, _SIGN),
    zfinx.FNMSubSOp: (_SIGN, 0),
    zfinx.FNMAddSOp: (_SIGN, _SIGN),
}
"""What flips the signs of the product and of the addend."""

_COMPARE: dict[type[Operation], Callable[[float, float], bool]] = {
    zfinx.FeqSOp: operator.eq,
    zfinx.FltSOp: operator.lt,
    zfinx.FleSOp: operator.le,
}


def _away(value: float) -> int:
    return math.floor(value + 0.5) if value >= 0 else math.ceil(value - 0.5)


_ROUND: dict[str, Callable[[float], int]] = {
    "rne": round,
    "rtz": math.trunc,
    "rdn": math.floor,
    "rup": math.ceil,
    "rmm": _away,
}

_RANGES: dict[type[Operation], tuple[int, int]] = {
    zfinx.FCvtWSOp: (-(1 << 31), (1 << 31) - 1),
    zfinx.FCvtWuSOp: (0, (1 << 32) - 1),
}


def _to_integer(value: float, mode: str, low: int, high: int) -> int:
    if math.isnan(value):
        return high
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(_ROUND[mode](value), low), high)


# endregion


def _integer(op: Operation, value: Any) -> int:
    """An integer register's content as an unsigned number."""
    if not isinstance(value, IntegerAttr):
        raise InterpretationError(f"{op.name} computes with numbers, found {value}")
    return to_unsigned(value.value.data, _BITS)


def _bits(op: Operation, value: Any) -> int:
    """The bit pattern of the float in a register of either file."""
    if isinstance(value, FloatAttr):
        return bits_of_float(value.value.data)
    return _integer(op, value)


def _content(bits: int, register: Attribute) -> Any:
    """What a register of that type holds for a bit pattern."""
    if isinstance(register, FloatRegisterType):
        return FloatAttr(float_of_bits(bits), f64)
    return IntegerAttr(to_signed(bits & 0xFFFFFFFF, _BITS), _BITS)


class RiscvZfinxFunctions(InterpreterFunctions):
    """Every op of the dialect."""

    def run(self, interpreter: Interpreter, op: Operation, args: PythonValues) -> PythonValues:
        if interpreter.index_bitwidth != _BITS:
            raise InterpretationError(
                f"Zfinx has 32-bit registers, the interpreter's index bitwidth is {interpreter.index_bitwidth}"
            )
        args = RiscvFunctions.get_reg_values(interpreter, op.operands, args)
        result = _content(_compute(op, args), op.results[0].type)
        return RiscvFunctions.set_reg_values(interpreter, op.results, (result,))


def _compute(op: Operation, args: PythonValues) -> int:
    kind = type(op)
    match op:
        case zfinx.FromIntegerOperation():
            unsigned = _integer(op, args[0])
            signed = isinstance(op, zfinx.FCvtSWOp)
            return bits_of_float(float(to_signed(unsigned, _BITS) if signed else unsigned))
        case zfinx.MultiplyAddOperation():
            rd, rs1, rs2 = (_bits(op, a) for a in args)
            product_sign, addend_sign = _SIGNS[kind]
            return fused_multiply_add(rs1 ^ product_sign, rs2, rd ^ addend_sign)
        case zfinx.UntiedMultiplyAddOperation():
            return fused_multiply_add(*(_bits(op, a) for a in args))
        case zfinx.ToIntegerOperation():
            mode = "rne" if op.rounding is None else op.rounding.data
            return _to_integer(float_of_bits(_bits(op, args[0])), mode, *_RANGES[kind])
        case zfinx.CompareOperation():
            a, b = (float_of_bits(_bits(op, a)) for a in args)
            return int(_COMPARE[kind](a, b))
        case _ if kind in _BITWISE:
            a, b = (_bits(op, a) for a in args)
            return _BITWISE[kind](a, b)
        case _:
            return bits_of_float(_ARITHMETIC[kind](*(float_of_bits(_bits(op, a)) for a in args)))


for _op_type in zfinx.RISCV_ZFINX.operations:
    # `register_impls` sees only attributes of the class.
    setattr(RiscvZfinxFunctions, f"impl_{_op_type.name}", impl(_op_type)(RiscvZfinxFunctions.run))
register_impls(RiscvZfinxFunctions)
