"""What the contraction ops of `qmm` (on tensors) and `qkernel` (on memrefs) share: assembly, epilogues, shape rules."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, Self, cast

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ShapedType,
    TensorType,
    UnitAttr,
    f32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    opt_prop_def,
    opt_region_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

SEGMENTS = "operandSegmentSizes"

WEIGHT_BIAS = "qmm.weight_bias"
"""Discardable attribute of a `dequant_matmul`, an i64: its kernel may add this number to each weight and zero point. In the reals
that changes nothing; rounding errors are those of the larger numbers."""

WORD_WINDOWS = "qmm.word_windows"
"""Discardable unit attribute of a convolution of bytes: each row of a window is a word, for kernels that multiply them so."""

ACCUMULATOR_RANGE = "qmm.accumulator"
"""Discardable attribute of an integer contraction on tensors: `low` and `high`, between which each of its sums lies, the number
`k` of products in one, and `largest_k`, how many of these types there could be."""

DYNAMIC_ACTIVATIONS = "qmm.dynamic_activations"
"""Discardable attribute that `qmm-dynamic-activations` leaves. On a contraction of integers that it made: what of the activation
has a scale of its own (`per row`, `per sample`); on one that it left in floats: `none: ` and why."""


def weight_bias(op: Operation) -> int:
    """What `WEIGHT_BIAS` says, or 0."""
    bias = op.attributes.get(WEIGHT_BIAS)
    return cast("IntegerAttr[IntegerType]", bias).value.data if isinstance(bias, IntegerAttr) else 0


def type_of(value: SSAValue) -> TensorType[Attribute] | MemRefType[Attribute]:
    """The shaped type of a tensor or memref value."""
    type_: Attribute = value.type
    assert isinstance(type_, TensorType | MemRefType)
    return cast(TensorType[Attribute] | MemRefType[Attribute], type_)


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The static shape of a tensor or memref value."""
    return type_of(value).get_shape()


class GroupedOperation(IRDLOperation, ABC):
    """An op whose operands print in groups: positional ones, then `keyword(...)` for each optional one that is there."""

    GROUPS: ClassVar[tuple[tuple[str, str | None], ...]]
    """Operands in order: (name, keyword that introduces it, or None for a positional one)."""

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def _group(self, name: str) -> tuple[SSAValue, ...]:
        value = cast(SSAValue | Sequence[SSAValue] | None, getattr(self, name))
        if value is None:
            return ()
        return tuple(value) if isinstance(value, Sequence) else (value,)

    def print(self, printer: Printer) -> None:
        positional = [v for name, keyword in self.GROUPS if not keyword for v in self._group(name)]
        printer.print_string(" ")
        printer.print_list(positional, printer.print_ssa_value)
        for name, keyword in self.GROUPS:
            if keyword and (values := self._group(name)):
                printer.print_string(f" {keyword}(")
                printer.print_list(values, printer.print_ssa_value)
                printer.print_string(")")
        maps = self.properties.get("epilogue_maps")
        if maps is not None:
            printer.print_string(" maps ")
            printer.print_attribute(maps)
        shown = {
            k: v for k, v in self.properties.items() if k not in (SEGMENTS, "epilogue_maps")
        } | self.attributes
        if shown:
            printer.print_op_attributes(shown)
        printer.print_string(" : ")
        ordered = [v for name, _ in self.GROUPS for v in self._group(name)]
        with printer.in_parens():
            printer.print_list(ordered, lambda v: printer.print_attribute(v.type))
        printer.print_string(" -> ")
        if len(self.results) == 1:
            printer.print_attribute(self.results[0].type)
        else:
            with printer.in_parens():
                printer.print_list(self.results, lambda v: printer.print_attribute(v.type))
        for region in self.regions:
            printer.print_string(" ")
            printer.print_region(region)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        pos = parser.pos
        positional = [name for name, keyword in cls.GROUPS if not keyword]
        unresolved = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_unresolved_operand
        )
        if len(unresolved) != len(positional):
            parser.raise_error(f"expected {len(positional)} operands", pos)
        groups = {name: [u] for name, u in zip(positional, unresolved, strict=True)}
        for name, keyword in cls.GROUPS:
            if keyword and parser.parse_optional_keyword(keyword):
                groups[name] = parser.parse_comma_separated_list(
                    parser.Delimiter.PAREN, parser.parse_unresolved_operand
                )
        maps: Sequence[Attribute] | None = None
        if parser.parse_optional_keyword("maps"):
            maps = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, parser.parse_attribute
            )
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        function_type = parser.parse_function_type()
        order = [u for name, _ in cls.GROUPS for u in groups.get(name, [])]
        resolved = parser.resolve_operands(order, function_type.inputs.data, pos)
        region = parser.parse_optional_region()
        # The text has the order of GROUPS; where the op keeps each group is up to its class hierarchy.
        operands: list[Sequence[SSAValue]] = []
        start = 0
        for name, _ in cls.GROUPS:
            count = len(groups.get(name, []))
            operands.append(resolved[start : start + count])
            start += count
        definition = cls.get_irdl_definition()
        by_name = dict(zip((name for name, _ in cls.GROUPS), operands, strict=True))
        properties = {k: v for k, v in attributes.items() if k in definition.properties}
        if maps is not None:
            properties["epilogue_maps"] = ArrayAttr(cast(Sequence[AffineMapAttr], maps))
        return cls.build(
            operands=[by_name[name] for name, _ in definition.operands],
            result_types=function_type.outputs.data,
            properties=properties,
            attributes={k: v for k, v in attributes.items() if k not in definition.properties},
            regions=[region_or_none(region) for _ in definition.regions],
        )


