"""The arrays that a network reads and gives: `.npz` files, checks against the network's own names, and seeded random inputs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, BlockArgument, SSAValue

from qfold.dialects import qmm
from qfold.dialects.contraction import shape_of
from qfold.dialects.element_types import bit_width, integer_range, is_float, numpy_dtype
from qfold.dialects.qmm import QuantAttr
from qfold.ir.builder import element_type
from qfold.ir.ports import PortFacts
from qfold.tools.errors import ToolError
from qfold.tools.whole_file import whole_file

Array = npt.NDArray[Any]

_POSITIONAL = re.compile(r"(arr|input|output)_(\d+)")
"""Keys that say a position and not a name: what `numpy.savez` gives to unnamed arrays, and what test suites write."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a network."""

    name: str
    element_type: Attribute
    shape: tuple[int, ...]
    quant: QuantAttr | None = None
    """What its integers stand for: arrays of floats are taken for reals, and quantised."""
    layout: str | None = None
    """`NHWC` or `NLC` where that is not what the model has."""
    note: str | None = None
    """Why it is a float where integers were asked for."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of arrays that hold it."""
        return numpy_dtype(self.element_type)

    def __str__(self) -> str:
        text = f"{self.name}: {self.dtype} {list(self.shape)}"
        if self.layout is not None:
            text += f" {self.layout}"
        if self.quant is not None:
            text += f", or reals: scale {self.quant.scales}, zero point {self.quant.zero_points}"
        return text


def main_function(module: ModuleOp) -> func.FuncOp:
    """The function `@main` of a module. `ToolError` when there is none."""
    for op in module.ops:
        if isinstance(op, func.FuncOp) and op.sym_name.data == "main":
            return op
    raise ToolError("the module has no function @main")


def _specs(
    types: Sequence[Attribute], attributes: Sequence[DictionaryAttr] | None, prefix: str
) -> list[TensorSpec]:
    specs: list[TensorSpec] = []
    for index, type_ in enumerate(types):
        if not isinstance(type_, TensorType):
            raise ToolError(f"{prefix} {index} of @main is not a tensor: {type_}")
        type_ = cast(TensorType[Attribute], type_)
        facts = PortFacts.of(attributes[index].data if attributes else {})
        name = f"{prefix}_{index}" if facts.name is None else facts.name
        specs.append(
            TensorSpec(
                name, type_.element_type, type_.get_shape(), facts.quant, facts.layout, facts.note
            )
        )
    return specs


def input_specs(module: ModuleOp) -> list[TensorSpec]:
    """The inputs of a tensor-level module, in order."""
    main = main_function(module)
    attributes = None if main.arg_attrs is None else main.arg_attrs.data
    return _specs(main.function_type.inputs.data, attributes, "input")


def output_specs(module: ModuleOp) -> list[TensorSpec]:
    """The outputs of a tensor-level module, in order."""
    main = main_function(module)
    attributes = None if main.res_attrs is None else main.res_attrs.data
    return _specs(main.function_type.outputs.data, attributes, "output")


