"""Scalar regions as C: the bodies of generics and epilogues.

A value of a signless integer type is an `intN_t` in C whatever its sign means to the op; `i1` is `bool`, `i4` a sign-extended
`int8_t`; an index is an `int64_t`.
A value with one reader is written where it is read, any other becomes a `const` variable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from xdsl.dialects import arith, math, memref
from xdsl.dialects.builtin import (
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    UnrealizedConversionCastOp,
    f32,
    f64,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, SSAValue

from qfold.backend.c.layout import Buffer, value_type
from qfold.backend.c.rounding import Rounding, constant_float, rounding_of
from qfold.backend.c.scalar_forms import (
    BITS,
    BOOL_INFIX,
    CMPF,
    CMPI,
    FLOAT_INFIX,
    INTEGER,
    MATH,
    MATH_F64,
    ON_FOUR_BITS,
)
from qfold.backend.c.text import (
    Writer,
    float_literal,
    integer_literal,
    is_postfix,
    without_parentheses,
)
from qfold.dialects.element_types import i1, i4, i32, integer_range, is_unsigned, ui4
from qfold.ir.locations import describe_location

_INLINE = 72
"""Longer expressions get a variable even when they have one reader."""


class UnsupportedOp(ValueError):
    """The C printer has no form for an op; the message names the op, its ONNX nodes and its types."""

    def __init__(self, op: Operation, detail: str = ""):
        types = ", ".join(str(v.type) for v in (*op.operands, *op.results))
        super().__init__(
            f"{describe_location(op)} on {types} has no C form{detail and ': ' + detail}"
        )


def width_of(type_: Attribute) -> int:
    """The bits of an integer type in C (an index has 64, four bits are held in 8)."""
    if isinstance(type_, IndexType):
        return 64
    return max(8, cast(IntegerType, type_).width.data)


def _is_bool(type_: Attribute) -> bool:
    return type_ == i1


def _is_within(value: SSAValue, target: Attribute) -> bool:
    """Whether a float is clamped to numbers that the signed integer type `target` holds, and no NaN."""
    low, high = integer_range(target)
    least = value.owner
    most = least.lhs.owner if isinstance(least, arith.MinnumfOp) else None
    if not isinstance(least, arith.MinnumfOp) or not isinstance(most, arith.MaxnumfOp):
        return False
    bounds = [constant_float(most.rhs), constant_float(least.rhs)]
    return all(b is not None and low <= b <= high for b in bounds)


def _of_itself(op: Operation) -> bool | None:
    """What an op makes of an integer and the same one: compilers warn of `a != a`. None for other ops."""
    if len(op.operands) != 2 or op.operands[0] is not op.operands[1]:
        return None
    if isinstance(op, arith.CmpiOp):
        return CMPI[op.predicate.value.data] in ("==", "<=", ">=")
    differs = _is_bool(op.operands[0].type) and BOOL_INFIX.get(type(op)) == "!="
    return False if differs else None


def _reinterpreted_from(op: UnrealizedConversionCastOp) -> SSAValue:
    """What a cast between a signless and an unsigned integer reads: of a number that was truncated for it alone, that number."""
    (value,) = op.operands
    if isinstance(value.owner, arith.TruncIOp) and value.has_one_use():
        return value.owner.input
    return value


class ScalarPrinter:
    """Prints one scalar region into `out`.

    `indices[d]` is the C variable (or `0`) of iteration dimension d; `captured` are the memrefs that `memref.load` reads.
    A division by one of `divisors`, which the loop around does not change, goes by its reciprocal (`qf_div_by`: the same bits).
    `magnitudes` are floats without a sign, as results of `math.absf` are.
    """

    def __init__(
        self,
        out: Writer,
        *,
        indices: Sequence[str] = (),
        captured: Mapping[SSAValue, Buffer] | None = None,
        prefix: str = "t",
        divisors: Collection[SSAValue] = (),
        magnitudes: Collection[SSAValue] = (),
    ):
        self._out = out
        self._indices = indices
        self._captured = captured or {}
        self._prefix = prefix
        self._divisors = divisors
        self._magnitudes = magnitudes
        self._texts: dict[SSAValue, str] = {}
        self._count = 0

    def bind(self, value: SSAValue, text: str) -> None:
        """`value` is the C expression `text` (one token or in parentheses)."""
        self._texts[value] = text

    def text(self, value: SSAValue) -> str:
        """`value` in C. Constants from around the region are printed in place."""
        if value not in self._texts and isinstance(value.owner, arith.ConstantOp):
            self._texts[value] = self._constant(value.owner)
        return self._texts[value]

    def print(self, block: Block, arguments: Sequence[str]) -> str:
        """Print `block` on `arguments`; returns the expression of what it yields."""
        for argument, text in zip(block.args, arguments, strict=True):
            self.bind(argument, text)
        assert block.last_op is not None
        return self.print_value(block, block.last_op.operands[0])

    def print_value(self, block: Block, value: SSAValue) -> str:
        """Print what `value`, an op's result or a bound argument in `block`, needs; returns its expression."""
        needed = self.needed(block, value)
        for op in block.ops:
            if any(r in needed for r in op.results):
                self._print(op)
        return self.text(value)

    def needed(self, block: Block, value: SSAValue) -> set[SSAValue]:
        """The values in `block` that the C form of `value` mentions, with `value` itself."""
        needed: set[SSAValue] = {value}
        for op in reversed(list(block.ops)):
            if any(r in needed for r in op.results):
                needed.update(self._read(op))
        return needed

    def _read(self, op: Operation) -> list[SSAValue]:
        """The operands that the C form of `op` mentions: of a load no loop index, and none of a dimension of one element; of
        a comparison with itself nothing; of a rounding what is rounded; of a cast what it is the lower bits of."""
        if _of_itself(op) is not None:
            return []
        if isinstance(op, arith.FPToSIOp) and (rounding := rounding_of(op)) is not None:
            return self._rounded_from(rounding)
        if isinstance(op, UnrealizedConversionCastOp):
            return [_reinterpreted_from(op)]
        if not isinstance(op, memref.LoadOp):
            return list(op.operands)
        shape = self._captured[op.memref].shape
        return [
            i
            for i, extent in zip(op.indices, shape, strict=True)
            if extent != 1 and not isinstance(i.owner, linalg.IndexOp)
        ]

    def _rounded_from(self, rounding: Rounding) -> list[SSAValue]:
        """What a rounding reads: of a quotient by one of the divisors, dividend and divisor."""
        quotient = rounding.value.owner
        if (
            not rounding.is_wide
            and isinstance(quotient, arith.DivfOp)
            and quotient.rhs in self._divisors
        ):
            return [quotient.lhs, quotient.rhs]
        return [rounding.value]

    def combine(self, op: Operation, a: str, b: str) -> str:
        """The expression of the binary `op` on `a` and `b` instead of its operands."""
        self.bind(op.operands[0], a)
        self.bind(op.operands[1], b)
        return self._expression(op)

    def _print(self, op: Operation) -> None:
        result = op.results[0]
        if isinstance(op, arith.ConstantOp):
            self.bind(result, self._constant(op))
            return
        if isinstance(op, arith.MulSIExtendedOp):
            if op.low.type != i32:
                raise UnsupportedOp(op, "only i32 is multiplied to two halves")
            operands = f"{self.text(op.lhs)}, {self.text(op.rhs)}"
            for half, name in ((op.low, "qf_mul_i32"), (op.high, "qf_mulhi_i32")):
                if half.first_use is not None:
                    self._define(op, half, f"{name}({operands})")
            return
        self._define(op, result, self._expression(op))

    def _define(self, op: Operation, result: SSAValue, text: str) -> None:
        """Bind a result of `op` to its expression, or to a variable of that."""
        atomic = text.replace("_", "").isalnum()
        # A cast is no work, and `_unsigned` may read what is below it instead: a variable would stay unused.
        short = len(text) <= _INLINE or isinstance(op, UnrealizedConversionCastOp)
        if atomic or (result.has_one_use() and short):
            bare = atomic or is_postfix(text) or without_parentheses(text) != text
            self.bind(result, text if bare else f"({text})")
            return
        name = f"{self._prefix}{self._count}"
        self._count += 1
        self._out.line(f"const {value_type(result.type)} {name} = {text};")
        self.bind(result, name)

    def _constant(self, op: arith.ConstantOp) -> str:
        value = op.value
        type_ = op.result.type
        if isinstance(value, FloatAttr):
            return float_literal(value.value.data, double=type_ == f64)
        if isinstance(value, IntegerAttr):
            number = cast(IntegerAttr[Any], value).value.data
            if _is_bool(type_):
                return "true" if number else "false"
            width = width_of(type_)
            number = ((number + (1 << (width - 1))) % (1 << width)) - (1 << (width - 1))
            return integer_literal(number, width)
        raise UnsupportedOp(op, "only scalar constants stand in a body")

    def _expression(self, op: Operation) -> str:
        kind = type(op)
        if isinstance(op, linalg.IndexOp):
            index = self._indices[op.dim.value.data]
            return index if index == "0" else f"(int64_t){index}"
        if isinstance(op, memref.LoadOp):
            return self._load(op)
        constant = _of_itself(op)
        if constant is not None:
            return "true" if constant else "false"
        if isinstance(op, arith.FPToSIOp) and (rounding := rounding_of(op)) is not None:
            arguments = [self.text(v) for v in self._rounded_from(rounding)]
            name = "qf_round_within" if len(arguments) == 1 else "qf_round_quotient"
            if rounding.is_wide:
                name = "qf_roundd_within"
            bounds = [integer_literal(n, 32) for n in (rounding.low, rounding.high)]
            return f"{name}({', '.join([*map(without_parentheses, arguments), *bounds])})"
        if isinstance(op, UnrealizedConversionCastOp):
            return self._reinterpreted(self.text(_reinterpreted_from(op)), op.results[0].type)
        operands = [self.text(v) for v in op.operands]
        if isinstance(op, arith.SelectOp):
            return f"{operands[0]} ? {operands[1]} : {operands[2]}"
        if isinstance(op, arith.CmpfOp):
            return CMPF[op.predicate.value.data](*operands)
        type_: Attribute = op.operands[0].type
        if isinstance(op, arith.CmpiOp):
            predicate = op.predicate.value.data
            if predicate >= 6 or _is_bool(type_):
                operands = [
                    self._unsigned(v, x) for v, x in zip(op.operands, operands, strict=True)
                ]
            if _is_bool(type_) and 2 <= predicate < 6:
                operands.reverse()  # signed, true is -1
            return f"{operands[0]} {CMPI[predicate]} {operands[1]}"
        if isinstance(type_, IndexType | IntegerType):
            text = self._integer(op, kind, cast(Attribute, type_), operands)
        else:
            text = self._float(op, kind, type_, operands)
        if text is None:
            raise UnsupportedOp(op)
        return text

    def _unsigned(self, value: SSAValue, text: str) -> str:
        """A signless value as the unsigned integer of its bits; one that came from an unsigned element is that element."""
        owner = value.owner
        if isinstance(owner, UnrealizedConversionCastOp) and value.has_one_use():
            return self.text(owner.operands[0])
        if value.type == i4:
            return f"({text} & 15)"
        return text if _is_bool(value.type) else f"(uint{width_of(value.type)}_t){text}"

    def _reinterpreted(self, text: str, target: Attribute) -> str:
        """The low bits of an integer as `target`; four of them are held with their sign in an int8_t."""
        if target == i4:
            return f"(int8_t)((({text} & 15) ^ 8) - 8)"
        if target == ui4:
            return f"(uint8_t)({text} & 15)"
        return f"({value_type(target)}){text}"

    def _load(self, op: memref.LoadOp) -> str:
        buffer = self._captured[op.memref]
        parts: list[str] = []
        for index, extent, stride in zip(op.indices, buffer.shape, buffer.strides, strict=True):
            if extent == 1:
                continue
            if isinstance(index.owner, linalg.IndexOp):
                text = self._indices[index.owner.dim.value.data]
            elif isinstance(index.owner, arith.ConstantOp):
                text = self.text(index)
            else:
                text = f"qf_clamp_index({self.text(index)}, {extent})"
            parts.append(text if stride == 1 else f"{text} * {stride}")
        return buffer.load(" + ".join(parts) or "0")

    def _integer(
        self, op: Operation, kind: type[Operation], type_: Attribute, operands: Sequence[str]
    ) -> str | None:
        target = op.results[0].type
        x = operands[0]
        if isinstance(op, arith.SIToFPOp):
            return f"({value_type(target)}){'-(int)' if _is_bool(type_) else ''}{x}"
        if isinstance(op, arith.UIToFPOp):
            return f"({value_type(target)}){self._unsigned(op.operands[0], x)}"
        if isinstance(op, arith.BitcastOp):
            return f"qf_from_bits((uint32_t){x})" if target == f32 else None
        if isinstance(op, arith.TruncIOp):
            return f"({x} & 1) != 0" if _is_bool(target) else self._reinterpreted(x, target)
        if isinstance(op, arith.IndexCastOp) and width_of(type_) == width_of(target):
            return x
        if isinstance(op, arith.ExtSIOp | arith.IndexCastOp):
            return f"({value_type(target)}){'-(int)' if _is_bool(type_) else ''}{x}"
        if isinstance(op, arith.ExtUIOp) or op.name == "arith.index_castui":
            return f"({value_type(target)}){self._unsigned(op.operands[0], x)}"
        if _is_bool(type_):
            infix = BOOL_INFIX.get(kind)
            return None if infix is None else f"{x} {infix} {operands[1]}"
        if kind in BITS:
            return f"({value_type(type_)})({x} {BITS[kind]} {operands[1]})"
        if kind in INTEGER and not is_unsigned(type_) and (type_ != i4 or kind in ON_FOUR_BITS):
            return f"qf_{INTEGER[kind]}_i{width_of(type_)}({', '.join(operands)})"
        return None

    def _float(
        self, op: Operation, kind: type[Operation], type_: Attribute, operands: Sequence[str]
    ) -> str | None:
        if type_ not in (f32, f64):
            return None
        target = op.results[0].type
        x = operands[0]
        if isinstance(op, arith.DivfOp) and type_ == f32 and op.operands[1] in self._divisors:
            return f"qf_div_by({x}, {operands[1]})"
        if kind in FLOAT_INFIX:
            return f"{x} {FLOAT_INFIX[kind]} {operands[1]}"
        if isinstance(op, arith.NegfOp):
            return f"-{x}"
        if isinstance(op, math.FmaOp):
            return f"{operands[0]} * {operands[1]} + {operands[2]}"
        if isinstance(op, arith.ExtFOp | arith.TruncFOp):
            return f"({value_type(target)}){x}"
        if isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
            if _is_bool(target):
                return f"{x} != 0.0f"
            signed = isinstance(op, arith.FPToSIOp)
            if signed and _is_within(op.operands[0], target):
                return f"({value_type(target)}){x}"
            width = width_of(target)
            call = f"qf_{type_}_to_{'i' if signed else 'u'}{width}({x})"
            return call if signed else f"(int{width}_t){call}"
        if isinstance(op, arith.BitcastOp):
            return f"(int32_t)qf_bits({x})" if type_ == f32 else None
        if isinstance(op, arith.MaximumfOp) and type_ == f32:
            if all(v in self._magnitudes or isinstance(v.owner, math.AbsFOp) for v in op.operands):
                return f"qf_maximum_magnitude({', '.join(operands)})"
        table = MATH if type_ == f32 else MATH_F64
        return f"{table[kind]}({', '.join(operands)})" if kind in table else None