class EpilogueOperation(GroupedOperation, ABC):
    """A contraction with an optional epilogue: a scalar region that maps the accumulator to the stored element.

    ```mlir
    %y = qmm.matmul %a, %b epilogue(%bias) maps [affine_map<(d0, d1) -> (d1)>]
        : (tensor<4x8xf32>, tensor<8x3xf32>, tensor<3xf32>) -> tensor<4x3xf32> {
    ^bb0(%acc: f32, %c: f32):
      %r = arith.addf %acc, %c : f32
      qmm.yield %r : f32
    }
    ```

    The region's first argument is the accumulator, the others are one element of each epilogue operand, read at the
    indices that its map gives for the output's indices. Whatever fuses into a contraction fuses here: bias, activation, residual,
    quantisation.
    """

    ACCUMULATOR: ClassVar[Attribute] = f32
    """The element type that the contraction sums up in."""

    epilogue_operands = var_operand_def()
    epilogue_maps = opt_prop_def(ArrayAttr[AffineMapAttr])
    epilogue = opt_region_def("single_block")

    @property
    def output_type(self) -> TensorType[Attribute] | MemRefType[Attribute]:
        """The type of what is computed: the result, or the memref written to."""
        return type_of(self.results[0] if self.results else self.operands[-1])

    @property
    def maps(self) -> tuple[AffineMap, ...]:
        """The indexing map of each epilogue operand."""
        return () if self.epilogue_maps is None else tuple(m.data for m in self.epilogue_maps)

    @property
    def epilogue_block(self) -> Block | None:
        """The epilogue's block, or None when the accumulator is stored as it is."""
        return None if self.epilogue is None else self.epilogue.block

    def verify_epilogue(self) -> None:
        """Check the epilogue against the op's output; part of every contraction's verifier."""
        output = self.output_type
        block = self.epilogue_block
        if block is None:
            if self.epilogue_operands or self.maps:
                raise VerifyException("epilogue operands without an epilogue region")
            if output.get_element_type() != self.ACCUMULATOR:
                raise VerifyException(
                    f"the accumulator is {self.ACCUMULATOR} and there is no epilogue, but the output is {output}"
                )
            return
        if len(self.maps) != len(self.epilogue_operands):
            raise VerifyException(
                f"{len(self.epilogue_operands)} epilogue operands, but {len(self.maps)} maps"
            )
        elements: list[Attribute] = [self.ACCUMULATOR]
        for index, (operand, map_) in enumerate(
            zip(self.epilogue_operands, self.maps, strict=True)
        ):
            type_ = operand.type
            if not isinstance(type_, TensorType | MemRefType):
                raise VerifyException(f"epilogue operand {index} is not shaped: {type_}")
            type_ = cast(TensorType[Attribute] | MemRefType[Attribute], type_)
            if map_.num_dims != output.get_num_dims() or len(map_.results) != type_.get_num_dims():
                raise VerifyException(f"epilogue map {map_} does not lead from {output} to {type_}")
            self._verify_in_bounds(map_, output.get_shape(), type_.get_shape())
            elements.append(type_.get_element_type())
        if list(block.arg_types) != elements:
            found = ", ".join(str(t) for t in block.arg_types)
            raise VerifyException(
                f"the epilogue takes ({', '.join(str(t) for t in elements)}), its region has ({found})"
            )
        last = block.last_op
        if last is None or last.name != "qmm.yield" or len(last.operands) != 1:
            raise VerifyException("the epilogue ends in a qmm.yield of one value")
        if last.operands[0].type != output.get_element_type():
            raise VerifyException(
                f"the epilogue yields {last.operands[0].type}, the output is {output}"
            )

    @staticmethod
    def _verify_in_bounds(
        map_: AffineMap, output: tuple[int, ...], operand: tuple[int, ...]
    ) -> None:
        if 0 in output:
            return
        low = map_.eval([0] * len(output), [])
        high = map_.eval([d - 1 for d in output], [])
        for a, b, size in zip(low, high, operand, strict=True):
            if min(a, b) < 0 or max(a, b) >= size:
                raise VerifyException(
                    f"epilogue map {map_} leaves the operand's shape {list(operand)}"
                )


