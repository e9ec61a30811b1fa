"""Compares a QDQ model with onnxruntime tensor by tensor: does each quantised tensor follow from those before it?

    python scripts/compare_steps.py MODEL [--dim NAME=N] [--inputs NPZ] [--seed SEED]

Over many quantised layers two correct programs drift apart: a value that lies next to a tie between two integers falls to either
side, and the next layer starts from another integer. What the outputs differ by says little, then. So the graph is cut at each
QuantizeLinear. The piece that makes one quantised tensor gets onnxruntime's integers (optimisations off) as its inputs, is
compiled to fused tensor-level IR, and interpreted. Where an element differs from onnxruntime's, the same piece in float64 is the
witness: the real number that was to be rounded. A difference is explained if the two integers are neighbours, and the tie between
them is no farther from the real number than float32 was, in onnxruntime or in the piece as the file has it. Exit code 1 if one is
not.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper
from xdsl.context import Context

from qfold.frontend import import_model
from qfold.frontend.onnx_frontend import parse_dims
from qfold.interpreters.run import run
from qfold.transforms.pipelines import run_passes, tensor_pipeline

Array = npt.NDArray[Any]
QUANTIZE = "QuantizeLinear"


@dataclass(frozen=True)
class Step:
    """How one quantised tensor compares: in elements, and in steps of its scale."""

    name: str
    elements: int
    differ: int
    """From onnxruntime."""
    ours_exact: int
    """Of these, elements at which the compiled piece has the real number rounded correctly."""
    theirs_exact: int
    """And those at which onnxruntime has."""
    largest: int
    tie: float
    """The distance of a real number from a tie, at the element that differs and is least explained."""
    error: float
    """What float32 was off by there, in onnxruntime or in the piece as the file has it."""

    @property
    def explained(self) -> bool:
        """Whether every difference is one step, across a tie that float32 could not tell from the number."""
        return self.largest <= 1 and self.tie <= self.error


def every_tensor(model: ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """All tensors of the graph as onnxruntime computes them without optimisations; constants and inputs too."""
    copy = ModelProto()
    copy.CopyFrom(model)
    known = {o.name for o in copy.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                copy.graph.output.append(helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options)
    names = [o.name for o in session.get_outputs()]
    results: list[Any] = list(session.run(None, feeds))
    values: dict[str, Array] = dict(zip(names, results, strict=True))
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return values | constants | feeds


class Pieces:
    """The graph, cut at its quantised tensors."""

    def __init__(self, model: ModelProto, values: dict[str, Array]):
        self.model = model
        self.values = values
        self.producers = {o: n for n in model.graph.node for o in n.output if o}
        self.constants = {t.name: t for t in model.graph.initializer}

    def quantized(self) -> list[NodeProto]:
        """The nodes that make a quantised tensor of what is known at run time only."""
        quantizes = [n for n in self.model.graph.node if n.op_type == QUANTIZE]
        return [n for n in quantizes if self._inputs(self._upstream(n.input[0]))]

    def _upstream(self, output: str) -> list[NodeProto]:
        """The nodes that make `output` of quantised tensors, inputs and constants."""
        wanted, stack = set[str](), [output]
        while stack:
            node = self.producers.get(stack.pop())
            if node is None or node.output[0] in wanted or node.op_type == QUANTIZE:
                continue
            wanted.add(node.output[0])
            stack += [i for i in node.input if i]
        return [n for n in self.model.graph.node if n.output[0] in wanted]

    def _inputs(self, nodes: list[NodeProto], output: str = "") -> list[str]:
        made = {o for n in nodes for o in n.output}
        read = [output] * (output not in made and bool(output))
        read += [i for n in nodes for i in n.input if i]
        return [i for i in dict.fromkeys(read) if i not in made and i not in self.constants]

    def piece(self, quantize: NodeProto, *, real: bool) -> tuple[bytes, list[Array]]:
        """(the model that makes one quantised tensor, or with `real` the number before; its inputs)."""
        nodes = self._upstream(quantize.input[0])
        inputs = self._inputs(nodes, quantize.input[0])
        output = quantize.input[0] if real else quantize.output[0]
        if not real:
            nodes = [*nodes, quantize]
        elif not nodes:
            nodes = [helper.make_node("Identity", [output], ["same"])]
            output = "same"
        read = {i for n in nodes for i in n.input}
        graph: GraphProto = helper.make_graph(
            nodes,
            "piece",
            [self._info(name) for name in inputs],
            [helper.make_empty_tensor_value_info(output)],
            [t for name, t in self.constants.items() if name in read],
        )
        model = helper.make_model(graph, opset_imports=self.model.opset_import)
        model.ir_version = self.model.ir_version
        return model.SerializeToString(), [self.values[name] for name in inputs]

    def _info(self, name: str) -> onnx.ValueInfoProto:
        value = self.values[name]
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, kind, value.shape)

    def compare(self, quantize: NodeProto) -> Step:
        """One quantised tensor, made of onnxruntime's tensors before it."""
        data, inputs = self.piece(quantize, real=False)
        module = import_model(data)
        run_passes(Context(), module, tensor_pipeline())
        (ours,) = (np.asarray(v).astype(np.int64) for v in run(module, inputs))
        theirs = self.values[quantize.output[0]].astype(np.int64)
        differ = ours != theirs
        count = int(differ.sum())
        name = quantize.output[0]
        if not count:
            return Step(name, theirs.size, 0, 0, 0, 0, 0.0, 0.0)
        data, inputs = self.piece(quantize, real=True)
        module = import_model(data)
        (real,) = (np.asarray(v) for v in run(module, inputs, domain="f64"))
        (single,) = (np.asarray(v) for v in run(module, inputs))
        scale = np.float64(self.values[quantize.input[1]].reshape(-1)[0])
        info = np.iinfo(self.values[name].dtype)
        zero = int(self.values[quantize.input[2]].reshape(-1)[0]) if len(quantize.input) > 2 else 0
        steps = real[differ] / scale
        rounded = np.clip(np.rint(steps) + zero, info.min, info.max)
        errors = [
            np.abs(x[differ].astype(np.float64) / scale - steps)
            for x in (single, self.values[quantize.input[0]])
        ]
        # The division of f32 rounds once more.
        error = np.maximum(*errors) + np.abs(steps) * 2.0**-24
        tie = np.abs(steps - np.floor(steps) - 0.5)
        worst = int(np.argmax(tie - error))
        return Step(
            name,
            theirs.size,
            count,
            int((ours[differ] == rounded).sum()),
            int((theirs[differ] == rounded).sum()),
            int(np.abs(ours - theirs).max()),
            float(tie[worst]),
            float(error[worst]),
        )


