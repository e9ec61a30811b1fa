"""The parameters of kernel functions: names, types, and what a kernel does with each buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, func, memref
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Operation, SSAValue

from qfold.backend.c.layout import Buffer, c_type
from qfold.backend.c.program import SCRATCHPAD, Kernel, memory_space, memref_type
from qfold.backend.c.scalar import UnsupportedOp
from qfold.backend.c.staged import calls, regions, transfers
from qfold.backend.c.text import Names
from qfold.dialects.contraction import GroupedOperation
from qfold.ir.shared_loops import loaded, starts


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel function."""

    buffer: Buffer
    written: bool
    read: bool
    alone: bool
    """Whether nothing else that the function is called with overlaps it."""
    scratch: bool = False
    """Whether it is a staged dispatch's own memory, which says nothing before a call and nothing after it."""

    @property
    def declaration(self) -> str:
        return f"{self.c_type}{'restrict ' if self.alone else ''}{self.buffer.name}"

    @property
    def c_type(self) -> str:
        """The pointer type: `const` unless written."""
        constant = not (self.written or self.scratch)
        return f"{'const ' if constant else ''}{c_type(self.buffer.element)} *"


def compute_ops(function: func.FuncOp) -> list[Operation]:
    """The ops of a kernel function but for constants, its own variables and the return."""
    return [
        o
        for o in function.body.block.ops
        if not isinstance(o, arith.ConstantOp | memref.AllocOp | func.ReturnOp)
    ]


def parameters(kernel: Kernel) -> list[Parameter]:
    """The parameters of a kernel function, named after what they are to its op; of a staged dispatch, as its arguments are."""
    if kernel.is_staged:
        return _staged_parameters(kernel)
    function = kernel.function
    block = function.body.block
    wanted: dict[SSAValue, str] = {}
    written: set[SSAValue] = set()
    read: set[SSAValue] = set()
    ops = compute_ops(function)
    for op in ops:
        _roles(op, wanted, written, read)
    if isinstance(kernel.op, linalg.GenericOp) and joined_nests(ops) is not None:
        wanted = _joined_names(block.args, written, kernel.op.outputs[0])
    names = Names()
    result: list[Parameter] = []
    for argument in block.args:
        type_ = memref_type(argument)
        name = names.unique(wanted.get(argument, f"unused{argument.index}"))
        result.append(
            Parameter(
                Buffer(name, type_), argument in written, argument in read, not kernel.overlaps
            )
        )
    return result


def _staged_parameters(kernel: Kernel) -> list[Parameter]:
    """Read is what a staged dispatch copies to L1, or a leaf function reads where it is; written likewise."""
    arguments = kernel.function.body.block.args
    known = regions(kernel.function)
    read, written = transfers(kernel)
    for call in calls(kernel.function):
        for value, p in zip(
            call.arguments, parameters(kernel.leaf(call.callee.string_value())), strict=True
        ):
            if p.written:
                written.add(known[value].root)
            if p.read:
                read.add(known[value].root)
    names = Names(("core",))
    result: list[Parameter] = []
    for a in arguments:
        type_ = memref_type(a)
        name = names.unique(a.name_hint or f"x{a.index}")
        scratch = memory_space(type_) == SCRATCHPAD
        result.append(
            Parameter(
                Buffer(name, type_),
                a in written and not scratch,
                a in read and not scratch,
                False,
                scratch,
            )
        )
    return result


def _joined_names(
    arguments: Sequence[SSAValue], written: set[SSAValue], result: SSAValue
) -> dict[SSAValue, str]:
    """The names of what several loop nests share: their result is `y`, what else they write `y1` ..., what they read `x0` ..."""
    outputs = [v for v in arguments if v in written and v is not result]
    inputs = [v for v in arguments if v not in written]
    names = {v: f"y{i}" for i, v in enumerate(outputs, 1)} | {result: "y"}
    return names | {v: f"x{i}" for i, v in enumerate(inputs)}


def _roles(
    op: Operation, wanted: dict[SSAValue, str], written: set[SSAValue], read: set[SSAValue]
) -> None:
    """What an op does with its buffers; read is what it reads of what the ops before it have not written."""
    if isinstance(op, GroupedOperation):
        for name, _ in op.GROUPS:
            group: SSAValue | Sequence[SSAValue] | None = getattr(op, name)
            values: Sequence[SSAValue] = ()
            if group is not None:
                values = (group,) if isinstance(group, SSAValue) else group
            short = "e" if name == "epilogue_operands" else name
            for i, value in enumerate(values):
                wanted.setdefault(value, f"e{i}" if short == "e" else short)
                if name == "y":
                    written.add(value)
                else:
                    read.add(value)
    elif isinstance(op, linalg.GenericOp):
        for i, value in enumerate(op.outputs):
            wanted.setdefault(value, "y" if i == 0 else f"y{i}")
        for i, value in enumerate(op.inputs):
            wanted.setdefault(value, f"x{i}")
        for inner in op.body.block.ops:
            if isinstance(inner, memref.LoadOp):
                wanted.setdefault(inner.memref, "table")
        read.update(v for v in _reads(op) if v not in written)
        written.update(op.outputs)
    elif isinstance(op, linalg.FillOp):
        wanted.setdefault(op.outputs[0], "y")
        written.add(op.outputs[0])
    elif isinstance(op, memref.CopyOp):
        wanted.setdefault(op.destination, "y")
        wanted.setdefault(op.source, "x")
        written.add(op.destination)
        read.add(op.source)
    else:
        raise UnsupportedOp(op, "a kernel is one qkernel op, linalg.generic, fill or copy")


def signature(kernel: Kernel) -> str:
    """`void name(type *a, ...)`, over several lines where one is too short."""
    declared = [p.declaration for p in parameters(kernel)]
    text = f"void {kernel.symbol}({', '.join(declared) or 'void'})"
    if len(text) <= 106:
        return text
    return f"void {kernel.symbol}(\n    " + ",\n    ".join(declared) + ")"


def _reads(op: linalg.GenericOp) -> Iterator[SSAValue]:
    """The buffers whose elements the body uses."""
    operands = (*op.inputs, *op.outputs)
    yield from (v for v, a in zip(operands, op.body.block.args, strict=True) if a.uses)
    yield from loaded(op)


def joined_nests(
    ops: Sequence[Operation],
) -> list[tuple[linalg.FillOp | None, linalg.GenericOp]] | None:
    """The generics of a function, each with the fill that it starts from, if they are several and there is nothing else."""
    nests: list[tuple[linalg.FillOp | None, linalg.GenericOp]] = []
    fill: linalg.FillOp | None = None
    for op, following in zip(ops, [*ops[1:], None], strict=True):
        if isinstance(op, linalg.FillOp) and starts(op, following):
            fill = op
        elif isinstance(op, linalg.GenericOp):
            nests.append((fill, op))
            fill = None
        else:
            return None
    return nests if len(nests) > 1 else None
