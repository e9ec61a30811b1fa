"""The passes of qfold, one per file, each imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

_TENSOR_LEVEL: dict[str, str] = {
    "convert-qmm-to-linalg": "ConvertQmmToLinalgPass",
    "qmm-canonicalize": "QmmCanonicalizePass",
    "qmm-check-accumulators": "QmmCheckAccumulatorsPass",
    "qmm-dynamic-activations": "QmmDynamicActivationsPass",
    "qmm-expand-zero-points": "QmmExpandZeroPointsPass",
    "qmm-fold-constants": "QmmFoldConstantsPass",
    "qmm-fuse-dequant": "QmmFuseDequantPass",
    "qmm-fuse-elementwise": "QmmFuseElementwisePass",
    "qmm-fuse-epilogue": "QmmFuseEpiloguePass",
    "qmm-fuse-quantized": "QmmFuseQuantizedPass",
    "qmm-hoist-zero-point": "QmmHoistZeroPointPass",
    "qmm-linalg-cse": "QmmLinalgCsePass",
    "qmm-lower-quantization": "QmmLowerQuantizationPass",
    "qmm-nhwc-inputs": "QmmNhwcInputsPass",
    "qmm-quantized-io": "QmmQuantizedIoPass",
    "qmm-raise-dequant": "QmmRaiseDequantPass",
    "qmm-sink-dequantize": "QmmSinkDequantizePass",
    "qmm-requantize-in-integers": "QmmRequantizeInIntegersPass",
    "qmm-turn-weights": "QmmTurnWeightsPass",
    "qmm-unsigned-weights": "QmmUnsignedWeightsPass",
}
"""Pass name -> class. The module is the pass name with underscores."""

_BUFFER_LEVEL: dict[str, str] = {
    "qmm-bufferize": "QmmBufferizePass",
    "qmm-check-plan": "QmmCheckPlanPass",
    "qmm-outline-kernels": "QmmOutlineKernelsPass",
    "qmm-pack-weights": "QmmPackWeightsPass",
    "qmm-plan-memory": "QmmPlanMemoryPass",
    "qmm-plan-scratchpad": "QmmPlanScratchpadPass",
    "qmm-select-kernels": "QmmSelectKernelsPass",
    "qmm-split-work": "QmmSplitWorkPass",
    "qmm-tile-to-l1": "QmmTileToL1Pass",
    "qmm-verify-buffers": "QmmVerifyBuffersPass",
}
"""As `_TENSOR_LEVEL`, for the passes from bufferisation on."""


_RISCV_LEVEL: dict[str, str] = {
    "riscv-pulp-desugar": "RiscvPulpDesugarPass",
}
"""As `_TENSOR_LEVEL`, for passes on generated kernels."""


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Pass name -> a function that imports and returns the pass class."""

    def factory(name: str, class_name: str) -> Callable[[], type[ModulePass]]:
        def load() -> type[ModulePass]:
            module = import_module(f"qfold.transforms.{name.replace('-', '_')}")
            return getattr(module, class_name)

        return load

    passes = _TENSOR_LEVEL | _BUFFER_LEVEL | _RISCV_LEVEL
    return {name: factory(name, class_name) for name, class_name in sorted(passes.items())}
