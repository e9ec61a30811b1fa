"""`dispatches.h` and `dispatches.c`: one C function per staged dispatch, which moves tiles and calls kernels on them.

Every core runs every line. Core 0 starts transfers and waits for them; a barrier tells the others, and another one comes after
each kernel, so that whatever is written below a line is there for all cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from qfold.backend.c.description import listed
from qfold.backend.c.layout import Linear, c_type, variable
from qfold.backend.c.program import Kernel, NotLevel3, Program, memref_type
from qfold.backend.c.signature import parameters, signature
from qfold.backend.c.staged import PASSED_ON, constant, regions, view_accessor
from qfold.backend.c.text import Names, Writer, call_lines
from qfold.backend.c.transfer import Transfer
from qfold.dialects import pulp
from qfold.dialects.element_types import bit_width
from qfold.ir.layouts import Layout
from qfold.ir.locations import describe_location

_PURE = (memref.ViewOp, memref.SubviewOp, *PASSED_ON)

_INFIX: dict[type[Operation], str] = {
    arith.DivUIOp: "/",
    arith.DivSIOp: "/",
    arith.FloorDivSIOp: "/",
    arith.RemUIOp: "%",
    arith.RemSIOp: "%",
}
"""On indices, none of which is negative."""


def print_dispatches_header(program: Program) -> str:
    """`dispatches.h`."""
    out = Writer()
    out.comment("The staged dispatches that network.c calls, on all cores at once.")
    out.lines(["#ifndef DISPATCHES_H", "#define DISPATCHES_H", "", '#include "qfold_int.h"', ""])
    for kernel in program.staged:
        out.line(f"{signature(kernel)};")
    out.lines(["", "#endif"])
    return out.text()


def print_dispatches(program: Program) -> str:
    """`dispatches.c`. `NotLevel3` for an op that has no place in a staged dispatch."""
    out = Writer()
    out.comment(
        "Staged dispatches: core 0 brings tiles of the operands to L1 and takes results back, kernels work on the tiles, each "
        "core its share. All cores run every line; a barrier follows each kernel and each wait."
    )
    out.lines(['#include "dispatches.h"', ""])
    out.lines(['#include "kernels.h"', '#include "network_buffers.h"', '#include "qfold_rt.h"'])
    out.lines(["", "#if defined(__GNUC__) && !defined(__clang__)"])
    out.comment("GCC would make equal functions one: what runs is what the manifest names.")
    out.lines(f"{signature(kernel)} __attribute__((no_icf));" for kernel in program.staged)
    out.line("#endif")
    _print_trace(out, program)
    for kernel in program.staged:
        out.line()
        out.comment(f"ONNX: {listed(program.nodes_of[kernel.symbol]) or '(no node)'}")
        with out.block(signature(kernel)):
            _Body(out, kernel).print()
    return out.text()


def _print_trace(out: Writer, program: Program) -> None:
    """What the checked build adds: a macro around each kernel that reports its name before the call."""
    leafs = {leaf.symbol: leaf for kernel in program.staged for _, leaf in kernel.leafs}
    out.lines(["", "#ifdef QFOLD_TRACE"])
    out.comment(
        "The checked build: core 0 reports each call. A macro's own name is not expanded again, so the inner call is the kernel."
    )
    out.line("void qfold_trace_leaf(const char *symbol);")
    with (
        out.block("static inline void trace_leaf(const char *symbol)"),
        out.block("if (qf_core_id() == 0)"),
    ):
        out.line("qfold_trace_leaf(symbol);")
    for leaf in leafs.values():
        names = ", ".join(f"a{i}" for i in range(len(parameters(leaf))))
        out.line(f"#define {leaf.symbol}({names}) \\")
        out.line(f'    (trace_leaf("{leaf.symbol}"), {leaf.symbol}({names}))')
    out.line("#endif")


@dataclass(frozen=True)
class _Pointer:
    """A memref as C: the pointer to its element [0, ..., 0]."""

    text: str
    written: bool
    """Whether its type is not to `const`."""


class _Body:
    """Prints the body of one staged dispatch."""

    def __init__(self, out: Writer, kernel: Kernel):
        self.out = out
        self.kernel = kernel
        self.names = Names(("core",))
        self.pointers: dict[SSAValue, _Pointer] = {}
        self.indices: dict[SSAValue, Linear] = {}
        self.transfers: dict[SSAValue, str] = {}

    def print(self) -> None:
        function = self.kernel.function
        regions(function)  # refuses what is no view
        found = parameters(self.kernel)
        for argument, p in zip(function.body.block.args, found, strict=True):
            self.pointers[argument] = _Pointer(
                self.names.unique(p.buffer.name), p.written or p.scratch
            )
        if any(isinstance(op, pulp.DmaStartOp) for op in function.body.walk()):
            self.out.line("const uint32_t core = qf_core_id();")
        self._block(function.body.block)
        used = {v for op in function.body.walk() for v in op.operands}
        for argument in function.body.block.args:
            if argument not in used:
                self.out.line(f"(void){self.pointers[argument].text};")

    def _block(self, block: Block) -> None:
        """The ops of a block: what core 0 does in a row, with views in between, stands together."""
        ops = list(block.ops)
        starts: list[pulp.DmaStartOp] = []
        waits: list[pulp.DmaWaitOp] = []
        for op in ops:
            if isinstance(op, pulp.DmaStartOp) and not waits:
                starts.append(op)
                continue
            if isinstance(op, pulp.DmaWaitOp):
                waits.append(op)
                continue
            if isinstance(op, _PURE) or op.name.startswith("arith."):
                self._value(op)
                continue
            # network.c has a barrier after the dispatch.
            self._move(starts, waits, barrier=not isinstance(op, func.ReturnOp))
            starts, waits = [], []
            if isinstance(op, pulp.DmaStartOp):
                starts.append(op)
                continue
            last = isinstance(op.next_op, func.ReturnOp)
            match op:
                case func.CallOp():
                    leaf = self.kernel.leaf(op.callee.string_value())
                    arguments = [self.pointers[v].text for v in op.arguments]
                    self.out.lines(call_lines(leaf.symbol, arguments))
                    if not last:
                        self.out.line("qf_barrier();")
                case scf.ForOp():
                    self._loop(op)
                case scf.YieldOp():
                    self._yield(op)
                case func.ReturnOp():
                    pass
                case _:
                    raise self._misplaced(op)

    def _value(self, op: Operation) -> None:
        """A view or an index: no work."""
        match op:
            case memref.ViewOp():
                self._view(op)
            case memref.SubviewOp():
                self._subview(op)
            case _ if isinstance(op, PASSED_ON):
                self.pointers[op.results[0]] = self.pointers[op.operands[0]]
            case arith.ConstantOp():
                pass
            case _ if isinstance(op.results[0].type, IndexType):
                self._index(op)
            case _:
                raise self._misplaced(op)

    def _misplaced(self, op: Operation) -> NotLevel3:
        return NotLevel3(
            f"{describe_location(op)} in @{self.kernel.function.sym_name.data}: a staged dispatch has transfers, loops over "
            "tiles, views, and calls of leaf functions (qmm-tile-to-l1 and qmm-plan-scratchpad make it)"
        )

    # Pointers.

    def _name(self, value: SSAValue, otherwise: str) -> str:
        return self.names.unique(value.name_hint or otherwise)

    def _declare(self, value: SSAValue, name: str, text: str, *, written: bool) -> None:
        element = memref_type(value).get_element_type()
        qualifier = "" if written else "const "
        self.out.line(f"{qualifier}{c_type(element)} *{name} = {text};")
        self.pointers[value] = _Pointer(name, written)

    def _view(self, op: memref.ViewOp) -> None:
        element = memref_type(op.result).get_element_type()
        source = self.pointers[op.source].text
        shift = constant(op.byte_shift)
        at = f"{source} + {shift}" if shift else source
        name = self._name(op.result, "tile")
        self._declare(op.result, name, f"{view_accessor(element)}({at})", written=True)

    def _subview(self, op: memref.SubviewOp) -> None:
        source = self.pointers[op.source]
        type_ = memref_type(op.source)
        dynamic = iter(op.offsets)
        position = Linear()
        for at, stride in zip(
            op.static_offsets.get_values(), Layout.of(type_).strides, strict=True
        ):
            offset = self._linear(next(dynamic)) if at == DYNAMIC_INDEX else Linear({}, int(at))
            position += offset.scaled(stride)
        text = _elements(type_.get_element_type(), position)
        if text == "0":
            self.pointers[op.result] = source
            return
        name = self._name(op.result, f"{source.text}_part")
        self._declare(op.result, name, f"{source.text} + {text}", written=source.written)

    # Indices.

    def _linear(self, value: SSAValue) -> Linear:
        number = constant(value)
        if number is not None:
            return Linear({}, number)
        return self.indices[value]

    def _index(self, op: Operation) -> None:
        result = op.results[0]
        operands = [self._linear(v) for v in op.operands if isinstance(v.type, IndexType)]
        match op:
            case arith.AddiOp():
                self.indices[result] = operands[0] + operands[1]
                return
            case arith.SubiOp():
                self.indices[result] = operands[0] + operands[1].scaled(-1)
                return
            case arith.MuliOp() if not all(x.terms for x in operands):
                a, b = operands if operands[0].terms else reversed(operands)
                self.indices[result] = a.scaled(b.constant)
                return
            case arith.MinUIOp() | arith.MinSIOp():
                a, b = (f"({x.text()})" for x in operands)
                text = f"{a} < {b} ? {a} : {b}"
            case arith.MaxUIOp() | arith.MaxSIOp():
                a, b = (f"({x.text()})" for x in operands)
                text = f"{a} > {b} ? {a} : {b}"
            case _ if type(op) in _INFIX:
                text = f"({operands[0].text()}) {_INFIX[type(op)]} ({operands[1].text()})"
            case _:
                raise self._misplaced(op)
        name = self._name(result, "at")
        self.out.line(f"const ptrdiff_t {name} = {text};")
        self.indices[result] = variable(name)

    # Transfers.

    def _move(
        self,
        starts: Sequence[pulp.DmaStartOp],
        waits: Sequence[pulp.DmaWaitOp],
        *,
        barrier: bool,
    ) -> None:
        """What core 0 does with the DMA in a row: `starts`, then `waits`, then (for all cores) a barrier if it waited."""
        if not starts and not waits:
            return
        known = regions(self.kernel.function)
        started: list[tuple[Transfer, str, str, str]] = []
        for op in starts:
            source, destination = self.pointers[op.source].text, self.pointers[op.destination].text
            incoming = known[op.destination].root is self._scratch
            tile = destination if incoming else source
            name = self._name(op.transfer, f"{tile}_{'in' if incoming else 'out'}")
            self.transfers[op.transfer] = name
            self.out.line(f"qf_dma_t {name} = 0;")
            started.append((Transfer.of(op), name, destination, source))
        with self.out.block("if (core == 0)"):
            for transfer, name, to, from_ in started:
                transfer.print(self.out, name, to, from_)
            self.out.lines(f"qf_dma_wait({self.transfers[op.transfer]});" for op in waits)
        if waits and barrier:
            self.out.line("qf_barrier();")

    @property
    def _scratch(self) -> SSAValue | None:
        """The argument that is the scratchpad."""
        block = self.kernel.function.body.block
        found = zip(block.args, parameters(self.kernel), strict=True)
        return next((a for a, p in found if p.scratch), None)

    # Loops.

    def _loop(self, op: scf.ForOp) -> None:
        """A loop; what it carries are variables from before it to after it."""
        bounds = [constant(v) for v in (op.lb, op.ub, op.step)]
        if None in bounds:
            raise NotLevel3(f"{describe_location(op)} between bounds that are no constants")
        first, last, step = cast("list[int]", bounds)
        body = op.body.block
        for start, inner, after in zip(op.iter_args, body.args[1:], op.results, strict=True):
            self._carry(op, start, inner, after)
        name = self._name(body.args[0], "i")
        self.indices[body.args[0]] = variable(name)
        with self.out.loop(name, last, first, step):
            self._block(body)

    def _carry(self, op: scf.ForOp, start: SSAValue, inner: SSAValue, after: SSAValue) -> None:
        """One variable for a value that a loop carries: at its start, in each iteration, and after it."""
        if start in self.transfers:
            before = self.transfers[start]
            name = self._name(inner, f"{before}_next")
            self.out.line(f"qf_dma_t {name} = {before};")
            self.transfers[inner] = self.transfers[after] = name
        elif start in self.pointers:
            before_ = self.pointers[start]
            name = self._name(inner, f"{before_.text}_next")
            self._declare(inner, name, before_.text, written=before_.written)
            self.pointers[after] = self.pointers[inner]
        elif isinstance(start.type, IndexType):
            name = self._name(inner, "at")
            self.out.line(f"ptrdiff_t {name} = {self._linear(start).text()};")
            self.indices[inner] = self.indices[after] = variable(name)
        else:
            raise self._misplaced(op)

    def _yield(self, op: scf.YieldOp) -> None:
        """Hand on what the loop carries: all values are read before any variable changes."""
        loop = cast(scf.ForOp, op.parent_op())
        moves = [
            (self._text(inner), self._text(value), inner)
            for inner, value in zip(loop.body.block.args[1:], op.operands, strict=True)
        ]
        moves = [m for m in moves if m[0] != m[1]]
        targets = {target for target, _, _ in moves}
        # A swap: one of them would be overwritten before it is read.
        if any(value in targets for _, value, _ in moves):
            held: list[tuple[str, str, SSAValue]] = []
            for target, value, inner in moves:
                name = self.names.unique(f"{target}_new")
                self.out.line(f"{self._c_type(inner)}{name} = {value};")
                held.append((target, name, inner))
            moves = held
        for target, value, _ in moves:
            self.out.line(f"{target} = {value};")

    def _text(self, value: SSAValue) -> str:
        if value in self.transfers:
            return self.transfers[value]
        if value in self.pointers:
            return self.pointers[value].text
        return self._linear(value).text()

    def _c_type(self, value: SSAValue) -> str:
        if value in self.transfers:
            return "qf_dma_t "
        if value in self.pointers:
            element = memref_type(value).get_element_type()
            return f"{'' if self.pointers[value].written else 'const '}{c_type(element)} *"
        return "ptrdiff_t "


def _elements(element: Attribute, position: Linear) -> str:
    """A position as an offset of the C type: a byte holds two four-bit integers, and views start at whole bytes."""
    if bit_width(element) != 4:
        return position.text()
    if position.constant % 2 == 0 and all(c % 2 == 0 for c in position.terms.values()):
        halves = {n: c // 2 for n, c in position.terms.items()}
        return Linear(halves, position.constant // 2).text()
    return f"({position.text()}) / 2"
