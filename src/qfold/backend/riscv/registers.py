"""Register allocation for generated kernels.

xDSL's allocator keeps the register of a loop-carried value for the whole loop, has no callee-saved registers, and takes those
of the arguments out of use. The inner loop of a 4 x 4 block on a core with one register file needs nearly all registers there
are, each again as soon as its value is dead. So this allocator works on live ranges: the values that must share a register
(loop-carried ones, overwritten operands, and what the generator tied) form a web, and two webs may share a register when no range
of one meets a range of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from xdsl.backend.register_allocatable import HasRegisterConstraints
from xdsl.dialects import riscv_func, riscv_scf
from xdsl.dialects.riscv.registers import (
    FloatRegisterType,
    IntRegisterType,
    Registers,
    RISCVRegisterType,
)
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from qfold.dialects.riscv_pulp.hwloop import HardwareLoopOperation

ARGUMENTS: Final = Registers.A
"""Where a function finds its first integer arguments."""

CALLEE_SAVED: Final[frozenset[RISCVRegisterType]] = frozenset(
    (*Registers.S, Registers.RA, Registers.GP, Registers.TP, *Registers.FS)
)
"""What a kernel must leave as it found it. The ABI lets nobody allocate gp and tp: a kernel that calls nothing may borrow
them."""

INTEGER_POOL: Final = (
    *Registers.T,
    *Registers.A,
    *Registers.S,
    Registers.RA,
    Registers.GP,
    Registers.TP,
)
"""Integer registers in the order in which they are taken: those that cost no saving first."""

FLOAT_POOL: Final = (*Registers.FT, *Registers.FA, *Registers.FS)


class OutOfRegisters(ValueError):
    """More values are alive at once than there are registers."""


@dataclass
class _Web:
    """Values in one register."""

    values: list[SSAValue]
    ranges: list[tuple[int, int]]
    register: RISCVRegisterType | None = None
    preferred: RISCVRegisterType | None = None

    @property
    def length(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def meets(self, other: _Web) -> bool:
        return any(a <= d and c <= b for a, b in self.ranges for c, d in other.ranges)


@dataclass
class _Positions:
    """Each op's place in the text: it reads at 2p and writes at 2p + 1. An op with a body has a place before and one after it."""

    before: dict[Operation, int] = field(default_factory=dict[Operation, int])
    after: dict[Operation, int] = field(default_factory=dict[Operation, int])
    next: int = 1

    def number(self, block: Block) -> None:
        for op in block.ops:
            self.before[op] = self.after[op] = self.next
            self.next += 1
            for region in op.regions:
                self.number(region.block)
                self.after[op] = self.next
                self.next += 1

    def defined(self, value: SSAValue) -> int:
        if isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            return 2 * self.before.get(loop, 0) + 1 if loop is not None else 1
        assert isinstance(value.owner, Operation)
        return 2 * self.after[value.owner] + 1

    def last_read(self, value: SSAValue) -> int:
        """The last place that reads it. What a loop reads from outside stays alive until the loop ends."""
        owner = value.owner
        block = owner if isinstance(owner, Block) else owner.parent
        assert block is not None
        last = self.defined(value)
        for use in value.uses:
            op = block.find_ancestor_op_in_block(use.operation)
            assert op is not None
            direct = op is use.operation and not (
                isinstance(op, riscv_scf.ForOp) and value in (op.stop, op.step_val)
            )
            last = max(last, 2 * (self.before if direct else self.after)[op])
        if isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            if isinstance(loop, riscv_scf.ForOp) and value.index == 0:
                last = 2 * self.after[loop]  # incremented and compared after the body
        return last


def _values(block: Block) -> Iterator[SSAValue]:
    yield from block.args
    for op in block.ops:
        yield from op.results
        for region in op.regions:
            yield from _values(region.block)


def _groups(block: Block) -> Iterator[Sequence[SSAValue]]:
    """The values that instructions force into one register."""
    for op in block.walk():
        match op:
            case HardwareLoopOperation():
                yield from zip(op.iter_args, op.body.block.args, op.yielded(), op.res, strict=True)
            case riscv_scf.ForOp():
                last = op.body.block.last_op
                assert last is not None
                yield from zip(
                    op.iter_args, op.body.block.args[1:], last.operands, op.res, strict=True
                )
            case HasRegisterConstraints():
                yield from op.get_register_constraints().inouts
            case _:
                pass


