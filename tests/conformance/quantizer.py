"""`python -m tests.conformance.quantizer [MODEL.onnx ...]`: onnxruntime's quantiser in all of its ways, and who agrees with whom.

Each network is quantised in each way, and runs three times: in onnxruntime without its graph optimisations (which change
quantised graphs), as it is imported, and fused to integer arithmetic. Without arguments the networks are
`tests.networks.onnxruntime_quantizer.NETWORKS`; a model's inputs are those of `inputs.npz` beside it, or random.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from xdsl.dialects.builtin import ModuleOp

from qfold.dialects import qmm
from qfold.frontend.errors import FrontendError
from qfold.interpreters.run import run
from qfold.tools.driver import make_context
from qfold.transforms.pipelines import run_passes, tensor_pipeline
from tests.frontend.helpers import Array, import_checked, ops_of
from tests.frontend.quantized import onnxruntime
from tests.networks.onnxruntime_quantizer import METHODS, NETWORKS, Method, Network, applicable

FAR = 0.02
"""How many of the elements may be a step away: those whose real value lies within rounding of a tie."""


@dataclass(frozen=True)
class Agreement:
    """How far outputs are from onnxruntime's."""

    far: float
    """Share of elements that differ by more than the rounding of floats."""
    steps: float
    """Largest difference in steps of the last quantisation; where there is none, in parts of the bound that rounding has."""

    @property
    def agrees(self) -> bool:
        """Whether what differs does so by at most one step, and little does."""
        return self.far <= FAR and self.steps <= 1


def last_step(module: ModuleOp) -> float:
    """The scale of the quantisation whose result, dequantised, is an output; 0 where there is none."""
    return max(
        [
            float(op.quant.scales)
            for op in ops_of(module, qmm.DequantizeOp)
            if any(use.operation.name == "func.return" for use in op.result.uses)
        ],
        default=0.0,
    )


def agreement(got: Iterable[Any], want: Iterable[Array], step: float) -> Agreement:
    """Compare outputs. Floats are equal within 1e-5 of the largest."""
    share, steps = 0.0, 0.0
    for a, b in zip(got, want, strict=True):
        bound = np.float32(1e-5) * np.abs(b).max()
        difference = np.abs(np.asarray(a) - b)
        share = max(share, float((difference > bound).mean()))
        excess = float(difference.max() - bound)
        if excess > 0:
            steps = max(steps, excess / step if step else 1 + excess / float(bound))
    return Agreement(share, steps)


def imported_and_compared(model: ModelProto, feeds: Mapping[str, Array]) -> ModuleOp:
    """Import a quantised model and hold it against onnxruntime."""
    module = import_checked(model)
    want = onnxruntime(model, feeds)
    found = agreement(run(module, list(feeds.values())), want, last_step(module))
    assert found.agrees, found
    return module


def judged(method: Method, network: Network) -> tuple[str, str]:
    """(verdict, figures or reason) of one network, quantised in one way."""
    try:
        model = method.apply(network)
        want = onnxruntime(model, network.inputs)
    except Exception as error:  # Whatever onnxruntime raises: there is nothing to compare with.
        return "no reference", f"onnxruntime: {str(error).splitlines()[0][:120]}"
    try:
        found = compared(model, network.inputs, want)
    except FrontendError as error:
        return "refused", str(error)
    texts = [f"{a.steps:5.2f} steps {a.far:5.1%}" for a in found]
    verdict = "agree" if all(a.agrees for a in found) else "DISAGREE"
    return verdict, f"{texts[0]:>18}  {texts[1]:>18}"


def compared(
    model: ModelProto, feeds: Mapping[str, Array], want: Iterable[Array]
) -> tuple[Agreement, Agreement]:
    """(as imported, fused) against the outputs `want`."""
    module = import_checked(model)
    step = last_step(module)
    inputs, want = list(feeds.values()), list(want)
    imported = agreement(run(module, inputs), want, step)
    run_passes(make_context(), module, tensor_pipeline())
    return imported, agreement(run(module, inputs), want, step)


def _as_matmul(gemm: onnx.NodeProto, model: ModelProto) -> list[onnx.NodeProto]:
    """A Gemm of constant weights as MatMul and Add: exporters write it for operands of rank 3 too, which is no valid ONNX."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in gemm.attribute}
    weight = next((t for t in model.graph.initializer if t.name == gemm.input[1]), None)
    if (
        weight is None
        or attributes.get("transA")
        or {attributes.get(k, 1.0) for k in ("alpha", "beta")} != {1.0}
    ):
        return [gemm]
    name = gemm.input[1]
    if attributes.get("transB"):
        name = f"{gemm.input[1]}_transposed_for_{gemm.output[0]}"
        turned = np.ascontiguousarray(onnx.numpy_helper.to_array(weight).T)
        model.graph.initializer.append(onnx.numpy_helper.from_array(turned, name))
    product = f"{gemm.output[0]}_product"
    bias = gemm.input[2:3]
    out = product if bias else gemm.output[0]
    nodes = [onnx.helper.make_node("MatMul", [gemm.input[0], name], [out], f"{gemm.name}_matmul")]
    if bias:
        nodes.append(
            onnx.helper.make_node("Add", [product, *bias], gemm.output, f"{gemm.name}_add")
        )
    return nodes


def _to_opset_17(model: ModelProto) -> None:
    """Scales per channel need opset 13. (ONNX's own converter stops at LayerNormalization.)"""
    opset = next(o for o in model.opset_import if not o.domain)
    if opset.version >= 13:
        return
    opset.version = 17
    model.ir_version = 8
    for i, n in enumerate(model.graph.node):
        axes = next((a for a in n.attribute if a.name == "axes"), None)
        if n.op_type in ("Squeeze", "Unsqueeze", "ReduceSum") and axes is not None:
            value = np.array(axes.ints, np.int64)
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, f"axes_{i}"))
            n.input.append(f"axes_{i}")
            n.attribute.remove(axes)


def loaded(path: Path) -> Network:
    """A float model and its inputs."""
    model = onnx.load(path)
    nodes = [
        part
        for n in model.graph.node
        for part in (_as_matmul(n, model) if n.op_type == "Gemm" else [n])
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    used = {name for n in nodes for name in n.input}
    kept = [t for t in model.graph.initializer if t.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    _to_opset_17(model)
    beside = path.with_name("inputs.npz")
    initial = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in initial]
    if beside.exists():
        with np.load(beside) as arrays:
            values = [arrays[k] for k in arrays.files]
    else:
        rng = np.random.default_rng(0)
        shapes = [[d.dim_value or 1 for d in v.type.tensor_type.shape.dim] for v in inputs]
        values = [rng.standard_normal(s) for s in shapes]
    feeds = {v.name: np.asarray(a, np.float32) for v, a in zip(inputs, values, strict=False)}
    return Network(model, feeds)


def main(paths: list[str]) -> int:
    networks = {str(p): loaded(Path(p)) for p in paths} or NETWORKS
    totals: Counter[str] = Counter()
    print(f"{'network':24} {'quantised':44} {'as imported':>18}  {'fused':>18}")
    for name, network in networks.items():
        short = Path(name).parent.name or name
        for method in METHODS:
            if not applicable(name, method):
                continue
            verdict, texts = judged(method, network)
            totals[verdict] += 1
            print(f"{short:24} {method!s:44} {texts}  {verdict}")
    print(", ".join(f"{count} {what}" for what, count in sorted(totals.items())))
    return int(totals["DISAGREE"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
