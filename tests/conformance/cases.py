"""ONNX's own node cases as static models: collecting, binding, running and comparing them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from xdsl.dialects.builtin import ModuleOp

from qfold.frontend.errors import FrontendError
from qfold.frontend.module import import_model
from qfold.interpreters import run

Array = npt.NDArray[Any]
Runner = Callable[[ModuleOp, Sequence[Array]], Sequence[Array]]
"""Runs a tensor-level module on its inputs."""

IMPORTED = """
    MatMul Gemm Conv MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool
    Softmax LogSoftmax LayerNormalization BatchNormalization InstanceNormalization GroupNormalization
    Gelu Erf Tanh Sigmoid Relu LeakyRelu PRelu Elu Selu Softplus ThresholdedRelu Clip HardSwish HardSigmoid
    Add Sub Mul Div Mod Pow Sqrt Exp Log Neg Abs Reciprocal Floor Ceil Round Sign Sum Mean Min Max
    Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf Where
    BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift Cast CastLike
    ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceSumSquare ArgMax ArgMin CumSum
    Reshape Flatten Transpose Squeeze Unsqueeze Identity Dropout Expand Concat Split Slice Tile Pad
    Gather GatherElements GatherND DepthToSpace SpaceToDepth Shape Size ConstantOfShape Range Constant
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearMatMul QLinearConv MatMulInteger ConvInteger
""".split()
"""What the importer promises, and all cases of which pass or are refused by name."""

BY_FUNCTION_BODY = """
    Attention CausalConvWithState Celu CenterCropPad FlexAttention MeanVarianceNormalization
    Mish NegativeLogLikelihoodLoss RMSNormalization RotaryEmbedding Shrink SoftmaxCrossEntropyLoss Softsign SwiGLU
    Swish
""".split()
"""Operators without an importer, which come in as the functions that ONNX defines them by."""

OPERATORS = [*IMPORTED, *BY_FUNCTION_BODY]

STATIC_INPUTS = frozenset(
    "shape axes axis starts ends steps pads split repeats ratio training_mode".split()
    + "x_scale x_zero_point y_scale y_zero_point w_scale w_zero_point".split()
    + "a_scale a_zero_point b_scale b_zero_point".split()
    + "start limit delta".split()
)
"""Formal inputs that have to be constant in a static network; the cases pass them like any other."""


_OLDEST_OPSET = 10


@dataclass(frozen=True)
class Case:
    """One case: a model whose static inputs are initializers, the other inputs, and the outputs that ONNX gives."""

    name: str
    operator: str
    model: ModelProto
    inputs: list[Array]
    outputs: list[Array]


@dataclass(frozen=True)
class Outcome:
    """What became of a case. `detail` says why it is refused or how it fails."""

    status: Literal["pass", "refused", "fail"]
    detail: str = ""


class NotATensor(Exception):
    """The case has inputs or outputs that are no tensors, or tensors of strings."""


def _array(value: Any) -> Array:
    """A case's datum as qfold holds it."""
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        raise NotATensor(f"a {type(value).__name__}")
    array = np.asarray(value)
    four_bits = {"int4": np.int8, "uint4": np.uint8}
    if array.dtype.name in four_bits:
        return array.astype(four_bits[array.dtype.name])
    return array


def _static_names(model: ModelProto) -> set[str]:
    """The graph inputs that some node reads as an input that has to be constant."""
    versions = {o.domain: o.version for o in model.opset_import}
    static: set[str] = set()
    for node in model.graph.node:
        try:
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue
        formals = [f.name for f in schema.inputs]
        static.update(
            n
            for n, f in zip(node.input, formals, strict=False)
            if f in STATIC_INPUTS or node.op_type == "ConstantOfShape"
        )
    return static


