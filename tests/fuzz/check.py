"""What a case is checked for: ONNX's reference, every level in float64, and compiled C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from qfold.backend.run import build_module
from qfold.frontend import FrontendError, LoadedModel, load_model
from qfold.interpreters import Bounded, run
from qfold.tools.driver import (
    Compilation,
    Options,
    compile_loaded,
    import_tensor_module,
    make_context,
)
from qfold.tools.errors import user_sentence
from qfold.tools.verify import verify
from qfold.transforms.pipelines import kernel_pipeline, run_passes, tensor_pipeline
from tests.fuzz.graphs import Case
from tests.fuzz.mutate import mutate_bytes, mutate_model

Array = npt.NDArray[Any]

SANITIZE = (
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
"""Flags of builds in which every access and conversion is checked."""

REFERENCE_FACTOR = 4.0
"""ONNX's reference computes in float32 too, by other formulas: so many bounds it may be from float64."""
SAME = 1e-9
"""What passes may change in float64, relative to the largest element."""


class Finding(Exception):
    """Something that must not be: the text says what, `kind` in one word where."""

    def __init__(self, kind: str, text: str):
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Refused(Exception):
    """The model was refused by name."""


@dataclass(frozen=True)
class Reference:
    """A case at the tensor level, as imported, and its outputs in the domains."""

    loaded: LoadedModel
    inputs: list[Array]
    names: list[str]
    wide: Sequence[Array]
    bounded: Sequence[Bounded]


def gap(a: Array, b: Array) -> Array:
    """|a - b| per element; 0 for equal infinities and for two NaNs, infinite for one."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        gaps = np.where(same, 0.0, np.abs(x - y))
    return np.where(np.isnan(gaps), np.inf, gaps)


def largest(a: Array) -> float:
    x = np.abs(np.asarray(a, np.float64))
    return float(x[np.isfinite(x)].max(initial=0.0))


def complain(kind: str, name: str, actual: Array, expected: Array, allowed: Array | float) -> None:
    """`Finding` when an output differs in shape or by more than what is allowed."""
    if np.shape(actual) != np.shape(expected):
        raise Finding(kind, f"{name} has shape {np.shape(actual)}, expected {np.shape(expected)}")
    gaps = gap(actual, expected)
    beyond = ~(gaps <= allowed)
    if beyond.any():
        at = tuple(int(i) for i in np.argwhere(beyond)[0])
        room = float(np.broadcast_to(allowed, gaps.shape)[at])
        raise Finding(
            kind,
            f"{name}{list(at)} is {np.asarray(actual)[at]!r}, expected {np.asarray(expected)[at]!r} ± {room:.3g} "
            f"({int(beyond.sum())} of {gaps.size} elements)",
        )


def reference(case: Case, context: Context | None = None) -> tuple[ModuleOp, Reference]:
    """Import, run in all domains, and compare with ONNX's reference."""
    try:
        loaded = load_model(case.model.SerializeToString())
        module = import_tensor_module(loaded, Options())
    except FrontendError as error:
        raise Refused(str(error)) from error
    inputs = [case.feeds[v.name] for v in case.model.graph.input]
    names = [o.name for o in case.model.graph.output]
    exact = run(module, inputs, domain="exact")
    wide = run(module, inputs, domain="f64")
    bounded = run(module, inputs, domain="bounded")
    for name, own, double, limits in zip(names, exact, wide, bounded, strict=True):
        expected = case.values[name]
        assert isinstance(limits, Bounded) and isinstance(own, np.ndarray)
        if own.dtype != expected.dtype:
            raise Finding("reference", f"{name} is {own.dtype}, expected {expected.dtype}")
        assert isinstance(double, np.ndarray)
        complain(
            "domains", name, double, limits.value, 1e-12 * (largest(limits.value) + limits.bound)
        )
        complain("bound", name, own, limits.value, limits.bound)
        complain(
            "reference",
            name,
            limits.value,
            expected,
            REFERENCE_FACTOR * limits.bound + 1e-7 * (expected.dtype.kind == "f"),
        )
    return module, Reference(
        loaded,
        inputs,
        names,
        [np.asarray(w) for w in wide],
        [b for b in bounded if isinstance(b, Bounded)],
    )


