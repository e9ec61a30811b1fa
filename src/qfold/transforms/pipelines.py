"""The passes in order: tensor level to the kernel level that the backend prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from qfold.dialects.qkernel import PackedQuantMatmulOp
from qfold.transforms import get_all_passes
from qfold.transforms.target_option import target_option

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

_BOUNDARIES = frozenset({"qmm-bufferize", "qmm-plan-memory"})
"""Passes after which a level is complete, and verified."""

_LOCAL_BYTES = 16 * 1024
"""What loop nests of one function may hand to each other on the stack, where one core does all the work."""


def _make(name: str, **options: Any) -> ModulePass:
    return get_all_passes()[name]()(**options)


def tensor_pipeline(
    target: str = "host",
    *,
    fuse: bool = True,
    hoist: bool = True,
    dynamic_activations: bool = False,
) -> tuple[ModulePass, ...]:
    """The passes on tensors. `fuse`: contractions of integers, and dequantising inside of the others; `hoist`: take zero points
    out of their loops where that is cheaper on the target; `dynamic_activations`: quantise what dequantising contractions read,
    an approximation (nothing without `fuse`)."""
    names = ["qmm-raise-dequant", "qmm-canonicalize"]
    if fuse:
        # Products of integers first: what is left has floats on one side.
        names += ["qmm-fuse-quantized", "qmm-fuse-dequant"]
        if dynamic_activations:
            names.append("qmm-dynamic-activations")
        if hoist:
            names.append("qmm-hoist-zero-point")
        if target_option(target).inserts_weights:
            names.append("qmm-unsigned-weights")
    if not target_option(target).has_f64:
        names.append("qmm-requantize-in-integers")
    names += [
        "qmm-lower-quantization",
        "qmm-fold-constants",
        "qmm-canonicalize",
        "qmm-linalg-cse",
        # Before the epilogues, so that contractions store the integers.
        "qmm-sink-dequantize",
        "qmm-fuse-epilogue",
        "qmm-fuse-elementwise",
        # What has become one generic, such as a Gelu, fits an epilogue now.
        "qmm-fuse-epilogue",
        "qmm-canonicalize",
        "qmm-linalg-cse",
        "qmm-check-accumulators",
    ]
    if target_option(target).kernels_of(PackedQuantMatmulOp.name):
        names += ["qmm-expand-zero-points", "qmm-linalg-cse"]
    if target_option(target).unturned_rows is not None:
        names.append("qmm-turn-weights")
    with_target = (
        "qmm-hoist-zero-point",
        "qmm-unsigned-weights",
        "qmm-requantize-in-integers",
        "qmm-expand-zero-points",
        "qmm-turn-weights",
    )
    options = {name: {"target": target} for name in with_target}
    return tuple(_make(name, **options.get(name, {})) for name in names)


def kernel_pipeline(target: str = "host", *, check: bool = True) -> tuple[ModulePass, ...]:
    """The passes from tensors to planned kernels for a target; `check` runs the independent checkers too."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("qmm-bufferize", {"target": target}),
        ("qmm-verify-buffers", {}),
    ]
    if target_option(target).kernels_of(PackedQuantMatmulOp.name):
        steps.append(("qmm-pack-weights", {"target": target}))
    # One core has a stack for rows; cores of a cluster have little, and tiles in L1.
    local_bytes = 0 if target_option(target).is_cluster else _LOCAL_BYTES
    cores = target_option(target).cores
    steps.append(("qmm-outline-kernels", {"local_bytes": local_bytes, "cores": cores}))
    if target_option(target).is_cluster:
        on_cluster = ("qmm-tile-to-l1", "qmm-plan-scratchpad", "qmm-split-work")
        steps += [(name, {"target": target}) for name in on_cluster]
        steps.append(("qmm-verify-buffers", {}))
    steps += [
        ("qmm-select-kernels", {"target": target}),
        ("qmm-plan-memory", {"target": target}),
        ("qmm-check-plan", {}),
    ]
    checks = ("qmm-verify-buffers", "qmm-check-plan")
    return tuple(_make(name, **options) for name, options in steps if check or name not in checks)


def compile_pipeline(
    target: str = "host",
    *,
    fuse: bool = True,
    hoist: bool = True,
    dynamic_activations: bool = False,
    check: bool = True,
) -> tuple[ModulePass, ...]:
    """All passes from what the frontend makes to what the backend prints."""
    return (
        *tensor_pipeline(target, fuse=fuse, hoist=hoist, dynamic_activations=dynamic_activations),
        *kernel_pipeline(target, check=check),
    )


def run_passes(
    ctx: Context,
    module: ModuleOp,
    passes: Iterable[ModulePass],
    *,
    verify_each: bool = False,
    on_pass: Callable[[str, float], None] | None = None,
) -> None:
    """Run passes on `module`, verifying it where a level ends, or after each pass with `verify_each`.

    `on_pass` hears of each pass and the seconds that it took. Raises what the passes and verifiers raise.
    """
    for step in passes:
        start = perf_counter()
        step.apply(ctx, module)
        if on_pass is not None:
            on_pass(step.name, perf_counter() - start)
        if verify_each or step.name in _BOUNDARIES:
            module.verify()
