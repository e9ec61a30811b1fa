"""Building small modules at the tensor level, running passes on them, and comparing what they compute before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerType, ModuleOp, TensorType, UnknownLoc, f32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import PassPipeline

from qfold.dialects import qmm
from qfold.dialects.element_types import integer_range, is_float, numpy_dtype
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.interpreters import run
from qfold.ir.builder import TensorBuilder
from qfold.ir.locations import name_location
from qfold.transforms import get_all_passes

Array = npt.NDArray[Any]
Build = Callable[..., SSAValue | Sequence[SSAValue]]

TENSOR_LEVEL = (
    "qmm-raise-dequant",
    "qmm-canonicalize",
    "qmm-fuse-dequant",
    "qmm-hoist-zero-point",
    "qmm-lower-quantization",
    "qmm-fold-constants",
    "qmm-linalg-cse",
    "qmm-fuse-epilogue",
    "qmm-fuse-elementwise",
    "qmm-fuse-epilogue",
    "qmm-canonicalize",
    "convert-qmm-to-linalg",
)


class Node:
    """A builder whose next ops come from the ONNX node of a name."""

    def __init__(self, block: Block):
        self.block = block

    def __call__(self, name: str) -> TensorBuilder:
        return TensorBuilder(self.block, name_location(name))


def module(build: Build, *shapes: Sequence[int], types: Sequence[Attribute] = ()) -> ModuleOp:
    """`@main` of f32 inputs (or of the `types`), computing what `build(node, *inputs)` returns."""
    elements = [*types, *[f32] * (len(shapes) - len(types))]
    block = Block(arg_types=[TensorType(t, s) for t, s in zip(elements, shapes, strict=True)])
    results = build(Node(block), *block.args)
    values = [results] if isinstance(results, SSAValue) else list(results)
    TensorBuilder(block, name_location("return")).insert(func.ReturnOp(*values))
    function = func.FuncOp(
        "main", ([a.type for a in block.args], [v.type for v in values]), Region(block)
    )
    function.location = name_location("main")
    made = ModuleOp([function])
    made.verify()
    return made


def inputs_for(made: ModuleOp, seed: int = 0) -> list[Array]:
    """Random inputs: normal floats, integers of -3..3."""
    rng = np.random.default_rng(seed)
    function = made.body.block.first_op
    assert isinstance(function, func.FuncOp)
    arrays: list[Array] = []
    for type_ in function.function_type.inputs:
        assert isinstance(type_, TensorType)
        dtype = numpy_dtype(type_.element_type)
        if is_float(type_.element_type):
            arrays.append(rng.standard_normal(type_.get_shape()).astype(dtype))
        else:
            arrays.append(rng.integers(-3, 4, type_.get_shape()).astype(dtype))
    return arrays


def ops(made: ModuleOp) -> list[Operation]:
    """The ops of the functions, in order, without those inside of bodies."""
    return [
        op for f in made.body.block.ops if isinstance(f, func.FuncOp) for op in f.body.block.ops
    ]


def names(made: ModuleOp) -> Counter[str]:
    """How often each op occurs, those inside of bodies not counted."""
    return Counter(op.name for op in ops(made))


def only(made: ModuleOp, kind: type[Any]) -> Any:
    """The one op of a kind."""
    (found,) = [op for op in ops(made) if isinstance(op, kind)]
    return found


def apply(made: ModuleOp, *passes: str) -> ModuleOp:
    """Run passes, `name` or `name{option=value}`; each must leave a module that verifies, in which every op still names where it
    comes from."""
    for name in passes:
        PassPipeline.parse_spec(get_all_passes(), name).apply(Context(), made)
        made.verify()
        for op in made.walk():
            if not isinstance(op, ModuleOp | func.ReturnOp):
                assert not isinstance(op.location, UnknownLoc), f"{name} lost the location of {op}"
    return made


def assert_same(before: Sequence[Any], after: Sequence[Any], rtol: float = 1e-12) -> None:
    """Outputs agree relative to the largest element of each; integers do exactly."""
    assert len(before) == len(after)
    for x, y in zip(before, after, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape
        if x.dtype.kind != "f":
            assert x.dtype == y.dtype or same_bits(x, y)
            assert x.dtype != y.dtype or np.array_equal(x, y)
            continue
        finite = np.isfinite(x)
        assert np.array_equal(finite, np.isfinite(y))
        scale = np.abs(x[finite]).max(initial=1e-30)
        assert np.abs(x - y)[finite].max(initial=0.0) <= rtol * scale


def same_bits(x: Array, y: Array) -> bool:
    """Whether unsigned integers are those bits read as signed ones, of as many bits as the values take."""
    width = 4 if x.size and x.max() < 16 and y.min() >= -8 else 8 * x.dtype.itemsize
    mask = (1 << width) - 1
    return np.array_equal(x.astype(np.int64) & mask, y.astype(np.int64) & mask)


def as_declared(made: ModuleOp, given: Sequence[Array]) -> list[Array]:
    """The inputs as the function now takes them: a pass may have dropped the signs from its types."""
    function = made.body.block.first_op
    assert isinstance(function, func.FuncOp)
    types = [cast(TensorType[Attribute], t) for t in function.function_type.inputs]
    return [x.view(numpy_dtype(t.element_type)) for x, t in zip(given, types, strict=True)]


def check(made: ModuleOp, *passes: str, inputs: Sequence[Array] | None = None) -> ModuleOp:
    """Run passes, and the module in float64 before and after each: nothing it computes may change."""
    given = inputs_for(made) if inputs is None else inputs
    before = run(made, given, domain="f64")
    for name in passes:
        apply(made, name)
        assert_same(before, run(made, as_declared(made, given), domain="f64"))
    return made


def integers(storage: IntegerType, shape: Sequence[int], seed: int = 0) -> Array:
    """Integers over the whole range of a storage type, its ends included."""
    rng = np.random.default_rng(seed)
    low, high = integer_range(storage)
    array = rng.integers(low, high + 1, shape)
    if array.size > 1:
        array.reshape(-1)[:2] = low, high
    return array.astype(numpy_dtype(storage))


def quantization(
    storage: IntegerType,
    shape: Sequence[int],
    granularity: str,
    axis: int = 0,
    block: int = 1,
    zero: str = "mixed",
    seed: int = 0,
) -> QuantAttr:
    """Parameters for a tensor of `shape`; `zero`: "none", "low", "high", "middle" or "mixed" (over the whole range)."""
    rng = np.random.default_rng(seed + 1)
    low, high = integer_range(storage)
    extents: tuple[int, ...] = ()
    if granularity == "axis":
        extents = (shape[axis],)
    elif granularity == "block":
        extents = tuple(-(-n // block) if d == axis else n for d, n in enumerate(shape))
    scales = (0.5 + rng.random(extents)).astype(np.float32) / 64
    fixed = {"none": 0, "low": low, "high": high, "middle": (low + high + 1) // 2}
    zeros = np.full(extents, fixed[zero]) if zero in fixed else rng.integers(low, high + 1, extents)
    return QuantAttr.get(
        storage,
        scales,
        zeros,
        axis=None if granularity == "tensor" else axis,
        block_size=block if granularity == "block" else None,
    )


def weight(
    node: Node, storage: IntegerType, shape: Sequence[int], quant: QuantAttr, seed: int = 0
) -> SSAValue:
    """A dequantised constant."""
    constant = WeightAttr.from_array(integers(storage, shape, seed), storage)
    value = node("w").insert(qmm.ConstantOp(constant)).result
    return node("DequantizeLinear").insert(qmm.DequantizeOp(value, quant)).result