def _bind(name: str, operator: str, model: ModelProto, data: tuple[Any, Any]) -> Case:
    """A case with its static inputs made initializers."""
    bound = ModelProto()
    bound.CopyFrom(model)
    static = _static_names(model)
    inputs: list[Array] = []
    kept: list[onnx.ValueInfoProto] = []
    for value, datum in zip(model.graph.input, data[0], strict=True):
        if value.name in static or value.name in STATIC_INPUTS:
            tensor = datum
            if not isinstance(tensor, TensorProto):
                tensor = numpy_helper.from_array(np.asarray(datum), value.name)
            copy = TensorProto()
            copy.CopyFrom(tensor)
            copy.name = value.name
            bound.graph.initializer.append(copy)
        else:
            kept.append(value)
            inputs.append(_array(datum))
    del bound.graph.input[:]
    bound.graph.input.extend(kept)
    bound.ir_version = max(bound.ir_version, 4)
    for entry in bound.opset_import:
        if not entry.domain and entry.version < _OLDEST_OPSET:
            # A case declares the version in which its operator last changed.
            since = onnx.defs.get_schema(operator, _OLDEST_OPSET).since_version
            if since == entry.version:
                entry.version = _OLDEST_OPSET
    return Case(name, operator, bound, inputs, [_array(o) for o in data[1]])


def name_of(case: Case | tuple[str, str]) -> str:
    """The name that ONNX gives the case."""
    return case[0] if isinstance(case, tuple) else case.name


@cache
def collect() -> dict[str, list[Case | tuple[str, str]]]:
    """Operator -> its cases; a case that holds no tensors of numbers is `(name, what it holds)`.

    The cases whose operator ONNX also gives expanded into its function body belong to the operator.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        everything: list[Any] = collect_testcases(None)
    operators = {
        c.name: c.model.graph.node[0].op_type for c in everything if len(c.model.graph.node) == 1
    }
    found: dict[str, list[Case | tuple[str, str]]] = {o: [] for o in OPERATORS}
    for case in everything:
        base = case.name.split("_expanded")[0]
        operator = operators.get(base) or operators.get(case.name)
        if operator not in found:
            continue
        for data in case.data_sets:
            try:
                found[operator].append(_bind(case.name, operator, case.model, data))
            except NotATensor as reason:
                found[operator].append((case.name, str(reason)))
    return found


def run_interpreted(module: ModuleOp, inputs: Sequence[Array]) -> Sequence[Array]:
    """The outputs by qfold's interpreter."""
    return [np.asarray(o) for o in run(module, inputs)]


ROUNDED_REFERENCES: dict[str, float] = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-4,
}
"""Cases whose outputs ONNX gives as decimals, and one unit of their last digit."""


def difference(actual: Array, expected: Array, rounded: float = 0.0) -> str | None:
    """How two outputs differ, or None. Integers and bools are exact.

    f32: ONNX's references are themselves f32 computations, in another order; 2^-17 relative is 64 roundings, which covers
    the reductions of these small cases. The absolute term is that of the largest element, for sums that cancel.
    `rounded` is an absolute error of the reference.
    """
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, expected {expected.shape}"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype}, expected {expected.dtype}"
    if expected.dtype.kind != "f":
        wrong = int((actual != expected).sum())
        return f"{wrong} of {expected.size} elements differ" if wrong else None
    wide, wanted = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = float(finite.max()) if finite.size else 0.0
    roundings = 64 if expected.dtype == np.float32 else 128
    unit = float(np.finfo(expected.dtype).eps) / 2
    close = np.isclose(
        wide, wanted, rtol=roundings * unit, atol=max(8 * unit * scale, rounded), equal_nan=True
    )
    if close.all():
        return None
    with np.errstate(invalid="ignore"):
        worst = float(np.nanmax(np.abs(wide - wanted)))
    return f"{int((~close).sum())} of {expected.size} elements differ, by up to {worst:.3g}"


def outcome(case: Case | tuple[str, str], runner: Runner = run_interpreted) -> Outcome:
    """Import a case, run it and compare."""
    if isinstance(case, tuple):
        return Outcome("refused", f"the case is on {case[1]}")
    try:
        module = import_model(case.model, name=case.name)
    except FrontendError as error:
        return Outcome("refused", str(error))
    module.verify()
    outputs = runner(module, case.inputs)
    if len(outputs) != len(case.outputs):
        return Outcome("fail", f"{len(outputs)} outputs, expected {len(case.outputs)}")
    for index, (actual, expected) in enumerate(zip(outputs, case.outputs, strict=True)):
        found = difference(actual, expected, ROUNDED_REFERENCES.get(case.name, 0.0))
        if found is not None:
            return Outcome("fail", f"output {index}: {found}")
    return Outcome("pass")
