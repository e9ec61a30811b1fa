"""Level-3 modules for tests: many kernels, one module, one compilation."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from xdsl.builder import ImplicitBuilder
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    i64,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from qfold.backend.run import Executable, build_module
from qfold.dialects import qkernel
from qfold.dialects.contraction import int_array, shape_of
from qfold.dialects.element_types import bit_width
from qfold.ir.layouts import Layout, row_major
from qfold.ir.locations import name_location
from qfold.targets import target_named

Array = npt.NDArray[Any]
SANITIZED = {
    "native": False,
    "extra_cflags": ["-O0", "-g0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
"""Options of a build that stops at undefined behaviour and at any access outside of a buffer (each has memory of its own)."""
SPACE = 2


def memref_type(
    shape: Sequence[int], element: Attribute, layout: Layout | None = None
) -> MemRefType[Attribute]:
    return (layout or Layout.dense(shape)).memref_type(element, SPACE)


@dataclass
class Arg:
    """One argument of a kernel: an input with values, or (values None) the output."""

    element: Attribute
    values: Array | None = None
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    """Of the view that the kernel gets; the input itself is dense and as long as the view reaches."""
    offset: int = 0

    @property
    def layout(self) -> Layout:
        shape = self.values.shape if self.values is not None else self.shape
        assert shape is not None
        return Layout(shape, self.strides or row_major(shape), self.offset)


def random_split(function: func.FuncOp, cores: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Some division of the loops over a kernel's output into at most `cores` parts; loops of one iteration may get several."""
    op = [o for o in function.body.block.ops if not isinstance(o, func.ReturnOp)][-1]
    if isinstance(op, linalg.GenericOp):
        parallel = [i.data is IteratorType.PARALLEL for i in op.iterator_types]
    else:
        shape = shape_of(getattr(op, "y", op.operands[-1]))
        if isinstance(op, qkernel.PackBytesOp | qkernel.PackWindowOp):
            shape = shape[:2]  # panels and words
        parallel = [True] * len(shape)
    parts = [1] * len(parallel)
    left = cores
    for d in rng.permutation(len(parts)):
        if parallel[d]:
            parts[d] = int(rng.integers(1, left + 1))
            left //= parts[d]
    return tuple(parts)