def with_dims(model: ModelProto, dims: dict[str, int]) -> ModelProto:
    """`model` with its dynamic dimensions fixed."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    return model


def random_feeds(model: ModelProto, seed: int) -> dict[str, Array]:
    """Standard normal numbers for each float input."""
    rng = np.random.default_rng(seed)
    constants = {t.name for t in model.graph.initializer}
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name not in constants:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def main() -> int:
    """Prints a row for each quantised tensor that differs, and a sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--inputs", metavar="NPZ")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model = with_dims(onnx.load(arguments.model), parse_dims(arguments.dim))
    feeds = dict(np.load(arguments.inputs)) if arguments.inputs else None
    pieces = Pieces(model, every_tensor(model, feeds or random_feeds(model, arguments.seed)))
    steps = [pieces.compare(node) for node in pieces.quantized()]
    for s in steps:
        if s.differ:
            print(
                f"{s.name}: {s.differ} of {s.elements} differ, by at most {s.largest}; {s.ours_exact} rounded right here, "
                f"{s.theirs_exact} there; a tie within {s.tie:.2e} of a number that float32 has to within {s.error:.2e}"
                f"{'' if s.explained else '  NOT EXPLAINED'}"
            )
    elements, differ = sum(s.elements for s in steps), sum(s.differ for s in steps)
    exact = sum(s.ours_exact for s in steps)
    print(
        f"{len(steps)} quantised tensors, {sum(not s.differ for s in steps)} of them equal; {differ} of {elements} elements "
        f"differ, at {exact} of these the compiled network has the real number rounded right"
    )
    unexplained = [s.name for s in steps if not s.explained]
    print(f"{len(unexplained)} not explained by ties" + (f": {unexplained}" if unexplained else ""))
    return 1 if unexplained else 0


if __name__ == "__main__":
    raise SystemExit(main())
