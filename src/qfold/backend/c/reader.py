"""Reads a level-3 module: where every operand of every call lies, and which functions are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
)
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from qfold.backend.c.layout import span_bytes
from qfold.backend.c.program import (
    DISPATCH,
    ROLE,
    Arena,
    Dispatch,
    Kernel,
    NotLevel3,
    Place,
    Port,
    Program,
    WeightData,
    memory_space,
    memref_type,
)
from qfold.backend.c.staged import calls, overlapping_leafs
from qfold.backend.c.text import Names
from qfold.ir.globals import global_weight
from qfold.ir.layouts import Layout
from qfold.ir.locations import describe_location, node_names
from qfold.ir.ports import PortFacts

_TAKEN = ("is_aligned", "posix_memalign", "aligned_alloc", "run_on_core", "end_of_dispatch")
"""Names with an underscore that network.c or a C library has."""


def _overlap(places: Sequence[Place]) -> bool:
    """Whether two operands outside of the weights share bytes."""
    mutable = [p for p in places if not isinstance(p.root, WeightData)]
    for i, a in enumerate(mutable):
        for b in mutable[:i]:
            apart = (
                a.bytes + span_bytes(a.type) <= b.bytes or b.bytes + span_bytes(b.type) <= a.bytes
            )
            if a.root == b.root and a.is_output == b.is_output and not apart:
                return True
    return False


def read_program(module: ModuleOp) -> Program:
    """A level-3 module as the C printer sees it. `NotLevel3` says what is missing."""
    return _Reader(module).read()


@dataclass
class _Reader:
    """Reads one module."""

    module: ModuleOp
    places: dict[SSAValue, Place] = field(default_factory=dict[SSAValue, Place])
    constants: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    weights: dict[str, WeightData] = field(default_factory=dict[str, WeightData])
    kernels: dict[str, Kernel] = field(default_factory=dict[str, Kernel])
    names: Names = field(default_factory=lambda: Names(_TAKEN))

    def read(self) -> Program:
        functions: dict[str, func.FuncOp] = {}
        for op in self.module.ops:
            if isinstance(op, func.FuncOp):
                functions[op.sym_name.data] = op
            elif isinstance(op, memref.GlobalOp):
                weight = global_weight(op)
                self.weights[op.sym_name.data] = WeightData(
                    op.sym_name.data,
                    weight,
                    memory_space(op.type),
                    16 if op.alignment is None else op.alignment.value.data,
                )
            else:
                raise NotLevel3(f"{describe_location(op)} at the top of a level-3 module")
        main = functions.pop("main", None)
        if main is None or main.is_declaration:
            raise NotLevel3("there is no function @main")
        ports = self._arguments(main)
        dispatches: list[Dispatch] = []
        for op in main.body.block.ops:
            if isinstance(op, func.CallOp):
                dispatches.append(self._call(op, functions, len(dispatches)))
            else:
                self._view(op)
        used = dict.fromkeys(
            p.root.symbol for d in dispatches for p in d.operands if isinstance(p.root, WeightData)
        )
        kernels = self._finished(dispatches)
        target = self.module.attributes.get("qmm.target")
        return Program(
            target.data if isinstance(target, StringAttr) else "host",
            tuple(p for role, p in ports if role == "input" and isinstance(p, Port)),
            tuple(p for role, p in ports if role == "output" and isinstance(p, Port)),
            tuple(p for _, p in ports if isinstance(p, Arena)),
            tuple(self.weights[s] for s in used),
            tuple(k for k in kernels.values() if not k.is_staged),
            tuple(k for k in kernels.values() if k.is_staged),
            tuple(replace(d, kernel=kernels[d.kernel.symbol]) for d in dispatches),
        )

    def _finished(self, dispatches: Sequence[Dispatch]) -> dict[str, Kernel]:
        """Every kernel by its symbol, now that all calls are known."""
        overlapping = {d.kernel.symbol for d in dispatches if _overlap(d.operands)}
        for k in list(self.kernels.values()):
            if k.is_staged:
                callees = overlapping_leafs(k.function, arguments_overlap=k.symbol in overlapping)
                overlapping |= {k.leaf(c).symbol for c in callees}
        leafs = {
            k.symbol: replace(k, overlaps=k.symbol in overlapping)
            for k in self.kernels.values()
            if not k.is_staged
        }
        return {
            k.symbol: replace(
                k,
                overlaps=k.symbol in overlapping,
                leafs=tuple((name, leafs[leaf.symbol]) for name, leaf in k.leafs),
            )
            for k in self.kernels.values()
        }

    def _arguments(self, main: func.FuncOp) -> list[tuple[str, Port | Arena]]:
        ports: list[tuple[str, Port | Arena]] = []
        members = {"input": Names(), "output": Names()}
        dictionaries = [] if main.arg_attrs is None else list(main.arg_attrs)
        for index, argument in enumerate(main.body.block.args):
            attributes: Mapping[str, Attribute] = {}
            if index < len(dictionaries):
                attributes = dictionaries[index].data
            role = attributes.get(ROLE)
            type_: Attribute = argument.type
            if not isinstance(role, StringAttr) or not isinstance(type_, MemRefType):
                raise NotLevel3(
                    f"argument {index} of @main is a {type_} without {ROLE}: run qmm-bufferize first"
                )
            type_ = cast(MemRefType[Attribute], type_)
            if role.data == "arena":
                size = type_.get_shape()[0]
                root: Port | Arena = Arena(memory_space(type_), size)
            else:
                root = self._port(argument, attributes, members[role.data], type_)
            ports.append((role.data, root))
            self.places[argument] = Place(root, role.data == "output", 0, 0, type_)
        return ports

    @staticmethod
    def _port(
        argument: BlockArgument,
        attributes: Mapping[str, Attribute],
        members: Names,
        type_: MemRefType[Attribute],
    ) -> Port:
        facts = PortFacts.of(attributes)
        name = f"v{argument.index}" if facts.name is None else facts.name
        if not Layout.of(type_).is_dense:
            raise NotLevel3(f"{name!r} of @main is not dense: {type_}")
        return Port(name, members.unique(name), type_, facts.quant, facts.layout)

    def _call(self, op: func.CallOp, functions: dict[str, func.FuncOp], position: int) -> Dispatch:
        kernel = self._kernel(op.callee.string_value(), functions, "main")
        ordinal = op.attributes.get(DISPATCH)
        number = position
        if isinstance(ordinal, IntegerAttr):
            number = cast(IntegerAttr[Any], ordinal).value.data
        if number != position:
            raise NotLevel3(f"call {position} of @main is dispatch {number}")
        places = tuple(self._place(v) for v in op.arguments)
        return Dispatch(number, kernel, places, node_names(op))

    def _kernel(self, callee: str, functions: dict[str, func.FuncOp], caller: str) -> Kernel:
        """The function of a call, and before it those that it calls itself."""
        if callee not in functions:
            raise NotLevel3(f"@{caller} calls @{callee}, which does not exist")
        if callee not in self.kernels:
            function = functions[callee]
            found = Kernel("", function)
            leafs: dict[str, Kernel] = {}
            if found.is_staged:
                if caller != "main":
                    raise NotLevel3(f"@{caller} calls @{callee}, which is a staged dispatch too")
                for call in calls(function):
                    name = call.callee.string_value()
                    leafs[name] = self._kernel(name, functions, callee)
            # The C library's names have no underscore: a function called `exp` must not become one of them.
            wanted = callee if "_" in callee.strip("_") else f"kernel_{callee}"
            self.kernels[callee] = Kernel(
                self.names.unique(wanted), function, leafs=tuple(leafs.items())
            )
        return self.kernels[callee]

    def _place(self, value: SSAValue) -> Place:
        if value not in self.places:
            owner = value.owner
            what = describe_location(owner) if isinstance(owner, Operation) else str(value.type)
            raise NotLevel3(f"{what} is no view of an argument or a global")
        return self.places[value]

    def _view(self, op: Operation) -> None:
        """Views say where their result lies; anything else has no place in a level-3 @main."""
        if isinstance(op, func.ReturnOp):
            return
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
            self.constants[op.result] = cast(IntegerAttr[Any], op.value).value.data
            return
        if isinstance(op, memref.GetGlobalOp):
            symbol = op.name_.string_value()
            if symbol not in self.weights:
                raise NotLevel3(f"global @{symbol} does not exist")
            self._put(op.memref, Place(self.weights[symbol], False, 0, 0, memref_type(op.memref)))
            return
        if isinstance(op, memref.ViewOp):
            source = self._place(op.source)
            shift = self.constants.get(op.byte_shift)
            if shift is None:
                raise NotLevel3(f"{describe_location(op)} at an offset that is no constant")
            self._derive(op, source, byte_offset=source.byte_offset + shift, offset=0)
        elif isinstance(op, memref.SubviewOp):
            source = self._place(op.source)
            offsets = self._static(op, op.static_offsets, op.offsets)
            strides = Layout.of(source.type).strides
            moved = sum(a * b for a, b in zip(offsets, strides, strict=True))
            self._derive(op, source, offset=source.offset + moved)
        elif isinstance(op, memref.ReinterpretCastOp):
            source = self._place(op.source)
            (offset,) = self._static(op, op.static_offsets, op.offsets)
            self._derive(op, source, offset=offset)
        elif isinstance(
            op,
            memref.CollapseShapeOp
            | memref.ExpandShapeOp
            | memref.CastOp
            | memref.MemorySpaceCastOp,
        ):
            source = self._place(op.operands[0])
            self._derive(op, source, offset=source.offset)
        else:
            raise NotLevel3(
                f"{describe_location(op)} in @main: level 3 has views and calls only "
                "(qmm-outline-kernels and qmm-plan-memory make it)"
            )

    def _static(
        self, op: Operation, static: DenseArrayBase[Any], dynamic: Sequence[SSAValue]
    ) -> list[int]:
        values = iter(dynamic)
        result: list[int] = []
        for v in static.get_values():
            number = self.constants.get(next(values)) if v == DYNAMIC_INDEX else int(v)
            if number is None:
                raise NotLevel3(f"{describe_location(op)} at an offset that is no constant")
            result.append(number)
        return result

    def _derive(
        self, op: Operation, source: Place, *, offset: int, byte_offset: int | None = None
    ) -> None:
        result = op.results[0]
        at = source.byte_offset if byte_offset is None else byte_offset
        self._put(result, Place(source.root, source.is_output, at, offset, memref_type(result)))

    def _put(self, value: SSAValue, place: Place) -> None:
        self.places[value] = place
