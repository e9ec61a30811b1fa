"""Hardware loops: `lp.setup` and `lp.setupi` with the instructions that they repeat."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Self, cast

from xdsl.backend.assembly_printer import AssemblyPrinter
from xdsl.backend.liveness import LivenessContext
from xdsl.backend.register_allocatable import RegisterConstraints
from xdsl.backend.register_allocator import BlockAllocator, live_ins_per_block
from xdsl.backend.register_type import RegisterAllocatedMemoryEffect
from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.riscv.abstract_ops import (
    AssemblyInstructionArg,
    RISCVAsmOperation,
    RISCVInstruction,
    RISCVRegallocOperation,
    assembly_arg_str,
)
from xdsl.dialects.riscv.attrs import UI5, UI12, ui5, ui12
from xdsl.dialects.riscv.registers import IntRegisterType, RISCVRegisterType
from xdsl.dialects.utils import AbstractYieldOperation, parse_assignment, print_assignment
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    attr_def,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    region_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsTerminator,
    RecursiveMemoryEffect,
    SingleBlockImplicitTerminator,
    ensure_terminator,
)
from xdsl.transforms.canonicalization_patterns.riscv import get_constant_value
from xdsl.utils.exceptions import DiagnosticException, VerifyException

from qfold.dialects.riscv_pulp.assembly import PulpAssemblyPrinter, PulpInstruction
from qfold.dialects.riscv_pulp.loop_rules import MIN_BODY, MIN_TAIL, verify_body_op
from qfold.dialects.riscv_pulp.tied import verify_overwritten


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute], RISCVAsmOperation, RISCVRegallocOperation):
    """Ends the body of a hardware loop with the values that the next iteration starts with. Prints nothing."""

    name = "riscv_pulp.yield"

    traits = lazy_traits_def(
        lambda: (
            IsTerminator(),
            HasParent(LpSetupOp, LpSetupiOp),
            RegisterAllocatedMemoryEffect(),
        )
    )

    def assembly_line(self) -> str | None:
        return None


class HardwareLoopOperation(PulpInstruction, ABC):
    """
    Repeats its body. A loop-carried value keeps one register: initial value, block argument, yielded value and result.

    The end register holds the address of the LAST instruction of the body. A count of 0 does not skip the body: it runs once.
    """

    level = attr_def(IntegerAttr[UI5])
    """Which of the two register sets: 0 is the inner loop, 1 the outer one. A loop that is not nested takes either."""

    iter_args = var_operand_def(RISCVRegisterType)
    res = var_result_def(RISCVRegisterType)
    body = region_def("single_block")

    traits = lazy_traits_def(
        lambda: (SingleBlockImplicitTerminator(YieldOp), RecursiveMemoryEffect())
    )

    MAX_BODY: ClassVar[int]
    """Most instructions of a body: the end is encoded as an unsigned number of half-words."""

    # region structure

    @property
    def loop(self) -> int:
        """The register set, 0 or 1."""
        return self.level.value.data

    @abstractmethod
    def static_count(self) -> int | None:
        """The number of iterations if it is a constant."""

    def yielded(self) -> Sequence[SSAValue]:
        """The values that an iteration hands to the next."""
        yield_op = self.body.block.last_op
        assert isinstance(yield_op, YieldOp)
        return yield_op.operands

    def instructions(self) -> Iterator[Operation]:
        """The ops of the body, in their order, that become one instruction each; an inner loop's body included."""
        for op in self.body.block.ops:
            if isinstance(op, RISCVInstruction):
                yield op
            if isinstance(op, HardwareLoopOperation):
                yield from op.instructions()

    # endregion
    # region verification

    def verify_(self) -> None:
        if self.loop not in (0, 1):
            raise VerifyException(f"there are two hardware loops, 0 and 1; found {self.loop}")
        if self.static_count() == 0:
            raise VerifyException("a count of 0 would still run the body once")
        self._verify_carried()
        for op in self.body.block.ops:
            self._verify_body_op(op)
        count = sum(1 for _ in self.instructions())
        if not MIN_BODY <= count <= self.MAX_BODY:
            raise VerifyException(
                f"the body has {count} instructions, {self.encoding.mnemonic} takes {MIN_BODY} to {self.MAX_BODY}"
            )

    def _verify_carried(self) -> None:
        block = self.body.block
        yielded = self.yielded()
        if not len(self.iter_args) == len(block.args) == len(yielded):
            raise VerifyException(
                f"{len(self.iter_args)} initial values, {len(block.args)} block arguments and {len(yielded)} yielded values"
            )
        for row in zip(self.iter_args, block.args, yielded, self.res, strict=True):
            types = [value.type for value in row]
            if len(set(types)) != 1:
                raise VerifyException(
                    "a loop-carried value changes its register: " + ", ".join(map(str, types))
                )
        for value, result in zip(self.iter_args, self.res, strict=True):
            verify_overwritten(self, value, result)
        if len(set(self.iter_args)) != len(self.iter_args):
            raise VerifyException("two loop-carried values start as the same register")

    def _verify_body_op(self, op: Operation) -> None:
        if isinstance(op, HardwareLoopOperation):
            self._verify_inner(op)
        elif not isinstance(op, YieldOp):
            verify_body_op(op)

    def _verify_inner(self, inner: HardwareLoopOperation) -> None:
        if (self.loop, inner.loop) != (1, 0):
            raise VerifyException(
                f"loop {inner.loop} inside of loop {self.loop}: the inner loop is 0 and the outer one 1"
            )
        following = 0
        op = inner.next_op
        while op is not None:
            following += isinstance(op, RISCVInstruction)
            op = op.next_op
        if following < MIN_TAIL:
            raise VerifyException(
                f"{following} instructions follow the inner loop in the body of the outer one; at least {MIN_TAIL} must"
            )

    # endregion
    # region registers

    @abstractmethod
    def count_operands(self) -> tuple[SSAValue, ...]:
        """The register of the count, if it has one."""

    def get_register_constraints(self) -> RegisterConstraints:
        carried = tuple(zip(self.iter_args, self.res, strict=True))
        return RegisterConstraints(self.count_operands(), (), carried)

    def update_liveness(self, ctx: LivenessContext) -> None:
        block = self.body.block
        # The body runs repeatedly: what it uses from outside must survive an iteration.
        body = ctx.copy({*ctx.alive, *live_ins_per_block(block)[block]})
        body.process_block(block)
        ctx.alive.update(body.alive)
        super().update_liveness(ctx)

    def allocate_registers(self, allocator: BlockAllocator) -> None:
        block = self.body.block
        for live_in in allocator.live_ins_per_block[block]:
            allocator.allocate_value(live_in)
        for values in zip(block.args, self.iter_args, self.yielded(), self.res, strict=True):
            allocator.allocate_values_same_reg(values)
        carried = cast(tuple[RISCVRegisterType, ...], tuple(self.iter_args.types))
        with allocator.available_registers.reserve_registers(carried):
            allocator.allocate_block(block)
        # The count is read once, before the body: its register is free in there.
        for count in self.count_operands():
            allocator.allocate_value(count)

    # endregion
    # region printing

    @abstractmethod
    def count_arg(self) -> AssemblyInstructionArg:
        """The count as the mnemonic's operand."""

    def assembly_line_args(self) -> tuple[AssemblyInstructionArg, ...]:
        return f"x{self.loop}", self.count_arg(), str(self.half_words)

    @property
    def half_words(self) -> int:
        """Where the last instruction of the body is, in half-words from the `lp.setup` itself."""
        return 2 * sum(1 for _ in self.instructions())

    def print_assembly(self, printer: AssemblyPrinter) -> None:
        if not isinstance(printer, PulpAssemblyPrinter):
            raise DiagnosticException(f"{self.name}: print hardware loops with -t riscv-pulp-asm")
        if printer.insn:
            super().print_assembly(printer)
            return
        *_, last = self.instructions()
        args = (f"x{self.loop}", self.count_arg(), printer.label_before(last))
        line = AssemblyPrinter.assembly_line(
            self.encoding.mnemonic, ", ".join(map(assembly_arg_str, args)), self.comment
        )
        printer.print_string(f"{line}\n")

    @classmethod
    @abstractmethod
    def parse_count(cls, parser: Parser) -> SSAValue | int:
        """Parse what stands between the level and the loop-carried values."""

    @abstractmethod
    def print_count(self, printer: Printer) -> None:
        """Print what stands between the level and the loop-carried values."""

    @classmethod
    @abstractmethod
    def from_count(
        cls, count: SSAValue | int, iter_args: Sequence[SSAValue], body: Region, level: int
    ) -> Self:
        """The op with a count as `parse_count` gives it."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        level = parser.parse_integer(allow_boolean=False, allow_negative=False)
        parser.parse_punctuation(",")
        count = cls.parse_count(parser)
        position = parser.pos
        arguments: list[Parser.UnresolvedArgument] = []
        operands: list[UnresolvedOperand] = []
        types: list[Attribute] = []
        if parser.parse_optional_keyword("iter_args"):
            for argument, operand in parser.parse_comma_separated_list(
                Parser.Delimiter.PAREN, lambda: parse_assignment(parser)
            ):
                arguments.append(argument)
                operands.append(operand)
            parser.parse_punctuation("->")
            types = parser.parse_comma_separated_list(Parser.Delimiter.PAREN, parser.parse_type)
        iter_args = parser.resolve_operands(operands, types, position)
        attributes = parser.parse_optional_attr_dict_with_keyword(("level", "count"))
        body = parser.parse_region([a.resolve(t) for a, t in zip(arguments, types, strict=True)])
        op = cls.from_count(count, iter_args, body, level)
        if attributes is not None:
            op.attributes |= attributes.data
        for trait in op.get_traits_of_type(SingleBlockImplicitTerminator):
            ensure_terminator(op, trait)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.loop}, ")
        self.print_count(printer)
        block = self.body.block
        if block.args:
            printer.print_string(" iter_args(")
            printer.print_list(
                zip(block.args, self.iter_args, strict=True),
                lambda pair: print_assignment(printer, *pair),
            )
            printer.print_string(") -> (")
            printer.print_list(block.arg_types, printer.print_attribute)
            printer.print_string(")")
        printer.print_op_attributes(
            self.attributes, reserved_attr_names=("level", "count"), print_keyword=True
        )
        printer.print_string(" ")
        printer.print_region(
            self.body, print_entry_block_args=False, print_block_terminators=bool(block.args)
        )

    # endregion


@irdl_op_definition
class LpSetupOp(HardwareLoopOperation):
    """
    A hardware loop whose count is in a register.

    ```mlir
    %sum = riscv_pulp.lp_setup 0, %n : !riscv.reg iter_args(%acc = %zero) -> (!riscv.reg) {
      ...
      riscv_pulp.yield %next : !riscv.reg
    }
    ```
    """

    name = "riscv_pulp.lp_setup"

    count = operand_def(IntRegisterType)

    MAX_BODY: ClassVar[int] = 4095 // 2

    def __init__(
        self,
        count: SSAValue | Operation,
        iter_args: Sequence[SSAValue],
        body: Region,
        *,
        level: int = 0,
    ):
        super().__init__(
            operands=[count, iter_args],
            result_types=[[a.type for a in iter_args]],
            regions=[body],
            attributes={"level": IntegerAttr(level, ui5)},
        )

    def static_count(self) -> int | None:
        constant = get_constant_value(self.count)
        return None if constant is None else constant.value.data

    def count_operands(self) -> tuple[SSAValue, ...]:
        return (self.count,)

    def count_arg(self) -> AssemblyInstructionArg:
        return self.count

    def insn_args(self) -> str:
        # An I-type immediate is signed for the assembler.
        end = self.half_words if self.half_words < 2048 else self.half_words - 4096
        e = self.encoding
        count = assembly_arg_str(self.count)
        return f"i {e.opcode:#x}, {e.funct3}, x{self.loop}, {count}, {end}"

    @classmethod
    def parse_count(cls, parser: Parser) -> SSAValue | int:
        operand = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        return parser.resolve_operand(operand, parser.parse_type())

    def print_count(self, printer: Printer) -> None:
        printer.print_ssa_value(self.count)
        printer.print_string(" : ")
        printer.print_attribute(self.count.type)

    @classmethod
    def from_count(
        cls, count: SSAValue | int, iter_args: Sequence[SSAValue], body: Region, level: int
    ) -> Self:
        assert isinstance(count, SSAValue)
        return cls(count, iter_args, body, level=level)


@irdl_op_definition
class LpSetupiOp(HardwareLoopOperation):
    """
    A hardware loop with a constant count (12 bits) and a short body: 5 bits encode its end.

    ```mlir
    %sum = riscv_pulp.lp_setupi 0, 16 iter_args(%acc = %zero) -> (!riscv.reg) {
      ...
      riscv_pulp.yield %next : !riscv.reg
    }
    ```
    """

    name = "riscv_pulp.lp_setupi"

    count = attr_def(IntegerAttr[UI12])

    MAX_BODY: ClassVar[int] = 31 // 2

    def __init__(self, count: int, iter_args: Sequence[SSAValue], body: Region, *, level: int = 0):
        super().__init__(
            operands=[iter_args],
            result_types=[[a.type for a in iter_args]],
            regions=[body],
            attributes={"level": IntegerAttr(level, ui5), "count": IntegerAttr(count, ui12)},
        )

    def static_count(self) -> int:
        return self.count.value.data

    def count_operands(self) -> tuple[SSAValue, ...]:
        return ()

    def count_arg(self) -> AssemblyInstructionArg:
        return self.count

    def insn_args(self) -> str:
        count = self.static_count() if self.static_count() < 2048 else self.static_count() - 4096
        e = self.encoding
        # The end is where rs1 would be. (The RI5CY datasheet's text has it the other way round; its RTL does not.)
        return f"i {e.opcode:#x}, {e.funct3}, x{self.loop}, x{self.half_words}, {count}"

    @classmethod
    def parse_count(cls, parser: Parser) -> SSAValue | int:
        return parser.parse_integer(allow_boolean=False, allow_negative=False)

    def print_count(self, printer: Printer) -> None:
        printer.print_int(self.static_count())

    @classmethod
    def from_count(
        cls, count: SSAValue | int, iter_args: Sequence[SSAValue], body: Region, level: int
    ) -> Self:
        assert isinstance(count, int)
        return cls(count, iter_args, body, level=level)


OPS: Final[tuple[type[Operation], ...]] = (LpSetupOp, LpSetupiOp, YieldOp)