def flag(value: bool) -> UnitAttr | None:
    """A unit attribute for True, nothing for False."""
    return UnitAttr() if value else None


def matmul_shape(
    a: Sequence[int], b: Sequence[int], transpose_a: bool, transpose_b: bool
) -> tuple[int, ...]:
    """The shape of `a @ b` over the last two dimensions, batch dimensions broadcast as numpy does.

    `VerifyException` for ranks below 2, unequal K, or batches that do not broadcast.
    """
    if len(a) < 2 or len(b) < 2:
        raise VerifyException(f"a matmul takes operands of rank 2 or more, got {[*a]} and {[*b]}")
    (m, k), (kb, n) = a[-2:], b[-2:]
    if transpose_a:
        m, k = k, m
    if transpose_b:
        kb, n = n, kb
    if k != kb:
        raise VerifyException(f"the operands differ in K: {k} in {[*a]}, {kb} in {[*b]}")
    batch_a, batch_b = list(a[:-2]), list(b[:-2])
    rank = max(len(batch_a), len(batch_b))
    batch: list[int] = []
    for x, y in zip(
        [1] * (rank - len(batch_a)) + batch_a, [1] * (rank - len(batch_b)) + batch_b, strict=True
    ):
        if x != y and 1 not in (x, y):
            raise VerifyException(f"batch dimensions of {[*a]} and {[*b]} do not broadcast")
        batch.append(y if x == 1 else x)
    return (*batch, m, n)