def load_npz(path: Path) -> dict[str, Array]:
    """The arrays of an `.npz` file (or the one array of an `.npy` file, as `arr_0`). `ToolError` when it is not one."""
    if not path.is_file():
        raise ToolError(f"{path} is not a file")
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"arr_0": cast(Array, loaded)}
        with loaded:
            return {key: np.asarray(loaded[key]) for key in loaded.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ToolError(f"{path} does not read as an .npz file of plain arrays: {error}") from error


def save_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes an `.npz` file whole, or not at all."""
    with whole_file(path) as stream:
        np.savez(stream, **cast(dict[str, Any], arrays))


def match_arrays(
    arrays: Mapping[str, Array],
    specs: Sequence[TensorSpec],
    source: str,
    *,
    defaults: Mapping[str, Array] | None = None,
    by_position: bool = False,
) -> dict[str, Array]:
    """The array for each spec, of its dtype and shape, in the order of `specs`.

    By name; by position when every key is numbered (`arr_0`, `input_0`; more arrays than specs are left unread), or, with
    `by_position`, when no key is a name and the counts agree. Specs without an array take that of `defaults`. `ToolError` lists
    what is expected beside what is wrong.
    """
    names = [s.name for s in specs]
    known = defaults or {}
    keys = list(arrays)
    numbers = [m and (m[1], int(m[2])) for m in map(_POSITIONAL.fullmatch, keys)]
    if not set(keys) & set(names) and keys:
        required = [n for n in names if n not in known]
        prefixes = {n and n[0] for n in numbers}
        if None not in numbers and len(prefixes) == 1 and len(keys) >= len(required):
            order = sorted(keys, key=lambda k: int(k.rsplit("_", 1)[1]))
            arrays = {n: arrays[k] for n, k in zip(names, order, strict=False)}
        elif by_position and len(keys) == len(names):
            arrays = dict(zip(names, arrays.values(), strict=True))
    problems = [f"there is no '{k}'" for k in arrays if k not in names]
    matched: dict[str, Array] = {}
    for spec in specs:
        array = arrays.get(spec.name, known.get(spec.name))
        if array is None:
            problems.append(f"'{spec.name}' is missing")
            continue
        if array.shape != spec.shape:
            problems.append(f"'{spec.name}' has shape {list(array.shape)}")
            continue
        converted = _as_dtype(array, spec)
        if converted is None:
            problems.append(f"'{spec.name}' holds {array.dtype} that {spec.dtype} cannot")
        else:
            matched[spec.name] = converted
    if problems:
        expected = "".join(f"\n  {s}" for s in specs)
        raise ToolError(f"{source}: {'; '.join(problems)}. Expected:{expected}")
    return matched


def _as_dtype(array: Array, spec: TensorSpec) -> Array | None:
    """The same numbers in the dtype of `spec`, or None when some number would change.

    Floats for integers that stand for reals are quantised as docs/numerics.md says, from the nearest f32.
    """
    if array.dtype.kind not in "biuf":
        return None
    if array.dtype.kind == "f" and spec.quant is not None:
        return np.ascontiguousarray(spec.quant.quantize(array))
    with np.errstate(all="ignore"):
        converted = np.ascontiguousarray(array.astype(spec.dtype))
    if array.dtype != spec.dtype:
        wide = array.astype(np.float64) if spec.dtype.kind == "f" else array
        if not np.array_equal(converted, wide, equal_nan=spec.dtype.kind == "f"):
            return None
    if not is_float(spec.element_type) and bit_width(spec.element_type) == 4:
        low, high = integer_range(spec.element_type)
        if converted.size and (converted.min() < low or converted.max() > high):
            return None
    return converted


def _index_limit(argument: SSAValue) -> int | None:
    """The number of rows of the smallest table that `argument` indexes, looked for through views of it."""
    limits: list[int] = []
    pending = [argument]
    seen: set[SSAValue] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            op = use.operation
            if isinstance(op, qmm.DequantGatherOp):
                limits.append(op.weight.shape[0])
            elif isinstance(op, tensor.ExtractOp):
                pass
            elif isinstance(
                op, tensor.CollapseShapeOp | tensor.ExpandShapeOp | tensor.ExtractSliceOp
            ):
                pending.extend(op.results)
            else:
                limits.extend(_extracted_from(op, use.index, pending))
    return min(limits, default=None)


def _extracted_from(op: Any, operand: int, pending: list[SSAValue]) -> Iterator[int]:
    """Lengths of the tensors that a `linalg.generic` indexes by its operand number `operand`."""
    if op.name != "linalg.generic" or not op.regions:
        return
    element: SSAValue = op.regions[0].block.args[operand]
    derived: set[SSAValue] = {element}
    computes = False
    for inner in op.regions[0].block.ops:
        if isinstance(inner, tensor.ExtractOp):
            for axis, index in enumerate(inner.indices):
                if index in derived:
                    yield shape_of(inner.tensor)[axis]
        elif any(o in derived for o in inner.operands):
            derived.update(inner.results)
            computes = computes or inner.name in ("arith.sitofp", "arith.uitofp")
    if not computes and not is_float(element_type(op.results[0])):
        pending.extend(op.results)


def random_inputs(module: ModuleOp, seed: int = 0) -> dict[str, Array]:
    """Inputs for a tensor-level module, the same for the same seed.

    Floats are standard normal. Integers that index a table stay within it. Other integers of up to 16 bits take their whole
    range; wider ones are masks and counts more often than not: 0 or 1, with a 1 first along the last dimension.
    """
    generator = np.random.default_rng(seed)
    arguments: Sequence[BlockArgument] = main_function(module).body.block.args
    arrays: dict[str, Array] = {}
    for argument, spec in zip(arguments, input_specs(module), strict=True):
        if is_float(spec.element_type):
            array = generator.standard_normal(spec.shape).astype(spec.dtype)
        else:
            low, high = integer_range(spec.element_type)
            limit = _index_limit(argument)
            if limit is not None:
                low, high = 0, max(min(high, limit - 1), 0)
            elif bit_width(spec.element_type) > 16:
                low, high = 0, 1
            array = generator.integers(low, high, spec.shape, np.int64, endpoint=True)
            array = array.astype(spec.dtype)
            if limit is None and high == 1 and array.ndim and array.shape[-1]:
                array[..., 0] = 1
        arrays[spec.name] = array
    return arrays