@dataclass
class Level3:
    """Collects kernels, then builds, runs and hands out the outputs."""

    target: ClassVar[str] = "host"
    """Of the modules. On a cluster, each kernel is divided between cores in some way, another one for each name and target."""

    inputs: list[tuple[str, MemRefType[Attribute], Array]] = field(default_factory=list)
    outputs: list[tuple[str, MemRefType[Attribute]]] = field(default_factory=list)
    functions: list[func.FuncOp] = field(default_factory=list)
    steps: list[tuple[str, list[tuple[str, Arg]], str]] = field(default_factory=list)

    def add(
        self,
        name: str,
        kernel: str,
        args: Sequence[Arg],
        body: Callable[[Sequence[SSAValue]], Sequence[Operation]],
        node: str | None = None,
    ) -> str:
        """A kernel function of `args` (the last is the output) whose ops `body` makes, and a call of it. Returns the
        output's name.
        """
        types = [memref_type((), a.element, a.layout) for a in args]
        block = Block(arg_types=types)
        block.add_ops([*body(block.args), func.ReturnOp()])
        function = func.FuncOp(name, FunctionType.from_lists(types, []), Region(block), "private")
        function.attributes["qmm.kernel"] = StringAttr(kernel)
        self.functions.append(function)
        bound: list[tuple[str, Arg]] = []
        for i, a in enumerate(args):
            layout = a.layout
            dense = layout.is_dense and not layout.offset
            reach = layout.extent[1] + 1
            shape = layout.shape if dense else (max(reach, 0),)
            type_ = memref_type(shape, a.element)
            port = f"{name}.{i}"
            if a.values is None:
                self.outputs.append((port, type_))
            else:
                self.inputs.append((port, type_, a.values if dense else _scatter(a, layout)))
            bound.append((port, a))
        self.steps.append((name, bound, node or name))
        return f"{name}.{len(args) - 1}"

    def module(self) -> ModuleOp:
        ports = [(n, t, "input") for n, t, _ in self.inputs] + [
            (n, t, "output") for n, t in self.outputs
        ]
        types = [t for _, t, _ in ports]
        block = Block(arg_types=types)
        values = {n: v for (n, _, _), v in zip(ports, block.args, strict=True)}
        with ImplicitBuilder(block):
            for ordinal, (name, bound, node) in enumerate(self.steps):
                operands: list[SSAValue] = []
                for port, a in bound:
                    value: SSAValue = values[port]
                    wanted = memref_type((), a.element, a.layout)
                    if value.type != wanted:
                        layout = a.layout
                        view = memref.ReinterpretCastOp.from_dynamic(
                            value, [layout.offset], list(layout.shape), list(layout.strides), wanted
                        )
                        value = view.result
                    operands.append(value)
                call = func.CallOp(name, operands, [])
                call.attributes["qmm.dispatch"] = IntegerAttr(ordinal, i64)
                call.location = name_location(node)
            func.ReturnOp()
        main = func.FuncOp("main", FunctionType.from_lists(types, []), Region(block))
        main.properties["arg_attrs"] = ArrayAttr(
            [
                DictionaryAttr({"qmm.name": StringAttr(n), "qmm.role": StringAttr(r)})
                for n, _, r in ports
            ]
        )
        target = target_named(self.target)
        functions = [f.clone() for f in self.functions]
        for f in functions if target.is_cluster else ():
            seed = zlib.crc32(f"{f.sym_name.data} {target.name}".encode())
            split = random_split(f, target.cores, np.random.default_rng(seed))
            f.attributes["qmm.split"] = int_array(split)
        module = ModuleOp([*functions, main], {"qmm.target": StringAttr(target.name)})
        module.verify()
        return module

    def values(self) -> dict[str, Array]:
        return {n: v for n, _, v in self.inputs}

    def run(self, **options: Any) -> dict[str, Array]:
        """Build, run, and give each output as its view's elements."""
        executable: Executable = build_module(self.module(), **options)
        found = executable.run(self.values())
        executable.close()
        views: dict[str, Array] = {}
        for _, bound, _ in self.steps:
            for port, a in bound:
                if a.values is None:
                    views[port] = gather(found[port], a.layout)
        return views


def _scatter(arg: Arg, layout: Layout) -> Array:
    """A flat buffer that holds an input's values where `layout` says, and values that no kernel may use anywhere else."""
    assert arg.values is not None
    unused = 7 if bit_width(arg.element) == 4 else 113
    flat = np.full(layout.extent[1] + 1, unused, arg.values.dtype)
    flat[positions(layout)] = arg.values
    return flat


def gather(flat: Array, layout: Layout) -> Array:
    """The elements of a view of a dense buffer."""
    return flat.reshape(-1)[positions(layout)]


def positions(layout: Layout) -> npt.NDArray[np.int64]:
    at = np.full(layout.shape, layout.offset, np.int64)
    for d, (n, s) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        shape = [1] * len(layout.shape)
        shape[d] = n
        at = at + (np.arange(n) * s).reshape(shape)
    return at


def gamma(n: int) -> float:
    """The relative error of n roundings in f32 (Higham): n u / (1 - n u)."""
    u = 2.0**-24
    return n * u / (1 - n * u)


def assert_within(actual: Array, expected: Array, bound: Array | float, what: str) -> None:
    """Each element within its bound of the float64 reference."""
    error = np.abs(actual.astype(np.float64) - expected)
    worst = float((error - bound).max()) if error.size else 0.0
    assert worst <= 0, f"{what}: {worst} beyond the bound, error {error.max()}"