def window_shape(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """Output extents of a sliding window. `pads` are ONNX's: all begins, then all ends.

    `VerifyException` for lists of the wrong length, strides or dilations below 1, negative pads, or a window that does not fit.
    """
    rank = len(spatial)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise VerifyException(
            f"{rank} spatial dimensions take {rank} kernel extents, strides and dilations and {2 * rank} "
            f"pads, got {[*kernel]}, {[*strides]}, {[*dilations]}, {[*pads]}"
        )
    if min(*strides, *dilations, *kernel) < 1 or min(pads) < 0:
        raise VerifyException(
            f"kernel {[*kernel]}, strides {[*strides]} and dilations {[*dilations]} are at least 1, "
            f"pads {[*pads]} at least 0"
        )
    extents: list[int] = []
    for i, size in enumerate(spatial):
        free = size + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1
        if free < 0:
            raise VerifyException(
                f"the window of {kernel[i]} (dilation {dilations[i]}) does not fit the extent {size} "
                f"with pads {pads[i]} and {pads[rank + i]}"
            )
        extents.append(free // strides[i] + 1)
    return tuple(extents)


def conv_shape(
    x: Sequence[int],
    weight: Sequence[int],
    groups: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """The shape of a convolution: x [N, C, spatial...], weight [M, C / groups, kernel...] -> [N, M, spatial...]."""
    if len(x) != len(weight) or len(x) not in (3, 4):
        raise VerifyException(
            f"a convolution is 1-D or 2-D: x of rank 3 or 4 and a weight of the same rank, got {[*x]} and {[*weight]}"
        )
    if groups < 1 or x[1] % groups or weight[0] % groups or x[1] // groups != weight[1]:
        raise VerifyException(
            f"{groups} groups do not divide {x[1]} channels of x and the weight {[*weight]}"
        )
    return (x[0], weight[0], *window_shape(x[2:], weight[2:], strides, pads, dilations))


def expect_shape(what: str, value: SSAValue, expected: Sequence[int]) -> None:
    """`VerifyException` unless `value` has the shape `expected`."""
    if list(shape_of(value)) != list(expected):
        raise VerifyException(f"{what} has shape {[*expected]}, got {value.type}")


def expect_f32(op: Operation, *values: SSAValue) -> None:
    """`VerifyException` unless each value is a tensor or memref of f32: a float kernel never reads integer bytes."""
    for value in values:
        if not isinstance(value.type, ShapedType) or type_of(value).get_element_type() != f32:
            raise VerifyException(f"{op.name} reads f32, got {value.type}")


def region_or_none(region: Region | None) -> list[Region]:
    """An optional region as `IRDLOperation.build` takes it."""
    return [] if region is None else [region]


def int_array(values: Sequence[int]) -> DenseArrayBase[IntegerType]:
    """`array<i64: ...>`."""
    return DenseArrayBase.from_list(i64, values)


def ints(attribute: DenseArrayBase[IntegerType]) -> tuple[int, ...]:
    """The inverse of `int_array`."""
    return tuple(int(v) for v in attribute.get_values())


def epilogue_maps_attr(maps: Sequence[AffineMap]) -> ArrayAttr[AffineMapAttr] | None:
    """The `epilogue_maps` property for `maps`; none for no maps."""
    return ArrayAttr([AffineMapAttr(m) for m in maps]) if maps else None


def operands_in_order(
    op: type[IRDLOperation], **operands: SSAValue | Sequence[SSAValue] | None
) -> list[SSAValue | Sequence[SSAValue] | None]:
    """Operands in the order in which `op` defines them (inherited ones come where the class hierarchy puts them)."""
    return [operands[name] for name, _ in op.get_irdl_definition().operands]


def window_properties(
    strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
) -> dict[str, Attribute]:
    """The properties that describe a sliding window."""
    return {
        "strides": int_array(strides),
        "pads": int_array(pads),
        "dilations": int_array(dilations),
        "groups": IntegerAttr(groups, i64),
    }


def window_of(
    op: IRDLOperation,
) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(groups, strides, pads, dilations) of a conv or window_sum, in `qmm` or `qkernel`."""
    p = op.properties
    return (
        cast(IntegerAttr[IntegerType], p["groups"]).value.data,
        ints(cast(DenseArrayBase[IntegerType], p["strides"])),
        ints(cast(DenseArrayBase[IntegerType], p["pads"])),
        ints(cast(DenseArrayBase[IntegerType], p["dilations"])),
    )