def _webs(block: Block, ties: Sequence[tuple[SSAValue, SSAValue]]) -> list[_Web]:
    positions = _Positions()
    positions.number(block)
    webs: dict[SSAValue, _Web] = {}
    for value in _values(block):
        if isinstance(value.type, RISCVRegisterType):
            fixed = value.type if value.type.is_allocated else None
            span = (positions.defined(value), positions.last_read(value))
            webs[value] = _Web([value], [span], fixed)
    # Desugaring replaces some of the values that were tied.
    wanted = [t for t in ties if t[0] in webs and t[1] in webs]
    for group in (*_groups(block), *wanted):
        first, *rest = group
        for other in rest:
            _merge(webs, first, other)
    for argument, register in zip(block.args, ARGUMENTS, strict=False):
        webs[argument].preferred = register
    return list({id(w): w for w in webs.values()}.values())


def _merge(webs: dict[SSAValue, _Web], a: SSAValue, b: SSAValue) -> None:
    one, two = webs[a], webs[b]
    if one is two:
        return
    if one.meets(two) or None not in (one.register, two.register):
        raise AssertionError(f"{a} and {b} share a register, but are alive at the same time")
    one.values += two.values
    one.ranges += two.ranges
    one.register = one.register or two.register
    for value in two.values:
        webs[value] = one


def _color(webs: Sequence[_Web]) -> bool:
    """Give each web a register, first come, first served; False when one finds none."""
    taken: dict[RISCVRegisterType, list[_Web]] = {}
    for web in webs:
        if web.register is not None:
            taken.setdefault(web.register, []).append(web)
    for web in webs:
        if web.register is not None:
            continue
        is_float = isinstance(web.values[0].type, FloatRegisterType)
        pool: tuple[RISCVRegisterType, ...] = FLOAT_POOL if is_float else INTEGER_POOL
        if web.preferred is not None:
            pool = (web.preferred, *pool)
        for register in pool:
            if not any(web.meets(other) for other in taken.get(register, ())):
                web.register = register
                taken.setdefault(register, []).append(web)
                break
        else:
            return False
    return True


def _by_length(web: _Web) -> int:
    """Long ranges first: what is left fills their holes."""
    return -web.length


def _by_start(web: _Web) -> int:
    """In order of appearance: optimal for ranges without holes."""
    return min(web.ranges)[0]


def allocate(
    function: riscv_func.FuncOp, ties: Sequence[tuple[SSAValue, SSAValue]] = ()
) -> frozenset[RISCVRegisterType]:
    """
    Give every value of a function of one block a register, and return those used. Arguments are not bound to a0 ...: whoever
    inserts the prologue moves them. `ties` are pairs of values that shall share a register.

    `OutOfRegisters` when too many values are alive at once.
    """
    block = function.body.block
    webs = _webs(block, ties)
    fixed = [w.register for w in webs]
    for order in (_by_length, _by_start):
        for web, register in zip(webs, fixed, strict=True):
            web.register = register
        if _color(sorted(webs, key=order)):
            break
    else:
        raise OutOfRegisters(
            f"{function.sym_name.data}: up to {pressure(function)} values are alive at once"
        )
    for web in webs:
        assert web.register is not None
        for value in web.values:
            if value.type != web.register:
                Rewriter.replace_value_with_new_type(value, web.register)
    return frozenset(w.register for w in webs if w.register is not None) - {
        Registers.ZERO,
        Registers.SP,
    }


def pressure(function: riscv_func.FuncOp) -> dict[str, int]:
    """The most values alive at one place, integer and float registers apart, x0 and sp left out."""
    counts = {"integer": 0, "float": 0}
    webs = _webs(function.body.block, ())
    for kind, type_ in (("integer", IntRegisterType), ("float", FloatRegisterType)):
        events: dict[int, int] = {}
        for web in webs:
            if isinstance(web.values[0].type, type_) and web.register not in (
                Registers.ZERO,
                Registers.SP,
            ):
                for first, last in web.ranges:
                    events[first] = events.get(first, 0) + 1
                    events[last + 1] = events.get(last + 1, 0) - 1
        alive = 0
        for place in sorted(events):
            alive += events[place]
            counts[kind] = max(counts[kind], alive)
    return counts