def same_outputs(kind: str, ref: Reference, module: ModuleOp) -> None:
    """A rewritten module in float64: the same numbers, except where a float32 program may choose a side."""
    after = run(module, ref.inputs, domain="f64")
    for name, now, before, limits in zip(ref.names, after, ref.wide, ref.bounded, strict=True):
        assert isinstance(now, np.ndarray)
        allowed = np.maximum(SAME * (np.abs(before) + largest(before)), limits.bound)
        complain(kind, name, now, before, np.nan_to_num(allowed, nan=0.0, posinf=np.inf))


def check_levels(
    case: Case, *, fuse: bool = True, hoist: bool = True, verify_each: bool = True
) -> None:
    """Everything but C. Raises `Refused`, `Finding`, or whatever a mistake of ours raises."""
    context = make_context()
    module, ref = reference(case)
    run_passes(context, module, tensor_pipeline(fuse=fuse, hoist=hoist), verify_each=verify_each)
    same_outputs("tensor passes", ref, module)
    run_passes(context, module, kernel_pipeline("host"), verify_each=verify_each)
    same_outputs("kernel passes", ref, module)


def check_compiled(
    case: Case, *, fuse: bool = True, hoist: bool = True, target: str = "host"
) -> None:
    """Compile, and verify as `qfold verify` does: dispatches, outputs, object code, ONNX's reference."""
    _, ref = reference(case)
    compilation = compile_loaded(ref.loaded, Options(fuse=fuse, hoist=hoist, target=target))
    result = verify(compilation, ref.loaded, case.feeds)
    bad = [str(r) for r in (*result.dispatches, *result.outputs, *result.audit) if not r.ok]
    if bad:
        raise Finding("verify", "; ".join(bad[:3]))


def check_sanitized(case: Case, *, fuse: bool = True, hoist: bool = True) -> None:
    """The compiled network under the address and undefined-behaviour sanitizers."""
    _, ref = reference(case)
    compilation = compile_loaded(ref.loaded, Options(fuse=fuse, hoist=hoist))
    compare_outputs(case, ref, compilation, run_sanitized(compilation, case.feeds))


DAMAGED = 8
"""Damaged copies of a model."""


def check_damaged(case: Case, seed: int) -> None:
    """Copies of the model with bytes or parts changed are compiled to C, or refused in a sentence."""
    random = Random(seed)
    data = case.model.SerializeToString()
    refusal = ""
    for turn in range(DAMAGED):
        damaged = mutate_bytes(data, random) if turn % 2 else mutate_model(case.model, random)
        try:
            compile_loaded(load_model(damaged), Options())
        except Exception as error:
            sentence = user_sentence(error)
            if not sentence:
                error.add_note(f"damaged copy {turn}")
                raise
            refusal = sentence
    if refusal:
        raise Refused(refusal)


def run_sanitized(compilation: Compilation, feeds: Mapping[str, Array]) -> dict[str, Array]:
    with closing(
        build_module(compilation.kernels, extra_cflags=SANITIZE, native=False)
    ) as executable:
        return executable.run(feeds)


def compare_outputs(
    case: Case, ref: Reference, compilation: Compilation, outputs: Mapping[str, Array]
) -> None:
    """Outputs of C beside float64: within the bound of the module as it was imported, a few times over for hoisting."""
    for name, limits in zip(ref.names, ref.bounded, strict=True):
        room = 64 * limits.bound + np.where(limits.bound > 0, 1e-6 * largest(limits.value), 0.0)
        complain("compiled", name, outputs[name], limits.value, room)
