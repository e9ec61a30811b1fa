"""Modules built by hand, and running them at every level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
)
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from qfold.dialects.element_types import numpy_dtype
from qfold.interpreters import run
from qfold.ir.builder import ScalarBuilder, TensorBuilder
from qfold.ir.locations import name_location
from qfold.targets import HOST, Target
from qfold.transforms.qmm_bufferize import bufferize
from qfold.transforms.qmm_check_plan import QmmCheckPlanPass
from qfold.transforms.qmm_outline_kernels import QmmOutlineKernelsPass
from qfold.transforms.qmm_plan_memory import plan_memory
from qfold.transforms.qmm_select_kernels import select_kernels
from qfold.transforms.qmm_verify_buffers import QmmVerifyBuffersPass

Build = Callable[..., Sequence[SSAValue] | SSAValue]


def module(
    shapes: Sequence[Sequence[int]], build: Build, types: Sequence[Attribute] | None = None
) -> ModuleOp:
    """`@main` of what `build(builder, *inputs)` returns; inputs are f32 unless `types` says otherwise."""
    types = [f32] * len(shapes) if types is None else types
    block = Block(arg_types=[TensorType(t, s) for t, s in zip(types, shapes, strict=True)])
    builder = TensorBuilder(block, name_location("node"))
    results = build(builder, *block.args)
    results = [results] if isinstance(results, SSAValue) else list(results)
    builder.insert(func.ReturnOp(*results))

    def names(prefix: str, count: int) -> ArrayAttr[DictionaryAttr]:
        return ArrayAttr(
            [DictionaryAttr({"qmm.name": StringAttr(f"{prefix}{i}")}) for i in range(count)]
        )

    function = func.FuncOp(
        "main",
        (block.arg_types, [r.type for r in results]),
        Region(block),
        arg_attrs=names("x", len(shapes)),
        res_attrs=names("y", len(results)),
    )
    made = ModuleOp([function])
    made.verify()
    return made


def small_inputs(module_: ModuleOp, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Whole numbers of -4..4 for every input: float arithmetic on them is exact, in any order."""
    rng = np.random.default_rng(seed)
    arrays: list[np.ndarray[Any, Any]] = []
    for type_ in main(module_).function_type.inputs:
        assert isinstance(type_, TensorType)
        values = rng.integers(-4, 5, type_.get_shape())
        arrays.append(values.astype(numpy_dtype(type_.element_type)))
    return arrays


def main(module_: ModuleOp) -> func.FuncOp:
    for op in module_.body.block.ops:
        if isinstance(op, func.FuncOp) and op.sym_name.data == "main":
            return op
    raise AssertionError("no main")


def apply(module_: ModuleOp, *passes: ModulePass) -> ModuleOp:
    for step in passes:
        step.apply(Context(), module_)
    module_.verify()
    return module_


def bufferized(module_: ModuleOp, target: Target = HOST) -> ModuleOp:
    """Level 2, verified."""
    bufferize(module_, main(module_), target)
    return apply(module_, QmmVerifyBuffersPass())


def outlined(
    module_: ModuleOp, target: Target = HOST, join: bool = True, local_bytes: int = 0
) -> ModuleOp:
    """From level 2 to functions with kernels."""
    apply(module_, QmmOutlineKernelsPass(join=join, local_bytes=local_bytes))
    select_kernels(module_, target)
    return apply(module_, QmmVerifyBuffersPass())


def planned(module_: ModuleOp, target: Target = HOST) -> ModuleOp:
    """From functions to level 3, verified and checked."""
    plan_memory(main(module_), target)
    return apply(module_, QmmVerifyBuffersPass(), QmmCheckPlanPass())


def check_levels(
    module_: ModuleOp,
    inputs: Sequence[np.ndarray[Any, Any]] | None = None,
    target: Target = HOST,
) -> ModuleOp:
    """Run levels 1, 2 and 3 and compare them bit for bit; inputs must come out unchanged. Returns level 2."""
    inputs = small_inputs(module_) if inputs is None else inputs
    before = [x.copy() for x in inputs]
    expected = [np.array(v) for v in run(module_, inputs)]
    level2 = bufferized(module_.clone(), target)
    level3 = planned(outlined(level2.clone(), target), target)
    for level in (level2, level3):
        found = run(level, inputs)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
            assert np.asarray(a).dtype == b.dtype
        for a, b in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(a, b, err_msg="an input was overwritten")
    return level2


def ops(module_: ModuleOp, kind: type[Operation]) -> list[Any]:
    """The ops of one kind in main."""
    return [op for op in main(module_).body.block.ops if isinstance(op, kind)]


def copies(module_: ModuleOp) -> int:
    return len(ops(module_, memref.CopyOp))


def allocs(module_: ModuleOp) -> int:
    return len(ops(module_, memref.AllocOp))


def in_place(module_: ModuleOp) -> int:
    """How many generics read what they write."""
    return sum(op.outputs[0] in op.inputs for op in ops(module_, linalg.GenericOp))


def double(b: TensorBuilder, x: SSAValue) -> SSAValue:
    """x + x."""
    return b.elementwise([x], f32, lambda s, e: s(arith.AddfOp, e[0], e[0]))


def add(b: TensorBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.elementwise([x, y], f32, lambda s, e: s(arith.AddfOp, *e))


def total(b: TensorBuilder, x: SSAValue, axis: int, keepdims: bool = False) -> SSAValue:
    def body(s: ScalarBuilder, e: SSAValue, acc: SSAValue) -> SSAValue:
        return s(arith.AddfOp, acc, e)

    return b.reduce(x, [axis], 0.0, body, keepdims=keepdims)


def dense_only() -> Target:
    """The host with kernels that take no strides."""
    return replace(
        HOST,
        kernels=tuple(
            k if k.operands is None else replace(k, strided=frozenset()) for k in HOST.kernels
        ),
    )
